"""Runs for OpenTelemetry: a trace a run with a span a step, and the figures of runs as gauges.

Configured as its users expect, by `OTEL_*` of the environment. What is sent is sent here and now, in the thread of the sink: the
SDK's own threads and its end at exit would hold a job up, and tell nobody what failed.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import msgspec

from icekeep.errors import UnavailableError, UsageError, require_package
from icekeep.events import (
    CommitRetried,
    Event,
    InRun,
    RunEnded,
    RunStarted,
    SnapshotCommitted,
    StepFinished,
    StepStarted,
    Warned,
)
from icekeep.spec.types import MINUTE_MS
from icekeep.telemetry.asked import METRICS, TRACES, exporter_names
from icekeep.telemetry.figures import Figure, Tallies, is_done_well
from icekeep.version import ICEKEEP_VERSION

_SCOPE = "icekeep"
_SEND_EVERY_MS = MINUTE_MS
_MAX_HELD = 512
_UNITS = {"seconds": "s", "bytes": "By"}
_NANOSECONDS = 1_000_000


class Exporters(msgspec.Struct, frozen=True):
    """The SDK's exporters of spans and of metrics, by which all is sent."""

    spans: tuple[Any, ...] = ()
    metrics: tuple[Any, ...] = ()


def configured_exporters(environ: Mapping[str, str]) -> Exporters:
    """The exporters that the environment asks for; each reads the rest of it itself.

    Raises:
        UsageError: a package is not installed, or there is no such exporter.
    """
    require_package("opentelemetry.sdk", "otel", "opentelemetry-sdk")
    return Exporters(*(tuple(_exporters(signal, environ)) for signal in (TRACES, METRICS)))


class OpenTelemetry:
    """The sink: a span for each run and each of its steps, and metrics of the runs that end."""

    def __init__(self, exporters: Exporters, environ: Mapping[str, str]) -> None:
        from opentelemetry.sdk.resources import Resource

        self._resource = Resource.create(
            {"service.version": ICEKEEP_VERSION}
            if environ.get("OTEL_SERVICE_NAME")
            else {"service.name": _SCOPE, "service.version": ICEKEEP_VERSION}
        )
        self._exporters = exporters
        self._spans = _Spans(self._resource, environ)
        self._tallies = Tallies(lambda _started, figures, at_ms: self._points.append((figures, at_ms)))
        self._points: list[tuple[Sequence[Figure], int]] = []
        self._sent_ms = 0

    def on(self, event: Event, at_ms: int) -> None:
        self._tallies.on(event, at_ms)
        match event:
            case RunStarted():
                self._spans.begin(event, at_ms)
            case InRun(run_id=run_id, event=inner):
                self._spans.add(run_id, inner, at_ms)
            case RunEnded():
                self._spans.end(event, at_ms)
                is_time = at_ms - self._sent_ms >= _SEND_EVERY_MS or not self._spans.are_open
                if is_time or len(self._spans.ended) >= _MAX_HELD:
                    self._sent_ms = at_ms
                    self._send()
            case _:
                pass

    def close(self) -> None:
        """Send what was held back; runs that have not ended are not told."""
        self._send()
        for exporter in (*self._exporters.spans, *self._exporters.metrics):
            exporter.shutdown()

    def _send(self) -> None:
        spans, self._spans.ended[:] = [*self._spans.ended], []
        points, self._points = self._points, []
        failed = []
        if spans:
            failed += [one for one in self._exporters.spans if one.export(spans).name != "SUCCESS"]
        if points:
            data = _metrics_data(points, self._resource)
            failed += [one for one in self._exporters.metrics if one.export(data).name != "SUCCESS"]
        if failed:
            names = ", ".join(sorted({type(one).__name__ for one in failed}))
            raise UnavailableError(f"{names} could not send it")


class _Spans:
    """The spans of runs under way, and those that have ended and are not sent yet."""

    def __init__(self, resource: Any, environ: Mapping[str, str]) -> None:
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.ended: list[Any] = []
        held = self.ended

        class Holding(SpanProcessor):
            def on_end(self, span: Any) -> None:
                if span.context.trace_flags.sampled:
                    held.append(span)

        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(Holding())
        self._tracer = provider.get_tracer(_SCOPE, ICEKEEP_VERSION)
        carrier = {key.lower(): environ[key] for key in ("TRACEPARENT", "TRACESTATE") if environ.get(key)}
        # A scheduler that traces its tasks says by these variables which span this process is a part of.
        self._outside = TraceContextTextMapPropagator().extract(carrier)
        self._runs: dict[str, Any] = {}
        self._steps: dict[tuple[str, str], Any] = {}

    @property
    def are_open(self) -> bool:
        """Whether a run is under way."""
        return bool(self._runs)

    def begin(self, started: RunStarted, at_ms: int) -> None:
        """A run began."""
        from opentelemetry.trace import set_span_in_context

        parent = self._runs.get(started.parent_id or "")
        self._runs[started.run_id] = self._tracer.start_span(
            f"{started.job} {started.table}".rstrip(),
            context=self._outside if parent is None else set_span_in_context(parent),
            start_time=at_ms * _NANOSECONDS,
            attributes=_known(
                {
                    "icekeep.run": started.run_id,
                    "icekeep.job": started.job,
                    "icekeep.table": started.table,
                    "icekeep.policy": started.policy,
                    "icekeep.only_tells": started.only_tells,
                    "icekeep.snapshot_id.before": started.snapshot_id,
                }
            ),
        )

    def add(self, run_id: str, event: Event, at_ms: int) -> None:
        """Something happened in a run."""
        from opentelemetry.trace import set_span_in_context

        run = self._runs.get(run_id)
        if run is None:
            return
        moment = at_ms * _NANOSECONDS
        match event:
            case StepStarted(step=step, total=total):
                self._steps[run_id, step] = self._tracer.start_span(
                    step,
                    context=set_span_in_context(run),
                    start_time=moment,
                    attributes=_known({"icekeep.step.total": total}),
                )
            case StepFinished(step=step, note=note):
                span = self._steps.pop((run_id, step), None)
                if span is not None:
                    span.set_attributes(_known({"icekeep.step.note": note}))
                    span.end(moment)
            case Warned(message=message):
                run.add_event("warning", {"message": message}, moment)
            case CommitRetried(attempt=attempt, wait_ms=wait_ms, reason=reason, is_conflict=is_conflict):
                attributes = {"attempt": attempt, "wait_ms": wait_ms, "reason": reason, "is_conflict": is_conflict}
                run.add_event("commit retried", attributes, moment)
            case SnapshotCommitted(snapshot_id=snapshot_id, metadata_location=location):
                attributes = _known({"snapshot_id": snapshot_id, "metadata_location": location})
                run.add_event("committed", attributes, moment)
            case _:
                pass

    def end(self, ended: RunEnded, at_ms: int) -> None:
        """A run ended, and its steps with it."""
        from opentelemetry.trace import Status, StatusCode

        moment = at_ms * _NANOSECONDS
        for key in [key for key in self._steps if key[0] == ended.run_id]:
            self._steps.pop(key).end(moment)
        run = self._runs.pop(ended.run_id, None)
        if run is None:
            return
        told = {
            "icekeep.status": ended.status,
            "icekeep.exit_status": ended.exit_status,
            "icekeep.snapshot_id.after": ended.snapshot_id,
            "error.type": ended.error_kind,
        }
        run.set_attributes(_known(told))
        is_good = is_done_well(ended.exit_status)
        run.set_status(Status(StatusCode.OK) if is_good else Status(StatusCode.ERROR, ended.error_message))
        run.end(moment)


def _exporters(signal: str, environ: Mapping[str, str]) -> list[Any]:
    found = {one.name: one for one in entry_points(group=f"opentelemetry_{signal}_exporter")}
    made = []
    for name in exporter_names(signal, environ):
        full = f"otlp_proto_{_protocol(signal, environ)}" if name == "otlp" else name
        if full not in found:
            known = ", ".join(sorted(found))
            raise UsageError(f"there is no exporter {full!r} of OpenTelemetry's {signal} here; there is {known}")
        # The console's exporters write to stdout unless they are told otherwise, and in several lines.
        options: dict[str, Any] = {"out": sys.stderr, "formatter": _one_line} if name == "console" else {}
        made.append(found[full].load()(**options))
    return made


def _protocol(signal: str, environ: Mapping[str, str]) -> str:
    """`http` or `grpc`; icekeep brings the exporter of the first."""
    names = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    return next((environ[name].strip() for name in names if environ.get(name, "").strip()), "http").partition("/")[0]


def _one_line(told: Any) -> str:
    return str(told.to_json(indent=None)) + "\n"


def _known(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if value is not None and value != ""}


def _metrics_data(runs: Sequence[tuple[Sequence[Figure], int]], resource: Any) -> Any:
    """Figures as the SDK has them, a metric once; its own meters keep two thousand tables at most."""
    from opentelemetry.sdk.metrics.export import (
        Gauge,
        Metric,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
    )
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    points: dict[Any, list[Any]] = {}
    for figures, at_ms in runs:
        for figure in figures:
            labels = dict(zip(figure.metric.labels, figure.labels, strict=True))
            moment = at_ms * _NANOSECONDS
            points.setdefault(figure.metric, []).append(NumberDataPoint(labels, moment, moment, figure.value))
    metrics = [
        Metric(one.name, one.help, _UNITS.get(one.unit, one.unit), Gauge(found)) for one, found in points.items()
    ]
    scope = ScopeMetrics(InstrumentationScope(_SCOPE, ICEKEEP_VERSION), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])
