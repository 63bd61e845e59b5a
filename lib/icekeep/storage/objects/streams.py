"""Streams over objects: reading by ranges, and writing whose first part stays here until it is known to be the only one."""

import io
from collections.abc import Callable
from typing import Any, Protocol

from icekeep.spec.units import MIB

READ_AHEAD_BYTES = MIB
PART_BYTES = 16 * MIB
"""What a stream that is written keeps in memory; up to here an object is sent in one request."""


class Parts(Protocol):
    """An object that is sent in parts, and is not there before it is closed."""

    def write(self, data: Any, /) -> int:
        """Send bytes, or keep them for the next part."""

    def close(self) -> None:
        """Send the rest and make the object of its parts."""

    def __exit__(self, *raised: Any) -> None:
        """Give up when something was raised: the parts are removed."""


class ObjectReader(io.RawIOBase):
    """The raw end of a stream that is read; `fetch(start, length)` brings a range of `size_bytes`."""

    def __init__(self, fetch: Callable[[int, int], bytes | memoryview], size_bytes: int) -> None:
        self._fetch = fetch
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        if start + offset < 0:
            raise ValueError(f"cannot seek to {start + offset}, which is before the beginning")
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        with memoryview(buffer).cast("B") as target:
            data = self._next(len(target))
            target[: len(data)] = data
            return len(data)

    def readall(self) -> bytes:
        return bytes(self._next(self._size_bytes))

    def _next(self, length: int) -> bytes | memoryview:
        length = min(length, self._size_bytes - self._position)
        if length <= 0:
            return b""
        data = self._fetch(self._position, length)
        self._position += length
        return data


class ObjectWriter(io.RawIOBase):
    """The stream that a writer is given; what it wrote becomes an object by `complete`, never by closing.

    `put(data)` sends an object in one request, `begin()` opens one in parts.
    """

    def __init__(
        self, put: Callable[[bytes], None], begin: Callable[[], Parts], finish: Callable[[Parts], None]
    ) -> None:
        self._put = put
        self._begin = begin
        self._finish = finish
        self._first = bytearray()
        self._parts: Parts | None = None
        self._size_bytes = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size_bytes

    def write(self, data: Any, /) -> int:
        if self.closed:
            raise ValueError("write to a closed stream")
        with memoryview(data).cast("B") as view:
            if self._parts is None and len(self._first) + len(view) > PART_BYTES:
                self._parts = self._begin()
                self._parts.write(bytes(self._first))
                self._first.clear()
            if self._parts is not None:
                self._parts.write(bytes(view))
            else:
                self._first += view
            self._size_bytes += len(view)
            return len(view)

    def complete(self) -> None:
        """Make the object."""
        self.close()
        if self._parts is None:
            self._put(bytes(self._first))
        else:
            self._finish(self._parts)

    def abandon(self, error: BaseException) -> None:
        """Leave nothing; whatever this raises is less than `error`."""
        self.close()
        if self._parts is not None:
            self._parts.__exit__(type(error), error, error.__traceback__)
