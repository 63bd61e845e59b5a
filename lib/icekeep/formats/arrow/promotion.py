"""Which Arrow types may become which, and how values move (spec, "Schema Evolution").

A value changes its representation, never what it says: a cast that would round, cut or overflow is refused.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from icekeep.errors import IcekeepError
from icekeep.formats.arrow.field_ids import INSTANT, MICROSECONDS, STORED_AS_KEY
from icekeep.formats.arrow.schema import arrow_type, field_id
from icekeep.spec.types import TIMESTAMP, TIMESTAMPTZ, Type

_EXACT = {
    (pa.float32(), pa.float64()),
    (pa.large_string(), pa.string()),
    (pa.string_view(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.binary_view(), pa.binary()),
    (pa.binary(16), pa.uuid()),
    (pa.date32(), pa.timestamp("us")),
    (pa.date32(), pa.timestamp("ns")),
}

_STORED = {
    (pa.binary(), pa.string()),
    (pa.binary(), pa.uuid()),
    (pa.int64(), pa.time64("us")),
}
"""How files store values whose type nothing but the table tells: text that older writers did not mark, ORC's bytes and
times."""


def promoted(
    array: pa.Array, source: pa.Field, type_: Type, error: Callable[[str], IcekeepError], *, from_file: bool
) -> pa.Array:
    """An array of a primitive type in the Arrow type of an Iceberg type.

    Args:
        array: values, not encoded as a dictionary.
        source: the field that describes them.
        type_: that is wanted.
        error: makes the error for what is wrong with the column.
        from_file: whether the data is a file's, in which values may be stored as others than a caller may give.
    """
    target = arrow_type(type_)
    if pa.types.is_null(array.type) or pa.types.is_null(target):
        return pa.nulls(len(array), target)
    if from_file:
        array = _as_stored(array, source, type_)
    if array.type == target:
        return array
    if not (_promotes(array.type, target) or (from_file and _is_stored_as(array.type, target))):
        raise error(f"holds '{array.type}', which cannot become '{type_}'")
    try:
        if target == pa.uuid():
            array = array.cast(pa.binary(16))
        return array.cast(target)
    except pa.ArrowInvalid as problem:
        line = " ".join(str(problem).split())
        raise error(f"has a value that is not exact as '{type_}': {line}") from problem


def is_same(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether types are equal with the ids and nullability below them; what a map names its entries does not matter."""
    if pa.types.is_map(source) and pa.types.is_map(target):
        pairs = [(source.key_field, target.key_field), (source.item_field, target.item_field)]
    elif source.num_fields and source.id == target.id and source.num_fields == target.num_fields:
        pairs = [(source.field(i), target.field(i)) for i in range(source.num_fields)]
    else:
        return source.equals(target, check_metadata=True)
    return all(
        s.name == t.name and s.nullable == t.nullable and field_id(s) == field_id(t) and is_same(s.type, t.type)
        for s, t in pairs
    )


def _as_stored(array: pa.Array, source: pa.Field, type_: Type) -> pa.Array:
    """What the file means by values whose Arrow type does not say it all."""
    stored_as = (source.metadata or {}).get(STORED_AS_KEY)
    if stored_as == INSTANT and pa.types.is_timestamp(array.type) and pa.types.is_timestamp(arrow_type(type_)):
        # A cast would make another number of a wall clock's time.
        return array.view(pa.timestamp(array.type.unit, arrow_type(type_).tz))
    if stored_as == MICROSECONDS and type_ in (TIMESTAMP, TIMESTAMPTZ):
        nanoseconds = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        microseconds = pa.array(np.floor_divide(nanoseconds, 1000), mask=array.is_null().to_numpy(zero_copy_only=False))
        return microseconds.cast(pa.timestamp("us", array.type.tz))
    return array


def _promotes(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a type may become another; a cast that finds a value which is not exact still fails later."""
    if pa.types.is_integer(source) and pa.types.is_signed_integer(target):
        return source.bit_width < target.bit_width
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        return source.scale == target.scale and source.precision <= target.precision
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(target):
        return (source.tz is None) == (target.tz is None)
    if pa.types.is_time(source) and pa.types.is_time(target):
        return True
    return (source, target) in _EXACT


def _is_stored_as(source: pa.DataType, target: pa.DataType) -> bool:
    return (source, target) in _STORED or (pa.types.is_binary(source) and pa.types.is_fixed_size_binary(target))
