"""A plan as an operator has it: written by `--plan-out`, looked at, carried out by `apply`, or refused where the table moved."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from icekeep.maintenance.compact.job import compact
from icekeep.tables.verbs import append
from kit.lake import events, multiset
from kit.runtime import no_spark
from kit.shell import BIN, ROOT, Finished, Operator


def apply(operator: Operator, path: Path, *words: str, submit: bool = False) -> Finished:
    program = [str(BIN / "icekeep"), "apply"]
    if submit:
        program = [str(BIN / "spark-submit"), "--master", "local[2]", f"{ROOT}/jobs/apply.py"]
    done = subprocess.run(
        [*program, str(path), "--conf", str(operator.conf), *words],
        capture_output=True,
        text=True,
        env=operator.environment(submit=submit),
        cwd=operator.conf.parent,
        timeout=300,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def test_a_plan_is_written_looked_at_carried_out_and_not_twice(operator: Operator, tmp_path: Path) -> None:
    table = operator.lake.filled(commits=3, files=2)
    path, rows, files = tmp_path / "plan.jsonl", operator.lake.rows(), operator.lake.files_on_disk()
    words = ("--plan-out", str(path), "--option", "rewrite-all=true", "--output", "json")
    planned = operator.run("compact", *words)
    assert (planned.status, planned.json["status"], planned.json["dry_run"]) == (0, "planned", True)
    told = planned.json["plan"]
    assert (told["path"], told["totals"]["files_count"]) == (str(path), 6)
    assert json.loads(path.read_text().splitlines()[-1]) == {"hash": told["hash"]}
    assert operator.lake.load().metadata_location == table.metadata_location
    assert operator.lake.files_on_disk() - files == set()

    looked = apply(operator, path, "--dry-run", "--output", "json")
    assert (looked.status, looked.json["status"], looked.json["result"]["job"]) == (0, "planned", "compact")
    assert looked.json["result"]["result"]["rewritten_data_files_count"] == 6
    assert operator.lake.load().metadata_location == table.metadata_location

    append(operator.lake.load(), events(77))
    done = apply(operator, path, "--output", "json")
    assert (done.status, done.json["job"], done.json["result"]["plan_hash"]) == (0, "apply", told["hash"])
    assert done.json["result"]["result"]["rewritten_data_files_count"] == 6
    assert operator.lake.rows() == rows + multiset(events(77))
    head = operator.lake.load().metadata.head("main")
    assert head is not None
    assert (head.summary or {})["icekeep.plan"] == told["hash"]
    assert (head.summary or {})["icekeep.run-id"] == done.json["run_id"]

    location = operator.lake.load().metadata_location
    again = apply(operator, path)
    assert again.status == 0
    assert "carried out before" in again.out
    assert operator.lake.load().metadata_location == location


def test_a_plan_that_does_not_hold_or_is_none_is_one_line(operator: Operator, tmp_path: Path) -> None:
    operator.lake.filled(commits=3, files=2)
    path = tmp_path / "plan.jsonl"
    shown = operator.run("compact", "--plan-out", str(path), "--option", "rewrite-all=true")
    assert shown.status == 0
    assert f"the plan is in {path}, and `icekeep apply {path} --config {operator.conf}` carries it out" in shown.out
    again = operator.run("compact", "--plan-out", str(path))
    assert (again.status, again.complaint) == (
        2,
        f"icekeep: plan '{path}' is there already; name another file, or delete it first",
    )
    compact(operator.lake.load(), no_spark, options={"rewrite-all": "true"})
    moved = apply(operator, path)
    assert moved.status == 4
    assert "6 files to rewrite are gone" in moved.complaint
    assert "replace at" in moved.complaint
    assert len(moved.err.strip().splitlines()) == 1
    path.write_bytes(path.read_bytes().replace(b"rewrite", b"rewrote", 1))
    for file, said in (
        (path, "its hash differs"),
        (operator.conf, "is no plan"),
        (tmp_path / "none", "there is no plan"),
    ):
        refused = apply(operator, file)
        assert (refused.status, len(refused.err.strip().splitlines())) == (2, 1)
        assert said in refused.complaint


@pytest.mark.nightly
def test_a_plan_is_carried_out_by_spark_submit(operator: Operator, tmp_path: Path) -> None:
    operator.lake.filled(commits=3, files=2)
    path, rows = tmp_path / "plan.jsonl", operator.lake.rows()
    words = ("--plan-out", str(path), "--option", "rewrite-all=true", "--output", "json")
    planned = operator.run("compact", *words, submit=True)
    assert planned.status == 0
    done = apply(operator, path, "--output", "json", submit=True)
    assert (done.status, done.json["result"]["result"]["rewritten_data_files_count"]) == (0, 6), sys.stderr
    assert operator.lake.rows() == rows
