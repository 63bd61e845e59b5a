"""Nothing is deleted from a table whose place another table of the catalog has, holds or lies in (apache/iceberg #16493)."""

import gzip
import json
import time
from collections import Counter
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.catalog.base import Description, NamespacesMissingError, Pointer
from icekeep.catalog.open import open_catalog
from icekeep.errors import (
    ConfigError,
    InvalidTableError,
    NotFoundError,
    SafetyError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from icekeep.events import Warned
from icekeep.maintenance.delete.locations import deletable_locations, forget_locations
from icekeep.maintenance.delete.neighbours import Neighbours, neighbours
from icekeep.operations.rehearsal import Rehearsal, WatchedCatalog
from icekeep.spec.metadata import metadata_to_json
from icekeep.spec.updates import SetLocation, SetProperties
from kit.catalogs import set_counter, simple_metadata
from kit.hive_server import HiveServer
from kit.memory_catalog import MemoryCatalog
from kit.rest_server import RestServer
from kit.storage import HookedStorage, MemoryStorage

WAREHOUSE = "memory://lake/wh"


class Told:
    """Keeps what it is told."""

    def __init__(self):
        self.warnings = []

    def on(self, event):
        assert isinstance(event, Warned)
        self.warnings.append(event.message)


class Lake(MemoryCatalog):
    """A catalog whose reads are counted, and whose operations can be made to fail, by name and argument."""

    def __init__(self, storage=None):
        self.reads = HookedStorage(MemoryStorage() if storage is None else storage)
        self.failing = {}
        super().__init__(self.reads)

    def put(self, name, location=None, **properties):
        """A new table; `__` in the names of properties stands for `.`."""
        identifier = tuple(name.split("."))
        self.create_namespace(identifier[:-1], exists_ok=True)
        given = {key.replace("__", "."): value for key, value in properties.items()}
        metadata = simple_metadata(location or self.default_location(identifier), **given)
        return self.create(identifier, msgspec.structs.replace(metadata, table_uuid=str(self.runtime.new_uuid())))

    def overwrite(self, table, data):
        """Make something else of a table's metadata file."""
        entry = self.reads.inner.files[table.metadata_location]
        self.reads.inner.files[table.metadata_location] = (data, entry[1])

    def find(self, identifier):
        self._fail("find", identifier)
        return super().find(identifier)

    def list_tables(self, namespace):
        self._fail("list_tables", namespace)
        return super().list_tables(namespace)

    def list_namespaces(self):
        self._fail("list_namespaces", None)
        return super().list_namespaces()

    def _fail(self, operation, argument):
        error = self.failing.get((operation, argument))
        if error is not None:
            raise error


@pytest.fixture
def lake():
    return Lake()


def refused(table):
    with pytest.raises(SafetyError) as caught:
        neighbours(table)
    assert "\n" not in caught.value.message
    return caught.value


def test_a_table_alone_has_no_neighbours(lake):
    told = Told()
    assert neighbours(lake.put("db.t"), listener=told) == Neighbours()
    assert told.warnings == []


@pytest.mark.parametrize("kind", ["sql", "filesystem"])
def test_tables_beside_each_other_are_no_overlap(tmp_path, kind):
    """apache/iceberg #16493: a common prefix is not a common place; all namespaces are looked at."""
    catalog = open_catalog("local", {"type": kind, "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"{tmp_path}/wh"})
    tables = []
    for identifier in (("db", "t1"), ("db", "t10"), ("db2", "t1"), ("db", "deep", "t1")):
        catalog.create_namespace(identifier[:-1], exists_ok=True)
        tables.append(catalog.create(identifier, simple_metadata(catalog.default_location(identifier))))
    for table in tables:
        assert neighbours(table) == Neighbours()
    last = tables[-1]
    path = Path(last.metadata_location.removeprefix("file://"))
    path.write_text(json.dumps({"format-version": 9, "location": f"{tables[0].metadata.location}/inner"}))
    forget_locations()
    error = refused(tables[0])
    assert error.facts == {
        "table": "db.t1",
        "other": "db.deep.t1",
        "location": tables[0].metadata.location,
        "other_location": f"{tables[0].metadata.location}/inner",
    }
    # This one has a metadata file in the other's place.
    assert neighbours(tables[1]) == Neighbours()


@pytest.mark.parametrize(
    ("ours", "theirs", "relation"),
    [
        (f"{WAREHOUSE}/x", f"{WAREHOUSE}/x/y", "contains"),
        (f"{WAREHOUSE}/x", f"{WAREHOUSE}/x/data/y", "contains"),
        (f"{WAREHOUSE}/x/y", f"{WAREHOUSE}/x", "lies in"),
        (f"{WAREHOUSE}/x", f"{WAREHOUSE}/x", "is the same place as"),
        (f"{WAREHOUSE}/x", f"{WAREHOUSE}//./y/../x", "is the same place as"),
        (f"{WAREHOUSE}/x", "memory:/wh/x", "is the same place as"),
        (f"{WAREHOUSE}/x", "memory://lake", "lies in"),
    ],
)
def test_a_location_that_meets_anothers_is_refused(lake, ours, theirs, relation):
    """Nested both ways, same location, two namespaces."""
    table = lake.put("db.ours", ours)
    lake.put("other.theirs", theirs, write__metadata__path=f"{WAREHOUSE}/meta")
    assert refused(table).message == (
        f"{ours!r} of table 'db.ours' {relation} {theirs!r} of table 'other.theirs': files of one would look like garbage "
        "of the other, so nothing is deleted; move one of the two tables to a place of its own, or drop the one that is not "
        "in use without purging it"
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (f"{WAREHOUSE}/t1", f"{WAREHOUSE}/t10"),
        (f"{WAREHOUSE}/t1", f"{WAREHOUSE}/T1"),
        (f"{WAREHOUSE}/t1", "memory://pond/wh/t1"),
        (f"{WAREHOUSE}/a%2Fb", f"{WAREHOUSE}/a/b"),
    ],
)
def test_locations_that_only_look_alike_are_no_overlap(lake, ours, theirs):
    for table in (lake.put("db.ours", ours), lake.put("db.theirs", theirs)):
        assert neighbours(table) == Neighbours()


@pytest.mark.parametrize("key", ["write__data__path", "write__metadata__path"])
@pytest.mark.parametrize(
    "place", [WAREHOUSE, f"{WAREHOUSE}/db", f"{WAREHOUSE}/db/theirs", f"{WAREHOUSE}/db/theirs/data"]
)
def test_directories_that_meet_a_location(lake, key, place):
    """Z1: whoever may write a table's properties must not make its maintenance delete elsewhere."""
    ours = lake.put("db.ours", f"{WAREHOUSE}/apart/ours", **{key: place})
    theirs = lake.put("db.theirs")
    for table in (ours, theirs):
        message = refused(table).message
        assert f"{place!r} of table 'db.ours'" in message
        assert f"{theirs.metadata.location!r} of table 'db.theirs'" in message


@pytest.mark.parametrize("key", ["write__data__path", "write__metadata__path"])
@pytest.mark.parametrize("theirs", ["memory://lake/files", "memory://lake/files/", "memory://lake/files/x"])
def test_shared_directories_stop_who_lists_them(lake, key, theirs):
    """Iceberg's layout for object stores puts files of several tables below one `write.data.path`."""
    tables = [lake.put("db.a", write__data__path="memory://lake/files"), lake.put("db.b", **{key: theirs})]
    lake.put("db.c")
    for table in tables:
        assert neighbours(table) == neighbours(table, looked_at=table.metadata.location) == Neighbours()
        with pytest.raises(SafetyError, match=r"'memory://lake/files/x' of table 'db\.[ab]' "):
            neighbours(table, looked_at="memory://lake/files/x")


def test_a_whole_bucket_as_data_path_stands_in_nobodys_way(lake):
    """It says nothing of where in the bucket the files are, and nothing is deleted by it."""
    for table in (lake.put("db.a", write__data__path="memory://lake"), lake.put("db.b")):
        assert neighbours(table) == Neighbours()


def test_metadata_inside_another_table_is_refused(lake):
    """A metadata file where no location says that it is; the pointer alone tells."""
    ours = lake.put("db.ours")
    theirs = lake.put("db.theirs", f"{WAREHOUSE}/db/ours/x")
    moved = {**metadata_to_json(theirs.metadata), "location": f"{WAREHOUSE}/apart"}
    lake.overwrite(theirs, json.dumps(moved).encode())
    assert f"contains {theirs.metadata_location!r} of table 'db.theirs'" in refused(ours).message


@pytest.mark.parametrize("has_uuid", [True, False])
def test_a_table_with_a_second_name_is_refused_under_both(lake, has_uuid):
    table = lake.put("db.first")
    if not has_uuid:
        document = {**metadata_to_json(table.metadata), "format-version": 1, "schema": {"type": "struct", "fields": []}}
        lake.overwrite(table, json.dumps({k: v for k, v in document.items() if k != "table-uuid"}).encode())
        table = msgspec.structs.replace(table, metadata=msgspec.structs.replace(table.metadata, table_uuid=None))
    lake._locations["db", "second"] = table.metadata_location
    message = refused(table).message
    assert message.startswith(
        f"table 'db.first' at {table.metadata.location!r} is in catalog 'local' a second time, as "
    )
    assert f"'db.second' at {table.metadata.location!r}" in message
    assert "as 'db.first'" in refused(msgspec.structs.replace(table, identifier=("db", "second"))).message


def test_a_copy_with_the_same_uuid_is_refused_wherever_it_lies(lake):
    """As `register_table` leaves it once both names were committed to."""
    table = lake.put("db.first")
    copy = msgspec.structs.replace(
        table.metadata, location="memory://pond/copy", table_uuid=table.metadata.table_uuid.upper()
    )
    lake.create(("db", "copy"), copy)
    assert "a second time, as 'db.copy' at 'memory://pond/copy'" in refused(table).message


def test_folded_table_name_is_not_its_own_neighbour(lake):
    table = msgspec.structs.replace(lake.put("db.events"), identifier=("DB", "Events"))
    assert neighbours(table) == Neighbours()
    lake._locations["db", "second"] = table.metadata_location
    assert "as 'db.second'" in refused(table).message


def test_names_differing_by_case_are_two_tables_if_listed(lake):
    table = lake.put("db.events")
    lake._locations["db", "Events"] = table.metadata_location
    assert "as 'db.Events'" in refused(table).message


def test_tables_of_any_version_and_in_gzip_have_a_place(lake):
    ours = lake.put("db.ours")
    for name, data in {
        "v9": json.dumps({"format-version": 9, "location": f"{WAREHOUSE}/db/ours/v9", "new": [1]}).encode(),
        "gz": gzip.compress(json.dumps({"location": f"{WAREHOUSE}/db/ours/gz", "properties": None}).encode()),
        "odd": json.dumps({"location": f"{WAREHOUSE}/db/ours/odd", "properties": {"write.data.path": 7}}).encode(),
    }.items():
        theirs = lake.put(f"db.{name}")
        lake.overwrite(theirs, data)
        assert f"contains '{WAREHOUSE}/db/ours/{name}' of table 'db.{name}'" in refused(ours).message
        lake.drop(("db", name))
    assert neighbours(ours) == Neighbours()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"[]",
        b"{}",
        b'{"location": 7}',
        b'{"location": "relative"}',
        b'{"location": ""}',
        b'{"location": "x:/\\u0000"}',
        b"\x1f\x8bgarbage",
        gzip.compress(mtime=0, data=b'{"location": "memory://lake/x"}')[:-9],
        b'{"location": ' + b"[" * 100_000,
        b'{"location": "memory://lake/x", "properties": 7}',
        None,
    ],
)
def test_unloadable_table_is_reported_and_others_are_checked(lake, data):
    """Issue rule: such a table stops orphan removal and purge, not expiration."""
    ours, broken, told = lake.put("db.ours"), lake.put("db.broken"), Told()
    if data is None:
        lake.reads.inner.delete_many([broken.metadata_location])
    else:
        lake.overwrite(broken, data)
    assert neighbours(ours, listener=told) == Neighbours(unreadable=("db.broken",))
    (warning,) = told.warnings
    assert warning.startswith("it is not known where table 'db.broken' lies: ")
    assert "\n" not in warning
    lake.put("db.in", f"{WAREHOUSE}/db/ours/in")
    assert "'db.in'" in refused(ours).message


@pytest.mark.parametrize(
    "error",
    [UnavailableError("down"), UnsupportedError("is no Iceberg table"), UsageError("denied"), NotFoundError("hidden")],
)
def test_a_table_that_the_catalog_does_not_tell_is_named(lake, error):
    ours, told = lake.put("db.ours"), Told()
    lake.put("db.other")
    lake.failing["find", ("db", "other")] = error
    assert neighbours(ours, listener=told) == Neighbours(unreadable=("db.other",))
    assert told.warnings == [f"it is not known where table 'db.other' lies: {error.message}"]


def test_table_dropped_during_the_check_is_no_neighbour(lake):
    ours = lake.put("db.ours")
    lake.put("db.other")
    lake.create_namespace(("gone",))
    lake.failing["list_tables", ("gone",)] = NotFoundError("gone")
    find = lake.find

    def drop_then_find(identifier):
        lake.drop(identifier)
        return find(identifier)

    lake.find = drop_then_find
    assert neighbours(ours) == Neighbours()


def test_a_table_that_moved_on_is_looked_at_where_it_is(lake):
    ours, theirs = lake.put("db.ours"), lake.put("db.theirs")
    stale = Pointer(theirs.metadata_location, lake.reads)
    lake.swap(theirs, [], [SetLocation(f"{WAREHOUSE}/db/ours/x")])
    lake.reads.inner.delete_many([theirs.metadata_location])
    find, answers = lake.find, [stale]
    lake.find = lambda identifier: answers.pop() if answers else find(identifier)
    assert f"contains '{WAREHOUSE}/db/ours/x'" in refused(ours).message


@pytest.mark.parametrize(
    ("operation", "argument", "reason"),
    [
        ("list_namespaces", None, "catalog 'local' does not list its namespaces: denied"),
        ("list_tables", ("db2",), "catalog 'local' does not list the tables of namespace 'db2': denied"),
    ],
)
def test_unlisted_namespace_is_reported_and_others_checked(lake, operation, argument, reason):
    ours, told = lake.put("db.ours"), Told()
    lake.put("db2.other")
    lake.failing[operation, argument] = UsageError("denied\nat length")
    assert neighbours(ours, listener=told) == Neighbours(unlisted_reason=reason)
    assert told.warnings == [f"tables that are not known may lie where table 'db.ours' does: {reason}"]
    lake.put("db.in", f"{WAREHOUSE}/db/ours/in")
    assert "'db.in'" in refused(ours).message


def test_of_a_listing_with_gaps_what_is_known_is_looked_at(lake):
    ours = lake.put("db.ours")
    lake.failing["list_namespaces", None] = NamespacesMissingError("there may be others", [("db2",)])
    assert neighbours(ours).unlisted_reason == "there may be others"
    lake.put("db2.in", f"{WAREHOUSE}/db/ours/in")
    assert "'db2.in'" in refused(ours).message


@pytest.mark.parametrize("was_used", [True, False], ids=["disk away since", "never seen"])
def test_missing_sqlite_file_is_an_error(tmp_path, was_used):
    """What a table that lies inside another had was taken for that one's garbage."""
    (tmp_path / "disk").mkdir()
    properties = {"uri": f"sqlite:///{tmp_path}/disk/catalog.db", "warehouse": f"{tmp_path}/warehouse"}
    catalog = open_catalog("local", {"type": "sql", **properties})
    catalog.create_namespace(("db",))
    ours = catalog.create(("db", "ours"), simple_metadata(catalog.default_location(("db", "ours"))))
    catalog.create(("db", "in"), simple_metadata(f"{ours.metadata.location}/in"))
    (tmp_path / "disk").rename(tmp_path / "away")
    (tmp_path / "disk").mkdir()
    if not was_used:
        ours = msgspec.structs.replace(ours, catalog=open_catalog("local", {"type": "sql", **properties}))
    with pytest.raises(UnavailableError if was_used else ConfigError, match=r"there is no file '.*catalog\.db'"):
        neighbours(ours, looked_at=ours.metadata.location)


def test_unlisted_own_table_means_others_may_be_hidden(lake):
    ours = lake.put("db.ours")
    lake.drop(("db", "ours"))
    assert (
        neighbours(ours).unlisted_reason == "catalog 'local' does not list the table itself, so it may not list others"
    )


def test_a_table_without_a_location_is_refused(lake):
    ours = lake.put("db.ours")
    nowhere = msgspec.structs.replace(ours, metadata=msgspec.structs.replace(ours.metadata, location="relative"))
    with pytest.raises(InvalidTableError, match=r"table 'db.ours' has location 'relative', which is no location"):
        neighbours(nowhere)


def test_wrapped_catalogs_give_the_same_neighbours(lake):
    lake.put("db.ours")
    lake.put("db.in", f"{WAREHOUSE}/db/ours/in")
    for catalog in (WatchedCatalog(lake), Rehearsal(lake, lake.storage)):
        assert "'db.in'" in refused(catalog.load("db.ours")).message


@pytest.fixture
def rest(tmp_path):
    server = RestServer(tmp_path)
    yield server.properties
    server.close()


@pytest.fixture
def hive(tmp_path):
    server = HiveServer()
    yield {"type": "hive", "uri": f"thrift://127.0.0.1:{server.port}", "warehouse": (tmp_path / "warehouse").as_uri()}
    server.close()


@pytest.mark.server
@pytest.mark.parametrize("kind", ["rest", "hive"])
def test_catalogs_behind_clients_are_asked_from_several_threads(kind, request):
    catalog = open_catalog("local", request.getfixturevalue(kind))
    for namespace in ("db", "db2"):
        catalog.create_namespace((namespace,))
    names = [("db", "ours"), *(("db2", f"t{n}") for n in range(9))]
    ours, *others = [catalog.create(name, simple_metadata(catalog.default_location(name))) for name in names]
    assert neighbours(ours) == Neighbours()
    inside = json.dumps({"location": f"{ours.metadata.location}/inner"})
    Path(others[-1].metadata_location.removeprefix("file://")).write_text(inside)
    assert neighbours(ours) == Neighbours()
    forget_locations()
    assert "inner' of table 'db2.t8'" in refused(ours).message


@pytest.mark.slow
def test_five_hundred_tables_are_read_once_each_and_then_no_more(lake):
    ours = lake.put("db.ours")
    tables = [lake.put(f"db{n % 7}.t{n}") for n in range(500)]
    reads = Counter()
    lake.reads.before = lambda operation, location: reads.update([location] if operation == "read" else [])
    begun = time.perf_counter()
    assert neighbours(ours) == Neighbours()
    assert time.perf_counter() - begun < 10
    assert reads == Counter(table.metadata_location for table in tables)
    reads.clear()
    assert neighbours(ours) == Neighbours()
    assert reads == Counter()
    changed = lake.swap(tables[3], [], set_counter(1)).table
    lake.drop(("db4", "t4"))
    reads.clear()
    assert neighbours(ours) == Neighbours()
    assert reads == Counter([changed.metadata_location])


def test_recreated_version_file_is_read_again(tmp_path):
    """A catalog in a directory counts from one again when a table is dropped and created again."""
    catalog = open_catalog("local", {"type": "filesystem", "warehouse": f"{tmp_path}/wh"})
    catalog.create_namespace(("db",))
    ours, theirs = (catalog.create(("db", t), simple_metadata(catalog.default_location(("db", t)))) for t in ("a", "b"))
    assert neighbours(ours) == Neighbours()
    catalog.drop(("db", "b"))
    inside = {"write.data.path": f"{ours.metadata.location}/data"}
    again = catalog.create(("db", "b"), simple_metadata(theirs.metadata.location, **inside))
    assert again.metadata_location == theirs.metadata_location
    assert f"contains '{ours.metadata.location}/data' of table 'db.b'" in refused(ours).message


def test_orphan_removal_counts_only_the_listed_directory(lake):
    """A table in `inner` does not stop the listing of `data`; what is its own is told to be kept."""
    ours, told = lake.put("db.ours"), Told()
    lake.put("db.inner", f"{WAREHOUSE}/db/ours/inner")
    around = neighbours(ours, looked_at=f"{WAREHOUSE}/db/ours/data", listener=told)
    assert f"{WAREHOUSE}/db/ours/inner" in around.other_roots
    (warning,) = told.warnings
    assert warning.endswith("of table 'db.inner': files in places of that table are kept")
    with pytest.raises(SafetyError, match="contains"):
        neighbours(ours, looked_at=f"{WAREHOUSE}/db/ours")


@pytest.mark.parametrize("theirs", [f"{WAREHOUSE}/db/ours/in", "memory:/wh/db/ours/in", "memory:/wh/db/ours/./in/"])
def test_nested_places_are_left_alone(lake, theirs):
    """Expiration warns, and what lies in the inner table's place is no file of the outer one's."""
    outer = lake.put("db.ours")
    inner = lake.put("db.inner", theirs, write__metadata__path=f"{WAREHOUSE}/meta")
    told = Told()
    around = neighbours(outer, refuses_overlap=False, listener=told)
    assert len(told.warnings) == 1
    mine = deletable_locations(outer, (), around.other_roots)
    names = [
        f"{WAREHOUSE}/db/ours/{name}" for name in ("data/f", "in/data/f", "in", "in2/f", "data/../in/f", "in//f", "//f")
    ]
    held = [True, False, False, True, False, False, True]
    assert [mine.holds(name) for name in names] == held
    assert mine.mask(pa.array(names)).tolist() == held
    around = neighbours(inner, refuses_overlap=False)
    nested = deletable_locations(inner, (), around.other_roots)
    assert not nested.holds(f"{inner.metadata.location}/data/f")
    named = deletable_locations(inner, [inner.metadata.location], around.other_roots)
    assert named.holds(f"{inner.metadata.location}/data/f")
    assert not named.holds(f"{outer.metadata.location}/data/f")


def test_two_tables_at_one_location_are_refused_for_every_job(lake):
    ours = lake.put("db.ours")
    lake.put("db.theirs", ours.metadata.location)
    with pytest.raises(SafetyError, match="is the same place as"):
        neighbours(ours, refuses_overlap=False)


@pytest.mark.parametrize("is_found", [True, False])
def test_an_unreadable_table_is_judged_by_its_entry(lake, is_found):
    """Another team's table, whose metadata is forbidden or gone."""
    ours, broken = lake.put("db.ours"), lake.put("db.broken")
    lake.reads.inner.delete_many([broken.metadata_location])
    if not is_found:
        lake.failing["find", ("db", "broken")] = UsageError("denied")
    told = Told()
    lake.described["db", "broken"] = Description(f"{WAREHOUSE}/db/broken", is_whole=True)
    assert neighbours(ours, listener=told) == Neighbours()
    (warning,) = told.warnings
    assert f"is judged by where the catalog says that it lies, '{WAREHOUSE}/db/broken': " in warning
    for described in (
        Description(f"{WAREHOUSE}/db/ours/x"),
        Description(f"{WAREHOUSE}/db/broken", {"write.data.path": f"{WAREHOUSE}/db/ours/x"}),
        Description(f"{WAREHOUSE}/db/broken", {}, (f"{WAREHOUSE}/db/ours/x/m.json",)),
    ):
        lake.described["db", "broken"] = described
        assert f"contains '{WAREHOUSE}/db/ours/x" in refused(ours).message
    # A catalog that does not know of `write.data.path` may say where a table lies, and never that it lies nowhere else.
    lake.described["db", "broken"] = Description(f"{WAREHOUSE}/db/broken")
    assert neighbours(ours) == Neighbours(unreadable=("db.broken",))
    lake.described["db", "broken"] = Description("nowhere")
    assert neighbours(ours) == Neighbours(unreadable=("db.broken",))


def test_unloadable_table_can_be_accepted_by_name(lake):
    ours, told = lake.put("db.ours"), Told()
    for name in ("a", "b"):
        lake.put(f"db.{name}")
        lake.failing["find", ("db", name)] = UsageError("denied")
    lake.put("db.fine")
    around = neighbours(ours, accepted=("db.b", "db.fine", "db.none"), listener=told)
    assert around == Neighbours(unreadable=("db.a",), accepted=("db.b",))
    assert told.warnings == [
        "it is not known where table 'db.a' lies: denied",
        "it is not known where table 'db.b' lies, which is accepted: denied",
    ]
    lake.put("db.in", f"{WAREHOUSE}/db/ours/in")
    with pytest.raises(SafetyError, match=r"'db\.in'"):
        neighbours(ours, accepted=("db.a", "db.b", "db.in"))


NAMES = st.lists(st.sampled_from(["a", "b", "ab", "t", "data"]), min_size=1, max_size=4)


@given(ours=NAMES, our_data=st.none() | NAMES, theirs=NAMES, their_data=st.none() | NAMES)
def test_what_is_not_refused_never_holds_a_file_of_the_other(ours, our_data, theirs, their_data):
    lake = Lake()

    def put(name, location, data):
        properties = {} if data is None else {"write__data__path": f"memory://lake/{'/'.join(data)}"}
        return lake.put(name, f"memory://lake/{'/'.join(location)}", **properties)

    one, other = put("db.one", ours, our_data), put("db.other", theirs, their_data)
    answers = []
    for table, them in ((one, other), (other, one)):
        try:
            neighbours(table)
        except SafetyError:
            answers.append("refused")
            continue
        answers.append("fine")
        mine = deletable_locations(table)
        location = them.metadata.location
        assert not mine.holds(f"{location}/x")
        assert not mine.holds(them.metadata_location)
        assert not mine.holds(f"{them.metadata.properties.get('write.data.path', f'{location}/data')}/x")
    assert answers[0] == answers[1]


def test_a_property_that_says_nothing_of_places_changes_nothing(lake):
    ours, theirs = lake.put("db.ours"), lake.put("db.theirs")
    lake.swap(theirs, [], [SetProperties({"write.location-provider.impl": "some.Class"})])
    assert neighbours(ours) == Neighbours()
