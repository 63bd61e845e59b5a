"""Purges that die at any call, in two catalogs over one warehouse between which tables are moved: no table that lives loses a
file, and in the end nothing is left of what was purged."""

from random import Random
from typing import Any

from msgspec.structs import replace

from icekeep.errors import IcekeepError, MissingFileError
from icekeep.maintenance.delete.lease import LEASE_MS
from icekeep.maintenance.drop.job import drop_table
from icekeep.spec.metadata import new_table_metadata
from icekeep.spec.partitioning import UNPARTITIONED
from kit.expired_tables import DAY_MS, files_of
from kit.memory_catalog import MemoryCatalog
from kit.runtime import FakeRuntime, no_spark, with_runtime
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import COLUMNS, add, data_file
from simulation.world import Violation

NAMESPACE = ("db",)
TABLES = ("a", "b", "c")


class Killed(BaseException):
    """The process dies."""


class PurgingWorld:
    """Two catalogs, one store, one clock. `purged` are tables whose files are to go, by their location."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.runtime = FakeRuntime(seed)
        self.memory = MemoryStorage(self.runtime)
        self.storage = HookedStorage(self.memory)
        self.catalogs = [MemoryCatalog(self.storage, self.runtime, name=name) for name in ("first", "second")]
        for catalog in self.catalogs:
            catalog.create_namespace(NAMESPACE)
        self.dropped: dict[str, tuple[MemoryCatalog, str]] = {}
        self.told: list[str] = []
        self.deaths_count = self.finished_count = 0

    def living(self) -> list[tuple[MemoryCatalog, Any]]:
        return [(catalog, name) for catalog in self.catalogs for name in catalog.list_tables(NAMESPACE)]

    def create(self) -> None:
        catalog, name = self.random.choice(self.catalogs), self.random.choice(TABLES)
        lying = {other for _, other in self.living()}
        location = catalog.default_location((*NAMESPACE, name))
        is_free = not any(at.startswith(f"{location}/") for at in self.memory.files)
        if (*NAMESPACE, name) in lying or not is_free:
            return
        metadata = new_table_metadata(
            schema=COLUMNS,
            spec=UNPARTITIONED,
            location=location,
            table_uuid=str(self.runtime.new_uuid()),
            now_ms=self.runtime.now_ms(),
            properties={},
            format_version=2,
        )
        table = catalog.create((*NAMESPACE, name), metadata)
        file = data_file(f"{self.runtime.new_uuid()}")
        file = replace(file, file_path=f"{location}/data/{self.runtime.new_uuid()}")
        self.memory.create(file.file_path, b"rows")
        add(table, file)

    def move(self) -> None:
        """Drop a table in one catalog, without its files, and register it in the other."""
        if not self.living():
            return
        catalog, name = self.random.choice(self.living())
        other = next(one for one in self.catalogs if one is not catalog)
        location = catalog.find(name).metadata_location
        if self._is_being_purged(location):
            # No other catalog than its own is asked about a table whose purge has begun.
            return
        if name not in other.list_tables(NAMESPACE):
            other._locations[name] = location
            catalog.drop(name)

    def register_again(self) -> None:
        """Somebody takes a table back that was dropped, if all its files are there."""
        for location in [*self.dropped]:
            dropped_from, last_name = self.dropped[location]
            name = (*NAMESPACE, last_name)
            catalog = dropped_from if self._is_being_purged(location) else self.random.choice(self.catalogs)
            if location not in self.memory.files or name in {other for _, other in self.living()}:
                continue
            catalog._locations[name] = location
            if self.lost(catalog, name):
                del catalog._locations[name]
            del self.dropped[location]
            return

    def _is_being_purged(self, metadata_location: str) -> bool:
        """Whether a plan on disk says that the drop of this table landed."""
        heads = [at for at in self.memory.files if at.endswith("/plan.json")]
        named = [at for at in heads if metadata_location.encode() in self.memory.read(at)]
        return any(at.replace("plan.json", "dropped.json") in self.memory.files for at in named)

    def purge(self) -> None:
        """A purge that may die at any call of the store, or in the drop before or after it took effect."""
        if not self.living():
            return
        catalog, name = self.random.choice(self.living())
        table = catalog.load(name)
        dies_at = self.random.choice([None, self.random.randrange(30)])
        calls = [0]

        def before(what: str, location: str) -> None:
            calls[0] += 1
            if dies_at is not None and calls[0] > dies_at:
                raise Killed

        real = catalog.drop

        def drop(identifier: Any, *told: Any, **more: Any) -> str:
            fate = self.random.choice(["lands", "lands", "dies before", "dies after"])
            if fate == "dies before":
                raise Killed
            location = real(identifier, *told, **more)
            self.dropped[table.metadata_location] = (catalog, name[-1])
            if fate == "dies after":
                raise Killed
            return location

        self.storage.before, catalog.drop = before, drop  # type: ignore[method-assign]
        try:
            self.finished_count += (
                drop_table(with_runtime(table, self.runtime), no_spark, purge=True).finished_files_count > 0
            )
        except Killed:
            self.deaths_count += 1
        except IcekeepError as error:
            self.told.append(error.message)
        finally:
            self.storage.before = lambda *_: None
            catalog.drop = real  # type: ignore[method-assign]

    def time_passes(self) -> None:
        self.runtime.pass_ms(self.random.choice([1000, LEASE_MS + 1, LEASE_MS + 1, DAY_MS + 1]))

    def lost(self, catalog: MemoryCatalog, name: Any) -> set[str]:
        try:
            table = catalog.load(name)
            named = files_of(table.metadata, self.memory)
        except MissingFileError as error:
            return {error.message}
        return {at for at in named if at not in self.memory.files}

    def check(self) -> None:
        for catalog, name in self.living():
            lost = self.lost(catalog, name)
            if lost:
                raise Violation("G1", f"{name} in {catalog.name!r} has lost {sorted(lost)[0]!r}")

    def run(self) -> None:
        steps = (
            *(self.create, self.create, self.create, self.move, self.register_again),
            *(self.purge, self.purge, self.purge, self.time_passes, self.time_passes),
        )
        for _ in range(self.random.randint(20, 50)):
            self.random.choice(steps)()
            self.check()
