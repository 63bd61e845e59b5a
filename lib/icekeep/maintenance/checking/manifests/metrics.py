"""What entries say of columns, held against itself: bounds that are values and not crossed, counts that fit one another."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.planning.prune import decode_bounds
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS
from icekeep.spec.types import LONG, STRING, ListType, MapType, PrimitiveType, StructType, Type, child_fields
from icekeep.spec.values import INTEGER_WIDTHS

Ids: TypeAlias = NDArray[np.int64]
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


class ColumnTypes(msgspec.Struct, frozen=True, dict=True):
    """Columns of all schemas of a table by id, each by its newest type, but for those whose types contradict.

    With them the columns of position delete files. `plain` are those that lie in no list or map.
    """

    types: Mapping[int, PrimitiveType]
    plain: frozenset[int]

    @cached_property
    def judged(self) -> tuple[PrimitiveType, ...]:
        """The different types of columns whose bounds are looked at."""
        return tuple(dict.fromkeys(type_ for type_ in self.types.values() if is_judged(type_)))

    def kinds(self, ids: Ids) -> NDArray[np.intp]:
        """For each of some columns the place of its type in `judged`, or -1."""
        known, kinds = self._kinds
        if not len(known):
            return np.full(len(ids), -1, np.intp)
        places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        return np.where(known[places] == ids, kinds[places], -1)

    def are_plain(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of some columns lie in no list or map."""
        return np.isin(ids, self._plain)

    @cached_property
    def _kinds(self) -> tuple[Ids, NDArray[np.intp]]:
        places = {type_: place for place, type_ in enumerate(self.judged)}
        found = sorted((id_, places[type_]) for id_, type_ in self.types.items() if type_ in places)
        return np.array([id_ for id_, _ in found], np.int64), np.array([place for _, place in found], np.intp)

    @cached_property
    def _plain(self) -> Ids:
        return np.array(sorted(self.plain), np.int64)


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
    known |= {DELETE_FILE_PATH.field_id: STRING, DELETE_FILE_POS.field_id: LONG}
    return ColumnTypes(known, frozenset({*plain, DELETE_FILE_PATH.field_id, DELETE_FILE_POS.field_id}))


def check_metrics(batch: pa.RecordBatch, known: ColumnTypes, tell: Tell) -> None:
    """Look at the metrics of entries; each entry that is wrong is told once for each class.

    All columns of one type are looked at together: a manifest of a wide table has few entries, and many columns.
    """
    _check_counts(batch, known, tell)
    lower, upper = (_Items(batch[name]) for name in ("lower_bounds", "upper_bounds"))
    kinds, upper_kinds = known.kinds(lower.keys), known.kinds(upper.keys)
    undecodable, crossed = _Wrong(), _Wrong()
    for kind in np.union1d(kinds, upper_kinds).tolist():
        if kind < 0:
            continue
        type_ = known.judged[kind]
        of_kind, upper_of_kind = lower.where(kinds == kind), upper.where(upper_kinds == kind)
        values, upper_values = (decode_bounds(type_, some.values) for some in (of_kind, upper_of_kind))
        for some, decoded in ((of_kind, values), (upper_of_kind, upper_values)):
            undecodable.add(some, decoded.is_null().to_numpy(zero_copy_only=False))
        if type_.name != "uuid":
            crossed.add(of_kind, _crossed(of_kind, values, upper_of_kind, upper_values) & known.are_plain(of_kind.keys))
    for row, ids in undecodable.by_row():
        tell(225, row, f"bounds of {_columns(ids)} are no values of the type")
    for row, ids in crossed.by_row():
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
    """The pairs of a column of maps, each with the row that has it.

    Attributes:
        rows, keys, values: of each pair.
    """

    def __init__(self, column: pa.MapArray) -> None:
        # A null map may cover pairs, which are not there.
        there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        flat = column.take(pa.array(there))
        offsets = flat.offsets.to_numpy()
        start, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        self.rows = np.repeat(there, np.diff(offsets))
        self.keys: Ids = flat.keys.slice(start, count).to_numpy().astype(np.int64)
        self.values = flat.items.slice(start, count)

    def where(self, mask: NDArray[np.bool_]) -> "_Items":
        """Some of the pairs."""
        found = copy(self)
        found.rows, found.keys = self.rows[mask], self.keys[mask]
        found.values = self.values.filter(pa.array(mask, pa.bool_()))
        return found

    def places_of(self, others: "_Items") -> NDArray[np.int64]:
        """Where the pair with the row and key of each of some others is; -1 where there is none."""
        codes, asked = self._codes, others._codes
        if not len(codes):
            return np.full(len(asked), -1, np.int64)
        order = np.argsort(codes, kind="stable")
        found = order[np.minimum(np.searchsorted(codes, asked, sorter=order), len(codes) - 1)]
        return np.where(codes[found] == asked, found, -1)

    @property
    def _codes(self) -> NDArray[np.int64]:
        return (self.rows.astype(np.int64) << 32) | (self.keys & 0xFFFFFFFF)


class _Wrong:
    """Columns of which rows tell something wrong."""

    def __init__(self) -> None:
        self._found: dict[int, set[int]] = {}

    def add(self, items: _Items, mask: NDArray[np.bool_]) -> None:
        for row, key in zip(items.rows[mask].tolist(), items.keys[mask].tolist(), strict=True):
            self._found.setdefault(row, set()).add(key)

    def by_row(self) -> Iterator[tuple[int, list[int]]]:
        """The rows in order, each with its columns."""
        for row in sorted(self._found):
            yield row, sorted(self._found[row])


def _crossed(lower: _Items, values: pa.Array, upper: _Items, upper_values: pa.Array) -> NDArray[np.bool_]:
    """Which lower bounds are above the upper bound of their row and column."""
    places = upper.places_of(lower)
    others = upper_values.take(pa.array(places, pa.int64(), mask=places < 0))
    above: NDArray[np.bool_] = pc.fill_null(pc.greater(values, others), False).to_numpy(zero_copy_only=False)
    return above


def _check_counts(batch: pa.RecordBatch, known: ColumnTypes, tell: Tell) -> None:
    values, nulls, nans = (_Items(batch[name]) for name in _COUNTS)
    value_counts, wrong = values.values.to_numpy(), _Wrong()
    for items in (nulls, nans, values):
        counts, places = items.values.to_numpy(), values.places_of(items)
        over = np.zeros(len(counts), np.bool_)
        there = np.flatnonzero(places >= 0)
        over[there] = counts[there] > value_counts[places[there]]
        wrong.add(items, (over | (counts < 0)) & known.are_plain(items.keys))
    for row, ids in wrong.by_row():
        tell(227, row, f"counts of {_columns(ids)} are negative, or above the count of values")


def _columns(ids: Sequence[int]) -> str:
    return f"column{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}"
