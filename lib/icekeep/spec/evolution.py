"""Apply changes to a table's default partition spec (spec, "Partition Evolution").

Manifests keep partition values by the ids of partition fields, so an id never changes what it stands for: a field that
was there before, the same transform of the same column, gets its id again, any other one a new id. Pure.

Type promotion: which types a column's type may become, and what its values become (spec, "Schema Evolution").

What may be changed in a schema, one value a change; `schema_evolution.py` applies them.

Columns are named by their full names in the schema as the changes before left it: `point.x` is the field x of the struct
point, `points.element.x` one of a list's elements, `counts.value.n` one of a map's values. A type is a `Type`, or the
name of a primitive one (`decimal(9, 2)`).

A schema between two changes: finding the place of a change, and rebuilding the types around it.

Lists and maps are seen as structs of `element`, or of `key` and `value`, as `child_fields` gives them.

What a new schema must fit, beside itself: the table's format version, partition specs and sort order.

Apply changes to a table's schema (spec, "Schema Evolution").

Every change is applied to the schema as the changes before it left it. Field ids never change and are never used again:
new fields, nested ones too, take ids after the table's last one. Pure: metadata and changes in, a schema out.
"""

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

import msgspec
from msgspec.structs import replace

from icekeep.errors import IcekeepBug, InvalidTableError, NotFoundError, UsageError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import FIRST_FIELD_ID, PartitionField, PartitionSpec, validate_field_name, validate_spec
from icekeep.spec.schema import (
    Schema,
    check_format_version,
    default_to_json,
    initial_value,
    renumbered,
    validate_schema,
)
from icekeep.spec.sorting import validate_sort_order
from icekeep.spec.transforms import Bucket, Day, Hour, Identity, Month, Transform, Truncate, Void, Year, known_transform
from icekeep.spec.types import (
    DATE,
    DAY_SECONDS,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    MAX_COLUMN_ID,
    TIMESTAMP,
    TIMESTAMP_NS,
    UNKNOWN,
    DecimalType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    check_nesting,
    child_fields,
    parse_type,
    with_child_fields,
)
from icekeep.spec.values import INTEGER_WIDTHS, TICKS_PER_SECOND, value_from_json, value_to_json


class PartitionChange(msgspec.Struct, frozen=True):
    """One change of a partition spec; fields are named as the changes before left them."""


class AddPartitionField(PartitionChange, frozen=True):
    """Partition by a transform of a column too; without a name as Iceberg names it (`ts_day`, `id_bucket_16`)."""

    column: str
    transform: str = "identity"
    name: str | None = None


class RemovePartitionField(PartitionChange, frozen=True):
    """Partition by a field no more; in format version 1 it stays, with the transform void."""

    name: str


class RenamePartitionField(PartitionChange, frozen=True):
    """Give a partition field another name."""

    name: str
    new_name: str


class _Draft(msgspec.Struct, frozen=True):
    """The spec between two changes.

    Attributes:
        fields: in order; those that were removed keep their places until the end, in case that they are added again.
        removed: the ids of the removed ones.
        added: the ids of those that were added.
    """

    base: TableMetadata
    fields: tuple[PartitionField, ...]
    last_partition_id: int
    removed: frozenset[int] = frozenset()
    added: frozenset[int] = frozenset()

    @property
    def live(self) -> tuple[PartitionField, ...]:
        return tuple(field for field in self.fields if field.field_id not in self.removed)

    def find(self, name: str) -> PartitionField | None:
        return next((f for f in self.live if f.name == name), None)

    def with_field(self, field: PartitionField) -> "_Draft":
        return replace(self, fields=tuple(field if f.field_id == field.field_id else f for f in self.fields))


def evolve_spec(base: TableMetadata, changes: Sequence[PartitionChange]) -> PartitionSpec:
    """The default partition spec after changes, in order.

    Fields with transforms that we do not know stay as they are.

    Returns:
        A spec with the id of an equal one that the table has already, else with an id after all of them.

    Raises:
        UsageError: a change does not fit the schema or the other fields, or cannot be made in format version 1.
        NotFoundError: there is no such column or partition field.
    """
    draft = _Draft(base, base.spec.fields, base.last_partition_id)
    for change in changes:
        draft = _apply(change, draft)
    _refuse_redundant_times(draft)
    spec = replace(base.spec, fields=tuple(_remaining(draft)))
    try:
        validate_spec(spec, base.schema)
    except InvalidTableError as error:
        raise UsageError(f"the partition spec cannot change so: {error.message}") from error
    if base.format_version == 1 and not has_sequential_ids(spec):
        raise UsageError(
            "the partition spec cannot change: format version 1 numbers partition fields from 1000 on without gaps; upgrade"
            " the table to format version 2 before"
        )
    return _with_spec_id(base, spec)


def has_sequential_ids(spec: PartitionSpec) -> bool:
    """Whether ids count up from 1000: readers of format version 1 take them for granted."""
    return all(field.field_id == FIRST_FIELD_ID + position for position, field in enumerate(spec.fields))


def same_fields(one: PartitionSpec, other: PartitionSpec) -> bool:
    """Whether two specs make the same partitions under the same names; ids may differ."""
    return list(map(_meaning, one.fields)) == list(map(_meaning, other.fields))


@singledispatch
def _apply(change: PartitionChange, draft: _Draft) -> _Draft:
    raise UsageError(f"{change!r} is no change of a partition spec; give values such as AddPartitionField('ts', 'day')")


@_apply.register
def _(change: AddPartitionField, draft: _Draft) -> _Draft:
    schema = draft.base.schema
    source = schema.field(change.column)
    transform = known_transform(change.transform)
    what = (source.field_id, transform)
    present = next((f for f in draft.fields if (f.source_id, f.transform) == what), None)
    if present is not None and present.field_id in draft.removed:
        # It was removed a moment ago, and keeps its place.
        restored = replace(draft, removed=draft.removed - {present.field_id})
        return restored if change.name is None else _renamed(restored, present, change.name)
    if present is not None:
        raise UsageError(f"partition field {present.name!r} is {str(transform)!r} of column {change.column!r} already")
    field = _earlier(draft, source.field_id, transform, change.name)
    if field is None:
        field_id = draft.last_partition_id + 1
        name = _default_name(change.column, transform) if change.name is None else change.name
        field = PartitionField(source_id=source.field_id, field_id=field_id, name=name, transform=transform)
        draft = replace(draft, last_partition_id=field_id)
    draft = _with_free_name(draft, field.name)
    validate_field_name(schema, field.name, field.source_id, transform)
    return replace(draft, fields=(*draft.fields, field), added=draft.added | {field.field_id})


@_apply.register
def _(change: RemovePartitionField, draft: _Draft) -> _Draft:
    field = _existing(draft, change.name)
    if draft.base.format_version == 1 and isinstance(field.transform, Void):
        raise UsageError(f"partition field {change.name!r} was removed already; format version 1 keeps its place")
    return replace(draft, removed=draft.removed | {field.field_id})


@_apply.register
def _(change: RenamePartitionField, draft: _Draft) -> _Draft:
    return _renamed(draft, _existing(draft, change.name), change.new_name)


def _existing(draft: _Draft, name: str) -> PartitionField:
    field = draft.find(name)
    if field is None:
        known = ", ".join(f.name for f in draft.live) or "none"
        raise NotFoundError(
            f"there is no partition field {name!r} in the default spec; the fields are {known}", field=name
        )
    return field


def _renamed(draft: _Draft, field: PartitionField, name: str) -> _Draft:
    if name == field.name:
        return draft
    draft = _with_free_name(draft, name)
    validate_field_name(draft.base.schema, name, field.source_id, field.transform)
    return draft.with_field(replace(field, name=name))


def _with_free_name(draft: _Draft, name: str) -> _Draft:
    """The draft with no field of a name: one that makes no values any more gives its name away."""
    for field in draft.fields:
        if field.name != name:
            continue
        if not isinstance(field.transform, Void) and field.field_id not in draft.removed:
            raise UsageError(
                f"there is a partition field {name!r} already; give another name, or remove that one before"
            )
        draft = draft.with_field(replace(field, name=f"{name}_{field.field_id}"))
    return draft


def _earlier(draft: _Draft, source_id: int, transform: Transform, name: str | None) -> PartitionField | None:
    """The same field of an earlier spec, the newest one first; with its name if one is asked for.

    Format version 1 gave the same ids to different fields, so an id that stood for two things is not used again.
    """
    newest_first = sorted(draft.base.partition_specs, key=lambda spec: spec.spec_id, reverse=True)
    fields = [field for spec in newest_first for field in spec.fields]
    wanted = (source_id, transform)
    # Void fields hold no values, so they leave no doubt about what an id stands for.
    others = [f for f in fields if (f.source_id, f.transform) != wanted and not isinstance(f.transform, Void)]
    taken = {f.field_id for f in (*others, *draft.fields)}
    for field in fields:
        is_same = (field.source_id, field.transform) == wanted and name in (None, field.name)
        if is_same and field.field_id not in taken:
            return field
    return None


def _refuse_redundant_times(draft: _Draft) -> None:
    units = {f.field_id: f for f in draft.live if isinstance(f.transform, Year | Month | Day | Hour)}
    for field_id in draft.added & units.keys():
        field = units[field_id]
        for other in units.values():
            if other.source_id == field.source_id and other != field:
                raise UsageError(
                    f"partition field {field.name!r} is redundant beside {other.name!r}: both are times of one column; remove"
                    " one of them"
                )


def _remaining(draft: _Draft) -> list[PartitionField]:
    if draft.base.format_version > 1:
        return list(draft.live)
    return [replace(f, transform=Void()) if f.field_id in draft.removed else f for f in draft.fields]


def _with_spec_id(base: TableMetadata, spec: PartitionSpec) -> PartitionSpec:
    # The default one first: older specs may be equal to it, and nothing is to change then.
    for known in (base.spec, *base.partition_specs):
        if same_fields(known, spec):
            return known
    return replace(spec, spec_id=max(base.specs_by_id) + 1)


def _meaning(field: PartitionField) -> tuple[tuple[int, ...], str, str]:
    return field.source_ids, str(field.transform), field.name


def _default_name(column: str, transform: Transform) -> str:
    """As Iceberg's Java library names a field that is added to a spec: unlike in a new table, with the parameter."""
    match transform:
        case Identity():
            return column
        case Bucket(bucket_count):
            return f"{column}_bucket_{bucket_count}"
        case Truncate(width):
            return f"{column}_trunc_{width}"
        case Void():
            return f"{column}_null"
    return f"{column}_{transform}"


_PROMOTIONS: tuple[tuple[Type, Type], ...] = ((INT, LONG), (FLOAT, DOUBLE))
_PROMOTIONS_SINCE_V3: tuple[tuple[Type, Type], ...] = ((DATE, TIMESTAMP), (DATE, TIMESTAMP_NS))


def validate_promotion(old: Type, new: Type, format_version: int) -> None:
    """Raise `UsageError` if a column of one type may not become one of another; says why.

    Spec: "Schema Evolution", the table of valid promotions.
    """
    if old == new or (old, new) in _PROMOTIONS:
        return
    if old == UNKNOWN or (old, new) in _PROMOTIONS_SINCE_V3:
        if format_version >= 3:
            return
        raise UsageError(f"{old} may become {new} in format version 3 only; upgrade the table first")
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        if old.scale == new.scale and old.precision < new.precision:
            return
        raise UsageError(f"{old} may not become {new}: a decimal's precision may grow, its scale stays")
    if not isinstance(old, PrimitiveType) or not isinstance(new, PrimitiveType):
        raise UsageError(f"{_kind(old)} may not become {_kind(new)}; add a column for it and drop this one")
    if old == DATE:
        raise UsageError(f"date may not become {new}; it may become timestamp or timestamp_ns")
    raise UsageError(
        f"{old} may not become {new}; int may become long, float double, and a decimal one of greater precision"
    )


def keeps_partition_values(transform: Transform, old: Type, new: Type) -> bool:
    """Whether a transform makes the same partition values after a promotion as before it.

    Only dates that become timestamps can make others; with a transform that we do not know we cannot tell.
    """
    return old != DATE or old == new or isinstance(transform, Year | Month | Day | Void)


def promote_value(old: Type, new: Type, value: Any) -> Any:
    """A value of one type as one of the type that it was promoted to, nested values too; null stays null.

    Struct fields that the new type has no more are left out.

    Raises:
        InvalidTableError: a date is out of the range of the timestamp type.
    """
    if value is None or old == new:
        return value
    if isinstance(old, StructType) and isinstance(new, StructType):
        types = {field.field_id: field.type for field in old.fields}
        return {
            f.field_id: promote_value(types[f.field_id], f.type, value[f.field_id])
            for f in new.fields
            if f.field_id in value
        }
    if isinstance(old, ListType) and isinstance(new, ListType):
        return tuple(promote_value(old.element, new.element, item) for item in value)
    if isinstance(old, MapType) and isinstance(new, MapType):
        return tuple(
            (promote_value(old.key, new.key, key), promote_value(old.value, new.value, item)) for key, item in value
        )
    if old == DATE and isinstance(new, PrimitiveType):
        return _timestamp(new, value)
    if not isinstance(old, PrimitiveType) or not isinstance(new, PrimitiveType):
        raise IcekeepBug(f"a value of type {old} cannot become one of type {new}")
    return value


def promote_default(old: Type, new: Type, default: Any) -> Any:
    """A field's stored default after a promotion of its type; raises as `promote_value` does."""
    if default is None or old == new:
        return default
    return value_to_json(new, promote_value(old, new, value_from_json(old, default)))


def _timestamp(type_: PrimitiveType, days: int) -> int:
    ticks = days * DAY_SECONDS * TICKS_PER_SECOND[type_.name]
    if abs(ticks) >= 1 << (8 * INTEGER_WIDTHS[type_.name] - 1):
        raise InvalidTableError(f"the date {days} days from 1970-01-01 is out of the range of {type_}")
    return ticks


def _kind(type_: Type) -> str:
    match type_:
        case StructType():
            return "a struct"
        case ListType():
            return "a list"
        case MapType():
            return "a map"
    return str(type_)


class SchemaChange(msgspec.Struct, frozen=True):
    """One change of a schema."""


class AddColumn(SchemaChange, frozen=True):
    """Add a column at the end of the table, or of the struct `parent` (a list's elements or a map's values if these are structs).

    Rows that exist have the `default` there, and so have new ones that are given no value; see `default_to_json` for how
    it is written. A required column needs one. The field ids of `type` do not matter, new ones are assigned.

    Iceberg's Java library (1.12) opens no table in which a struct, list or map has a default other than null.
    """

    name: str
    type: Type | str
    parent: str | None = None
    required: bool = False
    doc: str | None = None
    default: Any = None


class DropColumn(SchemaChange, frozen=True):
    """Remove a column and what is nested in it; data files keep their values."""

    name: str


class RenameColumn(SchemaChange, frozen=True):
    """Give a column another name within its struct: `RenameColumn("point.x", "longitude")`."""

    name: str
    new_name: str


class MoveFirst(SchemaChange, frozen=True):
    """Make a column the first one of its struct."""

    name: str


class MoveBefore(SchemaChange, frozen=True):
    """Put a column before another one of the same struct."""

    name: str
    other: str


class MoveAfter(SchemaChange, frozen=True):
    """Put a column after another one of the same struct."""

    name: str
    other: str


class MakeOptional(SchemaChange, frozen=True):
    """Let a required column, list element or map value be null."""

    name: str


class RequireColumn(SchemaChange, frozen=True):
    """Let an optional column, list element or map value never be null.

    Nobody looks whether rows have nulls there, and reading those fails: so this takes `allow_incompatible`, except for a
    column that was added just before with a default.
    """

    name: str
    allow_incompatible: bool = False


class UpdateColumnType(SchemaChange, frozen=True):
    """Promote a column to a wider type (spec, "Schema Evolution")."""

    name: str
    type: Type | str


class UpdateColumnDoc(SchemaChange, frozen=True):
    """Set a column's comment; null removes it."""

    name: str
    doc: str | None


class SetWriteDefault(SchemaChange, frozen=True):
    """Set what new rows have in a column that they give no value for; rows that exist keep what they have."""

    name: str
    default: Any


class SetIdentifierFields(SchemaChange, frozen=True):
    """Name the columns that identify a row, in place of those that did; none is fine."""

    names: tuple[str, ...]


class RestoreColumn(SchemaChange, frozen=True):
    """Bring back a dropped column with its field id, at the end of its struct: data files still have its values.

    Allowed for an optional column, and for a required one as long as no snapshot was made without it.
    """

    name: str


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


def validate_evolution(base: TableMetadata, schema: Schema) -> None:
    """Raise `UsageError` if a schema cannot become the current one of a table; says which column and why.

    What the default partition spec and the default sort order use must stay, as in Iceberg's Java library; a column that
    only older specs use may go. No new name may be that of a partition field of any spec, unless the field is made of
    that very column: filters could not tell the two apart.
    """
    try:
        validate_schema(schema)
        check_format_version(schema, base.format_version)
        for field in schema.fields_by_id.values():
            if field.initial_default is not None:
                initial_value(field)
    except InvalidTableError as error:
        raise UsageError(f"the schema cannot change so: {error.message}", **error.facts) from error
    _refuse_empty_structs(schema)
    _refuse_dropped_sources(base, schema)
    _refuse_names_of_partition_fields(base, schema)
    try:
        validate_spec(base.spec, schema)
        validate_sort_order(base.sort_order, schema)
    except InvalidTableError as error:
        raise UsageError(f"the schema cannot change so: {error.message}") from error


def _refuse_empty_structs(schema: Schema) -> None:
    if not schema.fields:
        raise UsageError("the last column of a table cannot be dropped; add another one before")
    for field_id, field in schema.fields_by_id.items():
        if isinstance(field.type, StructType) and not field.type.fields:
            name = schema.names_by_id[field_id]
            raise UsageError(
                f"struct {name!r} would have no fields, which no data file can hold; drop the struct itself"
            )


def _refuse_dropped_sources(base: TableMetadata, schema: Schema) -> None:
    def is_dropped(field_id: int) -> bool:
        return field_id in base.schema.fields_by_id and field_id not in schema.fields_by_id

    for field in base.spec.fields:
        if is_dropped(field.source_id) and not isinstance(field.transform, Void):
            raise UsageError(
                f"column {base.schema.names_by_id[field.source_id]!r} cannot be dropped: partition field {field.name!r} of"
                f" the default spec is made of it; remove that field with update_spec before"
            )
    for key in base.sort_order.fields:
        if is_dropped(key.source_id):
            raise UsageError(
                f"column {base.schema.names_by_id[key.source_id]!r} cannot be dropped: the default sort order uses it; set"
                " another one with update_sort_order before"
            )


def _refuse_names_of_partition_fields(base: TableMetadata, schema: Schema) -> None:
    for spec in base.partition_specs:
        for field in spec.fields:
            field_id = schema.ids_by_name.get(field.name, field.source_id)
            is_new = base.schema.names_by_id.get(field_id) != field.name
            if is_new and field_id != field.source_id and field.source_id in schema.fields_by_id:
                raise UsageError(
                    f"a column cannot be named {field.name!r}: a partition field of the table has that name; give another"
                    " name"
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
        draft = _schema_evolution_apply(change, draft)
    validate_evolution(base, draft.schema)
    return SchemaEvolution(_with_schema_id(base, draft.schema), draft.last_column_id)


@singledispatch
def _schema_evolution_apply(change: SchemaChange, draft: Draft) -> Draft:
    raise UsageError(f"{change!r} is no change of a schema; give values such as AddColumn('note', 'string')")


@_schema_evolution_apply.register
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


@_schema_evolution_apply.register
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


@_schema_evolution_apply.register
def _(change: RenameColumn, draft: Draft) -> Draft:
    located = struct_field(draft, change.name, "renamed")
    if change.new_name == located.field.name:
        return draft
    _validate_name(
        draft, change.new_name, located.name[: len(located.name) - len(located.field.name)] + change.new_name
    )
    return with_field(draft, located, replace(located.field, name=change.new_name))


@_schema_evolution_apply.register
def _(change: MoveFirst, draft: Draft) -> Draft:
    located = struct_field(draft, change.name, "moved")
    moved_id = located.field.field_id
    return with_fields(
        draft, located.path, lambda fields: (located.field, *(f for f in fields if f.field_id != moved_id))
    )


@_schema_evolution_apply.register(MoveBefore)
@_schema_evolution_apply.register(MoveAfter)
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


@_schema_evolution_apply.register
def _(change: MakeOptional, draft: Draft) -> Draft:
    located = find(draft, change.name)
    return with_field(draft, located, replace(located.field, required=False))


@_schema_evolution_apply.register
def _(change: RequireColumn, draft: Draft) -> Draft:
    located = find(draft, change.name)
    is_filled = located.field.field_id in draft.added and located.field.initial_default is not None
    if not located.field.required and not is_filled and not change.allow_incompatible:
        raise UsageError(
            f"column {change.name!r} cannot become required: rows may have nulls in it, and reading them would fail; if you"
            " know that there are none, say allow_incompatible=True"
        )
    return with_field(draft, located, replace(located.field, required=True))


@_schema_evolution_apply.register
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


@_schema_evolution_apply.register
def _(change: UpdateColumnDoc, draft: Draft) -> Draft:
    located = struct_field(draft, change.name, "given a comment")
    return with_field(draft, located, replace(located.field, doc=change.doc))


@_schema_evolution_apply.register
def _(change: SetWriteDefault, draft: Draft) -> Draft:
    located = struct_field(draft, change.name, "given a default")
    return with_field(
        draft, located, replace(located.field, write_default=default_to_json(located.field.type, change.default))
    )


@_schema_evolution_apply.register
def _(change: SetIdentifierFields, draft: Draft) -> Draft:
    ids = dict.fromkeys(find(draft, name).field.field_id for name in change.names)
    return replace(draft, schema=replace(draft.schema, identifier_field_ids=tuple(ids)))


@_schema_evolution_apply.register
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
