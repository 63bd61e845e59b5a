"""The command `serve`: the report and the runs in a browser, up to date while jobs run."""

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

import msgspec

from icekeep.catalog.base import Catalog
from icekeep.events import SILENT, Listener, Noted
from icekeep.operations.commands.board import Board
from icekeep.operations.commands.browsing import open_in_browser
from icekeep.operations.commands.report import Wanted
from icekeep.operations.configuration.catalogs import Catalogs
from icekeep.operations.configuration.file import CatalogSettings, Configuration
from icekeep.operations.interrupts import Interrupted
from icekeep.operations.serving import LOOPBACK, LocalServer
from icekeep.reports.page.page import require_packages
from icekeep.runtime import new_token
from icekeep.spec.types import MINUTE_MS

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

    Raises:
        UsageError: a package is missing that the pages need; the host is not a loopback address, or the port is taken.
        NotFoundError: there is no such catalog or table, or none that the pattern matches.
        IcekeepError: the only catalog cannot be opened or listed.
    """
    require_packages()
    board = Board(Wanted.of(catalogs, catalog, table, match), opens, keep_ms=keep_ms)
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
