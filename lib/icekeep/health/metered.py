"""A storage that counts what is asked of it, and remembers small files: what figures and plans both need is read once."""

from io import BytesIO
from threading import Lock
from typing import Any, BinaryIO

from icekeep.storage.base import Storage
from icekeep.storage.counted import CountedStorage, Meter
from icekeep.storage.locations import canonical

REMEMBERED_BYTES = 128 * 1024 * 1024
"""So much is remembered of a table's metadata; what is beyond is read again where it is needed again."""


class MeteredStorage:
    """All of a storage. Of whole files that were read up to `REMEMBERED_BYTES` are kept; in Spark tasks it is the storage itself.

    Attributes:
        read_bytes: of whole files.
    """

    def __init__(self, storage: Storage, remembered_bytes: int = REMEMBERED_BYTES) -> None:
        self._meter = Meter()
        counted: Any = CountedStorage(storage, self._meter)
        self._storage: Storage = counted
        self._room = remembered_bytes
        self._kept: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}
        self._lock = Lock()
        self.read_bytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self._storage,)

    @property
    def requests_count(self) -> int:
        """How many requests reached the storage."""
        return self._meter.requests_count

    def size_of(self, location: str) -> int | None:
        """The stored bytes of a file that was read; `None` for any other."""
        return self._sizes.get(canonical(location))

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        key = canonical(location)
        kept = self._kept.get(key)
        if kept is not None and length_bytes in (None, len(kept)):
            return kept
        data = self._storage.read(location, length_bytes)
        with self._lock:
            self.read_bytes += len(data)
            self._sizes[key] = len(data)
            if key not in self._kept and len(data) <= self._room:
                self._kept[key] = data
                self._room -= len(data)
        return data

    def open(self, location: str) -> BinaryIO:
        kept = self._kept.get(canonical(location))
        if kept is not None:
            return BytesIO(kept)
        return self._storage.open(location)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


def _itself(storage: Storage) -> Storage:
    return storage
