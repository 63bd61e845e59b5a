"""What `icekeep repair` prints for people: what is mended, what stays and why, and what was committed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from icekeep.maintenance.repair.job import RepairResult
from icekeep.maintenance.repair.plan import Mend, NotMended, RepairPlan
from icekeep.maintenance.repair.planner import CONTENT
from icekeep.operations.shown.commands import CommandsOn

T = TypeVar("T")

_LINES = 50
"""Of each; `--output json` has all."""

_NOTHING = {"note": "no fault of these kinds was found"}


def repair_shown(result: RepairResult | RepairPlan, commands: CommandsOn | None = None) -> Mapping[str, Any]:
    """The values and rows that are printed of a repair, or of its plan; without `commands` not what to do next."""
    if isinstance(result, RepairPlan):
        return {
            "mends_count": len(result.mends),
            **_what_stays_and_goes(result),
            **_rows("would_mend", result.mends, _mend),
            **_rows("not_mended", result.not_mended, _stays),
        }
    return {
        "run": result.run,
        "mended_count": len(result.mended),
        **_what_stays_and_goes(result),
        "elapsed_ms": result.elapsed_ms,
        **({"branches": [*map(msgspec.structs.asdict, result.branches)]} if result.branches else {}),
        **_rows("mended", result.mended, _mend),
        **_rows("not_mended", result.not_mended, _stays),
        **({"to_check": _checks(result, commands)} if result.mended and commands is not None else {}),
    }


def _checks(result: RepairResult, commands: CommandsOn) -> list[str]:
    """What looks whether all is right now: at the heads that were mended, as older snapshots keep their faults."""
    deep = ("--deep",) if any(one.fault_id > CONTENT for one in result.mended) else ()
    return [commands("check", *deep, "--ref", one.branch) for one in result.branches] or [commands("check", *deep)]


def _what_stays_and_goes(result: RepairResult | RepairPlan) -> dict[str, Any]:
    return {
        "not_mended_count": len(result.not_mended),
        **(_NOTHING if not _mends(result) and not result.not_mended else {}),
        "lost_records_count": "not known" if result.lost_records_count is None else result.lost_records_count,
        "hash": result.hash,
    }


def _mends(result: RepairResult | RepairPlan) -> Sequence[Mend]:
    return result.mends if isinstance(result, RepairPlan) else result.mended


def _mend(one: Mend) -> str:
    on = f" on branch {one.branch!r}" if one.branch else ""
    return f"{one.fault_id} {one.where}{on}: {one.action}"


def _stays(one: NotMended) -> str:
    return f"{one.fault_id} {one.where}: {one.reason}"


def _rows(name: str, found: Sequence[T], line: Callable[[T], str]) -> Mapping[str, Any]:
    if not found:
        return {}
    more = len(found) - _LINES
    return {name: [*map(line, found[:_LINES]), *([f"... and {more:,} more"] if more > 0 else [])]}
