"""iceberg-zamboni compacts a table with its own engine: PyIceberg reads and writes, DuckDB sorts."""

from collections.abc import Callable
from typing import Any

from bench.rival.engines import Target, Zamboni


def rewrite_data_files(engine: Zamboni, target: Target) -> Callable[[], Any]:
    from zamboni.compactor import TableCompactor
    from zamboni.config import CompactionConfig

    name = engine.register(target)
    config = CompactionConfig(
        rewrite_all=True,
        target_file_size_bytes=int(engine.request["options"]["target-file-size-bytes"]),
        **_order(engine.request["arguments"].get("sort_order")),
    )

    def work() -> Callable[[], Any]:
        done = TableCompactor(engine.session, name, config).execute()
        return lambda: {
            "rewritten_data_files_count": done.rewritten_data_files,
            "added_data_files_count": done.added_data_files,
        }

    return work


def _order(sort_order: str | None) -> dict[str, Any]:
    if sort_order is None:
        return {}
    if sort_order.startswith("zorder("):
        return {"zorder_columns": tuple(sort_order.removeprefix("zorder(").rstrip(")").split(", "))}
    return {"sort_expression": sort_order}
