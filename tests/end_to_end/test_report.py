"""`icekeep report` as a process, over a catalog of five tables of which one is broken."""

import json
import os
import re
import subprocess
from pathlib import Path
from urllib.parse import urlparse

from icekeep.tables.verbs import append, create_table
from kit.browser import Page
from kit.lake import SCHEMA, events
from kit.shell import BIN, Finished, Operator

FILES = {"calm": 1, "broken": 2, "some": 5, "more": 12, "sick": 30}


def run(operator: Operator, *words: str) -> Finished:
    done = subprocess.run(
        [str(BIN / "icekeep"), "report", "--config", str(operator.conf), *words],
        capture_output=True,
        text=True,
        env=operator.environment(),
        cwd=operator.conf.parent,
        timeout=300,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


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
    done = run(operator, "--output", "json", "--match", "db.*")
    assert done.status == 3
    result = done.json["result"]
    assert [one["table"] for one in result["tables"]] == [f"local.db.{n}" for n in ("sick", "more", "some", "calm")]
    assert [(one["name"], one["kind"]) for one in result["not_read"]] == [("local.db.broken", "invalid-table")]
    assert {path: os.stat(path).st_mtime_ns for path in operator.lake.files_on_disk()} == before
    shown = run(operator)
    assert shown.status == 3
    assert "local.db.broken: cannot read table metadata" in shown.out
    assert "compact, rewrite_manifests" in shown.out
    metrics = run(operator, "--catalog", "local", "--output", "prometheus")
    assert metrics.status == 3
    assert (
        'icekeep_table_data_files{catalog="local",namespace="db",table="local.db.sick"} 30.0'
        in metrics.out.splitlines()
    )
    page = run(operator, "--output", "html")
    assert page.status == 3
    assert {f"local.db.{name}" for name in FILES} <= {*re.findall(r"local\.db\.\w+", Page(page.out).text)}
    assert {path: os.stat(path).st_mtime_ns for path in operator.lake.files_on_disk()} == before
    assert "starting Spark" not in done.err + shown.err + metrics.err + page.err


def test_the_jobs_that_it_names_make_a_table_healthy(operator: Operator) -> None:
    table = operator.lake.create()
    for number in range(12):
        table = append(table, [events(number)])

    def told() -> dict[str, object]:
        done = run(operator, "--table", "local.db.events", "--output", "json")
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
