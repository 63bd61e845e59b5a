"""Read a table's rows as a DataFrame or in Arrow: files pruned by the filter, columns projected by field id, deletes applied."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.errors import NotFoundError, UsageError
from icekeep.events import SILENT
from icekeep.formats.deletes.apply import PIECE_BYTES, LivePiece, LiveRowsReader
from icekeep.formats.machine import TaskMemory, task_memory_bytes
from icekeep.formats.reader import SourceFile
from icekeep.planning.entries import delete_file_from_row
from icekeep.planning.scan.plan import Scan, VersionArguments, open_scan
from icekeep.planning.scan.report import PlanScanResult, plan_scan
from icekeep.planning.scan.tasks import Residuals, one_task_a_partition, packed_tasks, residuals_of
from icekeep.planning.spark.jobs import spark_run
from icekeep.planning.spark.rows import arrow_table, spark_columns, spark_rows, streamed
from icekeep.planning.spark.session import SparkSource, check_source, from_arrow_schema, started
from icekeep.planning.spark.tasks import all_results, dataframe_from_tasks, prepare_worker, run_tasks
from icekeep.planning.spark.workers import spark_workers, thread_workers
from icekeep.spec.collections import Part, PositionSet, unpacked_positions
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import identity_values
from icekeep.spec.schema import (
    FILE,
    LAST_UPDATED_SEQUENCE_NUMBER,
    POS,
    ROW_ID,
    SPEC_ID,
    NameMapping,
    Schema,
    meant_column,
    name_mapping_of,
    partition_column,
)
from icekeep.spec.types import format_bytes
from icekeep.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


R = TypeVar("R")

_BATCH_ROWS = 10_000


def scan(
    table: Table,
    spark: SparkSource = None,
    *,
    where: str | Expression = ALWAYS_TRUE,
    select: Sequence[str] | None = None,
    **version: Unpack[VersionArguments],
) -> "DataFrame":
    """The rows of a table that match a filter and are not deleted.

    Files are planned at once; rows are read in Arrow, inside Spark tasks, when the DataFrame is used. UUIDs are text, as
    in Iceberg's own DataFrames. Rows come in no particular order. `explain` of the DataFrame says what was planned of the
    table, before Spark's own plan.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one.
        where: a filter over the table's columns, as text or as an unbound expression.
        select: columns of the table in the order wanted, all if null. Also the metadata columns `_file`, `_pos`, `_spec_id`,
            `_partition`, `_row_id` and `_last_updated_sequence_number`.
        **version: what is read: `ref`, `snapshot_id`, `as_of`, or what was appended from `start_snapshot_id` to
            `end_snapshot_id`; by default the head of `main`.

    Raises:
        ExpressionError, NotFoundError, UsageError: the filter, a column or the version does not fit the table, or a property
            `read.split.*` has a value that it cannot take.
        InvalidTableError, MissingFileError: a manifest cannot be read whole; also when rows are read, for data files.
        UnsupportedError: the table is encrypted, or Spark has no type for a column; when rows are read, also where a task has
            not the memory for a row group.
    """
    check_source(spark)
    opened = open_scan(table, where=where, **version)
    session = started(spark)
    reader = task_reader(opened, select, spark_workers(spark).process_slots)
    with spark_run("scan", table.name, SILENT):
        packed = packed_tasks(opened, spark, shares_deletes=True)
        if packed.few is not None:
            rows = dataframe_from_tasks(session, [*map(tuple, packed.few)], reader.read, reader.columns)
        else:
            assert packed.many is not None
            # Planned again when rows are read: that costs far less than reading that many files, and keeps the driver small.
            planned = one_task_a_partition(packed.many)
            rows = planned.mapInArrow(reader.read_batches, from_arrow_schema(reader.columns))
    return explaining(rows, table.name, lambda: plan_scan(table, spark, where=where, **version))


def explaining(rows: "DataFrame", name: str, plan: Callable[[], PlanScanResult]) -> "DataFrame":
    """The same DataFrame, whose `explain` calls `plan` and prints the table's scan first; DataFrames derived from it do not."""
    spark_explain = rows.explain

    def explain(extended: bool | str | None = None, mode: str | None = None) -> None:
        """Print what the scan reads of the table, and then Spark's plan, as `DataFrame.explain` does."""
        sys.stdout.write(plan_text(name, plan()))
        spark_explain(extended, mode)

    # Patched, not wrapped: code that checks the type sees Spark's.
    frame: Any = rows
    frame.explain = explain
    return rows


def plan_text(name: str, plan: PlanScanResult) -> str:
    """A few lines on what a scan reads and what pruning saves."""
    of, with_manifests = "", ""
    if plan.total_data_files_count is not None:
        of = f" of {plan.total_data_files_count:,}"
        with_manifests = f"{plan.total_data_files_count - plan.opened_data_files_count:,} with their manifests, "
    opened = plan.opened_manifests_count + plan.opened_delete_manifests_count
    snapshot = "no snapshot" if plan.snapshot_id is None else f"snapshot {plan.snapshot_id}"
    deletes = (
        (plan.deletes.deletion_vectors_count, "deletion vectors"),
        (plan.deletes.position_delete_files_count, "position delete files"),
        (plan.deletes.equality_delete_files_count, "equality delete files"),
    )
    lines = [
        f"== icekeep: scan of {name}, {snapshot} ==",
        f"manifests    {opened:,} of {plan.manifests_count:,} opened",
        f"data files   {plan.data_files_count:,}{of} read, {format_bytes(plan.data_files_bytes)}, "
        f"up to {plan.record_count:,} rows",
        f"             left out: {with_manifests}{plan.pruned_by_partition_count:,} by their partition, "
        f"{plan.pruned_by_metrics_count:,} by bounds of their columns",
        f"deletes      {', '.join(f'{count:,} {kind}' for count, kind in deletes if count) or 'none'}",
        f"planned by   {plan.reading}",
    ]
    return "\n".join(lines) + "\n\n"


def read_table(
    table: Table,
    *,
    where: str | Expression = ALWAYS_TRUE,
    select: Sequence[str] | None = None,
    **version: Unpack[VersionArguments],
) -> pa.Table:
    """The rows that `scan` gives, as a table that this process holds; Spark is started only to plan very many files.

    Files are read in threads, and all rows are held at once; `read_batches` holds few of them. All arguments are as for `scan`,
    and so is what it raises.
    """
    opened = open_scan(table, where=where, **version)
    workers = thread_workers()
    reader = task_reader(opened, select, workers.process_slots)
    packed = packed_tasks(opened, None, workers.slots, shares_deletes=True)
    if packed.few is None:
        with spark_run("scan", table.name, SILENT):
            rows = scan(table, where=where, select=select, **version)
            return arrow_table(rows, "reading rows")
    ran = run_tasks(None, packed.few, lambda splits, one: [*one.read(splits)], reader, threads=workers.slots)
    parts = all_results(ran)
    return pa.Table.from_batches([batch for part in parts for batch in part], reader.columns)


def read_batches(
    table: Table,
    spark: SparkSource = None,
    *,
    where: str | Expression = ALWAYS_TRUE,
    select: Sequence[str] | None = None,
    **version: Unpack[VersionArguments],
) -> pa.RecordBatchReader:
    """The rows that `scan` gives, as Arrow batches that are read one after the other; none of them is read by Spark.

    Files are planned at once, and opened one at a time, each when its rows are wanted. What this process holds is a row group
    or stripe, or a part of one that is large, and of small files that the same equality deletes reach up to 128 MiB together;
    and the deletes that are being applied. A file is closed when its rows are read, or when nobody has the reader any more.

    DuckDB, Polars, DataFusion and `pyarrow.dataset.write_dataset` take the reader as it is. `read_table` reads in threads, and
    is faster where all rows fit into memory.

    Args:
        spark: what plans very many files (some two million), and nothing else; by default the session that runs, or a new one.
        where: which rows are read, as for `scan`.
        select: names of columns, in their order, as for `scan`.
        **version: what is read, as for `scan`: `ref`, `snapshot_id`, `as_of`, or what was appended between two snapshots.

    Raises:
        IcekeepError: as for `scan`; for data files, when their rows are read.
    """
    check_source(spark)
    opened = open_scan(table, where=where, **version)
    reader = task_reader(opened, select, 1)
    packed = packed_tasks(opened, spark, 1, shares_deletes=True)
    tasks: Iterable[Sequence[Mapping[str, Any]]]
    if packed.few is not None:
        tasks = packed.few
    else:
        assert packed.many is not None
        # The splits of a task are consecutive; one of Spark's partitions is held at a time.
        rows = groupby(streamed(packed.many, "planning tasks"), lambda row: row["task_id"])
        tasks = ([row.asDict(recursive=True) for row in splits] for _, splits in rows)
    return pa.RecordBatchReader.from_batches(reader.columns, chain.from_iterable(map(reader.read, tasks)))


def rows_worked_on(
    table: Table,
    work: Callable[[Iterator[pa.RecordBatch]], R],
    *,
    select: Sequence[str] | None = None,
    **version: Unpack[VersionArguments],
) -> list[R] | None:
    """Work on the rows of each task that `scan` would make, in threads of this process, without holding them.

    Args:
        work: called with the rows of one task, which are read on the way.
        select, version: as for `scan`, as are the errors.

    Returns:
        The results; `None`, and nothing is read, where there are so many files that Spark would plan them.
    """
    opened = open_scan(table, **version)
    workers = thread_workers()
    reader = task_reader(opened, select, workers.process_slots)
    packed = packed_tasks(opened, None, workers.slots, shares_deletes=True)
    if packed.few is None:
        return None
    return all_results(
        run_tasks(None, packed.few, lambda one, read: work(read(one)), reader.read, threads=workers.slots)
    )


def task_reader(opened: Scan, select: Sequence[str] | None, slots: int) -> "TaskReader":
    """What reads the tasks of a scan, `slots` of which share the memory of a process."""
    metadata = opened.table.metadata
    selected = _selected(opened.version.schema, select, metadata)
    return TaskReader(
        storage=opened.table.storage,
        planned=residuals_of(opened),
        selected=selected,
        columns=spark_columns(selected),
        table_schemas=metadata.schemas,
        name_mapping=name_mapping_of(metadata.properties),
        slots=slots,
    )


class TaskReader(msgspec.Struct, frozen=True, kw_only=True):
    """Reads planned splits in tasks, `slots` of which share an executor's memory."""

    storage: Storage
    planned: Residuals
    selected: Schema
    columns: Any
    table_schemas: tuple[Schema, ...]
    name_mapping: NameMapping | None
    slots: int

    def read_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the splits in batches of `scan.tasks.SHARING_TASKS`.

        All splits of a task are in one partition. It may have other tasks too, where Spark plans otherwise than when it counted
        the tasks, as after executors were added or settings changed; the deletes of a split are those of its own task.
        """
        prepare_worker()
        tasks: dict[int, list[dict[str, Any]]] = {}
        for batch in batches:
            for split in batch.to_pylist():
                tasks.setdefault(split["task_id"], []).append(split)
        for splits in tasks.values():
            yield from self.read(splits)

    def read(self, splits: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
        """The live, filtered rows of a task's splits in the DataFrame's columns."""
        memory = TaskMemory(task_memory_bytes(self.slots))
        reader = LiveRowsReader(
            self.storage,
            self.selected,
            table_schemas=self.table_schemas,
            piece_bytes=min(PIECE_BYTES, memory.batch_bytes),
        )
        deletes = [
            delete_file_from_row(one, self.planned.partition(one["spec_id"], bytes(one["partition"])))
            for split in splits
            for one in split["deletes"]
        ]
        # Equality deletes are looked up at once for splits with the same residual.
        for residual, alike in groupby(splits, lambda s: self.planned.residual(s["spec_id"], bytes(s["partition"]))):
            pieces = (self._piece(split, deletes) for split in alike)
            for rows in reader.read(pieces, residual=residual, batch_rows=memory.batch_rows):
                yield from spark_rows(rows, self.columns).to_batches(max_chunksize=_BATCH_ROWS)

    def _piece(self, split: Mapping[str, Any], deletes: Sequence[DataFile]) -> LivePiece:
        spec = self.planned.specs[split["spec_id"]]
        values = self.planned.partition(split["spec_id"], bytes(split["partition"]))
        source = SourceFile(
            location=split["file_path"],
            file_format=split["file_format"],
            constants=identity_values(spec, values),
            name_mapping=self.name_mapping,
            spec_id=split["spec_id"],
            partition={field.field_id: value for field, value in zip(spec.fields, values, strict=True)},
            first_row_id=split["first_row_id"],
            data_sequence_number=split["sequence_number"],
        )
        reached_by = unpacked_positions(PositionSet, bytes(split["reached_by"]))
        return LivePiece(source=source, deletes=Part(deletes, reached_by), split=(split["start"], split["length"]))


def _selected(schema: Schema, select: Sequence[str] | None, metadata: TableMetadata) -> Schema:
    if select is None:
        return schema
    if isinstance(select, str) or not select:
        raise UsageError(f"select is {select!r}; give a list of one column at least")
    if len(set(select)) < len(select):
        raise UsageError(f"select names a column twice: {', '.join(select)}")
    types = [metadata.partition_type(spec_id) for spec_id in sorted(metadata.specs_by_id)]
    reserved = (FILE, POS, SPEC_ID, partition_column(types), ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER)
    # The table's own column hides a metadata column of its name.
    by_name = {field.name: field for field in (*reserved, *schema.fields)}
    missing = next((name for name in select if name not in by_name), None)
    if missing is not None:
        raise NotFoundError(
            f"there is no column {missing!r}; {meant_column(missing, by_name, [field.name for field in schema.fields])}",
            column=missing,
        )
    return msgspec.structs.replace(schema, fields=tuple(by_name[name] for name in select))
