"""Partition tuples in Arrow: from what manifests store, to spec values, and to the bytes that joins compare.

In Arrow a partition is a struct with a field for each field of its spec, named by its field id (`"1000"`), of the type
that `formats.arrow.schema.arrow_type` gives; a UUID is Arrow's extension type.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.formats.arrow.schema import arrow_type
from icekeep.formats.deletes.apply import comparable_bits
from icekeep.planning.decoder import NotReadError
from icekeep.spec.avro import from_avro, shown_text
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.types import OPAQUE, STRING, NestedField, PrimitiveType, StructType
from icekeep.spec.values import INTEGER_WIDTHS

_MAX_CODE = 1 << 62
_SHOWN = (STRING.name, OPAQUE.name)
"""Types that are text in Arrow; a value of another type, such as that of an unknown transform, is shown as text."""


def partition_arrow_type(partition: StructType) -> pa.StructType:
    """The Arrow type of a partition type's tuples."""
    return pa.struct([pa.field(str(field.field_id), arrow_type(field.type)) for field in partition.fields])


def partition_array(tuples: Iterable[tuple[Any, ...]], partition: StructType) -> pa.StructArray:
    """Tuples of spec values in Arrow; raises ArrowException, OverflowError or ValueError if one does not fit its type."""
    rows = [*tuples]
    columns = zip(*rows, strict=True) if rows else ((),) * len(partition.fields)
    arrays = [_array(values, field) for values, field in zip(columns, partition.fields, strict=False)]
    return _struct(arrays, len(rows), partition)


def partition_of_stored(
    stored: pa.StructArray | None, names: list[str], partition: StructType, length: int
) -> pa.Array:
    """The partitions of records that were read without logical types, whose fields have `names` in `stored`.

    `stored` is null if the spec has no fields; raises `NotReadError` if a value is stored as another type.
    """
    if stored is None:
        return _struct([], length, partition)
    pairs = zip(names, partition.fields, strict=True)
    return _struct([_of_stored(stored.field(name), field) for name, field in pairs], length, partition)


def distinct_partitions(partition: pa.StructArray) -> tuple[list[tuple[Any, ...]], np.ndarray]:
    """The distinct tuples of a column of partitions as spec values, in the order of their rows, and the index of each row's.

    Floating point values are compared by their bits, as in `spec.reach.partition_key`: all NaN are equal, and -0.0 is not 0.0.
    """
    codes, distinct = np.zeros(len(partition), dtype=np.int64), 1
    columns = [comparable_bits(partition.field(i)) for i in range(partition.type.num_fields)]
    for column in columns:
        coded = column.dictionary_encode(null_encoding="encode")
        if distinct * max(1, len(coded.dictionary)) > _MAX_CODE:
            codes, distinct = _compact(codes)
        codes = codes * len(coded.dictionary) + coded.indices.to_numpy(zero_copy_only=False)
        distinct *= max(1, len(coded.dictionary))
    codes, distinct = _compact(codes)
    first_rows = np.zeros(distinct, dtype=np.int64)
    first_rows[codes[::-1]] = np.arange(len(partition) - 1, -1, -1)
    values = [_spec_values(column, partition.type.field(i).type, first_rows) for i, column in enumerate(columns)]
    return [*zip(*values, strict=True)] if values else [()] * distinct, codes


def partition_keys(partition: pa.StructArray, codec: PartitionCodec) -> pa.Array:
    """Partition tuples as bytes, each distinct one encoded once."""
    tuples, codes = distinct_partitions(partition)
    return pa.array([codec.encode(values) for values in tuples], pa.binary()).take(pa.array(codes))


def _struct(arrays: list[pa.Array], length: int, partition: StructType) -> pa.StructArray:
    type_ = partition_arrow_type(partition)
    if not arrays:
        return pa.Array.from_buffers(type_, length, [None], null_count=0)
    return pa.StructArray.from_arrays(arrays, fields=[*type_])


def _type_name(field: NestedField) -> str:
    return field.type.name if isinstance(field.type, PrimitiveType) else ""


def _array(values: Iterable[Any], field: NestedField) -> pa.Array:
    if _type_name(field) in _SHOWN:
        values = [shown_text(value) for value in values]
    if _type_name(field) == "uuid":
        storage = pa.array([None if value is None else value.bytes for value in values], pa.binary(16))
        return pa.ExtensionArray.from_storage(pa.uuid(), storage)
    return pa.array(values, arrow_type(field.type))


def _of_stored(raw: pa.Array, field: NestedField) -> pa.Array:
    target, kind, name = arrow_type(field.type), raw.type, _type_name(field)
    is_bytes = pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)
    if raw.null_count == len(raw):
        return pa.nulls(len(raw), target)
    if kind.equals(target):
        return raw
    if name in _SHOWN:
        return _by_value(raw, field, shown_text)
    if name == "decimal" and is_bytes:
        return _by_value(raw, field, from_avro(field.type))
    if name == "uuid" and is_bytes:
        return pa.ExtensionArray.from_storage(target, _fixed(raw, 16))
    if pa.types.is_fixed_size_binary(target) and is_bytes:
        return _fixed(raw, target.byte_width)
    if pa.types.is_binary(target) and is_bytes:
        return raw.cast(target)
    if pa.types.is_floating(target) and pa.types.is_floating(kind):
        return raw.cast(target, safe=False)
    if pa.types.is_integer(kind) and name in INTEGER_WIDTHS:
        return raw.cast(pa.int32() if target.bit_width == 32 else pa.int64()).cast(target)
    raise NotReadError(f"a value of type {field.type} is stored as {kind}")


def _fixed(raw: pa.Array, width: int) -> pa.Array:
    if pc.any(pc.not_equal(pc.binary_length(raw), width)).as_py():
        raise NotReadError(f"a value of {width} bytes is stored in another length")
    return raw.cast(pa.binary()).cast(pa.binary(width))


def _by_value(raw: pa.Array, field: NestedField, convert: Callable[[Any], Any]) -> pa.Array:
    coded = raw.dictionary_encode()
    values = [None if value is None else convert(value) for value in coded.dictionary.to_pylist()]
    return _array(values, field).take(coded.indices)


def _compact(codes: np.ndarray) -> tuple[np.ndarray, int]:
    """The codes renumbered in the order of their rows, and the number of distinct ones."""
    coded = pa.array(codes).dictionary_encode()
    return coded.indices.to_numpy().astype(np.int64), len(coded.dictionary)


def _spec_values(column: pa.Array, type_: pa.DataType, rows: np.ndarray) -> list[Any]:
    values = column.take(pa.array(rows))
    if pa.types.is_floating(type_):
        values = values.view(type_)
    elif type_.equals(pa.uuid()):
        values = pa.ExtensionArray.from_storage(type_, values)
    elif pa.types.is_temporal(type_):
        values = values.view(pa.int32() if type_.bit_width == 32 else pa.int64())
    return values.to_pylist()
