"""One look at all tables of a catalog for the jobs of many of them: for 500 tables it is 500 pointers, and not 500 times 500.

A job by itself looks at its neighbours when it begins, and may list a large one for longer than `OLD_MS` before it deletes: what
such a look may miss, one that is shared may miss too, and no more: a table that was made, moved or registered within that time in
the directories of another one.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from icekeep.catalog.base import Catalog, Identifier
from icekeep.maintenance.deletion.neighbour_roots import Neighbour
from icekeep.spec.units import MINUTE_MS

OLD_MS = 5 * MINUTE_MS
"""A look that is older is made anew."""


class Look(msgspec.Struct, frozen=True):
    """All tables of a catalog, and where each lies that is still there."""

    identifiers: tuple[Identifier, ...]
    neighbours: tuple[Neighbour, ...]


class SharedLooks:
    """The looks of one run, for several threads; of those who ask at once one looks, and the others wait for it."""

    def __init__(self) -> None:
        self._looks: dict[str, tuple[int, Look]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def of(self, catalog: Catalog, look: Callable[[], Look | None]) -> Look | None:
        """What a look found that is not old, or finds now; `None` where `look` says that not all could be seen."""
        key = catalog.identity
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            now_ms = catalog.runtime.monotonic_ms()
            at_ms, known = self._looks.get(key, (0, None))
            if known is not None and now_ms - at_ms < OLD_MS:
                return known
            # Dated by its beginning.
            found = look()
            if found is not None:
                self._looks[key] = now_ms, found
            return found


_SHARED: ContextVar[SharedLooks | None] = ContextVar("shared_looks", default=None)


def shared_looks() -> SharedLooks | None:
    """Those of the run that this thread works for; `None` for a job by itself."""
    return _SHARED.get()


@contextmanager
def sharing(looks: SharedLooks) -> Iterator[None]:
    """Let the jobs that this thread runs while the block lasts share looks."""
    token = _SHARED.set(looks)
    try:
        yield
    finally:
        _SHARED.reset(token)
