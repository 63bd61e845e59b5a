"""Metrics of a Parquet file from its footer (spec, "Data File Fields").

Footers have sizes, counts, nulls and bounds, but not the count of NaN, which the writer adds. A metric that a footer does not
prove is left out: readers take it as unknown, while a wrong one would lose rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID as UUIDValue

import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.errors import InvalidTableError
from icekeep.formats.arrow.schema import arrow_type, child_fields, field_id
from icekeep.formats.base import FileMetrics
from icekeep.formats.parquet.pages import value_bytes
from icekeep.formats.parquet.thrift import Damaged, Struct
from icekeep.spec.properties import NONE, MetricsMode
from icekeep.spec.schema import Schema
from icekeep.spec.types import DOUBLE, LONG, UUID, DecimalType, PrimitiveType
from icekeep.spec.values import decimal_from_unscaled, lower_bound, upper_bound

_BOUND_FIELDS = 1, 2, 5, 6
"""Of statistics: the deprecated `max` and `min`, then `max_value` and `min_value`."""

_HIGHEST = "\U0010ffff".encode()
_STORED_AS = {(pa.int32(), LONG), (pa.float32(), DOUBLE), (pa.binary(16), UUID)}


def file_metrics(
    metadata: pq.FileMetaData,
    schema: Schema,
    modes: Mapping[int, MetricsMode],
    nan_counts: Mapping[int, int] | None = None,
) -> FileMetrics:
    """The metrics of a file that was written with `arrow_schema(schema)`.

    Fields inside lists and maps have sizes only: a footer counts stored values and nulls there, an empty list being one null,
    which are neither rows nor values. Iceberg Java keeps no counts either. `modes`, and the sums of `count_nans`, are by field
    id. Raises `InvalidTableError` if the file's columns are not those of its schema.
    """
    # pyarrow has field ids only in the Arrow schema.
    leaves = [leaf for field in metadata.schema.to_arrow_schema() for leaf in _leaves(field, repeated=False)]
    if len(leaves) != metadata.num_columns:
        raise InvalidTableError(f"a data file has {metadata.num_columns} columns where its schema has {len(leaves)}")
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for position, (stored, repeated) in enumerate(leaves):
        field = schema.fields_by_id.get(field_id(stored) or 0)
        if field is None or not isinstance(field.type, PrimitiveType):
            continue
        id_, mode = field.field_id, modes.get(field.field_id, NONE)
        if not mode.counts:
            continue
        chunks = [group.column(position) for group in groups]
        sizes[id_] = sum(chunk.total_compressed_size for chunk in chunks)
        if repeated:
            continue
        values[id_] = sum(chunk.num_values for chunk in chunks)
        null_counts = [_null_count(chunk) for chunk in chunks]
        if None not in null_counts:
            nulls[id_] = sum(count or 0 for count in null_counts)
        if mode.bounds and _stores(stored.type, field.type):
            least, greatest = _bounds(chunks, null_counts, field.type, mode.length)
            if least is not None:
                lower[id_] = least
            if greatest is not None:
                upper[id_] = greatest
    return FileMetrics(
        record_count=metadata.num_rows,
        column_sizes=sizes,
        value_counts=values,
        null_value_counts=nulls,
        nan_value_counts={id_: count for id_, count in (nan_counts or {}).items() if id_ in values},
        lower_bounds=lower,
        upper_bounds=upper,
        # Ascending (spec, field 132).
        split_offsets=tuple(sorted(row_group_offset(group) for group in groups if group.num_columns)),
    )


def row_group_metrics(
    metadata: pq.FileMetaData, columns: pa.Schema, types: Mapping[int, PrimitiveType], footer: Callable[[], bytes]
) -> list[FileMetrics] | None:
    """The metrics of some columns in each row group, from the footer of any writer; null if columns cannot be located.

    `columns` are those of the file with the field ids of the table, `types` those of the requested columns; `footer` returns its
    bytes. Left out are columns that are repeated, whose statistics are not values of the table's type, or whose id is not unique.
    """
    leaves = [leaf for field in columns for leaf in _leaves(field, repeated=False)]
    if len(leaves) != metadata.num_columns:
        return None
    places: dict[int, list[int]] = {}
    for position, (stored, repeated) in enumerate(leaves):
        id_ = field_id(stored)
        if id_ is not None and id_ in types and not repeated and _stores(stored.type, types[id_]):
            places.setdefault(id_, []).append(position)
    positions = {id_: of_column[0] for id_, of_column in places.items() if len(of_column) == 1}
    unreadable = _unreadable_bounds(metadata, positions.values(), footer)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return [
        _group_metrics(group, types, {id_: n for id_, n in positions.items() if (number, n) not in unreadable})
        for number, group in enumerate(groups)
    ]


def _group_metrics(
    group: pq.RowGroupMetaData, types: Mapping[int, PrimitiveType], positions: Mapping[int, int]
) -> FileMetrics:
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for id_, position in positions.items():
        chunk, type_ = group.column(position), types[id_]
        values[id_] = chunk.num_values
        if (null_count := _null_count(chunk)) is not None:
            nulls[id_] = null_count
        # Parquet defines no order for timestamps of 96 bits.
        least, greatest = None, None
        if chunk.physical_type != "INT96":
            least, greatest = _bounds([chunk], [null_count], type_, None)
        if least is not None and greatest is not None:
            lower[id_] = least
            if type_.name == "string":
                # Some writers cut an upper bound and forget to increment it.
                upper[id_] = greatest + _HIGHEST
            elif type_.name != "binary":
                upper[id_] = greatest
    return FileMetrics(
        record_count=group.num_rows,
        value_counts=values,
        null_value_counts=nulls,
        lower_bounds=lower,
        upper_bounds=upper,
    )


def _unreadable_bounds(
    metadata: pq.FileMetaData, positions: Iterable[int], footer: Callable[[], bytes]
) -> set[tuple[int, int]]:
    """The column chunks, by row group and position, of fixed-length values with bounds of another length.

    pyarrow aborts the process when their statistics are read. Some writers cut such bounds as they cut texts: arrow-rs does by
    default beyond 64 bytes.
    """
    widths = {position: value_bytes(metadata.schema.column(position)) for position in positions}
    lengths = {position: length for position, length in widths.items() if length is not None}
    readable: set[tuple[int, int]] = set()
    chunks = {(number, position) for number in range(metadata.num_row_groups) for position in lengths}
    if not chunks:
        return chunks
    try:
        for number, group in enumerate(Struct(footer()).structs(4)):
            for position, chunk in enumerate(group.structs(1)):
                if position in lengths:
                    column = chunk.struct(3)
                    statistics = None if column is None else column.struct(12)
                    bounds = [] if statistics is None else [statistics.binary(id_) for id_ in _BOUND_FIELDS]
                    if all(bound is None or len(bound) == lengths[position] for bound in bounds):
                        readable.add((number, position))
    except Damaged:
        return chunks
    return chunks - readable


def row_group_offset(group: pq.RowGroupMetaData) -> int:
    """The offset of a row group in the file; 0 for one without columns."""
    if not group.num_columns:
        return 0
    first = group.column(0)
    offsets = (first.dictionary_page_offset, first.data_page_offset)
    return min(offset for offset in offsets if offset is not None)


def _leaves(field: pa.Field, *, repeated: bool) -> Iterator[tuple[pa.Field, bool]]:
    """The leaves below a field, depth first, and whether they are inside a list or a map."""
    if not field.type.num_fields:
        yield field, repeated
        return
    for _, child in child_fields(field.type):
        yield from _leaves(child, repeated=repeated or not pa.types.is_struct(field.type))


def _stores(stored: pa.DataType, type_: PrimitiveType) -> bool:
    """Whether statistics of a stored type are values of the column's type, which may have been promoted since."""
    if isinstance(type_, DecimalType):
        return pa.types.is_decimal(stored) and stored.scale == type_.scale
    return stored == arrow_type(type_) or (stored, type_) in _STORED_AS


def _null_count(chunk: pq.ColumnChunkMetaData) -> int | None:
    if chunk.num_values == 0:
        return 0
    statistics = chunk.statistics
    return statistics.null_count if statistics is not None and statistics.has_null_count else None


def _bounds(
    chunks: list[pq.ColumnChunkMetaData], null_counts: list[int | None], type_: PrimitiveType, length: int | None
) -> tuple[bytes | None, bytes | None]:
    """Both bounds of a column; none if it has no values, or a row group with values has no bounds."""
    least: list[Any] = []
    greatest: list[Any] = []
    for chunk, null_count in zip(chunks, null_counts, strict=True):
        statistics = chunk.statistics
        if statistics is not None and statistics.has_min_max:
            least.append(_value(type_, statistics.min_raw))
            greatest.append(_value(type_, statistics.max_raw))
        elif null_count != chunk.num_values:
            return None, None
    if not least or any(value is None or value != value for value in (*least, *greatest)):
        return None, None
    return lower_bound(type_, min(least), length), upper_bound(type_, max(greatest), length)


def _value(type_: PrimitiveType, raw: Any) -> Any:
    """A footer's physical value as the spec's value; null if the bytes are no text."""
    if isinstance(type_, DecimalType):
        number = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)
        return decimal_from_unscaled(number, type_.scale)
    match type_.name:
        case "string":
            try:
                return raw.decode()
            except UnicodeDecodeError:
                return None
        case "uuid":
            return UUIDValue(bytes=raw)
    return raw
