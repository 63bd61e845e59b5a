"""Arrow's nested arrays taken apart and put together again, slices and null lists included."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def offsets(lists: pa.Array) -> pa.Array:
    """Where each list or map begins and ends among its `elements`, counted from the first of them."""
    # A slice of offsets cannot be combined with a mask of nulls; a difference is a new array.
    return pc.subtract(lists.offsets, lists.offsets[0])


def elements(lists: pa.Array, values: pa.Array | None = None) -> pa.Array:
    """What lies between the first and the last offset of lists; `flatten` fails on UUIDs.

    Args:
        lists: lists, or maps.
        values: of maps their `keys` or their `items`.
    """
    values = lists.values if values is None else values
    start, end = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    return values.slice(start, end - start)


def null_mask(array: pa.Array) -> pa.Array | None:
    """Which values are null, as `from_arrays` takes it."""
    return array.is_null() if array.null_count else None


def sink_nulls(column: Any, type_: pa.DataType) -> Any:
    """A nested column in which whatever lies below a null struct is null, and no level is a slice.

    pyarrow's ORC writer loses rows of structs in structs otherwise: it takes the values below a null for those of the next
    row, and the null of one row for another's in a slice.

    Args:
        column: an array, or several.
        type_: its type, with all fields nullable but the keys of maps.
    """
    if not type_.num_fields:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([sink_nulls(chunk, type_) for chunk in column.chunks], type_)
    if pa.types.is_struct(type_):
        children = [sink_nulls(_copied(c), f.type) for c, f in zip(column.flatten(), type_, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=null_mask(column))
    if pa.types.is_map(type_):
        keys = sink_nulls(_copied(elements(column, column.keys)), type_.key_type)
        items = sink_nulls(_copied(elements(column, column.items)), type_.item_type)
        return pa.MapArray.from_arrays(offsets(column), keys, items, type=type_, mask=null_mask(column))
    below = sink_nulls(_copied(elements(column)), type_.value_type)
    return pa.ListArray.from_arrays(offsets(column), below, type=type_, mask=null_mask(column))


def _copied(array: pa.Array) -> pa.Array:
    """The same values, not as a slice of others."""
    return array.take(pa.array(np.arange(len(array)))) if array.offset else array
