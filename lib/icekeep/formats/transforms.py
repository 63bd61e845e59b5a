"""The spec's transforms over Arrow arrays.

`spec/transforms.py` is the definition. What can be done with all values at once is, and gives the same; where not, the
definition is applied once to each distinct value.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.formats.arrow.schema import arrow_type
from icekeep.formats.partitioner import column_values
from icekeep.spec.transforms import Bucket, Hour, Identity, Month, Transform, Truncate, Year
from icekeep.spec.types import DATE, DAY_SECONDS, INT, LONG, DecimalType, PrimitiveType, decimal
from icekeep.spec.values import MICROS_PER_SECOND, TICKS_PER_SECOND, decimal_from_unscaled, unscaled

_LARGEST_DECIMAL = 38
_WHOLE_NUMBERS = {
    "int": pa.int32(),
    "date": pa.int32(),
    **dict.fromkeys(("long", "time", *TICKS_PER_SECOND), pa.int64()),
}


def transformed(array: pa.Array, type_: PrimitiveType, transform: Transform) -> tuple[pa.Array, PrimitiveType]:
    """Transformed values and a type that has their order; no extension array, no dictionary. Null stays null.

    A value that a truncation takes out of the range of its type becomes the least of the type: there is nothing below it.

    Args:
        array: values of `type_`, no extension array and no dictionary.
    """
    # Raises for a type that it does not take, and for a transform that we do not know.
    transform.apply(type_, None)
    if isinstance(transform, Identity):
        return array, type_
    if type_.name in _WHOLE_NUMBERS:
        # Null slots hold any number; they are transformed too, and masked.
        numbers = array.view(_WHOLE_NUMBERS[type_.name]).fill_null(0).to_numpy().astype(np.int64)
        mask = pc.is_null(array).to_numpy(zero_copy_only=False) if array.null_count else None
        return pa.array(_transformed_numbers(numbers, type_, transform), mask=mask), LONG
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


def _transformed_numbers(values: NDArray[np.int64], type_: PrimitiveType, transform: Transform) -> NDArray[np.int64]:
    if isinstance(transform, Truncate):
        below = values - values % transform.width
        return np.where(below > values, np.iinfo(np.int64).min, below)
    if isinstance(transform, Bucket):
        if type_.name.endswith("_ns"):
            values = values // (TICKS_PER_SECOND[type_.name] // MICROS_PER_SECOND)
        return (_hashes(values.view(np.uint64)) & np.uint32(0x7FFF_FFFF)).astype(np.int64) % transform.bucket_count
    if type_ != DATE:
        second = TICKS_PER_SECOND[type_.name]
        if isinstance(transform, Hour):
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
