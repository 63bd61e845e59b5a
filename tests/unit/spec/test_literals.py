import math
from decimal import Decimal
from typing import Any

import pytest

from icekeep.errors import ExpressionError
from icekeep.spec.literals import bind_literal, exact_limits, side_of_range
from icekeep.spec.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP_NS,
    ListType,
    NestedField,
    Type,
    decimal,
)

LARGEST_FLOAT = float.fromhex("0x1.fffffep+127")


@pytest.mark.parametrize(
    ("type_", "literal", "side"),
    [
        (INT, 2**31 - 1, 0), (INT, 2**31, 1), (INT, -(2**31), 0), (INT, -(2**31) - 1, -1),
        (INT, 2147483647.5, 1), (INT, Decimal("2147483647.1"), 1), (INT, math.inf, 1), (INT, Decimal("-Infinity"), -1),
        (LONG, 2**63 - 1, 0), (LONG, 2**63, 1), (LONG, -(2**63) - 1, -1), (LONG, Decimal("1E+400"), 1),
        (decimal(3, 1), Decimal("99.9"), 0), (decimal(3, 1), 100, 1), (decimal(3, 1), Decimal("-99.91"), -1),
        (FLOAT, LARGEST_FLOAT, 0), (FLOAT, 3.4028235e38, 1), (FLOAT, -3.4028235e38, -1), (FLOAT, 10**400, 1),
        (FLOAT, math.inf, 0), (FLOAT, Decimal("Infinity"), 0), (FLOAT, Decimal("1E+39"), 1),
        (DOUBLE, 1.7976931348623157e308, 0), (DOUBLE, 10**309, 1), (DOUBLE, -math.inf, 0), (DOUBLE, -(10**309), -1),
    ],
)  # fmt: skip
def test_numbers_lie_inside_the_range_of_a_type_or_on_one_side_of_it(type_: Type, literal: Any, side: int):
    assert side_of_range(type_, literal) == side


@pytest.mark.parametrize(
    ("type_", "literal"),
    [
        (INT, math.nan), (INT, Decimal("NaN")), (INT, Decimal("sNaN")), (DOUBLE, math.nan), (INT, True), (INT, "9" * 20),
        (DATE, 2**40), (BOOLEAN, 2), (STRING, 10**400), (ListType(element_id=2, element=INT), 2**40),
    ],
)  # fmt: skip
def test_what_is_no_number_for_the_type_has_no_side(type_: Type, literal: Any):
    assert side_of_range(type_, literal) == 0


def test_whole_and_decimal_numbers_have_exact_limits():
    assert exact_limits(INT) == (-(2**31), 2**31 - 1)
    assert exact_limits(TIMESTAMP_NS) == (-(2**63), 2**63 - 1)
    assert exact_limits(decimal(38, 0)) == (Decimal(-(10**38) + 1), Decimal(10**38 - 1))
    assert exact_limits(decimal(2, 2)) == (Decimal("-0.99"), Decimal("0.99"))
    for type_ in (FLOAT, STRING, BOOLEAN, ListType(element_id=2, element=INT)):
        assert exact_limits(type_) is None


def test_a_literal_is_refused_with_the_name_of_its_column():
    field = NestedField(field_id=1, name="day", type=DATE)
    assert bind_literal(field, "1970-01-02") == 1
    with pytest.raises(ExpressionError, match=r"^column 'day': '2013-02-30' is not a value of type date") as caught:
        bind_literal(field, "2013-02-30")
    assert caught.value.facts == {"column": "day", "literal": "2013-02-30", "type": "date"}


@pytest.mark.parametrize("type_", [FLOAT, DOUBLE])
def test_minus_zero_is_bound_as_zero(type_: Type):
    value = bind_literal(NestedField(field_id=1, name="x", type=type_), -0.0)
    assert math.copysign(1, value) == 1
