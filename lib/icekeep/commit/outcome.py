"""The outcome of a swap whose answer leaves it in doubt, and which files of a commit may be removed.

Our snapshot, or our metadata file in the table's history, proves that a commit landed. Their absence proves nothing: the
request may still be on its way. So unknown stays unknown, and nothing is cleaned up.

A swap that was refused may land all the same: a request that was sent twice, by a proxy that timed out for example, may be
refused while its twin is still being served. The table then shows our snapshot only some time later. So files that such a swap
names are removed only once it cannot land any more (`is_over`).

Only locations that this very commit wrote are removed; nothing is listed. A file that cannot be removed stays as an orphan:
the outcome of the commit is decided, and cleaning up must not change it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress

import msgspec

from icekeep.catalog.base import Committed, Conflict, SwapOutcome, Table, Unknown
from icekeep.catalog.metadata_files import parse_version_name
from icekeep.catalog.resending import StatusChecks
from icekeep.commit.attempt import CommitFiles
from icekeep.errors import IcekeepError, NotFoundError, OutcomeUnknownError, UnavailableError, one_line
from icekeep.runtime import Runtime
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import MINUTE_MS
from icekeep.spec.updates import AddSnapshot, AssertRefSnapshotId, Requirement, Update, failing, requirements_for

_LEAST_MS = MINUTE_MS
"""The table is checked for at least this long: one request that hung may have taken all of the time."""


def added_snapshot(updates: Iterable[Update]) -> Snapshot | None:
    return next((update.snapshot for update in updates if isinstance(update, AddSnapshot)), None)


def answer_of(swap: Callable[[], SwapOutcome]) -> SwapOutcome:
    """What a catalog answers, which may raise an unknown outcome as well as return it."""
    try:
        return swap()
    except OutcomeUnknownError as error:
        return Unknown(error.message, str(error.facts.get("metadata_location", "")))


def settle(
    outcome: SwapOutcome,
    base: Table,
    snapshot_id: int | None,
    runtime: Runtime,
    requirements: Sequence[Requirement] = (),
    spent_ms: int = 0,
) -> SwapOutcome:
    """Make an outcome that is in doubt more certain, by loading the table; raises no `IcekeepError`.

    A conflict that is not final may hide our own commit (an answer was lost, the request was sent twice): it becomes
    `Committed`, or `Unknown` where the table cannot be loaded, or where our snapshot may have expired since. It becomes final
    where the table has moved on, so that a twin of the request cannot land any more. The properties `commit.status-check.*`
    limit how often and how long the table is loaded.

    Args:
        snapshot_id: of the snapshot that the commit adds, `None` if it adds none.
        requirements: those of the swap.
        spent_ms: how long the swap took, with its own retries; it counts against the same limit.
    """
    if isinstance(outcome, Committed) or (isinstance(outcome, Conflict) and outcome.is_final):
        return outcome
    location = outcome.metadata_location if isinstance(outcome, Unknown) else ""
    for table in _loaded_tables(base, runtime, spent_ms):
        if table is not None and _holds(table, snapshot_id, location):
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


def _loaded_tables(base: Table, runtime: Runtime, spent_ms: int) -> Iterator[Table | None]:
    """Each table that a check loads, `None` where it is gone; a check that fails yields nothing.

    A check during which the catalog is out of reach does not count against `num_retries`.
    """
    # A bad value was refused before the first attempt; one that was set since then must not hide the outcome.
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


def _holds(table: Table, snapshot_id: int | None, metadata_location: str) -> bool:
    history = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    # Two writers that want the same version of a table in a directory give it the same name, which proves nothing.
    is_unique = parse_version_name(metadata_location.rsplit("/", 1)[-1]) is None
    return snapshot_id in table.metadata.snapshots_by_id or (is_unique and metadata_location in history)


def is_over(base: Table, requirements: Sequence[Requirement], now: Table) -> bool:
    """Whether a swap that adds a snapshot to `base`, and whose snapshot is not in `now`, has not landed and cannot any more.

    A catalog that compares metadata refuses it once the metadata has changed. Others apply it to whatever is current. They
    refuse it where the requirements fail, unless somebody moves the branch back to the very snapshot of `base` while the
    request is under way; and where another snapshot has its sequence number (spec, "Sequence Numbers"), unless it has no
    parent.
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
    """Whether a snapshot that was committed on `base`, and is not in `now`, may have expired in between.

    So it may where no snapshot in `now` has its sequence number, or, in version 1, where the history has any gap.
    """
    if base.format_version == 1:
        before, after = base.snapshots_by_id.keys(), now.snapshots_by_id.keys()
        parents = {s.parent_snapshot_id for s in now.snapshots if s.snapshot_id not in before} - {None}
        is_whole = before <= after and parents <= after
        return not is_whole or now.snapshot_log[: len(base.snapshot_log)] != base.snapshot_log
    number = base.next_sequence_number
    return now.last_sequence_number >= number and all(s.sequence_number != number for s in now.snapshots)


class RefusedSwaps:
    """The refused swaps of one commit that may still land; only those that add its snapshot, as others name no new files."""

    def __init__(self, table: Table, snapshot_id: int) -> None:
        self._table, self._snapshot_id = table, snapshot_id
        self._open: list[tuple[Table, Sequence[Requirement], str | None]] = []

    def note(self, base: Table, updates: Sequence[Update], answer: Conflict | UnavailableError) -> None:
        """Record a swap on `base`, unless the answer proves that it will not land."""
        is_final = answer.is_final if isinstance(answer, Conflict) else not answer.was_sent
        added = added_snapshot(updates)
        if not is_final and added is not None:
            self._open.append((base, requirements_for(base.metadata, updates), added.manifest_list))

    def base_of(self, snapshot: Snapshot) -> Table | None:
        """The base of the swap that added a snapshot, by its manifest list; `None` if that was none of these."""
        return next((base for base, _, named in self._open if named == snapshot.manifest_list), None)

    def snapshot_in(self, now: Table) -> Snapshot | None:
        """The commit's snapshot, if the table has it now; otherwise swaps that are over are no longer in doubt."""
        snapshot = now.metadata.snapshots_by_id.get(self._snapshot_id)
        if snapshot is None:
            self._open = [one for one in self._open if not is_over(one[0], one[1], now)]
        return snapshot

    def may_land(self) -> bool:
        """Whether one may have landed or may still land, by the table as it is now.

        Raises no error: to callers, an error would prove that nothing landed.
        """
        if not self._open:
            return False
        try:
            return self.snapshot_in(self._table.refresh()) is not None or bool(self._open)
        except NotFoundError:
            # Nothing lands on a table that is gone.
            return False
        except Exception:  # noqa: BLE001 - a failure to load, of whatever kind, proves nothing about the swap
            return True

    def in_doubt(self, cause: str) -> OutcomeUnknownError:
        """The error where the commit ends by `cause` and an earlier swap may still land."""
        return OutcomeUnknownError(
            f"the commit to {self._table.name!r} ended ({cause}), but an attempt that was refused may have landed or land still; "
            f"nothing was deleted; see in a while whether snapshot {self._snapshot_id} is there before anything is run again",
            metadata_location="",
            snapshot_id=self._snapshot_id,
        )

    @contextmanager
    def leaving_nothing(self, files: CommitFiles, undo: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Remove everything that the commit wrote where the block raises; `OutcomeUnknownError` where a swap may still land.

        Only for a block before which nothing is known to have landed.

        Args:
            undo: removes what was made for the commit before it began; not called for an `IcekeepError`, by which callers of
                the commit know that nothing landed.
        """
        try:
            yield
        except BaseException as error:
            if self.may_land():
                raise self.in_doubt(one_line(error)) from error
            remove_all(files)
            if not isinstance(error, IcekeepError):
                with suppress(Exception):
                    undo()
            raise


def remove_all(files: CommitFiles, named: Set[str] = frozenset()) -> None:
    """Remove everything that a commit wrote, but for the files that its snapshot names."""
    locations = [location for location in files.written if location not in named]
    if locations:
        with suppress(Exception):
            files.storage.delete_many(locations)


def remove_unused(files: CommitFiles, snapshot: Snapshot | None) -> None:
    """Remove the lists of earlier attempts, and the manifests and delete files that the committed snapshot does not name."""
    # What is named is unknown where the change made no snapshot, or another writer has expired it already.
    if snapshot is not None and snapshot.manifest_list in files.named:
        remove_all(files, files.named[snapshot.manifest_list] | {snapshot.manifest_list})
