import os
import pickle
import sqlite3

import pytest
import sqlalchemy
from sqlalchemy.exc import DataError, IntegrityError, InterfaceError, OperationalError, ProgrammingError

from icekeep.catalog.database import (
    Database,
    DatabaseBusyError,
    DuplicateRowError,
    is_absent,
    is_busy,
    is_duplicate,
    may_pass,
    parse_url,
    proves_refusal,
    refuses_change,
    sqlite_uri,
)
from icekeep.catalog.open import open_catalog
from icekeep.errors import ConfigError, JobFailedError, UnavailableError, UnsupportedError, UsageError
from kit.cases import for_each


def url_of(uri, **properties):
    return parse_url("local", {"uri": uri, **properties}).render_as_string(hide_password=False)


@for_each(
    ("uri", "expected"),
    [
        ("sqlite:////wh/catalog.db", "sqlite:////wh/catalog.db"),
        ("sqlite:///wh/catalog.db", f"sqlite:///{os.getcwd()}/wh/catalog.db"),
        ("jdbc:sqlite:/wh/catalog.db", "sqlite:////wh/catalog.db"),
        ("jdbc:sqlite:wh/catalog.db", f"sqlite:///{os.getcwd()}/wh/catalog.db"),
        ("jdbc:sqlite:file:/wh/catalog.db", "sqlite:////wh/catalog.db"),
        ("postgresql://u:p@host:5433/db", "postgresql+psycopg://u:p@host:5433/db"),
        ("postgres://u:p@host/db", "postgresql+psycopg://u:p@host/db"),
        ("postgresql+psycopg2://u:p@host/db", "postgresql+psycopg2://u:p@host/db"),
        ("jdbc:postgresql://host:5432/db", "postgresql+psycopg://host:5432/db"),
        ("jdbc:postgresql://host/db?user=u&password=p", "postgresql+psycopg://u:p@host/db"),
        ("jdbc:postgresql://host/db?user=u&sslmode=require", "postgresql+psycopg://u@host/db?sslmode=require"),
        ("jdbc:postgresql://host/db?ssl=true", "postgresql+psycopg://host/db?sslmode=verify-full"),
        ("jdbc:postgresql://host/db?ssl=true&sslmode=require", "postgresql+psycopg://host/db?sslmode=require"),
        ("jdbc:postgresql://host/db?socketTimeout=30&reWriteBatchedInserts=true", "postgresql+psycopg://host/db"),
        (
            "jdbc:postgresql://host/db?currentSchema=lake",
            "postgresql+psycopg://host/db?options=-csearch_path%3Dlake",
        ),
        ("jdbc:postgresql://host/db?ssl=false", "postgresql+psycopg://host/db"),
        (
            "jdbc:postgresql://host/db?loginTimeout=3&ApplicationName=lake",
            "postgresql+psycopg://host/db?application_name=lake&connect_timeout=3",
        ),
    ],
)
def test_an_address_is_understood_as_other_engines_write_it(uri, expected):
    assert url_of(uri) == expected


@for_each("name", ["a b", "a#b", "100 %", "a%20b", "ä"])
def test_the_address_of_a_file_is_read_as_its_path(name):
    path = f"/wh/{name}/catalog.db"
    assert parse_url("local", {"uri": sqlite_uri(path)}).database == path


def test_a_path_that_no_address_can_name_is_refused(monkeypatch):
    monkeypatch.setattr(sqlalchemy, "make_url", lambda text: sqlalchemy.URL.create("sqlite", database="/a"))
    with pytest.raises(UsageError, match=r"no address of SQLite can name '/a\?b/c.db'; choose a path without '\?'"):
        sqlite_uri("/a?b/c.db")


def test_a_database_in_memory_stays_there():
    assert parse_url("local", {"uri": "sqlite:///:memory:"}).database == ":memory:"


def test_user_and_password_may_be_properties_of_their_own():
    secrets = {"jdbc.user": "u", "jdbc.password": "p@:/"}
    assert parse_url("local", {"uri": "jdbc:postgresql://host/db", **secrets}).password == "p@:/"
    assert url_of("jdbc:postgresql://host/db", **secrets) == "postgresql+psycopg://u:p%40%3A%2F@host/db"
    assert url_of("postgresql://me:mine@host/db", **secrets) == "postgresql+psycopg://me:mine@host/db"


@for_each("uri", ["", "catalog.db", "sqlite", "://", "postgresql://host:port/db"])
def test_an_address_that_is_none_is_a_configuration_error(uri):
    with pytest.raises(ConfigError, match=r"configuration key 'catalogs.local.uri': .*give sqlite:///PATH or"):
        parse_url("local", {"uri": uri})


@pytest.mark.parametrize(
    "uri", ["mysql://u:hunter2@host/db", "jdbc:mysql://host/db?password=hunter2", "oracle://u:hunter2@h"]
)
def test_a_database_that_is_not_proved_is_refused(uri):
    with pytest.raises(UnsupportedError, match="is not supported, only sqlite and postgresql") as raised:
        parse_url("local", {"uri": uri})
    assert "hunter2" not in f"{raised.value} {raised.value.facts}"


def test_no_error_or_text_shows_a_password():
    with pytest.raises(ConfigError) as raised:
        parse_url("local", {"uri": "postgresql://u:hunter2@host:port/db"})
    assert "hunter2" not in f"{raised.value} {raised.value.facts}"
    catalog = open_catalog("local", {"type": "sql", "uri": "postgresql://u:hunter2@host/db"})
    assert "hunter2" not in repr(catalog) + repr(vars(catalog))


@for_each(
    "uri",
    [
        *("postgresql://me:p@w@host/db", "postgresql://me:p@w/x@host/db", "postgresql://me:p@w/x?y@host/db"),
        "jdbc:postgresql://me:p@w@host:5432/db?ssl=true",
    ],
)
def test_password_that_would_show_as_host_is_refused(uri):
    with pytest.raises(ConfigError, match=r"'catalogs.local.uri': has an '@' in its password; write it as %40$"):
        url_of(uri)


@for_each(
    "uri",
    ["postgresql://me:p/w?x#y@host/db", "jdbc:postgresql://host/db?user=me&password=p@w", "postgresql://me@host/db"],
)
def test_other_passwords_are_taken_as_they_are(uri):
    assert "@host/db" in url_of(uri)


def test_a_driver_that_is_not_installed_is_named():
    database = Database.of_catalog("local", {"uri": "postgresql+pg8000://u@host/db"})
    wrong = r"^the driver of postgresql is not installed: icekeep\[postgres\] brings psycopg \(.*install\.md\), .*'pg8000'\)$"
    with pytest.raises(UsageError, match=wrong), database.reading():
        pass


def test_a_driver_that_does_not_exist_is_refused():
    database = Database.of_catalog("local", {"uri": "postgresql+nonsense://u@host/db"})
    with pytest.raises(UsageError, match=r"cannot open a database with 'postgresql\+nonsense'"), database.reading():
        pass


@pytest.fixture
def database(tmp_path):
    database = Database.of_catalog("local", {"uri": f"sqlite:///{tmp_path}/x.db?timeout=0.05"})
    database.transact(create_t, creates=True)
    return database


def create_t(connection):
    connection.exec_driver_sql("CREATE TABLE t (a INT PRIMARY KEY, b INT CHECK (b > 0))")


def rows(database):
    with database.reading() as connection:
        return [tuple(row) for row in connection.exec_driver_sql("SELECT * FROM t")]


def test_a_transaction_is_all_or_nothing(database):
    class StopError(Exception):
        pass

    def insert(connection):
        connection.exec_driver_sql("INSERT INTO t VALUES (1, 1)")

    def insert_and_stop(connection):
        insert(connection)
        raise StopError

    with pytest.raises(StopError):
        database.transact(insert_and_stop)
    assert rows(database) == []
    database.transact(insert)
    assert rows(database) == [(1, 1)]


def test_reading_never_changes_anything(database):
    with database.reading() as connection:
        connection.exec_driver_sql("INSERT INTO t VALUES (1, 1)")
    assert rows(database) == []


def test_a_writer_takes_the_lock_before_it_looks(database):
    def look_while_another_looks(connection):
        # Two transactions that both look and then write could not both be right.
        with pytest.raises(DatabaseBusyError, match="database is locked"):
            database.transact(lambda inner: inner.exec_driver_sql("SELECT 1"))

    database.transact(look_while_another_looks)


def test_only_a_key_that_is_taken_is_a_duplicate(database):
    database.transact(lambda c: c.exec_driver_sql("INSERT INTO t VALUES (1, 1)"))
    with pytest.raises(DuplicateRowError):
        database.transact(lambda c: c.exec_driver_sql("INSERT INTO t VALUES (1, 2)"))
    with pytest.raises(
        JobFailedError, match="the database of catalog 'local' refused the change: CHECK constraint failed"
    ):
        database.transact(lambda c: c.exec_driver_sql("INSERT INTO t VALUES (2, 0)"))
    assert rows(database) == [(1, 1)]


def test_uncommitted_transaction_never_landed(database):
    def insert_and_fail(connection):
        connection.exec_driver_sql("INSERT INTO t VALUES (1, 1)")
        connection.connection.dbapi_connection.close()
        connection.exec_driver_sql("INSERT INTO t VALUES (2, 2)")

    with pytest.raises(UsageError, match="the database of catalog 'local' failed: Cannot operate on a closed database"):
        database.transact(insert_and_fail)
    assert rows(database) == []


def test_query_is_understood_if_tables_and_columns_exist(database):
    assert database.understands("SELECT a FROM t LIMIT 0")
    assert not database.understands("SELECT c FROM t LIMIT 0")
    assert not database.understands("SELECT a FROM u LIMIT 0")


USES = {
    "reading": rows,
    "understands": lambda database: database.understands("SELECT 1"),
    "transact": lambda database: database.transact(create_t),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("is_empty", [False, True], ids=["no file", "empty file"])
def test_missing_database_is_made_only_by_creating_transaction(tmp_path, use, is_empty):
    path = tmp_path / "x.db"
    if is_empty:
        path.touch()
    fresh = Database.of_catalog("local", {"uri": f"sqlite:///{path}"})
    said = (
        f"key 'catalogs.local.uri': {f'file .{path}. is empty' if is_empty else f'there is no file .{path}.'}; correct"
    )
    with pytest.raises(ConfigError, match=said):
        use(fresh)
    assert not path.exists() or (is_empty and path.stat().st_size == 0)
    assert not fresh.is_there
    fresh.transact(create_t, creates=True)
    assert fresh.is_there
    assert rows(fresh) == []


@pytest.mark.parametrize(
    "use", [*USES.values(), lambda database: database.transact(create_t, creates=True)], ids=[*USES, "creates"]
)
@pytest.mark.parametrize("left", ["no file", "empty file", "no directory"])
def test_seen_database_that_is_away_is_not_made_again(tmp_path, use, left):
    """An empty mount point became an empty catalog, for everybody."""
    path = tmp_path / "disk" / "x.db"
    database = Database.of_catalog("local", {"uri": f"sqlite:///{path}"})
    database.transact(create_t, creates=True)
    path.parent.rename(tmp_path / "away")
    if left != "no directory":
        path.parent.mkdir()
    if left == "empty file":
        path.touch()
    for seen in (database, pickle.loads(pickle.dumps(database))):
        with pytest.raises(
            UnavailableError, match=r"database of catalog 'local' is away: .*x\.db.*; bring its disk back"
        ):
            use(seen)
    assert [p.stat().st_size for p in tmp_path.glob("disk/*")] == ([0] if left == "empty file" else [])
    assert path.parent.exists() == (left != "no directory")


@pytest.mark.parametrize(
    "look",
    [
        lambda database: database.understands("SELECT * FROM none"),
        lambda database: rows(database.with_parameters({"timeout": "5"})),
    ],
    ids=["answers that a table is absent", "by other parameters"],
)
def test_however_a_file_was_seen_nothing_is_made_in_its_place(tmp_path, look):
    path = tmp_path / "disk" / "x.db"
    Database.of_catalog("local", {"uri": f"sqlite:///{path}"}).transact(create_t, creates=True)
    database = Database.of_catalog("local", {"uri": f"sqlite:///{path}"})
    look(database)
    path.parent.rename(tmp_path / "away")
    path.parent.mkdir()
    with pytest.raises(UnavailableError, match="is away"):
        database.transact(create_t, creates=True)
    assert [*path.parent.iterdir()] == []


def test_opening_does_not_make_database_gone_since_check(database, tmp_path, monkeypatch):
    (tmp_path / "x.db").unlink()
    monkeypatch.setattr(database, "require", lambda: None)
    for use in (rows, lambda database: database.transact(create_t)):
        with pytest.raises(UnavailableError, match="is away: there is no file"):
            use(database)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a b", "a#b", "100 %", "a%20b", "a?mode=memory", "ä&ö", "/x", "y;z='"])
def test_a_file_of_any_name_is_opened(tmp_path, name):
    url = sqlalchemy.URL.create("sqlite", database=f"{tmp_path}/{name}.db")
    database = Database(url, "the database")
    database.transact(create_t, creates=True)
    assert rows(database) == []
    assert [str(p) for p in tmp_path.iterdir()] == [os.path.normpath(f"{tmp_path}/{name}.db")]


def test_a_database_in_memory_is_there_from_the_beginning():
    database = Database.of_catalog("local", {"uri": "sqlite:///:memory:"})
    database.transact(create_t)
    assert rows(database) == []


def test_an_open_database_stays_behind_when_it_travels(database):
    assert rows(pickle.loads(pickle.dumps(database))) == []


@pytest.mark.parametrize("uri", ["sqlite:///file:/srv/catalog.db?uri=true", "sqlite:///file:catalog.db"])
def test_sqlite_file_address_is_refused(uri):
    with pytest.raises(
        ConfigError, match=r"'catalogs.local.uri': is a file: address of SQLite, .*; give sqlite:///PATH"
    ):
        parse_url("local", {"uri": uri})


class Psycopg(Exception):
    def __init__(self, sqlstate):
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


class Psycopg2(Exception):
    def __init__(self, pgcode):
        super().__init__(pgcode)
        self.pgcode = pgcode


def postgresql(code, kind=OperationalError, driver=Psycopg):
    return kind("statement", {}, driver(code))


def sqlite(code):
    cause = sqlite3.OperationalError("text")
    cause.sqlite_errorcode = code
    return OperationalError("statement", {}, cause)


@pytest.mark.parametrize("driver", [Psycopg, Psycopg2])
def test_what_postgresql_says_is_known_by_its_code_alone(driver):
    facts = {
        "40001": {is_busy, may_pass, proves_refusal},
        "40P01": {is_busy, may_pass, proves_refusal},
        "55P03": {is_busy, may_pass},
        "22001": {refuses_change},
        "23505": {is_duplicate, proves_refusal, refuses_change},
        "23514": {proves_refusal, refuses_change},
        "P0001": {refuses_change},
        "42P01": {is_absent},
        "42703": {is_absent},
        "42501": set(),
        "28P01": set(),
        "3D000": set(),
        "25006": set(),
        "25P03": {may_pass},
        "57014": {may_pass},
        "57P01": {may_pass},
        "08006": {may_pass},
        "53300": {may_pass},
        "XX000": {may_pass},
    }
    questions = (is_absent, is_busy, is_duplicate, may_pass, proves_refusal, refuses_change)
    for kind in (OperationalError, ProgrammingError, IntegrityError, DataError):
        for code, expected in facts.items():
            assert {asks for asks in questions if asks(postgresql(code, kind, driver))} == expected, code


def test_what_sqlite_says_is_known_by_its_code():
    # Extended codes hold the plain one in their lowest byte: a busy snapshot, a full disk, a duplicate key.
    assert is_busy(sqlite(5))
    assert is_busy(sqlite(6))
    assert is_busy(sqlite(5 | 2 << 8))
    assert may_pass(sqlite(10))
    assert may_pass(sqlite(13))
    assert not any(may_pass(sqlite(code)) for code in (1, 3, 8, 14, 23))
    assert is_absent(sqlite(1))
    assert not is_absent(sqlite(14))
    assert is_duplicate(sqlite(1555))
    assert not is_duplicate(sqlite(19))
    # A constraint, and what a trigger raises.
    assert refuses_change(sqlite(19))
    assert refuses_change(sqlite(19 | 7 << 8))
    assert not any(refuses_change(sqlite(code)) for code in (1, 3, 5, 8, 10, 14))


@for_each("code", [1, 5, 6, 8, 10, 13, 14, 19, 1555])
def test_no_error_of_sqlite_at_a_commit_proves_anything(code):
    assert not proves_refusal(sqlite(code))


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_an_error_without_a_code_proves_nothing_and_may_pass(kind):
    broken = postgresql(None, kind)
    assert may_pass(broken)
    assert not any(asks(broken) for asks in (is_absent, is_busy, is_duplicate, proves_refusal, refuses_change))


@for_each("error", [RuntimeError("odd"), postgresql(""), postgresql("P0001"), postgresql("57P01")])
def test_what_is_not_listed_proves_nothing(error):
    assert not proves_refusal(error)
