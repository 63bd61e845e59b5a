"""The pages of `serve` in a browser: the token goes, what happens meanwhile shows, and the page stays as its reader left it."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from icekeep.operations.commands.report import ReportScope
from icekeep.operations.commands.serve import Board
from icekeep.operations.loading import configured_catalogs, open_settings
from icekeep.operations.serving import LocalServer
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunRecord
from icekeep.runtime import SYSTEM
from icekeep.tables.verbs import append, create_table
from kit.browser import Browser, chromium
from kit.lake import SCHEMA, Lake, events

pytestmark = [pytest.mark.deep, pytest.mark.server]

NAMES = [f"table_{number}" for number in range(10)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    for number, name in enumerate(NAMES):
        append(create_table(made.catalog, ("db", name), SCHEMA), [events(n) for n in range(number + 1)])
    return made


@pytest.fixture
def board(lake: Lake) -> Board:
    conf = lake.directory / "icekeep.yaml"
    conf.write_text(json.dumps({"catalogs": {"local": lake.properties}}))
    made = Board(ReportScope.of(configured_catalogs(str(conf)), None, None, None), open_settings, keep_ms=600_000)
    made.refresh()
    return made


@pytest.fixture
def server(board: Board) -> Iterator[LocalServer]:
    with LocalServer(board, "127.0.0.1", 0, "the-token") as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def open_page(browser: Browser, server: LocalServer, path: str, width: int) -> None:
    """By the address that is printed, up to the page that it leads to."""
    browser.open(server.opening_address(path), width=width)
    # That is another page, which may be there already.
    browser.await_true("document.getElementById('live') !== null && document.readyState === 'complete'")
    assert browser.ask("location.href") == server.address[:-1] + path


def show_again(browser: Browser, version: str) -> None:
    """Let the page ask now, as it does when its tab is shown again; it loads itself where there is another version."""
    browser.follow("document.dispatchEvent(new Event('visibilitychange'))")
    assert browser.ask("document.getElementById('live').dataset.version") == version


@pytest.mark.parametrize("width", [390, 1280])
def test_a_commit_made_meanwhile_shows_and_the_page_stays_as_it_was(
    browser: Browser, lake: Lake, board: Board, server: LocalServer, width: int
) -> None:
    open_page(browser, server, "/", width)
    assert browser.ask("document.cookie") == ""
    assert browser.ask("document.documentElement.scrollWidth") == width
    table = "[...document.querySelectorAll('details.table')].find((one) => one.textContent.includes('table_3'))"
    files = f"{table}.querySelector('summary').textContent.match(/(\\d+) files?/)[1]"
    assert browser.ask(files) == "4"
    browser.ask(f"{table}.open = true")
    browser.ask("document.querySelectorAll('table.sortable thead button')[0].click()")
    browser.ask("document.querySelector('input').value = 'table_'")
    browser.ask("document.querySelectorAll('table.sortable tbody a')[2].focus()")
    browser.ask("scrollTo(0, 700)")
    append(lake.catalog.load(("db", "table_3")), [events(99)])
    board.refresh()
    show_again(browser, "2")
    assert browser.ask(files) == "5"
    assert browser.ask("[...document.querySelectorAll('details.table[open] h3')].map((one) => one.textContent)") == [
        "local.db.table_3"
    ]
    names = "[...document.querySelectorAll('table.sortable tbody th')].map((one) => one.textContent)"
    assert browser.ask(names) == [f"local.db.{name}" for name in NAMES]
    assert browser.ask("document.querySelector('input').value") == "table_"
    assert browser.ask("document.activeElement.textContent") == "local.db.table_2"
    assert browser.ask("Math.round(scrollY)") == 700
    assert browser.ask("document.documentElement.scrollWidth") == width
    assert browser.complaints == []
    assert {address.partition("?")[0] for address in browser.requests} <= {server.address, f"{server.address}state"}


@pytest.mark.parametrize("width", [390, 1280])
def test_a_run_that_begins_shows_on_both_pages(
    browser: Browser, lake: Lake, board: Board, server: LocalServer, width: int
) -> None:
    open_page(browser, server, "/runs", width)
    assert browser.ask("document.querySelectorAll('tbody tr').length") == 0
    now_ms = SYSTEM.now_ms()
    records = RunRecords.at(f"sqlite:///{lake.directory}/warehouse.icekeep-runs.db")
    for number, error in enumerate((None, "x" * 79)):
        told = (
            {} if error is None else {"status": "failed", "exit_status": 75, "ended_ms": now_ms, "error_message": error}
        )
        records.begin(
            RunRecord(
                run_id=f"rewrite_position_deletes-{number}",
                job="rewrite_position_deletes",
                table="local.db.table_3",
                started_ms=now_ms,
                seen_ms=now_ms,
                **told,  # type: ignore[arg-type]
            )
        )
    board.refresh()
    show_again(browser, "2")
    assert browser.ask("document.querySelectorAll('tbody tr').length") == 2
    assert browser.ask("document.getElementById('live-running').textContent") == "1 running"
    assert browser.ask("document.documentElement.scrollWidth") == width
    browser.follow("document.querySelector('tbody a').click()")
    assert browser.ask("document.querySelector('h1').textContent") == "Runs on local.db.table_3"
    browser.follow("document.querySelector('#live a').click()")
    assert browser.ask("document.title") == "Health of local"
    assert browser.ask("document.querySelector('details.table .inside a').textContent") == "Runs on this table"
    assert browser.complaints == []


def test_a_server_that_has_ended_is_told(browser: Browser, server: LocalServer) -> None:
    open_page(browser, server, "/", 1280)
    server.hosts = frozenset()
    browser.ask("document.dispatchEvent(new Event('visibilitychange'))")
    wrong = "document.getElementById('live-wrong').textContent"
    told = f"new Promise((done) => {{ const look = () => {wrong} ? done({wrong}) : setTimeout(look, 10); look(); }})"
    assert "open the address that it printed" in browser.ask(told)
