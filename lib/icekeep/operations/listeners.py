"""The listeners of a command: the operator, and the systems that the configuration and the environment name."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

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
from icekeep.operations.console.progress import plain_progress
from icekeep.operations.interrupts import Interrupted
from icekeep.runtime import Runtime
from icekeep.secrets import masked
from icekeep.telemetry.asked import lineage_is_asked_for, otel_is_asked_for

if TYPE_CHECKING:
    from icekeep.telemetry.guarded import Sink

Sinks = list[tuple[str, Callable[[], "Sink"]]]
"""What hears of runs, by what a warning says where it fails; nothing of it is imported before it is made."""

_NOTIFYING_MS = 15_000
"""How long sending may take when all else is done: longer than the timeouts for a mail server or a chat."""

_TERMINAL_VARIABLES = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""By which Rich takes a stream for a terminal that is none."""

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
    if settings.notifications:
        # What `notify` needs is loaded before the work: after a commit nothing may fail for want of a module.
        import icekeep.operations.shown.notification
        import icekeep.telemetry.guarded
        import icekeep.telemetry.notifications  # noqa: F401
    if sinks and not command.verbose:
        _quieten_libraries()
    with _operator(command, log_format, runtime) as operator:
        listener = unfailing(operator)
        if not sinks:
            yield listener
            return
        from icekeep.telemetry.guarded import guarded

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
    elif _may_be_terminal(sys.stderr):
        from icekeep.operations.console.bars import shown_progress

        with shown_progress(sys.stderr, runtime) as listener:
            yield listener
    else:
        yield plain_progress(sys.stderr, runtime)


def _may_be_terminal(stream: TextIO) -> bool:
    """Whether Rich, which takes a while to import, can take a stream for a terminal."""
    with suppress(AttributeError, ValueError):
        if stream.isatty():
            return True
    return any(map(os.environ.get, _TERMINAL_VARIABLES))


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
    if not settings.notifications or command.name not in notifying_jobs():
        return
    if command.dry_run or command.arguments.get("lists"):
        return
    from icekeep.telemetry.guarded import guarded
    from icekeep.telemetry.notifications import outcome_of_status

    outcome = outcome_of_status(status)
    sinks: Sinks = [
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
) -> "Sink":
    from icekeep.operations.shown.notification import message_of
    from icekeep.telemetry.notifications import Notification

    return Notification(resolve_references(one.key_path, one.url, environ), message_of(document, status))


def _sinks(command: Command, settings: TelemetrySettings, environ: Mapping[str, str]) -> Sinks:
    """What is asked for."""
    sinks: Sinks = []
    path = command.metrics_file or settings.metrics_file
    if path is not None:
        sinks.append((f"metrics cannot be written to {path!r}", partial(_metrics_file, path)))
    if settings.pushgateway is not None:
        address = masked(f"{METRICS}.pushgateway", settings.pushgateway)
        sinks.append((f"metrics cannot be sent to {address}", partial(_pushed, settings, environ)))
    if otel_is_asked_for(environ):
        sinks.append(("OpenTelemetry cannot be told", partial(_otel, environ)))
    if lineage_is_asked_for(environ, Path.cwd()):
        sinks.append(("OpenLineage cannot be told", partial(_lineage, environ)))
    return sinks


def _metrics_file(path: str) -> "Sink":
    from icekeep.telemetry.prometheus import MetricsFile

    return MetricsFile(path, partial(write_at_once, what="metrics file"))


def _otel(environ: Mapping[str, str]) -> "Sink":
    from icekeep.telemetry.otel import OpenTelemetry, configured_exporters

    return OpenTelemetry(configured_exporters(environ), environ)


def _lineage(environ: Mapping[str, str]) -> "Sink":
    from icekeep.telemetry.lineage import OpenLineage, new_client

    return OpenLineage(new_client(), environ)


def _pushed(settings: TelemetrySettings, environ: Mapping[str, str]) -> "Sink":
    from icekeep.telemetry.prometheus import Pushed

    address = resolve_references(f"{METRICS}.pushgateway", settings.pushgateway or "", environ)
    return Pushed(address, settings.labels)
