"""What entries say of columns, held against itself: bounds that are values and not crossed, counts that fit one another."""

from collections.abc import Callable, Iterator, Mapping

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.planning.entries.bounds import decode_bounds
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.types import ListType, MapType, PrimitiveType, StructType, Type, child_fields
from icekeep.spec.values import INTEGER_WIDTHS

Tell = Callable[[int, int, str], None]
"""Takes the number of a class, the row of an entry, and what is wrong with it."""

_COUNTS = ("value_counts", "null_value_counts", "nan_value_counts")
METRIC_COLUMNS = (*_COUNTS, "lower_bounds", "upper_bounds")


class ColumnTypes(msgspec.Struct, frozen=True):
    """Columns of all schemas of a table by id, each by its newest type; `plain` are those that lie in no list or map."""

    types: Mapping[int, PrimitiveType]
    plain: frozenset[int]


def column_types(metadata: TableMetadata) -> ColumnTypes:
    """The columns that entries may tell of."""
    types: dict[int, PrimitiveType] = {}
    plain: set[int] = set()
    for schema in sorted(metadata.schemas, key=lambda s: (s.schema_id == metadata.current_schema_id, s.schema_id)):
        for field_id, type_, is_plain in _leaves(StructType(schema.fields), is_plain=True):
            types[field_id] = type_
            if is_plain:
                plain.add(field_id)
    return ColumnTypes(types, frozenset(plain))


def check_metrics(batch: pa.RecordBatch, known: ColumnTypes, tell: Tell) -> None:
    """Look at the metrics of entries; each entry that is wrong is told once for each class."""
    _check_counts(batch, known, tell)
    lower, upper = _Items(batch["lower_bounds"]), _Items(batch["upper_bounds"])
    undecodable: dict[int, list[int]] = {}
    crossed: dict[int, list[int]] = {}
    for field_id in sorted({*lower.ids, *upper.ids} & known.types.keys()):
        type_ = known.types[field_id]
        if not _is_judged(type_):
            continue
        (rows, bounds), (upper_rows, upper_bounds) = lower.of(field_id), upper.of(field_id)
        values, upper_values = decode_bounds(type_, bounds), decode_bounds(type_, upper_bounds)
        for some, decoded in ((rows, values), (upper_rows, upper_values)):
            for row in some[decoded.is_null().to_numpy(zero_copy_only=False)].tolist():
                undecodable.setdefault(row, []).append(field_id)
        if field_id in known.plain and type_.name != "uuid":
            for row in _crossed(rows, values, upper_rows, upper_values):
                crossed.setdefault(row, []).append(field_id)
    for row, ids in undecodable.items():
        tell(225, row, f"bounds of {_columns(ids)} are no values of the type")
    for row, ids in crossed.items():
        tell(226, row, f"the lower bound of {_columns(ids)} is above the upper bound")


def _leaves(type_: Type, *, is_plain: bool) -> Iterator[tuple[int, PrimitiveType, bool]]:
    for field in child_fields(type_):
        below = is_plain and not isinstance(type_, ListType | MapType)
        if isinstance(field.type, PrimitiveType):
            yield field.field_id, field.type, below
        else:
            yield from _leaves(field.type, is_plain=below)


def _is_judged(type_: PrimitiveType) -> bool:
    """Bounds of other types (variant, geometry, unknown) have forms of their own."""
    return type_.name in _JUDGED


_JUDGED = frozenset((*INTEGER_WIDTHS, "boolean", "float", "double", "decimal", "string", "uuid", "fixed", "binary"))


class _Items:
    """The pairs of a column of maps, taken apart by their keys."""

    def __init__(self, column: pa.MapArray) -> None:
        offsets = column.offsets.to_numpy()
        lengths = np.diff(offsets) * column.is_valid().to_numpy(zero_copy_only=False)
        self._rows = np.repeat(np.arange(len(column)), lengths)
        self._keys = column.keys.to_numpy()[offsets[0] : offsets[-1]] if len(column) else np.empty(0, np.int32)
        self._values = column.items.slice(offsets[0], offsets[-1] - offsets[0]) if len(column) else column.items
        if len(self._keys) != len(self._rows):
            # A null map may cover pairs, which are not there.
            flat = column.filter(column.is_valid())
            self._keys, self._values = flat.keys.to_numpy(), flat.items
        self.ids = frozenset(np.unique(self._keys).tolist())

    def of(self, key: int) -> tuple[NDArray[np.int64], pa.Array]:
        """The rows that have the key, and its value in each."""
        at = np.flatnonzero(self._keys == key)
        return self._rows[at], self._values.take(pa.array(at))


def _crossed(rows: NDArray[np.int64], lower: pa.Array, upper_rows: NDArray[np.int64], upper: pa.Array) -> list[int]:
    both, at, upper_at = np.intersect1d(rows, upper_rows, assume_unique=True, return_indices=True)
    above = pc.fill_null(pc.greater(lower.take(pa.array(at)), upper.take(pa.array(upper_at))), False)
    found: list[int] = both[above.to_numpy(zero_copy_only=False)].tolist()
    return found


def _check_counts(batch: pa.RecordBatch, known: ColumnTypes, tell: Tell) -> None:
    values, nulls, nans = (_Items(batch[name]) for name in _COUNTS)
    wrong: dict[int, list[int]] = {}
    for field_id in sorted({*values.ids, *nulls.ids, *nans.ids} & known.plain):
        (value_rows, value_counts) = values.of(field_id)
        for rows, counts in (nulls.of(field_id), nans.of(field_id), (value_rows, value_counts)):
            numbers = counts.to_numpy()
            for row in rows[numbers < 0].tolist():
                wrong.setdefault(row, []).append(field_id)
            _, at, value_at = np.intersect1d(rows, value_rows, assume_unique=True, return_indices=True)
            over = numbers[at] > value_counts.to_numpy()[value_at]
            for row in rows[at][over].tolist():
                wrong.setdefault(row, []).append(field_id)
    for row, ids in wrong.items():
        tell(227, row, f"counts of {_columns(ids)} are negative, or above the count of values")


def _columns(ids: list[int]) -> str:
    distinct = sorted(set(ids))
    return f"column{'s' if len(distinct) > 1 else ''} {', '.join(map(str, distinct))}"
