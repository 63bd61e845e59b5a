"""Runs and leases in a database: SQLite for one machine, PostgreSQL for many.

Each call is one short transaction on a connection of its own, so that many processes write at once. What goes wrong is raised
here; `keeping.py` is where it becomes a warning.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy import URL, ColumnElement, Connection

from icekeep.catalog.database import Database, DatabaseBusyError, DuplicateRowError, parse_url
from icekeep.errors import UnavailableError
from icekeep.run_records.schema import LEASES, RUNS, are_there, make_tables
from icekeep.run_records.values import (
    INTERRUPTED,
    RUNNING,
    SILENT_MS,
    UNFINISHED,
    LastRuns,
    RunFilter,
    RunRecord,
)
from icekeep.runs import GOOD_EXIT_STATUSES
from icekeep.runtime import SYSTEM, Runtime

T = TypeVar("T")

_KEY_PATH = "runs.uri"
_BUSY_MS = 5_000
_TURN_MS = (5, 40)
"""How long to wait between two tries to write while another process writes. SQLite by itself looks ten times a second, and where
many write somebody is left out for seconds."""
_POSTGRESQL = {"connect_timeout": "5", "options": "-clock_timeout=5s -cstatement_timeout=10s"}
"""A job waits for its record for some seconds at most."""

_RESULT_MAX_BYTES = 262_144
_JSON = ("arguments", "result")
_TABLES_AT_ONCE = 5_000

_TAKE_LEASE = sa.text(
    """
    INSERT INTO icekeep_leases (table_name, holder, until_ms) VALUES (:table, :holder, :until)
    ON CONFLICT (table_name) DO UPDATE SET holder = excluded.holder, until_ms = excluded.until_ms
    WHERE icekeep_leases.holder = excluded.holder OR icekeep_leases.until_ms <= :now
    """
)


class RunRecords:
    """The runs in one database.

    Every method raises `UnavailableError` where the database is out of reach or busy for seconds, `UsageError` where it refuses
    or is none, `UnsupportedError` where a newer icekeep has made it, and `OutcomeUnknownError` where it cannot be told whether
    it has taken what it was given, which may be given once more.

    Attributes:
        address: where the database is, as the configuration has it, without names of users and their passwords.
    """

    def __init__(self, database: Database, reader: Database, runtime: Runtime, address: str) -> None:
        self._database, self._reader, self._runtime = database, reader, runtime
        self.address = address
        self._is_ready = False

    @classmethod
    def at(cls, uri: str, runtime: Runtime = SYSTEM) -> "RunRecords":
        """Those of a database; nothing is opened before it is used.

        Raises:
            ConfigError: the address cannot be understood.
            UnsupportedError: it is that of another kind of database.
        """
        url = parse_url("", {"uri": uri}, _KEY_PATH)
        address = _address(url)
        title = _title(address)
        if url.get_backend_name() != "sqlite":
            given = {name: value for name, value in _POSTGRESQL.items() if name not in url.query}
            database = Database.of_url(url.update_query_dict(given), title)
            return cls(database, database, runtime, address)
        at_once, later = (
            Database.of_url(url.set(query={"timeout": text}), title) for text in ("0", f"{_BUSY_MS / 1000}")
        )
        return cls(at_once, later, runtime, address)

    def is_begun(self) -> bool:
        """Whether anything has been written down in it."""
        if not self._reader.is_there:
            return False
        with self._reader.reading() as connection:
            return are_there(connection)

    def begin(self, record: RunRecord) -> None:
        """Write down a run that begins."""
        self._put(record)

    def end(self, record: RunRecord) -> None:
        """Write down a run that has ended, also where its beginning was not written down."""
        self._put(record)

    def beat(self, run_id: str, now_ms: int) -> None:
        """Say that a run is alive."""
        change = RUNS.update().where(RUNS.c.run_id == run_id, RUNS.c.status == RUNNING).values(seen_ms=now_ms)
        self._write(lambda connection: connection.execute(change))

    def forget(self, before_ms: int) -> None:
        """Take out the runs that began before a time."""
        self._write(lambda connection: connection.execute(RUNS.delete().where(RUNS.c.started_ms < before_ms)))

    def select(self, wanted: RunFilter, now_ms: int) -> list[RunRecord]:
        """The runs that have all of what is wanted, the newest first."""
        is_live = wanted.status in (RUNNING, UNFINISHED)
        status = RUNNING if is_live else wanted.status
        query = sa.select(RUNS).order_by(RUNS.c.started_ms.desc(), RUNS.c.run_id)
        for column, value in ((RUNS.c.job, wanted.job), (RUNS.c.status, status), (RUNS.c.parent_id, wanted.parent_id)):
            query = query if value is None else query.where(column == value)
        if wanted.tables is not None:
            query = query.where(RUNS.c.table_name.in_([*wanted.tables]))
        if wanted.run_id is not None:
            query = query.where(RUNS.c.run_id.startswith(wanted.run_id, autoescape=True))
        if wanted.since_ms is not None:
            query = query.where(RUNS.c.started_ms >= wanted.since_ms)
        # Which of those that run have died is told by more than the database knows.
        rows = self._read(query if is_live else query.limit(wanted.limit))
        found = [_record(row) for row in rows]
        return [one for one in found if not is_live or one.status_at(now_ms) == wanted.status][: wanted.limit]

    def last_of(self, tables: Collection[str], now_ms: int) -> dict[tuple[str, str], LastRuns]:
        """What is known of the last runs of each job on some tables, by table and job, in one query; of others nothing."""
        names = sorted(set(tables))
        # A database takes so many parameters and no more.
        wanted = RUNS.c.table_name.in_(names) if len(names) <= _TABLES_AT_ONCE else RUNS.c.table_name != ""
        rows = self._read(_last_runs(wanted, now_ms))
        known = set(names)
        return {
            (row["table_name"], row["job"]): LastRuns(
                last_ok_ms=row["last_ok_ms"],
                failures_in_a_row=row["failures_in_a_row"] or 0,
                last_failure_ms=row["last_failure_ms"],
                last_error=row["last_error"],
            )
            for row in rows
            if row["table_name"] in known
        }

    def take_lease(self, table: str, holder: str, until_ms: int, now_ms: int) -> str:
        """Take the lease of a table, or prolong one's own, and return who has it by now.

        It is given where nobody has it, or had it until a time that has passed. No safety rests on it: it saves two runs from
        doing the same work.
        """
        values = {"table": table, "holder": holder, "until": until_ms, "now": now_ms}

        def work(connection: Connection) -> str:
            connection.execute(_TAKE_LEASE, values)
            asked = sa.select(LEASES.c.holder).where(LEASES.c.table_name == table)
            return str(connection.execute(asked).scalar_one())

        return self._write(work)

    def renew_leases(self, holder: str, until_ms: int) -> None:
        """Prolong all leases that somebody has."""
        change = LEASES.update().where(LEASES.c.holder == holder).values(until_ms=until_ms)
        self._write(lambda connection: connection.execute(change))

    def drop_lease(self, table: str, holder: str) -> None:
        """Give a lease back, if it is still the holder's."""
        change = LEASES.delete().where(LEASES.c.table_name == table, LEASES.c.holder == holder)
        self._write(lambda connection: connection.execute(change))

    def _put(self, record: RunRecord) -> None:
        values = _values(record)

        def work(connection: Connection) -> None:
            connection.execute(RUNS.delete().where(RUNS.c.run_id == record.run_id))
            connection.execute(RUNS.insert().values(values))

        self._write(work)

    def _write(self, work: Callable[[Connection], T]) -> T:
        def prepared(connection: Connection) -> T:
            if connection.dialect.name == "sqlite":
                # The lock is ours; a commit waits for those who read.
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {_BUSY_MS}")
            if not self._is_ready:
                make_tables(connection)
            return work(connection)

        until_ms = self._runtime.monotonic_ms() + _BUSY_MS
        while True:
            try:
                done = self._database.transact(prepared)
            except (DatabaseBusyError, DuplicateRowError) as error:
                if self._runtime.monotonic_ms() > until_ms:
                    raise UnavailableError(f"{_title(self.address)} is busy: {error}") from error
                self._runtime.sleep_ms(round(self._runtime.uniform(*_TURN_MS)))
            else:
                self._is_ready = True
                return done

    def _read(self, query: sa.Select[Any]) -> Sequence[Mapping[str, Any]]:
        """Rows; none where nobody has written anything yet, and then nothing is made either."""
        if not self._reader.is_there:
            return []
        with self._reader.reading() as connection:
            if not are_there(connection):
                return []
            return [dict(row) for row in connection.execute(query).mappings()]


def _title(address: str) -> str:
    return f"the record of runs at {address!r}"


def _address(url: URL) -> str:
    # Of what follows the address this alone may lead to other tables.
    query = {name: value for name, value in url.query.items() if name == "options"}
    shown = URL.create(url.get_backend_name(), host=url.host, port=url.port, database=url.database, query=query)
    return shown.render_as_string()


def _last_runs(wanted: ColumnElement[bool], now_ms: int) -> sa.Select[Any]:
    """The newest run of each table and job that did its work, and what of those after it failed.

    A run by hand has arguments of its own, on a branch of its own perhaps: it says nothing of what policies want.
    """
    ended = sa.func.coalesce(RUNS.c.ended_ms, RUNS.c.seen_ms)
    is_ok = RUNS.c.exit_status.in_(GOOD_EXIT_STATUSES)
    has_died = sa.and_(RUNS.c.status == RUNNING, RUNS.c.seen_ms < now_ms - SILENT_MS)
    has_failed = sa.or_(
        sa.and_(RUNS.c.exit_status.not_in(GOOD_EXIT_STATUSES), RUNS.c.status != INTERRUPTED),
        has_died,
    )
    each = (RUNS.c.table_name, RUNS.c.job)
    told = (
        sa.select(
            RUNS.c.table_name,
            RUNS.c.job,
            RUNS.c.error_message,
            ended.label("at_ms"),
            has_failed.label("has_failed"),
            sa.func.max(sa.case((is_ok, ended))).over(partition_by=each).label("last_ok_ms"),
            sa.func.max(sa.case((has_failed, ended))).over(partition_by=each).label("last_failure_ms"),
        )
        .where(wanted, RUNS.c.policy.is_not(None), sa.or_(is_ok, has_failed))
        .subquery()
    )
    is_since = sa.and_(told.c.has_failed, told.c.at_ms > sa.func.coalesce(told.c.last_ok_ms, -1))
    is_last = sa.and_(told.c.has_failed, told.c.at_ms == told.c.last_failure_ms)
    return sa.select(
        told.c.table_name,
        told.c.job,
        sa.func.max(told.c.last_ok_ms).label("last_ok_ms"),
        sa.func.sum(sa.case((is_since, 1), else_=0)).label("failures_in_a_row"),
        sa.func.max(told.c.last_failure_ms).label("last_failure_ms"),
        sa.func.max(sa.case((is_last, told.c.error_message))).label("last_error"),
    ).group_by(told.c.table_name, told.c.job)


def _values(record: RunRecord) -> dict[str, Any]:
    values = msgspec.structs.asdict(record)
    values["table_name"] = values.pop("table")
    values["arguments"] = _json(record.arguments)
    result = None if record.result is None else _json(record.result)
    if result is not None and len(result) > _RESULT_MAX_BYTES:
        # Lists of faults or of files may be longer than all other runs together.
        result = _json(
            {"left_out": f"the result has {len(result)} bytes of JSON; the outcome document of the run has it all"}
        )
    values["result"] = result
    return values


def _record(row: Mapping[str, Any]) -> RunRecord:
    # The names of columns are more than plain text to SQLAlchemy.
    values = {str(name): value for name, value in row.items()}
    values["table"] = values.pop("table_name")
    for name in _JSON:
        values[name] = None if values[name] is None else msgspec.json.decode(values[name])
    return RunRecord(**values)


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
