"""Progress on a terminal: a bar for each step that is under way, and lines above them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from icekeep.events import (
    Event,
    Listener,
    Noted,
    RunEnded,
    RunStarted,
    StepAdvanced,
    StepFinished,
    StepStarted,
    StepUnderWay,
)
from icekeep.operations.console.progress import (
    ByRun,
    about_run,
    amount_done,
    describe,
    describe_part,
    part_of_many,
    plain_progress,
    time_left_ms,
)
from icekeep.operations.console.streams import LossyStream
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.times import about_span

_WIDE = 100
"""Terminals narrower than that have shorter bars."""


@contextmanager
def shown_progress(stream: TextIO, runtime: Runtime = SYSTEM) -> Iterator[Listener]:
    """A listener that shows progress on `stream` while the block lasts."""
    console = Console(file=cast("TextIO", LossyStream(stream)), highlight=False)
    if not console.is_terminal:
        yield plain_progress(stream, runtime)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=40 if console.width >= _WIDE else 10),
        _Done(table_column=Column(no_wrap=True, justify="right")),
        _Left(table_column=Column(no_wrap=True, justify="right")),
    )
    # stdout may be a pipe that takes the result, so only stderr is redirected through the display.
    with Progress(*columns, console=console, redirect_stdout=False, transient=True) as display:
        yield ByRun(lambda started: TerminalProgress(display, part_of_many(started)))


class _Done(ProgressColumn):
    """How much of a step is done."""

    def render(self, task: Task) -> Text:
        done, unit = int(task.completed), task.fields["unit"]
        return Text("" if task.total is None and not done else amount_done(done, task.total and int(task.total), unit))


class _Left(ProgressColumn):
    """How long a step will still take, or has taken so far where that is not known."""

    def render(self, task: Task) -> Text:
        elapsed_ms = int((task.elapsed or 0) * 1000)
        left_ms = time_left_ms(int(task.completed), task.total and int(task.total), elapsed_ms)
        return Text(
            f"{elapsed_ms // 60_000}:{elapsed_ms // 1000 % 60:02}" if left_ms is None else f"{about_span(left_ms)} left"
        )


class TerminalProgress:
    """A bar for each step that is under way; other events are lines above the bars.

    Args:
        part: the run that it is of, if that is one of many: no more lines are said of it than `PartProgress` says.
    """

    def __init__(self, display: Progress, part: RunStarted | None = None) -> None:
        self._display, self._about, self._part = display, about_run(part), part
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskID] = {}
        """In the order in which they began."""
        self._done: dict[str, int] = {}

    def on(self, event: Event) -> None:
        with self._lock:
            match event:
                case StepStarted(step=step, total=total, unit=unit):
                    self._tasks[step] = self._display.add_task(self._about + step, total=total, unit=unit)
                    self._done[step] = 0
                    self._show_bars()
                case StepAdvanced(step=step, done=done, total=total) if step in self._tasks:
                    self._done[step] += done
                    self._show_done(step, self._done[step], total)
                case StepUnderWay(step=step, done=done) if step in self._tasks:
                    self._show_done(step, done, None)
                case StepFinished(step=step) if step in self._tasks:
                    self._display.remove_task(self._tasks.pop(step))
                    self._show_bars()
                    self._say(event)
                case RunEnded():
                    self._end_bars()
                    self._say(event)
                case Noted():
                    # It goes on for hours from here, and a line cannot be marked while bars are drawn ten times a second.
                    self._display.stop()
                    self._say(event)
                case _:
                    self._say(event)

    def _show_done(self, step: str, done: int, total: int | None) -> None:
        task = self._tasks[step]
        # What is finished may be less than what was under way.
        shown = next(int(one.completed) for one in self._display.tasks if one.id == task)
        self._display.update(task, completed=max(done, shown), total=total)

    def _show_bars(self) -> None:
        """A part of a run has one line: of the step that began last."""
        if self._part is not None:
            for number, task in enumerate(reversed(self._tasks.values())):
                self._display.update(task, visible=number == 0)

    def _end_bars(self) -> None:
        for task in self._tasks.values():
            self._display.remove_task(task)
        self._tasks.clear()

    def _say(self, event: Event) -> None:
        line = describe(event) if self._part is None else describe_part(event, self._part)
        if line is not None:
            self._display.console.print(Text(self._about + line), soft_wrap=True)
