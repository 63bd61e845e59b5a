"""The rows of the tables that Java's stories tell of (`java_delete_stories`): what a row is follows from its number, its id.

They are chosen by hand, so that each delete of a story hits rows with null, NaN or a zero. No oracle: a story says what is left.
"""

import math
from collections.abc import Iterable
from typing import Any
from uuid import UUID as UUIDValue

from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    StructType,
    decimal,
    fixed,
)
from icekeep.spec.values import decimal_from_unscaled
from kit.columns import column, schema_of

PLACE = StructType((column(7, "lat", FLOAT), column(8, "zone", STRING)))
EVENTS = schema_of(
    column(1, "id", LONG, required=True),
    column(2, "kind", STRING),
    column(3, "score", DOUBLE),
    column(4, "day", DATE),
    column(5, "amount", decimal(9, 2)),
    column(6, "place", PLACE),
)
"""Ids as Java assigns them."""


# No two rows of one commit and one kind are the two zeros: Java's ORC reader takes those for one (a test shows it).
_SCORES = {0: math.nan, 2: 0.0, 3: None, 5: math.nan, 6: -0.0, 8: None}


def event(number: int) -> dict[str, Any]:
    """A row with nulls, NaN and both zeros among its values."""
    return {
        "id": number,
        "kind": None if number % 7 == 3 else f"k{number % 3}",
        "score": _SCORES.get(number % 10, number / 2),
        "day": 18_000 + number,
        "amount": None if number % 6 == 5 else decimal_from_unscaled(number * 25, 2),
        "place": None if number % 8 == 6 else {"lat": number / 4, "zone": f"z{number % 4}"},
    }


def events(numbers: Iterable[int]) -> list[dict[str, Any]]:
    return [event(number) for number in numbers]


def without(numbers: Iterable[int], *deleted: int) -> tuple[int, ...]:
    return tuple(number for number in numbers if number not in deleted)


NUMBERS = schema_of(
    column(1, "id", LONG, required=True),
    column(2, "n", INT),
    column(3, "ratio", FLOAT),
    column(4, "price", decimal(9, 2)),
    column(5, "name", STRING),
)


def narrow(number: int) -> dict[str, Any]:
    price = decimal_from_unscaled(number * 10, 2)
    return {"id": number, "n": number, "ratio": number / 8, "price": price, "name": f"n{number}"}


def wide(number: int) -> dict[str, Any]:
    price = decimal_from_unscaled(10**12 + number, 2)
    return {"id": number, "n": number + 2**40, "ratio": number / 8, "price": price, "title": f"n{number}"}


EVERY_TYPE = schema_of(
    column(1, "id", LONG, required=True),
    column(2, "flag", BOOLEAN),
    column(3, "int", INT),
    column(4, "long", LONG),
    column(5, "float", FLOAT),
    column(6, "double", DOUBLE),
    column(7, "date", DATE),
    column(8, "time", TIME),
    column(9, "local", TIMESTAMP),
    column(10, "moment", TIMESTAMPTZ),
    column(11, "text", STRING),
    column(12, "uuid", UUID),
    column(13, "bytes", BINARY),
    column(14, "fixed", fixed(3)),
    column(15, "small", decimal(9, 2)),
    column(16, "middle", decimal(18, 3)),
    column(17, "large", decimal(38, 10)),
)
TYPED_COLUMNS = tuple(field.name for field in EVERY_TYPE.fields if field.name not in ("id", "flag"))


def typed(number: int) -> dict[str, Any]:
    """A value of every type that no other row has, but for the flag."""
    return {
        "id": number,
        "flag": number % 2 == 0,
        "int": number * 7,
        "long": number * 2**33,
        "float": number / 4,
        "double": number / 3,
        "date": number * 100,
        "time": number * 100_000_001,
        "local": number * 3_000_000_000_007,
        "moment": number * 5_000_000_000_011,
        "text": f"ä{number}",
        "uuid": UUIDValue(int=number << 100 | number),
        "bytes": bytes([number, 0, 255]),
        "fixed": bytes([255, number, 0]),
        "small": decimal_from_unscaled(number * 101, 2),
        "middle": decimal_from_unscaled(number * 10**14 + 1, 3),
        "large": decimal_from_unscaled(number * 10**33 + 3, 10),
    }
