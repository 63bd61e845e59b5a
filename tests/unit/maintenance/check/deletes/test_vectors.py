"""Deletion vectors that are not what their entries say (411, 414, 415, 416)."""

import struct

import pytest
from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.formats.puffin import PuffinWriter, VectorTarget, write_deletion_vectors
from icekeep.maintenance.check.faults import Tally
from icekeep.spec.reach import BLOB_TYPE, frame
from kit.checked_deletes import checked, damager, made, one_fault, with_files
from kit.written_deletes import data_files, delete_by_vector


@pytest.fixture
def table():
    """Of the second data file rows 1 and 3 are deleted."""
    table = made(3)
    return delete_by_vector(table, data_files(table)[1].file_path, [1, 3])


def place_of(table):
    return damager(table).vector()


def changed(table, at, data):
    """Put bytes into the blob."""
    place = place_of(table)
    start = place.file["content_offset"] + at

    def change(found):
        found[start : start + len(data)] = data

    damager(table).change_bytes(place.file["file_path"], change)


def test_a_sound_vector(table):
    faults, tally = checked(table)
    assert (faults, tally.gaps()) == ([], ())


@pytest.mark.parametrize(
    ("at", "data", "says"),
    [
        (0, struct.pack(">i", 7), "not the length that it says"),
        (4, b"\0\0\0\0", "begins with 00000000"),
        (9, b"\xff", "its checksum does not fit"),
    ],
    ids=["length", "magic", "checksum"],
)
def test_a_blob_that_is_damaged(table, at, data, says):
    changed(table, at, data)
    fault = one_fault(table)
    place = place_of(table)
    assert (fault.number, fault.where) == (414, place.file["file_path"])
    assert says in fault.detail
    assert fault.snapshot_id == table.metadata.current_snapshot_id
    assert fault.facts["manifest"] == place.manifest
    assert (fault.facts["content_offset"], fault.facts["spec_id"]) == (place.file["content_offset"], 0)


@pytest.mark.parametrize(("field", "value"), [("content_offset", 10**12), ("content_size_in_bytes", 10**12)])
def test_a_blob_outside_of_the_file(table, field, value):
    damager(table).edit_file(place_of(table), **{field: value})
    faults, _ = checked(table)
    assert [fault.number for fault in faults] == [414, 416]
    assert "and the file has" in faults[0].detail


def test_a_bitmap_that_cannot_be_read(table):
    location = f"{table.metadata.location}/odd.puffin"
    target = data_files(table)[0].file_path
    with PuffinWriter(table.storage, location) as writer:
        properties = {"referenced-data-file": target, "cardinality": "2"}
        blob = writer.add(frame(b"\x01\0\0\0\0\0\0\0\0"), BLOB_TYPE, properties=properties)
    [vector] = write_deletion_vectors(
        table.storage,
        f"{table.metadata.location}/other.puffin",
        [(VectorTarget(location=target, spec_id=0), BitMap64([1]))],
    )
    odd = replace(vector, file_path=location, content_offset=blob.offset, content_size_in_bytes=blob.length)
    fault = one_fault(with_files(table, deletes=[odd]))
    assert (fault.number, fault.where) == (414, location)


def test_a_count_that_is_not_that_of_the_bitmap(table):
    place = place_of(table)
    damager(table).edit_file(place, record_count=7)
    fault = one_fault(table)
    assert (fault.number, fault.facts["recorded"], fault.facts["found"]) == (415, 7, 2)


@pytest.mark.parametrize("at", [0, -1, -6, -12], ids=["first-magic", "last-magic", "flags", "length"])
def test_a_footer_that_is_damaged(table, at):
    path = place_of(table).file["file_path"]
    damager(table).change_bytes(path, lambda data: data.__setitem__(at, data[at] ^ 0x55))
    fault = one_fault(table)
    assert (fault.number, fault.where) == (416, path)


@pytest.mark.parametrize(
    ("properties", "type_", "says"),
    [
        ({"referenced-data-file": "s3://b/other", "cardinality": "2"}, BLOB_TYPE, "for data file 's3://b/other'"),
        ({"cardinality": "3"}, BLOB_TYPE, "has cardinality '3', where 2 rows"),
        ({"referenced-data-file": None}, BLOB_TYPE, "for data file None"),
        ({}, "apache-datasketches-theta-v1", "is of type 'apache-datasketches-theta-v1'"),
    ],
    ids=["target", "cardinality", "no-target", "type"],
)
def test_a_footer_that_says_something_else(table, properties, type_, says):
    file = place_of(table).file
    right = {"referenced-data-file": file["referenced_data_file"], "cardinality": "2", **properties}
    data = damager(table).read(file["file_path"])
    blob = data[file["content_offset"] :][: file["content_size_in_bytes"]]
    table.storage.delete_many([file["file_path"]])
    with PuffinWriter(table.storage, file["file_path"]) as writer:
        writer.add(blob, type_, properties={key: value for key, value in right.items() if value is not None})
    fault = one_fault(table)
    assert (fault.number, fault.facts["content_offset"]) == (416, 4)
    assert says in fault.detail


def test_rows_that_the_data_file_does_not_have():
    table = made(3)
    path = data_files(table)[0].file_path
    fault = one_fault(delete_by_vector(table, path, [4, 5]))
    assert (fault.number, fault.facts["recorded"], fault.facts["found"]) == (411, 5, 5)
    assert fault.facts["data_file"] == path


def test_a_file_that_is_not_there_is_a_fault_of_another_level(table):
    table.storage.delete_many([place_of(table).file["file_path"]])
    faults, tally = checked(table)
    assert faults == []
    assert [gap.what for gap in tally.gaps()] == ["row ids of branch 'main'"]


def test_each_vector_of_a_file_is_told_with_its_offset():
    table = made(3)
    targets = [VectorTarget(location=file.file_path, spec_id=0) for file in data_files(table)]
    location = f"{table.metadata.location}/v.puffin"
    first, second = write_deletion_vectors(table.storage, location, [(one, BitMap64([1, 2])) for one in targets])
    fault = one_fault(with_files(table, deletes=[first, replace(second, record_count=1)]))
    assert fault.facts["content_offset"] == second.content_offset != first.content_offset


def test_a_whole_class_is_kept(table):
    changed(table, 9, b"\xff")
    _, tally = checked(table)
    merged = Tally([414])
    merged.merge(tally)
    assert len(merged.faults(414)) == 1
