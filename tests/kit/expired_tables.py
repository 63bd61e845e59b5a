"""Tables in memory with something to expire, and runs that have removed files, made step by step without the jobs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.changes.snapshots import DropRef, ExpireSnapshots
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.maintenance.delete.lease import LEASE_MS
from icekeep.maintenance.delete.plan_file import (
    BEFORE,
    DeletionPlan,
    plan_hash,
    plans_directory,
    read_part,
    trash_directory,
    trash_location,
    write_head,
    write_part,
)
from icekeep.maintenance.delete.reachable import CONTENT_KINDS, FileKind, GarbageFile, garbage_table
from icekeep.maintenance.expire.job import ExpireSnapshotsResult, expire_snapshots
from icekeep.maintenance.orphans.job import RemoveOrphanFilesResult, remove_orphan_files
from icekeep.maintenance.restore.job import RestoreResult, restore
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.metadata import TableMetadata, format_metadata
from icekeep.spec.retention import RetentionPolicy
from icekeep.storage.base import DeleteOutcome, MoveOutcome, Storage
from kit.changes import Recorder
from kit.memory_catalog import MemoryCatalog
from kit.runtime import FakeRuntime, no_spark, with_runtime
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


ALL_BUT_HEADS = RetentionPolicy(older_than_ms=2**62, retain_last=1)


def files_of(metadata: TableMetadata, storage: Storage) -> dict[str, GarbageFile]:
    """Every file that the snapshots of some metadata lead to, by location."""
    reader = ManifestReader(storage)
    found = [GarbageFile(FileKind.STATISTICS, s.statistics_path, s.file_size_in_bytes) for s in metadata.statistics]
    for snapshot in metadata.snapshots:
        assert snapshot.manifest_list is not None
        found.append(GarbageFile(FileKind.MANIFEST_LIST, snapshot.manifest_list))
        for manifest in reader.manifests(snapshot):
            found.append(GarbageFile(FileKind.MANIFEST, manifest.manifest_path, manifest.manifest_length))
            for entry in reader.entries(manifest, metadata):
                if entry.is_live:
                    file = entry.data_file
                    found.append(GarbageFile(CONTENT_KINDS[file.content], file.file_path, file.file_size_in_bytes))
    return {file.location: file for file in found}


def written_plan(
    table: Table,
    files: Sequence[GarbageFile],
    *,
    run: str = "run-1",
    job: str = "expire_snapshots",
    snapshot_ids: Sequence[int] = (),
    before: TableMetadata | None = None,
    trash: bool = True,
    runtime: Runtime = SYSTEM,
    per_part: int = 3,
) -> DeletionPlan:
    """A plan on disk, in several parts, whose files are still in their places."""
    storage, metadata = table.storage, table.metadata
    directory = f"{trash_directory(metadata) if trash else plans_directory(metadata)}/{run}"
    parts = tuple(
        write_part(garbage_table(files[start : start + per_part]), f"{directory}/files-{start:05d}.jsonl", storage)
        for start in range(0, len(files), per_part)
    )
    if before is not None:
        storage.create(f"{directory}/{BEFORE}", format_metadata(before))
    plan = DeletionPlan(
        job=job,
        run=run,
        directory=directory,
        table=table.name,
        table_uuid=metadata.table_uuid,
        table_location=metadata.location,
        metadata_location=table.metadata_location,
        created_ms=runtime.now_ms(),
        not_before_ms=runtime.now_ms(),
        trash_until_ms=runtime.now_ms() + 3 * DAY_MS if trash else None,
        snapshot_ids=tuple(snapshot_ids),
        ref_names=(),
        outside_count=0,
        parts=parts,
        hash=plan_hash(job, metadata.table_uuid, (sorted(snapshot_ids),), (part.digest for part in parts)),
    )
    write_head(plan, storage)
    return plan


def moves_of(plan: DeletionPlan, storage: Storage) -> list[tuple[str, str]]:
    """Where each file of a plan belongs, and where it is in the trash."""
    places = [place for part in plan.parts for place in read_part(part, storage)["location"].to_pylist()]
    return [(place, trash_location(plan, place)) for place in places]


def in_trash(plan: DeletionPlan, storage: Storage) -> DeletionPlan:
    """The plan with all its files moved to the trash, and marked as finished."""
    for place, trash in moves_of(plan, storage):
        storage.move(place, trash)
    storage.create(f"{plan.directory}/done.json", b"{}")
    return plan


def expired(
    table: Table,
    *,
    policy: RetentionPolicy = ALL_BUT_HEADS,
    clean_expired_metadata: bool = False,
    runtime: Runtime = SYSTEM,
    sizes: Mapping[str, int] | None = None,
    trash: bool = True,
    **options: str,
) -> tuple[Table, DeletionPlan]:
    """The table after a run that expired snapshots, and the run's plan, carried out where it goes by the trash."""
    change = ExpireSnapshots(policy=policy, now_ms=runtime.now_ms(), clean_expired_metadata=clean_expired_metadata)
    after = commit(table, change, runtime=runtime).table
    gone = files_of(table.metadata, table.storage)
    for location in files_of(after.metadata, table.storage):
        gone.pop(location, None)
    files = [replace(f, size_bytes=(sizes or {}).get(f.location, f.size_bytes)) for f in gone.values()]
    ids = [i for i in table.metadata.snapshots_by_id if i not in after.metadata.snapshots_by_id]
    plan = written_plan(after, files, snapshot_ids=ids, before=table.metadata, trash=trash, runtime=runtime, **options)
    return after, in_trash(plan, table.storage) if trash else plan
