import io
import json
import subprocess
import sys

import pytest
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from icekeep.errors import UnavailableError, UsageError
from icekeep.events import (
    CommitRetried,
    InRun,
    RunEnded,
    RunStarted,
    SnapshotCommitted,
    StepAdvanced,
    StepFinished,
    StepStarted,
    Warned,
)
from icekeep.maintenance.compact.options import RewriteDataFilesResult
from icekeep.telemetry.asked import exporter_names, otel_is_asked_for
from icekeep.telemetry.otel import Exporters, OpenTelemetry, configured_exporters
from kit.cases import for_each
from kit.small_servers import http_sink

START_MS = 1_700_000_000_000
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


class InMemoryMetrics:
    """The last values that it was given, by metric and by labels that are not empty."""

    def __init__(self):
        self.batches = []

    def export(self, data):
        self.batches.append(data)
        return MetricExportResult.SUCCESS

    def shutdown(self):
        pass

    @property
    def metrics(self):
        [batch] = self.batches
        [of_resource] = batch.resource_metrics
        [of_scope] = of_resource.scope_metrics
        return {one.name: one for one in of_scope.metrics}

    def values(self, name):
        points = self.metrics[name].data.data_points
        return {tuple(v for v in point.attributes.values() if v): point.value for point in points}


def started(run_id="compact-1", **named):
    told = {"job": run_id.partition("-")[0], "table": "lake.db.t", "started_ms": START_MS} | named
    return RunStarted(run_id=run_id, **told)


def ended(run_id="compact-1", exit_status=0, result=None, **named):
    status = "done" if exit_status == 0 else "failed"
    return RunEnded(
        run_id=run_id, status=status, exit_status=exit_status, ended_ms=START_MS + 9_000, result=result, **named
    )


def play(*told, environ=None):
    """What an OpenTelemetry sink sends of events, each with its second."""
    spans, metrics = InMemorySpanExporter(), InMemoryMetrics()
    sink = OpenTelemetry(Exporters((spans,), (metrics,)), environ or {})
    for second, event in told:
        sink.on(event, START_MS + second * 1000)
    return {span.name: span for span in spans.get_finished_spans()}, metrics


def seconds(span):
    return (span.end_time - span.start_time) / 1e9


def test_a_run_is_a_trace_with_a_span_for_each_step():
    spans, _ = play(
        (0, started(policy="nightly", snapshot_id=3)),
        (1, InRun("compact-1", StepStarted("planning", 5, "files"))),
        (2, InRun("compact-1", StepAdvanced("planning"))),
        (3, InRun("compact-1", StepFinished("planning", "5 files"))),
        (3, InRun("compact-1", Warned("careful"))),
        (4, InRun("compact-1", CommitRetried("db.t", 1, 100, "others", is_conflict=True))),
        (5, InRun("compact-1", SnapshotCommitted("db.t", 7, "m"))),
        (6, InRun("compact-1", StepStarted("deleting"))),
        (7, InRun("compact-1", StepFinished("never begun"))),
        (9, ended(snapshot_id=7)),
    )
    assert spans.keys() == {"compact lake.db.t", "planning", "deleting"}
    run, planning = spans["compact lake.db.t"], spans["planning"]
    assert (seconds(run), seconds(planning), seconds(spans["deleting"])) == (9, 2, 3)
    assert run.start_time == START_MS * 1_000_000
    assert run.parent is None
    assert planning.parent.span_id == run.context.span_id
    assert {span.context.trace_id for span in spans.values()} == {run.context.trace_id}
    assert dict(run.attributes) == {
        "icekeep.run": "compact-1",
        "icekeep.job": "compact",
        "icekeep.table": "lake.db.t",
        "icekeep.policy": "nightly",
        "icekeep.only_tells": False,
        "icekeep.snapshot_id.before": 3,
        "icekeep.snapshot_id.after": 7,
        "icekeep.status": "done",
        "icekeep.exit_status": 0,
    }
    assert dict(planning.attributes) == {"icekeep.step.total": 5, "icekeep.step.note": "5 files"}
    assert [(event.name, dict(event.attributes)) for event in run.events] == [
        ("warning", {"message": "careful"}),
        ("commit retried", {"attempt": 1, "wait_ms": 100, "reason": "others", "is_conflict": True}),
        ("committed", {"snapshot_id": 7, "metadata_location": "m"}),
    ]
    assert run.status.status_code.name == "OK"
    assert run.resource.attributes["service.name"] == "icekeep"


def test_a_run_that_failed_says_why():
    spans, _ = play((0, started()), (9, ended(exit_status=4, error_kind="safety", error_message="refused")))
    status = spans["compact lake.db.t"].status
    assert (status.status_code.name, status.description) == ("ERROR", "refused")
    assert spans["compact lake.db.t"].attributes["error.type"] == "safety"


def test_parts_of_a_run_are_spans_below_it():
    spans, metrics = play(
        (0, started("maintain-1", table="")),
        (0, started("compact-1", parent_id="maintain-1")),
        (1, started("check-1", parent_id="maintain-1")),
        (2, InRun("check-1", StepStarted("planning"))),
        (3, ended("check-1")),
        (4, ended("compact-1")),
        (9, ended("maintain-1")),
    )
    maintain = spans["maintain"]
    assert spans["compact lake.db.t"].parent.span_id == maintain.context.span_id
    assert spans["planning"].parent.span_id == spans["check lake.db.t"].context.span_id
    assert len({span.context.trace_id for span in spans.values()}) == 1
    assert len(metrics.batches) <= 2


def test_the_span_of_a_scheduler_is_the_parent():
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    environ = {"TRACEPARENT": f"00-{trace_id}-b7ad6b7169203331-01"}
    spans, _ = play((0, started()), (9, ended()), environ=environ)
    span = spans["compact lake.db.t"]
    assert format(span.context.trace_id, "032x") == trace_id
    assert format(span.parent.span_id, "016x") == "b7ad6b7169203331"


def test_figures_are_gauges_and_dry_run_has_trace_only():
    result = RewriteDataFilesResult(rewritten_data_files_count=10, rewritten_bytes_count=1000)
    spans, metrics = play((0, started(policy="nightly")), (9, ended(result=result)))
    labels = ("lake", "db", "lake.db.t", "compact", "nightly")
    assert metrics.values("icekeep_run_rewritten_files") == {labels: 10}
    assert metrics.values("icekeep_run_status") == {(*labels, "done"): 1}
    assert [metrics.metrics[f"icekeep_run_{name}"].unit for name in ("duration_seconds", "rewritten_bytes")] == [
        "s",
        "By",
    ]
    spans, metrics = play((0, started(only_tells=True)), (9, ended()))
    assert spans["compact lake.db.t"].attributes["icekeep.only_tells"] is True
    assert metrics.batches == []


def test_more_tables_than_the_sdk_counts_are_all_told():
    told = [
        (0, event)
        for number in range(2_500)
        for event in (started(f"check-{number}", table=f"lake.db.t{number}"), ended(f"check-{number}"))
    ]
    spans, metrics = InMemorySpanExporter(), InMemoryMetrics()
    sink = OpenTelemetry(Exporters((spans,), (metrics,)), {})
    sink.on(started("maintain-1", table=""), START_MS)
    for _, event in told:
        sink.on(event, START_MS)
    sink.close()
    points = [
        point
        for batch in metrics.batches
        for one in batch.resource_metrics[0].scope_metrics[0].metrics
        if one.name == "icekeep_run_exit_status"
        for point in one.data.data_points
    ]
    assert len({point.attributes["table"] for point in points}) == 2_500


class Refusing:
    def export(self, _):
        return SpanExportResult.FAILURE

    def shutdown(self):
        pass


def test_what_cannot_be_sent_is_an_error_of_one_line():
    sink = OpenTelemetry(Exporters((Refusing(),), ()), {})
    sink.on(started(), START_MS)
    with pytest.raises(UnavailableError, match="Refusing could not send it"):
        sink.on(ended(), START_MS)


@for_each(
    ("environ", "traces", "metrics"),
    [
        ({}, (), ()),
        (ENDPOINT, ("otlp",), ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "x"}, ("otlp",), ()),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "x"}, (), ("otlp",)),
        ({**ENDPOINT, "OTEL_METRICS_EXPORTER": "none"}, ("otlp",), ()),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ("console", "otlp"), ()),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "True"}, (), ()),
        ({"OTEL_SERVICE_NAME": "x"}, (), ()),
    ],
)
def test_what_the_environment_asks_for(environ, traces, metrics):
    assert exporter_names("traces", environ) == traces
    assert exporter_names("metrics", environ) == metrics
    assert otel_is_asked_for(environ) is bool(traces or metrics)


def test_an_exporter_that_is_not_there_is_named():
    with pytest.raises(UsageError, match=r"no exporter 'otlp_proto_grpc' .*; there is console, otlp_proto_http"):
        configured_exporters({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


@pytest.mark.server
def test_spans_and_metrics_reach_a_collector_by_http(monkeypatch):
    with http_sink() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "nightly-maintenance")
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "nightly-maintenance"}
        sink = OpenTelemetry(configured_exporters(environ), environ)
        sink.on(started(), START_MS)
        sink.on(ended(), START_MS)
        sink.close()
    assert [(one.method, one.path) for one in collector.requests] == [("POST", "/v1/traces"), ("POST", "/v1/metrics")]
    assert all(b"nightly-maintenance" in one.body for one in collector.requests)


def test_the_console_is_stderr_and_each_span_a_line(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    environ = {"OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "console"}
    sink = OpenTelemetry(configured_exporters(environ), environ)
    sink.on(started(), START_MS)
    sink.on(ended(), START_MS)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [one.get("name") for one in lines] == ["compact lake.db.t", None]


def test_without_the_packages_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(UsageError, match=r"icekeep\[otel\] brings it"):
        configured_exporters(ENDPOINT)


@pytest.mark.slow
@pytest.mark.process
def test_nothing_of_it_is_imported_where_it_is_not_used():
    code = (
        "import sys, icekeep.telemetry.otel, icekeep.telemetry.prometheus;"
        "print([m for m in sys.modules if m.split('.')[0] in ('opentelemetry', 'prometheus_client', 'openlineage')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
