"""A table's schema: a struct with an id (spec, "Schemas and Data Types", Appendix C "Schemas")."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import Any

import msgspec

from icekeep.errors import InvalidTableError, NotFoundError, and_more
from icekeep.spec.defaults import validate_defaults
from icekeep.spec.type_json import field_from_json, field_to_json
from icekeep.spec.types import (
    DOUBLE,
    FLOAT,
    MAX_COLUMN_ID,
    UNKNOWN,
    VARIANT,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    check_nesting,
    child_fields,
    walk,
    with_child_fields,
)
from icekeep.spelling import did_you_mean, near_words

_MAX_SHOWN = 10
"""Of more columns an error names the first ones."""

_LONGEST_COMPARED = 200
_TYPES_SINCE_V3 = {"timestamp_ns", "timestamptz_ns", "unknown", "variant", "geometry", "geography"}


class Schema(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Named columns with ids; `identifier_field_ids` are the columns whose values identify a row.

    `extra` holds the keys of the JSON object that we do not know.
    """

    fields: tuple[NestedField, ...]
    schema_id: int = 0
    identifier_field_ids: tuple[int, ...] = ()
    extra: Mapping[str, Any] = {}

    def as_struct(self) -> StructType:
        """The schema as a struct type, without its id."""
        return StructType(self.fields)

    @cached_property
    def fields_by_id(self) -> dict[int, NestedField]:
        """Every field at every depth, list elements and map keys and values included, by field id."""
        return {field.field_id: field for field in walk(self.as_struct())}

    @cached_property
    def names_by_id(self) -> dict[int, str]:
        """The full name of every field by id, parents and children joined by dots."""
        names: dict[int, str] = {}

        def visit(type_: Type, prefix: str) -> None:
            for field in child_fields(type_):
                names[field.field_id] = prefix + field.name
                visit(field.type, f"{prefix}{field.name}.")

        visit(self.as_struct(), "")
        return names

    @cached_property
    def parents_by_id(self) -> dict[int, NestedField]:
        """The field that each nested field lies right in, by the nested field's id."""
        return {c.field_id: field for field in self.fields_by_id.values() for c in child_fields(field.type)}

    @cached_property
    def ids_by_name(self) -> dict[str, int]:
        """Field ids by full name."""
        return {name: field_id for field_id, name in self.names_by_id.items()}

    @property
    def highest_field_id(self) -> int:
        """The greatest field id in use, 0 for a schema without columns."""
        return max(self.fields_by_id, default=0)

    def field(self, name: str) -> NestedField:
        """The field with a full name, as written.

        Raises:
            NotFoundError: the schema has no such column.
        """
        field_id = self.ids_by_name.get(name)
        if field_id is None:
            meant = meant_column(name, self.ids_by_name, [one.name for one in self.fields])
            raise NotFoundError(f"there is no column {name!r}; {meant}", column=name)
        return self.fields_by_id[field_id]

    def same_columns(self, other: "Schema") -> bool:
        """Whether two schemas differ in their ids only."""
        return self.fields == other.fields and set(self.identifier_field_ids) == set(other.identifier_field_ids)


def meant_column(name: str, known: Iterable[str], shown: Sequence[str], what: str = "the columns") -> str:
    """What an error says behind a name that is no column: those that may be meant, also by the last part alone, else `shown`.

    Args:
        known: all names that there are.
        shown: those that are listed where none is near; `what` they are.

    >>> meant_column("City", ["home", "home.city"], ["home"]), meant_column("x", ["home", "home.city"], ["home"])
    ("did you mean 'home.city'?", 'the columns are home')
    """
    known = [*known]
    by_lower = {one.rpartition(".")[2].lower(): one for one in known} | {one.lower(): one for one in known}
    wanted = name.lower()
    near = [by_lower[wanted]] if wanted in by_lower else []
    if not near and len(name) <= _LONGEST_COMPARED:
        near = [by_lower[close] for close in near_words(wanted, by_lower)]
    if near:
        return did_you_mean(dict.fromkeys(near))
    return f"{what} are {', '.join(shown[:_MAX_SHOWN]) or 'none'}{and_more(shown, _MAX_SHOWN)}"


def validate_schema(schema: Schema) -> Schema:
    """Return the schema, or raise `InvalidTableError` if it breaks a rule of the spec.

    Field ids are unique and not reserved, full names are unique, unknown columns are optional, defaults fit their types,
    identifier fields exist, are required and lie in no list or map, nor in an optional struct.
    """
    where = f"schema {schema.schema_id}"
    for column in schema.fields:
        check_nesting(column.type)
    seen: set[int] = set()
    for field in walk(schema.as_struct()):
        if field.field_id in seen:
            raise InvalidTableError(f"{where} uses the field id {field.field_id} twice")
        if field.field_id > MAX_COLUMN_ID:
            raise InvalidTableError(f"{where} uses the reserved field id {field.field_id}")
        seen.add(field.field_id)
    # Full names, as columns are asked for by them: a column "a.b" and a field b of a struct a would be one name.
    for name, times in Counter(schema.names_by_id.values()).items():
        if times > 1:
            raise InvalidTableError(f"{where} has two fields named {name!r}")
    for field_id, field in schema.fields_by_id.items():
        if field.required and field.type == UNKNOWN:
            raise InvalidTableError(
                f"{where}: column {schema.names_by_id[field_id]!r} of type unknown is required; it must be optional"
            )
        if field.initial_default is not None or field.write_default is not None:
            validate_defaults(field, schema.names_by_id[field_id])
    _validate_identifiers(schema, where)
    return schema


def check_format_version(schema: Schema, format_version: int) -> None:
    """Raise `InvalidTableError` if a table of a format version may not have a schema: its types and defaults are newer.

    Spec: Appendix E, "Version 3".
    """
    for field_id, field in schema.fields_by_id.items():
        name = schema.names_by_id[field_id]
        if format_version < 3 and isinstance(field.type, PrimitiveType) and field.type.name in _TYPES_SINCE_V3:
            raise InvalidTableError(
                f"column {name!r} is of type {field.type}, which only format version 3 has; the table has version"
                f" {format_version}: give the column another type, or the table that version",
                column=name,
            )
        if format_version < 3 and (field.initial_default is not None or field.write_default is not None):
            raise InvalidTableError(
                f"column {name!r} has a default, which only format version 3 has; the table has version {format_version}:"
                " leave the default out, or give the table that version",
                column=name,
            )


def _validate_identifiers(schema: Schema, where: str) -> None:
    identifiable = set(_identifiable(schema.as_struct()))
    for field_id in schema.identifier_field_ids:
        if field_id not in identifiable:
            name = schema.names_by_id.get(field_id)
            raise InvalidTableError(
                f"{where}: {f'field id {field_id}' if name is None else f'column {name!r}'} cannot identify rows; an"
                " identifier is a required primitive other than float and double, in no list, map or optional struct"
            )


def _identifiable(struct: StructType) -> Iterable[int]:
    for field in struct.fields:
        if not field.required:
            continue
        if isinstance(field.type, StructType):
            yield from _identifiable(field.type)
        elif isinstance(field.type, PrimitiveType) and field.type not in (FLOAT, DOUBLE, VARIANT):
            yield field.field_id


def schema_from_json(value: Any) -> Schema:
    """Build a schema from its JSON object; raises `InvalidTableError` where it is not one."""
    return validate_schema(unvalidated_schema(value))


def unvalidated_schema(value: Any) -> Schema:
    """Build a schema of which no more is known than that its JSON object has the keys and types that it must have.

    Raises:
        InvalidTableError: a key is missing or wrong. What `validate_schema` looks at may be wrong all the same.
    """
    if (
        not isinstance(value, dict)
        or value.get("type", "struct") != "struct"
        or not isinstance(value.get("fields"), list)
    ):
        raise InvalidTableError(
            "a schema must be an object of type 'struct' with a list of fields", section="Appendix C"
        )
    known = dict(value)
    known.pop("type", None)
    fields = tuple(map(field_from_json, known.pop("fields")))
    schema_id = known.pop("schema-id", 0)
    identifiers = known.pop("identifier-field-ids", None)
    identifiers = [] if identifiers is None else identifiers
    if type(schema_id) is not int or not isinstance(identifiers, list) or any(type(i) is not int for i in identifiers):
        raise InvalidTableError("schema-id and identifier-field-ids must be whole numbers", section="Appendix C")
    return Schema(fields=fields, schema_id=schema_id, identifier_field_ids=tuple(identifiers), extra=known)


def schema_to_json(schema: Schema) -> dict[str, Any]:
    """The JSON object of a schema."""
    out: dict[str, Any] = {
        "type": "struct", "schema-id": schema.schema_id, "fields": [field_to_json(f) for f in schema.fields],
    }  # fmt: skip
    if schema.identifier_field_ids:
        out["identifier-field-ids"] = list(schema.identifier_field_ids)
    out.update(schema.extra)
    return out


def assign_fresh_ids(schema: Schema) -> Schema:
    """The same columns with field ids counted from 1 (a new table's ids), each level before the level below it."""
    for column in schema.fields:
        check_nesting(column.type)
    counter = count(1)
    fresh: dict[int, int] = {}
    struct = renumbered(schema.as_struct(), lambda: next(counter), fresh)
    assert isinstance(struct, StructType)
    if lost := [field_id for field_id in schema.identifier_field_ids if field_id not in fresh]:
        raise InvalidTableError(f"field id {lost[0]} cannot identify rows: the schema has no such field")
    return validate_schema(
        Schema(
            fields=struct.fields,
            identifier_field_ids=tuple(fresh[i] for i in schema.identifier_field_ids),
            extra=schema.extra,
        )
    )


def renumbered(type_: Type, next_id: Callable[[], int], fresh: dict[int, int] | None = None) -> Type:
    """A type with new field ids, all those of one level before those below it, as Iceberg's Java library gives them.

    Args:
        next_id: gives the ids.
        fresh: is filled with the new id of each old one.
    """
    fields = []
    for field in child_fields(type_):
        fields.append(msgspec.structs.replace(field, field_id=next_id()))
        if fresh is not None:
            fresh[field.field_id] = fields[-1].field_id
    below = tuple(msgspec.structs.replace(f, type=renumbered(f.type, next_id, fresh)) for f in fields)
    return with_child_fields(type_, below)
