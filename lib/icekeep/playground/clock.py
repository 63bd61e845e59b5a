"""Time and ids of tables that are made up: the past, and numbers that are the same each time."""

import hashlib
import uuid

from icekeep.runtime import SystemRuntime


class PastRuntime(SystemRuntime):
    """A clock that stands still unless it is moved on, and ids that follow from a name and how many were asked for.

    Args:
        name: of what is made; ids of two names are different.
        now_ms: where the clock begins, epoch milliseconds.
    """

    def __init__(self, name: str, now_ms: int) -> None:
        self._name, self._now_ms, self._ids_count = name, now_ms, 0

    def now_ms(self) -> int:
        return self._now_ms

    def move_on(self, duration_ms: int) -> None:
        """Let time pass."""
        self._now_ms += duration_ms

    def uniform(self, low: float, high: float) -> float:
        return low

    def new_uuid(self) -> uuid.UUID:
        self._ids_count += 1
        digest = hashlib.sha256(f"{self._name}/{self._ids_count}".encode()).digest()
        return uuid.UUID(bytes=digest[:16], version=4)
