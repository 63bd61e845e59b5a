"""A storage that counts what is asked of it, and remembers small files: what figures and plans both need is read once."""

from io import BytesIO
from threading import Lock
from typing import Any, BinaryIO, Self

from icekeep.storage.base import Storage
from icekeep.storage.counted import CountedStorage, Meter, itself
from icekeep.storage.locations import canonical

REMEMBERED_BYTES = 128 * 1024 * 1024
"""So much is remembered of the metadata of all tables that are looked at at once; what is beyond is read again where it is needed
again."""


class Room:
    """Bytes of memory that several threads share."""

    def __init__(self, size: int) -> None:
        self._left, self._lock = size, Lock()

    def take(self, size: int) -> bool:
        """Take so many bytes, if they are left."""
        with self._lock:
            is_there = size <= self._left
            self._left -= size if is_there else 0
            return is_there

    def give_back(self, size: int) -> None:
        """Let others have bytes that were taken."""
        with self._lock:
            self._left += size


_ROOM = Room(REMEMBERED_BYTES)


class MeteredStorage:
    """All of a storage. Whole files that were read are kept as long as there is room; in Spark tasks it is the storage itself.

    As a context manager it gives its room back at the end of the block.

    Args:
        room: that it shares with others; by default with all of this process.

    Attributes:
        read_bytes: of whole files.
    """

    def __init__(self, storage: Storage, room: Room = _ROOM) -> None:
        self._meter = Meter()
        counted: Any = CountedStorage(storage, self._meter)
        self._storage: Storage = counted
        self._room = room
        self._kept: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}
        self._lock = Lock()
        self.read_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            kept, self._kept = self._kept, {}
        self._room.give_back(sum(map(len, kept.values())))

    def __reduce__(self) -> tuple[Any, ...]:
        return itself, (self._storage,)

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
            if key not in self._kept and self._room.take(len(data)):
                self._kept[key] = data
        return data

    def open(self, location: str) -> BinaryIO:
        kept = self._kept.get(canonical(location))
        if kept is not None:
            return BytesIO(kept)
        return self._storage.open(location)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)
