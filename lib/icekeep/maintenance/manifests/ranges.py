"""Which manifests are badly sized or overlap, by what the manifest list says of them; nothing is opened. Pure.

Manifests of one spec and one content, sorted by their partitions and cut, follow one another: each has an interval of
partitions, and two intervals meet at their ends at most. Where that is so and sizes are right, there is nothing to gain.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from icekeep.errors import IcekeepError
from icekeep.planning.transcode.cluster_keys import cluster_key
from icekeep.spec.manifests.structs import FieldSummary, ManifestFile
from icekeep.spec.types import DOUBLE, FLOAT, NestedField, Type
from icekeep.spec.values import value_from_bytes

WELL_SIZED = (0.75, 1.8)
"""From the first to the second of these, of the target, a manifest is neither too small nor to be split."""

_OPEN_BYTES = 512 * 1024
_WORTH_COUNT = 0.15
_WORTH_COST = 0.2

_FIRST = b""
_LAST = b"\xff"

_Numbers = NDArray[np.int64]
_Mask = NDArray[np.bool_]


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
    """The interval of each manifest by its partition summaries, `None` where they do not tell it.

    A manifest of several values of a field may hold any values of the next one with each of them; then the interval is the
    narrowest that it can be, so that manifests which were sorted and cut never seem to overlap.

    Args:
        manifests: of one spec.
        fields: those of the spec's partition type.
        sort_fields: positions of partition fields in the order of sorting, all in order by default; all manifests of a
            table without partitions have the same interval.
    """
    bounds = [_Bounds(field.type) for field in fields]
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
    """The runs of manifests that are worth being sorted and cut anew, each by itself; all others stay as they are.

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


class _Bounds:
    """The keys of one field's lowest and highest value, of summaries as they come; a bound is decoded once."""

    def __init__(self, type_: Type) -> None:
        self._type = type_
        self._is_floating = type_ in (FLOAT, DOUBLE)
        self._keys: dict[bytes, bytes | None] = {}

    def ends(self, summary: FieldSummary) -> tuple[bytes, bytes] | None:
        """Both ends, `None` where the summary does not tell them."""
        keys = [self._key(bound) for bound in (summary.lower_bound, summary.upper_bound) if bound is not None]
        if len(keys) == 1 or None in keys:
            return None
        found = [key for key in keys if key is not None]
        if found and found[0] > found[1]:
            # Another writer has another order of UUIDs.
            return None
        if summary.contains_null:
            found.append(self._sort_key(None))
        if self._may_hold_nan(summary, found):
            found.append(self._sort_key(float("nan")))
        return (min(found), max(found)) if found else None

    def _may_hold_nan(self, summary: FieldSummary, found: Sequence[bytes]) -> bool:
        # Without any value the files must be of NaN, whether or not the writer knew that it should say so.
        return self._is_floating and (bool(summary.contains_nan) or (summary.contains_nan is None and not found))

    def _key(self, bound: bytes) -> bytes | None:
        if bound not in self._keys:
            try:
                value = value_from_bytes(self._type, bound)
                # NaN is no bound.
                self._keys[bound] = self._sort_key(value) if value == value else None
            except IcekeepError:
                # Bytes that are no value of the type, or a type that has no order.
                self._keys[bound] = None
        return self._keys[bound]

    def _sort_key(self, value: Any) -> bytes:
        return cluster_key(self._type, value)


def _interval(manifest: ManifestFile, bounds: Sequence[_Bounds], order: Sequence[int]) -> ManifestInterval | None:
    summaries = manifest.partitions
    if summaries is None or len(summaries) < len(bounds):
        return None if len(order) else ManifestInterval(_FIRST, _FIRST)
    key = b""
    for position in order:
        ends = bounds[position].ends(summaries[position])
        if ends is None:
            return None
        if ends[0] < ends[1]:
            return ManifestInterval(key + ends[0] + _LAST, key + ends[1] + _FIRST)
        key += ends[0]
    return ManifestInterval(key, key)


class _Line(msgspec.Struct, frozen=True):
    """Manifests in the order of their intervals, as ranges of places.

    Even places are ends of intervals, odd ones lie between two ends. A range does not hold its ends; that of one partition
    holds its place alone.
    """

    manifests: list[ManifestFile]
    lengths: _Numbers
    first: _Numbers
    last: _Numbers

    @classmethod
    def of(
        cls, manifests: Sequence[ManifestFile], known: Sequence[ManifestInterval | None], header_bytes: int
    ) -> "_Line":
        if all(interval is None for interval in known):
            # What can have no order now will have none when it is rewritten.
            known = [ManifestInterval(_FIRST, _FIRST)] * len(manifests)
        ends = {end for interval in known if interval is not None for end in (interval.lower, interval.upper)}
        ranks = {end: 2 * rank for rank, end in enumerate(sorted(ends), start=1)}
        highest = 2 * len(ranks) + 1
        rows = []
        for manifest, interval in zip(manifests, known, strict=True):
            low, high = (0, highest + 1) if interval is None else (ranks[interval.lower], ranks[interval.upper])
            inner = 0 if low == high else 1
            rows.append((low + inner, high - inner, manifest.manifest_path, manifest))
        rows.sort(key=lambda row: row[:3])
        return cls(
            manifests=[row[3] for row in rows],
            lengths=np.array([max(1, row[3].manifest_length - header_bytes) for row in rows], dtype=np.int64),
            first=np.array([row[0] for row in rows], dtype=np.int64),
            last=np.array([row[1] for row in rows], dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.manifests)

    @property
    def total_bytes(self) -> int:
        return int(self.lengths.sum())

    def taken(self, places: _Numbers) -> "_Line":
        """Some of the manifests, in the order of `places`."""
        manifests = [self.manifests[place] for place in places]
        return _Line(manifests, self.lengths[places], self.first[places], self.last[places])

    def well_sized(self, target_bytes: int) -> _Mask:
        """Those whose size cannot be bettered: one file alone makes a manifest too large that nobody can split."""
        return (self.lengths >= WELL_SIZED[0] * target_bytes) & ~self.too_large(target_bytes)

    def too_large(self, target_bytes: int) -> _Mask:
        are_several = np.array([manifest.live_files_count != 1 for manifest in self.manifests], dtype=np.bool_)
        return (self.lengths > WELL_SIZED[1] * target_bytes) & are_several

    def overlapping(self, weights: _Numbers) -> _Numbers:
        """For each manifest the weights of those that it overlaps, and its own, together."""
        begun = _sums_up_to(self.first, weights, self.last, side="right")
        over = _sums_up_to(self.last, weights, self.first, side="left")
        return begun - over - self._others_of_the_same_partition(weights)

    def _others_of_the_same_partition(self, weights: _Numbers) -> _Numbers:
        is_one = (self.first == self.last) & (self.first % 2 == 0)
        sums = np.zeros(int(self.last.max()) + 1, dtype=np.int64)
        np.add.at(sums, self.first[is_one], weights[is_one])
        return np.where(is_one, sums[self.first] - weights, 0)


def _sums_up_to(places: _Numbers, weights: _Numbers, limits: _Numbers, *, side: Any) -> _Numbers:
    """For each limit the weights of the places before it, or up to it, together."""
    order = np.argsort(places, kind="stable")
    sums = np.concatenate([[0], np.cumsum(weights[order])])
    found: _Numbers = sums[np.searchsorted(places[order], limits, side=side)]
    return found


def _runs(line: _Line, target_bytes: int) -> list[_Line]:
    """What lies between the walls."""
    is_alone = line.overlapping(np.ones(len(line), dtype=np.int64)) == 1
    is_wall = is_alone & line.well_sized(target_bytes)
    # Of one partition, where there is no order, walls come first, so that they part none of the others.
    order = np.lexsort((~is_wall, line.last, line.first))
    runs = []
    for wall, places in groupby(order, key=lambda place: bool(is_wall[place])):
        if not wall:
            runs.append(line.taken(np.fromiter(places, dtype=np.int64)))
    return runs


def _is_worth_it(run: _Line, target_bytes: int) -> bool:
    is_to_be_split = bool(run.too_large(target_bytes).any())
    return is_to_be_split or _gains_in_count(run, target_bytes) or _gains_in_cost(run, target_bytes)


def _gains_in_count(run: _Line, target_bytes: int) -> bool:
    expected = max(1, -(-run.total_bytes // target_bytes))
    return expected < len(run) and expected <= (1 - _WORTH_COUNT) * len(run)


def _gains_in_cost(run: _Line, target_bytes: int) -> bool:
    """Whether a filter on one partition of the run, any byte of it as likely as another, would read so much less."""
    now = float(np.average(run.overlapping(run.lengths + _OPEN_BYTES), weights=run.lengths))
    afterwards = run.total_bytes / expected_manifests_count(run.total_bytes, target_bytes) + _OPEN_BYTES
    return afterwards <= (1 - _WORTH_COST) * now


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
        first=np.append(staying.first, rest.first.min()),
        last=np.append(staying.last, rest.last.max()),
    )
    return [] if _is_worth_it(left, target_bytes) else list(rest.manifests)
