"""The database behind a SQL catalog: its address, its connections, its transactions.

SQLite and PostgreSQL through SQLAlchemy Core. A transaction ends in one of three ways, and callers can tell them apart:
it is committed, it is proved rolled back, or nobody knows.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.pool import NullPool

from icekeep.catalog.base import one_line
from icekeep.errors import (
    ConfigError,
    IcekeepError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)

T = TypeVar("T")

_BUSY_TIMEOUT_SECONDS = 30
_SQLITE_BUSY = (5, 6)
_SQLITE_ERROR = 1
_SQLITE_LASTING = (_SQLITE_ERROR, 3, 8, 14, 23)
"""Wrong SQL or no such table, no permission, read-only, cannot open, not authorized: trying again does not help."""
_SQLITE_DUPLICATE_KEY = 1555
_POSTGRESQL_DUPLICATE_KEY = "23505"
_POSTGRESQL_BUSY = ("40001", "40P01", "55P03")
"""Serialization failure, deadlock, lock not available."""


class DatabaseBusyError(Exception):
    """Another writer has the database, and the transaction is proved rolled back: the same again may succeed."""


class DuplicateRowError(Exception):
    """A row with the same key exists, and the transaction is proved rolled back."""


class Database:
    """A database that is opened when it is first used, anew in each process.

    Connections are not kept: a job makes a handful, and one that a fork inherited would be shared by two processes.
    """

    def __init__(self, catalog_name: str, properties: Mapping[str, str]) -> None:
        self._catalog_name = catalog_name
        self._url = parse_url(catalog_name, properties)
        self._engine: Engine | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None}

    @property
    def is_there(self) -> bool:
        """Whether there is a database to look into; opening a SQLite file for reading must not create it."""
        path = self._sqlite_path
        return path is None or os.path.exists(path)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection in a transaction that sees one state of the database and changes nothing."""
        try:
            with self._opened().connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise self._translated(error) from error

    def understands(self, query: str) -> bool:
        """Whether a query runs, in a transaction of its own, or names a table or column that is not there."""
        try:
            with self._opened().connect() as connection:
                connection.execute(sqlalchemy.text(query))
        except ProgrammingError:
            return False
        except SQLAlchemyError as error:
            if _sqlite_code(error) == _SQLITE_ERROR:
                return False
            raise self._translated(error) from error
        return True

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a write transaction, and commit it.

        What `work` raises by itself comes out again after a rollback.

        Raises:
            DatabaseBusyError: another writer is in the way; nothing was changed.
            DuplicateRowError: a row with the same key exists; nothing was changed.
            UnavailableError: the database failed, and nothing was changed.
            UsageError: the database refused the statement; nothing was changed.
            OutcomeUnknownError: the connection broke at a moment at which the commit may have landed.
        """
        self._make_directory()
        try:
            connection = self._opened().connect().execution_options(icekeep_writes=True)
        except SQLAlchemyError as error:
            raise self._translated(error) from error
        with connection:
            result = self._proved(connection, work)
            try:
                connection.commit()
            except Exception as error:
                # Whatever is raised at the commit, by whichever layer, proves nothing about it.
                raise self._unknown(error) from error
        return result

    def _proved(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        """Run `work`; what fails before the commit is proved undone if the rollback returned on a live connection."""
        try:
            connection.begin()
            return work(connection)
        except SQLAlchemyError as error:
            if isinstance(error, DBAPIError) and error.connection_invalidated:
                raise self._unknown(error) from error
            try:
                connection.rollback()
            except SQLAlchemyError as second:
                raise self._unknown(second) from error
            if _is_busy(error):
                raise DatabaseBusyError(_text(error)) from error
            if _is_duplicate(error):
                raise DuplicateRowError(_text(error)) from error
            raise self._translated(error) from error

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
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise UsageError(
                f"cannot make the directory of the database of catalog {self._catalog_name!r}, {path!r}: {reason}"
            ) from error

    def _translated(self, error: SQLAlchemyError) -> IcekeepError:
        message = f"the database of catalog {self._catalog_name!r} failed: {_text(error)}"
        may_pass = not isinstance(error, DBAPIError) or isinstance(
            error, OperationalError | InterfaceError | InternalError
        )
        if may_pass and _sqlite_code(error) not in _SQLITE_LASTING:
            return UnavailableError(message, catalog=self._catalog_name)
        return UsageError(message, catalog=self._catalog_name)

    def _unknown(self, error: Exception) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"cannot tell whether the database of catalog {self._catalog_name!r} committed: {_text(error)}",
            catalog=self._catalog_name,
        )


def parse_url(catalog_name: str, properties: Mapping[str, str]) -> URL:
    """The address of a catalog's database, from `uri` as users of PyIceberg or of Java write it.

    >>> parse_url("local", {"uri": "jdbc:sqlite:/wh/catalog.db"}) == parse_url("local", {"uri": "sqlite:////wh/catalog.db"})
    True

    Raises:
        ConfigError: there is no `uri`, or it cannot be understood.
        UnsupportedError: it names a database that we have not proved to swap pointers safely.
    """
    key_path = f"catalogs.{catalog_name}.uri"
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
        return url.set(database=os.path.abspath(url.database)) if url.database not in (None, "", ":memory:") else url
    if backend not in ("postgresql", "postgres"):
        raise UnsupportedError(
            f"configuration key {key_path!r}: database {backend!r} is not supported, only sqlite and postgresql"
        )
    return _postgresql(url, properties)


def _without_jdbc(uri: str) -> str:
    if not uri.startswith("jdbc:"):
        return uri
    rest = uri.removeprefix("jdbc:")
    return "sqlite:///" + rest.removeprefix("sqlite:").removeprefix("file:") if rest.startswith("sqlite:") else rest


def _postgresql(url: URL, properties: Mapping[str, str]) -> URL:
    query = dict(url.query)
    # JDBC writes user and password as parameters, Iceberg's catalog also as properties of its own.
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
        options |= {"poolclass": NullPool, "isolation_level": "READ COMMITTED"}
    elif url.database not in (None, "", ":memory:"):
        options |= {"poolclass": NullPool}
    if is_sqlite and "timeout" not in url.query:
        options["connect_args"] = {"timeout": _BUSY_TIMEOUT_SECONDS}
    try:
        engine = sqlalchemy.create_engine(url, **options)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the driver of {url.get_backend_name()} is not installed: pip install 'psycopg[binary]'", module=error.name
        ) from error
    except ArgumentError as error:
        raise UsageError(f"cannot open a database with {url.drivername!r}: {one_line(error)}") from error
    if is_sqlite:
        event.listen(engine, "connect", _leave_transactions_to_us)
        event.listen(engine, "begin", _begin)
    return engine


def _leave_transactions_to_us(connection: Any, _record: object) -> None:
    connection.isolation_level = None


def _begin(connection: Connection) -> None:
    """Take SQLite's write lock before anything is read: a lock that is taken later may be refused at the commit."""
    writes = connection.get_execution_options().get("icekeep_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _is_busy(error: SQLAlchemyError) -> bool:
    sqlstate = getattr(getattr(error, "orig", None), "sqlstate", None)
    return _sqlite_code(error) in _SQLITE_BUSY or sqlstate in _POSTGRESQL_BUSY


def _is_duplicate(error: SQLAlchemyError) -> bool:
    cause = getattr(error, "orig", None)
    code = getattr(cause, "sqlite_errorcode", 0) or getattr(cause, "sqlstate", None)
    return code in (_SQLITE_DUPLICATE_KEY, _POSTGRESQL_DUPLICATE_KEY)


def _sqlite_code(error: SQLAlchemyError) -> int:
    return int(getattr(getattr(error, "orig", None), "sqlite_errorcode", 0)) & 0xFF


def _text(error: Exception) -> str:
    """What the database said, without the statement and its parameters."""
    return one_line(getattr(error, "orig", None) or error)
