"""Take back what a run has removed: its files from the trash, and the snapshots that it expired.

    the plan, and those that share its files, leased -> look at every file's place -> files move back -> one commit
        -> looked at once more -> the plan goes

A plan on which a run is at work is left to it: that run is to end, or to be ended, first. What a run had begun that died is
looked for after the commit. A restore that was interrupted is started again: what is back already is fine at each of these
steps. Files come first, so that no snapshot is ever in the table whose files are not. A run that deletes the plan's files for
good says so in its lease before: from then on nothing of the plan comes back.

A repair, which has deleted no file, is taken back by moving branches that still end with its snapshots.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress

import msgspec

from icekeep.catalog.base import Table
from icekeep.catalog.wrappers import check_change, refusal_of
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.snapshots import ReplaceRef, RestoreExpired, restored_tag
from icekeep.commit.retry import commit
from icekeep.commit.summary import JOB_KEY, run_of
from icekeep.errors import (
    ClaimedError,
    InvalidTableError,
    MissingFileError,
    NotFoundError,
    SafetyError,
    UsageError,
    argument,
    reason_of,
    shown_command,
)
from icekeep.events import SILENT, Listener, StepFinished, StepStarted, unfailing
from icekeep.maintenance.delete.kept import plans_that_share
from icekeep.maintenance.delete.lease import (
    LEASES,
    RESTORE,
    PlanLease,
    earlier_clock_ms,
    holding,
    last_work,
    take_lease,
)
from icekeep.maintenance.delete.locations import deletable_locations
from icekeep.maintenance.delete.neighbours import neighbours
from icekeep.maintenance.delete.plan_file import (
    BEFORE,
    HEAD,
    DeletionPlan,
    chosen_plan,
    clear_done_mark,
    delete_draft,
    delete_plan,
    mark_done,
    metadata_before,
    plans_of,
    restore_command,
    whole_run,
)
from icekeep.maintenance.repair import JOB
from icekeep.maintenance.restore.files import STEP, Returned, Returning, check_needs, check_targets, move_back
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.spark.session import SparkSource, check_source
from icekeep.rendered import Rendered
from icekeep.runs import new_run
from icekeep.runtime import Runtime
from icekeep.settings import CatalogChange
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.times import Span, span_ms
from icekeep.spec.updates import Update
from icekeep.spelling import counted
from icekeep.storage.base import Storage


class Restorable(Rendered, frozen=True, kw_only=True):
    """A run that `restore` takes. Of a repair, which deletes nothing, there are no files.

    Attributes:
        created_ms: when it made its plan, epoch milliseconds.
        trash_until_ms: files stay in the trash until then; `None`: they are in their places until a later run deletes them.
        snapshots_count: of the snapshots that it expired, those that are not in the table.
    """

    run: str
    job: str
    created_ms: int
    trash_until_ms: int | None
    snapshots_count: int
    files_count: int
    bytes: int


class RestoreResult(Rendered, frozen=True, kw_only=True):
    """What came back of one run.

    Attributes:
        status: `partial` where files were taken away again while the snapshots came back, or branches keep a repair: the note
            says which.
        restored_files_count: files that were moved back now; those that were in their places are not counted.
        restored_tags: under which the snapshots came back.
        restored_branches: of a repair, those that went back to the snapshot before it.
        note: what did not come back and why, or what is to be done yet; `None`: nothing.
    """

    status: str
    run: str
    job: str
    restored_files_count: int
    restored_bytes_count: int
    restored_snapshots_count: int
    restored_tags: tuple[str, ...]
    restored_branches: tuple[str, ...] = ()
    note: str | None


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
            "going back to a snapshot before it would lose the commits after it; see "
            f"`{shown_command('history', '--table', table.full_name)}`, and `icekeep rollback` if that is meant"
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


def restore(
    table: Table,
    spark: SparkSource = None,
    *,
    run: str | None = None,
    keep_for: Span | None = None,
    listener: Listener = SILENT,
) -> RestoreResult:
    """Bring back the files and the snapshots that one run removed, or take back what a repair has committed.

    Each snapshot comes back under a tag `restored-<snapshot id>` of its own, which `keep_for` may end; `main` and all other
    references stay where they are. Where the catalog takes no snapshots back only files come, and the result says why.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. Only where there are
            many files Spark has a part in it.
        run: as `list_restorable` names it, or its beginning; `None`: the newest run that has removed something which is not
            back yet. A repair is only taken back where it is named, and only from branches that end with it.
        keep_for: how long the tags keep the snapshots, a timedelta, text such as 7d, or milliseconds: the first expiration after
            that lets them go again; `None`: until the tags are dropped.

    Raises:
        NotFoundError: there is no such run, or none with anything to bring back.
        SafetyError: the path of a file is in use again, or a file is neither in the trash nor in its place, or later runs have
            removed what the snapshots need besides; no snapshot was restored, and files that were moved back stay in their
            places. Or a file lies outside the table's places, and the operator names none above it; or the plan is of another
            table; or no branch ends with the repair any more.
        InvalidTableError: a snapshot, schema or partition spec has different content in the table now.
        UnsupportedError: snapshots would come back, and the catalog takes no commits; no file was moved.
        UsageError: a tag of such a name points elsewhere, several runs begin so, or `spark` is no session.
        ConflictError, OutcomeUnknownError: as `commit` raises them. The files are back in their places, and the plan stays.
        ClaimedError: a run is at work on the plan, or on another plan that names some of its files; or one of these plans was
            leased by another run meanwhile.
        UnavailableError: the store failed; run it again.
    """
    check_source(spark)
    keep_for_ms = _keep_for_ms(keep_for, run)
    runtime, listener = table.runtime, unfailing(listener)
    table = table.refresh()
    if table.run is None:
        table = table.for_run(new_run(RESTORE, runtime))
    if run is not None and is_repair(run):
        return take_back(table, run, listener, dry_run=False)
    plan, storage = _chosen(table, run), table.storage
    now_ms = earlier_clock_ms(table, runtime)
    lease = take_lease(plan.directory, RESTORE, storage, runtime, now_ms)
    lease.is_unchanged = True
    with holding(lease, storage, runtime), ExitStack() as others:
        if lease.deletes:
            raise NotFoundError(f"the files of run {plan.run!r} are being deleted for good: nothing of it comes back")
        if storage.head(f"{plan.directory}/{HEAD}") is None:
            delete_draft(f"{plan.directory}/{LEASES}", storage)
            raise NotFoundError(
                f"run {plan.run!r} is not there any more: it was restored, or its files deleted, just now"
            )
        try:
            sharing = plans_that_share(plan, table)
            shared = (_share(other, plan, storage, runtime, now_ms, others) for other in sharing)
            held = [lease, *filter(None, shared)]
            # Others may have committed until the plan was ours.
            return _restored(table.refresh(), plan, held, spark, runtime, listener, keep_for_ms)
        except MissingFileError as error:
            if storage.head(f"{plan.directory}/{HEAD}") is not None:
                raise
            raise ClaimedError(
                f"run {plan.run!r} cannot be restored: another run has just finished with it, so it was restored, or its files "
                "are deleted; no snapshot was restored by this run; see "
                f"`{shown_command('restore', '--table', table.full_name, '--list')}`"
            ) from error


def plan_restore(
    table: Table,
    spark: SparkSource = None,
    *,
    run: str | None = None,
    keep_for: Span | None = None,
    listener: Listener = SILENT,
) -> RestoreResult:
    """What `restore` would bring back now, with its checks; it writes nothing, and so leaves a run that is at work to its work.

    Raises:
        IcekeepError: as `restore` raises it, but for `ClaimedError`.
    """
    check_source(spark)
    keep_for_ms = _keep_for_ms(keep_for, run)
    table = table.refresh()
    if run is not None and is_repair(run):
        return take_back(table, run, listener, dry_run=True)
    plan = _chosen(table, run)
    if last_work(plan.directory, table.storage).deletes:
        raise NotFoundError(f"the files of run {plan.run!r} are being deleted for good: nothing of it comes back")
    around = neighbours(table, refuses_overlap=False, listener=unfailing(listener))
    work = Returning(plan, None, deletable_locations(table, (), around.other_roots), table.storage, table.runtime)
    change = _change(table, plan, keep_for_ms)
    if change is not None:
        change.check(table.metadata)
    away = check_targets(work, spark)
    snapshot_ids: tuple[int, ...] = ()
    if change is not None:
        check_needs(plan, change.before, table, spark)
        snapshot_ids = tuple(i for i in plan.snapshot_ids if i not in table.metadata.snapshots_by_id)
    notes = _no_snapshots(table, plan, change)
    if change is not None and (refusal := refusal_of(table.catalog, CatalogChange.COMMIT)):
        notes.append(f"the run itself would be refused: {refusal}")
    return RestoreResult(
        status="planned",
        run=plan.run,
        job=plan.job,
        restored_files_count=away.moved_count,
        restored_bytes_count=away.moved_bytes,
        restored_snapshots_count=len(snapshot_ids),
        restored_tags=tuple(map(restored_tag, snapshot_ids)),
        note="; ".join(notes) or None,
    )


def _keep_for_ms(keep_for: Span | None, run: str | None) -> int | None:
    if keep_for is None:
        return None
    if run is not None and is_repair(run):
        raise UsageError(f"{argument('keep_for')} is for the tags of expired snapshots, and a repair brings none back")
    keep_for_ms = span_ms(keep_for)
    if keep_for_ms <= 0:
        raise UsageError(f"{argument('keep_for')} is {keep_for!r}; give a span above 0, such as 7d")
    return keep_for_ms


def _chosen(table: Table, run: str | None) -> DeletionPlan:
    try:
        plan = chosen_plan(table, run)
    except NotFoundError as error:
        repairs = restorable_repairs(table.metadata)
        if run is not None or not repairs:
            raise
        back = restore_command(table, repairs[0].run)
        raise NotFoundError(f"{error.message}; a repair is taken back by its name: `{back}`", **error.facts) from None
    if plan.table_uuid != table.metadata.table_uuid:
        raise SafetyError(f"run {plan.run!r} was of another table (uuid {plan.table_uuid}); nothing was restored")
    return plan


def _share(
    other: DeletionPlan, plan: DeletionPlan, storage: Storage, runtime: Runtime, now_ms: int, leases: ExitStack
) -> PlanLease | None:
    """Lease another plan that names files of this one: a run at work on it would not see in time that they are in use again.

    `None` where it is gone by then.

    Raises:
        ClaimedError: a run is at work on it, or may be in the middle of a call that deletes for good.
    """
    cannot = f"run {plan.run!r} cannot be restored now, since run {other.run!r} names some of its files too"
    try:
        lease = take_lease(other.directory, RESTORE, storage, runtime, now_ms)
    except ClaimedError as error:
        raise ClaimedError(f"{cannot}: {error.message}; nothing was restored") from error
    lease.is_unchanged = True
    leases.enter_context(holding(lease, storage, runtime))
    if storage.head(f"{other.directory}/{HEAD}") is None:
        # Another run has just finished it; what it deleted is seen to be missing.
        delete_draft(f"{other.directory}/{LEASES}", storage)
        return None
    if lease.unfinished_by and lease.deletes:
        raise ClaimedError(
            f"{cannot}, and may still be deleting its files for good; nothing was restored; let the next `expire_snapshots` "
            "finish it first"
        )
    return lease


def _restored(
    table: Table,
    plan: DeletionPlan,
    leases: Sequence[PlanLease],
    spark: SparkSource,
    runtime: Runtime,
    listener: Listener,
    keep_for_ms: int | None,
) -> RestoreResult:
    """Restore a plan by the leases on it, the first, and on those that name some of its files."""
    lease, storage = leases[0], table.storage
    around = neighbours(table, refuses_overlap=False, listener=listener)
    work = Returning(plan, lease, deletable_locations(table, (), around.other_roots), storage, runtime)
    change = _change(table, plan, keep_for_ms)
    if change is not None:
        # Files would be back before the commit is refused. Where no snapshot can come back, they come without a commit.
        check_change(table.catalog, CatalogChange.COMMIT)
        change.check(table.metadata)
    listener.on(StepStarted(STEP, plan.files_count, "files"))
    check_targets(work, spark)
    if change is not None:
        check_needs(plan, change.before, table, spark)
    lease.check(storage, runtime)
    for held in leases:
        held.is_unchanged = False
    if plan.is_trash:
        clear_done_mark(plan, storage)
    returned = move_back(work, spark, listener)
    returned.refuse_incomplete(plan)
    listener.on(StepFinished(STEP, counted(returned.moved_count, "files")))
    snapshot_ids: tuple[int, ...] = ()
    late, notes = Returned(), _no_snapshots(table, plan, change)
    if change is not None:
        proved = _ProvedChange(change, plan, leases, table, spark, runtime)
        reader = SparkManifestReader(spark, storage)
        landed = commit(table, proved, reader=reader, runtime=runtime, listener=listener)
        before, now = (one.metadata.snapshots_by_id for one in (landed.base, landed.table))
        snapshot_ids = tuple(i for i in plan.snapshot_ids if i in now and i not in before)
    try:
        if change is not None:
            # A run that seemed dead may have taken files away before it could see that they are in use again. Where
            # the plan is gone, another restore was here and has seen to that.
            with suppress(MissingFileError):
                late = move_back(work, spark, SILENT)
        has_changed = bool(returned.moved_count or snapshot_ids) or not plan.snapshot_ids
        notes += [*late.notes(), *_ended(table, plan, lease, late, has_changed=has_changed)]
        notes += [
            _may_be_at_work(table, held.directory.rpartition("/")[2]) for held in leases[1:] if held.unfinished_by
        ]
        is_complete = late.is_complete
    except Exception as error:
        if not snapshot_ids:
            raise
        notes.append(
            f"the snapshots are back, and it could not be seen whether all files are: {reason_of(error)}; "
            f"{_once_more(table, plan.run)}"
        )
        is_complete = False
    return RestoreResult(
        status="done" if is_complete else "partial",
        run=plan.run,
        job=plan.job,
        restored_files_count=returned.moved_count + late.moved_count,
        restored_bytes_count=returned.moved_bytes + late.moved_bytes,
        restored_snapshots_count=len(snapshot_ids),
        restored_tags=tuple(restored_tag(i) for i in snapshot_ids),
        note="; ".join(notes) or None,
    )


class _ProvedChange:
    """The change, for as long as all plans are ours and the files are there: a catalog may be away for half an hour.

    The leases are looked at in each attempt, the files only where snapshots are gone since the last look.
    """

    def __init__(
        self,
        change: RestoreExpired,
        plan: DeletionPlan,
        leases: Sequence[PlanLease],
        proved: Table,
        spark: SparkSource,
        runtime: Runtime,
    ) -> None:
        """Begin with the table on which `check_needs` was done last."""
        self._change, self._plan, self._leases = change, plan, leases
        self._proved, self._spark, self._runtime = proved, spark, runtime

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        updates = self._change.apply(base, attempt)
        if updates:
            # A proof holds for as long as the table has what it was made by; to look again takes as long as a commit may.
            if not self._proved.metadata.snapshots_by_id.keys() <= base.snapshots_by_id.keys():
                now = msgspec.structs.replace(self._proved, metadata=base)
                check_needs(self._plan, self._change.before, now, self._spark)
                self._proved = now
            for lease in self._leases:
                lease.check(self._proved.storage, self._runtime)
        return updates


def _ended(table: Table, plan: DeletionPlan, lease: PlanLease, late: Returned, *, has_changed: bool) -> list[str]:
    """Forget a plan of which everything is back; one whose run may be in the middle of a call is left for what that moves."""
    if not late.is_complete:
        return []
    if not lease.unfinished_by:
        delete_plan(plan, table.storage)
        return []
    if plan.is_trash and has_changed:
        # It holds what that run still moves to the trash, and no later run goes on with it.
        mark_done(plan, plan.files_count, table.storage, restored=True)
    return [_may_be_at_work(table, plan.run)]


def _may_be_at_work(table: Table, run: str) -> str:
    return f"a call of run {run!r} may still move files to the trash: tomorrow, {_once_more(table, run)}"


def _once_more(table: Table, run: str) -> str:
    return f"run `{restore_command(table, run)}` again"


def list_restorable(table: Table) -> tuple[Restorable, ...]:
    """The runs of which files are in the trash, or wait for their deletion, the newest first, and then repairs.

    Those are not among them whose files are being deleted for good, nor repairs with which no branch ends.
    """
    plans = (plan for plan in plans_of(table) if not last_work(plan.directory, table.storage).deletes)
    known = table.metadata.snapshots_by_id
    found = [
        Restorable(
            run=plan.run,
            job=plan.job,
            created_ms=plan.created_ms,
            trash_until_ms=plan.trash_until_ms,
            snapshots_count=sum(i not in known for i in plan.snapshot_ids),
            files_count=plan.files_count,
            bytes=sum(f.bytes for f in plan.files),
        )
        for plan in plans
    ]
    return (*found, *restorable_repairs(table.metadata))


def _change(table: Table, plan: DeletionPlan, keep_for_ms: int | None) -> RestoreExpired | None:
    """The change that brings the plan's snapshots back; `None` where there are none, or the catalog takes none."""
    if not plan.snapshot_ids or not table.catalog.restores_snapshots:
        return None
    before = metadata_before(plan, table.storage)
    if before is None:
        location = f"{plan.directory}/{BEFORE}"
        if table.storage.head(f"{plan.directory}/{HEAD}") is None:
            raise MissingFileError(f"another run has just finished with plan {plan.directory!r}", location=location)
        if not table.metadata.snapshots_by_id.keys() >= {*plan.snapshot_ids}:
            raise InvalidTableError(
                f"the snapshots of run {plan.run!r} cannot be restored: its copy of the table's metadata, {location!r}, is not "
                f"there; nothing was restored, and its files are still in {plan.directory!r}",
                location=location,
            )
        return None
    return RestoreExpired(before=before, snapshot_ids=plan.snapshot_ids, keep_for_ms=keep_for_ms)


def _no_snapshots(table: Table, plan: DeletionPlan, change: RestoreExpired | None) -> list[str]:
    if change is not None or table.metadata.snapshots_by_id.keys() >= {*plan.snapshot_ids}:
        return []
    return [
        f"only files can come back: catalog {table.catalog.name!r} refuses snapshots with old sequence numbers, so the "
        f"{len(plan.snapshot_ids)} of this run stay expired"
    ]
