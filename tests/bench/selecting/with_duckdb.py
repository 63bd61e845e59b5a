"""DuckDB reads the rows that a filter leaves, by its Iceberg extension."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from bench.rival.engines import DuckDb, Target


def select(engine: DuckDb, target: Target) -> Callable[[], Any]:
    metadata = Path(target["path"]) / "metadata"
    version = (metadata / "version-hint.text").read_text().strip()
    [location] = metadata.glob(f"v{version}.*metadata.json")
    query = f"SELECT * FROM iceberg_scan('{location}') WHERE {engine.request['where']}"

    def work() -> Callable[[], Any]:
        for _ in range(engine.request["queries"]):
            rows = engine.connection.execute(query).to_arrow_table()
        return lambda: {"rows_count": rows.num_rows, "keys": int(pc.sum(rows["l_orderkey"]).as_py() or 0) or None}

    return work
