"""Single values as bytes, JSON and text (spec, Appendix D "Single-value serialization").

A value looks the same everywhere in `spec`: bool, int, float, str, bytes, `uuid.UUID`, `decimal.Decimal` with the scale
of its type; a date is days and a timestamp micro- or nanoseconds since the epoch in UTC, a time microseconds since
midnight; null is None. In JSON also: a list is a tuple, a map a tuple of pairs, a struct a dict by field id.
"""

import math
import re
import struct
import uuid
from decimal import Decimal, InvalidOperation
from typing import Any

from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError
from icekeep.spec.iso8601 import format_date, format_time, format_timestamp, parse_date, parse_time, parse_timestamp
from icekeep.spec.numbers import decimal_from_unscaled, minimal_twos_complement, shortest_digits, to_single, unscaled
from icekeep.spec.types import DecimalType, FixedType, ListType, MapType, PrimitiveType, StructType, Type
from icekeep.spec.units import DAY_SECONDS

MICROS_PER_SECOND = 1_000_000
NANOS_PER_SECOND = 1_000_000_000

TICKS_PER_SECOND = {
    "timestamp": MICROS_PER_SECOND,
    "timestamptz": MICROS_PER_SECOND,
    "timestamp_ns": NANOS_PER_SECOND,
    "timestamptz_ns": NANOS_PER_SECOND,
}
"""What one second counts in values of the timestamp types."""

INTEGER_WIDTHS = {"int": 4, "long": 8, "date": 4, "time": 8, **dict.fromkeys(TICKS_PER_SECOND, 8)}
"""Bytes of the types whose values are whole numbers."""

_PYTHON_TYPES: dict[str, type] = {
    **dict.fromkeys(INTEGER_WIDTHS, int),
    **dict.fromkeys(("float", "double"), float),
    **dict.fromkeys(("fixed", "binary"), bytes),
    "boolean": bool,
    "decimal": Decimal,
    "string": str,
    "uuid": uuid.UUID,
}
_FLOATS = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HEX = re.compile(r"([0-9a-fA-F]{2})*")


def value_to_bytes(type_: Type, value: Any) -> bytes:
    """The binary single-value form, as in lower and upper bounds.

    Raises:
        UnsupportedError: values of the type have no binary form here.
        IcekeepBug: the value is not one of the type.

    Spec: Appendix D, "Binary single-value serialization".
    """
    primitive = _primitive(type_, "binary")
    _require_value(primitive, value)
    try:
        return _encode(primitive, value)
    except (OverflowError, ValueError) as problem:
        raise IcekeepBug(f"value {value!r} is not one of type {type_}: {problem}") from problem


def value_from_bytes(type_: Type, data: bytes) -> Any:
    """The value of a binary single value; bytes written before the column's type was promoted are understood.

    Strings, binary and fixed values may be shortened bounds: a fixed one may have fewer bytes than its type.

    Raises:
        UnsupportedError: values of the type have no binary form here.
        InvalidTableError: the bytes are not a value of the type.

    Spec: Appendix D, "Binary single-value serialization"; "Schema Evolution" for promoted types.
    """
    primitive = _primitive(type_, "binary")
    try:
        return _decode(primitive, bytes(data))
    except ValueError as problem:
        raise InvalidTableError(
            f"bytes {bytes(data[:32]).hex()!r} are not a value of type {type_}: {problem}", section="Appendix D"
        ) from problem


def value_to_json(type_: Type, value: Any) -> Any:
    """The JSON single-value form, as in default values; null is null for every type.

    Raises:
        UnsupportedError: values of the type have no JSON form here, or it is NaN or infinite, which JSON cannot say.
        IcekeepBug: the value is not one of the type.

    Spec: Appendix D, "JSON single-value serialization".
    """
    if value is None:
        return None
    match type_:
        case StructType():
            return {
                str(f.field_id): value_to_json(f.type, value[f.field_id]) for f in type_.fields if f.field_id in value
            }
        case ListType():
            return [value_to_json(type_.element, element) for element in value]
        case MapType():
            return {
                "keys": [value_to_json(type_.key, key) for key, _ in value],
                "values": [value_to_json(type_.value, item) for _, item in value],
            }
    primitive = _primitive(type_, "JSON")
    _require_value(primitive, value)
    if primitive.name in ("float", "double"):
        if not math.isfinite(value):
            raise UnsupportedError(f"the {type_} {value!r} cannot be written as JSON, which has finite numbers only")
        return float(shortest_digits(value, single=primitive.name == "float"))
    if primitive.name in ("boolean", "int", "long", "string"):
        return value
    return value_to_text(type_, value)


def value_from_json(type_: Type, value: Any) -> Any:
    """The value of a JSON single value.

    Raises:
        UnsupportedError: values of the type have no JSON form here.
        InvalidTableError: the JSON is not a value of the type.

    Spec: Appendix D, "JSON single-value serialization".
    """
    if value is None:
        return None
    try:
        match type_:
            case StructType():
                return _struct_from_json(type_, value)
            case ListType():
                if not isinstance(value, list):
                    raise ValueError("it must be an array")
                return tuple(value_from_json(type_.element, element) for element in value)
            case MapType():
                return _map_from_json(type_, value)
        return _from_json(_primitive(type_, "JSON"), value)
    except (ValueError, OverflowError) as problem:
        raise InvalidTableError(
            f"JSON value {value!r} is not one of type {type_}: {problem}", section="Appendix D"
        ) from None


def value_to_text(type_: Type, value: Any) -> str:
    """The value for people: ISO dates and timestamps, plain numbers, bytes in hexadecimal, "null" for null."""
    if value is None:
        return "null"
    primitive = _primitive(type_, "text")
    _require_value(primitive, value)
    match primitive.name:
        case "boolean":
            return "true" if value else "false"
        case "date":
            return format_date(value)
        case "time":
            return format_time(value, MICROS_PER_SECOND)
        case "timestamp" | "timestamp_ns" as name:
            return format_timestamp(value, TICKS_PER_SECOND[name])
        case "timestamptz" | "timestamptz_ns" as name:
            return format_timestamp(value, TICKS_PER_SECOND[name]) + "+00:00"
        case "float" | "double":
            return shortest_digits(value, single=primitive.name == "float")
        case "fixed" | "binary":
            return bytes(value).hex()
        case "decimal":
            return format(value, "f")
    return str(value)


def _primitive(type_: Type, form: str) -> PrimitiveType:
    if isinstance(type_, PrimitiveType) and type_.name in _PYTHON_TYPES:
        return type_
    raise UnsupportedError(f"values of type {type_} have no {form} form that icekeep handles", type=str(type_))


def _require_value(type_: PrimitiveType, value: Any) -> None:
    expected = _PYTHON_TYPES[type_.name]
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        raise IcekeepBug(f"value {value!r} is not one of type {type_}: it must be {expected.__name__}")
    if isinstance(type_, DecimalType) and isinstance(value, Decimal) and value.as_tuple().exponent != -type_.scale:
        raise IcekeepBug(f"value {value!r} is not one of type {type_}: its scale differs")


def _encode(type_: PrimitiveType, value: Any) -> bytes:
    if (width := INTEGER_WIDTHS.get(type_.name)) is not None:
        return int(value).to_bytes(width, "little", signed=True)
    if (packer := _FLOATS.get(type_.name)) is not None:
        return packer.pack(value)
    if isinstance(type_, DecimalType):
        return minimal_twos_complement(unscaled(value, type_.scale))
    if isinstance(type_, FixedType) and len(value) > type_.length:
        raise ValueError(f"it has {len(value)} bytes")
    match type_.name:
        case "boolean":
            return b"\x01" if value else b"\x00"
        case "string":
            return str(value).encode()
        case "uuid":
            return bytes(value.bytes)
    return bytes(value)


def _decode(type_: PrimitiveType, data: bytes) -> Any:
    if (width := INTEGER_WIDTHS.get(type_.name)) is not None:
        return _decode_integer(type_.name, data, width)
    if isinstance(type_, DecimalType):
        _require_width(data, *range(1, 33))
        return decimal_from_unscaled(int.from_bytes(data, "big", signed=True), type_.scale)
    if isinstance(type_, FixedType) and len(data) > type_.length:
        raise ValueError(f"there are {len(data)} of them")
    match type_.name:
        case "boolean":
            _require_width(data, 1)
            return data != b"\x00"
        case "float":
            _require_width(data, 4)
            return _FLOATS["float"].unpack(data)[0]
        case "double":
            _require_width(data, 4, 8)
            return _FLOATS["float" if len(data) == 4 else "double"].unpack(data)[0]
        case "string":
            return data.decode()
        case "uuid":
            _require_width(data, 16)
            return uuid.UUID(bytes=data)
    return data


def _decode_integer(name: str, data: bytes, width: int) -> int:
    promoted = len(data) == 4 and name in ("long", "timestamp", "timestamp_ns")
    if not promoted:
        _require_width(data, width)
    number = int.from_bytes(data, "little", signed=True)
    if promoted and name != "long":
        # A bound of four bytes was written when the column was still a date.
        return _in_range(name, number * DAY_SECONDS * TICKS_PER_SECOND[name])
    return number


def _require_width(data: bytes, *widths: int) -> None:
    if len(data) not in widths:
        raise ValueError(f"there are {len(data)} of them")


def _in_range(name: str, number: int) -> int:
    limit = 1 << (8 * INTEGER_WIDTHS[name] - 1)
    if not -limit <= number < limit:
        raise ValueError(f"it is out of the range of {name}")
    return number


def _struct_from_json(type_: StructType, value: Any) -> dict[int, Any]:
    if not isinstance(value, dict):
        raise ValueError("it must be an object by field id")
    types = {str(field.field_id): field for field in type_.fields}
    if unknown := sorted(value.keys() - types.keys()):
        raise ValueError(f"the struct has no field with id {unknown[0]!r}")
    return {types[key].field_id: value_from_json(types[key].type, item) for key, item in value.items()}


def _map_from_json(type_: MapType, value: Any) -> tuple[tuple[Any, Any], ...]:
    keys, items = (value.get("keys"), value.get("values")) if isinstance(value, dict) else (None, None)
    if not isinstance(keys, list) or not isinstance(items, list) or len(keys) != len(items):
        raise ValueError("it must be an object with arrays 'keys' and 'values' of one length")
    return tuple(
        (value_from_json(type_.key, key), value_from_json(type_.value, item))
        for key, item in zip(keys, items, strict=True)
    )


def _from_json(type_: PrimitiveType, value: Any) -> Any:
    match type_.name:
        case "boolean" | "string":
            return _of(_PYTHON_TYPES[type_.name], value)
        case "int" | "long":
            return _in_range(type_.name, _of(int, value))
        case "float" | "double":
            return _float(type_, value if isinstance(value, float) else _of(int, value))
    return _from_text(type_, _of(str, value))


def _from_text(type_: PrimitiveType, text: str) -> Any:
    if isinstance(type_, DecimalType):
        number = _decimal(type_, text)
        if Decimal(text).as_tuple().exponent != -type_.scale:
            raise ValueError(f"it must have {type_.scale} digits after the point")
        return number
    if type_.name in TICKS_PER_SECOND:
        ticks, offset_seconds = parse_timestamp(text, TICKS_PER_SECOND[type_.name])
        if offset_seconds != (0 if type_.name.startswith("timestamptz") else None):
            raise ValueError("a timestamp with time zone has the offset +00:00, one without has none")
        return _in_range(type_.name, ticks)
    match type_.name:
        case "date":
            return _in_range(type_.name, parse_date(text))
        case "time":
            return parse_time(text, MICROS_PER_SECOND)
        case "uuid":
            return read_uuid(text)
    return require_length(type_, read_bytes(text))


def _of(expected: type, value: Any) -> Any:
    if type(value) is not expected:
        raise ValueError("it must be " + {bool: "true or false", int: "a whole number"}.get(expected, "text"))
    return value


def _float(type_: PrimitiveType, number: float) -> float:
    value = float(number)
    if math.isnan(value) or (math.isinf(value) and number != value):
        raise ValueError(f"it is out of the range of {type_}")
    return to_single(value) if type_.name == "float" else value


def _decimal(type_: DecimalType, text: str) -> Decimal:
    try:
        number = unscaled(Decimal(text), type_.scale)
    except InvalidOperation:
        raise ValueError("it must be a number") from None
    if abs(number) >= 10**type_.precision:
        raise ValueError("it has too many digits")
    return decimal_from_unscaled(number, type_.scale)


def read_uuid(text: str) -> uuid.UUID:
    """The UUID of 36 characters; raises `ValueError` for any other text."""
    if _UUID.fullmatch(text) is None:
        raise ValueError("a uuid looks like f79c3e09-677c-4bbd-a479-3f349cb785e7")
    return uuid.UUID(text)


def read_bytes(text: str) -> bytes:
    """The bytes of pairs of hexadecimal digits; raises `ValueError` for any other text."""
    if _HEX.fullmatch(text) is None:
        raise ValueError("bytes are given in hexadecimal, two digits each")
    return bytes.fromhex(text)


def require_length(type_: PrimitiveType, data: bytes) -> bytes:
    """The bytes; raises `ValueError` where the type is one of another fixed length."""
    if isinstance(type_, FixedType) and len(data) != type_.length:
        raise ValueError(f"it has {len(data)} bytes")
    return data
