"""Turns of tasks that rewrite files in threads: of all runs in this process together no more go at once than have memory.

Groups of a run go side by side, and so may runs over several tables in one process. Each counts its tasks as if it were
alone, by the processors and the memory of this process (`workers.thread_workers`).
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from icekeep.planning.spark.workers import Workers

P = TypeVar("P")
R = TypeVar("R")
S = TypeVar("S")


class Turns:
    """Who waits and who is at work; who came first goes first, however much it takes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._taken = 0

    @contextmanager
    def taken(self, count: int, most: int) -> Iterator[None]:
        """Let the block run when its turn has come.

        Args:
            count: how many threads the block keeps busy.
            most: how many may be busy at once; a block that takes more goes alone.
        """
        me = object()
        with self._changed:
            self._waiting.append(me)
            try:
                self._changed.wait_for(lambda: self._waiting[0] is me and self._taken + count <= max(most, count))
                self._taken += count
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._taken -= count
                self._changed.notify_all()


TURNS = Turns()
"""Of this process."""


def in_turns(
    work: Callable[[P, S], R], workers: Workers, count: Callable[[P], int] = lambda _: 1
) -> Callable[[P, S], R]:
    """The same work for `run_tasks`; in threads of this process each payload waits for its turn.

    Args:
        count: how many threads a payload keeps busy.
    """
    if workers.spark is not None:
        return work

    def done(payload: P, shared: S) -> R:
        with TURNS.taken(count(payload), workers.slots):
            return work(payload, shared)

    return done
