"""Apply changes to a table's schema (spec, "Schema Evolution").

Every change is applied to the schema as the changes before it left it. Field ids never change and are never used again:
new fields, nested ones too, take ids after the table's last one. Pure: metadata and changes in, a schema out.
"""

from collections.abc import Sequence
from functools import singledispatch

import msgspec
from msgspec.structs import replace

from icekeep.errors import InvalidTableError, NotFoundError, UsageError
from icekeep.spec.defaults import default_to_json
from icekeep.spec.evolution.promotion import keeps_partition_values, validate_promotion
from icekeep.spec.evolution.schema_changes import (
    AddColumn,
    DropColumn,
    MakeOptional,
    MoveAfter,
    MoveBefore,
    MoveFirst,
    RenameColumn,
    RequireColumn,
    RestoreColumn,
    SchemaChange,
    SetIdentifierFields,
    SetWriteDefault,
    UpdateColumnDoc,
    UpdateColumnType,
)
from icekeep.spec.evolution.schema_draft import (
    Draft,
    Fields,
    find,
    next_id,
    struct_field,
    struct_path,
    with_field,
    with_fields,
    with_new_ids,
    with_type,
)
from icekeep.spec.evolution.schema_rules import validate_evolution
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import Schema
from icekeep.spec.types import (
    NestedField,
    Type,
    check_nesting,
    child_fields,
    parse_type,
    with_child_fields,
)


class SchemaEvolution(msgspec.Struct, frozen=True):
    """A schema after changes, and the last field id that the table has then ever given out."""

    schema: Schema
    last_column_id: int


def evolve_schema(base: TableMetadata, changes: Sequence[SchemaChange]) -> SchemaEvolution:
    """The current schema after changes, in order.

    Returns:
        A schema with the id of an equal one that the table has already, else with an id after all of them.

    Raises:
        UsageError: a change is not allowed by the spec, or the table's format version, partition specs or sort order.
        NotFoundError: a column is not there.
    """
    draft = Draft(base, base.schema, max(base.last_column_id, base.schema.highest_field_id))
    for change in changes:
        draft = _apply(change, draft)
    validate_evolution(base, draft.schema)
    return SchemaEvolution(_with_schema_id(base, draft.schema), draft.last_column_id)


@singledispatch
def _apply(change: SchemaChange, draft: Draft) -> Draft:
    raise UsageError(f"{change!r} is no change of a schema; give values such as AddColumn('note', 'string')")


@_apply.register
def _(change: AddColumn, draft: Draft) -> Draft:
    path, prefix = struct_path(draft, change.parent)
    name = prefix + change.name
    _validate_name(draft, change.name, name)
    type_ = _type(change.type, name)
    default = default_to_json(type_, change.default)
    if change.required and default is None:
        raise UsageError(
            f"column {name!r} cannot be added as required without a default: rows that exist have no value for it; give a"
            " default, or add it as optional"
        )
    field_id = next_id(draft.last_column_id)
    type_, last_id = with_new_ids(_with_equal_defaults(type_, name), field_id)
    field = NestedField(
        field_id=field_id,
        name=change.name,
        type=type_,
        required=change.required,
        doc=change.doc,
        initial_default=default,
        write_default=default,
    )
    return replace(
        with_fields(draft, path, lambda fields: (*fields, field)),
        last_column_id=last_id,
        added=draft.added | {field_id},
    )


@_apply.register
def _(change: DropColumn, draft: Draft) -> Draft:
    located = struct_field(draft, change.name, "dropped")
    gone = {located.field.field_id, *Schema(fields=child_fields(located.field.type)).fields_by_id}
    for field_id in draft.schema.identifier_field_ids:
        if field_id in gone:
            raise UsageError(
                f"column {change.name!r} cannot be dropped: {draft.schema.names_by_id[field_id]!r} identifies rows; set"
                " other identifier fields before"
            )
    return with_fields(draft, located.path, lambda fields: tuple(f for f in fields if f.field_id not in gone))


@_apply.register
def _(change: RenameColumn, draft: Draft) -> Draft:
    located = struct_field(draft, change.name, "renamed")
    if change.new_name == located.field.name:
        return draft
    _validate_name(
        draft, change.new_name, located.name[: len(located.name) - len(located.field.name)] + change.new_name
    )
    return with_field(draft, located, replace(located.field, name=change.new_name))


@_apply.register
def _(change: MoveFirst, draft: Draft) -> Draft:
    located = struct_field(draft, change.name, "moved")
    moved_id = located.field.field_id
    return with_fields(
        draft, located.path, lambda fields: (located.field, *(f for f in fields if f.field_id != moved_id))
    )


@_apply.register(MoveBefore)
@_apply.register(MoveAfter)
def _(change: MoveBefore | MoveAfter, draft: Draft) -> Draft:
    located, other = struct_field(draft, change.name, "moved"), find(draft, change.other)
    if located.path != other.path:
        raise UsageError(
            f"column {change.name!r} cannot be moved next to {change.other!r}: columns stay in the struct that they are in;"
            " name one of the same struct"
        )
    if located.field == other.field:
        raise UsageError(f"column {change.name!r} cannot be moved next to itself")

    def moved(fields: Fields) -> Fields:
        others = [field for field in fields if field != located.field]
        others.insert(others.index(other.field) + isinstance(change, MoveAfter), located.field)
        return tuple(others)

    return with_fields(draft, located.path, moved)


@_apply.register
def _(change: MakeOptional, draft: Draft) -> Draft:
    located = find(draft, change.name)
    return with_field(draft, located, replace(located.field, required=False))


@_apply.register
def _(change: RequireColumn, draft: Draft) -> Draft:
    located = find(draft, change.name)
    is_filled = located.field.field_id in draft.added and located.field.initial_default is not None
    if not located.field.required and not is_filled and not change.allow_incompatible:
        raise UsageError(
            f"column {change.name!r} cannot become required: rows may have nulls in it, and reading them would fail; if you"
            " know that there are none, say allow_incompatible=True"
        )
    return with_field(draft, located, replace(located.field, required=True))


@_apply.register
def _(change: UpdateColumnType, draft: Draft) -> Draft:
    located = find(draft, change.name)
    old, new = located.field.type, _type(change.type, change.name)
    if old == new:
        return draft
    try:
        validate_promotion(old, new, draft.base.format_version)
    except UsageError as error:
        raise UsageError(f"the type of column {change.name!r} cannot change: {error.message}") from None
    for spec in draft.base.partition_specs:
        for field in spec.fields:
            if located.field.field_id in field.source_ids and not keeps_partition_values(field.transform, old, new):
                raise UsageError(
                    f"the type of column {change.name!r} cannot change from {old} to {new}: partition field {field.name!r}"
                    f" of spec {spec.spec_id} would have other values; add a column of the new type"
                )
    new, last_id = with_new_ids(new, draft.last_column_id)
    return replace(with_field(draft, located, with_type(located.field, new, change.name)), last_column_id=last_id)


@_apply.register
def _(change: UpdateColumnDoc, draft: Draft) -> Draft:
    located = struct_field(draft, change.name, "given a comment")
    return with_field(draft, located, replace(located.field, doc=change.doc))


@_apply.register
def _(change: SetWriteDefault, draft: Draft) -> Draft:
    located = struct_field(draft, change.name, "given a default")
    return with_field(
        draft, located, replace(located.field, write_default=default_to_json(located.field.type, change.default))
    )


@_apply.register
def _(change: SetIdentifierFields, draft: Draft) -> Draft:
    ids = dict.fromkeys(find(draft, name).field.field_id for name in change.names)
    return replace(draft, schema=replace(draft.schema, identifier_field_ids=tuple(ids)))


@_apply.register
def _(change: RestoreColumn, draft: Draft) -> Draft:
    field, parent_id = _dropped(draft, change.name)
    if field.required and not _is_in_every_row(draft.base, field.field_id):
        raise UsageError(
            f"column {change.name!r} cannot be restored: it was required, and a snapshot was made without it; add a new"
            " column in its place"
        )
    parent = None if parent_id is None else draft.schema.names_by_id.get(parent_id)
    if parent_id is not None and parent is None:
        raise UsageError(
            f"column {change.name!r} cannot be restored: the struct that it was in is gone; restore that one"
        )
    path, prefix = struct_path(draft, parent)
    _validate_name(draft, field.name, prefix + field.name)
    return with_fields(draft, path, lambda fields: (*fields, field))


def _validate_name(draft: Draft, name: str, full_name: str) -> None:
    if not name or "." in name:
        raise UsageError(
            f"a column cannot be named {name!r}: give a name without dots, and the struct that it is in apart from it"
        )
    if full_name in draft.schema.ids_by_name:
        raise UsageError(f"there is a column {full_name!r} already; give another name, or drop that one before")


def _type(given: Type | str, name: str) -> Type:
    try:
        type_ = parse_type(given) if isinstance(given, str) else given
        check_nesting(type_)
    except InvalidTableError as error:
        raise UsageError(f"column {name!r}: {error.message}") from error
    if not isinstance(type_, Type):
        raise UsageError(
            f"column {name!r}: {type_!r} is no type of Iceberg; give one of icekeep.spec.types, or its name"
        )
    return type_


def _with_equal_defaults(type_: Type, name: str) -> Type:
    """A type whose fields have both defaults where one of them is given: they start equal."""
    fields = []
    for field in child_fields(type_):
        initial, write = field.initial_default, field.write_default
        if initial is not None and write is not None and initial != write:
            raise UsageError(
                f"field {field.name!r} of column {name!r} starts with two defaults, {initial!r} and {write!r}; add it with"
                " one, and change the other by SetWriteDefault"
            )
        both = write if initial is None else initial
        below = _with_equal_defaults(field.type, name)
        fields.append(replace(field, type=below, initial_default=both, write_default=both))
    return with_child_fields(type_, tuple(fields))


def _dropped(draft: Draft, name: str) -> tuple[NestedField, int | None]:
    """The column that last had a name and is not there any more, and the id of the field that it was nested in."""
    for schema in sorted(draft.base.schemas, key=lambda s: s.schema_id, reverse=True):
        field_id = schema.ids_by_name.get(name)
        if field_id is None or field_id in draft.schema.fields_by_id:
            continue
        parent = schema.parents_by_id.get(field_id)
        return schema.fields_by_id[field_id], None if parent is None else parent.field_id
    raise NotFoundError(f"no column {name!r} was dropped from a schema that the table still knows", column=name)


def _is_in_every_row(base: TableMetadata, field_id: int) -> bool:
    """Whether the current snapshot, if there is one, was made when the table still had a column."""
    snapshot = base.current_snapshot
    if snapshot is None:
        return True
    schema = None if snapshot.schema_id is None else base.schemas_by_id.get(snapshot.schema_id)
    return schema is not None and field_id in schema.fields_by_id


def _with_schema_id(base: TableMetadata, schema: Schema) -> Schema:
    # The current one first: older schemas may be equal to it, and nothing is to change then.
    for known in (base.schema, *base.schemas):
        if known.same_columns(schema):
            return known
    return replace(schema, schema_id=max(base.schemas_by_id) + 1)
