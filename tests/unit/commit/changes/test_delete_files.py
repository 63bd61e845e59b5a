import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.files import DeleteFiles
from icekeep.errors import ConflictError, NotFoundError, UnsupportedError
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.types import LONG
from icekeep.spec.values import value_to_bytes
from kit.changes import Applying, run
from kit.deletes import add_deletes, deletion_vector, equality_deletes, path_of, position_deletes
from kit.memory_catalog import MemoryCatalog, after
from kit.tables import BY_KIND, EVENTS, RawEntry, add, data_file, live, memory_table, orphans, raw_entries, raw_list


def by_path(*names, **options):
    return DeleteFiles(paths=frozenset(map(path_of, names)), **options)


def where(text, **options):
    return DeleteFiles(rows=parse_where(text), **options)


def ids(name, low, high, partition=("x",)):
    bounds = {"lower_bounds": {1: value_to_bytes(LONG, low)}, "upper_bounds": {1: value_to_bytes(LONG, high)}}
    return replace(data_file(name, 10, partition), value_counts={1: 10}, null_value_counts={1: 0}, **bounds)


@pytest.fixture
def catalog():
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    """Three files in two partitions, of two commits."""
    return add(add(memory_table(catalog, spec=BY_KIND), ids("a", 1, 10), ids("b", 1, 10, ("y",))), ids("c", 11, 20))


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


def test_manifests_without_a_removed_file_are_listed_as_they_were(table):
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
def test_a_file_of_which_only_some_rows_may_match_is_refused_whole(table, text):
    with pytest.raises(UnsupportedError, match="may hold rows that match the filter and rows that do not"):
        run(table, where(text))
    assert live(table.catalog.load(EVENTS)) == {"a": 1, "b": 1, "c": 1}
    assert orphans(table.catalog) == set()


def test_a_filter_sees_what_others_add_meanwhile(table):
    change = Applying(where("kind = 'x'"))
    table.catalog.follow(after(lambda: add(table, ids("d", 1, 10), ids("e", 1, 10, ("y",)))))
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


def test_deletes_too_old_for_every_file_that_is_left_go_and_newer_ones_stay(catalog):
    table = add(memory_table(catalog), "a")
    table = add_deletes(table, equality_deletes("e"), position_deletes("p", "a"), named=("a",))
    kept = add_deletes(add(table, "b"), equality_deletes("e2"))
    done = run(kept, by_path("a")).table
    assert live(done) == {"b": 1, "e2": 1}
    # While the oldest file is there, they are for it.
    again = add_deletes(add(done, "c"), position_deletes("p3", "b", "c"), named=("b", "c"))
    assert live(run(again, by_path("c")).table) == {"b": 1, "e2": 1, "p3": 1}


def test_delete_files_of_a_partition_go_with_it_whatever_their_bounds_tell(table):
    low = {"lower_bounds": {1: value_to_bytes(LONG, 1)}, "upper_bounds": {1: value_to_bytes(LONG, 1)}}
    x = equality_deletes("ex", partition=("x",), value_counts={1: 1}, null_value_counts={1: 0}, **low)
    y = replace(x, file_path=path_of("ey"), partition=("y",))
    table = add_deletes(table, x, y)
    assert live(run(table, where("kind = 'y'")).table) == {"a": 1, "c": 1, "ex": 1}
    # `ex` deletes the id 1, and files with other ids too may hold it: `c` does not, but `a` is not asked.
    table = add(table.catalog.load(EVENTS), ids("b", 1, 10, ("y",)))
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
def test_what_a_filter_removes_are_whole_files_and_never_a_row_that_does_not_match(files, limit):
    table = memory_table(spec=BY_KIND)
    bounds = {f"f{n}": (low, low + width, kind) for n, (low, width, kind) in enumerate(files)}
    for name, (low, high, kind) in bounds.items():
        table = add(table, ids(name, low, high, (kind,)))
    change = where(f"kind = 'x' AND id <= {limit}")
    partly = [n for n, (low, high, kind) in bounds.items() if kind == "x" and low <= limit < high]
    if partly:
        with pytest.raises(UnsupportedError):
            run(table, change)
        return
    left = {n for n, (_, high, kind) in bounds.items() if kind == "y" or high > limit}
    assert set(live(run(table, change).table)) == left
