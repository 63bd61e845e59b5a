"""Partitions with more files than one task plans: planned in ranges of keys, each of which becomes groups by itself."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader
from icekeep.events import Warned
from icekeep.maintenance.compact import key_ranges
from icekeep.maintenance.compact.job import compact, plan_compact
from icekeep.maintenance.compact.plan import GroupFile, RewritePlan, group_files
from icekeep.planning.spark.session import Engine
from icekeep.spec.evolution import RemovePartitionField
from icekeep.spec.types import LONG
from icekeep.spec.values import value_from_bytes
from icekeep.tables.verbs import append, update_spec
from kit.cases import thinned
from kit.lake import Lake, events
from spark.test_compaction_plans import IN_TASKS, appended, bounded, described, equalities, planned, with_deletes

LIMIT = 12


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ranges, "PLANNED_FILES_COUNT", LIMIT)


def crowded(lake: Lake, *, count: int = 40) -> Table:
    """Two partitions: one of many files, whose keys overlap by twos, in no order of their paths; and one of few."""
    table = lake.create(partition_by=(("kind", "identity"),))
    order = np.random.default_rng(7).permutation(count).tolist()
    files = [
        described(table, f"{name:03d}", 100, ("a",), **bounded(10 * place, 10 * place + 15, "a"))
        for name, place in enumerate(order)
    ]
    few = [described(table, f"few-{n}", 100, ("b",), **bounded(n, n + 5, "b")) for n in range(7)]
    table = appended(table, [*files[: count // 2], *few])
    table = appended(table, files[count // 2 :])
    return with_deletes(table, equalities(table, "e", ("a",)))


def files_of(found: RewritePlan, table: Table) -> list[tuple[GroupFile, ...]]:
    return [group_files(group, table.storage).files for group in found.groups]


def all_in_tasks(table: Table, spark: SparkSession, order: str | None, **given: Any) -> RewritePlan:
    return planned(table, spark, order, limit=IN_TASKS, rewrite_all="true", **given)


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("order", thinned(["zorder(id, kind)", "id", "id DESC"], 3))
def test_a_partition_of_many_files_is_cut_and_each_file_is_in_one_group(
    lake: Lake, spark_session: SparkSession, order: str | None
) -> None:
    table = crowded(lake)
    found = all_in_tasks(table, spark_session, order)
    groups = files_of(found, table)
    by_partition = Counter(group.partition for group in found.groups)
    assert by_partition == {"kind=a": 4, "kind=b": 1}
    assert all(len(files) < LIMIT * 1.5 for files in groups)
    names = [file.file_path.rsplit("/", 1)[-1] for files in groups for file in files]
    assert sorted(names) == sorted([*(f"{n:03d}" for n in range(40)), *(f"few-{n}" for n in range(7))])
    # Each knows its deletes, which others share.
    assert {len(file.deletes) for files in groups for file in files if file.partition == files[0].partition} == {0, 1}
    assert found.notes == (
        "partition 'kind=a' has 40 data files, more than the 12 that one task plans: they are planned as 4 ranges of the sort "
        "order, each by itself; nothing is to be done, but finer partitions would be planned faster",
    )


@pytest.mark.usefixtures("few_files")
def test_ranges_of_a_sort_follow_one_another_in_its_keys(lake: Lake, spark_session: SparkSession) -> None:
    table = crowded(lake)
    found = all_in_tasks(table, spark_session, "id")
    bounds = {}
    for manifest in table_entries(table):
        bounds[manifest.file_path] = value_from_bytes(LONG, manifest.lower_bounds[1])
    ranges_of_a = [
        [bounds[file.file_path] for file in group_files(group, table.storage).files]
        for group in found.groups
        if group.partition == "kind=a"
    ]
    in_order = [key for keys in ranges_of_a for key in keys]
    assert in_order == sorted(in_order)
    assert len(in_order) == 40


def table_entries(table: Table) -> list[Any]:
    reader = ManifestReader(table.storage)
    manifests = reader.manifests(table.metadata.current_snapshot)
    entries = [entry for m in manifests for entry in reader.entries(m, table.metadata)]
    return [entry.data_file for entry in entries if entry.data_file.content == 0]


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("order", thinned([None, "id"], 2))
def test_files_whose_keys_nobody_knows_are_cut_by_their_paths(
    lake: Lake, spark_session: SparkSession, order: str | None
) -> None:
    table = lake.create(partition_by=())
    table = appended(table, [described(table, f"{n:03d}", 100) for n in range(50)])
    found = all_in_tasks(table, spark_session, order)
    assert len(found.groups) == 5
    assert f"planned as 5 ranges of {'paths' if order is None else 'the sort order'}, " in found.notes[0]
    paths = [file.file_path for files in files_of(found, table) for file in files]
    assert paths == sorted(paths)
    assert len(paths) == 50


@pytest.mark.usefixtures("few_files")
def test_a_limit_of_files_cuts_a_group_of_one_range(lake: Lake, spark_session: SparkSession) -> None:
    table = crowded(lake)
    whole = all_in_tasks(table, spark_session, "id")
    first, second = whole.groups[:2]
    count = first.files_count + second.files_count - 3
    found = all_in_tasks(table, spark_session, "id", run="2", max_files_to_rewrite=str(count))
    assert [group.files_count for group in found.groups] == [first.files_count, second.files_count - 3]
    assert files_of(found, table)[1] == files_of(whole, table)[1][:-3]


@pytest.mark.usefixtures("few_files")
@pytest.mark.parametrize("order", thinned(["id", None, "hilbert(id, amount)"], 3))
def test_rows_stay_and_the_operator_is_told(
    lake: Lake, spark_session: SparkSession, in_tasks: Engine, order: str | None
) -> None:
    table = lake.create(partition_by=())
    for number in range(4):
        table = append(table, [events(number * 9 + n, 5) for n in range(9)])
    rows, told = lake.rows(), Told()
    options = {"rewrite-all": "true"}
    preview = plan_compact(table, in_tasks, sort_order=order, options=options, listener=told)
    assert len(told.warnings) == 1
    result = compact(table, in_tasks, sort_order=order, options=options, listener=told)
    assert (preview.rewritten_data_files_count, result.rewritten_data_files_count) == (36, 36)
    assert len(preview.groups) == 3
    assert [warning for warning in told.warnings if "36 data files" in warning] == [told.warnings[0]] * 2
    assert lake.rows() == rows


class Told:
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on(self, event: Any) -> None:
        if isinstance(event, Warned):
            self.warnings.append(event.message)


@pytest.mark.usefixtures("few_files")
def test_files_that_move_to_another_spec_are_cut_whatever_their_partitions(
    lake: Lake, spark_session: SparkSession
) -> None:
    table = update_spec(crowded(lake), [RemovePartitionField("kind")])
    found = all_in_tasks(table, spark_session, "id", output_spec_id="1")
    assert len(found.groups) == 4
    assert sum(group.files_count for group in found.groups) == 47
    assert "a partition spec that files move from has 47 data files" in found.notes[0]


@pytest.mark.usefixtures("few_files")
def test_a_binpack_of_a_partition_holds_a_group_at_a_time_and_is_not_cut(
    lake: Lake, spark_session: SparkSession
) -> None:
    found = all_in_tasks(crowded(lake), spark_session, None)
    assert (len(found.groups), found.notes) == (2, ())


def test_tables_of_ordinary_partitions_are_planned_as_before(lake: Lake, spark_session: SparkSession) -> None:
    found = all_in_tasks(crowded(lake), spark_session, "id")
    assert (len(found.groups), found.notes) == (2, ())


@pytest.mark.usefixtures("few_files")
def test_a_filter_that_leaves_no_file_of_a_crowded_partition_leaves_nothing_to_do(lake: Lake, in_tasks: Engine) -> None:
    table = lake.create(partition_by=())
    for number in range(2):
        table = append(table, [events(number * 9 + n, 5) for n in range(9)])
    plan = plan_compact(table, in_tasks, where="id < 0", options={"rewrite-all": "true"})
    assert plan.rewritten_data_files_count == 0
