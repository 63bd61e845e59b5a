"""What a manifest says about the values of a Parquet file, from the file's footer (spec, "Data File Fields").

Footers know sizes, counts, nulls and bounds; they do not count NaN, so the writer counts those while it has the data.
A metric that a footer does not prove is left out: a reader takes that as unknown, while a wrong one would lose rows.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any
from uuid import UUID as UUIDValue

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icekeep.errors import InvalidTableError
from icekeep.formats.arrow_schema import arrow_type, field_id
from icekeep.spec.numbers import decimal_from_unscaled
from icekeep.spec.schema import Schema
from icekeep.spec.types import (
    DOUBLE,
    FLOAT,
    LONG,
    UUID,
    DecimalType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    child_fields,
)
from icekeep.spec.values import value_to_bytes

METRICS_COLUMN_LIMIT = 100
"""Columns that get metrics: the default of `write.metadata.metrics.max-inferred-column-defaults`."""

BOUND_LENGTH = 16
"""Code points of a string bound, bytes of a binary one: `truncate(16)`, default of `write.metadata.metrics.default`."""

_HIGHEST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_STORED_AS = {(pa.int32(), LONG), (pa.float32(), DOUBLE), (pa.binary(16), UUID)}


class FileMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of one file under the spec's names; maps go from field id to a count, a size or a bound's bytes."""

    record_count: int
    column_sizes: Mapping[int, int]
    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]
    split_offsets: tuple[int, ...]


def file_metrics(metadata: pq.FileMetaData, schema: Schema, nan_counts: Mapping[int, int] | None = None) -> FileMetrics:
    """Collect the metrics of a file that was written with `arrow_schema(schema)`.

    Fields inside lists and maps get sizes and counts, no bounds; there a count is of the values and nulls that the
    column stores, an empty list being one null. String and binary bounds are cut to `BOUND_LENGTH` and still hold. Of a
    wide schema `METRICS_COLUMN_LIMIT` columns get metrics, those of a struct before those nested in it.

    Args:
        metadata: the footer.
        schema: the table's schema that the file was written with.
        nan_counts: what `count_nans` found in all the file's rows, by field id.

    Raises:
        InvalidTableError: the file's columns are not those of its schema.
    """
    limited = set(islice(_by_precedence(schema.as_struct()), METRICS_COLUMN_LIMIT))
    columns = {
        leaf.field_id: _column_metrics(metadata, position, leaf)
        for position, leaf in enumerate(_leaves(metadata, schema))
        if leaf.field_id in limited
    }
    return FileMetrics(
        record_count=metadata.num_rows,
        column_sizes={id_: c.size_bytes for id_, c in columns.items()},
        value_counts={id_: c.value_count for id_, c in columns.items()},
        null_value_counts={id_: c.null_count for id_, c in columns.items() if c.null_count is not None},
        nan_value_counts={id_: count for id_, count in (nan_counts or {}).items() if id_ in columns},
        lower_bounds={id_: c.lower_bound for id_, c in columns.items() if c.lower_bound is not None},
        upper_bounds={id_: c.upper_bound for id_, c in columns.items() if c.upper_bound is not None},
        split_offsets=split_offsets(metadata),
    )


def split_offsets(metadata: pq.FileMetaData) -> tuple[int, ...]:
    """Where each row group starts in the file, ascending (spec, field 132)."""
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return tuple(sorted(_start(group.column(0)) for group in groups if group.num_columns))


def count_nans(table: pa.Table, schema: Schema) -> dict[int, int]:
    """Count the NaN of each `float` and `double` outside lists and maps, by field id.

    Args:
        table: data as `project` gives it.
        schema: the columns that it has.
    """
    counts: dict[int, int] = {}
    for position, field in enumerate(schema.fields):
        _count_nans(table.column(position), field, counts)
    return counts


def _count_nans(column: Any, field: NestedField, counts: dict[int, int]) -> None:
    if field.type in (FLOAT, DOUBLE):
        counts[field.field_id] = pc.sum(pc.is_nan(column)).as_py() or 0
    elif isinstance(field.type, StructType):
        for position, child in enumerate(field.type.fields):
            # Not the child array alone: what lies below a null struct is no value.
            _count_nans(pc.struct_field(column, [position]), child, counts)


class _Leaf(msgspec.Struct, frozen=True):
    """A column of a file; no field id means that the schema does not know it, no type that it gets no bounds."""

    field_id: int | None
    type: PrimitiveType | None


class _ColumnMetrics(msgspec.Struct, frozen=True):
    size_bytes: int
    value_count: int
    null_count: int | None
    lower_bound: bytes | None
    upper_bound: bytes | None


def _leaves(metadata: pq.FileMetaData, schema: Schema) -> list[_Leaf]:
    """What the file's columns are, in their order; pyarrow tells field ids only by way of an Arrow schema."""
    found = [leaf for field in metadata.schema.to_arrow_schema() for leaf in _file_leaves(field, repeated=False)]
    if len(found) != metadata.num_columns:
        raise InvalidTableError(f"a data file has {metadata.num_columns} columns where its schema has {len(found)}")
    return [_leaf(field, repeated, schema) for field, repeated in found]


def _leaf(stored: pa.Field, repeated: bool, schema: Schema) -> _Leaf:
    field = schema.fields_by_id.get(field_id(stored) or 0)
    if field is None or not isinstance(field.type, PrimitiveType):
        return _Leaf(None, None)
    bounded = not repeated and _stores(stored.type, field.type)
    return _Leaf(field.field_id, field.type if bounded else None)


def _file_leaves(field: pa.Field, *, repeated: bool) -> Iterator[tuple[pa.Field, bool]]:
    """The leaves below a field, depth first, and whether a list or a map lies above them."""
    type_ = field.type
    if pa.types.is_struct(type_):
        children = list(type_)
    elif pa.types.is_map(type_):
        children, repeated = [type_.key_field, type_.item_field], True
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        children, repeated = [type_.value_field], True
    else:
        yield field, repeated
        return
    for child in children:
        yield from _file_leaves(child, repeated=repeated)


def _stores(stored: pa.DataType, type_: PrimitiveType) -> bool:
    """Whether statistics of a stored type are values of the column's type, perhaps from before it was promoted."""
    if isinstance(type_, DecimalType):
        return pa.types.is_decimal(stored) and stored.scale == type_.scale
    return stored == arrow_type(type_) or (stored, type_) in _STORED_AS


def _column_metrics(metadata: pq.FileMetaData, position: int, leaf: _Leaf) -> _ColumnMetrics:
    chunks = [metadata.row_group(i).column(position) for i in range(metadata.num_row_groups)]
    null_counts = [_null_count(chunk) for chunk in chunks]
    lower, upper = _bounds(chunks, null_counts, leaf.type) if leaf.type is not None else (None, None)
    return _ColumnMetrics(
        size_bytes=sum(chunk.total_compressed_size for chunk in chunks),
        value_count=sum(chunk.num_values for chunk in chunks),
        null_count=None if None in null_counts else sum(count or 0 for count in null_counts),
        lower_bound=lower,
        upper_bound=upper,
    )


def _null_count(chunk: pq.ColumnChunkMetaData) -> int | None:
    if chunk.num_values == 0:
        return 0
    statistics = chunk.statistics
    return statistics.null_count if statistics is not None and statistics.has_null_count else None


def _bounds(
    chunks: list[pq.ColumnChunkMetaData], null_counts: list[int | None], type_: PrimitiveType
) -> tuple[bytes | None, bytes | None]:
    """Both bounds of a column; none where it has no values, or a row group with values does not tell theirs."""
    lower: list[Any] = []
    upper: list[Any] = []
    for chunk, null_count in zip(chunks, null_counts, strict=True):
        statistics = chunk.statistics
        if statistics is not None and statistics.has_min_max:
            lower.append(_value(type_, statistics.min_raw))
            upper.append(_value(type_, statistics.max_raw))
        elif null_count != chunk.num_values:
            return None, None
    if not lower or any(value is None or value != value for value in (*lower, *upper)):
        return None, None
    return _lower_bytes(type_, min(lower)), _upper_bytes(type_, max(upper))


def _value(type_: PrimitiveType, raw: Any) -> Any:
    """A footer's physical value as the spec's value; None if the bytes are no text."""
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


def _lower_bytes(type_: PrimitiveType, value: Any) -> bytes:
    if type_.name in ("string", "binary"):
        value = value[:BOUND_LENGTH]
    elif type_.name in ("float", "double") and value == 0:
        value = -0.0
    return value_to_bytes(type_, value)


def _upper_bytes(type_: PrimitiveType, value: Any) -> bytes | None:
    if type_.name == "string":
        value = _string_above(value)
    elif type_.name == "binary":
        value = _bytes_above(value)
    elif type_.name in ("float", "double") and value == 0:
        value = 0.0
    return value_to_bytes(type_, value) if value is not None else None


def _string_above(text: str) -> str | None:
    """The least text of at most `BOUND_LENGTH` code points that is not below `text` nor any text that it begins."""
    if len(text) <= BOUND_LENGTH:
        return text
    for end in range(BOUND_LENGTH - 1, -1, -1):
        code_point = ord(text[end]) + 1
        if code_point in _SURROGATES:
            code_point = _SURROGATES.stop
        if code_point <= _HIGHEST_CODE_POINT:
            return text[:end] + chr(code_point)
    return None


def _bytes_above(data: bytes) -> bytes | None:
    if len(data) <= BOUND_LENGTH:
        return data
    for end in range(BOUND_LENGTH - 1, -1, -1):
        if data[end] < 0xFF:
            return data[:end] + bytes([data[end] + 1])
    return None


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    offsets = (chunk.dictionary_page_offset, chunk.data_page_offset)
    return min(offset for offset in offsets if offset is not None)


def _by_precedence(type_: Type) -> Iterator[int]:
    """Ids of primitive fields in the order in which they are worth metrics: shallow ones first."""
    children = child_fields(type_)
    for child in children:
        if isinstance(child.type, PrimitiveType):
            yield child.field_id
    for child in children:
        yield from _by_precedence(child.type)
