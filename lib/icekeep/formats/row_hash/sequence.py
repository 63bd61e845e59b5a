"""A hash of rows in their order: proof that a rewrite that keeps the order kept every row as it was, and where it was.

Each column is one stream of values, another of lengths where they have any, and one of the positions of nulls, whatever pieces
rows come in. Streams are hashed as they lie in memory, which is several times faster than a hash of each row (`multiset`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.formats.arrow.schema import field_id
from icekeep.formats.row_hash.columns import column_of, held_or_default, is_nested, summed
from icekeep.formats.row_hash.multiset import RowSum
from icekeep.formats.row_hash.words import bytes_of, decimal_pairs, null_mask, words_of
from icekeep.spec.schema import Schema
from icekeep.spec.types import DATE, INT, LONG, TIME, TIMESTAMP, TIMESTAMPTZ, UNKNOWN, DecimalType, NestedField, Type

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
        digest = mmh3.mmh3_x64_128()
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
        self._parts = [mmh3.mmh3_x64_128(seed=number) for number in range(4)]
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
