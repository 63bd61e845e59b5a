"""Progress, results and plans in notebooks, where functions are called in place of commands."""

import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from typing import Any, TextIO

from icekeep.errors import printable
from icekeep.events import Event, InRun, Listener, StepAdvanced, StepStarted, StepUnderWay
from icekeep.operations.console.progress import PlainProgress
from icekeep.operations.console.values import MAX_ROWS, columns_of, format_value, plain_values, shown_name, split_values
from icekeep.operations.jobs import resolve
from icekeep.runtime import SYSTEM, Runtime

_INTERVAL_MS = 200
"""How often a line in a notebook changes: each change goes to the browser."""

_KEPT_LINES = 20

Show = Callable[[str], None]
"""Puts a text in the place of the one before."""


def progress(stream: TextIO | None = None, *, runtime: Runtime | None = None) -> Listener:
    """A listener that shows the progress of a job, for the functions that take a `listener`.

    In a notebook the cell has one line for what is under way, which changes, and below each other what is done, commits and
    warnings. Elsewhere they are lines on stderr, of what is under way one every five seconds.

        compact(table, listener=progress())

    Args:
        stream: where lines go, also in a notebook; by default stderr, or the notebook's cell.
        runtime: whose clock is gone by; the system's if `None`.
    """
    runtime = runtime or SYSTEM
    show = None if stream is not None else _notebook_cell()
    if show is None:
        return PlainProgress(sys.stderr if stream is None else stream, runtime)
    return NotebookProgress(show, runtime)


class NotebookProgress:
    """Tells events as a text that is shown again and again: the newest lines that stay, and what is under way.

    Args:
        show: is called with the whole text.
    """

    def __init__(self, show: Show, runtime: Runtime = SYSTEM) -> None:
        self._show, self._lock = show, threading.Lock()
        self._kept: list[str] = []
        self._under_way: dict[str, str] = {}
        self._lines = PlainProgress(sys.stderr, runtime, _INTERVAL_MS, say=self._say)

    def on(self, event: Event) -> None:
        self._lines.on(event.event if isinstance(event, InRun) else event)

    def _say(self, line: str, event: Event) -> None:
        step = getattr(event, "step", None)
        with self._lock:
            if isinstance(event, StepStarted | StepAdvanced | StepUnderWay):
                self._under_way[event.step] = line
            else:
                self._under_way.pop(step or "", None)
                self._kept = [*self._kept, line][-_KEPT_LINES:]
            text = "\n".join([*self._kept, *self._under_way.values()])
        self._show(text)


def _notebook_cell() -> Show | None:
    """What shows a text in the cell that runs; `None` where this is no notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    # IPython in a terminal has no kernel, and cannot change what it has shown.
    if getattr(shell, "kernel", None) is None:
        return None
    display: Any = sys.modules["IPython"].display
    handle: list[Any] = []

    def show(text: str) -> None:
        bundle = {"text/plain": text, "text/html": f"<pre>{escape(text)}</pre>"}
        if handle:
            handle[0].update(bundle, raw=True)
        else:
            handle.append(display.display(bundle, raw=True, display_id=True))

    return show


_LINES_SHOWN = 15
"""More lines and rows than these are folded away until somebody clicks."""

FOR_PEOPLE: Mapping[str, str] = {
    "ApplyResult": "icekeep.operations.commands.applying:applied_shown",
    "CheckResult": "icekeep.operations.shown.results:check_shown",
    "CommitHistoryResult": "icekeep.operations.shown.results:history_shown",
    "MaintainResult": "icekeep.operations.shown.results:maintain_shown",
    "PolicyExplanation": "icekeep.operations.commands.policy:explanation_shown",
    "RepairPlan": "icekeep.operations.shown.results:repair_shown",
    "RepairResult": "icekeep.operations.shown.results:repair_shown",
    "ReportResult": "icekeep.reports.values:report_shown",
    "TableHealth": "icekeep.reports.values:health_shown",
}
"""Where the function is that makes what people see of a value, by the value's class; all others are shown as they are."""


PICTURES: Mapping[str, str] = {"FileLayout": "icekeep.reports.layout_picture:one_picture"}
"""The same of values that are better looked at."""


def html_of(value: Any) -> str:
    name = type(value).__name__
    if name in PICTURES:
        picture: str = resolve(PICTURES[name])(value)._repr_html_()
        return f"<div><b>{_visible(name)}</b><br>{picture}</div>"
    shows: Callable[[Any], Mapping[str, Any]] = resolve(FOR_PEOPLE[name]) if name in FOR_PEOPLE else plain_values
    single, rows = split_values(shows(value))
    parts = [f"<b>{_visible(name)}</b>"]
    if single:
        parts.append(_table((), [(shown_name(key), format_value(key, one)) for key, one in single.items()]))
    parts += (_folded(key, items) for key, items in rows.items())
    return f"<div>{''.join(parts)}</div>"


def _folded(name: str, items: Sequence[Any]) -> str:
    shown = items[:MAX_ROWS]
    content = _rows(shown) if isinstance(shown[0], Mapping) else _lines(shown)
    more = len(items) - len(shown)
    if more:
        content += f"<p>... and {more:,} more</p>"
    is_open = " open" if len(items) <= _LINES_SHOWN else ""
    return f"<details{is_open}><summary>{_visible(name)} ({len(items):,})</summary>{content}</details>"


def _rows(items: Sequence[Mapping[str, Any]]) -> str:
    columns = columns_of(items)
    numbers = {column for column, are_numbers in columns.items() if are_numbers}
    cells = [[format_value(column, item.get(column)) for column in columns] for item in items]
    return _table([*columns], cells, numbers)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> str:
    head = "".join(f"<th>{_visible(shown_name(column))}</th>" for column in columns)
    sides = ["right" if column in numbers else "left" for column in columns] or ["left", "left"]
    body = "".join(
        "<tr>" + "".join(_cell(text, side) for text, side in zip(row, sides, strict=True)) + "</tr>" for row in rows
    )
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def _cell(text: str, side: str) -> str:
    style = f"text-align: {side}{'; white-space: nowrap' if side == 'right' else ''}"
    return f'<td style="{style}">{_visible(text)}</td>'


def _lines(items: Sequence[Any]) -> str:
    return f"<pre>{chr(10).join(_visible(str(item)) for item in items)}</pre>"


def _visible(text: str) -> str:
    """A text as the terminal shows it, as HTML."""
    return escape(printable(text))
