"""A world without surprises: a clock that only sleeping moves, the same identifiers in every run, Spark by limits of a test."""

import hashlib
import uuid
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.planning.spark.session import Engine, Limits
from icekeep.runtime import Runtime, is_interrupted

START_MS = 1_700_000_000_000


class FakeRuntime:
    """Every sleep is recorded and passes at once.

    `now_ms` may be set back or forth as a bad clock would be; `chance` is where between low and high `uniform` answers, a random
    place where it is None; `abandoned` is what `is_abandoned` answers, and `stopping` says that the work is being stopped;
    `before_sleep` happens once, at the next sleep.
    """

    def __init__(self, seed: int = 0, now_ms: int = START_MS, chance: float | None = 0.0) -> None:
        self.clock_ms = now_ms
        self.elapsed_ms = 0
        self.sleeps_ms: list[int] = []
        self.chance = chance
        self.abandoned = False
        self.stopping = False
        self.before_sleep: Callable[[], object] | None = None
        self._seed = seed
        self._drawn = 0

    def now_ms(self) -> int:
        return self.clock_ms

    def monotonic_ms(self) -> int:
        return self.elapsed_ms

    def sleep_ms(self, duration_ms: int) -> None:
        act, self.before_sleep = self.before_sleep, None
        if act is not None:
            act()
        self.sleeps_ms.append(duration_ms)
        self.pass_ms(duration_ms)

    def uniform(self, low: float, high: float) -> float:
        share = int.from_bytes(self._draw()[:4]) / 2**32 if self.chance is None else self.chance
        return low + share * (high - low)

    def new_uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._draw(), version=4)

    def is_abandoned(self) -> bool:
        return self.abandoned

    def is_stopping(self) -> bool:
        return self.stopping or is_interrupted()

    def pass_ms(self, duration_ms: int) -> None:
        """Let time go by without anybody sleeping."""
        self.clock_ms += duration_ms
        self.elapsed_ms += duration_ms

    def _draw(self) -> bytes:
        self._drawn += 1
        return hashlib.md5(f"{self._seed}/{self._drawn}".encode()).digest()


def with_runtime(table: Table, runtime: Runtime) -> Table:
    """The table of a catalog that goes by another clock, and by other chances."""
    return replace(table, catalog=_AtRuntime(table.catalog, runtime))


class _AtRuntime:
    """A catalog as it is, but for its runtime; so are the tables that it hands out."""

    def __init__(self, catalog: Any, runtime: Runtime) -> None:
        self._catalog, self.runtime = catalog, runtime

    def load(self, identifier: Any) -> Table:
        return replace(self._catalog.load(identifier), catalog=self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)


NOTHING_HERE = Limits(**dict.fromkeys(Limits.__struct_fields__, -1))
"""Nothing is so little that this process would do it by itself."""


GIVEN_IS_USED = Limits(session_rewrite_bytes=-1)
"""A session that a test gives does all that is rewritten, however little: a test gives it to see it work."""


def limited(spark: Any, **limits: int) -> Engine:
    """A source of a session with some limits of its own, which rewrites however little."""
    return Engine(spark=spark, limits=msgspec.structs.replace(GIVEN_IS_USED, **limits))


def no_spark() -> NoReturn:
    """Say that Spark was started."""
    raise AssertionError("Spark was started where there is little to do")
