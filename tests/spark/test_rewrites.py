"""What of a rewrite only Spark does, and each job that rewrites files there: what it does in threads is tested without Spark."""

from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.errors import JobFailedError
from icekeep.maintenance.compact import job as compaction
from icekeep.maintenance.compact import method as methods
from icekeep.maintenance.compact.job import compact, plan_compact
from icekeep.maintenance.compact.options import RewriteMethod
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.planning.spark import workers
from icekeep.planning.spark.session import LIMITS, Engine
from icekeep.planning.spark.workers import executor_slots
from icekeep.tables.verbs import append
from kit.cases import thinned
from kit.deletes import data_files
from kit.lake import Lake, events
from kit.runtime import limited
from kit.spark_jobs import last_job
from unit.maintenance.compact.test_compact_methods import ALL, rows, with_deletes, written


@pytest.mark.parametrize(
    ("format_version", "order"),
    thinned(
        [(3, None), (3, "id DESC"), (2, "zorder(id, amount)"), (3, "zorder(id, amount)"), (2, "id DESC"), (2, None)], 2
    ),
)
def test_compaction_in_tasks_changes_no_row(
    lake: Lake, spark_session: SparkSession, format_version: int, order: str | None
) -> None:
    table = with_deletes(lake, format_version)
    lineage = () if format_version == 2 else ("_row_id", "_last_updated_sequence_number")
    before = rows(table, *lineage)
    result = compact(table, spark_session, sort_order=order, options=ALL, verify=True)
    assert (result.rewritten_data_files_count, result.added_data_files_count) == (9, 3)
    assert result.deleted_records_count == 16
    assert rows(lake.load(), *lineage) == before
    assert compact(lake.load(), spark_session, sort_order=order).rewritten_data_files_count == 0


@pytest.mark.parametrize(
    "job",
    [
        lambda table, spark: compact(table, spark, options=ALL),
        convert_equality_deletes,
        lambda table, spark: rewrite_position_deletes(table, spark, options={"rewrite-all": "true"}),
    ],
    ids=["compact", "convert_equality_deletes", "rewrite_position_deletes"],
)
def test_what_is_little_is_no_spark_job_though_a_session_is_given(
    lake: Lake, spark_session: SparkSession, job: Callable[[Table, Engine], Any]
) -> None:
    table = with_deletes(lake)
    before, jobs = rows(table), last_job()
    job(table, Engine(spark=spark_session, limits=LIMITS))
    changed = lake.load()
    assert changed.metadata_location != table.metadata_location
    assert (rows(changed), last_job()) == (before, jobs)
    # So a test that counts jobs can fail.
    compact(changed, spark_session, options=ALL)
    assert last_job() > jobs


@pytest.mark.parametrize("partial", thinned(["true", "false"], 2))
def test_a_task_that_fails_leaves_none_of_its_groups_files(
    lake: Lake, spark_session: SparkSession, partial: str
) -> None:
    table = with_deletes(lake)
    broken = lake.directory / "warehouse" / data_files(table)[0].file_path.partition("/warehouse/")[2]
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    before, on_disk = table.metadata.current_snapshot_id, lake.content_on_disk()
    options = ALL | {"partial-progress.enabled": partial}
    if partial == "true":
        result = compact(table, spark_session, options=options)
        assert (result.status, result.added_data_files_count, result.failed_data_files_count) == ("partial", 2, 3)
        new = {path for path in lake.content_on_disk() - on_disk if "/data/" in str(path)}
        assert len(new) == 2
    else:
        with pytest.raises(JobFailedError, match="its files are as they were and the new files are removed"):
            compact(table, spark_session, options=options)
        assert (lake.load().metadata.current_snapshot_id, lake.content_on_disk()) == (before, on_disk)


@pytest.mark.parametrize(("options", "jobs_count"), [({}, 1), ({"max-concurrent-file-group-rewrites": "2"}, 3)])
def test_all_groups_are_one_spark_job(
    lake: Lake,
    spark_session: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    jobs_count: int,
) -> None:
    """Unless it is said how many go at a time."""
    execution: Any = import_module("icekeep.maintenance.compact.execute")
    table, real, jobs = lake.filled(), execution.finished_tasks, []

    def counted(spark: SparkSession, payloads: Any, **named: Any) -> Any:
        jobs.append(len(payloads))
        return real(spark, payloads, **named)

    monkeypatch.setattr(execution, "finished_tasks", counted)
    result = compact(table, spark_session, options=ALL | options)
    assert (result.rewritten_data_files_count, result.added_data_files_count) == (18, 3)
    assert (len(jobs), sum(jobs)) == (jobs_count, 3)


@pytest.mark.parametrize("format_version", thinned([3, 2], 2))
def test_deletes_are_rewritten_in_tasks(
    lake: Lake, spark_session: SparkSession, in_tasks: Engine, format_version: int
) -> None:
    table = with_deletes(lake, format_version)
    before = rows(table)
    result = rewrite_position_deletes(table, in_tasks, options={"rewrite-all": "true"}, convert_equality_deletes=True)
    assert result.conversion is not None
    assert (result.status, result.conversion.converted_equality_delete_files_count) == ("done", 1)
    assert rows(lake.load()) == before
    assert convert_equality_deletes(lake.load(), spark_session).is_idle


@pytest.mark.parametrize(("is_local", "parts"), thinned([(True, 7), (True, 1), (False, 1)], 2))
def test_several_threads_or_tasks_share_a_group_by_ranges_of_keys(
    lake: Lake, spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch, is_local: bool, parts: int
) -> None:
    """Into as many files as was planned, however many parts of the rows fit in memory, each by itself."""
    table = append(lake.create(partition_by=()), [events(n, 500) for n in range(8)])
    if not is_local:
        monkeypatch.setattr(workers, "is_local", lambda _: False)
    if parts > 1:
        size_bytes = sum(file.file_size_in_bytes for file in data_files(table))
        monkeypatch.setattr(compaction, "BUDGET_BYTES", methods.ARROW_GROWTH * size_bytes // parts + 1)
    before = rows(table)
    target = {"target-file-size-bytes": "12000"}
    engine = spark_session if is_local else limited(spark_session, sort_sample_bytes=0)
    plan = plan_compact(table, engine, sort_order="id", options=ALL | target)
    result = compact(table, engine, sort_order="id", options=ALL | target)
    assert result.added_data_files_count == plan.added_data_files_count > 1
    ranges = sorted((file["id"][0].as_py(), file["id"][-1].as_py()) for file in written(lake.load()))
    assert all(high < low for (_, high), (low, _) in pairwise(ranges))
    assert rows(lake.load()) == before


@pytest.mark.parametrize("order", thinned(["kind NULLS LAST, id", "hilbert(id, amount)"], 2))
def test_a_group_above_the_budget_goes_through_sparks_shuffle(
    lake: Lake, spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    table = with_deletes(lake, 3)
    before = rows(table, "_row_id")
    monkeypatch.setattr(compaction, "BUDGET_BYTES", 1000)
    plan = plan_compact(table, spark_session, sort_order=order, options=ALL)
    assert {group.method for group in plan.groups} == {RewriteMethod.SHUFFLE}
    result = compact(table, spark_session, sort_order=order, options=ALL)
    assert result.deleted_records_count == 16
    assert rows(lake.load(), "_row_id") == before


def test_a_session_of_many_partitions_on_one_machine_changes_nothing_about_memory(
    lake: Lake, spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `spark.default.parallelism=400` each task had the 400th part of the machine, and refused files."""
    table = append(lake.create(partition_by=()), [events(n, 500) for n in range(8)])
    tasks: list[Any] = []
    module = import_module("icekeep.maintenance.compact.execute")
    whole = module.group_task

    def noted(*arguments: Any) -> Any:
        tasks.append(whole(*arguments))
        return tasks[-1]

    monkeypatch.setattr(module, "group_task", noted)
    monkeypatch.setattr(SparkContext, "defaultParallelism", property(lambda _: 400))
    result = compact(table, spark_session, sort_order="id", options=ALL | {"target-file-size-bytes": "12000"})
    assert {(task.slots, task.is_local) for task in tasks} == {(executor_slots(spark_session), True)}
    # As many threads at once as there are cores, not 400.
    assert result.added_data_files_count < 100
