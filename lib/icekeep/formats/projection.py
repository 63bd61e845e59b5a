"""Arrow data of one schema into the columns of another.

`project` matches by field id, for data read from the table's files (spec, "Column Projection"); `cast_to_schema`
matches by name, for data that a caller hands in. Both promote types as "Schema Evolution" allows and nothing further: a
value changes its representation, never what it says.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import IcekeepError, InvalidTableError, UnsupportedError, UsageError
from icekeep.formats.arrow_schema import arrow_field, arrow_schema, arrow_type, field_id
from icekeep.spec.schema import Schema
from icekeep.spec.types import STRING, ListType, MapType, NestedField, StructType, Type, child_fields

KEPT_DICTIONARY = pa.dictionary(pa.int32(), pa.string())
"""What pyarrow reads a dictionary-encoded string column as when it is asked to keep the encoding."""


def projected_columns(file_schema: pa.Schema, schema: Schema) -> list[str]:
    """Names of the top-level columns of a file that `project` needs, in the file's order: read only these.

    Raises:
        UnsupportedError: the file carries no field ids.
    """
    _validate_ids(file_schema)
    wanted = {field.field_id for field in schema.fields}
    return [field.name for field in file_schema if field_id(field) in wanted]


def project(data: pa.Table, schema: Schema, constants: Mapping[int, Any] | None = None) -> pa.Table:
    """Give data read from a file the columns, order, names and types of a table's schema, going by field id.

    A column that the data lacks takes its constant, or null; a column that the schema lacks is dropped. A top-level
    string column that was read as a dictionary (`KEPT_DICTIONARY`) stays one, since decoding it only to encode it again
    is much of the work of a rewrite; every other dictionary is decoded. Columns that fit already are not copied.

    Args:
        data: a table or a record batch whose fields carry the file's ids; the answer is of the same kind.
        schema: the columns that are wanted.
        constants: values by field id of columns that may be absent from the file because the partition says them
            (identity transforms), in the representation of `spec`.

    Raises:
        UnsupportedError: the file carries no field ids, or lacks a column with an initial default (v3).
        InvalidTableError: a required column is absent or has nulls, or a column's type cannot become the table's.
    """
    _validate_ids(data.schema)
    return _select(data, schema, arrow_schema(schema), _ByFieldId(constants or {}))


def cast_to_schema(data: pa.Table, schema: Schema) -> pa.Table:
    """Give a caller's data the columns, order and types of a table's schema, going by name at every level.

    A missing optional column becomes null. Types convert where no value can change: the promotions of the spec, smaller
    whole numbers, other units of time where every value is exact, large types, dictionaries.

    Raises:
        UsageError: a required column is missing or has nulls, a column is not in the schema or there twice, or a column
            cannot become the schema's type without changing a value. The column is named.
    """
    matching = _ByName()
    matching.validate(list(data.schema), schema.fields, "")
    return _select(data, schema, arrow_schema(schema), matching)


class _Matching(Protocol):
    """How fields of the data are found, and what it means when one is not as it must be."""

    def key(self, field: pa.Field) -> int | str | None:
        """What a field of the data is known by."""

    def wanted_key(self, wanted: NestedField) -> int | str:
        """What the field that fits must be known by."""

    def validate(self, fields: Sequence[pa.Field], wanted: Sequence[NestedField], path: str) -> None:
        """Raise if the fields of a struct cannot be those of the wanted struct."""

    def validate_child(self, field: pa.Field, wanted: NestedField, path: str) -> None:
        """Raise if `field` is not the list element, map key or map value that is wanted."""

    def constant(self, wanted: NestedField, path: str) -> Any:
        """The value of a field that the data lacks and may lack, null included."""

    def error(self, path: str, problem: str) -> IcekeepError:
        """The error for a column that is not as it must be."""


class _ByFieldId(msgspec.Struct, frozen=True):
    constants: Mapping[int, Any]

    def key(self, field: pa.Field) -> int | str | None:
        return field_id(field)

    def wanted_key(self, wanted: NestedField) -> int | str:
        return wanted.field_id

    def validate(self, fields: Sequence[pa.Field], wanted: Sequence[NestedField], path: str) -> None:
        """Fields that nobody wants were dropped from the schema."""

    def validate_child(self, field: pa.Field, wanted: NestedField, path: str) -> None:
        found = field_id(field)
        if found is None:
            raise UnsupportedError(
                f"column {path!r} has no field id in a data file; rewrite the file with one", column=path
            )
        if found != wanted.field_id:
            raise self.error(path, f"has field id {found} in a data file; the schema says {wanted.field_id}")

    def constant(self, wanted: NestedField, path: str) -> Any:
        if wanted.field_id in self.constants:
            return self.constants[wanted.field_id]
        if wanted.initial_default is not None:
            raise UnsupportedError(f"column {path!r} has an initial default, a feature of format v3", column=path)
        return None

    def error(self, path: str, problem: str) -> IcekeepError:
        return InvalidTableError(f"column {path!r} {problem}", column=path, section="Column Projection")


class _ByName(msgspec.Struct, frozen=True):
    def key(self, field: pa.Field) -> int | str | None:
        return str(field.name)

    def wanted_key(self, wanted: NestedField) -> int | str:
        return wanted.name

    def validate(self, fields: Sequence[pa.Field], wanted: Sequence[NestedField], path: str) -> None:
        known = {field.name for field in wanted}
        seen: set[str] = set()
        for field in fields:
            if field.name not in known:
                raise self.error(
                    _join(path, field.name), f"is not in the schema; its columns are {', '.join(sorted(known))}"
                )
            if field.name in seen:
                raise self.error(_join(path, field.name), "is there twice in the data")
            seen.add(field.name)

    def validate_child(self, field: pa.Field, wanted: NestedField, path: str) -> None:
        """Every writer names the inner fields of lists and maps as it likes."""

    def constant(self, wanted: NestedField, path: str) -> Any:
        return None

    def error(self, path: str, problem: str) -> IcekeepError:
        return UsageError(f"column {path!r} {problem}", column=path)


def _validate_ids(file_schema: pa.Schema) -> None:
    if len(file_schema) and all(field_id(field) is None for field in file_schema):
        raise UnsupportedError(
            "a data file has no field ids; name mappings are not supported yet, rewrite the file with ids"
        )


def _select(data: pa.Table, schema: Schema, target: pa.Schema, matching: _Matching) -> pa.Table:
    sources = list(data.schema)
    positions = {matching.key(source): position for position, source in enumerate(sources)}
    fields, columns = [], []
    for wanted, target_field in zip(schema.fields, target, strict=True):
        position = positions.get(matching.wanted_key(wanted))
        if position is None:
            column = _absent(wanted, wanted.name, data.num_rows, matching)
        else:
            column, target_field = _column(data.column(position), sources[position], wanted, target_field, matching)
            _validate_no_nulls(column.null_count, wanted, wanted.name, matching)
        columns.append(column)
        fields.append(target_field)
    return type(data).from_arrays(columns, schema=pa.schema(fields))


def _column(
    column: Any, source: pa.Field, wanted: NestedField, target: pa.Field, matching: _Matching
) -> tuple[Any, pa.Field]:
    """A top-level column in its target type, and the field that describes it."""
    if isinstance(matching, _ByFieldId):
        if _is_same(source.type, target.type):
            return column, target
        if wanted.type == STRING and source.type == KEPT_DICTIONARY:
            return column, target.with_type(KEPT_DICTIONARY)
    if isinstance(column, pa.ChunkedArray):
        chunks = [_convert(chunk, wanted.type, wanted.name, matching) for chunk in column.chunks]
        return pa.chunked_array(chunks, type=target.type), target
    return _convert(column, wanted.type, wanted.name, matching), target


def _convert(array: pa.Array, type_: Type, path: str, matching: _Matching) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), arrow_type(type_))
    match type_:
        case StructType():
            return _struct(array, type_, path, matching)
        case ListType():
            return _list(array, type_, path, matching)
        case MapType():
            return _map(array, type_, path, matching)
    return _primitive(array, type_, path, matching)


def _primitive(array: pa.Array, type_: Type, path: str, matching: _Matching) -> pa.Array:
    target = arrow_type(type_)
    if array.type == target:
        return array
    if not _promotes(array.type, target):
        raise matching.error(path, f"holds '{array.type}', which cannot become '{type_}'")
    try:
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise matching.error(path, f"has a value that is not exact as '{type_}': {error}") from error


def _struct(array: pa.Array, type_: StructType, path: str, matching: _Matching) -> pa.Array:
    if not pa.types.is_struct(array.type):
        raise matching.error(path, f"holds '{array.type}', which cannot become '{type_}'")
    sources = list(array.type)
    matching.validate(sources, type_.fields, path)
    positions = {matching.key(source): position for position, source in enumerate(sources)}
    children = []
    for wanted in type_.fields:
        child_path = _join(path, wanted.name)
        position = positions.get(matching.wanted_key(wanted))
        if position is None:
            children.append(_absent(wanted, child_path, len(array), matching))
            continue
        child = _convert(array.field(position), wanted.type, child_path, matching)
        if wanted.required and child.null_count:
            nulls = pc.and_(array.is_valid(), child.is_null())
            _validate_no_nulls(pc.sum(nulls).as_py() or 0, wanted, child_path, matching)
        children.append(child)
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=[arrow_field(f) for f in type_.fields], mask=mask)


def _list(array: pa.Array, type_: ListType, path: str, matching: _Matching) -> pa.Array:
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_kind(array.type) for is_kind in kinds):
        raise matching.error(path, f"holds '{array.type}', which cannot become '{type_}'")
    lists = _compact(array.cast(pa.list_(array.type.value_field)))
    (wanted,) = child_fields(type_)
    elements = _child(_elements(lists), array.type.value_field, wanted, path, matching)
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(_offsets(lists), elements, type=arrow_type(type_), mask=mask)


def _map(array: pa.Array, type_: MapType, path: str, matching: _Matching) -> pa.Array:
    if not pa.types.is_map(array.type):
        raise matching.error(path, f"holds '{array.type}', which cannot become '{type_}'")
    # Arrow's list functions do not take maps, and a map is a list of its entries.
    entry = pa.struct([array.type.key_field, array.type.item_field])
    lists = _compact(array.cast(pa.list_(pa.field("entries", entry, nullable=False))))
    entries = _elements(lists)
    key, value = child_fields(type_)
    keys = _child(entries.field(0), array.type.key_field, key, path, matching)
    values = _child(entries.field(1), array.type.item_field, value, path, matching)
    mask = array.is_null() if array.null_count else None
    return pa.MapArray.from_arrays(_offsets(lists), keys, values, type=arrow_type(type_), mask=mask)


def _child(array: pa.Array, source: pa.Field, wanted: NestedField, path: str, matching: _Matching) -> pa.Array:
    """List elements, map keys or map values in their target type."""
    child_path = _join(path, wanted.name)
    matching.validate_child(source, wanted, child_path)
    converted = _convert(array, wanted.type, child_path, matching)
    _validate_no_nulls(converted.null_count, wanted, child_path, matching)
    return converted


def _compact(lists: pa.Array) -> pa.Array:
    """The lists without elements that only null lists point at: those are no data, and may be anything."""
    visible_count = pc.sum(pc.list_value_length(lists)).as_py() or 0
    return lists if visible_count == len(_elements(lists)) else lists.take(pa.array(range(len(lists)), pa.int64()))


def _elements(lists: pa.Array) -> pa.Array:
    """What lies between the first and the last offset; `flatten` fails on UUIDs."""
    start, end = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    return lists.values.slice(start, end - start)


def _offsets(lists: pa.Array) -> pa.Array:
    """Offsets of lists into their `_elements`."""
    # A slice of offsets cannot be combined with a mask of nulls; a sum is a new array.
    return pc.subtract(lists.offsets, lists.offsets[0])


def _absent(wanted: NestedField, path: str, length: int, matching: _Matching) -> pa.Array:
    type_ = arrow_field(wanted).type
    value = matching.constant(wanted, path)
    if value is not None:
        return pa.repeat(pa.scalar(value, type_), length)
    if wanted.required:
        raise matching.error(path, "is required and missing from the data")
    return pa.nulls(length, type_)


def _validate_no_nulls(null_count: int, wanted: NestedField, path: str, matching: _Matching) -> None:
    if wanted.required and null_count:
        raise matching.error(path, f"is required and has {null_count} nulls")


def _is_same(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether types are equal with the ids and nullability below them; what a map names its entries does not matter."""
    if pa.types.is_map(source) and pa.types.is_map(target):
        pairs = [(source.key_field, target.key_field), (source.item_field, target.item_field)]
    elif source.num_fields and source.id == target.id and source.num_fields == target.num_fields:
        pairs = [(source.field(i), target.field(i)) for i in range(source.num_fields)]
    else:
        return source.equals(target, check_metadata=True)
    return all(
        s.name == t.name and s.nullable == t.nullable and field_id(s) == field_id(t) and _is_same(s.type, t.type)
        for s, t in pairs
    )


def _promotes(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a type may become another; a cast that finds a value which is not exact still fails later."""
    if pa.types.is_integer(source) and pa.types.is_signed_integer(target):
        return source.bit_width < target.bit_width
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        return source.scale == target.scale and source.precision <= target.precision
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    if pa.types.is_time(source) and pa.types.is_time(target):
        return True
    return (source, target) in _EXACT


_EXACT = {
    (pa.float32(), pa.float64()),
    (pa.large_string(), pa.string()),
    (pa.string_view(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.binary_view(), pa.binary()),
    (pa.binary(16), pa.uuid()),
}


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name
