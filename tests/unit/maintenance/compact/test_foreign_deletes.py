"""Position deletes as Iceberg Java writes them in version 2: equal bounds of `file_path` alone say of which file they are."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.retry import commit
from icekeep.errors import InvalidTableError
from icekeep.health.job import table_health
from icekeep.maintenance.check.faults import FaultId
from icekeep.maintenance.check.job import check
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes.job import plan_rewrite_position_deletes, rewrite_position_deletes
from icekeep.maintenance.manifests.job import plan_rewrite_manifests, rewrite_manifests
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.schema import DELETE_FILE_PATH
from icekeep.tables.verbs import append, rollback_to_snapshot, upgrade_format_version
from kit.deletes import AddDeleteFile, data_files, delete_files, delete_positions, position_delete_files
from kit.job_world import World
from kit.lake import Lake, events
from kit.runtime import no_spark

BY_DELETES = {"min-file-size-bytes": "0"}
CLEAN = {"remove-dangling-deletes": "true"}


def filled(lake: Lake, files: int = 4, rows: int = 10) -> Table:
    return append(lake.create(partition_by=()), [events(number, rows) for number in range(files)])


def mostly_deleted(table: Table, *paths: str) -> Table:
    for path in paths:
        table = delete_positions(table, [(path, n) for n in range(9)], names_file=False)
    return table


def lying(table: Table, says: DataFile, *others: DataFile) -> Table:
    """The table with a delete file for several data files, whose bounds are the path of one of them."""
    [file] = position_delete_files(table, [(one, 0) for one in (says, *others)])
    bounds: dict[int, Any] = {DELETE_FILE_PATH.field_id: says.file_path.encode()}
    return commit(table, AddDeleteFile(replace(file, lower_bounds=bounds, upper_bounds=bounds))).table


def test_mostly_deleted_files_are_rewritten_with_their_deletes(lake: Lake) -> None:
    table = filled(lake)
    first, second, third, _ = data_files(table)
    table = mostly_deleted(table, first.file_path, second.file_path)
    table = delete_positions(table, [(third.file_path, 0)], names_file=False)
    before = lake.rows()
    result = compact(table, no_spark, options=BY_DELETES)
    assert (result.rewritten_data_files_count, result.removed_delete_files_count) == (2, 2)
    assert lake.rows() == before
    table = lake.load()
    assert [file.record_count for file in delete_files(table)] == [1]
    assert compact(table, no_spark, options={**BY_DELETES, **CLEAN}).commits_count == 0


def test_deletes_go_only_in_rewritten_partitions(lake: Lake) -> None:
    table = append(lake.create(), [events(number, 10, month=1 + number % 2) for number in range(4)])
    table = mostly_deleted(table, *(file.file_path for file in data_files(table)))
    before = lake.rows()
    kept = [file for file in delete_files(table) if file.partition == ((2013 - 1970) * 12 + 1,)]
    assert len(kept) == 2
    result = compact(table, no_spark, where="at < '2013-02-01'", options={"rewrite-all": "true"})
    assert (result.rewritten_data_files_count, result.removed_delete_files_count) == (2, 2)
    assert lake.rows() == before
    assert delete_files(lake.load()) == kept


@pytest.mark.parametrize("more", [{}, {"sort_order": "id"}])
def test_unreferenced_deletes_cost_no_additional_reads(more: Any) -> None:
    """What their rows are of is seen when they are applied."""
    calls = {}
    for names_file in (True, False):
        world = World(2)
        for number in range(5):
            world.append(number)
        for file in data_files(world.table)[:3]:
            delete_positions(world.table, [(file.file_path, 1)], names_file=names_file)
        paths = {file.file_path for file in delete_files(world.table)}
        asked: list[str] = []
        world.storage.before = lambda what, at, paths=paths, asked=asked: asked.append(what) if at in paths else None
        result = compact(world.table, no_spark, options={"rewrite-all": "true"}, **more)
        assert result.removed_delete_files_count == 3
        calls[names_file] = Counter(asked)
    assert calls[False] == calls[True]
    assert calls[True]


def test_a_delete_file_whose_bounds_hide_a_live_data_file_stays(lake: Lake) -> None:
    table = filled(lake)
    first, second, *_ = data_files(table)
    table = lying(mostly_deleted(table, first.file_path), first, second)
    result = compact(table, no_spark, options={**BY_DELETES, **CLEAN})
    assert (result.rewritten_data_files_count, result.removed_delete_files_count) == (1, 1)
    assert [file.record_count for file in delete_files(lake.load())] == [2]


def test_dangling_count_agrees_in_report_dry_run_and_run(lake: Lake) -> None:
    """An older file of the partition is never rewritten, so that sequence numbers alone keep every delete file."""
    table = filled(lake)
    paths = [file.file_path for file in data_files(table)]
    table = mostly_deleted(table, *paths[:3])
    table = commit(table, DeleteFiles(paths=frozenset(paths[:3]))).table
    deletes = table_health(table, no_spark).deletes
    [found] = [one for one in check(table, no_spark).notices if one.fault_id == FaultId.DANGLING_DELETE]
    planned = plan_rewrite_manifests(table, no_spark, options=CLEAN)
    assert (deletes.dangling_count, found.faults_count, planned.removed_delete_files_count) == (3, 3, 3)
    seen = plan_rewrite_position_deletes(table, no_spark)
    assert (seen.removed_dangling_delete_files_count, seen.rewritten_delete_files_count, seen.groups) == (3, 0, ())
    before = lake.rows()
    assert rewrite_manifests(table, no_spark, options=CLEAN).removed_delete_files_count == 3
    assert (lake.rows(), delete_files(lake.load())) == (before, [])
    rollback_to_snapshot(lake.load(), table.metadata.current_snapshot_id)
    result = rewrite_position_deletes(lake.load(), no_spark)
    assert (result.removed_dangling_delete_files_count, result.rewritten_delete_files_count) == (3, 0)
    assert result.removed_dangling_positions_count == 0
    assert (lake.rows(), delete_files(lake.load())) == (before, [])


@pytest.mark.parametrize("is_one_by_one", [True, False])
def test_bounds_that_are_wrong_give_no_data_file_two_vectors(lake: Lake, *, is_one_by_one: bool) -> None:
    table = filled(lake)
    first, second, *_ = data_files(table)
    table = lying(table, first, second)
    table = delete_positions(table, [(second.file_path, 5)], names_file=False)
    table = commit(table, DeleteFiles(paths=frozenset([first.file_path]))).table
    table = upgrade_format_version(table, 3)
    if is_one_by_one:
        with pytest.raises(
            InvalidTableError, match="would be given 2 deletion vectors: bounds of file_path say wrongly"
        ):
            rewrite_position_deletes(table, no_spark, options={"max-file-group-input-files": "1"})
        assert lake.load().metadata.snapshots == table.metadata.snapshots
        return
    rewrite_position_deletes(table, no_spark)
    [vector] = delete_files(lake.load())
    assert (vector.referenced_data_file, vector.record_count) == (second.file_path, 2)


def test_dangling_only_by_bounds_is_rewritten_for_live_rows(lake: Lake) -> None:
    """Bounds alone do not prove that a delete file dangles: its rows may be of a live file."""
    table = filled(lake)
    first, second, *_ = data_files(table)
    table = lying(table, first, second)
    table = commit(table, DeleteFiles(paths=frozenset([first.file_path]))).table
    before = lake.rows()
    assert table_health(table, no_spark).deletes.dangling_count == 1
    assert plan_rewrite_manifests(table, no_spark, options=CLEAN).removed_delete_files_count == 0
    planned = plan_rewrite_position_deletes(table, no_spark)
    result = rewrite_position_deletes(table, no_spark)
    for one in (planned, result):
        assert (one.removed_dangling_delete_files_count, one.rewritten_delete_files_count) == (0, 1)
    [left] = delete_files(lake.load())
    assert (left.referenced_data_file, left.record_count) == (second.file_path, 1)
    assert lake.rows() <= before
