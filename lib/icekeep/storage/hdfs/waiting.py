"""Calls of hdfs-native that are not waited for forever: it sets no limit to what a NameNode that goes silent may take."""

import io
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, cast

from hdfs_native import Client, FileReader, FileWriter

from icekeep.storage.first_answer import FirstAnswer, returned_in_time

_LISTED_AT_ONCE = 1000


def impatient(client: Client, first: FirstAnswer, limit_s: float) -> Client:
    """A client whose calls, and those of its files, raise `TimeoutError` when they take longer than the limit, or the first."""
    return cast(Client, _Impatient(client, first, limit_s))


def abandon(writer: FileWriter) -> None:
    """Leave a file as it is: marked as closed, its writer does not ask the NameNode to complete it when it is collected."""
    io.RawIOBase.close(writer.target if isinstance(writer, _Impatient) else writer)


class _Impatient:
    def __init__(self, target: Any, first: FirstAnswer, limit_s: float) -> None:
        self.target = target
        self._first, self._limit_s = first, limit_s

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.target, name)
        return self._limited(attribute) if callable(attribute) else attribute

    def _limited(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def limited(*arguments: Any, **named: Any) -> Any:
            result = self._within(lambda: call(*arguments, **named))
            if isinstance(result, FileReader | FileWriter):
                return _Impatient(result, self._first, self._limit_s)
            return self._listed(result) if _is_listing(result) else result

        return limited

    def _listed(self, entries: Iterator[Any]) -> Iterator[Any]:
        while batch := self._within(lambda: list(islice(entries, _LISTED_AT_ONCE))):
            yield from batch

    def _within(self, call: Callable[[], Any]) -> Any:
        return self._first.ask(lambda: returned_in_time(self._limit_s, call), lambda result: not _is_listing(result))


def _is_listing(result: Any) -> bool:
    """Whether a call has returned what asks the NameNode only when it is iterated."""
    return hasattr(result, "__next__")
