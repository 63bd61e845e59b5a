"""Purges, broken on purpose: see `mutants`."""

from contextlib import AbstractContextManager, ExitStack
from typing import Any

from msgspec.structs import replace

from icekeep.maintenance.drop import pending as unfinished
from simulation.replacing import replaced

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
