import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.live_files import MergePolicy
from icekeep.commit.retry import commit
from icekeep.errors import UsageError
from kit.cases import Choices
from kit.changes import Applying
from kit.damager import Damager
from kit.tables import BY_KIND, EVENTS, add, data_file, files, live, memory_table, orphans, raw_entries, raw_list

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


def test_entries_keep_what_they_are_and_only_the_new_ones_are_added():
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


def test_manifests_of_a_spec_that_the_table_has_lost_stay_as_they_are():
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


def test_an_attempt_that_is_tried_again_merges_what_is_there_then():
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
