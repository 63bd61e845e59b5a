"""Streams that write objects: the first part stays here until it is known to be the only one."""

import io
from collections.abc import Callable
from typing import Any, Protocol

from icekeep.spec.types import MIB

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
