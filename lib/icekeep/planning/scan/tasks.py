"""A plan cut into tasks: splits of data files with what must be applied to them, packed as `read.split.*` asks.

files -> splits (`file_splits`) -> bins of about one size (`collections.packed`) -> neighbours joined again

Few files are packed on the driver, many where they were planned, each share by itself.
"""

import json
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
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
)
from icekeep.planning.spark.jobs import spark_run
from icekeep.planning.spark.rows import arrow_dataframe, collected, partition_key
from icekeep.planning.spark.session import (
    F,
    SparkSource,
    check_source,
    from_arrow_schema,
    limits_of,
    refuse_encrypted_file,
    started,
    task_context,
)
from icekeep.planning.spark.workers import small_tasks
from icekeep.spec.collections import PositionSet, packed, packed_positions
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.filters.parsing import format_expression
from icekeep.spec.filters.projections import residual
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
    """How a scan's files are dealt out to tasks; the defaults are those of the table properties `read.split.*`.

    Attributes:
        split_target_bytes: what one task reads, deletes included; `read.split.target-size`.
        planning_lookback: how many tasks are filled at a time; `read.split.planning-lookback`.
        open_file_cost_bytes: what opening a file counts for at least; `read.split.open-file-cost`.
        is_adaptive: whether a small scan takes smaller splits, so that all slots have work; `read.split.adaptive-size.enabled`.
    """

    split_target_bytes: int = 128 * MIB
    planning_lookback: int = 10
    open_file_cost_bytes: int = 4 * MIB
    is_adaptive: bool = True


class Split(msgspec.Struct, frozen=True):
    """The bytes of a planned data file from `start` on, `length` of them: what a reader of blocks that begin there reads."""

    file: Row
    start: int
    length: int


def read_options(properties: Mapping[str, str]) -> ReadOptions:
    """Read the table properties `read.split.*`; raises `PropertyError` for a value that one cannot take."""
    default = ReadOptions()
    return ReadOptions(
        split_target_bytes=whole_number(properties, "read.split.target-size", default.split_target_bytes, 1),
        planning_lookback=whole_number(properties, "read.split.planning-lookback", default.planning_lookback, 1),
        open_file_cost_bytes=whole_number(properties, "read.split.open-file-cost", default.open_file_cost_bytes, 0),
        is_adaptive=boolean_property(properties, "read.split.adaptive-size.enabled", default.is_adaptive),
    )


def split_tasks(files: Iterable[Row], options: ReadOptions, target_size: int | None = None) -> Iterator[list[Split]]:
    """Deal files out to tasks, each a list of splits that one reader works through.

    A file may be in several tasks; within one, its splits that touch are one split. Memory holds `planning_lookback` tasks
    and no more, whatever the number of files. A split weighs its bytes and those of its deletes, or what opening the files
    costs if that is more.

    Args:
        files: may be a stream; an object for each file, since splits of one object are taken for splits of one file.
        target_size: bytes, instead of the options' (see `adapted_target_size`).
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
    """The size of splits at which a scan has work for all slots, if it has enough; never above the options' target.

    Args:
        scan_bytes: of all data files and deletes that the scan reads.
        parallelism: how many tasks run at once.
    """
    target = options.split_target_bytes
    if not options.is_adaptive or -(-scan_bytes // target) >= parallelism:
        return target
    return max(scan_bytes // parallelism, min(_MIN_ADAPTED_BYTES, target))


def file_splits(
    file_format: str, file_size_in_bytes: int, split_offsets: Sequence[int] | None, target_size: int
) -> tuple[tuple[int, int], ...]:
    """Where a data file may be cut: pairs of start and length in bytes, in order, that cover each byte once.

    A cut at each offset that the manifest knows; where it knows none, or none that can be true, a cut every `target_size`
    bytes. Files of formats without blocks are not cut, and a file has one split at least.

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
            # What lies before the first block, magic bytes and headers, belongs to the first split.
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
"""Bits of a `task_id` that number the tasks of one Spark partition of a plan; those above say the partition."""

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

`start` and `length` are bytes of the file, `deletes` what a reader must apply to it (`planning.manifests.REACHING_DELETES`), and
`residual` is what is left of the filter to ask of its rows, as text.
"""


SHARING_TASKS = TASKS.append(pa.field("reached_by", pa.binary(), nullable=False))
"""The same as a reader of ours gets them: one row of a task has what must be applied to any file of it in `deletes`, those of
equality first. The others have none there: `reached_by` says which of these are for the row, as a `PositionSet` in bytes."""


class PlannedRows(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What every task of a scan must know: the filter, and what partitions say of it."""

    rows: Expression
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
        """A partition tuple from its bytes."""
        return self._codecs.decode(spec_id, key)

    def residual(self, spec_id: int, key: bytes) -> Expression:
        """What is left of the filter for the rows of a partition."""
        if self.rows is ALWAYS_TRUE:
            return ALWAYS_TRUE
        if (spec_id, key) not in self._residuals:
            left = residual(self.rows, self.specs[spec_id], self.schema, self.partition(spec_id, key))
            self._residuals[spec_id, key] = left
        return self._residuals[spec_id, key]


class PackedTasks(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of a scan: their rows where they are few, else a lazy DataFrame of them; one of the two is null."""

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

    Tasks are made as the table's properties `read.split.target-size`, `read.split.planning-lookback`,
    `read.split.open-file-cost` and `read.split.adaptive-size.enabled` say.

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


def planned_rows(scan: Scan) -> PlannedRows:
    """What the tasks of a scan must know."""
    metadata = scan.table.metadata
    return PlannedRows(
        rows=scan.rows,
        schema=scan.version.schema,
        specs=metadata.specs_by_id,
        partition_types=metadata.partition_types,
    )


def packed_tasks(
    scan: Scan, spark: SparkSource, slots: int | None = None, *, shares_deletes: bool = False
) -> PackedTasks:
    """The tasks of a scan; raises as `plan_tasks` does.

    Args:
        shares_deletes: whether rows are those of `SHARING_TASKS`, which take as much as there are delete files in a task, and
            not as there are pairs of these and data files.
        slots: how many tasks may be small, so that all slots have work; by default as many as in all of the session's work.
    """
    options, known = read_options(scan.table.metadata.properties), planned_rows(scan)
    with_deletes = bool(scan.deletes.opened)
    few = few_files(scan, limits_of(spark), _PLANNED, deletes=with_deletes)
    if few is not None:
        files = sorted(few.rows(), key=lambda file: file["file_path"])
        at_once = small_tasks(started(spark)) if slots is None else slots
        target = adapted_target_size(options, sum(file["file_size_in_bytes"] for file in files), at_once)
        tasks = _packed(files, known, options, target)
        return PackedTasks(few=[*(map(sharing_deletes, tasks) if shares_deletes else tasks)], many=None)
    planned = (planned_files_with_deletes if with_deletes else planned_files)(scan, spark, _PLANNED)
    if with_deletes:
        # Joins give the files of a partition in the order in which blocks of a shuffle arrive. A partition that is computed
        # again, after an executor was lost, must give each file the same task: readers of the others are done already.
        planned = planned.sortWithinPartitions("file_path", "sequence_number", "first_row_id")
    packer = _Packer(known, options, shares_deletes=shares_deletes)
    many = planned.mapInArrow(packer, from_arrow_schema(packer.columns))
    return PackedTasks(few=None, many=many)


def one_task_a_partition(many: "DataFrame") -> "DataFrame":
    """The rows of `PackedTasks.many`, those of one task in a Spark partition of their own; plans once to count the tasks."""
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
    return many.repartition(tasks_count, partition_key(number.cast("int"), tasks_count))


class _Packer:
    """Packs what one Spark partition of a plan holds; called by `mapInArrow`."""

    def __init__(self, known: PlannedRows, options: ReadOptions, *, shares_deletes: bool) -> None:
        self._known, self._options, self._shares_deletes = known, options, shares_deletes
        self.columns = SHARING_TASKS if shares_deletes else TASKS

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = task_context()
        first_id = 0 if context is None else context.partitionId() << _PARTITION_BITS
        files = (file for batch in batches for file in batch.to_pylist())
        for task in _packed(files, self._known, self._options, self._options.split_target_bytes, first_id):
            yield pa.RecordBatch.from_pylist(sharing_deletes(task) if self._shares_deletes else task, self.columns)


def sharing_deletes(task: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows of a task as `SHARING_TASKS` has them."""

    def key(delete: Row) -> tuple[Any, ...]:
        # Some writers let the vectors of two data files be the same bytes.
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
    """Those of equality first, and those of a partition together by their numbers: a file is reached by the end of a list."""
    is_positions = delete["content"] == int(FileContent.POSITION_DELETES)
    scope = is_positions, delete["spec_id"], bytes(delete["partition"])
    offset = delete["content_offset"]
    return *scope, delete["sequence_number"], delete["file_path"], -1 if offset is None else offset


def _packed(
    files: Iterable[Row], known: PlannedRows, options: ReadOptions, target: int, first_id: int = 0
) -> Iterator[list[dict[str, Any]]]:
    for number, splits in enumerate(split_tasks(files, options, target), start=first_id):
        yield [
            {
                "task_id": number,
                **{name: split.file[name] for name in _FILE_COLUMNS},
                "start": split.start,
                "length": split.length,
                "deletes": split.file.get("deletes") or [],
                "residual": format_expression(known.residual(split.file["spec_id"], bytes(split.file["partition"]))),
            }
            for split in splits
        ]
