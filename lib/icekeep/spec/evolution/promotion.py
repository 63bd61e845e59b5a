"""Type promotion: which types a column's type may become, and what its values become (spec, "Schema Evolution")."""

from typing import Any

from icekeep.errors import IcekeepBug, InvalidTableError, UsageError
from icekeep.spec.transforms import Day, Month, Transform, Void, Year
from icekeep.spec.types import (
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    TIMESTAMP,
    TIMESTAMP_NS,
    UNKNOWN,
    DecimalType,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
    Type,
)
from icekeep.spec.units import DAY_SECONDS
from icekeep.spec.values import INTEGER_WIDTHS, TICKS_PER_SECOND, value_from_json, value_to_json

_PROMOTIONS: tuple[tuple[Type, Type], ...] = ((INT, LONG), (FLOAT, DOUBLE))
_PROMOTIONS_SINCE_V3: tuple[tuple[Type, Type], ...] = ((DATE, TIMESTAMP), (DATE, TIMESTAMP_NS))


def validate_promotion(old: Type, new: Type, format_version: int) -> None:
    """Raise `UsageError` if a column of one type may not become one of another; says why.

    Spec: "Schema Evolution", the table of valid promotions.
    """
    if old == new or (old, new) in _PROMOTIONS:
        return
    if old == UNKNOWN or (old, new) in _PROMOTIONS_SINCE_V3:
        if format_version >= 3:
            return
        raise UsageError(f"{old} may become {new} in format version 3 only; upgrade the table first")
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        if old.scale == new.scale and old.precision < new.precision:
            return
        raise UsageError(f"{old} may not become {new}: a decimal's precision may grow, its scale stays")
    if not isinstance(old, PrimitiveType) or not isinstance(new, PrimitiveType):
        raise UsageError(f"{_kind(old)} may not become {_kind(new)}; add a column for it and drop this one")
    if old == DATE:
        raise UsageError(f"date may not become {new}; it may become timestamp or timestamp_ns")
    raise UsageError(
        f"{old} may not become {new}; int may become long, float double, and a decimal one of greater precision"
    )


def keeps_partition_values(transform: Transform, old: Type, new: Type) -> bool:
    """Whether a transform makes the same partition values after a promotion as before it.

    Only dates that become timestamps can make others; with a transform that we do not know we cannot tell.
    """
    return old != DATE or old == new or isinstance(transform, Year | Month | Day | Void)


def promote_value(old: Type, new: Type, value: Any) -> Any:
    """A value of one type as one of the type that it was promoted to, nested values too; null stays null.

    Struct fields that the new type has no more are left out.

    Raises:
        InvalidTableError: a date is out of the range of the timestamp type.
    """
    if value is None or old == new:
        return value
    if isinstance(old, StructType) and isinstance(new, StructType):
        types = {field.field_id: field.type for field in old.fields}
        return {
            f.field_id: promote_value(types[f.field_id], f.type, value[f.field_id])
            for f in new.fields
            if f.field_id in value
        }
    if isinstance(old, ListType) and isinstance(new, ListType):
        return tuple(promote_value(old.element, new.element, item) for item in value)
    if isinstance(old, MapType) and isinstance(new, MapType):
        return tuple(
            (promote_value(old.key, new.key, key), promote_value(old.value, new.value, item)) for key, item in value
        )
    if old == DATE and isinstance(new, PrimitiveType):
        return _timestamp(new, value)
    if not isinstance(old, PrimitiveType) or not isinstance(new, PrimitiveType):
        raise IcekeepBug(f"a value of type {old} cannot become one of type {new}")
    return value


def promote_default(old: Type, new: Type, default: Any) -> Any:
    """A field's stored default after a promotion of its type; raises as `promote_value` does."""
    if default is None or old == new:
        return default
    return value_to_json(new, promote_value(old, new, value_from_json(old, default)))


def _timestamp(type_: PrimitiveType, days: int) -> int:
    ticks = days * DAY_SECONDS * TICKS_PER_SECOND[type_.name]
    if abs(ticks) >= 1 << (8 * INTEGER_WIDTHS[type_.name] - 1):
        raise InvalidTableError(f"the date {days} days from 1970-01-01 is out of the range of {type_}")
    return ticks


def _kind(type_: Type) -> str:
    match type_:
        case StructType():
            return "a struct"
        case ListType():
            return "a list"
        case MapType():
            return "a map"
    return str(type_)
