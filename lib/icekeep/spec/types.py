"""The types of Iceberg columns (spec, "Schemas and Data Types") and their JSON form (Appendix C "Schemas").

A type is a frozen value; two types are equal when the spec says that they are the same. Keys of a JSON type object that
we do not know are kept in `extra` and written back.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from icekeep.errors import InvalidTableError

MAX_COLUMN_ID = 2147483447
"""Ids above this one are reserved for metadata columns (spec, "Reserved Field IDs")."""

DEFAULT_CRS = "OGC:CRS84"
"""The coordinate reference system of a geography or geometry type that names none."""


class Type(msgspec.Struct, frozen=True):
    """Any Iceberg type."""


class PrimitiveType(Type, frozen=True):
    """A type without fields of its own; `name` is its name in the spec, without parameters."""

    name: str

    def __str__(self) -> str:
        return self.name


class DecimalType(PrimitiveType, frozen=True):
    """Fixed-point decimal with `precision` digits, `scale` of them after the point."""

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})"


class FixedType(PrimitiveType, frozen=True):
    """A byte array of exactly `length` bytes."""

    length: int

    def __str__(self) -> str:
        return f"fixed[{self.length}]"


class GeometryType(PrimitiveType, frozen=True):
    """Features in the plane of a coordinate reference system `crs`."""

    crs: str | None = None

    def __str__(self) -> str:
        return self.name if self.crs is None else f"{self.name}({self.crs})"


class GeographyType(PrimitiveType, frozen=True):
    """Features on the globe; edges are interpolated by `algorithm`."""

    crs: str | None = None
    algorithm: str | None = None

    def __str__(self) -> str:
        if self.algorithm is None:
            return self.name if self.crs is None else f"{self.name}({self.crs})"
        return f"{self.name}({self.crs or DEFAULT_CRS}, {self.algorithm})"


BOOLEAN = PrimitiveType("boolean")
INT = PrimitiveType("int")
LONG = PrimitiveType("long")
FLOAT = PrimitiveType("float")
DOUBLE = PrimitiveType("double")
DATE = PrimitiveType("date")
TIME = PrimitiveType("time")
TIMESTAMP = PrimitiveType("timestamp")
TIMESTAMPTZ = PrimitiveType("timestamptz")
TIMESTAMP_NS = PrimitiveType("timestamp_ns")
TIMESTAMPTZ_NS = PrimitiveType("timestamptz_ns")
STRING = PrimitiveType("string")
UUID = PrimitiveType("uuid")
BINARY = PrimitiveType("binary")
UNKNOWN = PrimitiveType("unknown")
VARIANT = PrimitiveType("variant")

_SIMPLE = {
    t.name: t
    for t in (
        BOOLEAN, INT, LONG, FLOAT, DOUBLE, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, TIMESTAMP_NS, TIMESTAMPTZ_NS,
        STRING, UUID, BINARY, UNKNOWN, VARIANT,
    )
}  # fmt: skip
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*\)")
_FIXED = re.compile(r"fixed\[\s*([0-9]{1,9})\s*\]")
_GEOMETRY = re.compile(r"geometry(?:\(\s*([^,()]+?)\s*\))?")
_GEOGRAPHY = re.compile(r"geography(?:\(\s*([^,()]+?)\s*(?:,\s*([^,()]+?)\s*)?\))?")


def decimal(precision: int, scale: int) -> DecimalType:
    """A decimal type; raises `InvalidTableError` for a precision outside 1 to 38 or a scale above it."""
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise InvalidTableError(
            f"decimal({precision}, {scale}) is not a type: precision is 1 to 38, scale 0 to precision"
        )
    return DecimalType("decimal", precision, scale)


def fixed(length: int) -> FixedType:
    """A type of byte arrays of exactly `length` bytes."""
    return FixedType("fixed", length)


class NestedField(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a struct.

    `initial_default` and `write_default` are kept in their JSON form (spec, "Default values"); null and absent mean the
    same. `extra` holds the keys of the JSON object that we do not know.
    """

    field_id: int
    name: str
    type: Type
    required: bool = False
    doc: str | None = None
    initial_default: Any = None
    write_default: Any = None
    extra: Mapping[str, Any] = {}


class StructType(Type, frozen=True):
    """A tuple of typed, named values."""

    fields: tuple[NestedField, ...]
    extra: Mapping[str, Any] = {}

    def __str__(self) -> str:
        inner = ", ".join(
            f"{f.field_id}: {f.name}: {'required' if f.required else 'optional'} {f.type}" for f in self.fields
        )
        return f"struct<{inner}>"


class ListType(Type, frozen=True, kw_only=True):
    """A collection of values of one type."""

    element_id: int
    element: Type
    element_required: bool = False
    extra: Mapping[str, Any] = {}

    def __str__(self) -> str:
        return f"list<{self.element}>"


class MapType(Type, frozen=True, kw_only=True):
    """A collection of key-value pairs; keys are always required."""

    key_id: int
    key: Type
    value_id: int
    value: Type
    value_required: bool = False
    extra: Mapping[str, Any] = {}

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


def child_fields(type_: Type) -> tuple[NestedField, ...]:
    """The direct children of a type, lists and maps seen as structs of `element`, or of `key` and `value`."""
    match type_:
        case StructType():
            return type_.fields
        case ListType():
            return (
                NestedField(
                    field_id=type_.element_id, name="element", type=type_.element, required=type_.element_required
                ),
            )
        case MapType():
            return (
                NestedField(field_id=type_.key_id, name="key", type=type_.key, required=True),
                NestedField(field_id=type_.value_id, name="value", type=type_.value, required=type_.value_required),
            )
    return ()


def walk(type_: Type) -> Iterator[NestedField]:
    """Every field below a type, parents before their children."""
    for field in child_fields(type_):
        yield field
        yield from walk(field.type)


def parse_type(text: str) -> PrimitiveType:
    """Read the name of a primitive type, for example `decimal(9, 2)`; raises `InvalidTableError` for any other text."""
    if (simple := _SIMPLE.get(text)) is not None:
        return simple
    if match := _DECIMAL.fullmatch(text):
        return decimal(int(match[1]), int(match[2]))
    if match := _FIXED.fullmatch(text):
        return fixed(int(match[1]))
    if match := _GEOMETRY.fullmatch(text):
        return GeometryType("geometry", match[1])
    if match := _GEOGRAPHY.fullmatch(text):
        return GeographyType("geography", match[1], match[2])
    raise InvalidTableError(f"type {text!r} is not one that the spec knows (Appendix C)", section="Appendix C")


def type_from_json(value: Any) -> Type:
    """Build a type from its JSON form.

    Raises:
        InvalidTableError: the value is not a type of the spec.
    """
    if isinstance(value, str):
        return parse_type(value)
    if not isinstance(value, dict):
        raise InvalidTableError(f"a type is {value!r}; it must be a name or an object", section="Appendix C")
    value = dict(value)
    kind = value.pop("type", None)
    try:
        if kind == "struct":
            fields = value.pop("fields")
            if not isinstance(fields, list):
                raise InvalidTableError("the fields of a struct are not a list", section="Appendix C")
            return StructType(tuple(map(field_from_json, fields)), value)
        if kind == "list":
            return ListType(
                element_id=_int(value.pop("element-id")),
                element=type_from_json(value.pop("element")),
                element_required=_bool(value.pop("element-required")),
                extra=value,
            )
        if kind == "map":
            return MapType(
                key_id=_int(value.pop("key-id")),
                key=type_from_json(value.pop("key")),
                value_id=_int(value.pop("value-id")),
                value=type_from_json(value.pop("value")),
                value_required=_bool(value.pop("value-required")),
                extra=value,
            )
    except KeyError as missing:
        raise InvalidTableError(f"a {kind} type lacks its key {missing.args[0]!r}", section="Appendix C") from None
    raise InvalidTableError(f"type object of kind {kind!r} is not one that the spec knows", section="Appendix C")


def field_from_json(value: Any) -> NestedField:
    """Build a struct field from its JSON object; raises `InvalidTableError` where a key is missing or wrong."""
    if not isinstance(value, dict):
        raise InvalidTableError(f"a struct field is {value!r}; it must be an object", section="Appendix C")
    value = dict(value)
    try:
        name = value.pop("name")
        if not isinstance(name, str):
            raise InvalidTableError(f"a struct field has the name {name!r}; it must be text", section="Appendix C")
        return NestedField(
            field_id=_int(value.pop("id")),
            name=name,
            type=type_from_json(value.pop("type")),
            required=_bool(value.pop("required")),
            doc=value.pop("doc", None),
            initial_default=value.pop("initial-default", None),
            write_default=value.pop("write-default", None),
            extra=value,
        )
    except KeyError as missing:
        raise InvalidTableError(f"a struct field lacks its key {missing.args[0]!r}", section="Appendix C") from None


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
