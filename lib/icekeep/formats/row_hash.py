"""Hashes of rows, which prove that a rewrite kept every row unchanged.

`RowHash` does not depend on the order of rows: it is the sum modulo 2**128 of a 128-bit hash of each row. A value that moved to
another row changes it, and so does a duplicate row in place of another. `RowSequence` depends on the order, and is several times
faster: each column is a stream of values that is hashed as it lies in memory.

The hash of a row is two sums of 64 bits. Each value is one or more words of 64 bits; each word is mixed, multiplied by an odd
key of its own for each sum, and added. The keys derive from the field id and the place of the word, so neither the order of
columns nor the Arrow layout of a value matters: slices, chunks, dictionaries, views and large offsets of equal values give
equal sums. A value is hashed in the schema's type, not the file's: an `int` read as `long` is a long.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError
from icekeep.formats.arrow.projection import Mask, constant_array, elements, offsets
from icekeep.formats.arrow.schema import child_fields, field_id
from icekeep.spec.schema import Schema, initial_value
from icekeep.spec.types import (
    DAY_SECONDS,
    UNKNOWN,
    DecimalType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
)
from icekeep.spec.types import child_fields as iceberg_children
from icekeep.spec.values import MICROS_PER_SECOND

CHUNK_ROWS = 14_336
"""Rows that are processed at a time: few enough for the processor's cache, and an array of their words is just below the 128 KiB
from which on C's allocator asks the system for memory each time."""

_MAX_ELEMENTS = 16 * CHUNK_ROWS
"""Elements of lists that are processed at a time, unless one row has more."""

_NULL, _LENGTH, _POSITION, _FIRST_WORD = range(4)
"""The uses of a field's keys, by their index."""

_MAX_WORDS = 64
"""The number of words of a value that have a key of their own."""

_MAX_VALUE_BYTES, _MAX_PADDING = 8 * _MAX_WORDS, 3
"""Strings are padded to the longest one, unless that makes more than this many times their bytes."""

_MASKS = np.array([2 ** (8 * count) - 1 for count in range(9)], np.uint64)
"""Masks of the first bytes of a word, by their number."""

_HALF, _LOW_HALF, _HIGH_FACTOR = np.uint64(32), np.uint64(2**32 - 1), np.uint64(0xC2B2AE3D27D4EB4F)
_BITS = 128

_SHORT_DIGITS, _ONE_WORD_DIGITS = 17, 18
_DAY_MICROS = DAY_SECONDS * MICROS_PER_SECOND
_NANOS_PER_MICRO = 1000
_NANS: dict[int, Any] = {4: np.uint32(0x7FC00000), 8: np.uint64(0x7FF8000000000000)}
"""The bits of the one NaN, by width in bytes."""

_NUMBERS: dict[str, tuple[pa.DataType, ...]] = {
    "int": (pa.int32(), pa.int16(), pa.int8(), pa.uint16(), pa.uint8()),
    "date": (pa.date32(),),
    "long": (pa.int64(), pa.int32(), pa.int16(), pa.int8(), pa.uint32(), pa.uint16(), pa.uint8()),
    # ORC's times are plain numbers.
    "time": (pa.time64("us"), pa.int64()),
    "float": (pa.float32(),),
    "double": (pa.float64(), pa.float32()),
}
"""The Arrow types whose values are numbers of a type without conversion; the first is that of the words."""

_UNITS = {"timestamp": "us", "timestamptz": "us", "timestamp_ns": "ns", "timestamptz_ns": "ns"}

Sums = NDArray[np.uint64]
"""Two arrays: the first and the second sum of each row, or of each element of lists."""


class RowSum(msgspec.Struct, frozen=True):
    """A number of rows and the sum of their hashes, 16 bytes little-endian: what tasks report."""

    row_count: int = 0
    digest: bytes = bytes(_BITS // 8)

    def __add__(self, other: "RowSum") -> "RowSum":
        value = int.from_bytes(self.digest, "little") + int.from_bytes(other.digest, "little")
        return RowSum(self.row_count + other.row_count, (value % 2**_BITS).to_bytes(_BITS // 8, "little"))


class RowHash:
    """Adds up the hashes of rows; not safe for several threads.

    Columns are identified by their field ids, and values are hashed in the types of the schema. A null differs from an empty or a
    zero value, and a null struct from one of nulls. The order of a list's elements matters; Iceberg's maps have none. Floats are
    their bits, with a single NaN. A column that data lacks has its `initial-default`, else nulls, and one of type `unknown` is
    skipped: no file holds it.
    """

    def __init__(self, columns: Schema) -> None:
        self.columns = columns
        self._fields = [field for field in columns.fields if field.type != UNKNOWN]
        self.row_count = 0
        self._value = 0

    @property
    def total(self) -> RowSum:
        return RowSum(self.row_count, self._value.to_bytes(_BITS // 8, "little"))

    def add(self, table: pa.Table) -> None:
        """Add rows whose fields carry field ids at every level, in any order of columns; other columns are ignored.

        Raises `InvalidTableError` where a column does not fit the type of its field, or a required one is missing.
        """
        positions = {field_id(field): position for position, field in enumerate(table.schema)}
        for batch in table.to_batches():
            columns = []
            for field in self._fields:
                position = positions.get(field.field_id)
                array = None if position is None else batch.column(position)
                source = None if position is None else table.schema.field(position)
                columns.append(_column_of(field, array, source, batch.num_rows, field.name))
            self._add(columns, batch.num_rows)

    def _add(self, columns: "list[_Column]", row_count: int) -> None:
        most = _rows_at_once(max(column.weight for column in columns), row_count)
        # Parts of one size: a short last one costs nearly as much as the others.
        step = -(-row_count // max(1, -(-row_count // most)))
        for start in range(0, row_count, max(1, step)):
            stop = min(start + step, row_count)
            sums = np.zeros((2, stop - start), np.uint64)
            for column in columns:
                column.add(start, stop, sums)
            _finish(sums)
            high, low = sums
            # Halves of words, whose sums fit into one.
            low_sum = int((low & _LOW_HALF).sum()) + (int((low >> _HALF).sum()) << 32)
            self._value = (self._value + (int(high.sum()) << 64) + low_sum) % 2**_BITS
        self.row_count += row_count


class RowSequence:
    """Hashes rows in their order; not safe for several threads.

    Values count as in `RowHash`. A column that came as a dictionary first is hashed by the numbers of its values, which `again`
    shares.
    """

    def __init__(self, columns: Schema, vocabularies: "Mapping[int, _Vocabulary] | None" = None) -> None:
        """`vocabularies` are those of the sequence that this one is compared with, by field id."""
        self.columns = columns
        fields = [field for field in columns.fields if field.type != UNKNOWN]
        self._is_second = vocabularies is not None
        self._streams = [_Stream(field, (vocabularies or {}).get(field.field_id)) for field in fields]
        self.row_count = 0

    @property
    def total(self) -> RowSum:
        """The hash of the rows so far, comparable with that of `again` only."""
        digest = xxhash.xxh3_128()
        for stream in self._streams:
            digest.update(stream.field.field_id.to_bytes(8, "little"))
            for part in stream.parts:
                digest.update(part.digest())
        return RowSum(self.row_count, digest.digest())

    @property
    def coded_ids(self) -> frozenset[int]:
        """Field ids of the columns that are hashed by numbers of their values, and best read as dictionaries."""
        return frozenset(stream.field.field_id for stream in self._streams if stream.vocabulary is not None)

    def again(self) -> "RowSequence":
        """An empty sequence, whose total equals this one's after the same rows were added."""
        vocabularies = {s.field.field_id: s.vocabulary for s in self._streams if s.vocabulary is not None}
        return RowSequence(self.columns, vocabularies)

    def add(self, table: pa.Table) -> None:
        """As `RowHash.add`."""
        positions = {field_id(field): position for position, field in enumerate(table.schema)}
        for stream in self._streams:
            position = positions.get(stream.field.field_id)
            if position is None:
                stream.add([None], None, table.num_rows, may_code=False)
            else:
                chunks, source = table.column(position).chunks, table.schema.field(position)
                stream.add(chunks, source, table.num_rows, may_code=not self._is_second)
        self.row_count += table.num_rows


class _Stream:
    """The concatenated values of a column; `vocabulary` is that of one that first came as a dictionary."""

    def __init__(self, field: NestedField, vocabulary: "_Vocabulary | None") -> None:
        self.field, self.vocabulary = field, vocabulary
        self._row_count = self._value_count = 0
        # Of the values, of their bits beyond one word, of their lengths, and of the positions of nulls.
        self.parts = [xxhash.xxh3_128(seed=number) for number in range(4)]

    def add(self, arrays: Iterable[pa.Array | None], source: pa.Field | None, length: int, may_code: bool) -> None:
        """Add arrays, or `length` rows of a missing column; raises `InvalidTableError` as `RowHash.add`."""
        for array in arrays:
            count = length if array is None else len(array)
            if not count:
                continue
            values, described = _held_or_default(self.field, array, source, count, self.field.name)
            is_first = may_code and not self._row_count
            if is_first and pa.types.is_dictionary(values.type) and values.type.value_type == pa.string():
                self.vocabulary = _Vocabulary()
            self._add(values, described)
            self._row_count += count
            self._value_count += count - values.null_count

    def _add(self, array: pa.Array, source: pa.Field) -> None:
        # The stubs do not accept arrays as bytes.
        update: Any = [part.update for part in self.parts]
        add_values, add_more, add_lengths, add_nulls = update
        type_, name = self.field.type, self.field.name
        if iceberg_children(type_):
            column = _column_of(self.field, array, source, len(array), name)
            sums = np.zeros((2, len(array)), np.uint64)
            _add_range(column, 0, len(array), sums, _rows_at_once(column.weight, len(array)))
            add_values(sums[0])
            add_more(sums[1])
            return
        if pa.types.is_null(array.type):
            add_nulls(np.arange(self._row_count, self._row_count + len(array)))
            return
        nulls = _null_mask(array)
        if nulls is not None:
            add_nulls(np.flatnonzero(nulls) + self._row_count)
            array = array.drop_null()
        if self.vocabulary is not None:
            add_values(self.vocabulary.numbers(array))
            return
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        spans = _bytes_of(array, type_, name)
        if spans is not None:
            begins, data = spans
            add_lengths(np.diff(begins).astype(np.uint32, copy=False))
            add_values(data[begins[0] : begins[-1]])
        elif isinstance(type_, DecimalType):
            add_values(_decimal_pairs(array, type_, name))
        else:
            words = _words_of(array, type_, name)
            add_values(np.ascontiguousarray(words.low))
            if words.high is not None and words.high.any():
                # Rarely: nanoseconds of a type in microseconds.
                places = np.flatnonzero(words.high)
                add_more(np.column_stack((places + self._value_count, words.high[places])))


class _Vocabulary:
    """Numbers of distinct strings, in the order of first appearance; two sequences share them."""

    def __init__(self) -> None:
        self._texts = pa.array([], pa.string())
        self._last: tuple[pa.Array, NDArray[np.uint32] | None] | None = None

    def numbers(self, array: pa.Array) -> NDArray[Any]:
        """The numbers of strings, none of which is null."""
        if not pa.types.is_dictionary(array.type) or array.dictionary.null_count:
            array = array.cast(pa.string()).dictionary_encode()
        codes = _values(array.indices, array.indices.type)
        entries = array.dictionary
        if self._last is None or not self._last[0].equals(entries):
            numbers = pc.index_in(entries, value_set=self._texts)
            if numbers.null_count:
                self._texts = pa.concat_arrays([self._texts, entries.filter(pc.is_null(numbers)).unique()])
                numbers = pc.index_in(entries, value_set=self._texts)
            table = numbers.to_numpy().astype(np.uint32)
            # None for the identity.
            self._last = entries, None if np.array_equal(table, np.arange(len(table))) else table
        table = self._last[1]
        return codes.astype(np.uint32, copy=False) if table is None else np.take(table, codes)


class _Words(NamedTuple):
    """Values as one unsigned word each, of 8 to 64 bits, and the signed rest of values that exceed one word.

    `reaches_high_bits`: whether two values may differ in the highest bits of a word only.
    """

    low: NDArray[Any]
    high: NDArray[np.int64] | None = None
    reaches_high_bits: bool = True


def _words_of(array: pa.Array, type_: Type, path: str) -> _Words:
    """The values of an array as words, arbitrary for nulls; raises `InvalidTableError` where its type does not fit.

    Floating-point numbers are their bits, so the zeros differ; all NaNs are the same one, as for dictionary encoders.
    """
    held = array.type
    name = type_.name if isinstance(type_, PrimitiveType) else ""
    if name == "boolean" and pa.types.is_boolean(held):
        return _Words(_bits(array.buffers()[1], array.offset, len(array)))
    if held in _NUMBERS.get(name, ()):
        numbers = _values(array, held).astype(_numpy_type(_NUMBERS[name][0]), copy=False)
        bits = numbers.view(f"u{numbers.itemsize}")
        if numbers.dtype.kind == "f" and (nans := np.isnan(numbers)).any():
            bits = np.where(nans, _NANS[bits.itemsize], bits)
        return _Words(bits)
    if isinstance(type_, DecimalType):
        pairs = _decimal_pairs(array, type_, path)
        # With so few digits the high half is only the sign.
        high = pairs[:, 1] if type_.precision > _ONE_WORD_DIGITS else None
        return _Words(pairs[:, 0].view(np.uint64), high, reaches_high_bits=type_.precision > _SHORT_DIGITS)
    unit = _UNITS.get(name)
    if unit is not None and pa.types.is_date32(held):
        day = _DAY_MICROS if unit == "us" else _DAY_MICROS * _NANOS_PER_MICRO
        return _Words((_values(array, held).astype(np.int64) * day).view(np.uint64))
    if (
        unit is not None
        and pa.types.is_timestamp(held)
        and (held.tz is None) == (name in ("timestamp", "timestamp_ns"))
    ):
        ticks = _values(array, held)
        if held.unit == unit:
            return _Words(ticks.view(np.uint64))
        if held.unit == "ns":
            micros, rest = np.divmod(ticks, _NANOS_PER_MICRO)
            return _Words(micros.view(np.uint64), rest)
    raise _unfit(held, type_, path)


def _decimal_pairs(array: pa.Array, type_: DecimalType, path: str) -> NDArray[np.int64]:
    """The low and the high half of each decimal, arbitrary for nulls; raises as `_words_of`."""
    held = array.type
    if not pa.types.is_decimal(held) or held.scale != type_.scale or held.precision > type_.precision:
        raise _unfit(held, type_, path)
    return _values(array.cast(pa.decimal128(type_.precision, type_.scale)), np.dtype((np.int64, 2)))


def _bytes_of(array: pa.Array, type_: Type, path: str) -> tuple[NDArray[Any], NDArray[np.uint8]] | None:
    """The offsets of values, and their bytes; None for types that are words. Raises as `_words_of`."""
    if not isinstance(type_, PrimitiveType) or type_.name not in ("string", "binary", "uuid", "fixed"):
        return None
    if array.type in (pa.string_view(), pa.binary_view()):
        array = array.cast(pa.large_binary())
    held = array.type
    if pa.types.is_fixed_size_binary(held):
        begins: NDArray[Any] = (np.arange(len(array) + 1) + array.offset) * held.byte_width
    elif held not in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        raise _unfit(held, type_, path)
    elif not len(array):
        begins = np.zeros(1, np.int64)
    else:
        width = np.int64 if held in (pa.large_string(), pa.large_binary()) else np.int32
        begins = np.frombuffer(array.buffers()[1], width)[array.offset :][: len(array) + 1]
    data = array.buffers()[-1]
    return begins, np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def _values(array: pa.Array, type_: "pa.DataType | np.dtype[Any]") -> NDArray[Any]:
    dtype = _numpy_type(type_) if isinstance(type_, pa.DataType) else type_
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype)[array.offset :][: len(array)]


def _numpy_type(type_: pa.DataType) -> "np.dtype[Any]":
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        return np.dtype(type_.to_pandas_dtype())
    # Dates, times and timestamps are whole numbers.
    return np.dtype(f"i{type_.bit_width // 8}")


def _bits(buffer: pa.Buffer | None, offset: int, count: int) -> NDArray[np.uint8]:
    if buffer is None or not count:
        return np.zeros(count, np.uint8)
    first = offset // 8
    data = np.frombuffer(buffer, np.uint8)[first : -(-(offset + count) // 8)]
    return np.unpackbits(data, bitorder="little")[offset - 8 * first :][:count]


def _null_mask(array: pa.Array) -> Mask | None:
    # `is_null` takes several times as long.
    return _bits(array.buffers()[0], array.offset, len(array)) == 0 if array.null_count else None


def _unfit(held: pa.DataType, type_: Type, path: str) -> InvalidTableError:
    return InvalidTableError(f"column {path!r} holds '{held}', not '{type_}'", column=path)


class _Scratch(threading.local):
    """Reused memory: the system would have to clear new memory, page by page."""

    def __init__(self) -> None:
        self._held: dict[str, NDArray[np.uint64]] = {}

    def words(self, use: str, count: int) -> NDArray[np.uint64]:
        """Uninitialised words, valid until the next call for the same use."""
        if count > _MAX_WORDS * CHUNK_ROWS:
            return np.empty(count, np.uint64)
        held = self._held.get(use)
        if held is None or len(held) < count:
            held = self._held[use] = np.empty(max(count, CHUNK_ROWS), np.uint64)
        return held[:count]


_SCRATCH = _Scratch()


@lru_cache(maxsize=4096)
def _keys_of(field_id: int) -> Sums:
    """The odd keys of a field for both sums, by use (splitmix64 of the field's id and the index)."""
    count = _FIRST_WORD + _MAX_WORDS
    numbers = np.arange(1, 2 * count + 1, dtype=np.uint64) + np.uint64(field_id << 8)
    numbers *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers ^= numbers >> np.uint64(shift)
        numbers *= np.uint64(factor)
    numbers ^= numbers >> np.uint64(31)
    return (numbers | np.uint64(1)).reshape(2, count)


def _mixed(words: NDArray[Any]) -> NDArray[np.uint64]:
    """Words whose low half depends on the high one.

    An odd factor alone would leave a change of the highest bit there, where one in another column could cancel it.
    """
    out = _SCRATCH.words("mixed", len(words))
    if words.dtype.itemsize < 8:
        np.copyto(out, words)
        return out
    np.right_shift(words, _HALF, out=out)
    return np.bitwise_xor(words, out, out=out)


def _add_words(sums: Sums, words: NDArray[np.uint64], place: int, keys: Sums, nulls: Mask | None = None) -> None:
    """Add a word of each row, or the key of a null."""
    product = _SCRATCH.words("product", len(words))
    for lane, key in zip(sums, keys, strict=True):
        np.multiply(words, key[place], out=product)
        if nulls is not None:
            np.copyto(product, key[_NULL], where=nulls)
        np.add(lane, product, out=lane)


def _add_sums(sums: Sums, finished: Sums, keys: Sums, nulls: Mask | None) -> None:
    """Add finished sums, which are overwritten, or the key of a null."""
    if nulls is not None:
        np.copyto(finished, keys[:, _NULL : _NULL + 1], where=nulls)
    np.add(sums, finished, out=sums)


def _finish(sums: Sums) -> None:
    """Mix both sums of each row into each other, so that sums over rows depend on which row a value is in."""
    first, second = sums
    shifted = _SCRATCH.words("product", len(first))
    for lane, other, factor in ((first, second, 0xD6E8FEB86659FD93), (second, first, 0xBF58476D1CE4E5B9)):
        np.right_shift(lane, _HALF, out=shifted)
        np.bitwise_xor(lane, shifted, out=lane)
        np.multiply(lane, np.uint64(factor), out=lane)
        np.add(lane, other, out=lane)
    for lane in (first, second):
        np.right_shift(lane, _HALF, out=shifted)
        np.bitwise_xor(lane, shifted, out=lane)


_Add = Callable[[int, int, Sums, Mask | None], None]
"""Adds the values of the rows `start` to `stop`, some of which may be null, to the sums of these rows."""


class _Column(NamedTuple):
    """The values of a column in one batch; `weight` is the number of elements of its lists."""

    add_values: _Add
    nulls: Mask | None
    weight: int = 0

    def add(self, start: int, stop: int, sums: Sums) -> None:
        self.add_values(start, stop, sums, None if self.nulls is None else self.nulls[start:stop])


def _column_of(field: NestedField, array: pa.Array | None, source: pa.Field | None, length: int, path: str) -> _Column:
    """The values of a field with the full name `path`; raises `InvalidTableError` as `RowHash.add`.

    `array` is null where the data lacks the column; `source` describes it, as its own type may lack the ids below it.
    """
    array, source = _held_or_default(field, array, source, length, path)
    type_, held, keys = field.type, array.type, _keys_of(field.field_id)
    if pa.types.is_dictionary(held):
        if len(array.dictionary) <= length:
            return _Column(_coded(field, array, source, keys, path), _null_mask(array))
        array = array.dictionary_decode()
        held = array.type
    if pa.types.is_null(held) or type_ == UNKNOWN:
        return _Column(_numbers(_Words(np.zeros(length, np.uint32)), keys), np.ones(length, bool))
    nulls = _null_mask(array)
    match type_:
        case StructType() if pa.types.is_struct(held):
            below = [array.field(position) for position in range(held.num_fields)]
            children = _children_of(field, below, source, length, path)
            return _Column(_structs(children, keys), nulls, max((child.weight for child in children), default=0))
        case ListType() | MapType() if pa.types.is_list(held) or pa.types.is_large_list(held) or pa.types.is_map(held):
            if pa.types.is_map(held) != isinstance(type_, MapType):
                raise _unfit(held, type_, path)
            lists = [array.keys, array.items] if isinstance(type_, MapType) else [array.values]
            below = [elements(array, one) if length else one.slice(0, 0) for one in lists]
            children = _children_of(field, below, source, len(below[0]), path)
            add = _lists(array, children, keys, is_ordered=isinstance(type_, ListType))
            return _Column(add, nulls, max(len(below[0]), *(child.weight for child in children)))
        case StructType() | ListType() | MapType():
            raise _unfit(held, type_, path)
    spans = _bytes_of(array, type_, path)
    return _Column(_numbers(_words_of(array, type_, path), keys) if spans is None else _texts(*spans, keys), nulls)


def _held_or_default(
    field: NestedField, array: pa.Array | None, source: pa.Field | None, length: int, path: str
) -> tuple[pa.Array, pa.Field]:
    """The values of a field without extension types, and their description; arguments and errors as `_column_of`."""
    if array is None or source is None:
        value = None if field.initial_default is None else initial_value(field)
        if value is None and field.required:
            raise InvalidTableError(f"column {path!r} is required and missing from the data", column=path)
        array = constant_array(field.type, value, length)
        source = pa.field(field.name, array.type)
    return array.storage if isinstance(array.type, pa.BaseExtensionType) else array, source


def _children_of(field: NestedField, arrays: list[pa.Array], source: pa.Field, length: int, path: str) -> list[_Column]:
    """The fields of structs, or the elements, keys or values of lists and maps, whose ids must be the schema's."""
    stored = [child for _, child in child_fields(source.type)]
    positions = {field_id(child): position for position, child in enumerate(stored)}
    columns = []
    for number, child in enumerate(iceberg_children(field.type)):
        name = f"{path}.{child.name}"
        position = positions.get(child.field_id)
        if not isinstance(field.type, StructType):
            position, id_ = number, field_id(stored[number])
            if id_ not in (None, child.field_id):
                raise InvalidTableError(f"column {name!r} has the field id {id_}, not {child.field_id}", column=name)
        elif child.type == UNKNOWN:
            continue
        array, described = (None, None) if position is None else (arrays[position], stored[position])
        columns.append(_column_of(child, array, described, length, name))
    return columns


def _rows_at_once(weight: int, row_count: int) -> int:
    """How many rows to process at a time: fewer where lists are long."""
    return max(1, min(CHUNK_ROWS, _MAX_ELEMENTS * row_count // max(1, weight)))


def _add_range(column: _Column, start: int, stop: int, sums: Sums, step: int = CHUNK_ROWS) -> None:
    """Add values to sums, whose first is that of `start`, `step` values at a time."""
    for begin in range(start, stop, step):
        end = min(begin + step, stop)
        column.add(begin, end, sums[:, begin - start : end - start])


def _numbers(values: _Words, keys: Sums) -> _Add:
    def add(start: int, stop: int, sums: Sums, nulls: Mask | None) -> None:
        words = values.low[start:stop]
        if values.high is not None:
            folded = _SCRATCH.words("folded", stop - start)
            np.multiply(values.high[start:stop].view(np.uint64), _HIGH_FACTOR, out=folded)
            words = np.add(folded, words, out=folded)
        _add_words(sums, _mixed(words) if values.reaches_high_bits else words, _FIRST_WORD, keys, nulls)

    return add


def _texts(offsets: NDArray[Any], data: NDArray[np.uint8], keys: Sums) -> _Add:
    """Strings of bytes: their words, of which the last may be partial, and their length."""
    type_ = pa.string() if offsets.dtype.itemsize == 4 else pa.large_string()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    texts = pa.Array.from_buffers(type_, len(offsets) - 1, buffers)

    def add(start: int, stop: int, sums: Sums, nulls: Mask | None) -> None:
        ends = offsets[start : stop + 1].astype(np.int64)
        begins, lengths = ends[:-1], np.diff(ends)
        if nulls is not None:
            lengths[nulls] = 0
        _add_words(sums, lengths.view(np.uint64), _LENGTH, keys, nulls)
        if int(lengths.max()) > _MAX_VALUE_BYTES:
            _add_long(data, begins, lengths, sums, keys)
        total, width = int(lengths.sum()), -(-int(lengths.max()) // 8) * 8
        if total == ends[-1] - ends[0] and width * len(lengths) <= _MAX_PADDING * total:
            # Of similar length: words of the padding are zero and add nothing.
            padded = pc.ascii_rpad(texts.slice(start, stop - start), width, padding="\0")
            words = np.frombuffer(padded.buffers()[2], np.uint64)[: (stop - start) * width // 8]
            for number, column in enumerate(words.reshape(stop - start, width // 8).T):
                _add_words(sums, _mixed(column), _FIRST_WORD + number, keys)
        elif total:
            copied = _SCRATCH.words("texts", (ends[-1] - ends[0]) // 8 + 2).view(np.uint8)
            copied[: ends[-1] - ends[0]] = data[ends[0] : ends[-1]]
            _add_by_words(copied, begins - ends[0], lengths, sums, keys)

    return add


def _add_long(
    data: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64], sums: Sums, keys: Sums
) -> None:
    """Add long strings, each with a call of its own, and set their lengths to 0."""
    rows = np.flatnonzero(lengths > _MAX_VALUE_BYTES)
    spans = zip(begins[rows].tolist(), lengths[rows].tolist(), strict=True)
    digests = b"".join(xxhash.xxh3_128_digest(data.data[begin : begin + length]) for begin, length in spans)
    of_rows = np.zeros((2, len(rows)), np.uint64)
    for number, words in enumerate(np.frombuffer(digests, "<u8").reshape(-1, 2).T):
        _add_words(of_rows, _mixed(words), _FIRST_WORD + number, keys)
    sums[:, rows] += of_rows
    lengths[rows] = 0


def _add_by_words(
    data: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64], sums: Sums, keys: Sums
) -> None:
    """Add the n-th word of all strings at a time; sorted by their number of words, those that have one come first."""
    # A word at each byte, aligned or not.
    words_at = np.lib.stride_tricks.as_strided(data.view(np.uint64), (len(data) - 7,), (1,))
    counts = (lengths + 7) >> 3
    order = np.argsort(-counts.astype(np.int8), kind="stable")
    places, lengths = begins[order], lengths[order]
    of_rows = np.zeros_like(sums)
    longer = (len(counts) - np.cumsum(np.bincount(counts))).tolist()
    for number, (count, still) in enumerate(pairwise(longer)):
        words = words_at[places[:count]]
        words[still:] &= np.take(_MASKS, lengths[still:count] - 8 * number)
        _add_words(of_rows[:, :count], _mixed(words), _FIRST_WORD + number, keys)
        places[:count] += 8
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    np.add(sums, np.take(of_rows, back, axis=1), out=sums)


def _coded(field: NestedField, array: pa.Array, source: pa.Field, keys: Sums, path: str) -> _Add:
    """Dictionary values; each entry is hashed once."""
    entries = array.dictionary
    column = _column_of(field, entries, source.with_type(entries.type), len(entries), path)
    of_entries = np.zeros((2, len(entries)), np.uint64)
    _add_range(column, 0, len(entries), of_entries)
    # The code of a null is arbitrary.
    codes = _values(array.indices, array.indices.type)

    def add(start: int, stop: int, sums: Sums, nulls: Mask | None) -> None:
        if len(entries):
            values = np.take(of_entries, codes[start:stop].astype(np.intp), axis=1, mode="clip")
            _add_sums(sums, values, keys, nulls)
        else:
            _add_words(sums, np.zeros(stop - start, np.uint64), _FIRST_WORD, keys, nulls)

    return add


def _structs(children: list[_Column], keys: Sums) -> _Add:
    """The fields of structs; those of null structs are arbitrary and do not count."""

    def add(start: int, stop: int, sums: Sums, nulls: Mask | None) -> None:
        inner = sums if nulls is None else np.zeros_like(sums)
        for child in children:
            child.add(start, stop, inner)
        if nulls is not None:
            _add_sums(sums, inner, keys, nulls)

    return add


def _lists(array: pa.Array, children: list[_Column], keys: Sums, *, is_ordered: bool) -> _Add:
    """Lists (`is_ordered`), or maps, whose entries have no order."""
    bounds = offsets(array).to_numpy() if len(array) else np.zeros(1, np.int64)

    def add(start: int, stop: int, sums: Sums, nulls: Mask | None) -> None:
        ends = bounds[start : stop + 1].astype(np.int64)
        low, high = int(ends[0]), int(ends[-1])
        ends -= low
        lengths = np.diff(ends)
        of_elements = np.zeros((2, high - low), np.uint64)
        for child in children:
            _add_range(child, low, high, of_elements)
        if is_ordered:
            positions = np.arange(high - low) - np.repeat(ends[:-1], lengths)
            _add_words(of_elements, positions.view(np.uint64), _POSITION, keys)
        # Finished, to tie an element to its position, or a key to its value.
        _finish(of_elements)
        cumulated = np.zeros(high - low + 1, np.uint64)
        of_lists = np.empty((2, len(lengths)), np.uint64)
        for lane, of_lane in zip(of_elements, of_lists, strict=True):
            np.cumsum(lane, out=cumulated[1:])
            np.subtract(cumulated[ends[1:]], cumulated[ends[:-1]], out=of_lane)
        _add_words(of_lists, lengths.view(np.uint64), _LENGTH, keys)
        _add_sums(sums, of_lists, keys, nulls)

    return add
