"""What entries are clustered by, as keys that compare with memcmp: partition fields, and lower bounds of any column."""

from collections.abc import Sequence
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import IcekeepError, NotFoundError, UnsupportedError, UsageError, argument
from icekeep.spec.ordering import java_order, sort_key
from icekeep.spec.schema import Schema, meant_column
from icekeep.spec.transforms import Identity
from icekeep.spec.types import StructType, Type
from icekeep.spec.values import value_from_bytes


class PartitionPart(msgspec.Struct, frozen=True):
    """Cluster by the partition field at an index of its spec."""

    index: int
    type: Type


class BoundPart(msgspec.Struct, frozen=True):
    """Cluster by the lower bound of a column."""

    field_id: int
    type: Type


SortPart: TypeAlias = PartitionPart | BoundPart


def sort_parts(names: Sequence[str] | None, partition: StructType, schema: Schema) -> tuple[SortPart, ...]:
    """What names say to cluster by: of partition fields, or else of columns; all partition fields if null.

    Raises:
        UsageError: there are no names, or one is there twice.
        NotFoundError: there is no such partition field or column.
        UnsupportedError: values of the column have no order.
    """
    if names is None:
        return tuple(PartitionPart(index, field.type) for index, field in enumerate(partition.fields))
    if not names:
        raise UsageError(
            f"{argument('sort_by')} is empty; name partition fields or columns, or leave it out for all partition fields"
        )
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise UsageError(f"{argument('sort_by')} names {twice[0]!r} twice")
    return tuple(_part(name, partition, schema) for name in names)


def _part(name: str, partition: StructType, schema: Schema) -> SortPart:
    for index, field in enumerate(partition.fields):
        if field.name == name:
            return PartitionPart(index, field.type)
    try:
        column = schema.field(name)
    except NotFoundError:
        fields = [field.name for field in partition.fields]
        meant = meant_column(name, [*schema.ids_by_name, *fields], fields, "the partition fields")
        raise NotFoundError(
            f"{argument('sort_by')}: there is neither a partition field nor a column {name!r}; {meant}", name=name
        ) from None
    if not Identity().accepts(column.type):
        raise UnsupportedError(
            f"{argument('sort_by')}: column {name!r} is of type {column.type}, whose values have no order"
        )
    return BoundPart(column.field_id, column.type)


def entry_keys(
    partitions: Sequence[tuple[Any, ...]],
    codes: NDArray[np.int64],
    lower_bounds: pa.MapArray | None,
    parts: Sequence[SortPart],
) -> pa.Array:
    """The sort keys of some entries.

    Args:
        partitions: the different partition tuples.
        codes: which of them each entry lies in.
        lower_bounds: of each entry; null if no part asks for them.
    """
    indices = pa.array(codes)
    keys = []
    for part in parts:
        if isinstance(part, PartitionPart):
            keys.append(_partition_keys(part, partitions).take(indices))
        else:
            assert lower_bounds is not None
            keys.append(_bound_keys(part, lower_bounds))
    if not keys:
        return pa.array([b""], pa.binary()).take(pa.array(np.zeros(len(codes), np.int64)))
    return keys[0] if len(keys) == 1 else pc.binary_join_element_wise(*keys, pa.scalar(b"", pa.binary()))


def cluster_key(type_: Type, value: Any) -> bytes:
    """One value as bytes that compare as partition summaries do: UUIDs in Java's order, all else as `ordering.sort_key`."""
    return sort_key([type_], [UUID(int=java_order(value)) if isinstance(value, UUID) else value])


def needs_bounds(parts: Sequence[SortPart]) -> bool:
    """Whether entries are clustered by more than their partitions, so that a manifest list does not tell how they lie."""
    return any(isinstance(part, BoundPart) for part in parts)


def _partition_keys(part: PartitionPart, tuples: Sequence[tuple[Any, ...]]) -> pa.Array:
    return pa.array([cluster_key(part.type, values[part.index]) for values in tuples], pa.binary())


def _bound_keys(part: BoundPart, lower_bounds: pa.MapArray) -> pa.Array:
    """Keys of lower bounds; of an entry that tells none, or what is no value of the column's type, that of null."""
    coded = _bounds(lower_bounds, part.field_id).dictionary_encode(null_encoding="encode")
    keys = [_bound_key(part.type, bound) for bound in coded.dictionary.to_pylist()]
    return pa.array(keys, pa.binary()).take(coded.indices)


def _bound_key(type_: Type, bound: bytes | None) -> bytes:
    if bound is not None:
        try:
            return cluster_key(type_, value_from_bytes(type_, bound))
        except IcekeepError:
            # Bytes that are no value of the type, or more than its order has room for.
            pass
    return cluster_key(type_, None)


def _bounds(maps: pa.MapArray, field_id: int) -> pa.Array:
    """The value of each map at a key, null where it has none."""
    offsets = maps.offsets.to_numpy()
    keys = maps.keys.to_numpy()
    found = np.flatnonzero(keys == field_id)
    found = found[(found >= offsets[0]) & (found < offsets[-1])] if len(offsets) > 1 else found[:0]
    indices = np.full(len(maps), -1, np.int64)
    indices[np.searchsorted(offsets, found, side="right") - 1] = found
    is_there = (indices >= 0) & np.asarray(maps.is_valid())
    return maps.items.take(pa.array(indices, mask=~is_there))
