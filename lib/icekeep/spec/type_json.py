"""Types and the fields of structs as JSON, both ways (spec, Appendix C "Schemas"); keys that we do not know survive."""

from typing import Any

from icekeep.errors import InvalidTableError
from icekeep.spec.types import (
    MAX_NESTING,
    ListType,
    MapType,
    NestedField,
    StructType,
    Type,
    parse_type,
    too_deep,
)


def type_from_json(value: Any) -> Type:
    """Build a type from its JSON form.

    Raises:
        InvalidTableError: the value is not a type of the spec, or nested more than `MAX_NESTING` levels deep.
    """
    return _type(value, 0)


def field_from_json(value: Any) -> NestedField:
    """Build a struct field from its JSON object; raises `InvalidTableError` where a key is missing or wrong."""
    return _field(value, 0)


def type_to_json(type_: Type) -> Any:
    """The JSON form of a type: a name, or an object."""
    match type_:
        case StructType():
            return {"type": "struct", "fields": [field_to_json(f) for f in type_.fields], **type_.extra}
        case ListType():
            return {
                "type": "list",
                "element-id": type_.element_id,
                "element": type_to_json(type_.element),
                "element-required": type_.element_required,
                **type_.extra,
            }
        case MapType():
            return {
                "type": "map",
                "key-id": type_.key_id,
                "key": type_to_json(type_.key),
                "value-id": type_.value_id,
                "value": type_to_json(type_.value),
                "value-required": type_.value_required,
                **type_.extra,
            }
    return str(type_)


def field_to_json(field: NestedField) -> dict[str, Any]:
    """The JSON object of a struct field."""
    out: dict[str, Any] = {
        "id": field.field_id, "name": field.name, "required": field.required, "type": type_to_json(field.type),
    }  # fmt: skip
    optional = {"doc": field.doc, "initial-default": field.initial_default, "write-default": field.write_default}
    out.update({k: v for k, v in optional.items() if v is not None})
    out.update(field.extra)
    return out


def _int(value: Any) -> int:
    if type(value) is not int:
        raise InvalidTableError(f"a field id is {value!r}; it must be a whole number", section="Appendix C")
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise InvalidTableError(f"a required flag is {value!r}; it must be true or false", section="Appendix C")
    return value


def _type(value: Any, level: int) -> Type:
    if isinstance(value, str):
        return parse_type(value)
    if not isinstance(value, dict):
        raise InvalidTableError(f"a type is {value!r}; it must be a name or an object", section="Appendix C")
    if level >= MAX_NESTING:
        raise too_deep()
    value = dict(value)
    kind = value.pop("type", None)
    try:
        if kind == "struct":
            fields = value.pop("fields")
            if not isinstance(fields, list):
                raise InvalidTableError("the fields of a struct are not a list", section="Appendix C")
            return StructType(tuple([_field(field, level + 1) for field in fields]), value)
        if kind == "list":
            return ListType(
                element_id=_int(value.pop("element-id")),
                element=_type(value.pop("element"), level + 1),
                element_required=_bool(value.pop("element-required")),
                extra=value,
            )
        if kind == "map":
            return MapType(
                key_id=_int(value.pop("key-id")),
                key=_type(value.pop("key"), level + 1),
                value_id=_int(value.pop("value-id")),
                value=_type(value.pop("value"), level + 1),
                value_required=_bool(value.pop("value-required")),
                extra=value,
            )
    except KeyError as missing:
        raise InvalidTableError(f"a {kind} type lacks its key {missing.args[0]!r}", section="Appendix C") from None
    raise InvalidTableError(f"type object of kind {kind!r} is not one that the spec knows", section="Appendix C")


def _field(value: Any, level: int) -> NestedField:
    if not isinstance(value, dict):
        raise InvalidTableError(f"a struct field is {value!r}; it must be an object", section="Appendix C")
    value = dict(value)
    try:
        name, doc = value.pop("name"), value.pop("doc", None)
        if not isinstance(name, str) or not isinstance(doc, str | None):
            raise InvalidTableError(
                f"a struct field has the name {name!r} and the doc {doc!r}; they must be text", section="Appendix C"
            )
        return NestedField(
            field_id=_int(value.pop("id")),
            name=name,
            type=_type(value.pop("type"), level),
            required=_bool(value.pop("required")),
            doc=doc,
            initial_default=value.pop("initial-default", None),
            write_default=value.pop("write-default", None),
            extra=value,
        )
    except KeyError as missing:
        raise InvalidTableError(f"a struct field lacks its key {missing.args[0]!r}", section="Appendix C") from None
