"""The tasks of groups whose rows need no other task: files are put together byte for byte, or their rows encoded again.

What all tasks share travels once; a task gets a group and a number. Each attempt names its files by itself, and only those of the
attempt that won are reported. The metrics of files that are copied are read from the manifests a second time, since they are too
wide to be carried along for all candidates.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.decoding import from_msgpack
from icekeep.errors import ConflictError, IcekeepError, UnsupportedError
from icekeep.formats.machine import peak_memory_bytes
from icekeep.formats.options import write_options
from icekeep.formats.rewrite.copy_row_groups import stitch
from icekeep.formats.rewrite.proof import rows_of_copy
from icekeep.formats.rewrite.run import rewrite, rewrite_together
from icekeep.formats.rewrite.task import RewriteOutcome, RewriteTask, removed_on_failure, reported_moves
from icekeep.maintenance.compact.method import GroupContext, GroupMethod, group_task, ordering_of, shares_of_group
from icekeep.maintenance.compact.plan import FileGroup, group_files
from icekeep.planning.entries import DecodedEntries, folded
from icekeep.planning.manifests import METRICS
from icekeep.planning.scan.plan import Scan
from icekeep.planning.spark.session import SparkSource, task_context
from icekeep.planning.spark.tasks import attempt_id, run_tasks
from icekeep.planning.spark.workers import Workers, in_turns
from icekeep.runtime import process_cpu_ms, thread_cpu_ms
from icekeep.spec.manifests.structs import DataFile
from icekeep.storage.base import Storage


class ColumnMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a data file that are of `planning.manifests.METRICS`; packed they take a fifth of the memory."""

    column_sizes: dict[int, int] | None = None
    value_counts: dict[int, int] | None = None
    null_value_counts: dict[int, int] | None = None
    nan_value_counts: dict[int, int] | None = None
    lower_bounds: dict[int, bytes] | None = None
    upper_bounds: dict[int, bytes] | None = None


Metrics = bytes
"""`ColumnMetrics`, as msgpack."""

STITCHED_FILES_A_JOB = 20_000
"""The metrics of this many files of a hundred columns take some hundred megabytes."""

_COLUMNS = frozenset({"file_path", *METRICS.names})


class StitchTask(msgspec.Struct, frozen=True, kw_only=True):
    """Files to put into one, as their entries describe them, metrics included.

    Attributes:
        rewrite: what encodes them again where that turns out not to be allowed.
        may_reencode: false where the user wants no file to be encoded again.
    """

    files: tuple[DataFile, ...]
    rewrite: RewriteTask
    may_reencode: bool


class _PickedMetrics:
    """The metrics of the files at some paths; a `Fold`."""

    def __init__(self, paths: frozenset[str]) -> None:
        self._paths = pa.array(sorted(paths), pa.string())
        self.found: dict[str, Metrics] = {}

    def add(self, decoded: DecodedEntries) -> None:
        """Pick them out of some entries."""
        entries = decoded.entries
        chosen = entries.filter(pc.is_in(entries["file_path"], value_set=self._paths))
        for row in chosen.to_pylist():
            maps = {name: None if row[name] is None else dict(row[name]) for name in METRICS.names}
            self.found[row["file_path"]] = msgspec.msgpack.encode(ColumnMetrics(**maps))

    def merge(self, other: Self) -> None:
        """Take in what was picked elsewhere."""
        self.found.update(other.found)


def metrics_of(
    scan: Scan, spark: SparkSource, paths: Iterable[str], manifest_paths: Iterable[str]
) -> dict[str, Metrics]:
    """What the manifests of a scan say of the columns of some of its files, by path; they are in the manifests of these paths."""
    wanted, where = frozenset(paths), frozenset(manifest_paths)
    manifests = [manifest for manifest in scan.data.opened if manifest.manifest_path in where]
    picked = folded(scan.table.storage, spark, manifests, scan.wanted, _COLUMNS, partial(_PickedMetrics, wanted))
    missing = wanted - picked.found.keys()
    if missing:
        raise ConflictError(f"data file {min(missing)!r} was planned and is in no manifest")
    return picked.found


class MetricsInParts:
    """The metrics of a plan's files that are put together byte for byte: of all at once, unless they are many.

    Then manifests are read again for some groups at a time, so that the driver never holds all.
    """

    def __init__(
        self,
        groups: Sequence[FileGroup],
        methods: Mapping[int, GroupMethod],
        read: Callable[[Sequence[FileGroup]], Mapping[str, Metrics]],
    ) -> None:
        self._groups, self._read = groups, read
        self._are_few = sum(methods[group.number].stitched_files_count for group in groups) <= STITCHED_FILES_A_JOB
        self._all: Mapping[str, Metrics] | None = None
        self._lock = threading.Lock()

    def of(self, groups: Sequence[FileGroup]) -> Mapping[str, Metrics]:
        """By path, of the files of some groups at least; raises what reading manifests raises."""
        if not self._are_few:
            return self._read(groups)
        with self._lock:
            if self._all is None:
                self._all = self._read(self._groups)
            return self._all


def stitch_task(whole: RewriteTask, metrics: Mapping[str, Metrics], *, may_reencode: bool) -> StitchTask:
    """The task for the files of a rewrite of whole files without deletes; `metrics` as `metrics_of`."""
    files = tuple(
        DataFile(
            file_path=piece.location,
            file_format=piece.file_format,
            spec_id=piece.spec_id,
            partition=piece.partition,
            record_count=piece.record_count,
            file_size_in_bytes=piece.size_bytes,
            first_row_id=piece.first_row_id,
            **msgspec.structs.asdict(from_msgpack(metrics[piece.location], ColumnMetrics)),
        )
        for piece in whole.pieces
    )
    return StitchTask(files=files, rewrite=whole, may_reencode=may_reencode)


def run_stitch(task: StitchTask, storage: Storage) -> RewriteOutcome:
    """Put the files into one, or encode them again if their footers do not allow that.

    Raises:
        UnsupportedError: they do not, and may not be encoded again.
        MissingFileError, InvalidTableError: as `stitch` and `rewrite`.
    """
    whole = task.rewrite
    options = write_options(whole.properties, whole.schema, whole.sort_order)
    location = whole.file_names().location(options.file_suffix, whole.partition_path(task.files[0].partition))
    try:
        file = stitch(task.files, storage, location, schema=whole.schema, modes=options.metrics_modes)
    except UnsupportedError:
        if not task.may_reencode:
            raise
        return rewrite(whole, storage)
    with removed_on_failure([location], storage):
        moves = reported_moves(whole, storage)
        proved = rows_of_copy(whole.pieces, file, storage) if whole.verifies else None
    return RewriteOutcome(
        files=(file,),
        read_count=file.record_count,
        live_count=file.record_count,
        stitched_count=1,
        moves=moves,
        hash_in=proved,
        hash_out=proved,
        peak_bytes=peak_memory_bytes(),
    )


class Done(msgspec.Struct, frozen=True):
    """What a task did, and the processor time that it took, milliseconds."""

    outcome: RewriteOutcome
    cpu_ms: int


class TaskOutcomes(msgspec.Struct, frozen=True):
    """The tasks that succeeded, and the errors of those that did not."""

    done: Sequence[Done]
    errors: Sequence[IcekeepError] = ()


Task = RewriteTask | StitchTask | tuple[RewriteTask, ...]
"""What a task does; several tasks of a rewrite that differ in their ranges of keys alone read their files once."""


def rewritten(workers: Workers, storage: Storage, tasks: Sequence[Task]) -> TaskOutcomes:
    """Run tasks side by side; in Spark, as one job."""
    # A task of several ranges has a thread for each.
    work = in_turns(run_task, workers, lambda task: len(task) if isinstance(task, tuple) else 1)
    done, errors = run_tasks(workers.spark, tasks, work, storage, threads=workers.slots)
    return TaskOutcomes(done, errors)


def run_task(task: Task, storage: Storage) -> Done:
    """Do a task, with a number of this attempt in the names of its files."""
    # What else runs in this process meanwhile is not of this task.
    is_alone = isinstance(task, tuple) or task_context() is not None
    cpu_ms = process_cpu_ms if is_alone else thread_cpu_ms
    began_ms, attempt = cpu_ms(), attempt_id()
    if isinstance(task, StitchTask):
        named = msgspec.structs.replace(task.rewrite, task_attempt_id=attempt)
        outcome = run_stitch(msgspec.structs.replace(task, rewrite=named), storage)
    elif isinstance(task, tuple):
        outcome = rewrite_together([msgspec.structs.replace(one, task_attempt_id=attempt) for one in task], storage)
    else:
        outcome = rewrite(msgspec.structs.replace(task, task_attempt_id=attempt), storage)
    return Done(outcome, cpu_ms() - began_ms)


class GroupTask(NamedTuple):
    """One of the tasks of a group, by the numbers of both."""

    group_number: int
    number: int


class GroupWork(msgspec.Struct, frozen=True, kw_only=True):
    """What the tasks of some groups share.

    Attributes:
        groups, methods: by the number of the group.
        metrics: of the files that are put together byte for byte, by path.
        may_reencode: whether these may be encoded again where that fails.
    """

    context: GroupContext
    groups: Mapping[int, FileGroup]
    methods: Mapping[int, GroupMethod]
    metrics: Mapping[str, Metrics]
    may_reencode: bool
    storage: Storage

    def part(self, numbers: Collection[int]) -> "GroupWork":
        """What the tasks of some of the groups share."""
        return msgspec.structs.replace(
            self,
            groups={number: self.groups[number] for number in numbers},
            methods={number: self.methods[number] for number in numbers},
        )

    def tasks(self, group: FileGroup, number: int | None = None) -> list[RewriteTask | StitchTask]:
        """All tasks of a group, or one of them alone: metrics, which are wide, are decoded for no other."""
        method, files = self.methods[group.number], group_files(group, self.storage)
        if ordering_of(group, self.context) is not None:
            return [group_task(group, files, self.context)]
        copied = {*method.stitched}
        tasks: list[RewriteTask | StitchTask] = []
        for share_number, share in enumerate(shares_of_group(files, method.stitched, self.context.sizes)):
            if number in (None, share_number):
                task = group_task(group, files, self.context, share, share_number)
                is_stitched = share.whole_files in copied
                tasks.append(stitch_task(task, self.metrics, may_reencode=self.may_reencode) if is_stitched else task)
        return tasks


def run_group_task(one: GroupTask, work: GroupWork) -> Done:
    """Do one of the tasks."""
    [task] = work.tasks(work.groups[one.group_number], one.number)
    return run_task(task, work.storage)
