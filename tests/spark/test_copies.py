"""Copies in Spark's tasks: of data files, deletes, manifests and lists, each by tasks that reach both stores."""

from icekeep.maintenance.check.job import check
from icekeep.maintenance.copy.job import copy_table
from icekeep.maintenance.copy.rewrite_path import plan_rewrite_table_path, rewrite_table_path
from icekeep.planning.spark.session import Engine
from icekeep.tables.read import read_table
from icekeep.tables.verbs import append
from kit.deletes import data_files, delete_by_vector, delete_positions
from kit.lake import Lake, events, multiset
from kit.runtime import no_spark

COPY = ("db", "copied")


def test_tasks_copy_what_threads_copy(lake: Lake, in_tasks: Engine) -> None:
    table = lake.filled(commits=3, files=2)
    table = delete_positions(table, [(data_files(table)[0].file_path, 1)])
    copied = copy_table(table, lake.catalog, COPY, in_tasks, verify=True)
    assert copied.copied_files_count == 6
    table = append(table, events(90, 3))
    assert copy_table(table, lake.catalog, COPY, in_tasks, increment=True).copied_files_count == 1
    made = lake.catalog.load(COPY)
    assert multiset(read_table(made)) == multiset(read_table(lake.load()))
    assert check(made, no_spark, deep=True).status == "sound"
    again = copy_table(table, lake.catalog, COPY, in_tasks)
    assert (again.copied_files_count, again.files_count) == (0, 0)


def test_tasks_stage_what_threads_plan(lake: Lake, in_tasks: Engine) -> None:
    table = lake.filled(commits=3, files=2, format_version=3)
    table = delete_by_vector(table, data_files(table)[0].file_path, [1, 2])
    target = f"{lake.directory.as_uri()}/elsewhere"
    planned = plan_rewrite_table_path(table, no_spark, target_prefix=target)
    assert rewrite_table_path(table, in_tasks, target_prefix=target).files == planned.files
