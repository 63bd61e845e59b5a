"""How many manifests a filter on one partition opens: what clustering is for, before and after. Pure.

A manifest is opened where its partition summaries admit the partition, as the planner prunes: what a summary does not
say, or says in bytes that cannot be read, admits everything.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mmh3
import msgspec
import numpy as np
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.manifests.structs import FieldSummary, ManifestFile
from icekeep.spec.types import DOUBLE, FLOAT, UUID, NestedField, Type
from icekeep.spec.values import are_crossed, java_order, value_from_bytes

_MAX_CELLS = 4_000_000

_Mask = NDArray[np.bool_]
_Numbers = NDArray[np.int64]


class Overlap(msgspec.Struct, frozen=True):
    """What filters on one partition each open: manifests on average and at most, and their bytes on average.

    `partitions_count` is how many partitions were looked at.
    """

    partitions_count: int
    mean_manifests: float
    max_manifests: int
    mean_bytes: int


def overlap(
    manifests: Sequence[ManifestFile], partitions: Sequence[tuple[Any, ...]], fields: Sequence[NestedField]
) -> Overlap:
    """How many of `manifests` a filter on each of `partitions` opens.

    Args:
        manifests: of one spec.
        partitions: tuples of values in the order of `fields`.
        fields: those of the spec's partition type.
    """
    if not partitions:
        return Overlap(0, 0.0, 0, 0)
    columns = [_Column(field.type, [p[index] for p in partitions]) for index, field in enumerate(fields)]
    summaries = [_Summaries(column, manifests, index) for index, column in enumerate(columns)]
    lengths = np.array([manifest.manifest_length for manifest in manifests], dtype=np.int64)
    opened = np.zeros(len(partitions), dtype=np.int64)
    opened_bytes = np.zeros(len(partitions), dtype=np.float64)
    step = max(1, _MAX_CELLS // max(1, len(manifests)))
    for begin in range(0, len(partitions), step):
        rows = slice(begin, begin + step)
        admitted = np.ones((len(opened[rows]), len(manifests)), dtype=np.bool_)
        for of_field in summaries:
            admitted &= of_field.admitted(rows)
        opened[rows] = admitted.sum(axis=1)
        opened_bytes[rows] = admitted.astype(np.float64) @ lengths
    return Overlap(
        partitions_count=len(partitions),
        mean_manifests=float(opened.mean()),
        max_manifests=int(opened.max()),
        mean_bytes=round(float(opened_bytes.mean())),
    )


def sampled(partitions: Iterable[bytes], count: int = 1000) -> list[bytes]:
    """So many of the distinct keys, those with the least hash: the same ones in whatever order and parts they come.

    Samples of parts together, sampled again, are the sample of the whole.
    """
    kept: dict[bytes, int] = {}
    highest: int | None = None
    for key in partitions:
        if key in kept:
            continue
        hashed = mmh3.hash128(key, signed=False)
        if highest is None or hashed < highest:
            kept[key] = hashed
            if len(kept) >= 2 * count + 1:
                kept = _least(kept, count)
                highest = max(kept.values(), default=0)
    return list(_least(kept, count))


def _least(hashes: dict[bytes, int], count: int) -> dict[bytes, int]:
    ordered = sorted(hashes.items(), key=lambda item: (item[1], item[0]))
    return dict(ordered[:count])


_Order = Callable[[Any], Any]


def _as_it_is(value: Any) -> Any:
    return value


def _orders(type_: Type) -> tuple[_Order, ...]:
    """The orders that bounds may be in: those of UUIDs are least and greatest as bytes, or as two signed longs."""
    return (_as_it_is, java_order) if type_ == UUID else (_as_it_is,)


class _Column:
    """The values of one field of the partitions that are looked for."""

    def __init__(self, type_: Type, values: Sequence[Any]) -> None:
        self.type = type_
        self.is_null = np.array([value is None for value in values], dtype=np.bool_)
        self.is_nan = np.array([value is not None and value != value for value in values], dtype=np.bool_)
        self.distinct = {value for value in values if value is not None and value == value}
        self.ranks_by_order = [self._ranks(values, order) for order in _orders(type_)]

    def _ranks(self, values: Sequence[Any], order: _Order) -> _Numbers:
        by_value = {value: rank for rank, value in enumerate(sorted(self.distinct, key=order))}
        # Null and NaN are no key of it.
        return np.array([by_value.get(value, -1) for value in values], dtype=np.int64)


class _Summaries:
    """What the manifests say of one field, as ranges of the ranks of the values that are looked for."""

    def __init__(self, column: _Column, manifests: Sequence[ManifestFile], index: int) -> None:
        self._column = column
        self._decoded: dict[bytes, Any] = {}
        found = [_summary(manifest, index) for manifest in manifests]
        is_floating = column.type in (FLOAT, DOUBLE)
        nulls = [summary is None or summary.contains_null for summary in found]
        nans = [summary is None or (is_floating and summary.contains_nan is not False) for summary in found]
        self._may_hold_null = np.array(nulls, dtype=np.bool_)
        self._may_hold_nan = np.array(nans, dtype=np.bool_)
        self._may_hold_values = np.array([_may_hold_values(s, is_floating=is_floating) for s in found], dtype=np.bool_)
        bounds = [(None, None) if summary is None else self._bounds(summary) for summary in found]
        self._ranges = [self._ranks(bounds, order) for order in _orders(column.type)]

    def admitted(self, rows: slice) -> _Mask:
        """Whether each manifest may hold the value of each partition of `rows`."""
        column = self._column
        mask: _Mask = np.zeros((len(column.is_null[rows]), len(self._may_hold_null)), dtype=np.bool_)
        for ranks, (first, after) in zip(column.ranks_by_order, self._ranges, strict=True):
            asked = ranks[rows, np.newaxis]
            mask |= (first <= asked) & (asked < after)
        mask &= self._may_hold_values
        mask[column.is_null[rows]] = self._may_hold_null
        mask[column.is_nan[rows]] = self._may_hold_nan
        return mask

    def _ranks(self, bounds: Sequence[tuple[Any, Any]], order: _Order) -> tuple[_Numbers, _Numbers]:
        """The first rank that each manifest may hold and the first one after it; all where there is no bound."""
        values = sorted(map(order, self._column.distinct))
        sides = []
        for side in (0, 1):
            ends = {pair[side] for pair in bounds if pair[side] is not None}
            ranks = {end: _rank(values, order(end), side) for end in ends}
            ranks[None] = side * len(values)
            sides.append(np.array([ranks[pair[side]] for pair in bounds], dtype=np.int64))
        return sides[0], sides[1]

    def _bounds(self, summary: FieldSummary) -> tuple[Any, Any]:
        found = self._value(summary.lower_bound), self._value(summary.upper_bound)
        # NaN as a bound makes both unreliable, and so does a crossed pair.
        return (None, None) if any(bound != bound for bound in found) or are_crossed(*found) else found

    def _value(self, bound: bytes | None) -> Any:
        if bound is None:
            return None
        if bound not in self._decoded:
            try:
                self._decoded[bound] = value_from_bytes(self._column.type, bound)
            except (InvalidTableError, UnsupportedError):
                self._decoded[bound] = None
        return self._decoded[bound]


def _rank(values: Sequence[Any], end: Any, side: int) -> int:
    return (bisect_left, bisect_right)[side](values, end)


def _summary(manifest: ManifestFile, index: int) -> FieldSummary | None:
    summaries = manifest.partitions
    return None if summaries is None or index >= len(summaries) else summaries[index]


def _may_hold_values(summary: FieldSummary | None, *, is_floating: bool) -> bool:
    if summary is None or summary.lower_bound is not None or summary.upper_bound is not None:
        return True
    # Both bounds are null where all values are null or NaN; where they cannot be, the summary tells nothing.
    return not (summary.contains_null or (is_floating and summary.contains_nan is not False))
