"""The files of a group as bytes, wherever they lie."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from icekeep.errors import IcekeepBug, InvalidTableError, MissingFileError
from icekeep.maintenance.compact.plan import (
    FileGroup,
    GroupDelete,
    GroupFile,
    GroupFiles,
    RewritePlan,
    group_files,
    pack_group_files,
    plan_locations,
    unpack_group_files,
)
from icekeep.spec.collections import NO_POSITIONS, PositionSet
from icekeep.storage.open import open_storage

FILE = GroupFile(
    file_path="file:///t/data/ä.parquet",
    file_format="PARQUET",
    spec_id=1,
    partition=b"\x00\xff",
    record_count=2**40,
    file_size_in_bytes=2**50,
    snapshot_id=None,
    sequence_number=0,
    file_sequence_number=None,
    manifest_path="m",
    split_offsets=(4, 2**33),
    first_row_id=0,
    sort_order_id=7,
    deletes=PositionSet([1, 0]),
)
DELETE = GroupDelete(
    content=2,
    file_path="d",
    file_format="PARQUET",
    spec_id=1,
    partition=b"",
    sequence_number=9,
    record_count=1,
    file_size_in_bytes=100,
    equality_ids=(1, 2),
)
VECTOR = replace(DELETE, content=1, equality_ids=None, content_offset=4, content_size_in_bytes=40)
FILES = GroupFiles((FILE, replace(FILE, split_offsets=None, deletes=NO_POSITIONS)), (DELETE, VECTOR))


def group(number: int = 0, **changes) -> FileGroup:
    return FileGroup(
        **{
            "number": number,
            "partition": "",
            "spec_id": 1,
            "output_spec_id": 1,
            "files_count": 2,
            "bytes": 10,
            "record_count": 3,
            "expected_files_count": 1,
            **changes,
        }
    )


def test_the_files_of_a_group_come_back_as_they_were():
    assert unpack_group_files(pack_group_files(FILES)) == FILES
    assert group_files(group(packed=pack_group_files(FILES)), open_storage({})) == FILES
    assert pack_group_files(FILES) == pack_group_files(FILES)


def test_the_paths_of_many_files_take_little_room():
    many = tuple(replace(FILE, file_path=f"file:///warehouse/db/events/data/{n:05d}.parquet") for n in range(10_000))
    assert len(pack_group_files(GroupFiles(many))) < 10 * len(many)


def test_of_many_the_files_lie_in_storage(tmp_path: Path):
    location = f"{tmp_path.as_uri()}/group.msgpack.zst"
    storage = open_storage({})
    one = group(location=location)
    with pytest.raises(MissingFileError):
        group_files(one, storage)
    with storage.write(location) as stream:
        stream.write(pack_group_files(FILES))
    assert group_files(one, storage) == FILES
    plan = RewritePlan(
        snapshot_id=1,
        sequence_number=1,
        schema_id=0,
        target_file_size_bytes=1,
        candidate_files_count=0,
        rewritten_data_files_count=0,
        rewritten_bytes_count=0,
        expected_files_count=0,
        groups=(one, group(packed=b"")),
    )
    assert plan_locations(plan) == [location]


def test_a_preview_of_many_does_not_know_the_files():
    with pytest.raises(IcekeepBug, match="are not kept"):
        group_files(group(), open_storage({}))
    assert not group().has_files
    assert group(packed=b"").has_files
    assert group(location="l").has_files


@pytest.mark.parametrize("packed", [b"", b"no", pack_group_files(FILES)[:-4]])
def test_bytes_that_are_broken_are_an_error(packed: bytes):
    with pytest.raises(InvalidTableError, match="cannot read the files of a group"):
        unpack_group_files(packed)


def test_of_a_vector_its_blob_is_read_and_of_a_file_all():
    assert (DELETE.bytes_to_read, VECTOR.bytes_to_read) == (100, 40)
