"""Transforms of partition specs and sort orders over Arrow arrays, in the order of the transformed values.

`spec/transforms.py` is the definition. What can be done with all values at once is, and gives the same; where not, the
definition is applied once to each distinct value.

Keys of rows: bytes whose order is the order in which an `Ordering` wants the rows.

A key is what the fields of the ordering say of a row, one after the other: partition fields, then the keys of the sort
order or the place on the curve. The same row has the same key in every task, and keys are of one width unless a field
is a string or binary one. A field is

* a byte for null, where the column may be null: 0 or 1 for what comes first or last;
* the value: numbers as unsigned big-endian ones; strings and binary with a zero byte behind, and where they hold the
  bytes 0 and 1 with these written as 1 1 and 1 2, so that what follows in the key never matters between two values.
  The last field of a key needs none of that;
* for a descending field with every bit of the value turned over.

The order of binary keys, found by sorting machine words: what numpy does fastest.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.formats.arrow.arrays import leaf_path, leaf_values
from icekeep.formats.arrow.schema import arrow_type
from icekeep.formats.partitioner import column_values
from icekeep.formats.sort.encode import (
    Curve,
    Ordering,
    Unsigned,
    curve_bytes,
    curve_values,
    is_varying,
    is_whole,
    null_rows,
    ordered,
    whole_numbers,
)
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import NullOrder, SortDirection, SortField
from icekeep.spec.transforms import Bucket, Identity, Month, Transform, Truncate, Void, Year
from icekeep.spec.types import DATE, DAY_SECONDS, INT, LONG, UNKNOWN, DecimalType, PrimitiveType, decimal
from icekeep.spec.values import TICKS_PER_SECOND, decimal_from_unscaled, unscaled

_LARGEST_DECIMAL = 38


def transformed(array: pa.Array, type_: PrimitiveType, transform: Transform) -> tuple[pa.Array, PrimitiveType]:
    """Transformed values and a type that has their order; no extension array, no dictionary. Null stays null.

    A value that a truncation takes out of the range of its type becomes the least of the type: there is nothing below it.

    Args:
        array: values of `type_`, no extension array and no dictionary.
        transform: one that takes the type.

    Raises:
        InvalidTableError: the transform does not take the type.
        UnsupportedError: the transform is not known.
    """
    # Raises for a type that it does not take.
    transform.apply(type_, None)
    if isinstance(transform, Identity):
        return array, type_
    if is_whole(type_):
        numbers = _whole(whole_numbers(array, type_), type_, transform)
        return pa.array(numbers, mask=_mask(array)), LONG
    encoded = pc.dictionary_encode(array)
    values = [transform.apply(type_, value) for value in column_values(encoded.dictionary, type_)]
    if isinstance(transform, Bucket):
        return pa.array(values, pa.int32()).take(encoded.indices), INT
    if isinstance(type_, DecimalType):
        wide = decimal(_LARGEST_DECIMAL, type_.scale)
        least = 1 - 10**_LARGEST_DECIMAL
        values = [decimal_from_unscaled(max(least, unscaled(value, type_.scale)), type_.scale) for value in values]
        return pa.array(values, arrow_type(wide)).take(encoded.indices), wide
    return pa.array(values, array.type).take(encoded.indices), type_


def _mask(array: pa.Array) -> NDArray[np.bool_] | None:
    return pc.is_null(array).to_numpy(zero_copy_only=False) if array.null_count else None


def _whole(values: NDArray[Any], type_: PrimitiveType, transform: Transform) -> NDArray[np.int64]:
    """The transform of whole numbers, null values among them whatever they are."""
    values = values.astype(np.int64)
    if isinstance(transform, Truncate):
        below = values - values % transform.width
        return np.where(below > values, np.iinfo(np.int64).min, below)
    if isinstance(transform, Bucket):
        if type_.name.endswith("_ns"):
            values = values // 1000
        return (_hashes(values.view(np.uint64)) & np.uint32(0x7FFF_FFFF)).astype(np.int64) % transform.bucket_count
    if type_ != DATE:
        second = TICKS_PER_SECOND[type_.name]
        if str(transform) == "hour":
            return values // (3600 * second)
        values = values // (DAY_SECONDS * second)
    if isinstance(transform, Year | Month):
        months = values.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
        return months if isinstance(transform, Month) else months // 12
    return values


def _hashes(values: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Murmur3 (x86, 32 bits, seed 0) of the eight bytes of each number (spec, Appendix B)."""
    hashes = np.zeros(len(values), dtype=np.uint32)
    for word in (values & np.uint64(0xFFFF_FFFF), values >> np.uint64(32)):
        mixed = word.astype(np.uint32) * np.uint32(0xCC9E2D51)
        mixed = _rotated(mixed, 15) * np.uint32(0x1B873593)
        hashes = _rotated(hashes ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    hashes ^= np.uint32(8)
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


def _rotated(values: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))


_ZERO, _ONE = b"\x00", b"\x01"

_Part: TypeAlias = "Unsigned | pa.Array"
"""Of each row the same number of bytes, or as many as its value has."""


def sort_keys(rows: pa.Table, ordering: Ordering, schema: Schema) -> pa.Array:
    """The key of each row, `binary[width]` or, with strings or binary values in it, `large_binary`.

    A table without rows is enough to learn whether rows can be ordered.

    Args:
        rows: in the columns of `schema`; strings may be dictionaries.
        schema: has all columns of the ordering.

    Raises:
        InvalidTableError: a column of the ordering is not in the schema, is nested, or its transform does not take it.
        UnsupportedError: a transform is not known, or values of a column have no order.
    """
    partition_fields = () if ordering.partition_by is None else ordering.partition_by.fields
    fields = [SortField(source_id=field.source_id, transform=field.transform) for field in partition_fields]
    fields += [] if ordering.curve is not None else ordering.fields
    # A void transform makes null of everything, also of columns that are gone.
    fields = [field for field in fields if not isinstance(field.transform, Void)]
    parts: list[_Part] = []
    for number, field in enumerate(fields, start=1):
        is_last = number == len(fields) and ordering.curve is None
        parts += _field_parts(rows, field, schema, is_last=is_last)
    if ordering.curve is not None:
        parts.append(_curve_part(rows, ordering.curve, schema))
    return _joined(parts, rows.num_rows)


class _Column(msgspec.Struct, frozen=True):
    """A column of the ordering: its values, and which of them each row has, if not one after the other."""

    values: pa.Array
    indices: NDArray[Any] | None
    nulls: NDArray[np.bool_] | None
    type: PrimitiveType
    is_optional: bool

    def spread(self, part: _Part) -> _Part:
        """What was made of the values, for the rows."""
        if self.indices is None:
            return part
        return part[self.indices] if isinstance(part, np.ndarray) else part.take(pa.array(self.indices))


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
    if is_varying(type_):
        values = pc.fill_null(values.cast(pa.large_binary()), b"")
        if is_descending or not is_last:
            values = pc.binary_join_element_wise(_escaped(values), _constant(_ZERO), _constant(b""))
        part = column.spread(_inverted(values) if is_descending else values)
        yield part if column.nulls is None else pc.if_else(pa.array(column.nulls), _constant(b""), part)
        return
    for numbers in ordered(values, type_):
        part = column.spread(~numbers if is_descending else numbers)
        if column.nulls is not None:
            part = np.array(part)
            part[column.nulls] = 0
        yield part


def _constant(value: bytes) -> pa.Scalar:
    # Not made when this is imported: a task that sorts nothing imports it too.
    return pa.scalar(value, pa.large_binary())


def _escaped(values: pa.Array) -> pa.Array:
    """Binary values without the byte that ends them."""
    data = np.frombuffer(values.buffers()[2] or b"", dtype=np.uint8)
    if len(data) and data.min() <= _ONE[0]:
        values = pc.replace_substring(values, _ONE, _ONE + b"\x02")
        values = pc.replace_substring(values, _ZERO, _ONE + _ONE)
    return values


def _inverted(values: pa.Array) -> pa.Array:
    validity, offsets, data = values.buffers()
    turned = ~np.frombuffer(data or b"", dtype=np.uint8)
    buffers = [validity, offsets, pa.py_buffer(turned)]
    return pa.Array.from_buffers(values.type, len(values), buffers, offset=values.offset)


def _curve_part(rows: pa.Table, curve: Curve, schema: Schema) -> NDArray[np.uint8]:
    columns = []
    for field_id in curve.column_ids:
        column = _column(rows, field_id, schema)
        part = np.array(column.spread(curve_bytes(column.values, column.type, curve)))
        if column.nulls is not None:
            part[column.nulls] = 0
        columns.append(part)
    return curve_values(columns, curve)


def _joined(parts: Sequence[_Part], row_count: int) -> pa.Array:
    """The bytes of all parts of a row, one after the other."""
    joined: list[pa.Array] = []
    fixed: list[Unsigned] = []
    for part in parts:
        if isinstance(part, np.ndarray):
            fixed.append(part)
            continue
        if fixed:
            joined.append(_packed(fixed, row_count))
            fixed = []
        joined.append(part)
    if fixed or not joined:
        joined.append(_packed(fixed, row_count))
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

_BLOCK_ROWS = 16_384
"""Keys that are padded at one time, so that they stay in the processor's cache."""

_LONGEST_PADDED = 32
"""Keys of up to so many bytes are padded to one length and compared as words."""

Words = NDArray[np.uint64]


def key_order(keys: pa.Array) -> NDArray[np.int64]:
    """Positions of the keys in rising order; equal keys stay in the order in which they are."""
    words = _words(keys)
    if words is None:
        return pc.sort_indices(keys).to_numpy().astype(np.int64)
    count = len(keys)
    # The keys, and then these words, take more than all else here: whoever hands them over need not hold them either.
    del keys
    words = _varying_words(words)
    return _stable_order(words, count)


def _words(keys: pa.Array) -> list[Words] | None:
    """Keys as big-endian words, the most significant first; `None` if some are too long."""
    if pa.types.is_fixed_size_binary(keys.type):
        width = keys.type.byte_width
        data = np.frombuffer(
            keys.buffers()[1] or b"", dtype=np.uint8, count=len(keys) * width, offset=keys.offset * width
        )
        return list(_as_words(data.reshape(len(keys), width)))
    offsets = np.frombuffer(keys.buffers()[1], dtype=np.int64, count=len(keys) + 1, offset=keys.offset * _WORD_BYTES)
    lengths = np.diff(offsets)
    width = int(lengths.max(initial=0))
    if width > _LONGEST_PADDED:
        return None
    data = np.frombuffer(keys.buffers()[2] or bytes(1), dtype=np.uint8)
    rows = np.zeros((len(keys), width), dtype=np.uint8)
    for start in range(0, len(keys), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        positions = np.minimum(offsets[:-1][block, None] + np.arange(width), len(data) - 1)
        np.copyto(rows[block], data[positions], where=np.arange(width) < lengths[block, None])
    # Where one key is another one and zeros behind it, the length decides.
    return [*_as_words(rows), lengths.astype(np.uint64)]


def _as_words(rows: NDArray[np.uint8]) -> Iterator[Words]:
    for start in range(0, rows.shape[1], _WORD_BYTES):
        word = np.empty(len(rows), dtype=np.uint64)
        padded = np.zeros((min(_BLOCK_ROWS, len(rows)), _WORD_BYTES), dtype=np.uint8)
        for first in range(0, len(rows), _BLOCK_ROWS):
            piece = rows[first : first + _BLOCK_ROWS, start : start + _WORD_BYTES]
            padded[: len(piece), : piece.shape[1]] = piece
            word[first : first + _BLOCK_ROWS] = padded[: len(piece)].view(">u8")[:, 0]
        yield word


def _varying_words(words: Sequence[Words]) -> list[Words]:
    """Fewer words of the same order: without the bytes that are the same in all keys."""
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
    """Of neighbouring bytes of a word in which bits vary, the most significant first, the last one and their number."""
    length = 0
    for position in range(_WORD_BYTES - 1, -1, -1):
        if varying >> 8 * position & 0xFF:
            length += 1
        elif length:
            yield position + 1, length
            length = 0
    if length:
        yield 0, length


def _stable_order(words: Sequence[Words], count: int) -> NDArray[np.int64]:
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


def _positions(code: Words) -> NDArray[np.int64]:
    """The stable order of numbers: sorted with their positions in the lower bits, since that is what is fast."""
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
    """For each number how many different ones are less, and how many different ones there are."""
    order = np.argsort(code)
    in_order = code[order]
    steps = np.empty(len(code), dtype=np.uint64)
    steps[:1] = 0
    steps[1:] = in_order[1:] != in_order[:-1]
    np.cumsum(steps, out=steps)
    ranks = np.empty(len(code), dtype=np.uint64)
    ranks[order] = steps
    return ranks, int(steps[-1]) + 1 if len(steps) else 0
