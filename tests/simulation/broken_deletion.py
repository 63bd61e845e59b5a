"""Deletion of files beside others who delete or bring back, broken on purpose: see `mutants`."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np

from icekeep.maintenance.deletion import claims, earlier, named_files
from icekeep.maintenance.deletion.looks import TableLook
from icekeep.maintenance.orphans import waiting
from icekeep.storage.vended import VendedProperties
from simulation.replacing import replaced

_NOTHING_IN_USE = np.empty(0, np.int64)


def forgets_what_waits() -> AbstractContextManager[Any]:
    """Takes files for orphans that a plan names (MAINTENANCE 1.2)."""
    return replaced(waiting, "_plans", lambda table: iter(()))


def takes_a_trash_that_comes_back_for_moved() -> AbstractContextManager[Any]:
    """Takes files for orphans that a restore has brought back and not committed (MAINTENANCE 1.2)."""
    return replaced(named_files, "last_job", lambda directory, storage: ("", 0))


def carries_on_whoever_took_over() -> AbstractContextManager[Any]:
    """Looks neither at the claim nor at the table while it deletes (MAINTENANCE 1.3)."""
    return _both(_looks_once(), replaced(claims.Claim, "check", lambda self, storage, runtime: None))


def deletes_what_another_plan_keeps() -> AbstractContextManager[Any]:
    """Carries out a plan although another plan keeps some of its files for longer."""
    return replaced(earlier, "keys_kept_by_others", lambda plan, table, now_ms: _NOTHING_IN_USE)


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
