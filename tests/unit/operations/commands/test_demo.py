"""The command `demo` beside the making of tables: what is told of them, the page, the browser, and what is refused."""

import json
import shlex
import subprocess
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from icekeep.cli import main
from icekeep.operations.arguments import parse_command
from icekeep.operations.commands import demo as command
from icekeep.playground.histories import broken
from icekeep.playground.layouts import skewed, small_files
from icekeep.playground.states import State

STATES = (
    State(name="small_files", what="files are small", make=small_files, age_ms=4 * 86_400_000),
    State(name="skewed", what="one is large", make=skewed, age_ms=2 * 86_400_000, more=("plan_scan",)),
    State(name="broken", what="a file is gone", make=broken, age_ms=2 * 86_400_000, more=("check",)),
)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A playground of three tables takes no time."""
    monkeypatch.setattr(command, "STATES", STATES)


def made(directory: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["demo", str(directory), "--output", "json", *words]) == 0
    return json.loads(capsys.readouterr().out)["result"]


def test_each_table_is_told_with_its_score_and_the_commands_that_help(tmp_path: Path, capsys: Any) -> None:
    result = made(tmp_path / "it", capsys)
    assert [one["table"] for one in result["tables"]] == [f"demo.db.{state.name}" for state in STATES]
    small, uneven, gone = result["tables"]
    conf = str(tmp_path / "it" / "icekeep.yaml")
    assert small["commands"][0] == f"icekeep compact --table demo.db.small_files --config {conf}"
    assert uneven["commands"] == [f"icekeep plan_scan --table demo.db.skewed --config {conf}"]
    assert gone["commands"][0] == f"icekeep check --table demo.db.broken --config {conf}"
    assert small["score"] < 50 < uneven["score"]
    assert small["why"][0].startswith("files (-")
    assert (result["config"], result["tables_count"], result["is_opened"]) == (conf, 3, False)
    for line in (line for one in result["tables"] for line in one["commands"]):
        parse_command(shlex.split(line)[1:], None, 0, "1")


def test_the_report_lies_beside_the_tables(tmp_path: Path, capsys: Any) -> None:
    result = made(tmp_path / "it", capsys)
    assert result["report"] == str(tmp_path / "it" / "report.html")
    page = Path(result["report"]).read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "demo.db.small_files" in page.replace("<wbr>", "")


def test_for_people_the_commands_can_be_copied_line_by_line(tmp_path: Path, capsys: Any) -> None:
    assert main(["demo", str(tmp_path / "it with a blank")]) == 0
    out = capsys.readouterr().out
    assert "files are small" in out
    lines = [line for line in out.splitlines() if line.startswith("icekeep ")]
    assert len(lines) > 4
    for line in lines:
        parsed = parse_command(shlex.split(line)[1:], None, 0, "1")
        assert parsed.conf == str(tmp_path / "it with a blank" / "icekeep.yaml")


def test_without_the_packages_of_the_page_the_tables_are_made_all_the_same(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icekeep.reports.page.page._PACKAGES", ("no_such_package",))
    assert main(["demo", str(tmp_path / "it"), "--output", "json", "--open"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)["result"]
    assert result["report"] is None
    assert not result["is_opened"]
    assert len(result["tables"]) == 3
    assert "the report is not written: package 'no_such_package' is not installed; install icekeep[report]" in err


def test_a_browser_is_asked_in_a_process_that_nobody_waits_for(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, Any]]] = []
    monkeypatch.setattr(webbrowser, "get", lambda: None)
    monkeypatch.setattr(subprocess, "Popen", lambda words, **how: started.append((words, how)))
    assert made(tmp_path / "it", capsys, "--open")["is_opened"]
    [(words, how)] = started
    assert words == [sys.executable, "-m", "webbrowser", (tmp_path / "it" / "report.html").as_uri()]
    assert {how[stream] for stream in ("stdin", "stdout", "stderr")} == {subprocess.DEVNULL}
    assert how["start_new_session"]


def test_where_there_is_no_browser_that_is_said(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", none)
    assert main(["demo", str(tmp_path / "it"), "--open", "--output", "json"]) == 0
    out, err = capsys.readouterr()
    assert not json.loads(out)["result"]["is_opened"]
    assert "there is no browser that could show" in err


def test_a_directory_that_is_not_empty_is_wrong_usage(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "mine").write_text("mine")
    assert main(["demo", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [f"icekeep: {str(tmp_path)!r} is not empty; name a directory that is empty or not there"]
