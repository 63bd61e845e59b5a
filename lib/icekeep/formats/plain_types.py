"""Arrow data as other engines take it: without extension types and what fields say beyond their type, and back again."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa


def with_leaves(type_: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type with everything in it that is not nested replaced; fields are numbered, may be null and have no metadata."""
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f"f{n}", with_leaves(field.type, leaf)) for n, field in enumerate(type_)])
    if pa.types.is_list(type_):
        return pa.list_(pa.field("element", with_leaves(type_.value_type, leaf)))
    if pa.types.is_map(type_):
        return pa.map_(with_leaves(type_.key_type, leaf), with_leaves(type_.item_type, leaf))
    return leaf(type_)


def plain_type(type_: pa.DataType) -> pa.DataType:
    """A type without extension types, of the same layout in memory."""
    return with_leaves(type_, _storage_type)


def described_as(data: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same memory, described by another schema whose types have the same layout; nothing is copied or looked at."""
    _, array = data.__arrow_c_array__()
    importing: Any = pa.RecordBatch
    return importing._import_from_c_capsule(schema.__arrow_c_schema__(), array)


def _storage_type(type_: pa.DataType) -> pa.DataType:
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_
