"""How many manifests a filter on one partition opens: what clustering is for, before and after. Pure.

A manifest is opened where its partition summaries admit the partition, as the planner prunes: what a summary does not
say, or says in bytes that cannot be read, admits everything.

How the entries of some manifests lie in the order that they are to be clustered in, without their records.

What a dry run foretells, where ranges of keys are cut for tasks, and how far each manifest reaches, is worked out from this.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import mmh3
import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.planning.entries import DecodedEntries, EntryFilter, SpecFilter, folded
from icekeep.planning.spark.session import SparkSource
from icekeep.planning.transcode import RecordTarget, entry_keys, needs_bounds
from icekeep.spec.manifests.structs import FieldSummary, ManifestFile
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.types import FLOATING_TYPES, UUID, NestedField, Type
from icekeep.spec.values import are_crossed, java_order, value_from_bytes
from icekeep.storage.base import Storage

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
        is_floating = column.type in FLOATING_TYPES
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


_MAX_WEIGHTS = 10_000
"""So many from each task are held on the driver together."""


class Weight(msgspec.Struct, frozen=True, order=True):
    """So many entries have about this key; `partition` is that of one of them."""

    key: bytes
    partition: bytes
    count: int


class Survey:
    """The keys of entries with their numbers, thinned out where they are many; a fold over decoded entries.

    Attributes:
        ends: the least and the greatest key of each manifest, by its path.
        partitions: a sample of the partitions, as `partition_overlap.sampled` takes it.
    """

    def __init__(self, target: RecordTarget) -> None:
        self.ends: dict[str, tuple[bytes, bytes]] = {}
        self.partitions: list[bytes] = []
        self._target = target
        self._counts: dict[tuple[bytes, bytes], int] = {}

    def add(self, decoded: DecodedEntries) -> None:
        """Take in some entries."""
        entries = decoded.entries
        if not entries.num_rows:
            return
        coded = entries["partition"].dictionary_encode()
        stored = coded.dictionary.to_pylist()
        codes = coded.indices.to_numpy().astype(np.int64)
        bounds = entries["lower_bounds"] if needs_bounds(self._target.sort) else None
        # A codec cannot be pickled, so none is kept.
        codec = PartitionCodec(self._target.partition)
        keys = entry_keys([*map(codec.decode, stored)], codes, bounds, self._target.sort)
        table = pa.table({"key": keys, "partition": coded.indices, "path": entries["manifest_path"]})
        for row in table.group_by(["key", "partition"]).aggregate([([], "count_all")]).to_pylist():
            self._count(row["key"], stored[row["partition"]], row["count_all"])
        ends = table.group_by("path").aggregate([("key", "min"), ("key", "max")])
        for row in ends.to_pylist():
            self._reach(row["path"], row["key_min"], row["key_max"])
        self.partitions = sampled([*self.partitions, *stored])
        self._thin()

    def merge(self, other: "Survey") -> None:
        """Take in what another survey has found."""
        for (key, partition), count in other._counts.items():
            self._count(key, partition, count)
        for path, (least, greatest) in other.ends.items():
            self._reach(path, least, greatest)
        self.partitions = sampled([*self.partitions, *other.partitions])
        self._thin()

    def weights(self) -> list[Weight]:
        """In the order of keys."""
        return [Weight(key, partition, count) for (key, partition), count in sorted(self._counts.items())]

    def _count(self, key: bytes, partition: bytes, count: int) -> None:
        self._counts[key, partition] = self._counts.get((key, partition), 0) + count

    def _reach(self, path: str, least: bytes, greatest: bytes) -> None:
        before = self.ends.get(path, (least, greatest))
        self.ends[path] = min(before[0], least), max(before[1], greatest)

    def _thin(self) -> None:
        """Of neighbours one stands for both where there are too many; the least and the greatest key stay."""
        if len(self._counts) <= _MAX_WEIGHTS:
            return
        ordered = sorted(self._counts.items())
        kept: dict[tuple[bytes, bytes], int] = {}
        for place in range(0, len(ordered), 2):
            pair = ordered[place : place + 2]
            kept[pair[-1][0] if place else pair[0][0]] = sum(count for _, count in pair)
        self._counts = kept


def survey(
    manifests: Sequence[ManifestFile], spec_id: int, target: RecordTarget, storage: Storage, spark: SparkSource
) -> Survey:
    """How the live entries of manifests of one spec lie; few are read here, many in Spark tasks.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: a manifest cannot be read whole.
    """
    wanted = EntryFilter(specs={spec_id: SpecFilter(target.partition)})
    columns = {"manifest_path", "partition"} | ({"lower_bounds"} if needs_bounds(target.sort) else set())
    return folded(storage, spark, manifests, wanted, columns, partial(Survey, target))


def cut_weights(weights: Sequence[Weight], count: int) -> list[Sequence[Weight]]:
    """Neighbours in so many parts of about as many entries; a weight that is more than a part is cut as well."""
    ends = [0, *accumulate(weight.count for weight in weights)]
    parts: list[Sequence[Weight]] = []
    for number in range(count):
        begin, end = ends[-1] * number // count, ends[-1] * (number + 1) // count
        if begin < end:
            within = range(bisect_right(ends, begin) - 1, bisect_left(ends, end))
            parts.append([_clipped(weights[place], ends[place], begin, end) for place in within])
    return parts


def _clipped(weight: Weight, start: int, begin: int, end: int) -> Weight:
    return Weight(weight.key, weight.partition, min(start + weight.count, end) - max(start, begin))
