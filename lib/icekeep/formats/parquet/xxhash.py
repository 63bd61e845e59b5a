"""The 64-bit xxHash of many values at once, with seed 0: what Bloom filters of Parquet take (xxHash, "XXH64 algorithm")."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Rows = NDArray[np.uint8]
"""Values of one length, a row of bytes each."""

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_STRIPE, _LANE, _HALF = 32, 8, 4


def hash_rows(rows: Rows) -> Hashes:
    """The hash of each row."""
    count, length = rows.shape
    if length >= _STRIPE:
        hashes, position = _striped(rows), length - length % _STRIPE
    else:
        hashes, position = np.full(count, _P5, np.uint64), 0
    hashes = hashes + np.uint64(length)
    while position + _LANE <= length:
        lane = _numbers(rows, position, np.dtype("<u8"))
        hashes = _rotated(hashes ^ _round(np.zeros(count, np.uint64), lane), 27) * _P1 + _P4
        position += _LANE
    if position + _HALF <= length:
        half = _numbers(rows, position, np.dtype("<u4"))
        hashes = _rotated(hashes ^ (half * _P1), 23) * _P2 + _P3
        position += _HALF
    for last in range(position, length):
        hashes = _rotated(hashes ^ (rows[:, last].astype(np.uint64) * _P5), 11) * _P1
    return _mixed(hashes)


def _striped(rows: Rows) -> Hashes:
    """What four lanes make of all whole stripes."""
    zeros = np.zeros(len(rows), np.uint64)
    lanes = [zeros + _P1 + _P2, zeros + _P2, zeros.copy(), zeros - _P1]
    for position in range(0, rows.shape[1] - _STRIPE + 1, _STRIPE):
        for number in range(len(lanes)):
            lanes[number] = _round(lanes[number], _numbers(rows, position + _LANE * number, np.dtype("<u8")))
    hashes = zeros
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        hashes = hashes + _rotated(lane, bits)
    for lane in lanes:
        hashes = (hashes ^ _round(zeros, lane)) * _P1 + _P4
    return hashes


def _numbers(rows: Rows, position: int, dtype: np.dtype[Any]) -> Hashes:
    part = np.ascontiguousarray(rows[:, position : position + dtype.itemsize])
    return part.view(dtype)[:, 0].astype(np.uint64)


def _round(lane: Hashes, number: Hashes) -> Hashes:
    return _rotated(lane + number * _P2, 31) * _P1


def _rotated(hashes: Hashes, bits: int) -> Hashes:
    return (hashes << np.uint64(bits)) | (hashes >> np.uint64(64 - bits))


def _mixed(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))
