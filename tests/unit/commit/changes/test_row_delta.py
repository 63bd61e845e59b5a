import pytest
from msgspec.structs import replace

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.conflicts import Isolation
from icekeep.commit.file_sets import entry_digest
from icekeep.errors import IcekeepBug, UnsupportedError
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.updates import AddPartitionSpec, RemoveSnapshots, SetDefaultSpec, UpgradeFormatVersion
from kit.changes import Applying, meanwhile, refused, run
from kit.deletes import add_deletes, deletion_vector, equality_deletes, path_of, position_deletes
from kit.tables import (
    BY_KIND,
    EVENTS,
    add,
    data_file,
    entries_of,
    files,
    live,
    memory_table,
    orphans,
    raw_list,
    set_ref,
    swap,
    with_ids,
)

SNAPSHOT, SERIALIZABLE = Isolation.SNAPSHOT, Isolation.SERIALIZABLE


@pytest.fixture
def table(catalog):
    """Version 2: `a` and `b` in one manifest, `c` in a later one."""
    return add(add(memory_table(catalog), "a", "b"), "c")


@pytest.fixture
def newer(catalog):
    """Version 3, with `a` and `b`."""
    return add(memory_table(catalog, format_version=3), "a", "b")


def delta(table, *deletes, named=(), **options):
    """A change that was worked out on the table as it is now."""
    start = table.metadata.current_snapshot_id
    options = {"starting_snapshot_id": start, "named": frozenset(map(path_of, named)), **options}
    return RowDelta(added_deletes=deletes, **options)


def compacted(table, names, new, **options):
    latest = table.catalog.load(EVENTS)
    change = RewriteFiles(removed=entries_of(latest, *names), added=files(new), schema_id=0, **options)
    return run(latest, change).table


def test_delete_files_are_listed_in_manifests_of_their_own(table):
    done = run(table, delta(table, position_deletes("p", "a", "c"), equality_deletes("e"), named=("a", "c"))).table
    assert live(done) == {"a": 1, "b": 1, "c": 1, "p": 1, "e": 1}
    (manifest,) = [m for m in raw_list(done) if m["content"] == 1]
    assert manifest["added_files_count"] == 2
    assert {e.sequence_number for e in entries_of(done, "p", "e")} == {3}
    summary = done.metadata.current_snapshot.summary
    assert {
        "operation": "delete",
        "added-delete-files": "2",
        "added-position-delete-files": "1",
        "added-equality-delete-files": "1",
        "added-position-deletes": "2",
        "added-equality-deletes": "1",
        "total-delete-files": "2",
        "total-position-deletes": "2",
        "total-equality-deletes": "1",
        "total-records": "30",
    }.items() <= summary.items()
    assert "added-data-files" not in summary


def test_delete_files_of_each_spec_get_own_manifest(catalog):
    table = add(memory_table(catalog, spec=BY_KIND), data_file("a", partition=("x",)))
    table = swap(table, AddPartitionSpec(replace(UNPARTITIONED, spec_id=1)), SetDefaultSpec(1))
    table = add(table, data_file("b", spec_id=1))
    deletes = (position_deletes("p", "a", partition=("x",)), replace(position_deletes("q", "b"), spec_id=1))
    done = run(table, delta(table, *deletes, equality_deletes("e", spec_id=1), named=("a", "b"))).table
    assert live(done) == dict.fromkeys(("a", "b", "p", "q", "e"), 1)
    found = {m["partition_spec_id"]: m["added_files_count"] for m in raw_list(done) if m["content"] == 1}
    assert found == {0: 1, 1: 2}
    assert {e.data_file.spec_id: e.data_file.partition for e in entries_of(done, "p", "q", "e")} == {0: ("x",), 1: ()}


@pytest.mark.parametrize(
    ("parts", "operation"),
    [
        ({"added": files("n")}, "append"),
        ({"added_deletes": (equality_deletes("e"),)}, "delete"),
        ({"added": files("n"), "added_deletes": (equality_deletes("e"),)}, "overwrite"),
        ({"removed": "a"}, "delete"),
        ({"removed": "a", "added": files("n")}, "overwrite"),
        ({"removed_deletes": "old"}, "overwrite"),
        ({"removed_deletes": "old", "added_deletes": (equality_deletes("e"),)}, "delete"),
        ({"removed_deletes": "old", "added": files("n")}, "overwrite"),
    ],
)
def test_a_snapshot_says_what_was_done(table, parts, operation):
    table = add_deletes(table, equality_deletes("old"))
    parts = {k: entries_of(table, v) if isinstance(v, str) else v for k, v in parts.items()}
    done = run(table, RowDelta(starting_snapshot_id=table.metadata.current_snapshot_id, **parts)).table
    assert done.metadata.current_snapshot.operation == operation


def test_nothing_to_do_is_no_commit(table):
    assert run(table, RowDelta()).changed is False


@pytest.mark.parametrize("isolation", [None, SNAPSHOT, SERIALIZABLE])
@pytest.mark.parametrize("act", ["compact", "delete"])
def test_positions_of_removed_file_conflict_at_any_isolation(table, isolation, act):
    acts = {
        "compact": lambda: compacted(table, ("a", "b"), "ab"),
        "delete": lambda: run(table, DeleteFiles(paths=frozenset({path_of("a")}))),
    }
    change = delta(table, position_deletes("p", "a", "c"), named=("a", "c"), isolation=isolation)
    meanwhile(table, acts[act])
    refused(table, change, "/a', which .*/p' deletes rows of, is not live any more")
    assert "p" not in live(table.catalog.load(EVENTS))


@pytest.mark.parametrize("isolation", [None, SNAPSHOT, SERIALIZABLE])
def test_vector_of_removed_file_conflicts_at_any_isolation(newer, isolation):
    meanwhile(newer, lambda: compacted(newer, ("a",), "a2"))
    refused(newer, delta(newer, deletion_vector("v", "a"), isolation=isolation), "/a'.* is not live any more")


def test_positions_that_say_their_one_file_need_not_be_named(table):
    file = position_deletes("p", "a", referenced_data_file=path_of("a"))
    assert "p" in live(run(table, delta(table, file)).table)
    gone = position_deletes("q", "x", referenced_data_file=path_of("x"))
    refused(table, delta(table, gone), "/x'.* is not live")


def test_positions_of_nobody_knows_what_are_refused(table):
    unnamed = position_deletes("p", "a")
    refused(table, delta(table, unnamed), "nothing says of which data files", IcekeepBug)
    refused(table, delta(table, unnamed, named=("b",)), "nothing says of which data files", IcekeepBug)


def test_a_path_that_was_removed_and_added_again_is_another_file(table):
    def again():
        latest = run(table, DeleteFiles(paths=frozenset({path_of("c")}))).table
        add(latest, "c")

    change = delta(table, position_deletes("p", "c"), named=("c",))
    meanwhile(table, again)
    refused(table, change, "/c' was added again")


def test_rows_of_the_same_commit_may_be_deleted(table):
    file = position_deletes("p", "n")
    done = run(table, delta(table, file, named=("n",), added=files("n"))).table
    assert [entries_of(done, name)[0].sequence_number for name in ("n", "p")] == [3, 3]


def test_a_file_cannot_be_removed_and_have_rows_deleted(table):
    change = delta(table, position_deletes("p", "a"), named=("a",), removed=entries_of(table, "a"))
    refused(table, change, "/a' is removed, and positions of it are deleted", IcekeepBug)


def test_positions_lie_in_the_partition_of_their_data_file(catalog):
    table = add(memory_table(catalog, spec=BY_KIND), data_file("a", partition=("x",)))
    wrong = position_deletes("p", "a", partition=("y",))
    refused(table, delta(table, wrong, named=("a",)), "/a', which is in another partition", IcekeepBug)


@pytest.mark.parametrize("reverse", [False, True])
def test_bounds_of_delete_files_may_cross_partitions(catalog, reverse):
    places = {"a": "x", "b": "y", "c": "x", "d": "y"}
    table = add(memory_table(catalog, spec=BY_KIND), *(data_file(n, partition=(k,)) for n, k in places.items()))
    deletes = [position_deletes("p", "a", "c", partition=("x",)), position_deletes("q", "b", "d", partition=("y",))]
    done = run(table, delta(table, *(deletes[::-1] if reverse else deletes), named=tuple(places))).table
    assert live(done) == dict.fromkeys([*places, "p", "q"], 1)


def test_named_path_outside_all_bounds_is_a_bug(table):
    """A path that is named and that no delete file can hold positions of is refused."""
    change = delta(table, position_deletes("p", "a"), named=("a", "c"))
    refused(table, change, "may hold positions of .*/c'", IcekeepBug)


@pytest.mark.parametrize(
    ("version", "file"),
    [
        (1, position_deletes("p", "a")),
        (1, equality_deletes("e")),
        (1, deletion_vector("v", "a")),
        (2, deletion_vector("v", "a")),
        (3, position_deletes("p", "a")),
    ],
)
def test_each_format_version_has_its_own_kinds_of_deletes(catalog, version, file):
    table = add(memory_table(catalog, format_version=version), "a")
    refused(table, delta(table, file, named=("a",)), f"version {version} .* was not added", UnsupportedError)


def test_positions_that_wait_for_an_upgrade_are_refused(table):
    change = delta(table, position_deletes("p", "a"), named=("a",))
    meanwhile(table, lambda: swap(table, UpgradeFormatVersion(3)))
    refused(table, change, "take deletion vectors", UnsupportedError)


def test_equality_deletes_and_vectors_are_added_in_version_3(newer):
    done = run(newer, delta(newer, deletion_vector("v", "a"), equality_deletes("e"))).table
    assert live(done) == {"a": 1, "b": 1, "v": 1, "e": 1}
    summary = done.metadata.current_snapshot.summary
    assert (summary["added-dvs"], summary["total-position-deletes"]) == ("1", "1")
    assert "added-position-delete-files" not in summary


@pytest.mark.parametrize("lost", ["referenced_data_file", "content_offset", "content_size_in_bytes"])
def test_a_vector_says_where_it_is_and_for_which_file(newer, lost):
    refused(newer, delta(newer, deletion_vector("v", "a", **{lost: None})), "lacks its data file", IcekeepBug)


def test_a_data_file_has_one_vector_in_a_change(newer):
    change = delta(newer, deletion_vector("v", "a", 4), deletion_vector("v", "a", 44))
    refused(newer, change, "two deletion vectors for data file .*/a'", IcekeepBug)
    both = delta(newer, deletion_vector("v", "a", 4), deletion_vector("v", "b", 44))
    assert live(run(newer, both).table) == {"a": 1, "b": 1, "v": 2}


@pytest.mark.parametrize("isolation", [None, SNAPSHOT, SERIALIZABLE])
def test_concurrent_vector_conflicts_at_any_isolation(newer, isolation):
    change = delta(newer, deletion_vector("v", "a"), isolation=isolation)
    meanwhile(newer, lambda: add_deletes(newer, deletion_vector("theirs", "a")))
    refused(newer, change, "/theirs'")
    assert live(newer.catalog.load(EVENTS)) == {"a": 1, "b": 1, "theirs": 1}


def test_a_vector_of_another_file_is_no_conflict(newer):
    change = delta(newer, deletion_vector("v", "a"))
    meanwhile(newer, lambda: add_deletes(newer, deletion_vector("theirs", "b")))
    assert live(run(newer, change).table) == {"a": 1, "b": 1, "theirs": 1, "v": 1}


def test_a_vector_takes_the_place_of_the_one_that_it_removes(newer):
    table = add_deletes(newer, deletion_vector("v", "a", 4), deletion_vector("v", "b", 44))
    (old,) = [e for e in entries_of(table, "v") if e.data_file.referenced_data_file == path_of("a")]
    change = delta(table, deletion_vector("w", "a"), removed_deletes=(old,))
    done = run(table, change).table
    assert live(done) == {"a": 1, "b": 1, "v": 1, "w": 1}
    summary = done.metadata.current_snapshot.summary
    assert (summary["removed-dvs"], summary["added-dvs"], summary["total-delete-files"]) == ("1", "1", "2")
    # The one that was removed is not there a second time.
    refused(done, delta(done, deletion_vector("z", "a"), removed_deletes=(old,)), "/w', which the new deletion vector")
    refused(done, delta(done, removed_deletes=(old,)), "delete file .*/v' .* no longer live")


def test_positions_from_before_upgrade_are_a_conflict(catalog):
    """A vector replaces all older positions, so one made without them is refused."""
    start = add(memory_table(catalog), "a")
    table = add_deletes(start, position_deletes("p", "a"), named=("a",))
    table = swap(table, UpgradeFormatVersion(3))
    # A vector stands for all older positions; these its writer has not seen.
    refused(table, delta(start, deletion_vector("v", "a")), "/p', which the new deletion vector was made without")
    assert live(run(table, delta(table, deletion_vector("v", "a"))).table) == {"a": 1, "p": 1, "v": 1}


def test_equality_deletes_are_by_columns_of_the_schema(table):
    refused(table, delta(table, equality_deletes("e", 1, 9)), "column 9, by which .*/e' deletes rows")
    no_ids = replace(equality_deletes("e"), equality_ids=None)
    refused(table, delta(table, no_ids), "no equality_ids", IcekeepBug)


def test_a_removed_file_that_is_gone_is_a_conflict(table):
    change = delta(table, removed=entries_of(table, "a"), added=files("n"))
    meanwhile(table, lambda: compacted(table, ("a",), "a2"))
    refused(table, change, "/a'.* no longer live as it was read")


def test_deletes_of_replaced_file_are_a_conflict(table):
    """Rows of a replaced file that others deleted since do not come back."""
    change = delta(table, removed=entries_of(table, "a"), added=files("n"))
    meanwhile(table, lambda: add_deletes(table, position_deletes("p", "a"), named=("a",)))
    refused(table, change, "/p' now reaches data file .*/a'")


@pytest.mark.parametrize(
    ("isolation", "act", "match"),
    [
        (SNAPSHOT, lambda t: add_deletes(t, equality_deletes("d", partition=("x",))), "/d'.* was added meanwhile"),
        (SERIALIZABLE, lambda t: add(t, data_file("t", partition=("x",))), "/t'.* was added meanwhile"),
    ],
)
def test_isolation_decides_on_concurrent_changes(catalog, isolation, act, match):
    table = add(memory_table(catalog, spec=BY_KIND), *(data_file(k, partition=(k,)) for k in "xy"))

    def change(isolation, kind):
        file = position_deletes(f"p-{kind}", kind, partition=(kind,))
        rows = parse_where(f"kind = '{kind}'")
        return delta(table, file, named=(kind,), isolation=isolation, conflict_rows=rows)

    lax = change({SERIALIZABLE: SNAPSHOT, SNAPSHOT: None}[isolation], "x")
    forbidding, other = change(isolation, "x"), change(isolation, "y")
    meanwhile(table, lambda: act(table))
    refused(table, forbidding, match)
    assert "p-x" in live(run(table, lax).table)
    assert "p-y" in live(run(table, other).table)


def test_a_start_that_is_no_ancestor_any_more_is_a_conflict(table):
    later = add(table, "d")
    change = delta(later, position_deletes("p", "a"), named=("a",))
    meanwhile(table, lambda: set_ref(table, "main", table.metadata.current_snapshot_id, "branch"))
    refused(table, change, "the branch was moved")


def test_history_with_a_hole_is_a_conflict(table):
    change = delta(table, position_deletes("p", "a"), named=("a",))
    middle = add(table, "d")
    swap(add(middle, "e"), RemoveSnapshots((middle.metadata.current_snapshot_id,)))
    refused(table, change, "snapshots expired")


def test_a_start_that_expired_is_a_conflict(table):
    change = delta(table, position_deletes("p", "a"), named=("a",))
    add(table, "d")
    swap(table, RemoveSnapshots((table.metadata.current_snapshot_id,)))
    refused(table, change, "which was read, expired meanwhile")


def test_concurrent_append_reuses_delete_manifest(table):
    change = Applying(delta(table, position_deletes("p", "a"), named=("a",), isolation=SNAPSHOT))
    meanwhile(table, lambda: add(table, "t"), lambda: compacted(table, ("c",), "c2"))
    assert live(run(table, change).table) == {"a": 1, "b": 1, "c2": 1, "t": 1, "p": 1}
    assert len(change.bases) == 3
    assert orphans(table.catalog) == set()


def test_a_branch_is_changed_alone(table):
    branched = set_ref(table, "audit", table.metadata.current_snapshot_id, "branch")
    done = run(branched, delta(table, equality_deletes("e"), branch="audit")).table
    assert live(done, "audit") == {"a": 1, "b": 1, "c": 1, "e": 1}
    assert live(done) == {"a": 1, "b": 1, "c": 1}


@pytest.fixture
def bounded(catalog):
    """Files of ids up to 10, from 5 to 15, and of ids that are not known; with deletes of each, and of all."""
    table = memory_table(catalog)
    table = add(table, *(with_ids(name, low, high, ()) for name, low, high in (("a", 1, 10), ("b", 5, 15))))
    table = add(table, data_file("c"))
    for name in "abc":
        table = add_deletes(table, position_deletes(f"of {name}", name, referenced_data_file=path_of(name)))
    return add_deletes(table, equality_deletes("e"))


def test_files_of_a_filter_go_whole_with_their_deletes(bounded):
    done = run(bounded, RowDelta(rows=parse_where("id <= 10"))).table
    assert live(done).keys() == {"b", "c", "of b", "of c", "e"}
    assert done.metadata.current_snapshot.operation == "delete"
    everything = run(done, RowDelta(rows=parse_where("true"))).table
    assert live(everything) == {}


def test_a_filter_that_no_file_matches_whole_does_nothing(bounded):
    assert not run(bounded, RowDelta(rows=parse_where("id < 10"))).changed
    assert not run(bounded, RowDelta(rows=parse_where("0 = 1"))).changed


def test_fewer_files_than_were_planned_are_a_conflict(bounded):
    gone = run(bounded, DeleteFiles(paths=frozenset({path_of("a")}))).table
    refused(gone, RowDelta(rows=parse_where("id < 11"), least_count=1), "of 1 data files that are to be removed")


def test_of_named_files_all_go_and_no_other(bounded):
    [a] = entries_of(bounded, "a")
    table = add(bounded, with_ids("d", 1, 2, ()))
    rows = parse_where("id < 11")
    done = run(table, RowDelta(rows=rows, only=frozenset({entry_digest(a)}))).table
    assert live(done).keys() == {"b", "c", "d", "of b", "of c", "e"}
    refused(done, RowDelta(rows=rows, only=frozenset({entry_digest(a)})), "0 are live as they were read")


def test_deletes_of_a_file_that_goes_whole_are_a_conflict(bounded):
    change = delta(bounded, position_deletes("p", "a"), named=("a",), rows=parse_where("id < 11"))
    refused(bounded, change, "all rows of data file")
