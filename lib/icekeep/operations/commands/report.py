"""What the command `report` does: catalogs opened, the tables that are meant looked at, prices taken from the configuration."""

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from icekeep.catalog.base import Catalog, parse_identifier
from icekeep.errors import IcekeepError, NotFoundError, UsageError, first_line
from icekeep.events import SILENT, Listener, Warned
from icekeep.health.values import JobAdvice
from icekeep.names import NAME_IN_CATALOG, catalog_of
from icekeep.operations.commands.browsing import open_in_browser
from icekeep.operations.commands.each_catalog import of_each_catalog
from icekeep.operations.configuration.catalogs import Catalogs, find_pattern, find_table
from icekeep.operations.configuration.file import CatalogSettings, config_words
from icekeep.operations.console.output import require_directory, write_at_once
from icekeep.operations.loading import open_settings
from icekeep.operations.recording import records_of
from icekeep.planning.spark.source import SparkSource
from icekeep.reports.histories import RUNS_A_TABLE, with_histories
from icekeep.reports.job import merged, report
from icekeep.reports.page.page import report_page, require_packages
from icekeep.reports.since import read_earlier, with_changes
from icekeep.reports.values import ReportResult
from icekeep.run_records.values import RunFilter, RunRecord
from icekeep.runtime import Runtime

_NAMED_TABLES = 500
"""Of more tables than these the last runs of all tables are asked for: a question to a database has a length."""


def report_over(  # noqa: PLR0913 - what the command is about, and a keyword a flag
    catalogs: Callable[[], Catalogs],
    catalog: str | None,
    spark: SparkSource,
    *,
    table: str | None = None,
    match: str | None = None,
    histories: bool = False,
    page: str | None = None,
    since: str | None = None,
    opens: bool = False,
    listener: Listener = SILENT,
) -> ReportResult:
    """Report one table, or all that match of a catalog, or of each that is configured.

    Of several catalogs one that is out of reach is told as not read, and does not stop the others.

    Args:
        page: a file that the report is also written to, as a page for a browser; then the report has histories.
        opens: whether a browser is asked to show it, without waiting for it.
        since: a file with the JSON of an earlier report, which the tables are compared with.

    Raises:
        UsageError: both a table and a pattern are given, or no catalog is configured; the page cannot be written, for want of a
            directory or of the packages that draw it; or the earlier report cannot be read.
        NotFoundError: there is no such catalog or table, or none that the pattern matches.
        IcekeepError: the only catalog cannot be opened or listed.
    """
    if opens and page is None:
        raise UsageError("--open shows the page that --page FILE writes; give both")
    if page is not None:
        require_directory(page, "page")
        require_packages()
    earlier = None if since is None else read_earlier(since)
    found = _report_over(catalogs, catalog, spark, table, match, histories or page is not None, listener)
    if earlier is not None:
        found = with_changes(found, earlier, is_whole=table is None and match is None)
    if page is not None:
        write_at_once(page, report_page(found), "page")
        if opens:
            open_in_browser(Path(page), listener)
    return found


def _report_over(
    catalogs: Callable[[], Catalogs],
    catalog: str | None,
    spark: SparkSource,
    table: str | None,
    match: str | None,
    histories: bool,
    listener: Listener,
) -> ReportResult:
    known = catalogs()
    reference = None if match is None else find_pattern(known, match, catalog)
    if table is not None:
        if match is not None:
            raise UsageError("--table and --match both say which tables; give one of them")
        named = find_table(known, table, catalog)
        name = parse_identifier(named.name)
        look = partial(report, spark=spark, tables=[name], prices=known.prices, listener=listener)
        try:
            return _looked(named.catalog, look, known, histories, listener)
        except NotFoundError as error:
            raise named.not_found(error) from error
    if reference is not None:
        chosen = [*reference.catalogs]
    else:
        chosen = [known.get(catalog)] if catalog is not None else [*known.all().values()]
    if not chosen:
        known.get(None)
    pattern = None if reference is None else reference.glob.text
    look = partial(report, spark=spark, match=pattern, prices=known.prices, listener=listener)
    reports, not_read = of_each_catalog(chosen, lambda settings: _looked(settings, look, known, histories, listener))
    found = merged(reports, not_read)
    config = config_words(known.config.path)
    if reference is None:
        _warn_of_empty(reports, config, listener)
    elif not found.tables_count and not found.not_read:
        looked = ", ".join(settings.name for settings in chosen)
        one = ["--catalog", chosen[0].name] if len(chosen) == 1 else []
        hint = reference.doubt or f"`{shlex.join(['icekeep', 'report', *one, *config])}` lists all"
        if catalog is not None and catalog == catalog_of(reference.glob.text):
            hint = f"beside --catalog a pattern is over {NAME_IN_CATALOG}"
        raise NotFoundError(f"{match!r} matches no table of {looked}; {hint}")
    return found


def _warn_of_empty(reports: Iterable[ReportResult], config: Sequence[str], listener: Listener) -> None:
    for name in sorted(one.catalogs[0] for one in reports if not _has_any(one)):
        doctor = shlex.join(["icekeep", "doctor", "--catalog", name, *config])
        problem = f"catalog {name!r} has no table; where there should be some, look at its name and address: {doctor}"
        listener.on(Warned(problem))


def _has_any(found: ReportResult) -> bool:
    """Whether a catalog has a table, or a namespace of which nobody knows."""
    return bool(found.tables_count or found.not_read)


def _looked(
    settings: CatalogSettings,
    look: Callable[[Catalog], ReportResult],
    known: Catalogs,
    histories: bool,
    listener: Listener,
) -> ReportResult:
    with settings.placing():
        opened = open_settings(settings)
        found = _with_commands(look(opened), config_words(known.config.path))
    if not histories:
        return found
    return with_histories(opened, found, _records(settings, found, known, opened.runtime, listener), listener)


def _with_commands(found: ReportResult, config: Sequence[str]) -> ReportResult:
    """The same with commands that read the same configuration."""
    if not config:
        return found
    more = f" {shlex.join(config)}"

    def completed(one: JobAdvice) -> JobAdvice:
        return msgspec.structs.replace(one, command=one.command + more) if one.command else one

    tables = (msgspec.structs.replace(one, jobs=tuple(map(completed, one.jobs))) for one in found.tables)
    return msgspec.structs.replace(found, tables=tuple(tables))


def _records(
    settings: CatalogSettings, found: ReportResult, known: Catalogs, runtime: Runtime, listener: Listener
) -> Sequence[RunRecord]:
    """The last runs on the tables, where they are written down; a report is worth having without them."""
    tables = [one.table for one in found.tables]
    wanted = RunFilter(tables=tables if len(tables) <= _NAMED_TABLES else None, limit=RUNS_A_TABLE * len(tables))
    try:
        records = records_of(known.config.runs, settings, os.environ, is_read=True, runtime=runtime)
        return [] if records is None or not tables else records.select(wanted, runtime.now_ms())
    except IcekeepError as error:
        listener.on(Warned(f"the record of runs is not read: {first_line(error)}"))
        return []
