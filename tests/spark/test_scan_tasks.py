"""Tasks of a large scan: each split is read once, whatever Spark computes again, and each task by a reader of its own."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from icekeep.planning import deletes as delete_join
from icekeep.planning import deletes as delete_tasks
from icekeep.planning.scan import plan as scan_plan
from icekeep.planning.scan import tasks as task_groups
from icekeep.planning.scan.tasks import plan_tasks
from icekeep.planning.spark.rows import arrow_table
from icekeep.planning.spark.session import Engine
from icekeep.tables.read import read_batches, read_table, scan
from kit.deletes import data_files, delete_equal, delete_positions
from kit.lake import Lake, multiset

COALESCED = "spark.sql.adaptive.coalescePartitions.minPartitionNum"
PROPERTIES = {"read__split__target_size": "1", "read__split__open_file_cost": "1"}


@pytest.fixture
def lake(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Joined with the deletes as if these were many."""
    monkeypatch.setattr(delete_join, "BROADCAST_MAX_COUNT", 0)
    return lake


@contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Spark's settings while the block lasts."""
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def scan_again(frame: DataFrame) -> pa.Table:
    """The rows of a frame, planned by Spark anew."""
    return arrow_table(frame.select("*"))


def with_deletes(lake: Lake, files: int) -> Any:
    table = lake.filled(commits=1, files=files, rows=20, **PROPERTIES)
    for file in data_files(table)[:2]:
        table = delete_positions(table, [(file.file_path, 3)])
    return table


def test_batches_are_read_here_by_the_tasks_that_spark_has_planned(lake: Lake, in_tasks: Engine) -> None:
    table = with_deletes(lake, files=9)
    reader = read_batches(table, in_tasks, where="id >= 5")
    assert multiset(reader.read_all()) == multiset(read_table(table, where="id >= 5"))


@pytest.mark.parametrize("order", [F.asc, F.desc])
def test_task_ids_do_not_depend_on_the_order_in_which_files_arrive(
    lake: Lake, in_tasks: Engine, monkeypatch: pytest.MonkeyPatch, order: Callable[[str], Any]
) -> None:
    """Rows of a shuffle arrive as blocks do; a partition that is computed again must give the same tasks."""
    table = with_deletes(lake, files=9)
    planned = task_groups.planned_files_with_deletes
    monkeypatch.setattr(
        task_groups,
        "planned_files_with_deletes",
        lambda *args: planned(*args).coalesce(1).sortWithinPartitions(order("file_path")),
    )
    found = {(row["file_path"], row["start"]): row["task_id"] for row in plan_tasks(table, in_tasks).collect()}
    by_path = [found[key] for key in sorted(found)]
    assert len(set(by_path)) > 2
    assert by_path == sorted(by_path)


def test_each_task_of_a_large_scan_has_a_reader_of_its_own(lake: Lake, in_tasks: Engine) -> None:
    """Hashes of ids put several tasks into one reader and none into others."""
    table = with_deletes(lake, files=12)
    tasks = plan_tasks(table, in_tasks).groupBy("task_id").agg(F.collect_set("file_path").alias("paths")).collect()
    frame = scan(table, in_tasks, select=["id", "_file"])
    readers = (
        frame.withColumn("reader", F.spark_partition_id()).groupBy("reader").agg(F.collect_set("_file").alias("paths"))
    )
    assert sorted(sorted(row["paths"]) for row in readers.collect()) == sorted(sorted(row["paths"]) for row in tasks)
    assert len(tasks) > 4
    assert frame.rdd.getNumPartitions() == len(tasks)
    assert frame.count() == 12 * 20 - 2


@pytest.mark.nightly
def test_partitions_that_are_crowded_with_deletes_give_the_same_tasks(
    lake: Lake, in_tasks: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = with_deletes(lake, files=9)
    gone = pa.table({"kind": pa.array(["kind-1"])})
    table = delete_equal(table, gone, ["kind"], like=data_files(table)[0])
    found = []
    for crowded in (2_000, 0):
        monkeypatch.setattr(delete_tasks, "CROWDED_COUNT", crowded)
        monkeypatch.setattr(scan_plan, "CROWDED_COUNT", crowded)
        rows = plan_tasks(table, in_tasks).sort("file_path", "start").drop("task_id").collect()
        found.append(([row.asDict(recursive=True) for row in rows], multiset(arrow_table(scan(table, in_tasks)))))
        monkeypatch.setattr(scan_plan, "with_deletes", None)
    assert found[0] == found[1]
    assert {len(row["deletes"]) for row in found[0][0]} == {1, 2}
    assert found[0][1] == multiset(arrow_table(scan(table, in_tasks.spark)))


def test_a_large_scan_without_files_has_no_rows(lake: Lake, in_tasks: Engine) -> None:
    table = with_deletes(lake, files=2)
    frame: DataFrame = scan(table, in_tasks, where="id < -5")
    assert (frame.columns[0], frame.count()) == ("id", 0)


def test_a_plan_that_spark_makes_otherwise_when_rows_are_read_gives_each_split_its_own_deletes(
    lake: Lake, in_tasks: Engine, spark_session: SparkSession
) -> None:
    """Tasks are counted when the scan is made, and planned again when rows are read: Spark may divide the join otherwise then."""
    table = lake.filled(commits=6, files=2, rows=20, **PROPERTIES)
    for file in data_files(table):
        table = delete_positions(table, [(file.file_path, 3)])
    settings = {"spark.sql.shuffle.partitions": "16", "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1b"}
    with configured(spark_session, settings | {COALESCED: "1"}):
        frame = scan(table, in_tasks, select=["id", "_file"])
        expected = multiset(arrow_table(frame))
        assert expected.total() == 12 * 19
        for other in ({COALESCED: "16"}, {"spark.sql.adaptive.enabled": "false"}):
            with configured(spark_session, other):
                assert multiset(scan_again(frame)) == expected
