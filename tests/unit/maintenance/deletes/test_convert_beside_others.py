"""Others who write while equality deletes are converted: what they add stays, and what they move is looked through anew.

apache/iceberg #10312, nimtable/iceberg-compaction PR #163: deletes were lost beside a compaction.
"""

from contextlib import suppress

import pytest

from icekeep.catalog.base import Table
from icekeep.errors import ConflictError, JobFailedError
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.tables.verbs import rollback_to_snapshot
from kit.deletes import data_files, delete_by_vector
from kit.lake import Lake
from kit.numbered_rows import Intruder, added, deletes_of, every_file, gone, ids_of, made, on_disk, places
from kit.runtime import no_spark


def test_rows_and_deletes_that_come_meanwhile_stay(lake: Lake) -> None:
    """Upserts as streams write them: the new row is too new for the delete of the old one."""
    table = gone(made(lake), 1, 2)

    def upsert(table: Table) -> None:
        added(gone(table, 3, 1), [1, 3])

    listener = Intruder(table, upsert)
    result = convert_equality_deletes(table, no_spark, listener=listener)
    after = lake.catalog.load(table.identifier)
    assert (result.attempts_count, len(deletes_of(after))) == (1, 1)
    assert ids_of(after) == [0, 1, 3, 4, 5, 6, 7, 8, 9]
    convert_equality_deletes(after, no_spark)
    assert ids_of(lake.catalog.load(table.identifier)) == [0, 1, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("version", [2, 3])
def test_a_compaction_that_lands_meanwhile_has_it_planned_anew(lake: Lake, version: int) -> None:
    """It began before the delete came, and its new files are as old as it: the delete reaches them (apache/iceberg #10312)."""
    start = made(lake, version=version)
    table = gone(start, 1, 2)
    listener = Intruder(table, lambda _: compact(start, no_spark, options={"rewrite-all": "true"}))
    result = convert_equality_deletes(table, no_spark, listener=listener)
    after = lake.catalog.load(table.identifier)
    assert (result.attempts_count, result.read_data_files_count, result.added_delete_files_count) == (2, 1, 1)
    assert any("planned again" in warning for warning in listener.warnings)
    assert not deletes_of(after)
    assert ids_of(after) == [0, 3, 4, 5, 6, 7, 8, 9]
    assert on_disk(lake, table) == {file.file_path.rpartition("/")[2] for file in every_file(after)}


def test_older_compaction_conflicts_or_keeps_the_deletes(lake: Lake) -> None:
    """The other way round: the conversion lands while files are compacted (apache/iceberg #10312)."""
    start = made(lake)
    table = gone(start, 1, 2)
    convert_equality_deletes(table, no_spark)
    with suppress(ConflictError):
        compact(start, no_spark, options={"rewrite-all": "true"})
    assert ids_of(lake.catalog.load(table.identifier)) == [0, 3, 4, 5, 6, 7, 8, 9]


def test_a_rollback_that_revives_files_has_it_planned_anew(lake: Lake) -> None:
    start = made(lake)
    table = gone(start, 1, 2)
    old = table.metadata.current_snapshot_id
    assert old is not None
    compact(start, no_spark, options={"rewrite-all": "true"})
    table = lake.catalog.load(table.identifier)
    assert len(deletes_of(table)) == 1
    listener = Intruder(table, lambda table: rollback_to_snapshot(table, old))
    result = convert_equality_deletes(table, no_spark, listener=listener)
    after = lake.catalog.load(table.identifier)
    assert (result.attempts_count, result.read_data_files_count, len(deletes_of(after))) == (2, 2, 0)
    assert ids_of(after) == [0, 3, 4, 5, 6, 7, 8, 9]


def test_a_vector_that_comes_meanwhile_has_it_planned_anew(lake: Lake) -> None:
    table = gone(made(lake, version=3), 1, 2)
    path, position = next((row["_file"], row["_pos"]) for row in places(table) if row["id"] == 4)
    listener = Intruder(table, lambda table: delete_by_vector(table, path, [position]))
    result = convert_equality_deletes(table, no_spark, listener=listener)
    after = lake.catalog.load(table.identifier)
    assert (result.attempts_count, result.removed_position_delete_files_count) == (2, 1)
    assert ids_of(after) == [0, 3, 5, 6, 7, 8, 9]


def test_a_data_file_that_is_gone_stops_it_and_leaves_nothing(lake: Lake) -> None:
    table = gone(made(lake), 1, 6)
    lost = data_files(table)[1]
    table.storage.delete_many([lost.file_path])
    before = on_disk(lake, table)
    with pytest.raises(JobFailedError, match="cannot convert equality deletes"):
        convert_equality_deletes(table, no_spark)
    assert on_disk(lake, table) == before
    assert lake.catalog.load(table.identifier).metadata.current_snapshot_id == table.metadata.current_snapshot_id
