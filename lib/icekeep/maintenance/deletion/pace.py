"""How fast files are deleted: so many at most with one call, and so many a second where that is asked for."""

from icekeep.runtime import Runtime

CALL_FILES = 1_000
"""So many files go with one call at most; stores take no more."""


class Pace:
    """Keeps a task to so many files a second."""

    def __init__(self, files_per_second: float | None, runtime: Runtime) -> None:
        self._rate, self._runtime = files_per_second, runtime
        self._began_ms, self._count = runtime.monotonic_ms(), 0
        self.max_at_once = CALL_FILES if files_per_second is None else max(1, min(CALL_FILES, int(files_per_second)))

    def wait_for(self, count: int) -> None:
        """Wait until `count` more may go."""
        if self._rate is not None:
            due_ms = self._began_ms + round(1000 * self._count / self._rate)
            wait_ms = due_ms - self._runtime.monotonic_ms()
            if wait_ms > 0:
                self._runtime.sleep_ms(wait_ms)
        self._count += count
