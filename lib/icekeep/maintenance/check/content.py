"""Counts and bounds of columns as they are told, by an entry or a footer, against those of the values.

A data file read from its first row to its last, a batch at a time, and what is worked out on the way.

A data file and the entries that name it: what it holds is read once, and each entry is held against it.

Entries of many manifests brought together by file, here or in Spark tasks, so that each file is read once.

Data files of all snapshots that are looked at, each read once: here for few bytes, else in Spark tasks.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError, and_more, first_line
from icekeep.formats.arrow.schema import has_ids
from icekeep.formats.base import FileMetrics, FileReader, MetricsCollector
from icekeep.formats.reader import FileColumns, SourceFile, open_reader
from icekeep.maintenance.check.columns import (
    BloomCheck,
    CheckedColumns,
    OrderWatch,
    PartitionWatch,
    TableManifests,
    columns_of,
    known_of,
    required_fields,
)
from icekeep.maintenance.check.entries import part_of
from icekeep.maintenance.check.faults import Fault, FaultId, Tally
from icekeep.maintenance.check.lists import CheckedTable, Listed
from icekeep.maintenance.check.reading import Numbered, batches, chunks, keys_of
from icekeep.planning.entries import entries_count, threads_count
from icekeep.planning.prune import decode_bounds
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_exchange, run_tasks
from icekeep.planning.spark.workers import MANIFEST_BYTES, TaskSize, tasks_count
from icekeep.spec.collections import balanced
from icekeep.spec.manifests.structs import ManifestContent
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.partitioning import PartitionSpec, identity_values
from icekeep.spec.properties import FULL
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import SortOrder
from icekeep.spec.types import GIB, MIB, PrimitiveType, StructType
from icekeep.spec.values import INTEGER_WIDTHS
from icekeep.storage.base import Storage
from icekeep.storage.locations import canonical_or_text

_ORDERED = frozenset((*INTEGER_WIDTHS, "boolean", "float", "double", "decimal", "string", "fixed", "binary"))
"""Types whose order is one: writers order UUIDs in two ways, and other types have bounds of another form."""


class RecordedMetrics(Protocol):
    """What is told of columns, by field id; an id that is not there tells nothing."""

    @property
    def value_counts(self) -> Mapping[int, int]: ...
    @property
    def null_value_counts(self) -> Mapping[int, int]: ...
    @property
    def nan_value_counts(self) -> Mapping[int, int]: ...
    @property
    def lower_bounds(self) -> Mapping[int, bytes]: ...
    @property
    def upper_bounds(self) -> Mapping[int, bytes]: ...


class Wrong(msgspec.Struct, frozen=True):
    """Columns of which a metric is wrong, with what is recorded and what was found of each."""

    number: int
    columns: tuple[int, ...]
    recorded: tuple[Any, ...]
    found: tuple[Any, ...]


def wrong_metrics(
    told: RecordedMetrics,
    found: FileMetrics,
    types: Mapping[int, PrimitiveType],
    top_level: Collection[int],
    *,
    is_orc: bool = False,
) -> Iterator[Wrong]:
    """What is not so.

    Args:
        found: of the values.
        types: of the columns that are judged.
        top_level: of which counts of nulls and values are judged: of fields of structs writers count in several ways.
        is_orc: timestamps before 1970 are not judged then, as libraries read fractions of seconds there in two ways.
    """
    for number, counts, known, judged in (
        (FaultId.NULL_COUNT_WRONG, told.null_value_counts, found.null_value_counts, top_level),
        (FaultId.VALUE_COUNT_WRONG, told.value_counts, found.value_counts, top_level),
        (FaultId.NAN_COUNT_WRONG, told.nan_value_counts, found.nan_value_counts, types),
    ):
        # Negative counts are told as what they are.
        wrong = [id_ for id_ in sorted(counts) if id_ in judged and id_ in known and 0 <= counts[id_] != known[id_]]
        if wrong:
            yield Wrong(number, tuple(wrong), tuple(counts[i] for i in wrong), tuple(known[i] for i in wrong))
    outside = [id_ for id_, type_ in sorted(types.items()) if _is_outside(id_, type_, told, found, is_orc=is_orc)]
    if outside:
        yield Wrong(FaultId.BOUNDS_WRONG, tuple(outside), _bounds_of(told, outside), _bounds_of(found, outside))


def _is_outside(id_: int, type_: PrimitiveType, told: RecordedMetrics, found: FileMetrics, *, is_orc: bool) -> bool:
    least, greatest = found.lower_bounds.get(id_), found.upper_bounds.get(id_)
    recorded = told.lower_bounds.get(id_), told.upper_bounds.get(id_)
    if type_.name not in _ORDERED or least is None or recorded in ((None, None), (least, greatest)):
        return False
    decoded = decode_bounds(type_, pa.array([*recorded, least, greatest], pa.binary())).to_pylist()
    lower, upper, least_value, greatest_value = decoded
    if is_orc and type_.name.startswith("timestamp") and least_value is not None and least_value < 0:
        return False
    # A bound that is NaN is above and below nothing, and says nothing.
    below = lower is not None and least_value is not None and lower > least_value
    above = upper is not None and greatest_value is not None and upper < greatest_value
    return bool(below or above)


def _bounds_of(told: RecordedMetrics, ids: Collection[int]) -> tuple[list[str | None], ...]:
    return tuple(
        [None if bound is None else bound.hex() for bound in (told.lower_bounds.get(i), told.upper_bounds.get(i))]
        for i in ids
    )


_BATCH_ROWS = 32_768
"""So many rows of a large part are held at once."""


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What entries say of all rows of a file.

    Attributes:
        partitions: specs with values of partitions, each once.
        orders: sort orders.
    """

    partitions: Sequence[tuple[PartitionSpec, tuple[Any, ...]]]
    orders: Sequence[SortOrder]


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds.

    Attributes:
        columns: `None` where its columns have no field ids, and no name tells them.
        metrics: of the leaves that the file has.
        offsets: where its parts begin, `None` for a format without parts.
        nulls: of required fields that have some, by id.
        partitions: what was found of each claim.
        orders: by id of a sort order the position of the first row that breaks it.
        statistics: ids of columns whose values the footer's statistics do not hold, each with the first part where so.
        bloom_problems: what is wrong with Bloom filters, a sentence for each column chunk.
        bloom_gaps: why some could not be asked.
    """

    row_count: int
    columns: CheckedColumns | None
    metrics: FileMetrics
    offsets: tuple[int, ...] | None
    nulls: Mapping[int, int] = {}
    partitions: Sequence[PartitionWatch] = ()
    orders: Mapping[int, int] = {}
    statistics: Mapping[int, int] = {}
    bloom_problems: Sequence[str] = ()
    bloom_gaps: Sequence[str] = ()


def read_content(storage: Storage, source: SourceFile, schema: Schema, claims: Claims) -> Content:
    """Read all rows of a file in the columns of a schema.

    Raises:
        MissingFileError: there is no such file.
        InvalidTableError: it is damaged.
        UnsupportedError: its format is not known, or it holds what icekeep does not read.
    """
    without: dict[int, str] = {}
    while True:
        try:
            return _Reading(storage, source, schema, claims, without).content()
        except InvalidTableError as error:
            # A value that its column's type does not hold shows up only where it stands.
            name = str(error.facts.get("column", "")).partition(".")[0]
            found = next((field.field_id for field in schema.fields if field.name == name), None)
            if found is None or found in without:
                raise
            without[found] = first_line(error)


class _Reading:
    def __init__(
        self, storage: Storage, source: SourceFile, schema: Schema, claims: Claims, without: Mapping[int, str]
    ) -> None:
        self._storage, self._source, self._schema, self._claims = storage, source, schema, claims
        self._without = without
        self._nulls: dict[int, int] = {}
        self._statistics: dict[int, int] = {}

    def content(self) -> Content:
        with open_reader(self._storage, self._source.location, self._source.file_format) as reader:
            if len(reader.schema) and not has_ids(reader.schema) and self._source.name_mapping is None:
                return self._unidentified(reader)
            identified = FileColumns(Schema(fields=())).find(reader.schema, self._source).schema
            columns = columns_of(identified, self._schema, self._source.constants, self._without)
            return self._read(reader, columns, identified)

    def _unidentified(self, reader: FileReader) -> Content:
        row_count = sum(data.num_rows for _, data in reader.tables(reader.schema.names, None, (), _BATCH_ROWS))
        nothing = MetricsCollector(Schema(fields=()), {}).metrics()
        return Content(row_count=row_count, columns=None, metrics=nothing, offsets=self._offsets(reader))

    def _read(self, reader: FileReader, columns: CheckedColumns, identified: pa.Schema) -> Content:
        partitions = [
            PartitionWatch(spec, values, columns.schema, columns.leaves, columns.promoted)
            for spec, values in self._claims.partitions
        ]
        orders = {order.order_id: OrderWatch(order, columns.schema, columns.leaves) for order in self._claims.orders}
        types = leaf_types(columns)
        whole = MetricsCollector(columns.schema, dict.fromkeys(types, FULL))
        names = FileColumns(columns.schema).find(reader.schema, self._source).names
        bloom = BloomCheck(reader, self._storage, self._source.location, reader.schema, names)
        count, of_parts = 0, []
        for part in range(len(reader.part_offsets())):
            of_part = MetricsCollector(columns.schema, dict.fromkeys(types, FULL))
            for rows in self._batches(reader, columns.schema, part, bloom):
                whole.add(rows)
                of_part.add(rows)
                self._count_nulls(rows, columns)
                for watch in partitions:
                    watch.add(rows)
                for order in orders.values():
                    order.add(rows, count)
                count += rows.num_rows
            of_parts.append(of_part.metrics())
        # Only what was read well is asked about its statistics: pyarrow ends the process where those of a chunk are broken.
        for part, told in enumerate(reader.part_metrics(identified, types) or ()):
            self._hold(told, of_parts[part], types, part)
        return Content(
            row_count=count,
            columns=columns,
            metrics=whole.metrics(),
            offsets=self._offsets(reader),
            nulls=self._nulls,
            partitions=partitions,
            orders={number: one.broken_at for number, one in orders.items() if one.broken_at is not None},
            statistics=self._statistics,
            bloom_problems=tuple(bloom.problems),
            bloom_gaps=tuple(bloom.gaps),
        )

    def _batches(self, reader: FileReader, schema: Schema, part: int, bloom: BloomCheck) -> Iterator[pa.Table]:
        columns = FileColumns(schema)
        found = columns.find(reader.schema, self._source)
        for _, data in reader.tables(found.names, [part], (), _BATCH_ROWS):
            bloom.add(part, data)
            yield columns.projected(data, found, {})

    def _count_nulls(self, rows: pa.Table, columns: CheckedColumns) -> None:
        for path in required_fields(self._schema, columns.schema):
            nulls = _nulls_of(rows, columns.schema, [field.field_id for field in path])
            if nulls:
                self._nulls[path[-1].field_id] = self._nulls.get(path[-1].field_id, 0) + nulls

    def _hold(self, told: Any, found: FileMetrics, types: Mapping[int, PrimitiveType], part: int) -> None:
        for wrong in wrong_metrics(told, found, types, top_level(types, self._schema)):
            if wrong.number in (FaultId.BOUNDS_WRONG, FaultId.NULL_COUNT_WRONG):
                for id_ in wrong.columns:
                    self._statistics.setdefault(id_, part)

    def _offsets(self, reader: FileReader) -> tuple[int, ...] | None:
        offsets = tuple(reader.part_offsets())
        # Avro has one part, at 0; some writers of Parquet have 0 for a place that there is not.
        return None if 0 in offsets else offsets


def leaf_types(columns: CheckedColumns) -> dict[int, PrimitiveType]:
    """The types of the leaves that a file has."""
    by_id = columns.schema.fields_by_id
    return {id_: type_ for id_ in columns.leaves if isinstance(type_ := by_id[id_].type, PrimitiveType)}


def top_level(ids: Collection[int], schema: Schema) -> frozenset[int]:
    """Those of some columns that lie in no other."""
    return frozenset(field.field_id for field in schema.fields if field.field_id in ids)


def _nulls_of(rows: pa.Table, schema: Schema, path: Sequence[int]) -> int:
    """Nulls of a field where the struct around it is none."""
    column: Any = rows.column([field.field_id for field in schema.fields].index(path[0]))
    field = next(field for field in schema.fields if field.field_id == path[0])
    above = 0
    for id_ in path[1:]:
        above = column.null_count
        assert isinstance(field.type, StructType)
        position = [child.field_id for child in field.type.fields].index(id_)
        column, field = pc.struct_field(column, [position]), field.type.fields[position]
    return int(column.null_count) - above


Row = Mapping[str, Any]
"""An entry as Python values, with `manifest`, the number of its manifest."""

_MAX_NAMES = 5


class EntryMetrics(msgspec.Struct, frozen=True):
    """What an entry says of columns; see `metrics.Told`."""

    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]

    @classmethod
    def of(cls, row: Row) -> "EntryMetrics":
        return cls(*(dict(row[name] or ()) for name in cls.__struct_fields__))


class ContentFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of a class, before it is said where: of an entry, or of the file whatever entries say."""

    number: int
    detail: str
    columns: tuple[int, ...] = ()
    recorded: Any = None
    found: Any = None


class DataFileChecks:
    """Tells the faults of data files.

    Args:
        known: the table.
        tally: is told.
    """

    def __init__(self, known: TableManifests, tally: Tally) -> None:
        self._known, self._tally = known, tally

    def file(self, rows: Sequence[Row]) -> None:
        """Look at one file; `rows` are all entries that name it.

        Raises:
            TryAgainError: the store is out of reach.
        """
        rows = sorted(rows, key=lambda row: (self._known.ages[row["manifest"]], row["manifest"]))
        path = rows[0]["file_path"]
        if any(row["key_metadata"] is not None for row in rows):
            self._tally.gap(f"the rows of file {path!r}", "it is encrypted")
            return
        schema = self._known.schemas[int(self._known.schema_ids[rows[0]["manifest"]])]
        try:
            content = self._read(rows, schema)
        except MissingFileError:
            # Told among files.
            return
        except InvalidTableError as error:
            recorded = rows[0]["file_format"]
            self._tell(
                rows, ContentFault(number=FaultId.DATA_FILE_UNREADABLE, detail=first_line(error), recorded=recorded)
            )
            return
        except UnsupportedError as error:
            self._tally.gap(f"the rows of file {path!r}", first_line(error))
            return
        self._of_file(rows, content, schema)
        self._of_entries(rows, content, schema)

    @cached_property
    def _codecs(self) -> PartitionCodecs:
        return PartitionCodecs(self._known.partitions)

    def _partition(self, row: Row) -> tuple[Any, ...]:
        return self._codecs.decode(row["spec_id"], row["partition"])

    def _read(self, rows: Sequence[Row], schema: Schema) -> Content:
        known, first = self._known, rows[0]
        source = SourceFile(
            location=first["file_path"],
            file_format=first["file_format"],
            constants=identity_values(known.specs[first["spec_id"]], self._partition(first)),
            name_mapping=known.name_mapping,
        )
        orders = {row["sort_order_id"] for row in rows} & known.sort_orders.keys()
        claims = Claims(
            partitions=[(known.specs[row["spec_id"]], self._partition(row)) for row in _claims(rows).values()],
            orders=[known.sort_orders[number] for number in sorted(orders)],
        )
        return read_content(known.decode.storage, source, schema, claims)

    def _of_file(self, rows: Sequence[Row], content: Content, schema: Schema) -> None:
        for finding in _file_findings(content, schema):
            self._tell(rows, finding)
        for why in content.bloom_gaps:
            self._tally.gap(f"a Bloom filter of file {rows[0]['file_path']!r}", why)
        if content.columns is not None:
            for id_, why in sorted(content.columns.unreadable.items()):
                self._tally.gap(f"column {schema.names_by_id[id_]!r} of file {rows[0]['file_path']!r}", why)

    def _of_entries(self, rows: Sequence[Row], content: Content, schema: Schema) -> None:
        found: dict[int, list[tuple[Row, ContentFault]]] = {}
        watches = dict(zip(_claims(rows), content.partitions, strict=False))
        for row in rows:
            findings = [*_entry_findings(row, content, schema)]
            watch = watches.get(_claim(row))
            if watch is not None and watch.others:
                findings.append(self._elsewhere(row, sorted(watch.source_ids), watch.others))
            for finding in findings:
                found.setdefault(finding.number, []).append((row, finding))
        for told in found.values():
            self._tell([row for row, _ in told], told[0][1])

    def _elsewhere(self, row: Row, columns: Sequence[int], others: Mapping[str, Sequence[Any]]) -> ContentFault:
        fields = self._known.specs[row["spec_id"]].fields
        recorded = {field.name: value for field, value in zip(fields, self._partition(row), strict=True)}
        shown = ", ".join(f"{name!r} {others[name][0]} where its entry says {recorded[name]}" for name in others)
        return ContentFault(
            number=FaultId.PARTITION_NOT_OF_ROWS,
            detail=f"it has rows of other partitions: of {shown}",
            columns=tuple(columns),
            recorded=[_text(recorded[name]) for name in others],
            found=[[_text(value) for value in values] for values in others.values()],
        )

    def _tell(self, rows: Sequence[Row], finding: ContentFault) -> None:
        first = rows[0]
        self._tally.add(
            Fault(
                number=finding.number,
                where=first["file_path"],
                detail=finding.detail,
                snapshot_id=self._known.since[first["manifest"]],
                facts={
                    "manifest": self._known.manifest_paths[first["manifest"]],
                    "manifests": [self._known.manifest_paths[row["manifest"]] for row in rows],
                    "file_path": first["file_path"],
                    "content_offset": None,
                    "spec_id": first["spec_id"],
                    "columns": [*finding.columns],
                    "recorded": finding.recorded,
                    "found": finding.found,
                },
            )
        )


def _claim(row: Row) -> tuple[int, bytes]:
    return row["spec_id"], row["partition"]


def _claims(rows: Sequence[Row]) -> dict[tuple[int, bytes], Row]:
    """One entry for each partition that entries say."""
    return {_claim(row): row for row in rows}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _names(ids: Sequence[int], schema: Schema) -> str:
    """Columns in a sentence."""
    names = [repr(schema.names_by_id[id_]) for id_ in ids[:_MAX_NAMES]]
    return f"column{'s' if len(ids) > 1 else ''} {', '.join(names)}{and_more(ids, _MAX_NAMES)}"


def _file_findings(content: Content, schema: Schema) -> Iterator[ContentFault]:
    columns = content.columns
    if columns is None:
        detail = "its columns have no field ids, and the table has no name mapping"
        yield ContentFault(number=FaultId.FIELD_ID_UNKNOWN, detail=detail)
        return
    if columns.unidentified:
        ids = sorted(columns.unidentified)
        detail = f"it has values of {_names(ids, schema)} without a field id, and the table's name mapping has no id for the name"
        yield ContentFault(number=FaultId.FIELD_ID_UNKNOWN, detail=detail, columns=tuple(ids))
    if columns.wrong:
        ids = sorted(columns.wrong)
        yield ContentFault(number=FaultId.COLUMN_TYPE_WRONG, detail=columns.wrong[ids[0]], columns=tuple(ids))
    elif columns.zoned:
        detail = f"it marks {_names(columns.zoned, schema)} as adjusted to UTC, where the table has no time zone"
        yield ContentFault(number=FaultId.COLUMN_TYPE_WRONG, detail=detail, columns=columns.zoned)
    empty = sorted({*columns.absent, *content.nulls})
    if empty:
        said = []
        if columns.absent:
            said.append(f"it lacks required {_names(columns.absent, schema)}")
        if content.nulls:
            said.append(f"required {_names(sorted(content.nulls), schema)} has {sum(content.nulls.values())} nulls")
        found = [content.nulls.get(id_) for id_ in empty]
        yield ContentFault(
            number=FaultId.REQUIRED_COLUMN_EMPTY, detail=", and ".join(said), columns=tuple(empty), found=found
        )
    if content.bloom_problems:
        problems = content.bloom_problems
        yield ContentFault(
            number=FaultId.BLOOM_FILTER_DISHONEST, detail=f"{problems[0]}{and_more(problems)}", found=[*problems]
        )
    if content.statistics:
        ids = sorted(content.statistics)
        detail = f"row group {content.statistics[ids[0]]} has values of {_names(ids, schema)} that its statistics do not hold"
        parts = [content.statistics[id_] for id_ in ids]
        yield ContentFault(number=FaultId.ROW_GROUP_STATISTICS_WRONG, detail=detail, columns=tuple(ids), found=parts)


def _entry_findings(row: Row, content: Content, schema: Schema) -> Iterator[ContentFault]:
    recorded = row["record_count"]
    # Negative counts are told as what they are.
    if 0 <= recorded != content.row_count:
        detail = f"it has {content.row_count} rows where its entry says {recorded}"
        yield ContentFault(number=FaultId.RECORD_COUNT_WRONG, detail=detail, recorded=recorded, found=content.row_count)
    yield from _metric_findings(row, content, schema)
    offsets = row["split_offsets"] or []
    # Those beyond the file are told as such.
    beyond = any(offset >= row["file_size_in_bytes"] or offset < 0 for offset in offsets)
    if content.offsets is not None and not beyond and not _cut_well(offsets, content.offsets):
        strange = [offset for offset in offsets if offset not in content.offsets]
        detail = f"no row group or stripe begins at byte {strange[0]}, which is one of its split offsets"
        if not strange:
            detail = f"its split offsets begin at byte {offsets[0]}, and its first row group or stripe at {content.offsets[0]}"
        yield ContentFault(
            number=FaultId.SPLIT_OFFSETS_NOT_OF_FILE, detail=detail, recorded=offsets, found=[*content.offsets]
        )
    position = content.orders.get(row["sort_order_id"])
    if position is not None:
        detail = f"row {position} comes before row {position - 1} in sort order {row['sort_order_id']}"
        yield ContentFault(
            number=FaultId.NOT_SORTED_AS_CLAIMED, detail=detail, recorded=row["sort_order_id"], found=position
        )


def _cut_well(offsets: Sequence[int], parts: Sequence[int]) -> bool:
    """Whether splits at some offsets begin where parts begin, and leave out none."""
    return not offsets or ({*offsets} <= {*parts} and min(offsets) == min(parts))


def _metric_findings(row: Row, content: Content, schema: Schema) -> Iterator[ContentFault]:
    if content.columns is None:
        return
    types = leaf_types(content.columns)
    is_orc = row["file_format"].lower() == "orc"
    for wrong in wrong_metrics(EntryMetrics.of(row), content.metrics, types, top_level(types, schema), is_orc=is_orc):
        yield ContentFault(
            number=wrong.number,
            detail=_DETAILS[wrong.number].format(_names(wrong.columns, schema), wrong.found[0], wrong.recorded[0]),
            columns=wrong.columns,
            recorded=[*wrong.recorded],
            found=[*wrong.found],
        )


_DETAILS: Mapping[int, str] = {
    FaultId.BOUNDS_WRONG: "values of {} lie outside of their bounds",
    FaultId.NULL_COUNT_WRONG: "{} has {} nulls where its entry says {}",
    FaultId.VALUE_COUNT_WRONG: "{} has {} values where its entry says {}",
    FaultId.NAN_COUNT_WRONG: "{} has {} NaNs where its entry says {}",
}


_CHECKED_BYTES = TaskSize(16 * MIB, GIB)
_MOST_PARTS = 20_000
_FILE_BYTES = 64 * 1024
"""What reading the smallest file counts for."""


class ContentCheck(msgspec.Struct, frozen=True):
    """What all tasks know; `parts` is how many there are to read files."""

    known: TableManifests
    parts: int = 1


def entries_here(manifests: Sequence[Numbered], known: TableManifests) -> pa.Table | None:
    """The entries of few manifests, with the numbers of these; `None` where there are none."""
    threads = threads_count(manifest.manifest_path for _, manifest in manifests)
    read = all_results(run_tasks(None, chunks(manifests), _entries, known, threads=threads))
    found = [batch for some in read for batch in some]
    return pa.Table.from_batches(found) if found else None


def bytes_of(entries: pa.Table) -> int:
    """The bytes of the files of entries, of each once."""
    _, firsts = np.unique(entries["file_path"].to_numpy(), return_index=True)
    return int(entries["file_size_in_bytes"].to_numpy()[firsts].sum())


def judge_here(entries: pa.Table, known: TableManifests) -> Tally:
    """The faults of the files of some entries, which are read in threads of this process."""
    files = _by_file(entries.to_pylist())
    total = Tally(known.whole)
    threads = threads_count(rows[0]["file_path"] for rows in files)
    for tally in all_results(run_tasks(None, files, _judged, known, threads=threads)):
        total.merge(tally)
    return total


def judge_in_tasks(manifests: Sequence[Numbered], known: TableManifests, spark: SparkSource) -> Tally:
    """The faults of the files of many manifests.

    Raises:
        TryAgainError: the store or Spark is out of reach.
    """
    session = started(spark)
    tasks = tasks_count(session, sum(manifest.manifest_length for _, manifest in manifests), MANIFEST_BYTES)
    bins = balanced(manifests, lambda one: one[1].manifest_length, tasks)
    sizes = all_results(run_tasks(session, bins, _bytes_of, known, step="adding up data files"))
    parts = min(_MOST_PARTS, tasks_count(session, sum(sizes), _CHECKED_BYTES))
    shared = ContentCheck(known, parts)
    total = Tally(known.whole)
    ran = run_exchange(session, bins, _send, parts, _received, shared, step="checking data files")
    for tally in all_results(ran):
        total.merge(tally)
    return total


def _entries(some: Sequence[Numbered], known: TableManifests) -> list[pa.RecordBatch]:
    # What cannot be read has been told among files.
    read = batches(some, known.decode, Tally())
    return [batch.append_column("manifest", pa.array(numbers)) for batch, numbers in read]


def _bytes_of(manifests: Sequence[Numbered], known: TableManifests) -> int:
    """What reading the files of manifests takes; a file of several manifests counts several times."""
    total = 0
    decode = msgspec.structs.replace(known.decode, columns=frozenset({"manifest_path", "file_size_in_bytes"}))
    for some in chunks(manifests):
        for batch, _ in batches(some, decode, Tally()):
            total += int(np.maximum(batch["file_size_in_bytes"].to_numpy(), _FILE_BYTES).sum())
    return total


def _send(manifests: Sequence[Numbered], shared: ContentCheck) -> Iterator[tuple[int, pa.Table]]:
    for some in chunks(manifests):
        for batch in _entries(some, shared.known):
            numbers = part_of(keys_of(batch["file_path"])[0], shared.parts)
            table = pa.Table.from_batches([batch])
            for part in np.unique(numbers).tolist():
                yield part, table.take(pa.array(np.flatnonzero(numbers == part)))


def _received(part: int, sent: Iterable[tuple[int, pa.Table]], shared: ContentCheck) -> Tally:
    tables = [table for _, table in sent]
    total = Tally(shared.known.whole)
    if tables:
        # A file at a time as Python values: metrics take ten times as much so.
        entries = pa.concat_tables(tables).combine_chunks()
        keys = keys_of(entries["file_path"].combine_chunks())[0]
        order = np.argsort(keys, kind="stable")
        for indices in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
            for rows in _by_file(entries.take(pa.array(indices)).to_pylist()):
                total.merge(_judged(rows, shared.known))
    return total


def _judged(rows: Sequence[Row], known: TableManifests) -> Tally:
    tally = Tally(known.whole)
    DataFileChecks(known, tally).file(rows)
    return tally


def _by_file(rows: Iterable[Row]) -> list[list[Row]]:
    """The entries of each file together."""
    files: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        files[canonical_or_text(row["file_path"])].append(row)
    return [*files.values()]


def check_data_files(subject: CheckedTable, listed: Listed) -> None:
    """Read every live data file, and tell where rows are not what metadata says of them.

    Raises:
        TryAgainError: the store or Spark is out of reach.
    """
    manifests = [
        (number, manifest)
        for number, manifest in enumerate(listed.manifests)
        if manifest.content is ManifestContent.DATA and manifest.may_have_live_files
    ]
    if not manifests:
        return
    known, limits = known_of(subject, listed), limits_of(subject.spark)
    if entries_count(manifest for _, manifest in manifests) <= limits.footers_count:
        entries = entries_here(manifests, known)
        if entries is None:
            return
        if bytes_of(entries) <= limits.submitted_rewrite_bytes:
            subject.tally.merge(judge_here(entries, known))
            return
    subject.tally.merge(judge_in_tasks(manifests, known, subject.spark))
