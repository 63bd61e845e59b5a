"""The database behind a SQL catalog: its address, its connections, its transactions.

SQLite and PostgreSQL through SQLAlchemy Core; SQLite creates a file only for the engine that is to make one. A
transaction ends in one of three ways, and callers can tell them apart: it is committed, it is proved rolled back, or
nobody knows.

It lands only if its COMMIT is sent, so whatever fails before that has changed nothing, also where the connection broke.
Of an error that meets the COMMIT itself only the codes listed here prove that the database refused it; anything else
leaves the outcome unknown.
"""

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import sqlalchemy
from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, InternalError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from icekeep.errors import (
    ConfigError,
    IcekeepError,
    JobFailedError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    brought_by,
    first_line,
)
from icekeep.secrets import without_secrets

WRITES = {"icekeep_writes": True}
"""The option of a connection whose transaction is to change something."""

_BUSY_TIMEOUT_SECONDS = 30
_POSTGRESQL_CONNECTION = {
    "application_name": "icekeep",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""In seconds, but for the last, in milliseconds: a server that vanished is noticed within a minute or so."""
_POSTGRESQL_TRANSACTION = sqlalchemy.text(
    """
    SELECT set_config(name, CASE name WHEN 'synchronous_commit' THEN 'on' ELSE :timeout END, true) FROM pg_settings
    WHERE setting = '0' AND name IN ('lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout')
    OR setting = 'off' AND name = 'synchronous_commit'
    """
).bindparams(timeout=f"{_BUSY_TIMEOUT_SECONDS}s")
"""Bounds where the server or the user set none; and a commit that is confirmed must survive a crash of the server, since
files that it replaced may be deleted the moment after."""


def file_of(url: URL) -> str | None:
    """The path of the file that a database is; `None` for one in memory or on a server."""
    path = url.database
    return path if url.get_backend_name() == "sqlite" and path and path != ":memory:" else None


def make_engine(url: URL, *, creates: bool = False) -> Engine:
    """An engine for the database at an address that is understood (`parse_url`).

    Args:
        creates: whether SQLite may make the file if it is not there.

    Raises:
        UsageError: its driver is not installed, or there is none.
    """
    is_sqlite, path = url.get_backend_name() == "sqlite", file_of(url)
    options: dict[str, Any] = {"hide_parameters": True}
    if not is_sqlite:
        given = {name: value for name, value in _POSTGRESQL_CONNECTION.items() if name not in url.query}
        options |= {"poolclass": NullPool, "isolation_level": "READ COMMITTED", "connect_args": given}
    elif path is not None:
        options |= {"poolclass": NullPool}
    if is_sqlite and "timeout" not in url.query:
        options["connect_args"] = {"timeout": _BUSY_TIMEOUT_SECONDS}
    try:
        engine = sqlalchemy.create_engine(url, **options)
    except ImportError as error:
        raise UsageError(
            f"the driver of {url.get_backend_name()} is not installed: {brought_by('postgres', 'psycopg')}, for addresses that "
            f"begin with postgresql:// ({first_line(error)})",
            module=error.name,
        ) from error
    except ArgumentError as error:
        raise UsageError(f"cannot open a database with {url.drivername!r}: {first_line(error)}") from error
    if path is not None and not creates:
        _open_only_what_is_there(engine, path)
    if is_sqlite:
        event.listen(engine, "connect", _leave_transactions_to_us)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        event.listen(engine, "begin", _begin_postgresql)
    return engine


def _open_only_what_is_there(engine: Engine, path: str) -> None:
    # SQLite takes the path out of an address again, whatever characters it has.
    address = f"{Path(path).as_uri()}?mode=rw"

    def connect(dialect: Dialect, _record: object, _arguments: object, parameters: dict[str, Any]) -> Any:
        return dialect.connect(address, **{**parameters, "uri": True})

    event.listen(engine, "do_connect", connect)


def _leave_transactions_to_us(connection: Any, _record: object) -> None:
    connection.isolation_level = None


def _begin_sqlite(connection: Connection) -> None:
    """Take SQLite's write lock before anything is read: a lock that is taken later may be refused at the commit."""
    connection.exec_driver_sql("BEGIN IMMEDIATE" if _writes(connection) else "BEGIN")


def _begin_postgresql(connection: Connection) -> None:
    if _writes(connection):
        connection.execute(_POSTGRESQL_TRANSACTION)


def _writes(connection: Connection) -> bool:
    return WRITES.items() <= connection.get_execution_options().items()


_SQLITE_BUSY = (5, 6)
_SQLITE_ERROR = 1
_SQLITE_LASTING = (_SQLITE_ERROR, 3, 8, 14, 23)
"""Wrong SQL or no such table, no permission, read-only, cannot open, not authorized: trying again does not help."""
_SQLITE_CONSTRAINT = 19
_SQLITE_DUPLICATE_KEY = 1555

_POSTGRESQL_DUPLICATE_KEY = "23505"
_POSTGRESQL_REFUSED = ("22", "23", "P0")
"""Data that does not fit, a constraint, what a trigger raises."""
_POSTGRESQL_ROLLED_BACK = ("40001", "40P01")
"""Serialization failure, deadlock."""
_POSTGRESQL_BUSY = (*_POSTGRESQL_ROLLED_BACK, "55P03")
"""These, and a lock that was not to be had in time."""
_POSTGRESQL_ABSENT = ("42P01", "42703")
"""No such table, no such column."""
_POSTGRESQL_PASSING = ("08", "25P", "40", "53", "55", "57", "58", "XX")
"""The connection, a transaction that waited too long, rollbacks, resources, objects in use, an operator or a timeout,
the system, the server itself: the same again may succeed."""


def is_busy(error: Exception) -> bool:
    """Whether another transaction was in the way."""
    return _sqlite_code(error) & 0xFF in _SQLITE_BUSY or _sqlstate(error) in _POSTGRESQL_BUSY


def is_duplicate(error: Exception) -> bool:
    return _sqlite_code(error) == _SQLITE_DUPLICATE_KEY or _sqlstate(error) == _POSTGRESQL_DUPLICATE_KEY


def is_absent(error: Exception) -> bool:
    return _sqlite_code(error) & 0xFF == _SQLITE_ERROR or _sqlstate(error) in _POSTGRESQL_ABSENT


def refuses_change(error: Exception) -> bool:
    """Whether the database's own rules reject what is written: a constraint, a trigger, a value that does not fit.

    >>> refuses_change(ValueError("no database said this"))
    False
    """
    return _sqlite_code(error) & 0xFF == _SQLITE_CONSTRAINT or _sqlstate(error).startswith(_POSTGRESQL_REFUSED)


def may_pass(error: Exception) -> bool:
    """Whether the same again may succeed, as far as the database says."""
    sqlstate = _sqlstate(error)
    if sqlstate:
        return sqlstate.startswith(_POSTGRESQL_PASSING)
    if _sqlite_code(error) & 0xFF in _SQLITE_LASTING:
        return False
    return not isinstance(error, DBAPIError) or isinstance(error, OperationalError | InterfaceError | InternalError)


def proves_refusal(error: Exception) -> bool:
    """Whether an error at the COMMIT itself proves that the database rolled back.

    PostgreSQL answers a COMMIT so where a check was put off until then. SQLite's are not among them: its transaction is
    still open after a failed COMMIT, and what became of its files is not told.
    """
    return _sqlstate(error) in _POSTGRESQL_ROLLED_BACK or _sqlstate(error).startswith("23")


def _sqlstate(error: Exception) -> str:
    cause = getattr(error, "orig", None)
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or ""


def _sqlite_code(error: Exception) -> int:
    return int(getattr(getattr(error, "orig", None), "sqlite_errorcode", 0))


T = TypeVar("T")

_ANSWER_TIMEOUT_SECONDS = 120
"""How long a transaction may take with a server that bounds its statements, before we take it for dead."""
_NO_CONNECTION = re.compile(r"connection to server (?:at|on) .*? failed: (.+)")
"""How libpq says, with the address once more, that a server did not let it in."""
_POSTGRESQL_CLOCK = sqlalchemy.text("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
_JDBC_PARAMETERS = {
    "ApplicationName": "application_name",
    "connectTimeout": "connect_timeout",
    "loginTimeout": "connect_timeout",
    "sslMode": "sslmode",
}
"""Names of the JDBC driver's parameters that libpq has under another name."""
_LOGIN = re.compile(r"^.*?://(?:[^:/@]*(?::[^@]*)?@)?")
_JDBC_ONLY = frozenset(
    {
        "binaryTransfer",
        "defaultRowFetchSize",
        "prepareThreshold",
        "preparedStatementCacheQueries",
        "preparedStatementCacheSizeMiB",
        "reWriteBatchedInserts",
        "socketTimeout",
        "stringtype",
        "tcpKeepAlive",
    }
)
"""Parameters that tune the JDBC driver and say nothing about the database; any other one that libpq does not know is
refused."""


class DatabaseBusyError(Exception):
    """Another writer has the database, and the transaction is proved rolled back: the same again may succeed."""


class DuplicateRowError(Exception):
    """A row with the same key exists, and the transaction is proved rolled back."""


class _Sighting(msgspec.Struct):
    is_seen: bool = False


class Database:
    """A database that is opened when it is first used, anew in each process.

    Connections are not kept: a job makes a handful, and one that a fork inherited would be shared by two processes.

    A file of SQLite that is not there, or is empty, is no database: only `transact` makes one, where it is told to and this
    object has seen none before. Where it has, the file's disk is away, and it would make an empty one in its place.
    """

    def __init__(
        self, url: URL, title: str, *, catalog_name: str = "", answer_seconds: float = _ANSWER_TIMEOUT_SECONDS
    ) -> None:
        """A database at an address that is understood already (`parse_url`).

        Args:
            title: what messages call it.
            catalog_name: of the catalog that it belongs to, which makes the directory of a file; any other's must be there.
            answer_seconds: how long a server may take for a transaction, before the connection is broken.
        """
        self._url, self._title, self._catalog_name = url, title, catalog_name
        self._facts: dict[str, Any] = {"catalog": catalog_name} if catalog_name else {}
        self._engine: Engine | None = None
        self._sighting = _Sighting()
        self._answer_seconds = answer_seconds

    @classmethod
    def of_catalog(cls, name: str, properties: Mapping[str, str]) -> "Database":
        """The database of a SQL catalog; raises as `parse_url`."""
        return cls(parse_url(name, properties), f"the database of catalog {name!r}", catalog_name=name)

    def with_parameters(self, parameters: Mapping[str, str]) -> "Database":
        """The same database, opened with these parameters of its address alone; what one of the two has seen the other knows."""
        made = copy(self)
        made._url, made._engine = self._url.set(query=parameters), None
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None}

    @property
    def address(self) -> str:
        """Where the database is, without the names of users and their passwords."""
        url = self._url
        # Of what follows the address this alone may lead to other tables.
        query = {name: value for name, value in url.query.items() if name in ("options", "currentSchema")}
        database = self._sqlite_path and os.path.abspath(self._sqlite_path)
        return URL.create(
            url.drivername, host=url.host, port=url.port, database=database or url.database, query=query
        ).render_as_string()

    @property
    def is_there(self) -> bool:
        """Whether there is a database to look into; one who makes it may have died, or be about to, and left the file empty."""
        path = self._sqlite_path
        try:
            return path is None or os.stat(path).st_size > 0
        except OSError:
            return False

    def require(self) -> None:
        """Raise where the database is not there to look into.

        A wrong address must not look like an empty catalog, nor a disk that is away like one whose tables were dropped: so this
        is no `NotFoundError`.

        Raises:
            ConfigError: a catalog's, that was not there before either.
            UnavailableError: it was there before, or is no catalog's.
        """
        if not self.is_there:
            raise self._away()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection in a transaction that changes nothing; each of its statements sees one state of the database."""
        self.require()
        try:
            with self._opened().connect() as connection, _hanging_up(connection, self._answer_seconds):
                yield connection
        except SQLAlchemyError as error:
            raise self._translated(error) from error
        self._sighting.is_seen = True

    def understands(self, query: str) -> bool:
        """Whether a query runs, in a transaction of its own, or names a table or column that is not there."""
        self.require()
        try:
            with self._opened().connect() as connection, _hanging_up(connection, self._answer_seconds):
                connection.execute(sqlalchemy.text(query))
        except SQLAlchemyError as error:
            if is_absent(error):
                self._sighting.is_seen = True
                return False
            raise self._translated(error) from error
        self._sighting.is_seen = True
        return True

    def clock_ms(self) -> int | None:
        """What time the server says that it is, epoch milliseconds; `None` for a file, which has no clock of its own."""
        if self._url.get_backend_name() == "sqlite":
            return None
        with self.reading() as connection:
            return int(connection.execute(_POSTGRESQL_CLOCK).scalar_one())

    def transact(self, work: Callable[[Connection], T], *, creates: bool = False) -> T:
        """Run `work` in a write transaction, and commit it.

        What `work` raises by itself comes out again after a rollback.

        Args:
            creates: make the file of a database that was never seen, if it is not there; and its directory, for a catalog.

        Raises:
            ConfigError: there is no such file, as `require` says.
            DatabaseBusyError: another writer is in the way; nothing was changed.
            DuplicateRowError: a row with the same key exists; nothing was changed.
            UnavailableError: the database failed, or its file is away; nothing was changed.
            JobFailedError: a constraint or a trigger refused the change; nothing was changed.
            UsageError: the database cannot carry out the statement; nothing was changed.
            OutcomeUnknownError: the COMMIT was sent, and what came of it proves nothing.
        """
        engine = self._opened_to_write(creates=creates)
        try:
            connection = engine.connect().execution_options(**WRITES)
        except SQLAlchemyError as error:
            raise self._translated(error) from error
        with connection, _hanging_up(connection, self._answer_seconds):
            try:
                # What fails here fails before a COMMIT was sent, and without one no transaction lands.
                connection.begin()
                result = work(connection)
            except SQLAlchemyError as error:
                with suppress(SQLAlchemyError):
                    connection.rollback()
                raise self._refused(error) from error
            try:
                connection.commit()
            except Exception as error:
                # Whatever is raised at the commit, by whichever layer, proves nothing about it if it is not listed.
                if proves_refusal(error):
                    raise self._refused(error) from error
                raise OutcomeUnknownError(
                    f"cannot tell whether {self._title} committed: {_text(error)}", **self._facts
                ) from error
        self._sighting.is_seen = True
        return result

    def _refused(self, error: Exception) -> Exception:
        if is_busy(error):
            return DatabaseBusyError(_text(error))
        if is_duplicate(error):
            return DuplicateRowError(_text(error))
        return self._translated(error)

    def _opened(self) -> Engine:
        if self._engine is None:
            self._engine = make_engine(self._url)
        return self._engine

    def _opened_to_write(self, *, creates: bool) -> Engine:
        path = self._sqlite_path
        if path is None or not creates or self._sighting.is_seen:
            self.require()
            return self._opened()
        directory = os.path.dirname(path)
        if not self._catalog_name:
            if not os.path.isdir(directory):
                raise UsageError(f"{self._title} cannot be there: there is no directory {directory!r}", path=path)
        else:
            try:
                os.makedirs(directory, exist_ok=True)
            except OSError as error:
                reason = (error.strerror or "").lower()
                raise UsageError(f"cannot make the directory of {self._title}, {path!r}: {reason}") from error
        return make_engine(self._url, creates=True)

    @property
    def _sqlite_path(self) -> str | None:
        return file_of(self._url)

    def _away(self) -> IcekeepError:
        path = self._sqlite_path or ""
        what = f"file {path!r} is empty" if os.path.exists(path) else f"there is no file {path!r}"
        if self._sighting.is_seen or not self._catalog_name:
            return UnavailableError(f"{self._title} is away: {what}; bring its disk back", path=path, **self._facts)
        return ConfigError(
            f"catalogs.{self._catalog_name}.uri",
            f"{what}; correct the path; a new catalog begins with a namespace, by Spark's CREATE NAMESPACE or "
            "load_catalog(...).create_namespace(...)",
            path=path,
            **self._facts,
        )

    def _translated(self, error: Exception) -> IcekeepError:
        if self._sighting.is_seen and not self.is_there:
            return self._away()
        if refuses_change(error):
            return JobFailedError(f"{self._title} refused the change: {_text(error)}", **self._facts)
        # Of a name with several addresses each attempt has a line.
        away = _NO_CONNECTION.search(str(getattr(error, "orig", None) or error))
        message = f"{self._title} is out of reach: {away[1]}" if away else f"{self._title} failed: {_text(error)}"
        return UnavailableError(message, **self._facts) if may_pass(error) else UsageError(message, **self._facts)


def parse_url(catalog_name: str, properties: Mapping[str, str], key_path: str = "") -> URL:
    """The address of a catalog's database, from `uri` as users of PyIceberg or of Java write it.

    `key_path` is the key of the configuration that messages name, where that is not the catalog's.

    >>> parse_url("local", {"uri": "jdbc:sqlite:/wh/catalog.db"}) == parse_url("local", {"uri": "sqlite:////wh/catalog.db"})
    True

    Raises:
        ConfigError: there is no `uri`, or it cannot be understood.
        UnsupportedError: it names a database that we have not proved to swap pointers safely.
    """
    key_path = key_path or f"catalogs.{catalog_name}.uri"
    uri = properties.get("uri", "")
    if not uri:
        raise ConfigError(key_path, "is missing; give sqlite:///PATH or postgresql://USER@HOST/DATABASE")
    try:
        url = sqlalchemy.make_url(_without_jdbc(uri))
    except (ArgumentError, ValueError) as error:
        # The text may hold a password, so it is not repeated.
        raise ConfigError(
            key_path, "cannot be understood; give sqlite:///PATH or postgresql://USER@HOST/DATABASE"
        ) from error
    backend = url.get_backend_name()
    if backend == "sqlite":
        if (url.database or "").startswith("file:") or "uri" in url.query:
            raise ConfigError(key_path, "is a file: address of SQLite, which is not supported; give sqlite:///PATH")
        return url.set(database=os.path.abspath(url.database)) if url.database not in (None, "", ":memory:") else url
    if backend not in ("postgresql", "postgres"):
        raise UnsupportedError(
            f"configuration key {key_path!r}: database {backend!r} is not supported, only sqlite and postgresql"
        )
    if _has_open_password(uri):
        raise ConfigError(key_path, "has an '@' in its password; write it as %40")
    return _postgresql(url, properties)


def sqlite_uri(path: str) -> str:
    """The `uri` of a catalog whose database is a file of SQLite, as `parse_url` reads it.

    Args:
        path: of the file, absolute.

    Raises:
        UsageError: SQLAlchemy before 2.1 reads no percent-encoded path, so that no address has one with a question mark.
    """
    text = URL.create("sqlite", database=path).render_as_string()
    if sqlalchemy.make_url(text).database != path:
        raise UsageError(
            f"no address of SQLite can name {path!r}; choose a path without '?', or install sqlalchemy>=2.1"
        )
    return text


def _without_jdbc(uri: str) -> str:
    if not uri.startswith("jdbc:"):
        return uri
    rest = uri.removeprefix("jdbc:")
    return "sqlite:///" + rest.removeprefix("sqlite:").removeprefix("file:") if rest.startswith("sqlite:") else rest


def _has_open_password(uri: str) -> bool:
    """Whether a password has an `@`: SQLAlchemy ends it there, and the rest would be looked up, and shown, as a host."""
    where, _, query = _LOGIN.sub("", uri, count=1).partition("?")
    return "@" in where or any("@" in parameter.partition("=")[0] for parameter in query.split("&"))


def _postgresql(url: URL, properties: Mapping[str, str]) -> URL:
    # JDBC writes user, password and the like as parameters, Iceberg's catalog also as properties `jdbc.*`.
    query = {_JDBC_PARAMETERS.get(k, k): value for k, value in url.query.items() if k not in _JDBC_ONLY}
    schema = query.pop("currentSchema", None)
    if schema is not None:
        query.setdefault("options", f"-csearch_path={schema}")
    ssl = query.pop("ssl", None)
    if ssl is not None and ssl != "false":
        query.setdefault("sslmode", "verify-full")
    user = url.username or query.pop("user", None) or properties.get("jdbc.user")
    password = url.password or query.pop("password", None) or properties.get("jdbc.password")
    driver = "postgresql+psycopg" if "+" not in url.drivername else url.drivername
    return url.set(
        drivername=driver, query=query, username=str(user or "") or None, password=password and str(password)
    )


@contextmanager
def _hanging_up(connection: Connection, seconds: float) -> Iterator[None]:
    """Break a connection whose server, or what stands between, takes far too long: waiting has no end by itself."""
    fileno = getattr(connection.connection.dbapi_connection, "fileno", None)
    if fileno is None:
        yield
        return
    with socket.socket(fileno=os.dup(fileno())) as same:
        timer = threading.Timer(seconds, same.shutdown, [socket.SHUT_RDWR])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def _text(error: Exception) -> str:
    """What the database said, without the statement and its parameters."""
    return without_secrets(first_line(getattr(error, "orig", None) or error))
