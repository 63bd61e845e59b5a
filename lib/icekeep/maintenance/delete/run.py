"""What each plan goes through, from garbage to the last deleted file. The only deleter of table files.

    garbage -> sorted by location -> approved -> leased -> plan on disk -> kept by other plans -> last look -> deleted -> settled

Nothing is deleted but by a plan that is on disk and leased, after one more look at each file's location. Before each call of a
thousand files the driver looks at the catalog and the lease; tasks of Spark look at the lease, and the driver at the catalog
between batches of tasks, since a catalog need not be within reach of executors. What others name goes before what names it.
Files that are gone already are fine, so that a plan may be carried out again.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.errors import ClaimedError, IcekeepBug, IcekeepError, MissingFileError, SafetyError, reason_of
from icekeep.events import Listener, StepAdvanced, StepFinished, StepStarted, Warned
from icekeep.maintenance.delete.garbage import Garbage, warn_of_kept
from icekeep.maintenance.delete.kept import KeptByPlans, LookBesideOthers, kept_by_others
from icekeep.maintenance.delete.lease import PlanLease, holding, new_lease
from icekeep.maintenance.delete.locations import DeletableLocations, deletable_locations
from icekeep.maintenance.delete.options import ReclaimOptions
from icekeep.maintenance.delete.plan_file import (
    ClassifiedGarbage,
    DeletionPlan,
    PlanDraft,
    PlanPart,
    classify_garbage,
    delete_draft,
    delete_plan,
    holds_files,
    mark_done,
    plans_directory,
    read_part,
    refuse_unapproved,
    trash_location,
    warn_of_outside,
    warn_of_unread,
    write_part,
    write_plan,
)
from icekeep.maintenance.delete.reachable import (
    NO_PATHS,
    FileKind,
    FilesOfKind,
    LastLook,
    Mask,
    PathSet,
    ReachableLists,
    TableLook,
    added,
    refuse_if_gc_is_disabled,
)
from icekeep.maintenance.delete.saved import SavedDeletion
from icekeep.planning.spark.failures import known_error
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import is_speculative, is_tried_again, max_task_failures, run_tasks, was_tried_before
from icekeep.planning.spark.workers import small_tasks
from icekeep.runtime import Runtime
from icekeep.spec.collections import balanced, packed
from icekeep.spec.types import MINUTE_MS
from icekeep.spelling import counted
from icekeep.storage.base import DeleteStatus, MoveStatus, Storage
from icekeep.storage.local.links import confined_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CALL_FILES = 1_000
"""How many files one call deletes, at most; stores take no more."""

NAMED_COUNT = 100
"""How many of the files that could not be deleted are named."""

_STEP = "deleting files"
_BATCH_MS = MINUTE_MS
"""How long a batch of tasks is meant to last."""

_FIRST_BATCH_PARTS = 4
_TASK_FILES_PER_SECOND = 500
"""What one task deletes, where the speed of all is limited."""

_GONE = (DeleteStatus.DELETED, MoveStatus.MOVED)
_MISSING = (DeleteStatus.MISSING, MoveStatus.MISSING)
_FAILED = (DeleteStatus.FAILED, MoveStatus.FAILED)


class DeletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was asked for about deletion.

    Attributes:
        skips_trash: the operator wants files to go at once, also those of plans that wait to be moved to the trash.
        other_roots: locations of other tables, whose files are theirs (`Neighbours.other_roots`).
        approve: the hash that the run's plan must have; `None` for any.
        saved: what alone may go; then `approve` is its hash.
    """

    options: ReclaimOptions
    max_concurrent_deletes: int | None = None
    trust_manifest_list: bool = False
    skips_trash: bool = False
    other_roots: tuple[str, ...] = ()
    approve: str | None = None
    saved: SavedDeletion | None = None


class Reclaimed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a plan's files.

    Attributes:
        deleted: by kind; in the trash, if the plan says so.
        missing_count: files that were gone already.
        kept_count: files that are in use now, or that another plan keeps, or of whose path another is in the trash.
        unmovable: files that cannot be moved to the trash: written down, to be deleted when their days in it would be over.
        failed: the first of those that could not be deleted, each with the reason.
        stopped: why it ended before the end of the plan, when files had begun to go; empty where it did not.
        is_kept_as_versions: the store keeps the bytes of what was deleted as older versions.
        is_in_doubt: a call had no answer, so that files may be gone, or go later, that are in no count.
    """

    deleted: tuple[FilesOfKind, ...] = ()
    missing_count: int = 0
    kept_count: int = 0
    unmovable: tuple[PlanPart, ...] = ()
    failed_count: int = 0
    failed: tuple[str, ...] = ()
    stopped: str = ""
    is_kept_as_versions: bool = False
    is_in_doubt: bool = False

    @property
    def deleted_count(self) -> int:
        return sum(f.files_count for f in self.deleted)

    @property
    def deleted_bytes_count(self) -> int:
        return sum(f.bytes for f in self.deleted)

    @property
    def unmovable_count(self) -> int:
        return sum(part.files_count for part in self.unmovable)

    @property
    def looked_at_count(self) -> int:
        """How many files of the plan it is about, whatever became of them."""
        counts = (self.deleted_count, self.missing_count, self.kept_count, self.unmovable_count, self.failed_count)
        return sum(counts)

    @property
    def may_have_deleted(self) -> bool:
        """Whether "nothing was deleted" would be wrong, or is not known."""
        return bool(self.deleted_count or self.failed_count or self.stopped or self.is_in_doubt)

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the plan is left to be done."""
        return not self.failed_count and not self.stopped


class DeletionRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that deletes, and what its plans go through; a dry run takes the first step alone.

    Attributes:
        table: as it was loaded last.
        locations: where files of the table may be deleted.
        leases: end what the run holds of its plans when the run ends.
        now_ms: the earlier of the clocks when the run began, epoch milliseconds.
    """

    table: Table
    spark: SparkSource
    request: DeletionRequest
    listener: Listener
    leases: ExitStack
    now_ms: int
    locations: DeletableLocations

    @classmethod
    def of(
        cls,
        table: Table,
        spark: SparkSource,
        request: DeletionRequest,
        listener: Listener,
        now_ms: int,
        leases: ExitStack | None = None,
    ) -> "DeletionRun":
        """A run on a table, within the locations that are the table's now."""
        return cls(
            table=table,
            spark=spark,
            request=request,
            listener=listener,
            leases=leases or ExitStack(),
            now_ms=now_ms,
            locations=deletable_locations(table, request.options.roots, request.other_roots),
        )

    def on(self, table: Table) -> "DeletionRun":
        """The same run on another state of its table; the locations stay those of its beginning."""
        return msgspec.structs.replace(self, table=table)

    def classified(
        self,
        garbage: Garbage,
        draft: PlanDraft,
        refusal: str | None,
        unread_advice: str,
        directory: str | None = None,
        beside: pa.Table | None = None,
    ) -> ClassifiedGarbage:
        """Sort garbage by whether it may be deleted where it lies, write down what may, and refuse what is not approved.

        Args:
            refusal: what is not done where another plan is approved, as "nothing is expired"; `None`: nobody asks.
            unread_advice: who finds what only unreadable files lead to.
            directory: where the parts are written, of which an error leaves none; `None`: they are counted.
            beside: files that go with the plan and are not in it, rows of `GARBAGE`.
        """
        table, saved = self.table, self.request.saved
        try:
            warn_of_kept(garbage, self.listener)
            only = None if saved is None else saved.keys
            found = classify_garbage(garbage, self.locations, directory, table.storage, only)
            found = found if beside is None else found.with_beside(beside)
            warn_of_outside(found, table, self.listener)
            warn_of_unread(found, unread_advice, self.listener)
            if refusal is not None:
                self.refuse_other(found, draft, refusal)
        except FileExistsError:
            # Another process works under the id of this run.
            raise
        except BaseException:
            if directory is not None:
                delete_draft(directory, table.storage)
            raise
        return found

    def refuse_other(self, found: ClassifiedGarbage, draft: PlanDraft, refusal: str) -> None:
        """Raise where what was found is not what was saved, or not what is approved.

        Raises:
            SafetyError: it is not.
            AlreadyApplied: all that was saved is gone.
        """
        if self.request.saved is not None:
            self.request.saved.check(found, self.table)
        refuse_unapproved(self.request.approve, found.hash(self.table, draft), refusal)

    def lease(self, directory: str, job: str) -> PlanLease:
        """Lease a plan that is about to be written, until the run ends; nobody carries it out while it has no head."""
        storage = self.table.storage
        lease = new_lease(directory, job, storage, self.table.runtime)
        return self.leases.enter_context(holding(lease, storage, self.table.runtime))

    def carry_out(
        self, plan: DeletionPlan, lease: PlanLease, seen: ReachableLists, roots: Sequence[str] = ()
    ) -> Reclaimed | KeptByPlans:
        """Delete the files of a plan that was proved on the table as it is, but for those that other plans keep for longer.

        Args:
            seen: what was read for the proof.
            roots: directories of files that may go, beside the run's own.

        Returns:
            What became of them, or why all of them wait; raises as `reclaim`.
        """
        kept = self.kept_by_others(plan)
        if kept.reason:
            return kept
        done = self.reclaim(plan, lease, self.look_beside_others(plan, seen, kept.files, roots))
        return self.settle(plan, lease, done)

    def kept_by_others(self, plan: DeletionPlan) -> KeptByPlans:
        """Which files of a plan other plans of the table keep for longer."""
        return kept_by_others(plan, self.table, self.now_ms, skips_trash=self.request.skips_trash)

    def look(self, seen: ReachableLists, roots: Sequence[str] = ()) -> TableLook:
        """The look at a table that lives, which was proved when what was `seen` was read."""
        return TableLook(
            self.table,
            seen,
            self.spark,
            trust_manifest_list=self.request.trust_manifest_list,
            roots=(*roots, *self.locations.roots),
        )

    def look_beside_others(
        self, plan: DeletionPlan, seen: ReachableLists, stays: PathSet, roots: Sequence[str] = ()
    ) -> LookBesideOthers:
        """The same, and at plans of others that came since; some files stay in any case."""
        skips_trash = self.request.skips_trash
        return LookBesideOthers(self.look(seen, roots), plan, self.table, stays, self.now_ms, skips_trash=skips_trash)

    def reclaim(
        self, plan: DeletionPlan, lease: PlanLease, look: LastLook, *, empties_trash: bool = False
    ) -> Reclaimed:
        """Delete the files of a plan, or move them where it says so; failures are counted and named.

        Args:
            look: says what is in use, before each call.
            empties_trash: delete what the plan has moved to the trash.

        Raises:
            ClaimedError: another run has taken the plan over before the first call that deletes; from then on that is `stopped`,
                as is every error, since the call that fails may have deleted files all the same.
            SafetyError: the files are not to be deleted (`refuse_if_gc_is_disabled`), or a file lies where none may be deleted.
        """
        table, runtime, listener, storage = self.table, self.table.runtime, self.listener, self.table.storage
        refuse_if_gc_is_disabled(table)
        if plan.table_uuid != table.metadata.table_uuid:
            raise IcekeepBug("the plan is of another table")
        listener.on(StepStarted(_STEP, plan.files_count, "files"))
        if empties_trash or not plan.is_trash:
            look()
            lease.begin_deleting(storage, runtime)
        work = _Work(
            plan=plan,
            lease=lease,
            calls=_Calls(),
            in_use=NO_PATHS,
            locations=self.locations,
            storage=storage,
            files_per_second=self.request.options.max_deletes_per_second,
            empties_trash=empties_trash,
            unmovable_directory=f"{plans_directory(table.metadata)}/{runtime.new_uuid()}" if plan.is_trash else "",
            runtime=runtime,
        )
        done: list[Reclaimed] = []
        stopped = ""
        # What manifests name, and then the rest.
        content = tuple(part for part in plan.parts if all(f.kind.is_content for f in part.files))
        others = tuple(part for part in plan.parts if part not in content)
        try:
            for parts in filter(None, (content, others)):
                for some in _carried_out(work, parts, look, self.spark, self.request.max_concurrent_deletes):
                    done.append(some)
                    listener.on(StepAdvanced(_STEP, some.looked_at_count))
        except Exception as error:
            if not work.calls.have_begun:
                raise
            stopped = reason_of(error)
            if work.calls.is_one_in_doubt:
                stopped += "; what was being deleted then may be gone, and is not counted"
            listener.on(Warned(f"not all files of plan {plan.directory!r} were deleted: {stopped}"))
        finally:
            # What was to be deleted for good, and was refused, stands in nobody's way.
            if not lease.deletes and any(one.failed_count for one in done):
                lease.note_failed_call(runtime)
        total = msgspec.structs.replace(_sum(done), stopped=stopped, is_in_doubt=work.calls.is_one_in_doubt)
        _warn(total, plan, listener)
        listener.on(StepFinished(_STEP, _note(total)))
        return total

    def settle(
        self,
        plan: DeletionPlan,
        lease: PlanLease,
        done: Reclaimed,
        *,
        empties_trash: bool = False,
        skips_trash: bool = False,
    ) -> Reclaimed:
        """Delete a plan that is carried out, or mark it as done where files are in its trash; one with failures stays as it is.

        Where another run has taken the plan over, all is left to that.

        Args:
            empties_trash: its files were in the trash.
            skips_trash: its files did not go to the trash, though it says so; what it had moved before waits for its day.

        Returns:
            What became of the files. An error here does not change the counts: the next run goes on.
        """
        storage = self.table.storage
        try:
            if not done.is_complete or (empties_trash and done.kept_count):
                return done
            try:
                lease.check(storage, self.table.runtime)
            except ClaimedError as error:
                self.listener.on(Warned(error.message))
                return done
            if done.unmovable:
                self._write_unmovable(plan, done)
            absent_count = done.missing_count + done.kept_count + done.unmovable_count
            has_moved = done.deleted_count + done.missing_count + done.unmovable_count
            if empties_trash or not plan.is_trash:
                delete_plan(plan, storage)
            elif skips_trash and holds_files(plan, storage):
                mark_done(plan, plan.files_count, storage)
            elif not skips_trash and (has_moved or holds_files(plan, storage)):
                mark_done(plan, absent_count, storage)
            else:
                delete_plan(plan, storage)
        except Exception as error:  # noqa: BLE001 - whatever it is, the files are gone
            stopped = f"plan {plan.directory!r} is carried out, and stays: {reason_of(error)}"
            self.listener.on(Warned(stopped))
            return msgspec.structs.replace(done, stopped=stopped)
        return done

    def _write_unmovable(self, plan: DeletionPlan, done: Reclaimed) -> None:
        """Let what could not be moved to the trash wait where it is, by a plan of its own."""
        assert plan.trash_until_ms is not None
        # A plan that is finished late gives its files their days all the same.
        until_ms = max(plan.trash_until_ms, self.table.runtime.now_ms() + plan.trash_until_ms - plan.not_before_ms)
        directory = done.unmovable[0].location.rpartition("/")[0]
        draft = PlanDraft(job=plan.job, run=directory.rpartition("/")[2], not_before_ms=until_ms, roots=plan.roots)
        write_plan(ClassifiedGarbage(parts=done.unmovable), draft, self.table, self.table.runtime)
        self.listener.on(
            Warned(
                f"{counted(done.unmovable_count, 'files')} cannot be moved to the trash, which is in another store, bucket or "
                f"mount: they stay where they are for as long, and are deleted then ({directory!r})"
            )
        )


def _warn(total: Reclaimed, plan: DeletionPlan, listener: Listener) -> None:
    for failure in total.failed:
        listener.on(Warned(f"could not delete {failure}"))
    if total.kept_count:
        files, stay = counted(total.kept_count, "files"), "stays" if total.kept_count == 1 else "stay"
        listener.on(
            Warned(
                f"{files} of plan {plan.directory!r} {stay}: "
                "in use, kept by another plan, or another file with the same path is in the trash already"
            )
        )


def _note(total: Reclaimed) -> str:
    files = counted(total.deleted_count, "files")
    if not total.is_kept_as_versions:
        return files
    return f"{files}, whose {total.deleted_bytes_count:,} bytes the bucket keeps as older versions until its rules let them go"


class RateLimit:
    """Limits a task to a number of files a second."""

    def __init__(self, files_per_second: float | None, runtime: Runtime) -> None:
        self._rate, self._runtime = files_per_second, runtime
        self._began_ms, self._count = runtime.monotonic_ms(), 0
        self.max_at_once = CALL_FILES if files_per_second is None else max(1, min(CALL_FILES, int(files_per_second)))

    def wait_for(self, count: int) -> None:
        """Wait until `count` more may go."""
        if self._rate is not None:
            due_ms = self._began_ms + round(1000 * self._count / self._rate)
            wait_ms = due_ms - self._runtime.monotonic_ms()
            if wait_ms > 0:
                self._runtime.sleep_ms(wait_ms)
        self._count += count


def batches_of_parts(
    parts: tuple[PlanPart, ...], files_per_second: float | None, runtime: Runtime
) -> Iterator[Sequence[PlanPart]]:
    """Parts between two looks at the catalog: as many as are done in a while, by the limited speed or by the last batch."""
    if files_per_second is not None:
        yield from packed(parts, (lambda part: part.files_count, files_per_second * _BATCH_MS / 1000))
        return
    start, count = 0, _FIRST_BATCH_PARTS
    while start < len(parts):
        some, began_ms = parts[start : start + count], runtime.monotonic_ms()
        yield some
        # Slots may have come or gone meanwhile.
        in_time = len(some) * _BATCH_MS // max(1, runtime.monotonic_ms() - began_ms)
        start, count = start + len(some), max(1, min(2 * count, in_time))


def task_bins(
    rate: float | None, parts: Sequence[PlanPart], max_concurrent_deletes: int | None, session: "SparkSession"
) -> tuple[list[list[PlanPart]], float | None]:
    """The parts of each task, and how many files a second each may do."""
    bins_count = min(len(parts), max_concurrent_deletes or len(parts))
    if rate is not None:
        # Each at its share of the speed: those that wait for a slot only make it slower.
        bins_count = min(bins_count, max(1, int(rate // _TASK_FILES_PER_SECOND)), small_tasks(session))
    bins = balanced(parts, lambda part: part.files_count, bins_count)
    return bins, None if rate is None else rate / len(bins)


class _Calls(msgspec.Struct):
    """What is known of the calls that delete files, whatever became of their answers.

    Attributes:
        have_begun: files may be gone.
        is_one_in_doubt: one had no answer, so that nothing counts which of its files are gone.
    """

    have_begun: bool = False
    is_one_in_doubt: bool = False


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """What all tasks that carry out a plan share; the calls are those of the driver, and in a task its own."""

    plan: DeletionPlan
    lease: PlanLease
    calls: _Calls
    in_use: PathSet
    locations: DeletableLocations
    storage: Storage
    files_per_second: float | None
    empties_trash: bool
    unmovable_directory: str
    max_task_failures: int = 1
    runtime: Runtime

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Note that a call which deletes has begun, and one that does not answer: it may take effect all the same."""
        self.calls.have_begun = True
        try:
            yield
        except BaseException:
            self.note_doubt()
            raise

    def note_doubt(self) -> None:
        """Note that a call may take effect which had no answer."""
        self.calls.is_one_in_doubt = True
        self.lease.note_failed_call(self.runtime)


class _TaskReport(msgspec.Struct, frozen=True):
    """What a task did, and the error that ended it, which does not hide that."""

    done: Reclaimed
    calls: _Calls
    error: IcekeepError | None = None


def _carried_out(
    work: _Work, parts: tuple[PlanPart, ...], look: LastLook, spark: SparkSource, max_concurrent_deletes: int | None
) -> Iterator[Reclaimed]:
    """Some parts, call by call or batch by batch; Spark has a part in it only where there is much to do."""
    limit = limits_of(spark).deleted_files_count
    if sum(part.files_count for part in parts) <= limit or len(parts) == 1 or max_concurrent_deletes == 1:
        rate_limit = RateLimit(work.files_per_second, work.runtime)
        for part in parts:
            yield from _carry_out_part(part, work, rate_limit, look)
        return
    session = started(spark)
    for some in batches_of_parts(parts, work.files_per_second, work.runtime):
        tasks, files_per_second = task_bins(work.files_per_second, some, max_concurrent_deletes, session)
        shared = msgspec.structs.replace(
            work, in_use=look(), files_per_second=files_per_second, max_task_failures=max_task_failures(session)
        )
        had_begun, files_count = work.calls.have_begun, sum(part.files_count for part in some)
        with work.calling():
            reports, errors = run_tasks(
                session, tasks, _carry_out, shared, step=f"deleting {counted(files_count, 'files')}"
            )
        # Of a task without a report nobody knows what it did.
        work.calls.have_begun = had_begun or bool(errors) or any(report.calls.have_begun for report in reports)
        # A second attempt that runs beside the first is stopped when that has ended, and a call of its own may be under way.
        if errors or is_speculative(session) or any(report.calls.is_one_in_doubt for report in reports):
            work.note_doubt()
        yield from (report.done for report in reports)
        for error in (*(report.error for report in reports), *errors):
            if error is not None:
                raise error


def _carry_out(parts: Sequence[PlanPart], work: _Work) -> _TaskReport:
    """What a task does; an error is raised only where nothing has begun, and another attempt may do better."""
    rate_limit = RateLimit(work.files_per_second, work.runtime)
    here = msgspec.structs.replace(work, lease=work.lease.arrived(work.runtime), calls=_Calls())
    done: list[Reclaimed] = []
    failure = None
    try:
        for part in parts:
            for some in _carry_out_part(part, here, rate_limit, lambda: work.in_use):
                done.append(some)
    except Exception as error:
        is_refusal = isinstance(error, SafetyError | ClaimedError)
        if not here.calls.have_begun and not is_refusal and is_tried_again(work.max_task_failures):
            raise
        failure = known_error(error, parts)
    # An attempt whose executor was lost reports nothing of its calls, which may take effect much later.
    calls = _Calls(have_begun=True, is_one_in_doubt=True) if was_tried_before() else here.calls
    return _TaskReport(_sum(done), calls, failure)


def _carry_out_part(part: PlanPart, work: _Work, rate_limit: RateLimit, look: LastLook) -> Iterator[Reclaimed]:
    try:
        files = read_part(part, work.storage)
    except MissingFileError:
        # Another run has carried the plan out, and has forgotten it.
        yield Reclaimed(missing_count=part.files_count)
        return
    # Where a file is in the trash says the plan's own directory.
    is_ours = np.ones(files.num_rows, np.bool_) if work.empties_trash else work.locations.reaches(files["location"])
    if not is_ours.all() and not (is_ours | _are_kept(files, work, look)).all():
        raise SafetyError(
            f"plan {part.location!r} names files outside the places of table {work.plan.table!r}; nothing of it is deleted; if "
            "they are its own, name their directory in reclaim.roots",
            location=part.location,
        )
    unmovable: list[pa.Table] = []
    for kind in FileKind:
        rows = files.filter(pc.equal(files["kind"], str(kind)))
        for start in range(0, rows.num_rows, rate_limit.max_at_once):
            some = rows.slice(start, rate_limit.max_at_once)
            rate_limit.wait_for(some.num_rows)
            in_use = _are_kept(some, work, look)
            going = some.filter(pa.array(~in_use))
            if going.num_rows < some.num_rows:
                yield Reclaimed(kept_count=some.num_rows - going.num_rows)
            # The look may take longer than the lease holds: this comes last.
            work.lease.check(work.storage, work.runtime)
            if not going.num_rows:
                continue
            with work.calling():
                done, stayed = _removed(kind, going, work)
            unmovable += [stayed] if stayed.num_rows else []
            yield done
    if unmovable:
        location = f"{work.unmovable_directory}/files-{work.runtime.new_uuid()}.jsonl"
        written = write_part(pa.concat_tables(unmovable), location, work.storage)
        yield Reclaimed(unmovable=(written,))


def _are_kept(files: pa.Table, work: _Work, look: LastLook) -> Mask:
    """Which files are in use now, those in the trash also where they lie."""
    in_use = look()
    mask = in_use.mask(files["location"])
    if work.empties_trash and len(in_use):
        mask |= in_use.mask([trash_location(work.plan, location) for location in files["location"].to_pylist()])
    return mask


def _removed(kind: FileKind, files: pa.Table, work: _Work) -> tuple[Reclaimed, pa.Table]:
    """One call to the store; what came of it, and the files that no move leads to the trash."""
    plan, storage = work.plan, work.storage
    locations, sizes = files["location"].to_pylist(), files["size_bytes"].to_pylist()
    is_kept_as_versions = False
    with confined_to(work.locations.roots):
        if plan.is_trash and not work.empties_trash:
            moves = storage.move_many([(location, trash_location(plan, location)) for location in locations])
            answers: list[tuple[DeleteStatus | MoveStatus, str]] = [(one.status, one.reason) for one in moves]
        else:
            at = [trash_location(plan, location) for location in locations] if work.empties_trash else locations
            outcomes = storage.delete_many(at)
            answers = [(one.status, one.reason) for one in outcomes]
            is_kept_as_versions = any(one.is_kept_as_version for one in outcomes)
    gone = [size or 0 for size, (status, _) in zip(sizes, answers, strict=True) if status in _GONE]
    failed = [
        f"{location!r}: {reason}"
        for location, (status, reason) in zip(locations, answers, strict=True)
        if status in _FAILED
    ]
    done = Reclaimed(
        deleted=(FilesOfKind(kind=kind, files_count=len(gone), bytes=sum(gone)),) if gone else (),
        missing_count=sum(status in _MISSING for status, _ in answers),
        # The plan's file is in the trash already: what lies in its place is another one, which is in no plan.
        kept_count=sum(status is MoveStatus.TAKEN for status, _ in answers),
        failed_count=len(failed),
        failed=tuple(failed[:NAMED_COUNT]),
        is_kept_as_versions=is_kept_as_versions,
    )
    return done, files.filter(pa.array([status is MoveStatus.IMPOSSIBLE for status, _ in answers], pa.bool_()))


def _sum(several: Sequence[Reclaimed]) -> Reclaimed:
    return Reclaimed(
        deleted=added(*(one.deleted for one in several)),
        missing_count=sum(one.missing_count for one in several),
        kept_count=sum(one.kept_count for one in several),
        unmovable=tuple(part for one in several for part in one.unmovable),
        failed_count=sum(one.failed_count for one in several),
        failed=tuple(name for one in several for name in one.failed)[:NAMED_COUNT],
        is_kept_as_versions=any(one.is_kept_as_versions for one in several),
    )
