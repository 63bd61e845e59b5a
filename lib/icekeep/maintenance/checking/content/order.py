"""Whether the rows of a file are in a sort order."""

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.sort.encode import Ordering
from icekeep.formats.sort.keys import sort_keys
from icekeep.maintenance.checking.content.columns import no_rows
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import SortOrder
from icekeep.spec.types import DOUBLE, FLOAT, UUID


class OrderWatch:
    """Looks at the rows of a file, batch by batch.

    Attributes:
        broken_at: the position of the first row that is less than the one before it.
    """

    def __init__(self, order: SortOrder, schema: Schema, leaves: Collection[int]) -> None:
        """`schema` is the one of batches; an order by what is not in `leaves`, or that has no one meaning, is not judged."""
        self.broken_at: int | None = None
        self._schema = schema
        self._ordering = Ordering(fields=order.fields)
        self._floats = [n for n, field in enumerate(schema.fields) if field.type in (FLOAT, DOUBLE)]
        self._last: Any = None
        self._is_judged = self._can_judge(order, leaves)

    def add(self, rows: pa.Table, first: int) -> None:
        """Look at some rows, the first of which has a position in the file."""
        if not self._is_judged or self.broken_at is not None or not rows.num_rows:
            return
        keys = self._keys(rows)
        if self._last is not None and pc.less(keys[0], self._last).as_py():
            self.broken_at = first
            return
        less = pc.less(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        if less.any():
            self.broken_at = first + 1 + int(np.argmax(less))
        self._last = keys[-1]

    def _keys(self, rows: pa.Table) -> pa.Array:
        for position in self._floats:
            # Engines sort both zeros as one.
            column = rows.column(position)
            rows = rows.set_column(position, rows.schema.field(position), pc.add(column, pa.scalar(0.0, column.type)))
        return sort_keys(rows, self._ordering, self._schema)

    def _can_judge(self, order: SortOrder, leaves: Collection[int]) -> bool:
        if not order.fields:
            return False
        top_level = {field.field_id for field in self._schema.fields}
        for field in order.fields:
            source = self._schema.fields_by_id.get(field.source_id)
            if source is None or field.source_id not in leaves or source.type == UUID:
                return False
            if source.type in (FLOAT, DOUBLE) and field.source_id not in top_level:
                return False
        try:
            sort_keys(no_rows(arrow_schema(self._schema)), self._ordering, self._schema)
        except (InvalidTableError, UnsupportedError):
            return False
        return True
