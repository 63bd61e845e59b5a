import msgspec
import pytest

from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.errors import ConflictError
from icekeep.spec.partitioning import UNPARTITIONED
from kit.changes import run
from kit.memory_catalog import CONFLICTS, MemoryCatalog
from kit.tables import (
    BY_KIND,
    EVENTS,
    RawEntry,
    add,
    data_file,
    entries_of,
    files,
    live,
    memory_table,
    raw_entries,
    raw_list,
    stored,
)


@pytest.fixture
def catalog():
    return MemoryCatalog()


def test_files_are_added_and_inherit_everything_from_the_commit(catalog):
    table = add(memory_table(catalog), "a", "b")
    assert raw_entries(table) == [RawEntry("a", 1, None, None, None), RawEntry("b", 1, None, None, None)]
    mine = table.metadata.current_snapshot_id
    assert {(e.snapshot_id, e.sequence_number, e.file_sequence_number) for e in entries_of(table)} == {(mine, 1, 1)}
    assert table.metadata.current_snapshot.operation == "append"


def test_existing_manifests_stay_as_they_are_behind_the_new_one(catalog):
    first = add(memory_table(catalog), "a")
    second = add(first, "b")
    new, *old = raw_list(second)
    assert old == raw_list(first)
    assert new["added_snapshot_id"] == second.metadata.current_snapshot_id
    assert (new["added_files_count"], new["added_rows_count"], new["sequence_number"]) == (1, 10, 2)


def test_each_spec_has_manifests_of_its_own(catalog):
    table = memory_table(catalog, spec=BY_KIND)
    later = msgspec.structs.replace(UNPARTITIONED, spec_id=1)
    metadata = msgspec.structs.replace(table.metadata, partition_specs=(BY_KIND, later))
    catalog.drop(EVENTS)
    table = catalog.create(EVENTS, metadata)
    table = add(table, data_file("a", partition=("x",)), data_file("b", spec_id=1), data_file("c", partition=("y",)))
    assert [(m["partition_spec_id"], m["added_files_count"]) for m in raw_list(table)] == [(0, 2), (1, 1)]
    assert live(table) == {"a": 1, "b": 1, "c": 1}
    assert table.metadata.current_snapshot.summary["changed-partition-count"] == "3"


def test_a_spec_that_is_not_there_any_more_is_a_conflict_and_nothing_is_left(catalog):
    table = memory_table(catalog)
    before = stored(catalog)
    with pytest.raises(ConflictError, match="partition spec 7"):
        add(table, "a", data_file("b", spec_id=7))
    assert stored(catalog) == before


def test_manifests_without_live_files_are_not_carried_along(catalog):
    table = add(memory_table(catalog), "a")
    table = run(table, RewriteFiles(removed=entries_of(table), added=files("b"), schema_id=0)).table
    assert sorted(entry.status for entry in raw_entries(table)) == [1, 2]
    table = add(table, "c")
    assert [(entry.name, entry.status) for entry in raw_entries(table)] == [("c", 1), ("b", 1)]


def test_no_files_are_no_commit(catalog):
    table = memory_table(catalog)
    assert run(table, AppendFiles(files=())).changed is False
    assert catalog.swaps == []


def test_the_summary_says_what_the_caller_wants_to_add(catalog):
    result = run(memory_table(catalog), AppendFiles(files=files("a"), summary={"job": "nightly"}))
    summary = result.table.metadata.current_snapshot.summary
    assert (summary["job"], summary["added-records"], summary["total-records"]) == ("nightly", "10", "10")


def test_files_are_not_added_twice_by_an_attempt_that_failed(catalog):
    table = memory_table(catalog)
    catalog.follow(CONFLICTS, CONFLICTS)
    table = run(table, AppendFiles(files=files("a"))).table
    assert live(table) == {"a": 1}
    assert table.metadata.current_snapshot.summary["total-records"] == "10"
