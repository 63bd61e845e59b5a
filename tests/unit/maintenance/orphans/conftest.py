"""A table in memory, ten days old, whose files are all there; strays can be put beside them."""

from typing import Any

import pytest

from icekeep.catalog.base import Table
from icekeep.maintenance.orphans.job import (
    RemoveOrphanFilesPlan,
    RemoveOrphanFilesResult,
    plan_remove_orphan_files,
    remove_orphan_files,
)
from kit.changes import Recorder
from kit.memory_catalog import MemoryCatalog
from kit.runtime import FakeRuntime, no_spark, with_runtime
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import EVENTS, add, memory_table

DAY_MS = 24 * 60 * 60 * 1000
ROOT = "memory://lake/wh/db/events"


class World:
    """Its clock stands still but for `pass_days`; `heard` is what listeners were told."""

    def __init__(self, **properties: Any) -> None:
        self.runtime = FakeRuntime()
        self.memory = MemoryStorage(self.runtime)
        self.storage = HookedStorage(self.memory)
        self.catalog = MemoryCatalog(self.storage, self.runtime)
        self.heard = Recorder()
        memory_table(self.catalog, **properties)
        for number in range(3):
            self.commit(f"a{number}.parquet", f"b{number}.parquet")
        self.pass_days(10)

    @property
    def table(self) -> Table:
        return self.catalog.load(EVENTS)

    def commit(self, *names: str) -> Table:
        """Append data files that are there."""
        for name in names:
            self.put(f"data/{name}", days=0)
        return add(self.table, *names)

    def put(self, name: str, data: bytes = b"stray", *, days: float = 10, root: str = ROOT) -> str:
        """A file that was written some days ago; returns its location."""
        location = f"{root}/{name}"
        self.memory.files[location] = (data, self.runtime.now_ms() - round(days * DAY_MS))
        return location

    def pass_days(self, days: float) -> None:
        self.runtime.pass_ms(round(days * DAY_MS))

    def days_ago(self, days: float) -> int:
        return self.runtime.now_ms() - round(days * DAY_MS)

    def run(self, table: Table | None = None, **arguments: Any) -> RemoveOrphanFilesResult:
        return remove_orphan_files(
            with_runtime(table or self.table, self.runtime), no_spark, listener=self.heard, **arguments
        )

    def plan(self, table: Table | None = None, **arguments: Any) -> RemoveOrphanFilesPlan:
        return plan_remove_orphan_files(with_runtime(table or self.table, self.runtime), no_spark, **arguments)

    def names(self) -> set[str]:
        """Everything in the store but icekeep's own files, below the table by its path in it."""
        return {location.removeprefix(f"{ROOT}/") for location in self.memory.files if "/.icekeep/" not in location}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def new_world() -> type[World]:
    """Makes tables with other properties."""
    return World
