"""A table that was dropped and kept comes back whole, whatever was done with a later table of its name and place."""

import json
from contextlib import suppress
from itertools import count

import pytest
from msgspec.structs import replace

from icekeep.catalog.filesystem import FilesystemCatalog
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.errors import NotFoundError, SafetyError, TryAgainError
from icekeep.maintenance.drop import pending as unfinished
from icekeep.maintenance.drop.job import drop_table, plan_drop_table
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.orphans import compare as candidates
from icekeep.maintenance.orphans import listing as hidden
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.maintenance.register import register_table
from icekeep.spec.metadata import format_metadata, new_table_metadata
from icekeep.spec.partitioning import UNPARTITIONED
from kit.cases import Choices, for_each, scaled
from kit.expired_tables import DAY_MS, ExpiredWorld, files_of
from kit.memory_catalog import MemoryCatalog
from kit.runtime import FakeRuntime, no_spark, with_runtime
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import COLUMNS, EVENTS, data_file

MANY = tuple(f"b{number}" for number in range(20))
"""Files of a later table, of which those of the first are a small share."""


class Lake:
    """A catalog in memory, by default one that finds tables by their directory, with tables one after the other."""

    def __init__(self, kind=FilesystemCatalog):
        self.runtime = FakeRuntime()
        self.memory = MemoryStorage(self.runtime)
        self.storage = HookedStorage(self.memory)
        if kind is FilesystemCatalog:
            properties = {"warehouse": "memory://lake/wh"}
            self.catalog = FilesystemCatalog("files", properties, self.storage, self.runtime)
        else:
            self.catalog = MemoryCatalog(self.storage, self.runtime)
        self.catalog.create_namespace(EVENTS[:-1])

    def create(self, *names, identifier=EVENTS):
        """A table with data files of these names."""
        metadata = new_table_metadata(
            schema=COLUMNS,
            spec=UNPARTITIONED,
            location=self.catalog.default_location(identifier),
            table_uuid=str(self.runtime.new_uuid()),
            now_ms=self.runtime.now_ms(),
            properties={},
            format_version=2,
        )
        return self.append(self.catalog.create(identifier, metadata), *names)

    def append(self, table, *names):
        files = [replace(data_file(name), file_path=f"{table.metadata.location}/data/{name}") for name in names]
        for file in files:
            self.storage.create(file.file_path, b"rows")
        return commit(table, AppendFiles(files=tuple(files)), runtime=self.runtime).table

    def drop(self, identifier=EVENTS):
        """Drop the table and keep it; returns where its metadata is."""
        return drop_table(self.catalog.load(identifier), no_spark).metadata_location

    def keep(self, *names):
        """A table that was dropped and kept, and where its metadata is."""
        return self.create(*names), self.drop()

    def remove_orphans(self, **arguments):
        """The job, ten days later."""
        self.runtime.pass_ms(10 * DAY_MS)
        return remove_orphan_files(self.catalog.load(EVENTS), no_spark, trash=0, **arguments)

    def purge(self):
        return drop_table(self.catalog.load(EVENTS), no_spark, purge=True)

    def comes_back(self, table, kept):
        """Whether a table that was kept is as it was once it is registered again, with all of its files."""
        back = register_table(self.catalog, EVENTS, kept).metadata
        assert (back.table_uuid, back.snapshots) == (table.metadata.table_uuid, table.metadata.snapshots)
        assert {snapshot.manifest_list for snapshot in back.snapshots} <= self.memory.files.keys()
        return {at.rpartition("/")[2] for at in self.memory.files if "/data/a" in at}


def plan_purge(lake):
    plan_drop_table(lake.catalog.load(EVENTS), no_spark, purge=True)


def remove_orphans_below_data(lake):
    lake.remove_orphans(location=f"{lake.catalog.default_location(EVENTS)}/data")


STRANGER = "there is table metadata that is not of table 'db.events'"
IN_THE_WAY = "another table was dropped in the same place and kept"


@for_each(
    "job, kind, reason",
    [
        (Lake.purge, FilesystemCatalog, IN_THE_WAY),
        (plan_purge, FilesystemCatalog, IN_THE_WAY),
        (Lake.remove_orphans, FilesystemCatalog, STRANGER),
        (remove_orphans_below_data, FilesystemCatalog, STRANGER),
        (Lake.remove_orphans, MemoryCatalog, STRANGER),
        (remove_orphans_below_data, MemoryCatalog, STRANGER),
    ],
)
def test_later_table_of_the_name_leaves_the_kept_one_intact(job, kind, reason):
    lake = Lake(kind)
    table, kept = lake.keep("a1", "a2")
    later = lake.create(*MANY)
    before = {*lake.memory.files}
    with pytest.raises(SafetyError, match=reason):
        job(lake)
    assert lake.catalog.load(EVENTS).metadata == later.metadata
    assert {*lake.memory.files} == before
    lake.drop()
    assert lake.comes_back(table, kept) == {"a1", "a2"}


def test_refused_purge_says_where_the_other_table_is():
    lake = Lake()
    _, kept = lake.keep("a1")
    lake.create("b1")
    with pytest.raises(SafetyError, match=r"drop 'db\.events' without --purge") as caught:
        lake.purge()
    assert caught.value.facts["location"] == kept
    lake.memory.delete_many([at for at in lake.memory.files if at.startswith(kept.rpartition("/")[0])])
    assert lake.purge().status == "done"
    assert {at.rpartition("/")[2] for at in lake.memory.files if "/data/" in at} == {"a1"}


@for_each("data", [b"{", b"", json.dumps({"format-version": 9}).encode()])
def test_unreadable_metadata_of_a_kept_table_stops_a_purge(data):
    lake = Lake()
    _, kept = lake.keep("a1")
    lake.create("b1")
    lake.memory.files[kept] = (data, lake.runtime.now_ms())
    with pytest.raises(SafetyError, match=IN_THE_WAY):
        lake.purge()


def test_a_table_below_the_place_of_another_is_kept_as_well():
    """Its version files are hidden as icekeep's own, deeper in the listing."""
    lake = Lake()
    nested = (*EVENTS, "old")
    lake.catalog.create_namespace(EVENTS)
    table = lake.create("a1", identifier=nested)
    lake.drop(nested)
    lake.create(*MANY)
    with pytest.raises(SafetyError, match=f"is of table {table.metadata.table_uuid}"):
        lake.remove_orphans()


def test_kept_table_named_dead_loses_data_but_not_metadata():
    """The operator's word is for the data; `register` names what is missing."""
    lake = Lake()
    table, kept = lake.keep("a1", "a2")
    lake.create(*MANY)
    result = lake.remove_orphans(options={"ignore-metadata-of": table.metadata.table_uuid})
    assert (result.deleted_files_count, result.kept.versions_count) == (4, 2)
    assert kept in lake.memory.files


def test_what_a_drop_moved_aside_stops_nothing():
    """It was registered again from a copy."""
    lake = Lake()
    table, kept = lake.keep("a1", "a2")
    copy = f"{table.metadata.location}/copied.metadata.json"
    lake.storage.create(copy, format_metadata(table.metadata))
    again = register_table(lake.catalog, EVENTS, copy)
    lake.append(again, "a3")
    assert lake.remove_orphans().orphan_files_count == 0
    assert kept in lake.memory.files
    assert lake.purge().status == "done"
    assert not lake.memory.files


def test_a_purge_under_way_leaves_a_kept_table():
    """It came there since the purge looked, or the purge was begun by a version that did not look."""
    lake = Lake()
    table, kept = lake.keep("a1")
    hidden = {at: lake.memory.files.pop(at) for at in [*lake.memory.files] if "/.icekeep/trash/" in at}
    lake.create("b1")

    def come(what, location):
        if what == "create" and location.endswith("/dropped.json"):
            lake.memory.files |= hidden

    lake.storage.before = come
    assert lake.purge().status == "done"
    assert lake.comes_back(table, kept) == {"a1"}
    assert not [at for at in lake.memory.files if "/.icekeep/" in at or at.endswith("b1")]


def test_purge_names_no_version_by_its_name_before_the_drop():
    """From then on the name may be that of a new table's first version."""
    lake, deleted = Lake(), []
    lake.create("a1")
    delete_many = lake.storage.delete_many

    def noted(locations):
        deleted.extend(locations := [*locations])
        return delete_many(locations)

    lake.storage.delete_many = noted
    assert lake.purge().status == "done"
    assert [at for at in deleted if at.endswith(".metadata.json") and "/.icekeep/trash/drop-" not in at] == []
    assert not lake.memory.files


def test_the_trash_of_a_kept_table_can_be_restored():
    """In a catalog that leaves the metadata where it is."""
    world = ExpiredWorld()
    expired = world.expire(trash=9)
    table = world.table
    own = {at for at in world.memory.files if "/.icekeep/trash/" in at}
    assert drop_table(with_runtime(table, world.runtime), no_spark).status == "done"
    later = replace(table.metadata, table_uuid=str(world.runtime.new_uuid()), snapshots=(), refs={}, snapshot_log=())
    world.catalog.create(EVENTS, replace(later, current_snapshot_id=None, metadata_log=()))
    assert drop_table(with_runtime(world.table, world.runtime), no_spark, purge=True).status == "done"
    with pytest.raises(NotFoundError):
        world.catalog.load(EVENTS)
    assert own <= {*world.memory.files}
    register_table(world.catalog, EVENTS, table.metadata_location)
    assert world.restore(expired.plan_location.rpartition("/")[2]).status == "done"


class Killed(BaseException):
    """The process dies."""


class KeptHistory(Lake):
    """Tables of one name and place, one after the other, by chance; `kept` are those that were dropped and not purged."""

    def __init__(self, seed):
        super().__init__()
        self.random, self.number = Choices(seed), 0
        self.kept = {}

    @property
    def current(self):
        try:
            return with_runtime(self.catalog.load(EVENTS), self.runtime)
        except NotFoundError:
            return None

    def new_names(self):
        self.number += 1
        return [f"{self.number}-{each}" for each in range(self.random.choice([1, 2, 30]))]

    def grow(self):
        if self.current is None:
            self.create(*self.new_names())
        else:
            self.append(self.current, *self.new_names())

    def keep_it(self):
        table = self.current
        if table is not None:
            self.kept[self.drop()] = files_of(table.metadata, self.memory)

    def take_back(self):
        if self.kept and self.current is None:
            kept = self.random.choice(sorted(self.kept))
            register_table(self.catalog, EVENTS, kept)
            del self.kept[kept]

    def purge_it(self):
        """It may die at any call of the store."""
        calls, dies_at = count(), self.random.choice([None, self.random.randrange(120)])

        def die(what, location):
            if next(calls) == dies_at:
                raise Killed

        if self.current is not None:
            self.storage.before = die
            with suppress(SafetyError, Killed):
                self.purge()
            self.storage.before = lambda *_: None

    def clean(self):
        if self.current is not None:
            below = self.random.choice([None, f"{self.current.metadata.location}/data"])
            with suppress(SafetyError, TryAgainError):
                self.remove_orphans(location=below)

    def expire(self):
        if self.current is not None:
            arguments = {"older_than": self.runtime.now_ms() + 1, "retain_last": 1, "trash": self.random.choice([0, 2])}
            expire_snapshots(self.current, no_spark, **arguments)

    def run(self):
        steps = (self.grow, self.grow, self.keep_it, self.take_back, self.purge_it, self.clean, self.clean, self.expire)
        for _ in range(30):
            self.runtime.pass_ms(self.random.choice([1000, DAY_MS, 5 * DAY_MS]))
            self.random.choice(steps)()
            for location, files in self.kept.items():
                lost = {location, *files} - self.memory.files.keys()
                assert not lost, f"of the table that was kept at {location!r}, {sorted(lost)[0]!r} is gone"


def run_histories(many):
    for seed in range(many):
        KeptHistory(seed).run()


@pytest.mark.slow
def test_kept_tables_survive_any_history():
    run_histories(scaled(10))


def forgets_them_in_purges(monkeypatch):
    monkeypatch.setattr(unfinished, "dropped_heads", lambda *_: ())


def forgets_them_in_listings(monkeypatch):
    monkeypatch.setattr(hidden, "MOVED_ASIDE", "^nothing$")


def forgets_them_beside_listings(monkeypatch):
    monkeypatch.setattr(candidates, "dropped_heads", lambda *_: ())


@pytest.mark.slow
@pytest.mark.parametrize("breaks", [forgets_them_in_purges, forgets_them_in_listings, forgets_them_beside_listings])
def test_what_is_broken_on_purpose_loses_files_of_them(breaks, monkeypatch):
    breaks(monkeypatch)
    with pytest.raises(AssertionError, match="of the table that was kept"):
        run_histories(60)
