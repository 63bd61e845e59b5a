"""Columns and rows of the examples."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("word", pa.string()),
        pa.field("number", pa.int32()),
        pa.field("score", pa.float64()),
    ]
)
NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("words", pa.list_(pa.string())),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
        pa.field("point", pa.struct([pa.field("x", pa.float64()), pa.field("names", pa.list_(pa.string()))])),
        pa.field("points", pa.list_(pa.struct([pa.field("y", pa.int32())]))),
        pa.field("uuid", pa.uuid()),
        pa.field("bytes", pa.binary()),
        pa.field("five", pa.binary(5)),
        pa.field("at", pa.timestamp("us")),
        pa.field("when", pa.timestamp("us", "UTC")),
        pa.field("clock", pa.time64("us")),
        pa.field("price", pa.decimal128(38, 10)),
        pa.field("yes", pa.bool_()),
    ]
)
NESTED_ROWS = (
    {"id": 1},
    {
        "id": 2,
        "words": ["a", None],
        "counts": [("k", None), ("l", 2)],
        "point": {"x": None, "names": None},
        "points": [{"y": 1}, None],
        "uuid": UUID(int=2**127 + 1),
        "bytes": b"\xff\x00",
        "five": b"12345",
        "at": datetime(1969, 12, 31, 23, 59, 59, 999999),
        "when": datetime(2262, 5, 1, 0, 0, 0, 1, UTC),
        "clock": time(23, 59, 59, 999999),
        "price": Decimal("-1.5"),
        "yes": True,
    },
    {"id": 3, "words": [], "counts": [], "point": {"x": 0.5, "names": []}, "points": [], "bytes": b"", "yes": False},
)
REQUIRED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("point", pa.struct([pa.field("x", pa.float64(), nullable=False)])),
    ]
)
IMPORTED = pa.schema([("id", pa.int64()), ("five", pa.binary(5)), ("words", pa.list_(pa.string()))])
POINTS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("point", pa.struct([("x", pa.float64())]))])
POINT_ROWS = ({"id": 1}, {"id": 2, "point": {"x": 0.5}}, {"id": 3, "point": {"x": 1.5}})
FIVE = pa.schema([("id", pa.int64()), ("five", pa.binary(5))])
NAN = float("nan")
ROWS: tuple[tuple[Any, ...], ...] = (
    (1, "x", 1, 0.0),
    (2, "x", None, -0.0),
    (3, None, 1, NAN),
    (4, None, None, None),
    (5, "y", 2, 1.0),
)

Keys = Iterable[Mapping[str, Any]]
