"""The job `repair`: what was found -> what can be done about it -> the metadata first, then a commit for each branch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Table
from icekeep.commit.attempt import Attempt, Change
from icekeep.commit.changes.definitions import ChangeStatistics, RaiseLowCounters
from icekeep.commit.changes.repair_entries import RepairEntries
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.retry import CommitResult, commit
from icekeep.errors import ConflictError, InvalidTableError, OutcomeUnknownError, SafetyError, UsageError, reason_of
from icekeep.events import Warned
from icekeep.formats.deletes.read import hold_own_path
from icekeep.maintenance.check.faults import REACHING_NOTHING
from icekeep.maintenance.check.job import known_numbers
from icekeep.maintenance.delete.plan_file import refuse_unapproved
from icekeep.maintenance.jobs import CommittingRequest, JobResult, takes
from icekeep.maintenance.plans import FAULT, PART, ExactPlan, PlanLine, SavedPlan
from icekeep.maintenance.preconditions import AlreadyApplied, already_applied, landed, moved
from icekeep.maintenance.repair import JOB
from icekeep.maintenance.repair.losses import MergedVectors
from icekeep.maintenance.repair.older_files import CopiedFiles
from icekeep.maintenance.repair.plan import (
    BranchWork,
    NewFiles,
    Planned,
    RepairedFault,
    RepairPlan,
    RepairScope,
    UnrepairedFault,
    lost_records,
    parts_of,
)
from icekeep.maintenance.repair.planner import COUNTERS, planned
from icekeep.maintenance.repair.reattach import NEEDS_EARLIER, Reattachment, plan_reattachment, read_pointed, reattached
from icekeep.maintenance.repair.trash import bring_back
from icekeep.maintenance.rewrite.run import retry_with_replan, run_name
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.scan.plan import refuse_encrypted
from icekeep.runs import Run, new_run
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN, PartitionStatisticsFile, StatisticsFile
from icekeep.spec.updates import Update
from icekeep.spelling import counted_doing
from icekeep.storage.base import FileInfo

_DO = "mend"
"""The verb of its lines in a saved plan."""


class RepairedBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A commit on a branch: its head before and after it."""

    branch: str
    previous_snapshot_id: int | None
    snapshot_id: int


class RepairResult(JobResult, frozen=True, kw_only=True):
    """What was fixed.

    Attributes:
        status: `done`, or `partial` where a branch still has faults, or something went wrong after a part was fixed.
        run: in the summaries of its snapshots, as `icekeep.run-id`.
        branches: the commits, in order.
        lost_records_count: of all fixes together; `None` where that is not known.
        problems: why not everything planned was fixed; the next run tries again.
        metadata_location_before, metadata_location: of the table.
        hash: of the first plan.
    """

    work = ("mended",)

    status: str = "done"
    run: str
    mended: tuple[RepairedFault, ...] = ()
    not_mended: tuple[UnrepairedFault, ...] = ()
    branches: tuple[RepairedBranch, ...] = ()
    lost_records_count: int | None = 0
    problems: tuple[str, ...] = ()
    metadata_location_before: str
    metadata_location: str
    hash: str = ""
    elapsed_ms: int = 0


class RepairRequest(CommittingRequest, frozen=True, kw_only=True):
    """The arguments of `repair`, which says what each means."""

    fault: Sequence[int] = ()
    accept_loss: Sequence[str] = ()
    approve: str | None = None

    def scope(self) -> RepairScope:
        """Raises `UsageError` where no kind of faults is asked for, or one that there is not."""
        if not self.fault:
            raise UsageError("no kind of faults is given; name those that are to be repaired, such as 302")
        return RepairScope(numbers=frozenset(known_numbers(self.fault)), accepted=frozenset(self.accept_loss))

    def check_approved(self, plan: RepairPlan, outcome: str) -> None:
        """Raise `SafetyError` where another plan is approved."""
        refuse_unapproved(self.approve, plan.hash, outcome)


class RepairRun:
    """One run, and what of it has landed.

    Attributes:
        branches: what was committed to each.
        repaired: what has landed.
        table: as the last commit left it.
    """

    def __init__(self, table: Table, request: RepairRequest, scope: RepairScope) -> None:
        self._read, self._request, self._scope = table, request, scope
        self.table, self.run_id = table, run_name(table)
        self.branches: list[RepairedBranch] = []
        self.repaired: list[RepairedFault] = []
        self._plans: list[Planned] = []

    def plan_and_execute(self, now: Table, number: int) -> RepairResult:
        """One plan, and all of it; where others are in the way another one is made of the table as it is then."""
        request = self._request
        again = _reattachment(now, self._scope, request)
        if again is not None:
            _check_saved(request.saved, again.plan, frozenset(), now.metadata)
            return _reattach(again, request, self.run_id)
        found = planned(now, self._scope, request.spark, request.listener)
        self._plans.append(found)
        if request.saved is not None:
            _check_saved(request.saved, found.plan, found.parts, now.metadata, has_begun=bool(self.repaired))
        elif number == 1:
            request.check_approved(found.plan, "nothing is changed")
        elif request.approve is not None and not found.parts <= self._plans[0].parts:
            raise SafetyError(
                f"others changed the table {now.name!r} meanwhile, and not all that can be repaired now is approved; nothing "
                "more is changed; look at --dry-run again"
            )
        self.execute(now, found)
        return self.result()

    def execute(self, table: Table, planned: Planned) -> None:
        """Carry a plan out. A branch on which others are in the way hinders no other.

        Raises:
            ConflictError: what was planned for a branch does not apply any more; the others have landed.
        """
        self.table = table
        repaired = planned.plan.mends
        for file in bring_back(table, planned.returns):
            self.repaired += [one for one in repaired if one.is_put_back and one.where == file.location]
        self._metadata(table.metadata, planned, [one for one in repaired if not one.branch])
        refusals = []
        for work in planned.works:
            try:
                self._branch(work, [one for one in repaired if one.branch == work.branch and not one.is_put_back])
            except ConflictError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]

    def _metadata(self, read: TableMetadata, planned: Planned, repaired: Sequence[RepairedFault]) -> None:
        """Carry out what is changed in the metadata alone; what each commit that lands has fixed is noted at once."""
        if planned.counters:
            self._commit(RaiseLowCounters(planned.counters))
            self.repaired += [one for one in repaired if one.fault_id in COUNTERS]
        ids, partition_ids = planned.statistics, planned.partition_statistics
        removals: tuple[tuple[ChangeStatistics, Sequence[StatisticsFile | PartitionStatisticsFile]], ...] = (
            (ChangeStatistics(removals=tuple(sorted(ids))), [f for f in read.statistics if f.snapshot_id in ids]),
            (
                ChangeStatistics(partition_removals=tuple(sorted(partition_ids))),
                [file for file in read.partition_statistics if file.snapshot_id in partition_ids],
            ),
        )
        for change, files in removals:
            if files:
                self._commit(StillNamed(change, tuple(files)))
                paths = {file.statistics_path for file in files}
                self.repaired += [one for one in repaired if one.where in paths]

    def _branch(self, work: BranchWork, repaired: Sequence[RepairedFault]) -> None:
        """Carry out the work on one branch; each commit that lands is noted at once, with what it has fixed."""
        summary = {"icekeep.faults": ",".join(str(int(number)) for number in sorted(work.faults))}
        if work.writes_entries:
            change = RepairEntries(
                entries=tuple(work.entries[key] for key in sorted(work.entries)),
                rows=frozenset(work.rows),
                once=frozenset(work.once),
                recounts_totals=work.recounts_totals,
                format_version=work.format_version,
                branch=work.branch,
                summary=summary,
            )
            writers: list[Callable[[TableMetadata, Attempt], NewFiles]] = []
            if work.merges:
                writers.append(MergedVectors(tuple(work.merges), self.run_id, self.table).made)
            if work.replacements:
                replacements = tuple(work.replacements.values())
                writers.append(CopiedFiles(work.branch, replacements, self.run_id, self.table).made)
            whole = WithNewFiles(change, writers)
            self._landed(work, self._commit(StillLost(whole, tuple(sorted(work.gone)), tuple(work.broken.values()))))
            self.repaired += [one for one in repaired if one.fault_id not in REACHING_NOTHING]
        if work.drops_dangling:
            dropping = RewriteManifests(
                replaced=(),
                added=(),
                drop_dangling_deletes=True,
                proof=hold_own_path,
                branch=work.branch,
                summary=summary,
            )
            self._landed(work, self._commit(dropping))
            self.repaired += [one for one in repaired if one.fault_id in REACHING_NOTHING]

    def _commit(self, change: Change) -> CommitResult:
        reader = SparkManifestReader(self._request.spark, self.table.storage)
        landed = commit(self.table, change, reader=reader, listener=self._request.listener)
        self.table = landed.table
        return landed

    def _landed(self, work: BranchWork, landed: CommitResult) -> None:
        if landed.snapshot_id is None:
            return
        before = landed.base.metadata.head(work.branch)
        self.branches.append(
            RepairedBranch(
                branch=work.branch,
                previous_snapshot_id=None if before is None else before.snapshot_id,
                snapshot_id=landed.snapshot_id,
            )
        )

    def result(self) -> RepairResult:
        """What has landed, and what remains of the last plan."""
        plan = self._plans[-1].plan
        return RepairResult(
            status="done" if all(one.is_only_older for one in plan.not_mended) else "partial",
            run=self.run_id,
            mended=tuple(self.repaired),
            not_mended=plan.not_mended,
            branches=tuple(self.branches),
            lost_records_count=lost_records(self.repaired),
            metadata_location_before=self._read.metadata_location,
            metadata_location=self.table.metadata_location,
            hash=self._plans[0].plan.hash,
        )

    def landed_before(self) -> str:
        """What a run had fixed before it failed."""
        landed = [f"branch {one.branch!r} at snapshot {one.snapshot_id}" for one in self.branches]
        landed += [f"{one.where!r}" for one in self.repaired if one.is_put_back or not one.branch]
        return f"run {self.run_id!r} had repaired before: {', '.join(landed)}"


class WithNewFiles(msgspec.Struct, frozen=True):
    """A change with the files that writers add to it: the first attempt that gets so far writes them, later ones have the same.

    A writer raises `ConflictError` where what the files are to be made of, or for, is not as it was read.
    """

    change: RepairEntries
    writers: Sequence[Callable[[TableMetadata, Attempt], NewFiles]]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        change = self.change
        for made in self.writers:
            new = made(base, attempt)
            attempt.name_delete_files(new.locations)
            change = msgspec.structs.replace(
                change,
                entries=(*change.entries, *new.entries),
                added=(*change.added, *new.deletes),
                copies=(*change.copies, *new.copies),
            )
        return change.apply(base, attempt)


class StillNamed(msgspec.Struct, frozen=True):
    """A change that applies only while the table names some files of statistics as it did when they were looked at."""

    change: Change
    files: tuple[StatisticsFile | PartitionStatisticsFile, ...]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Raises `ConflictError` where it names one no longer: its snapshot may have another now; else as the change."""
        named = (*base.statistics, *base.partition_statistics)
        for file in self.files:
            if file not in named:
                raise ConflictError(f"the table does not name {file.statistics_path!r} any more as it was read")
        return self.change.apply(base, attempt)


class StillLost(msgspec.Struct, frozen=True):
    """A change that applies only while some files are not there, or not readable: each attempt asks for them, last of all."""

    change: Change
    missing: tuple[str, ...] = ()
    broken: tuple[FileInfo, ...] = ()

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Raises `ConflictError` where one is there again, or is another one; else as the change."""
        updates = self.change.apply(base, attempt)
        storage = attempt.reader.storage
        for location in self.missing if updates else ():
            if storage.head(location) is not None:
                raise ConflictError(f"file {location!r}, whose entry was to be taken out, is there again")
        for known in self.broken if updates else ():
            if storage.head(known.location) != known:
                raise ConflictError(f"file {known.location!r}, whose entry was to be taken out, has changed")
        return updates


def _lines(plan: RepairPlan, parts: Iterable[str]) -> Iterator[PlanLine]:
    """All that a plan does: what is fixed, and the hashes of all parts of that."""
    for repaired in plan.mends:
        says = {
            "fault_id": repaired.fault_id,
            "fault": repaired.name,
            "branch": repaired.branch,
            "action": repaired.action,
            "lost_files": list(repaired.lost_files),
        }
        yield PlanLine(
            do=_DO,
            kind=FAULT,
            name=repaired.where,
            record_count=repaired.lost_records_count,
            state=_state(repaired),
            says=says,
        )
    for part in sorted(parts):
        yield PlanLine(do=_DO, kind=PART, state=part)


def _check_saved(
    saved: SavedPlan | None,
    plan: RepairPlan,
    parts: frozenset[str],
    metadata: TableMetadata,
    *,
    has_begun: bool = False,
) -> None:
    """Compare a plan with the saved one, if there is one.

    Args:
        has_begun: this run has carried out a part of it before.

    Raises:
        SafetyError: it is not that, nor what an earlier run of the plan has left of it.
        AlreadyApplied: nothing of it is to be done any more.
    """
    if saved is None or plan.hash == saved.head.approve:
        return
    lines = [line for line in saved.lines() if line.do == _DO]
    faults = {line.state: line for line in lines if line.kind == FAULT}
    now = {_state(repaired): repaired for repaired in plan.mends}
    has_landed = bool(landed(saved, metadata))
    if not plan.mends and faults and not has_begun:
        if has_landed:
            raise already_applied(saved, metadata)
        raise AlreadyApplied(
            f"none of the {len(faults):,} faults that were to be repaired is there any more: it was carried out before, or "
            "somebody else repaired them"
        )
    if (has_landed or has_begun) and parts <= {line.state for line in lines if line.kind == PART}:
        return
    problems = []
    if missing := [line for state, line in faults.items() if state not in now]:
        fault = missing[0].says.get("fault_id")
        problems.append(
            f"{counted_doing(len(missing), 'repairs', 'do')} not apply as planned, such as of fault {fault} in "
            f"{missing[0].name!r}"
        )
    if others := [repaired for state, repaired in now.items() if state not in faults]:
        problems.append(
            f"{len(others):,} others would be done, such as of fault {others[0].fault_id} in {others[0].where!r}"
        )
    raise moved(saved, metadata, "; ".join(problems) or "what is to be repaired would be written in another way")


def _state(repaired: RepairedFault) -> str:
    return next(iter(parts_of([repaired], ())))


@takes(RepairRequest, asks=JOB.asks)
def repair(table: Table, request: RepairRequest) -> RepairResult:
    """Fix faults that `check` finds, on the heads of all branches; what only older snapshots have goes with their expiration.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. None is needed for small
            tables.
        fault: numbers of kinds of faults, as `check` shows them.
        accept_loss: locations of files that may be lost, or whose rows readers may lose. Nothing is lost that is not named.
        approve: the hash of a plan (`plan_repair`): exactly that is done, or nothing.
        saved: a plan that was written before (`apply_plan` reads it): exactly that is done, or nothing.
        snapshot_properties: keys and values of your own for the summaries of the new snapshots; none that others write.

    Raises:
        UsageError: there is no such kind of faults, or there are too many faults.
        UnsupportedError: the table is encrypted.
        SafetyError: the plan is not the approved one, or what would be written could not be checked: nothing was changed.
        ConflictError: others kept changing what was to be fixed. Once something is fixed the result is `partial` instead,
            whatever the error, and says why.
        OutcomeUnknownError: a commit may or may not have landed. The error lists what landed before.
    """
    run = RepairRun(table, request, _scope(table.metadata, request))
    try:
        return retry_with_replan(table, run.plan_and_execute, what=lambda: "faults", listener=request.listener)
    except OutcomeUnknownError as error:
        if run.repaired:
            error.append(run.landed_before())
        raise
    except Exception as error:
        if not run.repaired:
            raise
        # "Nothing was changed" would be wrong.
        problem = f"the rest of what was planned is not repaired: {reason_of(error)}"
        request.listener.on(Warned(problem))
        return msgspec.structs.replace(run.result(), status="partial", problems=(problem,))
    except BaseException:
        if run.repaired:
            request.listener.on(Warned(run.landed_before()))
        raise


@takes(RepairRequest)
def plan_repair(table: Table, request: RepairRequest) -> RepairPlan:
    """Say what `repair` would do with these arguments; raises what it raises before it commits."""
    plan, parts = _foreseen(table, request)
    _check_saved(request.saved, plan, parts, table.metadata)
    return plan


@takes(RepairRequest, "repair")
def exact_repair(table: Table, request: RepairRequest) -> ExactPlan:
    """What `repair` would do with these arguments, part by part; raises what it raises before it commits."""
    plan, parts = _foreseen(table, request)
    head = table.metadata.head(MAIN)
    return ExactPlan(
        shown=plan,
        snapshot_id=None if head is None else head.snapshot_id,
        lines=_lines(plan, parts),
        approve=plan.hash,
    )


def _foreseen(table: Table, request: RepairRequest) -> tuple[RepairPlan, frozenset[str]]:
    scope = _scope(table.metadata, request)
    again = _reattachment(table, scope, request)
    if again is not None:
        plan, parts = again.plan, frozenset[str]()
    else:
        found = planned(table, scope, request.spark, request.listener)
        plan, parts = found.plan, found.parts
    # `repair` would be refused too.
    request.check_approved(plan, "nothing would be changed")
    return plan, parts


@takes(RepairRequest)
def check_arguments(metadata: TableMetadata, request: RepairRequest) -> None:
    """Check the arguments against the table; raises `UsageError` and `UnsupportedError` as `repair`."""
    _scope(metadata, request)


def _scope(metadata: TableMetadata, request: RepairRequest) -> RepairScope:
    refuse_encrypted(metadata, JOB.name)
    return request.scope()


def _reattachment(table: Table, scope: RepairScope, request: RepairRequest) -> Reattachment | None:
    # A catalog that writes metadata itself takes none, and need not let us read it.
    if not scope.numbers & NEEDS_EARLIER or not table.catalog.compares_metadata:
        return None
    return plan_reattachment(table.catalog, table.identifier, scope, request.spark, request.listener)


def _reattach(again: Reattachment, request: RepairRequest, run_id: str) -> RepairResult:
    """Have a table begin again from earlier metadata, as it was planned and approved; raises as `reattached`."""
    request.check_approved(again.plan, "nothing is changed")
    is_planned = again.table is not None
    location = reattached(again, request.listener).metadata_location if is_planned else again.faulty_location
    return RepairResult(
        status="partial" if again.plan.not_mended else "done",
        run=run_id,
        mended=again.plan.mends,
        not_mended=again.plan.not_mended,
        lost_records_count=again.plan.lost_records_count,
        metadata_location_before=again.faulty_location,
        metadata_location=location,
        hash=again.plan.hash,
    )


def repair_unreadable(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, run: Run | None = None, **arguments: Any
) -> RepairResult:
    """`repair` of a table whose metadata does not load; nothing is done unless `accept_loss` names the faulty file.

    Args:
        error: what its catalog raised.
        run: which run it is; by default one that begins here.
        arguments: those of `repair`.

    Raises:
        InvalidTableError: `error`, where the metadata has no fault of the kinds that were asked for.
        ConflictError: others changed the table meanwhile; nothing was changed.
        OutcomeUnknownError: the new metadata may or may not have landed.
        UsageError, UnsupportedError, SafetyError: as `repair`.
    """
    request, began_ms = RepairRequest(**arguments), catalog.runtime.monotonic_ms()
    again = _planned_unreadable(catalog, identifier, error, request)
    result = _reattach(again, request, (run or new_run(JOB.name, catalog.runtime)).run_id)
    return msgspec.structs.replace(result, elapsed_ms=catalog.runtime.monotonic_ms() - began_ms)


def plan_repair_unreadable(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, run: Run | None = None, **arguments: Any
) -> RepairPlan:
    """Say what `repair_unreadable` would do; raises what it raises before it commits."""
    request = RepairRequest(**arguments)
    plan = _planned_unreadable(catalog, identifier, error, request).plan
    request.check_approved(plan, "nothing would be changed")
    return plan


def _planned_unreadable(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, request: RepairRequest
) -> Reattachment:
    again = plan_reattachment(catalog, identifier, request.scope(), request.spark, request.listener)
    if again is not None:
        return again
    numbers = sorted(read_pointed(catalog.find(identifier)).tally.counts.keys() & NEEDS_EARLIER)
    way = "has the table begin again from earlier metadata"
    hint = f"`--fault {numbers[0]}` {way}" if numbers else "`icekeep check` tells what is wrong with it, and what to do"
    error.append(hint)
    raise error
