"""`drop` and `drop --purge` on tables in memory and in a directory, without Spark."""

import tracemalloc
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from icekeep.catalog.filesystem import FilesystemCatalog
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.retry import commit
from icekeep.errors import (
    ClaimedError,
    ConflictError,
    MissingFileError,
    NotFoundError,
    OptionError,
    OutcomeUnknownError,
    SafetyError,
    UnavailableError,
    UsageError,
)
from icekeep.events import Warned
from icekeep.maintenance.delete.lease import LEASE_MS
from icekeep.maintenance.delete.locations import forget_locations
from icekeep.maintenance.delete.reachable import FileKind
from icekeep.maintenance.drop.history import read_history
from icekeep.maintenance.drop.job import drop_table, exact_drop_table, plan_drop_table
from icekeep.maintenance.register import register_table
from icekeep.maintenance.restore.job import list_restorable
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.metadata import format_metadata, new_table_metadata
from icekeep.spec.snapshots import MetadataLogEntry
from icekeep.spec.types import DAY_MS
from icekeep.storage.base import DeleteOutcome, DeleteStatus
from icekeep.storage.local.storage import LocalStorage
from kit.cases import for_each, scaled, seeds
from kit.changes import Recorder, Staged, run
from kit.deletes import add_deletes, equality_deletes, position_deletes
from kit.expired_tables import ExpiredWorld, OneByOne
from kit.memory_catalog import MemoryCatalog
from kit.runtime import FakeRuntime, no_spark, with_runtime
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import COLUMNS, EVENTS, add, data_file, entries_of, files, memory_table
from simulation.broken_deletion import BROKEN
from simulation.purging import PurgingWorld
from simulation.world import Violation

WAREHOUSE = "memory://lake/wh"
ROOT = f"{WAREHOUSE}/db/events"


def history(catalog=None, **properties):
    table = memory_table(catalog, **properties)
    for name in ("a", "b"):
        table.catalog.storage.create(data_file(name).file_path, b"rows")
        table = add(table, name)
    table.catalog.storage.create(files("ab")[0].file_path, b"rows")
    change = RewriteFiles(removed=entries_of(table, "a", "b"), added=files("ab"), schema_id=0)
    return commit(table, change, runtime=table.catalog.runtime).table


def stored(table):
    storage = table.catalog.storage
    return set(getattr(storage, "inner", storage).files)


def purged(table, **told):
    return drop_table(table, no_spark, purge=True, **told)


def is_there(table):
    return any(identifier == table.identifier for identifier in table.catalog.list_tables(table.identifier[:-1]))


def test_a_table_that_is_dropped_keeps_its_files():
    table = history()
    before = stored(table)
    assert not drop_table(table, no_spark).is_purged
    assert not is_there(table)
    assert stored(table) == before


def test_a_purge_leaves_nothing_of_the_table_and_everything_else():
    table = history()
    other = f"{table.metadata.location}2/data/x"
    table.catalog.storage.create(other, b"another's")
    result = purged(table)
    assert (result.status, result.is_purged, result.failed_files_count) == ("done", True, 0)
    assert {f.kind.value: f.files_count for f in result.files_by_kind} == {
        "data file": 3,
        "manifest": 5,
        "manifest list": 3,
        "metadata file": 4,
    }
    assert not is_there(table)
    assert stored(table) == {other}


def with_files(table, *added, named=()):
    """A table whose files are all there, with others that a commit adds to it."""
    for file in added:
        table.catalog.storage.create(file.file_path, b"rows")
    deletes = tuple(file for file in added if file.content is not FileContent.DATA)
    return add_deletes(table, *deletes, named=named) if deletes else run(table, Staged(AppendFiles(files=added))).table


@for_each(
    ("make", "expected"),
    [
        (memory_table, {"metadata file": 1}),
        (lambda: with_files(history(), data_file("staged")), {"data file": 4, "manifest list": 4}),
        (lambda: with_files(history(), position_deletes("p", "ab"), named=("ab",)), {"position delete file": 1}),
        (lambda: with_files(history(), equality_deletes("e")), {"equality delete file": 1}),
    ],
)
def test_purge_deletes_all_kinds_and_unreferenced_snapshots(make, expected):
    table = make()
    result = purged(table)
    assert {f.kind.value: f.files_count for f in result.files_by_kind}.items() >= expected.items()
    assert (result.status, result.missing_files_count) == ("done", 0)
    assert stored(table) == set()


def long_history(versions):
    """A table of a hundred snapshots, and so many versions of its metadata, each of which names the one before it."""
    table = add(memory_table(), "a")
    (snapshot,) = table.metadata.snapshots
    summary = {**(snapshot.summary or {}), "told": "x" * 1000}
    snapshots = tuple(replace(snapshot, snapshot_id=number, summary=summary) for number in range(100, 200))
    table = replace(table, metadata=replace(table.metadata, snapshots=snapshots, refs={}, current_snapshot_id=None))
    for number in range(versions):
        location = f"{table.metadata.location}/metadata/{number}.metadata.json"
        table.storage.create(location, format_metadata(table.metadata))
        log = (MetadataLogEntry(timestamp_ms=0, metadata_file=location),)
        table = replace(table, metadata=replace(table.metadata, metadata_log=log))
    return table


def test_memory_does_not_grow_with_metadata_versions():
    """All metadata files were held at once: a hundred snapshots of a kilobyte for each version."""

    def held(versions):
        table = long_history(versions)
        tracemalloc.start()
        try:
            found = read_history(table)
            assert len(found.locations) == versions + 2
            assert {snapshot.snapshot_id for snapshot in found.snapshots} == {*range(100, 200)}
            return tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    _, peak = held(3)
    kept_of_more, peak_of_more = held(40)
    assert kept_of_more < 200_000
    assert peak_of_more < peak + 500_000


def test_metadata_of_the_history_is_read():
    table = history(write__metadata__previous_versions_max="1")
    locations = {location for location in stored(table) if location.endswith(".metadata.json")}
    assert len(locations) == 4
    purged(table)
    assert stored(table) == set()


def test_a_log_that_names_no_location_stands_in_nobody_s_way():
    """A log is text, and whoever may write metadata may write any."""
    table = history()
    entry = MetadataLogEntry(timestamp_ms=0, metadata_file="metadata/v1.metadata.json")
    odd = replace(table.metadata, metadata_log=(entry, *table.metadata.metadata_log))
    assert stored(table)
    purged(replace(table, metadata=odd))
    assert stored(table) == set()


@pytest.mark.slow
def test_waiting_files_go_with_their_table():
    """Metadata from before the expiration had left the log; the plan was the only list of them, and went without them."""
    world = ExpiredWorld()
    short = {"write.metadata.previous-versions-max": "2", "write.metadata.delete-after-commit.enabled": "true"}
    commit(world.table, ChangeProperties(updates=short), runtime=world.runtime)
    assert world.expire(options={"grace": "1d"}).left_files_count == 7
    add(world.table, "a")
    for number in range(4):
        commit(world.table, ChangeProperties(updates={"number": str(number)}), runtime=world.runtime)
    table = world.table
    kept = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    for at in [at for at in world.memory.files if at.endswith(".metadata.json") and "/.icekeep/" not in at]:
        if at not in kept:
            del world.memory.files[at]
    result = drop_table(with_runtime(table, world.runtime), no_spark, purge=True)
    # Metadata that the log names, and that an engine removed.
    assert (result.status, result.missing_files_count) == ("done", 2)
    assert sum(kind.files_count for kind in result.files_by_kind if kind.kind.is_content) == 4
    assert not world.memory.files


@pytest.mark.slow
def test_restored_orphans_stay_when_the_table_is_purged():
    """Their plan is still there, since a call of the run before may be under way."""
    world = ExpiredWorld()
    world.leave("y", "z")

    def restore() -> None:
        world.pass_a_lease()
        world.restore()

    world.once(restore, "move_many", "/data/z")
    world.remove_orphans(trash=3)
    world.pass_days(0.1)
    world.restore()
    assert {"y", "z"} <= {*world.data()}
    assert any(at.endswith("/plan.json") for at in world.own())
    drop_table(with_runtime(world.table, world.runtime), no_spark, purge=True)
    assert world.data() == ["y", "z"]


@pytest.mark.slow
def test_foreign_file_at_a_trashed_path_is_not_purged():
    world = ExpiredWorld()
    world.leave("z")
    assert world.remove_orphans(trash=3).status == "done"
    world.memory.create(data_file("z").file_path, b"somebody else's")
    drop_table(with_runtime(world.table, world.runtime), no_spark, purge=True)
    assert [*world.memory.files] == [data_file("z").file_path]


@pytest.mark.slow
def test_a_table_that_comes_back_keeps_its_trash():
    """What icekeep keeps of a table went without a look at the catalog."""
    world = ExpiredWorld()
    world.expire(trash=3)
    table = world.table
    own = f"{table.metadata.location}/.icekeep"
    trashed = {at for at in world.memory.files if at.startswith(f"{own}/trash/")}

    def come_back(what: str, location: str) -> None:
        if what == "list" and location == own:
            world.catalog._locations[EVENTS] = table.metadata_location

    world.storage.before = come_back
    result = drop_table(with_runtime(table, world.runtime), no_spark, purge=True)
    assert (result.status, trashed <= {*world.memory.files}) == ("partial", True)
    assert "is in the catalog again" in result.problems[0]


@pytest.mark.slow
def test_a_purge_whose_trash_cannot_be_deleted():
    class Denied(OneByOne):
        is_denied = True

        def delete_many(self, locations):
            denied = [at for at in locations if self.is_denied and "/.icekeep/trash/" in at]
            return [
                *(DeleteOutcome(at, DeleteStatus.FAILED, "SlowDown") for at in denied),
                *super().delete_many([at for at in locations if at not in denied]),
            ]

    world = ExpiredWorld(Denied)
    world.expire(trash=3)
    result = drop_table(with_runtime(world.table, world.runtime), no_spark, purge=True)
    assert result.status == "partial"
    assert result.failed_files_count > 0
    assert result.plan_location is not None
    world.storage.is_denied = False
    world.pass_a_lease()
    assert purged(another(world.catalog)).status == "done"
    assert not world.memory.files


def test_a_waiting_plan_that_cannot_be_read_is_told_by_a_purge():
    world = ExpiredWorld()
    world.expire(options={"grace": "1d"})
    head = next(at for at in world.memory.files if at.endswith("/plan.json"))
    world.memory.files[head] = (b"{", 0)
    heard = Recorder()
    plan_drop_table(with_runtime(world.table, world.runtime), no_spark, purge=True, listener=heard)
    result = drop_table(with_runtime(world.table, world.runtime), no_spark, purge=True, listener=heard)
    directory = head.rpartition("/")[0]
    assert result.unreadable_files == (directory,)
    assert [
        f"cannot read '{directory}': what nothing else leads to stays; no command" in one for one in heard.warnings
    ] == [True] * 2


def test_the_plan_is_beside_the_tables_until_it_is_carried_out():
    storage = HookedStorage(MemoryStorage(FakeRuntime()))
    table = history(MemoryCatalog(storage))
    seen = []
    storage.before = lambda what, location: seen.extend(stored(table)) if what == "delete_many" else None
    purged(table)
    plans = {location for location in seen if location.startswith(f"{WAREHOUSE}/.icekeep/purges/")}
    assert {location.rsplit("/", 1)[-1] for location in plans} >= {"plan.json", "before.json"}
    assert stored(table) == set()


class Killed(BaseException):
    pass


def killed_purge(catalog, where):
    """A table whose purge died when it was to delete a file of a name."""
    table = history(catalog)
    with dying_at(catalog.storage, where):
        purged(table)
    return table


@contextmanager
def dying_at(storage, where):
    """Kill the purge in the block when it is to delete a file of a name."""

    def die(what, location):
        if what == "delete_many" and location.endswith(where):
            raise Killed

    storage.before = die
    with pytest.raises(Killed):
        yield
    storage.before = lambda what, location: None


def time_passes(catalog):
    """Until the claims of runs that died are over."""
    for runtime in (catalog.runtime, catalog.storage.inner.runtime):
        runtime.pass_ms(LEASE_MS + 1)


def second_catalog(first, table):
    """Another catalog over the same warehouse, in which the table is registered."""
    other = MemoryCatalog(first.storage, first.runtime, name="second")
    other.create_namespace(EVENTS[:-1])
    other._locations[table.identifier] = table.metadata_location
    return other


def drop_dies(table, *, lands):
    """A purge that is killed in the call by which the catalog forgets the table."""
    real = table.catalog.drop

    def die(identifier, **meant):
        if lands:
            real(identifier, **meant)
        raise Killed

    table.catalog.drop = die
    with pytest.raises(Killed):
        purged(table)
    table.catalog.drop = real


def another(catalog, name="other"):
    metadata = new_table_metadata(
        schema=COLUMNS,
        spec=memory_table(MemoryCatalog()).metadata.spec,
        location=catalog.default_location((*EVENTS[:-1], name)),
        table_uuid=str(catalog.runtime.new_uuid()),
        now_ms=catalog.runtime.now_ms(),
        properties={},
        format_version=2,
    )
    return catalog.create((*EVENTS[:-1], name), metadata)


def test_the_next_purge_finishes_one_that_was_killed():
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    table = killed_purge(catalog, "/data/ab")
    assert not is_there(table)
    assert data_file("ab").file_path in stored(table)
    # As long as the one that died may be alive it is left alone.
    assert purged(another(catalog)).finished_files_count == 0
    time_passes(catalog)
    result = purged(another(catalog))
    assert result.finished_files_count > 0
    assert stored(table) == set()


def test_a_killed_purge_waits_for_its_root_to_be_named():
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    root = "memory://lake/elsewhere"
    elsewhere = f"{root}/x/ab"
    table = history(catalog)
    catalog.storage.create(elsewhere, b"rows")
    table = add(table, replace(data_file("x"), file_path=elsewhere))
    with dying_at(catalog.storage, "ab"):
        purged(table, options={"reclaim.roots": root})
    time_passes(catalog)
    heard = Recorder()
    result = purged(another(catalog), listener=heard)
    assert (result.status, result.finished_files_count) == ("done", 0)
    assert [
        one for one in heard.warnings if f"it has files below {root!r}; to delete them name it in reclaim.roots" in one
    ]
    assert elsewhere in stored(table)
    assert purged(another(catalog), options={"reclaim.roots": root}).finished_files_count > 0
    assert elsewhere not in stored(table)


def test_killed_purge_stops_where_a_table_lies_now():
    """starrocks #56555: dropped without purge, made again in the same place, and then deleted."""
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    table = killed_purge(catalog, "/data/ab")
    time_passes(catalog)
    again = another(catalog, EVENTS[-1])
    before = {location for location in stored(table) if location.startswith(f"{again.metadata.location}/")}
    heard = Recorder()
    assert purged(another(catalog), listener=heard).finished_files_count == 0
    assert [e for e in heard.events if isinstance(e, Warned) and "was not finished stays" in e.message]
    assert before <= stored(table)


@pytest.mark.parametrize("lands", [False, True])
def test_another_catalog_does_not_finish_a_purge(lands):
    """Two catalogs over one warehouse."""
    first = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    table = history(first)
    second = second_catalog(first, table)
    drop_dies(table, lands=lands)
    before = {location for location in stored(table) if location.startswith(f"{table.metadata.location}/")}
    time_passes(first)
    heard = Recorder()
    assert purged(another(second), listener=heard).finished_files_count == 0
    assert before <= stored(table)
    assert second.load(EVENTS).metadata == table.metadata


def test_a_purge_that_died_before_its_drop_stays():
    """Later dropped without purge, to be registered in another catalog."""
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    table = history(catalog)
    drop_dies(table, lands=False)
    drop_table(table, no_spark)
    before = {location for location in stored(table) if location.startswith(f"{table.metadata.location}/")}
    time_passes(catalog)
    result = purged(another(catalog))
    assert (result.status, result.finished_files_count) == ("partial", 0)
    assert "it is not known whether this purge dropped table 'db.events'" in result.problems[0]
    assert before <= stored(table)


def test_purge_without_a_drop_is_forgotten_after_a_day():
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    table = history(catalog)
    drop_dies(table, lands=False)
    time_passes(catalog)
    assert purged(another(catalog)).problems == ()
    assert [location for location in stored(table) if location.endswith("/plan.json")]
    for runtime in (catalog.runtime, catalog.storage.inner.runtime):
        runtime.pass_ms(DAY_MS)
    assert purged(another(catalog)).status == "done"
    assert not [location for location in stored(table) if "/purges/" in location]
    assert catalog.load(EVENTS).metadata == table.metadata


def test_a_purge_is_not_finished_without_all_namespaces():
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    table = killed_purge(catalog, "/data/ab")
    time_passes(catalog)
    catalog.list_namespaces = lambda: (_ for _ in ()).throw(UsageError("you may not list namespaces"))
    result = purged(another(catalog))
    assert (result.status, result.finished_files_count) == ("partial", 0)
    assert "you may not list namespaces" in result.problems[0]
    assert data_file("ab").file_path in stored(table)


@for_each(
    "name", ["00004-a.metadata.json", "00004-a.gz.metadata.json", "00004-a.metadata.json.gz", "v4.metadata.json.gz"]
)
def test_a_purge_is_not_finished_where_the_table_lives_on(name):
    """Its owner has registered it in another catalog since, where somebody commits to it."""
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    table = killed_purge(catalog, "/data/ab")
    time_passes(catalog)
    newer = f"{table.metadata.location}/metadata/{name}"
    table.storage.create(newer, b"{}")
    result = purged(another(catalog))
    assert (result.status, result.finished_files_count) == ("partial", 0)
    assert f"there is newer metadata of table 'db.events', {newer!r}" in result.problems[0]
    assert data_file("ab").file_path in stored(table)


def test_an_approved_purge_finishes_no_other():
    """What is approved is all that goes."""
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    table = killed_purge(catalog, "/data/ab")
    time_passes(catalog)
    other = another(catalog)
    approved = plan_drop_table(other, no_spark, purge=True).hash
    assert purged(other, approve=approved).finished_files_count == 0
    assert data_file("ab").file_path in stored(table)


def test_table_registered_during_its_purge_keeps_the_rest():
    """Looked at again before each call."""
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    table = history(catalog)

    def register(what, location):
        if what == "delete_many" and location.endswith("/data/a"):
            catalog._locations[table.identifier] = table.metadata_location

    catalog.storage.before = register
    result = purged(table)
    assert result.status == "partial"
    assert "is in the catalog again" in result.problems[0]
    assert table.metadata.current_snapshot.manifest_list in stored(table)


def test_a_purge_whose_table_was_registered_again_is_given_up():
    """It waited, and went on when the table was moved to another catalog later."""
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    table = killed_purge(catalog, "/data/ab")
    catalog._locations[EVENTS] = table.metadata_location
    time_passes(catalog)
    heard = Recorder()
    assert purged(another(catalog), listener=heard).status == "done"
    assert heard.warnings[-1].startswith("table 'db.events' is registered again: its purge is given up")
    second_catalog(catalog, table)
    catalog.drop(EVENTS)
    assert purged(another(catalog, "more")).finished_files_count == 0
    assert table.metadata_location in stored(table)


def test_stale_catalog_answer_does_not_forget_a_purge(monkeypatch):
    """It has not heard of the drop: the plan stays, and says that nobody knows."""
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    table = killed_purge(catalog, "/data/ab")
    time_passes(catalog)
    other = another(catalog)
    load = catalog.load

    def out_of_date(identifier):
        if identifier != EVENTS:
            return load(identifier)
        monkeypatch.undo()
        return table

    monkeypatch.setattr(catalog, "load", out_of_date)
    assert purged(other).status == "done"
    time_passes(catalog)
    result = purged(another(catalog, "more"))
    assert "it is not known whether this purge dropped table 'db.events'" in result.problems[0]


@pytest.mark.slow
def test_waiting_orphans_are_purged_after_another_restore():
    world = ExpiredWorld()
    world.leave("x", "y", "z")
    world.remove_orphans(options={"grace": "9d"}, trash=0)
    first = {plan.run for plan in list_restorable(world.table)}
    world.adopt_and_delete("y")
    world.expire(options={"grace": "9d"})
    (younger,) = {plan.run for plan in list_restorable(world.table)} - first
    world.restore(younger)
    drop_table(with_runtime(world.table, world.runtime), no_spark, purge=True)
    assert world.data() == []


def test_purge_finishes_although_the_name_is_taken_again():
    world = ExpiredWorld()
    world.expire(trash=3)
    own = f"{world.table.metadata.location}/.icekeep"
    new = another(world.catalog, "fresh")

    def come(what, location):
        if what == "list" and location == own and EVENTS not in world.catalog._locations:
            world.catalog._locations[EVENTS] = world.catalog._locations.pop(new.identifier)

    world.storage.before = come
    drop_table(with_runtime(world.table, world.runtime), no_spark, purge=True)
    world.storage.before = lambda *_: None
    world.pass_days(1)
    assert purged(another(world.catalog, "more")).status == "done"


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (UnavailableError("the store is out of reach"), "the store is out of reach"),
        (RuntimeError("the JVM is gone"), "RuntimeError: the JVM is gone"),
    ],
    ids=["ours", "another's"],
)
def test_purge_stopped_after_the_drop_reports_and_resumes(error, problem):
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    table = history(catalog)

    def fail(what, location):
        if what == "read" and location.endswith(".jsonl"):
            raise error

    catalog.storage.before = fail
    result = purged(table)
    assert (result.status, result.is_purged, result.problems) == ("partial", True, (problem,))
    assert not is_there(table)
    catalog.storage.before = lambda what, location: None
    assert purged(another(catalog)).finished_files_count > 0
    assert stored(table) == set()


def test_a_purge_that_cannot_mark_the_drop():
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    table, heard = history(catalog), Recorder()

    def fail(what, location):
        if what == "create" and location.endswith("/dropped.json"):
            raise UnavailableError("the store is out of reach")

    catalog.storage.before = fail
    assert purged(table, listener=heard).status == "done"
    assert any(isinstance(event, Warned) and "no later purge can finish" in event.message for event in heard.events)
    assert stored(table) == set()


def test_an_approved_purge_is_that_one_or_none():
    table = history()
    plan = plan_drop_table(table, no_spark, purge=True)
    assert plan.deleted_files_count == 15
    before = stored(table)
    with pytest.raises(SafetyError, match="nothing is dropped"):
        purged(table, approve="0")
    assert (stored(table), is_there(table)) == (before, True)
    assert purged(table, approve=plan.hash).deleted_bytes_count == plan.deleted_bytes_count


@pytest.mark.parametrize("run", [drop_table, plan_drop_table])
def test_approved_purge_without_purge_flag_drops_nothing(run):
    """What was approved was a purge; a drop is something else."""
    table = history()
    before = stored(table)
    with pytest.raises(UsageError, match="nothing is dropped; add purge, or leave out approve") as caught:
        run(table, no_spark, approve=plan_drop_table(table, no_spark, purge=True).hash)
    assert caught.value.worded({"purge": "--purge", "approve": "-a"}).startswith("-a is ")
    assert "; add --purge, or leave out -a to" in caught.value.worded({"purge": "--purge", "approve": "-a"})
    assert (stored(table), is_there(table)) == (before, True)


def test_the_plan_of_a_plain_drop_deletes_nothing():
    assert plan_drop_table(history(), no_spark).deleted_files_count == 0


@pytest.mark.parametrize("run", [purged, lambda table: plan_drop_table(table, no_spark, purge=True)])
def test_files_that_may_be_shared_are_not_purged(run):
    table = commit(history(), ChangeProperties(updates={"gc.enabled": "false"})).table
    before = stored(table)
    with pytest.raises(SafetyError, match=r"gc\.enabled=false"):
        run(table)
    assert (stored(table), is_there(table)) == (before, True)


def test_imported_files_stay_with_whom_they_belong_to():
    table = history()
    imported = replace(data_file("x"), file_path="memory://lake/elsewhere/x")
    table.catalog.storage.create(imported.file_path, b"another's")
    table = add(table, imported)
    assert purged(table).kept_outside_files_count == 1
    assert stored(table) == {imported.file_path}


@pytest.mark.slow
def test_unreadable_neighbour_can_be_accepted_by_name():
    """What is accepted is in the plan's hash and in the result."""
    catalog = MemoryCatalog()
    table, other = history(catalog), another(catalog)
    before = plan_drop_table(table, no_spark, purge=True)
    catalog.storage.delete_many([other.metadata_location])
    forget_locations()
    with pytest.raises(SafetyError, match="in accept_unreadable"):
        plan_drop_table(table, no_spark, purge=True, accept_unreadable=["db.another"])
    plan = plan_drop_table(table, no_spark, purge=True, accept_unreadable=["db.other"])
    assert plan.unreadable_tables == ("db.other",)
    with pytest.raises(SafetyError, match="is approved"):
        purged(table, accept_unreadable=["db.other"], approve=before.hash)
    result = purged(table, accept_unreadable=["db.other"], approve=plan.hash)
    assert (result.status, result.unreadable_tables) == ("done", ("db.other",))
    assert not is_there(table)


def test_what_cannot_be_read_is_told_and_stays():
    table = history()
    first = table.metadata.snapshots[0]
    table.storage.delete_many([first.manifest_list])
    table.storage.create(first.manifest_list, b"nonsense")
    result = purged(table)
    assert result.unreadable_files == (first.manifest_list,)
    assert first.manifest_list in stored(table)


def test_a_table_that_is_gone_is_not_purged():
    table = history()
    table.catalog.drop(table.identifier)
    with pytest.raises(NotFoundError):
        purged(table)
    assert not [location for location in stored(table) if "/purges/" in location]
    assert data_file("ab").file_path in stored(table)


@pytest.mark.parametrize("purge", [False, True])
def test_a_table_that_was_made_anew_meanwhile_is_not_dropped(purge):
    """Loaded, then dropped and made again by others."""
    catalog = MemoryCatalog()
    table = history(catalog)
    catalog.drop(EVENTS)
    again = another(catalog, EVENTS[-1])
    before = stored(table)
    with pytest.raises(ConflictError, match="is not dropped"):
        drop_table(table, no_spark, purge=purge)
    assert catalog.load(EVENTS).metadata == again.metadata
    assert stored(table) == before


def test_a_table_that_was_committed_to_meanwhile_is_not_purged():
    """The plan would not name the new files."""
    catalog = MemoryCatalog()
    table = history(catalog)
    catalog.storage.create(data_file("late").file_path, b"rows")
    add(table, "late")
    before = stored(table)
    with pytest.raises(ConflictError, match="another writer committed"):
        purged(table)
    assert (is_there(table), stored(table)) == (True, before)


def test_a_catalog_that_fails_leaves_the_table_and_no_plan():
    table = history()

    def fail(identifier, **meant):
        raise UnavailableError("the catalog is out of reach")

    table.catalog.drop = fail
    before = stored(table)
    with pytest.raises(UnavailableError):
        purged(table)
    assert stored(table) == before


@for_each(
    "what, end, error",
    [
        ("create", "/plan.json", UnavailableError("the store is out of reach")),
        ("create", "/before.json", RuntimeError("no space left")),
        ("create", "/claims/000001.json", KeyboardInterrupt()),
        ("write", ".jsonl", UnavailableError("the store is out of reach")),
    ],
)
def test_error_before_the_plan_is_complete_changes_nothing(what, end, error):
    table = history(MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime()))))
    before = stored(table)

    def fail(called, location):
        if called == what and location.endswith(end):
            raise error

    table.catalog.storage.before = fail
    with pytest.raises(type(error)):
        purged(table)
    assert (stored(table), is_there(table)) == (before, True)


class TableCredentials(HookedStorage):
    """Lets nobody write, list or delete outside of one table's location."""

    roots = (ROOT,)

    def __init__(self, inner):
        super().__init__(inner, before=self.refuse)
        self.ended = False

    def refuse(self, what, location):
        is_outside = not f"{location}/".startswith(tuple(f"{root}/" for root in self.roots))
        if what != "capabilities" and (self.ended or is_outside):
            raise UsageError(f"the store denies access to {location!r}")


def test_table_credentials_put_the_plan_below_the_table():
    """Credentials that end at the table's location still allow a purge."""
    table = history()
    storage = TableCredentials(table.catalog.storage)
    result = purged(replace(table, storage=storage))
    assert (result.status, result.problems, result.failed_files_count) == ("done", (), 0)
    assert stored(table) == set()


def test_purge_dry_run_works_with_table_credentials():
    table, heard = history(), Recorder()
    limited = replace(table, storage=TableCredentials(table.catalog.storage))
    before = stored(table)
    plan = plan_drop_table(limited, no_spark, purge=True, listener=heard)
    assert "what earlier purges left cannot be looked at: the store denies access" in heard.warnings[-1]
    assert stored(table) == before
    assert purged(limited, approve=plan.hash).status == "done"


def deleting_server(table, kept=()):
    """A table of a catalog whose server deletes all below the location of a table that is dropped, whatever it is asked."""
    catalog, storage = table.catalog, table.catalog.storage
    drop = catalog.drop

    def drop_all(*of, **meant):
        location = drop(*of, **meant)
        storage.delete_many([file for file in storage.files if file.startswith(f"{ROOT}/") and file not in kept])
        return location

    catalog.drop = drop_all
    return table


def test_a_drop_whose_server_deletes_the_files_says_so():
    table = deleting_server(history())
    with pytest.raises(
        MissingFileError, match=r"'db.events' is dropped, and its metadata file .* is gone with it"
    ) as lost:
        drop_table(table, no_spark)
    assert table.metadata_location in lost.value.message
    assert (stored(table), is_there(table)) == (set(), False)


@for_each("is_alone", [True, False])
def test_server_side_purge_is_done_wherever_the_plan_was(is_alone):
    table = deleting_server(history())
    storage = TableCredentials(table.catalog.storage) if is_alone else table.storage
    result = purged(replace(table, storage=storage))
    assert (result.status, result.problems, result.missing_files_count) == ("done", (), 15)
    assert stored(table) == set()


def test_what_a_server_left_when_it_deleted_a_plan_is_told():
    table = history()
    (kept,) = (file for file in stored(table) if file.endswith("/data/a"))
    deleting_server(table, kept=(kept,))
    result = purged(replace(table, storage=TableCredentials(table.catalog.storage)))
    assert result.status == "partial"
    assert (
        f"deletes the files of the table itself, this run's plan among them, and has left {kept!r}"
        in result.problems[0]
    )
    assert stored(table) == {kept}


def test_what_a_server_left_outside_of_the_location_is_told():
    """Its plan went with the location, so that nobody knows which files those are: the purge was told as done."""
    outside = "memory://lake/elsewhere"
    table = with_files(history(**{"write.data.path": outside}), replace(data_file("far"), file_path=f"{outside}/far"))
    limited = TableCredentials(deleting_server(table).catalog.storage)
    limited.roots = (ROOT, outside)
    result = purged(replace(table, storage=limited), options={"reclaim.roots": outside})
    assert result.status == "partial"
    assert (
        f"leaves those outside of {ROOT!r}, such as '{outside}/far'; delete by hand what is left" in result.problems[0]
    )
    assert stored(table) == {f"{outside}/far"}


def test_a_purge_says_before_its_drop_how_it_is_finished():
    """Killed after the drop it was known to nobody."""
    table, heard = history(), Recorder()
    storage = TableCredentials(table.catalog.storage)

    def die(*_, **__):
        raise Killed

    table.catalog.drop = die
    with pytest.raises(Killed):
        purged(replace(table, storage=storage), listener=heard)
    assert (
        f"icekeep register --table local.db.events --metadata-location {table.metadata_location}`" in heard.warnings[-1]
    )


def test_expired_credentials_say_how_to_finish_the_purge():
    table = history()
    storage = TableCredentials(table.catalog.storage)
    delete_many = storage.inner.delete_many

    def end(locations):
        outcomes = delete_many(locations)
        storage.ended = storage.ended or any("/data/" in one.location for one in outcomes)
        return outcomes

    storage.inner.delete_many = end
    result = purged(replace(table, storage=storage))
    del storage.inner.delete_many
    assert result.status == "partial"
    (problem,) = result.problems
    assert (
        f"icekeep register --table local.db.events --metadata-location {table.metadata_location}`, "
        "then `icekeep drop --table local.db.events --purge`" in problem
    )
    assert result.plan_location.startswith(f"{ROOT}/.icekeep/purges/")
    again = register_table(table.catalog, EVENTS, table.metadata_location)
    assert purged(again).status == "done"
    assert stored(table) == set()


@for_each("name", ["plan.json", "files-named-0000.jsonl", "claims/000001.json"])
def test_a_purge_leaves_files_in_the_place_of_its_plan(name):
    table = history()
    catalog = table.catalog
    directory = f"{WAREHOUSE}/.icekeep/purges"

    class Taken(HookedStorage):
        def create(self, location, data):
            self.take(location)
            super().create(location, data)

        def take(self, location):
            if location.endswith(f"/{name}") and location.startswith(directory):
                self.inner.files[location] = (b"another's", 0)

        @contextmanager
        def write(self, location):
            self.take(location)
            with super().write(location) as stream:
                yield stream

    storage = Taken(catalog.storage)
    with pytest.raises((FileExistsError, ClaimedError)):
        purged(replace(table, storage=storage))
    assert is_there(table)
    assert [at for at in stored(table) if at.startswith(directory) and at.endswith(f"/{name}")]


def test_what_a_purge_killed_while_planning_left():
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    table = history(catalog)
    before = stored(table)
    purges = f"{WAREHOUSE}/.icekeep/purges"
    killed, younger = f"{purges}/killed/files-named-0000.jsonl", f"{purges}/younger/files-named-0000.jsonl"
    catalog.storage.create(killed, b"{}")
    time_passes(catalog)
    purged(another(catalog))
    assert killed in stored(table)
    for runtime in (catalog.runtime, catalog.storage.inner.runtime):
        runtime.pass_ms(DAY_MS)
    catalog.storage.create(younger, b"{}")
    purged(another(catalog))
    assert stored(table) == before | {younger}


def test_a_drop_of_unknown_outcome_deletes_nothing():
    table = history()

    def vanish(identifier, **meant):
        raise OutcomeUnknownError("the catalog did not answer")

    before = stored(table)
    table.catalog.drop = vanish
    with pytest.raises(OutcomeUnknownError):
        purged(table)
    assert before < stored(table)
    assert [location for location in stored(table) - before if location.endswith("/plan.json")]


def test_bad_arguments_are_named():
    with pytest.raises(OptionError, match="max_concurrent_deletes"):
        purged(history(), max_concurrent_deletes=0)


def test_filesystem_table_is_purged_with_its_versions(tmp_path):
    storage = LocalStorage()
    catalog = FilesystemCatalog("files", {"warehouse": f"file://{tmp_path}/wh"}, storage)
    catalog.create_namespace(EVENTS[:-1])
    table = another(_WithRuntime(catalog), EVENTS[-1])
    (tmp_path / "wh" / "db" / "events" / "data").mkdir()
    file = replace(data_file("a"), file_path=f"{table.metadata.location}/data/a")
    storage.create(file.file_path, b"rows")
    table = commit(table, AppendFiles(files=(file,))).table
    trashed = f"{table.metadata.location}/.icekeep/trash/some-run/files/db/events/data/b"
    storage.create(trashed, b"more rows")
    # As Hadoop writes them on disks of its machine.
    for path in [path for path in (tmp_path / "wh").rglob("*") if path.is_file() and ".icekeep" not in path.parts]:
        path.with_name(f".{path.name}.crc").write_bytes(b"crc\0 and sums")
    files = [path for path in (tmp_path / "wh").rglob("*") if path.is_file()]
    plan = plan_drop_table(table, no_spark, purge=True)
    assert {*plan.files} == {path.as_uri() for path in files}
    assert {kind.kind: (kind.files_count, kind.bytes) for kind in plan.files_by_kind}.items() >= {
        # Two versions and the hint.
        (FileKind.METADATA, (3, 0)),
        (FileKind.OWN, (1, 9)),
        # Of a data file, a manifest and a list the sizes are known.
        (FileKind.CHECKSUM, (6, 3 * 13)),
    }
    exact = exact_drop_table(table, no_spark, purge=True)
    assert {line.name for line in exact.lines if line.do == "delete"} == {*plan.files}

    storage.create(f"{trashed}2", b"more rows")
    with pytest.raises(SafetyError, match="is approved: nothing is dropped"):
        drop_table(table, no_spark, purge=True, approve=plan.hash)
    storage.delete_many([f"{trashed}2"])

    result = drop_table(table, no_spark, purge=True, approve=plan.hash)
    assert result.status == "done"
    assert not [path for path in (tmp_path / "wh").rglob("*") if path.is_file()]
    assert (result.deleted_files_count, result.missing_files_count) == (len(files), 0)
    figures = (plan.files_by_kind, plan.deleted_files_count, plan.deleted_bytes_count, plan.hash)
    assert (result.files_by_kind, result.deleted_files_count, result.deleted_bytes_count, result.hash) == figures
    with pytest.raises(NotFoundError):
        catalog.load(EVENTS)


def test_hadoop_checksums_move_with_their_versions(tmp_path):
    storage = LocalStorage()
    catalog = FilesystemCatalog("files", {"warehouse": f"file://{tmp_path}/wh"}, storage)
    catalog.create_namespace(EVENTS[:-1])
    table = another(_WithRuntime(catalog), EVENTS[-1])
    commit(table, ChangeProperties(updates={"a": "1"}))
    metadata = tmp_path / "wh" / "db" / "events" / "metadata"
    names = ("v1.metadata.json", "v2.metadata.json", "version-hint.text")
    for name in names:
        (metadata / f".{name}.crc").write_bytes(b"crc\0 and sums")
    moved = catalog.drop(EVENTS)
    assert [path for path in metadata.rglob("*") if path.is_file()] == []
    catalog.register_table(EVENTS, moved)
    found = {path.name for path in metadata.iterdir()}
    # The hint is rewritten, and its old checksum would be wrong.
    assert found == {*names, ".v1.metadata.json.crc", ".v2.metadata.json.crc"}


def test_a_drop_that_ends_before_a_checksum_moved(tmp_path):
    """Hadoop would refuse the next table's version of that name, and the table would be gone, though its drop failed."""

    def fail(operation, location):
        if operation == "move" and location.endswith(".v2.metadata.json.crc"):
            raise OSError("the process ends here")

    storage = HookedStorage(LocalStorage())
    catalog = FilesystemCatalog("files", {"warehouse": f"file://{tmp_path}/wh"}, storage)
    catalog.create_namespace(EVENTS[:-1])
    table = another(_WithRuntime(catalog), EVENTS[-1])
    commit(table, ChangeProperties(updates={"a": "1"}))
    metadata = tmp_path / "wh" / "db" / "events" / "metadata"
    for name in ("v1.metadata.json", "v2.metadata.json"):
        (metadata / f".{name}.crc").write_bytes(b"crc\0 and sums")
    storage.before = fail
    with pytest.raises(OSError, match="the process ends here"):
        catalog.drop(EVENTS)
    assert {path.name for path in metadata.iterdir()} == {"v2.metadata.json", ".v2.metadata.json.crc"}
    assert catalog.load(EVENTS).metadata.properties["a"] == "1"


class _WithRuntime:
    def __init__(self, catalog):
        self._catalog = catalog
        self.runtime = FakeRuntime()

    def __getattr__(self, name):
        return getattr(self._catalog, name)


@pytest.mark.slow
def test_no_table_that_lives_loses_a_file() -> None:
    deaths = finished = 0
    for seed in seeds(scaled(200, least=30)):
        world = PurgingWorld(seed)
        try:
            world.run()
        except Violation as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        deaths += world.deaths_count
        finished += world.finished_count
    # Both must come about, or nothing was shown.
    assert deaths > 10
    assert finished > 0


@pytest.mark.nightly
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_purge_that_is_broken_on_purpose_loses_files(broken) -> None:
    def run() -> None:
        for seed in range(300):
            PurgingWorld(seed).run()

    with broken(), pytest.raises(Violation, match="G1"):
        run()
