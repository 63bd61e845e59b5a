"""What happened, as small frozen facts, and the one-method listener that they are told to.

The lower rooms tell; `operations/progress.py` and tests listen. An event never carries a decision back.
"""

import logging
from typing import Protocol

import msgspec


class Event(msgspec.Struct, frozen=True, tag=True):
    """A fact that somebody may want to see; sub-classes say which."""


class StepStarted(Event, frozen=True):
    """A job began one of its steps; `total` is how many units it will finish, if that is known."""

    step: str
    total: int | None = None
    unit: str = ""


class StepAdvanced(Event, frozen=True):
    """`done` more units of a step are finished; `total` is how many there are by now, where that is known."""

    step: str
    done: int = 1
    total: int | None = None


class StepFinished(Event, frozen=True):
    """A step is over; `note` is one short line for the operator."""

    step: str
    note: str = ""


class Warned(Event, frozen=True):
    """Something the operator should know although the job goes on."""

    message: str


class CommitRetried(Event, frozen=True):
    """An attempt to commit met a conflict, or a catalog or store out of reach, and will be made again after `wait_ms`."""

    table: str
    attempt: int
    wait_ms: int
    reason: str


class SnapshotCommitted(Event, frozen=True):
    """A commit landed; `snapshot_id` is `None` for changes that make no snapshot."""

    table: str
    snapshot_id: int | None
    metadata_location: str


class Listener(Protocol):
    """Somebody who wants to know."""

    def on(self, event: Event) -> None:
        """Take note of `event`; must be quick, must not raise, may be called from several threads."""


_LOG = logging.getLogger(__name__)


def tell(listener: Listener, event: Event) -> None:
    """Tell of what cannot be undone any more: an error of the listener is logged, lest it be taken for one of the work itself."""
    try:
        listener.on(event)
    except Exception:  # noqa: BLE001 - it is not ours
        _LOG.exception("a listener failed at %r; the work goes on", event)


class _Silent:
    def on(self, event: Event) -> None:
        """Nobody listens."""

    def __repr__(self) -> str:
        """As `help` shows the default of a `listener`."""
        return "SILENT"


SILENT: Listener = _Silent()
"""Nobody."""
