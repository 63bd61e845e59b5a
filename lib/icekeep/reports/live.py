"""A report that is kept up to date: a table is read again where its metadata has moved, or was read long ago."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Table
from icekeep.errors import IcekeepError, UnavailableError
from icekeep.events import SILENT, Listener
from icekeep.health.prices import Prices
from icekeep.health.values import TableHealth
from icekeep.planning.spark.session import SparkSource
from icekeep.policies.globs import Glob
from icekeep.reports.job import TABLES_AT_ONCE, look_over, report_of, tables_matching
from icekeep.reports.side_by_side import in_threads
from icekeep.reports.values import NotRead, ReportResult, TableHistory

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
