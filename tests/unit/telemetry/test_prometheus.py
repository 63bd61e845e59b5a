import base64
import multiprocessing
import socket
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from icekeep.errors import ConfigError, UsageError
from icekeep.events import CommitRetried, InRun, RunEnded, RunStarted
from icekeep.maintenance.compact.options import RewriteDataFilesResult
from icekeep.operations.console.output import write_at_once
from icekeep.telemetry.figures import RUN_METRICS
from icekeep.telemetry.prometheus import MetricsFile, Pushed, exposition, with_runs
from kit.cases import for_each
from kit.small_servers import http_sink

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def write(path, text):
    write_at_once(path, text, "metrics file")


def run(sink, number=1, *, exit_status=0, start_ms=START_MS, **named):
    """A run that a sink is told of, and that takes a second."""
    run_id = f"compact-{number}"
    told = {"job": "compact", "table": "lake.db.events", "started_ms": start_ms} | named
    sink.on(RunStarted(run_id=run_id, **told), start_ms)
    sink.on(InRun(run_id, CommitRetried("db.events", 1, 100, "others", is_conflict=True)), start_ms)
    status = "done" if exit_status == 0 else "failed"
    result = RewriteDataFilesResult(rewritten_data_files_count=number) if exit_status == 0 else None
    sink.on(
        RunEnded(run_id=run_id, status=status, exit_status=exit_status, ended_ms=start_ms + 1000, result=result),
        start_ms + 1000,
    )


def samples(text):
    """Values by the name of the metric, the table, the job and the policy."""
    return {
        (s.name.removeprefix("icekeep_run_"), s.labels["table"], s.labels["job"], s.labels["policy"]): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def of(text, name):
    return {key[1:]: value for key, value in samples(text).items() if key[0] == name}


EVENTS = ("lake.db.events", "compact", "")


def test_a_run_is_in_the_file_when_it_ends(tmp_path):
    path = tmp_path / "icekeep.prom"
    sink = MetricsFile(str(path), write)
    run(sink)
    text = path.read_text()
    assert of(text, "rewritten_files") == {EVENTS: 1}
    assert of(text, "conflicts") == {EVENTS: 1}
    assert of(text, "duration_seconds") == {EVENTS: 1}
    assert "# HELP icekeep_run_exit_status Its exit status: 0 done" in text
    assert "# TYPE icekeep_run_exit_status gauge" in text
    assert [p.name for p in tmp_path.glob("*.prom")] == ["icekeep.prom"]
    assert not any(p.name.endswith(".tmp") for p in tmp_path.iterdir())


def test_file_keeps_series_of_others_and_replaces_own(tmp_path):
    path = tmp_path / "icekeep.prom"
    run(MetricsFile(str(path), write), 1)
    run(MetricsFile(str(path), write), 2, table="lake.db.other")
    run(MetricsFile(str(path), write), 3, job="check")
    run(MetricsFile(str(path), write), 4, policy="nightly")
    assert of(path.read_text(), "rewritten_files") == {
        ("lake.db.other", "compact", ""): 2,
        ("lake.db.events", "check", ""): 3,
        ("lake.db.events", "compact", "nightly"): 4,
    }


def test_failed_run_keeps_only_last_success_time(tmp_path):
    path = tmp_path / "icekeep.prom"
    run(MetricsFile(str(path), write))
    run(MetricsFile(str(path), write), 2, exit_status=4, start_ms=START_MS + DAY_MS)
    text = path.read_text()
    assert of(text, "last_success_timestamp_seconds") == {EVENTS: (START_MS + 1000) / 1000}
    assert of(text, "last_end_timestamp_seconds") == {EVENTS: (START_MS + DAY_MS + 1000) / 1000}
    assert of(text, "exit_status") == {EVENTS: 4}
    assert of(text, "rewritten_files") == {}
    assert 'status="failed"' in text
    assert 'status="done"' not in text
    run(MetricsFile(str(path), write), 3, start_ms=START_MS + 2 * DAY_MS)
    assert of(path.read_text(), "last_success_timestamp_seconds") == {EVENTS: (START_MS + 2 * DAY_MS + 1000) / 1000}


def test_what_has_not_run_for_a_hundred_days_is_left_out(tmp_path):
    path = tmp_path / "icekeep.prom"
    run(MetricsFile(str(path), write), 1, table="lake.db.gone")
    run(MetricsFile(str(path), write), 2, start_ms=START_MS + 99 * DAY_MS)
    assert len(of(path.read_text(), "exit_status")) == 2
    run(MetricsFile(str(path), write), 2, start_ms=START_MS + 101 * DAY_MS)
    assert [*of(path.read_text(), "exit_status")] == [EVENTS]


@pytest.mark.parametrize("earlier", ["", "no metrics {", "other_metric 7\n", 'icekeep_run_commits{x="y"} 1\n'])
def test_a_file_that_is_none_of_ours_is_begun_anew(tmp_path, earlier):
    path = tmp_path / "icekeep.prom"
    path.write_text(earlier)
    run(MetricsFile(str(path), write))
    text = path.read_text()
    assert of(text, "rewritten_files") == {EVENTS: 1}
    assert "other_metric" not in text
    assert 'x="y"' not in text


def test_runs_of_maintain_write_file_once_a_minute_and_at_end(tmp_path):
    path, written = tmp_path / "icekeep.prom", []
    sink = MetricsFile(str(path), lambda p, text: (written.append(text), write(p, text)))
    for number in range(40):
        run(sink, number, table=f"lake.db.t{number}", parent_id="maintain-1", start_ms=START_MS + number * 5_000)
    assert 3 <= len(written) <= 5
    sink.close()
    assert len(of(path.read_text(), "exit_status")) == 40


def test_a_dry_run_and_events_of_no_run_leave_no_file(tmp_path):
    path = tmp_path / "icekeep.prom"
    sink = MetricsFile(str(path), write)
    run(sink, only_tells=True)
    sink.on(InRun("unknown", CommitRetried("db.events", 1, 100, "x")), 0)
    sink.close()
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_an_error_of_one_line(tmp_path):
    with pytest.raises(UsageError, match="there is no directory"):
        run(MetricsFile(str(tmp_path / "no" / "icekeep.prom"), write))


def add_one(path, number):
    run(MetricsFile(path, write), number, table=f"lake.db.t{number}")


@pytest.mark.slow
@pytest.mark.process
def test_processes_that_write_at_once_lose_nothing(tmp_path):
    path = str(tmp_path / "icekeep.prom")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=add_one, args=(path, number)) for number in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert {process.exitcode for process in processes} == {0}
    assert len(of(Path(path).read_text(), "exit_status")) == 8


def test_only_known_metrics_are_written(tmp_path):
    path = tmp_path / "icekeep.prom"
    run(MetricsFile(str(path), write))
    names = {family.name for family in text_string_to_metric_families(path.read_text())}
    assert names <= {one.name for one in RUN_METRICS}
    assert with_runs("", {}) == ""


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "another's").write_text("precious")
    (tmp_path / ".icekeep.prom.lock").symlink_to(tmp_path / "another's")
    with pytest.raises(OSError, match="symbolic links"):
        run(MetricsFile(str(tmp_path / "icekeep.prom"), write))
    assert (tmp_path / "another's").read_text() == "precious"


@pytest.mark.server
def test_a_run_is_added_to_its_group_of_the_pushgateway():
    with http_sink(202) as gateway:
        run(Pushed(gateway.url.replace("http://", "http://me:p%40ss@"), {"env": "prod"}), policy="nightly")
    [request] = gateway.requests
    assert request.method == "POST"
    assert request.path == "/metrics/job/compact/catalog/lake/env/prod/namespace/db/table/lake.db.events"
    assert base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")) == b"me:p@ss"
    assert of(request.body.decode(), "rewritten_files") == {("lake.db.events", "compact", "nightly"): 1}


@pytest.mark.server
def test_pushgateway_refusal_is_error_and_login_is_optional():
    with http_sink(400) as gateway, pytest.raises(OSError, match="400"):
        run(Pushed(gateway.url + "/", {}))
    assert "Authorization" not in gateway.requests[0].headers


@pytest.mark.server
def test_a_pushgateway_that_is_down_is_an_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="refused"):
            run(Pushed(f"127.0.0.1:{port}", {}))


@pytest.mark.server
@for_each("status", [301, 302, 303, 307, 308])
def test_no_redirect_takes_the_login_to_another_server(status):
    with http_sink() as elsewhere, http_sink(status, location=f"{elsewhere.url}/steal") as gateway:
        with pytest.raises(OSError, match=str(status)):
            run(Pushed(gateway.url.replace("http://", "http://me:pw@"), {}))
        assert elsewhere.requests == []


@for_each("address", ["http://me:p/w@push", "ftp://push", "http://", "push:port"])
def test_address_that_would_show_password_is_refused(address):
    with pytest.raises(
        ConfigError, match=r"'metrics.pushgateway': is no address of a server; give http://HOST:PORT"
    ) as raised:
        Pushed(address, {})
    assert "/w" not in str(raised.value)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for make in (lambda: exposition([]), lambda: MetricsFile("x", write), lambda: Pushed("http://x", {})):
        with pytest.raises(UsageError, match=r"icekeep\[telemetry\] brings it"):
            make()
