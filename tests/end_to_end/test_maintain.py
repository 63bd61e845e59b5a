"""`icekeep maintain` as a process: six tables, of which two are sick, one is broken and one was opted out; killed; by Spark."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from configparser import RawConfigParser
from importlib import import_module
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
from kit.pages import blocks
from kit.shell import BIN, ROOT, Finished, Operator, run_script
from kit.small_servers import http_sink

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


def fill(operator: Operator, files: dict[str, int], **properties: dict[str, str]) -> None:
    operator.conf.write_text(operator.conf.read_text() + POLICIES)
    for name, count in files.items():
        table = create_table(operator.lake.catalog, ("db", name), SCHEMA, properties=properties.get(name, {}))
        for number in range(count):
            table = append(table, [events(number, 4)])


def rows(operator: Operator, name: str) -> Counter[str]:
    return multiset(read_table(operator.lake.catalog.load(("db", name))))


def statuses(result: Any) -> dict[str, dict[str, str]]:
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

    planned = operator.icekeep("maintain", "--dry-run")
    assert planned.status == 3
    assert "switched off by table property icekeep.enabled" in planned.out
    listed = operator.icekeep("maintain", "--list", "--output", "json", "--match", "db.s*").json["result"]
    assert [(one["table"], [job["job"] for job in one["jobs"]]) for one in listed["tables"]] == [
        ("local.db.sicker", [*JOBS]),
        ("local.db.sick", [*JOBS]),
    ]
    assert records(operator) == []

    done = operator.icekeep("maintain", "--output", "json")
    assert done.status == 3, done.err
    document, result = done.json, done.json["result"]
    assert (document["status"], result["status"], result["done_jobs_count"]) == ("partial", "partial", 6)
    assert statuses(result) == {
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

    again = operator.icekeep("maintain", "--output", "json")
    assert (again.status, again.json["result"]["due_jobs_count"]) == (3, 0)
    broken.unlink()
    operator.lake.catalog.drop(("db", "broken"))
    assert operator.icekeep("maintain").status == 0


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
def test_interrupted_run_resumes_and_loses_nothing(operator: Operator, number: signal.Signals) -> None:
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
        by_status = Counter(status for jobs in statuses(result).values() for status in jobs.values())
        assert by_status["done"] >= 6
        assert by_status["not_begun"] >= 9
        assert by_status.total() == 18
    again = operator.icekeep("maintain", "--output", "json")
    assert again.status == 0, again.out
    assert {name: rows(operator, name) for name in files} == before
    for name in files:
        table = operator.lake.catalog.load(("db", name))
        assert (len(table.metadata.snapshots), table.current_snapshot.summary["total-data-files"]) == (1, "1"), name
    ended = Counter((one.table, one.job) for one in records(operator) if one.status == "done" and one.table)
    assert set(ended.values()) == {1}, "what had ended well was done again"
    assert operator.icekeep("maintain", "--output", "json").json["result"]["due_jobs_count"] == 0


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
    assert statuses(done.json["result"]) == dict.fromkeys(files, dict.fromkeys(JOBS, "done"))
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


MATCHED_POLICIES = """
defaults: {schedule: "@daily"}
policies:
  - {name: nightly, match: local.db.*, jobs: {compact: {when: {small_files_over: 100}}, expire_snapshots: {older_than: 7d}}}
  - {name: typo, match: local.dv.*, jobs: {check: }}
"""


def test_policies_of_a_table_are_explained(operator: Operator) -> None:
    operator.lake.filled(commits=1, files=1)
    with operator.conf.open("a") as stream:
        stream.write(MATCHED_POLICIES)
    explained = operator.icekeep("policy", "explain", "--table", "local.db.events", "--output", "json")
    assert (explained.status, explained.err) == (0, "")
    jobs = {job["job"]: job for job in explained.json["result"]["jobs"]}
    assert {name: (job["policy"], job["state"]) for name, job in jobs.items()} == {
        "compact": ("nightly", "runs"),
        "expire_snapshots": ("nightly", "runs"),
    }
    # The command by hand is one that can be run as it is shown.
    by_hand = jobs["expire_snapshots"]["command"].split(" ")
    planned = subprocess.run(
        [str(BIN / by_hand[0]), *by_hand[1:], "--dry-run"],
        capture_output=True,
        env=operator.environment(),
        timeout=300,
        check=False,
    )
    assert planned.returncode == 0
    shown = operator.icekeep("policy", "explain", "--table", "local.db.events")
    assert f"{operator.conf}: policies[0].jobs.expire_snapshots.older_than" in shown.out
    checked = operator.icekeep("policy", "check")
    assert (checked.status, checked.err) == (2, "")
    assert "unmatched_patterns (1)" in checked.out
    assert "local.dv.*" in checked.out


SCHEDULES = ROOT / "docs" / "deploy" / "schedules"
PAGE = ROOT / "docs" / "schedules.md"
BARE = {"PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "PYTHONPATH": f"{ROOT}/lib"}
"""What a scheduler gives a process; the package is that of this checkout."""

SCHEDULED_POLICIES = """
policies:
  - {name: nightly, schedule: "0 2 * * *", match: local.db.*, jobs: {compact: {when: {small_files_over: 4}}}}
"""


@pytest.fixture
def fleet(operator: Operator) -> Operator:
    """Two tables, of which one has a job that is due."""
    operator.conf.write_text(operator.conf.read_text() + SCHEDULED_POLICIES)
    for name, count in (("calm", 1), ("sick", 6)):
        table = create_table(operator.lake.catalog, ("db", name), SCHEMA)
        for number in range(count):
            table = append(table, [events(number, 4)])
    return operator


def files_of(operator: Operator) -> set[Path]:
    return {path for path in operator.lake.directory.rglob("*.parquet") if "/data/" in str(path)}


def placed(text: str, operator: Operator) -> str:
    """An example with the paths of this machine in the place of those that it shows."""
    directory = operator.lake.directory
    for shown, real in {
        "/opt/icekeep/bin": BIN,
        "/etc/icekeep/icekeep.yaml": operator.conf,
        "/etc/icekeep": directory,
        "/var/log/icekeep": directory,
    }.items():
        text = text.replace(shown, str(real))
    return text


def test_the_page_shows_the_files_as_they_are() -> None:
    shown = [block.text for block in blocks(PAGE)]
    units = ("icekeep-maintain.service", "icekeep-maintain.timer")
    for name in ("crontab", *units, "orchestrators/dagster_icekeep.py", "orchestrators/prefect_icekeep.py"):
        assert (SCHEDULES / name).read_text() in [text if text.endswith("\n") else f"{text}\n" for text in shown], name


def crontab(operator: Operator) -> tuple[dict[str, str], str]:
    """The variables that it sets, and its command, as cron takes both."""
    lines = [line for line in placed((SCHEDULES / "crontab").read_text(), operator).splitlines() if line[:1] not in "#"]
    variables = dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))
    [entry] = [line for line in lines if line and not re.match(r"\w+=", line)]
    *when, command = entry.split(maxsplit=5)
    assert len(when) == 5
    assert "%" not in command, "cron takes it for the end of a line"
    assert variables.keys() == {"MAILTO", "ICEKEEP_CONFIG", "LOG", "SECRETS"}, (
        "cron's mails have all of them in a header"
    )
    return variables, command


def in_cron(operator: Operator, command: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", command],
        env={**BARE, "HOME": str(operator.lake.directory), **variables},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_cron_mails_one_line_after_failed_night_only(fleet: Operator) -> None:
    variables, command = crontab(fleet)
    log, secrets = Path(variables["LOG"]), Path(variables["SECRETS"])
    lost = in_cron(fleet, command, variables)
    assert re.fullmatch(rf"icekeep maintain: exit status [12], see {re.escape(str(log))}\n", lost.stdout), (
        "as shells differ"
    )
    secrets.touch()
    before = files_of(fleet)
    planned = in_cron(fleet, command.replace(" maintain ", " maintain --dry-run "), variables)
    assert (planned.returncode, planned.stdout, planned.stderr) == (0, "", "")
    assert "local.db.sick" in log.read_text()
    assert files_of(fleet) == before

    done = in_cron(fleet, command, variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "maintain: done" in log.read_text()
    assert files_of(fleet) > before

    Path(urlparse(fleet.lake.catalog.load(("db", "calm")).metadata_location).path).write_text("{")
    with http_sink() as server:
        secrets.write_text(f"CHAT='{server.url.replace('http:', 'json:')}'\n")
        chat = {"notifications": [{"url": "${CHAT}"}]}
        fleet.conf.write_text(fleet.conf.read_text() + json.dumps(chat)[1:-1] + "\n")
        bad = in_cron(fleet, command, variables)
    assert bad.stdout == f"icekeep maintain: exit status 3, see {log}\n"
    [message] = [json.loads(one.body) for one in server.requests]
    assert message["title"] == "icekeep maintain: partial (exit status 3)"
    assert re.match(
        r"no job was due\nnot read: local\.db\.calm: .+ \(icekeep help invalid-table\)\nrun maintain-",
        message["message"],
    )


def unit(operator: Operator, name: str) -> RawConfigParser:
    parsed = RawConfigParser(strict=True, comment_prefixes=("#",))
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(placed((SCHEDULES / name).read_text(), operator))
    return parsed


def test_systemd_takes_the_units_and_the_service_starts_maintain(fleet: Operator, tmp_path: Path) -> None:
    service = unit(fleet, "icekeep-maintain.service")["Service"]
    assert service["Type"] == "oneshot"
    assert "75" not in service["RestartPreventExitStatus"].split()
    assert {service[key] for key in ("NoNewPrivileges", "ProtectHome", "PrivateTmp")} == {"yes"}
    assert unit(fleet, "icekeep-maintain.timer")["Timer"]["OnCalendar"]
    done = subprocess.run(
        [*service["ExecStart"].split(), "--dry-run"],
        env={**BARE, "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "local.db.sick" in done.stdout
    if shutil.which("systemd-analyze") is None:
        return
    units = tmp_path / "units"
    units.mkdir()
    for name in ("icekeep-maintain.service", "icekeep-maintain.timer"):
        (units / name).write_text(placed((SCHEDULES / name).read_text(), fleet))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units.iterdir())],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{units}:"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # What it does not know it names, and ends with 0.
    assert (verified.returncode, verified.stderr) == (0, "")


def test_invalid_utf_8_does_not_end_orchestrator_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "icekeep"
    command.write_text("#!/bin/sh\nprintf 'a \\377\\nb\\n' >&2\nexit 75\n")
    command.chmod(0o755)
    monkeypatch.setenv("ICEKEEP", str(command))
    monkeypatch.syspath_prepend(str(SCHEDULES / "orchestrators"))
    process, lines = import_module("icekeep_process"), []
    with pytest.raises(process.Ended, match="ended with exit status 75"):
        process.run("maintain", say=lines.append)
    assert lines == ["a \ufffd", "b"]


def lines_of(done: Finished) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.err.splitlines()]


def test_with_spark_every_line_on_stderr_is_an_object(operator: Operator) -> None:
    done = operator.icekeep("doctor", "--executors", "--output", "json", "--log-format", "json")
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
        done = operator.icekeep(
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


CHECKED_POLICIES = """
policies:
  - name: nightly
    schedule: "0 2 * * *"
    match: local.db.*
    jobs:
      compact: {when: {small_files_over: 4}}
      check:
"""


def test_each_job_of_maintain_is_a_child_run(operator: Operator) -> None:
    operator.conf.write_text(operator.conf.read_text() + CHECKED_POLICIES)
    for name in ("one", "two"):
        table = create_table(operator.lake.catalog, ("db", name), SCHEMA)
        for number in range(6):
            table = append(table, [events(number)])
    path = operator.conf.parent / "icekeep.prom"
    with http_sink() as server:
        done = operator.icekeep(
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
    events_sent = [json.loads(one.body) for one in server.requests]
    parents = {event["run"]["runId"]: event["run"]["facets"].get("parent") for event in events_sent}
    whole = parent_id.removeprefix("maintain-")
    assert parents.pop(whole) is None
    assert {one["run"]["runId"] for one in parents.values()} == {whole}
    assert parents.keys() == {job[-36:] for job in jobs}
    assert sum(event["eventType"] == "COMPLETE" for event in events_sent) == 5
    ended = [line for line in path.read_text().splitlines() if line.startswith("icekeep_run_exit_status{")]
    assert len(ended) == 5
    assert sum('policy="nightly"' in line for line in ended) == 4
