"""Runs and leases in a database: SQLite for one machine, PostgreSQL for many.

Each call is one short transaction on a connection of its own, so that many processes write at once. What goes wrong is
raised here; `keeping.py` is where it becomes a warning.

A column or a table that is added raises the version by one and has an entry in `_STEPS`, which brings a database of the
version before up to it. An older icekeep refuses a newer version, as it would leave columns empty that others rely on.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy import URL, ColumnElement, Connection

from icekeep.catalog.database import Database, DatabaseBusyError, DuplicateRowError, parse_url
from icekeep.errors import IcekeepError, OutcomeUnknownError, TryAgainError, UnavailableError, UnsupportedError
from icekeep.run_records.values import (
    CUT_OFF_MS,
    SILENT_MS,
    SKEW_MS,
    JobPace,
    LastRuns,
    Paces,
    RunFilter,
    RunRecord,
    circuit_breaker,
    pending_run_ends,
)
from icekeep.runs import GOOD_EXIT_STATUSES, INTERRUPTED, RUNNING, UNFINISHED
from icekeep.runtime import SYSTEM, Runtime
from icekeep.secrets import remember
from icekeep.spec.types import DAY_MS

VERSION = 2

_SCHEMA = sa.MetaData()

RUNS = sa.Table(
    "icekeep_runs",
    _SCHEMA,
    sa.Column("run_id", sa.String(200), primary_key=True),
    sa.Column("parent_id", sa.String(200), index=True),
    sa.Column("job", sa.String(100), nullable=False),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("policy", sa.Text),
    sa.Column("status", sa.String(40), nullable=False),
    sa.Column("exit_status", sa.Integer),
    sa.Column("error_kind", sa.String(100)),
    sa.Column("error_message", sa.Text),
    sa.Column("started_ms", sa.BigInteger, nullable=False, index=True),
    sa.Column("ended_ms", sa.BigInteger),
    sa.Column("seen_ms", sa.BigInteger, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("process", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("arguments", sa.Text, nullable=False),
    sa.Column("app_id", sa.Text),
    sa.Column("snapshot_id_before", sa.BigInteger),
    sa.Column("snapshot_id_after", sa.BigInteger),
    sa.Column("metadata_location_before", sa.Text),
    sa.Column("metadata_location_after", sa.Text),
    sa.Column("result", sa.Text),
    sa.Column("estimated_ms", sa.BigInteger),
    sa.Column("estimated_cpu_ms", sa.BigInteger),
    sa.Column("cpu_ms", sa.BigInteger),
    sa.Index("icekeep_runs_of_tables", "table_name", "job", "started_ms"),
)
"""`arguments` and `result` are JSON."""

LEASES = sa.Table(
    "icekeep_leases",
    _SCHEMA,
    sa.Column("table_name", sa.String(1000), primary_key=True),
    sa.Column("holder", sa.String(200), nullable=False, index=True),
    sa.Column("until_ms", sa.BigInteger, nullable=False),
)

_LOOKS = sa.Table(
    "icekeep_looks",
    sa.MetaData(),
    sa.Column("catalog", sa.String(1000), primary_key=True),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    sa.Column("found", sa.LargeBinary, nullable=False),
)
"""Where the tables of a catalog lay at the last look. Nobody relies on it: it has no version, and is made when it is needed."""

_VERSIONS = sa.Table("icekeep_version", _SCHEMA, sa.Column("version", sa.Integer, primary_key=True))

NEW_COLUMNS = ("estimated_ms", "estimated_cpu_ms", "cpu_ms")
"""Of `RUNS`, that version 1 does not have."""

_STEPS: Mapping[int, Sequence[str]] = {
    2: [f"ALTER TABLE icekeep_runs ADD COLUMN {name} BIGINT" for name in NEW_COLUMNS]
}
"""Statements by the version that they lead to."""

_LOCK = sa.text("SELECT pg_advisory_xact_lock(4927106)")


def make_tables(connection: Connection) -> None:
    """Make the tables, or bring those that are there to this version, in the transaction of the connection.

    Raises:
        UnsupportedError: the database has a newer version.
    """
    if connection.dialect.name == "postgresql":
        # Two that make the same table at once would hinder each other.
        connection.execute(_LOCK)
    _SCHEMA.create_all(connection)
    found = connection.execute(sa.select(_VERSIONS.c.version)).scalar()
    if found is None:
        connection.execute(_VERSIONS.insert().values(version=VERSION))
        return
    if found > VERSION:
        raise UnsupportedError(
            f"the record of runs has version {found}, and this icekeep knows versions up to {VERSION}; use the newer icekeep, or "
            "another database for this one",
            version=found,
        )
    for version in range(found + 1, VERSION + 1):
        for statement in _STEPS[version]:
            connection.execute(sa.text(statement))
    if found < VERSION:
        connection.execute(_VERSIONS.update().values(version=VERSION))


def are_there(connection: Connection) -> bool:
    """Whether the database has the tables."""
    return sa.inspect(connection).has_table(_VERSIONS.name)


def are_old(connection: Connection) -> bool:
    """Whether the tables are those of an older version, and lack `NEW_COLUMNS`."""
    return (connection.execute(sa.select(_VERSIONS.c.version)).scalar() or VERSION) < VERSION


T = TypeVar("T")

_LOG = logging.getLogger(__name__)

_KEY_PATH = "runs.uri"
_BUSY_MS = 5_000
_TURN_MS = (5, 40)
"""How long to wait between two tries to write while another process writes. SQLite by itself looks ten times a second, and where
many write somebody is left out for seconds."""
_POSTGRESQL = {"connect_timeout": "5", "tcp_user_timeout": "10000"}
_POSTGRESQL_OPTIONS = "-clock_timeout=5s -cstatement_timeout=10s"
_ANSWER_SECONDS = 15
"""A job waits for its record for some seconds at most, also where the server that is to keep time has stopped."""

_RESULT_MAX_BYTES = 262_144
_JSON = ("arguments", "result")
_SUMS = ("elapsed_ms", "estimated_ms", "cpu_ms", "estimated_cpu_ms", "runs_count")
_TABLES_AT_ONCE = 5_000

_TAKE_LEASE = sa.text(
    """
    INSERT INTO icekeep_leases (table_name, holder, until_ms) VALUES (:table, :holder, :until)
    ON CONFLICT (table_name) DO UPDATE SET holder = excluded.holder, until_ms = excluded.until_ms
    WHERE icekeep_leases.holder = excluded.holder OR icekeep_leases.until_ms <= :now OR icekeep_leases.until_ms > :latest
    """
)
_RECENT_MS = 30 * DAY_MS
_RECENT_RUNS = 5
_PACE_STEP, _PACE_STEPS = 4.0, 3
"""From how far back, and from how many runs of a job on a table, its next run is estimated. Each run lets a pace be four times
further from 1, three times at most: a single slow night must not put a table off by its estimate alone."""

_KEPT_PARTS = 4
_KEPT_PART_MS = 8 * DAY_MS
_FEW_NIGHTS_MS = 4 * DAY_MS
"""Before old runs are forgotten each part of the time whose runs are kept must have one, see `forget`: two to four parts, of more
than a week each if that can be, for those who run once a week. A few nights are one part, and the night before them counts: else
nightly runs would leave it empty."""


class RunRecords:
    """The runs in one database.

    Every method raises `UnavailableError` where the database is out of reach or busy for seconds, `UsageError` where it refuses
    or is none, `UnsupportedError` where a newer icekeep has made it, and `OutcomeUnknownError` where it cannot be told whether
    it has taken what it was given, which may be given once more.

    After a call that waited in vain others fail at once for some minutes (`values.py`), but for those that say of a run that it
    begins, lives or ends, if it is no part of another: nobody waits for these, or for two of them at most. The end of a run that
    could not be written is written with the next call of this process that writes something, at the latest when the run ends that
    it is a part of.

    Attributes:
        address: where the database is, as the configuration has it, without names of users and their passwords.
    """

    def __init__(self, database: Database, reader: Database, runtime: Runtime, address: str) -> None:
        self._database, self._reader, self._runtime = database, reader, runtime
        self.address = address
        self._is_ready = False
        self._breaker, self._pending_ends = circuit_breaker(database.address), pending_run_ends(database.address)

    @classmethod
    def at(cls, uri: str, runtime: Runtime = SYSTEM) -> "RunRecords":
        """Those of a database; nothing is opened before it is used.

        Raises:
            ConfigError: the address cannot be understood.
            UnsupportedError: it is that of another kind of database.
        """
        remember({"uri": uri})
        url = parse_url("", {"uri": uri}, _KEY_PATH)
        address = _address(url)
        title = _title(address)
        if url.get_backend_name() != "sqlite":
            given = {name: value for name, value in _POSTGRESQL.items() if name not in url.query}
            # Of a setting that is there twice the server takes the last: what the address says of its own holds.
            options = [_POSTGRESQL_OPTIONS, *url.normalized_query.get("options", ())]
            database = Database(
                url.update_query_dict({**given, "options": " ".join(options)}), title, answer_seconds=_ANSWER_SECONDS
            )
            return cls(database, database, runtime, address)
        at_once = Database(url.set(query={"timeout": "0"}), title)
        return cls(at_once, at_once.with_parameters({"timeout": f"{_BUSY_MS / 1000}"}), runtime, address)

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
        """Write down a run that has ended, also where its beginning was not written down; what fails is written later."""
        self._pending_ends.drop(record.run_id)
        try:
            self._put(record)
        except (UnavailableError, OutcomeUnknownError):
            self._pending_ends.add([_values(record)])
            raise

    def beat(self, run_id: str, now_ms: int) -> None:
        """Say that a run is alive."""
        change = RUNS.update().where(RUNS.c.run_id == run_id, RUNS.c.status == RUNNING).values(seen_ms=now_ms)
        self._write(lambda connection: connection.execute(change), insists=True)

    def mark_dead(self, run: RunRecord) -> bool:
        """Note of a run that died that its end is when it was last seen; whether it was still as it was read, without an end."""
        is_same = (RUNS.c.ended_ms.is_(None), RUNS.c.seen_ms == run.seen_ms)
        change = RUNS.update().where(RUNS.c.run_id == run.run_id, RUNS.c.status == RUNNING, *is_same)
        return self._write(lambda connection: connection.execute(change.values(ended_ms=run.seen_ms)).rowcount == 1)

    def unmark_dead(self, run: RunRecord) -> None:
        """Take back what `mark_dead` noted of a run, unless that has ended meanwhile."""
        is_same = (RUNS.c.ended_ms == run.seen_ms, RUNS.c.seen_ms == run.seen_ms)
        change = RUNS.update().where(RUNS.c.run_id == run.run_id, RUNS.c.status == RUNNING, *is_same)
        self._write(lambda connection: connection.execute(change.values(ended_ms=None)))

    def forget(self, before_ms: int, now_ms: int) -> None:
        """Take out the runs that began before a time, if the record goes on from there to now.

        Where nothing was written down for a part of that time (about a quarter of 32 days or more, up to half of fewer), nothing
        is taken out: this machine's clock may be far ahead, and then all runs would seem old. What was written lately, by the run
        that asks for this not least, says nothing of that: half a part before now is left out.
        """
        kept_ms = now_ms - before_ms
        is_short = kept_ms < _FEW_NIGHTS_MS
        parts = 1 if is_short else max(2, min(_KEPT_PARTS, kept_ms // _KEPT_PART_MS))
        from_ms, until_ms = before_ms - DAY_MS * is_short, now_ms - kept_ms // (2 * parts)
        times = [from_ms + (until_ms - from_ms) * number // parts for number in range(parts + 1)]
        other = RUNS.alias()
        goes_on = [
            sa.exists().where(other.c.started_ms >= begin_ms, other.c.started_ms < end_ms)
            for begin_ms, end_ms in pairwise(times)
        ]
        change = RUNS.delete().where(RUNS.c.started_ms < before_ms, *goes_on)
        self._write(lambda connection: connection.execute(change))

    def select(self, wanted: RunFilter, now_ms: int) -> list[RunRecord]:
        """The runs that have all of what is wanted, the newest first."""
        is_live = wanted.status in (RUNNING, UNFINISHED)
        status = RUNNING if is_live else wanted.status
        columns = [column for column in RUNS.c if wanted.has_results or column is not RUNS.c.result]
        query = sa.select(*columns).order_by(RUNS.c.started_ms.desc(), RUNS.c.run_id)
        for column, value in ((RUNS.c.job, wanted.job), (RUNS.c.status, status), (RUNS.c.parent_id, wanted.parent_id)):
            query = query if value is None else query.where(column == value)
        if wanted.tables is not None:
            query = query.where(RUNS.c.table_name.in_([*wanted.tables]))
        if wanted.run_id is not None:
            query = query.where(RUNS.c.run_id.startswith(wanted.run_id, autoescape=True))
        if wanted.since_ms is not None:
            query = query.where(RUNS.c.started_ms >= wanted.since_ms)
        # Which of those that run have died is told by more than the database knows.
        query = query if is_live else query.limit(wanted.limit)
        rows = self._read(query, query.with_only_columns(*(one for one in columns if one.name not in NEW_COLUMNS)))
        found = [_record(row) for row in rows]
        return [one for one in found if not is_live or one.status_at(now_ms) == wanted.status][: wanted.limit]

    def last_of(self, tables: Collection[str], now_ms: int) -> dict[tuple[str, str], LastRuns]:
        """What is known of the last runs of each job on some tables, by table and job, in one query; of others nothing."""
        names = sorted(set(tables))
        # A database takes so many parameters and no more.
        wanted = RUNS.c.table_name.in_(names) if len(names) <= _TABLES_AT_ONCE else RUNS.c.table_name != ""
        query = _last_runs(wanted, now_ms)
        rows = self._read(query, query)
        known = set(names)
        found: dict[tuple[str, str], LastRuns] = {}
        for row in rows:
            if row["table_name"] in known:
                key = (row["table_name"], row["job"])
                found[key] = _with(found.get(key) or LastRuns(last_ok_ms=row["last_ok_ms"]), row)
        return found

    def pace_of(self, table: str, job: str, now_ms: int) -> JobPace:
        """That of one job on a table; other tables, of which there may be thousands, are asked where nothing is known of it."""
        by_table = self.paces(now_ms, (RUNS.c.table_name == table, RUNS.c.job == job))
        return (by_table if by_table.by_table else self.paces(now_ms, (RUNS.c.job == job,))).of(table, job)

    def paces(self, now_ms: int, among: Sequence[ColumnElement[bool]] = ()) -> Paces:
        """How much longer than rates say jobs took: by the last five complete runs on each table, of the last 30 days.

        Args:
            among: which runs.
        """
        of_tables: dict[tuple[str, str], Mapping[str, int]] = {}
        of_jobs: dict[str, dict[str, int]] = {}
        for row in self._read(_recent_runs(now_ms, among), None):
            of_tables[row["table_name"], row["job"]] = sums = {name: int(row[name] or 0) for name in _SUMS}
            total = of_jobs.setdefault(row["job"], dict.fromkeys(_SUMS, 0))
            total.update({name: total[name] + sums[name] for name in _SUMS})
        by_job = {job: _pace(sums, JobPace()) for job, sums in of_jobs.items()}
        by_table = {(table, job): _pace(sums, by_job[job]) for (table, job), sums in of_tables.items()}
        return Paces(by_table, by_job)

    def take_lease(self, table: str, holder: str, until_ms: int, now_ms: int) -> str:
        """Take the lease of a table, or prolong one's own, and return who has it by now.

        It is given where nobody has it, or had it until a time that has passed, or has it for much longer than is asked for here,
        by a clock that is wrong. No safety rests on it: it saves two runs from doing the same work.
        """
        values = {"table": table, "holder": holder, "until": until_ms, "now": now_ms, "latest": until_ms + SKEW_MS}

        def work(connection: Connection) -> str:
            connection.execute(_TAKE_LEASE, values)
            asked = sa.select(LEASES.c.holder).where(LEASES.c.table_name == table)
            return str(connection.execute(asked).scalar_one())

        return self._write(work)

    def renew_leases(self, holder: str, until_ms: int) -> None:
        """Prolong all leases that somebody has."""
        change = LEASES.update().where(LEASES.c.holder == holder).values(until_ms=until_ms)
        self._write(lambda connection: connection.execute(change), insists=True)

    def drop_lease(self, table: str, holder: str) -> None:
        """Give a lease back, if it is still the holder's."""
        change = LEASES.delete().where(LEASES.c.table_name == table, LEASES.c.holder == holder)
        self._write(lambda connection: connection.execute(change))

    def last_look(self, catalog: str) -> tuple[int, bytes] | None:
        """The last look at the tables of a catalog that is kept: when it began, epoch milliseconds, and what it found."""
        if not self._reader.is_there:
            return None
        asked = sa.select(_LOOKS.c.at_ms, _LOOKS.c.found).where(_LOOKS.c.catalog == catalog)
        with self._breaker.asked(self._runtime, insists=False), self._reader.reading() as connection:
            if not sa.inspect(connection).has_table(_LOOKS.name):
                return None
            row = connection.execute(asked).first()
            return None if row is None else (int(row.at_ms), bytes(row.found))

    def keep_look(self, catalog: str, at_ms: int, found: bytes) -> None:
        """Keep a look at the tables of a catalog in place of the one before."""

        def work(connection: Connection) -> None:
            _LOOKS.create(connection, checkfirst=True)
            connection.execute(_LOOKS.delete().where(_LOOKS.c.catalog == catalog))
            connection.execute(_LOOKS.insert().values(catalog=catalog, at_ms=at_ms, found=found))

        self._write(work)

    def _put(self, record: RunRecord) -> None:
        self._write(_putting([_values(record)]), insists=record.parent_id is None)

    def _write(self, work: Callable[[Connection], T], *, insists: bool = False) -> T:
        with self._breaker.asked(self._runtime, insists=insists):
            done = self._written(work)
        self._write_pending(self._pending_ends.take())
        return done

    def _write_pending(self, ends: Sequence[Mapping[str, Any]]) -> None:
        """Write what could not be written before; what fails of it fails nobody, and is kept if it may go well later."""
        if not ends:
            return
        try:
            with self._breaker.asked(self._runtime, insists=True):
                self._written(_putting(ends))
        except IcekeepError as error:
            if isinstance(error, UnavailableError | OutcomeUnknownError):
                self._pending_ends.add(ends)
            elif len(ends) == 1:
                _LOG.debug("the end of run %s is given up", ends[0]["run_id"], exc_info=True)
            else:
                # One that the database refuses keeps no other from it.
                middle = len(ends) // 2
                self._write_pending(ends[:middle])
                self._write_pending(ends[middle:])
        except BaseException:
            self._pending_ends.add(ends)
            raise

    def _written(self, work: Callable[[Connection], T]) -> T:
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
                done = self._database.transact(prepared, creates=True)
            except (DatabaseBusyError, DuplicateRowError) as error:
                if self._runtime.monotonic_ms() > until_ms:
                    raise UnavailableError(f"{_title(self.address)} is busy: {error}") from error
                self._runtime.sleep_ms(round(self._runtime.uniform(*_TURN_MS)))
            else:
                self._is_ready = True
                return done

    def _read(self, query: sa.Select[Any], of_old: sa.Select[Any] | None) -> Sequence[Mapping[str, Any]]:
        """Rows; none where nobody has written anything yet, and then nothing is made either.

        Tables of an older version are read as they are: who only reads may not be allowed to change them, and an older icekeep
        that still runs elsewhere could not write to them after that.

        Args:
            of_old: the query for such tables, which lack `NEW_COLUMNS`; `None`: they have no such rows.
        """
        if not self._reader.is_there:
            return []
        with self._breaker.asked(self._runtime, insists=False), self._reader.reading() as connection:
            if not are_there(connection):
                return []
            asked = of_old if are_old(connection) else query
            return [] if asked is None else [dict(row) for row in connection.execute(asked).mappings()]


def _putting(rows: Sequence[Mapping[str, Any]]) -> Callable[[Connection], None]:
    """What writes runs down in place of what was there of them."""

    def work(connection: Connection) -> None:
        for row in rows:
            connection.execute(RUNS.delete().where(RUNS.c.run_id == row["run_id"]))
            connection.execute(RUNS.insert().values(dict(row)))

    return work


def _title(address: str) -> str:
    return f"the record of runs at {address!r}"


def _address(url: URL) -> str:
    # Of what follows the address this alone may lead to other tables.
    query = {name: value for name, value in url.query.items() if name == "options"}
    shown = URL.create(url.get_backend_name(), host=url.host, port=url.port, database=url.database, query=query)
    return shown.render_as_string()


def _last_runs(wanted: ColumnElement[bool], now_ms: int) -> sa.Select[Any]:
    """The newest run of each table and job that did its work, and those after it that failed or were cut off, the oldest first.

    A run by hand has arguments of its own, on a branch of its own perhaps: it says nothing of what policies want. Nor does a part
    without an end of a run that has ended: that ends after all of its parts, so the part has not died, and its end is lost.
    """
    ended = sa.func.coalesce(RUNS.c.ended_ms, RUNS.c.seen_ms)
    is_ok = RUNS.c.exit_status.in_(GOOD_EXIT_STATUSES)
    parent = RUNS.alias()
    lost_its_end = sa.exists().where(parent.c.run_id == RUNS.c.parent_id, parent.c.status != RUNNING)
    has_died = sa.and_(RUNS.c.status == RUNNING, RUNS.c.seen_ms < now_ms - SILENT_MS, ~lost_its_end)
    is_no_failure = (*GOOD_EXIT_STATUSES, TryAgainError.exit_status)
    has_failed = sa.or_(
        sa.and_(RUNS.c.exit_status.not_in(is_no_failure), RUNS.c.status != INTERRUPTED),
        has_died,
    )
    has_worked_long = RUNS.c.ended_ms - RUNS.c.started_ms >= CUT_OFF_MS
    was_cut_off = sa.and_(RUNS.c.status == INTERRUPTED, has_worked_long, sa.not_(is_ok))
    each = (RUNS.c.table_name, RUNS.c.job)
    told = (
        sa.select(
            RUNS.c.table_name,
            RUNS.c.job,
            RUNS.c.run_id,
            RUNS.c.error_message,
            ended.label("at_ms"),
            has_failed.label("has_failed"),
            was_cut_off.label("was_cut_off"),
            sa.func.max(sa.case((is_ok, ended))).over(partition_by=each).label("last_ok_ms"),
            sa.func.max(sa.case((has_failed, ended))).over(partition_by=each).label("last_failure_ms"),
        )
        .where(wanted, RUNS.c.policy.is_not(None), sa.or_(is_ok, has_failed, was_cut_off), ended <= now_ms + SKEW_MS)
        .subquery()
    )
    is_last = told.c.at_ms == told.c.last_failure_ms
    is_since = told.c.at_ms > sa.func.coalesce(told.c.last_ok_ms, -1)
    return (
        sa.select(
            told.c.table_name,
            told.c.job,
            told.c.at_ms,
            told.c.has_failed,
            told.c.was_cut_off,
            told.c.last_ok_ms,
            sa.case((is_last, told.c.error_message)).label("last_error"),
        )
        .where(
            sa.or_(
                sa.and_(told.c.has_failed, sa.or_(is_since, is_last)),
                sa.and_(told.c.was_cut_off, is_since),
                told.c.at_ms == told.c.last_ok_ms,
            )
        )
        .order_by(told.c.at_ms, told.c.run_id)
    )


def _recent_runs(now_ms: int, among: Sequence[ColumnElement[bool]] = ()) -> sa.Select[Any]:
    """Of each table and job what its last runs took, and were expected to take, in sum: long ones say more than short ones."""
    has_estimate = sa.or_(RUNS.c.estimated_ms > 0, RUNS.c.estimated_cpu_ms > 0)
    each = (RUNS.c.table_name, RUNS.c.job)
    number = sa.func.row_number().over(partition_by=each, order_by=(RUNS.c.ended_ms.desc(), RUNS.c.run_id))
    runs = (
        sa.select(
            *each,
            sa.case((RUNS.c.estimated_ms > 0, RUNS.c.ended_ms - RUNS.c.started_ms)).label("elapsed_ms"),
            RUNS.c.estimated_ms,
            sa.case((RUNS.c.estimated_cpu_ms > 0, RUNS.c.cpu_ms)).label("cpu_ms"),
            RUNS.c.estimated_cpu_ms,
            sa.literal(1).label("runs_count"),
            number.label("number"),
        )
        .where(RUNS.c.started_ms >= now_ms - _RECENT_MS, RUNS.c.ended_ms <= now_ms + SKEW_MS)
        .where(RUNS.c.exit_status == 0, has_estimate, *among)
        .subquery()
    )
    sums = (sa.func.sum(runs.c[name]).label(name) for name in _SUMS)
    return (
        sa.select(runs.c.table_name, runs.c.job, *sums)
        .where(runs.c.number <= _RECENT_RUNS)
        .group_by(runs.c.table_name, runs.c.job)
    )


def _pace(sums: Mapping[str, int], otherwise: JobPace) -> JobPace:
    most = _PACE_STEP ** min(_PACE_STEPS, sums["runs_count"])

    def ratio(taken: int, estimated: int, unknown: float) -> float:
        return min(most, max(1 / most, taken / estimated)) if taken > 0 and estimated > 0 else unknown

    return JobPace(
        elapsed=ratio(sums["elapsed_ms"], sums["estimated_ms"], otherwise.elapsed),
        cpu=ratio(sums["cpu_ms"], sums["estimated_cpu_ms"], otherwise.cpu),
    )


def _with(last: LastRuns, row: Mapping[str, Any]) -> LastRuns:
    """What is known with one more row of `_last_runs`."""
    if row["was_cut_off"]:
        return last.and_cut_off(row["at_ms"])
    if not row["has_failed"]:
        return last
    if row["at_ms"] > (last.last_ok_ms or 0):
        return last.and_failed(row["at_ms"], row["last_error"])
    # It is not in a row any more.
    return msgspec.structs.replace(last, last_failure_ms=row["at_ms"], last_error=row["last_error"])


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
        values[name] = None if values.get(name) is None else msgspec.json.decode(values[name])
    return RunRecord(**values)


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
