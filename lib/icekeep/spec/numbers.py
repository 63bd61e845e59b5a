"""Numbers as digits: decimals as scaled whole numbers, whole numbers as bytes, floats as text and in 32 bits.

Functions raise `ValueError` with a reason where a number does not fit.
"""

import struct
from decimal import Context, Decimal

_SINGLE = struct.Struct("<f")
_LARGEST_SINGLE = 3.4028235e38
# Beyond 38 digits by what 16 bytes hold: truncating the least decimal of a type may step over its range.
_LARGEST_UNSCALED = 2**127 - 1
_EXACT = Context(prec=80)


def unscaled(value: Decimal, scale: int) -> int:
    """The whole number of a decimal at a scale: 14.2 at scale 2 is 1420. No digit may be lost."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError("it is not a number")
    if value and value.adjusted() > 38:
        raise ValueError("it has more than 38 digits")
    number = int("".join(map(str, digits)))
    shift = exponent + scale
    if shift >= 0:
        number = number * 10**shift if number else 0
    else:
        number, lost = divmod(number, 10**-shift) if -shift <= len(digits) else (0, number)
        if lost:
            raise ValueError(f"it has more than {scale} digits after the point")
    return -number if sign else number


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
    """The nearest value of a 32-bit float."""
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
