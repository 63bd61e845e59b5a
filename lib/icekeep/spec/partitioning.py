"""Partition specs: how a row's partition is made of its columns (spec, "Partitioning", Appendix C "Partition Specs").

Partition tuples are plain tuples in the order of the spec's fields; `extra` keeps the JSON keys that we do not know.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote_plus

import msgspec

from icekeep.errors import IcekeepBug, InvalidTableError, UsageError
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import (
    Bucket,
    Day,
    Hour,
    Identity,
    Month,
    Transform,
    Truncate,
    UnknownTransform,
    Void,
    Year,
    known_transform,
    transform_from_json,
    transform_to_json,
)
from icekeep.spec.types import STRING, UNKNOWN, NestedField, PrimitiveType, StructType

FIRST_FIELD_ID = 1000
"""Ids of partition fields start here (spec, "Partition Evolution")."""


class PartitionField(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a partition tuple: a transform of the column `source_id`.

    `extra` holds unknown JSON keys, and the `source-ids` of a transform of several columns.
    """

    source_id: int
    field_id: int
    name: str
    transform: Transform
    extra: Mapping[str, Any] = {}

    @property
    def source_ids(self) -> tuple[int, ...]:
        """The ids of all source columns; only unknown transforms have several."""
        return tuple(self.extra.get("source-ids") or (self.source_id,))


class PartitionSpec(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The fields that make a partition tuple, in order; without fields the table is not partitioned."""

    spec_id: int
    fields: tuple[PartitionField, ...]
    extra: Mapping[str, Any] = {}

    @property
    def is_unpartitioned(self) -> bool:
        """Whether all rows are in one partition: there are no fields but void ones."""
        return all(isinstance(field.transform, Void) for field in self.fields)

    @cached_property
    def has_unknown_transform(self) -> bool:
        """Whether files must not be written with this spec, because partition values cannot be made."""
        return any(isinstance(field.transform, UnknownTransform) for field in self.fields)


UNPARTITIONED = PartitionSpec(spec_id=0, fields=())


def spec_from_json(value: Any) -> PartitionSpec:
    """Build a spec from its JSON object; raises `InvalidTableError` for anything else."""
    if not isinstance(value, dict) or type(value.get("spec-id")) is not int:
        raise InvalidTableError(
            "a partition spec must be an object with a whole number 'spec-id'", section="Appendix C"
        )
    rest = dict(value)
    spec_id = rest.pop("spec-id")
    return PartitionSpec(spec_id=spec_id, fields=partition_fields_from_json(rest.pop("fields", None)), extra=rest)


def partition_fields_from_json(value: Any) -> tuple[PartitionField, ...]:
    """Build the fields from their JSON list alone, as manifests and v1 metadata store them.

    Where no field has an id (v1), ids count up from 1000; `InvalidTableError` if only some have one.
    """
    if not isinstance(value, list) or any(not isinstance(item, dict) for item in value):
        raise InvalidTableError("the fields of a partition spec must be a list of objects", section="Appendix C")
    with_id = sum("field-id" in item for item in value)
    if with_id not in (0, len(value)):
        raise InvalidTableError(
            "some fields of a partition spec have a 'field-id' and some have none", section="Appendix C"
        )
    return tuple(_field_from_json(item, FIRST_FIELD_ID + position) for position, item in enumerate(value))


def spec_to_json(spec: PartitionSpec) -> dict[str, Any]:
    fields = [
        {"name": f.name, "field-id": f.field_id, **transform_to_json(f.source_id, f.transform, f.extra)}
        for f in spec.fields
    ]
    return {"spec-id": spec.spec_id, "fields": fields, **spec.extra}


def build_spec(
    schema: Schema,
    columns: Sequence[tuple[str, str, str | None]],
    *,
    spec_id: int = 0,
    first_field_id: int = FIRST_FIELD_ID,
) -> PartitionSpec:
    """Make a new spec with ids from `first_field_id` on, of `columns`: full name, transform (`bucket[16]`), field name or None.

    A field without a name gets the one that Iceberg's Java library gives it: `ts_day`, `id_bucket`, `name_trunc`, and
    the column's own name for identity. Raises `NotFoundError` for a missing column, `UsageError` for an unknown transform or
    one that does not take the column, and for fields that collide with columns or each other.
    """
    fields: list[PartitionField] = []
    for position, (column, text, name) in enumerate(columns):
        source = schema.field(column)
        transform = known_transform(text)
        name = default_field_name(column, transform) if name is None else name
        validate_field_name(schema, name, source.field_id, transform)
        field_id = first_field_id + position
        fields.append(PartitionField(source_id=source.field_id, field_id=field_id, name=name, transform=transform))
    spec = PartitionSpec(spec_id=spec_id, fields=tuple(fields))
    problems = [*_problems(spec, schema)]
    seen: dict[tuple[int, str], str] = {}
    for field in fields:
        is_time = isinstance(field.transform, Year | Month | Day | Hour)
        other = seen.setdefault((field.source_id, "time" if is_time else str(field.transform)), field.name)
        if other != field.name:
            problems.append(f"field {field.name!r} is redundant beside {other!r}")
    if problems:
        raise UsageError(f"cannot partition by {[c[:2] for c in columns]!r}: {problems[0]}")
    return spec


def validate_spec(spec: PartitionSpec, schema: Schema) -> PartitionSpec:
    """Return the spec, or raise `InvalidTableError` if it does not fit the schema.

    Ids and names are unique; each source is a primitive column in no list or map, of a type that the transform takes. Void and
    unknown transforms need no source column. An older spec of a table need not fit the current schema.
    """
    for problem in _problems(spec, schema):
        raise InvalidTableError(f"partition spec {spec.spec_id} does not fit schema {schema.schema_id}: {problem}")
    return spec


def validate_field_name(schema: Schema, name: str, source_id: int, transform: Transform) -> None:
    """Raise `UsageError` for an empty field name, or that of a column, unless the field holds its values (identity) or none."""
    if not name:
        raise UsageError("a partition field needs a name; give one or leave it to the default")
    same_name = schema.ids_by_name.get(name)
    if same_name is None or (same_name == source_id and isinstance(transform, Identity | Void)):
        return
    raise UsageError(f"partition field {name!r} has the name of a column; give it another name")


def default_field_name(column: str, transform: Transform, *, with_parameter: bool = False) -> str:
    """The name that Iceberg's Java library gives a field; with the parameter (`id_bucket_16`) only if added to a spec."""
    match transform:
        case Identity():
            return column
        case Bucket(parameter) | Truncate(parameter):
            unit = "bucket" if isinstance(transform, Bucket) else "trunc"
            return f"{column}_{unit}_{parameter}" if with_parameter else f"{column}_{unit}"
        case Void():
            return f"{column}_null"
    return f"{column}_{transform}"


def partition_type(spec: PartitionSpec, schema: Schema) -> StructType:
    """The struct of partition tuples: fields with the names and ids of the spec, all optional.

    Without the source column in the schema the type is the transform's own, string for void; `InvalidTableError` if it
    depends on the column.
    """
    fields = []
    for field in spec.fields:
        source = schema.fields_by_id.get(field.source_id)
        if source is None and isinstance(field.transform, Identity | Truncate):
            raise InvalidTableError(
                f"the type of partition field {field.name!r} of spec {spec.spec_id} is not known: its source column"
                f" {field.source_id} is not in schema {schema.schema_id}"
            )
        gone_type = STRING if isinstance(field.transform, Void) else UNKNOWN
        type_ = field.transform.result_type(gone_type if source is None else source.type)
        fields.append(NestedField(field_id=field.field_id, name=field.name, type=type_))
    return StructType(tuple(fields))


def partition_path(spec: PartitionSpec, schema: Schema, values: Sequence[Any]) -> str:
    """The directory of a partition below the data directory, as Iceberg's Java library names it.

    For example `ts_day=2013-01-05/kind=a%2Fb`; empty for a spec without fields.
    """
    if len(values) != len(spec.fields):
        raise IcekeepBug(f"partition {tuple(values)!r} has not the {len(spec.fields)} values of spec {spec.spec_id}")
    parts = []
    for field, value in zip(spec.fields, values, strict=True):
        source = schema.fields_by_id.get(field.source_id)
        text = field.transform.to_text(UNKNOWN if source is None else source.type, value)
        # As Java's URLEncoder with UTF-8: unlike Python's it keeps "*" and encodes "~".
        pair = (quote_plus(part, safe="*", errors="replace").replace("~", "%7E") for part in (field.name, text))
        parts.append("=".join(pair))
    return "/".join(parts)


def identity_values(spec: PartitionSpec, values: Sequence[Any]) -> dict[int, Any]:
    """A partition's values of identity columns, which its files may lack, by column id (spec, "Column Projection")."""
    return {
        field.source_id: value
        for field, value in zip(spec.fields, values, strict=True)
        if isinstance(field.transform, Identity)
    }


def last_assigned_field_id(specs: Iterable[PartitionSpec]) -> int:
    """The greatest field id in any of the specs, 999 when there is none."""
    return max((field.field_id for spec in specs for field in spec.fields), default=FIRST_FIELD_ID - 1)


def _field_from_json(value: dict[str, Any], default_field_id: int) -> PartitionField:
    rest = dict(value)
    name, field_id = rest.pop("name", None), rest.pop("field-id", default_field_id)
    if not isinstance(name, str) or not name:
        raise InvalidTableError(f"a partition field has the name {name!r}; it must be text", section="Appendix C")
    if type(field_id) is not int:
        raise InvalidTableError(f"partition field {name!r} has the field-id {field_id!r}", section="Appendix C")
    source_id, transform = transform_from_json(rest, f"partition field {name!r}")
    return PartitionField(source_id=source_id, field_id=field_id, name=name, transform=transform, extra=rest)


def _problems(spec: PartitionSpec, schema: Schema) -> Iterator[str]:
    field_ids: set[int] = set()
    names: set[str] = set()
    for field in spec.fields:
        if field.field_id in field_ids:
            yield f"two fields have the id {field.field_id}"
        if field.name in names:
            yield f"two fields have the name {field.name!r}"
        field_ids.add(field.field_id)
        names.add(field.name)
        if isinstance(field.transform, Void | UnknownTransform):
            continue
        source = schema.fields_by_id.get(field.source_id)
        if source is None:
            yield f"the source column {field.source_id} of field {field.name!r} is not in the schema"
        elif any(not isinstance(outer.type, StructType) for outer in schema.enclosing_fields(field.source_id)):
            yield f"the source column of field {field.name!r} is in a list or a map"
        elif not isinstance(source.type, PrimitiveType):
            yield f"the source column {source.name!r} of field {field.name!r} is not primitive"
        elif not field.transform.accepts(source.type):
            yield f"transform {str(field.transform)!r} does not take column {source.name!r} of type {source.type}"
