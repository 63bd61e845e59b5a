"""Deletion of files beside others who delete or bring back, broken on purpose: see `mutants`."""

from contextlib import AbstractContextManager, ExitStack
from types import ModuleType
from typing import Any

import numpy as np

from icekeep.maintenance.deletion import earlier
from icekeep.maintenance.deletion.claims import Claim
from icekeep.maintenance.deletion.keeping import Kept
from icekeep.maintenance.deletion.looks import TableLook
from icekeep.maintenance.expiration import execute as expiring
from icekeep.maintenance.orphans import execute as removing
from icekeep.maintenance.orphans import waiting
from icekeep.storage.vended import VendedProperties
from simulation.replacing import replaced

_NOTHING_IN_USE = np.empty(0, np.int64)


def forgets_what_waits() -> AbstractContextManager[Any]:
    """Takes files for orphans that a plan names (MAINTENANCE 1.2)."""
    return _all(replaced(waiting, "_plans", lambda table: iter(())), _asks_no_other_plan(removing))


def carries_on_whoever_took_over() -> AbstractContextManager[Any]:
    """Looks neither at the claim nor at the table while it deletes (MAINTENANCE 1.3)."""
    names = ("check", "begin_deleting")
    return _all(_looks_once(), *(replaced(Claim, name, lambda self, storage, runtime: None) for name in names))


def deletes_what_another_plan_keeps() -> AbstractContextManager[Any]:
    """Carries out a plan although another plan keeps some of its files for longer."""
    return _all(*(_asks_no_other_plan(at) for at in (earlier, expiring, removing)))


def asks_for_no_new_credentials() -> AbstractContextManager[Any]:
    """Gives up when a store refuses credentials that have ended (CORE C3)."""
    return replaced(VendedProperties, "_renewed_after", lambda self, used: False)


def _looks_once() -> AbstractContextManager[Any]:
    """Deletes by what was in use when a plan was proved."""
    return replaced(TableLook, "__call__", lambda self: _NOTHING_IN_USE)


def _asks_no_other_plan(at: ModuleType) -> AbstractContextManager[Any]:
    return replaced(at, "kept_by_others", lambda plan, table, now_ms, *, skips_trash: Kept(_NOTHING_IN_USE))


def _all(*several: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    stack = ExitStack()
    for one in several:
        stack.enter_context(one)
    return stack
