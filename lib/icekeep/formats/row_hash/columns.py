"""The columns of rows as two sums of 64 bits a row, which `multiset` makes one hash of.

Each value is some words of 64 bits; each word is mixed, multiplied with an odd number of its own for each sum, and added. The
numbers follow from the field id and the place of the word, so neither the order of columns nor Arrow's way of holding a value
matters: slices, chunks, dictionaries, views and large offsets of equal values give equal sums. A value is hashed in the
schema's type, not the file's: an `int` read as `long` is the long.
"""

from typing import Any

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError
from icekeep.formats.arrow.literals import constant_array
from icekeep.formats.arrow.masks import Mask
from icekeep.formats.arrow.schema import field_id
from icekeep.formats.row_hash.lanes import (
    CHUNK_ROWS,
    FIRST_WORD,
    LENGTH,
    MAX_WORDS,
    POSITION,
    SCRATCH,
    Lanes,
    Sums,
    keys_of,
    mixed,
)
from icekeep.formats.row_hash.words import Words, bytes_of, null_mask, words_of
from icekeep.spec.defaults import initial_value
from icekeep.spec.types import UNKNOWN, ListType, MapType, NestedField, StructType, Type, child_fields

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
        digests = b"".join(mmh3.mmh3_x64_128_digest(data[begin : begin + length]) for begin, length in spans)
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
