"""Conflicts, and the sets of files that are held against the table."""

import math
from decimal import Decimal
from uuid import UUID as UUIDValue

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.files import DeleteFiles, OverwriteFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.conflicts import ADDED_DATA, ADDED_DELETES, REMOVED_DATA, Since
from icekeep.commit.file_sets import ReadFile, StoredFileSet, StoredPart, entry_digest, store_part
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import ConflictError, IcekeepBug, InvalidTableError
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, Status
from icekeep.spec.partitioning import build_spec
from icekeep.spec.reach import AppliedDelete
from icekeep.spec.schema import Schema
from icekeep.spec.types import LONG, STRING, UUID, NestedField
from icekeep.spec.updates import RemoveSnapshots
from icekeep.spec.values import value_to_bytes
from kit.cases import for_each
from kit.changes import run, store_file_set
from kit.deletes import add_deletes, equality_deletes, path_of, position_deletes
from kit.storage import MemoryStorage
from kit.tables import (
    BY_KIND,
    COLUMNS,
    add,
    data_file,
    entries_of,
    live,
    manifests_of,
    memory_table,
    set_ref,
    swap,
    with_ids,
)


@pytest.fixture
def table():
    """Two partitions with one file each."""
    return add(memory_table(spec=BY_KIND), with_ids("a", 1, 10), with_ids("b", 1, 10, ("y",)))


def since(table, start, branch="main"):
    metadata = table.metadata
    start_id = None if start is None else start.metadata.current_snapshot_id
    return Since(metadata, metadata.head(branch), start_id, ManifestReader(table.storage))


def rows(table, where):
    return bind(parse_where(where), table.metadata.schema)


def names(entries):
    return sorted(entry.data_file.file_path.rsplit("/", 1)[-1] for entry in entries)


def replaced(table, old, new):
    entries = entries_of(table, old)
    added = (replace(entries[0].data_file, file_path=path_of(new)),)
    return run(table, RewriteFiles(removed=entries, added=added, schema_id=0)).table


def test_nothing_happened_since_the_head_itself(table):
    assert since(table, table).snapshots == ()
    assert names(since(table, table).changed_files(ADDED_DATA)) == []


def test_history_is_newest_first_without_the_start(table):
    once = add(table, with_ids("c", 1, 10))
    twice = add(once, with_ids("d", 1, 10))
    found = since(twice, table).snapshots
    assert [s.snapshot_id for s in found] == [t.metadata.current_snapshot_id for t in (twice, once)]
    assert len(since(twice, None).snapshots) == 3


def test_added_data_excludes_compaction(table):
    later = add(add(table, with_ids("c", 1, 10)), with_ids("d", 1, 10, ("y",)))
    later = replaced(later, "a", "a2")
    assert names(since(later, table).changed_files(ADDED_DATA)) == ["c", "d"]
    assert names(since(later, None).changed_files(ADDED_DATA)) == ["a", "b", "c", "d"]
    assert names(since(later, table).changed_files(ADDED_DATA, rows(table, "kind = 'x'"))) == ["c"]
    assert names(since(later, table).changed_files(REMOVED_DATA)) == ["a"]


def test_bounds_of_added_and_removed_files_count(table):
    later = add(table, with_ids("c", 1, 10), with_ids("d", 20, 30))
    assert names(since(later, table).changed_files(ADDED_DATA, rows(table, "id > 15"))) == ["d"]
    gone = run(later, DeleteFiles(paths=frozenset({path_of("c"), path_of("d")}))).table
    assert names(since(gone, later).changed_files(REMOVED_DATA, rows(table, "id < 5 AND kind = 'x'"))) == ["c"]
    assert names(since(gone, later).changed_files(REMOVED_DATA, rows(table, "kind = 'y'"))) == []


def test_overwrites_and_deletes_remove_and_overwrites_add(table):
    overwritten = run(table, OverwriteFiles(removed=entries_of(table, "a"), added=(with_ids("a2", 1, 9),))).table
    assert overwritten.metadata.current_snapshot.operation == "overwrite"
    assert names(since(overwritten, table).changed_files(ADDED_DATA)) == ["a2"]
    assert names(since(overwritten, table).changed_files(REMOVED_DATA)) == ["a"]


def test_delete_files_match_by_partition_not_bounds(table):
    by_id = equality_deletes("e", 1, partition=("x",), lower_bounds={1: value_to_bytes(LONG, 99)})
    later = add_deletes(table, by_id, position_deletes("p", "b", partition=("y",)), named=("b",))
    assert names(since(later, table).changed_files(ADDED_DELETES)) == ["e", "p"]
    assert names(since(later, table).changed_files(ADDED_DELETES, rows(table, "kind = 'x' AND id < 5"))) == ["e"]
    assert names(since(later, table).changed_files(ADDED_DATA)) == []


@for_each(
    ("type_", "value", "other", "where"),
    [
        (UUID, UUIDValue(int=1), UUIDValue(int=2), f"key = '{UUIDValue(int=1)}'"),
        (UUID, None, UUIDValue(int=2), "key is null"),
        (STRING, None, "", "key is null"),
    ],
)
def test_uuid_and_null_partitions_match_by_value(type_, value, other, where):
    schema = Schema(fields=(*COLUMNS.fields[:1], NestedField(field_id=9, name="key", type=type_)))
    start = add(
        memory_table(schema=schema, spec=build_spec(schema, [("key", "identity", None)])), data_file("a", 1, (value,))
    )
    elsewhere = add(start, data_file("b", 1, (other,)))
    elsewhere = add_deletes(elsewhere, equality_deletes("f", partition=(other,)))
    seen = since(elsewhere, start)
    seen.check_none(ADDED_DATA, rows(elsewhere, where))
    seen.check_none(ADDED_DELETES, rows(elsewhere, where))
    for change, now in (
        (ADDED_DATA, add(start, data_file("c", 1, (value,)))),
        (ADDED_DELETES, add_deletes(start, equality_deletes("e", partition=(value,)))),
    ):
        with pytest.raises(ConflictError, match=r"/[ce]', which may"):
            since(now, start).check_none(change, rows(now, where))


def test_snapshot_without_summary_may_have_done_anything(table):
    later = add(table, with_ids("c", 1, 10))
    head = later.metadata.current_snapshot
    metadata = replace(later.metadata, snapshots=tuple(replace(s, summary=None) for s in later.metadata.snapshots))
    start = table.metadata.current_snapshot_id
    silent = Since(metadata, metadata.snapshot(head.snapshot_id), start, ManifestReader(later.storage))
    assert names(silent.changed_files(ADDED_DATA)) == ["c"]


def test_a_start_that_is_no_ancestor_is_a_conflict(table):
    later = add(table, with_ids("c", 1, 10))
    rolled_back = set_ref(later, "main", table.metadata.current_snapshot_id, "branch")
    for history in (since(rolled_back, later), since(memory_table(spec=BY_KIND), later)):
        with pytest.raises(ConflictError, match="is not known"):
            list(history.changed_files(ADDED_DATA))
        with pytest.raises(ConflictError, match="is not known"):
            history.check_start()


def test_history_that_expired_is_a_conflict_where_it_is_needed(table):
    once = add(table, with_ids("c", 1, 10))
    later = add(add(once, with_ids("d", 1, 10)), with_ids("e", 1, 10))
    expired = swap(later, RemoveSnapshots((once.metadata.current_snapshot_id,)))
    for start in (table, None):
        with pytest.raises(ConflictError, match="snapshots expired, or the branch was moved"):
            list(since(expired, start).changed_files(REMOVED_DATA))
    assert names(since(expired, later).changed_files(ADDED_DATA)) == []
    # All that came after the start is known, though the start is not.
    assert names(since(expired, once).changed_files(ADDED_DATA)) == ["d", "e"]


def test_each_check_names_the_file_that_is_in_the_way(table):
    later = run(add(table, with_ids("c", 1, 10)), DeleteFiles(paths=frozenset({path_of("b")}))).table
    later = add_deletes(later, equality_deletes("e", partition=("x",)))
    of_x, of_y = rows(table, "kind = 'x'"), rows(table, "kind = 'y'")
    for change, name, match, other in [
        (ADDED_DATA, "c", of_x, of_y),
        (REMOVED_DATA, "b", of_y, of_x),
        (ADDED_DELETES, "e", of_x, of_y),
    ]:
        since(later, table).check_none(change, other)
        with pytest.raises(ConflictError, match=f"/{name}'.* meanwhile"):
            since(later, table).check_none(change, match)


def test_new_deletes_are_those_newer_than_start(table):
    known = add_deletes(table, position_deletes("p1", "a", partition=("x",)), named=("a",))
    later = add_deletes(known, position_deletes("p2", "b", partition=("y",)), named=("b",))

    def check(start, name):
        deletes = [row for row in manifests_of(later) if row.content is ManifestContent.DELETES]
        since(later, start).check_not_reached(entries_of(later, name), deletes, ManifestReader(later.storage))

    check(known, "a")
    check(later, "b")
    with pytest.raises(ConflictError, match=r"/p1' now reaches data file .*/a'"):
        check(table, "a")
    with pytest.raises(ConflictError, match="/p2' now reaches"):
        check(known, "b")
    assert live(later) == {"a": 1, "b": 1, "p1": 1, "p2": 1}


def test_deletes_lost_by_rollback_make_start_unknown(table):
    start = add_deletes(table, position_deletes("p1", "a", partition=("x",)), named=("a",))
    back = set_ref(start, "main", table.metadata.current_snapshot_id, "branch")
    with pytest.raises(ConflictError, match="is not known"):
        since(back, start).check_not_reached(entries_of(back, "a"), [], ManifestReader(back.storage))


def test_branches_have_histories_of_their_own(table):
    branched = set_ref(table, "audit", table.metadata.current_snapshot_id, "branch")
    later = add(add(branched, with_ids("c", 1, 10), branch="audit"), with_ids("d", 1, 10))
    assert names(since(later, table, "audit").changed_files(ADDED_DATA)) == ["c"]
    assert names(since(later, table).changed_files(ADDED_DATA)) == ["d"]


AT = "memory://lake/wh/db/events/.icekeep/runs/1"
DELETE = AppliedDelete("memory://d", None, 3)


def entry(name="a", sequence_number=1, **changes):
    file = replace(data_file(name, 7), **changes)
    return ManifestEntry(status=Status.EXISTING, sequence_number=sequence_number, data_file=file)


def read(*names, manifest="m", applied=frozenset()):
    return [ReadFile(entry(name), manifest, applied) for name in names]


@for_each(
    "other",
    [
        entry("b"),
        entry(sequence_number=2),
        entry(spec_id=1),
        entry(partition=(1,)),
        entry(partition=(None,)),
        entry(first_row_id=0),
        entry(content_offset=4),
    ],
)
def test_whatever_must_still_be_so_is_in_the_digest(other):
    assert entry_digest(other) != entry_digest(entry())


@for_each(
    ("one", "another"), [((0.0,), (-0.0,)), ((1,), ("1",)), ((b"1",), ("1",)), ((Decimal("1.0"),), (Decimal("1.00"),))]
)
def test_partitions_that_differ_have_different_digests(one, another):
    assert entry_digest(entry(partition=one)) != entry_digest(entry(partition=another))


def test_what_a_commit_may_change_is_not_in_the_digest():
    other = replace(entry(partition=(math.nan,), record_count=1), status=Status.ADDED, snapshot_id=5)
    assert entry_digest(other) == entry_digest(entry(partition=(float("nan"),)))


@given(st.lists(st.tuples(st.sampled_from("mno"), st.text(min_size=1)), unique_by=lambda pair: pair[1], max_size=20))
def test_stored_set_round_trips_per_manifest(pairs):
    storage, pairs = MemoryStorage(), sorted(pairs)
    stored = store_file_set([ReadFile(entry(name), manifest) for manifest, name in pairs], storage, AT)
    assert (stored.files_count, stored.records_count) == (len(pairs), 7 * len(pairs))
    assert stored.parts.keys() == {manifest for manifest, _ in pairs}
    for manifest in stored.parts:
        expected = {entry_digest(entry(n)): data_file(n).file_path for m, n in pairs if m == manifest}
        assert stored.load(storage, [manifest]).paths == expected
    assert len(stored.load(storage, stored.parts).paths) == len(pairs)
    assert set(stored.locations()) == storage.files.keys()


def test_applied_deletes_are_stored_with_their_file():
    storage = MemoryStorage()
    stored = store_file_set([*read("a", applied=frozenset({DELETE})), *read("b", manifest="n")], storage, AT)
    assert stored.load(storage, ["m", "n"]).applied == {data_file("a").file_path: frozenset({DELETE})}


@given(st.lists(st.frozensets(st.integers(0, 5)), max_size=8))
def test_each_file_gets_back_the_deletes_that_were_applied_to_it(numbers):
    storage = MemoryStorage()
    applied = [frozenset(AppliedDelete("d", n % 3 or None, n) for n in some) for some in numbers]
    files = [ReadFile(entry(f"f{i}"), "m", some) for i, some in enumerate(applied)] or read("a")
    stored = store_file_set(files, storage, AT)
    found = stored.load(storage, ["m"]).applied
    assert found == {data_file(f"f{i}").file_path: some for i, some in enumerate(applied) if some}


def test_delete_files_that_many_data_files_share_are_stored_once():
    """apache/iceberg #13674: a few hundred equality deletes reach each of many files; their names are not repeated for each."""
    sizes = []
    for files_count in (1, 101):
        storage = MemoryStorage()
        applied = frozenset(AppliedDelete(f"memory://{'x' * 100}/{n}", None, 3) for n in range(500))
        stored = store_file_set(read(*map(str, range(files_count)), applied=applied), storage, AT)
        sizes.append(len(storage.files[stored.locations()[0]][0]))
        loaded = stored.load(storage, ["m"]).applied
        assert len(loaded) == files_count
        assert len({id(some) for some in loaded.values()}) == 1
    assert sizes[1] - sizes[0] < 100 * 2000


def test_the_same_files_make_the_same_part_in_whatever_task():
    files = [*read("a", applied=frozenset(AppliedDelete(f"d{n}", None, n) for n in range(9))), *read("b")]
    parts = []
    for _ in range(2):
        storage = MemoryStorage()
        part = store_part(
            [replace(file, applied_deletes=frozenset(file.applied_deletes)) for file in files], storage, AT, 7
        )
        assert part == StoredPart("m", 7, 2, 14)
        parts.append({at: data for at, (data, *_) in storage.files.items()})
    assert parts[0] == parts[1]


def test_a_file_that_a_manifest_lists_twice_is_refused():
    with pytest.raises(InvalidTableError, match=r"'.*/a' is live more than once in the table; it cannot be rewritten"):
        store_part([*read("a"), *read("a")], MemoryStorage(), AT, 0)


def test_a_set_has_one_part_a_manifest():
    with pytest.raises(IcekeepBug, match=r"two parts of the set of files in .* are of one manifest"):
        StoredFileSet.of(AT, [StoredPart("m", 0, 1, 1), StoredPart("m", 1, 1, 1)])


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x81\xa5paths\x01"])
def test_a_part_that_is_broken_is_said_to_be(data):
    storage = MemoryStorage()
    stored = store_file_set(read("a"), storage, AT)
    storage.files[stored.locations()[0]] = (data, 0)
    with pytest.raises(InvalidTableError, match=r"cannot read the set of files in '.*files-0.msgpack'"):
        stored.load(storage, ["m"])
