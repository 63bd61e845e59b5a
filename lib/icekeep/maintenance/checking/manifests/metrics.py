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


_PROMOTED = (
    {"int", "long"},
    {"float", "double"},
    {"date", "timestamp"},
    {"date", "timestamp_ns"},
)
"""Types that a column may have one after the other (spec, "Schema Evolution")."""


class ColumnTypes(msgspec.Struct, frozen=True):
    """Columns of all schemas of a table by id, each by its newest type, but for those whose types contradict.

    `plain` are those that lie in no list or map.
    """

    types: Mapping[int, PrimitiveType]
    plain: frozenset[int]


def column_types(metadata: TableMetadata) -> ColumnTypes:
    """The columns that entries may tell of."""
    types: dict[int, PrimitiveType] = {}
    names: dict[int, set[str]] = {}
    plain: set[int] = set()
    for schema in sorted(metadata.schemas, key=lambda s: (s.schema_id == metadata.current_schema_id, s.schema_id)):
        for field_id, type_, is_plain in _leaves(StructType(schema.fields), is_plain=True):
            types[field_id] = type_
            names.setdefault(field_id, set()).add(type_.name)
            if is_plain:
                plain.add(field_id)
    # A table that was replaced has a column of another type under the id of an old one: nobody knows whose bounds are whose.
    known = {
        i: type_
        for i, type_ in types.items()
        if any(names[i] <= promoted for promoted in _PROMOTED) or len(names[i]) == 1
    }
    return ColumnTypes(known, frozenset(plain))


def check_metrics(batch: pa.RecordBatch, known: ColumnTypes, tell: Tell) -> None:
    """Look at the metrics of entries; each entry that is wrong is told once for each class."""
    _check_counts(batch, known, tell)
    lower, upper = _Items(batch["lower_bounds"]), _Items(batch["upper_bounds"])
    undecodable: dict[int, list[int]] = {}
    crossed: dict[int, list[int]] = {}
    for field_id in sorted({*lower.ids, *upper.ids} & known.types.keys()):
        type_ = known.types[field_id]
        if not is_judged(type_):
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


def is_judged(type_: PrimitiveType) -> bool:
    """Bounds of other types (variant, geometry, unknown) have forms of their own."""
    return type_.name in _JUDGED


_JUDGED = frozenset((*INTEGER_WIDTHS, "boolean", "float", "double", "decimal", "string", "uuid", "fixed", "binary"))


class _Items:
    """The pairs of a column of maps, taken apart by their keys."""

    def __init__(self, column: pa.MapArray) -> None:
        # A null map may cover pairs, which are not there.
        there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        flat = column.take(pa.array(there))
        offsets = flat.offsets.to_numpy()
        rows = np.repeat(there, np.diff(offsets))
        keys = flat.keys.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy()
        order = np.argsort(keys, kind="stable")
        self._keys, self._rows = keys[order], rows[order]
        self._values = flat.items.slice(offsets[0], offsets[-1] - offsets[0]).take(pa.array(order))
        self.ids = frozenset(np.unique(keys).tolist())

    def of(self, key: int) -> tuple[NDArray[np.int64], pa.Array]:
        """The rows that have the key, in order, and its value in each."""
        start, stop = np.searchsorted(self._keys, [key, key + 1])
        return self._rows[start:stop], self._values.slice(start, stop - start)


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
