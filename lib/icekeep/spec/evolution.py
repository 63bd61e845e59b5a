"""Changes of a table's schema and default partition spec (spec, "Schema Evolution", "Partition Evolution").

Each change is applied to the result of the changes before it. Field ids never change and are never reused: new fields, nested
ones too, take ids after the table's last one. Manifests keep partition values by the ids of partition fields, so an id never
changes its meaning: the same transform of the same column gets its former id, any other field a new one.

Columns are named by their full names: `point.x` is the field x of the struct point, `points.element.x` one of a list's
elements, `counts.value.n` one of a map's values. A type is a `Type`, or the name of a primitive one (`decimal(9, 2)`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from icekeep.errors import IcekeepBug, InvalidTableError, NotFoundError, UsageError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import (
    FIRST_FIELD_ID,
    PartitionField,
    PartitionSpec,
    default_field_name,
    validate_field_name,
    validate_spec,
)
from icekeep.spec.schema import (
    Schema,
    check_format_version,
    default_to_json,
    initial_value,
    renumbered,
    validate_schema,
)
from icekeep.spec.sorting import validate_sort_order
from icekeep.spec.transforms import Day, Hour, Month, Transform, Void, Year, known_transform
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
    walk,
    with_child_fields,
)
from icekeep.spec.values import INTEGER_WIDTHS, TICKS_PER_SECOND, map_nested, value_from_json, value_to_json


class _SpecDraft:
    """A spec between two changes, with the ids of removed and added fields.

    Removed fields keep their places in `fields` until the end, in case they are added again.
    """

    def __init__(self, base: TableMetadata) -> None:
        self.base, self.fields, self.last_field_id = base, [*base.spec.fields], base.last_partition_id
        self.removed: set[int] = set()
        self.added: set[int] = set()

    def live(self) -> list[PartitionField]:
        return [field for field in self.fields if field.field_id not in self.removed]

    def find(self, name: str) -> PartitionField:
        field = next((field for field in self.live() if field.name == name), None)
        if field is None:
            names = ", ".join(field.name for field in self.live()) or "none"
            raise NotFoundError(
                f"there is no partition field {name!r} in the default spec; the fields are {names}", field=name
            )
        return field

    def rename(self, field: PartitionField, name: str) -> None:
        if name != field.name:
            self.free_name(name)
            validate_field_name(self.base.schema, name, field.source_id, field.transform)
            self.fields[self.fields.index(field)] = replace(field, name=name)

    def free_name(self, name: str) -> None:
        """Leave no field with a name: void and removed fields are renamed."""
        for position, field in enumerate(self.fields):
            if field.name != name:
                continue
            if not isinstance(field.transform, Void) and field.field_id not in self.removed:
                raise UsageError(
                    f"there is a partition field {name!r} already; give another name, or remove that one before"
                )
            self.fields[position] = replace(field, name=f"{name}_{field.field_id}")

    def earlier(self, source_id: int, transform: Transform, name: str | None) -> PartitionField | None:
        """The same field of the newest earlier spec that has it, with a certain name unless that is null.

        Format version 1 gave the same ids to different fields, so an id with two meanings is not reused.
        """
        newest_first = sorted(self.base.partition_specs, key=lambda spec: spec.spec_id, reverse=True)
        fields = [field for spec in newest_first for field in spec.fields]
        # Void fields hold no values, so they give an id no second meaning.
        others = [
            field
            for field in fields
            if (field.source_id, field.transform) != (source_id, transform) and not isinstance(field.transform, Void)
        ]
        taken = {field.field_id for field in (*others, *self.fields)}
        for field in fields:
            is_same = (field.source_id, field.transform) == (source_id, transform) and name in (None, field.name)
            if is_same and field.field_id not in taken:
                return field
        return None

    def refuse_redundant_times(self) -> None:
        units = {f.field_id: f for f in self.live() if isinstance(f.transform, Year | Month | Day | Hour)}
        for field_id in self.added & units.keys():
            field = units[field_id]
            for other in units.values():
                if other.source_id == field.source_id and other != field:
                    raise UsageError(
                        f"partition field {field.name!r} is redundant beside {other.name!r}: both are times of one column;"
                        " remove one of them"
                    )


class PartitionChange(msgspec.Struct, frozen=True):
    """One change of a partition spec; fields go by the names that the changes before it gave them."""

    def _apply(self, draft: _SpecDraft) -> None:
        match self:
            case RenamePartitionField(name, new_name):
                draft.rename(draft.find(name), new_name)
            case RemovePartitionField(name):
                field = draft.find(name)
                if draft.base.format_version == 1 and isinstance(field.transform, Void):
                    raise UsageError(f"partition field {name!r} was removed already; format version 1 keeps its place")
                draft.removed.add(field.field_id)
            case _:
                raise UsageError(
                    f"{self!r} is no change of a partition spec; give values such as AddPartitionField('ts', 'day')"
                )


class AddPartitionField(PartitionChange, frozen=True):
    """Partition by a transform of a column too; the name defaults to Iceberg's (`ts_day`, `id_bucket_16`)."""

    column: str
    transform: str = "identity"
    name: str | None = None

    def _apply(self, draft: _SpecDraft) -> None:
        schema = draft.base.schema
        source_id, transform = schema.field(self.column).field_id, known_transform(self.transform)
        present = next((f for f in draft.fields if (f.source_id, f.transform) == (source_id, transform)), None)
        if present is not None and present.field_id not in draft.removed:
            raise UsageError(
                f"partition field {present.name!r} is {str(transform)!r} of column {self.column!r} already"
            )
        if present is not None:
            # Removed by one of these changes, it keeps its place.
            draft.removed.discard(present.field_id)
            draft.rename(present, present.name if self.name is None else self.name)
            return
        field = draft.earlier(source_id, transform, self.name)
        if field is None:
            draft.last_field_id += 1
            name = self.name
            if name is None:
                name = default_field_name(self.column, transform, with_parameter=True)
            field = PartitionField(source_id=source_id, field_id=draft.last_field_id, name=name, transform=transform)
        draft.free_name(field.name)
        validate_field_name(schema, field.name, source_id, transform)
        draft.fields.append(field)
        draft.added.add(field.field_id)


class RemovePartitionField(PartitionChange, frozen=True):
    """Stop partitioning by a field; format version 1 keeps it, with the transform void."""

    name: str


class RenamePartitionField(PartitionChange, frozen=True):
    """Give a partition field another name."""

    name: str
    new_name: str


def evolve_spec(base: TableMetadata, changes: Sequence[PartitionChange]) -> PartitionSpec:
    """The default partition spec after changes, in order; fields with unknown transforms are kept.

    An equal spec of the table keeps its id, a new one gets the next id. Raises `UsageError` for a change that does not fit the
    schema or the other fields, or format version 1; `NotFoundError` for a missing column or partition field.
    """
    draft = _SpecDraft(base)
    for change in changes:
        (type(change) if isinstance(change, PartitionChange) else PartitionChange)._apply(change, draft)
    draft.refuse_redundant_times()
    fields = draft.live()
    if base.format_version == 1:
        fields = [replace(f, transform=Void()) if f.field_id in draft.removed else f for f in draft.fields]
    spec = replace(base.spec, fields=tuple(fields))
    try:
        validate_spec(spec, base.schema)
    except InvalidTableError as error:
        raise UsageError(f"the partition spec cannot change so: {error.message}") from error
    if base.format_version == 1 and not has_sequential_ids(spec):
        raise UsageError(
            "the partition spec cannot change: format version 1 numbers partition fields from 1000 on without gaps; upgrade"
            " the table to format version 2 before"
        )
    # The default one first: older specs may be equal to it.
    for existing in (base.spec, *base.partition_specs):
        if same_fields(existing, spec):
            return existing
    return replace(spec, spec_id=max(base.specs_by_id) + 1)


def has_sequential_ids(spec: PartitionSpec) -> bool:
    """Whether ids count up from 1000, as readers of format version 1 assume."""
    return all(field.field_id == FIRST_FIELD_ID + position for position, field in enumerate(spec.fields))


def same_fields(one: PartitionSpec, other: PartitionSpec) -> bool:
    """Whether two specs differ in their ids only."""
    first, second = ([(f.source_ids, str(f.transform), f.name) for f in spec.fields] for spec in (one, other))
    return first == second


_PROMOTIONS: tuple[tuple[Type, Type], ...] = ((INT, LONG), (FLOAT, DOUBLE))
_PROMOTIONS_SINCE_V3: tuple[tuple[Type, Type], ...] = ((DATE, TIMESTAMP), (DATE, TIMESTAMP_NS))


def validate_promotion(old: Type, new: Type, format_version: int) -> None:
    """Raise `UsageError` for a promotion that the spec does not allow ("Schema Evolution")."""
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
        kinds = {StructType: "a struct", ListType: "a list", MapType: "a map"}
        was, is_now = (kinds.get(type(one)) or str(one) for one in (old, new))
        raise UsageError(f"{was} may not become {is_now}; add a column for it and drop this one")
    if old == DATE:
        raise UsageError(f"date may not become {new}; it may become timestamp or timestamp_ns")
    raise UsageError(
        f"{old} may not become {new}; int may become long, float double, and a decimal one of greater precision"
    )


def keeps_partition_values(transform: Transform, old: Type, new: Type) -> bool:
    """Whether a transform makes the same partition values after a promotion: dates that become timestamps may give others."""
    return old != DATE or old == new or isinstance(transform, Year | Month | Day | Void)


def promote_value(old: Type, new: Type, value: Any) -> Any:
    """A value, nested ones too, in the type that its own was promoted to; fields that the new type lacks are left out.

    Raises `InvalidTableError` for a date that the timestamp type cannot hold.
    """
    if value is None or old == new:
        return value
    if isinstance(old, StructType | ListType | MapType) and type(old) is type(new):
        by = "field_id" if isinstance(old, StructType) else "name"
        types = {getattr(field, by): field.type for field in child_fields(old)}
        return map_nested(new, value, lambda field, item: promote_value(types[getattr(field, by)], field.type, item))
    if not isinstance(old, PrimitiveType) or not isinstance(new, PrimitiveType):
        raise IcekeepBug(f"a value of type {old} cannot become one of type {new}")
    if old != DATE:
        return value
    ticks = value * DAY_SECONDS * TICKS_PER_SECOND[new.name]
    if abs(ticks) >= 1 << (8 * INTEGER_WIDTHS[new.name] - 1):
        raise InvalidTableError(f"the date {value} days from 1970-01-01 is out of the range of {new}")
    return ticks


_Fields = tuple[NestedField, ...]
_Path = tuple[int, ...]
"""Ids of the fields that lead to a struct, outermost first, through lists and maps as through structs (`child_fields`)."""


class _SchemaDraft:
    def __init__(self, base: TableMetadata) -> None:
        self.base, self.schema = base, base.schema
        self.last_column_id = max(base.last_column_id, base.schema.highest_field_id)
        self.added: set[int] = set()

    def find(self, name: str, what: str | None = None) -> tuple[NestedField, _Path]:
        """The field with a full name, and the path to its struct; raises `UsageError` for the keys of maps, which never change.

        `what` is an operation that parts of lists and maps do not allow, as a participle ("moved").
        """
        field = self.schema.field(name)
        enclosing = self.schema.enclosing_fields(field.field_id)
        for inner, outer in zip((field, *enclosing), enclosing, strict=False):
            if isinstance(outer.type, MapType) and inner.field_id == outer.type.key_id:
                raise UsageError(
                    f"column {name!r} cannot change: it belongs to the keys of a map; add a map with other keys instead"
                )
        if what is not None and enclosing and not isinstance(enclosing[0].type, StructType):
            kind = "list" if isinstance(enclosing[0].type, ListType) else "map"
            raise UsageError(
                f"{name!r} cannot be {what}: it is a part of a {kind}; name the {kind} itself, or a field in it"
            )
        return field, tuple(outer.field_id for outer in reversed(enclosing))

    def find_struct(self, name: str | None) -> tuple[_Path, str]:
        """The path to a struct, that of a list's elements or map's values too, and its name with a dot; null is the table."""
        if name is None:
            return (), ""
        field, path = self.find(name)
        if isinstance(field.type, ListType | MapType):
            return self.find_struct(f"{name}.{child_fields(field.type)[-1].name}")
        if not isinstance(field.type, StructType):
            raise UsageError(
                f"columns cannot be added to {name!r}: it is of type {field.type}, not a struct; a column that is no"
                " struct cannot become one"
            )
        return (*path, field.field_id), f"{name}."

    def replace_field(self, path: _Path, field: NestedField) -> None:
        self.edit(path, lambda fields: tuple(field if f.field_id == field.field_id else f for f in fields))

    def edit(self, path: _Path, edit: Callable[[_Fields], _Fields]) -> None:
        struct = _edited(StructType(self.schema.fields), path, edit)
        self.schema = replace(self.schema, fields=child_fields(struct))

    def numbered(self, type_: Type) -> Type:

        def next_id() -> int:
            if self.last_column_id >= MAX_COLUMN_ID:
                raise UsageError(
                    f"the table has no field ids left: the last one is {self.last_column_id}, those above are reserved"
                )
            self.last_column_id += 1
            return self.last_column_id

        return renumbered(type_, next_id)

    def validate_name(self, name: str, full_name: str) -> None:
        if not name or "." in name:
            raise UsageError(
                f"a column cannot be named {name!r}: give a name without dots, and the struct that it is in apart from it"
            )
        if full_name in self.schema.ids_by_name:
            raise UsageError(f"there is a column {full_name!r} already; give another name, or drop that one before")


def _edited(type_: Type, path: _Path, edit: Callable[[_Fields], _Fields]) -> Type:
    fields = child_fields(type_)
    if not path:
        return with_child_fields(type_, edit(fields))
    below = (_with_type(f, _edited(f.type, path[1:], edit), f.name) if f.field_id == path[0] else f for f in fields)
    return with_child_fields(type_, tuple(below))


def _with_type(field: NestedField, type_: Type, name: str) -> NestedField:
    """A field with a promoted type, and its defaults in the form of that type."""
    defaults = {"initial_default": field.initial_default, "write_default": field.write_default}
    try:
        for key, default in defaults.items():
            if field.type != type_ and default is not None:
                value = promote_value(field.type, type_, value_from_json(field.type, default))
                defaults[key] = value_to_json(type_, value)
        return replace(field, type=type_, **defaults)
    except InvalidTableError as error:
        raise UsageError(
            f"the type of column {name!r} cannot change: its default does not fit: {error.message}"
        ) from None


class SchemaChange(msgspec.Struct, frozen=True):
    """One change of a schema."""

    def _apply(self, draft: _SchemaDraft) -> None:
        match self:
            case MakeOptional(name):
                field, path = draft.find(name)
                draft.replace_field(path, replace(field, required=False))
            case UpdateColumnDoc(name, doc):
                field, path = draft.find(name, "given a comment")
                draft.replace_field(path, replace(field, doc=doc))
            case SetWriteDefault(name, default):
                field, path = draft.find(name, "given a default")
                draft.replace_field(path, replace(field, write_default=default_to_json(field.type, default)))
            case SetIdentifierFields(names):
                ids = dict.fromkeys(draft.find(name)[0].field_id for name in names)
                draft.schema = replace(draft.schema, identifier_field_ids=tuple(ids))
            case MoveFirst(name):
                field, path = draft.find(name, "moved")
                draft.edit(path, lambda fields: (field, *(f for f in fields if f.field_id != field.field_id)))
            case _:
                raise UsageError(f"{self!r} is no change of a schema; give values such as AddColumn('note', 'string')")


class AddColumn(SchemaChange, frozen=True):
    """Add a column at the end of the table, or of the struct `parent` (a list's elements or a map's values if these are structs).

    Existing rows have the `default`, and so do new ones without a value; `default_to_json` says how it is written. A required
    column needs one. The field ids in `type` are replaced by new ones.

    Iceberg's Java library (1.12) opens no table in which a struct, list or map has a default other than null.
    """

    name: str
    type: Type | str
    parent: str | None = None
    required: bool = False
    doc: str | None = None
    default: Any = None

    def _apply(self, draft: _SchemaDraft) -> None:
        path, prefix = draft.find_struct(self.parent)
        name = prefix + self.name
        draft.validate_name(self.name, name)
        type_ = _given_type(self.type, name)
        default = default_to_json(type_, self.default)
        if self.required and default is None:
            raise UsageError(
                f"column {name!r} cannot be added as required without a default: rows that exist have no value for it; give"
                " a default, or add it as optional"
            )
        column = NestedField(
            field_id=0,
            name=self.name,
            type=_with_equal_defaults(type_, name),
            required=self.required,
            doc=self.doc,
            initial_default=default,
            write_default=default,
        )
        (column,) = child_fields(draft.numbered(StructType((column,))))
        draft.edit(path, lambda fields: (*fields, column))
        draft.added.add(column.field_id)


class DropColumn(SchemaChange, frozen=True):
    """Remove a column and its nested fields; data files keep their values."""

    name: str

    def _apply(self, draft: _SchemaDraft) -> None:
        field, path = draft.find(self.name, "dropped")
        gone = {field.field_id, *(inner.field_id for inner in walk(field.type))}
        for field_id in draft.schema.identifier_field_ids:
            if field_id in gone:
                raise UsageError(
                    f"column {self.name!r} cannot be dropped: {draft.schema.names_by_id[field_id]!r} identifies rows; set"
                    " other identifier fields before"
                )
        draft.edit(path, lambda fields: tuple(f for f in fields if f.field_id not in gone))


class RenameColumn(SchemaChange, frozen=True):
    """Give a column another name within its struct: `RenameColumn("point.x", "longitude")`."""

    name: str
    new_name: str

    def _apply(self, draft: _SchemaDraft) -> None:
        field, path = draft.find(self.name, "renamed")
        if self.new_name != field.name:
            draft.validate_name(self.new_name, self.name.removesuffix(field.name) + self.new_name)
            draft.replace_field(path, replace(field, name=self.new_name))


class MoveFirst(SchemaChange, frozen=True):
    """Make a column the first one of its struct."""

    name: str


class _MoveNextTo(SchemaChange, frozen=True):
    name: str
    other: str

    def _apply(self, draft: _SchemaDraft) -> None:
        (field, path), (other, other_path) = draft.find(self.name, "moved"), draft.find(self.other)
        if path != other_path:
            raise UsageError(
                f"column {self.name!r} cannot be moved next to {self.other!r}: columns stay in the struct that they are in;"
                " name one of the same struct"
            )
        if field == other:
            raise UsageError(f"column {self.name!r} cannot be moved next to itself")

        pair = (other, field) if isinstance(self, MoveAfter) else (field, other)
        draft.edit(
            path, lambda fields: tuple(f for one in fields if one != field for f in (pair if one == other else (one,)))
        )


class MoveBefore(_MoveNextTo, frozen=True):
    """Put a column before another one of the same struct."""


class MoveAfter(_MoveNextTo, frozen=True):
    """Put a column after another one of the same struct."""


class MakeOptional(SchemaChange, frozen=True):
    """Let a required column, list element or map value be null."""

    name: str


class RequireColumn(SchemaChange, frozen=True):
    """Let an optional column, list element or map value never be null.

    Rows are not checked for nulls, on which reading fails: so this takes `allow_incompatible`, except for a column with a
    default that one of the same changes added.
    """

    name: str
    allow_incompatible: bool = False

    def _apply(self, draft: _SchemaDraft) -> None:
        field, path = draft.find(self.name)
        is_filled = field.field_id in draft.added and field.initial_default is not None
        if not field.required and not is_filled and not self.allow_incompatible:
            raise UsageError(
                f"column {self.name!r} cannot become required: rows may have nulls in it, and reading them would fail; if"
                " you know that there are none, say allow_incompatible=True"
            )
        draft.replace_field(path, replace(field, required=True))


class UpdateColumnType(SchemaChange, frozen=True):
    """Promote a column to a wider type (spec, "Schema Evolution")."""

    name: str
    type: Type | str

    def _apply(self, draft: _SchemaDraft) -> None:
        field, path = draft.find(self.name)
        old, new = field.type, _given_type(self.type, self.name)
        if old == new:
            return
        try:
            validate_promotion(old, new, draft.base.format_version)
        except UsageError as error:
            raise UsageError(f"the type of column {self.name!r} cannot change: {error.message}") from None
        for spec in draft.base.partition_specs:
            for made in spec.fields:
                if field.field_id in made.source_ids and not keeps_partition_values(made.transform, old, new):
                    raise UsageError(
                        f"the type of column {self.name!r} cannot change from {old} to {new}: partition field"
                        f" {made.name!r} of spec {spec.spec_id} would have other values; add a column of the new type"
                    )
        draft.replace_field(path, _with_type(field, draft.numbered(new), self.name))


class UpdateColumnDoc(SchemaChange, frozen=True):
    """Set a column's comment; null removes it."""

    name: str
    doc: str | None


class SetWriteDefault(SchemaChange, frozen=True):
    """Set the default of a column for new rows; existing rows keep their values."""

    name: str
    default: Any


class SetIdentifierFields(SchemaChange, frozen=True):
    """Set the columns that identify a row, or none."""

    names: tuple[str, ...]


class RestoreColumn(SchemaChange, frozen=True):
    """Restore a dropped column with its field id, at the end of its struct: data files still have its values.

    Allowed for an optional column, and for a required one unless a snapshot was made without it.
    """

    name: str

    def _apply(self, draft: _SchemaDraft) -> None:
        field, parent = _dropped_column(draft, self.name)
        if field.required and not _is_in_every_row(draft.base, field.field_id):
            raise UsageError(
                f"column {self.name!r} cannot be restored: it was required, and a snapshot was made without it; add a new"
                " column in its place"
            )
        parent_name = None if parent is None else draft.schema.names_by_id.get(parent.field_id)
        if parent is not None and parent_name is None:
            raise UsageError(
                f"column {self.name!r} cannot be restored: the struct that it was in is gone; restore that one"
            )
        path, prefix = draft.find_struct(parent_name)
        draft.validate_name(field.name, prefix + field.name)
        draft.edit(path, lambda fields: (*fields, field))


def _given_type(given: Type | str, name: str) -> Type:
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
    """A type whose fields have equal defaults: where one is given, it is both."""
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


def _dropped_column(draft: _SchemaDraft, name: str) -> tuple[NestedField, NestedField | None]:
    """The column that last had a name before it was dropped, and its parent."""
    for schema in sorted(draft.base.schemas, key=lambda s: s.schema_id, reverse=True):
        field_id = schema.ids_by_name.get(name)
        if field_id is not None and field_id not in draft.schema.fields_by_id:
            return schema.fields_by_id[field_id], schema.parents_by_id.get(field_id)
    raise NotFoundError(f"no column {name!r} was dropped from a schema that the table still knows", column=name)


def _is_in_every_row(base: TableMetadata, field_id: int) -> bool:
    """Whether the current snapshot, if any, was made with a column."""
    snapshot = base.current_snapshot
    if snapshot is None:
        return True
    schema = None if snapshot.schema_id is None else base.schemas_by_id.get(snapshot.schema_id)
    return schema is not None and field_id in schema.fields_by_id


class SchemaEvolution(msgspec.Struct, frozen=True):
    """A schema after changes, and the last assigned field id of the table."""

    schema: Schema
    last_column_id: int


def evolve_schema(base: TableMetadata, changes: Sequence[SchemaChange]) -> SchemaEvolution:
    """The current schema after changes, in order; an equal schema of the table keeps its id, a new one gets the next id.

    Raises `UsageError` for a change that the spec, the format version, the partition specs or the sort order do not allow,
    `NotFoundError` for a missing column.
    """
    draft = _SchemaDraft(base)
    for change in changes:
        (type(change) if isinstance(change, SchemaChange) else SchemaChange)._apply(change, draft)
    _validate_evolution(base, draft.schema)
    # The current one first: older schemas may be equal to it.
    for existing in (base.schema, *base.schemas):
        if existing.same_columns(draft.schema):
            return SchemaEvolution(existing, draft.last_column_id)
    return SchemaEvolution(replace(draft.schema, schema_id=max(base.schemas_by_id) + 1), draft.last_column_id)


def _validate_evolution(base: TableMetadata, schema: Schema) -> None:
    """Raise `UsageError` if a schema cannot become the current one of a table.

    As in Iceberg's Java library, the source columns of the default partition spec and sort order must stay; those of older
    specs may be dropped.
    """
    try:
        validate_schema(schema)
        check_format_version(schema, base.format_version)
        for field in schema.fields_by_id.values():
            if field.initial_default is not None:
                initial_value(field)
    except InvalidTableError as error:
        raise UsageError(f"the schema cannot change so: {error.message}", **error.facts) from error
    if not schema.fields:
        raise UsageError("the last column of a table cannot be dropped; add another one before")
    for field_id, field in schema.fields_by_id.items():
        if isinstance(field.type, StructType) and not field.type.fields:
            raise UsageError(
                f"struct {schema.names_by_id[field_id]!r} would have no fields, which no data file can hold; drop the"
                " struct itself"
            )
    _refuse_dropped_sources(base, schema)
    _refuse_names_of_partition_fields(base, schema)
    try:
        validate_spec(base.spec, schema)
        validate_sort_order(base.sort_order, schema)
    except InvalidTableError as error:
        raise UsageError(f"the schema cannot change so: {error.message}") from error


def _refuse_dropped_sources(base: TableMetadata, schema: Schema) -> None:
    dropped = base.schema.fields_by_id.keys() - schema.fields_by_id.keys()
    for field in base.spec.fields:
        if field.source_id in dropped and not isinstance(field.transform, Void):
            raise UsageError(
                f"column {base.schema.names_by_id[field.source_id]!r} cannot be dropped: partition field {field.name!r} of"
                f" the default spec is made of it; remove that field with update_spec before"
            )
    for key in base.sort_order.fields:
        if key.source_id in dropped:
            raise UsageError(
                f"column {base.schema.names_by_id[key.source_id]!r} cannot be dropped: the default sort order uses it; set"
                " another one with update_sort_order before"
            )


def _refuse_names_of_partition_fields(base: TableMetadata, schema: Schema) -> None:
    """A new column may not have the name of a partition field of another column: filters could not tell them apart."""
    for spec in base.partition_specs:
        for field in spec.fields:
            field_id = schema.ids_by_name.get(field.name, field.source_id)
            is_new = base.schema.names_by_id.get(field_id) != field.name
            if is_new and field_id != field.source_id and field.source_id in schema.fields_by_id:
                raise UsageError(
                    f"a column cannot be named {field.name!r}: a partition field of the table has that name; give another"
                    " name"
                )
