"""Default values of struct fields (spec, "Default values"): what a row has where nobody gave a value.

A field stores its defaults in JSON. A struct's own default is null or `{}`, and the defaults of its fields fill it; here
they become whole values, in the form of `values.py`.

A table's schema: a struct with an id (spec, "Schemas and Data Types", Appendix C "Schemas").

Field ids by name, for data files that carry none (spec, "Column Projection", Appendix C "Name Mapping Serialization").

A mapping is a tree of fields like a schema's: below a struct its fields, below a list `element`, below a map `key` and
`value`. A name is one name, never a path: `a.b` is a column with a dot in its name.

Columns that every table has though no schema names them (spec, "Reserved Field IDs").

They are ordinary fields with reserved ids: put one into a schema that is read with, and the reader fills it in. The
columns of position delete files are among them, since those files store them under their ids.
"""

import datetime
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from itertools import count
from typing import Any

import msgspec

from icekeep.errors import IcekeepBug, InvalidTableError, NotFoundError, UnsupportedError, UsageError, and_more
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
    ListType,
    MapType,
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
from icekeep.spec.values import decimal_from_unscaled, unscaled, value_from_json, value_to_json
from icekeep.spelling import did_you_mean, near_words

_ALWAYS_NULL = {"unknown", "variant", "geometry", "geography"}


def initial_value(field: NestedField) -> Any:
    """The value of a field in rows that were written before the field was added; null where it has no default.

    Raises:
        InvalidTableError: the field is required and has no `initial-default`, or a field that fills it is so.
    """
    value = _filled(field.type, value_from_json(field.type, field.initial_default), initial_value)
    if value is None and field.required:
        raise InvalidTableError(
            f"field {field.name!r} (id {field.field_id}) is required and has no initial-default, but rows lack it",
            section="Default values",
        )
    return value


def write_value(field: NestedField) -> Any:
    """The value that a writer stores for a field which it was given no value for; null where it has no default.

    Raises:
        UsageError: the field is required and has no `write-default`, or a field that fills it is so.
    """
    value = _filled(field.type, value_from_json(field.type, field.write_default), write_value)
    if value is None and field.required:
        raise UsageError(
            f"field {field.name!r} (id {field.field_id}) is required and has no write-default; give it a value in each row"
        )
    return value


def validate_defaults(field: NestedField, name: str) -> None:
    """Raise `InvalidTableError` if a default of a field is not one that the spec allows for its type.

    Args:
        name: the field's full name, for the error.
    """
    for key, default in (("initial-default", field.initial_default), ("write-default", field.write_default)):
        problem = None if default is None else _problem(field.type, default)
        if problem is not None:
            raise InvalidTableError(
                f"the {key} {default!r} of column {name!r} is none for its type {field.type}: {problem}",
                column=name,
                section="Default values",
            )


def default_to_json(type_: Type, default: Any) -> Any:
    """The stored form of a default that a user gives.

    Args:
        default: the JSON form of a value in the spec (Appendix D), such as a number, a text, `2024-01-31` for a date, `{}`
            for a struct; or Python's own date, time, datetime, UUID, bytes, Decimal; null for none.

    Raises:
        UsageError: it is no default for the type; says why.
    """
    stored = _plain(type_, default)
    problem = None if stored is None else _problem(type_, stored)
    if problem is not None:
        raise UsageError(f"{default!r} is no default for the type {type_}: {problem}")
    return value_to_json(type_, value_from_json(type_, stored)) if isinstance(type_, PrimitiveType) else stored


def _plain(type_: Type, default: Any) -> Any:
    match default:
        case bytes():
            return default.hex()
        case uuid.UUID():
            return str(default)
        case datetime.date() | datetime.time():
            return default.isoformat()
        case Decimal() | int() if isinstance(type_, DecimalType) and not isinstance(default, bool):
            # Fewer digits after the point than the type has are fine, more are not.
            try:
                return format(decimal_from_unscaled(unscaled(Decimal(default), type_.scale), type_.scale), "f")
            except ValueError:
                return str(default)
    return default


def _problem(type_: Type, default: Any) -> str | None:
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
    match type_:
        case _ if value is None:
            return False
        case StructType():
            given = [f for f in type_.fields if f.field_id in value]
            return any(
                (value[f.field_id] is None and f.required) or _lacks_required(f.type, value[f.field_id]) for f in given
            )
        case ListType():
            return any(
                (item is None and type_.element_required) or _lacks_required(type_.element, item) for item in value
            )
        case MapType():
            return any(
                key is None
                or (item is None and type_.value_required)
                or _lacks_required(type_.key, key)
                or _lacks_required(type_.value, item)
                for key, item in value
            )
    return False


def _filled(type_: Type, value: Any, default_of: Callable[[NestedField], Any]) -> Any:
    """A value whose structs have all their fields, those that it does not give from their own defaults."""
    match type_:
        case _ if value is None:
            return None
        case StructType():
            return {
                f.field_id: _filled(f.type, value[f.field_id], default_of) if f.field_id in value else default_of(f)
                for f in type_.fields
            }
        case ListType():
            return tuple(_filled(type_.element, item, default_of) for item in value)
        case MapType():
            return tuple(
                (_filled(type_.key, key, default_of), _filled(type_.value, item, default_of)) for key, item in value
            )
        case PrimitiveType():
            return value
    raise IcekeepBug(f"there is no type {type_!r}")


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


PROPERTY = "schema.name-mapping.default"


class MappedField(msgspec.Struct, frozen=True, kw_only=True):
    """The names that a field may have in a file, and its id; null where the table has no such field (any more)."""

    names: tuple[str, ...]
    field_id: int | None = None
    fields: tuple["MappedField", ...] = ()


NameMapping = tuple[MappedField, ...]


def name_mapping_of(properties: Mapping[str, str]) -> NameMapping | None:
    """The mapping in a table's properties, `None` where there is none; raises as `parse_name_mapping` does."""
    text = properties.get(PROPERTY)
    return None if text is None else parse_name_mapping(text)


def parse_name_mapping(text: str) -> NameMapping:
    """Read a mapping from its JSON form.

    Raises:
        InvalidTableError: the text is not JSON, not a mapping, or maps a name of one level or a field id twice.
    """
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise _invalid(f"is not JSON: {error}") from error
    mapping = _fields(decoded, "")
    seen: set[int] = set()
    for field in _walk(mapping):
        if field.field_id in seen:
            raise _invalid(f"maps to the field id {field.field_id} twice")
        if field.field_id is not None:
            seen.add(field.field_id)
    return mapping


def find(mapping: NameMapping, name: str) -> MappedField | None:
    """The field of one level that a name stands for, null if none does."""
    return next((field for field in mapping if name in field.names), None)


def name_mapping_for(schema: Schema) -> NameMapping:
    """The mapping that finds each field of a schema under its present name."""
    return _mapped(schema.as_struct())


def name_mapping_to_json(mapping: NameMapping) -> list[dict[str, Any]]:
    """The JSON form of a mapping."""
    out = []
    for field in mapping:
        item: dict[str, Any] = {"names": list(field.names)}
        if field.field_id is not None:
            item["field-id"] = field.field_id
        if field.fields:
            item["fields"] = name_mapping_to_json(field.fields)
        out.append(item)
    return out


def _mapped(type_: Type) -> NameMapping:
    return tuple(
        MappedField(names=(field.name,), field_id=field.field_id, fields=_mapped(field.type))
        for field in child_fields(type_)
    )


def _fields(value: Any, path: str) -> NameMapping:
    where = f"at {path!r}" if path else "at its top"
    if not isinstance(value, list):
        raise _invalid(f"is not a list of fields {where}")
    fields = tuple(_field(item, path, where) for item in value)
    seen: set[str] = set()
    for name in (name for field in fields for name in field.names):
        if name in seen:
            raise _invalid(f"has the name {name!r} twice {where}")
        seen.add(name)
    return fields


def _field(value: Any, path: str, where: str) -> MappedField:
    if not isinstance(value, dict):
        raise _invalid(f"holds {value!r} {where}, where a field's object must be")
    names, field_id, fields = value.get("names"), value.get("field-id"), value.get("fields")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _invalid(f"has a field {where} whose 'names' are {names!r}; they must be a list of text")
    if field_id is not None and type(field_id) is not int:
        raise _invalid(f"has a field {where} whose 'field-id' is {field_id!r}; it must be a whole number")
    label = names[0] if names else str(field_id)
    below = _fields([] if fields is None else fields, f"{path}.{label}" if path else label)
    return MappedField(names=tuple(names), field_id=field_id, fields=below)


def _walk(mapping: NameMapping) -> Iterator[MappedField]:
    for field in mapping:
        yield field
        yield from _walk(field.fields)


def _invalid(problem: str) -> InvalidTableError:
    return InvalidTableError(f"table property {PROPERTY!r} {problem}", property=PROPERTY, section="Appendix C")


def _column(field_id: int, name: str, type_: Type, *, required: bool = True) -> NestedField:
    return NestedField(field_id=field_id, name=name, type=type_, required=required)


FILE = _column(2147483646, "_file", STRING)
POS = _column(2147483645, "_pos", LONG)
DELETED = _column(2147483644, "_deleted", BOOLEAN)
SPEC_ID = _column(2147483643, "_spec_id", INT)
PARTITION_ID = 2147483642
"""Of `_partition`, whose type depends on the table: see `partition_column`."""

DELETE_FILE_PATH = _column(2147483546, "file_path", STRING)
DELETE_FILE_POS = _column(2147483545, "pos", LONG)
DELETE_FILE_ROW_ID = 2147483544
"""Of `row`, whose type depends on the table: see `deleted_row_column`."""

ROW_ID = _column(2147483540, "_row_id", LONG, required=False)
LAST_UPDATED_SEQUENCE_NUMBER = _column(2147483539, "_last_updated_sequence_number", LONG, required=False)


def partition_column(partition_types: Iterable[StructType]) -> NestedField:
    """The column `_partition`: a struct with a field for each partition field of any spec, by its field id.

    Where specs disagree on a field of one id, the later one in `partition_types` gives its name and type. A row's value
    has null for the fields that its file's spec does not have.
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
