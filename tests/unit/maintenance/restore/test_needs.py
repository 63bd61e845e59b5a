"""Runs one after the other: what an older one needs may have gone with a newer one; and repairs that are taken back."""

import gc
import tracemalloc
from threading import Event, Lock

import pyarrow as pa
import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.files import DeleteFiles
from icekeep.errors import ClaimedError, NotFoundError, SafetyError, UnavailableError
from icekeep.maintenance.delete.lease import LEASE_MS, take_lease
from icekeep.maintenance.delete.plan_file import DeletionPlan
from icekeep.maintenance.delete.reachable import FileKind, GarbageFile
from icekeep.maintenance.repair.job import repair
from icekeep.maintenance.restore import files as needs
from icekeep.maintenance.restore.files import _planned_keys
from icekeep.maintenance.restore.job import list_restorable, plan_restore, restore
from icekeep.planning.entries import DecodedEntries, PruningStats
from icekeep.spec.retention import RetentionPolicy
from icekeep.storage.location_keys import location_keys, path_keys
from icekeep.tables.refs import create_branch, create_tag
from icekeep.tables.verbs import append
from kit.cases import Choices
from kit.changes import run as commit_change
from kit.damager import Damager
from kit.expired_tables import ExpiredWorld, expired, in_trash, moves_of, written_plan
from kit.job_world import World as RepairedWorld
from kit.lake import events
from kit.memory_catalog import MemoryCatalog, after, fails
from kit.runtime import FakeRuntime, no_spark
from kit.storage import HookedStorage, MemoryStorage, contents
from kit.tables import EVENTS, add, data_file, live, memory_table

LOCATION = "memory://lake/wh/db/events"


class World:
    """A table whose first snapshot was expired by one run, and the next two by a later one; all of them have file `a`."""

    def __init__(self, *, format_version: int = 2, drops_file: bool = True, trash: bool = True) -> None:
        runtime = FakeRuntime()
        self.storage = HookedStorage(MemoryStorage(runtime))
        self.catalog = MemoryCatalog(self.storage, runtime=runtime)
        table = memory_table(self.catalog, format_version=format_version)
        for name in "abc":
            self.storage.create(f"{LOCATION}/data/{name}", name.encode())
            table = add(table, name)
        drop = frozenset({data_file("a").file_path}) if drops_file else frozenset({data_file("c").file_path})
        table = commit_change(table, DeleteFiles(paths=drop)).table
        self.all = table.metadata.snapshots_by_id
        first = table.metadata.snapshots[0].snapshot_id
        policy = RetentionPolicy(older_than_ms=0, snapshot_ids=(first,))
        table, self.older = self.expire(table, "run-1", policy)
        self.catalog.runtime.pass_ms(1000)
        _, self.newer = self.expire(table, "run-2", RetentionPolicy(older_than_ms=2**62, retain_last=1))
        assert self.older.snapshot_ids == (first,)
        assert len(self.newer.snapshot_ids) == 2

    def expire(self, table: Table, run: str, policy: RetentionPolicy) -> tuple[Table, DeletionPlan]:
        # Sizes as they are in storage: data files of these tables are named, and never written by the commits.
        sizes = {f"{LOCATION}/data/{name}": 1 for name in "abc"}
        return expired(table, policy=policy, run=run, runtime=self.catalog.runtime, sizes=sizes)

    def load(self) -> Table:
        return self.catalog.load(EVENTS)

    def refused(self, run: str = "run-1") -> str:
        files = self.but_claims()
        with pytest.raises(SafetyError) as raised:
            restore(self.load(), run=run)
        assert self.but_claims() == files
        return raised.value.message

    def but_claims(self) -> dict[str, bytes]:
        files = contents(self.storage.inner, LOCATION)
        return {name: data for name, data in files.items() if "/claims/" not in name}


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_what_a_later_run_has_removed_has_to_come_back_first(format_version: int):
    world = World(format_version=format_version)
    manifest = next(place for place, _ in moves_of(world.newer, world.storage) if place.endswith("-m0.avro"))
    assert world.refused() == (
        f"cannot restore run 'run-1': its snapshots need 1 file that later runs have removed, or are about to remove, "
        f"{manifest!r} among them; restore later runs first, the newest before the others (`icekeep restore --table "
        "local.db.events --list`); where there is none the files are gone; no snapshot was restored"
    )
    assert restore(world.load(), run="run-2").status == "done"
    assert restore(world.load(), run="run-1").status == "done"
    assert world.load().metadata.snapshots_by_id == world.all
    assert live(world.load(), f"restored-{world.older.snapshot_ids[0]}") == {"a": 1}


def test_what_a_later_run_has_left_is_enough():
    world = World(drops_file=False)
    read: list[str] = []
    world.storage.before = lambda operation, location: read.append(location) if operation == "read" else None
    assert restore(world.load(), run="run-1").restored_snapshots_count == 1
    # Manifests that a branch lists need not be looked into: its files are there.
    assert not any(location.endswith("-m0.avro") for location in read)
    assert live(world.load(), f"restored-{world.older.snapshot_ids[0]}") == {"a": 1}


def test_files_of_deleted_entries_are_not_needed():
    catalog = MemoryCatalog(HookedStorage(MemoryStorage()))
    table = memory_table(catalog)
    catalog.storage.create(f"{LOCATION}/data/a", b"a")
    table = commit_change(add(table, "a"), DeleteFiles(paths=frozenset({data_file("a").file_path}))).table
    for name in "bc":
        catalog.storage.create(f"{LOCATION}/data/{name}", b"b")
        table = add(table, name)
    first, second, third, _ = table.metadata.snapshots_by_id
    plans = []
    for number, snapshot_id in enumerate((first, second, third)):
        policy = RetentionPolicy(older_than_ms=0, snapshot_ids=(snapshot_id,))
        sizes = {f"{LOCATION}/data/{name}": 1 for name in "abc"}
        table, plan = expired(table, policy=policy, run=f"run-{number}", runtime=catalog.runtime, sizes=sizes)
        plans.append(plan)
    catalog.storage.delete_many([trash for _, trash in moves_of(plans[0], catalog.storage)])
    assert restore(table, run="run-1").restored_tags == (f"restored-{second}",)


def test_file_of_no_snapshot_counts_as_about_to_be_removed():
    world = World()
    for place, trash in moves_of(world.newer, world.storage):
        world.storage.move(trash, place)
    assert "need 1 file that later runs have removed, or are about to remove, " in world.refused()


def test_needs_are_checked_again_after_a_catalog_outage():
    """A later run expired what held the file, between two attempts of the commit: the snapshot came back without it."""
    catalog = MemoryCatalog(HookedStorage(MemoryStorage()))
    table = memory_table(catalog)
    for name in "ab":
        catalog.storage.create(f"{LOCATION}/data/{name}", name.encode())
        table = add(table, name)
    table = commit_change(table, DeleteFiles(paths=frozenset({data_file("a").file_path}))).table
    first, *_ = table.metadata.snapshots_by_id
    sizes = {f"{LOCATION}/data/{name}": 1 for name in "ab"}
    run, all_others = (
        RetentionPolicy(older_than_ms=0, snapshot_ids=(first,)),
        RetentionPolicy(older_than_ms=2**62, retain_last=1),
    )
    table, _ = expired(table, policy=run, run="run-1", runtime=catalog.runtime, sizes=sizes)
    later: list[Table] = []

    def expire_the_others() -> None:
        later.append(expired(table, policy=all_others, run="run-2", runtime=catalog.runtime, sizes=sizes)[0])

    catalog.follow(after(expire_the_others, then=fails(UnavailableError("the catalog is out of reach"))))
    with pytest.raises(SafetyError, match="need 1 file that later runs have removed, or are about to remove"):
        restore(table, run="run-1")
    assert catalog.load(EVENTS).metadata == later[0].metadata
    assert restore(table, run="run-2").status == "done"
    assert restore(table, run="run-1").status == "done"


def test_a_claim_that_ended_while_the_catalog_was_away():
    """Another run had deleted the files by then, and the snapshot came back without them."""
    world = World()
    before = world.load().metadata
    plan = world.newer.directory

    def take_over() -> None:
        world.catalog.runtime.pass_ms(LEASE_MS + 1)
        now_ms = world.catalog.runtime.now_ms()
        take_lease(plan, "somebody else", world.storage, world.catalog.runtime, now_ms)

    world.catalog.follow(after(take_over, then=fails(UnavailableError("the catalog is out of reach"))))
    with pytest.raises(ClaimedError, match="was taken over by somebody else"):
        restore(world.load(), run="run-2")
    assert world.load().metadata == before


def test_manifests_are_read_from_the_trash_before_the_move():
    # The newer run's snapshots, when one more has expired since: their own lists and manifests are in its trash.
    world = World()
    table = add(world.load(), data_file("d"))
    world.storage.create(f"{LOCATION}/data/d", b"d")
    table, _ = expired(table, run="run-3", runtime=world.catalog.runtime, per_part=100)
    assert restore(world.load(), run="run-2").restored_snapshots_count == 2
    second = world.newer.snapshot_ids[0]
    assert live(world.load(), f"restored-{second}") == {"a": 1, "b": 1}


def test_nothing_is_read_if_later_runs_left_all_files():
    world = World()
    restore(world.load(), run="run-2")
    opened: list[str] = []
    world.storage.before = lambda operation, location: (
        opened.append(location) if operation in ("read", "open") else None
    )
    restore(world.load(), run="run-1")
    assert not any(location.endswith(".avro") for location in opened)


@pytest.mark.slow
def test_file_outside_all_runs_is_there_without_a_snapshot():
    """It was imported from elsewhere and left alone; that its last snapshot has expired as well does not take it away."""
    world = ExpiredWorld()
    elsewhere = replace(data_file("x"), file_path="memory://lake/imported/x")
    world.memory.create(elsewhere.file_path, b"x" * 100)
    add(world.table, elsewhere)
    world.runtime.pass_ms(1000)
    commit_change(world.table, DeleteFiles(paths=frozenset({elsewhere.file_path})))
    world.runtime.pass_ms(1000)
    for name, told in (("d", {"retain_last": 2, "trash": 3}), ("e", {"trash": 0})):
        add(world.table, name)
        world.memory.create(data_file(name).file_path, name.encode() * 100)
        world.runtime.pass_ms(1000)
        world.expire(**told)
    assert world.restore(list_restorable(world.table)[-1].run).status == "done"


def test_of_a_plan_s_files_a_key_each_is_held_and_no_path():
    """All paths of the plan were held, and those of all live files."""
    table = memory_table(MemoryCatalog())
    directory = f"{LOCATION}/data/day=2024-01-01/of-a-name-as-long-as-they-are"
    files = [GarbageFile(FileKind.DATA, f"{directory}-{number:08d}.parquet", 1) for number in range(10_000)]
    plan = written_plan(table, files, per_part=1000)

    def held() -> tuple[int, int]:
        tracemalloc.start()
        try:
            keys = _planned_keys(plan, table.storage, no_spark)
            assert len(keys) == len(files)
            gc.collect()
            return tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    held()
    kept, peak = held()
    assert kept < 8 * len(files) + 20_000
    assert peak < 2_500_000


def test_files_that_many_manifests_list_are_held_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(needs, "_PENDING_KEYS", 100)
    planned = location_keys(pa.array([f"{LOCATION}/data/0"]))
    found, others = needs._NeededKeys(planned), needs._NeededKeys(planned)
    files = pa.array([f"{LOCATION}/data/{number}" for number in range(51)])
    listed = DecodedEntries(pa.record_batch([files], ["file_path"]), PruningStats())
    for _ in range(20):
        found.add(listed)
        others.add(listed)
        assert sum(map(len, found._found)) <= 150
    found.merge(others)
    assert found.keys.tolist() == sorted(path_keys(files[1:]).tolist())


def test_many_places_are_looked_at_side_by_side():
    """Four requests for places wait for each other before any is answered; one after the other none would be."""
    world = World()
    lock, four, at_once, most = Lock(), Event(), 0, 0
    planned = [f"{LOCATION}/metadata/{number}-m0.avro" for number in range(40)]
    files = [GarbageFile(FileKind.MANIFEST, location, 1) for location in planned]
    for location in planned:
        world.storage.create(location, b"x")
    plan = written_plan(world.load(), files, run="run-3", runtime=world.catalog.runtime, per_part=100)
    in_trash(plan, world.storage)

    def before(operation: str, location: str) -> None:
        nonlocal at_once, most
        if operation == "head" and location in planned:
            with lock:
                at_once += 1
                most = max(most, at_once)
                if at_once == 4:
                    four.set()
            four.wait(10)
            # Where they come one after the other the first has waited for all.
            four.set()
            with lock:
                at_once -= 1

    world.storage.before = before
    assert plan_restore(world.load(), run=plan.run).restored_files_count == len(planned)
    assert most >= 4


def repaired(version: int = 2):
    """A world of two branches with faults, and the result of a repair of both."""
    world = RepairedWorld(version)
    world.append(1)
    create_branch(world.table, "audit")
    world.append(2)
    damager = Damager(world.catalog, EVENTS, Choices(3))
    for place in [*damager.entries()]:
        damager.edit_file(place, file_size_in_bytes=place.file["file_size_in_bytes"] + 1)
    heads = {name: ref.snapshot_id for name, ref in world.table.metadata.refs.items()}
    result = repair(world.table, no_spark, fault=[302])
    assert [one.branch for one in result.branches] == ["main", "audit"]
    return world, heads, result


def heads_of(world: RepairedWorld) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in world.table.metadata.refs.items()}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_branches_return_to_their_snapshots_before_a_repair(version):
    world, heads, result = repaired(version)
    assert heads_of(world) != heads
    files = {*world.memory.files}
    [listed] = list_restorable(world.table)
    assert (listed.run, listed.job, listed.files_count) == (result.run, "repair", 0)
    back = restore(world.table, run=result.run)
    assert (back.status, back.job) == ("done", "repair")
    assert back.restored_branches == ("audit", "main")
    assert heads_of(world) == heads
    assert files < {*world.memory.files}
    assert list_restorable(world.table) == ()
    with pytest.raises(SafetyError, match=r"no branch ends with a snapshot of run .*: it was taken back before"):
        restore(world.table, run=result.run)


def test_later_commits_are_not_lost_with_it():
    world, _, result = repaired()
    world.append(5)
    heads = heads_of(world)
    back = restore(world.table, run=result.run)
    assert (back.status, back.restored_branches) == ("partial", ("audit",))
    assert (back.note or "").startswith("branches that have later commits keep it: 'main'; ")
    with pytest.raises(SafetyError, match="would lose the commits after it"):
        restore(world.table, run=result.run)
    assert heads_of(world)["main"] == heads["main"]


def test_tag_stays_and_unknown_repair_run_is_not_found():
    world, heads, result = repaired()
    create_tag(world.table, "mended")
    restore(world.table, run=result.run)
    assert heads_of(world)["main"] == heads["main"] != heads_of(world)["mended"]
    # Of a script whose variable was empty nobody knows which repair it means.
    for run in ("repair-of-another-table", "repair-"):
        with pytest.raises(NotFoundError, match="no snapshot of table"):
            restore(world.table, run=run)


def test_later_branch_goes_back_unless_it_has_commits():
    """Nobody can tell it from one that the repair mended; a tag keeps what was fixed."""
    world, heads, result = repaired()
    create_branch(world.table, "later")
    create_branch(world.table, "further")
    append(world.table, [events(7, 5)], branch="further")
    further = heads_of(world)["further"]
    back = restore(world.table, run=result.run)
    assert (back.status, back.restored_branches) == ("partial", ("audit", "later", "main"))
    assert heads_of(world) == {**heads, "later": heads["main"], "further": further}


def test_repair_is_not_the_default_run_to_restore():
    world, _, result = repaired()
    with pytest.raises(
        NotFoundError,
        match=f"nothing to restore .*; a repair is taken back by its name: `icekeep restore .* --run {result.run}`",
    ):
        restore(world.table)


def test_repair_with_the_old_run_key_is_taken_back():
    world, heads, result = repaired()
    location = world.pointer()
    data, *rest = world.memory.files[location]
    assert data.count(b'"icekeep.run-id"') == 2
    world.memory.files[location] = (data.replace(b'"icekeep.run-id"', b'"icekeep.run"'), *rest)
    [listed] = list_restorable(world.table)
    assert listed.run == result.run
    assert restore(world.table, run=result.run).status == "done"
    assert heads_of(world) == heads
