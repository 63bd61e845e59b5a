"""A plan as an operator has it: written by `--plan-out`, looked at, carried out by `apply`, or refused where the table moved."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from icekeep.maintenance.compact.job import compact
from icekeep.tables.verbs import append, create_table
from kit.browser import Page
from kit.lake import SCHEMA, events, multiset
from kit.runtime import no_spark
from kit.shell import Finished, Operator


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

    looked = operator.icekeep("apply", str(path), "--dry-run", "--output", "json")
    assert (looked.status, looked.json["status"], looked.json["result"]["job"]) == (0, "planned", "compact")
    assert looked.json["result"]["result"]["rewritten_data_files_count"] == 6
    assert operator.lake.load().metadata_location == table.metadata_location

    append(operator.lake.load(), events(77))
    done = operator.icekeep("apply", str(path), "--output", "json")
    assert (done.status, done.json["job"], done.json["result"]["plan_hash"]) == (0, "apply", told["hash"])
    assert done.json["result"]["result"]["rewritten_data_files_count"] == 6
    assert operator.lake.rows() == rows + multiset(events(77))
    head = operator.lake.load().metadata.head("main")
    assert head is not None
    assert (head.summary or {})["icekeep.plan"] == told["hash"]
    assert (head.summary or {})["icekeep.run-id"] == done.json["run_id"]

    location = operator.lake.load().metadata_location
    again = operator.icekeep("apply", str(path))
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
    moved = operator.icekeep("apply", str(path))
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
        refused = operator.icekeep("apply", str(file))
        assert (refused.status, len(refused.err.strip().splitlines())) == (2, 1)
        assert said in refused.complaint


@pytest.mark.nightly
def test_a_plan_is_carried_out_by_spark_submit(operator: Operator, tmp_path: Path) -> None:
    operator.lake.filled(commits=3, files=2)
    path, rows = tmp_path / "plan.jsonl", operator.lake.rows()
    words = ("--plan-out", str(path), "--option", "rewrite-all=true", "--output", "json")
    planned = operator.run("compact", *words, submit=True)
    assert planned.status == 0
    done = operator.icekeep("apply", str(path), "--output", "json", submit=True)
    assert (done.status, done.json["result"]["result"]["rewritten_data_files_count"]) == (0, 6), sys.stderr
    assert operator.lake.rows() == rows


def unwell(done: Finished) -> dict[tuple[str, str], str]:
    """But for memory, which may be little where the tests run."""
    found: list[dict[str, Any]] = done.json["result"]["findings"]
    return {
        (one["about"], one["check"]): one["status"]
        for one in found
        if one["status"] != "ok" and one["check"] != "memory"
    }


def test_by_hand_all_but_executors_is_looked_at(operator: Operator) -> None:
    before = sorted(operator.conf.parent.rglob("*"))
    done = operator.icekeep("doctor", "--namespace", "db", "--output", "json")
    assert unwell(done) == {("executors", "session"): "not-tried"}
    assert done.status == (0 if done.json["status"] == "ok" else 2)
    assert sorted(operator.conf.parent.rglob("*")) == before


def test_without_java_the_rest_is_told(operator: Operator, tmp_path: Path) -> None:
    done = operator.icekeep("doctor", "--executors", "--output", "json", JAVA_HOME=str(tmp_path))
    assert done.status == 2
    assert unwell(done) == {
        ("driver", "java"): "wrong",
        ("catalog local", "commit"): "not-tried",
        ("executors", "session"): "wrong",
    }


def test_by_spark_submit_executors_are_asked(operator: Operator) -> None:
    done = operator.icekeep("doctor", "--namespace", "db", "--output", "json", submit=True)
    assert unwell(done) == {("driver", "java"): "not-tried"}
    found = {(one["about"], one["check"]): one["message"] for one in done.json["result"]["findings"]}
    assert "master local[1]" in found["executors", "session"]
    assert "(executors: 1, hosts: 1)" in found["executors", "python"]


@pytest.mark.skipif(sys.prefix == sys.base_prefix, reason="needs a Python of the same version without our packages")
@pytest.mark.nightly
def test_executors_without_packages_are_reported(operator: Operator) -> None:
    bare = getattr(sys, "_base_executable", sys.executable)
    done = operator.icekeep("doctor", "--output", "json", submit=True, PYSPARK_PYTHON=bare)
    assert done.status == 2
    missing = {
        check.removeprefix("package "): status
        for (about, check), status in unwell(done).items()
        if about == "executors"
    }
    assert missing["pyarrow"] == missing["datafusion"] == "wrong"
    assert json.loads(done.out)["job"] == "doctor"


FILES = {"calm": 1, "broken": 2, "some": 5, "more": 12, "sick": 30}


def fill(operator: Operator) -> None:
    for name, files in FILES.items():
        table = create_table(operator.lake.catalog, ("db", name), SCHEMA, partition_by=[("at", "month")])
        for number in range(files):
            table = append(table, [events(number)])
        if name == "broken":
            Path(urlparse(table.metadata_location).path).write_text("{")


def test_five_tables_of_which_one_is_broken(operator: Operator) -> None:
    fill(operator)
    before = {path: os.stat(path).st_mtime_ns for path in operator.lake.files_on_disk()}
    done = operator.icekeep("report", "--output", "json", "--match", "db.*")
    assert done.status == 3
    result = done.json["result"]
    assert [one["table"] for one in result["tables"]] == [f"local.db.{n}" for n in ("sick", "more", "some", "calm")]
    assert [(one["name"], one["kind"]) for one in result["not_read"]] == [("local.db.broken", "invalid-table")]
    assert {path: os.stat(path).st_mtime_ns for path in operator.lake.files_on_disk()} == before
    shown = operator.icekeep("report")
    assert shown.status == 3
    assert "local.db.broken: cannot read table metadata" in shown.out
    assert "compact, rewrite_manifests" in shown.out
    metrics = operator.icekeep("report", "--catalog", "local", "--output", "prometheus")
    assert metrics.status == 3
    assert (
        'icekeep_table_data_files{catalog="local",namespace="db",table="local.db.sick"} 30.0'
        in metrics.out.splitlines()
    )
    page = operator.icekeep("report", "--output", "html")
    assert page.status == 3
    assert {f"local.db.{name}" for name in FILES} <= {*re.findall(r"local\.db\.\w+", Page(page.out).text)}
    assert {path: os.stat(path).st_mtime_ns for path in operator.lake.files_on_disk()} == before
    assert "starting Spark" not in done.err + shown.err + metrics.err + page.err


def test_the_jobs_that_it_names_make_a_table_healthy(operator: Operator) -> None:
    table = operator.lake.create()
    for number in range(12):
        table = append(table, [events(number)])

    def told() -> dict[str, object]:
        done = operator.icekeep("report", "--table", "local.db.events", "--output", "json")
        assert done.status == 0
        [one] = done.json["result"]["tables"]
        return dict(one)

    first = told()
    to_do = [job["command"] for job in json.loads(json.dumps(first["jobs"])) if job["has_work"]]
    config = f"--config {operator.conf}"
    assert to_do == [f"icekeep {job} --table local.db.events {config}" for job in ("compact", "rewrite_manifests")]
    for command in to_do:
        done = operator.run(command.split()[1])
        assert done.status == 0, done.err
    last = told()
    assert not any(job["has_work"] for job in json.loads(json.dumps(last["jobs"])))
    assert (first["score"] < 60, last["score"] > 95) == (True, True)  # type: ignore[operator]
