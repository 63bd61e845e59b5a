import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import IcekeepBug
from icekeep.spec.manifests.structs import (
    FileContent,
    ManifestContent,
    ManifestFile,
    RowIdInheritance,
    Status,
    assign_row_ids,
)
from kit.manifests import data_file


def manifest(added: int, existing: int, first_row_id: int | None = None, **changes: object) -> ManifestFile:
    counts = {"added_rows_count": added, "existing_rows_count": existing, "first_row_id": first_row_id, **changes}
    return ManifestFile(
        manifest_path="m", manifest_length=1, partition_spec_id=0, added_snapshot_id=1, sequence_number=1, **counts
    )


def test_the_example_of_the_spec():
    existing, *added = assign_row_ids(
        [manifest(75, 0, 925), manifest(100, 25), manifest(0, 100), manifest(125, 25)], 1000
    )[0]
    assert existing.first_row_id == 925
    assert [m.first_row_id for m in added] == [1000, 1125, 1225]
    assert assign_row_ids(added[:1], 5)[1] == 5
    inherit = RowIdInheritance(added[0])
    data1 = inherit(Status.EXISTING, data_file("data1", record_count=25, first_row_id=800))
    data2 = inherit(Status.ADDED, data_file("data2", record_count=50))
    data3 = inherit(Status.ADDED, data_file("data3", record_count=50))
    assert [f.first_row_id for f in (data1, data2, data3)] == [800, 1000, 1050]


def test_the_next_row_id_leaves_room_for_every_live_row_of_the_numbered_manifests():
    manifests = [manifest(75, 0, 925), manifest(100, 25), manifest(0, 100), manifest(125, 25)]
    assert assign_row_ids(manifests, 1000)[1] == 1375


def test_manifests_of_delete_files_take_no_row_ids():
    deletes = manifest(10, 0, content=ManifestContent.DELETES)
    assert assign_row_ids([deletes], 7) == ([deletes], 7)


def test_a_manifest_without_row_counts_cannot_be_numbered():
    with pytest.raises(IcekeepBug, match="has no row counts"):
        assign_row_ids([manifest(1, 0, existing_rows_count=None)], 0)


def test_existing_files_without_an_id_are_given_one():
    inherit = RowIdInheritance(manifest(0, 10, 40))
    assert inherit(Status.EXISTING, data_file(record_count=10)).first_row_id == 40


def test_deleted_entries_keep_what_they_say_and_use_up_nothing():
    inherit = RowIdInheritance(manifest(10, 0, 40))
    assert inherit(Status.DELETED, data_file(record_count=10)).first_row_id is None
    assert inherit(Status.DELETED, data_file(record_count=10, first_row_id=3)).first_row_id == 3
    assert inherit(Status.ADDED, data_file(record_count=10)).first_row_id == 40


def test_files_of_a_manifest_without_a_row_id_have_none():
    inherit = RowIdInheritance(manifest(10, 0))
    assert inherit(Status.ADDED, data_file(first_row_id=3)).first_row_id is None


def test_delete_files_have_none():
    inherit = RowIdInheritance(manifest(10, 0, content=ManifestContent.DELETES))
    assert inherit(Status.ADDED, data_file(content=FileContent.POSITION_DELETES)).first_row_id is None


_FILES = st.lists(
    st.tuples(
        st.sampled_from([Status.ADDED, Status.EXISTING, Status.DELETED]),
        st.integers(0, 50),
        st.none() | st.integers(0, 99).map(lambda n: 100 * n),
    ),
    max_size=6,
)


@given(st.lists(_FILES, max_size=4), st.integers(10_000, 20_000))
def test_no_two_rows_get_one_id_and_the_next_row_id_is_above_them_all(contents, next_row_id: int):
    rows = []
    for files in contents:
        counts = {s: sum(n for status, n, _ in files if status is s) for s in Status}
        rows.append(manifest(counts[Status.ADDED], counts[Status.EXISTING]))
    numbered, after = assign_row_ids(rows, next_row_id)
    given_ids: list[int] = []
    for row, files in zip(numbered, contents, strict=True):
        inherit = RowIdInheritance(row)
        for status, records, first in files:
            read = inherit(status, data_file(record_count=records, first_row_id=first))
            if status is not Status.DELETED and first is None:
                given_ids += range(read.first_row_id, read.first_row_id + records)
    assert len(set(given_ids)) == len(given_ids)
    assert all(next_row_id <= row_id < after for row_id in given_ids)
    # Numbered once, always numbered: another commit leaves them as they are.
    assert assign_row_ids(numbered, after) == (numbered, after)
