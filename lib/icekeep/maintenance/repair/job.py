"""What a repair did.

A plan carried out: the metadata first, then one branch after the other, each by a commit of its own.

A plan that was written before, held against what can be mended by now: that is done, the rest of it, or nothing.

The job `repair`: what was found -> what can be done about it -> commits.

The job `repair` on a table whose metadata does not load: what its command calls in place of `repair` and `plan_repair`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Table
from icekeep.commit.attempt import Attempt, Change
from icekeep.commit.changes.definitions import ChangeStatistics, RaiseLowCounters
from icekeep.commit.changes.repair_entries import RepairEntries
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.retry import CommitResult, commit
from icekeep.errors import ConflictError, InvalidTableError, OutcomeUnknownError, SafetyError, UsageError, reason_of
from icekeep.events import Listener, Warned
from icekeep.formats.deletes.read import hold_own_path
from icekeep.maintenance.check.faults import REACHING_NOTHING
from icekeep.maintenance.check.job import known_numbers
from icekeep.maintenance.delete.plan_file import refuse_unapproved
from icekeep.maintenance.jobs import CommittingRequest, JobResult, takes
from icekeep.maintenance.repair import JOB
from icekeep.maintenance.repair.delete_files import Sorting
from icekeep.maintenance.repair.lists import bring_back, write_list
from icekeep.maintenance.repair.metadata import NEEDS_EARLIER, read_spoilt
from icekeep.maintenance.repair.older_files import Copying
from icekeep.maintenance.repair.plan import (
    BranchWork,
    Mend,
    Merging,
    NewFileWriter,
    NotMended,
    Planned,
    Reattachment,
    RepairPlan,
    RepairScope,
    WithNewFiles,
    lost_records,
    parts_of,
    plan_reattachment,
    reattached,
)
from icekeep.maintenance.repair.planner import COUNTERS, planned
from icekeep.maintenance.rewrite.run import plan_till_done, run_name
from icekeep.maintenance.saved_plans import (
    FAULT,
    PART,
    AlreadyApplied,
    ExactPlan,
    GivenPlan,
    PlanLine,
    already,
    landed,
    moved,
)
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.scan.plan import refuse_encrypted
from icekeep.planning.spark.session import SparkSource
from icekeep.runs import Run as Run_of_runs
from icekeep.runs import new_run
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN, PartitionStatisticsFile, StatisticsFile
from icekeep.spec.updates import Update
from icekeep.spelling import counted_doing
from icekeep.storage.base import FileInfo


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
    mended: tuple[Mend, ...] = ()
    not_mended: tuple[NotMended, ...] = ()
    branches: tuple[RepairedBranch, ...] = ()
    lost_records_count: int | None = 0
    problems: tuple[str, ...] = ()
    metadata_location_before: str
    metadata_location: str
    hash: str = ""
    elapsed_ms: int = 0


class RepairRun:
    """One run, and what of it has landed.

    Attributes:
        branches: what was committed to each.
        mended: what has landed.
        table: as the last commit left it.
    """

    def __init__(self, table: Table, run_id: str, spark: SparkSource, listener: Listener) -> None:
        self.table, self.run_id = table, run_id
        self._spark, self._listener = spark, listener
        self.branches: list[RepairedBranch] = []
        self.mended: list[Mend] = []

    def execute(self, table: Table, planned: Planned) -> None:
        """Carry a plan out. A branch on which others are in the way hinders no other.

        Raises:
            ConflictError: what was planned for a branch does not apply any more; the others have landed.
        """
        self.table = table
        mends = planned.plan.mends
        for file in bring_back(table, planned.returns):
            self.mended += [one for one in mends if one.is_put_back and one.where == file.location]
        for new in planned.lists:
            write_list(table, new, SparkManifestReader(self._spark, table.storage))
            self.mended += [one for one in mends if one.is_put_back and one.where == new.location]
        self._metadata(table.metadata, planned, [one for one in mends if not one.branch])
        refusals = []
        for work in planned.works:
            try:
                self._branch(work, [one for one in mends if one.branch == work.branch and not one.is_put_back])
            except ConflictError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]

    def _metadata(self, read: TableMetadata, planned: Planned, mends: Sequence[Mend]) -> None:
        """Carry out what is changed in the metadata alone; what each commit that lands has mended is noted at once."""
        if planned.counters:
            self._commit(RaiseLowCounters(planned.counters))
            self.mended += [one for one in mends if one.fault_id in COUNTERS]
        if planned.statistics:
            change: Change = ChangeStatistics(removals=tuple(sorted(planned.statistics)))
            files = tuple(file for file in read.statistics if file.snapshot_id in planned.statistics)
            self._commit(StillNamed(change, files))
            self.mended += _of_files(mends, files)
        if planned.partition_statistics:
            change = ChangeStatistics(partition_removals=tuple(sorted(planned.partition_statistics)))
            named = tuple(
                file for file in read.partition_statistics if file.snapshot_id in planned.partition_statistics
            )
            self._commit(StillNamed(change, named))
            self.mended += _of_files(mends, named)

    def _branch(self, work: BranchWork, mends: Sequence[Mend]) -> None:
        """Carry out the work on one branch; each commit that lands is noted at once, with what it has mended."""
        summary = self._summary(work.faults)
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
            whole = WithNewFiles(change, self._makers(work))
            self._landed(work, self._commit(StillLost(whole, tuple(sorted(work.gone)), tuple(work.broken.values()))))
            self.mended += [one for one in mends if one.fault_id not in REACHING_NOTHING]
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
            self.mended += [one for one in mends if one.fault_id in REACHING_NOTHING]

    def _makers(self, work: BranchWork) -> list[NewFileWriter]:
        makers: list[NewFileWriter] = []
        if work.merges:
            makers.append(Merging(tuple(work.merges), self.run_id, self.table))
        if work.sorts:
            makers.append(Sorting(work.sorts, self.run_id, self.table))
        if work.replacements:
            makers.append(Copying(work.branch, tuple(work.replacements.values()), self.run_id, self.table))
        return makers

    def _commit(self, change: Change) -> CommitResult:
        reader = SparkManifestReader(self._spark, self.table.storage)
        landed = commit(self.table, change, reader=reader, listener=self._listener)
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

    def _summary(self, faults: Sequence[int] | set[int]) -> Mapping[str, str]:
        return {
            "icekeep.faults": ",".join(map(str, sorted(faults))),
        }


def _of_files(mends: Sequence[Mend], files: Sequence[StatisticsFile | PartitionStatisticsFile]) -> list[Mend]:
    """The mends by which the table names some files of statistics no more."""
    paths = {file.statistics_path for file in files}
    return [one for one in mends if one.where in paths]


class StillNamed(msgspec.Struct, frozen=True):
    """A change that applies only while the table names some files of statistics as it did when they were looked at."""

    change: Change
    files: tuple[StatisticsFile | PartitionStatisticsFile, ...]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Raises `ConflictError` where it names one no longer: its snapshot may have another by now; else as the change."""
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
        """Raises `ConflictError` where one is there again, or another one by now; else as the change."""
        updates = self.change.apply(base, attempt)
        storage = attempt.reader.storage
        for location in self.missing if updates else ():
            if storage.head(location) is not None:
                raise ConflictError(f"file {location!r}, whose entry was to be taken out, is there again")
        for known in self.broken if updates else ():
            if storage.head(known.location) != known:
                raise ConflictError(f"file {known.location!r}, whose entry was to be taken out, has changed")
        return updates


MEND = "mend"


def exact_lines(plan: RepairPlan, parts: Iterable[str]) -> Iterator[PlanLine]:
    """All that a plan does: what is mended, and the hashes of all parts of that."""
    for mend in plan.mends:
        says = {
            "fault_id": mend.fault_id,
            "fault": mend.name,
            "branch": mend.branch,
            "action": mend.action,
            "lost_files": list(mend.lost_files),
        }
        yield PlanLine(
            do=MEND, kind=FAULT, name=mend.where, record_count=mend.lost_records_count, state=_state(mend), says=says
        )
    for part in sorted(parts):
        yield PlanLine(do=MEND, kind=PART, state=part)


def hold(
    given: GivenPlan, plan: RepairPlan, parts: frozenset[str], metadata: TableMetadata, *, has_begun: bool
) -> None:
    """Hold what can be mended now against a plan that was given.

    Args:
        has_begun: this run has mended a part of it before.

    Raises:
        SafetyError: it is not that, nor what an earlier run of the plan has left of it.
        AlreadyApplied: nothing of it is to be mended any more.
    """
    if plan.hash == given.approve:
        return
    lines = [line for line in given.lines() if line.do == MEND]
    faults = {line.state: line for line in lines if line.kind == FAULT}
    now = {_state(mend): mend for mend in plan.mends}
    has_landed = bool(landed(given, metadata))
    missing = [line for state, line in faults.items() if state not in now]
    if not plan.mends and faults and not has_begun:
        if has_landed:
            raise already(given, metadata)
        raise AlreadyApplied(
            f"none of the {len(faults):,} faults that were to be mended is there any more: it was carried out before, or "
            "somebody else mended them"
        )
    if (has_landed or has_begun) and parts <= {line.state for line in lines if line.kind == PART}:
        return
    raise moved(given, metadata, _problem(missing, [mend for state, mend in now.items() if state not in faults]))


def _problem(missing: list[PlanLine], others: list[Mend]) -> str:
    told = []
    if missing:
        fault = missing[0].says.get("fault_id")
        told.append(
            f"{counted_doing(len(missing), 'mends', 'do')} not apply as planned, such as of fault {fault} in {missing[0].name!r}"
        )
    if others:
        told.append(
            f"{len(others):,} others would be done, such as of fault {others[0].fault_id} in {others[0].where!r}"
        )
    return "; ".join(told) or "what is to be mended would be written in another way"


def _state(mend: Mend) -> str:
    return next(iter(parts_of([mend], ())))


class RepairRequest(CommittingRequest, frozen=True, kw_only=True):
    """The arguments of `repair`, which says what each means."""

    fault: Sequence[int] = ()
    accept_loss: Sequence[str] = ()
    approve: str | None = None


@takes(RepairRequest)
def repair(table: Table, request: RepairRequest) -> RepairResult:
    """Fix faults that `check` finds, on the heads of all branches; what only older snapshots have goes with their expiration.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. None is needed for small
            tables.
        fault: numbers of kinds of faults, as `check` shows them.
        accept_loss: locations of files that may be lost, or whose rows readers may lose. Nothing is lost that is not named.
        approve: the hash of a plan (`plan_repair`): exactly that is done, or nothing.
        given: a plan that was written before (`apply_plan` reads it): exactly that is done, or nothing.
        snapshot_properties: keys and values of your own for the summaries of the new snapshots; none that others write.

    Raises:
        UsageError: there is no such kind of faults, or there are too many faults.
        UnsupportedError: the table is encrypted.
        SafetyError: the plan is not the approved one, or what would be written could not be checked: nothing was changed.
        ConflictError: others kept changing what was to be fixed. Once something is fixed the result is `partial` instead,
            whatever the error, and says why.
        OutcomeUnknownError: a commit may or may not have landed. The error lists what landed before.
    """
    asked = _asked(table.metadata, request)
    run = RepairRun(table, run_name(table), request.spark, request.listener)

    first: list[Planned] = []

    def once(now: Table, number: int) -> RepairResult:
        again = _reattachment(now, asked, request)
        if again is not None:
            _hold(now, request, again.plan)
            return carried_out(again, request, run.run_id)
        found = planned(now, asked, request.spark, request.listener)
        first.append(found)
        if request.given is not None:
            _hold(now, request, found.plan, found.parts, has_begun=bool(run.mended))
        elif number == 1:
            refuse_unapproved(request.approve, found.plan.hash, "nothing is changed")
        elif request.approve is not None and not found.parts <= first[0].parts:
            raise SafetyError(
                f"others changed the table {table.name!r} meanwhile, and what can be mended now is not all approved; nothing "
                "more is changed; look at --dry-run again"
            )
        run.execute(now, found)
        return _result(table, run, found.plan, first[0].plan.hash)

    try:
        return plan_till_done(table, once, what=lambda: "faults", listener=request.listener)
    except Exception as error:
        if not run.mended:
            raise
        return _ended_early(error, run, _result(table, run, first[-1].plan, first[0].plan.hash), request.listener)
    except BaseException:
        if run.mended:
            request.listener.on(Warned(_told(run)))
        raise


def _ended_early(error: Exception, run: RepairRun, done: RepairResult, listener: Listener) -> RepairResult:
    """What a run has mended that does not come to its end: "nothing was changed" would be wrong.

    Raises:
        OutcomeUnknownError: that is the error.
    """
    if isinstance(error, OutcomeUnknownError):
        error.append(_told(run))
        raise error
    problem = f"the rest of what was planned is not mended: {reason_of(error)}"
    listener.on(Warned(problem))
    return msgspec.structs.replace(done, status="partial", problems=(problem,))


def _told(run: RepairRun) -> str:
    """What a run has mended that does not come to its end."""
    told = [f"branch {one.branch!r} at snapshot {one.snapshot_id}" for one in run.branches]
    told += [f"{one.where!r}" for one in run.mended if one.is_put_back or not one.branch]
    return f"run {run.run_id!r} had mended before: {', '.join(told)}"


@takes(RepairRequest)
def plan_repair(table: Table, request: RepairRequest) -> RepairPlan:
    """Say what `repair` would do with these arguments; raises what it raises before it commits."""
    asked = _asked(table.metadata, request)
    plan, parts = _foreseen(table, asked, request)
    _hold(table, request, plan, parts)
    return plan


@takes(RepairRequest, "repair")
def exact_repair(table: Table, request: RepairRequest) -> ExactPlan:
    """What `repair` would do with these arguments, part by part; raises what it raises before it commits."""
    plan, parts = _foreseen(table, _asked(table.metadata, request), request)
    head = table.metadata.head(MAIN)
    return ExactPlan(
        shown=plan,
        snapshot_id=None if head is None else head.snapshot_id,
        lines=exact_lines(plan, parts),
        approve=plan.hash,
    )


def _foreseen(table: Table, asked: RepairScope, request: RepairRequest) -> tuple[RepairPlan, frozenset[str]]:
    again = _reattachment(table, asked, request)
    if again is not None:
        return approved(again.plan, request), frozenset()
    found = planned(table, asked, request.spark, request.listener)
    return approved(found.plan, request), found.parts


def approved(plan: RepairPlan, request: RepairRequest) -> RepairPlan:
    """A plan that is only shown, unless another one is approved: then `repair` would be refused too."""
    refuse_unapproved(request.approve, plan.hash, "nothing would be changed")
    return plan


def _hold(
    table: Table,
    request: RepairRequest,
    plan: RepairPlan,
    parts: frozenset[str] = frozenset(),
    *,
    has_begun: bool = False,
) -> None:
    """Hold a plan against the one that was given, if one was."""
    if request.given is not None:
        hold(request.given, plan, parts, table.metadata, has_begun=has_begun)


@takes(RepairRequest)
def check_arguments(metadata: TableMetadata, request: RepairRequest) -> None:
    """Hold the arguments against the table; raises `UsageError` and `UnsupportedError` as `repair`."""
    _asked(metadata, request)


def carried_out(again: Reattachment, request: RepairRequest, run_id: str) -> RepairResult:
    """Have a table begin again from earlier metadata, as it was planned and approved; raises as `reattached`."""
    refuse_unapproved(request.approve, again.plan.hash, "nothing is changed")
    is_planned = again.table is not None
    location = reattached(again, request.listener).metadata_location if is_planned else again.spoilt_location
    return RepairResult(
        status="partial" if again.plan.not_mended else "done",
        run=run_id,
        mended=again.plan.mends,
        not_mended=again.plan.not_mended,
        lost_records_count=again.plan.lost_records_count,
        metadata_location_before=again.spoilt_location,
        metadata_location=location,
        hash=again.plan.hash,
    )


def _reattachment(table: Table, asked: RepairScope, request: RepairRequest) -> Reattachment | None:
    # A catalog that writes metadata itself takes none, and need not let us read it.
    if not asked.numbers & NEEDS_EARLIER or not table.catalog.compares_metadata:
        return None
    return plan_reattachment(table.catalog, table.identifier, asked, request.spark, request.listener)


def asked_for(request: RepairRequest) -> RepairScope:
    """What a request asks for; raises `UsageError` where that is nothing, or no such kind of faults."""
    if not request.fault:
        raise UsageError("no kind of faults is given; name those that are to be mended, such as 302")
    return RepairScope(numbers=frozenset(known_numbers(request.fault)), accepted=frozenset(request.accept_loss))


def _asked(metadata: TableMetadata, request: RepairRequest) -> RepairScope:
    refuse_encrypted(metadata, JOB.name)
    return asked_for(request)


def _result(table: Table, run: RepairRun, plan: RepairPlan, plan_hash: str) -> RepairResult:
    return RepairResult(
        status="done" if all(one.is_only_older for one in plan.not_mended) else "partial",
        run=run.run_id,
        mended=tuple(run.mended),
        not_mended=plan.not_mended,
        branches=tuple(run.branches),
        lost_records_count=lost_records(run.mended),
        metadata_location_before=table.metadata_location,
        metadata_location=run.table.metadata_location,
        hash=plan_hash,
    )


def repair_unreadable(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, run: Run_of_runs | None = None, **arguments: Any
) -> RepairResult:
    """Have a table begin again from its last sound metadata; nothing is done unless `accept_loss` names the spoilt file.

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
    again = _planned(catalog, identifier, error, request)
    result = carried_out(again, request, (run or new_run(JOB.name, catalog.runtime)).run_id)
    return msgspec.structs.replace(result, elapsed_ms=catalog.runtime.monotonic_ms() - began_ms)


def plan_repair_unreadable(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, run: Run_of_runs | None = None, **arguments: Any
) -> RepairPlan:
    """Say what `repair_unreadable` would do; raises what it raises before it commits."""
    request = RepairRequest(**arguments)
    return approved(_planned(catalog, identifier, error, request).plan, request)


def _planned(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, request: RepairRequest
) -> Reattachment:
    again = plan_reattachment(catalog, identifier, asked_for(request), request.spark, request.listener)
    if again is not None:
        return again
    numbers = sorted(read_spoilt(catalog.find(identifier)).tally.counts.keys() & NEEDS_EARLIER)
    way = "has the table begin again from earlier metadata"
    hint = f"`--fault {numbers[0]}` {way}" if numbers else "`icekeep check` tells what is wrong with it, and what to do"
    error.append(hint)
    raise error
