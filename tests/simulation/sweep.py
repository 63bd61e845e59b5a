"""Every call of every operation goes wrong in every way, one at a time; after each the table is checked and worked on."""

import traceback
from collections.abc import Iterator
from functools import cache

from simulation.codec import values_in_place_of_bytes
from simulation.compaction_operations import Compact
from simulation.file_operations import Append, DeleteByValue, DeleteRows
from simulation.history import History
from simulation.operations import OPERATIONS, ChangePartitioning, Make, SetStatistics
from simulation.scheduler import Actor
from simulation.snapshot_operations import ExpireAndReclaim, MakeBranchOrTag, Rollback
from simulation.world import ANYWHERE, AT, CATALOGS, Fault, FaultAt, Told

_NEVER = -1
_PREPARED = (
    Append,
    Append,
    MakeBranchOrTag,
    SetStatistics,
    Compact,
    Append,
    MakeBranchOrTag,
    Rollback,
    ChangePartitioning,
    Append,
    DeleteRows,
    DeleteByValue,
)
_AFTERWARDS = (Append, Compact, ExpireAndReclaim)


PIECES = tuple((make.__name__, catalog) for make in OPERATIONS for catalog in CATALOGS)
"""Each operation on each kind of catalog."""


def run(piece: tuple[str, str]) -> tuple[int, list[str]]:
    """How many faults of an operation on a kind of catalog were tried, and each failure as text."""
    name, catalog = piece
    make = next(make for make in OPERATIONS if make.__name__ == name)
    failures: list[str] = []
    tried = 0
    with values_in_place_of_bytes():
        for number, fault in cases(make, catalog):
            tried += 1
            try:
                check(make, catalog, number, fault)
            except Exception:  # noqa: BLE001 - whatever it is, it is a finding
                failures.append(traceback.format_exc())
    return tried, failures


def cases(make: Make, catalog: str) -> Iterator[tuple[int, Fault]]:
    """Each call that the operation makes, in each way in which it can go wrong."""
    calls = _world(make, catalog, _fitting(make, catalog), _NEVER, Fault.NONE).faults.calls
    for number, operation in enumerate(calls):
        for fault in AT.get(operation, ANYWHERE):
            yield number, fault


def check(make: Make, catalog: str, number: int, fault: Fault) -> None:
    """One fault at one call; the fault is seen to have fired."""
    try:
        history = _world(make, catalog, _fitting(make, catalog), number, fault)
    except BaseException as error:
        error.add_note(f"{make.__name__} on a catalog of the kind {catalog!r}, call {number} {fault.value}")
        raise
    assert history.faults.fired[fault] == 1, f"{make.__name__}: call {number} was not {fault.value}"


@cache
def _fitting(make: Make, catalog: str) -> int:
    """A seed of a table in which the operation has something to do."""
    for seed in range(200):
        if _world(make, catalog, seed, _NEVER, Fault.NONE).operations[len(_PREPARED)].told is Told.COMMITTED:
            return seed
    raise AssertionError(f"{make.__name__} finds nothing to do in any table")


def _world(make: Make, catalog: str, seed: int, number: int, fault: Fault) -> History:
    """A table with some past, the operation with its fault, and others who work on it afterwards."""
    history = History(seed, FaultAt(_NEVER, Fault.NONE), share=0.0, catalog=catalog)
    history.world.drags = False
    tried = FaultAt(number, fault)

    def work(actor: Actor) -> None:
        client = history.client(actor)
        for before in _PREPARED:
            history.perform(client, before)
        history.scheduler.now_ms += 60_000
        history.world.faults = tried
        history.perform(client, make)
        history.world.faults = FaultAt(_NEVER, Fault.NONE)
        for after in (make, *_AFTERWARDS):
            history.perform(client, after)

    history.work({"writer": work})
    history.faults = tried
    return history
