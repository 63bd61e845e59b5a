"""Single values as bytes, JSON, text and sort keys (spec, Appendix D "Single-value serialization"), and bounds of columns.

A value looks the same everywhere in `spec`: bool, int, float, str, bytes, `uuid.UUID`, `decimal.Decimal` with the scale
of its type; a date is days and a timestamp micro- or nanoseconds since the epoch in UTC, a time microseconds since
midnight; null is None. In JSON also: a list is a tuple, a map a tuple of pairs, a struct a dict by field id.

Python's `datetime` ends at the years 1 and 9999 and knows no nanoseconds; Iceberg's values do not, so the calendar is
worked out here: it repeats every 400 years. Functions that read text or convert numbers raise `ValueError` with a reason.
"""

import math
import re
import struct
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Context, Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError
from icekeep.spec.types import (
    DAY_SECONDS,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    child_fields,
)

_EPOCH_YEAR = 1970
_CYCLE_YEARS = 400
_CYCLE_DAYS = 146_097
_EPOCH_ORDINAL = date(_EPOCH_YEAR, 1, 1).toordinal()

_DATE = re.compile(r"([+-][0-9]{4,10}|[0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?")
_OFFSET = re.compile(r"([+-])([0-9]{2}):([0-9]{2})(?::([0-9]{2}))?")
_TIMESTAMP = re.compile(r"([+-]?[0-9-]+)(?:[Tt ]([0-9:.]+)([Zz]|[+-][0-9:]+)?)?")


def civil_from_days(days: int) -> tuple[int, int, int]:
    """Year, month and day of days since the epoch; the year may be any whole number."""
    cycles, rest = divmod(days, _CYCLE_DAYS)
    day = date.fromordinal(_EPOCH_ORDINAL + rest)
    return day.year + cycles * _CYCLE_YEARS, day.month, day.day


def days_from_civil(year: int, month: int, day: int) -> int:
    """Days since the epoch of a calendar date; raises `ValueError` for a day that the month does not have."""
    cycles, rest = divmod(year - _EPOCH_YEAR, _CYCLE_YEARS)
    return date(_EPOCH_YEAR + rest, month, day).toordinal() - _EPOCH_ORDINAL + cycles * _CYCLE_DAYS


def format_date(days: int) -> str:
    """ISO date; years with more than four digits carry a sign, as in ISO 8601."""
    year, month, day = civil_from_days(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


def format_time(ticks: int, ticks_per_second: int) -> str:
    """ISO time of a count since midnight; the fraction has all its digits, or is left out if it is zero."""
    seconds, fraction = divmod(ticks, ticks_per_second)
    digits = len(str(ticks_per_second)) - 1
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:0{digits}d}" if fraction else text


def format_timestamp(ticks: int, ticks_per_second: int) -> str:
    """ISO date and time of a count since the epoch, without a zone."""
    days, rest = divmod(ticks, DAY_SECONDS * ticks_per_second)
    return f"{format_date(days)}T{format_time(rest, ticks_per_second)}"


def parse_date(text: str) -> int:
    if (match := _DATE.fullmatch(text)) is None:
        raise ValueError("a date looks like 2013-01-05")
    return days_from_civil(int(match[1]), int(match[2]), int(match[3]))


def parse_time(text: str, ticks_per_second: int) -> int:
    """Count since midnight of an ISO time; digits finer than a tick must be zeros."""
    if (match := _TIME.fullmatch(text)) is None:
        raise ValueError("a time looks like 10:12:55.038194")
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("there is no such time of day")
    fraction, finer = divmod(int((match[4] or "").ljust(9, "0")), 10**9 // ticks_per_second)
    if finer:
        raise ValueError("it has more digits after the second than the type holds")
    return ((hour * 60 + minute) * 60 + second) * ticks_per_second + fraction


def parse_timestamp(text: str, ticks_per_second: int) -> tuple[int, int | None]:
    """Count since the epoch in UTC, and the text's offset in seconds or null: without one it is UTC; a date is its midnight."""
    if (match := _TIMESTAMP.fullmatch(text)) is None:
        raise ValueError("a timestamp looks like 2013-01-05T10:12:55.038194")
    ticks = parse_date(match[1]) * DAY_SECONDS * ticks_per_second
    if match[2] is not None:
        ticks += parse_time(match[2], ticks_per_second)
    if match[3] is None or match[3] in "Zz":
        return ticks, None if match[3] is None else 0
    if (offset := _OFFSET.fullmatch(match[3])) is None:
        raise ValueError("an offset from UTC looks like +00:00")
    hours, minutes, seconds = int(offset[2]), int(offset[3]), int(offset[4] or 0)
    if hours > 18 or minutes > 59 or seconds > 59:
        raise ValueError("there is no such offset from UTC")
    offset_seconds = (-1 if offset[1] == "-" else 1) * ((hours * 60 + minutes) * 60 + seconds)
    return ticks - offset_seconds * ticks_per_second, offset_seconds


_SINGLE = struct.Struct("<f")
_LARGEST_SINGLE = 3.4028235e38
# What 16 bytes hold, more than 38 digits: truncating the least decimal of a type may leave its range.
_LARGEST_UNSCALED = 2**127 - 1
_EXACT = Context(prec=80)


def unscaled(value: Decimal, scale: int) -> int:
    """The whole number of a decimal at a scale: 14.2 at scale 2 is 1420. No digit may be lost."""
    if not value.is_finite():
        raise ValueError("it is not a number")
    if value and value.adjusted() > 38:
        raise ValueError("it has more than 38 digits")
    # No ratio of a number below the last digit: it may have a very long denominator.
    numerator, denominator = (0, 1) if value.adjusted() < -scale else value.as_integer_ratio()
    number, lost = divmod(numerator * 10**scale, denominator)
    if lost or (value and not numerator):
        raise ValueError(f"it has more than {scale} digits after the point")
    return number


def decimal_from_unscaled(number: int, scale: int) -> Decimal:
    """The decimal of a whole number at a scale: 1420 at scale 2 is 14.20."""
    if abs(number) > _LARGEST_UNSCALED:
        raise ValueError("it has more than 38 digits")
    return Decimal(number).scaleb(-scale, _EXACT)


def minimal_twos_complement(number: int) -> bytes:
    """Big-endian two's complement in the fewest bytes that hold the number, at least one."""
    bits = (number if number >= 0 else ~number).bit_length() + 1
    return number.to_bytes((bits + 7) // 8, "big", signed=True)


def to_single(value: float) -> float:
    try:
        single: float = _SINGLE.unpack(_SINGLE.pack(value))[0]
    except OverflowError:
        raise ValueError("it is out of the range of float") from None
    return single


def shortest_digits(value: float, *, single: bool) -> str:
    """The shortest decimal text that reads back as the same 32-bit or 64-bit value, in Python's notation."""
    if single:
        for digits in range(1, 10):
            candidate = float(f"{value:.{digits}g}")
            # Rounded up, the greatest value of 32 bits is beyond them.
            if abs(candidate) <= _LARGEST_SINGLE and to_single(candidate) == value:
                return repr(candidate)
    return repr(value)


MICROS_PER_SECOND = 1_000_000
NANOS_PER_SECOND = 1_000_000_000

TICKS_PER_SECOND = {
    "timestamp": MICROS_PER_SECOND,
    "timestamptz": MICROS_PER_SECOND,
    "timestamp_ns": NANOS_PER_SECOND,
    "timestamptz_ns": NANOS_PER_SECOND,
}
"""The units of the timestamp types."""

INTEGER_WIDTHS = {"int": 4, "long": 8, "date": 4, "time": 8, **dict.fromkeys(TICKS_PER_SECOND, 8)}
"""Bytes of the types whose values are whole numbers."""

_PYTHON_TYPES: dict[str, type] = {
    **dict.fromkeys(INTEGER_WIDTHS, int),
    **dict.fromkeys(("float", "double"), float),
    **dict.fromkeys(("fixed", "binary"), bytes),
    "boolean": bool,
    "decimal": Decimal,
    "string": str,
    "uuid": UUID,
}
_FLOATS = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HEX = re.compile(r"([0-9a-fA-F]{2})*")


def value_to_bytes(type_: Type, value: Any) -> bytes:
    """The binary single-value form (spec, Appendix D), as in lower and upper bounds.

    Raises `UnsupportedError` for types without one here, `IcekeepBug` for a value of another type.
    """
    primitive = _primitive(type_, "binary")
    _require_value(primitive, value)
    try:
        return _encode(primitive, value)
    except (OverflowError, ValueError) as problem:
        raise IcekeepBug(f"value {value!r} is not one of type {type_}: {problem}") from problem


def _encode(type_: PrimitiveType, value: Any) -> bytes:
    name = type_.name
    if (width := INTEGER_WIDTHS.get(name)) is not None:
        return int(value).to_bytes(width, "little", signed=True)
    if (packer := _FLOATS.get(name)) is not None:
        return packer.pack(value)
    if isinstance(type_, FixedType) and len(value) > type_.length:
        raise ValueError(f"it has {len(value)} bytes")
    match name:
        case "string":
            return str(value).encode()
        case "boolean":
            return b"\x01" if value else b"\x00"
        case "uuid":
            return bytes(value.bytes)
        case "decimal" if isinstance(type_, DecimalType):
            return minimal_twos_complement(unscaled(value, type_.scale))
    return bytes(value)


def value_from_bytes(type_: Type, data: bytes) -> Any:
    """The value of a binary single value (spec, Appendix D), also of one from before its type was promoted ("Schema Evolution").

    Strings, binary and fixed values may be shortened bounds: a fixed one may have fewer bytes than its type. Raises
    `UnsupportedError` for types without a binary form here, `InvalidTableError` for bytes that are no value of the type.
    """
    primitive = _primitive(type_, "binary")
    try:
        return _decode(primitive, bytes(data))
    except ValueError as problem:
        raise InvalidTableError(
            f"bytes {bytes(data[:32]).hex()!r} are not a value of type {type_}: {problem}", section="Appendix D"
        ) from problem


_BYTE_LENGTHS: dict[str, Sequence[int]] = {
    **{name: (width,) for name, width in INTEGER_WIDTHS.items()},
    # The shorter ones were written before an int, a float or a date was promoted.
    "long": (4, 8),
    "double": (4, 8),
    "timestamp": (4, 8),
    "timestamp_ns": (4, 8),
    "boolean": (1,),
    "float": (4,),
    "uuid": (16,),
    "decimal": range(1, 33),
}


def _decode(type_: PrimitiveType, data: bytes) -> Any:
    name = type_.name
    lengths = range(type_.length + 1) if isinstance(type_, FixedType) else _BYTE_LENGTHS.get(name)
    if lengths is not None and len(data) not in lengths:
        raise ValueError(f"there are {len(data)} of them")
    if name in INTEGER_WIDTHS:
        number = int.from_bytes(data, "little", signed=True)
        is_date = name in TICKS_PER_SECOND and len(data) == 4
        return _in_range(name, number * DAY_SECONDS * TICKS_PER_SECOND[name]) if is_date else number
    match name:
        case "decimal" if isinstance(type_, DecimalType):
            return decimal_from_unscaled(int.from_bytes(data, "big", signed=True), type_.scale)
        case "boolean":
            return data != b"\x00"
        case "float" | "double":
            return _FLOATS["float" if len(data) == 4 else "double"].unpack(data)[0]
        case "string":
            return data.decode()
        case "uuid":
            return UUID(bytes=data)
    return data


def map_nested(type_: Type, value: Any, change: Callable[[NestedField, Any], Any]) -> Any:
    """A struct, list or map with each value in it replaced by `change` of its field (see `child_fields`) and the value."""
    fields = child_fields(type_)
    match type_:
        case StructType():
            return {f.field_id: change(f, value[f.field_id]) for f in fields if f.field_id in value}
        case ListType():
            return tuple(change(fields[0], item) for item in value)
    return tuple((change(fields[0], key), change(fields[1], item)) for key, item in value)


def value_to_json(type_: Type, value: Any) -> Any:
    """The JSON single-value form (spec, Appendix D), as in default values; null is null for every type.

    Raises `UnsupportedError` for types without one here and for NaN and infinity, `IcekeepBug` for a value of another type.
    """
    if value is None:
        return None
    if isinstance(type_, StructType | ListType | MapType):
        nested = map_nested(type_, value, lambda field, item: value_to_json(field.type, item))
        match type_:
            case StructType():
                return {str(field_id): item for field_id, item in nested.items()}
            case ListType():
                return [*nested]
        return {"keys": [key for key, _ in nested], "values": [item for _, item in nested]}
    primitive = _primitive(type_, "JSON")
    _require_value(primitive, value)
    if primitive.name in ("float", "double"):
        if not math.isfinite(value):
            raise UnsupportedError(f"the {type_} {value!r} cannot be written as JSON, which has finite numbers only")
        return float(shortest_digits(value, single=primitive.name == "float"))
    return value if primitive.name in ("boolean", "int", "long", "string") else value_to_text(type_, value)


def value_from_json(type_: Type, value: Any) -> Any:
    """The value of a JSON single value; raises `UnsupportedError` for types without one, `InvalidTableError` for wrong JSON."""
    if value is None:
        return None
    try:
        if isinstance(type_, StructType | ListType | MapType):
            return map_nested(type_, _nested_json(type_, value), lambda field, item: value_from_json(field.type, item))
        return _from_json(_primitive(type_, "JSON"), value)
    except (ValueError, OverflowError) as problem:
        raise InvalidTableError(
            f"JSON value {value!r} is not one of type {type_}: {problem}", section="Appendix D"
        ) from None


def _nested_json(type_: Type, value: Any) -> Any:
    """The JSON form of a struct, list or map in the shape that `map_nested` takes, its values still JSON."""
    match type_:
        case StructType():
            if not isinstance(value, dict):
                raise ValueError("it must be an object by field id")
            ids = {str(field.field_id): field.field_id for field in type_.fields}
            if unknown := sorted(value.keys() - ids.keys()):
                raise ValueError(f"the struct has no field with id {unknown[0]!r}")
            return {ids[key]: item for key, item in value.items()}
        case ListType():
            if not isinstance(value, list):
                raise ValueError("it must be an array")
            return value
    keys, items = (value.get("keys"), value.get("values")) if isinstance(value, dict) else (None, None)
    if not isinstance(keys, list) or not isinstance(items, list) or len(keys) != len(items):
        raise ValueError("it must be an object with arrays 'keys' and 'values' of one length")
    return zip(keys, items, strict=True)


_JSON_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "boolean": ((bool,), "true or false"),
    **dict.fromkeys(("int", "long"), ((int,), "a whole number")),
    **dict.fromkeys(("float", "double"), ((float, int), "a whole number")),
}


def _from_json(type_: PrimitiveType, value: Any) -> Any:
    types, words = _JSON_TYPES.get(type_.name, ((str,), "text"))
    if type(value) not in types:
        raise ValueError(f"it must be {words}")
    match type_.name:
        case "boolean" | "string":
            return value
        case "int" | "long":
            return _in_range(type_.name, value)
        case "float" | "double":
            number = float(value)
            # NaN, which no JSON has, is not equal to itself.
            if not math.isfinite(number) and number != value:
                raise ValueError(f"it is out of the range of {type_}")
            return to_single(number) if type_.name == "float" else number
    return _from_text(type_, value)


def _from_text(type_: PrimitiveType, text: str) -> Any:
    if isinstance(type_, DecimalType):
        try:
            number = unscaled(Decimal(text), type_.scale)
        except InvalidOperation:
            raise ValueError("it must be a number") from None
        if abs(number) >= 10**type_.precision:
            raise ValueError("it has too many digits")
        if Decimal(text).as_tuple().exponent != -type_.scale:
            raise ValueError(f"it must have {type_.scale} digits after the point")
        return decimal_from_unscaled(number, type_.scale)
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


def _in_range(name: str, number: int) -> int:
    limit = 1 << (8 * INTEGER_WIDTHS[name] - 1)
    if not -limit <= number < limit:
        raise ValueError(f"it is out of the range of {name}")
    return number


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


def read_uuid(text: str) -> UUID:
    if _UUID.fullmatch(text) is None:
        raise ValueError("a uuid looks like f79c3e09-677c-4bbd-a479-3f349cb785e7")
    return UUID(text)


def read_bytes(text: str) -> bytes:
    if _HEX.fullmatch(text) is None:
        raise ValueError("bytes are given in hexadecimal, two digits each")
    return bytes.fromhex(text)


def require_length(type_: PrimitiveType, data: bytes) -> bytes:
    """The bytes; raises `ValueError` if the type is `fixed` of another length."""
    if isinstance(type_, FixedType) and len(data) != type_.length:
        raise ValueError(f"it has {len(data)} bytes")
    return data


_JAVA_SIGNS = 1 << 127 | 1 << 63


def sort_key(types: Sequence[Type], values: Sequence[Any]) -> bytes:
    """Bytes that sort as the tuples of values do, and are equal only for equal tuples.

    Nulls come first; floats in the order of the spec's "Sorting", -0.0 before 0.0 and NaN last; strings by code point,
    binary, fixed and uuid by unsigned bytes. Keys compare only with keys of the same types; `formats.sort` makes those of
    whole columns. Raises `UnsupportedError` for variant, geometry, geography and nested types.
    """
    key = bytearray()
    for type_, value in zip(types, values, strict=True):
        key.append(value is not None)
        if value is not None:
            try:
                key += _ordered_bytes(type_, value)
            except (OverflowError, ValueError, AttributeError, TypeError, struct.error) as problem:
                raise IcekeepBug(f"value {value!r} is not one of type {type_}: {problem}") from problem
    return bytes(key)


def _ordered_bytes(type_: Type, value: Any) -> bytes:
    name = type_.name if isinstance(type_, PrimitiveType) else ""
    number, width = value, INTEGER_WIDTHS.get(name)
    if isinstance(type_, DecimalType):
        number, width = unscaled(value, type_.scale), 16
    if width is not None:
        # Big-endian with the sign bit flipped, so that negative numbers come first.
        key: bytes = (number + (1 << (8 * width - 1))).to_bytes(width, "big")
        return key
    match name:
        case "boolean":
            return b"\x01" if value else b"\x00"
        case "float" | "double":
            # IEEE 754's total order, with all NaNs equal, as in Java.
            data = _FLOATS[name].pack(math.nan if math.isnan(value) else value)[::-1]
            return bytes(byte ^ 0xFF for byte in data) if data[0] & 0x80 else bytes((data[0] | 0x80, *data[1:]))
        case "string" | "fixed" | "binary":
            # Zero bytes are escaped and the end is marked, so that a value sorts before those that it begins.
            data = value.encode() if name == "string" else value
            return bytes(data.replace(b"\x00", b"\x00\xff") + b"\x00\x00")
        case "uuid":
            return bytes(value.bytes)
    raise UnsupportedError(f"values of type {type_} have no order", type=str(type_))


def java_order(value: UUID) -> int:
    """A UUID as a number in Java's order of UUIDs, as two signed longs: Java's writers have bounds in that order."""
    return value.int ^ _JAVA_SIGNS


def are_crossed(lower: Any, upper: Any) -> bool:
    """Whether a lower bound is above its upper bound, so that neither can be used; null is unknown.

    Writers differ on the order of UUIDs: only bounds that are crossed in both orders count.
    """
    if lower is None or upper is None:
        return False
    if isinstance(lower, UUID):
        return lower.int > upper.int and java_order(lower) > java_order(upper)
    return bool(lower > upper)


def lower_bound(type_: PrimitiveType, value: Any, length: int | None = None) -> bytes:
    """The lower bound (spec, "Bound serialization") of a column by its least value, which is neither null nor NaN.

    All values lie within the bounds: a lower bound is cut to `length` code points or bytes, an upper bound cut and incremented;
    0.0 becomes -0.0, so that both zeros lie above it. A null `length` cuts nothing.
    """
    if type_.name in ("string", "binary"):
        value = value[:length]
    elif type_.name in ("float", "double") and value == 0:
        value = -0.0
    return value_to_bytes(type_, value)


def upper_bound(type_: PrimitiveType, value: Any, length: int | None = None) -> bytes | None:
    """The upper bound, as in `lower_bound`, by the greatest value; null where nothing of that length lies above it."""
    if type_.name in ("float", "double") and value == 0:
        value = 0.0
    if length is not None and type_.name in ("string", "binary") and len(value) > length:
        value = _incremented(value[:length])
    return None if value is None else value_to_bytes(type_, value)


def _incremented(prefix: Any) -> Any:
    """The least text or bytes, no longer than a prefix, above all that begin with it; null if there is none."""
    is_text = isinstance(prefix, str)
    for end in range(len(prefix) - 1, -1, -1):
        unit = (ord(prefix[end]) if is_text else prefix[end]) + 1
        if is_text and unit in range(0xD800, 0xE000):
            # Surrogates are no characters.
            unit = 0xE000
        if unit <= (0x10FFFF if is_text else 0xFF):
            return prefix[:end] + (chr(unit) if is_text else bytes([unit]))
    return None
