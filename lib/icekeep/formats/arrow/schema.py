"""Schemas between Iceberg and Arrow (spec, Appendix A "Parquet"), and the field ids in them.

Whatever a file format calls it (`PARQUET:field_id`, `iceberg.id`, `element-id`), the id of a field is in the metadata of its
Arrow field under `FIELD_ID_KEY`, at every level: pyarrow writes it to Parquet, and `arrow.projection` matches columns by it. ORC
and Avro derive their own schemas from these.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from icekeep.errors import UnsupportedError, UsageError
from icekeep.spec.schema import NameMapping, Schema, assign_fresh_ids
from icekeep.spec.types import (
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    decimal,
    fixed,
    with_child_fields,
)
from icekeep.spec.types import child_fields as iceberg_children

FIELD_ID_KEY = b"PARQUET:field_id"
"""Where pyarrow keeps the field id of a Parquet column, in the metadata of the Arrow field."""

Metadata = Mapping[bytes, bytes]

_ARROW_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "string": pa.string(),
    "uuid": pa.uuid(),
    "binary": pa.binary(),
}
_ICEBERG_TYPES: dict[pa.DataType, str] = {
    **{arrow: name for name, arrow in _ARROW_TYPES.items()},
    **dict.fromkeys((pa.int8(), pa.int16(), pa.uint8(), pa.uint16()), "int"),
    pa.uint32(): "long",
    **dict.fromkeys((pa.large_string(), pa.string_view()), "string"),
    **dict.fromkeys((pa.large_binary(), pa.binary_view()), "binary"),
}
_ARROW_TYPES |= {
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", "UTC"),
    "opaque": pa.string(),
    "unknown": pa.null(),
}


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of a table's rows, field ids in the metadata of each field.

    Raises `UnsupportedError` for a type whose values we cannot interpret, with the column's full name.
    """
    return pa.schema([arrow_field(field) for field in schema.fields])


def arrow_field(field: NestedField, parent: str = "") -> pa.Field:
    """The Arrow field of a column; `parent` begins its full name in errors."""
    type_ = arrow_type(field.type, join_names(parent, field.name))
    return pa.field(field.name, type_, not field.required, {FIELD_ID_KEY: str(field.field_id).encode()})


def arrow_type(type_: Type, path: str = "") -> pa.DataType:
    """The Arrow type of an Iceberg type, ids at every level below it; `path` is its column's name in errors."""
    children = [arrow_field(child, path) for child in iceberg_children(type_)]
    match type_:
        case StructType():
            return pa.struct(children)
        case ListType():
            return pa.list_(children[0])
        case MapType():
            return pa.map_(*children)
        case DecimalType():
            return pa.decimal128(type_.precision, type_.scale)
        case FixedType():
            return pa.binary(type_.length)
    if isinstance(type_, PrimitiveType) and type_.name in _ARROW_TYPES:
        return _ARROW_TYPES[type_.name]
    raise UnsupportedError(f"column {path!r} has type '{type_}', whose values icekeep cannot interpret", column=path)


def stored_schema(schema: Schema) -> Schema:
    """The columns of a schema that data files hold: all but those of type `unknown` (spec, Appendix A).

    Raises `UnsupportedError` where this leaves no column, a struct without fields, or a list or map without values.
    """
    fields = _stored_fields(schema.fields, "")
    if not fields:
        raise UnsupportedError("the table has no columns that files can hold; add one")
    return msgspec.structs.replace(schema, fields=fields)


def _stored_fields(fields: tuple[NestedField, ...], parent: str) -> tuple[NestedField, ...]:
    stored = []
    for field in fields:
        type_, path = field.type, join_names(parent, field.name)
        if type_ == UNKNOWN:
            continue
        children = iceberg_children(type_)
        if isinstance(type_, ListType | MapType) and any(child.type == UNKNOWN for child in children):
            raise UnsupportedError(
                f"column {path!r} has values of type 'unknown', which files cannot hold", column=path
            )
        below = _stored_fields(children, path)
        if isinstance(type_, StructType) and not below:
            raise UnsupportedError(f"column {path!r} is a struct without fields that files can hold", column=path)
        stored.append(msgspec.structs.replace(field, type=with_child_fields(type_, below)))
    return tuple(stored)


def iceberg_schema(schema: pa.Schema) -> Schema:
    """The schema of a new table that can hold this data: fresh field ids, counted from 1.

    Whole numbers of up to 16 bits become `int`, `uint32` becomes `long`, times and timestamps of any unit become
    microseconds (format v2 has no others), dictionaries become what they encode. A field is required where Arrow says
    that it is not nullable. Raises `UnsupportedError` if Iceberg v2 has no type for a column, `UsageError` if two columns of one
    level have the same name.
    """
    return assign_fresh_ids(Schema(fields=_iceberg_fields(list(schema), "")))


def _iceberg_fields(fields: Sequence[pa.Field], parent: str) -> tuple[NestedField, ...]:
    """The fields, all with id 0."""
    names: set[str] = set()
    converted = []
    for field in fields:
        path = join_names(parent, field.name)
        if field.name in names:
            raise UsageError(f"column {path!r} is there twice; rename one of the two")
        names.add(field.name)
        type_ = _iceberg_type(field.type, path)
        converted.append(NestedField(field_id=0, name=field.name, type=type_, required=not field.nullable))
    return tuple(converted)


def _iceberg_type(type_: pa.DataType, path: str) -> Type:
    if pa.types.is_dictionary(type_):
        return _iceberg_type(type_.value_type, path)
    below = _iceberg_fields([field.with_name(name) for name, field in child_fields(type_)], path)
    if pa.types.is_struct(type_) and below:
        return StructType(below)
    if is_list(type_):
        return ListType(element_id=0, element=below[0].type, element_required=below[0].required)
    if pa.types.is_map(type_):
        key, value = below
        return MapType(key_id=0, key=key.type, value_id=0, value=value.type, value_required=value.required)
    if type_ in _ICEBERG_TYPES:
        return PrimitiveType(_ICEBERG_TYPES[type_])
    if pa.types.is_timestamp(type_):
        return TIMESTAMP if type_.tz is None else TIMESTAMPTZ
    if pa.types.is_time(type_):
        return TIME
    if pa.types.is_fixed_size_binary(type_):
        return fixed(type_.byte_width)
    if pa.types.is_decimal(type_) and type_.precision <= 38 and 0 <= type_.scale <= type_.precision:
        return decimal(type_.precision, type_.scale)
    raise UnsupportedError(f"column {path!r} has the Arrow type '{type_}', which Iceberg has no type for", column=path)


def field_id(field: pa.Field) -> int | None:
    """The field id of an Arrow field, None where it has none."""
    text = (field.metadata or {}).get(FIELD_ID_KEY)
    return int(text) if text is not None else None


def has_ids(schema: pa.Schema) -> bool:
    """Whether any field at any level has an id."""
    return any(field_id(field) is not None for field in _all_fields(schema))


def all_have_ids(schema: pa.Schema) -> bool:
    """Whether each field at each level has one."""
    return all(field_id(field) is not None for field in _all_fields(schema))


def field_ids(schema: pa.Schema) -> set[int]:
    """At every level."""
    return {id_ for id_ in map(field_id, _all_fields(schema)) if id_ is not None}


def _all_fields(schema: pa.Schema) -> Iterator[pa.Field]:
    level = list(schema)
    while level:
        yield from level
        level = [child for field in level for _, child in child_fields(field.type)]


def with_mapped_ids(schema: pa.Schema, mapping: NameMapping, without: Collection[int] = ()) -> pa.Schema:
    """The schema of a file with the ids that a name mapping gives to fields without one (spec, "Column Projection").

    An id that the file has already is not given again. Below a field with an id, the names are those of the mapping for that id,
    whatever the field is called; in lists and maps they are `element`, `key` and `value`, whatever the file's are. A field that
    the mapping does not name gets no id. `without` are ids that no field shall get.
    """
    taken = {*field_ids(schema), *without}
    below: dict[tuple[str, ...], NameMapping] = {(): mapping}

    def mapped(field: pa.Field, path: tuple[str, ...]) -> Metadata:
        names, id_, metadata = below[path[:-1]], field_id(field), field.metadata or {}
        entry = next((one for one in names if (path[-1] in one.names if id_ is None else one.field_id == id_)), None)
        below[path] = () if entry is None else entry.fields
        if id_ is not None or entry is None or entry.field_id is None or entry.field_id in taken:
            return metadata
        return {**metadata, FIELD_ID_KEY: str(entry.field_id).encode()}

    return map_fields(schema, mapped)


def map_fields(
    schema: pa.Schema,
    metadata: Callable[[pa.Field, tuple[str, ...]], Metadata | None],
    *,
    nullable: bool = False,
    leaf_type: Callable[[pa.DataType], pa.DataType] | None = None,
) -> pa.Schema:
    """The schema with other metadata for each field, parents before their children.

    `metadata` makes that of a field from the field and its path, with `element`, `key` and `value` in lists and maps; with
    `nullable` all fields are, but for the keys of maps; `leaf_type` replaces each type that has no fields below it.
    """

    def mapped(field: pa.Field, path: tuple[str, ...]) -> pa.Field:
        field_metadata = metadata(field, path)
        children = [mapped(child, (*path, name)) for name, child in child_fields(field.type)]
        if pa.types.is_map(field.type):
            children[0] = children[0].with_nullable(False)
        type_ = with_children(field.type, children) if children or leaf_type is None else leaf_type(field.type)
        return pa.field(field.name, type_, nullable or field.nullable, field_metadata)

    return pa.schema([mapped(field, (field.name,)) for field in schema])


def child_fields(type_: pa.DataType) -> list[tuple[str, pa.Field]]:
    """The fields directly below an Arrow type, with Iceberg's names for those in lists and maps."""
    if pa.types.is_struct(type_):
        return [(field.name, field) for field in type_]
    if is_list(type_):
        return [("element", type_.value_field)]
    if pa.types.is_map(type_):
        return [("key", type_.key_field), ("value", type_.item_field)]
    return []


def is_list(type_: pa.DataType) -> bool:
    """Whether values are lists, of any of Arrow's kinds that data files are read as."""
    return pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)


def with_children(type_: pa.DataType, children: list[pa.Field]) -> pa.DataType:
    """A type with other fields directly below it, in the order of `child_fields`."""
    if pa.types.is_struct(type_):
        return pa.struct(children)
    if pa.types.is_map(type_):
        return pa.map_(*children)
    if pa.types.is_large_list(type_):
        return pa.large_list(children[0])
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(children[0], type_.list_size)
    return pa.list_(children[0]) if pa.types.is_list(type_) else type_


def join_names(parent: str, name: str) -> str:
    """`parent` is empty for a top-level column."""
    return f"{parent}.{name}" if parent else name
