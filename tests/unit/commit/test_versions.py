"""What commits write for tables of each format version (spec, Appendix E): fields that a version has not, and row ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteFiles, RewriteManifests
from icekeep.commit.retry import commit
from icekeep.spec.manifests.write import write_manifest_list
from icekeep.spec.metadata import metadata_to_json
from icekeep.spec.updates import UpgradeFormatVersion
from kit.changes import Applying
from kit.tables import (
    add,
    data_file,
    entries_of,
    files,
    live,
    manifests_of,
    memory_table,
    raw,
    raw_list,
    staged_manifest,
    swap,
)

VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])


def rewritten(table: Table, removed: tuple[str, ...], new: str) -> Table:
    entries = entries_of(table, *removed)
    records = sum(e.data_file.record_count for e in entries)
    change = RewriteFiles(removed=entries, added=(data_file(new, records),), schema_id=table.metadata.current_schema_id)
    return commit(table, change, runtime=table.catalog.runtime).table


def with_one_manifest(table: Table) -> Table:
    staged = staged_manifest(table, entries_of(table), f"optimized-m-{len(table.metadata.snapshots)}")
    change = RewriteManifests(replaced=tuple(manifests_of(table)), added=(staged,))
    return commit(table, change, runtime=table.catalog.runtime).table


def row_ids(table: Table) -> dict[str, range]:
    """The ids that inheritance gives to the rows of each live file."""
    return {
        e.data_file.file_path.rsplit("/", 1)[-1]: range(
            e.data_file.first_row_id, e.data_file.first_row_id + e.data_file.record_count
        )
        for e in entries_of(table)
    }


@VERSIONS
def test_every_change_is_committed_to_a_table_of_every_version(version: int):
    table = add(add(memory_table(format_version=version), "a", "b"), "c")
    table = rewritten(table, ("a", "c"), "ac")
    assert live(table) == {"b": 1, "ac": 1}
    table = with_one_manifest(table)
    assert live(table) == {"b": 1, "ac": 1}
    assert table.metadata.current_snapshot.summary["total-records"] == "30"


# Version 1.


def test_version_1_has_no_sequence_numbers_anywhere():
    table = rewritten(add(add(memory_table(format_version=1), "a"), "b"), ("a",), "c")
    written = metadata_to_json(table.metadata)
    assert "last-sequence-number" not in written
    assert all("sequence-number" not in snapshot for snapshot in written["snapshots"])
    for row in raw_list(table):
        assert row.keys().isdisjoint({"sequence_number", "min_sequence_number", "content", "first_row_id"})
        for entry in raw(table, row["manifest_path"]):
            assert entry.keys() == {"status", "snapshot_id", "data_file"}
            assert entry["data_file"].keys().isdisjoint({"content", "equality_ids", "first_row_id"})
    assert {e.sequence_number for e in entries_of(table)} == {0}


def test_version_1_entries_say_which_snapshot_added_them():
    table = add(memory_table(format_version=1), "a")
    (row,) = raw_list(table)
    (entry,) = raw(table, row["manifest_path"])
    assert entry["snapshot_id"] == row["added_snapshot_id"] == table.metadata.current_snapshot_id


def test_version_1_files_have_the_block_size_that_nobody_reads():
    (row,) = raw_list(add(memory_table(format_version=1), "a"))
    assert raw(add(memory_table(format_version=1), "a"), row["manifest_path"])[0]["data_file"][
        "block_size_in_bytes"
    ] == (64 << 20)


# Upgrades.


def upgraded(table: Table, version: int) -> Table:
    return swap(table, UpgradeFormatVersion(version))


def test_files_of_version_1_have_sequence_number_0():
    table = add(upgraded(add(memory_table(format_version=1), "a"), 2), "b")
    assert {e.data_file.file_path[-1]: e.sequence_number for e in entries_of(table)} == {"a": 0, "b": 1}
    table = rewritten(table, ("b",), "c")
    assert {e.data_file.file_path[-1]: e.sequence_number for e in entries_of(table)} == {"a": 0, "c": 2}


def test_the_first_commit_in_version_3_numbers_older_rows():
    old = upgraded(add(add(memory_table(), "a"), "b"), 3)
    assert old.metadata.next_row_id == 0
    assert {e.data_file.first_row_id for e in entries_of(old)} == {None}
    table = add(old, "c")
    assert row_ids(table) == {"c": range(10), "b": range(10, 20), "a": range(20, 30)}
    assert table.metadata.next_row_id == 30
    assert table.metadata.current_snapshot.first_row_id == 0
    assert table.metadata.current_snapshot.added_rows == 30


def test_a_list_without_counts_is_completed_before_its_manifests_are_numbered():
    old = upgraded(add(memory_table(format_version=1), "a"), 3)
    without_counts(old)
    table = add(old, "b")
    assert row_ids(table) == {"b": range(10), "a": range(10, 20)}


def without_counts(table: Table) -> None:
    """Make the counts of the current manifest list null, as writers of version 1 may leave them."""
    location = table.metadata.current_snapshot.manifest_list
    bare = [
        replace(m, added_files_count=None, added_rows_count=None, existing_rows_count=None) for m in manifests_of(table)
    ]
    data = write_manifest_list(bare, table.metadata.current_snapshot, format_version=1)
    table.storage.delete_many([location])
    table.storage.create(location, data)


# Row lineage.


def test_rows_are_numbered_from_the_next_row_id_of_the_table():
    table = add(add(memory_table(format_version=3), data_file("a", 5), data_file("b", 7)), data_file("c", 3))
    assert row_ids(table) == {"a": range(5), "b": range(5, 12), "c": range(12, 15)}
    assert [s.first_row_id for s in table.metadata.snapshots] == [0, 12]
    assert [s.added_rows for s in table.metadata.snapshots] == [12, 3]
    assert table.metadata.next_row_id == 15


def test_files_keep_their_row_ids_when_their_manifests_are_written_anew():
    table = add(add(memory_table(format_version=3), "a", "b"), "c")
    before = row_ids(table)
    table = rewritten(table, ("a",), "d")
    assert {name: ids for name, ids in row_ids(table).items() if name != "d"} == {
        name: ids for name, ids in before.items() if name != "a"
    }
    assert row_ids(with_one_manifest(table)) == row_ids(table)


def test_deleted_entries_keep_the_row_ids_that_their_files_had():
    table = rewritten(add(memory_table(format_version=3), "a", "b"), ("b",), "c")
    records = [r for row in raw_list(table) for r in raw(table, row["manifest_path"])]
    assert {r["data_file"]["file_path"][-1]: r["data_file"]["first_row_id"] for r in records} == {
        "a": 0,
        "b": 10,
        "c": None,
    }


def test_a_commit_that_is_tried_again_takes_its_row_ids_from_the_new_base():
    table = add(memory_table(format_version=3), "a")
    late = Applying(AppendFiles(files=files("late")), attempt_1=lambda: add(table, "other"))
    after = commit(table, late, runtime=table.catalog.runtime).table
    assert len(late.bases) == 2
    assert row_ids(after) == {"a": range(10), "other": range(10, 20), "late": range(20, 30)}
    assert [s.first_row_id for s in after.metadata.snapshots] == [0, 10, 20]


@pytest.mark.slow
@given(st.lists(st.sampled_from(["append", "rewrite", "manifests"]), max_size=6))
def test_no_row_id_is_ever_given_twice(steps: list[str]):
    table = add(memory_table(format_version=3), "0", "1")
    given_ids: dict[str, range] = row_ids(table)
    for number, step in enumerate(steps):
        names = sorted(live(table))
        if step == "append":
            table = add(table, f"n{number}", f"m{number}")
        elif step == "rewrite":
            table = rewritten(table, tuple(names[:2]), f"n{number}")
        else:
            table = with_one_manifest(table)
        for name, ids in row_ids(table).items():
            assert given_ids.setdefault(name, ids) == ids
            assert ids.stop <= table.metadata.next_row_id
    taken = [row_id for ids in given_ids.values() for row_id in ids]
    assert len(set(taken)) == len(taken)
