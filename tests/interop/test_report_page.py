"""The page of a report in a browser: it asks nobody for anything, fits a telephone, can be read in light and dark, and works."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from icekeep.maintenance.compact.job import compact
from icekeep.operations.commands.report import ReportScope
from icekeep.operations.commands.serve import Board
from icekeep.operations.console.values import plain_values
from icekeep.operations.loading import configured_catalogs, open_settings
from icekeep.operations.serving import LocalServer
from icekeep.reports.job import report
from icekeep.reports.page.page import report_page
from icekeep.reports.values import read_earlier, with_changes
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunRecord
from icekeep.runtime import SYSTEM
from icekeep.tables.verbs import append, create_table
from kit.browser import Browser, chromium
from kit.job_world import World
from kit.lake import SCHEMA, Lake, events
from kit.reports import bare_table, full_history, full_table, not_read, report_of
from kit.runtime import no_spark

HOSTILE = "<img src=x onerror=document.title='ran'><script>document.title='ran'</script>" + "wide_" * 40 + "x" * 200

FAINT_TEXTS = """
(() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = color.slice(0, 3).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const color = numbers(getComputedStyle(one).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const faint = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let count = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, style = getComputedStyle(element);
    if (!walker.currentNode.textContent.trim() || ["SCRIPT", "STYLE", "title"].includes(element.tagName)) continue;
    if (!element.checkVisibility()) continue;
    count += 1;
    const pair = [light(numbers(element instanceof SVGElement ? style.fill : style.color)), light(ground(element))];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < 4.5) faint.push(`${ratio.toFixed(2)} ${element.tagName} ${walker.currentNode.textContent.trim().slice(0, 30)}`);
  }
  return {count, faint};
})()
"""
"""Texts whose colour differs from what is behind them by less than 4.5 to 1, as WCAG 2 counts (success criterion 1.4.3)."""

WIDEST = """
[...document.querySelectorAll("body *")]
  .filter((one) => !one.closest(".scroll") && one.getBoundingClientRect().right > innerWidth + 1)
  .map((one) => one.outerHTML.slice(0, 80))
"""

OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a catalog with a healthy table, a sick one, one that was maintained, and one that cannot be read."""
    world = World(2)
    for name, files in {"calm": 1, "sick": 20, "kept": 8, "gone": 1}.items():
        table = create_table(world.catalog, ("db", name), SCHEMA, partition_by=[("at", "month")])
        for number in range(files):
            world.runtime.pass_ms(3_600_000)
            table = append(table, [events(number, 5)])
    compact(world.catalog.load(("db", "kept")), no_spark)
    location = world.catalog.find(("db", "gone")).metadata_location
    world.memory.files[location] = (b"{", 0)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report_page(report(world.catalog, no_spark, histories=True)))
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of tables whose names and texts are made to run, and to be too wide."""
    tables = [full_table(f"lake.db.{HOSTILE}{number}", said=HOSTILE) for number in range(10)]
    told = report_of(
        *tables,
        bare_table(),
        catalogs=(HOSTILE,),
        currency="EUR",
        not_read=(not_read(HOSTILE, HOSTILE),),
        histories=tuple(full_history(one.table, said=HOSTILE) for one in tables[:2]),
    )
    directory = tmp_path_factory.mktemp("hostile")
    earlier = directory / "earlier.json"
    others = [replace(one, score=1.0) for one in tables]
    earlier.write_text(json.dumps({"result": plain_values(replace(told, tables=tuple(others)))}))
    told = with_changes(told, read_earlier(str(earlier)), is_whole=False)
    path = directory / "report.html"
    path.write_text(report_page(replace(told, status="partial")))
    return path


@pytest.mark.deep
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["page", "hostile"])
def test_it_asks_nobody_fits_the_screen_and_can_be_read(
    request: pytest.FixtureRequest, browser: Browser, name: str, is_dark: bool, width: int
) -> None:
    path: Path = request.getfixturevalue(name)
    browser.open(path, width=width, is_dark=is_dark)
    for _ in range(2):
        assert browser.ask("innerWidth") == width
        assert browser.ask("document.documentElement.scrollWidth") == width
        assert browser.ask(WIDEST) == []
        seen = browser.ask(FAINT_TEXTS)
        assert seen["faint"] == []
        assert seen["count"] > 100
        browser.ask(OPEN_ALL)
    background = browser.ask("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 150) is is_dark
    assert browser.complaints == []
    assert browser.requests == [path.as_uri()]
    assert browser.ask("document.title") != "ran"


@pytest.mark.deep
@pytest.mark.parametrize("currency", [None, "EUR"])
def test_on_a_phone_what_would_be_done_is_not_cut(browser: Browser, tmp_path: Path, currency: str | None) -> None:
    """With the widest values: 1023.9 GiB, 99.9 min."""
    full = full_table()
    jobs = tuple(
        replace(job, has_work=True, freed_bytes=1_099_404_133_785, replaced_bytes=1_099_404_133_785, cpu_ms=5_994_000)
        for job in full.jobs
    )
    path = tmp_path / "report.html"
    path.write_text(report_page(report_of(replace(full, jobs=jobs), currency=currency)))
    browser.open(path, width=390)
    assert "1023.9 GiB" in browser.ask("document.querySelector('.sums').innerText")
    widths = browser.ask(
        "(({scrollWidth, clientWidth}) => [scrollWidth, clientWidth])(document.querySelector('.sums').parentElement)"
    )
    assert widths[0] == widths[1]
    last = browser.ask("document.querySelector('.sums thead th:last-child').getBoundingClientRect().right")
    assert last <= 390


@pytest.mark.deep
def test_what_would_run_in_spite_of_all_is_not_run(browser: Browser, page: Path) -> None:
    browser.open(page, width=1280)
    browser.ask(
        "document.body.insertAdjacentHTML('beforeend', '<img src=http://127.0.0.1:9/x onerror=document.title=1>')"
    )
    browser.ask("document.body.append(Object.assign(document.createElement('script'), {text: 'document.title = 1'}))")
    assert browser.ask("document.title") == "Health of local"
    assert len(browser.complaints) >= 2
    assert browser.requests == [page.as_uri()]


@pytest.mark.deep
def test_the_list_is_sorted_and_searched(browser: Browser, hostile: Path) -> None:
    browser.open(hostile, width=1280)
    rows = "[...document.querySelector('table.sortable').tBodies[0].rows].filter((row) => !row.hidden)"
    names = f"{rows}.map((row) => row.cells[2].dataset.v)"
    unsorted = browser.ask(names)
    press = "document.querySelectorAll('table.sortable thead button')[2].click()"
    browser.ask(press)
    assert browser.ask(names) == sorted(unsorted, key=int, reverse=True) != unsorted[::-1]
    browser.ask(press)
    assert browser.ask(names) == sorted(unsorted, key=int)
    assert browser.ask("[...document.querySelectorAll('th[aria-sort]')].map((one) => one.ariaSort)") == ["ascending"]
    browser.ask("document.querySelector('input').value = 'BARE'")
    browser.ask("document.querySelector('input').dispatchEvent(new Event('input'))")
    assert browser.ask(names) == ["0"]
    assert browser.ask("document.querySelector('[role=status]').textContent") == "1 of 11"
    assert browser.complaints == []


CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', {value: %s})"
PRESS_COPY = """
(async () => {
  const button = document.querySelector('.to-do button.copy');
  button.click();
  await new Promise((resolve) => setTimeout(resolve));
  return button.textContent;
})()
"""


@pytest.mark.deep
def test_command_is_copied_or_selected_without_clipboard(browser: Browser, page: Path) -> None:
    browser.open(page, width=1280)
    assert browser.ask(
        "[...document.querySelectorAll('.command')].every((one) => one.lastElementChild.matches('button.copy'))"
    )
    browser.ask(CLIPBOARD % "{writeText: async (text) => { window.copied = text; }}")
    assert browser.ask(PRESS_COPY) == "Copied"
    assert browser.ask("copied") == "icekeep compact --table local.db.sick"
    assert browser.ask("document.querySelector('[role=status]').textContent") == "Copied"
    browser.open(page, width=1280)
    browser.ask(CLIPBOARD % "undefined")
    browser.ask(OPEN_ALL)
    assert browser.ask(PRESS_COPY) == "Selected"
    assert browser.ask("getSelection().toString().trim()") == "icekeep compact --table local.db.sick"
    assert browser.complaints == []


@pytest.mark.deep
def test_link_opens_table_part_by_keyboard_alone(browser: Browser, page: Path) -> None:
    browser.open(page, width=1280)
    browser.press("Tab", 9)
    assert browser.ask("document.activeElement.className") == "skip"
    assert browser.ask("document.activeElement.getBoundingClientRect().top >= 0")
    for _ in range(40):
        browser.press("Tab", 9)
        if browser.ask("(document.activeElement.getAttribute('href') || '').startsWith('#t-')"):
            break
    name = browser.ask("document.activeElement.textContent")
    browser.press("Enter", 13, "\r")
    assert browser.ask("[...document.querySelectorAll('details.table[open] h3')].map((one) => one.textContent)") == [
        name
    ]
    assert browser.ask("document.activeElement.id.startsWith('t-')")


@pytest.mark.deep
def test_without_its_script_the_page_is_whole(browser: Browser, page: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.html"
    bare.write_text(page.read_text().replace('"use strict";', '"use strict"; throw 1;'))
    # The page's policy names the script by its digest, so that one is not run at all.
    browser.open(bare, width=1280)
    assert browser.ask("document.querySelectorAll('button, input').length") == 0
    browser.ask("location.hash = 't-1'")
    assert browser.ask("document.querySelectorAll('details.table[open]').length") == 1


NAMES = [f"table_{number}" for number in range(10)]


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


@pytest.mark.deep
@pytest.mark.server
@pytest.mark.parametrize("width", [390, 1280])
def test_live_page_shows_new_commit_and_keeps_layout(
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


@pytest.mark.deep
@pytest.mark.server
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


@pytest.mark.deep
@pytest.mark.server
def test_a_server_that_has_ended_is_told(browser: Browser, server: LocalServer) -> None:
    open_page(browser, server, "/", 1280)
    server.hosts = frozenset()
    browser.ask("document.dispatchEvent(new Event('visibilitychange'))")
    wrong = "document.getElementById('live-wrong').textContent"
    told = f"new Promise((done) => {{ const look = () => {wrong} ? done({wrong}) : setTimeout(look, 10); look(); }})"
    assert "open the address that it printed" in browser.ask(told)
