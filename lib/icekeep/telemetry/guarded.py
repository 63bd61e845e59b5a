"""Sinks, which talk to other systems, kept away from the job: each in a thread of its own, with a patience of its own.

What it does may fail or hang. A job hears of the first failure by one warning, and waits for an open end some seconds at most.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from icekeep.errors import reason_of
from icekeep.events import Event, InRun, Listener, StepAdvanced, StepUnderWay, Warned
from icekeep.runtime import Runtime

PATIENCE_MS = 5_000
"""So long all of them together may go on when the command has done its work."""

_GOES_ON = "the work goes on"

_MAX_WAITING = 20_000
"""Events that wait to be told; one that hangs must not fill the memory in a night."""


class Sink(Protocol):
    """Who tells another system."""

    def on(self, event: Event, at_ms: int) -> None:
        """Take an event that happened at `at_ms`, epoch milliseconds; may take long, and may raise."""

    def close(self) -> None:
        """Bring out what is still held back; may take long, and may raise."""


class Guarded:
    """A listener that hands events over to a sink in a thread, which dies with the process.

    Args:
        failing: what is told where it does not work: "metrics cannot be sent to http://push:9091".
        make: makes the sink, in the thread too, since imports and connections may take long.
        warn: is told once that it does not work.
        consequence: what the warning ends with.
    """

    def __init__(
        self,
        failing: str,
        make: Callable[[], Sink],
        warn: Callable[[str], None],
        runtime: Runtime,
        consequence: str = _GOES_ON,
    ) -> None:
        self._failing, self._make, self._warn_of, self._runtime = failing, make, warn, runtime
        self._consequence = consequence
        self._events: queue.Queue[tuple[Event, int] | None] = queue.Queue()
        self._is_warned = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._run, name=f"icekeep {failing.partition(' cannot')[0]}", daemon=True
        )
        self._thread.start()

    def on(self, event: Event) -> None:
        inner = event.event if isinstance(event, InRun) else event
        if isinstance(inner, StepAdvanced | StepUnderWay):
            # How far a step is matters on the screen alone.
            return
        if self._events.qsize() >= _MAX_WAITING:
            self._warn("it does not keep up, and is not told of all")
            return
        self._events.put((event, self._runtime.now_ms()))

    def finish(self) -> None:
        """Say that nothing more comes, without waiting."""
        self._events.put(None)

    def wait(self, seconds: float) -> None:
        """Wait until all is told, so long at most."""
        self._thread.join(max(0.0, seconds))
        if self._thread.is_alive():
            self._warn("it does not answer, and is left")

    def _run(self) -> None:
        sink: Sink | None = None
        try:
            sink = self._make()
        except Exception as error:  # noqa: BLE001 - it is not ours, and the job must go on
            self._warn(reason_of(error))
        while (told := self._events.get()) is not None:
            if sink is not None:
                self._attempt(sink.on, *told)
        if sink is not None:
            self._attempt(sink.close)

    def _attempt(self, act: Callable[..., None], *arguments: Any) -> None:
        try:
            act(*arguments)
        except Exception as error:  # noqa: BLE001 - as above
            self._warn(reason_of(error))

    def _warn(self, why: str) -> None:
        with self._lock:
            if self._is_warned:
                return
            self._is_warned = True
        self._warn_of(f"{self._failing}: {why}; {self._consequence}")


@contextmanager
def guarded(
    makers: Sequence[tuple[str, Callable[[], Sink]]],
    listener: Listener,
    runtime: Runtime,
    patience_ms: int = PATIENCE_MS,
    consequence: str = _GOES_ON,
) -> Iterator[Sequence[Guarded]]:
    """Listeners that are told while the block lasts; at its end all of them together have `patience_ms` to finish.

    Args:
        makers: of sinks, by what is told where one does not work.
        listener: who is warned.
        consequence: what a warning ends with.
    """
    started = [
        Guarded(failing, make, lambda text: listener.on(Warned(text)), runtime, consequence) for failing, make in makers
    ]
    try:
        yield started
    finally:
        for one in started:
            one.finish()
        until_ms = runtime.monotonic_ms() + patience_ms
        for one in started:
            one.wait((until_ms - runtime.monotonic_ms()) / 1000)
