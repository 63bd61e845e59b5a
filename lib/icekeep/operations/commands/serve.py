"""The command `serve`: the report and the runs in a browser, as of the last refresh, which no request waits for."""

import json
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from icekeep.catalog.base import Catalog
from icekeep.errors import IcekeepError, UsageError, first_line, one_line
from icekeep.events import SILENT, Listener, Noted
from icekeep.health.values import TableHealth
from icekeep.names import without_catalog
from icekeep.operations.commands.report import ReportScope, open_in_browser, records_on, report_on
from icekeep.operations.commands.runs import run_row, runs
from icekeep.operations.configuration.catalogs import Catalogs
from icekeep.operations.configuration.file import CatalogSettings, Configuration
from icekeep.operations.interrupts import Interrupted
from icekeep.operations.serving import LOOPBACK, HttpResponse, LocalServer
from icekeep.planning.spark.session import Engine
from icekeep.reports.histories import with_histories
from icekeep.reports.job import LiveReport
from icekeep.reports.page.page import Filled, filled_report, filled_runs, require_packages
from icekeep.reports.values import ReportResult
from icekeep.run_records.values import RunRecord
from icekeep.runs import FAILED, REFUSED, RUNNING, UNFINISHED
from icekeep.runtime import SYSTEM, Runtime, new_token
from icekeep.spec.times import format_moment
from icekeep.spec.types import MINUTE_MS

_RUNS_READ, _RUNS_SHOWN = 500, 100
"""How many of the newest runs are read, and how many the page of all tables shows; that of one table shows all that were read."""

_LEAST_WAIT_MS, _SEARCH_SHARE = 3_000, 9
"""The least time between two refreshes, and how many times as long as the last search for changes it is; at least as long as the
last refresh took, and at most a minute."""

_LOG = logging.getLogger(__name__)
_WRONG = (FAILED, REFUSED, UNFINISHED)


class _RunsRead(msgspec.Struct, frozen=True):
    """Runs, the newest first; the addresses of their records; and notes, such as why there are none."""

    runs: tuple[RunRecord, ...] = ()
    records: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def version(self) -> Any:
        return [(one.run_id, one.status, one.ended_ms) for one in self.runs], self.notes


class _Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What was read last. A version goes up each time that what it stands for has changed.

    Attributes:
        refreshed_ms: when the last refresh succeeded, epoch milliseconds.
        wrong: why the refreshes since then failed; empty where none did.
    """

    report: Filled
    report_version: int
    runs: _RunsRead
    runs_version: int
    tables_count: int
    refreshed_ms: int
    wrong: str = ""


class Board:
    """The pages of `serve`.

    Args:
        wanted: which tables.
        opens: opens a catalog.
        keep_ms: a table read longer ago than this, in milliseconds, is read again even if its metadata has not moved.
    """

    def __init__(
        self,
        wanted: ReportScope,
        opens: Callable[[CatalogSettings], Catalog],
        *,
        keep_ms: int,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._wanted, self._opens, self._keep_ms, self._runtime = wanted, opens, keep_ms, runtime
        self._live: dict[str, LiveReport] = {}
        self._shown: _Shown | None = None
        self._report_key: Any = None
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._due_ms = 0
        self.refreshes_count = 0

    @property
    def tables_count(self) -> int:
        return 0 if self._shown is None else self._shown.tables_count

    def refresh(self, listener: Listener = SILENT, check: Callable[[], None] = lambda: None) -> None:
        """Read the runs, and the tables that have changed; an error is shown with what was read last.

        Args:
            check: see `LiveReport.refresh`.
        """
        with self._lock:
            began_ms = self._runtime.monotonic_ms()
            try:
                self._refresh(listener, check)
            except Exception as error:
                if self._shown is None:
                    raise
                if not isinstance(error, IcekeepError):
                    _LOG.warning("the report could not be refreshed: %s", one_line(error), exc_info=True)
                self._shown = msgspec.structs.replace(self._shown, wrong=f"Not refreshed: {one_line(error)}")
            finally:
                self.refreshes_count += 1
                ended_ms = self._runtime.monotonic_ms()
                search_ms = sum(live.search_ms for live in self._live.values())
                wait_ms = max(_LEAST_WAIT_MS, ended_ms - began_ms, _SEARCH_SHARE * search_ms)
                self._due_ms = ended_ms + min(MINUTE_MS, wait_ms)

    def keep_refreshing(self, is_over: threading.Event) -> None:
        """Refresh whenever a page or the state is requested and a refresh is due, until `stop_refreshing`."""
        ending = _Ending(is_over)
        with suppress(SystemExit):
            while self._wake.wait() and not is_over.is_set():
                self._wake.clear()
                self.refresh(ending, ending.check)

    def stop_refreshing(self, is_over: threading.Event) -> None:
        """Let `keep_refreshing` end; a refresh under way ends after the tables that it is reading."""
        is_over.set()
        self._wake.set()

    def answer(self, path: str, query: Mapping[str, str]) -> HttpResponse | None:
        shown = self._shown
        if shown is None:
            return None
        match path:
            case "/":
                found = _page(shown.report)
            case "/runs":
                found = _page(self._runs_page(shown, query.get("table", "")))
            case "/state":
                found = HttpResponse(body=json.dumps(self._state(shown)), content_type="application/json")
            case _:
                return None
        if not self._lock.locked() and self._runtime.monotonic_ms() >= self._due_ms:
            self._wake.set()
        return found

    def _refresh(self, listener: Listener, check: Callable[[], None]) -> None:
        found = self._runs()
        before = self._shown
        if before is not None:
            # The report follows once it is read.
            runs_version = before.runs_version + (found.version != before.runs.version)
            self._shown = before = msgspec.structs.replace(before, runs=found, runs_version=runs_version)
        report = report_on(self._wanted, partial(self._look, listener, check), listener)
        key = [live.version for live in self._live.values()], [(one.name, one.reason) for one in report.not_read]
        refreshed_ms = self._runtime.now_ms()
        if before is not None and key == self._report_key:
            self._shown = msgspec.structs.replace(before, refreshed_ms=refreshed_ms, wrong="")
            return
        version = 1 if before is None else before.report_version + 1
        page = filled_report(report, live=_live("report", version, found, refreshed_ms))
        self._report_key = key
        self._shown = _Shown(
            report=page,
            report_version=version,
            runs=found,
            runs_version=1 if before is None else before.runs_version,
            tables_count=report.tables_count,
            refreshed_ms=refreshed_ms,
        )

    def _look(self, listener: Listener, check: Callable[[], None], settings: CatalogSettings) -> ReportResult:
        known, wanted = self._wanted.known, self._wanted
        with settings.placing():
            live = self._live.get(settings.name)
            if live is None:
                live = self._live[settings.name] = LiveReport(
                    self._opens(settings),
                    Engine(spark=_no_spark),
                    identifier=wanted.identifier,
                    glob=wanted.glob,
                    prices=known.config.prices,
                    keep_ms=self._keep_ms,
                )

            def add_histories(report: ReportResult, among: Sequence[TableHealth]) -> ReportResult:
                records = records_on(settings, report, known, self._runtime, listener)
                return with_histories(live.catalog, report, records, listener, among=among)

            return live.refresh(add_histories, listener, check)

    def _runs(self) -> _RunsRead:
        wanted = self._wanted
        catalog = wanted.chosen[0].name if len(wanted.chosen) == 1 else None
        table = None if wanted.table is None else wanted.table.name
        try:
            found = runs(wanted.known.config, wanted.known, self._opens, catalog, table=table, last=_RUNS_READ)
        except IcekeepError as error:
            return _RunsRead(notes=(first_line(error),))
        glob = wanted.glob
        chosen = [one for one in found.runs if glob is None or (one.table and glob.matches(without_catalog(one.table)))]
        return _RunsRead(tuple(chosen), found.records, found.notes)

    def _runs_page(self, shown: _Shown, table: str) -> Filled:
        found = [one for one in shown.runs.runs if not table or one.table == table]
        rows = [run_row(one) for one in (found if table else found[:_RUNS_SHOWN])]
        return filled_runs(
            rows,
            {**_live("runs", shown.runs_version, shown.runs, shown.refreshed_ms, shown.wrong), "table": table},
            records=shown.runs.records,
            notes=shown.runs.notes,
            wrong_statuses=_WRONG,
            left_out=len(found) > len(rows) or len(shown.runs.runs) == _RUNS_READ,
            read_count=len(shown.runs.runs),
        )

    def _state(self, shown: _Shown) -> Mapping[str, Any]:
        said = _live("", 0, shown.runs, shown.refreshed_ms, shown.wrong)
        is_refreshing = self._lock.locked()
        return {
            "report": shown.report_version,
            "runs": shown.runs_version,
            "refreshed": f"{said['refreshed']}, refreshing" if is_refreshing else said["refreshed"],
            "running": said["running"],
            "wrong": shown.wrong,
        }


def _live(page: str, version: int, found: _RunsRead, refreshed_ms: int, wrong: str = "") -> dict[str, Any]:
    running = [one for one in found.runs if one.status == RUNNING]
    return {
        "page": page,
        "version": version,
        "table": "",
        "running": f"{len(running)} running" if running else "",
        "refreshed": f"Refreshed at {format_moment(refreshed_ms)}",
        "wrong": wrong,
    }


def _page(filled: Filled) -> HttpResponse:
    return HttpResponse(body=filled.html, content_type="text/html", policy=filled.policy)


def _no_spark() -> NoReturn:
    raise UsageError("the table is too large to be read without Spark; `icekeep report --table` starts it")


class _Ending:
    """Ends a refresh at its next event, or when it asks for the next table, once the server has ended."""

    def __init__(self, is_over: threading.Event) -> None:
        self._is_over = is_over

    def on(self, _event: Any) -> None:
        self.check()

    def check(self) -> None:
        if self._is_over.is_set():
            raise SystemExit


_PORT = 8642
_KEEP_MS = 10 * MINUTE_MS
_END_SECONDS = 5


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What a server did until it was stopped.

    Attributes:
        address: of its first page, without the token, which is no longer valid.
        tables_count: in the last refresh, including those that could not be read.
        refreshes_count: how often the report and the runs were refreshed, the first reading included.
    """

    status: str = "done"
    address: str
    tables_count: int
    refreshes_count: int


def serve(  # noqa: PLR0913 - the settings of the command
    config: Configuration,
    catalogs: Catalogs,
    opens: Callable[[CatalogSettings], Catalog],
    catalog: str | None,
    *,
    table: str | None = None,
    match: str | None = None,
    port: int = _PORT,
    host: str = LOOPBACK[0],
    keep_ms: int = _KEEP_MS,
    in_browser: bool = False,
    listener: Listener = SILENT,
) -> Served:
    """Read the tables, then answer requests until an interrupt, which is its normal end.

    Args:
        catalog: the one whose tables are shown; `None` for all that are configured.
        port: 0 for any that is free.
        host: a loopback address.
        keep_ms: a table read longer ago than this is read again even if its metadata has not moved.
        in_browser: whether a browser is asked to show it.
    """
    require_packages()
    board = Board(ReportScope.of(catalogs, catalog, table, match), opens, keep_ms=keep_ms)
    is_over = threading.Event()
    with LocalServer(board, host, port, new_token()) as server:
        board.refresh(listener)
        refreshing = threading.Thread(
            target=board.keep_refreshing, args=(is_over,), name="icekeep refreshing", daemon=True
        )
        refreshing.start()
        try:
            listener.on(Noted(f"open {server.opening_address()} (Ctrl-C ends it)"))
            with _opening_page(server.opening_address()) as page:
                if in_browser:
                    open_in_browser(page, listener, server.address)
                server.serve_forever()
        except (Interrupted, KeyboardInterrupt):
            # This is how it is meant to end.
            board.stop_refreshing(is_over)
            refreshing.join(_END_SECONDS)
    return Served(address=server.address, tables_count=board.tables_count, refreshes_count=board.refreshes_count)


@contextmanager
def _opening_page(address: str) -> Iterator[Path]:
    """A file that only this user can read, and that redirects to an address with the token: other users can list arguments."""
    with tempfile.TemporaryDirectory(prefix="icekeep-") as directory:
        page = Path(directory, "open.html")
        with open(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(address)}">\n')
        yield page
