"""Partition transforms: from a column's value to a partition or sort value (spec, "Partition Transforms", Appendix B).

Transforms are frozen values; their text is the one of the metadata. Null becomes null in every transform. One that we
do not know keeps its text and is never applied: readers ignore such a field, writers must not use its spec.
"""

import base64
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, ClassVar

import msgspec

from icekeep.errors import InvalidTableError, UnsupportedError, UsageError
from icekeep.spec.types import DATE, DAY_SECONDS, INT, MAX_INT, OPAQUE, DecimalType, PrimitiveType, Type
from icekeep.spec.values import (
    INTEGER_WIDTHS,
    MICROS_PER_SECOND,
    TICKS_PER_SECOND,
    civil_from_days,
    decimal_from_unscaled,
    format_timestamp,
    minimal_twos_complement,
    shortest_digits,
    unscaled,
)

_TIMES = frozenset(("date", *TICKS_PER_SECOND))
_HASHED = frozenset((*INTEGER_WIDTHS, "decimal", "string", "uuid", "fixed", "binary"))
_TRUNCATED = frozenset(("int", "long", "decimal", "string", "binary"))
_IDENTIFIABLE = _HASHED | {"boolean", "float", "double", "unknown", "opaque"}
_WITH_PARAMETER = re.compile(r"(bucket|truncate)\[([0-9]{1,10})\]", re.IGNORECASE)


class Transform(msgspec.Struct, frozen=True):
    """How a partition or sort value is made of a column's value; `str()` gives the text of the metadata."""

    _sources: ClassVar[frozenset[str] | None]
    """The names of the source types that the transform takes; null for all."""
    _result: ClassVar[Type | None] = None
    """The type of the transformed values; null for that of the column."""

    def __str__(self) -> str:
        match self:
            case Bucket(parameter) | Truncate(parameter):
                return f"{type(self).__name__.lower()}[{parameter}]"
            case UnknownTransform(text):
                return text
        return type(self).__name__.lower()

    def accepts(self, source_type: Type) -> bool:
        sources = self._sources
        return sources is None or (isinstance(source_type, PrimitiveType) and source_type.name in sources)

    def result_type(self, source_type: Type) -> Type:
        return source_type if self._result is None else self._result

    def apply(self, source_type: Type, value: Any) -> Any:
        """Transform a value of `source_type`; null stays null.

        Raises `InvalidTableError` for a type that the transform does not take, `UnsupportedError` for an unknown transform.
        """
        if isinstance(self, UnknownTransform):
            raise UnsupportedError(f"transform {self.text!r} is not one that icekeep can apply", transform=self.text)
        if not self.accepts(source_type):
            raise InvalidTableError(f"transform {str(self)!r} cannot be applied to a column of type {source_type}")
        return None if value is None else self._apply(source_type, value)

    def _apply(self, source_type: Type, value: Any) -> Any:
        match self:
            case Void():
                return None
            case Bucket(bucket_count):
                return (hash_value(source_type, value) & 0x7FFF_FFFF) % bucket_count
            case Truncate(width):
                if isinstance(source_type, DecimalType):
                    number = unscaled(value, source_type.scale)
                    return decimal_from_unscaled(number - number % width, source_type.scale)
                return value - value % width if isinstance(value, int) else value[:width]
            case Year():
                return civil_from_days(_days(source_type, value))[0] - 1970
            case Month():
                year, month, _ = civil_from_days(_days(source_type, value))
                return (year - 1970) * 12 + month - 1
            case Day():
                return _days(source_type, value)
            case Hour():
                assert isinstance(source_type, PrimitiveType)
                return value // (3600 * TICKS_PER_SECOND[source_type.name])
        return value

    def to_text(self, source_type: Type, value: Any) -> str:
        """A transformed value as Iceberg's partition paths show it, "null" for null."""
        if value is None or isinstance(self, Void):
            return "null"
        match self:
            case Year():
                return f"{1970 + value:04d}"
            case Month():
                return f"{1970 + value // 12:04d}-{1 + value % 12:02d}"
            case Hour():
                return f"{_day_text(value // 24)}-{value % 24:02d}"
            case UnknownTransform():
                return str(value)
        return _value_text(self.result_type(source_type), value)


class Identity(Transform, frozen=True):
    _sources = _IDENTIFIABLE


class Bucket(Transform, frozen=True):
    """Hash of the value, modulo `bucket_count`.

    >>> Bucket(100).apply(INT, 34)
    79
    """

    bucket_count: int
    _sources, _result = _HASHED, INT


class Truncate(Transform, frozen=True):
    """The value cut to `width`: numbers down to a multiple, strings to code points, binary to bytes.

    The multiple below a number near the least one of its type may be out of the type's range.

    >>> Truncate(10).apply(INT, -1)
    -10
    """

    width: int
    _sources = _TRUNCATED


class Year(Transform, frozen=True):
    """Years from 1970, of a date or timestamp, as with all units of time."""

    _sources, _result = _TIMES, INT


class Month(Transform, frozen=True):
    """Months from 1970-01."""

    _sources, _result = _TIMES, INT


class Day(Transform, frozen=True):
    """Days from 1970-01-01, a date."""

    _sources, _result = _TIMES, DATE


class Hour(Transform, frozen=True):
    """Hours from 1970-01-01T00; not for dates."""

    _sources, _result = _TIMES - {"date"}, INT


class Void(Transform, frozen=True):
    """Null, whatever the value: how v1 tables drop a partition field."""

    _sources = None


class UnknownTransform(Transform, frozen=True):
    """A transform that we do not know, by its text; its values are shown, but never made or put in order."""

    text: str
    _sources, _result = None, OPAQUE


_WITHOUT_PARAMETER = {str(t): t for t in (Identity(), Year(), Month(), Day(), Hour(), Void())}


def parse_transform(text: str) -> Transform:
    """Read a transform's text, for example `bucket[16]`; any text that we do not know is an `UnknownTransform`.

    Raises `InvalidTableError` where the parameter of a bucket or truncate transform is not from 1 to 2**31 - 1.
    """
    if (transform := _WITHOUT_PARAMETER.get(text.lower())) is not None:
        return transform
    if (match := _WITH_PARAMETER.fullmatch(text)) is None:
        return UnknownTransform(text)
    parameter = int(match[2])
    if not 1 <= parameter <= MAX_INT:
        raise InvalidTableError(f"transform {text!r} has a parameter that is not between 1 and {MAX_INT}")
    return Bucket(parameter) if match[1].lower() == "bucket" else Truncate(parameter)


def known_transform(text: str) -> Transform:
    """Read the text of a transform that a user gives; raises `UsageError` for one that we do not know."""
    try:
        transform = parse_transform(text)
    except InvalidTableError as error:
        raise UsageError(error.message) from error
    if isinstance(transform, UnknownTransform):
        raise UsageError(
            f"there is no transform {text!r}; give identity, year, month, day, hour, bucket[N], truncate[W] or void"
        )
    return transform


def transform_from_json(keys: dict[str, Any], what: str) -> tuple[int, Transform]:
    """Take the source column's id and the transform out of the JSON object of a partition or sort field, `what` in errors.

    No transform of several columns is known: it is represented by the first column, and its `source-ids`, and `source-id`
    where given, stay in `keys` to be written back.
    """
    text, source_id, source_ids = keys.pop("transform", None), keys.get("source-id"), keys.get("source-ids")
    if not isinstance(text, str):
        raise InvalidTableError(f"{what} has the transform {text!r}; it must be text", section="Appendix C")
    given = source_ids if source_ids is not None else [source_id]
    if not isinstance(given, list) or not given or any(type(i) is not int for i in given):
        raise InvalidTableError(f"{what} names no source column by its id", section="Appendix C")
    if len(given) > 1:
        return given[0], UnknownTransform(text)
    keys.pop("source-id", None)
    keys.pop("source-ids", None)
    return given[0], parse_transform(text)


def transform_to_json(source_id: int, transform: Transform, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that `transform_from_json` reads and those in `extra`."""
    source = {} if "source-ids" in extra else {"source-id": source_id}
    return {"transform": str(transform), **source, **extra}


def hash_value(type_: Type, value: Any) -> int:
    """The signed 32-bit hash of a value (spec, Appendix B): Murmur3, x86 variant, seed 0."""
    if isinstance(type_, DecimalType):
        data = minimal_twos_complement(unscaled(value, type_.scale))
    elif isinstance(value, int):
        if isinstance(type_, PrimitiveType) and type_.name.endswith("_ns"):
            value //= TICKS_PER_SECOND[type_.name] // MICROS_PER_SECOND
        data = value.to_bytes(8, "little", signed=True)
    elif isinstance(value, str):
        data = value.encode()
    else:
        data = value if isinstance(value, bytes) else value.bytes
    # Filters know transforms, and a configuration has filters: reading one loads no hash function.
    import mmh3

    return mmh3.hash(data, seed=0, signed=True)


def _days(source_type: Type, value: int) -> int:
    if source_type == DATE:
        return value
    assert isinstance(source_type, PrimitiveType)
    return value // (DAY_SECONDS * TICKS_PER_SECOND[source_type.name])


def _day_text(days: int) -> str:
    year, month, day = civil_from_days(days)
    return f"{year:04d}-{month:02d}-{day:02d}"


def _value_text(type_: Type, value: Any) -> str:
    """A value as Iceberg's Java library prints it, which names the directories of partitions."""
    match type_.name if isinstance(type_, PrimitiveType) else "":
        case "boolean":
            return "true" if value else "false"
        case "date":
            return _day_text(value)
        case "time":
            return _time_text(value)
        case "timestamp" | "timestamptz" | "timestamp_ns" | "timestamptz_ns" as name:
            text = format_timestamp(value, TICKS_PER_SECOND[name])
            text = text.rstrip("0") if "." in text else text
            return text + "+00:00" if name.startswith("timestamptz") else text
        case "float" | "double" as name:
            return _float_text(shortest_digits(value, single=name == "float"), value)
        case "fixed" | "binary":
            return base64.b64encode(value).decode("ascii")
    return str(value)


def _time_text(value: int) -> str:
    """Java's LocalTime: no seconds if they are zero, the fraction in groups of three digits."""
    seconds, micros = divmod(value, MICROS_PER_SECOND)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}"
    if seconds % 60 or micros:
        text += f":{seconds % 60:02d}"
    if micros:
        text += f".{micros // 1000:03d}" if micros % 1000 == 0 else f".{micros:06d}"
    return text


def _float_text(digits: str, value: float) -> str:
    """Java's Double: plain between 0.001 and ten million, else one digit before the point and an exponent."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return digits
    mantissa, _, exponent = f"{Decimal(digits).normalize():E}".partition("E")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"
