"""Default values of struct fields (spec, "Default values"): what a row has where nobody gave a value.

A field stores its defaults in JSON. A struct's own default is null or `{}`, and the defaults of its fields fill it; here
they become whole values, in the form of `values.py`.
"""

import datetime
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError, UsageError
from icekeep.spec.numbers import decimal_from_unscaled, unscaled
from icekeep.spec.types import DecimalType, ListType, MapType, NestedField, PrimitiveType, StructType, Type
from icekeep.spec.values import value_from_json, value_to_json

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
