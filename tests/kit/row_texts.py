"""Rows made comparable: each is a text that follows from the types of its columns, and is counted.

NaN equals NaN, -0.0 is not 0.0, and a decimal is its digits: so equality deletes compare, and so Iceberg Java tells its rows
(`java_values`). `lake.multiset` counts rows of Arrow tables whose Iceberg schema nobody has at hand.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from icekeep.catalog.base import Table
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import MAIN
from icekeep.spec.types import NestedField, StructType
from icekeep.tables.read import read_table
from kit.java_values import multiset, to_wire

Row = Mapping[Any, Any]
"""Values by the ids or by the names of columns, as `spec/values.py` has them or as Arrow gives them to Python."""


def row_texts(schema: Schema, rows: Iterable[Row]) -> Counter[str]:
    """Each row's text, with how often it occurs; a column that a row does not name is null."""
    struct = schema.as_struct()
    return multiset(to_wire(struct, row) for row in rows)


def key_text(fields: Sequence[NestedField], row: Row) -> str:
    """The text of a row in some columns: the same for rows that are equal there."""
    [text] = multiset([to_wire(StructType(tuple(fields)), row)])
    return text


def scanned_rows(table: Table, ref: str = MAIN) -> Counter[str]:
    """The rows of a branch by the library's own scan, in this process."""
    return row_texts(table.metadata.schema, read_table(table, ref=ref).to_pylist())
