"""Progress for those who call jobs as functions: in a notebook one line that is kept up to date, elsewhere lines on stderr."""

import sys
import threading
from collections.abc import Callable
from html import escape
from typing import Any, TextIO

from icekeep.events import Event, InRun, Listener, StepAdvanced, StepStarted, StepUnderWay
from icekeep.operations.console.progress import PlainProgress
from icekeep.runtime import SYSTEM, Runtime

__all__ = ["progress"]

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
