"""How the database of a catalog is opened: the parameters of its connections, and how their transactions begin.

SQLite opens a file for writing only if it is there, but for the engine that is to make one.
"""

from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from icekeep.errors import UsageError, brought_by, first_line

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
