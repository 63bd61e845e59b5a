"""Arrow arrays of values in the form of `spec.values`: partition values, default values, facts about a file."""

from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.formats.arrow.schema import arrow_field, arrow_type
from icekeep.spec.types import ListType, MapType, StructType, Type


def constant_array(type_: Type, value: Any, length: int) -> pa.Array:
    """One value as often as asked for; a struct is a dict by field id, as in `spec.values`."""
    target = arrow_type(type_)
    if value is None:
        return pa.nulls(length, target) if not isinstance(type_, StructType) else _repeated([None], target, length)
    if isinstance(type_, StructType):
        children = [constant_array(f.type, value.get(f.field_id), length) for f in type_.fields]
        if not children:
            return pa.array([{}] * length, target)
        return pa.StructArray.from_arrays(children, fields=[arrow_field(f) for f in type_.fields])
    if isinstance(type_, ListType | MapType):
        return _repeated([_plain(type_, value)], target, length)
    return pa.repeat(pa.scalar(value, target), length)


def without_nulls(array: pa.Array) -> pa.Array:
    """The array with anything that is a value where it has nulls: for a required field below a struct that is null.

    pyarrow writes no file with nulls in a required field, though no reader would ever see these.
    """
    # What lies below a null struct is a value to Arrow's builders.
    below = pa.array([None], pa.struct([pa.field("", _storage_type(array.type), nullable=False)]))
    indices = pc.if_else(array.is_valid(), pa.array(np.arange(len(array))), len(array))
    return pa.concat_arrays([array, below.field(0).cast(array.type)]).take(indices)


def _repeated(values: list[Any], type_: pa.DataType, length: int) -> pa.Array:
    array = pa.array(values, _storage_type(type_)).cast(type_)
    return array.take(pa.array(np.zeros(length, dtype=np.int64)))


def _plain(type_: Type, value: Any) -> Any:
    """A value as Arrow takes it: structs by name, bytes for a UUID."""
    match type_:
        case _ if value is None:
            return None
        case StructType():
            return {f.name: _plain(f.type, value.get(f.field_id)) for f in type_.fields}
        case ListType():
            return [_plain(type_.element, item) for item in value]
        case MapType():
            return [(_plain(type_.key, key), _plain(type_.value, item)) for key, item in value]
    return value.bytes if isinstance(value, UUID) else value


def _storage_type(type_: pa.DataType) -> pa.DataType:
    """The type with 16 bytes for a UUID at every level: Arrow makes no array of the others from Python's values."""
    if type_ == pa.uuid():
        return pa.binary(16)
    if pa.types.is_struct(type_):
        return pa.struct([f.with_type(_storage_type(f.type)) for f in type_])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_storage_type(type_.value_type)))
    if pa.types.is_map(type_):
        item = type_.item_field.with_type(_storage_type(type_.item_type))
        return pa.map_(type_.key_field.with_type(_storage_type(type_.key_type)), item)
    return type_
