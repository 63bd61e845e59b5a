"""Time, sleep, randomness and identifiers: the only file that touches them.

Everything else takes a `Runtime`, so that a simulation can hand in its own and a test can fix the clock.
"""

import random
import time
import uuid
from collections.abc import Container
from typing import Protocol


class Runtime(Protocol):
    """What the library may ask of the world besides storage and catalogs."""

    def now_ms(self) -> int:
        """Epoch milliseconds, UTC."""

    def monotonic_ms(self) -> int:
        """A clock that never goes back, in milliseconds, for measuring spans."""

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait for `duration_ms` milliseconds."""

    def uniform(self, low: float, high: float) -> float:
        """A random number between `low` and `high`, for jitter."""

    def new_uuid(self) -> uuid.UUID:
        """A random version 4 UUID."""


class SystemRuntime:
    """The real clock and the real randomness of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def sleep_ms(self, duration_ms: int) -> None:
        time.sleep(duration_ms / 1000)

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)

    def new_uuid(self) -> uuid.UUID:
        return uuid.uuid4()


SYSTEM = SystemRuntime()


def new_snapshot_id(runtime: Runtime, taken: Container[int] = frozenset()) -> int:
    """A positive 63-bit snapshot id that is not in `taken` (spec, Appendix F "Assignment of Snapshot IDs")."""
    while True:
        number = runtime.new_uuid().int
        candidate = ((number >> 64) ^ (number & (2**64 - 1))) & (2**63 - 1)
        if candidate and candidate not in taken:
            return candidate


def process_cpu_ms() -> int:
    """The processor time that this process has taken, in milliseconds: what work costs, never what is decided by."""
    return time.process_time_ns() // 1_000_000
