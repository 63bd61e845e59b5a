"""Schemas between Iceberg and Arrow (spec, Appendix A "Parquet").

Going out, every Arrow field at every level carries its field id, so that pyarrow writes Parquet files that any Iceberg
reader resolves by id. Coming in, an Arrow schema without ids becomes the schema of a new table. Values are not touched
here: `arrow.projection` moves them. The formats that are not Parquet derive their own schemas from these.

Arrow data as other engines take it: without extension types and what fields say beyond their type, and back again.

Single fields of rows, by field id, however deep in structs they lie: what to read for them, and their values.

Arrow's nested arrays taken apart and put together again, slices and null lists included.

A truth a row: what filters, deletes and hashes say of the rows of a table.

Arrow arrays of values in the form of `spec.values`: partition values, default values, facts about a file.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, TypeAlias
from uuid import UUID as UUID_of_uuid

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError, UsageError
from icekeep.spec.schema import Schema, assign_fresh_ids
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    OPAQUE,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UNKNOWN,
    UUID,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    child_fields,
    decimal,
    fixed,
)

FIELD_ID_KEY = b"PARQUET:field_id"
"""Where pyarrow keeps the field id of a Parquet column, in the metadata of the Arrow field."""

_ARROW_TYPES: dict[PrimitiveType, pa.DataType] = {
    BOOLEAN: pa.bool_(),
    INT: pa.int32(),
    LONG: pa.int64(),
    FLOAT: pa.float32(),
    DOUBLE: pa.float64(),
    DATE: pa.date32(),
    TIME: pa.time64("us"),
    TIMESTAMP: pa.timestamp("us"),
    TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    TIMESTAMP_NS: pa.timestamp("ns"),
    TIMESTAMPTZ_NS: pa.timestamp("ns", "UTC"),
    STRING: pa.string(),
    OPAQUE: pa.string(),
    UUID: pa.uuid(),
    BINARY: pa.binary(),
    UNKNOWN: pa.null(),
}

_ICEBERG_TYPES: dict[pa.DataType, PrimitiveType] = {
    pa.bool_(): BOOLEAN,
    pa.int8(): INT,
    pa.int16(): INT,
    pa.int32(): INT,
    pa.uint8(): INT,
    pa.uint16(): INT,
    pa.int64(): LONG,
    pa.uint32(): LONG,
    pa.float32(): FLOAT,
    pa.float64(): DOUBLE,
    pa.date32(): DATE,
    pa.string(): STRING,
    pa.large_string(): STRING,
    pa.string_view(): STRING,
    pa.binary(): BINARY,
    pa.large_binary(): BINARY,
    pa.binary_view(): BINARY,
    pa.uuid(): UUID,
}


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema that a table's rows are read with, field ids in the metadata of each field.

    Raises:
        UnsupportedError: a column has a type whose values we cannot interpret; its full name is in the message.
    """
    return pa.schema([arrow_field(field) for field in schema.fields])


def stored_schema(schema: Schema) -> Schema:
    """The columns of a schema that data files hold: all but those of type `unknown` (spec, Appendix A).

    Raises:
        UnsupportedError: what is left out leaves nothing, a struct without fields, or a list or map without values,
            which files cannot hold.
    """
    fields = _stored_fields(schema.fields, "")
    if not fields:
        raise UnsupportedError("the table has no columns that files can hold; add one")
    return msgspec.structs.replace(schema, fields=fields)


def arrow_field(field: NestedField) -> pa.Field:
    """The Arrow field of a column with everything below it; raises as `arrow_schema` does."""
    return _field(field.field_id, field.name, field.type, field.required, field.name)


def arrow_type(type_: Type) -> pa.DataType:
    """The Arrow type of an Iceberg type, ids at every level below it; raises as `arrow_schema` does."""
    return _type(type_, "")


def field_id(field: pa.Field) -> int | None:
    """The field id that an Arrow field carries, None where it carries none."""
    text = (field.metadata or {}).get(FIELD_ID_KEY)
    return int(text) if text is not None else None


def iceberg_schema(schema: pa.Schema) -> Schema:
    """The schema of a new table that can hold this data: fresh field ids, counted from 1.

    Whole numbers of up to 16 bits become `int`, `uint32` becomes `long`, times and timestamps of any unit become
    microseconds (format v2 has no others), dictionaries become what they encode. A field is required where Arrow says
    that it is not nullable.

    Raises:
        UnsupportedError: a column has a type that Iceberg v2 has no equal for; its full name is in the message.
        UsageError: two columns of one level have the same name.
    """
    counter = count(1)
    return assign_fresh_ids(Schema(fields=_nested_fields(list(schema), "", lambda: next(counter))))


def _stored_fields(fields: tuple[NestedField, ...], path: str) -> tuple[NestedField, ...]:
    return tuple(
        msgspec.structs.replace(field, type=_stored_type(field.type, _join(path, field.name)))
        for field in fields
        if field.type != UNKNOWN
    )


def _stored_type(type_: Type, path: str) -> Type:
    if isinstance(type_, ListType | MapType) and any(child.type == UNKNOWN for child in child_fields(type_)):
        raise UnsupportedError(f"column {path!r} has values of type 'unknown', which files cannot hold", column=path)
    match type_:
        case StructType():
            fields = _stored_fields(type_.fields, path)
            if not fields:
                raise UnsupportedError(f"column {path!r} is a struct without fields that files can hold", column=path)
            return msgspec.structs.replace(type_, fields=fields)
        case ListType():
            return msgspec.structs.replace(type_, element=_stored_type(type_.element, _join(path, "element")))
        case MapType():
            key, value = _stored_type(type_.key, _join(path, "key")), _stored_type(type_.value, _join(path, "value"))
            return msgspec.structs.replace(type_, key=key, value=value)
    return type_


def _field(id_: int, name: str, type_: Type, required: bool, path: str) -> pa.Field:
    metadata = {FIELD_ID_KEY: str(id_).encode()}
    return pa.field(name, _type(type_, path), nullable=not required, metadata=metadata)


def _type(type_: Type, path: str) -> pa.DataType:
    match type_:
        case DecimalType():
            return pa.decimal128(type_.precision, type_.scale)
        case FixedType():
            return pa.binary(type_.length)
        case StructType(fields=fields):
            return pa.struct([_field(f.field_id, f.name, f.type, f.required, _join(path, f.name)) for f in fields])
        case ListType():
            element = _join(path, "element")
            return pa.list_(_field(type_.element_id, "element", type_.element, type_.element_required, element))
        case MapType():
            return pa.map_(
                _field(type_.key_id, "key", type_.key, True, _join(path, "key")),
                _field(type_.value_id, "value", type_.value, type_.value_required, _join(path, "value")),
            )
        case PrimitiveType() if type_ in _ARROW_TYPES:
            return _ARROW_TYPES[type_]
    raise UnsupportedError(f"column {path!r} has type '{type_}', whose values icekeep cannot interpret", column=path)


def _nested_fields(fields: list[pa.Field], parent: str, next_id: Callable[[], int]) -> tuple[NestedField, ...]:
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"column {_join(parent, name)!r} is there twice; rename one of the two")
    return tuple(
        NestedField(
            field_id=next_id(),
            name=field.name,
            type=_iceberg_type(field.type, _join(parent, field.name), next_id),
            required=not field.nullable,
        )
        for field in fields
    )


def _iceberg_type(type_: pa.DataType, path: str, next_id: Callable[[], int]) -> Type:
    if pa.types.is_dictionary(type_):
        return _iceberg_type(type_.value_type, path, next_id)
    if pa.types.is_struct(type_) and type_.num_fields:
        return StructType(_nested_fields(list(type_), path, next_id))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return ListType(
            element_id=next_id(),
            element=_iceberg_type(type_.value_type, _join(path, "element"), next_id),
            element_required=not type_.value_field.nullable,
        )
    if pa.types.is_map(type_):
        return MapType(
            key_id=next_id(),
            key=_iceberg_type(type_.key_type, _join(path, "key"), next_id),
            value_id=next_id(),
            value=_iceberg_type(type_.item_type, _join(path, "value"), next_id),
            value_required=not type_.item_field.nullable,
        )
    primitive = _ICEBERG_TYPES.get(type_) or _parametrised(type_)
    if primitive is None:
        raise UnsupportedError(
            f"column {path!r} has the Arrow type '{type_}', which Iceberg has no type for", column=path
        )
    return primitive


def _parametrised(type_: pa.DataType) -> PrimitiveType | None:
    if pa.types.is_timestamp(type_):
        return TIMESTAMP if type_.tz is None else TIMESTAMPTZ
    if pa.types.is_time(type_):
        return TIME
    if pa.types.is_fixed_size_binary(type_):
        return fixed(type_.byte_width)
    if pa.types.is_decimal(type_) and type_.precision <= 38 and 0 <= type_.scale <= type_.precision:
        return decimal(type_.precision, type_.scale)
    return None


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name


def with_leaves(type_: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type with everything in it that is not nested replaced; fields are numbered, may be null and have no metadata."""
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f"f{n}", with_leaves(field.type, leaf)) for n, field in enumerate(type_)])
    if pa.types.is_list(type_):
        return pa.list_(pa.field("element", with_leaves(type_.value_type, leaf)))
    if pa.types.is_map(type_):
        return pa.map_(with_leaves(type_.key_type, leaf), with_leaves(type_.item_type, leaf))
    return leaf(type_)


def plain_type(type_: pa.DataType) -> pa.DataType:
    """A type without extension types, of the same layout in memory."""
    return with_leaves(type_, _storage_type)


def described_as(data: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same memory, described by another schema whose types have the same layout; nothing is copied.

    Other engines may hand back texts, bytes and lists in Arrow's large or view layouts, as their settings say: such columns are
    converted first.

    Raises:
        IcekeepBug: a column has another layout than its type in the schema, or there are more or fewer columns.
    """
    if data.num_columns != len(schema):
        raise IcekeepBug(f"{data.num_columns} Arrow columns cannot be described as {len(schema)}")
    columns = [_laid_out(column, field) for column, field in zip(data.columns, schema, strict=True)]
    if any(column is not given for column, given in zip(columns, data.columns, strict=True)):
        data = pa.RecordBatch.from_arrays(columns, names=schema.names)
    _, array = data.__arrow_c_array__()
    importing: Any = pa.RecordBatch
    return importing._import_from_c_capsule(schema.__arrow_c_schema__(), array)


def _laid_out(column: pa.Array, field: pa.Field) -> pa.Array:
    """The values of a column in the layout of a field."""
    layout = with_leaves(field.type, _layout)
    if with_leaves(column.type, _layout) == layout:
        return column
    usual = _in_usual_layout(column.type)
    if with_leaves(usual, _layout) == layout:
        try:
            return column.cast(usual)
        except pa.ArrowException as error:
            raise IcekeepBug(f"an Arrow column of {column.type} cannot be converted to {usual}: {error}") from error
    raise IcekeepBug(
        f"an Arrow column of {column.type} cannot be described as {field.type}: its layout in memory differs"
    )


def _layout(type_: pa.DataType) -> pa.DataType:
    """One type for all that have the same buffers: numbers, dates and times are told apart by their width alone."""
    type_ = _storage_type(type_)
    if pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_temporal(type_):
        return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(type_.bit_width, type_)
    return type_


def _in_usual_layout(type_: pa.DataType) -> pa.DataType:
    """A type with the 32-bit offsets that we use in place of 64-bit offsets and views."""
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_in_usual_layout(field.type)) for field in type_])
    if pa.types.is_map(type_):
        key, item = (field.with_type(_in_usual_layout(field.type)) for field in (type_.key_field, type_.item_field))
        return pa.map_(key, item)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or _is_list_view(type_):
        return pa.list_(type_.value_field.with_type(_in_usual_layout(type_.value_type)))
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_):
        return pa.binary()
    return type_


def _is_list_view(type_: pa.DataType) -> bool:
    return pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_)


def _storage_type(type_: pa.DataType) -> pa.DataType:
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


Path = tuple[NestedField, ...]
"""A column and the fields below it down to a leaf."""


def leaf_schema(field_ids: Iterable[int], schemas: Sequence[Schema]) -> Schema:
    """The columns to read for some leaves: structs cut down to these, and everything optional.

    Whatever a schema requires, what is read for a comparison may be absent or null: that is a value like any other here.

    Args:
        field_ids: of primitive fields that lie in no list or map.
        schemas: the first that has a field says its type.

    Raises:
        InvalidTableError: no schema has such a field.
    """
    return Schema(fields=_merged(leaf_path(id_, schemas) for id_ in field_ids))


def leaf_path(field_id: int, schemas: Sequence[Schema]) -> Path:
    """The fields from the column down to the leaf with an id, in the first schema that has it.

    Raises:
        InvalidTableError: no schema has it, or it is no primitive, or lies in a list or a map.
    """
    for schema in schemas:
        if field_id not in schema.fields_by_id:
            continue
        path = next((p for p in _leaves(schema.as_struct()) if p[-1].field_id == field_id), None)
        if path is not None:
            return path
        raise InvalidTableError(
            f"column {schema.names_by_id[field_id]!r} (id {field_id}) is no single value of a row: it is nested, or lies in"
            " a list or a map"
        )
    raise InvalidTableError(f"no schema of the table has a column with id {field_id}")


def leaf_values(table: pa.Table, schema: Schema, field_id: int) -> pa.ChunkedArray:
    """The values of a leaf, null where a struct around it is null.

    Args:
        table: data in the columns of `schema`.
        schema: as `leaf_schema` makes it.
        field_id: of the leaf.
    """
    fields: Sequence[NestedField] = schema.fields
    positions = []
    for field in leaf_path(field_id, [schema]):
        positions.append(next(n for n, other in enumerate(fields) if other.field_id == field.field_id))
        fields = field.type.fields if isinstance(field.type, StructType) else ()
    column: Any = table.column(positions[0])
    return pc.struct_field(column, positions[1:]) if len(positions) > 1 else column


def _leaves(struct: StructType) -> Iterator[Path]:
    for field in struct.fields:
        if isinstance(field.type, StructType):
            yield from ((field, *below) for below in _leaves(field.type))
        elif isinstance(field.type, PrimitiveType):
            yield (field,)


def _merged(paths: Iterable[Path]) -> tuple[NestedField, ...]:
    """Paths as a tree: one field for all paths that begin with it."""
    by_id: dict[int, tuple[NestedField, list[Path]]] = {}
    for field, *below in paths:
        by_id.setdefault(field.field_id, (field, []))[1].append(tuple(below))
    return tuple(
        msgspec.structs.replace(
            field,
            required=False,
            type=StructType(_merged(below)) if isinstance(field.type, StructType) else field.type,
        )
        for field, below in by_id.values()
    )


def offsets(lists: pa.Array) -> pa.Array:
    """Where each list or map begins and ends among its `elements`, counted from the first of them."""
    # A slice of offsets cannot be combined with a mask of nulls; a difference is a new array.
    return pc.subtract(lists.offsets, lists.offsets[0])


def elements(lists: pa.Array, values: pa.Array | None = None) -> pa.Array:
    """What lies between the first and the last offset of lists; `flatten` fails on UUIDs.

    Args:
        lists: lists, or maps.
        values: of maps their `keys` or their `items`.
    """
    values = lists.values if values is None else values
    start, end = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    return values.slice(start, end - start)


def null_mask(array: pa.Array) -> pa.Array | None:
    """Which values are null, as `from_arrays` takes it."""
    return array.is_null() if array.null_count else None


def sink_nulls(column: Any, type_: pa.DataType) -> Any:
    """A nested column in which whatever lies below a null struct is null, and no level is a slice.

    pyarrow's ORC writer loses rows of structs in structs otherwise: it takes the values below a null for those of the next
    row, and the null of one row for another's in a slice.

    Args:
        column: an array, or several.
        type_: its type, with all fields nullable but the keys of maps.
    """
    if not type_.num_fields:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([sink_nulls(chunk, type_) for chunk in column.chunks], type_)
    if pa.types.is_struct(type_):
        children = [sink_nulls(_copied(c), f.type) for c, f in zip(column.flatten(), type_, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=null_mask(column))
    if pa.types.is_map(type_):
        keys = sink_nulls(_copied(elements(column, column.keys)), type_.key_type)
        items = sink_nulls(_copied(elements(column, column.items)), type_.item_type)
        return pa.MapArray.from_arrays(offsets(column), keys, items, type=type_, mask=null_mask(column))
    below = sink_nulls(_copied(elements(column)), type_.value_type)
    return pa.ListArray.from_arrays(offsets(column), below, type=type_, mask=null_mask(column))


def _copied(array: pa.Array) -> pa.Array:
    """The same values, not as a slice of others."""
    return array.take(pa.array(np.arange(len(array)))) if array.offset else array


Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]
"""A truth a row."""

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


def where_true(truths: Column) -> Mask:
    """A mask of truths, false where they are null."""
    return pc.fill_null(truths, False).to_numpy(zero_copy_only=False)


def constant_array(type_: Type, value: Any, length: int) -> pa.Array:
    """One value as often as asked for; a struct is a dict by field id, as in `spec.values`."""
    target = arrow_type(type_)
    if value is None:
        return pa.nulls(length, target) if not isinstance(type_, StructType) else _repeated([None], target, length)
    if isinstance(type_, StructType):
        children = [constant_array(f.type, value.get(f.field_id), length) for f in type_.fields]
        if not children:
            return pa.array([{}] * length, target)
        return pa.StructArray.from_arrays(children, fields=[arrow_field(f) for f in type_.fields])
    if isinstance(type_, ListType | MapType):
        return _repeated([_plain(type_, value)], target, length)
    return pa.repeat(pa.scalar(value, target), length)


def without_nulls(array: pa.Array) -> pa.Array:
    """The array with anything that is a value where it has nulls: for a required field below a struct that is null.

    pyarrow writes no file with nulls in a required field, though no reader would ever see these.
    """
    # What lies below a null struct is a value to Arrow's builders.
    below = pa.array([None], pa.struct([pa.field("", _literals_storage_type(array.type), nullable=False)]))
    indices = pc.if_else(array.is_valid(), pa.array(np.arange(len(array))), len(array))
    return pa.concat_arrays([array, below.field(0).cast(array.type)]).take(indices)


def _repeated(values: list[Any], type_: pa.DataType, length: int) -> pa.Array:
    array = pa.array(values, _literals_storage_type(type_)).cast(type_)
    return array.take(pa.array(np.zeros(length, dtype=np.int64)))


def _plain(type_: Type, value: Any) -> Any:
    """A value as Arrow takes it: structs by name, bytes for a UUID."""
    match type_:
        case _ if value is None:
            return None
        case StructType():
            return {f.name: _plain(f.type, value.get(f.field_id)) for f in type_.fields}
        case ListType():
            return [_plain(type_.element, item) for item in value]
        case MapType():
            return [(_plain(type_.key, key), _plain(type_.value, item)) for key, item in value]
    return value.bytes if isinstance(value, UUID_of_uuid) else value


def _literals_storage_type(type_: pa.DataType) -> pa.DataType:
    """The type with 16 bytes for a UUID at every level: Arrow makes no array of the others from Python's values."""
    if type_ == pa.uuid():
        return pa.binary(16)
    if pa.types.is_struct(type_):
        return pa.struct([f.with_type(_literals_storage_type(f.type)) for f in type_])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_literals_storage_type(type_.value_type)))
    if pa.types.is_map(type_):
        item = type_.item_field.with_type(_literals_storage_type(type_.item_type))
        return pa.map_(type_.key_field.with_type(_literals_storage_type(type_.key_type)), item)
    return type_
