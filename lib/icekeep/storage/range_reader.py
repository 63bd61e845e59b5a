"""A stream that reads a file by ranges."""

import io
from collections.abc import Callable
from typing import Any


class RangeReader(io.RawIOBase):
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
