"""Field ids in the Arrow schema of a file: where they come from, and where a name mapping gives them.

Whatever the format calls it (`PARQUET:field_id`, `iceberg.id`, `element-id`), the id of a field stands in the metadata of
its Arrow field under `arrow.schema.FIELD_ID_KEY`, at every level.
"""

from collections.abc import Callable, Collection, Mapping

import pyarrow as pa

from icekeep.formats.arrow.schema import FIELD_ID_KEY, field_id
from icekeep.spec.name_mapping import NameMapping, find

STORED_AS_KEY = b"icekeep:stored-as"
"""Says, in the metadata of an Arrow field, that its values mean more than the Arrow type can tell."""

INSTANT = b"instant"
"""A timestamp that counts from the epoch in UTC whatever the file says of a time zone: the table says whether it has one.

Presto and ClickHouse mark columns of type `timestamp` as adjusted to UTC, and INT96 has no mark at all.
"""

MICROSECONDS = b"microseconds"
"""A timestamp in nanoseconds of which only whole microseconds count, as ORC's."""

Metadata = Mapping[bytes, bytes]


def has_ids(schema: pa.Schema) -> bool:
    """Whether any field at any level has an id."""
    return any(_has_id(field) for field in schema)


def all_have_ids(schema: pa.Schema) -> bool:
    """Whether each field at each level has an id."""
    fields = [*schema]
    for field in fields:
        fields += [child for _, child in child_fields(field.type)]
    return all(field_id(field) is not None for field in fields)


def field_ids(schema: pa.Schema) -> set[int]:
    """The ids of all fields at every level."""
    fields = [*schema]
    for field in fields:
        fields += [child for _, child in child_fields(field.type)]
    return {id_ for id_ in map(field_id, fields) if id_ is not None}


def with_mapped_ids(schema: pa.Schema, mapping: NameMapping, without: Collection[int] = ()) -> pa.Schema:
    """The schema of a file with the ids that a name mapping gives to fields without one (spec, "Column Projection").

    An id that a field of the file has is given to no other. Below a field with an id, the names are those that the mapping has
    for that id, whatever the field is called. A field that the mapping does not name gets no id.

    Args:
        schema: of the file.
        mapping: whose names for what lies in lists and maps are `element`, `key` and `value`, whatever the file's are.
        without: ids that no field shall get.
    """
    taken = {*field_ids(schema), *without}
    below: dict[tuple[str, ...], NameMapping] = {(): mapping}

    def mapped(field: pa.Field, path: tuple[str, ...]) -> Metadata:
        named, id_, metadata = below[path[:-1]], field_id(field), field.metadata or {}
        found = find(named, path[-1]) if id_ is None else next((one for one in named if one.field_id == id_), None)
        below[path] = () if found is None else found.fields
        if id_ is not None or found is None or found.field_id is None or found.field_id in taken:
            return metadata
        return {**metadata, FIELD_ID_KEY: str(found.field_id).encode()}

    return map_fields(schema, mapped)


def map_fields(
    schema: pa.Schema, metadata: Callable[[pa.Field, tuple[str, ...]], Metadata], *, nullable: bool = False
) -> pa.Schema:
    """The schema with the metadata of each field made anew, parents before their children.

    Args:
        schema: of the file.
        metadata: makes the metadata of a field from the field and its path, in which what lies in lists and maps is
            called `element`, `key` and `value`.
        nullable: whether all fields shall be nullable, but for the keys of maps.
    """
    return pa.schema([_mapped(field, (field.name,), metadata, nullable) for field in schema])


def storage_types(schema: pa.Schema, stored: Callable[[pa.DataType], pa.DataType]) -> pa.Schema:
    """The schema with each type that has no fields below it replaced by another, at every level."""
    return pa.schema([_restored(field, stored) for field in schema])


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


def _mapped(
    field: pa.Field,
    path: tuple[str, ...],
    metadata: Callable[[pa.Field, tuple[str, ...]], Metadata],
    nullable: bool,
) -> pa.Field:
    own = metadata(field, path)
    children = [_mapped(child, (*path, name), metadata, nullable) for name, child in child_fields(field.type)]
    if pa.types.is_map(field.type):
        children[0] = children[0].with_nullable(False)
    return pa.field(field.name, _with_children(field.type, children), nullable or field.nullable, own)


def _restored(field: pa.Field, stored: Callable[[pa.DataType], pa.DataType]) -> pa.Field:
    children = [_restored(child, stored) for _, child in child_fields(field.type)]
    return field.with_type(_with_children(field.type, children) if children else stored(field.type))


def _with_children(type_: pa.DataType, children: list[pa.Field]) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct(children)
    if pa.types.is_map(type_):
        return pa.map_(*children)
    if pa.types.is_large_list(type_):
        return pa.large_list(children[0])
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(children[0], type_.list_size)
    return pa.list_(children[0]) if pa.types.is_list(type_) else type_


def _has_id(field: pa.Field) -> bool:
    return field_id(field) is not None or any(_has_id(child) for _, child in child_fields(field.type))
