"""What a job or a command runs in, and what is told of it outside."""

import msgspec

from icekeep.events import SILENT, Event, InRun, Listener, RunEnded, RunStarted
from icekeep.operations.interrupts import Interrupts
from icekeep.operations.outcomes import Begun
from icekeep.runtime import Runtime


class Seams(msgspec.Struct, frozen=True, kw_only=True):
    """The rest of the world, as "module:function"; tests name fakes."""

    load_table: str
    build_session: str
    stop_session: str
    cancel_jobs: str
    live_properties: str
    open_catalog: str = "icekeep.operations.loading:open_settings"


class OfRun:
    """Tells a listener of what happens in one run, so that it knows which."""

    def __init__(self, run_id: str, listener: Listener) -> None:
        self._run_id, self._listener = run_id, listener

    def on(self, event: Event) -> None:
        self._listener.on(event if isinstance(event, InRun | RunStarted | RunEnded) else InRun(self._run_id, event))


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a job runs in; `begun` is what is known of its run so far, of which there is one."""

    seams: Seams
    listener: Listener
    interrupts: Interrupts
    runtime: Runtime
    begun: Begun = msgspec.field(default_factory=Begun)

    def in_run(self) -> "Surroundings":
        """The same after the run has begun: its listener hears of which run everything is."""
        assert self.begun.run is not None
        if self.listener is SILENT:
            return self
        return msgspec.structs.replace(self, listener=OfRun(self.begun.run.run_id, self.listener))
