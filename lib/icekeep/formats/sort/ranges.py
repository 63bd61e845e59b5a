"""Ranges of sort keys, which divide the rows of a group among tasks, each of which reads the whole group, or by a shuffle."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.formats.sort.encode import KeyRange, Ordering
from icekeep.formats.sort.keys import sort_keys
from icekeep.spec.collections import cut_evenly
from icekeep.spec.schema import Schema

SAMPLE_KEYS = 10_000
"""The most keys of a sample: a hundred parts come out equal to about a tenth."""


class KeySample(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of every n-th of `row_count` rows, which take `arrow_bytes` of memory."""

    keys: tuple[bytes, ...]
    row_count: int
    arrow_bytes: int


def keys_inside(keys: pa.Array, key_range: KeyRange) -> pa.Array | None:
    """Which keys are in a range; `None` where all are."""
    inside = None
    for bound, compare in ((key_range.lower, pc.greater_equal), (key_range.upper, pc.less)):
        if bound is not None:
            within = compare(keys, pa.scalar(bound, keys.type))
            inside = within if inside is None else pc.and_(inside, within)
    return None if inside is None or inside.true_count == len(inside) else inside


def sample_keys(
    tables: Iterable[pa.Table], ordering: Ordering, schema: Schema, *, max_keys: int = SAMPLE_KEYS
) -> KeySample:
    """Sample the keys of tables deterministically: every n-th row, where n grows with the number of rows.

    Args:
        tables: in the columns of `schema`, which may be only those of the ordering.
        max_keys: the most keys that are kept, and at least half as many are unless there are fewer rows.
    """
    step, row_count, arrow_bytes = 1, 0, 0
    keys: list[bytes] = []
    for table in tables:
        first = -row_count % step
        chosen = table.take(pa.array(np.arange(first, table.num_rows, step, dtype=np.int64)))
        keys += sort_keys(chosen, ordering, schema).to_pylist()
        row_count += table.num_rows
        arrow_bytes += table.nbytes
        while len(keys) > max_keys:
            keys = keys[::2]
            step *= 2
    return KeySample(keys=tuple(keys), row_count=row_count, arrow_bytes=arrow_bytes)


def split_points(samples: Sequence[KeySample], parts: int) -> tuple[bytes, ...]:
    """Ascending keys that divide the rows of all samples into parts of about the same number; fewer where keys are equal.

    The order of the samples does not matter. Rows of one key are never separated.
    """
    weighted = sorted(
        (key, sample.row_count / len(sample.keys)) for sample in samples if sample.keys for key in sample.keys
    )
    points: list[bytes] = []
    for (key, _), *_ in cut_evenly(weighted, itemgetter(1), parts)[1:]:
        # A part below the least key would be empty.
        if key > (points[-1] if points else weighted[0][0]):
            points.append(key)
    return tuple(points)


def ranges_of_files(
    samples: Sequence[KeySample], files_count: int, ranges_count: int, *, finer: int = 1
) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    """Divide the rows of all samples into at most `ranges_count` ranges of whole files.

    Args:
        files_count: of new files, which have about the same number of rows.
        ranges_count: no more than `files_count`.
        finer: the least number of parts of a file; more find the middle between equal keys better.

    Returns:
        Split points, as `split_points`, and the number of files of each range: at least one, and `files_count` in all.
    """
    points: Sequence[bytes] = split_points(samples, files_count * finer)
    for count in (files_count, ranges_count):
        rows = _rows_of_ranges(samples, points)
        points = [points[part[0] - 1] for part in cut_evenly(range(len(rows)), rows.__getitem__, count)[1:]]
    return tuple(points), _apportioned(files_count, _rows_of_ranges(samples, points))


def _rows_of_ranges(samples: Sequence[KeySample], points: Sequence[bytes]) -> list[float]:
    """The estimated rows of each range between split points."""
    rows = [0.0] * (len(points) + 1)
    for sample in samples:
        for key in sample.keys:
            rows[bisect_right(points, key)] += sample.row_count / len(sample.keys)
    return rows


def _apportioned(count: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divide a number, no less than that of the weights, into parts of at least 1, in proportion to the weights."""
    total = sum(weights)
    shares = [count * weight / total if total else count / len(weights) for weight in weights]
    parts = [max(1, int(share)) for share in shares]
    while (short := count - sum(parts)) != 0:
        step = 1 if short > 0 else -1
        changeable = [number for number, part in enumerate(parts) if part + step > 0]
        parts[max(changeable, key=lambda number: step * (shares[number] - parts[number]))] += step
    return tuple(parts)


def key_ranges(points: Sequence[bytes]) -> tuple[KeyRange, ...]:
    """The ranges between split points, in order; together they hold all keys."""
    return tuple(
        KeyRange(lower=lower, upper=upper) for lower, upper in zip((None, *points), (*points, None), strict=True)
    )


def range_numbers(keys: pa.Array, points: Sequence[bytes]) -> NDArray[np.int32]:
    """The number of each key's range among `key_ranges(points)`."""
    bounds = pa.array(points, keys.type)
    # Binary search for all keys at once: the number of points not above a key is in `low` to `high`.
    low, high = np.zeros(len(keys), dtype=np.int32), np.full(len(keys), len(points), dtype=np.int32)
    for _ in range(len(points).bit_length()):
        middle = (low + high) // 2
        candidates = bounds.take(pa.array(np.minimum(middle, len(points) - 1)))
        reached = pc.greater_equal(keys, candidates).to_numpy(zero_copy_only=False) & (low < high)
        low, high = np.where(reached, middle + 1, low), np.where(reached, high, middle)
    return low
