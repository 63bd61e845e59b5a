"""The answers, in words."""

from collections.abc import Collection, Mapping, Sequence

from icekeep.catalog.base import Table
from icekeep.maintenance.deletion.plans import restore_command
from icekeep.maintenance.file_life.plans import GONE, TRASH
from icekeep.maintenance.file_life.result import PlanOfFile
from icekeep.maintenance.file_life.retention import Kept
from icekeep.spec.times import format_time
from icekeep.storage.base import FileInfo

_SHOWN = 10
_KEEPERS_SHOWN = 3


def fate_of_read(*, is_current: bool, kept: Kept | None, now_ms: int, is_missing: bool, back: str | None) -> str:
    """What becomes of a file that snapshots read; `back` is the command that fetches it from the trash, if it is missing."""
    said = _kept(is_current=is_current, kept=kept, now_ms=now_ms)
    if not is_missing:
        return said
    where = f"it is in the trash: `{back}` brings it back" if back else "readers of these fail"
    return f"snapshots read it and it is not in storage: {where}; {said}"


def _kept(*, is_current: bool, kept: Kept | None, now_ms: int) -> str:
    if is_current:
        return "the current version has it: it can go once main has left it behind and the snapshots that read it have expired"
    said = "the current version does not have it"
    if kept is None:
        return said
    if kept.until_ms is None:
        return f"{said}; no `expire_snapshots` lets it go: kept by {_first(kept.by)}"
    if kept.until_ms <= now_ms:
        return f"{said}, and the next `expire_snapshots` drops the last snapshot that reads it"
    return f"{said}; `expire_snapshots` drops the last snapshot that reads it from {format_time(kept.until_ms)} on"


def _first(names: Sequence[str]) -> str:
    """Some names; of a table that was restored hundreds of tags may keep a file."""
    more = f" and {len(names) - _KEEPERS_SHOWN:,} more" if len(names) > _KEEPERS_SHOWN else ""
    return ", ".join(names[:_KEEPERS_SHOWN]) + more


def fate_of_unread(fate: str) -> str:
    """What becomes of a file of the table that no snapshot reads any more."""
    said = "it was taken out of the table, and no snapshot that can be read has it any more"
    return f"{said}; {fate}" if fate else said


def in_plan(plan: PlanOfFile, table: Table) -> str:
    """What becomes of a file that a plan names and no snapshot reads."""
    back = f"; `{restore_command(table, plan.run)}` brings it back" if plan.is_restorable else ""
    until = format_time(plan.until_ms)
    if plan.place == GONE:
        return f"no snapshot reads it: a plan of {plan.job} names it, and it is gone"
    if plan.place == TRASH:
        return f"no snapshot reads it: {plan.job} moved it to the trash, where it stays until {until}{back}"
    return f"no snapshot reads it, and a plan of {plan.job} takes it from {until} on{back}"


def no_trace(info: FileInfo | None) -> str:
    """What is said of a file that nothing names."""
    if info is not None:
        return f"nothing that is known of the table leads to it; it lies there since {format_time(info.modified_ms)}"
    return "there is no such file, and nothing of the table has one of this name"


def unlooked(unreadable: Mapping[str, str], unsure: Collection[int]) -> list[str]:
    """What could not be looked into, and what follows from it: of the snapshots `unsure` not all is known."""
    shown = [f"could not look into {name}: {why}" for name, why in [*unreadable.items()][:_SHOWN]]
    more = [f"... and {len(unreadable) - _SHOWN:,} more"] if len(unreadable) > _SHOWN else []
    ids = ", ".join(map(str, sorted(unsure)[:_SHOWN])) + (" and others" if len(unsure) > _SHOWN else "")
    readers = f"snapshot{'s' if len(unsure) > 1 else ''} {ids}" if unsure else "other snapshots"
    return [*shown, *more, f"so it may also be read by {readers}"]


def as_far_as_read(said: str, unreadable: Mapping[str, str]) -> str:
    """What is said of a file where not all could be read that may say something else."""
    return f"as far as can be read, {said}" if unreadable else said
