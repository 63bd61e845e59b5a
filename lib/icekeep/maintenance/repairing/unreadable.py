"""The job `repair` on a table whose metadata does not load: what its command calls in place of `repair` and `plan_repair`."""

from typing import Any

import msgspec

from icekeep.catalog.base import Catalog, Identifier
from icekeep.errors import InvalidTableError
from icekeep.maintenance.repairing import JOB
from icekeep.maintenance.repairing.job import RepairRequest, approved, asked_for, carried_out
from icekeep.maintenance.repairing.metadata_files.reattaching import Reattachment, plan_reattachment
from icekeep.maintenance.repairing.metadata_files.spoilt import read_spoilt
from icekeep.maintenance.repairing.plan import RepairPlan
from icekeep.maintenance.repairing.reasons import NEEDS_EARLIER
from icekeep.maintenance.repairing.result import RepairResult
from icekeep.runs import Run, new_run


def repair_unreadable(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, run: Run | None = None, **arguments: Any
) -> RepairResult:
    """Have a table begin again from its last sound metadata; nothing is done unless `accept_loss` names the spoilt file.

    Args:
        error: what its catalog raised.
        run: which run it is; by default one that begins here.
        arguments: those of `repair`.

    Raises:
        InvalidTableError: `error`, where the metadata has no fault of the kinds that were asked for.
        ConflictError: others changed the table meanwhile; nothing was changed.
        OutcomeUnknownError: the new metadata may or may not have landed.
        UsageError, UnsupportedError, SafetyError: as `repair`.
    """
    request, began_ms = RepairRequest(**arguments), catalog.runtime.monotonic_ms()
    again = _planned(catalog, identifier, error, request)
    result = carried_out(again, request, (run or new_run(JOB.name, catalog.runtime)).run_id)
    return msgspec.structs.replace(result, elapsed_ms=catalog.runtime.monotonic_ms() - began_ms)


def plan_repair_unreadable(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, run: Run | None = None, **arguments: Any
) -> RepairPlan:
    """Say what `repair_unreadable` would do; raises what it raises before it commits."""
    request = RepairRequest(**arguments)
    return approved(_planned(catalog, identifier, error, request).plan, request)


def _planned(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, request: RepairRequest
) -> Reattachment:
    again = plan_reattachment(catalog, identifier, asked_for(request), request.spark, request.listener)
    if again is not None:
        return again
    numbers = sorted(read_spoilt(catalog.find(identifier)).tally.counts.keys() & NEEDS_EARLIER)
    way = "has the table begin again from earlier metadata"
    hint = f"`--fault {numbers[0]}` {way}" if numbers else "`icekeep check` tells what is wrong with it, and what to do"
    error.append(hint)
    raise error
