"""A data file read from its first row to its last, a batch at a time, and what is worked out on the way."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import InvalidTableError, first_line
from icekeep.formats.arrow.schema import has_ids
from icekeep.formats.base import FileMetrics, FileReader, MetricsCollector
from icekeep.formats.reader import FileColumns, SourceFile, open_reader
from icekeep.maintenance.checking.content.bloom_filters import BloomCheck
from icekeep.maintenance.checking.content.columns import CheckedColumns, columns_of, required_fields
from icekeep.maintenance.checking.content.metrics import BOUNDS, NULLS, wrong_metrics
from icekeep.maintenance.checking.content.order import OrderWatch
from icekeep.maintenance.checking.content.partitions import PartitionWatch
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.properties import FULL
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import SortOrder
from icekeep.spec.types import PrimitiveType, StructType
from icekeep.storage.base import Storage

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
            if wrong.number in (BOUNDS, NULLS):
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
