"""Iceberg Java expires snapshots, or removes orphan files, by its procedures; and counts the rows of what is left."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from bench.rival.engines import Java, Target

SOME = 100


def expire_snapshots(engine: Java, target: Target) -> Callable[[], Any]:
    def work() -> Callable[[], Any]:
        [row] = engine.call("expire_snapshots", target, older_than=_moment(engine), retain_last="1")
        return row.asDict

    return work


def remove_orphan_files(engine: Java, target: Target) -> Callable[[], Any]:
    dry_run = str(engine.request["is_dry_run"]).lower()

    def work() -> Callable[[], Any]:
        rows = engine.call("remove_orphan_files", target, older_than=_moment(engine), dry_run=dry_run)
        some = [row["orphan_file_location"].rpartition("/")[2] for row in rows[:SOME]]
        return lambda: {"orphans_count": len(rows), "some": some}

    return work


def rows(engine: Java, target: Target) -> dict[str, int]:
    [row] = engine.spark.sql(f"SELECT count(*) FROM {engine.full_name(target)}").collect()
    return {"rows": row[0]}


def _moment(engine: Java) -> str:
    return f"TIMESTAMP '{datetime.fromtimestamp(engine.request['older_than_ms'] / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}'"
