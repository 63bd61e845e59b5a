"""Apply changes to a table's default partition spec (spec, "Partition Evolution").

Manifests keep partition values by the ids of partition fields, so an id never changes what it stands for: a field that
was there before, the same transform of the same column, gets its id again, any other one a new id. Pure.
"""

from collections.abc import Sequence
from functools import singledispatch

import msgspec
from msgspec.structs import replace

from icekeep.errors import InvalidTableError, NotFoundError, UsageError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import (
    FIRST_FIELD_ID,
    PartitionField,
    PartitionSpec,
    validate_field_name,
    validate_spec,
)
from icekeep.spec.transforms import (
    Bucket,
    Day,
    Hour,
    Identity,
    Month,
    Transform,
    Truncate,
    Void,
    Year,
    known_transform,
)


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
