"""Deletion of files and purges, broken on purpose: see `mutants`."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any

from msgspec.structs import replace

from icekeep.maintenance.delete import run as deleting
from icekeep.maintenance.delete.kept import KeptByPlans
from icekeep.maintenance.delete.lease import LEASE_MS, PlanLease, take_lease
from icekeep.maintenance.delete.reachable import NO_PATHS
from icekeep.maintenance.drop import pending as unfinished
from icekeep.maintenance.orphans import listing
from icekeep.maintenance.restore import job as restoring
from icekeep.runtime import Runtime
from icekeep.storage.base import Storage
from icekeep.storage.vended import VendedProperties
from simulation.replacing import replaced


def forgets_what_waits() -> AbstractContextManager[Any]:
    """Takes files for orphans that a plan names."""
    return _all(replaced(listing, "_plans", lambda table: iter(())), deletes_what_another_plan_keeps())


def takes_a_plan_from_a_run_at_work() -> AbstractContextManager[Any]:
    """A restore goes by a lease although the run that made one is alive, with a call under way."""

    def take(directory: str, job: str, storage: Storage, runtime: Runtime, now_ms: int) -> PlanLease:
        return take_lease(directory, job, storage, runtime, now_ms + LEASE_MS + 1)

    return replaced(restoring, "take_lease", take)


def deletes_what_another_plan_keeps() -> AbstractContextManager[Any]:
    """Carries out a plan although another plan keeps some of its files for longer."""
    return replaced(deleting, "kept_by_others", lambda plan, table, now_ms, *, skips_trash: KeptByPlans(NO_PATHS))


def asks_for_no_new_credentials() -> AbstractContextManager[Any]:
    """Gives up when a store refuses credentials that have ended."""
    return replaced(VendedProperties, "_renewed_after", lambda self, used: False)


def _all(*several: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    stack = ExitStack()
    for one in several:
        stack.enter_context(one)
    return stack


_finish, _read_plan = unfinished._finish, unfinished.read_plan


def finishes_what_was_never_dropped() -> AbstractContextManager[Any]:
    """Takes a plan for that of a table which the catalog has forgotten, as soon as it has a head."""
    return replaced(unfinished, "DROPPED", "plan.json")


def finishes_for_another_catalog() -> AbstractContextManager[Any]:
    """Does not ask of which catalog a plan is."""
    stack, here = ExitStack(), [""]

    def finish(directory: str, run: Any) -> Any:
        here[0] = run.table.catalog.identity
        return _finish(directory, run)

    def read_plan(directory: str, storage: Any) -> Any:
        return replace(_read_plan(directory, storage), catalog=here[0])

    stack.enter_context(replaced(unfinished, "_finish", finish))
    stack.enter_context(replaced(unfinished, "read_plan", read_plan))
    return stack


BROKEN = (finishes_what_was_never_dropped, finishes_for_another_catalog)
