"""Two sums of 64 bits for each row: words of values are mixed, multiplied with odd numbers of their own, and added.

Arrow's arrays of primitive values as words or bytes to hash: one form for each value, however it is held.

The columns of rows as two sums of 64 bits a row, which `multiset` makes one hash of.

Each value is some words of 64 bits; each word is mixed, multiplied with an odd number of its own for each sum, and added. The
numbers follow from the field id and the place of the word, so neither the order of columns nor Arrow's way of holding a value
matters: slices, chunks, dictionaries, views and large offsets of equal values give equal sums. A value is hashed in the
schema's type, not the file's: an `int` read as `long` is the long.

A hash of rows that does not depend on their order: proof that a rewrite kept every one of them as it was.

It is the sum modulo 2**128 of a hash of 128 bits of each row. Rows that were swapped leave it as it is; a value that went from
one row to another, or a row that is there twice where another is missing, does not.

A hash of rows in their order: proof that a rewrite that keeps the order kept every row as it was, and where it was.

Each column is one stream of values, another of lengths where they have any, and one of the positions of nulls, whatever pieces
rows come in. Streams are hashed as they lie in memory, which is several times faster than a hash of each row (`multiset`).
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError
from icekeep.formats.arrow.schema import Mask, constant_array, field_id
from icekeep.spec.schema import Schema, initial_value
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DAY_SECONDS,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UNKNOWN,
    UUID,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    NestedField,
    StructType,
    Type,
    child_fields,
)
from icekeep.spec.values import MICROS_PER_SECOND

Sums = NDArray[np.uint64]

CHUNK_ROWS = 14_336
"""Rows that are worked on at one time: what is held of them stays in the processor's cache, and an array of their words is
just below the 128 KiB from which on C's allocator asks the system for memory each time."""

NULL, LENGTH, POSITION, FIRST_WORD = range(4)
"""What the odd numbers of a field are for, by their place among them."""

MAX_WORDS = 64
"""How many words of a value have a number of their own."""

_MAX_HELD = MAX_WORDS * CHUNK_ROWS

_GOLDEN = 0x9E3779B97F4A7C15
_HALF = np.uint64(32)


class _Scratch(threading.local):
    """Memory that is used again and again: what the system hands out anew it must clear first, page by page."""

    def __init__(self) -> None:
        self._held: dict[str, Sums] = {}

    def words(self, use: str, count: int) -> Sums:
        """Some words, whatever is in them, until they are asked for again for the same use."""
        if count > _MAX_HELD:
            return np.empty(count, np.uint64)
        held = self._held.get(use)
        if held is None or len(held) < count:
            held = self._held[use] = np.empty(max(count, CHUNK_ROWS), np.uint64)
        return held[:count]


SCRATCH = _Scratch()


class Lanes:
    """Two sums for each of some rows, or of the elements of lists."""

    def __init__(self, first: Sums, second: Sums) -> None:
        self.first, self.second = first, second

    @classmethod
    def of(cls, count: int) -> "Lanes":
        """Sums of nothing."""
        return cls(np.zeros(count, np.uint64), np.zeros(count, np.uint64))

    def part(self, start: int, stop: int) -> "Lanes":
        """The sums of some of the rows, to add to."""
        return Lanes(self.first[start:stop], self.second[start:stop])

    def add(self, words: Sums, place: int, keys: Sums, nulls: Mask | None) -> None:
        """Add a word of each row, or what stands for a null."""
        product = SCRATCH.words("product", len(self.first))
        for lane, key in zip((self.first, self.second), keys, strict=True):
            np.multiply(words, key[place], out=product)
            if nulls is not None:
                np.copyto(product, key[NULL], where=nulls)
            np.add(lane, product, out=lane)

    def include(self, other: "Lanes", keys: Sums, nulls: Mask | None) -> None:
        """Add sums that are finished already, or what stands for a null."""
        for lane, sums, key in zip((self.first, self.second), (other.first, other.second), keys, strict=True):
            if nulls is not None:
                np.copyto(sums, key[NULL], where=nulls)
            np.add(lane, sums, out=lane)

    def finish(self) -> None:
        """Mix both sums of each row into each other: sums of what comes out keep apart what lay in different rows."""
        first, second = self.first, self.second
        shifted = SCRATCH.words("product", len(first))
        for lane, other, factor in ((first, second, 0xD6E8FEB86659FD93), (second, first, 0xBF58476D1CE4E5B9)):
            np.right_shift(lane, _HALF, out=shifted)
            np.bitwise_xor(lane, shifted, out=lane)
            np.multiply(lane, np.uint64(factor), out=lane)
            np.add(lane, other, out=lane)
        for lane in (first, second):
            np.right_shift(lane, _HALF, out=shifted)
            np.bitwise_xor(lane, shifted, out=lane)


def mixed(words: NDArray[Any]) -> Sums:
    """Words whose low half depends on the high one: an odd factor alone would leave a change of the highest bit there, where
    that of another column undoes it.
    """
    out = SCRATCH.words("mixed", len(words))
    if words.dtype.itemsize < 8:
        np.copyto(out, words)
        return out
    np.right_shift(words, _HALF, out=out)
    return np.bitwise_xor(words, out, out=out)


@lru_cache(maxsize=4096)
def keys_of(field_id: int) -> Sums:
    """The odd numbers of a field for both sums, by what they are for (splitmix64 of the field's id and the place)."""
    count = FIRST_WORD + MAX_WORDS
    numbers = np.arange(1, 2 * count + 1, dtype=np.uint64) + np.uint64(field_id << 8)
    numbers *= np.uint64(_GOLDEN)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers ^= numbers >> np.uint64(shift)
        numbers *= np.uint64(factor)
    numbers ^= numbers >> np.uint64(31)
    return (numbers | np.uint64(1)).reshape(2, count)


_DAY_MICROS = DAY_SECONDS * MICROS_PER_SECOND
_NANOS_PER_MICRO = 1000
_SHORT_DIGITS, _ONE_WORD_DIGITS = 17, 18
_HIGH_FACTOR = np.uint64(0xC2B2AE3D27D4EB4F)
_NAN_SINGLE, _NAN_DOUBLE = np.uint32(0x7FC00000), np.uint64(0x7FF8000000000000)

_WHOLE: dict[Type, tuple[pa.DataType, ...]] = {
    INT: (pa.int32(), pa.int16(), pa.int8(), pa.uint16(), pa.uint8()),
    DATE: (pa.date32(),),
    LONG: (pa.int64(), pa.int32(), pa.int16(), pa.int8(), pa.uint32(), pa.uint16(), pa.uint8()),
    TIME: (pa.time64("us"), pa.int64()),
}
"""The Arrow types whose values are whole numbers of a type as they stand; ORC's times are plain numbers."""

_TIMESTAMPS: dict[Type, str] = {TIMESTAMP: "us", TIMESTAMPTZ: "us", TIMESTAMP_NS: "ns", TIMESTAMPTZ_NS: "ns"}


class Words:
    """Values as one word each.

    Attributes:
        low: unsigned, of 8 to 64 bits.
        high: signed, where values have more bits than that: `fold` puts both into one word.
        reaches_high_bits: whether two values may differ in the highest bits of a word alone.
    """

    def __init__(
        self, low: NDArray[Any], high: NDArray[np.int64] | None = None, *, reaches_high_bits: bool = True
    ) -> None:
        self.low, self.high, self.reaches_high_bits = low, high, reaches_high_bits

    def fold(self, start: int, stop: int, out: NDArray[np.uint64]) -> NDArray[Any]:
        """The words of some values; `out` may be used for them."""
        low = self.low[start:stop]
        if self.high is None:
            return low
        np.multiply(self.high[start:stop].view(np.uint64), _HIGH_FACTOR, out=out)
        return np.add(out, low, out=out)


def words_of(array: pa.Array, type_: Type, path: str) -> Words:
    """The values of an array as words, those of nulls being anything.

    Floating-point numbers are their bits, so the zeros differ; every NaN is the same one, as encoders of dictionaries
    take them for the same.

    Raises:
        InvalidTableError: the array does not hold values of the type.
    """
    held = array.type
    if type_ == BOOLEAN and pa.types.is_boolean(held):
        return Words(_bits(array.buffers()[1], array.offset, len(array)))
    if held in _WHOLE.get(type_, ()):
        numbers = _values(array, np.dtype(held.to_pandas_dtype()) if pa.types.is_integer(held) else _by_width(held))
        if type_ in (INT, DATE):
            return Words(numbers.astype(np.int32, copy=False).view(np.uint32))
        return Words(numbers.astype(np.int64, copy=False).view(np.uint64))
    if type_ == FLOAT and pa.types.is_float32(held):
        singles = _values(array, np.dtype(np.float32))
        return Words(_without_nans(singles, singles.view(np.uint32), _NAN_SINGLE))
    if type_ == DOUBLE and (pa.types.is_float64(held) or pa.types.is_float32(held)):
        doubles = _values(array, np.dtype(held.to_pandas_dtype())).astype(np.float64, copy=False)
        return Words(_without_nans(doubles, doubles.view(np.uint64), _NAN_DOUBLE))
    if isinstance(type_, DecimalType) and _is_decimal(held, type_):
        pairs = decimal_pairs(array, type_, path)
        # Of so few digits the high half is but the sign.
        high = pairs[:, 1] if type_.precision > _ONE_WORD_DIGITS else None
        return Words(pairs[:, 0].view(np.uint64), high, reaches_high_bits=type_.precision > _SHORT_DIGITS)
    if type_ in _TIMESTAMPS and (ticks := _ticks(array, type_)) is not None:
        return ticks
    raise _unfit(held, type_, path)


def decimal_pairs(array: pa.Array, type_: DecimalType, path: str) -> NDArray[np.int64]:
    """The low and the high half of each decimal, those of nulls being anything; raises `InvalidTableError` as `words_of`."""
    if not _is_decimal(array.type, type_):
        raise _unfit(array.type, type_, path)
    return _values(array.cast(pa.decimal128(type_.precision, type_.scale)), np.dtype((np.int64, 2)))


def bytes_of(array: pa.Array, type_: Type, path: str) -> tuple[NDArray[Any], NDArray[np.uint8]] | None:
    """Where each value begins among the bytes, and where the last one ends, and the bytes; null for types of words.

    Raises:
        InvalidTableError: the array does not hold values of the type.
    """
    if type_ not in (STRING, BINARY, UUID) and not isinstance(type_, FixedType):
        return None
    held = array.type
    if pa.types.is_fixed_size_binary(held):
        offsets = (np.arange(len(array) + 1) + array.offset) * held.byte_width
        return offsets, _bytes(array.buffers()[1])
    if held in (pa.string_view(), pa.binary_view()):
        array = array.cast(pa.large_binary())
        held = array.type
    if held in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        _, offsets_buffer, data = array.buffers()
        if not len(array):
            return np.zeros(1, np.int64), _bytes(None)
        width = np.int64 if held in (pa.large_string(), pa.large_binary()) else np.int32
        return np.frombuffer(offsets_buffer, width)[array.offset :][: len(array) + 1], _bytes(data)
    raise _unfit(held, type_, path)


def null_mask(array: pa.Array) -> NDArray[np.bool_] | None:
    """Which values of an array are null; null where none is."""
    if not array.null_count:
        return None
    return _bits(array.buffers()[0], array.offset, len(array)) == 0


def _bits(buffer: pa.Buffer | None, offset: int, count: int) -> NDArray[np.uint8]:
    if buffer is None or not count:
        return np.zeros(count, np.uint8)
    first = offset // 8
    data = np.frombuffer(buffer, np.uint8)[first : -(-(offset + count) // 8)]
    return np.unpackbits(data, bitorder="little")[offset - 8 * first :][:count]


def _values(array: pa.Array, dtype: "np.dtype[Any]") -> NDArray[Any]:
    """The values of an array as they lie in memory."""
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype)[array.offset :][: len(array)]


def _by_width(type_: pa.DataType) -> "np.dtype[Any]":
    return np.dtype(np.int32 if type_.bit_width == 32 else np.int64)


def _bytes(buffer: pa.Buffer | None) -> NDArray[np.uint8]:
    return np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def _without_nans(numbers: NDArray[Any], bits: NDArray[Any], nan: Any) -> NDArray[Any]:
    found = np.isnan(numbers)
    return np.where(found, nan, bits) if found.any() else bits


def _is_decimal(held: pa.DataType, type_: DecimalType) -> bool:
    return bool(pa.types.is_decimal(held)) and held.scale == type_.scale and held.precision <= type_.precision


def _ticks(array: pa.Array, type_: Type) -> Words | None:
    """Timestamps in the type's unit; what nanoseconds have beyond whole microseconds is their high half."""
    held = array.type
    if pa.types.is_date32(held):
        days = _values(array, np.dtype(np.int32)).astype(np.int64)
        return Words((days * (_DAY_MICROS * (1 if _TIMESTAMPS[type_] == "us" else _NANOS_PER_MICRO))).view(np.uint64))
    if not pa.types.is_timestamp(held) or (held.tz is None) != (type_ in (TIMESTAMP, TIMESTAMP_NS)):
        return None
    ticks = _values(array, np.dtype(np.int64))
    if held.unit == _TIMESTAMPS[type_]:
        return Words(ticks.view(np.uint64))
    if held.unit != "ns":
        return None
    micros, rest = np.divmod(ticks, _NANOS_PER_MICRO)
    return Words(micros.view(np.uint64), rest)


def _unfit(held: pa.DataType, type_: Type, path: str) -> InvalidTableError:
    return InvalidTableError(f"column {path!r} holds '{held}', not '{type_}'", column=path)


_MAX_VALUE_BYTES = 8 * MAX_WORDS

_MAX_ELEMENTS = 16 * CHUNK_ROWS

_NESTED = (StructType, ListType, MapType)

_MAX_PADDING = 3
"""Texts are filled up to the length of the longest unless that makes so many times as much of them."""

_MASKS = np.array([2 ** (8 * count) - 1 for count in range(9)], np.uint64)
"""The first bytes of a word, by how many."""


class Column:
    """The values of a column in one batch.

    Attributes:
        weight: how many elements its lists have in all.
    """

    weight = 0

    def __init__(self, keys: Sums, nulls: Mask | None) -> None:
        self._keys, self._nulls = keys, nulls

    def add(self, start: int, stop: int, lanes: Lanes) -> None:
        """Add the values of some rows to the sums of these."""
        raise NotImplementedError

    def _nulls_of(self, start: int, stop: int) -> Mask | None:
        return None if self._nulls is None else self._nulls[start:stop]


def column_of(field: NestedField, array: pa.Array | None, source: pa.Field | None, length: int, path: str) -> Column:
    """The values of a field, to be hashed.

    Args:
        array: null where the data lacks the column: then it has its default in each row, or none.
        source: describes the array, whose own type may lack the ids below it.
        path: the full name of the field.

    Raises:
        InvalidTableError: the array cannot hold values of the field's type, or a required one is missing.
    """
    array, source = held_or_default(field, array, source, length, path)
    keys = keys_of(field.field_id)
    if pa.types.is_dictionary(array.type):
        if len(array.dictionary) <= length:
            return _Coded(field, array, source, keys, path)
        array = array.dictionary_decode()
    if pa.types.is_null(array.type) or field.type == UNKNOWN:
        return _Numbers(Words(np.zeros(length, np.uint32)), keys, np.ones(length, bool))
    nulls = null_mask(array)
    if isinstance(field.type, _NESTED):
        return _nested(field.type, array, source, path, keys, nulls)
    spans = bytes_of(array, field.type, path)
    if spans is not None:
        return _Texts(*spans, keys, nulls)
    return _Numbers(words_of(array, field.type, path), keys, nulls)


def held_or_default(
    field: NestedField, array: pa.Array | None, source: pa.Field | None, length: int, path: str
) -> tuple[pa.Array, pa.Field]:
    """The values of a field as plain Arrow, and what describes them; arguments and errors are those of `column_of`."""
    if array is None or source is None:
        value = None if field.initial_default is None else initial_value(field)
        if value is None and field.required:
            raise InvalidTableError(f"column {path!r} is required and missing from the data", column=path)
        array = constant_array(field.type, value, length)
        source = pa.field(field.name, array.type)
    return array.storage if isinstance(array.type, pa.BaseExtensionType) else array, source


def is_nested(type_: Type) -> bool:
    """Whether values of a type have others in them."""
    return isinstance(type_, _NESTED)


def summed(column: Column, length: int) -> tuple[Sums, Sums]:
    """Both sums of each row of a column."""
    lanes = Lanes.of(length)
    step = rows_at_once(column.weight, length)
    for start in range(0, length, step):
        stop = min(start + step, length)
        column.add(start, stop, lanes.part(start, stop))
    return lanes.first, lanes.second


def rows_at_once(weight: int, row_count: int) -> int:
    """How many of some rows are worked on at one time: long lists take more than their rows' share."""
    return max(1, min(CHUNK_ROWS, _MAX_ELEMENTS * row_count // max(1, weight)))


class _Numbers(Column):
    """Values of one word."""

    def __init__(self, words: Words, keys: Sums, nulls: Mask | None) -> None:
        super().__init__(keys, nulls)
        self._words = words

    def add(self, start: int, stop: int, lanes: Lanes) -> None:
        words = self._words.fold(start, stop, SCRATCH.words("folded", stop - start))
        if self._words.reaches_high_bits:
            words = mixed(words)
        lanes.add(words, FIRST_WORD, self._keys, self._nulls_of(start, stop))


class _Texts(Column):
    """Strings of bytes: their words from the first to the last, which is cut, and their length."""

    def __init__(self, offsets: NDArray[Any], data: NDArray[np.uint8], keys: Sums, nulls: Mask | None) -> None:
        super().__init__(keys, nulls)
        self._offsets, self._data = offsets, data
        type_ = pa.string() if offsets.dtype.itemsize == 4 else pa.large_string()
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        self._texts = pa.Array.from_buffers(type_, len(offsets) - 1, buffers)

    def add(self, start: int, stop: int, lanes: Lanes) -> None:
        nulls = self._nulls_of(start, stop)
        offsets = self._offsets[start : stop + 1].astype(np.int64)
        begins, lengths = offsets[:-1], np.diff(offsets)
        if nulls is not None:
            lengths[nulls] = 0
        lanes.add(lengths.view(np.uint64), LENGTH, self._keys, nulls)
        longest = int(lengths.max())
        if longest > _MAX_VALUE_BYTES:
            self._add_long(begins, lengths, np.flatnonzero(lengths > _MAX_VALUE_BYTES), lanes)
            lengths[lengths > _MAX_VALUE_BYTES] = 0
        total, width = int(lengths.sum()), -(-longest // 8) * 8
        has_others = total < offsets[-1] - offsets[0]
        if not has_others and width * len(lengths) <= _MAX_PADDING * total:
            self._add_padded(start, stop, width, lanes)
        elif total:
            self._add_words(begins, lengths, *self._words_between(int(offsets[0]), int(offsets[-1])), lanes)

    def _add_padded(self, start: int, stop: int, width: int, lanes: Lanes) -> None:
        """Texts of much the same length as rows of so many bytes, filled up with zeros: words of these add nothing."""
        padded = pc.ascii_rpad(self._texts.slice(start, stop - start), width, padding="\0")
        words = np.frombuffer(padded.buffers()[2], np.uint64)[: (stop - start) * width // 8]
        for number, column in enumerate(words.reshape(stop - start, width // 8).T):
            lanes.add(mixed(column), FIRST_WORD + number, self._keys, None)

    def _words_between(self, start: int, stop: int) -> tuple[Sums, int]:
        """Whole words in which all bytes between two places lie, and the number of the first word.

        They are copied in their order, since reading them by strings from where the processor has not been is far slower.
        """
        first, last = start // 8, -(-stop // 8)
        words = SCRATCH.words("texts", last - first)
        words[-1:] = 0
        words.view(np.uint8)[: stop - 8 * first] = self._data[8 * first : stop]
        return words, first

    def _add_words(
        self, begins: NDArray[np.int64], lengths: NDArray[np.int64], words: Sums, base: int, lanes: Lanes
    ) -> None:
        """Word by word, of all strings that are as long; sorted by their number of words these lie together."""
        counts = ((lengths + 7) >> 3).astype(np.uint8)
        ends = np.cumsum(np.bincount(counts)).tolist()
        order = None
        if ends[-2:-1] != [0]:
            order = np.argsort(counts, kind="stable")
            begins, lengths = np.take(begins, order), np.take(lengths, order)
        places = (begins >> 3) - base
        shift = ((begins & 7) << 3).view(np.uint64)
        rest = np.uint64(63) - shift
        following = np.take(words, places, mode="clip")
        sums = Lanes.of(len(lengths))
        for number in range(len(ends) - 1):
            skipped, ended = ends[number], ends[number + 1]
            begun = ends[number - 1] if number else 0
            word = following[skipped - begun :]
            places[skipped:] += 1
            following = SCRATCH.words(f"following {number % 2}", len(lengths) - skipped)
            np.take(words, places[skipped:], out=following, mode="clip")
            np.right_shift(word, shift[skipped:], out=word)
            # A shift by 64 is none: it takes two.
            moved = np.left_shift(following, np.uint64(1), out=SCRATCH.words("moved", len(following)))
            word |= np.left_shift(moved, rest[skipped:], out=moved)
            word[: ended - skipped] &= np.take(_MASKS, lengths[skipped:ended] - 8 * number)
            sums.part(skipped, len(lengths)).add(mixed(word), FIRST_WORD + number, self._keys, None)
        if order is None:
            lanes.include(sums, self._keys, None)
            return
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        lanes.include(Lanes(np.take(sums.first, back), np.take(sums.second, back)), self._keys, None)

    def _add_long(
        self, begins: NDArray[np.int64], lengths: NDArray[np.int64], rows: NDArray[np.int64], lanes: Lanes
    ) -> None:
        """Strings that are so long that each is worth a call of its own."""
        data = self._data.data
        spans = zip(begins[rows].tolist(), lengths[rows].tolist(), strict=True)
        digests = b"".join(xxhash.xxh3_128_digest(data[begin : begin + length]) for begin, length in spans)
        sums = Lanes.of(len(rows))
        for number, words in enumerate(np.frombuffer(digests, "<u8").reshape(-1, 2).T):
            sums.add(mixed(words), FIRST_WORD + number, self._keys, None)
        lanes.first[rows] += sums.first
        lanes.second[rows] += sums.second


class _Coded(Column):
    """Values of a dictionary, each entry of which is hashed once."""

    def __init__(self, field: NestedField, array: pa.Array, source: pa.Field, keys: Sums, path: str) -> None:
        super().__init__(keys, null_mask(array))
        entries = array.dictionary
        self._entries = Lanes.of(len(entries))
        described = source.with_type(entries.type)
        _add_all(column_of(field, entries, described, len(entries), path), 0, len(entries), self._entries)
        codes = array.indices
        # Where there is a null its code may be anything.
        self._codes = np.frombuffer(codes.buffers()[1], codes.type.to_pandas_dtype())[codes.offset :][: len(codes)]

    def add(self, start: int, stop: int, lanes: Lanes) -> None:
        nulls = self._nulls_of(start, stop)
        if not len(self._entries.first):
            lanes.add(np.zeros(stop - start, np.uint64), FIRST_WORD, self._keys, nulls)
            return
        codes = self._codes[start:stop].astype(np.intp)
        first = np.take(self._entries.first, codes, mode="clip")
        lanes.include(Lanes(first, np.take(self._entries.second, codes, mode="clip")), self._keys, nulls)


class _Struct(Column):
    """The fields of a struct, unless it is null: then whatever they hold is no data."""

    def __init__(self, children: list[Column], keys: Sums, nulls: Mask | None) -> None:
        super().__init__(keys, nulls)
        self._children = children
        self.weight = max((child.weight for child in children), default=0)

    def add(self, start: int, stop: int, lanes: Lanes) -> None:
        nulls = self._nulls_of(start, stop)
        inner = lanes if nulls is None else Lanes.of(stop - start)
        for child in self._children:
            child.add(start, stop, inner)
        if nulls is not None:
            lanes.include(inner, self._keys, nulls)


class _Lists(Column):
    """Lists, in which the order of elements matters, or maps, in which that of entries does not: a map has none."""

    def __init__(
        self, children: list[Column], offsets: NDArray[Any], is_ordered: bool, keys: Sums, nulls: Mask | None
    ) -> None:
        super().__init__(keys, nulls)
        self._children, self._offsets, self._is_ordered = children, offsets, is_ordered
        count = int(offsets[-1]) - int(offsets[0])
        self.weight = max([count, *(child.weight for child in children)])

    def add(self, start: int, stop: int, lanes: Lanes) -> None:
        offsets = self._offsets[start : stop + 1].astype(np.int64)
        low, high = int(offsets[0]), int(offsets[-1])
        offsets -= low
        lengths = np.diff(offsets)
        elements = Lanes.of(high - low)
        for child in self._children:
            _add_all(child, low, high, elements)
        if self._is_ordered:
            positions = np.arange(high - low) - np.repeat(offsets[:-1], lengths)
            elements.add(positions.view(np.uint64), POSITION, self._keys, None)
        # Finished, so that an element and its place, or a key and its value, belong together.
        elements.finish()
        sums = Lanes(_summed(elements.first, offsets), _summed(elements.second, offsets))
        sums.add(lengths.view(np.uint64), LENGTH, self._keys, None)
        lanes.include(sums, self._keys, self._nulls_of(start, stop))


def _nested(type_: Type, array: pa.Array, source: pa.Field, path: str, keys: Sums, nulls: Mask | None) -> Column:
    held = array.type
    match type_:
        case StructType() if pa.types.is_struct(held):
            return _Struct(_children(type_, array, source, path), keys, nulls)
        case ListType() if pa.types.is_list(held) or pa.types.is_large_list(held):
            offsets, (values,) = _elements(array, array.values)
            children = [_below(type_, 0, values, source.type.value_field, path)]
            return _Lists(children, offsets, True, keys, nulls)
        case MapType() if pa.types.is_map(held):
            offsets, (names, values) = _elements(array, array.keys, array.items)
            children = [
                _below(type_, 0, names, source.type.key_field, path),
                _below(type_, 1, values, source.type.item_field, path),
            ]
            return _Lists(children, offsets, False, keys, nulls)
    raise InvalidTableError(f"column {path!r} holds '{held}', not '{type_}'", column=path)


def _children(type_: StructType, array: pa.Array, source: pa.Field, path: str) -> list[Column]:
    positions = {field_id(field): position for position, field in enumerate(source.type)}
    children = []
    for field in type_.fields:
        if field.type == UNKNOWN:
            continue
        position = positions.get(field.field_id)
        child = None if position is None else array.field(position)
        described = None if position is None else source.type.field(position)
        children.append(column_of(field, child, described, len(array), f"{path}.{field.name}"))
    return children


def _elements(array: pa.Array, *values: pa.Array) -> tuple[NDArray[Any], list[pa.Array]]:
    """Where each list or map begins and the last one ends, and the values between the first offset and the last."""
    if not len(array):
        return np.zeros(1, np.int64), [some.slice(0, 0) for some in values]
    offsets = array.offsets.to_numpy()
    low, high = int(offsets[0]), int(offsets[-1])
    return offsets - low if low else offsets, [some.slice(low, high - low) for some in values]


def _below(type_: Type, number: int, values: pa.Array, source: pa.Field, path: str) -> Column:
    """The elements, keys or values below a list or map, whose own ids must be the schema's as well."""
    field = child_fields(type_)[number]
    name = f"{path}.{field.name}"
    if field_id(source) not in (None, field.field_id):
        raise InvalidTableError(
            f"column {name!r} has the field id {field_id(source)}, not {field.field_id}", column=name
        )
    return column_of(field, values, source, len(values), name)


def _add_all(column: Column, start: int, stop: int, lanes: Lanes) -> None:
    """Add values to sums that begin with that of `start`, some at a time."""
    for begin in range(start, stop, CHUNK_ROWS):
        end = min(begin + CHUNK_ROWS, stop)
        column.add(begin, end, lanes.part(begin - start, end - start))


def _summed(elements: Sums, offsets: NDArray[np.int64]) -> Sums:
    """The sum between each offset and the next, modulo 2**64."""
    sums = np.zeros(len(elements) + 1, np.uint64)
    np.cumsum(elements, out=sums[1:])
    return sums[offsets[1:]] - sums[offsets[:-1]]


_BITS = 128
_LOW_HALF = np.uint64(2**32 - 1)


class RowSum(msgspec.Struct, frozen=True):
    """How many rows there are, and the sum of their hashes: a value that tasks report.

    Attributes:
        digest: 16 bytes, the lowest first.
    """

    row_count: int = 0
    digest: bytes = bytes(_BITS // 8)

    @property
    def value(self) -> int:
        """The sum as a number below 2**128."""
        return int.from_bytes(self.digest, "little")

    def __add__(self, other: "RowSum") -> "RowSum":
        """The sum of the rows of both."""
        value = (self.value + other.value) % 2**_BITS
        return RowSum(self.row_count + other.row_count, value.to_bytes(_BITS // 8, "little"))


class RowHash:
    """Adds up the hashes of rows that pass; only one thread at a time may use it.

    Columns are told apart by their field ids and values are hashed in the types of the schema. A null is not an empty or a
    zero value, nor is a struct that is null one of nulls. The order of a list's elements matters, that of a map's entries
    does not, as Iceberg's maps have none. Floats are their bits but for NaN, of which there is one. A column that data lacks
    has its `initial-default`, else nulls, and one of type `unknown` is not looked at: no file holds it.

    Attributes:
        columns: of the rows.
        row_count: rows that were added so far.
    """

    def __init__(self, columns: Schema) -> None:
        """`columns` are those of the rows; lineage is hashed where it is among them."""
        self.columns = columns
        self._fields = [field for field in columns.fields if field.type != UNKNOWN]
        self.row_count = 0
        self._value = 0

    @property
    def total(self) -> RowSum:
        """What was added so far."""
        return RowSum(self.row_count, self._value.to_bytes(_BITS // 8, "little"))

    def add(self, table: pa.Table) -> None:
        """Add rows whose fields carry field ids at every level, in any order of columns, other columns among them.

        Raises:
            InvalidTableError: a column does not fit the type of its field, or a required one is missing.
            UnsupportedError: a column has a type whose values we cannot interpret.
        """
        positions = {field_id(field): position for position, field in enumerate(table.schema)}
        for batch in table.to_batches():
            columns = []
            for field in self._fields:
                position = positions.get(field.field_id)
                array = None if position is None else batch.column(position)
                source = None if position is None else table.schema.field(position)
                columns.append(column_of(field, array, source, batch.num_rows, field.name))
            self._add(columns, batch.num_rows)

    def _add(self, columns: list[Column], row_count: int) -> None:
        weight = max(column.weight for column in columns)
        most = rows_at_once(weight, row_count)
        # Parts of one size: a short last one costs nearly as much as the others.
        step = -(-row_count // max(1, -(-row_count // most)))
        for start in range(0, row_count, max(1, step)):
            stop = min(start + step, row_count)
            lanes = Lanes.of(stop - start)
            for column in columns:
                column.add(start, stop, lanes)
            lanes.finish()
            self._value = (self._value + _sum(lanes)) % 2**_BITS
        self.row_count += row_count


def _sum(lanes: Lanes) -> int:
    """The sum of numbers of 128 bits, the first lane being their high half."""
    low = int((lanes.second & _LOW_HALF).sum()) + (int((lanes.second >> np.uint64(32)).sum()) << 32)
    return (int(lanes.first.sum()) << 64) + low


_PLAIN: dict[Type, tuple[pa.DataType, ...]] = {
    INT: (pa.int32(),),
    DATE: (pa.date32(),),
    LONG: (pa.int64(),),
    TIME: (pa.time64("us"), pa.int64()),
    TIMESTAMP: (pa.timestamp("us"),),
    TIMESTAMPTZ: (pa.timestamp("us", "UTC"),),
}

_Update = Callable[[Any], None]
"""Takes the bytes of an array, which lie one behind the other."""


class RowSequence:
    """Hashes rows that pass; only one thread at a time may use it.

    Values are those of `RowHash`: in the types of the schema, floats by their bits but for NaN, a map without an order of its
    entries. A column whose values came as a dictionary once is told by the numbers of these, of which `again` knows.

    Attributes:
        columns: of the rows.
        row_count: rows that were added so far.
    """

    def __init__(self, columns: Schema, vocabularies: "Mapping[int, _Vocabulary] | None" = None) -> None:
        """`columns` are those of the rows; `vocabularies` are those of another sequence that this one is compared with."""
        self.columns = columns
        fields = [field for field in columns.fields if field.type != UNKNOWN]
        known = {} if vocabularies is None else vocabularies
        self._is_second = vocabularies is not None
        self._streams = [_Stream(field, known.get(field.field_id)) for field in fields]
        self.row_count = 0

    @property
    def total(self) -> RowSum:
        """What was added so far; only that of one that began with `again` can be compared with it."""
        digest = xxhash.xxh3_128()
        for stream in self._streams:
            digest.update(stream.digest())
        return RowSum(self.row_count, digest.digest())

    @property
    def coded_ids(self) -> frozenset[int]:
        """Field ids of the columns whose values are told by numbers: they are best read as dictionaries."""
        return frozenset(stream.field.field_id for stream in self._streams if stream.vocabulary is not None)

    def again(self) -> "RowSequence":
        """A sequence of nothing, whose total is that of this one once the same rows were added."""
        known = {stream.field.field_id: stream.vocabulary for stream in self._streams if stream.vocabulary is not None}
        return RowSequence(self.columns, known)

    def add(self, table: pa.Table) -> None:
        """Add rows whose fields carry field ids at every level, in any order of columns, other columns among them.

        Raises:
            InvalidTableError: a column does not fit the type of its field, or a required one is missing.
            UnsupportedError: a column has a type whose values we cannot interpret.
        """
        positions = {field_id(field): position for position, field in enumerate(table.schema)}
        for stream in self._streams:
            position = positions.get(stream.field.field_id)
            if position is None:
                stream.add([None], None, table.num_rows, may_code=False)
            else:
                may_code = not self._is_second
                stream.add(table.column(position).chunks, table.schema.field(position), table.num_rows, may_code)
        self.row_count += table.num_rows


class _Stream:
    """The values of a column, one behind the other.

    Attributes:
        vocabulary: of a column that came as a dictionary when it came first.
    """

    def __init__(self, field: NestedField, vocabulary: "_Vocabulary | None") -> None:
        self.field, self.vocabulary = field, vocabulary
        self._row_count = self._value_count = 0
        self._last: tuple[pa.DataType, int] = pa.null(), 0
        self._parts = [xxhash.xxh3_128(seed=number) for number in range(4)]
        values, more, lengths, nulls = (part.update for part in self._parts)
        self._values: _Update = values
        self._more: _Update = more
        self._lengths: _Update = lengths
        self._nulls: _Update = nulls

    def digest(self) -> bytes:
        """Of the column's id and all of its streams."""
        return self.field.field_id.to_bytes(8, "little") + b"".join(part.digest() for part in self._parts)

    def add(self, arrays: Iterable[pa.Array | None], source: pa.Field | None, length: int, may_code: bool) -> None:
        """Add arrays, or so many rows of a column that is not there; raises `InvalidTableError` as `RowSequence.add`."""
        for array in arrays:
            count = length if array is None else len(array)
            if not count:
                continue
            held, described = held_or_default(self.field, array, source, count, self.field.name)
            if (
                pa.types.is_dictionary(held.type)
                and may_code
                and not self._row_count
                and held.type.value_type == pa.string()
            ):
                self.vocabulary = _Vocabulary()
            self._add(held, described)
            self._row_count += count
            self._value_count += count - held.null_count

    def _width_of(self, held: pa.DataType) -> int:
        """The bytes of a value, where values are hashed as they lie in memory; else 0."""
        if held != self._last[0]:
            self._last = held, _plain_width(self.field.type, held)
        return self._last[1]

    def _add(self, array: pa.Array, source: pa.Field) -> None:
        type_, name = self.field.type, self.field.name
        if is_nested(type_):
            first, second = summed(column_of(self.field, array, source, len(array), name), len(array))
            self._values(first)
            self._more(second)
            return
        if pa.types.is_null(array.type):
            self._nulls(np.arange(self._row_count, self._row_count + len(array)))
            return
        nulls = null_mask(array)
        if nulls is not None:
            self._nulls(np.flatnonzero(nulls) + self._row_count)
            array = array.drop_null()
        width = self._width_of(array.type)
        if width:
            held = memoryview(array.buffers()[1]).cast("B")
            self._values(held[width * array.offset : width * (array.offset + len(array))])
            return
        if self.vocabulary is not None:
            self._values(self.vocabulary.numbers(array))
            return
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        spans = bytes_of(array, type_, name)
        if spans is not None:
            offsets, data = spans
            self._lengths(np.diff(offsets).astype(np.uint32, copy=False))
            self._values(data[offsets[0] : offsets[-1]])
            return
        if isinstance(type_, DecimalType):
            # Of fewer digits than the type's.
            self._values(decimal_pairs(array, type_, name))
            return
        words = words_of(array, type_, name)
        self._values(np.ascontiguousarray(words.low))
        if words.high is not None and words.high.any():
            # Most often nothing is there: nanoseconds of a type that has none.
            places = np.flatnonzero(words.high)
            self._more(np.column_stack((places + self._value_count, words.high[places])))


def _plain_width(type_: Type, held: pa.DataType) -> int:
    """The bytes of a value, where values of a type lie in memory as `words_of` or `decimal_pairs` would give them; else 0."""
    if isinstance(type_, DecimalType):
        return 16 if held == pa.decimal128(type_.precision, type_.scale) else 0
    return held.bit_width // 8 if held in _PLAIN.get(type_, ()) else 0


class _Vocabulary:
    """Numbers of texts, each of which has one, from whichever sequence they come first."""

    def __init__(self) -> None:
        self._known = pa.array([], pa.string())
        self._last: tuple[pa.Array, NDArray[np.uint32] | None] | None = None

    def numbers(self, array: pa.Array) -> NDArray[Any]:
        """The numbers of values that are not null; raises `InvalidTableError` where they are no texts."""
        if not pa.types.is_dictionary(array.type) or array.dictionary.null_count:
            array = array.cast(pa.string()).dictionary_encode()
        codes = np.frombuffer(array.indices.buffers()[1], array.indices.type.to_pandas_dtype())
        codes = codes[array.indices.offset :][: len(array)]
        table = self._table(array.dictionary)
        if table is None:
            return codes.astype(np.uint32, copy=False)
        return np.take(table, codes)

    def _table(self, entries: pa.Array) -> NDArray[np.uint32] | None:
        """The number of each entry of a dictionary; None where each has its place."""
        if self._last is not None and self._last[0].equals(entries):
            return self._last[1]
        found = pc.index_in(entries, value_set=self._known)
        if found.null_count:
            self._known = pa.concat_arrays([self._known, entries.filter(pc.is_null(found)).unique()])
            found = pc.index_in(entries, value_set=self._known)
        table = found.to_numpy().astype(np.uint32)
        kept = None if np.array_equal(table, np.arange(len(table))) else table
        self._last = entries, kept
        return kept
