"""icekeep plans a scan."""

from collections.abc import Callable
from functools import cache
from typing import Any

from bench.rival.engines import Icekeep, Target
from icekeep import plan_scan


def plan(engine: Icekeep, target: Target) -> Callable[[], Any]:
    """Of a table that was just loaded, which is not counted; with a memory, if the request says so, that earlier plans filled."""
    table = engine.load(target)
    return planning(
        engine, _memory().over(table) if engine.request.get("remembers") else table, engine.request["where"]
    )


@cache
def _memory() -> Any:
    from icekeep import Memory

    return Memory()


def planning(engine: Icekeep, table: Any, where: str) -> Callable[[], Any]:
    def work() -> Callable[[], dict[str, int]]:
        found = plan_scan(table, engine.spark, where=where)
        count, size = found.data_files_count, found.data_files_bytes
        return lambda: {"data_files_count": count, "data_files_bytes": size}

    return work
