"""A repair taken back: branches that still end with its snapshots go back to where they were. It has deleted no file."""

from collections.abc import Collection, Iterator

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.snapshots import ReplaceRef
from icekeep.commit.retry import commit
from icekeep.commit.summary import JOB_KEY, run_of
from icekeep.errors import NotFoundError, SafetyError
from icekeep.events import Listener
from icekeep.maintenance.deletion.restorable_plans import whole_run
from icekeep.maintenance.repairing import JOB
from icekeep.maintenance.restoring.result import Restorable, RestoreResult
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.updates import Update


class _Moves(msgspec.Struct, frozen=True):
    """Branches that move together, or none does."""

    moves: tuple[ReplaceRef, ...]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        return tuple(update for move in self.moves for update in move.apply(base, attempt))


def is_repair(run: str) -> bool:
    """Whether the name of a run is that of a repair."""
    return run.startswith(f"{JOB.name}-")


def take_back(table: Table, run: str, listener: Listener, *, dry_run: bool) -> RestoreResult:
    """Set branches back to their snapshots before a repair, or say with `dry_run` which would go.

    Raises:
        NotFoundError: no snapshot of the table is of that run, or the one before it has expired.
        SafetyError: no branch ends with it: later commits would be lost with it, or it was taken back before.
        UsageError: several repairs begin so.
        ConflictError, OutcomeUnknownError, UnavailableError: as `commit` raises them.
    """
    metadata = table.metadata
    run = whole_run(run, (run_of(one.summary) or "" for one in metadata.snapshots if _is_of(one, None))) or run
    own = [snapshot for snapshot in metadata.snapshots if _is_of(snapshot, run)]
    if not own:
        raise NotFoundError(f"no snapshot of table {table.name!r} is of run {run!r}", run=run)
    moves = [*_moves(metadata, run)]
    if not moves:
        why = (
            "going back to a snapshot before it would lose the commits after it; see `icekeep history --table NAME`, and "
            "`icekeep rollback` if that is meant"
            if [*_others_with(metadata, run, ())]
            else "it was taken back before, or its branch was dropped"
        )
        raise SafetyError(f"no branch ends with a snapshot of run {run!r} any more: {why}", run=run)
    stay = [*_others_with(metadata, run, {move.name for move in moves})]
    if not dry_run:
        commit(table, _Moves(tuple(moves)), listener=listener)
    notes = [
        "only branches went back: counters that the repair raised stay, as do files that it put back, and statistics that it "
        "took out are not there again"
    ]
    if stay:
        notes.insert(0, f"branches that have later commits keep it: {', '.join(map(repr, stay))}")
    return RestoreResult(
        status="planned" if dry_run else "partial" if stay else "done",
        run=run,
        job=JOB.name,
        restored_files_count=0,
        restored_bytes_count=0,
        restored_snapshots_count=0,
        restored_tags=(),
        restored_branches=tuple(move.name for move in moves),
        note="; ".join(notes),
    )


def restorable_repairs(metadata: TableMetadata) -> list[Restorable]:
    """The repairs that can be taken back, the newest first."""
    found: dict[str, Restorable] = {}
    for snapshot in reversed(metadata.snapshots):
        run = run_of(snapshot.summary)
        if run and _is_of(snapshot, run) and run not in found and [*_moves(metadata, run)]:
            found[run] = Restorable(
                run=run,
                job=JOB.name,
                created_ms=snapshot.timestamp_ms,
                trash_until_ms=None,
                snapshots_count=0,
                files_count=0,
                bytes=0,
            )
    return [*found.values()]


def _moves(metadata: TableMetadata, run: str) -> Iterator[ReplaceRef]:
    for name, ref in sorted(metadata.refs.items()):
        head = metadata.snapshots_by_id.get(ref.snapshot_id)
        before = head
        while before is not None and _is_of(before, run):
            before = metadata.snapshots_by_id.get(before.parent_snapshot_id or 0)
        if ref.is_branch and head is not None and before not in (head, None):
            assert before is not None
            yield ReplaceRef(name=name, type="branch", snapshot_id=before.snapshot_id, expected_id=head.snapshot_id)


def _others_with(metadata: TableMetadata, run: str, moved: Collection[str]) -> Iterator[str]:
    """The branches that have a snapshot of a run, and are not among those that go back."""
    for name, ref in sorted(metadata.refs.items()):
        if ref.is_branch and name not in moved and any(_is_of(one, run) for one in metadata.ancestors(ref.snapshot_id)):
            yield name


def _is_of(snapshot: Snapshot, run: str | None) -> bool:
    """Whether a snapshot is of a repair, by its run or of any."""
    is_repairs = (snapshot.summary or {}).get(JOB_KEY) == JOB.name
    return is_repairs and run in (None, run_of(snapshot.summary))
