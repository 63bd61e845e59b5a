"""Schemas between Iceberg and Arrow (spec, Appendix A "Parquet").

Going out, every Arrow field at every level carries its field id, so that pyarrow writes Parquet files that any Iceberg
reader resolves by id. Coming in, an Arrow schema without ids becomes the schema of a new table. Values are not touched
here: `arrow.projection` moves them. The formats that are not Parquet derive their own schemas from these.
"""

from collections.abc import Callable
from itertools import count

import msgspec
import pyarrow as pa

from icekeep.errors import UnsupportedError, UsageError
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
