"""Tables in memory whose commits have known numbers, for tests of what is told of commits."""

from typing import Any

from msgspec.structs import asdict, replace

from icekeep.catalog.base import Table
from icekeep.maintenance.history import FilesChanged, commit_history
from kit.tables import add, memory_table

HOUR_MS = 3_600_000
NOTHING = dict.fromkeys(FilesChanged.__struct_fields__, 0)


def wait(table: Table, hours: int = 1) -> Table:
    """So that no two commits are of one moment."""
    table.catalog.runtime.pass_ms(hours * HOUR_MS)
    return table


def appends(version: int = 2, count: int = 3, **properties: str) -> Table:
    """Commits of 1, 2 ... files of 10 rows and 100 bytes each, an hour apart."""
    table = memory_table(format_version=version, commit__manifest_merge__enabled="false", **properties)
    for number in range(1, count + 1):
        table = add(wait(table), *(f"{number}-{n}" for n in range(number)))
    return table


def changed(known: FilesChanged) -> dict[str, int | None]:
    """What is not zero of it."""
    return {name: count for name, count in asdict(known).items() if count != 0}


def with_summaries(table: Table, *kept: str) -> Table:
    """The same table, whose summaries have nothing but these keys."""
    snapshots = tuple(
        replace(s, summary={key: s.summary[key] for key in kept if key in s.summary}) for s in table.metadata.snapshots
    )
    return replace(table, metadata=replace(table.metadata, snapshots=snapshots))


def ids(table: Table, **arguments: Any) -> list[int]:
    """The snapshots that a history tells of, in its order."""
    return [entry.snapshot_id for entry in commit_history(table, **arguments).commits]
