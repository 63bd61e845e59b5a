"""Whether Parquet's Bloom filters say of each value of their column chunk that it may be there (418).

The columns of a data file as the table has them: which are there, which fit, and which must be there.

Whether the rows of a file are in a sort order.

Whether rows are of the partition that an entry says its file is of.

What is known of the table before its data files are read, and goes to each task.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError, UnsupportedError, first_line
from icekeep.formats.arrow.projection import column_values, elements, leaf_path, leaf_values, project, unidentified
from icekeep.formats.arrow.schema import arrow_schema, child_fields, field_id, is_list
from icekeep.formats.arrow.schema import child_fields as stored_children
from icekeep.formats.base import FileReader
from icekeep.formats.evaluate import transformed
from icekeep.formats.parquet.reader import BloomFilter, BloomFilterPlace, ParquetReader, hashes_of, read_bloom_filter
from icekeep.formats.parquet.thrift import Damaged
from icekeep.formats.sort.encode import Ordering
from icekeep.formats.sort.keys import sort_keys
from icekeep.maintenance.check.lists import CheckedTable, Listed
from icekeep.maintenance.check.reading import decode_task
from icekeep.planning.entries import DecodeTask
from icekeep.spec.manifests.structs import ManifestContent
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import NameMapping, Schema, name_mapping_of
from icekeep.spec.sorting import SortOrder
from icekeep.spec.transforms import Day, Hour, Month, Void, Year
from icekeep.spec.types import (
    FLOATING_TYPES,
    TIMESTAMP,
    TIMESTAMP_NS,
    UUID,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
)
from icekeep.spec.types import child_fields as child_fields_of_types
from icekeep.storage.base import Storage


class BloomCheck:
    """Asks the filters of a file for the values that are read of it; a file of another format has none.

    Attributes:
        problems: what is wrong, a sentence for each column chunk.
        wrong: which chunks these are.
        gaps: why filters could not be asked.
    """

    def __init__(
        self, reader: FileReader, storage: Storage, location: str, stored: pa.Schema, names: Collection[str]
    ) -> None:
        """`stored` are all columns of the file, `names` those that are read."""
        self.problems: list[str] = []
        self.wrong: list[dict[str, int | str]] = []
        self.gaps: list[str] = []
        self._reader = reader if isinstance(reader, ParquetReader) else None
        self._storage, self._location = storage, location
        self._part = -1
        self._filters: dict[int, tuple[BloomFilterPlace, BloomFilter]] = {}
        self._columns = [*_leaf_positions(stored, names)]

    def add(self, number: int, data: pa.Table) -> None:
        """Take in rows of a part, in the file's own columns."""
        if self._reader is None:
            return
        if number != self._part:
            self._part, self._filters = number, dict(self._opened(self._reader, number))
        for name, first, count in self._columns:
            if not any(position in self._filters for position in range(first, first + count)):
                continue
            for chunk in data.column(name).chunks:
                for position, values in enumerate(_leaf_arrays(chunk), start=first):
                    if position in self._filters:
                        self._ask(position, name, values)

    def _opened(self, reader: ParquetReader, number: int) -> Iterator[tuple[int, tuple[BloomFilterPlace, BloomFilter]]]:
        wanted = {n for _, first, count in self._columns for n in range(first, first + count)}
        places = reader.bloom_filters(number, wanted)
        if not places:
            return
        names = {n: name for name, first, count in self._columns for n in range(first, first + count)}
        with self._storage.open(self._location) as stream:
            for position, place in places.items():
                try:
                    yield position, (place, read_bloom_filter(stream, place.offset, place.length))
                except Damaged as error:
                    self._tell(position, names[position], f"cannot be read: {error}")
                except UnsupportedError as error:
                    self.gaps.append(first_line(error))

    def _ask(self, position: int, name: str, values: pa.Array) -> None:
        place, filter_ = self._filters[position]
        try:
            hashes = hashes_of(values, place.physical_type, place.width)
        except UnsupportedError as error:
            self.gaps.append(first_line(error))
            del self._filters[position]
            return
        lost = int(np.count_nonzero(~filter_.may_hold(hashes)))
        if lost:
            del self._filters[position]
            self._tell(position, name, f"says of {lost} values that they are not there")

    def _tell(self, position: int, name: str, problem: str) -> None:
        self.problems.append(f"in row group {self._part} the Bloom filter of column {name!r} {problem}")
        self.wrong.append({"row_group": self._part, "column": name, "leaf": position})


def _leaf_positions(stored: pa.Schema, names: Collection[str]) -> Iterator[tuple[str, int, int]]:
    """The columns that are read, the position of the first leaf of each among all of the file, and how many leaves it has."""
    position = 0
    for field in stored:
        count = _leaves_count(field.type)
        if field.name in names:
            yield field.name, position, count
        position += count


def _leaves_count(type_: pa.DataType) -> int:
    children = child_fields(type_)
    return sum(_leaves_count(child.type) for _, child in children) if children else 1


def _leaf_arrays(array: Any) -> Iterator[pa.Array]:
    """The values of each leaf of a column, those that no row shows among them only where they are null."""
    type_ = array.type
    if pa.types.is_struct(type_) and type_.num_fields:
        for position in range(type_.num_fields):
            yield from _leaf_arrays(pc.struct_field(array, [position]))
    elif pa.types.is_map(type_):
        yield from _leaf_arrays(elements(array, array.keys))
        yield from _leaf_arrays(elements(array, array.items))
    elif pa.types.is_fixed_size_list(type_):
        yield from _leaf_arrays(array.flatten())
    elif is_list(type_):
        yield from _leaf_arrays(elements(array))
    else:
        yield array


class CheckedColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of a file.

    Attributes:
        schema: those that can be read, everything optional.
        leaves: primitive fields in no list or map that the file has itself.
        wrong: by id of a top-level column why it cannot be read as the table's.
        zoned: ids of timestamps without time zone that the file marks as adjusted to UTC: the number is the same.
        unreadable: the same of columns whose type icekeep does not read.
        unidentified: full names, by field id, of fields that the file has by their name only.
        absent: ids of other required fields that the file lacks, and nothing gives.
        promoted: ids of top-level columns whose type in the file is another one.
    """

    schema: Schema
    leaves: frozenset[int]
    wrong: Mapping[int, str]
    zoned: tuple[int, ...]
    unreadable: Mapping[int, str]
    unidentified: Mapping[int, str]
    absent: tuple[int, ...]
    promoted: frozenset[int]


def columns_of(
    stored: pa.Schema, schema: Schema, constants: Collection[int], without: Mapping[int, str]
) -> CheckedColumns:
    """Find the table's columns in a file.

    Args:
        stored: the file's columns, with field ids.
        schema: the table's.
        constants: ids of columns whose values the partition gives.
        without: columns that turned out not to fit, and why.
    """
    by_id = {field_id(field): field for field in stored}
    lost = unidentified(stored, schema.fields, constants)
    fields: list[NestedField] = []
    leaves: set[int] = set()
    promoted: set[int] = set()
    wrong, unreadable = dict(without), {}
    for field in schema.fields:
        found = by_id.get(field.field_id)
        if found is None or field.field_id in without or unidentified([found], [field], constants):
            continue
        optional = _optional(field)
        try:
            target = project(no_rows(pa.schema([found])), Schema(fields=(optional,))).schema.field(0).type
        except InvalidTableError as error:
            wrong[field.field_id] = first_line(error)
            continue
        except UnsupportedError as error:
            unreadable[field.field_id] = first_line(error)
            continue
        fields.append(optional)
        leaves.update(_leaves(field, found))
        if isinstance(field.type, PrimitiveType) and found.type != target:
            promoted.add(field.field_id)
    return CheckedColumns(
        schema=Schema(fields=tuple(fields)),
        leaves=frozenset(leaves),
        wrong=wrong,
        zoned=tuple(id_ for field in fields for id_ in _zoned(field, by_id[field.field_id])),
        unreadable=unreadable,
        unidentified=lost,
        absent=tuple(_absent(schema.as_struct(), by_id, {*constants, *lost})),
        promoted=frozenset(promoted),
    )


def no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows; Arrow's own way fails on UUIDs."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def required_fields(schema: Schema, there: Schema) -> Iterator[tuple[NestedField, ...]]:
    """The paths of required fields in no list or map, of columns that can be read."""
    names = {field.field_id for field in there.fields}
    for field in schema.fields:
        if field.field_id in names:
            yield from _required((field,))


def _required(path: tuple[NestedField, ...]) -> Iterator[tuple[NestedField, ...]]:
    if path[-1].required:
        yield path
    if isinstance(path[-1].type, StructType):
        for field in path[-1].type.fields:
            yield from _required((*path, field))


def _optional(field: NestedField) -> NestedField:
    return replace(field, required=False, type=_optional_type(field.type))


def _optional_type(type_: Type) -> Type:
    match type_:
        case StructType(fields=fields):
            return StructType(tuple(map(_optional, fields)))
        case ListType(element=element):
            return replace(type_, element=_optional_type(element), element_required=False)
        case MapType(value=value):
            return replace(type_, value=_optional_type(value), value_required=False)
    return type_


def _leaves(field: NestedField, stored: pa.Field) -> Iterator[int]:
    if isinstance(field.type, PrimitiveType):
        yield field.field_id
    elif isinstance(field.type, StructType) and pa.types.is_struct(stored.type):
        by_id = _children(stored)
        for child in field.type.fields:
            if child.field_id in by_id:
                yield from _leaves(child, by_id[child.field_id])


def _zoned(field: NestedField, stored: pa.Field) -> Iterator[int]:
    if field.type in (TIMESTAMP, TIMESTAMP_NS) and pa.types.is_timestamp(stored.type) and stored.type.tz is not None:
        yield field.field_id
    by_id = {field_id(child): child for _, child in stored_children(stored.type)}
    for child in child_fields_of_types(field.type):
        if child.field_id in by_id:
            yield from _zoned(child, by_id[child.field_id])


def _children(stored: pa.Field) -> dict[int | None, pa.Field]:
    return {field_id(child): child for child in stored.type}


def _absent(struct: StructType, stored: Mapping[Any, pa.Field], constants: Collection[int]) -> Iterator[int]:
    for field in struct.fields:
        found = stored.get(field.field_id)
        if found is not None:
            if isinstance(field.type, StructType) and pa.types.is_struct(found.type):
                yield from _absent(field.type, _children(found), constants)
        elif field.required and field.initial_default is None and field.field_id not in constants:
            yield field.field_id


class OrderWatch:
    """Looks at the rows of a file, batch by batch.

    Attributes:
        broken_at: the position of the first row that is less than the one before it.
    """

    def __init__(self, order: SortOrder, schema: Schema, leaves: Collection[int]) -> None:
        """`schema` is the one of batches; an order by what is not in `leaves`, or that has no one meaning, is not judged."""
        self.broken_at: int | None = None
        self._schema = schema
        self._ordering = Ordering(fields=order.fields)
        self._floats = [n for n, field in enumerate(schema.fields) if field.type in FLOATING_TYPES]
        self._last: Any = None
        self._is_judged = self._can_judge(order, leaves)

    def add(self, rows: pa.Table, first: int) -> None:
        """Look at some rows, the first of which has a position in the file."""
        if not self._is_judged or self.broken_at is not None or not rows.num_rows:
            return
        keys = self._keys(rows)
        if self._last is not None and pc.less(keys[0], self._last).as_py():
            self.broken_at = first
            return
        less = pc.less(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        if less.any():
            self.broken_at = first + 1 + int(np.argmax(less))
        self._last = keys[-1]

    def _keys(self, rows: pa.Table) -> pa.Array:
        for position in self._floats:
            # Engines sort both zeros as one.
            column = rows.column(position)
            rows = rows.set_column(position, rows.schema.field(position), pc.add(column, pa.scalar(0.0, column.type)))
        return sort_keys(rows, self._ordering, self._schema)

    def _can_judge(self, order: SortOrder, leaves: Collection[int]) -> bool:
        if not order.fields:
            return False
        top_level = {field.field_id for field in self._schema.fields}
        for field in order.fields:
            source = self._schema.fields_by_id.get(field.source_id)
            if source is None or field.source_id not in leaves or source.type == UUID:
                return False
            if source.type in FLOATING_TYPES and field.source_id not in top_level:
                return False
        try:
            sort_keys(no_rows(arrow_schema(self._schema)), self._ordering, self._schema)
        except (InvalidTableError, UnsupportedError):
            return False
        return True


_MAX_SHOWN = 5
_TIMES = (Year, Month, Day, Hour)


class PartitionWatch:
    """Looks at the rows of a file, batch by batch.

    Attributes:
        others: by name of a partition field values of rows that are not the entry's, some of them.
        source_ids: columns that those are made of.
    """

    def __init__(
        self,
        spec: PartitionSpec,
        values: Sequence[Any],
        schema: Schema,
        leaves: Collection[int],
        promoted: Collection[int],
    ) -> None:
        """`schema` is the one of batches; only of `leaves`, which the file has itself, something can be said."""
        self.others: dict[str, list[Any]] = {}
        self.source_ids: set[int] = set()
        self._schema = schema
        self._fields = [
            (field, type_, value)
            for field, value in zip(spec.fields, values, strict=True)
            if field.source_id in leaves
            for type_ in _source_type(field, schema, promoted)
        ]

    def add(self, rows: pa.Table) -> None:
        """Look at some rows."""
        if not rows.num_rows:
            return
        for field, type_, expected in self._fields:
            column: Any = leaf_values(rows, self._schema, field.source_id)
            array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            if isinstance(array, pa.ExtensionArray):
                array = array.storage
            values, value_type = transformed(array, type_, field.transform)
            for value in column_values(pc.unique(values), value_type):
                if not _is_of(field, value, expected):
                    self.source_ids.add(field.source_id)
                    shown = self.others.setdefault(field.name, [])
                    if len(shown) < _MAX_SHOWN and value not in shown:
                        shown.append(value)


def _source_type(field: PartitionField, schema: Schema, promoted: Collection[int]) -> Iterator[PrimitiveType]:
    """The type of the source, if the transform can be held against the entry's value."""
    if isinstance(field.transform, Void):
        return
    try:
        type_ = leaf_path(field.source_id, [schema])[-1].type
        assert isinstance(type_, PrimitiveType)
        field.transform.apply(type_, None)
    except (InvalidTableError, UnsupportedError):
        return
    # A partition value of a date is in days, also when its column has become a timestamp.
    if not (field.source_id in promoted and type_.name in ("timestamp", "timestamp_ns")):
        yield type_


def _is_of(field: PartitionField, value: Any, expected: Any) -> bool:
    if value is None or expected is None:
        return value is expected
    if isinstance(value, float) and isinstance(expected, float) and math.isnan(value):
        return math.isnan(expected)
    if value == expected:
        return True
    # Early versions of Iceberg Java rounded times before 1970 up, and readers reckon with it.
    return isinstance(field.transform, _TIMES) and value < 0 and bool(expected == value + 1)


ENTRY_COLUMNS = (
    "spec_id",
    "partition",
    "file_path",
    "file_format",
    "record_count",
    "file_size_in_bytes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
    "key_metadata",
    "split_offsets",
    "sort_order_id",
)
"""What is read of entries."""


class TableManifests(msgspec.Struct, frozen=True, kw_only=True):
    """The table, and its manifests by number.

    Attributes:
        since: the oldest snapshot that has a manifest; `ages` its place among the snapshots, `schema_ids` its schema.
        whole: of which classes each fault is kept.
    """

    decode: DecodeTask
    manifest_paths: tuple[str, ...]
    since: tuple[int, ...]
    ages: NDArray[np.int32]
    schema_ids: NDArray[np.int32]
    schemas: Mapping[int, Schema]
    specs: Mapping[int, PartitionSpec]
    partitions: Mapping[int, StructType]
    sort_orders: Mapping[int, SortOrder]
    name_mapping: NameMapping | None
    whole: frozenset[int]


def known_of(subject: CheckedTable, listed: Listed) -> TableManifests:
    """What tasks must know; a name mapping that cannot be read is a gap."""
    table, metadata = subject.table, subject.table.metadata
    places = {snapshot.snapshot_id: place for place, snapshot in enumerate(subject.snapshots)}
    by_snapshot = {snapshot.snapshot_id: snapshot.schema_id for snapshot in subject.snapshots}
    data = [manifest for manifest in listed.manifests if manifest.content is ManifestContent.DATA]

    def schema_id(snapshot_id: int) -> int:
        found = by_snapshot.get(snapshot_id)
        return metadata.current_schema_id if found is None or found not in metadata.schemas_by_id else found

    try:
        mapping = name_mapping_of(metadata.properties)
    except InvalidTableError as error:
        subject.tally.gap("columns of data files without field ids", first_line(error))
        mapping = ()
    spec_ids = {manifest.partition_spec_id for manifest in data}
    return TableManifests(
        decode=decode_task(table, data, ENTRY_COLUMNS),
        manifest_paths=tuple(manifest.manifest_path for manifest in listed.manifests),
        since=listed.since,
        ages=np.array([places.get(one, 0) for one in listed.since], np.int32),
        schema_ids=np.array([schema_id(one) for one in listed.since], np.int32),
        schemas=metadata.schemas_by_id,
        specs=metadata.specs_by_id,
        partitions={number: metadata.partition_type(number) for number in spec_ids},
        sort_orders={order.order_id: order for order in metadata.sort_orders},
        name_mapping=mapping,
        whole=subject.tally.whole,
    )
