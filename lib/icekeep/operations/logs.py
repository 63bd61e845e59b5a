"""Log lines on stderr, so that stdout holds the result and nothing else."""

import logging
import sys
import time

from icekeep.events import Event, StepAdvanced, StepFinished, StepStarted, Warned
from icekeep.operations.progress import describe

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _StderrHandler(logging.Handler):
    """Looks stderr up for each line: a progress display replaces it while it is on the screen."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - a log line that cannot be written must not end a job
            self.handleError(record)


_HANDLER = _StderrHandler()
_EVENTS = logging.getLogger("icekeep.events")


def configure_logs(*, verbose: bool) -> None:
    """Send the logs of icekeep and of Python's warnings to stderr, once; from warnings up, or all with `verbose`."""
    formatter = logging.Formatter(_FORMAT, datefmt="%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    _HANDLER.setFormatter(formatter)
    level = logging.DEBUG if verbose else logging.WARNING
    _attach("icekeep", level)
    # Warnings that libraries give to programmers help no operator.
    _attach("py.warnings", logging.WARNING if verbose else logging.ERROR)
    logging.captureWarnings(True)


class LoggedEvents:
    """A listener for which each event is a log line, with its time; with `--verbose` it stands in place of progress."""

    def on(self, event: Event) -> None:
        match event:
            case StepAdvanced(step=step, done=done):
                _EVENTS.debug("%s: %d more", step, done)
            case StepStarted(step=step, total=total, unit=unit):
                _EVENTS.info("%s: started%s", step, "" if total is None else f", {total} {unit}".rstrip())
            case StepFinished(step=step, note=note):
                _EVENTS.info("%s: done%s", step, f", {note}" if note else "")
            case Warned(message=message):
                _EVENTS.warning("%s", message)
            case _:
                _EVENTS.info("%s", describe(event) or event)


def _attach(name: str, level: int) -> None:
    """Attaching the same handler again changes nothing."""
    logger = logging.getLogger(name)
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(_HANDLER)
