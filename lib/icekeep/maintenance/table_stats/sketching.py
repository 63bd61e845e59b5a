"""Sketches of the columns of a snapshot: by its rows, or by what an earlier snapshot has and what was appended since.

Rows are read as every scan reads them, deletes applied. What needs no reading:

* An ancestor has sketches of the columns, and since then rows were only appended, or moved to other files (the operations
  `append` and `replace`): then only what was appended is read, whichever engine made the sketches.
* Earlier runs have kept the sketches of data files (`kept`) that no delete reaches.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError, NotFoundError, UsageError, argument, table_at
from icekeep.formats.puffin import PuffinFooter, read_puffin_footer, read_range, unpacked_blob
from icekeep.formats.theta import (
    BLOB_TYPE,
    SketchBuilder,
    ThetaSketch,
    has_sketches,
    hashes_of,
    sketch_from_bytes,
)
from icekeep.maintenance.table_stats.kept import KeptSketches, SketchedColumn, SplitSketches
from icekeep.planning.scan.plan import open_scan
from icekeep.planning.scan.tasks import packed_tasks
from icekeep.planning.spark.rows import arrow_table
from icekeep.planning.spark.session import SparkSource, from_arrow_schema
from icekeep.planning.spark.tasks import all_results, prepare_worker, run_tasks
from icekeep.planning.spark.workers import chosen_workers, thread_workers
from icekeep.spec.collections import PositionSet, unpacked_positions
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import FILE, Schema
from icekeep.spec.snapshots import Snapshot, StatisticsFile
from icekeep.spec.types import MIB, NestedField, StructType, Type
from icekeep.tables.read import TaskReader, scan, task_reader

_STEP = "sketching columns"
_REFUSED = frozenset({"time", "timestamp_ns", "timestamptz_ns"})
"""Types that rows of tasks do not have, since Spark has none."""

OF_ROWS = "fields-of-rows"
"""The property of a file that names the columns whose sketches icekeep has made of rows, by field id."""

_KEPT_MAX_BYTES = 512 * MIB
_SKETCH_BYTES = 32 * 1024
_WITHOUT_NEW_ROWS = "replace"
_APPEND = "append"


class SketchingWork(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done for the sketches of a snapshot.

    Attributes:
        columns: whose.
        base: the statistics that are gone on from; `None` for all rows.
        base_sketches: out of it, in the order of the columns.
        reading: arguments of the scan of what is read.
        tasks: the splits that are read; `None` where Spark plans them.
        reused: data files whose kept sketches hold.
        live: all data files of the scan; none where Spark plans them.
        kept: of earlier runs.
        read_files_count, read_bytes: data files that are read; 0 where Spark plans them.
    """

    columns: tuple[SketchedColumn, ...]
    base: StatisticsFile | None
    base_sketches: tuple[ThetaSketch, ...]
    reading: Mapping[str, Any]
    tasks: list[list[dict[str, Any]]] | None
    reused: frozenset[str]
    live: frozenset[str]
    kept: KeptSketches
    read_files_count: int
    read_bytes: int


def chosen_columns(
    metadata: TableMetadata, snapshot: Snapshot, names: Sequence[str] | None
) -> tuple[SketchedColumn, ...]:
    """The columns that are asked for, by the schema of a snapshot; by default all of its own level that have sketches.

    Raises:
        NotFoundError: there is no such column.
        UsageError: a column has no sketch, or lies in a list or map, or none is left.
    """
    schema = schema_of(metadata, snapshot)
    fields = _by_name(schema.fields)
    all_names = (field.name for field in schema.fields if _is_sketched(field.type))
    chosen = list(dict.fromkeys(all_names if names is None else names))
    if not chosen:
        raise UsageError(f"{table_at(metadata.location)} has no column of which a sketch can be made")
    for name in chosen:
        if name not in fields:
            raise NotFoundError(
                f"there is no column {name!r} of {table_at(metadata.location)} outside of lists and maps", column=name
            )
        if not _is_sketched(fields[name].type):
            raise UsageError(
                f"column {name!r} is of type {fields[name].type}, of which no sketch is made; leave it out of "
                f"{argument('column')}",
                column=name,
            )
    return tuple(SketchedColumn(fields[name].field_id, str(fields[name].type), name) for name in chosen)


def schema_of(metadata: TableMetadata, snapshot: Snapshot) -> Schema:
    """The schema that a snapshot was made with; the current one where it does not say."""
    if snapshot.schema_id is None:
        return metadata.schema
    return metadata.schemas_by_id.get(snapshot.schema_id, metadata.schema)


def _is_sketched(type_: Type) -> bool:
    return has_sketches(type_) and str(type_) not in _REFUSED


def _by_name(fields: Sequence[NestedField], above: str = "") -> dict[str, NestedField]:
    found = {}
    for field in fields:
        found[f"{above}{field.name}"] = field
        if isinstance(field.type, StructType):
            found |= _by_name(field.type.fields, f"{above}{field.name}.")
    return found


def planned_work(
    table: Table,
    snapshot: Snapshot,
    columns: tuple[SketchedColumn, ...],
    spark: SparkSource,
    *,
    uses_kept: bool = True,
) -> SketchingWork:
    """What has to be read for the sketches of some columns of a snapshot; raises as a scan does."""
    base = _base(table.metadata, snapshot, columns)
    base_sketches: tuple[ThetaSketch, ...] = ()
    if base is not None:
        try:
            base_sketches = tuple(_sketches_of_rows(table, base, columns))
        except IcekeepError:
            base = None
    reading: dict[str, Any] = {"snapshot_id": snapshot.snapshot_id}
    if base is not None:
        reading = {"start_snapshot_id": base.snapshot_id, "end_snapshot_id": snapshot.snapshot_id}
    kept = KeptSketches(table, columns)
    opened = open_scan(table, **reading)
    packed = packed_tasks(opened, spark, thread_workers().slots, shares_deletes=True)
    if packed.few is None:
        return SketchingWork(
            columns=columns,
            base=base,
            base_sketches=base_sketches,
            reading=reading,
            tasks=None,
            reused=frozenset(),
            live=frozenset(),
            kept=kept,
            read_files_count=0,
            read_bytes=0,
        )
    splits = [split for task in packed.few for split in task]
    sizes = {split["file_path"]: split["file_size_in_bytes"] for split in splits}
    reached = {split["file_path"] for split in splits if _is_reached(split)}
    reused = frozenset(
        path for path, size in sizes.items() if uses_kept and path not in reached and kept.has(path, size)
    )
    tasks = [left for task in packed.few if (left := _without(task, reused))]
    return SketchingWork(
        columns=columns,
        base=base,
        base_sketches=base_sketches,
        reading=reading,
        tasks=tasks,
        reused=reused,
        live=frozenset(sizes) if base is None else frozenset(),
        kept=kept,
        read_files_count=len(sizes) - len(reused),
        read_bytes=sum(split["length"] for task in tasks for split in task),
    )


def _is_reached(split: Mapping[str, Any]) -> bool:
    return bool(unpacked_positions(PositionSet, bytes(split["reached_by"])))


def _without(task: Sequence[Mapping[str, Any]], reused: frozenset[str]) -> list[dict[str, Any]]:
    """The splits of a task but for those of some files; the first of what is left has the deletes of all."""
    left = [dict(split) for split in task if split["file_path"] not in reused]
    if left:
        left[0]["deletes"] = task[0]["deletes"]
    return left


def _base(metadata: TableMetadata, snapshot: Snapshot, columns: Sequence[SketchedColumn]) -> StatisticsFile | None:
    """The statistics of the nearest ancestor that can be gone on from."""
    by_snapshot = {file.snapshot_id: file for file in metadata.statistics if file.key_metadata is None}
    current = {f.field_id: (name, str(f.type)) for name, f in _by_name(metadata.schema.fields).items()}
    wanted = {column.field_id: (column.name, column.type) for column in columns}
    if any(current.get(field_id) != told for field_id, told in wanted.items()):
        # Rows that were appended are read in the columns of today.
        return None
    for ancestor in metadata.ancestors(snapshot.snapshot_id):
        file = by_snapshot.get(ancestor.snapshot_id)
        if file is not None and ancestor.snapshot_id != snapshot.snapshot_id:
            known = {f.field_id: str(f.type) for f in _by_name(schema_of(metadata, ancestor).fields).values()}
            same = all(known.get(column.field_id) == column.type for column in columns)
            if same and {column.field_id for column in columns} <= set(sketched_ids(file)):
                return file
        if ancestor.operation not in (_APPEND, _WITHOUT_NEW_ROWS):
            return None
    return None


def sketched_ids(file: StatisticsFile) -> list[int]:
    """The columns of which a statistics file has sketches, by the metadata."""
    return [
        blob["fields"][0]
        for blob in file.blob_metadata
        if isinstance(blob, dict) and blob.get("type") == BLOB_TYPE and len(blob.get("fields") or ()) == 1
    ]


def ids_of_rows(footer: PuffinFooter) -> set[int]:
    """The columns whose sketches in a file are of the rows of its snapshot.

    Those of `compute_table_stats` are, Iceberg's and icekeep's. Trino adds what it writes to the sketches that are there, and
    rows that were deleted stay in them.
    """
    if footer.properties.get("created-by", "").startswith("Iceberg "):
        return {blob.fields[0] for blob in footer.blobs if blob.type == BLOB_TYPE and len(blob.fields) == 1}
    told = footer.properties.get(OF_ROWS, "").split(",")
    return {int(one) for one in told if one.isdigit()}


def _sketches_of_rows(table: Table, file: StatisticsFile, columns: Sequence[SketchedColumn]) -> Iterator[ThetaSketch]:
    """The sketches of columns out of a statistics file.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: they cannot be read.
        NotFoundError: one is not there, whatever the metadata says, or may be of more than the rows.
    """
    footer = read_puffin_footer(table.storage, file.statistics_path)
    known = ids_of_rows(footer)
    blobs = {blob.fields[0]: blob for blob in footer.blobs if blob.type == BLOB_TYPE and len(blob.fields) == 1}
    for column in columns:
        found = blobs.get(column.field_id)
        if found is None or column.field_id not in known:
            raise NotFoundError(
                f"statistics file {file.statistics_path!r} has no sketch of the rows of {column.name!r}"
            )
        data = read_range(table.storage, file.statistics_path, found.offset, found.length)
        yield sketch_from_bytes(unpacked_blob(data, found.compression_codec))


class _Sketching(msgspec.Struct, frozen=True):
    """What the tasks share."""

    reader: TaskReader
    columns: tuple[SketchedColumn, ...]
    types: tuple[Type, ...]
    keeps: bool


class _Sketched(msgspec.Struct, frozen=True):
    """What a task found: sketches of the files that deletes reach, or that are not kept, and of each other split."""

    whole: tuple[ThetaSketch, ...]
    splits: tuple[SplitSketches, ...]


def sketch(
    table: Table, snapshot: Snapshot, work: SketchingWork, spark: SparkSource, run_id: str
) -> tuple[list[ThetaSketch], SketchingWork]:
    """Read what has to be read, and keep the sketches of its files.

    Returns:
        The sketches of the snapshot, in the order of the columns; and the work that was done, which is more than was planned
        where kept sketches cannot be read.

    Raises:
        IcekeepError: as a scan does, when rows are read.
    """
    builders = [SketchBuilder() for _ in work.columns]
    try:
        for number, one in work.kept.read(work.reused):
            builders[number].add(one)
    except IcekeepError:
        work = planned_work(table, snapshot, work.columns, spark, uses_kept=False)
    for builder, one in zip(builders, work.base_sketches, strict=False):
        builder.add(one)
    fields = _by_name(schema_of(table.metadata, snapshot).fields)
    types = tuple(fields[column.name].type for column in work.columns)
    select = list(dict.fromkeys(_top(column.name, fields) for column in work.columns))
    if work.tasks is None:
        for number, one in _by_spark(table, work, types, select, spark):
            builders[number].add(one)
        return [builder.sketch() for builder in builders], work
    workers = chosen_workers(spark, work.read_bytes, work.read_files_count)
    opened = open_scan(table, **work.reading)
    names = {field.name for field in opened.version.schema.fields}
    keeps = work.read_files_count * len(work.columns) * _SKETCH_BYTES <= _KEPT_MAX_BYTES and FILE.name not in names
    # The path of the file comes last, for tasks that keep what they find by file.
    reader = task_reader(opened, [*select, FILE.name] if keeps else select, workers.process_slots)
    shared = _Sketching(reader, work.columns, types, keeps)
    found = all_results(run_tasks(workers.spark, work.tasks, _task, shared, step=_STEP, threads=workers.slots))
    splits = [split for one in found for split in one.splits]
    # Where they cannot be kept the next run reads the files again.
    with suppress(IcekeepError, OSError):
        work.kept.keep(run_id, splits)
    for part in found:
        for number, builder in enumerate(builders):
            builder.add(part.whole[number])
            for split in part.splits:
                builder.add(split.sketches[number])
    return [builder.sketch() for builder in builders], work


def _top(name: str, fields: Mapping[str, NestedField]) -> str:
    """The column of the table's own level in which a column lies; names may have dots."""
    parts = name.split(".")
    tops = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next(top for top in tops if top in fields)


def _task(splits: Sequence[Mapping[str, Any]], shared: _Sketching) -> _Sketched:
    """Sketches of a task's rows; of files that no delete reaches split by split."""
    whole = [SketchBuilder() for _ in shared.columns]
    by_path: dict[str, list[Mapping[str, Any]]] = {}
    for split in splits:
        by_path.setdefault(split["file_path"], []).append(split)
    # Splits of one file cannot be distinguished by their rows, and stand for one that is as long as all of them.
    single = {path: _joined(some) for path, some in by_path.items() if shared.keeps and not _is_reached(some[0])}
    alone = {path: [SketchBuilder() for _ in shared.columns] for path, span in single.items() if span is not None}
    for batch in shared.reader.read(splits):
        for path, rows in _by_file(batch, batch[FILE.name] if shared.keeps else None):
            for builder, column, type_ in zip(alone.get(path, whole), shared.columns, shared.types, strict=True):
                builder.add_hashes(hashes_of(_column(rows, column.name), type_))
    found = []
    for path, builders in alone.items():
        start, length = single[path] or (0, 0)
        sketches = tuple(one.sketch() for one in builders)
        found.append(SplitSketches(file_path=path, start=start, length=length, sketches=sketches))
    return _Sketched(tuple(one.sketch() for one in whole), tuple(found))


def _joined(splits: Sequence[Mapping[str, Any]]) -> tuple[int, int] | None:
    """Start and length of splits that follow one another; `None` where they do not."""
    spans = sorted((split["start"], split["length"]) for split in splits)
    for (start, length), (following, _) in pairwise(spans):
        if start + length != following:
            return None
    return spans[0][0], sum(length for _, length in spans)


def _by_file(batch: pa.RecordBatch, paths: pa.Array | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    if paths is None or not batch.num_rows:
        yield "", batch
        return
    distinct = pc.unique(paths).to_pylist()
    if len(distinct) == 1:
        yield distinct[0], batch
        return
    for path in distinct:
        yield path, batch.filter(pc.equal(paths, path))


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    """A column by its full name; null where a struct above it is."""
    if name in rows.schema.names:
        return rows[name]
    parts = name.split(".")
    for count in range(1, len(parts)):
        top = ".".join(parts[:count])
        if top in rows.schema.names:
            return _below(rows[top], ".".join(parts[count:]))
    raise NotFoundError(f"there is no column {name!r} among the rows that are read", column=name)


def _below(column: pa.Array, name: str) -> pa.Array:
    names = [field.name for field in column.type]
    if name in names:
        return pc.struct_field(column, [names.index(name)])
    top = next(one for one in names if name.startswith(f"{one}."))
    return _below(pc.struct_field(column, [names.index(top)]), name[len(top) + 1 :])


_FOUND = pa.schema([pa.field("number", pa.int32()), pa.field("sketch", pa.binary())])


def _by_spark(
    table: Table, work: SketchingWork, types: Sequence[Type], select: Sequence[str], spark: SparkSource
) -> Iterator[tuple[int, ThetaSketch]]:
    """The sketches of each of Spark's partitions of a scan that Spark plans; nothing is kept."""
    columns = work.columns

    def sketched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        builders = [SketchBuilder() for _ in columns]
        for batch in batches:
            for builder, column, type_ in zip(builders, columns, types, strict=True):
                builder.add_hashes(hashes_of(_column(batch, column.name), type_))
        data = [builder.sketch().to_bytes() for builder in builders]
        yield pa.RecordBatch.from_arrays(
            [pa.array(range(len(data)), pa.int32()), pa.array(data, pa.binary())], schema=_FOUND
        )

    rows = scan(table, spark, select=select, **work.reading)
    found = arrow_table(rows.mapInArrow(sketched, from_arrow_schema(_FOUND)), _STEP)
    for number, data in zip(found["number"].to_pylist(), found["sketch"].to_pylist(), strict=True):
        yield number, sketch_from_bytes(data)
