"""What the command `report` does: catalogs opened, the tables that are meant looked at, prices taken from the configuration."""

from collections.abc import Callable, Sequence
from functools import partial

from icekeep.catalog.base import Catalog, parse_identifier
from icekeep.errors import IcekeepError, UsageError, first_line
from icekeep.events import SILENT, Listener
from icekeep.operations.catalogs import Catalogs, find_table
from icekeep.operations.config import CatalogSettings
from icekeep.operations.loading import open_settings
from icekeep.planning.spark.source import SparkSource
from icekeep.policies.globs import NAME_IN_CATALOG, parse_glob
from icekeep.reports.job import merged, report
from icekeep.reports.values import NotRead, ReportResult


def report_over(
    catalogs: Callable[[], Catalogs],
    catalog: str | None,
    spark: SparkSource,
    *,
    table: str | None = None,
    match: str | None = None,
    histories: bool = False,
    listener: Listener = SILENT,
) -> ReportResult:
    """Report one table, or all that match of a catalog, or of each that is configured.

    Of several catalogs one that is out of reach is told as not read, and does not stop the others.

    Raises:
        UsageError: both a table and a pattern are given, or no catalog is configured.
        NotFoundError: there is no such catalog or table.
        IcekeepError: the only catalog cannot be opened or listed.
    """
    known = catalogs()
    if match is not None:
        parse_glob(match, NAME_IN_CATALOG)
    if table is not None:
        if match is not None:
            raise UsageError("--table and --match both say which tables; give one of them")
        reference = find_table(known, table, catalog)
        opened = open_settings(reference.catalog)
        name = parse_identifier(reference.name)
        return report(opened, spark, tables=[name], prices=known.prices, histories=histories, listener=listener)
    chosen = [known.get(catalog)] if catalog is not None else [*known.all().values()]
    if not chosen:
        known.get(None)
    look = partial(report, spark=spark, match=match, prices=known.prices, histories=histories, listener=listener)
    reports, not_read = _reports(chosen, look)
    return merged(reports, not_read)


def _reports(
    chosen: Sequence[CatalogSettings], look: Callable[[Catalog], ReportResult]
) -> tuple[list[ReportResult], list[NotRead]]:
    reports: list[ReportResult] = []
    not_read: list[NotRead] = []
    for settings in chosen:
        try:
            reports.append(look(open_settings(settings)))
        except IcekeepError as error:
            if len(chosen) == 1:
                raise
            not_read.append(NotRead(name=f"{settings.name}.*", kind=error.kind, reason=first_line(error)))
    return reports, not_read
