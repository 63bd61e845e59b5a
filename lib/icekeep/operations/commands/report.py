"""The command `report`: catalogs opened, their tables looked at, prices taken from the configuration; and `--open`."""

import os
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from icekeep.catalog.base import Identifier, parse_identifier
from icekeep.errors import IcekeepError, NotFoundError, UsageError, first_line, shown_command
from icekeep.events import SILENT, Listener, Warned
from icekeep.names import NAME_IN_CATALOG, catalog_of
from icekeep.operations.commands.tables import for_each_catalog
from icekeep.operations.configuration.catalogs import (
    Catalogs,
    PatternReference,
    TableReference,
    catalogs_of_tables,
    find_pattern,
    find_table,
)
from icekeep.operations.configuration.file import CatalogSettings
from icekeep.operations.console.output import require_directory, write_at_once
from icekeep.operations.loading import open_settings
from icekeep.operations.recording import records_of
from icekeep.planning.spark.session import SparkSource
from icekeep.policies.values import Glob
from icekeep.reports.histories import RUNS_A_TABLE, with_histories
from icekeep.reports.job import merged, report
from icekeep.reports.page.page import report_page, require_packages
from icekeep.reports.values import ReportResult, read_earlier, with_changes
from icekeep.run_records.values import RunFilter, RunRecord
from icekeep.runtime import Runtime


def open_in_browser(page: Path, listener: Listener, shown: str = "") -> bool:
    """Ask for a browser, in a process that nobody waits for: one without windows would take the terminal, and keep it.

    Args:
        page: a file. Its path is an argument of processes meanwhile, which every user of the machine can read.
        shown: what a warning calls the page; by default its path.

    Returns whether one was asked; where there is none, the listener is warned.
    """
    try:
        webbrowser.get()
    except webbrowser.Error:
        listener.on(Warned(f"there is no browser that could show {shown or repr(str(page))}"))
        return False
    nowhere = subprocess.DEVNULL
    # Isolated: else a `webbrowser.py` in the current directory would be run, whoever has put it there.
    words = [sys.executable, "-I", "-m", "webbrowser", page.absolute().as_uri()]
    subprocess.Popen(words, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
    return True


_NAMED_TABLES = 500
"""Of more tables than these the last runs of all tables are asked for: a question to a database has a length."""


class ReportScope(msgspec.Struct, frozen=True, kw_only=True):
    """Which tables a report is about: one, those that match a pattern, or all of some catalogs.

    Attributes:
        catalog: the one that was named, as it was.
        chosen: the catalogs that have the tables.
        table: the one table.
        pattern: over the tables of `chosen`.
        match: the pattern as it was given.
    """

    known: Catalogs
    catalog: str | None
    chosen: tuple[CatalogSettings, ...]
    table: TableReference | None = None
    pattern: PatternReference | None = None
    match: str | None = None

    @classmethod
    def of(cls, known: Catalogs, catalog: str | None, table: str | None, match: str | None) -> "ReportScope":
        """What flags ask for."""
        pattern = None if match is None else find_pattern(known, match, catalog)
        if table is not None:
            if match is not None:
                raise UsageError("--table and --match both say which tables; give one of them")
            named = find_table(known, table, catalog)
            return cls(known=known, catalog=catalog, chosen=(named.catalog,), table=named)
        chosen = catalogs_of_tables(known, catalog, pattern)
        return cls(known=known, catalog=catalog, chosen=chosen, pattern=pattern, match=match)

    @property
    def identifier(self) -> Identifier | None:
        """The name of the one table within its catalog."""
        return None if self.table is None else parse_identifier(self.table.name)

    @property
    def glob(self) -> Glob | None:
        """The pattern over names within a catalog."""
        return None if self.pattern is None else self.pattern.glob


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
    in_browser: bool = False,
    listener: Listener = SILENT,
) -> ReportResult:
    """Report one table, or all that match of a catalog, or of each that is configured.

    Of several catalogs one that is out of reach is told as not read, and does not stop the others.

    Args:
        page: a file that the report is also written to, as a page for a browser; then the report has histories.
        in_browser: whether a browser is asked to show it, without waiting for it.
        since: a file with the JSON of an earlier report, which the tables are compared with.
    """
    if in_browser and page is None:
        raise UsageError("--open shows the page that --page FILE writes; give both")
    if page is not None:
        require_directory(page, "page")
        require_packages()
    earlier = None if since is None else read_earlier(since)
    known = catalogs()
    wanted = ReportScope.of(known, catalog, table, match)
    names = () if wanted.identifier is None else (wanted.identifier,)
    glob = None if wanted.glob is None else wanted.glob.text

    def look(settings: CatalogSettings) -> ReportResult:
        with settings.placing():
            opened = open_settings(settings)
            found = report(opened, spark, match=glob, tables=names, prices=known.config.prices, listener=listener)
        if not histories and page is None:
            return found
        return with_histories(
            opened, found, records_on(settings, found, known, opened.runtime, listener), listener=listener
        )

    found = report_on(wanted, look, listener)
    if earlier is not None:
        found = with_changes(found, earlier, is_whole=table is None and match is None)
    if page is not None:
        write_at_once(page, report_page(found), "page")
        if in_browser:
            open_in_browser(Path(page), listener)
    return found


def report_on(
    wanted: ReportScope, look: Callable[[CatalogSettings], ReportResult], listener: Listener = SILENT
) -> ReportResult:
    """What `look` finds in each catalog as one report."""
    try:
        reports, not_read = for_each_catalog(wanted.chosen, look)
    except NotFoundError as error:
        if wanted.table is None:
            raise
        raise wanted.table.not_found(error) from error
    found = merged(reports, not_read)
    if wanted.pattern is None:
        _warn_of_empty(reports, listener)
    elif not found.tables_count and not found.not_read:
        looked = ", ".join(settings.name for settings in wanted.chosen)
        one = ["--catalog", wanted.chosen[0].name] if len(wanted.chosen) == 1 else []
        hint = wanted.pattern.doubt or f"`{shown_command('report', *one)}` lists all"
        if wanted.catalog is not None and wanted.catalog == catalog_of(wanted.pattern.glob.text):
            hint = f"beside --catalog a pattern is over {NAME_IN_CATALOG}"
        raise NotFoundError(f"{wanted.match!r} matches no table of {looked}; {hint}")
    return found


def _warn_of_empty(reports: Iterable[ReportResult], listener: Listener) -> None:
    for name in sorted(one.catalogs[0] for one in reports if not one.tables_count and not one.not_read):
        doctor = shown_command("doctor", "--catalog", name)
        problem = f"catalog {name!r} has no table; where there should be some, look at its name and address: {doctor}"
        listener.on(Warned(problem))


def records_on(
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
