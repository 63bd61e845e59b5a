"""The command `serve` over real tables: what its pages show, what is read again and when, and how it begins and ends."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from icekeep import cli
from icekeep.catalog.base import Catalog
from icekeep.catalog.sql import SqlCatalog
from icekeep.errors import NotFoundError
from icekeep.maintenance.compact.job import compact
from icekeep.operations.commands import serve as command
from icekeep.operations.commands.report import ReportScope
from icekeep.operations.commands.serve import Board
from icekeep.operations.interrupts import Interrupted
from icekeep.operations.loading import configured_catalogs, open_settings
from icekeep.operations.serving import LocalServer
from icekeep.planning.spark.session import Engine, Limits
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunRecord
from icekeep.runtime import SYSTEM
from icekeep.tables.verbs import append, create_table
from kit.browser import Page
from kit.lake import SCHEMA, Lake, events
from kit.runtime import FakeRuntime, no_spark
from kit.shell import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.server]

KEEP_MS = 600_000


class World:
    """Two tables, a board over them, and a server of its pages; the clock of the tables stands still."""

    def __init__(self, directory: Path) -> None:
        self.lake = Lake(directory)
        for name in ("calm", "kept"):
            append(create_table(self.lake.catalog, ("db", name), SCHEMA), [events(1)])
        self.conf = directory / "icekeep.yaml"
        self.conf.write_text(json.dumps({"catalogs": {"local": self.lake.properties}}))
        self.records = RunRecords.at(f"sqlite:///{directory}/warehouse.icekeep-runs.db")
        self.runtime = FakeRuntime()
        self.server: LocalServer | None = None

    def board(self, *, table: str | None = None, match: str | None = None) -> Board:
        wanted = ReportScope.of(configured_catalogs(str(self.conf)), None, table, match)
        return Board(wanted, partial(open_settings, runtime=self.runtime), keep_ms=KEEP_MS, runtime=self.runtime)

    def commit(self, name: str = "calm") -> None:
        append(self.lake.catalog.load(("db", name)), [events(9)])

    def path_of_metadata(self, name: str) -> Path:
        return Path(urlparse(self.lake.catalog.find(("db", name)).metadata_location).path)

    def record(self, name: str, **fields: Any) -> RunRecord:
        now_ms = SYSTEM.now_ms()
        told: dict[str, Any] = {"job": "compact", "table": f"local.db.{name}", "started_ms": now_ms, "seen_ms": now_ms}
        return RunRecord(run_id=f"compact-{SYSTEM.new_uuid()}", **{**told, **fields})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    for variable in ("PYSPARK_GATEWAY_PORT", "SPARK_CONF_DIR", "SPARK_HOME", "PYICEBERG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    return World(tmp_path)


@pytest.fixture
def ask(world: World) -> Iterator[Callable[..., str]]:
    """Begins to serve a board with the first question, and gives what is at a path."""
    begun: list[tuple[LocalServer, threading.Thread]] = []

    def asked(board: Board, path: str = "/") -> str:
        if not begun:
            server = LocalServer(board, "127.0.0.1", 0, "t")
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            begun.append((server, thread))
        server = begun[0][0]
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        connection.request("GET", path, headers={"Cookie": f"{server.cookie}=t"})
        response = connection.getresponse()
        body = response.read().decode()
        connection.close()
        assert response.status == 200, body
        return body

    yield asked
    for server, thread in begun:
        server.shutdown()
        thread.join()
        server.server_close()


def state(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def files_of(page: str, name: str) -> str:
    """How many files a table has, by the list of tables."""
    row = page.replace("<wbr>", "").partition(f">local.db.{name}</a>")[2]
    return re.findall(r'data-v="([^"]*)"', row)[2]


def test_commit_shows_after_refresh_and_only_its_table_is_read(
    world: World, ask: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    board = world.board()
    board.refresh()
    before = ask(board)
    assert (files_of(before, "calm"), files_of(before, "kept")) == ("1", "1")
    world.commit("calm")
    assert ask(board) == before
    loaded: list[Any] = []
    load = SqlCatalog.load
    monkeypatch.setattr(SqlCatalog, "load", lambda self, name: [loaded.append(name), load(self, name)][1])
    board.refresh()
    after = ask(board)
    assert (files_of(after, "calm"), files_of(after, "kept")) == ("2", "1")
    assert {*loaded} == {("db", "calm")}
    assert state(ask(board, "/state"))["report"] == 2
    assert 'data-version="2"' in after


def test_what_has_not_changed_is_not_read_until_it_is_old(
    world: World, ask: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    board = world.board()
    board.refresh()
    versions = [state(ask(board, "/state"))["report"]]
    loaded: list[Any] = []
    load = SqlCatalog.load
    monkeypatch.setattr(SqlCatalog, "load", lambda self, name: [loaded.append(name), load(self, name)][1])
    for passed_ms in (KEEP_MS - 1, 1):
        world.runtime.pass_ms(passed_ms)
        board.refresh()
        versions.append(state(ask(board, "/state"))["report"])
    assert versions == [1, 1, 2]
    assert {*loaded} == {("db", "calm"), ("db", "kept")}


def test_a_running_job_and_its_end_are_on_the_page_of_runs(world: World, ask: Callable[..., str]) -> None:
    board = world.board()
    board.refresh()
    assert "nothing is written down in" in Page(ask(board, "/runs")).text
    run = world.record("calm", policy="nightly")
    world.records.begin(run)
    board.refresh()
    page = Page(ask(board, "/runs"))
    assert "1 running" in page.text
    assert {"compact", "running", "nightly"} <= {text.strip() for _, text in page.texts}
    assert "local.db.calm" in page.text
    told = state(ask(board, "/state"))
    assert (told["runs"], told["report"], told["running"]) == (2, 1, "1 running")
    failed = world.record("kept", status="failed", exit_status=75, ended_ms=SYSTEM.now_ms(), error_message="<b>no</b>")
    world.records.end(failed)
    board.refresh()
    page = Page(ask(board, "/runs"))
    assert "failed (75)" in page.text
    assert "<b>no</b>" in page.text
    only = Page(ask(board, "/runs?table=local.db.calm"))
    assert "running" in only.text
    assert "failed" not in only.text
    assert [one["href"] for one in only.of("a") if "table=" in one["href"]] == ["/runs?table=local.db.calm"]


def test_a_real_job_shows_on_both_pages(world: World, ask: Callable[..., str]) -> None:
    table = world.lake.catalog.load(("db", "calm"))
    for number in range(6):
        table = append(table, [events(10 + number)])
    board = world.board()
    board.refresh()
    assert cli.main(["compact", "--table", "local.db.calm", "--config", str(world.conf), "--output", "json"]) == 0
    board.refresh()
    assert "done" in Page(ask(board, "/runs?table=local.db.calm")).text
    assert files_of(ask(board), "calm") == "1"


def test_hostile_words_of_an_address_stay_words(world: World, ask: Callable[..., str]) -> None:
    board = world.board()
    board.refresh()
    said = "<script>alert(1)</script>"
    page = Page(ask(board, "/runs?table=%3Cscript%3Ealert(1)%3C/script%3E&other=1"))
    assert said in page.text
    assert len(page.of("script")) == 1


def test_unreadable_table_shows_why_and_rest_goes_on(world: World, ask: Callable[..., str]) -> None:
    board = world.board()
    board.refresh()
    sound = world.path_of_metadata("kept").read_bytes()
    world.commit("kept")
    world.path_of_metadata("kept").write_bytes(b"{")
    board.refresh()
    page = Page(ask(board))
    assert "Not read" in page.text
    assert "cannot read table metadata" in page.text
    assert files_of(ask(board), "calm") == "1"
    version = state(ask(board, "/state"))["report"]
    board.refresh()
    assert state(ask(board, "/state"))["report"] == version
    world.path_of_metadata("kept").write_bytes(sound)
    world.runtime.pass_ms(KEEP_MS)
    board.refresh()
    assert "Not read" not in Page(ask(board)).text


def test_a_table_that_needs_spark_is_told_as_not_read(
    world: World, ask: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = Limits(entries_count=1, folded_entries_count=1)
    monkeypatch.setattr("icekeep.operations.commands.serve.Engine", partial(Engine, limits=few))
    world.commit("calm")
    board = world.board()
    board.refresh()
    page = ask(board)
    assert "too large to be read without Spark; `icekeep report --table` starts it" in Page(page).text
    assert files_of(page, "kept") == "1"


def test_refresh_removes_dropped_table_and_adds_new_one(world: World, ask: Callable[..., str]) -> None:
    board = world.board()
    board.refresh()
    world.lake.catalog.drop(("db", "kept"))
    append(create_table(world.lake.catalog, ("db", "fresh"), SCHEMA), [events(1)])
    board.refresh()
    page = ask(board).replace("<wbr>", "")
    assert ("local.db.kept" in page, "local.db.fresh" in page) == (False, True)


def test_a_catalog_out_of_reach_leaves_what_was_read_last(
    world: World, ask: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    board = world.board()
    board.refresh()
    before = ask(board)

    def gone(self: Catalog) -> list[Any]:
        raise NotFoundError("the catalog is gone")

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "list_namespaces", gone)
        board.refresh()
        assert ask(board) == before
        assert state(ask(board, "/state"))["wrong"] == "Not refreshed: the catalog is gone"
    board.refresh()
    assert state(ask(board, "/state"))["wrong"] == ""


def test_nobody_waits_for_a_refresh(world: World, ask: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    board = world.board()
    board.refresh()
    before = ask(board)
    begun, goes_on = threading.Event(), threading.Event()
    listed = SqlCatalog.list_namespaces

    def slow(self: SqlCatalog) -> list[Any]:
        begun.set()
        assert goes_on.wait(60)
        return listed(self)

    monkeypatch.setattr(SqlCatalog, "list_namespaces", slow)
    world.commit("calm")
    refresh = threading.Thread(target=board.refresh)
    refresh.start()
    assert begun.wait(60)
    try:
        assert ask(board) == before
        assert state(ask(board, "/state"))["refreshed"].endswith(", refreshing")
    finally:
        goes_on.set()
        refresh.join()
    assert files_of(ask(board), "calm") == "2"


def test_a_question_starts_a_refresh_once_one_is_due(
    world: World, ask: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    board = world.board()
    board.refresh()
    refreshed, is_over = threading.Event(), threading.Event()
    refresh = board.refresh

    def noted(*arguments: Any) -> None:
        refresh(*arguments)
        refreshed.set()

    monkeypatch.setattr(board, "refresh", noted)
    refreshing = threading.Thread(target=board.keep_refreshing, args=(is_over,))
    refreshing.start()
    world.commit("calm")
    try:
        ask(board, "/state")
        world.runtime.pass_ms(60_000)
        ask(board, "/state")
        assert refreshed.wait(60)
    finally:
        board.stop_refreshing(is_over)
        refreshing.join()
    # None for the first question, which came too early.
    assert board.refreshes_count == 2
    assert files_of(ask(board), "calm") == "2"


def test_a_pattern_or_a_name_chooses_tables_and_their_runs(world: World, ask: Callable[..., str]) -> None:
    for name in ("calm", "kept"):
        world.records.begin(world.record(name))
    world.records.begin(world.record("x", table="", job="maintain"))
    for board in (world.board(match="local.db.c*"), world.board(table="local.db.calm")):
        board.refresh()
        for path in ("/", "/runs"):
            page = board.answer(path, {})
            assert page is not None
            text = page.body.replace("<wbr>", "")
            assert ("local.db.calm" in text, "local.db.kept" in text, "maintain" in text) == (True, False, False)
    with pytest.raises(NotFoundError, match="matches no table of local"):
        world.board(match="local.nope.*").refresh()
    with pytest.raises(NotFoundError, match=r"there is no table 'db\.nope'"):
        world.board(table="local.db.nope").refresh()


def test_nothing_is_written(world: World, ask: Callable[..., str]) -> None:
    compact(world.lake.catalog.load(("db", "calm")), no_spark)
    before = {path: path.stat().st_mtime_ns for path in world.lake.directory.rglob("*") if path.is_file()}
    board = world.board()
    board.refresh()
    for path in ("/", "/runs", "/state", "/runs?table=local.db.calm"):
        ask(board, path)
    assert {path: path.stat().st_mtime_ns for path in world.lake.directory.rglob("*") if path.is_file()} == before


def test_the_page_of_a_report_that_is_no_server_s_is_as_it_was(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", "--config", str(world.conf), "--output", "html"]) == 0
    page = capsys.readouterr().out
    assert "connect-src" not in page
    assert 'id="live"' not in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "icekeep: the server listens on this machine alone: --host is one of"),
        (["--port", "0", "--match", "nope.*"], "'nope.*' matches no table of local"),
        (["--table", "local.db.calm", "--match", "db.*"], "--table and --match both say which tables"),
        (["--refresh", "1ms"], "the duration '1ms' is too short; give 1.0 s or more"),
        (["--port", "-1"], "argument --port"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_status_2(
    world: World, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert cli.main(["serve", "--config", str(world.conf), *words]) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("icekeep: ")]
    assert said in line


def test_taken_port_is_reported_before_tables_are_read(world: World, capsys: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert cli.main(["serve", "--config", str(world.conf), "--port", port]) == 2
    err = capsys.readouterr().err
    assert f"cannot listen on port {port} of 127.0.0.1: address already in use; give another --port" in err
    assert "looking at tables" not in err


def test_without_its_packages_one_line_says_so(world: World, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icekeep.errors.find_spec", lambda name: None)
    assert cli.main(["serve", "--config", str(world.conf), "--port", "0"]) == 2
    assert "package 'jinja2' is not installed; icekeep[report] brings it" in capsys.readouterr().err


def test_a_browser_is_led_by_a_file_that_nobody_else_reads(
    world: World, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int]] = []

    def opened(page: Path, *_: Any) -> bool:
        seen.append((page.read_text(), page.stat().st_mode & 0o777, page.parent.stat().st_mode & 0o777))
        return True

    def interrupted(self: LocalServer) -> None:
        raise Interrupted(130)

    monkeypatch.setattr(command, "open_in_browser", opened)
    monkeypatch.setattr(LocalServer, "serve_forever", interrupted)
    words = ["serve", "--config", str(world.conf), "--port", "0", "--open", "--output", "json"]
    assert cli.main(words) == 0
    told = capsys.readouterr()
    address = next(word for word in told.err.split() if word.startswith("http"))
    [(text, *modes)] = seen
    assert address in text
    assert modes == [0o600, 0o700]
    result = json.loads(told.out)["result"]
    assert result == {
        "status": "done",
        "address": address.partition("?")[0],
        "tables_count": 2,
        "refreshes_count": 1,
    }


def test_pending_table_reads_end_with_server(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that ask are waited for when the process ends, with all that they still have to ask."""
    board, is_over, asked = world.board(), threading.Event(), []
    board.refresh()
    monkeypatch.setattr("icekeep.reports.job.TABLES_AT_ONCE", 1)
    find = SqlCatalog.find

    def found(self: SqlCatalog, identifier: Any) -> Any:
        asked.append(identifier)
        board.stop_refreshing(is_over)
        return find(self, identifier)

    monkeypatch.setattr(SqlCatalog, "find", found)
    board._wake.set()
    looking = threading.Thread(target=board.keep_refreshing, args=(is_over,))
    looking.start()
    looking.join(60)
    assert (len(asked), looking.is_alive()) == (1, False)


@pytest.mark.process
@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_an_interrupt_ends_it_well_and_stdout_has_one_object(world: World, sent: signal.Signals) -> None:
    words = ["serve", "--config", str(world.conf), "--port", "0", "--output", "json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "icekeep", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "lib")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "?token=" in line)
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    document = json.loads(out)
    assert (document["job"], document["status"]) == ("serve", "done")
    token = line.partition("?token=")[2].split()[0]
    assert len(token) == 43
    assert token not in out + err
