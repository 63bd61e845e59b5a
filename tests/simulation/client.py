"""One writer's process in the simulated world: a way to storage and the catalog on which calls go wrong."""

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from icekeep.errors import IcekeepError, UnavailableError
from icekeep.runtime import is_interrupted
from simulation.credentials import Wallet
from simulation.faults import CREATE_VERSION, Fault
from simulation.scheduler import Actor
from simulation.stores import AFTER, DirectoryCatalog, SimulatedCatalog, SimulatedStorage
from simulation.world import DIRECTORY, START_MS, World

T = TypeVar("T")
_STALLS_MS = (1, 200, 5_000, 60_000)
_LONG_STALL_MS = 10 * 24 * 3600 * 1000
_CRASHES = {Fault.CRASHED_BEFORE, Fault.CRASHED_AFTER}
_INTERRUPTS = {Fault.INTERRUPTED_BEFORE, Fault.INTERRUPTED_AFTER}


class Crashed(BaseException):
    """The writer's process is gone; whatever still unwinds in it has no effect on the world."""


class Client:
    """One writer's process: its clock, its calls to storage and the catalog, and whether it is still alive.

    It is a `Runtime`. `owner` is the operation that is being run; what is written and what lands is told to be its.
    """

    def __init__(self, world: World, actor: Actor, skew_ms: int = 0) -> None:
        self.world, self.actor = world, actor
        self.owner: Any = None
        self.is_down = False
        self.faults_met = 0
        self.storage = SimulatedStorage(self)
        in_directory = world.catalog == DIRECTORY
        self.catalog = DirectoryCatalog(self) if in_directory else SimulatedCatalog(self)
        self._skew_ms = skew_ms
        self._wallet = None if world.credentials is None else Wallet(self, world.credentials)

    def now_ms(self) -> int:
        return self.world.scheduler.now_ms + self._skew_ms

    def monotonic_ms(self) -> int:
        return self.world.scheduler.now_ms - START_MS

    def sleep_ms(self, duration_ms: int) -> None:
        self._alive()
        self.world.scheduler.pause(self.actor, duration_ms)

    def uniform(self, low: float, high: float) -> float:
        return self.world.random.uniform(low, high)

    def new_uuid(self) -> uuid.UUID:
        return self.world.new_uuid()

    def is_abandoned(self) -> bool:
        return False

    def is_stopping(self) -> bool:
        return is_interrupted()

    def draw(self, operation: str, location: str) -> Fault:
        """Let others act, and learn what becomes of a call; a stall is over when this returns."""
        self._alive()
        world, wait_ms = self.world, 0
        if operation == CREATE_VERSION and world.drags and world.random.random() < 0.05:
            world.seen["creations of a version that took days"] += 1
            fault, wait_ms = Fault.STALLED, _LONG_STALL_MS
        elif world.is_out_of_reach():
            fault = Fault.FAILED_BEFORE
        else:
            fault = world.faults.next(operation)
        if fault is Fault.STALLED:
            wait_ms = wait_ms or world.random.choice(_STALLS_MS)
        elif fault is not Fault.NONE:
            self.faults_met += 1
        world.trace.append((self.actor.name, operation, location, fault.name))
        world.scheduler.pause(self.actor, wait_ms)
        return fault

    def call(self, operation: str, location: str, effect: Callable[[], T], lost: type[IcekeepError]) -> T:
        """One call to the store; `lost` is what an answer that did not arrive is told as."""
        request = partial(self.request, operation, location, effect, lost)
        return request() if self._wallet is None else self._wallet.ask(request)

    def request(
        self, operation: str, location: str, effect: Callable[[], T], lost: type[IcekeepError] = UnavailableError
    ) -> T:
        """One call to the store or the catalog, by whomever."""
        fault = self.draw(operation, location)
        if fault in (Fault.NONE, Fault.STALLED):
            return effect()
        if fault in AFTER:
            effect()
        self.end_if(fault)
        cls = lost if fault is Fault.FAILED_AFTER else UnavailableError
        raise cls(f"simulated: {operation} of {location!r} {fault.value}")

    def end_if(self, fault: Fault) -> None:
        """Crash, or be interrupted, if the fault is that."""
        if fault in _CRASHES:
            self.is_down = True
            raise Crashed
        if fault in _INTERRUPTS:
            raise KeyboardInterrupt

    def _alive(self) -> None:
        if self.is_down:
            raise Crashed
