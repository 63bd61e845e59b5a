"""What became of a swap, where the catalog's answer does not tell; and what may be removed then.

Finding our snapshot, or our metadata file in the table's history, proves that a commit landed. Not finding it proves nothing:
the request may still be on its way. So unknown stays unknown, and nothing is cleaned up.

A swap that was refused may land all the same: a request that was sent twice, by a proxy that lost patience for example, may
be refused while its twin is still at work. Then the table as it is a moment later shows no snapshot of ours, and a moment
after that it does. So removing what such a swap names takes more than its absence: what it was made for must be over.

Only locations that this very commit wrote are ever given to the storage; nothing is listed. A file that cannot be removed
stays as an orphan: the commit's outcome is decided already, and cleaning must not change it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from icekeep.catalog.base import Committed, Conflict, Table, Unknown
from icekeep.catalog.status_checks import StatusChecks
from icekeep.catalog.version_files import parse_version_name
from icekeep.commit.attempt import CommitFiles
from icekeep.errors import IcekeepError, NotFoundError, OutcomeUnknownError, UnavailableError, one_line
from icekeep.runtime import Runtime
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import MINUTE_MS
from icekeep.spec.updates import AddSnapshot, AssertRefSnapshotId, Requirement, Update, failing, requirements_for

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
    """An outcome, made more certain where it is in doubt; raises no `IcekeepError`.

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


def is_over(base: Table, requirements: Sequence[Requirement], now: Table) -> bool:
    """Whether a swap that adds a snapshot, was made for `base` and is not to be seen in `now` has not landed and cannot any more.

    A catalog that compares metadata refuses it once that has moved. Others apply it to whatever is current: they refuse what
    does not meet the requirements, and somebody would have to move the branch back to the very snapshot of `base` while the
    request is under way; and a sequence number that another snapshot has (spec, "Sequence Numbers"), but for a snapshot
    without a parent.
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
        before, after = base.snapshots_by_id.keys(), now.snapshots_by_id.keys()
        parents = {s.parent_snapshot_id for s in now.snapshots if s.snapshot_id not in before} - {None}
        is_whole = before <= after and parents <= after
        return not is_whole or now.snapshot_log[: len(base.snapshot_log)] != base.snapshot_log
    number = base.next_sequence_number
    return now.last_sequence_number >= number and all(s.sequence_number != number for s in now.snapshots)


class RefusedSwaps:
    """The refused swaps of one commit that may land still; those alone that add its snapshot, as others name no new files."""

    def __init__(self, table: Table, snapshot_id: int) -> None:
        self._table, self._snapshot_id = table, snapshot_id
        self._open: list[tuple[Table, Sequence[Requirement]]] = []

    def note(self, base: Table, updates: Sequence[Update], answer: Conflict | UnavailableError) -> None:
        """Take note of a swap that was made for `base`, unless the answer proves that it will not land."""
        is_final = answer.is_final if isinstance(answer, Conflict) else not answer.was_sent
        if not is_final and any(isinstance(update, AddSnapshot) for update in updates):
            self._open.append((base, requirements_for(base.metadata, updates)))

    def landed(self, now: Table) -> Snapshot | None:
        """The commit's snapshot, if the table has it now; else what is over is no longer in doubt."""
        snapshot = now.metadata.snapshots_by_id.get(self._snapshot_id)
        if snapshot is None:
            self._open = [(base, needed) for base, needed in self._open if not is_over(base, needed, now)]
        return snapshot

    def may_land(self) -> bool:
        """Whether one may have landed or may come yet; raises no error: one that hid the answer would prove that nothing landed.

        The table is looked at once more, unless nothing is in doubt.
        """
        if not self._open:
            return False
        try:
            return self.landed(self._table.refresh()) is not None or bool(self._open)
        except NotFoundError:
            # Nothing lands on a table that is gone.
            return False
        except Exception:  # noqa: BLE001 - a look that fails, in whatever way, proves nothing about the swap
            return True

    def in_doubt(self, cause: str) -> OutcomeUnknownError:
        """What to raise where one may land: the commit ends by `cause`, and an attempt before may still be carried out."""
        return OutcomeUnknownError(
            f"the commit to {self._table.name!r} ended ({cause}), but an attempt that was refused may have landed or land still; "
            f"nothing was deleted; see in a while whether snapshot {self._snapshot_id} is there before anything is run again",
            metadata_location="",
            snapshot_id=self._snapshot_id,
        )

    @contextmanager
    def leaving_nothing(self, files: CommitFiles, undo: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Remove everything that the commit wrote where the block raises, as long as none of the swaps may land.

        Only for a block before which nothing is seen to have landed.

        Args:
            undo: removes what was made for the commit before it began; called where what is raised is no `IcekeepError`, as
                one of these tells the commit's callers that nothing landed.

        Raises:
            OutcomeUnknownError: one may land; from what the block raised.
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
