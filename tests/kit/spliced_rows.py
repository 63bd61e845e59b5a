"""Rows of every type, and ways to store them, of which pages can be moved: for tests of files that are spliced.

No oracle: what a row is follows from its number, so that each page of 25 rows has other values, and nulls at other places.
"""

import hashlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID as UUIDValue

from icekeep.spec.types import BOOLEAN, DOUBLE, FLOAT, LONG, STRING, TIME, DecimalType, PrimitiveType, decimal
from icekeep.spec.values import decimal_from_unscaled
from kit.columns import EVERY_TYPE, PRIMITIVES, column, schema_of

MOVED = {"key"} | {
    f"c{n}_{type_.name}" for n, type_ in enumerate(PRIMITIVES, start=1) if type_ not in (BOOLEAN, FLOAT, DOUBLE)
}
SPARKS = schema_of(*(field for field in EVERY_TYPE.fields if field.field_id <= 20 and field.type != TIME))
"""The columns that are not nested and whose types Spark has."""

COUNTED = schema_of(
    column(1, "key", LONG, required=True), column(2, "s", STRING), column(3, "price", decimal(15, 2)),
    column(4, "even", BOOLEAN),
)  # fmt: skip
FILES, FILE_ROWS, PAGE_ROWS = 4, 100, 25
COUNT = FILES * FILE_ROWS

DELTA = {
    "c2_int": "DELTA_BINARY_PACKED", "c3_long": "DELTA_BINARY_PACKED", "c8_timestamp": "DELTA_BINARY_PACKED",
    "c10_string": "DELTA_BYTE_ARRAY", "c12_binary": "DELTA_LENGTH_BYTE_ARRAY", "c14_decimal": "DELTA_BINARY_PACKED",
    "c15_decimal": "DELTA_BINARY_PACKED", "c6_date": "DELTA_BINARY_PACKED",
}  # fmt: skip
SPLIT_BYTES = {
    "c2_int": "BYTE_STREAM_SPLIT", "key": "BYTE_STREAM_SPLIT", "c11_uuid": "BYTE_STREAM_SPLIT",
    "c14_decimal": "BYTE_STREAM_SPLIT", "c15_decimal": "BYTE_STREAM_SPLIT", "c16_decimal": "BYTE_STREAM_SPLIT",
}  # fmt: skip
LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "plain, version 1, zstd": {"compression": "zstd"},
    "plain, version 2, zstd": {"compression": "zstd", "data_page_version": "2.0"},
    "plain, version 1, snappy": {"compression": "snappy"},
    "plain, version 2, gzip": {"compression": "gzip", "data_page_version": "2.0"},
    "plain, version 1, without page indexes": {"compression": "zstd", "write_page_index": False},
    "delta, version 1, gzip": {"compression": "gzip", "column_encoding": DELTA},
    "delta, version 2, snappy": {"compression": "snappy", "data_page_version": "2.0", "column_encoding": DELTA},
    "plain and delta in turn, version 1, zstd": {"compression": "zstd", "in_turn": DELTA},
    "plain and delta in turn, version 2, zstd": {"compression": "zstd", "data_page_version": "2.0", "in_turn": DELTA},
    "streams of bytes, version 1, zstd": {"compression": "zstd", "column_encoding": SPLIT_BYTES},
}


def flat_row(n: int) -> dict[str, Any]:
    """A row of `EVERY_TYPE`; the optional columns have no, some or nothing but nulls on a page, each at other places."""
    page = n // PAGE_ROWS
    row: dict[str, Any] = {"key": n}
    for id_, type_ in enumerate(PRIMITIVES, start=1):
        is_null = page % 4 == id_ % 4 or (page % 4 == (id_ + 1) % 4 and n % 3 == 0)
        row[f"c{id_}_{type_.name}"] = None if is_null else value_of(type_, n)
    row |= {"point": {"x": n / 7, "label": None if n % 2 else "p"}, "numbers": [n, -n][: n % 3]}
    return row


def value_of(type_: PrimitiveType, n: int) -> Any:
    number = (n * 7919 % 1009 - 500) * (1 + n)
    digest = hashlib.sha256(str(n).encode()).digest()[:16]
    if isinstance(type_, DecimalType):
        return decimal_from_unscaled(number * 10 ** max(0, type_.precision - 9), type_.scale)
    match type_.name:
        case "boolean":
            return n % 3 == 0
        case "float" | "double":
            return number / 4
        case "time":
            return (n * 1_000_003) % 86_400_000_000
        case "date":
            return number % 20_000 - 1000
        case "string":
            return text(n)
        case "uuid":
            return UUIDValue(bytes=digest)
        case "fixed":
            return digest[:5]
        case "binary":
            return digest[: n % 17]
    return number


def counted_row(n: int) -> dict[str, Any]:
    """A row of `COUNTED`, with all values in the order of the rows."""
    return {"key": n, "s": f"text {n:06}", "price": Decimal(f"{n}.50"), "even": n % 2 == 0}


def text(n: int) -> str:
    return f"text {n // 3 * 7919 % 100_003} ä"


def every_row() -> list[dict[str, Any]]:
    return [flat_row(n) for n in range(COUNT)]
