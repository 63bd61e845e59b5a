"""Deletion of files beside others who delete or bring back, broken on purpose: see `mutants`."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np

from icekeep.maintenance.deletion import claims, earlier
from icekeep.maintenance.deletion.looks import TableLook
from icekeep.maintenance.orphans import execute, waiting
from icekeep.storage.vended import VendedProperties
from simulation.replacing import replaced

_NOTHING_IN_USE = np.empty(0, np.int64)


def forgets_what_waits() -> AbstractContextManager[Any]:
    """Takes files for orphans that a plan names (MAINTENANCE 1.2)."""
    return replaced(waiting, "_plans", lambda table: iter(()))


def takes_a_trash_that_comes_back_for_moved() -> AbstractContextManager[Any]:
    """Takes files for orphans that a restore has brought back and not committed (MAINTENANCE 1.2)."""
    return replaced(waiting, "last_job", lambda directory, storage: ("", 0))


def carries_on_whoever_took_over() -> AbstractContextManager[Any]:
    """Looks neither at the claim nor at the table while it deletes (MAINTENANCE 1.3)."""
    return _both(_looks_once(), replaced(claims.Claim, "check", lambda self, storage, runtime: None))


def proves_on_what_it_saw_first() -> AbstractContextManager[Any]:
    """Proves the plans of earlier runs on metadata from before it claimed them, and does not look again (MAINTENANCE 1.3)."""
    return _both(_looks_once(), replaced(earlier._Proofs, "load", lambda self: self.table))


def believes_its_first_listing() -> AbstractContextManager[Any]:
    """Deletes orphans without another look at the metadata (MAINTENANCE 1.12)."""
    again = replaced(execute, "still_unnamed", lambda candidates, now, spark, search: (candidates, 0))
    return _both(_looks_once(), again)


def does_not_say_that_it_empties() -> AbstractContextManager[Any]:
    """Empties the trash while a restore may still begin (MAINTENANCE 1.14)."""
    return replaced(earlier, "EMPTYING", "unknown.json")


def asks_for_no_new_credentials() -> AbstractContextManager[Any]:
    """Gives up when a store refuses credentials that have ended (CORE C3)."""
    return replaced(VendedProperties, "_renewed_after", lambda self, used: False)


def _looks_once() -> AbstractContextManager[Any]:
    """Deletes by what was in use when a plan was proved."""
    return replaced(TableLook, "__call__", lambda self: _NOTHING_IN_USE)


def _both(one: AbstractContextManager[Any], other: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    stack = ExitStack()
    stack.enter_context(one)
    stack.enter_context(other)
    return stack
