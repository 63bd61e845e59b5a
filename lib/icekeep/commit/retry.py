"""Commit a change: the retry loop, and the only caller of a catalog's swap.

Load the table, apply the change to it, swap the pointer; after a conflict, again on the new base. While a catalog or a store
is out of reach, which proves that nothing landed, attempts go on for minutes: hours of work may wait to be committed. An
unknown outcome ends the loop: `outcome.settle` decides it, or it stays unknown and nothing is cleaned up.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import count

import msgspec

from icekeep.catalog.base import Committed, Conflict, Table, Unknown, log_context
from icekeep.catalog.resending import StatusChecks
from icekeep.commit.attempt import Attempt, Change, CommitFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.outcome import RefusedSwaps, added_snapshot, answer_of, remove_all, remove_unused, settle
from icekeep.commit.summary import producer_keys
from icekeep.errors import ConflictError, IcekeepError, OptionError, OutcomeUnknownError, SafetyError, UnavailableError
from icekeep.events import SILENT, CommitRetried, Listener, SnapshotCommitted
from icekeep.runtime import SUBMITTER, SUBMITTERS, Runtime, new_snapshot_id, patience_ms
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import retry_number
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.updates import Update, requirements_for
from icekeep.storage.locations import canonical


def check_submitter(runtime: Runtime) -> None:
    """To be called before work and before each swap.

    Raises:
        UnavailableError: this process is abandoned (`Runtime.is_abandoned`).
        OptionError: the environment variable `ICEKEEP_SUBMITTER`, which says who submitted this process, has a bad value.
    """
    submitter = os.environ.get(SUBMITTER, "")
    if submitter not in ("", *SUBMITTERS):
        raise OptionError(SUBMITTER, given=submitter, expected=" or ".join(map(repr, SUBMITTERS)))
    if runtime.is_abandoned():
        raise UnavailableError(
            "the process that started this one (spark-submit) is gone, so nothing more is committed; run it again, or set "
            f"the environment variable {SUBMITTER}=none where a wrapper starts Python and ends as it should"
        )


_OUTAGE_WAIT_MS = 100
_OUTAGE_WAIT_MAX_MS = 10_000
"""The least wait during an outage, doubled up to a maximum: table properties that want conflicts retried at once must not
flood a catalog that is down."""

_LOCKED_WORK_MAX_MS = 5_000
"""Others wait while an attempt holds the lock from the load to the swap; they give up after about 14 seconds."""

_LOG = logging.getLogger(__name__)


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often and how long a commit is tried; from the table properties `commit.retry.*`.

    Attributes:
        num_retries: how many conflicts are followed by another attempt.
        total_timeout_ms: how long conflicts are retried, the first one always; and how long an outage is waited for.
    """

    num_retries: int
    min_wait_ms: int
    max_wait_ms: int
    total_timeout_ms: int

    @classmethod
    def of(cls, metadata: TableMetadata) -> "RetryPolicy":
        defaults = {"num-retries": 4, "min-wait-ms": 100, "max-wait-ms": 60_000, "total-timeout-ms": 1_800_000}
        return cls(*(retry_number(metadata.properties, f"commit.retry.{name}", one) for name, one in defaults.items()))

    def wait_ms(self, attempt: int, runtime: Runtime) -> int:
        """How long to wait after the `attempt`th attempt: doubled each time, up to 10 % more by chance."""
        wait = min(self.min_wait_ms * 2 ** (attempt - 1), self.max_wait_ms)
        return int(wait * (1 + runtime.uniform(0, 0.1)))


class _Patience:
    """The failures of one commit so far, and whether it goes on.

    Conflicts are counted: each costs work. An outage is timed from its first failure on, of two kinds: one in which the change
    cannot be applied ends when it is applied, one in which the catalog takes no swap ends when it answers one.
    """

    def __init__(self, table: Table, policy: RetryPolicy, runtime: Runtime, listener: Listener) -> None:
        self._table, self._policy = table, policy
        self._runtime, self._listener = runtime, listener
        self._began_ms = runtime.monotonic_ms()
        self._conflicts_count = 0
        self._wait_ms: int | None = None
        self._bases = set[str]()
        self._applying, self._swapping = _Outage(), _Outage()
        self._attempt_began_ms = self._applied_ms = self._began_ms

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One attempt, from the load to the swap, after the wait that the last failure set.

        After a conflict the catalog's lock is held throughout, unless applying takes long: a writer that takes it only at the
        swap has mostly waited for another commit, and comes too late.
        """
        if self._wait_ms is not None:
            self._runtime.sleep_ms(self._wait_ms)
        takes_long = self._applied_ms - self._attempt_began_ms > _LOCKED_WORK_MAX_MS
        is_contended = self._conflicts_count > 0 and not takes_long
        with self._table.catalog.locked(self._table) if is_contended else nullcontext():
            # Time spent waiting for the lock is no time that others wait for us.
            self._attempt_began_ms = self._runtime.monotonic_ms()
            yield

    def applied(self, number: int, base: Table) -> None:
        """The table was loaded and the change applied: any outage that prevented this is over."""
        _LOG.info(
            "%s: attempt %d to commit to %s",
            self._table.name,
            number,
            base.metadata_location,
            extra=log_context(self._table),
        )
        self._bases.add(base.metadata_location)
        self._applying = _Outage()
        self._applied_ms = self._runtime.monotonic_ms()
        # The time this took is no part of an outage in which the catalog takes no swap.
        self._swapping.since_ms += max(0, self._applied_ms - self._swapping.waits_until_ms)

    def after_failure(self, number: int, failure: Conflict | UnavailableError, *, was_applied: bool) -> None:
        """Have the next turn wait: in attempt `number` the swap failed, or the table was not loaded or the change not applied.

        Raises where no attempt is left, and anything that the listener raises on the wait.
        """
        now_ms = self._runtime.monotonic_ms()
        outage = None
        if isinstance(failure, Conflict):
            self._conflicts_count += 1
            self._swapping = _Outage()
            since_ms, reason = self._began_ms, failure.reason
        else:
            if not was_applied:
                # A failed wait takes time as well.
                self._applied_ms = now_ms
            outage = self._swapping if was_applied else self._applying
            if not outage.failures_count:
                outage.since_ms = now_ms
            outage.failures_count += 1
            since_ms, reason = outage.since_ms, failure.message
        # The rest of the timeout is short while the work is being stopped.
        left_ms = since_ms + patience_ms(self._runtime, self._policy.total_timeout_ms) - now_ms
        if outage is None:
            is_late = self._conflicts_count > 1 and left_ms < 0
            if is_late or self._conflicts_count > self._policy.num_retries:
                raise self._too_many_conflicts(number, reason)
            wait_ms = self._policy.wait_ms(self._conflicts_count, self._runtime)
        else:
            if self._runtime.is_abandoned() or left_ms < 0:
                assert isinstance(failure, UnavailableError)
                raise failure
            min_ms = min(_OUTAGE_WAIT_MS * 2 ** (outage.failures_count - 1), _OUTAGE_WAIT_MAX_MS)
            wait_ms = max(min_ms, self._policy.wait_ms(outage.failures_count, self._runtime))
        if self._runtime.is_stopping():
            wait_ms = min(wait_ms, max(left_ms, 0) + 1)
        self._wait_ms = wait_ms
        if outage is not None:
            outage.waits_until_ms = now_ms + wait_ms
        self._listener.on(CommitRetried(self._table.name, number, wait_ms, reason, outage is None))

    def _too_many_conflicts(self, number: int, reason: str) -> ConflictError:
        # A single refusal does not show that nobody changed it: the table was not loaded again.
        if len(self._bases) == 1 and self._conflicts_count > 1:
            return ConflictError(
                f"the catalog refused all {self._conflicts_count} commits to {self._table.name!r} although nobody else "
                f"changed it ({reason}); look for a lock that its owner left, then run it again",
                attempts=number,
            )
        return ConflictError(
            f"others kept changing {self._table.name!r}: gave up after {number} attempts ({reason}); run it again",
            attempts=number,
        )


class _Outage(msgspec.Struct):
    """Consecutive failures: the time of the first, and the end of the wait after the last, by the monotonic clock."""

    failures_count: int = 0
    since_ms: int = 0
    waits_until_ms: int = 0


class CommitResult(msgspec.Struct, frozen=True, kw_only=True):
    """A table after a commit.

    `base` is the table that the attempt which landed was applied to. `snapshot_id` is `None` where the change made no snapshot,
    `changed` false where there was nothing to change. `summary` is that of the snapshot, even if others have expired it since.
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
    runtime: Runtime | None = None,
    listener: Listener = SILENT,
    undo: Callable[[], object] = lambda: None,
) -> CommitResult:
    """Make a change to a table, whatever others do to it meanwhile.

    Args:
        table: the table as it was when the change was planned; it is loaded again for each attempt.
        reader: how the change reads manifests; by default through the table's storage.
        runtime: the catalog's if `None`.
        undo: removes what was made for the change; called where an interrupt, or another error that is not icekeep's, ends
            this call and nothing landed. Only this call knows that: an interrupt that its caller catches may have come
            after the commit.

    Raises:
        ConflictError: the change no longer applies, or conflicts went on for longer than `commit.retry.*` allows. What
            this call wrote is removed.
        OutcomeUnknownError: the last attempt may have landed, perhaps interrupted, or an earlier one that was refused may
            still land; nothing was removed, and callers may remove nothing. Any other `IcekeepError` proves that nothing landed;
            an interrupt proves nothing to callers: one that comes once the commit has landed is raised as it is.
        SafetyError: the table was dropped and created again since it was loaded.
        UnavailableError: the catalog or a store stayed out of reach for longer than `commit.retry.total-timeout-ms`, or for some
            seconds while the work is being stopped (`Runtime.is_stopping`), or this process is abandoned
            (`Runtime.is_abandoned`). What this call wrote is removed.
    """
    return _Commit(table, change, reader, runtime or table.runtime, listener, undo).run()


_BASES_COUNT = 4


class _Commit:
    """One commit: the files of all its attempts, its swaps that may still land, and whether it goes on."""

    def __init__(
        self,
        table: Table,
        change: Change,
        reader: ManifestReader | None,
        runtime: Runtime,
        listener: Listener,
        undo: Callable[[], object],
    ) -> None:
        self._table, self._change, self._runtime, self._listener, self._undo = table, change, runtime, listener, undo
        # A wrong property is refused before anything can be in doubt.
        StatusChecks.of(table.metadata)
        self.files = CommitFiles(
            table.storage,
            str(runtime.new_uuid()),
            producer_keys(table.run),
            own={} if table.run is None else dict(table.run.snapshot_properties),
            carried_keys=() if table.run is None else table.catalog.rules.carried_keys,
        )
        self._reader = reader or ManifestReader(table.storage)
        self.snapshot_id = new_snapshot_id(runtime, table.metadata.snapshots_by_id.keys())
        self._patience = _Patience(table, RetryPolicy.of(table.metadata), runtime, listener)
        self._refused = RefusedSwaps(table, self.snapshot_id)
        # By manifest list, of the last attempts: even a swap that was refused for good may turn out to have landed.
        self._bases: dict[str | None, Table] = {}

    def run(self) -> CommitResult:
        """Attempt until a swap lands, there is nothing to change, or an error ends the commit."""
        for number in count(1):
            with ExitStack() as turn:
                try:
                    turn.enter_context(self._patience.turn())
                    base = reloaded(self._table)
                    # The credentials of the first load may have expired.
                    self.files.reach_through(base.storage)
                    # Before the first attempt a snapshot with this id can only be another's, by chance.
                    own = self._refused.snapshot_in(base) if number > 1 else None
                    updates = self._apply(base, number) if own is None else ()
                except UnavailableError as error:
                    with self._refused.leaving_nothing(self.files, self._undo):
                        self._patience.after_failure(number, error, was_applied=False)
                    continue
                except BaseException:
                    # Nothing of this attempt was shown to the catalog, and earlier ones were refused.
                    with self._refused.leaving_nothing(self.files, self._undo):
                        raise
                if own is None and not updates:
                    if self._refused.may_land():
                        raise self._refused.in_doubt("nothing is left to change")
                    remove_all(self.files)
                    return CommitResult(table=base, base=base, snapshot_id=None, changed=False)
                self._patience.applied(number, base)
                added = own or added_snapshot(updates)
                try:
                    # A snapshot of ours is there, whatever the catalog answered to an earlier swap.
                    outcome = Committed(base) if own is not None else self._swap(base, updates, turn)
                except IcekeepError:
                    raise
                except BaseException as interrupt:
                    # Callers must not clean up either, so it may not look like an interrupt before the swap.
                    raise self._in_doubt(added, repr(interrupt)) from interrupt
                if isinstance(outcome, Committed):
                    return self._result(outcome.table, base, added)
                self._refused.note(base, updates, outcome)
                with self._refused.leaving_nothing(self.files, self._undo):
                    self._patience.after_failure(number, outcome, was_applied=True)
        raise AssertionError("count() does not end")

    def _apply(self, base: Table, number: int) -> Sequence[Update]:
        reader = self._reader.with_storage(base.storage)
        attempt = Attempt(base.metadata, number, self.snapshot_id, self.files, reader, self._runtime)
        updates = self._change.apply(base.metadata, attempt)
        if (added := added_snapshot(updates)) is not None:
            self._bases[added.manifest_list] = base
            if len(self._bases) > _BASES_COUNT:
                del self._bases[next(iter(self._bases))]
        return updates

    def _swap(self, base: Table, updates: Sequence[Update], turn: ExitStack) -> Committed | Conflict | UnavailableError:
        """The outcome of one swap, settled where it was in doubt; `OutcomeUnknownError` where it stays unknown.

        Any other `IcekeepError` proves that nothing landed. An `UnavailableError` is returned, and the files stay: another
        attempt may succeed. The turn ends with the swap, since settling can take long.
        """
        began_ms = self._runtime.monotonic_ms()
        try:
            requirements = requirements_for(base.metadata, updates)
            # As late as possible: the submitter may have died since the last check.
            check_submitter(self._runtime)
            with turn:
                outcome = answer_of(lambda: base.catalog.swap(base, requirements, updates))
        except UnavailableError as error:
            return error
        except IcekeepError as error:
            try:
                with self._refused.leaving_nothing(self.files):
                    raise
            except OutcomeUnknownError:
                raise
            except IcekeepError:
                error.append("nothing was committed")
                raise
        added_id = None if added_snapshot(updates) is None else self.snapshot_id
        spent_ms = self._runtime.monotonic_ms() - began_ms
        outcome = settle(outcome, base, added_id, self._runtime, requirements, spent_ms)
        if isinstance(outcome, Unknown):
            raise self._in_doubt(added_snapshot(updates), outcome.cause, outcome.metadata_location)
        return outcome

    def _result(self, committed: Table, base: Table, added: Snapshot | None) -> CommitResult:
        """The result of a commit that landed; `added` is the snapshot that this attempt was to add, if any."""
        snapshot = None if added is None else committed.metadata.snapshots_by_id.get(added.snapshot_id)
        snapshot_id = None if snapshot is None else snapshot.snapshot_id
        # Before anything else: an interrupt while leftovers are removed must not be taken for one before the commit.
        self._listener.on(SnapshotCommitted(committed.name, snapshot_id, committed.metadata_location))
        if added is not None:
            remove_unused(self.files, snapshot)
        elif not self._refused.may_land():
            # Only earlier attempts wrote files, and those were refused.
            remove_all(self.files)
        if snapshot is not None:
            # An earlier attempt may have landed after all, with the same id, on another base and with other counts.
            base = self._bases.get(snapshot.manifest_list) or self._refused.base_of(snapshot) or base
        reported = snapshot or added
        return CommitResult(
            table=committed.for_run(base.run),
            base=base,
            snapshot_id=snapshot_id,
            changed=True,
            summary={} if reported is None else reported.summary or {},
        )

    def _in_doubt(self, added: Snapshot | None, cause: str, metadata_location: str = "") -> OutcomeUnknownError:
        marks = [] if added is None else [f"snapshot {self.snapshot_id}"]
        marks += [f"metadata {metadata_location!r}"] if metadata_location else []
        return OutcomeUnknownError(
            f"the commit to {self._table.name!r} may or may not have landed ({cause}); nothing was deleted; see whether "
            f"{' or '.join(marks) or 'the change'} is there before anything is run again",
            metadata_location=metadata_location,
            snapshot_id=self.snapshot_id,
        )


def reloaded(table: Table) -> Table:
    """The table as it is now; `SafetyError` where it was dropped and another was created in its place, or it was moved.

    Others may change all that a change can be applied to again: schemas, specs, properties, snapshots and refs; also the
    format version upwards, since an upgrade leaves every file valid (a change that cannot be made in the new version refuses
    by itself), and a table of version 1 without a uuid may be given one, if its history shows that it is the same. They may
    not change the uuid, nor the location, below which the job has put its files and by which it recognises them. No table's
    format version goes down.
    """
    now = table.refresh()
    old, new = table.metadata, now.metadata
    is_same = new.table_uuid == old.table_uuid
    if old.table_uuid is None and new.table_uuid is not None:
        is_same = table.metadata_location in (now.metadata_location, *(one.metadata_file for one in new.metadata_log))
    if not is_same:
        problem = f"is another table now (uuid {new.table_uuid}, was {old.table_uuid})"
    elif canonical(new.location) != canonical(old.location):
        problem = f"was moved to {new.location!r} from {old.location!r}, on which the work was planned; run it again"
    elif new.format_version < old.format_version:
        problem = f"has format version {new.format_version} now, and had {old.format_version}"
    else:
        return now
    raise SafetyError(f"table {table.name!r} {problem}; nothing was changed")


def attach(table: Table, listener: Listener) -> Table:
    """Have a catalog's table point to the metadata of `table` (`Catalog.reattach`); returns the table then.

    For a table whose current metadata file cannot be read. A single attempt, since there is no base to apply it to again.

    Raises:
        ConflictError: the file at `metadata_location` is no longer the current one; nothing was changed.
        OutcomeUnknownError: it may have landed, perhaps interrupted. Any other `IcekeepError` proves that it did not.
        UnsupportedError: the catalog takes no metadata.
        UnavailableError: the catalog or the store is out of reach, or this process is abandoned.
    """
    # A wrong property is refused before anything can be in doubt.
    StatusChecks.of(table.metadata)
    check_submitter(table.runtime)
    cause = None
    try:
        outcome = settle(answer_of(lambda: table.catalog.reattach(table)), table, None, table.runtime)
    except IcekeepError:
        raise
    except BaseException as interrupt:  # noqa: BLE001 - raised below as the cause
        outcome, cause = Unknown(repr(interrupt), ""), interrupt
    if isinstance(outcome, Committed):
        listener.on(SnapshotCommitted(table.name, None, outcome.table.metadata_location))
        return outcome.table
    if isinstance(outcome, Conflict):
        raise ConflictError(f"table {table.name!r} was changed meanwhile: {outcome.reason}; nothing was changed by us")
    where = f" at {outcome.metadata_location!r}" if outcome.metadata_location else ""
    raise OutcomeUnknownError(
        f"table {table.name!r} may or may not have its metadata again{where} ({outcome.cause}); nothing was deleted; see whether "
        "it loads before anything is run again",
        metadata_location=outcome.metadata_location,
    ) from cause
