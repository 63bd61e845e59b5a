"""What PostgreSQL's failures prove about a commit: a server that refuses, dies, is cut off or goes silent; seen by psql."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog as ForeignSqlCatalog

import icekeep
from contracts.catalog_contract import CatalogContract, CatalogRaceContract
from icekeep.catalog import database as database_module
from icekeep.catalog.base import Committed, Conflict, Unknown
from icekeep.catalog.database import Database
from icekeep.catalog.open import open_catalog
from icekeep.errors import JobFailedError, NotFoundError, OutcomeUnknownError, UnavailableError, UsageError
from icekeep.operations.configuration.catalogs import spark_catalogs
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import CUT_OFF_MS, LastRuns, RunFilter, RunRecord
from icekeep.tables.verbs import append, create_table
from kit.catalogs import EVENTS, as_rows, our_rows, row, rows_of, set_counter, simple_metadata
from kit.catalogs import RACE_SCHEMA as SCHEMA
from kit.postgres import Postgres, assert_all_are_there
from kit.rows import multiset
from kit.runtime import FakeRuntime
from kit.small_servers import TcpProxy

COMMIT = b"COMMIT\x00"
ROWS = pa.table({"id": [1, 2, 3]})
OUR_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'icekeep' AND datname = current_database()"
KILL_OUR_BACKENDS = OUR_BACKENDS.replace("pid", "pg_terminate_backend(pid)", 1)
RAISING = """
    CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'not today' USING ERRCODE = '{code}'; END $$;
    CREATE CONSTRAINT TRIGGER fails AFTER INSERT OR UPDATE ON iceberg_tables {when} FOR EACH ROW EXECUTE FUNCTION fail()
"""


@pytest.fixture
def uri(postgres):
    return postgres.new_database()


@pytest.fixture
def properties(uri, tmp_path):
    return {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/warehouse"}


@pytest.fixture
def catalog(properties):
    catalog = open_catalog("local", properties, FakeRuntime())
    catalog.create_namespace(("db",))
    return catalog


@pytest.fixture
def table(catalog):
    return catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))


@pytest.fixture
def query(postgres, uri):
    return lambda statement: postgres.query(uri, statement)


@pytest.fixture
def proxy(postgres):
    proxy = TcpProxy(postgres.port)
    yield proxy
    proxy.close()


@pytest.fixture
def behind(properties, postgres, proxy):
    """The same catalog, reached through the proxy."""
    address = properties["uri"].replace(f":{postgres.port}/", f":{proxy.port}/")
    return open_catalog("local", {**properties, "uri": address}, FakeRuntime(1))


@pytest.fixture
def events(catalog):
    """A table that takes rows; it looks again quickly after an unknown outcome."""
    quick = {"commit.status-check.min-wait-ms": "1", "commit.retry.min-wait-ms": "1"}
    return create_table(catalog, EVENTS, ROWS.schema, properties=quick)


def metadata_files(table):
    return sorted(info.location for info in table.storage.list(f"{table.metadata.location}/metadata"))


def pointer(query):
    return query("SELECT metadata_location FROM iceberg_tables")[0][0]


def files_below(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


@pytest.mark.deep
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("40001", Conflict),
        ("40P01", Conflict),
        ("55P03", Conflict),
        ("57014", UnavailableError),
        ("53100", UnavailableError),
        ("58030", UnavailableError),
        ("XX000", UnavailableError),
        ("23514", JobFailedError),
        ("25006", UsageError),
        ("42501", UsageError),
        ("P0001", JobFailedError),
    ],
)
def test_error_before_commit_proves_nothing_landed(catalog, table, query, code, expected):
    query(RAISING.format(code=code, when=""))
    if expected is Conflict:
        assert catalog.swap(table, [], set_counter(1)) == Conflict("not today", is_final=True)
    else:
        verb = "refused the change" if expected is JobFailedError else "failed"
        with pytest.raises(expected, match=f"^the database of catalog 'local' {verb}: not today$"):
            catalog.swap(table, [], set_counter(1))
    assert pointer(query) == table.metadata_location
    assert metadata_files(table) == [table.metadata_location]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("40001", Conflict),
        ("40P01", Conflict),
        ("23514", JobFailedError),
        ("57014", Unknown),
        ("53100", Unknown),
        ("XX000", Unknown),
        ("P0001", Unknown),
        ("55P03", Unknown),
        ("25006", Unknown),
    ],
)
def test_error_at_commit_is_unknown_unless_listed(catalog, table, query, code, expected):
    query(RAISING.format(code=code, when="DEFERRABLE INITIALLY DEFERRED"))
    if expected is JobFailedError:
        with pytest.raises(JobFailedError, match="refused the change: not today"):
            catalog.swap(table, [], set_counter(1))
    else:
        outcome = catalog.swap(table, [], set_counter(1))
        assert isinstance(outcome, expected)
        assert "not today" in (outcome.cause if expected is Unknown else outcome.reason)
    assert pointer(query) == table.metadata_location
    assert len(metadata_files(table)) == (2 if expected is Unknown else 1)


@pytest.mark.deep
def test_a_name_that_somebody_took_in_the_meantime_is_taken(catalog, table, query):
    query(RAISING.format(code="23505", when=""))
    metadata = simple_metadata(catalog.default_location(("db", "orders")))
    with pytest.raises(UsageError, match=r"table 'db.orders' exists already"):
        catalog.create(("db", "orders"), metadata)
    assert list(table.storage.list(metadata.location)) == []


@pytest.mark.deep
def test_a_location_too_long_for_the_column(catalog, query, tmp_path):
    deep = f"file://{tmp_path}/" + "/".join(["a" * 100] * 10)
    with pytest.raises(JobFailedError, match=r"value too long for type character varying\(1000\)"):
        catalog.create(EVENTS, simple_metadata(deep))
    assert files_below(tmp_path) == set()


@pytest.mark.deep
def test_locked_row_is_conflict_and_leaves_no_file(properties, table, query, postgres, uri):
    catalog = open_catalog("local", {**properties, "uri": f"{uri}?options=-clock_timeout%3D100"})
    with locked(uri):
        outcome = catalog.swap(catalog.load(EVENTS), [], set_counter(1))
    assert outcome == Conflict("canceling statement due to lock timeout", is_final=True)
    assert metadata_files(table) == [table.metadata_location]


@pytest.mark.deep
def test_statement_timeout_is_unavailable_and_leaves_no_file(properties, table, query, uri):
    catalog = open_catalog("local", {**properties, "uri": f"{uri}?options=-cstatement_timeout%3D100"})
    with locked(uri), pytest.raises(UnavailableError, match="canceling statement due to statement timeout"):
        catalog.swap(catalog.load(EVENTS), [], set_counter(1))
    assert metadata_files(table) == [table.metadata_location]
    assert isinstance(catalog.swap(table, [], set_counter(1)), Committed)


@pytest.mark.deep
def test_a_backend_killed_before_the_commit(catalog, table, query, uri):
    failures: list[Exception] = []

    def swap():
        try:
            catalog.swap(table, [], set_counter(1))
        except UnavailableError as error:
            failures.append(error)

    with locked(uri):
        thread = threading.Thread(target=swap)
        thread.start()
        waiting = f"{OUR_BACKENDS} AND wait_event_type = 'Lock'"
        while not query(waiting):
            assert thread.is_alive()
        query(KILL_OUR_BACKENDS)
        thread.join()
    assert "terminating connection due to administrator command" in str(failures[0])
    assert pointer(query) == table.metadata_location
    assert metadata_files(table) == [table.metadata_location]


@pytest.mark.deep
def test_a_backend_killed_with_the_commit_on_its_way(table, behind, proxy, query):
    proxy.before(COMMIT, lambda: kill(query))
    outcome = behind.swap(behind.load(EVENTS), [], set_counter(1))
    assert isinstance(outcome, Committed)
    assert pointer(query) == outcome.table.metadata_location
    assert metadata_files(table) == [table.metadata_location, outcome.table.metadata_location]


@pytest.mark.deep
@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_commit_whose_request_or_answer_is_lost(table, behind, proxy, query, lost):
    proxy.lose_request(COMMIT) if lost == "request" else proxy.lose_answer(COMMIT)
    outcome = behind.swap(behind.load(EVENTS), [], set_counter(1))
    assert not proxy.is_waiting
    assert isinstance(outcome, Committed)
    assert len(behind.runtime.sleeps_ms) == 1
    assert pointer(query) == outcome.table.metadata_location
    assert metadata_files(table) == [table.metadata_location, outcome.table.metadata_location]


@pytest.mark.deep
def test_late_commit_is_waited_for_and_not_doubled(table, behind, catalog, proxy, query):
    """Its transaction holds the row's lock until its COMMIT arrives: what was sent again waits, and finds its work."""

    def until_the_next_waits() -> None:
        while not query(f"{OUR_BACKENDS} AND wait_event_type = 'Lock'"):
            pass

    base = behind.load(EVENTS)
    proxy.deliver_late(COMMIT, until_the_next_waits)
    outcome = behind.swap(base, [], set_counter(1))
    assert isinstance(outcome, Committed)
    assert pointer(query) == outcome.table.metadata_location
    assert catalog.load(EVENTS).metadata.properties["test.counter"] == "1"
    assert len(metadata_files(table)) == 2


@pytest.mark.deep
def test_a_commit_whose_server_is_away_for_minutes(table, behind, proxy, query):
    class Returning(FakeRuntime):
        def sleep_ms(self, duration_ms):
            was_away = self.elapsed_ms < 240_000
            super().sleep_ms(duration_ms)
            if was_away and self.elapsed_ms >= 240_000:
                proxy.come_back()

    behind.runtime = Returning(3)
    base = behind.load(EVENTS)
    proxy.vanish(COMMIT)
    outcome = behind.swap(base, [], set_counter(1))
    assert isinstance(outcome, Committed)
    assert pointer(query) == outcome.table.metadata_location


@pytest.mark.deep
def test_wait_for_silent_server_at_commit_is_bounded(table, behind, proxy, query, monkeypatch):
    base = behind.load(EVENTS)
    monkeypatch.setattr(database_module, "_ANSWER_TIMEOUT_SECONDS", 0.5)
    proxy.swallow_answer(COMMIT)
    outcome = behind.swap(base, [], set_counter(1))
    assert isinstance(outcome, Committed)
    assert pointer(query) == outcome.table.metadata_location


@pytest.mark.deep
@pytest.mark.parametrize("statement", [b"UPDATE iceberg_tables", b"set_config"])
def test_a_connection_that_breaks_before_the_commit(table, behind, proxy, query, statement):
    base = behind.load(EVENTS)
    proxy.lose_answer(statement)
    with pytest.raises(UnavailableError, match="the database of catalog 'local' failed"):
        behind.swap(base, [], set_counter(1))
    assert not proxy.is_waiting
    assert pointer(query) == table.metadata_location
    assert metadata_files(table) == [table.metadata_location]


@pytest.mark.deep
def test_create_or_drop_with_lost_answer_is_unknown_outcome(table, behind, proxy, catalog):
    identifier = ("db", "orders")
    metadata = simple_metadata(behind.default_location(identifier))
    for change in (lambda: behind.create(identifier, metadata), lambda: behind.drop(EVENTS)):
        proxy.lose_answer(COMMIT)
        with pytest.raises(OutcomeUnknownError, match="cannot tell whether"):
            change()
    assert catalog.list_tables(("db",)) == [identifier]
    assert catalog.load(identifier).metadata == metadata


@pytest.mark.deep
def test_a_commit_to_a_server_that_stopped(tmp_path):
    server = Postgres()
    try:
        uri = server.new_database()
        catalog = open_catalog("local", {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/warehouse"})
        catalog.create_namespace(("db",))
        table = catalog.create(EVENTS, simple_metadata(catalog.default_location(EVENTS)))
    finally:
        server.close()
    for use in (lambda: catalog.load(EVENTS), lambda: catalog.swap(table, [], set_counter(1))):
        with pytest.raises(UnavailableError, match=r"the database of catalog 'local' is out of reach: .*refused"):
            use()
    assert metadata_files(table) == [table.metadata_location]


@pytest.mark.deep
def test_a_server_that_does_not_answer_is_given_up(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"postgresql://u:hunter2@127.0.0.1:{silent.getsockname()[1]}/db?connect_timeout=2"
        began = time.monotonic()
        with pytest.raises(UnavailableError) as raised:
            open_catalog("local", {"type": "sql", "uri": uri}).load(EVENTS)
    assert time.monotonic() - began < 10
    assert "hunter2" not in str(raised.value)


@pytest.mark.deep
def test_a_database_that_may_only_be_read(catalog, table, query):
    name = query("SELECT current_database()")[0][0]
    query(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    assert catalog.load(EVENTS).metadata == table.metadata
    with pytest.raises(UsageError, match="cannot execute UPDATE in a read-only transaction"):
        catalog.swap(table, [], set_counter(1))
    assert metadata_files(table) == [table.metadata_location]


@pytest.mark.deep
@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        ("_none", 'database "test_.*_none" does not exist'),
        ("?nonsense=3", 'invalid connection option "nonsense"'),
    ],
)
def test_an_address_that_leads_nowhere_is_an_error_in_one_line(postgres, suffix, message):
    catalog = open_catalog("local", {"type": "sql", "uri": postgres.new_database() + suffix})
    with pytest.raises((UnavailableError, UsageError), match=message) as raised:
        catalog.load(EVENTS)
    assert "\n" not in str(raised.value)


@pytest.mark.deep
def test_confirmed_commit_survives_server_crash(uri, query):
    """The server of these tests confirms before it has written; files that a commit replaced may be deleted at once."""
    assert query("SHOW synchronous_commit") == [["off"]]
    settings = settings_of(Database.of_catalog("local", {"uri": uri}))
    assert settings["synchronous_commit"] == "on"


@pytest.mark.deep
def test_transaction_timeouts_apply_unless_set_in_address(uri):
    ours = settings_of(Database.of_catalog("local", {"uri": uri}))
    assert (ours["lock_timeout"], ours["statement_timeout"]) == ("30s", "30s")
    theirs = settings_of(Database.of_catalog("local", {"uri": f"{uri}?options=-clock_timeout%3D5s"}))
    assert (theirs["lock_timeout"], theirs["statement_timeout"]) == ("5s", "30s")


@pytest.mark.deep
def test_database_default_isolation_is_overridden(query, uri):
    for kind in ("serializable", "repeatable read"):
        name = query("SELECT current_database()")[0][0]
        query(f"ALTER DATABASE {name} SET default_transaction_isolation = '{kind}'")
        assert settings_of(Database.of_catalog("local", {"uri": uri}))["transaction_isolation"] == "read committed"


@pytest.mark.deep
def test_tables_in_own_schema_are_found_by_address(properties, catalog, table, query, uri):
    query("CREATE SCHEMA lake; ALTER TABLE iceberg_tables SET SCHEMA lake")
    query("ALTER TABLE iceberg_namespace_properties SET SCHEMA lake")
    moved = open_catalog("local", {**properties, "uri": f"jdbc:{uri}?currentSchema=lake"})
    assert isinstance(moved.swap(moved.load(EVENTS), [], set_counter(1)), Committed)


@pytest.mark.deep
def test_no_connection_is_kept_so_none_is_shared_by_a_fork(catalog, table, query):
    assert query(OUR_BACKENDS) == []
    child = os.fork()
    if child == 0:
        outcome = catalog.swap(table, [], set_counter(1))
        os._exit(0 if isinstance(outcome, Committed) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert isinstance(catalog.swap(catalog.load(EVENTS), [], set_counter(2)), Committed)


@pytest.mark.deep
def test_concurrent_clients_of_new_database_all_succeed(properties):
    start, failures = threading.Barrier(6), []

    def use(number):
        catalog = open_catalog("local", properties)
        start.wait()
        try:
            catalog.create_namespace(("shared",), exists_ok=True)
            catalog.create_namespace((f"own{number}",))
        except Exception as error:  # noqa: BLE001 - counted
            failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(open_catalog("local", properties).list_namespaces()) == 7


def settings_of(database: Database) -> dict[str, str]:
    """Settings as they are within a write transaction."""
    names = ("synchronous_commit", "lock_timeout", "statement_timeout", "transaction_isolation")
    return database.transact(lambda c: {name: c.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names})


def kill(query) -> None:
    query(KILL_OUR_BACKENDS)
    while query(OUR_BACKENDS):
        pass


@contextmanager
def locked(uri: str) -> Iterator[None]:
    """While another program's transaction holds the locks of all rows."""
    with closing(psycopg.connect(uri)) as connection:
        connection.execute("SELECT * FROM iceberg_tables FOR UPDATE")
        yield


NOW_MS = 1_700_000_000_000


def record(run_id, **fields):
    return RunRecord(
        **{"run_id": run_id, "job": "compact", "table": "l.db.t", "started_ms": NOW_MS, "seen_ms": NOW_MS, **fields}
    )


@pytest.mark.deep
def test_runs_are_read_as_they_were_written_and_by_others(postgres):
    uri = postgres.new_database()
    records = RunRecords.at(uri)
    assert records.select(RunFilter(), NOW_MS) == []
    assert records.last_of(["l.db.t"], NOW_MS) == {}
    whole = record(
        "compact-1",
        policy="nightly",
        arguments={"where": "a = 'ü'"},
        result={"files": [1, None]},
        snapshot_id_before=2**62,
        status="failed",
        exit_status=1,
        error_message="another won",
        ended_ms=NOW_MS + 5,
    )
    records.begin(record("compact-1"))
    records.end(whole)
    records.begin(record("compact-2", started_ms=NOW_MS + 1))
    records.beat("compact-2", NOW_MS + 9)
    assert [one.seen_ms for one in records.select(RunFilter(run_id="compact-2"), NOW_MS)] == [NOW_MS + 9]
    assert records.select(RunFilter(status="failed"), NOW_MS) == [whole]
    assert records.last_of(["l.db.t", "l.db.u"], NOW_MS) == {
        ("l.db.t", "compact"): LastRuns(
            failures_in_a_row=1, last_failure_ms=NOW_MS + 5, last_error="another won", night_ms=NOW_MS + 5
        )
    }
    assert postgres.query(uri, "SELECT run_id, status, exit_status FROM icekeep_runs ORDER BY run_id") == [
        ["compact-1", "failed", "1"],
        ["compact-2", "running", ""],
    ]
    records.forget(NOW_MS + 1, NOW_MS + 2)
    assert [one.run_id for one in records.select(RunFilter(), NOW_MS)] == ["compact-2"]


@pytest.mark.deep
def test_time_limits_hold_in_a_schema_of_its_own(postgres):
    uri = postgres.new_database()
    records = RunRecords.at(f"{uri}{'&' if '?' in uri else '?'}options=-csearch_path%3Druns")
    with records._database.reading() as connection:
        shown = [
            connection.exec_driver_sql(f"SHOW {name}").scalar()
            for name in ("lock_timeout", "statement_timeout", "search_path")
        ]
    assert shown == ["5s", "10s", "runs"]


@pytest.mark.deep
def test_a_run_is_marked_as_dead_once_and_only_as_it_was_read(postgres):
    records = RunRecords.at(postgres.new_database())
    for run_id in ("check-1", "check-2", "check-3"):
        records.begin(record(run_id, job="check"))
    records.beat("check-2", NOW_MS + 1)
    records.end(record("check-3", job="check", status="done", exit_status=0, ended_ms=NOW_MS))
    read = [record(f"check-{number}", job="check") for number in (1, 2, 3)]
    assert [records.mark_dead(one) for one in read] == [True, False, False]
    assert not records.mark_dead(read[0])
    records.unmark_dead(read[0])
    assert records.mark_dead(read[0])


@pytest.mark.deep
def test_what_was_cut_off_and_what_lost_its_end_is_told(postgres):
    records = RunRecords.at(postgres.new_database())
    records.end(record("maintain-1", job="maintain", table="", status="done", exit_status=0, ended_ms=NOW_MS))
    for table, parent_id in (("a", "maintain-1"), ("b", "maintain-2")):
        records.begin(record(f"compact-{table}", table=table, parent_id=parent_id, policy="nightly"))
    later_ms = NOW_MS + 2 * CUT_OFF_MS
    cut_off = {"status": "interrupted", "exit_status": 143, "ended_ms": NOW_MS + CUT_OFF_MS}
    records.end(record("compact-c", table="c", policy="nightly", **cut_off))
    found = {table: last for (table, _), last in records.last_of(["a", "b", "c"], later_ms).items()}
    assert {table: (one.failures_in_a_row, one.cut_offs_in_a_row) for table, one in found.items()} == {
        "b": (1, 0),
        "c": (0, 1),
    }


@pytest.mark.deep
def test_leases_are_one_holder_s(postgres):
    records = RunRecords.at(postgres.new_database())
    assert records.take_lease("t", "a", NOW_MS + 10, NOW_MS) == "a"
    assert records.take_lease("t", "b", NOW_MS + 20, NOW_MS + 9) == "a"
    assert records.take_lease("t", "b", NOW_MS + 20, NOW_MS + 10) == "b"
    records.renew_leases("b", NOW_MS + 90)
    assert records.take_lease("t", "a", NOW_MS + 99, NOW_MS + 89) == "b"
    records.drop_lease("t", "b")
    assert records.take_lease("t", "a", NOW_MS + 99, NOW_MS + 50) == "a"


@pytest.mark.deep
def test_none_of_many_processes_loses_a_run(postgres):
    assert_all_are_there(postgres.new_database())


V0_TABLES = """
    CREATE TABLE iceberg_tables (
        catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,
        metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000),
        PRIMARY KEY (catalog_name, table_namespace, table_name));
    CREATE TABLE iceberg_namespace_properties (
        catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL, property_key VARCHAR(255),
        property_value VARCHAR(1000), PRIMARY KEY (catalog_name, namespace, property_key))
"""
COLUMNS = """
    SELECT table_name, column_name, data_type, character_maximum_length, is_nullable FROM information_schema.columns
    WHERE table_schema = 'public' ORDER BY table_name, ordinal_position
"""


@pytest.fixture
def ours(properties):
    return open_catalog("local", properties)


@pytest.fixture
def theirs(properties):
    catalog = ForeignSqlCatalog("local", uri=properties["uri"], warehouse=properties["warehouse"])
    yield catalog
    catalog.close()


class TestPostgresqlCatalog(CatalogRaceContract):
    keeps_previous = True
    deletes_metadata = True

    @pytest.fixture
    def properties(self, properties):
        return properties


@pytest.mark.deep
class TestPostgresqlCatalogOfSchemaVersionZero(CatalogContract):
    keeps_previous = True
    deletes_metadata = True

    @pytest.fixture
    def properties(self, properties, postgres):
        postgres.query(properties["uri"], V0_TABLES)
        return {**properties, "type": "jdbc"}


def test_database_tables_match_those_of_java_and_pyiceberg(java, postgres, properties):
    """Judged by Iceberg Java (schema version V1), PyIceberg and PostgreSQL."""
    ours, theirs, javas = ({**properties, "uri": postgres.new_database()} for _ in range(3))
    open_catalog("local", ours).create_namespace(("db",))
    ForeignSqlCatalog("local", uri=theirs["uri"], warehouse=theirs["warehouse"]).close()
    java.open_catalog("local", javas)
    java.sql("CREATE NAMESPACE local.db")
    our_columns, their_columns, java_columns = (postgres.query(p["uri"], COLUMNS) for p in (ours, theirs, javas))
    assert our_columns == java_columns
    # PyIceberg allows no property without a value.
    assert [c for c in our_columns if c not in their_columns] == [
        ["iceberg_namespace_properties", "property_value", "character varying", "1000", "YES"]
    ]


def test_three_engines_share_table_and_see_all_commits(java, ours, theirs, properties):
    """Judged by Iceberg Java and PyIceberg."""
    ours.create_namespace(("db",))
    java.open_catalog("local", properties)
    table = append(create_table(ours, EVENTS, SCHEMA), row("icekeep", 0))
    theirs.load_table(EVENTS).append(row("pyiceberg", 0))
    java.append("local.db.events", [["java", 0]])
    expected = rows_of({"icekeep": 1, "pyiceberg": 1, "java": 1})
    assert our_rows(ours.load(EVENTS)) == as_rows(theirs.load_table(EVENTS).scan().to_arrow()) == expected
    assert java.rows("local.db.events") == multiset([["icekeep", 0], ["pyiceberg", 0], ["java", 0]])
    # What was loaded before the others' commits is stale.
    assert isinstance(ours.swap(table, [], set_counter(1)), Conflict)
    assert isinstance(ours.swap(ours.load(EVENTS), [], set_counter(1)), Committed)


@pytest.mark.parametrize("maker", ["pyiceberg", "java"])
def test_tables_that_another_engine_made(java, ours, theirs, properties, maker):
    """Judged by Iceberg Java and PyIceberg."""
    java.open_catalog("local", properties)
    if maker == "java":
        java.sql("CREATE TABLE local.db.events (writer STRING, number BIGINT) USING iceberg")
    else:
        theirs.create_namespace("db")
        theirs.create_table("db.events", SCHEMA)
    assert ours.list_tables(("db",)) == [EVENTS]
    append(ours.load(EVENTS), row("icekeep", 0))
    assert as_rows(theirs.load_table(EVENTS).scan().to_arrow()) == rows_of({"icekeep": 1})
    assert java.rows("local.db.events") == multiset([["icekeep", 0]])
    ours.rename(EVENTS, ("db", "moved"))
    assert {r["tableName"] for r in java.sql("SHOW TABLES IN local.db")} == {"moved"}
    assert theirs.list_tables("db") == [("db", "moved")]
    java.sql("DROP TABLE local.db.moved")
    with pytest.raises(NotFoundError):
        ours.load(("db", "moved"))


def test_the_catalog_of_a_spark_configuration(java, ours, properties, postgres):
    """Judged by PostgreSQL: the keys of Iceberg's JdbcCatalog, user and password beside the address."""
    ours.create_namespace(("db",))
    create_table(ours, EVENTS, SCHEMA)
    database = properties["uri"].rpartition("/")[2]
    keys = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        ".uri": f"jdbc:postgresql://127.0.0.1:{postgres.port}/{database}?ApplicationName=spark&loginTimeout=5",
        ".jdbc.user": "test",
        ".jdbc.password": "test",
        ".jdbc.schema-version": "V1",
        ".warehouse": properties["warehouse"],
    }
    found = spark_catalogs({f"spark.sql.catalog.local{key}": value for key, value in keys.items()})["local"]
    assert open_catalog("local", found.properties).list_tables(("db",)) == [EVENTS]


def test_rows_in_a_view_of_java_are_no_table(java, ours, properties):
    """Judged by Iceberg Java: views share the database's tables."""
    java.open_catalog("local", properties)
    java.sql("CREATE NAMESPACE local.db")
    java.sql("CREATE VIEW local.db.one AS SELECT 1 AS n")
    assert ours.list_tables(("db",)) == []
    with pytest.raises(NotFoundError):
        ours.load(("db", "one"))


def test_rows_are_read_as_they_were_written(ours):
    ours.create_namespace(("db",))
    table = append(create_table(ours, EVENTS, SCHEMA), pa.concat_tables([row("a", 1), row("b", 2)]))
    assert our_rows(table) == {("a", 1): 1, ("b", 2): 1}


def test_the_doctor_finds_it_well_and_its_clock_too(ours, tmp_path):
    ours.create_namespace(("db",))
    result = icekeep.doctor(ours, namespace="db")
    of_catalog = {one.check: one for one in result.findings if one.about == "catalog local"}
    assert {one.status for one in of_catalog.values()} == {"ok"}
    assert of_catalog["clock"].message == "within 5 s of this machine's"
    assert not (tmp_path / "warehouse").exists()
