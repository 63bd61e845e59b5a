"""Equality deletes go only where every row that they delete is deleted by its position, in the base of every attempt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.deletes import ConvertDeletes, ConvertedFile, EntryDigests, RowDelta, SearchedFiles
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.file_sets import entry_digest
from icekeep.errors import ConflictError, IcekeepBug, UnsupportedError
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.matched_deletes import reaches
from icekeep.spec.reach import applied_delete
from icekeep.spec.updates import AddPartitionSpec, UpgradeFormatVersion
from kit.changes import Applying, meanwhile, run
from kit.deletes import add_deletes, deletion_vector, equality_deletes, path_of, position_deletes
from kit.memory_catalog import CONFLICTS, after
from kit.reaching import SPECS, generated_tables
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
    raw_entries,
    raw_list,
    set_ref,
    stored,
    swap,
)


@pytest.fixture
def table(catalog):
    """Version 2: `a` and `b`, an equality delete of rows in both, then `c`, which it does not reach."""
    return add(add_deletes(add(memory_table(catalog), "a", "b"), equality_deletes("e")), "c")


@pytest.fixture
def newer(catalog):
    """The same in version 3, where `a` has a vector."""
    start = add_deletes(add(memory_table(catalog, format_version=3), "a", "b"), deletion_vector("v", "a"))
    return add(add_deletes(start, equality_deletes("e")), "c")


def of_one(name, named, **facts):
    """A position delete file of one data file."""
    return position_deletes(name, named, referenced_data_file=path_of(named), **facts)


def conversion(table, *added, deletes=("e",), read=("a", "b"), named=("a",), merged=(), replaced=None, **options):
    """A change that was worked out on the table as it is now; `merged` are deletes of positions of the first that is named."""
    merged = entries_of(table, *merged) if merged else ()
    names = [
        ConvertedFile(entry, merged if n == 0 else ())
        for n, entry in enumerate(entries_of(table, *named) if named else ())
    ]
    return ConvertDeletes(
        converted=entries_of(table, *deletes) if deletes else (),
        data_files=EntryDigests.of(map(entry_digest, entries_of(table, *read))) if read else EntryDigests(),
        added=added,
        named=tuple(names),
        replaced=merged if replaced is None else replaced,
        format_version=table.metadata.format_version,
        starting_sequence_number=table.metadata.last_sequence_number,
        **options,
    )


def refused(table, change, match, error=ConflictError):
    before = stored(table.catalog)
    with pytest.raises(error, match=match):
        run(table, change)
    assert not orphans(table.catalog) - before
    assert "e" in live(table.catalog.load(EVENTS)) or error is not ConflictError


def compacted(table, names, new, *applied, **options):
    """The table after another's compaction, which has applied some deletes to all that it read."""
    latest = table.catalog.load(EVENTS)
    deletes = frozenset(map(applied_delete, entries_of(latest, *applied))) if applied else frozenset()
    change = RewriteFiles(
        removed=entries_of(latest, *names),
        added=files(new),
        schema_id=0,
        applied_deletes={path_of(name): deletes for name in names},
        **options,
    )
    return run(latest, change).table


def test_deletes_of_positions_take_the_place_of_equality_deletes(table):
    done = run(table, conversion(table, of_one("p", "a"))).table
    assert live(done) == {"a": 1, "b": 1, "c": 1, "p": 1}
    # The new deletes inherit the number of the commit, and what was there keeps its own.
    assert {e.name: e.sequence_number for e in raw_entries(done) if e.status != 2} == {
        "a": None, "b": None, "c": None, "p": None,
    }  # fmt: skip
    assert entries_of(done, "p")[0].sequence_number == done.metadata.last_sequence_number
    assert entries_of(done, "a")[0].sequence_number == 1
    summary = done.metadata.current_snapshot.summary
    assert {
        "added-delete-files": "1",
        "added-position-deletes": "1",
        "removed-delete-files": "1",
        "removed-equality-delete-files": "1",
        "removed-equality-deletes": "1",
        "total-delete-files": "1",
        "total-equality-deletes": "0",
        "total-records": "30",
    }.items() <= summary.items()


@pytest.mark.parametrize(("added", "operation"), [((of_one("p", "a"),), "delete"), ((), "overwrite")])
def test_the_snapshot_never_says_replace(table, added, operation):
    """Iceberg Java looks for new deletes of positions in no other snapshots (apache/iceberg #10312)."""
    change = conversion(table, *added, named=("a",) if added else ())
    assert run(table, change).table.metadata.current_snapshot.operation == operation


def test_nothing_to_convert_is_no_commit(table):
    assert run(table, conversion(table, deletes=(), read=(), named=())).changed is False


def test_an_old_file_that_came_meanwhile_was_not_converted(table):
    """apache/iceberg #10312: the new file is as old as those that were read, so the delete reaches it."""
    change = conversion(table, of_one("p", "a"))
    later = compacted(table, ("b",), "b2", starting_sequence_number=1, data_sequence_number=1)
    refused(table, change, "/b2', which equality deletes reach that are to go, came after it was planned")
    again = conversion(later, of_one("p", "a"), read=("a", "b2"))
    assert live(run(later, again).table) == {"a": 1, "b2": 1, "c": 1, "p": 1}


def test_a_file_that_is_too_new_for_the_deletes_is_no_conflict(table):
    change = conversion(table, of_one("p", "a"))
    add(table, "d")
    meanwhile(table, lambda: compacted(table, ("c", "d"), "cd"))
    result = run(table, change)
    assert live(result.table) == {"a": 1, "b": 1, "cd": 1, "p": 1}


def test_a_file_that_a_rollback_revived_was_not_converted(table):
    old = table.metadata.current_snapshot_id
    later = compacted(table, ("b",), "b2", "e")
    change = conversion(later, of_one("p", "a"), read=("a",))
    set_ref(later, "main", old, "branch")
    refused(later, change, "/b', which equality deletes reach")


def test_removed_file_conflicts_only_if_given_positions(table):
    """A file that was read may go, unless the conversion has position deletes for it."""
    change = conversion(table, of_one("p", "a"))
    without_b = run(table, DeleteFiles(paths=frozenset({path_of("b")}))).table
    assert live(run(without_b, change).table) == {"a": 1, "c": 1, "p": 1}
    table = add_deletes(without_b, equality_deletes("e"))
    # `a` has positions of its own now; the same of a file that goes is a conflict.
    change = conversion(table, of_one("q", "a"), read=("a", "c"))
    run(table, DeleteFiles(paths=frozenset({path_of("a")})))
    refused(table, change, "/a'.* is not live any more as it was read")


def test_a_path_that_was_removed_and_added_again_is_another_file(table):
    change = conversion(table, of_one("p", "a"))
    latest = run(table, DeleteFiles(paths=frozenset({path_of("a")}))).table
    # As a compaction adds it: old rows in a new file.
    run(latest, RewriteFiles(removed=entries_of(latest, "b"), added=files("a"), schema_id=0, data_sequence_number=1))
    refused(table, change, "/a', which equality deletes reach")


def test_removed_position_deletes_do_not_matter_in_v2(table):
    """The new deletes have every row that goes, so nothing rests on other deletes."""
    table = add_deletes(table, of_one("q", "a"))
    change = conversion(table, of_one("p", "a"))
    run(table, RowDelta(removed_deletes=entries_of(table, "q")))
    assert live(run(table, change).table) == {"a": 1, "b": 1, "c": 1, "p": 1}


def test_unreferenced_delete_goes_unless_it_gains_a_file(catalog):
    """An equality delete that reaches no file is removed; one that reaches a new file is a conflict."""
    start = add(memory_table(catalog, spec=BY_KIND), *(data_file(n, partition=(k,)) for n, k in ("ax", "by")))
    table = add_deletes(start, equality_deletes("e", partition=("x",)))
    gone = run(table, DeleteFiles(paths=frozenset({path_of("a")}))).table
    change = conversion(gone, read=(), named=())
    set_ref(gone, "before", gone.metadata.current_snapshot_id, "branch")
    assert live(run(gone, replace(change, branch="before")).table, "before") == {"b": 1}
    set_ref(gone, "main", table.metadata.current_snapshot_id, "branch")
    refused(gone, change, "/a', which equality deletes reach")


@pytest.mark.parametrize("version", [2, 3])
def test_each_format_version_has_its_own_kind_of_deletes(catalog, version):
    start = add(memory_table(catalog, format_version=version), "a")
    table = add_deletes(start, equality_deletes("e"))
    wrong = of_one("p", "a") if version == 3 else deletion_vector("w", "a")
    refused(table, conversion(table, wrong, read=("a",)), "was not added", UnsupportedError)


def test_merged_vector_replaces_previous_one(newer):
    change = conversion(newer, deletion_vector("w", "a"), merged=("v",))
    done = run(newer, change).table
    assert live(done) == {"a": 1, "b": 1, "c": 1, "w": 1}
    summary = done.metadata.current_snapshot.summary
    assert (summary["added-dvs"], summary["removed-dvs"], summary["operation"]) == ("1", "1", "delete")


def test_a_vector_that_another_changed_meanwhile_is_a_conflict(newer):
    change = conversion(newer, deletion_vector("w", "a"), merged=("v",))
    others = RowDelta(added_deletes=(deletion_vector("x", "a"),), removed_deletes=entries_of(newer, "v"))
    meanwhile(newer, lambda: run(newer.catalog.load(EVENTS), others))
    refused(newer, change, "other positions of data file .*/a' are deleted than when it was read")


def test_vector_added_by_other_writer_is_a_conflict(newer):
    change = conversion(newer, deletion_vector("w", "b"), named=("b",))
    meanwhile(newer, lambda: add_deletes(newer, deletion_vector("x", "b")))
    refused(newer, change, "other positions of data file .*/b' are deleted")


def test_a_vector_of_another_file_is_no_conflict(newer):
    change = conversion(newer, deletion_vector("w", "a"), merged=("v",))
    meanwhile(newer, lambda: add_deletes(newer, deletion_vector("x", "b")))
    assert live(run(newer, change).table) == {"a": 1, "b": 1, "c": 1, "w": 1, "x": 1}


def test_unchanged_vector_must_still_be_live(newer):
    """No new vector was needed since the one that was there had the rows: it must still be there."""
    change = conversion(newer, merged=("v",), replaced=())
    assert live(run(newer, change).table) == {"a": 1, "b": 1, "c": 1, "v": 1}
    table = add_deletes(newer.catalog.load(EVENTS), equality_deletes("e"))
    change = conversion(table, merged=("v",), read=("a", "b", "c"), replaced=())
    run(table, RowDelta(removed_deletes=entries_of(table, "v")))
    refused(table, change, "other positions of data file .*/a' are deleted")


def test_position_deletes_from_before_an_upgrade_are_merged(catalog):
    start = add_deletes(add(memory_table(catalog), "a", "b"), position_deletes("p", "a", "b"), named=("a", "b"))
    table = swap(add_deletes(start, equality_deletes("e")), UpgradeFormatVersion(3))
    merged = conversion(table, deletion_vector("w", "a"), merged=("p",), replaced=())
    alone = conversion(table, deletion_vector("w", "a"))
    refused(table, alone, "other positions of data file .*/a' are deleted")
    assert live(run(table, merged).table) == {"a": 1, "b": 1, "p": 1, "w": 1}


def test_deletes_of_one_partition_reach_no_other(catalog):
    places = {"a": "x", "b": "y"}
    start = add(memory_table(catalog, spec=BY_KIND), *(data_file(n, partition=(k,)) for n, k in places.items()))
    table = add_deletes(start, equality_deletes("e", partition=("x",)), equality_deletes("f", partition=("y",)))
    change = conversion(table, of_one("p", "a", partition=("x",)), read=("a",))
    assert live(run(table, change).table) == {"a": 1, "b": 1, "p": 1, "f": 1}


def test_deletes_of_all_partitions_reach_every_spec(catalog):
    table = swap(add(memory_table(catalog), "a"), AddPartitionSpec(replace(BY_KIND, spec_id=1)))
    table = add_deletes(add(table, replace(data_file("b", partition=("x",)), spec_id=1)), equality_deletes("e"))
    refused(table, conversion(table, of_one("p", "a"), read=("a",)), "/b', which equality deletes reach")
    assert live(run(table, conversion(table, of_one("p", "a"))).table) == {"a": 1, "b": 1, "p": 1}


def test_a_branch_is_changed_and_no_other(table):
    set_ref(table, "audit", table.metadata.current_snapshot_id, "branch")
    done = run(table, conversion(table, of_one("p", "a"), branch="audit")).table
    assert "p" in live(done, "audit")
    assert "e" not in live(done, "audit")
    assert live(done) == live(table)


def test_what_an_attempt_has_written_serves_the_next(table):
    change = Applying(conversion(table, of_one("p", "a")))
    table.catalog.follow(CONFLICTS, after(lambda: add(table, "d")))
    before = stored(table.catalog)
    result = run(table, change)
    assert len(change.bases) == 3
    assert live(result.table) == {"a": 1, "b": 1, "c": 1, "d": 1, "p": 1}
    assert not orphans(table.catalog) - before
    deletes = [row for row in raw_list(result.table) if row["content"] == 1]
    assert len(deletes) == 2


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda t: conversion(t, equality_deletes("f")), "/f' holds no deletes of positions"),
        (lambda t: conversion(t, of_one("p", "b")), "/p' deletes positions of no data file that is named"),
        (lambda t: conversion(t, of_one("p", "a", spec_id=3)), "/p' deletes positions of no data file that is named"),
        (
            lambda t: conversion(t, of_one("p", "a"), deletes=("e", "c")),
            "/c' is not one of the equality_deletes that it is to go as",
        ),
        (
            lambda t: conversion(t, of_one("p", "a"), replaced=entries_of(t, "e")),
            "/e' is not one of the position_deletes that it is to go as",
        ),
    ],
)
def test_a_change_that_contradicts_itself_is_a_bug_of_ours(table, change, match):
    refused(table, change(table), match, IcekeepBug)


@pytest.mark.slow
@given(st.sets(st.binary(min_size=16, max_size=16)), st.binary(min_size=16, max_size=16))
def test_digests_are_a_set(digests, other):
    packed = EntryDigests.of(digests)
    assert (len(packed), set(packed)) == (len(digests), digests)
    assert all(digest in packed for digest in digests)
    assert (other in packed) is (other in digests)
    assert set(EntryDigests.union([packed, EntryDigests.of([other])])) == digests | {other}


@given(generated_tables())
def test_what_is_reached_is_what_the_rule_says(table):
    data, deletes = table
    some = [delete for delete in deletes if delete.data_file.content is FileContent.EQUALITY_DELETES]
    reached = SearchedFiles.of(some, SPECS, EntryDigests(), (), 99)
    for entry in data:
        expected = any(reaches(delete, entry, SPECS) for delete in some)
        assert reached.unsearched_and_named([entry]) == (entry.data_file.file_path if expected else None, ())
        # So a manifest of its spec is asked.
        is_asked = reached.anywhere >= 0 or entry.data_file.spec_id in {spec_id for spec_id, _ in reached.partitions}
        assert not expected or is_asked
