import json
import os
import re
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from contracts.catalog_contract import CatalogContract, CatalogRaceContract
from icekeep.catalog.base import Committed, Conflict, Unknown
from icekeep.catalog.metadata_files import dropped_from_log
from icekeep.catalog.open import open_catalog
from icekeep.catalog.sql import SqlCatalog
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.errors import (
    ConfigError,
    InvalidTableError,
    JobFailedError,
    MissingFileError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
    UsageError,
)
from icekeep.spec.updates import SetProperties
from icekeep.storage.local.storage import LocalStorage
from kit.catalogs import COUNTER, EVENTS, set_counter, simple_metadata
from kit.changes import thrown
from kit.runtime import FakeRuntime
from kit.storage import HookedStorage
from kit.tables import files, live

V0_TABLES = """
    CREATE TABLE iceberg_tables (
        catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,
        metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000),
        PRIMARY KEY (catalog_name, table_namespace, table_name));
    CREATE TABLE iceberg_namespace_properties (
        catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL, property_key VARCHAR(255) NOT NULL,
        property_value VARCHAR(1000), PRIMARY KEY (catalog_name, namespace, property_key));
"""


@pytest.fixture
def database(tmp_path):
    return tmp_path / "deep" / "er" / "catalog.db"


@pytest.fixture
def properties(tmp_path, database):
    # A short wait for locks: the tests that meet one know that it stays.
    return {"type": "sql", "uri": f"sqlite:///{database}?timeout=0.05", "warehouse": f"file://{tmp_path}/warehouse"}


@pytest.fixture
def catalog(properties):
    catalog = open_catalog("local", properties, FakeRuntime())
    catalog.create_namespace(("db",))
    return catalog


@pytest.fixture
def table(catalog):
    return catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))


@contextmanager
def foreign(database):
    """A connection of another program, in a transaction of its own making."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        yield connection


def run(database, statement, *values):
    with foreign(database) as connection:
        return connection.execute(statement, values).fetchall()


def metadata_files(table):
    return sorted(info.location for info in table.storage.list(f"{table.metadata.location}/metadata"))


class TestSqlCatalog(CatalogRaceContract):
    keeps_previous = True
    deletes_metadata = True
    is_absent_until_used = True

    @pytest.fixture
    def properties(self, tmp_path):
        uri = f"sqlite:///{tmp_path}/catalog.db"
        return {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/warehouse"}

    def test_level_with_dot_is_refused(self, catalog, create):
        catalog.create_namespace(("a", "b"))
        create(("a", "b", "t"))
        for use in (catalog.load, catalog.find, catalog.drop, catalog.default_location):
            with pytest.raises(UsageError, match=r"has none called 'a\.b'; name it without quotes, as a\.b$"):
                use(("a.b", "t"))
        with pytest.raises(UsageError, match="name it without quotes"):
            catalog.create_namespace(("a.b",))


class TestSqlCatalogOfSchemaVersionZero(CatalogContract):
    keeps_previous = True
    deletes_metadata = True
    is_absent_until_used = True

    @pytest.fixture
    def properties(self, tmp_path):
        uri = f"sqlite:///{tmp_path}/catalog.db"
        return {"type": "jdbc", "uri": uri, "warehouse": f"file://{tmp_path}/warehouse"}

    @pytest.fixture
    def catalog(self, properties, tmp_path):
        with foreign(tmp_path / "catalog.db") as connection:
            connection.executescript(V0_TABLES)
        catalog = open_catalog("local", properties)
        catalog.create_namespace(("db",))
        return catalog

    def test_it_is_not_migrated(self, catalog, create, tmp_path):
        catalog.swap(create(), [], set_counter(1))
        columns = run(tmp_path / "catalog.db", "SELECT name FROM pragma_table_info('iceberg_tables')")
        assert len(columns) == 5
        assert ("iceberg_type",) not in columns


def test_metadata_files_are_numbered_and_unique(catalog, table):
    assert table.metadata_location.startswith(f"{table.metadata.location}/metadata/00000-")
    second = catalog.swap(table, [], set_counter(1)).table
    assert second.metadata_location.startswith(f"{table.metadata.location}/metadata/00001-")


def test_metadata_files_go_where_the_table_wants_them(catalog, table, tmp_path):
    elsewhere = f"file://{tmp_path}/elsewhere"
    moved = catalog.swap(table, [], [SetProperties({"write.metadata.path": f"{elsewhere}/"})]).table
    assert moved.metadata_location.startswith(f"{elsewhere}/00001-")
    assert catalog.load(EVENTS).metadata == moved.metadata


def test_the_row_names_the_current_file_and_the_one_before(catalog, table, database):
    second = catalog.swap(table, [], set_counter(1)).table
    rows = run(database, "SELECT * FROM iceberg_tables")
    assert rows == [("local", "db", "events", second.metadata_location, table.metadata_location, "TABLE")]


def test_tables_of_other_catalogs_in_the_database_are_not_seen(catalog, table, properties):
    other = open_catalog("other", properties)
    assert other.list_namespaces() == []
    other.create_namespace(("db",))
    for identifier in (EVENTS, ("db", "theirs")):
        other.create(identifier, simple_metadata(other.default_location(("db", "elsewhere"))))
    assert catalog.list_tables(("db",)) == [EVENTS]
    assert other.list_tables(("db",)) == [EVENTS, ("db", "theirs")]
    other.drop(EVENTS)
    assert catalog.load(EVENTS).metadata == table.metadata


def test_a_view_is_no_table_but_holds_its_name(catalog, table, database):
    run(database, "INSERT INTO iceberg_tables VALUES ('local', 'db', 'report', 'file:///v.json', NULL, 'VIEW')")
    assert catalog.list_tables(("db",)) == [EVENTS]
    with pytest.raises(NotFoundError):
        catalog.load(("db", "report"))
    with pytest.raises(NotFoundError):
        catalog.drop(("db", "report"))
    with pytest.raises(UsageError, match="exists already"):
        catalog.create(("db", "report"), simple_metadata(catalog.default_location(("db", "report"))))
    with pytest.raises(UsageError, match="exists already"):
        catalog.rename(EVENTS, ("db", "report"))
    catalog.drop(EVENTS)
    run(database, "DELETE FROM iceberg_namespace_properties")
    with pytest.raises(UsageError, match="not empty"):
        catalog.drop_namespace(("db",))


def test_a_row_without_a_type_is_a_table(catalog, table, database):
    run(database, "UPDATE iceberg_tables SET iceberg_type = NULL")
    assert catalog.list_tables(("db",)) == [EVENTS]
    assert isinstance(catalog.swap(catalog.load(EVENTS), [], set_counter(1)), Committed)


def test_a_row_without_a_location_breaks_the_table(catalog, table, database):
    run(database, "UPDATE iceberg_tables SET metadata_location = NULL")
    with pytest.raises(InvalidTableError, match=r"table 'db.events' in catalog 'local' has no metadata location"):
        catalog.load(EVENTS)


def test_a_pointer_to_a_file_that_is_gone_is_a_missing_file(catalog, table):
    table.storage.delete_many([table.metadata_location])
    with pytest.raises(MissingFileError, match=table.metadata_location):
        catalog.load(EVENTS)


def test_a_renamed_table_keeps_its_location_and_its_history(catalog, table):
    catalog.create_namespace(("lake",))
    catalog.rename(EVENTS, ("lake", "clicks"))
    moved = catalog.load(("lake", "clicks"))
    assert moved.metadata_location == table.metadata_location
    assert isinstance(catalog.swap(moved, [], set_counter(1)), Committed)
    assert catalog.swap(table, [], set_counter(2)) == Conflict("the table was dropped or renamed", is_final=True)
    with pytest.raises(NotFoundError, match=r"no table 'db.events'"):
        catalog.rename(EVENTS, ("db", "again"))
    with pytest.raises(NotFoundError, match="no namespace 'none'"):
        catalog.rename(("lake", "clicks"), ("none", "clicks"))


def test_a_namespace_may_say_where_its_tables_go(catalog, tmp_path):
    catalog.create_namespace(("cold",), {"location": f"file://{tmp_path}/cold/"})
    assert catalog.default_location(("cold", "t")) == f"file://{tmp_path}/cold/t"


def test_without_a_warehouse_a_new_table_has_no_place(properties):
    catalog = open_catalog("local", {k: v for k, v in properties.items() if k != "warehouse"})
    catalog.create_namespace(("db",))
    with pytest.raises(ConfigError, match=r"'catalogs.local.warehouse': is missing"):
        catalog.default_location(EVENTS)


def test_namespaces_differ_by_case_and_wildcards(catalog):
    catalog.create_namespace(("D_",))
    assert catalog.list_namespaces() == [("D_",), ("db",)]
    with pytest.raises(NotFoundError):
        catalog.drop_namespace(("DB",))


def test_busy_database_at_swap_is_conflict_and_leaves_no_file(catalog, table, database):
    with foreign(database) as connection:
        connection.execute("BEGIN IMMEDIATE")
        outcome = catalog.swap(table, [], set_counter(1))
    assert outcome == Conflict("database is locked", is_final=True)
    assert metadata_files(table) == [table.metadata_location]
    assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)


@contextmanager
def reading(database):
    """A reader in the middle of its reading lets the row be changed, and stops the commit."""
    with foreign(database) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM iceberg_tables").fetchone()
        yield connection


@pytest.mark.slow
def test_commit_that_keeps_failing_is_unknown(catalog, table, database):
    with reading(database):
        outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Unknown)
    assert outcome.cause == "cannot tell whether the database of catalog 'local' committed: database is locked"
    assert metadata_files(table) == [table.metadata_location, outcome.metadata_location]
    assert catalog.load(EVENTS).metadata == table.metadata
    assert catalog.runtime.sleeps_ms == [1000, 2000, 4000]


def test_a_commit_that_fails_at_the_commit_is_sent_again(catalog, table, database):
    with reading(database) as reader:
        catalog.runtime.before_sleep = reader.rollback
        outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Committed)
    assert catalog.load(EVENTS).metadata == outcome.table.metadata
    assert metadata_files(table) == [table.metadata_location, outcome.table.metadata_location]


def test_a_commit_that_is_sent_again_loses_to_another_writers(catalog, properties, table, database):
    with reading(database) as reader:

        def be_faster() -> None:
            reader.rollback()
            other = open_catalog("local", properties)
            assert isinstance(other.swap(table, [], set_counter(7)), Committed)

        catalog.runtime.before_sleep = be_faster
        outcome = catalog.swap(table, [], set_counter(1))
    assert (type(outcome), outcome.is_final) == (Conflict, True)
    assert catalog.load(EVENTS).metadata.properties[COUNTER] == "7"
    assert len(metadata_files(table)) == 2


def test_abandoned_process_does_not_resend_commit(catalog, table, database):
    with reading(database):
        catalog.runtime.abandoned = True
        assert isinstance(catalog.swap(table, [], set_counter(1)), Unknown)
    # Nor is it waited for.
    assert catalog.runtime.sleeps_ms == []


class LostAnswers(SqlCatalog):
    """Transactions land, and what is done then happens before anybody knows."""

    def lose(self, *acts):
        transact, left = self._database.transact, list(acts)

        def lost(work):
            answer = transact(work)
            if left:
                left.pop(0)()
                raise OutcomeUnknownError("the answer was lost")
            return answer

        self._database.transact = lost


@pytest.fixture
def losing(catalog, properties):
    return LostAnswers("local", properties, LocalStorage(), FakeRuntime())


def test_landed_commit_is_found_below_later_commits(catalog, losing, table):
    def build_upon() -> None:
        assert isinstance(catalog.swap(catalog.load(EVENTS), [], set_counter("theirs")), Committed)

    losing.lose(build_upon)
    outcome = losing.swap(table, [], [SetProperties({"owner": "me"})])
    assert isinstance(outcome, Committed)
    assert catalog.load(EVENTS).metadata.properties.items() >= {COUNTER: "theirs", "owner": "me"}.items()
    assert len(metadata_files(table)) == 3


def test_commit_beyond_history_stays_unknown(catalog, losing):
    metadata = simple_metadata(catalog.default_location(EVENTS), **{"write.metadata.previous-versions-max": "1"})
    table = catalog.create(EVENTS, metadata)

    def build_upon() -> None:
        for number in range(3):
            assert isinstance(catalog.swap(catalog.load(EVENTS), [], set_counter(number)), Committed)

    losing.lose(build_upon)
    outcome = losing.swap(table, [], [SetProperties({"owner": "me"})])
    assert isinstance(outcome, Unknown)
    assert table.storage.head(outcome.metadata_location) is not None


def test_rename_after_lost_answer_leaves_commit_unknown(catalog, losing, table):
    losing.lose(lambda: catalog.rename(EVENTS, ("db", "moved")))
    outcome = losing.swap(table, [], set_counter(1))
    assert isinstance(outcome, Unknown)
    assert catalog.load(("db", "moved")).metadata_location == outcome.metadata_location


@pytest.mark.slow
def test_busy_database_at_create_is_unavailable(catalog, table, database):
    identifier = ("db", "orders")
    metadata = simple_metadata(catalog.default_location(identifier))
    with foreign(database) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="the database of catalog 'local' is busy: database is locked"):
            catalog.create(identifier, metadata)
        with pytest.raises(UnavailableError, match="busy"):
            catalog.drop(EVENTS)
    assert list(table.storage.list(metadata.location)) == []


@pytest.mark.slow
def test_refused_create_says_why_despite_cleanup_failure(catalog, table, database, monkeypatch):
    monkeypatch.setattr(LocalStorage, "delete_many", thrown(RuntimeError("the store's client broke")))
    with foreign(database) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="is busy"):
            catalog.create(("db", "orders"), table.metadata)
    select = catalog._select
    # As if another writer made the table just after the look.
    monkeypatch.setattr(catalog, "_select", lambda query: [] if "table_name =" in str(query) else select(query))
    with pytest.raises(UsageError, match="exists already"):
        catalog.create(EVENTS, table.metadata)


@pytest.mark.slow
def test_registration_unknown_can_be_repeated(catalog, table, database):
    """It is asked for twice, and the metadata file stays whatever comes of it."""
    location = catalog.drop(EVENTS)
    with foreign(database) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM iceberg_tables").fetchone()
        with pytest.raises(OutcomeUnknownError, match="cannot tell whether"):
            catalog.register_table(EVENTS, location)
    assert metadata_files(table) == [location]
    assert catalog.register_table(EVENTS, location).metadata == table.metadata


def test_create_failing_at_commit_is_unknown_and_keeps_file(catalog, table, database):
    identifier = ("db", "orders")
    metadata = simple_metadata(catalog.default_location(identifier))
    with foreign(database) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT * FROM iceberg_tables").fetchone()
        with pytest.raises(OutcomeUnknownError, match="cannot tell whether"):
            catalog.create(identifier, metadata)
    assert len(list(table.storage.list(metadata.location))) == 1


def test_statement_refused_by_database_proves_nothing_landed(catalog, table, database):
    run(database, "CREATE TRIGGER no BEFORE UPDATE ON iceberg_tables BEGIN SELECT RAISE(ABORT, 'not today'); END")
    with pytest.raises(JobFailedError, match="the database of catalog 'local' refused the change: not today"):
        catalog.swap(table, [], set_counter(1))
    assert metadata_files(table) == [table.metadata_location]


def test_a_swap_that_finds_its_own_work_done_has_committed(catalog, table, database):
    # The trigger makes the update land and count no row, as a statement that was sent twice does.
    run(
        database,
        """CREATE TRIGGER again BEFORE UPDATE ON iceberg_tables WHEN old.metadata_location <> new.metadata_location BEGIN
             UPDATE iceberg_tables SET metadata_location = new.metadata_location; SELECT RAISE(IGNORE); END""",
    )
    outcome = catalog.swap(table, [], set_counter(1))
    assert isinstance(outcome, Committed)
    assert catalog.load(EVENTS).metadata_location == outcome.table.metadata_location


def test_reading_waits_for_no_writer_and_changes_nothing(catalog, table, database):
    with foreign(database) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert catalog.load(EVENTS).metadata == table.metadata
        assert catalog.list_tables(("db",)) == [EVENTS]


def test_dropped_log_files_deleted_on_request(catalog, table):
    keep = {"write.metadata.previous-versions-max": "2"}
    tables = [table, catalog.swap(table, [], [SetProperties(keep)]).table]
    for value in range(3):
        tables.append(catalog.swap(tables[-1], [], set_counter(value)).table)
    assert metadata_files(table) == [t.metadata_location for t in tables]
    wanting = [SetProperties({"write.metadata.delete-after-commit.enabled": "true"})]
    tables.append(catalog.swap(tables[-1], [], wanting).table)
    # Only what leaves the log in this commit goes; what left it before is for orphan removal.
    left = [t.metadata_location for t in tables if t is not tables[2]]
    assert metadata_files(table) == left


def test_log_entries_elsewhere_are_kept(catalog, table, tmp_path):
    victims = [tmp_path / "other.metadata.json", tmp_path / "warehouse/db/events2/metadata/v1.metadata.json"]
    for victim in victims:
        victim.parent.mkdir(parents=True, exist_ok=True)
        victim.write_text("{}")
    inside = f"{table.metadata.location}/metadata"
    hostile = [f"file://{victims[0]}", f"{inside}/../../events2/metadata/v1.metadata.json", f"{inside}/data.parquet"]
    table.storage.create(f"{inside}/data.parquet", b"rows")
    path = Path(table.metadata_location.removeprefix("file://"))
    entries = ",".join(f'{{"timestamp-ms":1,"metadata-file":"{location}"}}' for location in hostile)
    path.write_text(path.read_text().replace('"metadata-log":[]', f'"metadata-log":[{entries}]'))
    loaded = catalog.load(EVENTS)
    assert len(loaded.metadata.metadata_log) == 3
    trimming = {"write.metadata.previous-versions-max": "1", "write.metadata.delete-after-commit.enabled": "true"}
    assert isinstance(catalog.swap(loaded, [], [SetProperties(trimming)]), Committed)
    assert all(victim.exists() for victim in victims)
    assert table.storage.head(f"{inside}/data.parquet")


def test_metadata_file_in_new_log_by_other_spelling_stays(catalog, table):
    """C7: for another tool one store may have another name."""
    trimming = {"write.metadata.previous-versions-max": "2", "write.metadata.delete-after-commit.enabled": "true"}
    base = catalog.swap(table, [], [SetProperties(trimming)]).table.metadata
    entry = base.metadata_log[0]
    again = replace(
        entry,
        metadata_file=entry.metadata_file.replace("file:", "hdfs://nn1:8020").replace("/metadata/", "//Metadata/"),
    )
    assert dropped_from_log(base, replace(base, metadata_log=())) == [entry]
    assert dropped_from_log(base, replace(base, metadata_log=(again,))) == []


def test_metadata_file_named_by_unknown_key_stays(catalog, table):
    """As where another engine keeps the one that a table was migrated from."""
    trimming = {"write.metadata.previous-versions-max": "1", "write.metadata.delete-after-commit.enabled": "true"}
    base = catalog.swap(table, [], [SetProperties(trimming)]).table
    path = Path(base.metadata_location.removeprefix("file://"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "migrated-from": {"file": table.metadata_location}}))
    now = base.refresh()
    for number in range(3):
        now = catalog.swap(now, [], [SetProperties({"n": str(number)})]).table
    assert now.storage.head(base.metadata_location) is None
    assert now.storage.head(table.metadata_location) is not None


def test_log_without_location_does_not_undo_landed_commit(catalog):
    """The error after the commit was taken for its failure, and the manifests of the live table were removed."""
    trimming = {"write.metadata.previous-versions-max": "1", "write.metadata.delete-after-commit.enabled": "true"}
    table = catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS), **trimming))
    path = Path(table.metadata_location.removeprefix("file://"))
    entry = '{"timestamp-ms":1,"metadata-file":"metadata/00000-0.metadata.json"}'
    path.write_text(path.read_text().replace('"metadata-log":[]', f'"metadata-log":[{entry}]'))
    result = commit(catalog.load(EVENTS), AppendFiles(files=files("new")), runtime=FakeRuntime())
    assert result.changed
    assert live(catalog.load(EVENTS)) == {"new": 1}


def test_reading_missing_database_does_not_create_it(properties, database):
    catalog = open_catalog("local", properties)
    said = f"configuration key 'catalogs.local.uri': there is no file '{database}'; correct the path; a new catalog begins with "
    said += "a namespace, by Spark's CREATE NAMESPACE or load_catalog(...).create_namespace(...)"
    for look in (lambda: catalog.load(EVENTS), catalog.list_namespaces, lambda: catalog.list_tables(("db",))):
        with pytest.raises(ConfigError, match=re.escape(said)):
            look()
    assert not database.parent.exists()
    catalog.create_namespace(("db",))
    assert catalog.list_namespaces() == [("db",)]


def test_a_commit_waits_for_a_database_whose_disk_is_away(catalog, table, database, tmp_path):
    """The work of hours was thrown away, and an empty catalog left at the mount point."""
    runtime = FakeRuntime()
    database.parent.rename(tmp_path / "away")
    database.parent.mkdir()

    def bring_back():
        assert list(database.parent.iterdir()) == []
        database.parent.rmdir()
        (tmp_path / "away").rename(database.parent)

    runtime.before_sleep = bring_back
    assert commit(table, AppendFiles(files=files("new")), runtime=runtime).changed
    assert live(catalog.load(EVENTS)) == {"new": 1}


def test_absent_disk_leaves_no_empty_catalog_behind(properties, catalog, table, database):
    """A catalog that was open while its disk was away makes no empty database in its place."""
    database.rename(database.with_name("away"))
    with pytest.raises(UnavailableError, match="the database of catalog 'local' is away: there is no file"):
        catalog.swap(table, [], set_counter(1))
    for look in (
        lambda: catalog.load(EVENTS),
        lambda: catalog.create_namespace(("new",)),
        lambda: catalog.drop(EVENTS),
    ):
        with pytest.raises(UnavailableError):
            look()
    with pytest.raises(ConfigError, match="there is no file"):
        open_catalog("local", properties).list_namespaces()
    database.with_name("away").rename(database)
    assert catalog.load(EVENTS).metadata == table.metadata
    assert metadata_files(table) == [table.metadata_location]


def test_catalog_of_crashed_creator_is_made_by_next(properties, database):
    """SQLite leaves an empty file then."""
    database.parent.mkdir(parents=True)
    with foreign(database) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE iceberg_tables (x INT)")
        assert database.stat().st_size == 0
        with pytest.raises(ConfigError, match="is empty; correct the path; a new catalog begins with a namespace"):
            open_catalog("local", properties).load(EVENTS)
    assert database.stat().st_size == 0
    catalog = open_catalog("local", properties)
    catalog.create_namespace(("db",))
    assert open_catalog("local", properties).list_namespaces() == [("db",)]


def test_of_those_who_make_a_catalog_at_once_all_use_the_same(tmp_path):
    uri = f"sqlite:///{tmp_path}/new/catalog.db"
    start = threading.Barrier(4)

    def make(number):
        catalog = open_catalog("local", {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/warehouse"})
        start.wait()
        catalog.create_namespace((f"n{number}",))
        return catalog

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(make, range(4)))
    assert [catalog.list_namespaces() for catalog in made] == [[("n0",), ("n1",), ("n2",), ("n3",)]] * 4


def test_a_database_that_cannot_be_made_is_an_error_in_one_line(properties, tmp_path):
    (tmp_path / "deep").write_bytes(b"a file where a directory must be")
    catalog = open_catalog("local", properties)
    with pytest.raises(UsageError, match="cannot make the directory of the database of catalog 'local'"):
        catalog.create_namespace(("db",))


def test_a_file_that_is_no_database_is_an_error_in_one_line(properties, database):
    database.parent.mkdir(parents=True)
    database.write_bytes(b"no database at all " * 100)
    with pytest.raises(UsageError, match="the database of catalog 'local' failed: file is not a database"):
        open_catalog("local", properties).load(EVENTS)


def test_relative_path_is_resolved_when_catalog_is_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    catalog = open_catalog("local", {"type": "sql", "uri": "sqlite:///wh/catalog.db", "warehouse": "wh"})
    catalog.create_namespace(("db",))
    assert os.path.exists(tmp_path / "wh" / "catalog.db")
    monkeypatch.chdir("/")
    assert catalog.list_namespaces() == [("db",)]
    assert catalog.default_location(EVENTS) == f"file://{tmp_path}/wh/db/events"


def test_table_committed_to_while_loading_is_loaded_again(catalog, table):
    """With `delete-after-commit` the file that the pointer named may be gone before it is read."""
    few = {
        "write.metadata.previous-versions-max": "1",
        "write.metadata.delete-after-commit.enabled": "true",
    }
    table = catalog.swap(table, [], [SetProperties(few)]).table
    storage = HookedStorage(LocalStorage())

    def move_on(operation, location):
        if operation == "read" and location == table.metadata_location:
            storage.before = storage.after
            catalog.swap(catalog.swap(table, [], set_counter(1)).table, [], set_counter(2))
            storage.fired["moved"] += 1

    storage.before = move_on
    slow = SqlCatalog(catalog.name, {"uri": str(catalog._database._url)}, storage)
    assert slow.load(EVENTS).metadata.properties[COUNTER] == "2"
    assert storage.fired["moved"] == 1


def test_pointers_come_in_one_statement_without_views(catalog, table, database, monkeypatch):
    catalog.create_namespace(("lake", "raw"))
    name = ("lake", "raw", "clicks")
    other = catalog.create(name, simple_metadata(catalog.default_location(name)))
    for name, kind, location in (("seen", "VIEW", "file:///v.json"), ("broken", "TABLE", None)):
        run(
            database,
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
            " VALUES (?, 'db', ?, ?, ?)",
            catalog.name,
            name,
            location,
            kind,
        )
    asked = []
    select = catalog._select
    monkeypatch.setattr(catalog, "_select", lambda query: asked.append(query) or select(query))
    found = catalog.list_pointers()
    assert len(asked) == 1
    monkeypatch.undo()
    assert found == {
        table.identifier: catalog.find(table.identifier),
        other.identifier: catalog.find(other.identifier),
        ("db", "broken"): None,
    }
    with pytest.raises(InvalidTableError, match="no metadata location"):
        catalog.find(("db", "broken"))
