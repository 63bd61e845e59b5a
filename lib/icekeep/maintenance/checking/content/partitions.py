"""Whether rows are of the partition that an entry says its file is of."""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.formats.arrow.arrays import column_values, leaf_path, leaf_values
from icekeep.formats.transforms import transformed
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Day, Hour, Month, Void, Year
from icekeep.spec.types import PrimitiveType

_MAX_SHOWN = 5
_TIMES = (Year, Month, Day, Hour)


class PartitionWatch:
    """Looks at the rows of a file, batch by batch.

    Attributes:
        others: by name of a partition field values of rows that are not the entry's, some of them.
        source_ids: columns that those are made of.
    """

    def __init__(
        self,
        spec: PartitionSpec,
        values: Sequence[Any],
        schema: Schema,
        leaves: Collection[int],
        promoted: Collection[int],
    ) -> None:
        """`schema` is the one of batches; only of `leaves`, which the file has itself, something can be said."""
        self.others: dict[str, list[Any]] = {}
        self.source_ids: set[int] = set()
        self._schema = schema
        self._fields = [
            (field, type_, value)
            for field, value in zip(spec.fields, values, strict=True)
            if field.source_id in leaves
            for type_ in _source_type(field, schema, promoted)
        ]

    def add(self, rows: pa.Table) -> None:
        """Look at some rows."""
        if not rows.num_rows:
            return
        for field, type_, expected in self._fields:
            column: Any = leaf_values(rows, self._schema, field.source_id)
            array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            if isinstance(array, pa.ExtensionArray):
                array = array.storage
            values, value_type = transformed(array, type_, field.transform)
            for value in column_values(pc.unique(values), value_type):
                if not _is_of(field, value, expected):
                    self.source_ids.add(field.source_id)
                    shown = self.others.setdefault(field.name, [])
                    if len(shown) < _MAX_SHOWN and value not in shown:
                        shown.append(value)


def _source_type(field: PartitionField, schema: Schema, promoted: Collection[int]) -> Iterator[PrimitiveType]:
    """The type of the source, if the transform can be held against the entry's value."""
    if isinstance(field.transform, Void):
        return
    try:
        type_ = leaf_path(field.source_id, [schema])[-1].type
        assert isinstance(type_, PrimitiveType)
        field.transform.apply(type_, None)
    except (InvalidTableError, UnsupportedError):
        return
    # A partition value of a date is in days, also when its column has become a timestamp.
    if not (field.source_id in promoted and type_.name in ("timestamp", "timestamp_ns")):
        yield type_


def _is_of(field: PartitionField, value: Any, expected: Any) -> bool:
    if value is None or expected is None:
        return value is expected
    if isinstance(value, float) and isinstance(expected, float) and math.isnan(value):
        return math.isnan(expected)
    if value == expected:
        return True
    # Early versions of Iceberg Java rounded times before 1970 up, and readers reckon with it.
    return isinstance(field.transform, _TIMES) and value < 0 and bool(expected == value + 1)
