"""Delete or move some files by one call to the store, and what became of each.

How fast files are deleted: so many at most with one call, and so many a second where that is asked for.

In which order and in how many tasks the parts of a plan are carried out.

Carry a plan out: delete its files, or move them to the trash. The only deleter of table files.

It takes nothing but a plan that is on disk and claimed, and looks once more at each file's place. Before each call of a
thousand files the driver looks at the catalog and the claim; tasks of Spark look at the claim, and the driver at the catalog
between rounds of tasks, since a catalog need not be within reach of executors. What others name goes before what names it.
Files that are gone already are fine, so that a plan may be carried out again.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.errors import ClaimedError, IcekeepBug, IcekeepError, MissingFileError, SafetyError, reason_of
from icekeep.events import Listener, StepAdvanced, StepFinished, StepStarted, Warned
from icekeep.maintenance.delete.lease import PlanLease
from icekeep.maintenance.delete.locations import Territory
from icekeep.maintenance.delete.options import ReclaimOptions
from icekeep.maintenance.delete.plan_file import (
    DeletionPlan,
    PlanPart,
    plans_directory,
    read_part,
    trash_location,
    write_part,
)
from icekeep.maintenance.delete.reachable import (
    NO_PATHS,
    FileKind,
    FilesOfKind,
    LastLook,
    Mask,
    PathSet,
    added,
    is_gc_enabled,
)
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


class Fate(StrEnum):
    """What became of a file that was to be deleted, or moved to the trash."""

    GONE = "gone"
    MISSING = "missing"
    UNMOVED = "unmoved"
    """The store cannot move it."""

    TAKEN = "taken"
    """The plan's file is in the trash already: what lies in its place is another one, which is in no plan."""

    FAILED = "failed"


_AFTER_DELETE = {
    DeleteStatus.DELETED: Fate.GONE,
    DeleteStatus.MISSING: Fate.MISSING,
    DeleteStatus.FAILED: Fate.FAILED,
}
_AFTER_MOVE = {
    MoveStatus.MOVED: Fate.GONE,
    MoveStatus.MISSING: Fate.MISSING,
    MoveStatus.IMPOSSIBLE: Fate.UNMOVED,
    MoveStatus.TAKEN: Fate.TAKEN,
    MoveStatus.FAILED: Fate.FAILED,
}


class FileOutcome(NamedTuple):
    """The fate of one file; the reason where it failed; whether the store keeps its bytes as an older version."""

    fate: Fate
    reason: str
    is_kept_as_version: bool = False


def deleted(storage: Storage, locations: Sequence[str]) -> list[FileOutcome]:
    """Delete files."""
    outcomes = storage.delete_many(locations)
    return [FileOutcome(_AFTER_DELETE[one.status], one.reason, one.is_kept_as_version) for one in outcomes]


def moved(storage: Storage, moves: Sequence[tuple[str, str]]) -> list[FileOutcome]:
    """Move files from a place to another."""
    return [FileOutcome(_AFTER_MOVE[one.status], one.reason) for one in storage.move_many(moves)]


CALL_FILES = 1_000
"""So many files go with one call at most; stores take no more."""


class RateLimit:
    """Keeps a task to so many files a second."""

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


_ROUND_MS = MINUTE_MS
"""How long a round of tasks is meant to last."""

_FIRST_ROUND_PARTS = 4
_TASK_FILES_PER_SECOND = 500
"""What one task deletes, where the speed of all is limited."""


def stages(parts: Sequence[PlanPart]) -> list[tuple[PlanPart, ...]]:
    """What manifests name, and then the rest."""
    content = tuple(part for part in parts if all(f.kind.is_content for f in part.files))
    others = tuple(part for part in parts if part not in content)
    return [stage for stage in (content, others) if stage]


def rounds(
    parts: tuple[PlanPart, ...], files_per_second: float | None, runtime: Runtime
) -> Iterator[Sequence[PlanPart]]:
    """Parts between two looks at the catalog: as many as are done in a while, by the limited speed or by the last round."""
    if files_per_second is not None:
        yield from packed(parts, (lambda part: part.files_count, files_per_second * _ROUND_MS / 1000))
        return
    start, count = 0, _FIRST_ROUND_PARTS
    while start < len(parts):
        some, began_ms = parts[start : start + count], runtime.monotonic_ms()
        yield some
        # Slots may have come or gone meanwhile.
        in_time = len(some) * _ROUND_MS // max(1, runtime.monotonic_ms() - began_ms)
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


STEP = "deleting files"
NAMED_COUNT = 100
"""So many files that could not be deleted are named."""


class Reclaimed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a plan's files.

    Attributes:
        deleted: by kind; in the trash, if the plan says so.
        missing_count: files that were gone already.
        kept_count: files that are in use by now, or that another plan keeps, or of whose path another is in the trash.
        unmoved: files that cannot be moved to the trash: written down, to be deleted when their days in it would be over.
        failed: the first of those that could not be deleted, each with the reason.
        stopped: why it ended before the end of the plan, when files had begun to go; empty where it did not.
        is_kept_as_versions: the store keeps the bytes of what was deleted as older versions.
        is_in_doubt: a call had no answer, so that files may be gone, or go later, that are in no count.
    """

    deleted: tuple[FilesOfKind, ...] = ()
    missing_count: int = 0
    kept_count: int = 0
    unmoved: tuple[PlanPart, ...] = ()
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
    def unmoved_count(self) -> int:
        return sum(part.files_count for part in self.unmoved)

    @property
    def looked_at_count(self) -> int:
        """How many files of the plan it is about, whatever became of them."""
        counts = (self.deleted_count, self.missing_count, self.kept_count, self.unmoved_count, self.failed_count)
        return sum(counts)

    @property
    def may_have_deleted(self) -> bool:
        """Whether "nothing was deleted" would be wrong, or is not known."""
        return bool(self.deleted_count or self.failed_count or self.stopped or self.is_in_doubt)

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the plan is left to be done."""
        return not self.failed_count and not self.stopped


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
    claim: PlanLease
    calls: _Calls
    in_use: PathSet
    territory: Territory
    storage: Storage
    files_per_second: float | None
    empties_trash: bool
    unmoved_directory: str
    max_task_failures: int = 1
    runtime: Runtime


class _TaskReport(msgspec.Struct, frozen=True):
    """What a task did, and the error that ended it, which does not hide that."""

    done: Reclaimed
    calls: _Calls
    error: IcekeepError | None = None


def refuse_if_gc_is_disabled(table: Table) -> None:
    """Raise `SafetyError` where only the catalog may delete files, or `gc.enabled` is false: others may need them."""
    metadata, collector = table.metadata, table.catalog.garbage_collector
    if collector is not None:
        raise SafetyError(
            f"catalog {table.catalog.name!r} has a garbage collector of its own: older commits, branches and tags there, which "
            f"the metadata of {table.name!r} does not show, may need its files, so nothing is expired or deleted; run "
            f"{collector}, and leave gc.enabled as it is"
        )
    if not is_gc_enabled(metadata):
        raise SafetyError(
            f"the table at {metadata.location!r} has gc.enabled={metadata.properties['gc.enabled']}: "
            "its files may belong to other tables too, so nothing is expired or deleted; if they do not, set it to true"
        )


def reclaim(  # noqa: PLR0913 - what a run was told
    plan: DeletionPlan,
    claim: PlanLease,
    look: LastLook,
    table: Table,
    territory: Territory,
    spark: SparkSource,
    *,
    options: ReclaimOptions,
    max_concurrent_deletes: int | None,
    listener: Listener,
    runtime: Runtime,
    empties_trash: bool = False,
) -> Reclaimed:
    """Delete the files of a plan, or move them where it says so; failures are counted and named.

    Args:
        claim: the right to do so.
        look: says what is in use by now, before each call.
        table: as it is now.
        empties_trash: delete what the plan has moved to the trash.

    Raises:
        ClaimedError: another run has taken the plan over before the first call that deletes; from then on that is `stopped`,
            as is every error, since the call that fails may have deleted files all the same.
        SafetyError: the files are not to be deleted (`refuse_if_gc_is_disabled`), or a file lies where none may be deleted.
    """
    refuse_if_gc_is_disabled(table)
    if plan.table_uuid != table.metadata.table_uuid:
        raise IcekeepBug("the plan is of another table")
    listener.on(StepStarted(STEP, plan.files_count, "files"))
    if empties_trash or not plan.is_trash:
        look()
        claim.begin_deleting(table.storage, runtime)
    work = _Work(
        plan=plan,
        claim=claim,
        calls=_Calls(),
        in_use=NO_PATHS,
        territory=territory,
        storage=table.storage,
        files_per_second=options.max_deletes_per_second,
        empties_trash=empties_trash,
        unmoved_directory=f"{plans_directory(table.metadata)}/{runtime.new_uuid()}" if plan.is_trash else "",
        runtime=runtime,
    )
    done: list[Reclaimed] = []
    stopped = ""
    try:
        for parts in stages(plan.parts):
            for some in _carried_out(work, parts, look, spark, max_concurrent_deletes):
                done.append(some)
                listener.on(StepAdvanced(STEP, some.looked_at_count))
    except Exception as error:
        if not work.calls.have_begun:
            raise
        stopped = reason_of(error)
        if work.calls.is_one_in_doubt:
            stopped += "; what was being deleted then may be gone, and is not counted"
        listener.on(Warned(f"not all files of plan {plan.directory!r} were deleted: {stopped}"))
    finally:
        # What was to be deleted for good, and was refused, stands in nobody's way.
        if not claim.deletes and any(one.failed_count for one in done):
            claim.note_failed_call(runtime)
    total = msgspec.structs.replace(_sum(done), stopped=stopped, is_in_doubt=work.calls.is_one_in_doubt)
    _tell(total, plan, listener)
    listener.on(StepFinished(STEP, _note(total)))
    return total


def _note(total: Reclaimed) -> str:
    files = counted(total.deleted_count, "files")
    if not total.is_kept_as_versions:
        return files
    return f"{files}, whose {total.deleted_bytes_count:,} bytes the bucket keeps as older versions until its rules let them go"


@contextmanager
def _under_way(work: _Work) -> Iterator[None]:
    """Note that a call which deletes has begun, and one that does not answer: it may take effect all the same."""
    work.calls.have_begun = True
    try:
        yield
    except BaseException:
        _note_doubt(work)
        raise


def _note_doubt(work: _Work) -> None:
    work.calls.is_one_in_doubt = True
    work.claim.note_failed_call(work.runtime)


def _tell(total: Reclaimed, plan: DeletionPlan, listener: Listener) -> None:
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


def _carried_out(
    work: _Work, parts: tuple[PlanPart, ...], look: LastLook, spark: SparkSource, max_concurrent_deletes: int | None
) -> Iterator[Reclaimed]:
    """One stage, call by call or round by round; Spark has a part in it only where there is much to do."""
    limit = limits_of(spark).deleted_files_count
    if sum(part.files_count for part in parts) <= limit or len(parts) == 1 or max_concurrent_deletes == 1:
        pace = RateLimit(work.files_per_second, work.runtime)
        for part in parts:
            yield from _carry_out_part(part, work, pace, look)
        return
    session = started(spark)
    for some in rounds(parts, work.files_per_second, work.runtime):
        tasks, files_per_second = task_bins(work.files_per_second, some, max_concurrent_deletes, session)
        shared = msgspec.structs.replace(
            work, in_use=look(), files_per_second=files_per_second, max_task_failures=max_task_failures(session)
        )
        had_begun, files_count = work.calls.have_begun, sum(part.files_count for part in some)
        with _under_way(work):
            reports, errors = run_tasks(
                session, tasks, _carry_out, shared, step=f"deleting {counted(files_count, 'files')}"
            )
        # Of a task without a report nobody knows what it did.
        work.calls.have_begun = had_begun or bool(errors) or any(report.calls.have_begun for report in reports)
        # A second attempt that runs beside the first is stopped when that has ended, and a call of its may be under way.
        if errors or is_speculative(session) or any(report.calls.is_one_in_doubt for report in reports):
            _note_doubt(work)
        yield from (report.done for report in reports)
        for error in (*(report.error for report in reports), *errors):
            if error is not None:
                raise error


def _carry_out(parts: Sequence[PlanPart], work: _Work) -> _TaskReport:
    """What a task does; an error is raised only where nothing has begun, and another attempt may do better."""
    pace = RateLimit(work.files_per_second, work.runtime)
    here = msgspec.structs.replace(work, claim=work.claim.arrived(work.runtime), calls=_Calls())
    done: list[Reclaimed] = []
    try:
        for part in parts:
            for some in _carry_out_part(part, here, pace, lambda: work.in_use):
                done.append(some)
    except Exception as error:
        is_refusal = isinstance(error, SafetyError | ClaimedError)
        if not here.calls.have_begun and not is_refusal and is_tried_again(work.max_task_failures):
            raise
        return _TaskReport(_sum(done), _calls_of_all_attempts(here), known_error(error, parts))
    return _TaskReport(_sum(done), _calls_of_all_attempts(here))


def _calls_of_all_attempts(work: _Work) -> _Calls:
    """The calls of a task. An attempt whose executor was lost tells nothing of its own, which may take effect much later."""
    return _Calls(have_begun=True, is_one_in_doubt=True) if was_tried_before() else work.calls


def _carry_out_part(part: PlanPart, work: _Work, pace: RateLimit, look: LastLook) -> Iterator[Reclaimed]:
    try:
        files = read_part(part, work.storage)
    except MissingFileError:
        # Another run has carried the plan out, and has forgotten it.
        yield Reclaimed(missing_count=part.files_count)
        return
    # Where a file is in the trash says the plan's own directory.
    is_ours = np.ones(files.num_rows, np.bool_) if work.empties_trash else work.territory.reaches(files["location"])
    if not is_ours.all() and not (is_ours | _are_kept(files, work, look)).all():
        raise SafetyError(
            f"plan {part.location!r} names files outside the places of table {work.plan.table!r}; nothing of it is deleted; if "
            "they are its own, name their directory in reclaim.roots",
            location=part.location,
        )
    unmoved: list[pa.Table] = []
    for kind in FileKind:
        rows = files.filter(pc.equal(files["kind"], str(kind)))
        for start in range(0, rows.num_rows, pace.max_at_once):
            some = rows.slice(start, pace.max_at_once)
            pace.wait_for(some.num_rows)
            in_use = _are_kept(some, work, look)
            going = some.filter(pa.array(~in_use))
            if going.num_rows < some.num_rows:
                yield Reclaimed(kept_count=some.num_rows - going.num_rows)
            # The look may take longer than the claim holds: this comes last.
            work.claim.check(work.storage, work.runtime)
            if not going.num_rows:
                continue
            with _under_way(work):
                done, stayed = _removed(kind, going, work)
            unmoved += [stayed] if stayed.num_rows else []
            yield done
    if unmoved:
        location = f"{work.unmoved_directory}/files-{work.runtime.new_uuid()}.jsonl"
        written = write_part(pa.concat_tables(unmoved), location, work.storage)
        yield Reclaimed(unmoved=(written,))


def _are_kept(files: pa.Table, work: _Work, look: LastLook) -> Mask:
    """Which files are in use by now, those in the trash also where they lie."""
    in_use = look()
    mask = in_use.mask(files["location"])
    if work.empties_trash and len(in_use):
        mask |= in_use.mask([trash_location(work.plan, location) for location in files["location"].to_pylist()])
    return mask


def _removed(kind: FileKind, files: pa.Table, work: _Work) -> tuple[Reclaimed, pa.Table]:
    """One call to the store; what came of it, and the files that no move leads to the trash."""
    plan, storage = work.plan, work.storage
    locations, sizes = files["location"].to_pylist(), files["size_bytes"].to_pylist()
    with confined_to(work.territory.roots):
        if work.empties_trash:
            answers = deleted(storage, [trash_location(plan, location) for location in locations])
        elif plan.is_trash:
            answers = moved(storage, [(location, trash_location(plan, location)) for location in locations])
        else:
            answers = deleted(storage, locations)
    status = Counter(answer.fate for answer in answers)
    size_bytes = sum(size or 0 for size, answer in zip(sizes, answers, strict=True) if answer.fate == Fate.GONE)
    failed = [
        f"{location!r}: {answer.reason}"
        for location, answer in zip(locations, answers, strict=True)
        if answer.fate == Fate.FAILED
    ]
    done = Reclaimed(
        deleted=(FilesOfKind(kind=kind, files_count=status[Fate.GONE], bytes=size_bytes),) if status[Fate.GONE] else (),
        missing_count=status[Fate.MISSING],
        kept_count=status[Fate.TAKEN],
        failed_count=len(failed),
        failed=tuple(failed[:NAMED_COUNT]),
        is_kept_as_versions=any(answer.is_kept_as_version for answer in answers),
    )
    return done, files.filter(pa.array([answer.fate == Fate.UNMOVED for answer in answers], pa.bool_()))


def _sum(several: Sequence[Reclaimed]) -> Reclaimed:
    return Reclaimed(
        deleted=added(*(one.deleted for one in several)),
        missing_count=sum(one.missing_count for one in several),
        kept_count=sum(one.kept_count for one in several),
        unmoved=tuple(part for one in several for part in one.unmoved),
        failed_count=sum(one.failed_count for one in several),
        failed=tuple(name for one in several for name in one.failed)[:NAMED_COUNT],
        is_kept_as_versions=any(one.is_kept_as_versions for one in several),
    )
