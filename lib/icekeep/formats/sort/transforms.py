"""Transforms of partition specs and sort orders over Arrow arrays, in the order of the transformed values.

`spec/transforms.py` is the definition. What can be done with all values at once is, and gives the same; where not, the
definition is applied once to each distinct value.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.formats.arrow.schema import arrow_type
from icekeep.formats.partitioner import column_values
from icekeep.formats.sort.encode import is_whole, whole_numbers
from icekeep.spec.numbers import decimal_from_unscaled, unscaled
from icekeep.spec.transforms import Bucket, Identity, Month, Transform, Truncate, Year
from icekeep.spec.types import DATE, INT, LONG, DecimalType, PrimitiveType, decimal
from icekeep.spec.units import DAY_SECONDS
from icekeep.spec.values import TICKS_PER_SECOND

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
