"""The types of columns (spec, "Schemas and Data Types"), by name and as JSON (Appendix C "Schemas"), and units of size and time.

A type is a frozen value; two are equal when the spec says that they are the same. `extra` holds the keys of a JSON object
that we do not know, and they are written back.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
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
_TOO_DEEP = f"a type is nested more than {MAX_NESTING} levels deep"


class Type(msgspec.Struct, frozen=True):
    """Any Iceberg type; `str()` gives its name in the spec."""

    def __str__(self) -> str:
        if type(self) is PrimitiveType:
            return self.name
        match self:
            case DecimalType():
                return f"decimal({self.precision}, {self.scale})"
            case FixedType():
                return f"fixed[{self.length}]"
            case _Geospatial(algorithm=None):
                return self.name if self.crs is None else f"{self.name}({self.crs})"
            case _Geospatial():
                return f"{self.name}({self.crs or DEFAULT_CRS}, {self.algorithm})"
            case StructType():
                fields = (
                    f"{f.field_id}: {f.name}: {'required' if f.required else 'optional'} {f.type}" for f in self.fields
                )
                return f"struct<{', '.join(fields)}>"
            case ListType():
                return f"list<{self.element}>"
            case MapType():
                return f"map<{self.key}, {self.value}>"
        return repr(self)


class PrimitiveType(Type, frozen=True):
    """A type without fields of its own; `name` is its name in the spec, without parameters."""

    name: str


class DecimalType(PrimitiveType, frozen=True):
    precision: int
    scale: int


class FixedType(PrimitiveType, frozen=True):
    length: int


class _Geospatial(PrimitiveType, frozen=True):
    """A parameter that was not written stays null, and is equal to the spec's default; case does not matter in either."""

    crs: str | None = None
    algorithm: str | None = None

    def _key(self) -> tuple[str, str, str]:
        return self.name, (self.crs or DEFAULT_CRS).upper(), (self.algorithm or DEFAULT_EDGE_ALGORITHM).lower()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Geospatial) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


class GeometryType(_Geospatial, frozen=True):
    """Features in the plane of a coordinate reference system `crs`."""


class GeographyType(_Geospatial, frozen=True):
    """Features on the globe; edges are interpolated by `algorithm`."""


BOOLEAN = PrimitiveType("boolean")
INT = PrimitiveType("int")
LONG = PrimitiveType("long")
FLOAT = PrimitiveType("float")
DOUBLE = PrimitiveType("double")
FLOATING_TYPES = (FLOAT, DOUBLE)
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
"""The type of the partition values of an unknown transform, never of a column: neither the meaning of their bytes nor their
order is defined. In Arrow they are text, to be shown.
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
    return FixedType("fixed", length)


def _hash_of(*names: str) -> Callable[[Any], int]:
    """A hash over the named attributes: those that may hold JSON objects or lists, which cannot be hashed, are left out."""
    values = attrgetter(*names)
    return lambda value: hash(values(value))


class NestedField(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a struct.

    `initial_default` and `write_default` are kept in their JSON form (spec, "Default values"); null and absent mean the same.
    """

    field_id: int
    name: str
    type: Type
    required: bool = False
    doc: str | None = None
    initial_default: Any = None
    write_default: Any = None
    extra: Mapping[str, Any] = {}

    __hash__ = _hash_of("field_id", "name", "type", "required")


class StructType(Type, frozen=True):
    fields: tuple[NestedField, ...]
    extra: Mapping[str, Any] = {}

    __hash__ = _hash_of("fields")


class ListType(Type, frozen=True, kw_only=True):
    element_id: int
    element: Type
    element_required: bool = False
    extra: Mapping[str, Any] = {}

    __hash__ = _hash_of("element_id", "element", "element_required")


class MapType(Type, frozen=True, kw_only=True):
    """A collection of key-value pairs; keys are always required."""

    key_id: int
    key: Type
    value_id: int
    value: Type
    value_required: bool = False
    extra: Mapping[str, Any] = {}

    __hash__ = _hash_of("key_id", "key", "value_id", "value", "value_required")


def child_fields(type_: Type) -> tuple[NestedField, ...]:
    """The direct children of a type, lists and maps seen as structs of `element`, or of `key` and `value`."""
    if isinstance(type_, StructType):
        return type_.fields
    if isinstance(type_, ListType):
        required = type_.element_required
        return (NestedField(field_id=type_.element_id, name="element", type=type_.element, required=required),)
    if isinstance(type_, MapType):
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
    """The same type with other children, in the form of `child_fields`."""
    if isinstance(type_, StructType):
        return msgspec.structs.replace(type_, fields=fields)
    for field in fields:
        changed = {f"{field.name}_id": field.field_id, field.name: field.type, f"{field.name}_required": field.required}
        type_ = msgspec.structs.replace(type_, **{key: changed[key] for key in changed if hasattr(type_, key)})
    return type_


def check_nesting(type_: Type) -> None:
    """Raise `InvalidTableError` for a type nested more than `MAX_NESTING` deep."""
    # All else may recurse, this may not.
    level: list[Type] = [type_]
    for _ in range(MAX_NESTING + 1):
        level = [field.type for outer in level for field in child_fields(outer)]
        if not level:
            return
    raise InvalidTableError(_TOO_DEEP, section="Schemas and Data Types")


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


def type_from_json(value: Any, level: int = 0) -> Type:
    """Build a type from its JSON form, nested in `level` others; raises `InvalidTableError` for anything else."""
    if isinstance(value, str):
        return parse_type(value)
    if not isinstance(value, dict):
        raise InvalidTableError(f"a type is {value!r}; it must be a name or an object", section="Appendix C")
    if level >= MAX_NESTING:
        raise InvalidTableError(_TOO_DEEP, section="Schemas and Data Types")
    value = dict(value)
    kind = value.pop("type", None)
    try:
        if kind == "struct":
            fields = value.pop("fields")
            if not isinstance(fields, list):
                raise InvalidTableError("the fields of a struct are not a list", section="Appendix C")
            return StructType(tuple([field_from_json(field, level + 1) for field in fields]), value)
        if kind in ("list", "map"):
            given: dict[str, Any] = {}
            cls = ListType if kind == "list" else MapType
            for part in ("element",) if kind == "list" else ("key", "value"):
                given[f"{part}_id"] = _pop(value, f"{part}-id", int)
                given[part] = type_from_json(value.pop(part), level + 1)
                if part != "key":
                    given[f"{part}_required"] = _pop(value, f"{part}-required", bool)
            return cls(**given, extra=value)
    except KeyError as missing:
        raise InvalidTableError(f"a {kind} type lacks its key {missing.args[0]!r}", section="Appendix C") from None
    raise InvalidTableError(f"type object of kind {kind!r} is not one that the spec knows", section="Appendix C")


def field_from_json(value: Any, level: int = 0) -> NestedField:
    """Build a struct field from its JSON object; raises `InvalidTableError` for a missing or wrong key."""
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
            field_id=_pop(value, "id", int),
            name=name,
            type=type_from_json(value.pop("type"), level),
            required=_pop(value, "required", bool),
            doc=doc,
            initial_default=value.pop("initial-default", None),
            write_default=value.pop("write-default", None),
            extra=value,
        )
    except KeyError as missing:
        raise InvalidTableError(f"a struct field lacks its key {missing.args[0]!r}", section="Appendix C") from None


def _pop(keys: dict[str, Any], key: str, kind: type) -> Any:
    """Take a field id (`int`) or a required flag (`bool`) out of a JSON object."""
    value = keys.pop(key)
    if type(value) is not kind:
        problem = (
            "a field id is {!r}; it must be a whole number"
            if kind is int
            else "a required flag is {!r}; it must be true or false"
        )
        raise InvalidTableError(problem.format(value), section="Appendix C")
    return value


def type_to_json(type_: Type) -> Any:
    if isinstance(type_, StructType):
        return {"type": "struct", "fields": [field_to_json(f) for f in type_.fields], **type_.extra}
    if not isinstance(type_, ListType | MapType):
        return str(type_)
    out: dict[str, Any] = {"type": "list" if isinstance(type_, ListType) else "map"}
    for field in child_fields(type_):
        out |= {f"{field.name}-id": field.field_id, field.name: type_to_json(field.type)}
        if field.name != "key":
            out[f"{field.name}-required"] = field.required
    return {**out, **type_.extra}


def field_to_json(field: NestedField) -> dict[str, Any]:
    out: dict[str, Any] = {
        "id": field.field_id, "name": field.name, "required": field.required, "type": type_to_json(field.type),
    }  # fmt: skip
    optional = {"doc": field.doc, "initial-default": field.initial_default, "write-default": field.write_default}
    out.update({k: v for k, v in optional.items() if v is not None})
    out.update(field.extra)
    return out


MIB = 1 << 20
GIB = 1 << 30

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
DAY_SECONDS = DAY_MS // SECOND_MS

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
"""The largest numbers of Java's types, which Iceberg writes for "no limit"."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str) -> int | None:
    """A size with a unit, in bytes; `None` for text that is not a size. Units are powers of 1024, as in Spark: MB is MiB.

    >>> parse_bytes("128MB"), parse_bytes("1.5 GiB"), parse_bytes("512"), parse_bytes("many")
    (134217728, 1610612736, 512, None)
    """
    if (match := _SIZE.fullmatch(text.strip())) is None:
        return None
    number, unit = match[1], match[2].lower()
    # Not through a float, which holds no whole number above 2**53.
    return int(float(number) * 1024 ** " kmgtp".index(unit or " ")) if unit or "." in number else int(number)


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
