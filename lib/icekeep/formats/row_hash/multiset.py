"""A hash of rows that does not depend on their order: proof that a rewrite kept every one of them as it was.

It is the sum modulo 2**128 of a hash of 128 bits of each row. Rows that were swapped leave it as it is; a value that went from
one row to another, or a row that is there twice where another is missing, does not.
"""

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.formats.arrow.schema import field_id
from icekeep.formats.row_hash.columns import Column, column_of, rows_at_once
from icekeep.formats.row_hash.lanes import Lanes
from icekeep.spec.schema import Schema
from icekeep.spec.types import UNKNOWN

_BITS = 128
_LOW_HALF = np.uint64(2**32 - 1)


class RowSum(msgspec.Struct, frozen=True):
    """How many rows there are, and the sum of their hashes: a value that tasks report.

    Attributes:
        digest: 16 bytes, the lowest first.
    """

    row_count: int = 0
    digest: bytes = bytes(_BITS // 8)

    @property
    def value(self) -> int:
        """The sum as a number below 2**128."""
        return int.from_bytes(self.digest, "little")

    def __add__(self, other: "RowSum") -> "RowSum":
        """The sum of the rows of both."""
        value = (self.value + other.value) % 2**_BITS
        return RowSum(self.row_count + other.row_count, value.to_bytes(_BITS // 8, "little"))


class RowHash:
    """Adds up the hashes of rows that pass; only one thread at a time may use it.

    Columns are told apart by their field ids and values are hashed in the types of the schema. A null is not an empty or a
    zero value, nor is a struct that is null one of nulls. The order of a list's elements matters, that of a map's entries
    does not, as Iceberg's maps have none. Floats are their bits but for NaN, of which there is one. A column that data lacks
    has its `initial-default`, else nulls, and one of type `unknown` is not looked at: no file holds it.

    Attributes:
        columns: of the rows.
        row_count: rows that were added so far.
    """

    def __init__(self, columns: Schema) -> None:
        """`columns` are those of the rows; lineage is hashed where it is among them."""
        self.columns = columns
        self._fields = [field for field in columns.fields if field.type != UNKNOWN]
        self.row_count = 0
        self._value = 0

    @property
    def total(self) -> RowSum:
        """What was added so far."""
        return RowSum(self.row_count, self._value.to_bytes(_BITS // 8, "little"))

    def add(self, table: pa.Table) -> None:
        """Add rows whose fields carry field ids at every level, in any order of columns, other columns among them.

        Raises:
            InvalidTableError: a column does not fit the type of its field, or a required one is missing.
            UnsupportedError: a column has a type whose values we cannot interpret.
        """
        positions = {field_id(field): position for position, field in enumerate(table.schema)}
        for batch in table.to_batches():
            columns = []
            for field in self._fields:
                position = positions.get(field.field_id)
                array = None if position is None else batch.column(position)
                source = None if position is None else table.schema.field(position)
                columns.append(column_of(field, array, source, batch.num_rows, field.name))
            self._add(columns, batch.num_rows)

    def _add(self, columns: list[Column], row_count: int) -> None:
        weight = max(column.weight for column in columns)
        most = rows_at_once(weight, row_count)
        # Parts of one size: a short last one costs nearly as much as the others.
        step = -(-row_count // max(1, -(-row_count // most)))
        for start in range(0, row_count, max(1, step)):
            stop = min(start + step, row_count)
            lanes = Lanes.of(stop - start)
            for column in columns:
                column.add(start, stop, lanes)
            lanes.finish()
            self._value = (self._value + _sum(lanes)) % 2**_BITS
        self.row_count += row_count


def _sum(lanes: Lanes) -> int:
    """The sum of numbers of 128 bits, the first lane being their high half."""
    low = int((lanes.second & _LOW_HALF).sum()) + (int((lanes.second >> np.uint64(32)).sum()) << 32)
    return (int(lanes.first.sum()) << 64) + low
