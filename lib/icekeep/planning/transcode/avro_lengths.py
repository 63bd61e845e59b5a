"""How many bytes each value of a decoded column took as Avro: so the records of a block are found without parsing it.

Avro gives records no lengths. But what a value takes follows from the value, if its writer encoded it in the shortest way,
which all do: then the lengths of all records of a block add up to the block's. No other way to write a value is shorter, so
a block whose sum is right holds records of just these lengths.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.planning.manifests.avro_decoder import NotReadError, is_empty_record

Lengths: TypeAlias = NDArray[np.int64]

_FIXED_LENGTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_LONGEST_VARINT = 10


def encoded_lengths(schema: Any, column: pa.Array) -> Lengths:
    """The bytes of each value of a column that was decoded from Avro of a schema.

    Args:
        schema: decoded JSON, without references to named types.
        column: as DataFusion decodes it: no dictionaries, no logical types.

    Raises:
        NotReadError: values of such a schema cannot be measured.
    """
    if isinstance(schema, list):
        return _of_union(schema, column)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return encoded_lengths(kind, column)
    if kind in _FIXED_LENGTHS:
        return np.full(len(column), _FIXED_LENGTHS[kind], np.int64)
    measure = _MEASURES.get(kind)
    if measure is None:
        raise NotReadError(f"values of Avro's type {kind!r} are not measured")
    return measure(schema, column)


def varint_lengths(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The bytes of numbers as Avro writes them: seven bits a byte, the sign in the lowest bit."""
    folded = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    lengths = np.ones(len(folded), np.uint8)
    most = int(folded.max()) if len(folded) else 0
    for more in range(1, _LONGEST_VARINT):
        if most < 1 << (7 * more):
            break
        lengths += folded >= np.uint64(1 << (7 * more))
    return lengths


def value_offsets(column: pa.Array) -> NDArray[np.int64]:
    """Where the values of a column of bytes, text or lists begin, and where the last one ends."""
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.zeros(len(column) + 1, np.int64)
    found = np.frombuffer(data, "<i4", count=column.offset + len(column) + 1)[column.offset :]
    return found.astype(np.int64)


def _of_union(branches: list[Any], column: pa.Array) -> Lengths:
    others = [branch for branch in branches if branch != "null"]
    if len(branches) != 2 or len(others) != 1:
        raise NotReadError("a field may be of several types")
    lengths = encoded_lengths(others[0], column)
    if column.null_count:
        lengths = np.where(np.asarray(column.is_valid()), lengths, 0)
    return lengths + 1


def _of_numbers(_: Any, column: pa.Array) -> Lengths:
    if not pa.types.is_integer(column.type):
        raise NotReadError(f"whole numbers were decoded as {column.type}")
    return varint_lengths(_numbers(column)).astype(np.int64)


def _of_bytes(_: Any, column: pa.Array) -> Lengths:
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        raise NotReadError(f"bytes were decoded as {column.type}")
    sizes: Lengths = np.diff(value_offsets(column))
    return sizes + varint_lengths(sizes)


def _of_fixed(schema: Any, column: pa.Array) -> Lengths:
    return np.full(len(column), int(schema["size"]), np.int64)


def _of_record(schema: Any, column: pa.Array) -> Lengths:
    total = np.zeros(len(column), np.int64)
    fields = [field for field in schema["fields"] if not is_empty_record(field["type"])]
    if not pa.types.is_struct(column.type) or column.type.num_fields != len(fields):
        raise NotReadError(f"a record was decoded as {column.type}")
    for index, field in enumerate(fields):
        total += encoded_lengths(field["type"], column.field(index))
    return total


def _of_array(schema: Any, column: pa.Array) -> Lengths:
    """One block with a count before it, and the end; nothing but the end where there is no item."""
    if not pa.types.is_list(column.type):
        raise NotReadError(f"an array was decoded as {column.type}")
    offsets = value_offsets(column)
    counts = np.diff(offsets)
    items = column.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])) if len(counts) else column.values
    ends = np.concatenate(([0], np.cumsum(encoded_lengths(schema["items"], items))))
    firsts = offsets - (offsets[0] if len(counts) else 0)
    return np.where(counts > 0, varint_lengths(counts), 0) + (ends[firsts[1:]] - ends[firsts[:-1]]) + 1


_MEASURES: dict[str, Callable[[Any, pa.Array], Lengths]] = {
    "int": _of_numbers,
    "long": _of_numbers,
    "bytes": _of_bytes,
    "string": _of_bytes,
    "fixed": _of_fixed,
    "record": _of_record,
    "array": _of_array,
}


def _numbers(column: pa.Array) -> NDArray[np.int64]:
    """The numbers where they lie; what stands in the place of a null is anything."""
    width = column.type.bit_width // 8
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), np.int64)
    found = np.frombuffer(data, f"<i{width}", count=column.offset + len(column))[column.offset :]
    return found.astype(np.int64)
