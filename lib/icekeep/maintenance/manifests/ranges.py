"""What manifests say of their partitions: how far each reaches, which are badly sized or overlap, what a filter opens. Pure.

All of it is read out of a manifest list; nothing is opened. Manifests of one spec and one content, sorted by their partitions
and cut, follow one another: each has an interval of partitions, and two intervals meet at their ends at most. Where that is so
and sizes are right, there is nothing to gain. A filter on one partition opens a manifest where its summaries admit that, as the
planner prunes: what a summary does not say, or says in bytes that cannot be read, admits everything.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from icekeep.errors import IcekeepError
from icekeep.maintenance.intervals import Intervals, Mask, Places
from icekeep.maintenance.rewrite.options import WELL_SIZED
from icekeep.planning.transcode import cluster_key
from icekeep.spec.manifests.structs import FieldSummary, ManifestFile
from icekeep.spec.types import FLOATING_TYPES, UUID, NestedField, Type
from icekeep.spec.values import are_crossed, java_order, value_from_bytes

_OPEN_BYTES = 512 * 1024
WORTH_COUNT = 0.15
WORTH_COST = 0.2

_FIRST = b""
_LAST = b"\xff"

_MAX_CELLS = 4_000_000


class ManifestInterval(msgspec.Struct, frozen=True):
    """From where to where a manifest reaches among partitions in the order of sorting, as far as is known for certain.

    A partition at an end may be in the next manifest too. Both ends are one where all files are of one partition.
    """

    lower: Any
    upper: Any

    def overlaps(self, other: "ManifestInterval") -> bool:
        """Whether they share more than an end; manifests of one and the same partition do not, however they were cut."""
        return bool(self.lower < other.upper and other.lower < self.upper)


def intervals(
    manifests: Sequence[ManifestFile], fields: Sequence[NestedField], sort_fields: Sequence[int] | None = None
) -> list[ManifestInterval | None]:
    """The interval of each manifest by its partition summaries, `None` where they do not show it.

    A manifest of several values of a field may hold any values of the next one with each of them; then the interval is the
    narrowest that it can be, so that manifests which were sorted and cut never seem to overlap.

    Args:
        manifests: of one spec.
        fields: those of the spec's partition type.
        sort_fields: positions of partition fields in the order of sorting, all in order by default; all manifests of a
            table without partitions have the same interval.
    """
    bounds = [_FieldBounds(field.type) for field in fields]
    order = range(len(fields)) if sort_fields is None else sort_fields
    return [_interval(manifest, bounds, order) for manifest in manifests]


def expected_manifests_count(total_bytes: int, target_bytes: int) -> int:
    """Into how many manifests of even size a run is cut; each has 0.75 to 1.25 of the target, one alone up to 1.5 of it."""
    return max(1, round(total_bytes / target_bytes))


def worth_rewriting(
    manifests: Sequence[ManifestFile],
    known: Sequence[ManifestInterval | None],
    target_bytes: int,
    *,
    header_bytes: int = 0,
) -> list[list[ManifestFile]]:
    """The runs of manifests that are worth being sorted and cut again, each by itself; all others stay as they are.

    A well-sized manifest that overlaps no other is a wall, and what lies between two walls is a run. It is worth it where
    the manifests would be 15 % fewer, where one is too large, or where a filter on one partition would cost 20 % less.
    Else only the badly sized of the run are put together, if they become fewer and the run is still not worth it then.

    What comes of a run is not worth it again, but for this: where there are several fields to sort by, cutting may show
    an overlap with what was left alone that summaries had hidden. The order of `manifests` does not matter.

    Args:
        manifests: with live files, of one spec and one content.
        known: their intervals; one that is not known overlaps all others; where none is known there is no order.
        target_bytes: the size that a manifest should have.
        header_bytes: how much of each manifest holds no entries; such bytes count for nothing, as cutting does not make
            them fewer. It matters where the target is not much more.
    """
    if not manifests:
        return []
    line = _Line.of(manifests, known, header_bytes)
    chosen = []
    for run in _runs(line, target_bytes):
        if _is_worth_it(run, target_bytes):
            chosen.append(list(run.manifests))
        elif rest := _badly_sized_together(run, target_bytes):
            chosen.append(rest)
    return chosen


class _FieldBounds:
    """What summaries say of one partition field; a bound is decoded once."""

    def __init__(self, type_: Type) -> None:
        self.type, self.is_floating = type_, type_ in FLOATING_TYPES
        self._values: dict[bytes, Any] = {}

    def value(self, bound: bytes) -> Any:
        """The value of a bound; `None` where its bytes are no value of the type."""
        if bound not in self._values:
            try:
                self._values[bound] = value_from_bytes(self.type, bound)
            except IcekeepError:
                self._values[bound] = None
        return self._values[bound]

    def keys(self, summary: FieldSummary) -> tuple[bytes, bytes] | None:
        """The keys of the lowest and the highest value, `None` where the summary does not show them."""
        stored = [bound for bound in (summary.lower_bound, summary.upper_bound) if bound is not None]
        values = [self.value(bound) for bound in stored]
        # NaN is no bound.
        if len(values) == 1 or any(value is None or value != value for value in values):
            return None
        try:
            keys = [cluster_key(self.type, value) for value in values]
        except IcekeepError:
            # A type that has no order.
            return None
        if keys and keys[0] > keys[1]:
            # Another writer has another order of UUIDs.
            return None
        # Without any value the files must be of NaN, whether or not the writer knew that it should say so.
        has_nan = bool(summary.contains_nan) or (
            summary.contains_nan is None and not keys and not summary.contains_null
        )
        if summary.contains_null:
            keys.append(cluster_key(self.type, None))
        if self.is_floating and has_nan:
            keys.append(cluster_key(self.type, float("nan")))
        return (min(keys), max(keys)) if keys else None

    def pair(self, summary: FieldSummary | None) -> tuple[Any, Any]:
        """Both bounds as far as the planner prunes by them; NaN as a bound makes both unreliable, and so does a crossed pair."""
        if summary is None:
            return None, None
        low, high = (None if b is None else self.value(b) for b in (summary.lower_bound, summary.upper_bound))
        return (None, None) if low != low or high != high or are_crossed(low, high) else (low, high)


def _interval(manifest: ManifestFile, bounds: Sequence[_FieldBounds], order: Sequence[int]) -> ManifestInterval | None:
    summaries = manifest.partitions
    if summaries is None or len(summaries) < len(bounds):
        return None if len(order) else ManifestInterval(_FIRST, _FIRST)
    key = b""
    for position in order:
        ends = bounds[position].keys(summaries[position])
        if ends is None:
            return None
        if ends[0] < ends[1]:
            return ManifestInterval(key + ends[0] + _LAST, key + ends[1] + _FIRST)
        key += ends[0]
    return ManifestInterval(key, key)


class _Line(msgspec.Struct, frozen=True):
    """Manifests in the order of their intervals."""

    manifests: list[ManifestFile]
    lengths: Places
    intervals: Intervals

    @classmethod
    def of(
        cls, manifests: Sequence[ManifestFile], known: Sequence[ManifestInterval | None], header_bytes: int
    ) -> "_Line":
        if all(interval is None for interval in known):
            # What can have no order now will have none when it is rewritten.
            known = [ManifestInterval(_FIRST, _FIRST)] * len(manifests)
        found = Intervals.of([None if one is None else (one.lower, one.upper) for one in known])
        lengths = np.array([max(1, m.manifest_length - header_bytes) for m in manifests], dtype=np.int64)
        places = zip(found.first, found.last, (m.manifest_path for m in manifests), strict=True)
        order = [number for number, _ in sorted(enumerate(places), key=itemgetter(1))]
        return cls(list(manifests), lengths, found).taken(np.array(order))

    def __len__(self) -> int:
        return len(self.manifests)

    @property
    def total_bytes(self) -> int:
        return int(self.lengths.sum())

    def taken(self, numbers: Places) -> "_Line":
        """Some of the manifests, in the order of `numbers`."""
        manifests = [self.manifests[number] for number in numbers]
        return _Line(manifests, self.lengths[numbers], self.intervals.taken(numbers))

    def well_sized(self, target_bytes: int) -> Mask:
        """Those whose size cannot be bettered: one file alone makes a manifest too large that nobody can split."""
        return (self.lengths >= WELL_SIZED[0] * target_bytes) & ~self.too_large(target_bytes)

    def too_large(self, target_bytes: int) -> Mask:
        are_several = np.array([manifest.live_files_count != 1 for manifest in self.manifests], dtype=np.bool_)
        return (self.lengths > WELL_SIZED[1] * target_bytes) & are_several


def _runs(line: _Line, target_bytes: int) -> list[_Line]:
    """What lies between the walls."""
    is_alone = line.intervals.overlapping(np.ones(len(line), dtype=np.int64)) == 1
    is_wall = is_alone & line.well_sized(target_bytes)
    # Of one partition, where there is no order, walls come first, so that they part none of the others.
    order = np.lexsort((~is_wall, line.intervals.last, line.intervals.first))
    runs = []
    for wall, places in groupby(order, key=lambda place: bool(is_wall[place])):
        if not wall:
            runs.append(line.taken(np.fromiter(places, dtype=np.int64)))
    return runs


def _is_worth_it(run: _Line, target_bytes: int) -> bool:
    if run.too_large(target_bytes).any() or _gains_in_count(run, target_bytes):
        return True
    # A filter on one partition of the run, any byte of it as likely as another, would read so much less.
    now = float(np.average(run.intervals.overlapping(run.lengths + _OPEN_BYTES), weights=run.lengths))
    afterwards = run.total_bytes / expected_manifests_count(run.total_bytes, target_bytes) + _OPEN_BYTES
    return afterwards <= (1 - WORTH_COST) * now


def _gains_in_count(run: _Line, target_bytes: int) -> bool:
    expected = max(1, -(-run.total_bytes // target_bytes))
    return expected < len(run) and expected <= (1 - WORTH_COUNT) * len(run)


def _badly_sized_together(run: _Line, target_bytes: int) -> list[ManifestFile]:
    """The badly sized of a run where that makes them fewer and leaves a run that still is not worth it; else none."""
    well_sized = run.well_sized(target_bytes)
    rest, staying = run.taken(np.flatnonzero(~well_sized)), run.taken(np.flatnonzero(well_sized))
    if len(rest) < 2 or not len(staying) or not _gains_in_count(rest, target_bytes):
        return []
    # One manifest that reaches from end to end: what is more than one would weigh so much that the run is worth it.
    left = _Line(
        manifests=[*staying.manifests, rest.manifests[0]],
        lengths=np.append(staying.lengths, rest.total_bytes),
        intervals=Intervals(
            np.append(staying.intervals.first, rest.intervals.first.min()),
            np.append(staying.intervals.last, rest.intervals.last.max()),
        ),
    )
    return [] if _is_worth_it(left, target_bytes) else list(rest.manifests)


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
    summaries = [
        _Admission(field.type, [p[index] for p in partitions], manifests, index) for index, field in enumerate(fields)
    ]
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


_Order = Callable[[Any], Any]


class _Admission:
    """Which partitions the summaries of one field admit, by the ranks of the values that are looked for.

    Args:
        values: of the field, one for each partition that is looked for.
        index: of the field in the summaries.
    """

    def __init__(self, type_: Type, values: Sequence[Any], manifests: Sequence[ManifestFile], index: int) -> None:
        self._is_null = np.array([value is None for value in values], dtype=np.bool_)
        self._is_nan = np.array([value is not None and value != value for value in values], dtype=np.bool_)
        bounds = _FieldBounds(type_)
        found = [m.partitions[index] if m.partitions and index < len(m.partitions) else None for m in manifests]
        nulls = [summary is None or summary.contains_null for summary in found]
        nans = [summary is None or (bounds.is_floating and summary.contains_nan is not False) for summary in found]
        # Both bounds are null where all values are null or NaN; where they cannot be, the summary says nothing.
        values_too = [
            summary is None or summary.lower_bound is not None or summary.upper_bound is not None or not (null or nan)
            for summary, null, nan in zip(found, nulls, nans, strict=True)
        ]
        self._null, self._nan, self._other = (np.array(some, dtype=np.bool_) for some in (nulls, nans, values_too))
        pairs = [bounds.pair(summary) for summary in found]
        # Bounds of UUIDs are least and greatest as bytes, or as two signed longs.
        orders = (None, java_order) if type_ == UUID else (None,)
        distinct = {value for value in values if value is not None and value == value}
        self._ranges = [self._ranks(values, distinct, pairs, order) for order in orders]

    @staticmethod
    def _ranks(
        values: Sequence[Any], distinct: set[Any], pairs: Sequence[tuple[Any, Any]], order: _Order | None
    ) -> tuple[Places, Places, Places]:
        """The ranks of the values, and for each manifest the first that it may hold and the first after; all without a bound."""
        in_order = sorted(distinct, key=order)
        rank_of = {value: rank for rank, value in enumerate(in_order)}
        # Null and NaN are no key of it.
        ranks = [np.array([rank_of.get(value, -1) for value in values], dtype=np.int64)]
        for side, bisect in enumerate((bisect_left, bisect_right)):
            ends = {pair[side] for pair in pairs if pair[side] is not None}
            found = {end: bisect(in_order, end if order is None else order(end), key=order) for end in ends}
            found[None] = side * len(in_order)
            ranks.append(np.array([found[pair[side]] for pair in pairs], dtype=np.int64))
        return ranks[0], ranks[1], ranks[2]

    def admitted(self, rows: slice) -> NDArray[np.bool_]:
        """Whether each manifest may hold the value of each partition of `rows`."""
        mask = np.zeros((len(self._is_null[rows]), len(self._null)), dtype=np.bool_)
        for ranks, first, after in self._ranges:
            asked = ranks[rows, np.newaxis]
            mask |= (first <= asked) & (asked < after)
        mask &= self._other
        mask[self._is_null[rows]] = self._null
        mask[self._is_nan[rows]] = self._nan
        return mask
