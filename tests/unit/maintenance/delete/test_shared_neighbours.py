"""Jobs of one run look at the tables of a catalog together: once, not for long, and never less than a job by itself."""

import threading
from collections import Counter

import msgspec
import pytest

from icekeep.errors import SafetyError, UnavailableError, UsageError
from icekeep.maintenance.delete import looks
from icekeep.maintenance.delete.locations import forget_locations, look_at
from icekeep.maintenance.delete.looks import FRESH_MS, LOOK_MS, SharedLooks, recording_looks, sharing
from icekeep.maintenance.delete.neighbours import Neighbours, neighbours
from icekeep.maintenance.drop.job import drop_table
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.spec.types import DAY_MS
from icekeep.spec.updates import SetLocation, SetProperties
from kit.catalogs import simple_metadata
from kit.changes import thrown
from kit.memory_catalog import MemoryCatalog
from kit.runtime import no_spark
from kit.storage import Meeting, MemoryStorage


class Asked(MemoryCatalog):
    def __init__(self):
        super().__init__(MemoryStorage())
        self.calls = Counter()
        self.broken = set()
        self.broken_finds = set()
        self.meet = lambda identifier: None

    def put(self, name, location=None):
        identifier = tuple(name.split("."))
        self.create_namespace(identifier[:-1], exists_ok=True)
        metadata = simple_metadata(location or self.default_location(identifier))
        return self.create(identifier, msgspec.structs.replace(metadata, table_uuid=str(self.runtime.new_uuid())))

    def find(self, identifier):
        self.calls["find"] += 1
        self.meet(identifier)
        if identifier in self.broken_finds:
            raise UsageError("it does not say")
        return super().find(identifier)

    def list_namespaces(self):
        self.calls["namespaces"] += 1
        return super().list_namespaces()

    def list_tables(self, namespace):
        self.calls["tables"] += 1
        if namespace in self.broken:
            raise UsageError("it does not say")
        return super().list_tables(namespace)


@pytest.fixture
def catalog():
    return Asked()


def places(number):
    return f"memory:///wh/db/t{number}-place"


@pytest.fixture
def tables(catalog):
    made = []
    for number in range(6):
        made.append(catalog.put(f"db.t{number}", places(number)))
    catalog.calls.clear()
    return made


def test_the_tables_of_a_run_are_looked_at_once_for_all_of_them(catalog, tables):
    with sharing(SharedLooks()):
        for table in tables * 3:
            assert neighbours(table).unlisted_reason == ""
    assert catalog.calls["find"] == 6
    neighbours(tables[0])
    assert catalog.calls["find"] == 11


def test_a_look_that_is_old_is_made_anew_and_sees_what_came(catalog, tables):
    looks = SharedLooks()
    with sharing(looks):
        neighbours(tables[0])
        moved = catalog.load(("db", "t5"))
        catalog.swap(moved, [], [SetLocation(f"{places(0)}/data/x")])
        catalog.runtime.pass_ms(LOOK_MS - 1)
        assert neighbours(tables[0]) == Neighbours()
        catalog.runtime.pass_ms(1)
        with pytest.raises(SafetyError, match=r"db\.t5"):
            neighbours(tables[0])


def test_listing_job_needs_a_fresh_look(catalog, tables):
    """A job that lists directories accepts a shared look only while it is fresh."""
    looks = SharedLooks()
    with sharing(looks):
        neighbours(tables[0])
        catalog.swap(catalog.load(("db", "t5")), [], [SetLocation(f"{places(0)}/data/x")])
        catalog.runtime.pass_ms(FRESH_MS - 1)
        assert neighbours(tables[0], looked_at=places(0)) == Neighbours()
        catalog.runtime.pass_ms(1)
        with pytest.raises(SafetyError, match=r"db\.t5"):
            neighbours(tables[0], looked_at=places(0))


def test_shared_look_sees_created_and_dropped_tables(catalog, tables):
    with sharing(SharedLooks()):
        neighbours(tables[0])
        catalog.put("db.inner", f"{places(0)}/data/x")
        with pytest.raises(SafetyError, match=r"db\.inner"):
            neighbours(tables[0])
        catalog.drop(("db", "inner"))
        assert neighbours(tables[0]) == Neighbours()


class AtOnce(Asked):
    """A catalog that tells all pointers in one request."""

    def list_pointers(self):
        self.calls["pointers"] += 1
        found = {}
        for namespace in MemoryCatalog.list_namespaces(self):
            for name in MemoryCatalog.list_tables(self, namespace):
                found[name] = MemoryCatalog.find(self, name)
        return found

    def list_pointers_beside(self):
        return {}


def test_catalog_with_bulk_pointers_is_asked_by_each_job():
    catalog = AtOnce()
    tables = [catalog.put(f"db.t{number}", places(number)) for number in range(6)]
    catalog.calls.clear()
    with sharing(SharedLooks()):
        for table in tables * 2:
            assert neighbours(table, looked_at=table.metadata.location) == Neighbours()
        assert catalog.calls == {"pointers": 13}
        catalog.put("db.inner", f"{places(0)}/data/x")
        with pytest.raises(SafetyError, match=r"db\.inner"):
            neighbours(tables[0])
        catalog.drop(("db", "inner"))
        catalog.swap(catalog.load(("db", "t5")), [], [SetLocation(f"{places(0)}/data/x")])
        assert neighbours(tables[0]) == Neighbours()
        # Somebody read it meanwhile, so that it is known where it lies now.
        look_at(catalog, ("db", "t5"))
        with pytest.raises(SafetyError, match=r"db\.t5"):
            neighbours(tables[0])


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("call", ["list_pointers", "list_namespaces", "list_tables"])
def test_a_catalog_out_of_reach_for_a_moment(monkeypatch, call, shares):
    catalog = AtOnce() if call == "list_pointers" else Asked()
    table = catalog.put("db.t0", places(0))
    catalog.put("db.inner", f"{places(0)}/data/x")

    def fails(*_):
        raise UnavailableError("connection refused")

    with sharing(SharedLooks() if shares else None):
        with monkeypatch.context() as patch:
            patch.setattr(catalog, call, fails)
            with pytest.raises(UnavailableError, match="connection refused"):
                neighbours(table, looked_at=places(0))
        with pytest.raises(SafetyError, match=r"db\.inner"):
            neighbours(table, looked_at=places(0))


def test_what_stands_in_the_way_is_refused_as_without_sharing(catalog, tables):
    catalog.put("db.inner", f"{places(2)}/data/x")
    outcomes = []
    for shares in (False, True):
        told = []
        for table in tables:
            try:
                with sharing(SharedLooks()) if shares else sharing(None):
                    neighbours(table)
                told.append("")
            except SafetyError as error:
                told.append(error.message)
        outcomes.append(told)
    assert outcomes[0] == outcomes[1]
    assert [bool(one) for one in outcomes[0]] == [False, False, True, False, False, False]


def test_what_a_look_has_not_seen_is_looked_at_alone(catalog, tables):
    looks = SharedLooks()
    with sharing(looks):
        neighbours(tables[0])
        late = catalog.put("db.late", f"{places(1)}/late")
        with pytest.raises(SafetyError, match=r"db\.t1"):
            neighbours(late)
    catalog.create_namespace(("other",))
    catalog.broken = {("other",)}
    with sharing(SharedLooks()):
        assert "it does not say" in neighbours(tables[3]).unlisted_reason
        catalog.broken = set()
        assert neighbours(tables[3]).unlisted_reason == ""


def test_of_several_threads_one_looks_and_the_others_wait(catalog, tables):
    looks = SharedLooks()
    begin = threading.Barrier(len(tables))
    found = []

    def ask(table):
        with sharing(looks):
            begin.wait(30)
            found.append(neighbours(table))

    threads = [threading.Thread(target=ask, args=(table,)) for table in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(tables)
    assert catalog.calls["find"] == 6


class Kept:
    """The record of looks in this process."""

    def __init__(self):
        self.looks = {}

    def last_look(self, catalog):
        return self.looks.get(catalog)

    def keep_look(self, catalog, at_ms, found):
        self.looks[catalog] = at_ms, found


@pytest.fixture
def looked(monkeypatch):
    """The names of the tables whose metadata is read to see where they lie, by each job of a new process."""
    names = []

    def noted(catalog, identifier, pointer=None):
        names.append(identifier[-1])
        return look_at(catalog, identifier, pointer)

    monkeypatch.setattr(looks, "look_at", noted)

    def by(job, record):
        forget_locations()
        names.clear()
        with recording_looks(record):
            job()
        return sorted(names)

    return by


@pytest.fixture
def at_once():
    catalog = AtOnce()
    for number in range(6):
        catalog.put(f"db.t{number}", places(number))
    return catalog


OTHERS = [f"t{number}" for number in range(1, 6)]


def expires(catalog, name="t0"):
    return lambda: expire_snapshots(catalog.load(("db", name)), no_spark)


def removes_orphans(catalog):
    return lambda: remove_orphan_files(catalog.load(("db", "t0")), no_spark)


def purges(catalog):
    return lambda: drop_table(catalog.load(("db", "t4")), spark=no_spark, purge=True)


def test_expiration_checks_unchanged_tables_once_a_day(at_once, looked):
    catalog, record = at_once, Kept()
    assert looked(expires(catalog), None) == OTHERS
    assert set(looked(expires(catalog), record)) >= {*OTHERS}
    catalog.runtime.pass_ms(DAY_MS - 1)
    assert looked(expires(catalog, "t1"), record) == []
    catalog.swap(catalog.load(("db", "t5")), [], [SetProperties(updates={"owner": "me"})])
    assert looked(expires(catalog), record) == ["t5"]
    catalog.runtime.pass_ms(1)
    assert set(looked(expires(catalog), record)) >= {*OTHERS}


@pytest.mark.parametrize("how", ["a new name", "a name of the day", "a move"])
def test_a_table_that_comes_to_lie_here_is_seen_within_the_day(at_once, looked, how):
    catalog, record = at_once, Kept()
    looked(expires(catalog), record)
    mine = catalog.load(("db", "t0"))
    if how == "a move":
        catalog.swap(catalog.load(("db", "t5")), [], [SetLocation(places(0))])
    else:
        name = ("db", "twin") if how == "a new name" else ("db", "t5")
        if how == "a name of the day":
            catalog.drop(name)
        catalog.register_table(name, mine.metadata_location)
    with pytest.raises(SafetyError, match=r"db\.(twin|t5)"):
        looked(expires(catalog), record)


def test_names_without_pointers_are_looked_at_by_every_run(catalog, tables, looked):
    record = Kept()
    for _ in range(2):
        assert looked(expires(catalog), record) == OTHERS
    assert record.looks == {}


def test_orphans_and_purges_look_whatever_is_written_down(at_once, looked):
    record = Kept()
    looked(expires(at_once), record)
    for job in (removes_orphans(at_once), purges(at_once)):
        assert len(looked(job, record)) >= 5


@pytest.mark.parametrize("what", ["it does not see all", "of a time to come", "no JSON"])
def test_a_look_that_is_no_good_is_made_again(at_once, looked, monkeypatch, what):
    record = Kept()
    with monkeypatch.context() as patch:
        if what == "it does not see all":
            patch.setattr(at_once, "list_pointers", thrown(UsageError("it does not say")))
        looked(expires(at_once), record)
    if what == "it does not see all":
        assert record.looks == {}
    for at_ms, found in [*record.looks.values()]:
        record.looks[at_once.identity] = (at_ms + 1, found) if what == "of a time to come" else (at_ms, b"{")
    assert set(looked(expires(at_once), record)) >= {*OTHERS}


def test_a_record_that_is_away_costs_a_look_and_no_run(at_once, looked):
    class Away(Kept):
        def last_look(self, catalog):
            raise UnavailableError("away")

        keep_look = last_look

    assert set(looked(expires(at_once), Away())) >= {*OTHERS}


def test_pointers_of_many_tables_are_asked_for_at_the_same_time(catalog, tables):
    for number in range(6, 12):
        catalog.put(f"db.t{number}", places(number))
    meeting = Meeting(2)
    catalog.meet = lambda identifier: meeting.at("t")("find", identifier[-1])
    assert neighbours(tables[0]) == Neighbours()
    assert meeting.took_place
