"""A record of runs that made somebody wait in vain is left alone for some minutes, by all of this process.

A night has thousands of calls to it. Where each waited for seconds they would wait for hours together.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from icekeep.errors import OutcomeUnknownError, UnavailableError
from icekeep.runtime import Runtime
from icekeep.spec.times import format_span
from icekeep.spec.types import MINUTE_MS, SECOND_MS

LEFT_ALONE_MS = 2 * MINUTE_MS
"""Less than it takes until a run that does not say that it is alive is taken for dead."""

_WAITED_MS = SECOND_MS
"""Who fails sooner than this keeps nobody waiting, and may be tried again at once."""


class Outages:
    """What this process knows of one database, for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until_ms: int | None = None
        self._said = ""

    @contextmanager
    def asked(self, runtime: Runtime, *, insists: bool) -> Iterator[None]:
        """The database is asked in the block, whose errors are taken note of.

        Args:
            insists: whether it is asked although it was out of reach a moment ago.

        Raises:
            UnavailableError: it is left alone for now; the fact `is_left_alone` says so.
        """
        began_ms = runtime.monotonic_ms()
        if not insists:
            self._refuse(began_ms)
        try:
            yield
        except (UnavailableError, OutcomeUnknownError) as error:
            now_ms = runtime.monotonic_ms()
            if now_ms - began_ms >= _WAITED_MS:
                with self._lock:
                    self._until_ms, self._said = now_ms + LEFT_ALONE_MS, error.message
            raise
        with self._lock:
            self._until_ms = None

    def _refuse(self, now_ms: int) -> None:
        with self._lock:
            until_ms, said = self._until_ms, self._said
        if until_ms is not None and now_ms < until_ms:
            left = format_span(until_ms - now_ms)
            raise UnavailableError(f"{said}; it is left alone for {left}", is_left_alone=True)


@cache
def outages_of(address: str) -> Outages:
    """What is known of the database at an address."""
    return Outages()
