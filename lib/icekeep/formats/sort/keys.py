"""Keys of rows: bytes whose order is the order in which an `Ordering` wants the rows.

A key is what the fields of the ordering say of a row, one after the other: partition fields, then the keys of the sort
order or the place on the curve. The same row has the same key in every task, and keys are of one width unless a field
is a string or binary one. A field is

* a byte for null, where the column may be null: 0 or 1 for what comes first or last;
* the value: numbers as unsigned big-endian ones; strings and binary with a zero byte behind, and where they hold the
  bytes 0 and 1 with these written as 1 1 and 1 2, so that what follows in the key never matters between two values.
  The last field of a key needs none of that;
* for a descending field with every bit of the value turned over.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.formats.arrow.accessors import leaf_path, leaf_values
from icekeep.formats.sort.encode import Unsigned, is_varying, null_rows, ordered
from icekeep.formats.sort.ordering import Curve, Ordering
from icekeep.formats.sort.space_filling import curve_bytes, curve_values
from icekeep.formats.sort.transforms import transformed
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import NullOrder, SortDirection, SortField
from icekeep.spec.transforms import Void
from icekeep.spec.types import UNKNOWN, PrimitiveType

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
