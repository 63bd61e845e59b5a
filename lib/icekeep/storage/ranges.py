"""A stream that reads a file by ranges, and the limit for a server's first answer, which catalogs and HDFS share.

Until it has answered, a server may be none, or one that hangs, and clients that try again would wait many times as long
for it. From its first answer on only the limits of the client hold. A call that is given up goes on in its thread, and
may still have its effect, as a request that a network holds back.
"""

import io
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from icekeep.errors import ConfigError


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


T = TypeVar("T")

FIRST_ANSWER_TIMEOUT = "first-answer-timeout-ms"
"""The property of a catalog, in milliseconds."""

_DEFAULT_MS = 120_000


class NoAnswerError(TimeoutError):
    """A server has not answered in time; whether it did what was asked is not known."""


class FirstAnswer:
    """Waits for the first answer of one server; used by one client, perhaps from several threads."""

    def __init__(self, address: str, limit_ms: int) -> None:
        """`address` is shown in errors, and so holds no secret."""
        self._address, self._limit_ms = address, limit_ms
        self._has_answered = False

    def ask(self, call: Callable[[], T], is_answer: Callable[[T], bool] = lambda _: True) -> T:
        """Make a call, all of its retries included.

        Args:
            is_answer: whether what the call has returned is an answer of the server, which connecting alone is not.

        Raises:
            NoAnswerError: the server has never answered, and not to this call either.
        """
        if self._has_answered:
            return call()
        try:
            found = returned_in_time(self._limit_ms / 1000, call)
        except NoAnswerError:
            raise NoAnswerError(
                f"{self._address} did not answer within {self._limit_ms / 1000:g} s; check the address and the server, or raise "
                f"{FIRST_ANSWER_TIMEOUT}"
            ) from None
        self._has_answered = is_answer(found)
        return found

    def asking(self, client: Any) -> Any:
        """All of a client each of whose methods asks the server."""
        return _Asking(client, self)


class _Asking:
    def __init__(self, client: Any, first: FirstAnswer) -> None:
        self._client, self._first = client, first

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *arguments, **named: self._first.ask(lambda: method(*arguments, **named))


def first_answer_ms(name: str, properties: Mapping[str, str]) -> int:
    """The limit that properties say, in milliseconds.

    Args:
        name: of what the properties are, as the configuration has it.

    Raises:
        ConfigError: it is no whole number, or 0.
    """
    return milliseconds(name, FIRST_ANSWER_TIMEOUT, properties.get(FIRST_ANSWER_TIMEOUT) or str(_DEFAULT_MS))


def milliseconds(name: str, key: str, given: str) -> int:
    """A time of 1 millisecond or more that a property gives; arguments and errors are those of `first_answer_ms`."""
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"{name}.{key}" if name else key, f"is {given!r}; give milliseconds, 1 or more")
    return int(given)


def returned_in_time(limit_s: float, call: Callable[[], T]) -> T:
    """What a call returns or raises, from a thread of its own, which costs less than a tenth of a millisecond.

    Raises:
        NoAnswerError: it took longer than that.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise NoAnswerError(f"no answer in {limit_s:g} seconds")
    return results[0]
