"""How a job gets on, told to the operator on stderr in plain lines; on a terminal there are bars (`bars.py`).

Plain lines have no carriage returns and come every few seconds at most, so that a scheduler's log stays readable.
"""

import threading
from collections.abc import Callable
from typing import TextIO

from icekeep.events import (
    BYTES,
    CommitRetried,
    Event,
    InRun,
    Listener,
    Noted,
    RunEnded,
    RunStarted,
    SnapshotCommitted,
    StepAdvanced,
    StepFinished,
    StepStarted,
    StepUnderWay,
    Warned,
)
from icekeep.operations.console.streams import LossyStream
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.times import about_span
from icekeep.spec.types import format_bytes
from icekeep.spelling import counted

_INTERVAL_MS = 5_000
_SURE_MS = 2_000
"""What has run for less time says nothing of the time that is left."""


def amount_done(done: int, total: float | None, unit: str) -> str:
    """How much is done, of how much if that is known.

    >>> amount_done(400, 1095, "files"), amount_done(7, None, ""), amount_done(12_900_000, 104_857_600, "bytes")
    ('400 of 1,095 files', '7', '12.3 of 100.0 MiB')
    """
    if unit != BYTES:
        return (f"{done:,} of {counted(int(total), unit)}" if total is not None else counted(done, unit)).rstrip()
    if total is None:
        return format_bytes(done)
    (number, done_unit), (whole, total_unit) = format_bytes(done).split(), format_bytes(int(total)).split()
    return f"{number}{'' if done_unit == total_unit else f' {done_unit}'} of {whole} {total_unit}"


def time_left_ms(done: int, total: float | None, elapsed_ms: int) -> int | None:
    """What the rest takes if it goes on as it did; `None` where that says nothing yet.

    >>> time_left_ms(25, 100, 10_000), time_left_ms(25, 100, 500), time_left_ms(0, 100, 10_000), time_left_ms(9, None, 10_000)
    (30000, None, None, None)
    """
    if total is None or not 0 < done < total or elapsed_ms < _SURE_MS:
        return None
    return int(elapsed_ms * (total - done) / done)


def plain_progress(stream: TextIO, runtime: Runtime) -> Listener:
    """A listener that writes lines."""

    def of_run(started: RunStarted | None) -> Listener:
        part = part_of_many(started)
        return PlainProgress(stream, runtime) if part is None else PartProgress(stream, part)

    return ByRun(of_run)


class ByRun:
    """Listens to several runs at once, by a listener for each: what has the same name in two of them is not the same.

    Args:
        make: makes the listener of a run that begins, and of `None`: of what is of no run that is known.
    """

    def __init__(self, make: Callable[[RunStarted | None], Listener]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._of_none = make(None)
        self._listeners: dict[str, Listener] = {}

    def on(self, event: Event) -> None:
        if not isinstance(event, InRun | RunStarted | RunEnded):
            self._of_none.on(event)
            return
        with self._lock:
            if isinstance(event, RunStarted):
                self._listeners[event.run_id] = self._make(event)
            listener = self._listeners.get(event.run_id, self._of_none)
            if isinstance(event, RunEnded):
                self._listeners.pop(event.run_id, None)
        listener.on(event.event if isinstance(event, InRun) else event)


def part_of_many(started: RunStarted | None) -> RunStarted | None:
    return started if started is not None and (started.is_one_of_many or started.parent_id is not None) else None


def about_run(started: RunStarted | None) -> str:
    """What the lines of a run begin with: nothing, but for one whose process runs jobs on many tables."""
    part = part_of_many(started)
    return "" if part is None else f"{part.job} {part.table}: "


class PlainProgress:
    """One line when a step starts, when it advances (not more often than every `interval_ms`), and when it is over.

    Args:
        say: takes a line and the event that it is about, in place of the stream.
    """

    def __init__(
        self,
        stream: TextIO,
        runtime: Runtime = SYSTEM,
        interval_ms: int = _INTERVAL_MS,
        *,
        say: Callable[[str, Event], None] | None = None,
    ) -> None:
        self._stream = LossyStream(stream)
        self._runtime = runtime
        self._say = say or self._write
        self._interval_ms = interval_ms
        self._lock = threading.Lock()
        self._totals: dict[str, tuple[int | None, str]] = {}
        self._done: dict[str, int] = {}
        self._shown: dict[str, int] = {}
        self._began_ms: dict[str, int] = {}
        self._told_ms: dict[str, int] = {}

    def on(self, event: Event) -> None:
        with self._lock:
            line = self._line(event)
            if line is not None:
                self._say(line, event)

    def _line(self, event: Event) -> str | None:
        match event:
            case StepStarted(step=step, total=total, unit=unit):
                return self._started(step, total, unit)
            case StepAdvanced(step=step, done=done, total=total):
                self._done[step] = self._done.get(step, 0) + done
                return self._advanced(step, self._done[step], total)
            case StepUnderWay(step=step, done=done):
                return self._advanced(step, max(done, self._done.get(step, 0)), None)
            case StepFinished(step=step, note=note):
                began_ms = self._began_ms.pop(step, self._runtime.monotonic_ms())
                seconds = (self._runtime.monotonic_ms() - began_ms) / 1000
                return f"{step}: done in {seconds:.1f} s{', ' + note if note else ''}"
            case _:
                return describe(event)

    def _started(self, step: str, total: int | None, unit: str) -> str:
        now_ms = self._runtime.monotonic_ms()
        self._totals[step] = total, unit
        self._done[step] = self._shown[step] = 0
        self._began_ms[step] = self._told_ms[step] = now_ms
        size = "" if total is None else format_bytes(total) if unit == BYTES else counted(total, unit)
        return f"{step}: started" + (f", {size}".rstrip() if size else "")

    def _advanced(self, step: str, done: int, new_total: int | None) -> str | None:
        now_ms = self._runtime.monotonic_ms()
        total, unit = self._totals.get(step, (None, ""))
        if new_total is not None:
            total = new_total
            self._totals[step] = total, unit
        # What is finished may be less than what was under way.
        done = self._shown[step] = max(done, self._shown.get(step, 0))
        if now_ms - self._told_ms.get(step, now_ms - self._interval_ms) < self._interval_ms:
            return None
        self._told_ms[step] = now_ms
        elapsed_ms = now_ms - self._began_ms.get(step, now_ms)
        left_ms = time_left_ms(done, total, elapsed_ms)
        rate = f", {format_bytes(done * 1000 // elapsed_ms)}/s" if unit == BYTES and elapsed_ms else ""
        left = "" if left_ms is None else f", about {about_span(left_ms)} left"
        return f"{step}: {amount_done(done, total, unit)}{rate}{left}"

    def _write(self, line: str, _event: Event) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()


class PartProgress:
    """Of a run that is one of many: its warnings, and one line when it is over."""

    def __init__(self, stream: TextIO, part: RunStarted) -> None:
        self._stream, self._part = LossyStream(stream), part

    def on(self, event: Event) -> None:
        line = describe_part(event, self._part)
        if line is not None:
            self._stream.write(f"{about_run(self._part)}{line}\n")
            self._stream.flush()


def describe(event: Event) -> str | None:
    """One line for an event, but for what is under way; `None` if there is nothing to say."""
    match event:
        case StepFinished(step=step, note=note):
            return f"{step}: done{', ' + note if note else ''}"
        case Warned(message=message):
            return f"warning: {message}"
        case Noted(message=message):
            return message
        case CommitRetried(table=table, attempt=attempt, wait_ms=wait_ms, reason=reason):
            return f"{table}: attempt {attempt} to commit did not land ({reason}); again in {wait_ms / 1000:.1f} s"
        case SnapshotCommitted(table=table, snapshot_id=None):
            return f"{table}: committed"
        case SnapshotCommitted(table=table, snapshot_id=snapshot_id):
            return f"{table}: committed snapshot {snapshot_id}"
        case _:
            return None


def describe_part(event: Event, part: RunStarted) -> str | None:
    """The same for one of many runs, of which people read how each ended, and what it warned of."""
    match event:
        case Warned():
            return describe(event)
        case RunEnded(status=status, error_message=error, ended_ms=ended_ms):
            seconds = (ended_ms - part.started_ms) / 1000
            return f"{status} in {seconds:.1f} s{'' if error is None else f': {error}'}"
        case _:
            return None
