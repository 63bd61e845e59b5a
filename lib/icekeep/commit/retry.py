"""Commit a change: the only loop, and the only caller of a catalog's swap.

Load the table, apply the change to it, swap the pointer; after a conflict, once more on the new base. An unknown outcome
ends the loop: it is settled by looking (`settle.py`), or it stays unknown and nothing is cleaned up.
"""

from collections.abc import Mapping, Sequence
from itertools import count

import msgspec

from icekeep.catalog.base import Committed, SwapOutcome, Table, Unknown
from icekeep.commit.attempt import Attempt, CommitFiles
from icekeep.commit.changes.base import Change
from icekeep.commit.cleanup import remove_all, remove_unused
from icekeep.commit.manifests import EntryMemory, ManifestReader, StorageManifestReader
from icekeep.commit.settle import settle, validate_status_checks
from icekeep.errors import ConflictError, IcekeepError, OptionError, OutcomeUnknownError, SafetyError, UnavailableError
from icekeep.events import SILENT, CommitRetried, Listener, SnapshotCommitted
from icekeep.runtime import SYSTEM, Runtime, new_snapshot_id
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.requirements import requirements_for
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.updates import AddSnapshot, Update


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often and how long a commit is tried; from the table properties `commit.retry.*`."""

    num_retries: int
    min_wait_ms: int
    max_wait_ms: int
    total_timeout_ms: int

    @classmethod
    def of(cls, metadata: TableMetadata) -> "RetryPolicy":
        """Read the properties, with Iceberg's defaults."""

        def number(name: str, default: int) -> int:
            text = metadata.properties.get(f"commit.retry.{name}", str(default))
            if not text.isdecimal():
                raise OptionError(f"table property commit.retry.{name}", given=text, expected="a whole number")
            return int(text)

        return cls(
            number("num-retries", 4),
            number("min-wait-ms", 100),
            number("max-wait-ms", 60_000),
            number("total-timeout-ms", 1_800_000),
        )

    def wait_ms(self, attempt: int, runtime: Runtime) -> int:
        """How long to wait after the `attempt`th attempt: doubled each time, up to 10 % more by chance."""
        wait = min(self.min_wait_ms * 2 ** (attempt - 1), self.max_wait_ms)
        return int(wait * (1 + runtime.uniform(0, 0.1)))


class CommitResult(msgspec.Struct, frozen=True, kw_only=True):
    """A table after a commit.

    `base` is the table that the change was applied to, the true predecessor. `snapshot_id` is null where the change made
    no snapshot, `changed` false where there was nothing to change and nothing was committed. `summary` is that of the
    snapshot, also where others have expired it since.
    """

    table: Table
    base: Table
    snapshot_id: int | None
    changed: bool
    summary: Mapping[str, str] = {}


def commit(
    table: Table,
    change: Change,
    *,
    reader: ManifestReader | None = None,
    runtime: Runtime = SYSTEM,
    listener: Listener = SILENT,
) -> CommitResult:
    """Make a change to a table, whatever others do to it meanwhile.

    Args:
        table: the table as it was when the change was planned; it is loaded anew for each attempt.
        reader: how the change reads manifests; by default through the table's storage.

    Raises:
        ConflictError: the change no longer applies, or conflicts went on for longer than `commit.retry.*` allows. What
            this call wrote is removed.
        OutcomeUnknownError: the last attempt may have landed, also where an interrupt met it; nothing was removed, and
            whoever catches this may remove nothing. Any other error proves that nothing landed.
        SafetyError: the table was dropped and made again since it was loaded.
        UnavailableError: this process is abandoned (`Runtime.is_abandoned`). What this call wrote is removed.
    """
    policy = RetryPolicy.of(table.metadata)
    validate_status_checks(table.metadata)
    files = CommitFiles(table.storage, str(runtime.new_uuid()))
    memory = EntryMemory()
    snapshot_id = new_snapshot_id(runtime, table.metadata.snapshots_by_id.keys())
    began_ms = runtime.monotonic_ms()
    wait_ms = 0
    for number in count(1):
        try:
            if number > 1:
                runtime.sleep_ms(wait_ms)
            base = reloaded(table)
            # A catalog may hand out credentials for a while, with each load anew.
            files.storage = base.storage
            entries = reader or StorageManifestReader(base.storage, memory)
            attempt = Attempt(base.metadata, number, snapshot_id, files, entries, runtime)
            updates = change.apply(base.metadata, attempt)
        except BaseException:
            # Nothing of this attempt was shown to the catalog, and earlier ones were rejected.
            remove_all(files)
            raise
        if not updates:
            remove_all(files)
            return CommitResult(table=base, base=base, snapshot_id=None, changed=False)
        made = next((update.snapshot for update in updates if isinstance(update, AddSnapshot)), None)
        try:
            outcome = _swap(base, updates, snapshot_id if made else None, files, runtime)
            if isinstance(outcome, Committed):
                return _landed(outcome.table, base, made, files, listener)
        except IcekeepError:
            raise
        except BaseException as interrupt:
            # Whoever catches this must not clean up either, so it may not look like an interrupt before the swap.
            raise _in_doubt(base, updates, snapshot_id, repr(interrupt)) from interrupt
        if isinstance(outcome, Unknown):
            raise _in_doubt(base, updates, snapshot_id, outcome.cause, outcome.metadata_location)
        elapsed_ms = runtime.monotonic_ms() - began_ms
        if number > policy.num_retries or (number > 1 and elapsed_ms > policy.total_timeout_ms):
            remove_all(files)
            raise ConflictError(
                f"others kept changing {table.name!r}: gave up after {number} attempts ({outcome.reason}); run it again",
                attempts=number,
            )
        wait_ms = policy.wait_ms(number, runtime)
        listener.on(CommitRetried(table.name, number, wait_ms, outcome.reason))
    raise AssertionError("count() does not end")


def _swap(
    base: Table, updates: Sequence[Update], snapshot_id: int | None, files: CommitFiles, runtime: Runtime
) -> SwapOutcome:
    """The outcome of one swap, as certain as looking makes it; an error of ours proves that nothing landed."""
    try:
        requirements = requirements_for(base.metadata, updates)
        # As late as it can be: what is asked earlier says nothing of a death in between.
        if runtime.is_abandoned():
            raise UnavailableError(
                f"the process that started this one is gone, so nothing more is committed to {base.name!r}; run it again"
            )
        outcome = base.catalog.swap(base, requirements, updates)
    except OutcomeUnknownError as error:
        outcome = Unknown(error.message, str(error.facts.get("metadata_location", "")))
    except IcekeepError:
        remove_all(files)
        raise
    return settle(outcome, base, snapshot_id, runtime)


def _in_doubt(
    base: Table, updates: Sequence[Update], snapshot_id: int, cause: str, metadata_location: str = ""
) -> OutcomeUnknownError:
    marks = [f"snapshot {snapshot_id}"] if any(isinstance(u, AddSnapshot) for u in updates) else []
    marks += [f"metadata {metadata_location!r}"] if metadata_location else []
    return OutcomeUnknownError(
        f"the commit to {base.name!r} may or may not have landed ({cause}); nothing was deleted; see whether "
        f"{' or '.join(marks) or 'the change'} is there before anything is run again",
        metadata_location=metadata_location,
        snapshot_id=snapshot_id,
    )


def reloaded(table: Table) -> Table:
    """The table as it is now; raises `SafetyError` where it was dropped and another was made in its place."""
    base = table.catalog.load(table.identifier)
    if base.metadata.table_uuid != table.metadata.table_uuid:
        raise SafetyError(
            f"table {table.name!r} is another table now (uuid {base.metadata.table_uuid}, was {table.metadata.table_uuid}); "
            "nothing was changed"
        )
    return base


def _landed(
    committed: Table, base: Table, made: Snapshot | None, files: CommitFiles, listener: Listener
) -> CommitResult:
    """What a commit that landed leaves; `made` is the snapshot that this attempt was to add, if any."""
    snapshot = None if made is None else committed.metadata.snapshots_by_id.get(made.snapshot_id)
    if made is None:
        # Only earlier attempts wrote anything, and those were rejected.
        remove_all(files)
    else:
        remove_unused(files, snapshot)
    snapshot_id = None if snapshot is None else snapshot.snapshot_id
    listener.on(SnapshotCommitted(committed.name, snapshot_id, committed.metadata_location))
    summary = {} if made is None else made.summary or {}
    return CommitResult(table=committed, base=base, snapshot_id=snapshot_id, changed=True, summary=summary)
