"""Who is told of a run, by whole command lines over fake jobs: log lines, metrics, OpenTelemetry, OpenLineage."""

import json
import os
import re
import signal
import socket
import threading
from functools import partial

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from icekeep import cli
from icekeep.errors import SafetyError
from icekeep.operations import listeners as telling
from icekeep.telemetry import guarded as sinks
from kit import fake_jobs
from kit.fake_jobs import FAILURES, JOBS, SEAMS
from kit.runtime import FakeRuntime
from kit.shell import restored_logging, run_script
from kit.small_servers import http_sink

CATALOG = "catalogs: {local: {type: sql, uri: 'sqlite:///x.db'}}\n"


@pytest.fixture(autouse=True)
def _world(tmp_path, monkeypatch):
    fake_jobs.forget()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in list(os.environ):
        if variable.startswith(("OTEL_", "OPENLINEAGE", "PYSPARK_GATEWAY", "SPARK_", "PYICEBERG", "TRACEPARENT")):
            monkeypatch.delenv(variable)
    (tmp_path / "conf").mkdir()
    configure(tmp_path, "")
    # A machine that is busy with other tests may take seconds to import what is sent by.
    monkeypatch.setattr(sinks, "guarded", partial(sinks.guarded, patience_ms=60_000))
    with restored_logging():
        yield


def configure(tmp_path, text):
    (tmp_path / "conf" / "icekeep.yaml").write_text(CATALOG + text)


def run(*words, runtime=None):
    return cli.main(list(words), None, jobs=JOBS, seams=SEAMS, runtime=runtime or FakeRuntime())


def lines_of(err):
    return [json.loads(line) for line in err.splitlines()]


def samples(path):
    return {
        sample.name.removeprefix("icekeep_run_"): (sample.labels, sample.value)
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }


COMPACT = ("compact", "--table", "db.t", "--output", "json")


def test_as_json_every_line_says_which_run_it_is_of(capsys):
    assert run(*COMPACT, "--log-format", "json") == 0
    out, err = capsys.readouterr()
    run_id = json.loads(out)["run_id"]
    lines = lines_of(err)
    assert {(one["run"], one["table"], one["job"]) for one in lines} == {(run_id, "local.db.t", "compact")}
    assert [one["message"] for one in lines] == [
        f"compact local.db.t: run {run_id}",
        "starting Spark: started",
        "starting Spark: done in 0.0 s",
        "rewriting: started, 2 files",
        f"run {run_id}: done",
    ]
    assert [one["step"] for one in lines] == [None, "starting Spark", "starting Spark", "rewriting", None]


def test_log_format_flag_overrides_configuration(tmp_path, capsys):
    configure(tmp_path, "log: {format: json}")
    run(*COMPACT)
    assert lines_of(capsys.readouterr().err)
    run(*COMPACT, "--log-format", "text")
    assert "rewriting: started, 2 files" in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("verbose", [(), ("--verbose",)])
def test_an_error_is_one_line_of_json_too(capsys, verbose):
    FAILURES.append(SafetyError("it is too young"))
    assert run(*COMPACT, "--log-format", "json", *verbose) == 4
    out, err = capsys.readouterr()
    lines = lines_of(err)
    run_id = json.loads(out)["run_id"]
    [said] = [one for one in lines if one["level"] == "error"]
    assert (said["message"], said["run"]) == ("it is too young", run_id)
    assert said["facts"] == {"kind": "safety", "exit_status": 4}
    assert any("SafetyError" in one.get("traceback", "") for one in lines) is bool(verbose)


def test_a_wrong_command_line_is_told_as_json_as_well(tmp_path, capsys):
    assert run("compact", "--table", "db.t", "--colour", "--log-format", "json") == 2
    [line] = lines_of(capsys.readouterr().err)
    assert (line["level"], line["facts"]["kind"]) == ("error", "usage")
    for wrong in (("--log-format", "xml"), ("--conf", "spark.x=y")):
        assert run(*COMPACT, *wrong) == 2
        out, err = capsys.readouterr()
        assert json.loads(out)["error"]["kind"] == "usage"
        assert wrong[1] in err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("log: {format: xml}", "configuration key 'log.format': is 'xml'; there is text, json"),
        ("log: {colour: red}", "configuration key 'log.colour': there is no such key; there is format"),
        (
            "metrics: {url: x}",
            "configuration key 'metrics.url': there is no such key; there is file, labels, pushgateway",
        ),
        ("metrics: {labels: {job: x}}", "configuration key 'metrics.labels.job': is a label that icekeep sets itself"),
        ("metrics: {labels: {a-b: x}}", "configuration key 'metrics.labels.a-b': is no name of a label"),
        ("metrics: {pushgateway: 'http://${A'}", "configuration key 'metrics.pushgateway': holds '${' that is no"),
    ],
)
def test_configuration_error_is_reported_before_any_run(tmp_path, capsys, text, problem):
    configure(tmp_path, text)
    assert run(*COMPACT) == 2
    assert f"icekeep: {problem}" in capsys.readouterr().err
    assert fake_jobs.HISTORY == []


def test_metrics_of_a_run_are_in_the_file(tmp_path, capsys):
    path = tmp_path / "icekeep.prom"
    assert run(*COMPACT, "--metrics-file", str(path)) == 0
    found = samples(path)
    labels = {"catalog": "local", "namespace": "db", "table": "local.db.t", "job": "compact", "policy": ""}
    assert found["rewritten_files"] == (labels, 12)
    assert found["status"] == (labels | {"status": "done"}, 1)
    assert "warning" not in capsys.readouterr().err


def test_a_refusal_and_a_dry_run(tmp_path):
    path = tmp_path / "icekeep.prom"
    run(*COMPACT, "--dry-run", "--metrics-file", str(path))
    assert not path.exists()
    configure(tmp_path, f"metrics: {{file: {path}}}")
    FAILURES.append(SafetyError("no"))
    assert run(*COMPACT) == 4
    assert samples(path)["exit_status"][1] == 4


def test_a_table_that_does_not_load_is_a_run_that_failed(tmp_path):
    path = tmp_path / "icekeep.prom"
    seams = replace(SEAMS, load_table="kit.fake_jobs:load_broken_table")
    assert cli.main([*COMPACT, "--metrics-file", str(path)], jobs=JOBS, seams=seams, runtime=FakeRuntime()) == 1
    assert samples(path)["exit_status"][1] == 1


def test_a_command_that_changes_nothing_has_no_metrics(tmp_path, capsys):
    assert run("report", "--metrics-file", str(tmp_path / "x")) == 2
    assert "unrecognized arguments: --metrics-file" in capsys.readouterr().err


def warnings_of(err):
    return [line for line in err.splitlines() if line.startswith("warning: ")]


def test_a_file_that_cannot_be_written_is_one_warning(tmp_path, capsys):
    path = tmp_path / "no" / "icekeep.prom"
    assert run(*COMPACT, "--metrics-file", str(path)) == 0
    [warning] = warnings_of(capsys.readouterr().err)
    problem = f"metrics cannot be written to '{path}': there is no directory '{path.parent}'"
    assert warning == f"warning: {problem}; the work goes on"
    assert not path.parent.exists()


@pytest.mark.server
def test_run_is_pushed_with_labels_and_password_of_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PW", "s3cret")
    with http_sink(202) as gateway:
        address = gateway.url.replace("http://", "http://me:${PW}@")
        configure(tmp_path, f"metrics: {{pushgateway: '{address}', labels: {{env: prod, tier: 1}}}}")
        assert run(*COMPACT) == 0
    [request] = gateway.requests
    assert re.fullmatch(
        "/metrics/job/compact/catalog/local/env/prod/namespace/db/table/local.db.t/tier/1", request.path
    )
    assert request.headers["Authorization"].startswith("Basic ")


@pytest.mark.server
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("down", "connection refused"),
        ("refusing", "HTTP Error 500: Internal Server Error"),
        ("without its variable", "configuration key 'metrics.pushgateway': refers to environment variable 'NOT_SET'"),
    ],
)
def test_unreachable_pushgateway_is_one_warning(tmp_path, capsys, how, why):
    with http_sink(500) as gateway, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = {
            "down": f"http://127.0.0.1:{taken.getsockname()[1]}",
            "refusing": gateway.url,
            "without its variable": "http://me:${NOT_SET}@x",
        }[how]
        configure(tmp_path, f"metrics: {{pushgateway: '{address}'}}")
        assert run(*COMPACT) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["status"] == "done"
    assert len(warnings_of(err)) == 1
    shown = address.replace("${NOT_SET}", "******")
    assert warnings_of(err)[0].startswith(f"warning: metrics cannot be sent to {shown}: {why}")


IMPATIENT = """
import sys, time
from functools import partial
from icekeep import cli
from icekeep.telemetry import guarded as sinks
from kit.fake_jobs import JOBS, SEAMS

sinks.guarded = partial(sinks.guarded, patience_ms=700)
began = time.monotonic()
status = cli.main(sys.argv[1:], jobs=JOBS, seams=SEAMS)
print(time.monotonic() - began)
sys.exit(status)
"""


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.process
def test_hanging_sinks_delay_job_by_seconds_and_warn_once(tmp_path, monkeypatch):
    with http_sink(hangs=True) as server:
        configure(tmp_path, f"metrics: {{pushgateway: '{server.url}'}}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", server.url)
        done = run_script(IMPATIENT, tmp_path, *COMPACT, timeout_s=120)
    assert done.status == 0
    document, seconds = done.out.splitlines()
    assert json.loads(document)["status"] == "done"
    assert 0.7 < float(seconds) < 60
    assert sorted(warnings_of(done.err)) == [
        f"warning: {name}: it does not answer, and is left; the work goes on"
        for name in (
            "OpenLineage cannot be told",
            "OpenTelemetry cannot be told",
            f"metrics cannot be sent to {server.url}",
        )
    ]


@pytest.mark.server
def test_a_trace_and_lineage_are_sent_as_the_environment_says(monkeypatch, capsys):
    with http_sink() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", server.url)
        assert run(*COMPACT) == 0
    out, err = capsys.readouterr()
    assert warnings_of(err) == []
    assert sorted(request.path for request in server.requests) == [
        "/api/v1/lineage",
        "/api/v1/lineage",
        "/v1/metrics",
        "/v1/traces",
    ]
    start, complete = (json.loads(one.body) for one in server.requests if one.path == "/api/v1/lineage")
    run_id = json.loads(out)["run_id"]
    assert run_id == f"compact-{start['run']['runId']}"
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert [one["facets"]["version"]["datasetVersion"] for one in complete["outputs"]]
    assert warnings_of(err) == []


@pytest.mark.server
def test_an_interrupted_run_is_told_as_aborted(tmp_path, monkeypatch, capsys):
    path = tmp_path / "icekeep.prom"
    jobs = {"compact": replace(JOBS["compact"], run="kit.fake_jobs:terminated")}
    with http_sink() as server:
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", server.url)
        words = [*COMPACT, "--metrics-file", str(path)]
        assert cli.main(words, jobs=jobs, seams=SEAMS, runtime=FakeRuntime()) == 143
    assert [json.loads(one.body)["eventType"] for one in server.requests] == ["START", "ABORT"]
    assert samples(path)["exit_status"][1] == 143
    assert samples(path)["status"][0]["status"] == "interrupted"


@pytest.mark.server
def test_unsent_telemetry_is_one_line_each_without_library_logs(monkeypatch, capsys):
    with http_sink(400) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", server.url)
        assert run(*COMPACT, "--log-format", "json") == 0
    lines = lines_of(capsys.readouterr().err)
    warned = [one["message"] for one in lines if one["level"] != "info"]
    assert len(warned) == 2
    assert {one.partition(" cannot")[0] for one in warned} == {"OpenTelemetry", "OpenLineage"}


def test_an_exporter_that_is_not_installed_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    assert run(*COMPACT) == 0
    [warning] = warnings_of(capsys.readouterr().err)
    assert "there is no exporter 'zipkin'" in warning


def test_nothing_is_started_where_nothing_is_asked_for(monkeypatch, capsys):
    def never(*_):
        raise AssertionError("a thread for nobody")

    monkeypatch.setattr(sinks, "guarded", never)
    assert run(*COMPACT) == 0
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://x")
    assert run("config", "show") == 0


class Terminating:
    """A sink that takes long at the end, and a scheduler that takes no longer."""

    def on(self, event, at_ms):
        pass

    def close(self):
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(5)


def test_signal_after_work_ends_wait_and_keeps_answer(monkeypatch, capsys):
    monkeypatch.setattr(telling, "_sinks", lambda *_: [("mine", Terminating)])
    assert run(*COMPACT) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "done"


class Raising:
    """A sink of which everything fails."""

    def on(self, event, at_ms):
        raise ZeroDivisionError("ours")

    def close(self):
        raise ZeroDivisionError("at the end")


def test_a_listener_that_raises_is_one_warning(monkeypatch, capsys):
    monkeypatch.setattr(telling, "_sinks", lambda *_: [("mine", Raising)])
    assert run(*COMPACT) == 0
    assert warnings_of(capsys.readouterr().err) == ["warning: mine: ZeroDivisionError: ours; the work goes on"]
