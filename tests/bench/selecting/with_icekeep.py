"""icekeep reads the rows that a filter leaves."""

from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc

from bench.rival.engines import Icekeep, Target
from icekeep import read_table


def select(engine: Icekeep, target: Target) -> Callable[[], Any]:
    table, where = engine.load(target), engine.request["where"]

    def work() -> Callable[[], Any]:
        for _ in range(engine.request["queries"]):
            rows = read_table(table, where=where)
        return lambda: {"rows_count": rows.num_rows, "keys": pc.sum(rows["l_orderkey"]).as_py()}

    return work
