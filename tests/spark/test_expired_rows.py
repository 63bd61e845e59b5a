"""`expire_rows` in Spark's tasks does what it does on the driver."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.maintenance.expire_rows.job import exact_expire_rows, expire_rows, plan_expire_rows
from icekeep.maintenance.expire_rows.plan import DATA_FILE
from icekeep.maintenance.rewrite.run import WRITTEN
from icekeep.planning.spark.session import Engine
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.properties import own_directory
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions
from kit.lake import EVENTS, Lake, events
from kit.rows import scanned_rows
from kit.runtime import NOTHING_HERE, no_spark

WHERE = "id < 3000010"
ONE_WAY = frozenset(
    {
        *("elapsed_ms", "run_id", "peak_task_bytes", "snapshot_id", "where"),
        *("added_bytes_count", "added_delete_files_count", "removed_bytes_count", "removed_delete_files_count"),
    }
)
"""What differs from run to run, or by the number of tasks; a plan of many files does not say which delete files go."""


def figures(result: Any) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(result).items() if name not in ONE_WAY}


def least_id(file: DataFile) -> int:
    return int.from_bytes((file.lower_bounds or {})[1], "little")


def filled(lake: Lake, version: int) -> Table:
    table = lake.filled(commits=4, files=2, format_version=version)
    first, second, *_ = sorted(data_files(table), key=least_id)
    if version == 3:
        return delete_by_vector(table, first.file_path, [1, 2])
    table = delete_positions(table, [(first.file_path, 1), (second.file_path, 2)])
    return delete_equal(table, events(3, 3).select(["id"]), ["id"], like=first)


@pytest.mark.parametrize("edge", ["keep", "deletes", "rewrite"])
@pytest.mark.parametrize("version", [2, 3])
def test_tasks_do_what_the_driver_does(spark_session: SparkSession, tmp_path: Path, version: int, edge: str) -> None:
    lakes = [Lake(tmp_path / name) for name in ("driver", "tasks")]
    sources = [no_spark, Engine(spark=spark_session, limits=NOTHING_HERE)]
    tables = [filled(lake, version) for lake in lakes]
    arguments = {"where": WHERE, "edge": edge}
    plans = [plan_expire_rows(table, source, **arguments) for table, source in zip(tables, sources, strict=True)]
    assert figures(plans[0]) == figures(plans[1])
    assert plans[0].removed_data_files_count == 3
    assert plans[1].removed_delete_files_count is None
    lines = [
        sorted((line.do, line.record_count) for line in exact.lines if line.kind == DATA_FILE)
        for exact in (
            exact_expire_rows(table, source, **arguments) for table, source in zip(tables, sources, strict=True)
        )
    ]
    assert lines[0] == lines[1]
    assert len(lines[0]) == (3 if edge == "keep" else 4)
    done = [expire_rows(table, source, **arguments) for table, source in zip(tables, sources, strict=True)]
    assert figures(done[0]) == figures(done[1])
    after = [lake.catalog.load(EVENTS) for lake in lakes]
    assert scanned_rows(after[0]) == scanned_rows(after[1])
    directory = own_directory(after[1].metadata, "runs")
    assert [file.location for file in after[1].storage.list(directory) if f"/{WRITTEN}/" in file.location] == []
