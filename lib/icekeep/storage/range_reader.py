"""A stream that reads a file by ranges."""

import io
from collections.abc import Callable, Sequence
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


class RangedReader(io.BufferedReader):
    """A buffered stream over ranges, which brings many that lie apart at once, past its buffer."""

    def __init__(
        self, raw: RangeReader, buffer_bytes: int, fetch_many: Callable[[Sequence[tuple[int, int]]], Sequence[Any]]
    ) -> None:
        """`fetch_many` is given places and lengths, which lie in the file, and answers the bytes of each."""
        super().__init__(raw, buffer_bytes)
        self.fetch_many = fetch_many


def read_ranges(stream: Any, ranges: Sequence[tuple[int, int]], gap_bytes: int) -> list[bytes]:
    """Bytes of a file by place and length; what lies beyond its end is missing from them.

    Ranges that are at most `gap_bytes` apart are read at once, unless the stream itself brings many.
    """
    fetch_many = getattr(stream, "fetch_many", None)
    if fetch_many is not None:
        size_bytes = stream.seek(0, io.SEEK_END)
        inside = [(start, max(0, min(length, size_bytes - start))) for start, length in ranges]
        found = iter(fetch_many([one for one in inside if one[1]]))
        return [bytes(next(found)) if length else b"" for _, length in inside]
    answers = [b""] * len(ranges)
    together: list[int] = []
    end = 0
    for number in sorted((n for n, one in enumerate(ranges) if one[1]), key=lambda n: ranges[n]):
        start, length = ranges[number]
        if together and start > end + gap_bytes:
            _read_together(stream, ranges, together, end, answers)
            together = []
        end = max(end, start + length) if together else start + length
        together.append(number)
    if together:
        _read_together(stream, ranges, together, end, answers)
    return answers


def _read_together(
    stream: Any, ranges: Sequence[tuple[int, int]], numbers: Sequence[int], end: int, answers: list[bytes]
) -> None:
    first = ranges[numbers[0]][0]
    stream.seek(first)
    data = bytes(stream.read(end - first))
    for number in numbers:
        start, length = ranges[number]
        answers[number] = data[start - first : start - first + length]
