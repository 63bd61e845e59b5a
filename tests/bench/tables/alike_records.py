"""Very many manifest entries quickly: Avro records of one length, put together as arrays of bytes.

A record is encoded once by `EntryEncoder`, with the least value of everything that differs from entry to entry, and once more
for the greatest value of each: where the bytes differ the value lies. All other entries are the first one with other bytes there.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]


class AlikeRecords:
    """Makes records that differ in some values only.

    Args:
        encode: makes the record of some values, by their names.
        ends: for each name two values whose encodings are of one length and have no byte in common.
    """

    def __init__(self, encode: Callable[[Mapping[str, Any]], bytes], ends: Mapping[str, tuple[Any, Any]]) -> None:
        least = {name: first for name, (first, _) in ends.items()}
        self._record: Bytes = np.frombuffer(encode(least), np.uint8)
        self._places = {name: self._places_of(encode({**least, name: last})) for name, (_, last) in ends.items()}

    def _places_of(self, record: bytes) -> Numbers:
        other = np.frombuffer(record, np.uint8)
        if len(other) != len(self._record):
            raise ValueError(f"records of {len(other)} and {len(self._record)} bytes are not alike")
        return np.flatnonzero(other != self._record)

    def make(self, columns: Mapping[str, Bytes]) -> Bytes:
        """A row of bytes for each record; a value that a record has several times is given once.

        Args:
            columns: for each name a row of encoded bytes for each record.
        """
        if columns.keys() != self._places.keys():
            raise ValueError(f"there are {sorted(columns)}, not {sorted(self._places)}")
        count = len(next(iter(columns.values())))
        records = np.repeat(self._record[None], count, axis=0)
        for name, values in columns.items():
            places = self._places[name]
            times, rest = divmod(len(places), values.shape[1])
            if rest or not times:
                raise ValueError(
                    f"{name} takes {len(places)} bytes of a record, not {values.shape[1]} once or several times"
                )
            records[:, places] = np.tile(values, times)
        return records


def varints(numbers: Numbers, size_bytes: int) -> Bytes:
    """Avro's longs that each take so many bytes.

    Raises:
        ValueError: one of them takes fewer or more.
    """
    zigzag = numbers * 2
    if len(numbers) and not (ends_of_varint(size_bytes)[0] * 2 <= zigzag.min() and zigzag.max() < 1 << 7 * size_bytes):
        raise ValueError(f"numbers from {numbers.min()} to {numbers.max()} are not of {size_bytes} bytes")
    parts = (zigzag[:, None] >> 7 * np.arange(size_bytes)) & 0x7F
    parts[:, :-1] |= 0x80
    return parts.astype(np.uint8)


def ends_of_varint(size_bytes: int) -> tuple[int, int]:
    """The least number that takes so many bytes as Avro's long, and one that has no byte of it."""
    return (1 << 7 * (size_bytes - 1)) // 2 if size_bytes > 1 else 0, _GREATEST[size_bytes]


_GREATEST = {1: 63, 3: ((1 << 21) - 2) // 2, 4: ((1 << 28) - 2) // 2}


def little_endian(numbers: Numbers) -> Bytes:
    """Longs as bounds have them."""
    return numbers.astype("<i8").view(np.uint8).reshape(-1, 8)


def digits(numbers: Numbers, count: int, base: int = 10) -> Bytes:
    """Numbers as text of so many digits."""
    powers = base ** np.arange(count - 1, -1, -1, dtype=np.int64)
    return np.frombuffer(b"0123456789abcdef", np.uint8)[numbers[:, None] // powers % base]
