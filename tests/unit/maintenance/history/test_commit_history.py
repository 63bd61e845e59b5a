"""What `commit_history` tells of commits of every kind, on tables in memory whose numbers are known."""

from typing import Any

import pytest
from msgspec.structs import asdict, replace

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles, OverwriteFiles
from icekeep.commit.retry import commit
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.history import commit_history, files_counted
from icekeep.spec.manifests.structs import Status
from icekeep.spec.updates import SetProperties
from kit.deletes import add_deletes, deletion_vector, equality_deletes, position_deletes
from kit.manifests import SNAPSHOT_ID, UNPARTITIONED, added, write_manifest
from kit.rewritten_manifests import without_counts
from kit.runtime import no_spark
from kit.tables import (
    HOUR_MS,
    NOTHING,
    appends,
    changed,
    data_file,
    entries_of,
    memory_table,
    raw_list,
    swap,
    wait,
    with_summaries,
)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_appends_are_told_with_what_they_added_and_how_large_the_table_is_after_them(version: int) -> None:
    table = appends(version)
    result = commit_history(table)
    assert [c.snapshot_id for c in result.commits] == [s.snapshot_id for s in reversed(table.metadata.snapshots)]
    newest, middle, oldest = result.commits
    assert changed(newest.added) == {"data_files_count": 3, "record_count": 30, "bytes": 300}
    assert asdict(newest.removed) == NOTHING
    assert (newest.after.data_files_count, newest.after.record_count, newest.after.bytes) == (6, 60, 600)
    assert (newest.after.delete_files_count, newest.after.position_deletes_count) == (0, 0)
    assert (newest.operation, newest.parent_snapshot_id, newest.since_previous_ms) == (
        "append",
        middle.snapshot_id,
        HOUR_MS,
    )
    assert (oldest.parent_snapshot_id, oldest.since_previous_ms) == (None, None)
    rows = raw_list(table)
    listed = sum(row["manifest_length"] for row in rows)
    list_bytes = len(table.storage.read(table.metadata.current_snapshot.manifest_list))
    manifests = newest.manifests
    assert (manifests.manifests_count, manifests.created_count, manifests.kept_count) == (3, 1, 2)
    assert manifests.replaced_count == 0
    assert (manifests.manifests_bytes, manifests.manifest_list_bytes) == (listed, list_bytes)
    assert manifests.metadata_bytes == listed + list_bytes
    mine = [row for row in rows if row["added_snapshot_id"] == newest.snapshot_id]
    assert manifests.created_bytes == sum(row["manifest_length"] for row in mine)
    assert [(p.data_files_count, p.bytes) for p in result.growth] == [(1, 100), (3, 300), (6, 600)]
    assert result.growth[-1].metadata_bytes == manifests.metadata_bytes
    assert (result.ref, result.left_out_count, result.not_read) == ("main", 0, ())


def test_a_merging_append_replaces_the_manifests_that_it_merges() -> None:
    table = appends(count=3)
    table = swap(
        table, SetProperties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})
    )
    commit(wait(table), AppendFiles(files=(entries_of(table)[0].data_file,)), runtime=table.runtime)
    manifests = commit_history(table.refresh()).commits[0].manifests
    assert (manifests.manifests_count, manifests.created_count) == (1, 1)
    assert (manifests.kept_count, manifests.replaced_count) == (0, 3)


def test_an_overwrite_and_a_delete_are_told_with_what_they_removed() -> None:
    table = appends(count=2)
    gone = entries_of(table, "1-0", "2-0")
    change = OverwriteFiles(removed=gone, added=(), starting_snapshot_id=table.metadata.current_snapshot_id)
    newest = commit_history(commit(wait(table), change, runtime=table.runtime).table).commits[0]
    assert newest.operation == "delete"
    assert asdict(newest.added) == NOTHING
    assert changed(newest.removed) == {"data_files_count": 2, "record_count": 20, "bytes": 200}
    assert (newest.after.data_files_count, newest.after.bytes) == (1, 100)


def test_deletes_are_told_by_their_kinds() -> None:
    table = add_deletes(
        wait(appends(count=1)), position_deletes("p1", "1-0"), position_deletes("p2", "1-0"), named=("1-0",)
    )
    table = add_deletes(wait(table), equality_deletes("e1"), position_deletes("p3", "1-0"), named=("1-0",))
    both, positions, _ = commit_history(table).commits
    assert changed(positions.added) == {"position_delete_files_count": 2, "position_deletes_count": 2, "bytes": 20}
    kinds = (
        "position_delete_files_count",
        "equality_delete_files_count",
        "position_deletes_count",
        "equality_deletes_count",
    )
    assert changed(both.added) == {**dict.fromkeys(kinds, 1), "bytes": 20}
    assert both.added.delete_files_count == 2
    after = both.after
    assert (after.delete_files_count, after.position_deletes_count, after.equality_deletes_count) == (4, 3, 1)


@pytest.mark.parametrize("has_summary", [True, False])
def test_a_vector_in_place_of_another_is_added_and_removed(has_summary: bool) -> None:
    table = add_deletes(wait(appends(3, count=1)), deletion_vector("v1", "1-0"), named=("1-0",))
    old = tuple(e for e in entries_of(table) if e.data_file.content)
    delta = RowDelta(added_deletes=(deletion_vector("v2", "1-0"),), removed_deletes=old)
    table = commit(wait(table), delta, runtime=table.runtime).table
    newest = commit_history(table if has_summary else with_summaries(table)).commits[0]
    for side in (newest.added, newest.removed):
        # A summary of ours has the size of the Puffin file, the entries that of the vector in it.
        assert changed(side) == {
            "deletion_vectors_count": 1,
            "position_deletes_count": 1,
            "bytes": 10 if has_summary else 40,
        }
    assert newest.after.delete_files_count == 1


@pytest.mark.parametrize("version", [1, 2])
def test_without_numbers_in_the_summary_the_entries_are_counted_and_totals_stay_unknown(version: int) -> None:
    table = with_summaries(appends(version), "operation")
    newest = commit_history(table).commits[0]
    assert changed(newest.added) == {"data_files_count": 3, "record_count": 30, "bytes": 300}
    assert asdict(newest.removed) == NOTHING
    assert (newest.after.data_files_count, newest.after.record_count, newest.after.bytes) == (6, 60, None)
    assert (newest.after.delete_files_count, newest.after.position_deletes_count) == (0, 0)
    assert commit_history(table).growth[-1].bytes is None


def test_a_list_of_version_1_without_counts_is_made_up_for_by_entries_and_the_summary_s_totals() -> None:
    table = without_counts(appends(1))
    newest = commit_history(table).commits[0]
    assert changed(newest.added) == {"data_files_count": 3, "record_count": 30, "bytes": 300}
    assert (newest.after.data_files_count, newest.after.record_count) == (6, 60)
    bare = commit_history(with_summaries(table)).commits[0]
    assert changed(bare.added) == {"data_files_count": 3, "record_count": 30, "bytes": 300}
    assert (bare.after.data_files_count, bare.after.record_count, bare.after.bytes) == (None, None, None)
    assert (bare.operation, bare.made_by) == (None, None)


def test_a_snapshot_of_version_1_that_names_its_manifests_itself_is_read_by_these() -> None:
    table = appends(1, count=2)
    paths = tuple(row["manifest_path"] for row in raw_list(table))
    old, new = table.metadata.snapshots
    new = replace(new, manifest_list=None, manifests=paths, summary=None)
    newest = commit_history(replace(table, metadata=replace(table.metadata, snapshots=(old, new)))).commits[0]
    assert changed(newest.added) == {"data_files_count": 2, "record_count": 20, "bytes": 200}
    assert (newest.after.data_files_count, newest.manifests.manifest_list_bytes) == (3, None)
    assert (newest.manifests.created_count, newest.manifests.kept_count) == (1, 1)


def test_a_summary_whose_kinds_do_not_add_up_is_not_taken_at_its_word() -> None:
    table = add_deletes(wait(appends(count=1)), equality_deletes("e1"), equality_deletes("e2"))
    table = with_summaries(table, "operation", "added-files-size", "added-equality-deletes")
    assert changed(commit_history(table).commits[0].added) == {
        "equality_delete_files_count": 2,
        "equality_deletes_count": 2,
        "bytes": 20,
    }


@pytest.mark.slow
def test_a_compaction_is_told_as_what_it_replaced(lake: Any) -> None:
    before = lake.filled(commits=3, files=2)
    compact(before, no_spark, options={"rewrite-all": "true"})
    newest, last, *_ = commit_history(lake.load()).commits
    assert newest.operation == "replace"
    assert (newest.removed.data_files_count, newest.removed.record_count) == (6, 120)
    assert (newest.added.data_files_count, newest.added.record_count) == (3, 120)
    assert newest.removed.bytes == last.after.bytes
    assert newest.added.bytes == newest.after.bytes
    # The tag of the run was set before it.
    assert newest.metadata_files_between_count == 1


def test_of_a_commit_that_lists_manifests_of_others_than_its_parent_it_is_not_told_how_many_it_replaced() -> None:
    table = appends(count=3)
    first, second, third = table.metadata.snapshots
    third = replace(third, parent_snapshot_id=first.snapshot_id)
    table = replace(table, metadata=replace(table.metadata, snapshots=(first, second, third)))
    manifests = commit_history(table).commits[0].manifests
    assert (manifests.kept_count, manifests.replaced_count) == (2, None)


def test_entries_that_others_added_are_not_counted() -> None:
    """Engines copy manifests of others, and leave their entries as they are."""
    table, mine, theirs = memory_table(), data_file("mine"), data_file("theirs")
    location = f"{table.metadata.location}/metadata/m0.avro"
    data, row = write_manifest([added(theirs, snapshot_id=3), added(mine)], UNPARTITIONED, location=location)
    table.storage.create(location, data)
    counted = files_counted([row], SNAPSHOT_ID, table.metadata, table.storage)
    assert changed(counted[Status.ADDED]) == {"data_files_count": 1, "record_count": 10, "bytes": 100}
    assert asdict(counted[Status.DELETED]) == NOTHING
