"""Plans of position deletes over tables of described files: the driver and Spark tasks come to the same groups."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.deletes.live_rows import load_live_files
from icekeep.maintenance.deletes.options import RewritePositionDeletesOptions
from icekeep.maintenance.deletes.plan import DeleteGroup, DeletesPlan, plan
from icekeep.maintenance.options import parse_options
from icekeep.planning.scan.plan import open_scan
from icekeep.spec.properties import own_directory
from kit.deletes import data_files, delete_positions
from kit.lake import Lake
from kit.runtime import limited
from spark.test_compaction_plans import generated
from unit.maintenance.compact.test_compact_methods import rows

ALL = {"rewrite-all": "true"}
IN_TASKS = {"entries_count": -1}


def planned(table: Table, spark: Any, directory: str | None = None, **limits: int) -> DeletesPlan:
    options = parse_options(RewritePositionDeletesOptions, ALL)
    return plan(open_scan(table), limited(spark, **limits), options, branch="main", directory=directory)


def described(group: DeleteGroup) -> tuple[Any, ...]:
    return group.number, group.partition, group.files, group.tasks_count


def live_numbers(group: DeleteGroup, table: Table) -> dict[str, Any]:
    files = load_live_files(group.live, table.storage)
    found = {file.file_path: files.get(file.file_path) for file in data_files(table)}
    return {path: file for path, file in found.items() if file is not None}


@pytest.mark.parametrize(("seed", "has_vectors"), [(1, False), (3, True)])
def test_tasks_come_to_the_groups_that_the_driver_comes_to(
    lake: Lake, spark_session: SparkSession, seed: int, has_vectors: bool
) -> None:
    table = generated(lake, seed, has_vectors=has_vectors)
    directory = own_directory(table.metadata, "plans/1")
    few = planned(table, spark_session)
    many = planned(table, spark_session, directory, **IN_TASKS)
    assert [*map(described, many.groups)] == [*map(described, few.groups)]
    assert (many.dangling, many.candidate_files_count) == (few.dangling, few.candidate_files_count)
    for here, there in zip(few.groups, many.groups, strict=True):
        assert live_numbers(here, table) == live_numbers(there, table)
    if not has_vectors:
        assert not few.has_stored
        assert many.has_stored
        stored = {part.location for group in many.groups for part in group.live if part.location is not None}
        assert {file.location for file in table.storage.list(directory)} >= stored
    # A preview puts nothing anywhere.
    before = lake.files_on_disk()
    assert [*map(described, planned(table, spark_session, **IN_TASKS).groups)] == [*map(described, few.groups)]
    assert lake.files_on_disk() == before


def test_data_files_that_tasks_have_put_into_storage_are_used_and_removed(
    lake: Lake, spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.filled(commits=3, format_version=2)
    for n in range(3):
        files = data_files(table)
        table = delete_positions(table, [(file.file_path, n) for file in files if file.partition == files[0].partition])
    before, on_disk = rows(table), lake.files_on_disk()
    result = rewrite_position_deletes(table, limited(spark_session, **IN_TASKS), options=ALL)
    assert (result.status, result.rewritten_delete_files_count) == ("done", 3)
    assert rows(lake.load()) == before
    assert not [path for path in lake.files_on_disk() - on_disk if ".icekeep/plans" in str(path)]


def test_a_plan_that_fails_leaves_nothing_of_what_tasks_have_stored(
    lake: Lake, spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = generated(lake, 1)
    on_disk = lake.files_on_disk()

    def fail(*_: Any) -> Any:
        raise OSError("no more")

    monkeypatch.setattr("icekeep.maintenance.deletes.plan.groups_of", fail)
    with pytest.raises(OSError, match="no more"):
        rewrite_position_deletes(table, limited(spark_session, **IN_TASKS), options=ALL)
    assert lake.files_on_disk() == on_disk
