"""Calls of hdfs-native that are not waited for forever: it sets no limit to what a NameNode that goes silent may take.

Each call runs in a thread of its own, which costs less than a tenth of a millisecond. One that is given up may still have its
effect later, as a request that a network holds back.
"""

import io
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar, cast

from hdfs_native import Client, FileReader, FileWriter

T = TypeVar("T")

_LISTED_AT_ONCE = 1000


def impatient(client: Client, limit_s: float) -> Client:
    """A client whose calls, and those of its files, raise `TimeoutError` when they take longer than the limit."""
    return cast(Client, _Impatient(client, limit_s))


def abandon(writer: FileWriter) -> None:
    """Leave a file as it is: marked as closed, its writer does not ask the NameNode to complete it when it is collected."""
    io.RawIOBase.close(writer.target if isinstance(writer, _Impatient) else writer)


class _Impatient:
    def __init__(self, target: Any, limit_s: float) -> None:
        self.target = target
        self._limit_s = limit_s

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.target, name)
        return self._limited(attribute) if callable(attribute) else attribute

    def _limited(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def limited(*arguments: Any, **named: Any) -> Any:
            result = _within(self._limit_s, lambda: call(*arguments, **named))
            if isinstance(result, FileReader | FileWriter):
                return _Impatient(result, self._limit_s)
            return self._listed(result) if hasattr(result, "__next__") else result

        return limited

    def _listed(self, entries: Iterator[Any]) -> Iterator[Any]:
        while batch := _within(self._limit_s, lambda: list(islice(entries, _LISTED_AT_ONCE))):
            yield from batch


def _within(limit_s: float, call: Callable[[], T]) -> T:
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
        raise TimeoutError(f"no answer in {limit_s:g} seconds")
    return results[0]
