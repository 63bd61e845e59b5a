"""What can go wrong at a call, and who decides that it does."""

from collections import Counter
from enum import Enum
from random import Random
from typing import Protocol


class Fault(Enum):
    """What becomes of one call to storage or the catalog."""

    NONE = "none"
    STALLED = "stalled"
    FAILED_BEFORE = "failed before it took effect"
    FAILED_AFTER = "failed after it took effect"
    CRASHED_BEFORE = "last before a crash, without effect"
    CRASHED_AFTER = "last before a crash"
    INTERRUPTED_BEFORE = "interrupted before it took effect"
    INTERRUPTED_AFTER = "interrupted after it took effect"
    # Of the calls that commit alone: the swap of a pointer, the creation of a version.
    LOST_ANSWER = "answer lost"
    LOST_REQUEST = "request lost"
    LATE = "lands later"
    MET_ITSELF = "landed and reported as a conflict"
    BUSY = "refused though nobody was faster"


ANYWHERE = (
    Fault.STALLED,
    Fault.FAILED_BEFORE,
    Fault.FAILED_AFTER,
    Fault.CRASHED_BEFORE,
    Fault.CRASHED_AFTER,
    Fault.INTERRUPTED_BEFORE,
    Fault.INTERRUPTED_AFTER,
)
AT_SWAPS = (*ANYWHERE, Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.LATE, Fault.MET_ITSELF, Fault.BUSY)
AT_CREATES = (*ANYWHERE, Fault.LOST_REQUEST, Fault.LATE, Fault.MET_ITSELF)
SWAP = "swap"
CREATE_VERSION = "create version"
AT = {SWAP: AT_SWAPS, CREATE_VERSION: AT_CREATES}
"""What can go wrong at the calls that commit; at all others it is `ANYWHERE`."""


class Faults(Protocol):
    """Decides call by call; `fired` counts what it decided."""

    fired: Counter[Fault]

    def next(self, operation: str) -> Fault:
        """What becomes of this call."""


class NoFaults:
    """Nothing goes wrong."""

    def __init__(self) -> None:
        self.fired: Counter[Fault] = Counter()

    def next(self, operation: str) -> Fault:
        return Fault.NONE


class RandomFaults:
    """A share of all calls, and a greater one of those that commit, where most is at stake."""

    def __init__(self, random: Random, share: float) -> None:
        self.fired: Counter[Fault] = Counter()
        self._random = random
        self._shares = {operation: min(1.0, share * 6) for operation in AT}
        self._share = share

    def next(self, operation: str) -> Fault:
        if not self._share or self._random.random() >= self._shares.get(operation, self._share):
            return Fault.NONE
        fault = self._random.choice(AT.get(operation, ANYWHERE))
        self.fired[fault] += 1
        return fault


class FaultAt:
    """One fault, at the `number`th call; `calls` names all calls that were made."""

    def __init__(self, number: int, fault: Fault) -> None:
        self.fired: Counter[Fault] = Counter()
        self.calls: list[str] = []
        self._number, self._fault = number, fault

    def next(self, operation: str) -> Fault:
        self.calls.append(operation)
        if len(self.calls) - 1 != self._number:
            return Fault.NONE
        self.fired[self._fault] += 1
        return self._fault
