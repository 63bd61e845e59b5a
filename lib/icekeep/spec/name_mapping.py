"""Field ids by name, for data files that carry none (spec, "Column Projection", Appendix C "Name Mapping Serialization").

A mapping is a tree of fields like a schema's: below a struct its fields, below a list `element`, below a map `key` and
`value`. A name is one name, never a path: `a.b` is a column with a dot in its name.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from icekeep.errors import InvalidTableError
from icekeep.spec.schema import Schema
from icekeep.spec.types import Type, child_fields

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
