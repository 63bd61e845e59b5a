"""Who is told of a run, as processes: every line on stderr as JSON, Java's too; metrics, traces and lineage of a real job."""

import json
import subprocess
from typing import Any

from icekeep.tables.verbs import append, create_table
from kit.lake import SCHEMA, events
from kit.shell import BIN, Finished, Operator
from kit.small_servers import http_sink


def run(operator: Operator, *words: str, **environment: str) -> Finished:
    done = subprocess.run(
        [str(BIN / "icekeep"), *words, "--config", str(operator.conf)],
        capture_output=True,
        text=True,
        env={**operator.environment(), **environment},
        cwd=operator.conf.parent,
        timeout=300,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def lines_of(done: Finished) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.err.splitlines()]


def test_with_spark_every_line_on_stderr_is_an_object(operator: Operator) -> None:
    done = run(operator, "doctor", "--executors", "--output", "json", "--log-format", "json")
    run_id = done.json["run_id"]
    lines = lines_of(done)
    assert {"time", "level", "run", "table", "job", "step", "message", "logger"} == set.intersection(*map(set, lines))
    assert {one["run"] for one in lines if one["step"] == "starting Spark"} == {run_id}
    # What Spark's launcher and its JVM say.
    assert any(one["logger"] in ("jvm", "stderr") for one in lines)


def test_a_real_job_is_told_to_all_and_by_one_id(operator: Operator) -> None:
    table = operator.lake.create()
    for number in range(6):
        table = append(table, [events(number)])
    path = operator.conf.parent / "icekeep.prom"
    with http_sink() as server:
        done = run(
            operator,
            *("compact", "--table", "local.db.events", "--output", "json", "--log-format", "json", "--verbose"),
            *("--metrics-file", str(path)),
            OTEL_EXPORTER_OTLP_ENDPOINT=server.url,
            OPENLINEAGE_URL=server.url,
        )
    assert done.status == 0, done.err
    result = done.json
    lines = lines_of(done)
    assert {one["run"] for one in lines if one["table"] == "local.db.events"} == {result["run_id"]}
    assert {one["logger"].split(".")[0] for one in lines if one["level"] == "warning"} <= {"jvm", "py"}
    assert any(one["logger"] == "icekeep.commit.retry" for one in lines)
    rewritten = result["result"]["rewritten_data_files_count"]
    labels = 'catalog="local",job="compact",namespace="db",policy="",table="local.db.events"'
    assert f"icekeep_run_rewritten_files{{{labels}}} {float(rewritten)}" in path.read_text().splitlines()
    assert {"/v1/traces", "/v1/metrics", "/api/v1/lineage"} == {one.path for one in server.requests}
    start, complete = (json.loads(one.body) for one in server.requests if one.path == "/api/v1/lineage")
    assert result["run_id"].endswith(start["run"]["runId"])
    [written] = complete["outputs"]
    assert written["facets"]["version"]["datasetVersion"] == str(result["snapshot_id_after"])
    assert (written["namespace"], written["name"]) == ("file", table.metadata.location.removeprefix("file://"))
    assert written["outputFacets"]["outputStatistics"]["fileCount"] == result["result"]["added_data_files_count"]


POLICIES = """
policies:
  - name: nightly
    schedule: "0 2 * * *"
    match: local.db.*
    jobs:
      compact: {when: {small_files_over: 4}}
      check:
"""


def test_each_job_of_maintain_is_a_run_of_its_own_below_that_of_maintain(operator: Operator) -> None:
    operator.conf.write_text(operator.conf.read_text() + POLICIES)
    for name in ("one", "two"):
        table = create_table(operator.lake.catalog, ("db", name), SCHEMA)
        for number in range(6):
            table = append(table, [events(number)])
    path = operator.conf.parent / "icekeep.prom"
    with http_sink() as server:
        done = run(
            operator,
            *("maintain", "--output", "json", "--log-format", "json", "--metrics-file", str(path)),
            OPENLINEAGE_URL=server.url,
        )
    assert done.status == 0, done.err
    parent_id = done.json["run_id"]
    jobs = {job["run_id"]: one["table"] for one in done.json["result"]["tables"] for job in one["jobs"]}
    assert len(jobs) == 4
    lines = lines_of(done)
    assert {one["run"]: one["table"] for one in lines if one["run"] != parent_id} == jobs
    assert any(one["run"] == parent_id and one["step"] == "looking at tables" for one in lines)
    told = [json.loads(one.body) for one in server.requests]
    parents = {event["run"]["runId"]: event["run"]["facets"].get("parent") for event in told}
    whole = parent_id.removeprefix("maintain-")
    assert parents.pop(whole) is None
    assert {one["run"]["runId"] for one in parents.values()} == {whole}
    assert parents.keys() == {job[-36:] for job in jobs}
    assert sum(event["eventType"] == "COMPLETE" for event in told) == 5
    ended = [line for line in path.read_text().splitlines() if line.startswith("icekeep_run_exit_status{")]
    assert len(ended) == 5
    assert sum('policy="nightly"' in line for line in ended) == 4
