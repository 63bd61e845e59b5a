"""A run of a job that writes new files: what protects it from jobs beside it, and these from it, until its commit.

**It is alive**, and says so (`alive.py`).

**Its start does not expire.** With the snapshot that a run reads the files would go that it is still reading. A tag pins it.
The age of a reference is that of its snapshot, so the tag is given that age and a day: a run that died without dropping its tag
is in nobody's way for longer; one that lives longer renews it with its heartbeat. Short runs pay for a tag too: other engines
know nothing of beats, and in a table that was idle for a week the snapshot is old enough to expire with the next commit of
somebody else. The price is two versions of the metadata a run: a writer that needs `w` ms from load to swap and commits every
`c` ms meets one of them in `2 w / c` of the runs, and tries again at once (measured: 0.2 conflicts a run for one that commits
three times a second).

**Its files are known by name**, those of tasks too. A name is a file below `.icekeep/runs/<run>/written/`, from before its file
is made until that is committed or removed. Spark may do a task twice, and end one in the middle: at the end of a run the driver
removes the files of attempts that never reported. Of those that did it removes none here: they may be in a commit. A commit of
a run that is older than what orphan removal spares checks first that its new files are still there.

**It plans again what others changed.** A commit follows what others do to the table, as far as its change can
(`commit/retry.py`). Where they changed what it replaces it is refused, and no attempt helps: the job plans again, on the table
as it is now. That a commit was refused proves that nothing of it landed, so no plan can be committed twice.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from hashlib import blake2b
from itertools import count
from typing import Any, BinaryIO, Self, TypeVar

import msgspec

from icekeep.catalog.base import Table, log_context
from icekeep.commit.attempt import Attempt, Change
from icekeep.commit.changes.snapshots import CreateRef, DropRef
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import CommitResult, RetryPolicy, check_submitter, commit, reloaded
from icekeep.errors import (
    ConflictError,
    IcekeepError,
    InvalidTableError,
    OutcomeUnknownError,
    PropertyError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    reason_of,
    shown_command,
)
from icekeep.events import Listener, Warned
from icekeep.maintenance.rewrite.alive import Heartbeat
from icekeep.runtime import Runtime, cleaning_up, interrupt_behind
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import own_directory
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.types import DAY_MS
from icekeep.spec.updates import SetSnapshotRef, Update
from icekeep.storage.base import REQUESTS_AT_ONCE, DeleteOutcome, DeleteStatus, Storage, head_many
from icekeep.storage.wrappers import StorageWrapper

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


def retry_with_replan(
    table: Table,
    plan_and_commit: Callable[[Table, int], T],
    *,
    what: Callable[[], str],
    listener: Listener,
    only_once: bool = False,
) -> T:
    """Plan and commit, and again for as long as others change what a plan replaces.

    A job plans as often as a commit is tried: once, and up to `commit.retry.num-retries` times more. It waits in between as a
    commit does (`commit.retry.min-wait-ms`, `max-wait-ms`). How long the plans take together is not limited, as nobody knows how
    long the work of one takes. Nothing but a conflict is a reason to plan again, and not each of them: see
    `ConflictError.is_outpaced`.

    Args:
        table: what the first plan is made on; its properties say how often there is another.
        plan_and_commit: takes the table as it is, and the number of the plan, from 1. Where it raises nothing is left of what
            it has written and not committed, but for what it keeps for the next plan.
        what: is planned again, for messages, such as `6 data files`; asked after each refusal.
        only_once: the plan is a saved one: that, or nothing.

    Returns:
        What came of the plan that no conflict ended. A job of several commits adds up by itself what earlier ones did.

    Raises:
        ConflictError: another plan would not help, or the last one that is allowed was refused as well.
        InvalidTableError: two plans in a row were refused on a table that nobody else has changed, so that no plan would help;
            one alone may have met a file that was.
        SafetyError: the table was dropped and made again meanwhile, or moved: it is another table, which nobody asked for.
        NotFoundError, UnavailableError: the table cannot be loaded; or this process is abandoned (`Runtime.is_abandoned`), and
            may not commit what it would plan.
        Exception: whatever else `plan_and_commit` raises.
    """
    runtime, policy = table.runtime, RetryPolicy.of(table.metadata)
    was_alone = False
    for number in count(1):
        try:
            return plan_and_commit(table, number)
        except ConflictError as error:
            if error.is_outpaced or only_once:
                raise
            refusal = error
        check_submitter(runtime)
        before, was_alone = was_alone, _without_tags(table.metadata) == _without_tags(reloaded(table).metadata)
        if before and was_alone:
            raise InvalidTableError(
                f"cannot commit the plan for {what()} of {table.name!r}: {refusal.message}; nobody else has changed the table, "
                "so its metadata contradicts itself; run "
                f"`{shown_command('check', '--table', table.full_name, '--deep')}` to find where",
                location=table.metadata_location,
            ) from refusal
        if number > policy.num_retries:
            raise ConflictError(
                f"others kept changing {what()} of {table.name!r}: gave up after {number} plans ({refusal.message}); "
                "run it again",
                plans=number,
            ) from refusal
        listener.on(Warned(f"{what()} of {table.name!r} are planned again: {refusal.message}"))
        runtime.sleep_ms(policy.wait_ms(number, runtime))
        table = reloaded(table)
        _LOG.info(
            "%s: plan %d is made on %s", table.name, number + 1, table.metadata_location, extra=log_context(table)
        )
    raise AssertionError("count() does not end")


def _without_tags(metadata: TableMetadata) -> TableMetadata:
    """All that a version says but its tags, such as a job pins its start by."""
    branches = {name: ref for name, ref in metadata.refs.items() if ref.is_branch}
    return msgspec.structs.replace(metadata, refs=branches, metadata_log=(), last_updated_ms=0)


def discard_files(storage: Storage, locations: Iterable[str], listener: Listener) -> None:
    """Remove files that a job wrote and that no snapshot names; warn of those that cannot be removed."""
    failed = [one for one in storage.delete_many({*locations}) if one.status is DeleteStatus.FAILED]
    if failed:
        listener.on(
            Warned(
                f"{len(failed)} new files that no snapshot names could not be removed, {failed[0].location!r} among them "
                f"({failed[0].reason}); they stay until orphan files are removed"
            )
        )


@contextmanager
def undoing(undo: Callable[[], object]) -> Iterator[None]:
    """Undo what was written where the block fails, whatever the error."""
    try:
        yield
    except BaseException:
        undo()
        raise


class _RequiringFiles(msgspec.Struct, frozen=True):
    """A change that is applied only where the new files of an old run are still there, as each attempt checks at its end."""

    change: Change
    locations: tuple[str, ...]
    heartbeat: Heartbeat

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        updates = self.change.apply(base, attempt)
        if updates:
            self.heartbeat.check_there(self.locations)
        return updates


class RewriteRun:
    """One run, from before it writes its first file of a plan until its commits: entered it is alive, and its files are known.

    Attributes:
        table: as it was planned on; a run of several plans sets it for each.
        run_id: in the names of all its new files.
        written: these files.
    """

    def __init__(self, table: Table, job: str, run_id: str, listener: Listener) -> None:
        self.table, self.run_id, self.listener = table, run_id, listener
        self.written = WrittenFiles(table, run_id, listener)
        self.heartbeat = Heartbeat(table, run_id, job, table.runtime, listener)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            entered.enter_context(self.heartbeat)
            entered.enter_context(self.written)
            self._open = entered.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def pinned(self, snapshot_id: int, run_id: str = "") -> AbstractContextManager[str]:
        """Keep the snapshot that is read from expiring while the block lasts; see `pin_snapshot`."""
        table = self.table
        return pin_snapshot(table, snapshot_id, run_id or self.run_id, table.runtime, self.listener, self.heartbeat)

    def send(
        self, change: Change, added: Sequence[str], undo: Callable[[], object], reader: ManifestReader | None = None
    ) -> CommitResult:
        """Commit a change that adds new files of the run.

        An error of icekeep that leaves here proves that it did not land, unless it is an unknown outcome; its caller undoes.

        Args:
            undo: removes the new files, where an interrupt or any other error came before the commit.
        """
        requiring = _RequiringFiles(change, tuple(added), self.heartbeat)
        return commit(
            self.table, requiring, reader=reader, runtime=self.table.runtime, listener=self.listener, undo=undo
        )

    def commit(
        self, change: Change, added: Sequence[str], undo: Callable[[], object], reader: ManifestReader | None = None
    ) -> CommitResult:
        """Commit a change as `send` does, and undo where it did not land."""
        try:
            result = self.send(change, added, undo, reader)
        except OutcomeUnknownError:
            raise
        except IcekeepError:
            undo()
            raise
        self.written.settle(added)
        return result


TAG_PREFIX = "icekeep-rewrite-"
TAG_AGE_MS = DAY_MS
RENEW_AFTER_MS = TAG_AGE_MS // 2


@contextmanager
def pin_snapshot(
    table: Table,
    snapshot_id: int,
    run_id: str,
    runtime: Runtime,
    listener: Listener,
    heartbeat: Heartbeat | None = None,
) -> Iterator[str]:
    """Keep a snapshot from expiring while the block runs, by a tag with the run's name; yields that name.

    The tag goes at the end, whatever came of the block; where it cannot be dropped the listener is warned, and nothing else
    happens. Tags that other runs have left go too, if their age has passed; those of runs that may be alive stay.

    A catalog may refuse tags for good. The tag is an aid, so the listener is warned and the block begins without it: what it
    could lose is its own work, where others expire the snapshot and delete a file before it is read.

    Args:
        heartbeat: renews the tag while the block lasts.

    Raises:
        TryAgainError: the snapshot is gone already, or the tag could not be made now; the block has not begun.
        IcekeepError: as `commit` raises it, where the table is another one, for example; the block has not begun.
    """
    name = f"{TAG_PREFIX}{run_id}"
    try:
        _create(table, name, snapshot_id, runtime, listener)
    except PropertyError:
        # It stops every commit, such as a codec that the catalog cannot write metadata with.
        raise
    except (UsageError, UnsupportedError) as error:
        listener.on(
            Warned(
                f"snapshot {snapshot_id} of {table.name!r} is not held by a tag: {error.message}; the run goes on, and fails "
                "if others expire it meanwhile"
            )
        )
        yield name
        return
    _LOG.info("%s: tag %r holds snapshot %d", table.name, name, snapshot_id, extra=log_context(table))
    if heartbeat is not None:
        heartbeat.with_each_beat = _renewal(table, name, snapshot_id, runtime)
    try:
        _drop_left_over(table, runtime, listener)
        yield name
    finally:
        if heartbeat is not None:
            heartbeat.with_each_beat = lambda: None
        _drop(table, name, snapshot_id, runtime, listener)


class _Pin(msgspec.Struct, frozen=True):
    """The tag to make, where its snapshot is still there."""

    name: str
    ref: SnapshotRef

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if self.ref.snapshot_id not in base.snapshots_by_id:
            raise ConflictError(f"snapshot {self.ref.snapshot_id}, which was planned on, expired meanwhile")
        return CreateRef(self.name, self.ref).apply(base, attempt)


class _Renew(msgspec.Struct, frozen=True):
    """The tag with another age, if it is there: one that was dropped meanwhile is not made again."""

    name: str
    snapshot_id: int
    max_ref_age_ms: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        ref = base.refs.get(self.name)
        if ref is None or ref.snapshot_id != self.snapshot_id:
            return ()
        return (SetSnapshotRef(self.name, msgspec.structs.replace(ref, max_ref_age_ms=self.max_ref_age_ms)),)


def _renewal(table: Table, name: str, snapshot_id: int, runtime: Runtime) -> Callable[[], None]:
    """What gives the tag another day, when the half of its last one is over."""
    renewed_ms = runtime.monotonic_ms()

    def renew() -> None:
        nonlocal renewed_ms
        if runtime.monotonic_ms() - renewed_ms < RENEW_AFTER_MS:
            return
        commit(table, _Renew(name, snapshot_id, _age_ms(table, snapshot_id, runtime)), runtime=runtime)
        renewed_ms = runtime.monotonic_ms()
        _LOG.info("%s: tag %r is renewed", table.name, name, extra=log_context(table))

    return renew


def _age_ms(table: Table, snapshot_id: int, runtime: Runtime) -> int:
    """The age that a snapshot has, and a day."""
    return max(0, runtime.now_ms() - table.metadata.snapshot(snapshot_id).timestamp_ms) + TAG_AGE_MS


def _create(table: Table, name: str, snapshot_id: int, runtime: Runtime, listener: Listener) -> None:
    ref = SnapshotRef(snapshot_id=snapshot_id, type="tag", max_ref_age_ms=_age_ms(table, snapshot_id, runtime))
    try:
        commit(table, _Pin(name, ref), runtime=runtime)
    except OutcomeUnknownError as error:
        # If it lands later than this it goes when its age has passed.
        _drop(table, name, snapshot_id, runtime, listener)
        interrupt = interrupt_behind(error)
        if interrupt is not None:
            raise interrupt from error
        raise UnavailableError(
            f"it is not known whether tag {name!r} of {table.name!r}, which is to hold snapshot {snapshot_id}, was made "
            f"({error.message}); nothing else was done, run it again"
        ) from error


def _drop(table: Table, name: str, snapshot_id: int, runtime: Runtime, listener: Listener) -> None:
    try:
        with cleaning_up():
            commit(table, DropRef(name=name, type="tag", expected_id=snapshot_id), runtime=runtime)
    except Exception as error:  # noqa: BLE001 - whatever it is, what the block has committed is done
        listener.on(
            Warned(
                f"tag {name!r} of {table.name!r}, which held the starting snapshot of a run, could not be dropped: "
                f"{reason_of(error)}; drop it, or leave it to expire"
            )
        )


def _drop_left_over(table: Table, runtime: Runtime, listener: Listener) -> None:
    """Drop what runs have left that must be dead, by the same clock that retention goes by."""
    metadata = table.metadata
    for name, ref in metadata.refs.items():
        snapshot = metadata.snapshots_by_id.get(ref.snapshot_id)
        if ref.is_branch or not name.startswith(TAG_PREFIX) or ref.max_ref_age_ms is None or snapshot is None:
            continue
        if runtime.now_ms() - snapshot.timestamp_ms > ref.max_ref_age_ms:
            _drop(table, name, ref.snapshot_id, runtime, listener)


WRITTEN = "written"
"""The directory of the names, in that of the run."""


class NamingStorage(StorageWrapper):
    """Before a file of a run is made below the table, its name is put into a directory. For tasks."""

    def __init__(self, inner: Storage, directory: str, own: str) -> None:
        super().__init__(inner)
        self._directory, self._own = directory, own

    def __reduce__(self) -> tuple[Any, ...]:
        return NamingStorage, (self.inner, self._directory, self._own)

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        # What lies below the table's own directory goes with its run.
        is_named = not location.startswith(self._own)
        if is_named:
            self.inner.create(_name_of(location, self._directory), location.encode())
        try:
            with self.inner.write(location) as stream:
                yield stream
        except Exception:
            if is_named:
                self._forget([location])
            raise

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        outcomes = self.inner.delete_many(locations)
        self._forget([one.location for one in outcomes if one.status in _GONE])
        return outcomes

    def _forget(self, locations: Iterable[str]) -> None:
        with suppress(Exception):
            self.inner.delete_many([_name_of(location, self._directory) for location in locations])


class WrittenFiles:
    """The new files of a run, as their tasks report them; when it is left, files of attempts that never did are removed."""

    def __init__(self, table: Table, run_id: str, listener: Listener) -> None:
        self._storage, self._listener, self._run_id = table.storage, listener, run_id
        self._own = own_directory(table.metadata, "")
        self._directory = own_directory(table.metadata, f"runs/{run_id}/{WRITTEN}")
        self._reported: set[bytes] = set()
        self._has_names = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.remove_unreported()

    def naming(self, storage: Storage) -> Storage:
        """The storage for tasks of Spark, which names their files first; of threads of this process all is known."""
        self._has_names = True
        return NamingStorage(storage, self._directory, self._own)

    def report(self, locations: Iterable[str]) -> None:
        """Take in files of attempts that reported to the driver; called before any of them is committed."""
        self._reported.update(_digest(_name_of(location, self._directory)) for location in locations)

    def discard(self, locations: Iterable[str]) -> None:
        """Remove files that no snapshot names."""
        locations = [*locations]
        discard_files(self._storage, locations, self._listener)
        self.settle(locations)

    def settle(self, locations: Iterable[str]) -> None:
        """Forget files that are committed, or removed, or left for somebody to look at."""
        if self._has_names:
            with suppress(Exception):
                self._storage.delete_many([_name_of(location, self._directory) for location in locations])

    def remove_unreported(self) -> None:
        """Remove the files of attempts that never reported to the driver, so that no commit has them; raises nothing.

        The name of a file that is not there stays: a task that is about to be ended may still make it.
        """
        if not self._has_names:
            return
        with suppress(Exception):
            names = [file.location for file in self._storage.list(self._directory)]
            unreported = [name for name in names if _digest(name) not in self._reported]
            if not unreported:
                return
            with ThreadPoolExecutor(min(REQUESTS_AT_ONCE, len(unreported))) as pool:
                files = pool.map(self._file_of, unreported)
                named = [(name, file) for name, file in zip(unreported, files, strict=True) if file is not None]
            infos = head_many([location for _, location in named], self._storage)
            # Object stores say of a file that is not there that it is deleted.
            there = [one for one, info in zip(named, infos, strict=True) if info is not None]
            outcomes = self._storage.delete_many([location for _, location in there])
            removed = [name for (name, _), one in zip(there, outcomes, strict=True) if one.status in _GONE]
            _LOG.info("%d of %d files of attempts that came to nothing are removed", len(removed), len(unreported))
            self._storage.delete_many(removed)

    def _file_of(self, name: str) -> str | None:
        """The file of a name; `None` where it is not one of this run's: others may write below the table, names too."""
        try:
            location = self._storage.read(name).decode()
        except (IcekeepError, UnicodeDecodeError):
            return None
        is_of_run = self._run_id in location.rpartition("/")[2]
        return location if is_of_run and _name_of(location, self._directory) == name else None


_GONE = (DeleteStatus.DELETED, DeleteStatus.MISSING)


def _name_of(location: str, directory: str) -> str:
    """Where the name of a file lies; the file's own name has the number of the attempt in it."""
    return f"{directory}/{location.rpartition('/')[2]}"


def _digest(name: str) -> bytes:
    return blake2b(name.rpartition("/")[2].encode(), digest_size=16).digest()


def run_name(table: Table, number: int = 1) -> str:
    """The id of the run that works on a table, with the number of the plan from the second on: what each keeps is its own."""
    run_id = str(table.runtime.new_uuid()) if table.run is None else table.run.run_id
    return run_id if number == 1 else f"{run_id}-{number}"
