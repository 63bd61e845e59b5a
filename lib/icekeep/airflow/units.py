"""What one mapped task group of Airflow works on: the due jobs of a table, or of several where tables are many. Pure.

Units travel through XCom as JSON (`packed`, `unpacked`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from icekeep.decoding import from_plain
from icekeep.errors import and_more


class JobOnTable(msgspec.Struct, frozen=True, kw_only=True):
    """One job on one table.

    Attributes:
        arguments: of its command line, besides the table.
        submit: whether it runs by spark-submit; else by a process of the worker.
        until_ms: when its window closes, epoch milliseconds: it does not begin then or later.
    """

    job: str
    table: str
    arguments: tuple[str, ...] = ()
    submit: bool = True
    until_ms: int | None = None


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that belong together; `name` is shown in Airflow's grid."""

    name: str
    calls: tuple[JobOnTable, ...]


def packed(units: Sequence[Unit]) -> list[Any]:
    """As XCom holds them."""
    # XCom writes a tuple as an object of its own kind; JSON has lists.
    plain: list[Any] = msgspec.json.decode(msgspec.json.encode(units))
    return plain


def unpacked(unit: Any) -> Unit:
    """What `packed` has made of a unit."""
    return from_plain(unit, Unit)


def units_of(calls: Sequence[JobOnTable], units_count_max: int) -> list[Unit]:
    """A unit a table, in the order of `calls`; where that would be too many, several tables that need no Spark share one first.

    >>> [unit.name for unit in units_of([JobOnTable(job="compact", table=f"c.db.t{n}", submit=False) for n in range(5)], 2)]
    ['c.db.t0 and 2 more', 'c.db.t3 and 1 more']
    """
    of_table: dict[str, list[JobOnTable]] = {}
    for call in calls:
        of_table.setdefault(call.table, []).append(call)
    if len(of_table) <= units_count_max:
        return [_unit([table], of_table) for table in of_table]
    large = [table for table, of in of_table.items() if any(call.submit for call in of)]
    small = [table for table in of_table if table not in {*large}]
    large_units = _shared(large, max(1, units_count_max // 2) if small else units_count_max)
    small_units = _shared(small, max(1, units_count_max - len(large_units)))
    return [_unit(tables, of_table) for tables in (*large_units, *small_units)]


def _shared(tables: Sequence[str], units_count: int) -> list[tuple[str, ...]]:
    """Tables in at most so many parts of nearly the same length."""
    length = -(-len(tables) // units_count) or 1
    return [tuple(tables[at : at + length]) for at in range(0, len(tables), length)]


def _unit(tables: Sequence[str], of_table: Mapping[str, Sequence[JobOnTable]]) -> Unit:
    return Unit(
        name=f"{tables[0]}{and_more(tables)}", calls=tuple(call for table in tables for call in of_table[table])
    )
