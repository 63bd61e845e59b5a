"""Tables in memory with something to expire, and the jobs run on them without Spark."""

from collections.abc import Callable, Iterable
from typing import Any

from icekeep.catalog.base import Table
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.changes.snapshots import DropRef
from icekeep.commit.retry import commit
from icekeep.maintenance.delete.lease import LEASE_MS
from icekeep.maintenance.expire.job import ExpireSnapshotsResult, expire_snapshots
from icekeep.maintenance.orphans.job import RemoveOrphanFilesResult, remove_orphan_files
from icekeep.maintenance.restore.job import RestoreResult, restore
from icekeep.storage.base import DeleteOutcome, MoveOutcome
from kit.changes import Recorder
from kit.memory_catalog import MemoryCatalog
from kit.no_spark import no_spark
from kit.runtime import FakeRuntime, with_runtime
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import EVENTS, add, data_file, entries_of, files, memory_table

DAY_MS = 86_400_000


class Killed(BaseException):
    """The process dies."""


class OneByOne(HookedStorage):
    """Lets a test act between any two files of one call."""

    def move_many(self, moves: Iterable[tuple[str, str]]) -> list[MoveOutcome]:
        outcomes = []
        for move in moves:
            self.before("move_many", move[0])
            outcomes += self.inner.move_many([move])
        return outcomes

    def delete_many(self, locations: Iterable[str]) -> list[DeleteOutcome]:
        outcomes = []
        for location in locations:
            self.before("delete_many", location)
            outcomes += self.inner.delete_many([location])
        return outcomes


class ExpiredWorld:
    """Three appends and a rewrite of two of their files, ten days ago; one clock for the store, the catalog and the jobs."""

    def __init__(self, storage: Callable[[MemoryStorage], HookedStorage] = OneByOne) -> None:
        self.runtime = FakeRuntime()
        self.memory = MemoryStorage(self.runtime)
        self.storage = storage(self.memory)
        self.catalog = MemoryCatalog(self.storage, self.runtime)
        self.heard = Recorder()
        table = memory_table(self.catalog)
        for name in ("a", "b", "c"):
            self.memory.create(data_file(name).file_path, f"rows {name:95}".encode())
            table = add(table, name)
            self.runtime.pass_ms(1000)
        self.memory.create(files("ab")[0].file_path, b"rows ab".ljust(100))
        change = RewriteFiles(removed=entries_of(table, "a", "b"), added=files("ab"), schema_id=0)
        commit(table, change, runtime=self.runtime)
        self.pass_days(10)

    @property
    def table(self) -> Table:
        return self.catalog.load(EVENTS)

    def pass_days(self, days: float) -> None:
        self.runtime.pass_ms(round(days * DAY_MS))

    def pass_a_lease(self) -> None:
        """Until the claims of runs that died are over."""
        self.runtime.pass_ms(LEASE_MS + 1)

    def expire(self, **told: Any) -> ExpireSnapshotsResult:
        """The job as it is run to keep one snapshot and delete at once."""
        arguments = {"older_than": self.runtime.now_ms(), "retain_last": 1, "trash": 0} | told
        return expire_snapshots(with_runtime(self.table, self.runtime), no_spark, listener=self.heard, **arguments)

    def expired_twice(self) -> None:
        """The same snapshots are in two plans: the older is due and was cut off when it was forgotten, the younger waits."""
        self.expire(options={"grace": "1h"})
        self.restored_and_cut_off(next(name for name in self.own() if name.endswith("/plan.json")).split("/")[1])
        self.pass_days(0.1)
        self.expire(options={"grace": "5d"})
        self.pass_days(1)

    def restored_and_cut_off(self, run: str) -> None:
        """The restore of a run was cut off before it forgot the plan, and its tags were dropped."""
        plan = {at: file for at, file in self.memory.files.items() if f"/{run}/" in at}
        self.restore(run)
        self.memory.files |= plan
        self.drop_tags()

    def drop_tags(self) -> None:
        """What came back can expire again."""
        for name, ref in self.table.metadata.refs.items():
            if ref.type == "tag":
                change = DropRef(name=name, type="tag", expected_id=ref.snapshot_id)
                commit(self.table, change, runtime=self.runtime)
        self.runtime.pass_ms(1000)

    def leave(self, *names: str) -> None:
        """Files that no snapshot names are written, as a writer leaves them, and are old enough to be orphans."""
        for name in names:
            self.memory.create(data_file(name).file_path, name.ljust(100).encode())
        self.pass_days(4)

    def adopt(self, *names: str) -> None:
        """Another writer appends files by their paths."""
        for name in names:
            add(self.table, name)
            self.runtime.pass_ms(1000)

    def adopt_and_delete(self, *names: str) -> None:
        """The same, and then takes them out of the table: the next expiration finds them to be garbage again."""
        self.adopt(*names)
        change = DeleteFiles(paths=frozenset(data_file(name).file_path for name in names))
        commit(self.table, change, runtime=self.runtime)
        self.runtime.pass_ms(1000)

    def finish(self, **told: Any) -> ExpireSnapshotsResult:
        """A run that expires nothing of its own."""
        return self.expire(older_than=0, retain_last=100, **told)

    def remove_orphans(self, **told: Any) -> RemoveOrphanFilesResult:
        arguments = {"max_orphan_ratio": None, "force": True, "trash": 0} | told
        arguments = {name: value for name, value in arguments.items() if value is not None}
        return remove_orphan_files(with_runtime(self.table, self.runtime), no_spark, listener=self.heard, **arguments)

    def restore(self, run: str | None = None) -> RestoreResult:
        return restore(with_runtime(self.table, self.runtime), run=run)

    def files(self) -> set[str]:
        """Everything of the table that is in its place, but table metadata, of which every commit makes another."""
        return {at for at in self.memory.files if "/.icekeep/" not in at and not at.endswith(".metadata.json")}

    def data(self) -> list[str]:
        return sorted(at.rpartition("/")[2] for at in self.files() if "/data/" in at)

    def own(self) -> set[str]:
        return {at.partition("/.icekeep/")[2] for at in self.memory.files if "/.icekeep/" in at}

    def once(self, act: Callable[[], object], when: str, where: str = "") -> None:
        """Let others act once, before a call of the store for a name that ends so."""

        def before(what: str, location: str) -> None:
            if what == when and location.endswith(where):
                self.storage.before = lambda *_: None
                act()

        self.storage.before = before
