"""Swaps that a catalog refused and that may land all the same: what proves of one that it does no longer.

A request that was sent twice on its way, by a proxy that lost patience for example, may be refused while its twin is still at
work. Then the table as it is a moment later shows no snapshot of ours, and a moment after that it does. So whoever wants to
remove what such a swap names needs more than its absence: what it was made for must be over.

Remove what a commit wrote and no snapshot names. Only done when the outcome is known.

Only locations that this very commit wrote are ever given to the storage; nothing is listed. A file that cannot be removed
stays as an orphan: the commit's outcome is decided already, and cleaning must not change it.

After an unknown outcome: look, and turn it into a known one if what is seen proves it.

Finding our snapshot, or our metadata file in the table's history, proves that the commit landed. Not finding it proves
nothing: the request may still be on its way. So unknown stays unknown, and nobody cleans up.

Whether this process may still work and commit, as far as whoever started it is concerned.

Commit a change: the loop that tries a change again, and the only caller of a catalog's swap.

Load the table, apply the change to it, swap the pointer; after a conflict, once more on the new base. While a catalog or a
store is out of reach, which proves that nothing landed, it is tried again for minutes: hours of work may wait to be
committed. An unknown outcome ends the loop: it is settled by looking (`settle.py`), or it stays unknown and nothing is
cleaned up.

A table is given metadata again whose current file cannot be read: no change that could be tried again, so one attempt.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import count

import msgspec

from icekeep.catalog.base import Committed, Conflict, Table, Unknown
from icekeep.catalog.log_context import log_context
from icekeep.catalog.status_checks import StatusChecks
from icekeep.catalog.version_files import parse_version_name
from icekeep.commit.attempt import Attempt, Change, CommitFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.summary import maker_keys
from icekeep.errors import (
    ConflictError,
    IcekeepError,
    NotFoundError,
    OptionError,
    OutcomeUnknownError,
    SafetyError,
    UnavailableError,
    one_line,
)
from icekeep.events import SILENT, CommitRetried, Listener, SnapshotCommitted
from icekeep.runtime import SUBMITTER, SUBMITTERS, Runtime, new_snapshot_id, patience_ms
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import retry_number
from icekeep.spec.requirements import AssertRefSnapshotId, Requirement, failing, requirements_for
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import MINUTE_MS
from icekeep.spec.updates import AddSnapshot, Update
from icekeep.storage.locations import canonical


class LateSwaps:
    """The refused swaps of one commit that may land still; those alone that add its snapshot, as others name no new files."""

    def __init__(self, table: Table, snapshot_id: int) -> None:
        self._table, self._snapshot_id = table, snapshot_id
        self._open: list[tuple[Table, Sequence[Requirement]]] = []

    def refused(self, base: Table, updates: Sequence[Update], answer: Conflict | UnavailableError) -> None:
        """Take note of a swap that was made for `base`, unless the answer proves that it will not land."""
        is_final = answer.is_final if isinstance(answer, Conflict) else not answer.was_sent
        if not is_final and any(isinstance(update, AddSnapshot) for update in updates):
            self._open.append((base, requirements_for(base.metadata, updates)))

    def look(self, now: Table) -> Snapshot | None:
        """The commit's snapshot, if the table has it by now; else what is over is no longer in doubt."""
        found = now.metadata.snapshots_by_id.get(self._snapshot_id)
        if found is None:
            self._open = [(base, needed) for base, needed in self._open if not is_over(base, needed, now)]
        return found

    def may_land(self) -> bool:
        """Whether one may have landed or may come yet; raises no error: one that hid the answer would prove that nothing landed.

        The table is looked at once more, unless nothing is in doubt.
        """
        if not self._open:
            return False
        try:
            return self.look(self._table.refresh()) is not None or bool(self._open)
        except NotFoundError:
            # Nothing lands on a table that is gone.
            return False
        except Exception:  # noqa: BLE001 - whoever's it is, it shows nothing
            return True

    def in_doubt(self, cause: str) -> OutcomeUnknownError:
        """What to raise where one may land: the commit ends by `cause`, and an attempt before may still be carried out."""
        return OutcomeUnknownError(
            f"the commit to {self._table.name!r} ended ({cause}), but an attempt that was refused may have landed or land still; "
            f"nothing was deleted; see in a while whether snapshot {self._snapshot_id} is there before anything is run again",
            metadata_location="",
            snapshot_id=self._snapshot_id,
        )


def is_over(base: Table, requirements: Sequence[Requirement], now: Table) -> bool:
    """Whether a swap that adds a snapshot, was made for `base` and is not to be seen in `now` has not landed and cannot any more.

    Who compares metadata refuses it once that has moved. Others apply it to whatever is current: they refuse what does not meet
    the requirements, and somebody would have to move the branch back to the very snapshot of `base` while the request is under
    way; and a sequence number that another snapshot has by now (spec, "Sequence Numbers"), but for a snapshot without a parent.
    """
    old, new = base.metadata, now.metadata
    if old.table_uuid != new.table_uuid and old.table_uuid is not None:
        return True
    if may_have_expired(new, old):
        return False
    if base.catalog.compares_metadata:
        return now.metadata_location != base.metadata_location
    if failing(requirements, new) is not None:
        return True
    is_first = any(isinstance(one, AssertRefSnapshotId) and one.snapshot_id is None for one in requirements)
    return old.format_version > 1 and new.last_sequence_number >= old.next_sequence_number and not is_first


def may_have_expired(now: TableMetadata, base: TableMetadata) -> bool:
    """Whether a snapshot that was committed on `base`, and is not in `now`, could have come and gone.

    The one with its sequence number is not there; in version 1, which has none, history has any gap at all.
    """
    if base.format_version == 1:
        before, known = base.snapshots_by_id.keys(), now.snapshots_by_id.keys()
        parents = {s.parent_snapshot_id for s in now.snapshots if s.snapshot_id not in before} - {None}
        is_whole = before <= known and parents <= known
        return not is_whole or now.snapshot_log[: len(base.snapshot_log)] != base.snapshot_log
    number = base.next_sequence_number
    return now.last_sequence_number >= number and all(s.sequence_number != number for s in now.snapshots)


@contextmanager
def leaving_nothing(files: CommitFiles, undo: Callable[[], object], late: LateSwaps) -> Iterator[None]:
    """Remove everything that a commit wrote where the block raises; only for a block before which nothing is seen to have landed.

    Args:
        undo: removes what was made for the commit before it began; called where what is raised is no error of ours, as by that
            those who called the commit learn for themselves that nothing landed.
        late: swaps that were refused; as long as one of them may land nothing is removed.

    Raises:
        OutcomeUnknownError: one may; from what the block raised.
    """
    try:
        yield
    except BaseException as error:
        if late.may_land():
            raise late.in_doubt(one_line(error)) from error
        remove_all(files)
        if not isinstance(error, IcekeepError):
            with suppress(Exception):
                undo()
        raise


def remove_all(files: CommitFiles) -> None:
    """Remove everything that a commit wrote which did not land."""
    _remove(files, files.written)


def remove_unused(files: CommitFiles, snapshot: Snapshot | None) -> None:
    """Remove the lists of earlier attempts, and manifests and delete files that the snapshot which landed does not name."""
    if snapshot is None or snapshot.manifest_list not in files.named:
        # The change made no snapshot, or another writer has expired it already: then nobody knows what it named.
        return
    named = files.named[snapshot.manifest_list] | {snapshot.manifest_list}
    _remove(files, [location for location in files.written if location not in named])


def _remove(files: CommitFiles, locations: list[str]) -> None:
    if locations:
        with suppress(Exception):
            files.storage.delete_many(locations)


_LEAST_MS = MINUTE_MS
"""For how long the table is looked at whatever the swap took: one request that hung may have taken all of the time."""


def settle(
    outcome: Committed | Conflict | Unknown,
    base: Table,
    snapshot_id: int | None,
    runtime: Runtime,
    requirements: Sequence[Requirement] = (),
    spent_ms: int = 0,
) -> Committed | Conflict | Unknown:
    """An outcome, made more certain where it is in doubt; raises no error of ours.

    A conflict that is not final may hide our own commit (an answer was lost, the request was sent twice): then it is
    `Committed`, and where the table cannot be loaded to see, it is `Unknown`. So it is where snapshots have expired since,
    ours perhaps among them. It is final where the table has moved on, so that a twin of the request cannot land any more. The
    table is looked at as often and as long as the properties `commit.status-check.*` say.

    Args:
        snapshot_id: of the snapshot that the commit was to add, `None` if it was to add none.
        requirements: those that the swap was made with.
        spent_ms: how long the swap took, which may have asked again itself: the table says how long both may take.
    """
    if isinstance(outcome, Committed) or (isinstance(outcome, Conflict) and outcome.is_final):
        return outcome
    location = outcome.metadata_location if isinstance(outcome, Unknown) else ""
    for table in _looks(base, runtime, spent_ms):
        if table is not None and _has_landed(table, snapshot_id, location):
            return Committed(table)
        if isinstance(outcome, Conflict):
            if table is None or snapshot_id is None:
                return outcome
            if may_have_expired(table.metadata, base.metadata):
                return Unknown(f"{outcome.reason}; that may have been this very commit, expired since", "")
            return Conflict(outcome.reason, is_final=is_over(base, requirements, table))
    if isinstance(outcome, Conflict):
        return Unknown(f"{outcome.reason}; the table cannot be loaded to see whether that was this very commit", "")
    return outcome


def _looks(base: Table, runtime: Runtime, spent_ms: int) -> Iterator[Table | None]:
    """The table as each look finds it, `None` where it is gone; a look that fails shows nothing.

    While the catalog is out of reach looks cost no more than time: the table says how many may fail to find the commit.
    """
    # A bad value was refused before the first attempt; one that was set since then must not hide what became of it.
    checks = StatusChecks.of(base.metadata, is_lenient=True)
    left_count = checks.num_retries + 1
    left_ms = max(checks.total_timeout_ms - spent_ms, min(checks.total_timeout_ms, _LEAST_MS))
    for _ in msgspec.structs.replace(checks, total_timeout_ms=left_ms).turns(runtime):
        try:
            yield base.catalog.load(base.identifier)
        except NotFoundError:
            yield None
        except UnavailableError:
            continue
        except IcekeepError:
            pass
        left_count -= 1
        if not left_count:
            return


def _has_landed(table: Table, snapshot_id: int | None, metadata_location: str) -> bool:
    history = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    # Two writers that want the same version of a table in a directory give it the same name, which proves nothing.
    is_unique = parse_version_name(metadata_location.rsplit("/", 1)[-1]) is None
    return snapshot_id in table.metadata.snapshots_by_id or (is_unique and metadata_location in history)


def check_submitter(runtime: Runtime) -> None:
    """Ask before work and before each swap.

    Raises:
        UnavailableError: this process is abandoned (`Runtime.is_abandoned`).
        OptionError: the environment variable `ICEKEEP_SUBMITTER`, which says who decides that, has another value than it can.
    """
    told = os.environ.get(SUBMITTER, "")
    if told not in ("", *SUBMITTERS):
        raise OptionError(SUBMITTER, given=told, expected=" or ".join(map(repr, SUBMITTERS)))
    if runtime.is_abandoned():
        raise UnavailableError(
            "the process that started this one (spark-submit) is gone, so nothing more is committed; run it again, or set "
            f"the environment variable {SUBMITTER}=none where a wrapper starts Python and ends as it should"
        )


_OUTAGE_WAIT_MS = 100
_OUTAGE_WAIT_MAX_MS = 10_000
"""Least waits while something is out of reach, doubled from the first to the second: a table that wants its conflicts tried
again at once does not want its catalog stormed."""

_LOCKED_WORK_MAX_MS = 5_000
"""Others wait while an attempt holds their lock from the load to the swap; they give up after some fourteen seconds."""

_LOG = logging.getLogger(__name__)


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often and how long a commit is tried; from the table properties `commit.retry.*`.

    Attributes:
        num_retries: how many conflicts are followed by another attempt.
        total_timeout_ms: for how long there are attempts after conflicts, but for the first; and for how long a catalog or
            store that is out of reach is waited for.
    """

    num_retries: int
    min_wait_ms: int
    max_wait_ms: int
    total_timeout_ms: int

    @classmethod
    def of(cls, metadata: TableMetadata) -> "RetryPolicy":
        """Read the properties, with Iceberg's defaults."""

        def number(name: str, default: int) -> int:
            return retry_number(metadata.properties, f"commit.retry.{name}", default)

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


class _Patience:
    """What one commit has seen go wrong, and whether it goes on.

    Conflicts are counted: each costs work. An outage is timed from its first failure on. Two are timed apart: one in which the
    change cannot be applied ends when it is applied, one in which the catalog takes no swap ends when it answers one.
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
        """One attempt, from the load to the swap, after a wait as the last failure said.

        After a conflict others are kept out of the table in the meantime, if that does not take long.
        A writer that waits for a catalog's lock only at the swap has mostly waited for another commit, and comes too late.
        """
        if self._wait_ms is not None:
            self._runtime.sleep_ms(self._wait_ms)
        takes_long = self._applied_ms - self._attempt_began_ms > _LOCKED_WORK_MAX_MS
        is_contended = self._conflicts_count > 0 and not takes_long
        with self._table.catalog.locked(self._table) if is_contended else nullcontext():
            # However long the lock was waited for, others waited no longer for it.
            self._attempt_began_ms = self._runtime.monotonic_ms()
            yield

    def applied(self, number: int, base: Table) -> None:
        """The table was loaded and the change applied to it, and is tried: whatever kept that from being done is over."""
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
        # However long that took, it says nothing about a catalog that takes no swap.
        self._swapping.leave_out_work(self._applied_ms)

    def after_failed_apply(self, number: int, error: UnavailableError) -> None:
        """Take note of attempt `number`, in which the table could not be loaded or the change applied.

        Raises where no attempt is left, and whatever ends the job when it is told of the wait.
        """
        # What is waited for in vain takes time as well.
        self._applied_ms = self._runtime.monotonic_ms()
        self._after_failure(number, error, self._applying)

    def after(self, number: int, outcome: Conflict | UnavailableError) -> None:
        """The same after a swap that was refused, or that the catalog did not take."""
        if isinstance(outcome, Conflict):
            self._after_conflict(number, outcome.reason)
        else:
            self._after_failure(number, outcome, self._swapping)

    def _after_conflict(self, number: int, reason: str) -> None:
        self._conflicts_count += 1
        self._swapping = _Outage()
        left_ms = self._left_ms(self._began_ms)
        is_late = self._conflicts_count > 1 and left_ms < 0
        if is_late or self._conflicts_count > self._policy.num_retries:
            # One refusal alone does not show that nobody changed it: the table was not loaded again.
            if len(self._bases) == 1 and self._conflicts_count > 1:
                raise ConflictError(
                    f"the catalog refused all {self._conflicts_count} commits to {self._table.name!r} although nobody else "
                    f"changed it ({reason}); look for a lock that its owner left, then run it again",
                    attempts=number,
                )
            raise ConflictError(
                f"others kept changing {self._table.name!r}: gave up after {number} attempts ({reason}); run it again",
                attempts=number,
            )
        wait_ms = self._cut(self._policy.wait_ms(self._conflicts_count, self._runtime), left_ms)
        self._tell(number, wait_ms, reason, is_conflict=True)

    def _after_failure(self, number: int, error: UnavailableError, outage: "_Outage") -> None:
        now_ms = self._runtime.monotonic_ms()
        if not outage.failures_count:
            outage.since_ms = now_ms
        outage.failures_count += 1
        left_ms = self._left_ms(outage.since_ms)
        if self._runtime.is_abandoned() or left_ms < 0:
            raise error
        min_ms = min(_OUTAGE_WAIT_MS * 2 ** (outage.failures_count - 1), _OUTAGE_WAIT_MAX_MS)
        wait_ms = self._cut(max(min_ms, self._policy.wait_ms(outage.failures_count, self._runtime)), left_ms)
        outage.waits_until_ms = now_ms + wait_ms
        self._tell(number, wait_ms, error.message)

    def _left_ms(self, since_ms: int) -> int:
        """How much of the time is left that is waited from a moment on; little where the work is being stopped."""
        timeout_ms = patience_ms(self._runtime, self._policy.total_timeout_ms)
        return since_ms + timeout_ms - self._runtime.monotonic_ms()

    def _cut(self, wait_ms: int, left_ms: int) -> int:
        """A wait, which ends with the time where the work is being stopped."""
        return min(wait_ms, max(left_ms, 0) + 1) if self._runtime.is_stopping() else wait_ms

    def _tell(self, number: int, wait_ms: int, reason: str, *, is_conflict: bool = False) -> None:
        self._wait_ms = wait_ms
        self._listener.on(CommitRetried(self._table.name, number, wait_ms, reason, is_conflict))


class _Outage(msgspec.Struct):
    """Failures in a row, when the first was, and until when the last one is waited for, by the monotonic clock."""

    failures_count: int = 0
    since_ms: int = 0
    waits_until_ms: int = 0

    def leave_out_work(self, now_ms: int) -> None:
        """Move the beginning by what has passed since the last wait."""
        self.since_ms += max(0, now_ms - self.waits_until_ms)


class CommitResult(msgspec.Struct, frozen=True, kw_only=True):
    """A table after a commit.

    `base` is the table that the change was applied to, the true predecessor. `snapshot_id` is `None` where the change made
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
    runtime: Runtime | None = None,
    listener: Listener = SILENT,
    undo: Callable[[], object] = lambda: None,
) -> CommitResult:
    """Make a change to a table, whatever others do to it meanwhile.

    Args:
        table: the table as it was when the change was planned; it is loaded anew for each attempt.
        reader: how the change reads manifests; by default through the table's storage.
        runtime: the catalog's if `None`.
        undo: removes what was made for the change; called where an interrupt, or another error that is none of ours, ends
            this call and nothing landed. Only this call knows that: an interrupt that its caller sees may have come after
            the commit, and proves nothing.

    Raises:
        ConflictError: the change no longer applies, or conflicts went on for longer than `commit.retry.*` allows. What
            this call wrote is removed.
        OutcomeUnknownError: the last attempt may have landed, also where an interrupt met it, or one before may land still
            whose refusal proves nothing; nothing was removed, and whoever catches this may remove nothing. Any other error
            proves that nothing landed.
        SafetyError: the table was dropped and made again since it was loaded.
        UnavailableError: the catalog or a store stayed out of reach for longer than `commit.retry.total-timeout-ms`, or for some
            seconds while the work is being stopped (`Runtime.is_stopping`), or this process is abandoned
            (`Runtime.is_abandoned`). What this call wrote is removed.
    """
    runtime = runtime or table.runtime
    # A wrong property is refused before anything can be in doubt.
    StatusChecks.of(table.metadata)
    files = _files_of(table, runtime)
    reader = reader or ManifestReader(table.storage)
    snapshot_id = new_snapshot_id(runtime, table.metadata.snapshots_by_id.keys())
    patience = _Patience(table, RetryPolicy.of(table.metadata), runtime, listener)
    late, base = LateSwaps(table, snapshot_id), table
    for number in count(1):
        with ExitStack() as turn:
            try:
                turn.enter_context(patience.turn())
                tried, base = base, reloaded(table)
                # Before the first attempt it can only be another's, of the same id by chance.
                found = late.look(base) if number > 1 else None
                files.reach_through(base.storage)
                # So has the reader to take them anew: that of a long run was made hours ago.
                attempt = Attempt(base.metadata, number, snapshot_id, files, reader.with_storage(base.storage), runtime)
                updates = change.apply(base.metadata, attempt) if found is None else ()
            except UnavailableError as error:
                with leaving_nothing(files, undo, late):
                    patience.after_failed_apply(number, error)
                continue
            except BaseException:
                # Nothing of this attempt was shown to the catalog, and earlier ones were refused.
                with leaving_nothing(files, undo, late):
                    raise
            if not updates and found is None:
                return _unchanged(base, files, late)
            made = next((update.snapshot for update in updates if isinstance(update, AddSnapshot)), None)
            patience.applied(number, base)
            try:
                if found is not None:
                    # It has landed, whatever the catalog said of it: what it names is the live table's.
                    return _landed(base, tried, found, files, late, listener)
                outcome = _swap(base, updates, snapshot_id, files, runtime, late, turn)
                if isinstance(outcome, Committed):
                    return _landed(outcome.table, base, made, files, late, listener)
            except IcekeepError:
                raise
            except BaseException as interrupt:
                # Whoever catches this must not clean up either, so it may not look like an interrupt before the swap.
                raise _in_doubt(base, updates, snapshot_id, repr(interrupt)) from interrupt
            late.refused(base, updates, outcome)
            with leaving_nothing(files, undo, late):
                patience.after(number, outcome)
    raise AssertionError("count() does not end")


def _files_of(table: Table, runtime: Runtime) -> CommitFiles:
    """The files of a new commit, with what its snapshot's summary says beside the counts."""
    run = table.run
    return CommitFiles(
        table.storage,
        str(runtime.new_uuid()),
        maker_keys(run),
        own={} if run is None else dict(run.snapshot_properties),
        carried_keys=() if run is None else table.catalog.rules.carried_keys,
    )


def _swap(
    base: Table,
    updates: Sequence[Update],
    snapshot_id: int,
    files: CommitFiles,
    runtime: Runtime,
    late: LateSwaps,
    turn: ExitStack,
) -> Committed | Conflict | UnavailableError:
    """The outcome of one swap, as certain as looking makes it; an error of ours proves that nothing landed.

    One that is about reach is no more than an outcome, and the files stay: another attempt may succeed. The turn ends with the
    swap: looking at what became of it can take long.

    Raises:
        OutcomeUnknownError: it stays unknown.
    """
    began_ms = runtime.monotonic_ms()
    try:
        requirements = requirements_for(base.metadata, updates)
        # As late as it can be: what is asked earlier says nothing of a death in between.
        check_submitter(runtime)
        with turn:
            outcome = base.catalog.swap(base, requirements, updates)
    except OutcomeUnknownError as error:
        outcome = Unknown(error.message, str(error.facts.get("metadata_location", "")))
    except UnavailableError as error:
        return error
    except IcekeepError as error:
        try:
            with leaving_nothing(files, lambda: None, late):
                raise
        except OutcomeUnknownError:
            raise
        except IcekeepError:
            error.append("nothing was committed")
            raise
    adds_snapshot = any(isinstance(update, AddSnapshot) for update in updates)
    added_id = snapshot_id if adds_snapshot else None
    outcome = settle(outcome, base, added_id, runtime, requirements, runtime.monotonic_ms() - began_ms)
    if isinstance(outcome, Unknown):
        raise _in_doubt(base, updates, snapshot_id, outcome.cause, outcome.metadata_location)
    return outcome


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
    """The table as it is now, if it is the one that was loaded.

    What others may change under a job: all that a change can be applied anew to, schemas, specs, properties, snapshots and
    refs, and the format version upwards, since an upgrade leaves every file valid (a change that cannot be made in the new
    version refuses by itself). A table of version 1 without a uuid may be given one, if its history shows that it is the
    same. What they may not change, since the work was planned on it: the uuid, and the location, below which the job has
    put its files and by which it tells its own from others'. A format version that went down is no history of one table.

    Raises:
        SafetyError: it was dropped and another was made in its place, or it was moved.
        NotFoundError, UnavailableError: as `Catalog.load` does.
    """
    now = table.refresh()
    old, new = table.metadata, now.metadata
    if not _is_same(table, now):
        problem = f"is another table now (uuid {new.table_uuid}, was {old.table_uuid})"
    elif canonical(new.location) != canonical(old.location):
        problem = f"was moved to {new.location!r} from {old.location!r}, on which the work was planned; run it again"
    elif new.format_version < old.format_version:
        problem = f"has format version {new.format_version} now, and had {old.format_version}"
    else:
        return now
    raise SafetyError(f"table {table.name!r} {problem}; nothing was changed")


def _is_same(table: Table, now: Table) -> bool:
    """Whether the table that is there now is the one that was loaded."""
    if table.metadata.table_uuid is None and now.metadata.table_uuid is not None:
        history = [now.metadata_location, *(entry.metadata_file for entry in now.metadata.metadata_log)]
        return table.metadata_location in history
    return now.metadata.table_uuid == table.metadata.table_uuid


def _unchanged(base: Table, files: CommitFiles, late: LateSwaps) -> CommitResult:
    """What a commit leaves that has nothing to change, or nothing any more."""
    if late.may_land():
        raise late.in_doubt("nothing is left to change")
    remove_all(files)
    return CommitResult(table=base, base=base, snapshot_id=None, changed=False)


def _landed(
    committed: Table, base: Table, made: Snapshot | None, files: CommitFiles, late: LateSwaps, listener: Listener
) -> CommitResult:
    """What a commit that landed leaves; `made` is the snapshot that this attempt was to add, if any."""
    snapshot = None if made is None else committed.metadata.snapshots_by_id.get(made.snapshot_id)
    if made is None:
        # Only earlier attempts wrote anything, and those were refused.
        if not late.may_land():
            remove_all(files)
    else:
        remove_unused(files, snapshot)
    snapshot_id = None if snapshot is None else snapshot.snapshot_id
    listener.on(SnapshotCommitted(committed.name, snapshot_id, committed.metadata_location))
    # The one that landed may be that of an attempt before, with the same id and other counts.
    told = snapshot or made
    summary = {} if told is None else told.summary or {}
    return CommitResult(
        table=committed.for_run(base.run), base=base, snapshot_id=snapshot_id, changed=True, summary=summary
    )


def attach(table: Table, listener: Listener) -> Table:
    """Have a table begin again from the metadata of `table`, as `Catalog.reattach` does; returns it as it is then.

    Raises:
        ConflictError: the file at `metadata_location` is not the current one any more; nothing was changed.
        OutcomeUnknownError: it may have landed, also where an interrupt met it. Any other error proves that it did not.
        UnsupportedError: the catalog takes no metadata.
        UnavailableError: the catalog or the store is out of reach, or this process is abandoned.
    """
    # A wrong property is refused before anything can be in doubt.
    StatusChecks.of(table.metadata)
    check_submitter(table.runtime)
    try:
        try:
            outcome = table.catalog.reattach(table)
        except OutcomeUnknownError as error:
            outcome = Unknown(error.message, str(error.facts.get("metadata_location", "")))
        outcome = settle(outcome, table, None, table.runtime)
        if isinstance(outcome, Committed):
            listener.on(SnapshotCommitted(table.name, None, outcome.table.metadata_location))
            return outcome.table
    except IcekeepError:
        raise
    except BaseException as interrupt:
        raise _attaching_in_doubt(table, repr(interrupt), "") from interrupt
    if isinstance(outcome, Conflict):
        raise ConflictError(f"table {table.name!r} was changed meanwhile: {outcome.reason}; nothing was changed by us")
    raise _attaching_in_doubt(table, outcome.cause, outcome.metadata_location)


def _attaching_in_doubt(table: Table, cause: str, metadata_location: str) -> OutcomeUnknownError:
    where = f" at {metadata_location!r}" if metadata_location else ""
    return OutcomeUnknownError(
        f"table {table.name!r} may or may not have its metadata again{where} ({cause}); nothing was deleted; see whether it "
        "loads before anything is run again",
        metadata_location=metadata_location,
    )
