"""Log lines on stderr, so that stdout holds the result and nothing else: as text for people, or each as one JSON object.

With `json` all that this process says on stderr is a line of that form: progress, warnings, errors and what other libraries log.
Who uses icekeep as a library gets the same by the logger `icekeep`: its records have `run`, `table`, `job` and `step` where these
are known (`logging`'s `extra`).
"""

import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from datetime import UTC, datetime
from typing import Any, TextIO

from icekeep.errors import one_line
from icekeep.events import (
    CommitRetried,
    Event,
    Listener,
    RunEnded,
    RunStarted,
    SnapshotCommitted,
    StepAdvanced,
    StepFinished,
    StepStarted,
    StepUnderWay,
    Warned,
)
from icekeep.operations.console.looks import JSON, TEXT
from icekeep.operations.console.progress import ByRun, PlainProgress, about_run, describe
from icekeep.operations.console.streams import LossyStream, lines_of_stderr
from icekeep.operations.console.values import plain_values
from icekeep.operations.runbooks import ending_of
from icekeep.runtime import SYSTEM, Runtime
from icekeep.secrets import without_secrets

CONTEXT = ("run", "table", "job", "step")
"""What a record may have beside what `logging` gives it."""

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_NO_RUN: Mapping[str, Any] = dict.fromkeys(CONTEXT)


class _Utc(logging.Formatter):
    """Times in ISO 8601, UTC, to the millisecond; no secrets in tracebacks, nor in what other libraries log."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(_cleaned(record))

    def formatException(self, ei: Any) -> str:
        return without_secrets(super().formatException(ei))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03}Z"


class JsonLines(_Utc):
    """A record as a JSON object on one line, always with time, level, run, table, job, step, message and logger."""

    def format(self, record: logging.LogRecord) -> str:
        record = _cleaned(record)
        line: dict[str, Any] = {"time": self.formatTime(record), "level": record.levelname.lower()}
        line |= {name: getattr(record, name, None) or _HANDLER.context[name] for name in CONTEXT}
        line |= {"message": record.getMessage(), "logger": record.name}
        facts = getattr(record, "facts", None)
        if facts:
            line["facts"] = plain_values(facts)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _StderrHandler(logging.Handler):
    """Looks stderr up for each line: a progress display replaces it while it is on the screen.

    Attributes:
        context: of records that say nothing of a run: that of the run that this process is for.
        stream: where lines go in place of stderr.
    """

    context = _NO_RUN
    stream: TextIO | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.write(self._line(record))

    def write(self, line: str) -> None:
        """Write a line, or drop it: `logging`'s own way, a traceback on stderr, would wait for the thread that reads stderr."""
        stream = LossyStream(self.stream or sys.stderr)
        stream.write(line + "\n")
        stream.flush()

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record)
        except Exception as failure:  # noqa: BLE001 - a log line that cannot be formatted must not end a job
            plain = logging.LogRecord(record.name, record.levelno, record.pathname, record.lineno, "%s", None, None)
            plain.args = (f"{record.msg} (its values do not fit: {one_line(failure)})",)
            return self.format(plain)


_HANDLER = _StderrHandler()
_ICEKEEP = logging.getLogger("icekeep")
_EVENTS = logging.getLogger("icekeep.events")
_JVM, _OTHERS = logging.getLogger("jvm"), logging.getLogger("stderr")
_OF_LOG4J = re.compile(r"[0-9][0-9/TZ:.-]+(?: [0-9:,.]+)? (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) ([\w.$]+): (.*)")
_OF_JVM = re.compile(r"(WARNING|ERROR): (.*)")
_LEVELS = {"TRACE": 10, "DEBUG": 10, "INFO": 20, "WARN": 30, "WARNING": 30, "ERROR": 40, "FATAL": 50}


def configure_logs(*, verbose: bool, log_format: str = TEXT) -> None:
    """Send the logs of icekeep and of Python's warnings to stderr, once; from warnings up, or all with `verbose`.

    As JSON, those of all other libraries go there too, and what threads die of.
    """
    is_json = log_format == JSON
    _HANDLER.setFormatter(JsonLines() if is_json else _Utc(_FORMAT))
    _HANDLER.context = _NO_RUN
    _attach("icekeep", logging.DEBUG if verbose else logging.WARNING)
    # Progress is told by lines of this logger where it is told by lines of a log at all.
    _EVENTS.setLevel(logging.INFO if is_json and not verbose else logging.NOTSET)
    # Warnings that libraries give to programmers help no operator.
    _attach("py.warnings", logging.WARNING if verbose else logging.ERROR)
    # The client of Hive's metastores logs each address that does not answer, and raises it too.
    _attach("thrift", logging.INFO if verbose else logging.CRITICAL)
    logging.captureWarnings(True)
    if is_json:
        logging.getLogger().addHandler(_HANDLER)
        threading.excepthook = _log_thread_failure
    else:
        logging.getLogger().removeHandler(_HANDLER)
        if threading.excepthook is _log_thread_failure:
            threading.excepthook = threading.__excepthook__


@contextmanager
def only_log_lines() -> Iterator[None]:
    """Make lines of the log of all that is written to stderr while the block lasts, by Java and by whatever else.

    What is one JSON object already stays as it is.
    """
    for logger in (_JVM, _OTHERS):
        logger.setLevel(logging.DEBUG)
    try:
        with lines_of_stderr(_log_foreign) as stream:
            _HANDLER.stream = stream
            yield
    finally:
        _HANDLER.stream = None


def _log_foreign(line: str) -> None:
    """A line that somebody else wrote, as one of the log; log4j's say how they are meant."""
    if line.startswith("{") and line.endswith("}"):
        _HANDLER.write(line)
    elif match := _OF_LOG4J.fullmatch(line):
        _JVM.log(_LEVELS[match[1]], "%s", f"{match[2]}: {match[3]}")
    elif match := _OF_JVM.fullmatch(line):
        _JVM.log(_LEVELS[match[1]], "%s", match[2])
    elif line.strip():
        _OTHERS.info("%s", line)


def say_error(message: str, facts: Mapping[str, Any]) -> None:
    """The one line of what failed; for people it ends with where to read on.

    Args:
        facts: about it, for machines; `kind` is always there.
    """
    if _is_json():
        _ICEKEEP.error("%s", message, extra={"facts": facts})
    else:
        LossyStream(sys.stderr).write(f"icekeep: {message}{ending_of(facts['kind'])}\n")


def say_traceback(failure: BaseException) -> None:
    if _is_json():
        _ICEKEEP.debug("%s", "traceback", exc_info=failure)
    else:
        LossyStream(sys.stderr).write(without_secrets("".join(traceback.format_exception(failure))))


def _is_json() -> bool:
    return isinstance(_HANDLER.formatter, JsonLines)


def logged_progress(runtime: Runtime = SYSTEM) -> Listener:
    """A listener for which progress is log lines: as many as a run alone has of them outside a terminal."""
    return ByRun(lambda started: _LoggedProgress(started, runtime))


def logged_events() -> Listener:
    """A listener for which each event is a log line, with its time; with `--verbose` it stands in place of progress."""
    return ByRun(LoggedEvents)


class LoggedEvents:
    """Each event as a log line; all are of the run `started`, if of one."""

    def __init__(self, started: RunStarted | None = None) -> None:
        self._about, self._context = about_run(started), dict[str, Any]()
        if started is not None:
            self._context = {"run": started.run_id, "table": started.table or None, "job": started.job}

    def on(self, event: Event) -> None:
        self._log(_level(event), _said(event), event)

    def _log(self, level: int, message: str, event: Event) -> None:
        if isinstance(event, RunStarted) and event.parent_id is None:
            _HANDLER.context = {**_NO_RUN, **self._context}
        # Of the lines of a run over many tables people must be told, and machines are, which job on which table each is of.
        if self._about and not _is_json() and not isinstance(event, RunStarted | RunEnded):
            # What a line begins with names the table.
            message = self._about + message.removeprefix(f"{getattr(event, 'table', '')}: ")
        step = (
            {"step": event.step} if isinstance(event, StepStarted | StepAdvanced | StepUnderWay | StepFinished) else {}
        )
        _EVENTS.log(level, "%s", message, extra={**self._context, **step, "facts": _facts(event)})


class _LoggedProgress(LoggedEvents):
    """Lines of progress of one run, as a log."""

    def __init__(self, started: RunStarted | None, runtime: Runtime) -> None:
        super().__init__(started)
        self._progress = PlainProgress(sys.stderr, runtime, say=self._tell)

    def on(self, event: Event) -> None:
        if isinstance(event, RunStarted | RunEnded):
            super().on(event)
        else:
            self._progress.on(event)

    def _tell(self, line: str, event: Event) -> None:
        level = max(logging.INFO, _level(event))
        self._log(level, event.message if isinstance(event, Warned) else line, event)


def _level(event: Event) -> int:
    match event:
        case StepAdvanced() | StepUnderWay():
            return logging.DEBUG
        case Warned():
            return logging.WARNING
        case _:
            return logging.INFO


def _said(event: Event) -> str:
    match event:
        case StepAdvanced(step=step, done=done):
            return f"{step}: {done} more"
        case StepUnderWay(step=step, done=done):
            return f"{step}: about {done}"
        case StepStarted(step=step, total=total, unit=unit):
            return f"{step}: started" + ("" if total is None else f", {total} {unit}".rstrip())
        case StepFinished(step=step, note=note):
            return f"{step}: done{f', {note}' if note else ''}"
        case Warned(message=message):
            return message
        case RunStarted(run_id=run_id, job=job, table=table):
            return f"{f'{job} {table}'.rstrip()}: run {run_id}"
        case RunEnded(run_id=run_id, status=status):
            return f"run {run_id}: {status}"
        case _:
            return describe(event) or str(event)


def _facts(event: Event) -> dict[str, Any]:
    """What machines want to know of an event beside its line."""
    match event:
        case StepStarted(total=total, unit=unit) if total is not None:
            return {"total": total, "unit": unit}
        case CommitRetried(attempt=attempt, wait_ms=wait_ms, is_conflict=is_conflict):
            return {"attempt": attempt, "wait_ms": wait_ms, "is_conflict": is_conflict}
        case SnapshotCommitted(snapshot_id=snapshot_id, metadata_location=metadata_location):
            return {"snapshot_id": snapshot_id, "metadata_location": metadata_location}
        case RunStarted(policy=policy, parent_id=parent_id, only_tells=only_tells):
            return {"policy": policy, "parent_run": parent_id, "only_tells": only_tells}
        case RunEnded(status=status, exit_status=exit_status, error_kind=kind, error_message=message):
            return {"status": status, "exit_status": exit_status, "error_kind": kind, "error_message": message}
        case _:
            return {}


def _cleaned(record: logging.LogRecord) -> logging.LogRecord:
    """A record of another library as a copy without secrets; those of icekeep stay as they are, with the names of users."""
    if record.name.partition(".")[0] == _ICEKEEP.name:
        return record
    cleaned = copy(record)
    cleaned.msg, cleaned.args = without_secrets(record.getMessage()), None
    return cleaned


def _attach(name: str, level: int) -> None:
    """Attaching the same handler again changes nothing."""
    logger = logging.getLogger(name)
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(_HANDLER)


def _log_thread_failure(failure: threading.ExceptHookArgs) -> None:
    name = failure.thread.name if failure.thread is not None else "?"
    if failure.exc_value is not None:
        _ICEKEEP.error("thread %s failed", name, exc_info=failure.exc_value)
