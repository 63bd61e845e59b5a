"""A table's schema (spec, "Schemas and Data Types", Appendix C), defaults, name mapping, and columns that no schema names.

Default values (spec, "Default values") are stored as JSON, and are here whole values in the form of `values.py`: a struct's
own default is null or `{}`, which the defaults of its fields fill.

A name mapping gives field ids to data files without them, by name (spec, "Column Projection"): a tree like a schema's, below
a struct its fields, below a list `element`, below a map `key` and `value`. A name is never a path: `a.b` is one with a dot.

Metadata columns (spec, "Reserved Field IDs") are ordinary fields with reserved ids: readers fill in those that the schema of a
read has. The columns of position delete files are among them, stored under these ids.
"""

import datetime
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from itertools import count
from typing import Any

import msgspec

from icekeep.errors import InvalidTableError, NotFoundError, UnsupportedError, UsageError, and_more
from icekeep.spec.types import (
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    MAX_COLUMN_ID,
    OPAQUE,
    STRING,
    UNKNOWN,
    VARIANT,
    DecimalType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    check_nesting,
    child_fields,
    field_from_json,
    field_to_json,
    walk,
    with_child_fields,
)
from icekeep.spec.values import decimal_from_unscaled, map_nested, unscaled, value_from_json, value_to_json
from icekeep.spelling import did_you_mean, near_words

_ALWAYS_NULL = {"unknown", "variant", "geometry", "geography"}


def initial_value(field: NestedField) -> Any:
    """The value of a field in rows that were written before the field was added; null where it has no default.

    Raises `InvalidTableError` for a required field without one.
    """
    value = _with_defaults(field.type, value_from_json(field.type, field.initial_default), initial_value)
    if value is None and field.required:
        raise InvalidTableError(
            f"field {field.name!r} (id {field.field_id}) is required and has no initial-default, but rows lack it",
            section="Default values",
        )
    return value


def write_value(field: NestedField) -> Any:
    """The value that a writer stores for a field without a value in its input; null where it has no default.

    Raises `UsageError` for a required field without one.
    """
    value = _with_defaults(field.type, value_from_json(field.type, field.write_default), write_value)
    if value is None and field.required:
        raise UsageError(
            f"field {field.name!r} (id {field.field_id}) is required and has no write-default; give it a value in each row"
        )
    return value


def validate_defaults(field: NestedField, name: str) -> None:
    """Raise `InvalidTableError` if a default does not fit the field's type; `name` is the field's full name."""
    for key, default in (("initial-default", field.initial_default), ("write-default", field.write_default)):
        if default is not None and (problem := _default_problem(field.type, default)) is not None:
            raise InvalidTableError(
                f"the {key} {default!r} of column {name!r} is none for its type {field.type}: {problem}",
                column=name,
                section="Default values",
            )


def default_to_json(type_: Type, default: Any) -> Any:
    """The stored form of a default that a user gives; raises `UsageError` if it is no default for the type.

    A default is given in the JSON form of the spec (Appendix D), such as a number, a text, `2024-01-31` for a date, `{}` for a
    struct; or as Python's own date, time, datetime, UUID, bytes or Decimal; null for none.
    """
    stored = default
    match default:
        case bytes():
            stored = default.hex()
        case uuid.UUID():
            stored = str(default)
        case datetime.date() | datetime.time():
            stored = default.isoformat()
        case Decimal() | int() if isinstance(type_, DecimalType) and not isinstance(default, bool):
            # Fewer digits after the point than the type has are fine, more are not.
            try:
                stored = format(decimal_from_unscaled(unscaled(Decimal(default), type_.scale), type_.scale), "f")
            except ValueError:
                stored = str(default)
    problem = None if stored is None else _default_problem(type_, stored)
    if problem is not None:
        raise UsageError(f"{default!r} is no default for the type {type_}: {problem}")
    return value_to_json(type_, value_from_json(type_, stored)) if isinstance(type_, PrimitiveType) else stored


def _default_problem(type_: Type, default: Any) -> str | None:
    if isinstance(type_, PrimitiveType) and type_.name in _ALWAYS_NULL:
        return "such columns default to null"
    if isinstance(type_, StructType):
        return None if default == {} else "it must be null or {}, which the defaults of its fields fill"
    try:
        value = value_from_json(type_, default)
    except (InvalidTableError, UnsupportedError) as error:
        return error.message
    return "it holds null for a required value" if _lacks_required(type_, value) else None


def _lacks_required(type_: Type, value: Any) -> bool:
    if isinstance(type_, PrimitiveType):
        return False
    lacking: list[bool] = []
    map_nested(
        type_,
        value,
        lambda field, item: lacking.append(field.required if item is None else _lacks_required(field.type, item)),
    )
    return any(lacking)


def _with_defaults(type_: Type, value: Any, default_of: Callable[[NestedField], Any]) -> Any:
    """A value whose structs have all their fields; missing ones take their own defaults."""
    if value is None or isinstance(type_, PrimitiveType):
        return value
    filled = map_nested(type_, value, lambda field, item: _with_defaults(field.type, item, default_of))
    if isinstance(type_, StructType):
        return {f.field_id: filled[f.field_id] if f.field_id in filled else default_of(f) for f in type_.fields}
    return filled


_MAX_SHOWN = 10
"""How many columns an error lists."""

_LONGEST_COMPARED = 200
_TYPES_SINCE_V3 = {"timestamp_ns", "timestamptz_ns", "unknown", "variant", "geometry", "geography"}


class Schema(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Named columns with ids; `identifier_field_ids` are the columns whose values identify a row, `extra` unknown JSON keys."""

    fields: tuple[NestedField, ...]
    schema_id: int = 0
    identifier_field_ids: tuple[int, ...] = ()
    extra: Mapping[str, Any] = {}

    def as_struct(self) -> StructType:
        return StructType(self.fields)

    @cached_property
    def fields_by_id(self) -> dict[int, NestedField]:
        """Every field at every depth, list elements and map keys and values included, by field id."""
        return {field.field_id: field for field in walk(self.as_struct())}

    @cached_property
    def names_by_id(self) -> dict[int, str]:
        """Full names by field id, parents and children joined by dots."""
        names: dict[int, str] = {}
        prefixes = {field.field_id: "" for field in self.fields}
        for field in walk(self.as_struct()):
            names[field.field_id] = prefixes[field.field_id] + field.name
            prefixes |= {inner.field_id: f"{names[field.field_id]}." for inner in child_fields(field.type)}
        return names

    @cached_property
    def parents_by_id(self) -> dict[int, NestedField]:
        """The parent of each nested field, by the nested field's id."""
        return {c.field_id: field for field in self.fields_by_id.values() for c in child_fields(field.type)}

    def enclosing_fields(self, field_id: int) -> list[NestedField]:
        """The fields that a field lies in, the innermost first."""
        out: list[NestedField] = []
        # In an invalid schema a field may lie in one of the same id.
        while (outer := self.parents_by_id.get(field_id)) is not None and outer not in out:
            out.append(outer)
            field_id = outer.field_id
        return out

    @cached_property
    def ids_by_name(self) -> dict[str, int]:
        return {name: field_id for field_id, name in self.names_by_id.items()}

    @property
    def highest_field_id(self) -> int:
        """The greatest field id in use, 0 for a schema without columns."""
        return max(self.fields_by_id, default=0)

    def field(self, name: str) -> NestedField:
        """The field with a full name, as written; raises `NotFoundError` if there is none."""
        field_id = self.ids_by_name.get(name)
        if field_id is None:
            meant = meant_column(name, self.ids_by_name, [one.name for one in self.fields])
            raise NotFoundError(f"there is no column {name!r}; {meant}", column=name)
        return self.fields_by_id[field_id]

    def same_columns(self, other: "Schema") -> bool:
        """Whether two schemas differ in their ids only."""
        return self.fields == other.fields and set(self.identifier_field_ids) == set(other.identifier_field_ids)


def meant_column(name: str, names: Iterable[str], shown: Sequence[str], what: str = "the columns") -> str:
    """The end of an error on a name that is no column: similar `names`, also by their last part alone, else those `shown`.

    >>> meant_column("City", ["home", "home.city"], ["home"]), meant_column("x", ["home", "home.city"], ["home"])
    ("did you mean 'home.city'?", 'the columns are home')
    """
    names = [*names]
    by_lower = {one.rpartition(".")[2].lower(): one for one in names} | {one.lower(): one for one in names}
    lower = name.lower()
    near = [by_lower[lower]] if lower in by_lower else []
    if not near and len(name) <= _LONGEST_COMPARED:
        near = [by_lower[close] for close in near_words(lower, by_lower)]
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
    # Full names, which columns are named by: a column "a.b" and a field b of a struct a would have one name.
    for name, times in Counter(schema.names_by_id.values()).items():
        if times > 1:
            raise InvalidTableError(f"{where} has two fields named {name!r}")
    for field_id, field in schema.fields_by_id.items():
        name = schema.names_by_id[field_id]
        if field.required and field.type == UNKNOWN:
            raise InvalidTableError(f"{where}: column {name!r} of type unknown is required; it must be optional")
        validate_defaults(field, name)
    _validate_identifiers(schema, where)
    return schema


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
        if field.required and isinstance(field.type, StructType):
            yield from _identifiable(field.type)
        elif field.required and isinstance(field.type, PrimitiveType) and field.type not in (FLOAT, DOUBLE, VARIANT):
            yield field.field_id


def check_format_version(schema: Schema, format_version: int) -> None:
    """Raise `InvalidTableError` if types or defaults are newer than a table's format version (spec, Appendix E "Version 3")."""
    if format_version >= 3:
        return
    for field_id, field in schema.fields_by_id.items():
        name = schema.names_by_id[field_id]
        if isinstance(field.type, PrimitiveType) and field.type.name in _TYPES_SINCE_V3:
            raise InvalidTableError(
                f"column {name!r} is of type {field.type}, which only format version 3 has; the table has version"
                f" {format_version}: give the column another type, or the table that version",
                column=name,
            )
        if field.initial_default is not None or field.write_default is not None:
            raise InvalidTableError(
                f"column {name!r} has a default, which only format version 3 has; the table has version {format_version}:"
                " leave the default out, or give the table that version",
                column=name,
            )


def schema_from_json(value: Any) -> Schema:
    """Build a schema from its JSON object; raises `InvalidTableError` where it breaks a rule of the spec."""
    return validate_schema(unvalidated_schema(value))


def unvalidated_schema(value: Any) -> Schema:
    """Build a schema without the checks of `validate_schema`; raises `InvalidTableError` for a missing or wrong key."""
    if (
        not isinstance(value, dict)
        or value.get("type", "struct") != "struct"
        or not isinstance(value.get("fields"), list)
    ):
        raise InvalidTableError(
            "a schema must be an object of type 'struct' with a list of fields", section="Appendix C"
        )
    extra = dict(value)
    extra.pop("type", None)
    fields = tuple(map(field_from_json, extra.pop("fields")))
    schema_id = extra.pop("schema-id", 0)
    identifiers = extra.pop("identifier-field-ids", None)
    identifiers = [] if identifiers is None else identifiers
    if type(schema_id) is not int or not isinstance(identifiers, list) or any(type(i) is not int for i in identifiers):
        raise InvalidTableError("schema-id and identifier-field-ids must be whole numbers", section="Appendix C")
    return Schema(fields=fields, schema_id=schema_id, identifier_field_ids=tuple(identifiers), extra=extra)


def schema_to_json(schema: Schema) -> dict[str, Any]:
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

    `fresh` is filled with the new id of each old one.
    """
    fields = []
    for field in child_fields(type_):
        fields.append(msgspec.structs.replace(field, field_id=next_id()))
        if fresh is not None:
            fresh[field.field_id] = fields[-1].field_id
    below = tuple(msgspec.structs.replace(f, type=renumbered(f.type, next_id, fresh)) for f in fields)
    return with_child_fields(type_, below)


NAME_MAPPING_PROPERTY = "schema.name-mapping.default"


class MappedField(msgspec.Struct, frozen=True, kw_only=True):
    """The names that a field may have in a file, and its id; null where the table has no such field, or dropped it."""

    names: tuple[str, ...]
    field_id: int | None = None
    fields: tuple["MappedField", ...] = ()


NameMapping = tuple[MappedField, ...]


def name_mapping_of(properties: Mapping[str, str]) -> NameMapping | None:
    """The mapping in a table's properties; raises as `parse_name_mapping` does."""
    text = properties.get(NAME_MAPPING_PROPERTY)
    return None if text is None else parse_name_mapping(text)


def parse_name_mapping(text: str) -> NameMapping:
    """Read a mapping from its JSON form; raises `InvalidTableError`, also for a name twice at one level or a field id twice."""
    try:
        return _mapped_fields(msgspec.json.decode(text), "", set())
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise _invalid_mapping(f"is not JSON: {error}") from error


def _mapped_fields(value: Any, path: str, ids: set[int]) -> NameMapping:
    where = f"at {path!r}" if path else "at its top"
    if not isinstance(value, list):
        raise _invalid_mapping(f"is not a list of fields {where}")
    fields: list[MappedField] = []
    all_names: set[str] = set()
    for item in value:
        if not isinstance(item, dict):
            raise _invalid_mapping(f"holds {item!r} {where}, where a field's object must be")
        names, field_id, inner = item.get("names"), item.get("field-id"), item.get("fields")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _invalid_mapping(f"has a field {where} whose 'names' are {names!r}; they must be a list of text")
        if field_id is not None and type(field_id) is not int:
            raise _invalid_mapping(f"has a field {where} whose 'field-id' is {field_id!r}; it must be a whole number")
        if field_id in ids:
            raise _invalid_mapping(f"maps to the field id {field_id} twice")
        if field_id is not None:
            ids.add(field_id)
        for name in names:
            if name in all_names:
                raise _invalid_mapping(f"has the name {name!r} twice {where}")
            all_names.add(name)
        label = names[0] if names else str(field_id)
        below = () if inner is None else _mapped_fields(inner, f"{path}.{label}" if path else label, ids)
        fields.append(MappedField(names=tuple(names), field_id=field_id, fields=below))
    return tuple(fields)


def _invalid_mapping(problem: str) -> InvalidTableError:
    text = f"table property {NAME_MAPPING_PROPERTY!r} {problem}"
    return InvalidTableError(text, property=NAME_MAPPING_PROPERTY, section="Appendix C")


def name_mapping_for(parent: Schema | Type) -> NameMapping:
    """The mapping that finds each field of a schema, or below a type, under its present name."""
    fields = parent.fields if isinstance(parent, Schema) else child_fields(parent)
    return tuple(
        MappedField(names=(field.name,), field_id=field.field_id, fields=name_mapping_for(field.type))
        for field in fields
    )


def name_mapping_to_json(mapping: NameMapping) -> list[dict[str, Any]]:
    out = []
    for field in mapping:
        item: dict[str, Any] = {"names": list(field.names)}
        if field.field_id is not None:
            item["field-id"] = field.field_id
        if field.fields:
            item["fields"] = name_mapping_to_json(field.fields)
        out.append(item)
    return out


def _column(field_id: int, name: str, type_: Type, *, required: bool = True) -> NestedField:
    return NestedField(field_id=field_id, name=name, type=type_, required=required)


FILE = _column(2147483646, "_file", STRING)
POS = _column(2147483645, "_pos", LONG)
DELETED = _column(2147483644, "_deleted", BOOLEAN)
SPEC_ID = _column(2147483643, "_spec_id", INT)
PARTITION_ID = 2147483642
"""The id of `_partition`, whose type depends on the table: see `partition_column`."""

DELETE_FILE_PATH = _column(2147483546, "file_path", STRING)
DELETE_FILE_POS = _column(2147483545, "pos", LONG)
DELETE_FILE_ROW_ID = 2147483544
"""The id of `row`, whose type depends on the table: see `deleted_row_column`."""

ROW_ID = _column(2147483540, "_row_id", LONG, required=False)
LAST_UPDATED_SEQUENCE_NUMBER = _column(2147483539, "_last_updated_sequence_number", LONG, required=False)


def partition_column(partition_types: Iterable[StructType]) -> NestedField:
    """The column `_partition`: a struct of the partition fields of all specs, by field id; null in rows whose spec lacks one.

    Where specs disagree on a field of one id, the later one in `partition_types` gives its name and type.
    """
    fields: dict[int, NestedField] = {}
    for struct in partition_types:
        for field in struct.fields:
            type_ = STRING if field.type == OPAQUE else field.type
            fields[field.field_id] = NestedField(field_id=field.field_id, name=field.name, type=type_)
    return _column(PARTITION_ID, "_partition", StructType(tuple(fields.values())), required=False)


def deleted_row_column(row: StructType) -> NestedField:
    """The column `row` of a position delete file: the values of the deleted row, in columns of the table."""
    return _column(DELETE_FILE_ROW_ID, "row", row, required=False)
