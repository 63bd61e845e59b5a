"""Sort keys: bytes that compare as an `Ordering` orders the rows, how they are sorted, and their ranges.

A key is the concatenation of a part for each field of the ordering: partition fields, then the fields of the sort order or the
place on the curve. A row has the same key in every task, and keys have one width unless a field is a string or binary. A part is

* a byte for null, where the column may be null: 0 or 1 for what comes first or last;
* the value: numbers as unsigned big-endian ones; strings and binary end in a zero byte, and their own bytes 0 and 1 are written
  as 1 1 and 1 2, so that what follows in the key never matters between two values. The last part of a key needs none of that;
* for a descending field, the value with every bit inverted.

Keys are sorted as machine words, which numpy does fastest. Ranges of keys divide the rows of a group among tasks, each of which
reads the whole group, or by a shuffle.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.formats.arrow.projection import leaf_path, leaf_values
from icekeep.formats.evaluate import transformed
from icekeep.formats.sort.encode import (
    BLOCK_ROWS,
    VARYING,
    KeyRange,
    Ordering,
    Unsigned,
    curve_bytes,
    curve_values,
    leading_bytes,
    null_rows,
    ordered,
    raw_values,
)
from icekeep.spec.collections import cut_evenly
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import NullOrder, SortDirection, SortField
from icekeep.spec.transforms import Void
from icekeep.spec.types import UNKNOWN, PrimitiveType

_ZERO, _ONE = b"\x00", b"\x01"

_Part: TypeAlias = "Unsigned | pa.Array"
"""Bytes of one length for all rows, or of the length of each value."""


def sort_keys(rows: pa.Table, ordering: Ordering, schema: Schema) -> pa.Array:
    """The key of each row, `binary[width]` or, with strings or binary values in it, `large_binary`.

    A table without rows is enough to find out whether rows can be ordered. Strings may be dictionaries. Raises
    `InvalidTableError` if a column of the ordering is not in the schema, is nested, or its transform does not take it, and
    `UnsupportedError` if a transform is unknown, or a column's type has no order.
    """
    partition_fields = () if ordering.partition_by is None else ordering.partition_by.fields
    fields = [SortField(source_id=field.source_id, transform=field.transform) for field in partition_fields]
    fields += [] if ordering.curve is not None else ordering.fields
    # A void transform is null for everything, also for columns that are gone.
    fields = [field for field in fields if not isinstance(field.transform, Void)]
    parts: list[_Part] = []
    for number, field in enumerate(fields, start=1):
        is_last = number == len(fields) and ordering.curve is None
        parts += _field_parts(rows, field, schema, is_last=is_last)
    if (curve := ordering.curve) is not None:
        of_curve = (_column(rows, field_id, schema) for field_id in curve.column_ids)
        parts.append(curve_values([c.spread(curve_bytes(c.values, c.type, curve)) for c in of_curve], curve))
    return _joined(parts, rows.num_rows)


class _Column(msgspec.Struct, frozen=True):
    """A column of the ordering: its values, and for dictionaries the index of each row's value."""

    values: pa.Array
    indices: NDArray[Any] | None
    nulls: NDArray[np.bool_] | None
    type: PrimitiveType
    is_optional: bool

    def spread(self, part: Any) -> Any:
        """What was computed from the values, by row; empty, or zeros, where the row is null."""
        if isinstance(part, np.ndarray):
            part = part if self.indices is None else part[self.indices]
            if self.nulls is not None:
                part = np.array(part)
                part[self.nulls] = 0
            return part
        part = part if self.indices is None else part.take(pa.array(self.indices))
        return part if self.nulls is None else pc.if_else(pa.array(self.nulls), _constant(b""), part)


def _column(rows: pa.Table, field_id: int, schema: Schema) -> _Column:
    path = leaf_path(field_id, [schema])
    type_ = path[-1].type
    assert isinstance(type_, PrimitiveType)
    array: Any = leaf_values(rows, schema, field_id)
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    nulls, indices = null_rows(array), None
    if pa.types.is_dictionary(array.type):
        if len(array.dictionary) and not array.dictionary.null_count:
            indices = pc.fill_null(array.indices, 0).to_numpy()
            array = array.dictionary
        else:
            array = array.dictionary_decode()
            nulls = null_rows(array)
    return _Column(array, indices, nulls, type_, any(not field.required for field in path))


def _field_parts(rows: pa.Table, field: SortField, schema: Schema, *, is_last: bool) -> Iterator[_Part]:
    column = _column(rows, field.source_id, schema)
    is_descending = field.direction == SortDirection.DESC
    if column.is_optional:
        nulls = np.zeros(rows.num_rows, dtype=bool) if column.nulls is None else column.nulls
        yield (nulls != (field.null_order == NullOrder.NULLS_FIRST)).view(np.uint8)
    if column.type == UNKNOWN:
        return
    values, type_ = transformed(column.values, column.type, field.transform)
    if type_.name in VARYING:
        values = pc.fill_null(values.cast(pa.large_binary()), b"")
        if is_descending or not is_last:
            values = pc.binary_join_element_wise(_escaped(values), _constant(_ZERO), _constant(b""))
        if is_descending:
            validity, offsets, data = values.buffers()
            inverted = pa.py_buffer(~np.frombuffer(data or b"", dtype=np.uint8))
            values = pa.Array.from_buffers(
                values.type, len(values), [validity, offsets, inverted], offset=values.offset
            )
        yield column.spread(values)
        return
    for numbers in ordered(values, type_):
        yield column.spread(~numbers if is_descending else numbers)


def _constant(value: bytes) -> pa.Scalar:
    # Not a constant of the module: tasks that sort nothing import it too.
    return pa.scalar(value, pa.large_binary())


def _escaped(values: pa.Array) -> pa.Array:
    """Binary values with the bytes 0 and 1 escaped."""
    data = np.frombuffer(values.buffers()[2] or b"", dtype=np.uint8)
    if len(data) and data.min() <= _ONE[0]:
        values = pc.replace_substring(values, _ONE, _ONE + b"\x02")
        values = pc.replace_substring(values, _ZERO, _ONE + _ONE)
    return values


def _joined(parts: Sequence[_Part], row_count: int) -> pa.Array:
    joined: list[pa.Array] = []
    for is_fixed, run in groupby(parts, lambda part: isinstance(part, np.ndarray)):
        members = [*run]
        joined += [_packed(members, row_count)] if is_fixed else members
    if not joined:
        return _packed([], row_count)
    if len(joined) == 1:
        return joined[0]
    return pc.binary_join_element_wise(*(array.cast(pa.large_binary()) for array in joined), _constant(b""))


def _packed(parts: Sequence[Unsigned], row_count: int) -> pa.Array:
    layout = [
        (f"{number}", f">u{part.itemsize}" if part.ndim == 1 else "u1", part.shape[1:])
        for number, part in enumerate(parts)
    ]
    packed = np.empty(row_count, dtype=layout)
    for number, part in enumerate(parts):
        packed[f"{number}"] = part
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(packed.dtype.itemsize), row_count, [None, pa.py_buffer(packed.view(np.uint8))]
    )


_WORD_BYTES = 8
_LONGEST_PADDED = 32
"""Keys of at most this length are padded to one length and compared as words."""

Words = NDArray[np.uint64]


def key_order(keys: pa.Array) -> NDArray[np.int64]:
    """The stable ascending order of keys, as positions."""
    count = len(keys)
    if pa.types.is_fixed_size_binary(keys.type):
        width = keys.type.byte_width
        words = _words(raw_values(keys, np.dtype((np.uint8, (width,))))) if width else []
    else:
        lengths = np.diff(raw_values(keys, "i8", count=count + 1))
        width = int(lengths.max(initial=0))
        if width > _LONGEST_PADDED:
            return pc.sort_indices(keys).to_numpy().astype(np.int64)
        # Where one key is another one followed by zeros, the length decides.
        words = [*_words(leading_bytes(keys, width)), lengths.astype(np.uint64)]
    # The keys, and then these words, take most of the memory: a caller need not hold them either.
    del keys
    words = _varying_words(words)
    if not words:
        return np.arange(count)
    code, distinct = words[0], 0
    for word in words[1:]:
        ranks, distinct = _ranks(code)
        if distinct == count:
            code = ranks
            break
        others, others_distinct = _ranks(word)
        code = ranks * np.uint64(others_distinct) + others
    return _positions(code)


def _words(rows: NDArray[np.uint8]) -> list[Words]:
    """Rows of bytes as big-endian words, the most significant first."""
    words = []
    for start in range(0, rows.shape[1], _WORD_BYTES):
        word = np.empty(len(rows), dtype=np.uint64)
        padded = np.zeros((min(BLOCK_ROWS, len(rows)), _WORD_BYTES), dtype=np.uint8)
        for first in range(0, len(rows), BLOCK_ROWS):
            piece = rows[first : first + BLOCK_ROWS, start : start + _WORD_BYTES]
            padded[: len(piece), : piece.shape[1]] = piece
            word[first : first + BLOCK_ROWS] = padded[: len(piece)].view(">u8")[:, 0]
        words.append(word)
    return words


def _varying_words(words: Sequence[Words]) -> list[Words]:
    """Fewer words of the same order, without the bytes that all keys share."""
    out: list[Words] = []
    free = 0
    for word in words:
        varying = int(np.bitwise_or.reduce(word) ^ np.bitwise_and.reduce(word)) if len(word) else 0
        for shift, length in _varying_runs(varying):
            while length:
                if not free:
                    out.append(np.zeros(len(word), dtype=np.uint64))
                    free = _WORD_BYTES
                taken = min(free, length)
                length, free = length - taken, free - taken
                piece = (word >> np.uint64(8 * (shift + length))) & np.uint64((1 << 8 * taken) - 1)
                out[-1] = piece if taken == _WORD_BYTES else out[-1] << np.uint64(8 * taken) | piece
    return out


def _varying_runs(varying: int) -> Iterator[tuple[int, int]]:
    """Runs of bytes of a word in which bits vary, the most significant first: the lowest byte, and the length."""
    length = 0
    for position in range(_WORD_BYTES - 1, -1, -1):
        if varying >> 8 * position & 0xFF:
            length += 1
        elif length:
            yield position + 1, length
            length = 0
    if length:
        yield 0, length


def _positions(code: Words) -> NDArray[np.int64]:
    """The stable order of numbers, sorted with their positions in the lower bits for speed."""
    bits = max(1, len(code) - 1).bit_length()
    numbers = np.arange(len(code), dtype=np.uint64)
    if len(code) and int(code.max()) >> 64 - bits:
        code, _ = _ranks(code)
    code = code << np.uint64(bits)
    code |= numbers
    code.sort()
    code &= np.uint64((1 << bits) - 1)
    return code.view(np.int64)


def _ranks(code: Words) -> tuple[Words, int]:
    """The dense rank of each number, and the number of ranks."""
    order = np.argsort(code)
    in_order = code[order]
    steps = np.empty(len(code), dtype=np.uint64)
    steps[:1] = 0
    steps[1:] = in_order[1:] != in_order[:-1]
    np.cumsum(steps, out=steps)
    ranks = np.empty(len(code), dtype=np.uint64)
    ranks[order] = steps
    return ranks, int(steps[-1]) + 1 if len(steps) else 0


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

    At least half of `max_keys` are kept, unless there are fewer rows; `schema` may be only the columns of the ordering.
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
    """Divide the rows of all samples into at most `ranges_count` ranges of whole files, which have about as many rows.

    Returns split points, and the number of files of each range: at least one, and `files_count` in all. `finer` is the least
    number of parts of a file; more find the middle between equal keys better.
    """
    points: Sequence[bytes] = split_points(samples, files_count * finer)
    for count in (files_count, ranges_count):
        rows = _rows_of_ranges(samples, points)
        points = [points[part[0] - 1] for part in cut_evenly(range(len(rows)), rows.__getitem__, count)[1:]]
    return tuple(points), _apportioned(files_count, _rows_of_ranges(samples, points))


def _rows_of_ranges(samples: Sequence[KeySample], points: Sequence[bytes]) -> list[float]:
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
