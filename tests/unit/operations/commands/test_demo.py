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
from icekeep.operations.commands.demo import DemoResult
from icekeep.operations.console.terminal import print_tables
from icekeep.playground.maker import TableMaker, orders
from icekeep.playground.states import PlaygroundState, broken, skewed
from kit.changes import thrown

STATES = (
    PlaygroundState(
        name="skewed", what="one is large", make=skewed, age_ms=2 * 86_400_000, extra_commands=("plan_scan",)
    ),
    PlaygroundState(
        name="broken",
        what="a file is gone",
        make=broken,
        age_ms=2 * 86_400_000,
        extra_commands=("check", "repair --fault 301"),
    ),
)
"""A playground of two tables takes little time."""


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "STATES", STATES)


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    """One that tests only look at; its name has a blank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "STATES", STATES)
        return command.demo(directory=str(tmp_path_factory.mktemp("play ground")))


def made(directory: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["demo", str(directory), "--output", "json", *words]) == 0
    return json.loads(capsys.readouterr().out)["result"]


def test_each_table_has_its_score_and_helpful_commands(playground: DemoResult) -> None:
    uneven, gone = playground.tables
    assert (uneven.table, gone.table) == ("demo.db.skewed", "demo.db.broken")
    ends = f"--config '{playground.directory}/icekeep.yaml'"
    assert uneven.commands == (f"icekeep plan_scan --table demo.db.skewed {ends}",)
    assert gone.commands == (
        f"icekeep check --table demo.db.broken {ends}",
        f"icekeep repair --fault 301 --table demo.db.broken {ends}",
    )
    assert gone.score is not None
    assert uneven.score is not None
    assert gone.score < 60 < uneven.score
    assert gone.why[0].startswith("faults (-")
    assert (playground.catalog, playground.tables_count, playground.is_opened) == ("demo", 2, False)


def test_the_report_lies_beside_the_tables(playground: DemoResult) -> None:
    assert playground.report == f"{playground.directory}/report.html"
    page = Path(playground.report).read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "demo.db.skewed" in page.replace("<wbr>", "")


def test_for_people_the_commands_can_be_copied_line_by_line(playground: DemoResult, capsys: Any) -> None:
    print_tables("demo: done", command.demo_shown(playground), sys.stdout)
    out = capsys.readouterr().out
    assert "a file is gone" in out
    lines = [line for line in out.splitlines() if line.startswith("icekeep ")]
    assert len(lines) == 5
    for line in lines:
        parsed = parse_command(shlex.split(line)[1:], None, 0)
        assert parsed.conf == f"{playground.directory}/icekeep.yaml"


def small_files(maker: TableMaker) -> None:
    maker.create()
    for number in range(6):
        maker.append(orders(100 * number, 100, maker.clock.now_ms()), after_ms=3_600_000)


def test_command_to_try_first_is_last_and_undone_by_next(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = PlaygroundState(name="small", what="six files", make=small_files, age_ms=86_400_000)
    monkeypatch.setattr(command, "STATES", (STATES[0], state))
    made = command.demo(directory=str(tmp_path / "it"))
    print_tables("demo: done", command.demo_shown(made), sys.stdout)
    assert tuple(capsys.readouterr().out.splitlines()[-3:]) == ("try this first, and undo it (2)", *made.try_first)
    files_counts = []
    for line in made.try_first:
        assert main(shlex.split(line)[1:]) == 0
        history = ["history", "--table", "demo.db.small", "--config", made.config, "--output", "json"]
        capsys.readouterr()
        assert main(history) == 0
        files_counts.append(json.loads(capsys.readouterr().out)["result"]["commits"][0]["after"]["data_files_count"])
    assert files_counts == [1, 6]


def test_without_table_to_compact_nothing_is_suggested(playground: DemoResult) -> None:
    assert playground.try_first == ()
    assert "try this first, and undo it" not in command.demo_shown(playground)


def test_interrupted_demo_leaves_nothing_and_says_so(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "report_over", thrown(KeyboardInterrupt()))
    assert main(["demo", str(tmp_path / "it")]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert f"what was made of it in {str(tmp_path / 'it')!r} is removed" in err
    assert not any(tmp_path.iterdir())


def test_demo_without_report_packages_still_makes_tables(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["demo", str(tmp_path / "it"), "--output", "json", "--open"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)["result"]
    assert result["report"] is None
    assert not result["is_opened"]
    assert len(result["tables"]) == 2
    assert "the report is not written: package 'jinja2' is not installed; icekeep[report] brings it" in err


def test_a_browser_is_asked_in_a_process_that_nobody_waits_for(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, Any]]] = []
    monkeypatch.setattr(webbrowser, "get", lambda: None)
    monkeypatch.setattr(subprocess, "Popen", lambda words, **how: started.append((words, how)))
    assert made(tmp_path / "it", capsys, "--open")["is_opened"]
    [(words, how)] = started
    assert words == [sys.executable, "-I", "-m", "webbrowser", (tmp_path / "it" / "report.html").as_uri()]
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
