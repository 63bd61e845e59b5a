"""The types of Iceberg columns (spec, "Schemas and Data Types") and the names of the primitive ones.

A type is a frozen value; two types are equal when the spec says that they are the same. Keys of a JSON type object that
we do not know are kept in `extra`, and written back by `type_json.py`.

Types and the fields of structs as JSON, both ways (spec, Appendix C "Schemas"); keys that we do not know survive.

Units of sizes and spans, how sizes are shown, and the largest numbers of Java's types, which Iceberg writes for "no limit".
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from icekeep.errors import InvalidTableError

MAX_COLUMN_ID = 2147483447
"""Ids above this one are reserved for metadata columns (spec, "Reserved Field IDs")."""

MAX_NESTING = 100
"""How many structs, lists and maps may lie in each other: more is an accident or an attack, and would exhaust the stack."""

DEFAULT_CRS = "OGC:CRS84"
"""The coordinate reference system of a geography or geometry type that names none."""

DEFAULT_EDGE_ALGORITHM = "spherical"
"""How a geography type that names no algorithm interpolates edges."""

_EDGE_ALGORITHMS = (DEFAULT_EDGE_ALGORITHM, "vincenty", "thomas", "andoyer", "karney")


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
    """Features in the plane of a coordinate reference system `crs`.

    What was not written stays null, and is equal to what the spec puts in its place; systems differ by more than case.
    """

    crs: str | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GeometryType) and _same_crs(self.crs) == _same_crs(other.crs)

    def __hash__(self) -> int:
        return hash((self.name, _same_crs(self.crs)))

    def __str__(self) -> str:
        return self.name if self.crs is None else f"{self.name}({self.crs})"


class GeographyType(PrimitiveType, frozen=True):
    """Features on the globe; edges are interpolated by `algorithm`. Null is what was not written, as in `GeometryType`."""

    crs: str | None = None
    algorithm: str | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GeographyType) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, str, str]:
        return self.name, _same_crs(self.crs), (self.algorithm or DEFAULT_EDGE_ALGORITHM).lower()

    def __str__(self) -> str:
        if self.algorithm is None:
            return self.name if self.crs is None else f"{self.name}({self.crs})"
        return f"{self.name}({self.crs or DEFAULT_CRS}, {self.algorithm})"


def _same_crs(crs: str | None) -> str:
    return (crs or DEFAULT_CRS).upper()


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
OPAQUE = PrimitiveType("opaque")
"""Of partition values that a transform makes which we do not know, and no column's: nobody says what their bytes mean, or in
which order they are. In Arrow they are text, to be shown.
"""

_SIMPLE = {
    t.name: t
    for t in (
        BOOLEAN, INT, LONG, FLOAT, DOUBLE, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, TIMESTAMP_NS, TIMESTAMPTZ_NS,
        STRING, UUID, BINARY, UNKNOWN, VARIANT,
    )
}  # fmt: skip
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*\)", re.IGNORECASE | re.ASCII)
_FIXED = re.compile(r"fixed\[\s*([0-9]{1,9})\s*\]", re.IGNORECASE | re.ASCII)
_GEOMETRY = re.compile(r"geometry\s*(?:\(\s*([^)]+?)\s*\))?", re.IGNORECASE | re.ASCII)
_GEOGRAPHY = re.compile(r"geography\s*(?:\(\s*([^,]+?)\s*(?:,\s*(\w+)\s*)?\))?", re.IGNORECASE | re.ASCII)


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

    def __hash__(self) -> int:
        # What may hold JSON objects and lists is left out.
        return hash((self.field_id, self.name, self.type, self.required))


class StructType(Type, frozen=True):
    """A tuple of typed, named values."""

    fields: tuple[NestedField, ...]
    extra: Mapping[str, Any] = {}

    def __hash__(self) -> int:
        return hash(self.fields)

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

    def __hash__(self) -> int:
        return hash((self.element_id, self.element, self.element_required))

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

    def __hash__(self) -> int:
        return hash((self.key_id, self.key, self.value_id, self.value, self.value_required))

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


def with_child_fields(type_: Type, fields: tuple[NestedField, ...]) -> Type:
    """The same type with other children, given as `child_fields` gives them; a primitive type has none."""
    match type_:
        case StructType():
            return msgspec.structs.replace(type_, fields=fields)
        case ListType():
            (element,) = fields
            return msgspec.structs.replace(
                type_, element_id=element.field_id, element=element.type, element_required=element.required
            )
        case MapType():
            key, value = fields
            return msgspec.structs.replace(
                type_,
                key_id=key.field_id,
                key=key.type,
                value_id=value.field_id,
                value=value.type,
                value_required=value.required,
            )
    return type_


def check_nesting(type_: Type) -> None:
    """Raise `InvalidTableError` for a type that is nested more than `MAX_NESTING` levels deep.

    Everything else that walks types may recurse; this may not.
    """
    level: list[Type] = [type_]
    for _ in range(MAX_NESTING + 1):
        level = [field.type for outer in level for field in child_fields(outer)]
        if not level:
            return
    raise too_deep()


def parse_type(text: str) -> PrimitiveType:
    """Read the name of a primitive type, for example `decimal(9, 2)`; raises `InvalidTableError` for any other text.

    As in Iceberg's Java library, upper and lower case are the same, but for the name of a reference system.
    """
    if (simple := _SIMPLE.get(text.lower())) is not None:
        return simple
    if match := _DECIMAL.fullmatch(text):
        return decimal(int(match[1]), int(match[2]))
    if match := _FIXED.fullmatch(text):
        return fixed(int(match[1]))
    if match := _GEOMETRY.fullmatch(text):
        return GeometryType("geometry", match[1])
    if match := _GEOGRAPHY.fullmatch(text):
        if match[2] is not None and match[2].lower() not in _EDGE_ALGORITHMS:
            raise InvalidTableError(
                f"type {text!r} has an edge algorithm that the spec does not know; it knows {', '.join(_EDGE_ALGORITHMS)}",
                section="Schemas and Data Types",
            )
        return GeographyType("geography", match[1], match[2])
    raise InvalidTableError(f"type {text!r} is not one that the spec knows (Appendix C)", section="Appendix C")


def too_deep() -> InvalidTableError:
    """The error for a type that is nested more than `MAX_NESTING` levels deep."""
    return InvalidTableError(f"a type is nested more than {MAX_NESTING} levels deep", section="Schemas and Data Types")


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


MIB = 1 << 20
GIB = 1 << 30

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
DAY_SECONDS = DAY_MS // SECOND_MS

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str) -> int | None:
    """A size with a unit, in bytes; `None` where the text is none. Units are powers of 1024, as Spark has them: MB is MiB.

    >>> parse_bytes("128MB"), parse_bytes("1.5 GiB"), parse_bytes("512"), parse_bytes("many")
    (134217728, 1610612736, 512, None)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    return (
        int(float(found[1]) * 1024 ** " kmgtp".index(found[2].lower() or " "))
        if found[2] or "." in found[1]
        else int(found[1])
    )


def format_bytes(size: int) -> str:
    """A size in binary units.

    >>> format_bytes(536870912)
    '512.0 MiB'
    """
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024:
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} PiB"
