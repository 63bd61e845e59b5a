"""A listing of a table whose data files are not there: what a store would answer if they were."""

import time
from collections.abc import Iterator

import numpy as np

from bench.tables.scale_shapes import Paths, Scale
from bench.tables.scale_tables import data_bytes, delete_bytes
from icekeep.spec.types import DAY_MS
from icekeep.storage.base import FileInfo, ListingShare
from icekeep.storage.local.storage import LocalStorage

_AGE_DAYS = 10
"""Older than what a writer may have in flight."""


class AbsentFilesStorage(LocalStorage):
    """Lists the data files of a table of `scale_tables.py` and its orphans, a share for each partition; all else is as it is.

    Args:
        location: of the table.
    """

    def __init__(self, shape: Scale, location: str) -> None:
        super().__init__()
        self._shape, self._location = shape, location.rstrip("/")
        self._paths = Paths(shape, f"{self._location}/data")
        self._modified_ms = time.time_ns() // 1_000_000 - _AGE_DAYS * DAY_MS

    def shares(self, prefix_location: str, count: int) -> list[ListingShare]:
        real = super().shares(prefix_location, count)
        if prefix_location.rstrip("/") != self._location:
            return real
        return [*real, *(ListingShare(self._paths.directory(number)) for number in range(self._shape.partitions))]

    def list_share(self, share: ListingShare) -> Iterator[FileInfo]:
        partition = self._paths.partition_of(share.prefix)
        if partition is None:
            yield from super().list_share(share)
            return
        step = self._shape.partitions
        numbers = np.arange(partition, self._shape.orphans.stop, step)
        for number, size_bytes in zip(numbers.tolist(), data_bytes(numbers).tolist(), strict=True):
            yield FileInfo(self._paths.data(number), size_bytes, self._modified_ms)
        for number in range(partition, self._shape.deletes, step):
            yield FileInfo(self._paths.delete(number), delete_bytes(number), self._modified_ms)
