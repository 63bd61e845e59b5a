"""Files that are appended, and files that are deleted by path or by filter."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.files import AppendFiles, DeleteFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.errors import ConflictError, NotFoundError, UnsupportedError
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.types import LONG
from icekeep.spec.values import value_to_bytes
from kit.changes import Applying, run
from kit.deletes import add_deletes, deletion_vector, equality_deletes, path_of, position_deletes
from kit.memory_catalog import CONFLICTS, after
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
    orphans,
    raw_entries,
    raw_list,
    stored,
    with_ids,
)


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


def test_missing_spec_is_a_conflict_and_leaves_no_files(catalog):
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


def by_path(*names, **options):
    return DeleteFiles(paths=frozenset(map(path_of, names)), **options)


def where(text, **options):
    return DeleteFiles(rows=parse_where(text), **options)


@pytest.fixture
def table(catalog):
    """Three files in two partitions, of two commits."""
    return add(
        add(memory_table(catalog, spec=BY_KIND), with_ids("a", 1, 10), with_ids("b", 1, 10, ("y",))),
        with_ids("c", 11, 20),
    )


def test_files_go_by_path(table):
    done = run(table, by_path("a", "b")).table
    assert live(done) == {"c": 1}
    snapshot = done.metadata.current_snapshot
    assert snapshot.operation == "delete"
    expected = {"deleted-data-files": "2", "deleted-records": "20", "total-records": "10", "total-data-files": "1"}
    assert expected.items() <= snapshot.summary.items()
    assert "added-records" not in snapshot.summary
    gone = {e for e in raw_entries(done) if e.name != "c"}
    assert gone == {RawEntry(name, 2, snapshot.snapshot_id, 1, 1) for name in "ab"}


def test_manifests_without_removed_files_are_unchanged(table):
    done = run(table, by_path("a")).table
    (of_c,) = [m for m in raw_list(table) if m["added_snapshot_id"] == table.metadata.current_snapshot_id]
    assert of_c in raw_list(done)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("kind = 'x'", {"b"}),
        ("kind = 'z'", {"a", "b", "c"}),
        ("id <= 10", {"c"}),
        ("kind = 'x' AND id > 10", {"a", "b"}),
        ("kind = 'y' OR id >= 11", {"a"}),
        ("id IS NOT NULL", set()),
        ("TRUE", set()),
    ],
)
def test_files_go_all_of_whose_rows_match(table, text, left):
    done = run(table, where(text))
    assert set(live(done.table)) == left
    assert done.changed is (len(left) < 3)


@pytest.mark.parametrize("text", ["id = 5", "id <= 10 AND score > 1", "score IS NULL AND kind = 'x'", "id < 15"])
def test_partially_matching_file_is_refused(table, text):
    with pytest.raises(UnsupportedError, match="may hold rows that match the filter and rows that do not"):
        run(table, where(text))
    assert live(table.catalog.load(EVENTS)) == {"a": 1, "b": 1, "c": 1}
    assert orphans(table.catalog) == set()


def test_a_filter_sees_what_others_add_meanwhile(table):
    change = Applying(where("kind = 'x'"))
    table.catalog.follow(after(lambda: add(table, with_ids("d", 1, 10), with_ids("e", 1, 10, ("y",)))))
    assert live(run(table, change).table) == {"b": 1, "e": 1}
    assert len(change.bases) == 2


def test_a_file_that_must_be_live_and_is_not_is_a_conflict(table):
    table.catalog.follow(after(lambda: run(table, by_path("a"))))
    with pytest.raises(ConflictError, match=r"'memory.*/a' \(1 in all\) is not live"):
        run(table, by_path("a", "b"))
    assert live(table.catalog.load(EVENTS)) == {"b": 1, "c": 1}
    assert orphans(table.catalog) == set()
    done = run(table, by_path("a", "b", must_exist=False))
    assert live(done.table) == {"c": 1}


def test_nothing_to_delete_is_no_commit(table):
    for change in (DeleteFiles(), where("kind = 'z'"), by_path("gone", must_exist=False)):
        assert run(table, change).changed is False


def test_a_column_that_is_not_there_is_named(table):
    with pytest.raises(NotFoundError, match="colour"):
        run(table, where("colour = 'red'"))


def test_vectors_go_with_their_files_and_the_others_stay(catalog):
    table = add(memory_table(catalog, format_version=3), "a", "b")
    table = add_deletes(table, deletion_vector("v", "a", 4), deletion_vector("v", "b", 44))
    done = run(table, by_path("a")).table
    assert live(done) == {"b": 1, "v": 1}
    summary = done.metadata.current_snapshot.summary
    assert (summary["removed-dvs"], summary["total-delete-files"], summary["total-position-deletes"]) == ("1", "1", "1")


def test_only_deletes_too_old_for_all_files_are_dropped(catalog):
    table = add(memory_table(catalog), "a")
    table = add_deletes(table, equality_deletes("e"), position_deletes("p", "a"), named=("a",))
    kept = add_deletes(add(table, "b"), equality_deletes("e2"))
    done = run(kept, by_path("a")).table
    assert live(done) == {"b": 1, "e2": 1}
    # While the oldest file is there, they are for it.
    again = add_deletes(add(done, "c"), position_deletes("p3", "b", "c"), named=("b", "c"))
    assert live(run(again, by_path("c")).table) == {"b": 1, "e2": 1, "p3": 1}


def test_partition_deletes_are_dropped_ignoring_bounds(table):
    """Delete files are matched by partition; their column bounds say nothing about the rows they delete."""
    low = {"lower_bounds": {1: value_to_bytes(LONG, 1)}, "upper_bounds": {1: value_to_bytes(LONG, 1)}}
    x = equality_deletes("ex", partition=("x",), value_counts={1: 1}, null_value_counts={1: 0}, **low)
    y = replace(x, file_path=path_of("ey"), partition=("y",))
    table = add_deletes(table, x, y)
    assert live(run(table, where("kind = 'y'")).table) == {"a": 1, "c": 1, "ex": 1}
    # `ex` deletes the id 1, and files with other ids too may hold it: `c` does not, but `a` is not asked.
    table = add(table.catalog.load(EVENTS), with_ids("b", 1, 10, ("y",)))
    assert live(run(table, where("id <= 10 AND kind = 'x'")).table) == {"b": 1, "c": 1, "ex": 1}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_format_version_deletes_files(catalog, version):
    table = add(add(memory_table(catalog, format_version=version), "a", "b"), "c")
    done = run(table, by_path("a")).table
    assert live(done) == {"b": 1, "c": 1}
    assert live(run(done, DeleteFiles(rows=ALWAYS_TRUE)).table) == {}


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.sampled_from("xy")), max_size=6), st.integers(-1, 14)
)
def test_filter_deletes_only_fully_matching_files(files, limit):
    table = memory_table(spec=BY_KIND)
    bounds = {f"f{n}": (low, low + width, kind) for n, (low, width, kind) in enumerate(files)}
    for name, (low, high, kind) in bounds.items():
        table = add(table, with_ids(name, low, high, (kind,)))
    change = where(f"kind = 'x' AND id <= {limit}")
    partly = [n for n, (low, high, kind) in bounds.items() if kind == "x" and low <= limit < high]
    if partly:
        with pytest.raises(UnsupportedError):
            run(table, change)
        return
    left = {n for n, (_, high, kind) in bounds.items() if kind == "y" or high > limit}
    assert set(live(run(table, change).table)) == left
