"""Carry a plan out: delete its files, or move them to the trash. The only deleter of table files.

It takes nothing but a plan that is on disk, and looks once more at each file's place. What others name goes before what names
it. Files that are gone already are fine, so that a plan may be carried out again, or by two at once.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepBug, MissingFileError, SafetyError
from icekeep.events import Listener, StepAdvanced, StepFinished, StepStarted, Warned
from icekeep.maintenance.deletion.garbage import FileKind, FilesOfKind, added
from icekeep.maintenance.deletion.options import ReclaimOptions
from icekeep.maintenance.deletion.plans import DeletionPlan, PlanPart, read_part, trash_location
from icekeep.maintenance.deletion.territory import Territory
from icekeep.planning.sessions import SparkSource, started
from icekeep.planning.tasks import (
    REPORT,
    dataframe_from_tasks,
    dealt,
    max_task_failures,
    parallelism,
    read_reports,
    reported,
)
from icekeep.runtime import Runtime
from icekeep.spec.metadata import TableMetadata
from icekeep.storage.base import DeleteStatus, MoveStatus, Storage

STEP = "deleting files"
NAMED_COUNT = 100
"""So many files that could not be deleted are named."""

_CALL_FILES = 1_000
_DRIVER_FILES = 100_000


class Reclaimed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a plan's files.

    Attributes:
        deleted: by kind; in the trash, if the plan says so.
        missing_count: files that were gone already.
        failed: the first of those that could not be deleted, each with the reason.
    """

    deleted: tuple[FilesOfKind, ...] = ()
    missing_count: int = 0
    failed_count: int = 0
    failed: tuple[str, ...] = ()

    @property
    def deleted_count(self) -> int:
        return sum(f.files_count for f in self.deleted)

    @property
    def deleted_bytes(self) -> int:
        return sum(f.bytes for f in self.deleted)


class _Work(msgspec.Struct, frozen=True, kw_only=True):
    """Some parts of a plan for one task."""

    plan: DeletionPlan
    parts: tuple[PlanPart, ...] = ()
    territory: Territory
    storage: Storage
    files_per_second: float | None
    empties_trash: bool
    runtime: Runtime


def refuse_if_gc_is_disabled(metadata: TableMetadata) -> None:
    """Raise `SafetyError` where the property `gc.enabled` is false: other tables may share the files."""
    enabled = metadata.properties.get("gc.enabled", "true")
    # Iceberg takes every text but "true" for false; here that is the safe side as well.
    if enabled.lower() != "true":
        raise SafetyError(
            f"the table at {metadata.location!r} has gc.enabled={enabled}: its files may belong to other tables too, so nothing "
            "is expired or deleted"
        )


def reclaim(  # noqa: PLR0913 - what a run was told
    plan: DeletionPlan,
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
        table: as it is now.
        empties_trash: delete what the plan has moved to the trash.

    Raises:
        SafetyError: garbage collection is disabled, or a file lies where none may be deleted.
    """
    refuse_if_gc_is_disabled(table.metadata)
    if plan.table_uuid != table.metadata.table_uuid:
        raise IcekeepBug("the plan is of another table")
    listener.on(StepStarted(STEP, plan.files_count, "files"))
    work = _Work(
        plan=plan,
        territory=territory,
        storage=table.storage,
        files_per_second=options.max_deletes_per_second,
        empties_trash=empties_trash,
        runtime=runtime,
    )
    total = Reclaimed()
    for parts in _stages(plan.parts):
        total = _sum([total, *_carried_out(work, parts, spark, max_concurrent_deletes)])
        listener.on(StepAdvanced(STEP, sum(part.files_count for part in parts)))
    for failure in total.failed:
        listener.on(Warned(f"could not delete {failure}"))
    listener.on(StepFinished(STEP, f"{total.deleted_count} files"))
    return total


def _carried_out(
    work: _Work, parts: tuple[PlanPart, ...], spark: SparkSource, max_concurrent_deletes: int | None
) -> list[Reclaimed]:
    """One stage; Spark has a part in it only where there is much to do."""
    if sum(part.files_count for part in parts) <= _DRIVER_FILES or len(parts) == 1 or max_concurrent_deletes == 1:
        return [_carry_out(msgspec.structs.replace(work, parts=parts))]
    session = started(spark)
    rate = work.files_per_second
    hands = min(len(parts), max_concurrent_deletes or len(parts))
    if rate is not None:
        # Tasks that all run at once, each at its share of the speed.
        hands = min(hands, parallelism(session))
    piles = dealt(parts, lambda part: part.files_count, hands)
    share = None if rate is None else rate / len(piles)
    tasks = [msgspec.structs.replace(work, parts=tuple(pile), files_per_second=share) for pile in piles]
    tries = max_task_failures(session)
    reports, errors = read_reports(dataframe_from_tasks(session, tasks, partial(_run, tries=tries), REPORT))
    if errors:
        raise errors[0]
    return reports


def _run(work: _Work, *, tries: int) -> Iterator[pa.RecordBatch]:
    yield reported(partial(_carry_out, work), tries)


def _stages(parts: Sequence[PlanPart]) -> list[tuple[PlanPart, ...]]:
    """What manifests name, and then the rest."""
    content = tuple(part for part in parts if all(f.kind.is_content for f in part.files))
    others = tuple(part for part in parts if part not in content)
    return [stage for stage in (content, others) if stage]


def _carry_out(work: _Work) -> Reclaimed:
    pace = _Pace(work.files_per_second, work.runtime)
    return _sum([done for part in work.parts for done in _carry_out_part(part, work, pace)])


def _carry_out_part(part: PlanPart, work: _Work, pace: "_Pace") -> Iterator[Reclaimed]:
    try:
        files = read_part(part, work.storage)
    except MissingFileError:
        # Another run has carried the plan out, and has forgotten it.
        yield Reclaimed(missing_count=part.files_count)
        return
    if not work.territory.mask(files["location"]).all():
        raise SafetyError(
            f"plan {part.location!r} names files outside the places of table {work.plan.table!r}; nothing of it is deleted",
            location=part.location,
        )
    for kind in FileKind:
        rows = files.filter(pc.equal(files["kind"], str(kind)))
        locations, sizes = rows["location"].to_pylist(), rows["size_bytes"].to_pylist()
        for start in range(0, len(locations), pace.most_at_once):
            stop = start + pace.most_at_once
            pace.wait_for(len(locations[start:stop]))
            yield _removed(kind, locations[start:stop], sizes[start:stop], work)


def _removed(kind: FileKind, locations: list[str], sizes: list[int | None], work: _Work) -> Reclaimed:
    """One call to the store."""
    plan, storage = work.plan, work.storage
    if work.empties_trash:
        answers = _deleted(storage, [trash_location(plan, location) for location in locations])
    elif plan.is_trash:
        answers = _moved(storage, [(location, trash_location(plan, location)) for location in locations])
    else:
        answers = _deleted(storage, locations)
    status = Counter(answer for answer, _ in answers)
    size_bytes = sum(size or 0 for size, (answer, _) in zip(sizes, answers, strict=True) if answer == _GONE)
    failed = [
        f"{location!r}: {reason}"
        for location, (answer, reason) in zip(locations, answers, strict=True)
        if answer == _FAILED
    ]
    return Reclaimed(
        deleted=(FilesOfKind(kind=kind, files_count=status[_GONE], bytes=size_bytes),) if status[_GONE] else (),
        missing_count=status[_MISSING],
        failed_count=len(failed),
        failed=tuple(failed[:NAMED_COUNT]),
    )


_GONE, _MISSING, _FAILED = "gone", "missing", "failed"
_AFTER_DELETE = {DeleteStatus.DELETED: _GONE, DeleteStatus.MISSING: _MISSING, DeleteStatus.FAILED: _FAILED}


def _deleted(storage: Storage, locations: list[str]) -> list[tuple[str, str]]:
    return [(_AFTER_DELETE[outcome.status], outcome.reason) for outcome in storage.delete_many(locations)]


def _moved(storage: Storage, moves: list[tuple[str, str]]) -> list[tuple[str, str]]:
    answers = []
    for outcome in storage.move_many(moves):
        match outcome.status:
            case MoveStatus.MOVED:
                answers.append((_GONE, ""))
            case MoveStatus.MISSING:
                answers.append((_MISSING, ""))
            case _:
                answers.append((_FAILED, outcome.reason or "there is another file of its name in the trash"))
    return answers


def _sum(several: Sequence[Reclaimed]) -> Reclaimed:
    return Reclaimed(
        deleted=added(*(one.deleted for one in several)),
        missing_count=sum(one.missing_count for one in several),
        failed_count=sum(one.failed_count for one in several),
        failed=tuple(name for one in several for name in one.failed)[:NAMED_COUNT],
    )


class _Pace:
    """Keeps a task to so many files a second."""

    def __init__(self, files_per_second: float | None, runtime: Runtime) -> None:
        self._rate, self._runtime = files_per_second, runtime
        self._began_ms, self._count = runtime.monotonic_ms(), 0
        self.most_at_once = _CALL_FILES if files_per_second is None else max(1, min(_CALL_FILES, int(files_per_second)))

    def wait_for(self, count: int) -> None:
        """Wait until `count` more may go."""
        if self._rate is not None:
            due_ms = self._began_ms + round(1000 * self._count / self._rate)
            wait_ms = due_ms - self._runtime.monotonic_ms()
            if wait_ms > 0:
                self._runtime.sleep_ms(wait_ms)
        self._count += count
