"""What a job or a command runs in, and its listener."""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from icekeep.catalog.base import Table
from icekeep.events import Event, InRun, Listener, RunEnded, RunStarted, SnapshotCommitted
from icekeep.operations.configuration.catalogs import Catalogs, TableReference
from icekeep.operations.interrupts import Interrupts
from icekeep.operations.jobs import Seams
from icekeep.operations.outcomes import RunState
from icekeep.runtime import Runtime


class StartsSpark(Protocol):
    """The session of a run."""

    def started(self) -> Any:
        """The running session."""


class RunListener:
    """Tells a listener of what happens in one run, so that it knows which, and counts the run's commits."""

    def __init__(self, run_id: str, listener: Listener, state: RunState) -> None:
        self._run_id, self._listener, self._state = run_id, listener, state

    def on(self, event: Event) -> None:
        if isinstance(event, SnapshotCommitted):
            # Commits of a run are made by one thread.
            self._state.commits_count += 1
        self._listener.on(event if isinstance(event, InRun | RunStarted | RunEnded) else InRun(self._run_id, event))


class FleetContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the jobs of a process have in common that runs them on many tables, `maintain` in several threads.

    Attributes:
        load: loads the table from the catalog that is open already.
        session: starts Spark for all of them; whoever has it looks after it, and after the process.
    """

    catalogs: Catalogs
    load: Callable[[TableReference], Table]
    session: StartsSpark


class RunContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a job runs in; `state` is what is known of its run so far, of which there is one. `shared`: it is one of many.

    `spark` gives the session of a caller in Python, which goes on after the run; `None`: the run starts its own, and stops it.
    The `listener` raises nothing (`events.unfailing`): what is told before and after a job must not end it.
    """

    seams: Seams
    listener: Listener
    interrupts: Interrupts
    runtime: Runtime
    state: RunState = msgspec.field(default_factory=RunState)
    shared: FleetContext | None = None
    spark: Callable[[], Any] | None = None

    def in_run(self) -> "RunContext":
        """The same after the run has begun: its listener hears of which run everything is."""
        assert self.state.run is not None
        return msgspec.structs.replace(self, listener=RunListener(self.state.run.run_id, self.listener, self.state))
