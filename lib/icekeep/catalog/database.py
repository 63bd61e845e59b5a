"""The database behind a SQL catalog: its address, its connections, its transactions.

SQLite and PostgreSQL through SQLAlchemy Core. A transaction ends in one of three ways, and callers can tell them apart:
it is committed, it is proved rolled back, or nobody knows.
"""

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from icekeep.catalog.database_errors import is_absent, is_busy, is_duplicate, may_pass, proves_refusal
from icekeep.errors import (
    ConfigError,
    IcekeepError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    first_line,
)

T = TypeVar("T")

_BUSY_TIMEOUT_SECONDS = 30
_ANSWER_TIMEOUT_SECONDS = 120
"""How long a transaction may take with a server that bounds its statements, before we take it for dead."""
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


class Database:
    """A database that is opened when it is first used, anew in each process.

    Connections are not kept: a job makes a handful, and one that a fork inherited would be shared by two processes.
    """

    def __init__(self, catalog_name: str, properties: Mapping[str, str]) -> None:
        self._url = parse_url(catalog_name, properties)
        self._title = f"the database of catalog {catalog_name!r}"
        self._facts: dict[str, Any] = {"catalog": catalog_name}
        self._engine: Engine | None = None
        self._makes_directory = True

    @classmethod
    def of_url(cls, url: URL, title: str) -> "Database":
        """A database at an address that is understood already (`parse_url`); `title` is what messages call it.

        The directory of a file is not made: it must be there.
        """
        made = cls.__new__(cls)
        made._url, made._title, made._facts, made._engine = url, title, {}, None
        made._makes_directory = False
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
        """Whether there is a database to look into; opening a SQLite file for reading must not create it."""
        path = self._sqlite_path
        return path is None or os.path.exists(path)

    def require(self) -> None:
        """Raise `ConfigError` where a catalog's database is not there to look into.

        A wrong address must not look like an empty catalog, nor a disk that is away like one whose tables were dropped: so this
        is no `NotFoundError`.
        """
        if not self.is_there:
            raise ConfigError(
                f"catalogs.{self._facts['catalog']}.uri",
                f"there is no file {self._sqlite_path!r}; mend the path; a new catalog begins with a namespace, by Spark's "
                "CREATE NAMESPACE or load_catalog(...).create_namespace(...)",
                path=self._sqlite_path,
                **self._facts,
            )

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection in a transaction that changes nothing; each of its statements sees one state of the database."""
        try:
            with self._opened().connect() as connection, _hanging_up(connection):
                yield connection
        except SQLAlchemyError as error:
            raise self._translated(error) from error

    def understands(self, query: str) -> bool:
        """Whether a query runs, in a transaction of its own, or names a table or column that is not there."""
        try:
            with self._opened().connect() as connection, _hanging_up(connection):
                connection.execute(sqlalchemy.text(query))
        except SQLAlchemyError as error:
            if is_absent(error):
                return False
            raise self._translated(error) from error
        return True

    def clock_ms(self) -> int | None:
        """What time the server says that it is, epoch milliseconds; `None` for a file, which has no clock of its own."""
        if self._url.get_backend_name() == "sqlite":
            return None
        with self.reading() as connection:
            return int(connection.execute(_POSTGRESQL_CLOCK).scalar_one())

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a write transaction, and commit it.

        What `work` raises by itself comes out again after a rollback.

        Raises:
            DatabaseBusyError: another writer is in the way; nothing was changed.
            DuplicateRowError: a row with the same key exists; nothing was changed.
            UnavailableError: the database failed, and nothing was changed.
            UsageError: the database refused the statement; nothing was changed.
            OutcomeUnknownError: the COMMIT was sent, and what came of it proves nothing.
        """
        self._make_directory()
        try:
            connection = self._opened().connect().execution_options(icekeep_writes=True)
        except SQLAlchemyError as error:
            raise self._translated(error) from error
        with connection, _hanging_up(connection):
            result = self._proved(connection, work)
            try:
                connection.commit()
            except Exception as error:
                # Whatever is raised at the commit, by whichever layer, proves nothing about it if it is not listed.
                if proves_refusal(error):
                    raise self._refused(error) from error
                raise self._unknown(error) from error
        return result

    def _proved(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        """Run `work`; what fails here fails before a COMMIT was sent, and without one no transaction lands."""
        try:
            connection.begin()
            return work(connection)
        except SQLAlchemyError as error:
            with suppress(SQLAlchemyError):
                connection.rollback()
            raise self._refused(error) from error

    def _refused(self, error: Exception) -> Exception:
        """The error for a transaction that is proved rolled back."""
        if is_busy(error):
            return DatabaseBusyError(_text(error))
        if is_duplicate(error):
            return DuplicateRowError(_text(error))
        return self._translated(error)

    def _opened(self) -> Engine:
        if self._engine is None:
            self._engine = _make_engine(self._url)
        return self._engine

    @property
    def _sqlite_path(self) -> str | None:
        path = self._url.database
        is_file = self._url.get_backend_name() == "sqlite" and path and path != ":memory:"
        return path if is_file else None

    def _make_directory(self) -> None:
        path = self._sqlite_path
        if path is None:
            return
        directory = os.path.dirname(path)
        if not self._makes_directory:
            if not os.path.isdir(directory):
                raise UsageError(f"{self._title} cannot be there: there is no directory {directory!r}", path=path)
            return
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise UsageError(f"cannot make the directory of {self._title}, {path!r}: {reason}") from error

    def _translated(self, error: Exception) -> IcekeepError:
        # Of a name with several addresses each attempt has a line.
        away = _NO_CONNECTION.search(str(getattr(error, "orig", None) or error))
        message = f"{self._title} is out of reach: {away[1]}" if away else f"{self._title} failed: {_text(error)}"
        return UnavailableError(message, **self._facts) if may_pass(error) else UsageError(message, **self._facts)

    def _unknown(self, error: Exception) -> OutcomeUnknownError:
        return OutcomeUnknownError(f"cannot tell whether {self._title} committed: {_text(error)}", **self._facts)


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


def _make_engine(url: URL) -> Engine:
    is_sqlite = url.get_backend_name() == "sqlite"
    options: dict[str, Any] = {"hide_parameters": True}
    if not is_sqlite:
        given = {name: value for name, value in _POSTGRESQL_CONNECTION.items() if name not in url.query}
        options |= {"poolclass": NullPool, "isolation_level": "READ COMMITTED", "connect_args": given}
    elif url.database not in (None, "", ":memory:"):
        options |= {"poolclass": NullPool}
    if is_sqlite and "timeout" not in url.query:
        options["connect_args"] = {"timeout": _BUSY_TIMEOUT_SECONDS}
    try:
        engine = sqlalchemy.create_engine(url, **options)
    except ImportError as error:
        raise UsageError(
            f"the driver of {url.get_backend_name()} is not installed: pip install 'icekeep[postgres]' brings psycopg, "
            f"for addresses that begin with postgresql:// ({first_line(error)})",
            module=error.name,
        ) from error
    except ArgumentError as error:
        raise UsageError(f"cannot open a database with {url.drivername!r}: {first_line(error)}") from error
    if is_sqlite:
        event.listen(engine, "connect", _leave_transactions_to_us)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        event.listen(engine, "begin", _begin_postgresql)
    return engine


def _leave_transactions_to_us(connection: Any, _record: object) -> None:
    connection.isolation_level = None


def _begin_sqlite(connection: Connection) -> None:
    """Take SQLite's write lock before anything is read: a lock that is taken later may be refused at the commit."""
    connection.exec_driver_sql("BEGIN IMMEDIATE" if _writes(connection) else "BEGIN")


def _begin_postgresql(connection: Connection) -> None:
    if _writes(connection):
        connection.execute(_POSTGRESQL_TRANSACTION)


def _writes(connection: Connection) -> bool:
    return bool(connection.get_execution_options().get("icekeep_writes", False))


@contextmanager
def _hanging_up(connection: Connection) -> Iterator[None]:
    """Break a connection whose server, or what stands between, takes far too long: waiting has no end by itself."""
    fileno = getattr(connection.connection.dbapi_connection, "fileno", None)
    if fileno is None:
        yield
        return
    with socket.socket(fileno=os.dup(fileno())) as same:
        timer = threading.Timer(_ANSWER_TIMEOUT_SECONDS, same.shutdown, [socket.SHUT_RDWR])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def _text(error: Exception) -> str:
    """What the database said, without the statement and its parameters."""
    return first_line(getattr(error, "orig", None) or error)
