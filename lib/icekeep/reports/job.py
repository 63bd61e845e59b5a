"""The function `report`: tables of a catalog are chosen, each is examined by itself, and what fails is reported and ends nothing.

A report that is kept up to date reads a table again where its metadata has moved, or was read long ago.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from icekeep.catalog.base import Catalog, Identifier, Table, as_identifier, format_identifier
from icekeep.errors import (
    IcekeepError,
    InvalidTableError,
    NotFoundError,
    UnavailableError,
    UsageError,
    argument,
    first_line,
    one_line,
)
from icekeep.events import SILENT, Listener, StepAdvanced, StepFinished, StepStarted
from icekeep.health.job import HealthRequest, cheap_faults, table_health, with_lost_metadata
from icekeep.health.prices import Prices
from icekeep.health.values import FaultsCount, TableHealth, number_of, with_own_files
from icekeep.maintenance.check.job import check_unreadable
from icekeep.names import NAME_IN_CATALOG, full_name
from icekeep.planning.spark.session import Engine, SparkSource, check_source, is_started, limits_of, started
from icekeep.policies.values import Glob, parse_glob
from icekeep.reports.histories import in_threads, with_histories
from icekeep.reports.values import NotRead, ReportResult, TableHistory
from icekeep.spelling import counted
from icekeep.storage.base import LOCAL_REQUESTS_AT_ONCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES_AT_ONCE = 8
"""So many tables are looked at at a time where files are elsewhere; each has requests of its own under way."""

LARGE_FILES_COUNT = 20_000
LARGE_SNAPSHOTS_COUNT = 2_000
"""Of tables with more data and delete files than these, or more snapshots, whose lists are all read, one is looked at at a
time."""

OUT_OF_REACH_MAX = 16
"""After so many tables in a row that were out of reach the catalog is asked; where it is so too, no other table is tried."""

_STEP = "looking at tables"


def report(
    catalog: Catalog,
    spark: SparkSource = None,
    *,
    match: str | None = None,
    tables: Sequence[Identifier | str] = (),
    prices: Prices | None = None,
    histories: bool = False,
    listener: Listener = SILENT,
) -> ReportResult:
    """Say how healthy the tables of a catalog are, the worst first, by their metadata alone. Writes nothing.

    A table that cannot be read is reported with the reason, and does not stop the rest.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. None is needed for
            tables of up to two million entries.
        match: a pattern over `namespace.table`: `*` within a part, `**` over parts; by default all tables in all namespaces.
        tables: these instead.
        prices: what work and storage cost.
        histories: also read how the largest tables grew, and what each run of maintenance did; `report_page` plots it.

    Raises:
        UsageError: the pattern can match no table, or is given beside tables.
        NotFoundError: the catalog has no such table as one of `tables`.
        UnavailableError: the catalog is out of reach.
    """
    check_source(spark)
    glob = None if match is None else parse_glob(match, NAME_IN_CATALOG)
    if match is not None and tables:
        raise UsageError(f"{argument('match')} and {argument('tables')} both say which tables; give one of them")
    began_ms = catalog.runtime.monotonic_ms()
    not_read: list[NotRead] = []
    chosen = [*dict.fromkeys(map(as_identifier, tables))] or tables_matching(catalog, glob, not_read)
    for identifier in chosen if tables else ():
        catalog.find(identifier)
    found = look_over(catalog, chosen, spark, prices=prices, listener=listener)
    told = replace(
        report_of(
            [catalog.name],
            [*not_read, *(one for one in found if isinstance(one, NotRead))],
            [one for one in found if isinstance(one, TableHealth)],
            None if prices is None else prices.currency,
            catalog.runtime.monotonic_ms() - began_ms,
        ),
        timestamp_ms=catalog.runtime.now_ms(),
    )
    return with_histories(catalog, told, listener=listener) if histories else told


def look_over(
    catalog: Catalog,
    chosen: Sequence[Identifier],
    spark: SparkSource = None,
    *,
    prices: Prices | None = None,
    prepare: Callable[[Table], Table | None] = lambda table: table,
    listener: Listener = SILENT,
) -> list[TableHealth | NotRead | None]:
    """The health of each of some tables, in their order, or why it cannot be told; each is read once, some at a time.

    `None` stands for a table that was dropped meanwhile, or that `prepare` leaves out.

    Args:
        prepare: is given each table as it was loaded, in any thread, and returns the one to look at, or `None`.
    """
    listener.on(StepStarted(_STEP, len(chosen), "tables"))
    look = _Look(catalog, _shared(spark), prices, listener, prepare)
    found = in_threads(look.at, chosen, LOCAL_REQUESTS_AT_ONCE if _is_local(catalog) else TABLES_AT_ONCE)
    listener.on(StepFinished(_STEP, counted(len(chosen), "tables")))
    return found


def merged(reports: Sequence[ReportResult], not_read: Sequence[NotRead] = ()) -> ReportResult:
    """Reports of several catalogs as one, and what else could not be read."""
    return replace(
        report_of(
            [name for one in reports for name in one.catalogs],
            [*not_read, *(each for one in reports for each in one.not_read)],
            [each for one in reports for each in one.tables],
            next((one.currency for one in reports), None),
            sum(one.elapsed_ms for one in reports),
        ),
        histories=tuple(each for one in reports for each in one.histories),
        timestamp_ms=max((one.timestamp_ms for one in reports), default=0),
    )


def report_of(
    catalogs: Iterable[str],
    not_read: Sequence[NotRead],
    tables: Sequence[TableHealth],
    currency: str | None,
    elapsed_ms: int,
) -> ReportResult:
    """What was found of tables as a report, the worst first; without histories, and without a time."""
    return ReportResult(
        status="partial" if not_read else "done",
        catalogs=tuple(catalogs),
        currency=currency,
        tables_count=len(tables) + sum(not one.name.endswith("*") for one in not_read),
        not_read=tuple(sorted(not_read, key=lambda one: one.name)),
        tables=tuple(sorted(tables, key=lambda one: (not one.faults, one.score, one.table))),
        requests_count=sum(one.requests_count for one in tables),
        read_bytes=sum(one.read_bytes for one in tables),
        elapsed_ms=elapsed_ms,
    )


def tables_matching(catalog: Catalog, glob: Glob | None, not_read: list[NotRead]) -> list[Identifier]:
    """The tables that a pattern matches, of all namespaces where it may; one of these that cannot be listed is told."""
    found: list[Identifier] = []
    for namespace in catalog.list_namespaces():
        if glob is not None and not glob.may_match_in(format_identifier(namespace)):
            continue
        try:
            found += catalog.list_tables(namespace)
        except NotFoundError:
            # It was dropped meanwhile.
            continue
        except IcekeepError as error:
            name = f"{full_name(catalog.name, namespace)}.*"
            not_read.append(NotRead(name=name, kind=error.kind, reason=first_line(error)))
    return [one for one in found if glob is None or glob.matches(format_identifier(one))]


class _Look:
    """What looks at the tables of a catalog, some at a time."""

    def __init__(
        self,
        catalog: Catalog,
        spark: SparkSource,
        prices: Prices | None,
        listener: Listener,
        prepare: Callable[[Table], Table | None],
    ) -> None:
        self._catalog, self._spark, self._prices, self._listener = catalog, spark, prices, listener
        self._prepare = prepare
        # Held while a large table is looked at, so that memory is that of one.
        self._alone = Lock()
        self._out_of_reach_count = 0
        self._is_catalog_lost = False

    def at(self, identifier: Identifier) -> TableHealth | NotRead | None:
        """The health of a table, or why it cannot be told; `None` for one that was dropped meanwhile, or is left out."""
        name = full_name(self._catalog.name, identifier)
        if self._is_catalog_lost:
            reason = "not looked at: the catalog has gone out of reach"
            found: TableHealth | NotRead | None = NotRead(name=name, kind=UnavailableError.kind, reason=reason)
        else:
            found = self._found(identifier, name)
            self._count(found)
        self._listener.on(StepAdvanced(_STEP))
        return found

    def _count(self, found: TableHealth | NotRead | None) -> None:
        """Note whether a table was out of reach. A count that two threads change at once may be too low, which does no harm."""
        is_out = isinstance(found, NotRead) and found.kind == UnavailableError.kind
        self._out_of_reach_count = self._out_of_reach_count + 1 if is_out else 0
        if self._out_of_reach_count >= OUT_OF_REACH_MAX:
            self._out_of_reach_count = 0
            try:
                self._catalog.list_namespaces()
            except UnavailableError:
                self._is_catalog_lost = True
            except IcekeepError:
                return

    def _found(self, identifier: Identifier, name: str) -> TableHealth | NotRead | None:
        table: Table | None = None
        try:
            table = self._catalog.load(identifier)
            prepared = self._prepare(table)
            if prepared is None:
                return None
            table = prepared
            with self._alone if _is_large(table) else nullcontext():
                health = table_health(table, self._spark, prices=self._prices)
                return with_lost_metadata(with_own_files(health, table), table, self._prices)
        except NotFoundError:
            return None
        except InvalidTableError as error:
            faults = _of_metadata(self._catalog, identifier, error) if table is None else _of_lists(table, self._spark)
            return NotRead(name=name, kind=error.kind, reason=first_line(error), faults=faults)
        except IcekeepError as error:
            return NotRead(name=name, kind=error.kind, reason=first_line(error))
        except Exception as error:  # noqa: BLE001 - one table that nobody has thought of says nothing of the others
            return NotRead(name=name, kind="unexpected", reason=f"unexpected error: {one_line(error)}")


def _is_large(table: Table) -> bool:
    head = table.current_snapshot
    counts = [number_of(head.summary, key) or 0 for key in ("total-data-files", "total-delete-files")] if head else []
    return sum(counts) > LARGE_FILES_COUNT or len(table.metadata.snapshots) > LARGE_SNAPSHOTS_COUNT


def _of_metadata(catalog: Catalog, identifier: Identifier, error: InvalidTableError) -> tuple[FaultsCount, ...]:
    try:
        found = check_unreadable(catalog, identifier, error).faults
    except Exception:  # noqa: BLE001 - the table is told as not read, and why
        return ()
    return tuple(FaultsCount(fault_id=f.fault_id, name=f.name, faults_count=f.faults_count) for f in found)


def _of_lists(table: Table, spark: SparkSource) -> tuple[FaultsCount, ...]:
    try:
        return cheap_faults(table, HealthRequest(spark))
    except Exception:  # noqa: BLE001 - the table is told as not read, and why
        return ()


def _is_local(catalog: Catalog) -> bool:
    warehouse = catalog.warehouse
    return warehouse is not None and warehouse.startswith(("/", "file:"))


def _shared(spark: SparkSource) -> SparkSource:
    """A source that several threads may ask: it starts one session."""
    if is_started(spark):
        return spark
    lock = Lock()

    def start() -> "SparkSession":
        with lock:
            return started(spark)

    return Engine(spark=start, limits=limits_of(spark))


AddHistories = Callable[[ReportResult, Sequence[TableHealth]], ReportResult]
"""A report on tables that were read just now with their histories; the largest of all tables have their growth read."""


class _Kept(msgspec.Struct, frozen=True):
    """A table as it was read, with the number of the refresh that read it; `location` is `None` where its catalog did not say."""

    location: str | None
    reading: int
    read_ms: int
    found: TableHealth | NotRead
    history: TableHistory | None = None


class LiveReport:
    """The health of tables of a catalog with their histories, of which a refresh reads what has changed; one at a time.

    Args:
        catalog: whose tables; its runtime says how old what was read is.
        identifier: the one table that is reported; `None` for all that `glob` matches.
        glob: over the names of tables; `None` for all of the catalog.
        keep_ms: a table that was read longer ago is read again though its metadata has not moved: ages and the trash change.

    Attributes:
        search_ms: how long the last refresh took to list the tables and to find where their metadata is.
    """

    def __init__(
        self,
        catalog: Catalog,
        spark: SparkSource = None,
        *,
        identifier: Identifier | None = None,
        glob: Glob | None = None,
        prices: Prices | None = None,
        keep_ms: int,
    ) -> None:
        self.catalog = catalog
        self._spark, self._prices, self._keep_ms = spark, prices, keep_ms
        self._identifier, self._glob = identifier, glob
        self._kept: dict[Identifier, _Kept] = {}
        self._not_listed: tuple[str, ...] = ()
        self._readings_count = 0
        self.search_ms = 0

    @property
    def version(self) -> tuple[Any, ...]:
        """Differs from what it was before a refresh where that has changed what the report says."""
        tables = sorted(
            (identifier, kept.found.reason if isinstance(kept.found, NotRead) else str(kept.reading))
            for identifier, kept in self._kept.items()
        )
        return (*self._not_listed, *tables)

    def refresh(
        self, add_histories: AddHistories, listener: Listener = SILENT, check: Callable[[], None] = lambda: None
    ) -> ReportResult:
        """The report as it is now. A table that cannot be read is listed with the reason, and is tried again.

        Args:
            check: is called before each of maybe thousands of questions to the catalog; what it raises ends the refresh.

        Raises:
            NotFoundError: the one table that is reported is not there.
            IcekeepError: the catalog cannot be listed.
        """
        runtime = self.catalog.runtime
        began_ms = runtime.monotonic_ms()
        not_read: list[NotRead] = []
        if self._identifier is None:
            chosen = tables_matching(self.catalog, self._glob, not_read)
        else:
            self.catalog.find(self._identifier)
            chosen = [self._identifier]
        self._not_listed = tuple(one.reason for one in not_read)
        found_at = in_threads(partial(self._location, check), chosen, TABLES_AT_ONCE)
        locations = dict(zip(chosen, found_at, strict=True))
        self.search_ms = runtime.monotonic_ms() - began_ms
        self._kept = {one: self._kept[one] for one in chosen if one in self._kept}
        stale = [one for one in chosen if not self._is_current(one, locations[one], began_ms)]
        if stale:
            self._read(stale, locations, add_histories, listener)
        found = [kept.found for kept in self._kept.values()]
        report = report_of(
            [self.catalog.name],
            [*not_read, *(one for one in found if isinstance(one, NotRead))],
            [one for one in found if isinstance(one, TableHealth)],
            None if self._prices is None else self._prices.currency,
            runtime.monotonic_ms() - began_ms,
        )
        histories = {kept.history.table: kept.history for kept in self._kept.values() if kept.history is not None}
        return msgspec.structs.replace(
            report,
            histories=tuple(histories[one.table] for one in report.tables if one.table in histories),
            timestamp_ms=runtime.now_ms(),
        )

    def _location(self, check: Callable[[], None], identifier: Identifier) -> str | None:
        check()
        try:
            return self.catalog.find(identifier).metadata_location
        except IcekeepError:
            # The reason is reported when the table is read.
            return None

    def _is_current(self, identifier: Identifier, location: str | None, now_ms: int) -> bool:
        kept = self._kept.get(identifier)
        if kept is None or location is None or location != kept.location:
            return False
        is_passing = isinstance(kept.found, NotRead) and kept.found.kind == UnavailableError.kind
        return not is_passing and now_ms - kept.read_ms < self._keep_ms

    def _read(
        self,
        stale: Sequence[Identifier],
        locations: dict[Identifier, str | None],
        add_histories: AddHistories,
        listener: Listener,
    ) -> None:
        note = partial(_noted, locations)
        looked = look_over(self.catalog, stale, self._spark, prices=self._prices, prepare=note, listener=listener)
        fresh = {one: found for one, found in zip(stale, looked, strict=True) if found is not None}
        for one in stale:
            self._kept.pop(one, None)
        tables = [one for one in fresh.values() if isinstance(one, TableHealth)]
        among = [*tables, *(kept.found for kept in self._kept.values() if isinstance(kept.found, TableHealth))]
        report = add_histories(report_of([self.catalog.name], [], tables, None, 0), among)
        histories = {one.table: one for one in report.histories}
        self._readings_count += 1
        read_ms = self.catalog.runtime.monotonic_ms()
        for identifier, found in fresh.items():
            history = histories.get(found.table) if isinstance(found, TableHealth) else None
            self._kept[identifier] = _Kept(locations[identifier], self._readings_count, read_ms, found, history)


def _noted(locations: dict[Identifier, str | None], table: Table) -> Table:
    """The table, after a note of the metadata that is read of it: a commit may have come since its catalog was asked."""
    locations[table.identifier] = table.metadata_location
    return table
