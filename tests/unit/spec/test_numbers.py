import math
import struct
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.utils.decimal import decimal_to_bytes

from icekeep.spec.values import decimal_from_unscaled, minimal_twos_complement, shortest_digits, to_single, unscaled
from kit.cases import for_each

UNSCALED = st.integers(-(10**38) + 1, 10**38 - 1)


@for_each(
    ("value", "scale", "number"),
    [("14.20", 2, 1420), ("14.2", 2, 1420), ("-0.01", 2, -1), ("1E+2", 2, 10000), ("0E-40", 2, 0), ("0E+9999", 2, 0)],
)
def test_a_decimal_is_a_whole_number_at_a_scale(value: str, scale: int, number: int):
    assert unscaled(Decimal(value), scale) == number


@given(UNSCALED, st.integers(0, 38))
def test_a_decimal_keeps_all_38_digits(number: int, scale: int):
    value = decimal_from_unscaled(number, scale)
    assert value.as_tuple().exponent == -scale
    assert unscaled(value, scale) == number


@for_each("value", ["10.655", "1E-400", "NaN", "Infinity", "1E+1000000", "1E+39"])
def test_a_decimal_that_would_lose_digits_or_has_none_is_refused(value: str):
    with pytest.raises(ValueError):
        unscaled(Decimal(value), 2)


def test_a_number_beyond_16_bytes_is_no_decimal():
    assert decimal_from_unscaled(2**127 - 1, 0) == 2**127 - 1
    for number in (2**127, -(2**127)):
        with pytest.raises(ValueError):
            decimal_from_unscaled(number, 0)


@for_each(
    ("number", "data"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "0080"),
        (-1, "ff"),
        (-128, "80"),
        (-129, "ff7f"),
        (1420, "058c"),
        (32768, "008000"),
    ],
)
def test_two_s_complement_takes_the_fewest_bytes(number: int, data: str):
    assert minimal_twos_complement(number).hex() == data


@given(UNSCALED)
def test_two_s_complement_agrees_with_pyiceberg(number: int):
    assert minimal_twos_complement(number) == decimal_to_bytes(Decimal(number))


@given(st.floats())
def test_rounding_to_32_bits_agrees_with_ieee_754(value: float):
    try:
        (expected,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        with pytest.raises(ValueError, match="range of float"):
            to_single(value)
    else:
        assert struct.pack("<f", to_single(value)) == struct.pack("<f", expected)


@for_each(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (1.0, "1.0"),
        (16777216.0, "16777216.0"),
        (1e10, "10000000000.0"),
        (-0.0, "-0.0"),
        (1e-45, "1e-45"),
        (3.4028235e38, "3.4028235e+38"),
        (math.inf, "inf"),
        (math.nan, "nan"),
    ],
)
def test_a_32_bit_float_has_the_digits_that_it_was_written_with(value: float, text: str):
    assert shortest_digits(to_single(value), single=True) == text


@given(st.floats(width=32, allow_nan=False))
def test_a_32_bit_float_survives_its_digits(value: float):
    digits = shortest_digits(value, single=True)
    assert struct.pack("<f", float(digits)) == struct.pack("<f", value)
    assert len(digits) <= len(repr(value))
