"""`icekeep maintain` as a process: six tables, of which two are sick, one is broken and one was opted out; killed; by Spark."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunFilter
from icekeep.runtime import SYSTEM
from icekeep.tables.read import read_table
from icekeep.tables.verbs import append, create_table
from kit.lake import SCHEMA, events, multiset
from kit.shell import BIN, ROOT, Finished, Operator, run_script

POLICIES = """
defaults: {schedule: "0 2 * * *"}
policies:
  - name: nightly
    match: local.db.*
    jobs:
      compact: {when: {small_files_over: 4}}
      rewrite_manifests: {when: {manifests_over: 4}}
      expire_snapshots: {when: {snapshots_over: 4}, older_than: 0s, retain_last: 1, options: {grace: 0s}, trash: 0}
"""
JOBS = ("compact", "rewrite_manifests", "expire_snapshots")


def run(operator: Operator, *words: str) -> Finished:
    done = subprocess.run(
        [str(BIN / "icekeep"), *words, "--config", str(operator.conf)],
        capture_output=True,
        text=True,
        env=operator.environment(),
        cwd=operator.conf.parent,
        timeout=300,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def fill(operator: Operator, files: dict[str, int], **properties: dict[str, str]) -> None:
    operator.conf.write_text(operator.conf.read_text() + POLICIES)
    for name, count in files.items():
        table = create_table(operator.lake.catalog, ("db", name), SCHEMA, properties=properties.get(name, {}))
        for number in range(count):
            table = append(table, [events(number, 4)])


def rows(operator: Operator, name: str) -> Counter[str]:
    return multiset(read_table(operator.lake.catalog.load(("db", name))))


def told(result: Any) -> dict[str, dict[str, str]]:
    return {
        one["table"].removeprefix("local.db."): {job["job"]: job["status"] for job in one["jobs"]}
        for one in result["tables"]
    }


def records(operator: Operator) -> Any:
    found = RunRecords.at(f"sqlite:///{operator.lake.directory}/warehouse.icekeep-runs.db")
    return found.select(RunFilter(), SYSTEM.now_ms())


def test_a_catalog_of_six_tables(operator: Operator) -> None:
    files = {"calm": 1, "broken": 3, "mine": 6, "some": 2, "sick": 6, "sicker": 9}
    fill(operator, files, mine={"icekeep.enabled": "false"})
    broken = Path(urlparse(operator.lake.catalog.load(("db", "broken")).metadata_location).path)
    broken.write_text("{")
    before = {name: rows(operator, name) for name in files if name != "broken"}
    mine = operator.lake.catalog.find(("db", "mine"))

    planned = run(operator, "maintain", "--dry-run")
    assert planned.status == 3
    assert "switched off by table property icekeep.enabled" in planned.out
    listed = run(operator, "maintain", "--list", "--output", "json", "--match", "db.s*").json["result"]
    assert [(one["table"], [job["job"] for job in one["jobs"]]) for one in listed["tables"]] == [
        ("local.db.sicker", [*JOBS]),
        ("local.db.sick", [*JOBS]),
    ]
    assert records(operator) == []

    done = run(operator, "maintain", "--output", "json")
    assert done.status == 3, done.err
    document, result = done.json, done.json["result"]
    assert (document["status"], result["status"], result["done_jobs_count"]) == ("partial", "partial", 6)
    assert told(result) == {
        "sicker": dict.fromkeys(JOBS, "done"),
        "sick": dict.fromkeys(JOBS, "done"),
        "calm": dict.fromkeys(JOBS, "not_due"),
        "some": dict.fromkeys(JOBS, "not_due"),
        "broken": dict.fromkeys(JOBS, "held"),
        "mine": dict.fromkeys(JOBS, "held"),
    }
    assert [one["table"] for one in result["tables"]][:2] == ["local.db.sicker", "local.db.sick"]
    assert [one["name"] for one in result["not_read"]] == ["local.db.broken"]
    assert "starting Spark" not in done.err
    assert {name: rows(operator, name) for name in before} == before
    assert operator.lake.catalog.find(("db", "mine")).metadata_location == mine.metadata_location
    assert broken.read_text() == "{"
    head = operator.lake.catalog.load(("db", "sicker")).current_snapshot
    assert head is not None
    assert head.summary["icekeep.policy"] == "nightly"

    by_id = {one.run_id: one for one in records(operator)}
    parent = by_id[document["run_id"]]
    assert (parent.job, parent.table, parent.status, parent.exit_status) == ("maintain", "", "partial", 3)
    jobs = {
        job["run_id"]: (one["table"], job["job"]) for one in result["tables"] for job in one["jobs"] if job["run_id"]
    }
    assert {key: (one.table, one.job) for key, one in by_id.items() if one.parent_id == parent.run_id} == jobs
    assert head.summary["icekeep.run-id"] in jobs

    again = run(operator, "maintain", "--output", "json")
    assert (again.status, again.json["result"]["due_jobs_count"]) == (3, 0)
    broken.unlink()
    operator.lake.catalog.drop(("db", "broken"))
    assert run(operator, "maintain").status == 0


def begun(operator: Operator, count: int) -> subprocess.Popen[str]:
    """A run that has begun to compact so many tables."""
    words = ("maintain", "--config", str(operator.conf), "--workers", "1", "--output", "json", "--verbose")
    process = subprocess.Popen(
        [str(BIN / "icekeep"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=operator.environment(),
        cwd=operator.conf.parent,
    )
    assert process.stderr is not None
    for line in process.stderr:
        count -= ": rewriting data files: started" in line
        if not count:
            break
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.nightly)])
def test_a_run_that_is_ended_and_started_again_goes_on_and_loses_nothing(
    operator: Operator, number: signal.Signals
) -> None:
    files = {f"t{n}": 6 for n in range(6)}
    fill(operator, files)
    before = {name: rows(operator, name) for name in files}
    process = begun(operator, 3)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    if number == signal.SIGTERM:
        assert process.returncode == 143, err
        result = json.loads(out)["result"]
        assert json.loads(out)["status"] == result["status"] == "interrupted"
        by_status = Counter(status for jobs in told(result).values() for status in jobs.values())
        assert by_status["done"] >= 6
        assert by_status["not_begun"] >= 9
        assert by_status.total() == 18
    again = run(operator, "maintain", "--output", "json")
    assert again.status == 0, again.out
    assert {name: rows(operator, name) for name in files} == before
    for name in files:
        table = operator.lake.catalog.load(("db", name))
        assert (len(table.metadata.snapshots), table.current_snapshot.summary["total-data-files"]) == (1, "1"), name
    ended = Counter((one.table, one.job) for one in records(operator) if one.status == "done" and one.table)
    assert set(ended.values()) == {1}, "what had ended well was done again"
    assert run(operator, "maintain", "--output", "json").json["result"]["due_jobs_count"] == 0


SCRIPT = """
import sys
import icekeep.planning.spark.session as limits
limits.LIMITS = limits.Limits(rewrite_bytes=-1)
from icekeep.cli import main
sys.exit(main(["maintain", "--config", sys.argv[1], "--output", "json", "--workers", "2"]))
"""


def test_tables_that_need_spark_share_one_application(operator: Operator, tmp_path: Path) -> None:
    files = {"a": 6, "b": 7, "c": 6}
    fill(operator, files)
    before = {name: rows(operator, name) for name in files}
    done = run_script(SCRIPT, tmp_path, str(operator.conf), timeout_s=900)
    assert done.status == 0, done.err[-3000:]
    assert done.err.count("starting Spark: started") == 1
    assert told(done.json["result"]) == dict.fromkeys(files, dict.fromkeys(JOBS, "done"))
    assert {name: rows(operator, name) for name in files} == before
    apps = {one.app_id for one in records(operator) if one.job == "compact"}
    assert len(apps) == 1
    assert None not in apps


def test_the_script_for_spark_submit_is_the_same_command(operator: Operator) -> None:
    fill(operator, {"a": 6})
    done = subprocess.run(
        [sys.executable, f"{ROOT}/jobs/maintain.py", "--config", str(operator.conf), "--dry-run", "--output", "json"],
        capture_output=True,
        text=True,
        env={**os.environ, **operator.environment()},
        timeout=300,
        check=False,
    )
    assert (done.returncode, json.loads(done.stdout)["result"]["due_jobs_count"]) == (0, 3), done.stderr
