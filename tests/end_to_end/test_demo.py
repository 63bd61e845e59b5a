"""`icekeep demo` as a process, the commands that it proposes, and what an interrupt leaves."""

import json
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from icekeep.cli import main
from kit.shell import BIN

UNMENDED = {"skewed": 90, "vectors": 75}
"""Scores that stay below 95 when all is done: a region that has nearly all rows, and rows that are still marked as deleted."""


def run(words: list[str], capsys: Any) -> tuple[int, Any]:
    status = main([*words, "--output", "json"])
    return status, json.loads(capsys.readouterr().out)["result"]


def test_what_it_proposes_makes_the_tables_healthy(tmp_path: Path, capsys: Any) -> None:
    done = subprocess.run(
        [str(BIN / "icekeep"), "demo", "it", "--output", "json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=True,
    )
    result = json.loads(done.stdout)["result"]
    assert len(result["tables"]) == 12
    assert all(table["commands"] for table in result["tables"])
    assert [table["table"] for table in result["tables"] if table["score"] > 95] == [
        "demo.db.orphans",
        "demo.db.branches",
    ]
    report = ["report", "--config", result["config"]]
    commands = [command for table in result["tables"] for command in table["commands"]]
    for _ in range(3):
        for command in commands:
            status, _ = run(shlex.split(command)[1:], capsys)
            # `check` ends with 3 where it finds faults.
            assert status == (3 if command.startswith("icekeep check") else 0), command
        status, told = run(report, capsys)
        assert status == 0
        # Whether orphans are left only a listing tells, so a report goes on to propose one.
        jobs = [job for table in told["tables"] for job in table["jobs"] if job["job"] != "remove_orphan_files"]
        commands = [job["command"] for job in jobs if job["has_work"]]
    assert not commands
    scores = {table["table"].rpartition(".")[2]: table["score"] for table in told["tables"]}
    assert len(scores) == 12
    assert {name for name, score in scores.items() if score < UNMENDED.get(name, 95)} == set()
    # Older snapshots still name the lost file, until they expire.
    check = ["check", "--table", "demo.db.broken", "--ref", "main", "--config", result["config"]]
    assert run(check, capsys)[0] == 0


@pytest.mark.parametrize("step", ["making tables", pytest.param("looking at tables", marks=pytest.mark.nightly)])
def test_an_interrupt_in_the_middle_leaves_nothing_and_says_so(tmp_path: Path, step: str) -> None:
    words = [str(BIN / "icekeep"), "demo", str(tmp_path / "it")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert any(line.startswith(f"{step}: started") for line in process.stderr)
        process.send_signal(signal.SIGINT)
        err, out = process.stderr.read(), process.stdout.read()
    assert process.returncode == 130
    assert out == ""
    assert f"what was made of it in {str(tmp_path / 'it')!r} is removed" in err
    assert "icekeep: interrupted by SIGINT" in err
    assert not (tmp_path / "it").exists()
