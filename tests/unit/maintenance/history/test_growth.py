"""The points of a plot: one a commit of a branch, of many commits some at even distances."""

from typing import Any

import pytest
from msgspec.structs import replace

from icekeep.errors import NotFoundError
from icekeep.health.values import MeteredStorage
from icekeep.maintenance.history import commit_history, growth_points
from kit.tables import add, appends, memory_table, set_ref, wait


def test_the_points_are_those_of_the_history() -> None:
    table = appends(count=5)
    assert growth_points(table) == commit_history(table).growth
    assert [point.data_files_count for point in growth_points(table)] == [1, 3, 6, 10, 15]


def test_of_many_commits_some_are_read_the_first_and_the_last_among_them() -> None:
    table = appends(count=9)
    metered = MeteredStorage(table.storage)
    points = growth_points(replace(table, storage=metered), most=3)
    assert [point.data_files_count for point in points] == [1, 15, 45]
    assert metered.requests_count == 3


def test_commits_that_are_asked_for_are_among_them() -> None:
    table = appends(count=9)
    asked = [table.metadata.snapshots[1].snapshot_id, 77]
    assert [p.data_files_count for p in growth_points(table, most=3, also=asked)] == [1, 3, 15, 45]


def test_a_branch_has_points_of_its_own() -> None:
    table = appends(count=2)
    table = set_ref(wait(table), "audit", table.metadata.snapshots[0].snapshot_id, "branch")
    table = add(wait(table), "on-audit", branch="audit")
    assert [point.data_files_count for point in growth_points(table, ref="audit")] == [1, 2]
    with pytest.raises(NotFoundError):
        growth_points(table, ref="nothing")


def test_a_list_that_cannot_be_read_leaves_a_point_without_figures() -> None:
    table = appends(count=3)
    storage: Any = table.storage
    del storage.files[table.metadata.snapshots[1].manifest_list]
    first, second, third = growth_points(table)
    assert (second.data_files_count, second.bytes, second.metadata_bytes) == (None, None, None)
    assert (first.data_files_count, third.data_files_count) == (1, 6)


def test_a_table_without_a_commit_has_no_point() -> None:
    assert growth_points(memory_table()) == ()
