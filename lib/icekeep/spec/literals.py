"""The literals of a filter against the range of a column's type.

`values.py` turns a literal into a value and refuses one that the type does not have. A number that is merely too large
or too small for its column is no mistake in a comparison, so it is found out here first.
"""

import math
from decimal import Decimal
from typing import Any

from icekeep.errors import ExpressionError
from icekeep.spec.numbers import decimal_from_unscaled
from icekeep.spec.types import DecimalType, NestedField, PrimitiveType, Type
from icekeep.spec.values import INTEGER_WIDTHS, value_from_literal

_FINITE_LIMITS = {
    "float": (float.fromhex("-0x1.fffffep+127"), float.fromhex("0x1.fffffep+127")),
    "double": (float.fromhex("-0x1.fffffffffffffp+1023"), float.fromhex("0x1.fffffffffffffp+1023")),
}
_EXACT_NUMBERS = ("int", "long", "decimal")
_Number = int | float | Decimal


def bind_literal(field: NestedField, literal: Any) -> Any:
    """The literal as a value of the field's type, -0.0 as 0.0; raises `ExpressionError` naming the column."""
    try:
        value = value_from_literal(field.type, literal)
    except ExpressionError as problem:
        raise ExpressionError(f"column {field.name!r}: {problem.message}", column=field.name, **problem.facts) from None
    return value + 0.0 if isinstance(value, float) else value


def side_of_range(type_: Type, literal: Any) -> int:
    """Where a literal lies: 1 above every finite value of a numeric type, -1 below them, 0 anywhere else."""
    if not isinstance(type_, PrimitiveType) or isinstance(literal, bool) or not isinstance(literal, _Number):
        return 0
    limits = _FINITE_LIMITS.get(type_.name) or (exact_limits(type_) if type_.name in _EXACT_NUMBERS else None)
    if limits is None or _is_nan(literal) or (type_.name in _FINITE_LIMITS and literal in (math.inf, -math.inf)):
        return 0
    lowest, highest = limits
    return (literal > highest) - (literal < lowest)


def exact_limits(type_: Type) -> tuple[Any, Any] | None:
    """The least and the greatest value of a type whose values are whole or decimal numbers, null for other types."""
    if isinstance(type_, DecimalType):
        highest = decimal_from_unscaled(10**type_.precision - 1, type_.scale)
        return highest.copy_negate(), highest
    if isinstance(type_, PrimitiveType) and (width := INTEGER_WIDTHS.get(type_.name)) is not None:
        return -(1 << (8 * width - 1)), (1 << (8 * width - 1)) - 1
    return None


def _is_nan(number: _Number) -> bool:
    return number.is_nan() if isinstance(number, Decimal) else number != number
