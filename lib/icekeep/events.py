"""What happened, as small frozen facts, and the one-method listener that they are told to.

The lower rooms tell; `operations/console/progress.py` and tests listen. An event never carries a decision back.
"""

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

BYTES = "bytes"
"""The unit of a step whose progress is in bytes."""


class Event(msgspec.Struct, frozen=True, tag=True):
    """A fact that somebody may want to see; sub-classes say which."""


class StepStarted(Event, frozen=True):
    """A job began one of its steps; `total` is how many units it will finish, if that is known."""

    step: str
    total: int | None = None
    unit: str = ""


class StepAdvanced(Event, frozen=True):
    """`done` more units of a step are finished; `total` is how many there are so far, where that is known."""

    step: str
    done: int = 1
    total: int | None = None


class StepUnderWay(Event, frozen=True):
    """About `done` units of a step are done, counting what is under way: an estimate, now and then, from a thread of its own."""

    step: str
    done: int


class StepFinished(Event, frozen=True):
    """A step is over; `note` is one short line for the operator."""

    step: str
    note: str = ""


class Warned(Event, frozen=True):
    """Something the operator should know although the job goes on."""

    message: str


class Noted(Event, frozen=True):
    """Something that the operator needs while a command goes on, such as the address of a server."""

    message: str


class CommitRetried(Event, frozen=True):
    """An attempt to commit met a conflict, or a catalog or store out of reach, and will be made again after `wait_ms`.

    `is_conflict`: others had changed the table.
    """

    table: str
    attempt: int
    wait_ms: int
    reason: str
    is_conflict: bool = False


class SnapshotCommitted(Event, frozen=True):
    """A commit landed; `snapshot_id` is `None` for changes that make no snapshot."""

    table: str
    snapshot_id: int | None
    metadata_location: str


class RunStarted(Event, frozen=True, kw_only=True):
    """A run of a job or a command begins; its table is loaded, if it can be.

    Attributes:
        run_id: `<job>-<uuid4>`.
        table: `CATALOG.NS.NAME`; empty where it is about none, or about many.
        policy: whose job it is.
        parent_id: the run of `maintain` that it is a part of.
        is_one_of_many: whether its process runs jobs on many tables: `maintain`, or a job with `--match`.
        only_tells: whether it changes nothing, and only reports the state or what it would do: a dry run, or `history`.
        started_ms: epoch milliseconds.
        arguments: as they were given, by the function's keywords.
        table_location, metadata_location, snapshot_id: of the table before the run; `None` where it could not be loaded.
    """

    run_id: str
    job: str
    started_ms: int
    table: str = ""
    policy: str | None = None
    parent_id: str | None = None
    is_one_of_many: bool = False
    only_tells: bool = False
    arguments: Mapping[str, Any] = {}
    table_location: str | None = None
    metadata_location: str | None = None
    snapshot_id: int | None = None


class RunEnded(Event, frozen=True, kw_only=True):
    """A run is over.

    Attributes:
        status: of the outcome, or `failed`, or `interrupted`.
        exit_status: what the command line would end with.
        ended_ms: epoch milliseconds.
        error_kind, error_message: why it failed.
        result: what the job or command returned.
        metadata_location, snapshot_id: of the table after the run, as far as that is known.
    """

    run_id: str
    status: str
    exit_status: int
    ended_ms: int
    error_kind: str | None = None
    error_message: str | None = None
    result: Any = None
    metadata_location: str | None = None
    snapshot_id: int | None = None


class InRun(Event, frozen=True):
    """An event of a run, for those who listen to several at once."""

    run_id: str
    event: Event


class Listener(Protocol):
    """Somebody who wants to know."""

    def on(self, event: Event) -> None:
        """Take note of `event`; must be quick, may be called from several threads. An error is logged, and ends no job."""


_LOG = logging.getLogger(__name__)


class _Silent:
    def on(self, event: Event) -> None:
        """Nobody listens."""

    def __repr__(self) -> str:
        """As `help` shows the default of a `listener`."""
        return "SILENT"


SILENT: Listener = _Silent()
"""Nobody."""


class Listeners:
    """Several as one: each hears everything, in this order, whatever another one does. The first error of each is logged."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners
        self._failed: set[int] = set()

    def on(self, event: Event) -> None:
        for number, listener in enumerate(self._listeners):
            try:
                listener.on(event)
            except Exception:  # noqa: BLE001 - it is not ours
                if number not in self._failed:
                    self._failed.add(number)
                    _LOG.exception("a listener failed at %r; the work goes on", event)


def unfailing(listener: Listener) -> Listener:
    """The listener as work is given it: its own errors are logged, lest one of them ends the work or is taken for one of that.

    Whoever begins work that changes something, and takes a listener from outside, goes by this.
    """
    return listener if listener is SILENT or isinstance(listener, Listeners) else Listeners(listener)
