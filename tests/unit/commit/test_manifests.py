"""Manifests as commits read and merge them."""

from threading import Barrier

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.commit import manifests
from icekeep.commit.attempt import Attempt, CommitFiles
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles, CherryPick, OverwriteFiles
from icekeep.commit.changes.repair_entries import live_totals
from icekeep.commit.live_files import MergePolicy, proven_min_number
from icekeep.commit.manifests import EntryMemory, ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, InvalidTableError, MissingFileError, UnsupportedError, UsageError
from icekeep.planning import manifest_lists as list_columns
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.spark.session import Engine, Limits
from icekeep.spec.collections import growing
from icekeep.spec.manifests.structs import ManifestContent
from kit.cases import Choices, for_each
from kit.changes import Applying, SharingReader
from kit.damager import Damager
from kit.deletes import add_deletes, deletion_vector, equality_deletes, path_of, position_deletes
from kit.runtime import no_spark
from kit.tables import (
    BY_KIND,
    EVENTS,
    add,
    data_file,
    entries_of,
    files,
    live,
    manifests_of,
    memory_table,
    orphans,
    raw_entries,
    raw_list,
)
from unit.commit.changes.test_cherry_pick import stage


@pytest.fixture
def table():
    table = memory_table(spec=BY_KIND)
    return add(table, data_file("a", 3, ("x",)), data_file("b", 4, ("y",)))


@pytest.fixture
def reader(table):
    return ManifestReader(table.storage)


def test_entries_come_in_order_with_what_they_inherit(table, reader):
    (manifest,) = reader.manifests(table.metadata.current_snapshot)
    entries = list(reader.entries(manifest, table.metadata))
    assert [entry.data_file for entry in entries] == [data_file("a", 3, ("x",)), data_file("b", 4, ("y",))]
    assert {entry.snapshot_id for entry in entries} == {table.metadata.current_snapshot_id}
    assert {(entry.sequence_number, entry.file_sequence_number) for entry in entries} == {(1, 1)}


def test_task_reads_same_with_only_the_partition_type(table, reader):
    (manifest,) = manifests_of(table)
    partition = table.metadata.partition_type(manifest.partition_spec_id)
    assert tuple(reader.typed_entries(manifest, partition)) == entries_of(table)


def test_the_head_of_a_manifest_says_what_it_is(table, reader, monkeypatch):
    (manifest,) = manifests_of(table)
    header = reader.header(manifest)
    assert (header.partition_spec_id, header.content) == (0, ManifestContent.DATA)
    assert header.unknown_field_ids == frozenset()
    monkeypatch.setattr(manifests, "_HEAD_BYTES", 100)
    assert reader.header(manifest) == header


def test_manifests_of_a_version_1_snapshot_without_a_list():
    old = add(memory_table(spec=BY_KIND, format_version=1), data_file("a", 3, ("x",)), data_file("b", 4, ("y",)))
    (listed,) = manifests_of(old)
    snapshot = msgspec.structs.replace(
        old.metadata.current_snapshot, manifest_list=None, manifests=(listed.manifest_path,)
    )
    assert ManifestReader(old.storage).manifests(snapshot) == [listed]


def test_a_snapshot_of_version_1_without_manifests_is_empty(table, reader):
    snapshot = msgspec.structs.replace(table.metadata.current_snapshot, manifest_list=None, manifests=None)
    assert reader.manifests(snapshot) == []


def test_missing_v1_counts_are_found_by_reading(table, reader):
    (listed,) = reader.manifests(table.metadata.current_snapshot)
    bare = msgspec.structs.replace(
        listed, added_files_count=None, existing_rows_count=None, deleted_files_count=None, partitions=None
    )
    assert reader.completed(bare, table.metadata) == listed


def test_an_encrypted_manifest_is_refused(table, reader):
    (manifest,) = manifests_of(table)
    with pytest.raises(UnsupportedError, match="encrypted"):
        reader.entries(msgspec.structs.replace(manifest, key_metadata=b"k"), table.metadata)


def test_manifest_with_unlisted_length_is_refused(table, reader):
    (manifest,) = manifests_of(table)
    with pytest.raises(InvalidTableError, match="bytes long where metadata says"):
        reader.entries(msgspec.structs.replace(manifest, manifest_length=manifest.manifest_length - 1), table.metadata)


def test_a_manifest_with_too_few_entries_is_an_error(table, reader):
    (manifest,) = manifests_of(table)
    entries = reader.entries(msgspec.structs.replace(manifest, added_files_count=3), table.metadata)
    assert len([next(entries), next(entries)]) == 2
    with pytest.raises(InvalidTableError, match="holds 2 added entries"):
        next(entries)


def test_a_list_or_manifest_that_is_gone_is_missing(table, reader):
    (manifest,) = manifests_of(table)
    table.storage.delete_many([manifest.manifest_path, table.metadata.current_snapshot.manifest_list])
    with pytest.raises(MissingFileError):
        reader.entries(manifest, table.metadata)
    with pytest.raises(MissingFileError):
        reader.manifests(table.metadata.current_snapshot)


@pytest.fixture
def opened(table, monkeypatch):
    """The locations that are read from the table's storage."""
    found = []
    read = table.storage.read
    monkeypatch.setattr(table.storage, "read", lambda at, length=None: found.append(at) or read(at, length))
    return found


def test_entries_are_shared_by_readers_of_a_memory(table, opened):
    """Only manifests read to their end are remembered, and not for a row with another first row id."""
    (manifest,) = manifests_of(table)
    memory = EntryMemory()
    opened.clear()
    first, second = (ManifestReader(table.storage, memory) for _ in range(2))
    # One that was not read to its end is not known.
    next(first.entries(manifest, table.metadata))
    expected = list(first.entries(manifest, table.metadata))
    assert list(second.entries(manifest, table.metadata)) == expected
    assert len(opened) == 2
    # After an upgrade its rows may be given ids: then it is another one.
    given_ids = msgspec.structs.replace(manifest, first_row_id=7)
    assert [e.data_file.first_row_id for e in second.entries(given_ids, table.metadata)] == [7, 10]


def test_answers_are_not_reused_for_a_corrected_list_row(table):
    """Another commit may correct a list between two attempts."""
    (manifest,) = manifests_of(table)
    corrected = msgspec.structs.replace(manifest, sequence_number=9)
    reader, files = ManifestReader(table.storage), CommitFiles(table.storage, "c")
    attempts = [Attempt(table.metadata, n, 7, files, reader, table.catalog.runtime) for n in (1, 2)]
    for attempt, row in zip(attempts, (manifest, corrected), strict=True):
        numbers = {e.sequence_number for e in reader.entries(row, table.metadata) if e.is_live}
        assert row.sequence_number in numbers
        proven = proven_min_number([row], table.metadata, attempt, 99)
        assert proven == min(numbers)
        attempt.check_counts([row])
        with pytest.raises(InvalidTableError, match="manifest list says 5"):
            attempt.check_counts([msgspec.structs.replace(row, added_files_count=5)])


def test_no_more_is_remembered_than_there_is_room_for(table, opened):
    (small,) = manifests_of(table)
    table = add(table, data_file("c", 5, ("x",)))
    reader = ManifestReader(table.storage, EntryMemory(max_entries=2))
    both = manifests_of(table)
    unknown = msgspec.structs.replace(small, existing_files_count=None)
    for manifest, times in ((unknown, 2), (small, 1), (next(m for m in both if m != small), 2)):
        opened.clear()
        for _ in range(2):
            list(reader.entries(manifest, table.metadata))
        assert len(opened) == times


@pytest.fixture
def three(table):
    return add(add(table, data_file("c", 5, ("x",))), data_file("d", 6, ("x",)))


def test_manifests_of_a_store_are_read_several_at_a_time(three, monkeypatch):
    together, read = Barrier(3, timeout=10), three.storage.read
    rows, reader = manifests_of(three), ManifestReader(three.storage, EntryMemory(0))
    monkeypatch.setattr(three.storage, "read", lambda at, length=None: (together.wait(), read(at, length))[1])
    found = reader.gathered(rows, live_totals(three.metadata))
    assert [one["total-records"] for one in found] == [row.added_rows_count for row in rows]
    reader.check_counts(rows, three.metadata)


def test_lasting_answers_are_asked_for_once_in_a_run(three, opened):
    reader, runtime = ManifestReader(three.storage, EntryMemory(0)), three.catalog.runtime
    for table, new_count in ((three, 3), (add(three, data_file("e", 5, ("x",))), 1)):
        files = CommitFiles(table.storage, "c")
        attempt = Attempt(table.metadata, 1, 7, files, reader.with_storage(table.storage), runtime)
        rows = manifests_of(table)
        opened.clear()
        assert proven_min_number(rows, table.metadata, attempt, 99) == 1
        assert len(opened) == new_count
        attempt.ask_live_files(rows, "entries", list)
        assert len(opened) == new_count + len(rows)


def test_many_manifests_are_read_in_tasks(three):
    """The number of manifests decides, though their entries are few."""
    rows, work = manifests_of(three), live_totals(three.metadata)
    here, elsewhere = (
        SparkManifestReader(Engine(spark=no_spark, limits=Limits(commit_manifests_count=most)), three.storage)
        for most in (3, 2)
    )
    assert len(here.gathered(rows, work)) == 3
    with pytest.raises(AssertionError, match="Spark was started"):
        elsewhere.gathered(rows, work)


class Elsewhere(SharingReader):
    """Fails where entries are read in this process, as every manifest was, one after the other; some may be."""

    def __init__(self, storage, *allowed):
        super().__init__(storage)
        self.allowed = {*allowed}

    def entries(self, manifest, metadata):
        assert manifest.added_snapshot_id in self.allowed, f"{manifest.manifest_path!r} is read by the driver"
        return super().entries(manifest, metadata)


def committed(table, change, *allowed):
    reader = Elsewhere(table.storage, *allowed)
    return commit(table, change, runtime=table.catalog.runtime, reader=reader).table


def test_pick_checks_all_manifests_for_live_files():
    table = add(add(memory_table(), "a"), "b")
    table, picked = stage(table, AppendFiles(files=(data_file("p"),)))
    table, again = stage(add(table, "c"), AppendFiles(files=(data_file("p"), data_file("q"))))
    table = committed(add(table, "d"), CherryPick(picked.snapshot_id), picked.snapshot_id)
    assert live(table)["p"] == 1
    with pytest.raises(UsageError, match=r"its data file '.*/p' is in the table already"):
        committed(table, CherryPick(again.snapshot_id), again.snapshot_id)


def test_row_delta_looks_up_data_files_and_vectors():
    table = add(add(memory_table(format_version=3), "a", "b"), "c")
    table = add_deletes(table, deletion_vector("v", "a"))
    start = table.metadata.current_snapshot_id
    of_b = RowDelta(added_deletes=(deletion_vector("w", "b"),), starting_snapshot_id=start)
    of_a = RowDelta(added_deletes=(deletion_vector("w", "a"),), starting_snapshot_id=start)
    of_none = RowDelta(added_deletes=(deletion_vector("w", "d"),), starting_snapshot_id=start)
    assert live(committed(table, of_b))["w"] == 1
    with pytest.raises(ConflictError, match=r"has positions deleted by '.*/v'"):
        committed(table, of_a)
    with pytest.raises(ConflictError, match="is not live any more"):
        committed(table, of_none)


@for_each("deletes", [position_deletes("p", "a"), equality_deletes("e")])
@for_each("change", [OverwriteFiles, RowDelta])
def test_deletes_that_came_meanwhile_are_asked_for(change, deletes):
    table = add_deletes(add(memory_table(), "a", "b"), position_deletes("old", "a"), named=("a",))
    start = table.metadata.current_snapshot_id
    replaces = change(removed=entries_of(table, "a"), added=(data_file("a2"),), starting_snapshot_id=start)
    assert live(committed(table, replaces))["a2"] == 1
    newer = add_deletes(add(memory_table(), "a", "b"), position_deletes("old", "a"), named=("a",))
    start = newer.metadata.current_snapshot_id
    replaces = change(removed=entries_of(newer, "a"), added=(data_file("a2"),), starting_snapshot_id=start)
    newer = add_deletes(newer, deletes, named=("a",) if deletes.file_path == path_of("p") else ())
    with pytest.raises(ConflictError, match="now reaches data file"):
        committed(newer, replaces)


def test_lookup_stops_at_first_manifests_with_file():
    """A file that the newest manifests have is not looked for in the others."""
    table = memory_table()
    for number in range(30):
        table = add(table, f"f{number}")
    asked = []

    class Counting(SharingReader):
        def gathered(self, manifests, work):
            asked.append(len(manifests))
            return super().gathered(manifests, work)

    newest = position_deletes("p", "f29", referenced_data_file=path_of("f29"))
    change = RowDelta(added_deletes=(newest,), starting_snapshot_id=table.metadata.current_snapshot_id)
    commit(table, change, runtime=table.catalog.runtime, reader=Counting(table.storage))
    assert asked == [1]
    assert [len(some) for some in growing(range(30))] == [1, 4, 16, 9]


def test_specs_of_many_snapshots_are_read_as_columns(monkeypatch):
    """Each row of each manifest list was made a value: a million rows, of a thousand manifests."""
    table = memory_table()
    for number in range(40):
        table = add(table, f"f{number}")
    made = []
    whole = list_columns.StoredLists._decode

    def noted(*arguments):
        found = whole(*arguments)
        made.extend(found)
        return found

    monkeypatch.setattr(list_columns.StoredLists, "_decode", noted)
    reader = SparkManifestReader(no_spark, table.storage)
    assert reader.spec_ids(table.metadata.snapshots) == {0}
    assert sum(len(reader.manifests(snapshot)) for snapshot in table.metadata.snapshots) == 40 * 41 // 2
    assert len(made) == 40


SMALL = {"commit__manifest__min_count_to_merge": "3", "commit__manifest__target_size_bytes": "100000"}


def test_by_default_a_hundred_manifests_are_merged_into_8_mb():
    assert MergePolicy.of(memory_table().metadata) == MergePolicy(100, 8 << 20)


def test_merging_can_be_turned_off():
    table = memory_table(**{**SMALL, "commit__manifest_merge__enabled": "false"})
    for name in "abcde":
        table = add(table, name)
    assert len(raw_list(table)) == 5


@pytest.mark.parametrize("text", ["1.5", "many", ""])
def test_a_wrong_count_is_an_error_that_names_the_property(text: str):
    with pytest.raises(UsageError, match=r"commit\.manifest\.min-count-to-merge"):
        MergePolicy.of(memory_table(commit__manifest__min_count_to_merge=text).metadata)


def test_manifests_are_merged_once_there_are_enough_of_them():
    table = add(add(memory_table(**SMALL), "a"), "b")
    assert len(raw_list(table)) == 2
    table = add(table, "c")
    assert len(raw_list(table)) == 1
    assert live(table) == {"a": 1, "b": 1, "c": 1}


def test_merged_entries_keep_status_and_snapshot():
    table = memory_table(**SMALL)
    for name in "abc":
        table = add(table, name)
    entries = {entry.name: entry for entry in raw_entries(table)}
    assert {name: entry.status for name, entry in entries.items()} == {"a": 0, "b": 0, "c": 1}
    snapshots = [s.snapshot_id for s in table.metadata.snapshots]
    assert [entries[name].snapshot_id for name in "abc"] == snapshots
    assert [entries[name].sequence_number for name in "abc"] == [1, 2, None]


def test_the_manifest_that_was_merged_at_once_is_removed():
    table = memory_table(**SMALL)
    for name in "abc":
        table = add(table, name)
    assert orphans(table.catalog) == set()


def test_manifests_of_other_specs_and_full_bins_stay_as_they_are():
    table = memory_table(spec=BY_KIND, **SMALL)
    sizes = msgspec.structs.replace(MergePolicy.of(table.metadata), target_bytes=1)
    assert sizes.target_bytes == 1
    table = memory_table(commit__manifest__min_count_to_merge="2", commit__manifest__target_size_bytes="1")
    for name in "abc":
        table = add(table, name)
    assert len(raw_list(table)) == 3


def test_manifests_of_missing_spec_are_not_merged():
    table = memory_table(spec=BY_KIND, **SMALL)
    for name in "ab":
        table = add(table, data_file(name, partition=("x",)))

    def lose_the_spec(document):
        document["partition-specs"] = [{"spec-id": 1, "fields": []}]
        document["default-spec-id"] = 1

    Damager(table.catalog, EVENTS, Choices(1)).edit_metadata(lose_the_spec)
    table = table.catalog.load(EVENTS)
    for name in "cde":
        table = add(table, msgspec.structs.replace(data_file(name), spec_id=1))
    assert [manifest["partition_spec_id"] for manifest in raw_list(table)] == [1, 0, 0]


def test_retry_merges_manifests_of_the_new_base():
    table = add(add(memory_table(**SMALL), "a"), "b")
    late = Applying(AppendFiles(files=files("late")), attempt_1=lambda: add(table, "other"))
    after = commit(table, late, runtime=table.catalog.runtime).table
    assert live(after) == {"a": 1, "b": 1, "other": 1, "late": 1}
    assert orphans(after.catalog) == set()


@given(st.lists(st.sampled_from("xyz"), min_size=1, max_size=14), st.integers(1, 4), st.sampled_from([1, 2, 3]))
def test_no_file_is_lost_or_doubled_whatever_is_merged(kinds: list[str], min_count: int, version: int):
    properties = {**SMALL, "commit__manifest__min_count_to_merge": str(min_count)}
    table = memory_table(spec=BY_KIND, format_version=version, **properties)
    for number, kind in enumerate(kinds):
        table = add(table, data_file(f"f{number}", 3, (kind,)))
    assert live(table) == {f"f{number}": 1 for number in range(len(kinds))}
    assert len(raw_list(table)) <= max(min_count, 1)
    assert orphans(table.catalog) == set()
