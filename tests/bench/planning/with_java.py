"""Iceberg Java plans a scan: `planFiles` in a planning mode, or a query over the metadata table `files`."""

from collections.abc import Callable
from typing import Any

from bench.rival.engines import Java, Target


def plan(engine: Java, target: Target) -> Callable[[], Any]:
    """Of a table that was just loaded, which is not counted."""
    return planning(engine, engine.load(target), target, engine.request["sql"])


def planning(engine: Java, table: Any, target: Target, sql: str) -> Callable[[], Any]:
    session, name, ours = engine.spark._jsparkSession, engine.full_name(target), engine.ours

    def work() -> Callable[[], dict[str, int]]:
        files, size_bytes = ours.Planning.plan(session, table, name, sql)
        return lambda: _said(files, size_bytes)

    return work


def query_files(engine: Java, target: Target) -> Callable[[], Any]:
    columns = "count(*), coalesce(sum(file_size_in_bytes), 0)"
    text = f"SELECT {columns} FROM {engine.full_name(target)}.files WHERE {engine.request['files_sql']}"

    def work() -> Callable[[], dict[str, int]]:
        [row] = engine.spark.sql(text).collect()
        return lambda: _said(*row)

    return work


def _said(files: int, size_bytes: int) -> dict[str, int]:
    return {"data_files_count": files, "data_files_bytes": size_bytes}
