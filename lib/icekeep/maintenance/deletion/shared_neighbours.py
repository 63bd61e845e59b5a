"""One look at all tables of a catalog for the jobs of many of them: for 500 tables it is 500 pointers, and not 500 times 500.

Names are listed for each job, as a table may have been registered a moment ago; what is shared is where those lie that were there
before. A job by itself looks at its neighbours when it begins, and may list a large one for longer than `OLD_MS` before it
deletes: what such a look may miss, one that is shared may miss too, and no more. Catalogs that tell all pointers at once
(`catalog/pointer_lists.py`) list names in one request, and metadata that is known by then is taken as it is now.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from icekeep.catalog.base import Catalog
from icekeep.maintenance.deletion.neighbour_roots import Neighbour
from icekeep.spec.types import MINUTE_MS

OLD_MS = 5 * MINUTE_MS
"""A look that is older is made anew."""

FRESH_MS = MINUTE_MS
"""The same for a job that takes for garbage what lies in a place and no metadata names."""


class Look(msgspec.Struct, frozen=True):
    """Where each table of a catalog lies that is still there."""

    neighbours: tuple[Neighbour, ...]


class SharedLooks:
    """The looks of one run, for several threads; of those who ask at once one looks, and the others wait for it."""

    def __init__(self) -> None:
        self._looks: dict[str, tuple[int, Look]] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def of(self, catalog: Catalog, look: Callable[[], Look | None], max_age_ms: int = OLD_MS) -> Look | None:
        """What a look found that is not older than so many milliseconds, or finds now.

        `None` where `look` says that not all could be seen.
        """
        key = catalog.identity
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            now_ms = catalog.runtime.monotonic_ms()
            at_ms, known = self._looks.get(key, (0, None))
            if known is not None and now_ms - at_ms < max_age_ms:
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
