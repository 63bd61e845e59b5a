"""A schema between two changes: finding the place of a change, and rebuilding the types around it.

Lists and maps are seen as structs of `element`, or of `key` and `value`, as `child_fields` gives them.
"""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from icekeep.errors import InvalidTableError, UsageError
from icekeep.spec.evolution.promotion import promote_default
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import Schema, renumbered
from icekeep.spec.types import (
    MAX_COLUMN_ID,
    ListType,
    MapType,
    NestedField,
    StructType,
    Type,
    child_fields,
    with_child_fields,
)

Fields = tuple[NestedField, ...]


class Draft(msgspec.Struct, frozen=True):
    """The schema between two changes; `added` are the ids of columns that these changes added."""

    base: TableMetadata
    schema: Schema
    last_column_id: int
    added: frozenset[int] = frozenset()


class LocatedField(msgspec.Struct, frozen=True):
    """Where a field lies: the fields that it is nested in, from the top down."""

    name: str
    field: NestedField
    parents: Fields

    @property
    def path(self) -> tuple[int, ...]:
        return tuple(parent.field_id for parent in self.parents)

    @property
    def is_in_struct(self) -> bool:
        return not self.parents or isinstance(self.parents[-1].type, StructType)


def find(draft: Draft, name: str) -> LocatedField:
    """The field with a full name; raises `UsageError` for one that belongs to the keys of a map, which never change."""
    field = draft.schema.field(name)
    parents: list[NestedField] = []
    inner = field
    while (outer := draft.schema.parents_by_id.get(inner.field_id)) is not None:
        if isinstance(outer.type, MapType) and inner.field_id == outer.type.key_id:
            raise UsageError(
                f"column {name!r} cannot change: it belongs to the keys of a map; add a map with other keys instead"
            )
        parents.insert(0, outer)
        inner = outer
    return LocatedField(name, field, tuple(parents))


def struct_field(draft: Draft, name: str, what: str) -> LocatedField:
    """A field that may be dropped, renamed and so on: the parts of lists and maps may not."""
    located = find(draft, name)
    if not located.is_in_struct:
        kind = "list" if isinstance(located.parents[-1].type, ListType) else "map"
        raise UsageError(
            f"{name!r} cannot be {what}: it is a part of a {kind}; name the {kind} itself, or a field in it"
        )
    return located


def struct_path(draft: Draft, name: str | None) -> tuple[tuple[int, ...], str]:
    """The ids that lead to the struct of a column, of its elements or of its values, and its name with a dot."""
    if name is None:
        return (), ""
    located = find(draft, name)
    path = (*located.path, located.field.field_id)
    match located.field.type:
        case ListType():
            inner = child_fields(located.field.type)[0]
        case MapType():
            inner = child_fields(located.field.type)[1]
        case StructType():
            return path, f"{located.name}."
        case _:
            raise UsageError(
                f"columns cannot be added to {name!r}: it is of type {located.field.type}, not a struct; a column that is no"
                " struct cannot become one"
            )
    return struct_path(draft, f"{located.name}.{inner.name}")


def with_field(draft: Draft, located: LocatedField, field: NestedField) -> Draft:
    """The draft with another field at a place."""
    return with_fields(
        draft, located.path, lambda fields: tuple(field if f.field_id == field.field_id else f for f in fields)
    )


def with_fields(draft: Draft, path: tuple[int, ...], edit: Callable[[Fields], Fields]) -> Draft:
    """The draft with the fields edited of the struct that a path of field ids leads to."""
    struct = _edited(StructType(draft.schema.fields), path, edit)
    return replace(draft, schema=replace(draft.schema, fields=child_fields(struct)))


def with_type(field: NestedField, type_: Type, name: str) -> NestedField:
    """A field with a promoted type: its defaults are the same values, written as the new type writes them."""
    try:
        return replace(
            field,
            type=type_,
            initial_default=promote_default(field.type, type_, field.initial_default),
            write_default=promote_default(field.type, type_, field.write_default),
        )
    except InvalidTableError as error:
        raise UsageError(
            f"the type of column {name!r} cannot change: its default does not fit: {error.message}"
        ) from None


def next_id(last_id: int) -> int:
    """The field id after the last one of a table; raises `UsageError` if it would be a reserved one."""
    if last_id >= MAX_COLUMN_ID:
        raise UsageError(f"the table has no field ids left: the last one is {last_id}, those above are reserved")
    return last_id + 1


def with_new_ids(type_: Type, last_id: int) -> tuple[Type, int]:
    """A type whose nested fields have ids after the last one of a table, and the table's last one then."""

    def following() -> int:
        nonlocal last_id
        last_id = next_id(last_id)
        return last_id

    renewed = renumbered(type_, following)
    return renewed, last_id


def _edited(type_: Type, path: tuple[int, ...], edit: Callable[[Fields], Fields]) -> Type:
    """A type with the children edited of what lies at a path of field ids in it."""
    if not path:
        return with_child_fields(type_, edit(child_fields(type_)))
    return with_child_fields(
        type_,
        tuple(
            with_type(f, _edited(f.type, path[1:], edit), f.name) if f.field_id == path[0] else f
            for f in child_fields(type_)
        ),
    )
