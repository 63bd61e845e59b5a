"""The listeners of a command: the operator, and the systems that the configuration and the environment name."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from icekeep.errors import IcekeepError
from icekeep.events import Listener, Listeners, unfailing
from icekeep.operations.arguments import Command, OutputOptions
from icekeep.operations.configuration.file import (
    METRICS,
    NotificationSettings,
    TelemetrySettings,
    notifying_jobs,
    read_config,
    resolve_references,
)
from icekeep.operations.console.logs import logged_events, logged_progress
from icekeep.operations.console.looks import JSON, TEXT
from icekeep.operations.console.output import write_at_once
from icekeep.operations.console.progress import shown_progress
from icekeep.operations.interrupts import Interrupted
from icekeep.operations.shown.notification import message_of
from icekeep.runtime import Runtime
from icekeep.secrets import masked
from icekeep.telemetry import lineage, otel
from icekeep.telemetry.guarded import Sink, guarded
from icekeep.telemetry.notifications import Notification, outcome_of_status
from icekeep.telemetry.prometheus import MetricsFile, Pushed

_NOTIFYING_MS = 15_000
"""How long sending may take when all else is done: longer than the timeouts for a mail server or a chat."""

_TALKATIVE = ("opentelemetry", "openlineage", "urllib3")
"""Libraries that log each failure to send; one warning says so already."""


def telemetry_settings(output: OutputOptions) -> TelemetrySettings:
    """What the configuration says; nothing where it cannot be read, which the command itself tells."""
    try:
        return read_config(output.conf, checks_schedules=False).telemetry
    except (IcekeepError, OSError):
        return TelemetrySettings()


def chosen_format(output: OutputOptions, settings: TelemetrySettings) -> str:
    """The format of log lines: of the command line, else of the configuration."""
    return output.log_format or settings.log_format or TEXT


@contextmanager
def listeners(command: Command, settings: TelemetrySettings, log_format: str, runtime: Runtime) -> Iterator[Listener]:
    """A listener for a command, by which the operator and all others hear; they are done when the block ends."""
    sinks = _sinks(command, settings, os.environ) if command.name in notifying_jobs() else []
    if sinks and not command.verbose:
        _quieten_libraries()
    with _operator(command, log_format, runtime) as operator:
        listener = unfailing(operator)
        if not sinks:
            yield listener
            return
        with guarded(sinks, listener, runtime) as others:
            yield Listeners(listener, *others)


def _quieten_libraries() -> None:
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def _operator(command: Command, log_format: str, runtime: Runtime) -> Iterator[Listener]:
    if command.verbose:
        yield logged_events()
    elif log_format == JSON:
        yield logged_progress(runtime)
    else:
        with shown_progress(sys.stderr, runtime) as listener:
            yield listener


def notify(
    command: Command,
    settings: TelemetrySettings,
    log_format: str,
    document: Mapping[str, Any],
    status: int,
    runtime: Runtime,
) -> None:
    """Send messages about how a command ended to those who want them; each that cannot be sent is one warning.

    Args:
        document: its outcome or error, as `--output json` prints it.
        status: its exit status.
    """
    if command.name not in notifying_jobs() or command.dry_run or command.arguments.get("lists"):
        return
    outcome = outcome_of_status(status)
    sinks: list[tuple[str, Callable[[], Sink]]] = [
        (
            f"{masked(one.key_path, one.url)} cannot be notified",
            partial(_notification, one, document, status, os.environ),
        )
        for one in settings.notifications
        if outcome in one.when and (one.jobs is None or command.name in one.jobs)
    ]
    if not sinks:
        return
    # With --verbose too: urllib3 would log addresses.
    _quieten_libraries()
    # A signal ends no more than the wait.
    with suppress(Interrupted, KeyboardInterrupt), _operator(command, log_format, runtime) as operator:
        listener = unfailing(operator)
        with guarded(sinks, listener, runtime, _NOTIFYING_MS, f"the exit status is {status} all the same"):
            pass


def _notification(
    one: NotificationSettings, document: Mapping[str, Any], status: int, environ: Mapping[str, str]
) -> Sink:
    return Notification(resolve_references(one.key_path, one.url, environ), message_of(document, status))


def _sinks(
    command: Command, settings: TelemetrySettings, environ: Mapping[str, str]
) -> list[tuple[str, Callable[[], Sink]]]:
    """What is asked for, by what a warning says where it fails; nothing of it is imported before it is made."""
    sinks: list[tuple[str, Callable[[], Sink]]] = []
    path = command.metrics_file or settings.metrics_file
    if path is not None:
        write = partial(write_at_once, what="metrics file")
        sinks.append((f"metrics cannot be written to {path!r}", partial(MetricsFile, path, write)))
    if settings.pushgateway is not None:
        address = masked(f"{METRICS}.pushgateway", settings.pushgateway)
        sinks.append((f"metrics cannot be sent to {address}", partial(_pushed, settings, environ)))
    if otel.is_asked_for(environ):
        sinks.append(
            ("OpenTelemetry cannot be told", lambda: otel.OpenTelemetry(otel.configured_exporters(environ), environ))
        )
    if lineage.is_asked_for(environ, Path.cwd()):
        sinks.append(("OpenLineage cannot be told", lambda: lineage.OpenLineage(lineage.new_client(), environ)))
    return sinks


def _pushed(settings: TelemetrySettings, environ: Mapping[str, str]) -> Sink:
    address = resolve_references(f"{METRICS}.pushgateway", settings.pushgateway or "", environ)
    return Pushed(address, settings.labels)
