"""SIGTERM and Ctrl-C: the work is cancelled, an exception unwinds the job so that it cleans up, the status says which.

Spark installs a handler of its own for Ctrl-C that fails in the middle of a call to the JVM, so ours is put back when the
session is there.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(SystemExit):
    """A signal asked the process to end; the code is the shell's: 128 and the signal's number."""


class Interrupts:
    """The handlers while a command runs.

    Attributes:
        signal: the one that was taken, `None` as long as none was.
    """

    def __init__(self) -> None:
        self._cancel: Callable[[], None] | None = None
        self._is_delivering = self._is_spared = False
        self.signal: signal.Signals | None = None

    def install(self, cancel: Callable[[], None] | None = None) -> None:
        """Take the signals (again), and call `cancel` before one unwinds the job.

        Signals can be taken in the main thread only; elsewhere this does nothing.
        """
        self._cancel = cancel
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._handle)

    def spare_delivery(self) -> None:
        """From now on the work is done, and its answer is delivered: the next signal is passed over, and one after it ends that.

        An answer that is cut off looks like a failure to its reader; but it may go to a reader that never reads on.
        """
        self._is_delivering = True

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._is_delivering and not self._is_spared:
            self._is_spared = True
            return
        if self._is_delivering:
            raise Interrupted(128 + number)
        # A second signal must not break the clean-up that the first one began; SIGKILL is left for that.
        if self.signal is not None:
            return
        self.signal = signal.Signals(number)
        if self._cancel is not None:
            self._cancel()
        raise Interrupted(128 + number)


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Take the signals for the length of a block and put the handlers back that were there before."""
    before: list[Any] = [signal.getsignal(number) for number in _SIGNALS]
    taken = Interrupts()
    taken.install()
    try:
        yield taken
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in zip(_SIGNALS, before, strict=True):
                # One that was not installed from Python cannot be put back.
                if handler is not None:
                    signal.signal(number, handler)


@contextmanager
def passing_on() -> Iterator[Interrupts]:
    """Take the signals for the length of a block; one that came is raised again after it, for the handler that was there before.

    So a program that calls the work ends, or goes on, as it would have without it, once the work has cleaned up.

    Raises:
        KeyboardInterrupt: the block was ended by a signal, and the handler of the program did not end it.
    """
    taken = Interrupts()
    try:
        with interrupts() as taken:
            yield taken
    except BaseException as ended:
        _raise_again(taken)
        if isinstance(ended, Interrupted):
            raise KeyboardInterrupt from None
        raise
    _raise_again(taken)


def _raise_again(taken: Interrupts) -> None:
    if taken.signal is not None:
        signal.raise_signal(taken.signal)
