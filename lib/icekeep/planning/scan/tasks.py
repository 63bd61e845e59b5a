"""Cut a plan into tasks: splits of data files with the deletes to apply to them, packed by the properties `read.split.*`.

files -> splits (`file_splits`) -> bins of about one size (`collections.packed`) -> adjacent splits merged

Few files are packed on the driver, many where they were planned, each Spark partition by itself.
"""

import json
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.events import SILENT
from icekeep.planning.manifests import ENTRIES, REACHING_DELETES
from icekeep.planning.scan.plan import (
    Scan,
    VersionArguments,
    few_files,
    open_scan,
    planned_files,
    planned_files_with_deletes,
    refuse_encrypted_file,
)
from icekeep.planning.spark.jobs import spark_run
from icekeep.planning.spark.rows import arrow_dataframe, collected, shuffle_key
from icekeep.planning.spark.session import (
    F,
    SparkSource,
    check_source,
    from_arrow_schema,
    limits_of,
    started,
    task_context,
)
from icekeep.planning.spark.workers import small_tasks
from icekeep.spec.collections import PositionSet, packed, packed_positions
from icekeep.spec.filters.evaluators import residual
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.filters.parsing import format_expression
from icekeep.spec.manifests.structs import FileContent, own_bytes
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.properties import boolean_property, whole_number
from icekeep.spec.schema import Schema
from icekeep.spec.types import MIB, StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SPLITTABLE_FORMATS = ("parquet", "orc", "avro")
_MIN_ADAPTED_BYTES = 16 * MIB

Row = Mapping[str, Any]


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a scan's files are packed into tasks; the defaults are those of the table properties `read.split.*`.

    Attributes:
        split_target_bytes: the bytes of one task, deletes included; `read.split.target-size`.
        planning_lookback: the number of tasks that are filled at a time; `read.split.planning-lookback`.
        open_file_cost_bytes: the least weight of a file; `read.split.open-file-cost`.
        is_adaptive: whether a small scan takes smaller splits, so that all slots have work; `read.split.adaptive-size.enabled`.
    """

    split_target_bytes: int = 128 * MIB
    planning_lookback: int = 10
    open_file_cost_bytes: int = 4 * MIB
    is_adaptive: bool = True


class Split(msgspec.Struct, frozen=True):
    """`length` bytes of a planned data file from `start` on; its reader reads the blocks that begin there."""

    file: Row
    start: int
    length: int


def read_options(properties: Mapping[str, str]) -> ReadOptions:
    """Read the table properties `read.split.*`; `PropertyError` for an invalid value."""
    default = ReadOptions()
    return ReadOptions(
        split_target_bytes=whole_number(properties, "read.split.target-size", default.split_target_bytes, 1),
        planning_lookback=whole_number(properties, "read.split.planning-lookback", default.planning_lookback, 1),
        open_file_cost_bytes=whole_number(properties, "read.split.open-file-cost", default.open_file_cost_bytes, 0),
        is_adaptive=boolean_property(properties, "read.split.adaptive-size.enabled", default.is_adaptive),
    )


def split_tasks(files: Iterable[Row], options: ReadOptions, target_size: int | None = None) -> Iterator[list[Split]]:
    """Pack files into tasks, each a list of splits that one reader works through.

    A file may be in several tasks; within one, its adjacent splits are merged. Memory holds at most `planning_lookback`
    tasks, whatever the number of files. A split weighs its bytes and those of its deletes, or the cost of opening the files
    if that is more.

    Args:
        files: may be a stream; one object for each file, since splits of one object are taken for splits of one file.
        target_size: bytes, in place of the options' (see `adapted_target_size`).
    """
    target = options.split_target_bytes if target_size is None else target_size

    def weighed_splits() -> Iterator[tuple[int, Split]]:
        for file in files:
            refuse_encrypted_file(file)
            deletes, size = file.get("deletes") or (), file["file_size_in_bytes"]
            deletes_bytes = sum(own_bytes(one["file_size_in_bytes"], one["content_size_in_bytes"]) for one in deletes)
            opening = (1 + len(deletes)) * options.open_file_cost_bytes
            for start, length in file_splits(file["file_format"], size, file["split_offsets"], target):
                yield max(length + deletes_bytes, opening), Split(file, start, length)

    weight = operator.itemgetter(0)
    for task in packed(weighed_splits(), (weight, target), lookback=options.planning_lookback, heaviest_first=True):
        merged: list[Split] = []
        for _, split in task:
            last = merged[-1] if merged else None
            if last is not None and last.file is split.file and last.start + last.length == split.start:
                merged[-1] = Split(last.file, last.start, last.length + split.length)
            else:
                merged.append(split)
        yield merged


def adapted_target_size(options: ReadOptions, scan_bytes: int, parallelism: int) -> int:
    """The split size at which a scan has work for all slots, if it is large enough; at most the options' target.

    Args:
        scan_bytes: of all data files and deletes that the scan reads.
        parallelism: the number of tasks that run at once.
    """
    target = options.split_target_bytes
    if not options.is_adaptive or -(-scan_bytes // target) >= parallelism:
        return target
    return max(scan_bytes // parallelism, min(_MIN_ADAPTED_BYTES, target))


def file_splits(
    file_format: str, file_size_in_bytes: int, split_offsets: Sequence[int] | None, target_size: int
) -> tuple[tuple[int, int], ...]:
    """The splits of a data file: pairs of start and length in bytes, in order, that cover each byte once.

    A split begins at each of the manifest's offsets, or, where there are none or they are not valid, every `target_size`
    bytes. Files of formats without blocks are not split, and every file has at least one split.

    >>> file_splits("PARQUET", 100, (4, 60), 30)
    ((0, 60), (60, 40))
    >>> file_splits("PARQUET", 100, None, 30)
    ((0, 30), (30, 30), (60, 30), (90, 10))
    """
    starts: Sequence[int] = (0,)
    if file_format.lower() in _SPLITTABLE_FORMATS:
        offsets = split_offsets or ()
        is_ascending = all(left < right for left, right in pairwise(offsets))
        if offsets and is_ascending and offsets[0] >= 0 and offsets[-1] < file_size_in_bytes:
            # The bytes before the first block, magic and headers, belong to the first split.
            starts = (0, *offsets[1:])
        else:
            starts = range(0, max(file_size_in_bytes, 1), target_size)
    ends = (*starts[1:], file_size_in_bytes)
    return tuple((start, end - start) for start, end in zip(starts, ends, strict=True))


_FILE_COLUMNS = (
    "file_path",
    "file_format",
    "spec_id",
    "partition",
    "sequence_number",
    "first_row_id",
    "record_count",
    "file_size_in_bytes",
)
_PLANNED = frozenset({*_FILE_COLUMNS, "split_offsets", "key_metadata"})

_PARTITION_BITS = 40
"""Bits of a `task_id` that number the tasks of one Spark partition of a plan; those above are the partition's id."""

TASKS = pa.schema(
    [
        pa.field("task_id", pa.int64(), nullable=False),
        *(ENTRIES.field(name) for name in _FILE_COLUMNS),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("deletes", REACHING_DELETES, nullable=False),
        pa.field("residual", pa.string(), nullable=False),
    ]
)
"""Columns of planned tasks: a row for each split of a file; those with one `task_id` are read together.

`start` and `length` are in bytes, `deletes` are those to apply to the file (`planning.manifests.REACHING_DELETES`), and
`residual` is the text of the filter that remains for its rows.
"""


SHARING_TASKS = TASKS.append(pa.field("reached_by", pa.binary(), nullable=False))
"""`TASKS` with `deletes` shared: the first row of a task has those of all its files, equality deletes first, and the others
none. `reached_by` says which of them are for the row, as a `PositionSet` in bytes."""


class Residuals(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The parts of a scan that every task needs: the filter, and its residuals by partition."""

    where: Expression
    schema: Schema
    specs: Mapping[int, PartitionSpec]
    partition_types: Mapping[int, StructType]

    @cached_property
    def _codecs(self) -> PartitionCodecs:
        return PartitionCodecs(self.partition_types)

    @cached_property
    def _residuals(self) -> dict[tuple[int, bytes], Expression]:
        return {}

    def partition(self, spec_id: int, key: bytes) -> tuple[Any, ...]:
        return self._codecs.decode(spec_id, key)

    def residual(self, spec_id: int, key: bytes) -> Expression:
        if self.where is ALWAYS_TRUE:
            return ALWAYS_TRUE
        if (spec_id, key) not in self._residuals:
            left = residual(self.where, self.specs[spec_id], self.schema, self.partition(spec_id, key))
            self._residuals[spec_id, key] = left
        return self._residuals[spec_id, key]


class PackedTasks(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of a scan: their rows if files are few, else a lazy DataFrame; the other is null."""

    few: list[list[dict[str, Any]]] | None
    many: "DataFrame | None"


def plan_tasks(
    table: Table,
    spark: SparkSource = None,
    *,
    where: str | Expression = ALWAYS_TRUE,
    **version: Unpack[VersionArguments],
) -> "DataFrame":
    """Plan the tasks that read the rows of a filter: splits of data files, deletes, residuals, as `TASKS`.

    The table's properties `read.split.target-size`, `read.split.planning-lookback`, `read.split.open-file-cost` and
    `read.split.adaptive-size.enabled` control how they are packed.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one.
        where: which rows are asked for; an `ExpressionError` where it cannot be read or bound.
        **version: what is read: `ref`, `snapshot_id`, `as_of`, or what was appended from `start_snapshot_id` to
            `end_snapshot_id`; by default the head of `main`.

    Raises:
        UsageError: a property has a value that it cannot take.
        InvalidTableError, MissingFileError, UnsupportedError: as for `planned_files_with_deletes`.
    """
    check_source(spark)
    scan = open_scan(table, where=where, **version)
    session = started(spark)
    with spark_run("scan", table.name, SILENT):
        packed = packed_tasks(scan, spark)
    if packed.few is None:
        assert packed.many is not None
        return packed.many
    rows = [row for task in packed.few for row in task]
    return arrow_dataframe(session, pa.Table.from_pylist(rows, TASKS))


def residuals_of(scan: Scan) -> Residuals:
    metadata = scan.table.metadata
    return Residuals(
        where=scan.where,
        schema=scan.version.schema,
        specs=metadata.specs_by_id,
        partition_types=metadata.partition_types,
    )


def packed_tasks(
    scan: Scan, spark: SparkSource, slots: int | None = None, *, shares_deletes: bool = False
) -> PackedTasks:
    """The tasks of a scan.

    Args:
        shares_deletes: whether rows are those of `SHARING_TASKS`, whose size grows with the delete files of a task, not with
            the pairs of delete files and data files.
        slots: the number of tasks to make splits smaller for, so that all slots have work; by default the session's.
    """
    options, rows = read_options(scan.table.metadata.properties), residuals_of(scan)
    with_deletes = bool(scan.deletes.opened)
    few = few_files(scan, limits_of(spark).entries_count, _PLANNED, deletes=with_deletes)
    if few is not None:
        files = sorted(few.rows(), key=lambda file: file["file_path"])
        at_once = small_tasks(started(spark)) if slots is None else slots
        target = adapted_target_size(options, sum(file["file_size_in_bytes"] for file in files), at_once)
        tasks = _packed(files, rows, options, target)
        return PackedTasks(few=[*(map(sharing_deletes, tasks) if shares_deletes else tasks)], many=None)
    planned = (planned_files_with_deletes if with_deletes else planned_files)(scan, spark, _PLANNED)
    if with_deletes:
        # Joins give the files of a partition in the order in which shuffle blocks arrive. A partition that is recomputed,
        # after an executor was lost, must give each file the same task: readers of its other tasks may be done.
        planned = planned.sortWithinPartitions("file_path", "sequence_number", "first_row_id")
    columns = SHARING_TASKS if shares_deletes else TASKS
    pack = partial(_packed_batches, rows, options, shares_deletes)
    return PackedTasks(few=None, many=planned.mapInArrow(pack, from_arrow_schema(columns)))


def one_task_a_partition(many: "DataFrame") -> "DataFrame":
    """The rows of `PackedTasks.many`, each task in its own Spark partition; runs the plan once to count the tasks."""
    partition = F.shiftright("task_id", _PARTITION_BITS)
    tasks = many.groupBy(partition.alias("partition")).agg(F.count_distinct("task_id").alias("tasks"))
    counts = collected(tasks, "planning tasks")
    tasks_count = sum(row["tasks"] for row in counts)
    if not tasks_count:
        return many.coalesce(1)
    before = accumulate((row["tasks"] for row in counts), initial=0)
    firsts = {str(row["partition"]): first for row, first in zip(counts, before, strict=False)}
    # As texts, which Spark parses once: a plan with a node for each of thousands of tasks would be slow.
    first = F.element_at(F.from_json(F.lit(json.dumps(firsts)), "map<string,bigint>"), partition.cast("string"))
    number = (F.coalesce(first, F.lit(0)) + F.col("task_id").bitwiseAND((1 << _PARTITION_BITS) - 1)) % tasks_count
    return many.repartition(tasks_count, shuffle_key(number.cast("int"), tasks_count))


def _packed_batches(
    planned: Residuals, options: ReadOptions, shares_deletes: bool, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Pack the files of one Spark partition of a plan, a batch for each task."""
    context = task_context()
    first_id = 0 if context is None else context.partitionId() << _PARTITION_BITS
    files = (file for batch in batches for file in batch.to_pylist())
    columns = SHARING_TASKS if shares_deletes else TASKS
    for task in _packed(files, planned, options, options.split_target_bytes, first_id):
        yield pa.RecordBatch.from_pylist(sharing_deletes(task) if shares_deletes else task, columns)


def sharing_deletes(task: Sequence[Row]) -> list[dict[str, Any]]:

    def key(delete: Row) -> tuple[Any, ...]:
        # Some writers share the same bytes between the vectors of two data files.
        return delete["file_path"], delete["content_offset"], delete["referenced_data_file"]

    deletes = {key(delete): delete for row in task for delete in row["deletes"]}
    in_order = sorted(deletes.values(), key=_order)
    places = {key(delete): place for place, delete in enumerate(in_order)}
    reached = (PositionSet([places[key(delete)] for delete in row["deletes"]]) for row in task)
    return [
        {**row, "deletes": [] if number else in_order, "reached_by": packed_positions(positions)}
        for number, (row, positions) in enumerate(zip(task, reached, strict=True))
    ]


def _order(delete: Row) -> tuple[Any, ...]:
    """Equality deletes first, and each partition's by sequence number: those that reach a file are then the end of a run."""
    is_positions = delete["content"] == int(FileContent.POSITION_DELETES)
    scope = is_positions, delete["spec_id"], bytes(delete["partition"])
    offset = delete["content_offset"]
    return *scope, delete["sequence_number"], delete["file_path"], -1 if offset is None else offset


def _packed(
    files: Iterable[Row], planned: Residuals, options: ReadOptions, target: int, first_id: int = 0
) -> Iterator[list[dict[str, Any]]]:
    for number, splits in enumerate(split_tasks(files, options, target), start=first_id):
        yield [
            {
                "task_id": number,
                **{name: split.file[name] for name in _FILE_COLUMNS},
                "start": split.start,
                "length": split.length,
                "deletes": split.file.get("deletes") or [],
                "residual": format_expression(planned.residual(split.file["spec_id"], bytes(split.file["partition"]))),
            }
            for split in splits
        ]
