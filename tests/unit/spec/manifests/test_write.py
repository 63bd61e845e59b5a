import io
import json
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import IcekeepBug
from icekeep.spec.avro import read_blocks, read_header
from icekeep.spec.manifests.read import read_manifest_list
from icekeep.spec.manifests.structs import FieldSummary, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder, PartitionCodec
from icekeep.spec.partitioning import spec_to_json
from icekeep.spec.schema import schema_to_json
from icekeep.spec.types import STRING, NestedField, StructType, decimal, fixed
from icekeep.spec.types import UUID as UUID_TYPE
from kit.cases import for_each
from kit.manifests import (
    DAY,
    LIST,
    MANIFEST,
    SNAPSHOT_ID,
    UNPARTITIONED,
    added,
    blocks,
    committed,
    data_file,
    deleted,
    existing,
    field_of,
    read_entries,
    spec_and_schema,
    write_list,
    write_manifest,
)
from kit.strategies import partition_tuples, partition_types

NEW = ManifestFile(
    manifest_path=MANIFEST,
    manifest_length=100,
    partition_spec_id=0,
    added_snapshot_id=SNAPSHOT_ID,
    added_files_count=1,
    existing_files_count=0,
    deleted_files_count=0,
    added_rows_count=10,
    existing_rows_count=0,
    deleted_rows_count=0,
)
OLD = msgspec.structs.replace(NEW, added_snapshot_id=3, sequence_number=2, min_sequence_number=1)


def records(data: bytes) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(data)))


def metadata(data: bytes) -> dict[str, str]:
    return dict(fastavro.reader(io.BytesIO(data)).metadata)


def avro_schema_of(data: bytes) -> Any:
    return json.loads(metadata(data)["avro.schema"])


def written_list(*manifests: ManifestFile, **changes: Any) -> bytes:
    return write_list(manifests, **changes)


def columns(*types: Any) -> StructType:
    return StructType(tuple(NestedField(field_id=1000 + i, name=f"p{i}", type=t) for i, t in enumerate(types)))


# Manifests.


def test_a_manifest_has_the_metadata_that_the_spec_asks_for():
    data, _ = write_manifest([added()])
    spec, schema = spec_and_schema(DAY)
    written = metadata(data)
    assert json.loads(written["schema"]) == schema_to_json(schema)
    assert written["schema-id"] == "4"
    assert json.loads(written["partition-spec"]) == spec_to_json(spec)["fields"]
    assert written["partition-spec-id"] == "0"
    assert written["format-version"] == "2"
    assert written["content"] == "data"
    assert written["avro.codec"] == "deflate"


def test_a_delete_manifest_says_so():
    file = data_file(content=1)
    data, row = write_manifest([added(file)], content=ManifestContent.DELETES, spec_id=0)
    assert metadata(data)["content"] == "deletes"
    assert row.content is ManifestContent.DELETES


def test_field_ids_are_in_the_avro_schema_at_every_level():
    schema = avro_schema_of(write_manifest([added()])[0])
    assert {f["name"]: f["field-id"] for f in schema["fields"]} == {
        "status": 0, "snapshot_id": 1, "sequence_number": 3, "file_sequence_number": 4, "data_file": 2,
    }  # fmt: skip
    file = field_of(schema, 2)["type"]
    assert {f["name"]: f["field-id"] for f in file["fields"]} == {
        "content": 134, "file_path": 100, "file_format": 101, "partition": 102, "record_count": 103,
        "file_size_in_bytes": 104, "column_sizes": 108, "value_counts": 109, "null_value_counts": 110,
        "nan_value_counts": 137, "lower_bounds": 125, "upper_bounds": 128, "key_metadata": 131, "split_offsets": 132,
        "equality_ids": 135, "sort_order_id": 140, "referenced_data_file": 143,
    }  # fmt: skip
    assert field_of(schema, 1000)["name"] == "day"
    for field_id, key_id, value_id in ((108, 117, 118), (109, 119, 120), (110, 121, 122), (137, 138, 139)):
        pairs = field_of(schema, field_id)["type"][1]
        assert pairs["logicalType"] == "map"
        assert [f["field-id"] for f in pairs["items"]["fields"]] == [key_id, value_id]
    assert field_of(schema, 132)["type"][1]["element-id"] == 133
    assert field_of(schema, 135)["type"][1]["element-id"] == 136
    assert field_of(schema, 102)["type"]["name"] == "r102"


def test_entries_have_the_values_that_they_were_given():
    file = data_file(
        column_sizes={1: 10},
        value_counts={1: 10},
        null_value_counts={1: 0},
        nan_value_counts={},
        lower_bounds={1: b"\1"},
        upper_bounds={1: b"\2"},
        key_metadata=b"k",
        split_offsets=(4, 90),
        sort_order_id=1,
    )
    (record,) = records(write_manifest([existing(file, snapshot_id=3, sequence_number=2, file_sequence_number=4)])[0])
    written = record.pop("data_file")
    assert record == {"status": 0, "snapshot_id": 3, "sequence_number": 2, "file_sequence_number": 4}
    assert written == {
        "content": 0,
        "file_path": file.file_path,
        "file_format": "PARQUET",
        "partition": {"day": date(2022, 1, 8)},
        "record_count": 10,
        "file_size_in_bytes": 1000,
        "column_sizes": [{"key": 1, "value": 10}],
        "value_counts": [{"key": 1, "value": 10}],
        "null_value_counts": [{"key": 1, "value": 0}],
        "nan_value_counts": [],
        "lower_bounds": [{"key": 1, "value": b"\1"}],
        "upper_bounds": [{"key": 1, "value": b"\2"}],
        "key_metadata": b"k",
        "split_offsets": [4, 90],
        "equality_ids": None,
        "sort_order_id": 1,
        "referenced_data_file": None,
    }


def test_what_an_added_entry_inherits_is_written_as_null():
    (record,) = records(write_manifest([added()])[0])
    assert (record["status"], record["snapshot_id"]) == (1, None)
    assert (record["sequence_number"], record["file_sequence_number"]) == (None, None)


def test_a_row_counts_files_and_rows_by_status():
    files = [data_file(record_count=n) for n in (1, 2, 4, 8, 16, 32)]
    entries = [
        added(files[0]),
        added(files[1]),
        added(files[2]),
        existing(files[3]),
        existing(files[4]),
        deleted(files[5]),
    ]
    data, row = write_manifest(entries)
    assert (row.added_files_count, row.existing_files_count, row.deleted_files_count) == (3, 2, 1)
    assert (row.added_rows_count, row.existing_rows_count, row.deleted_rows_count) == (7, 24, 32)
    assert (row.manifest_path, row.manifest_length) == (MANIFEST, len(data))
    assert (row.partition_spec_id, row.added_snapshot_id, row.content) == (0, SNAPSHOT_ID, ManifestContent.DATA)


@for_each(
    ("entries", "least"),
    [
        ([added()], None),
        ([added(sequence_number=4), added()], 4),
        ([existing(sequence_number=3), existing(sequence_number=2), added()], 2),
        ([deleted(sequence_number=1), existing(sequence_number=3)], 3),
        ([deleted(sequence_number=1)], None),
        ([existing(sequence_number=0)], 0),
    ],
)
def test_the_least_sequence_number_is_that_of_live_files(entries: list[ManifestEntry], least: int | None):
    assert write_manifest(entries, sequence_number=None)[1].min_sequence_number == least


def test_a_new_manifest_has_no_sequence_number_yet():
    assert write_manifest([added()], sequence_number=None)[1].sequence_number is None


def test_a_row_summarizes_the_partitions_of_all_entries():
    files = [data_file(partition=(value,)) for value in (5, None, -3)]
    _, row = write_manifest([added(files[0]), added(files[1]), deleted(files[2])])
    assert row.partitions == (
        FieldSummary(contains_null=True, lower_bound=b"\xfd\xff\xff\xff", upper_bound=b"\x05\0\0\0"),
    )
    assert write_manifest([added(data_file(partition=()))], UNPARTITIONED)[1].partitions == ()


def test_a_builder_knows_its_length_while_it_grows():
    spec, schema = spec_and_schema(DAY)
    builder = ManifestBuilder(MANIFEST, EntryEncoder(DAY, 2), spec, schema, format_version=2, codec="uncompressed")
    empty = builder.length_bytes
    for _ in range(100):
        builder.add(added(data_file("x" * 2000)))
    assert builder.length_bytes > empty + 100_000
    data, row = builder.finish(1)
    assert len(data) == row.manifest_length == builder.length_bytes
    assert len(blocks(data)) == 4
    assert len(records(data)) == 100


def test_a_manifest_without_entries_is_a_file():
    data, row = write_manifest([])
    assert (records(data), blocks(data)) == ([], [])
    assert (row.live_files_count, row.manifest_length) == (0, len(data))


def test_equal_entries_at_one_location_give_equal_bytes():
    assert write_manifest([added()]) == write_manifest([added()])
    assert write_manifest([added()])[0] != write_manifest([added()], location="file:/other.avro")[0]


@for_each(
    ("codec", "avro"), [("gzip", "deflate"), ("uncompressed", "null"), ("zstd", "zstandard"), ("snappy", "snappy")]
)
def test_manifests_and_lists_are_compressed_as_asked(codec: str, avro: str):
    for data in (write_manifest([added()], codec=codec)[0], written_list(OLD, codec=codec)):
        assert metadata(data)["avro.codec"] == avro
        assert len(records(data)) == 1


def test_a_file_of_another_spec_does_not_go_into_a_manifest():
    with pytest.raises(IcekeepBug, match="is of partition spec 1, its manifest of 0"):
        write_manifest([added(data_file(spec_id=1))])


@pytest.mark.parametrize("status", [Status.EXISTING, Status.DELETED])
def test_only_added_entries_go_without_a_sequence_number(status: Status):
    with pytest.raises(IcekeepBug, match="an entry that is not added has no sequence number"):
        write_manifest([ManifestEntry(status=status, data_file=data_file(), snapshot_id=1)])


def test_an_encoded_entry_goes_into_any_manifest_of_its_types():
    spec, schema = spec_and_schema(DAY)
    entry = existing()
    record = EntryEncoder(DAY, 2).encode(entry)
    builder = ManifestBuilder(MANIFEST, EntryEncoder(DAY, 2), spec, schema, format_version=2)
    builder.add_block(record, 1, 10, entry.sequence_number)
    builder.add_partitions([(19_000,)])
    data, row = builder.finish(SNAPSHOT_ID)
    assert (data, row) == write_manifest([entry], sequence_number=None)
    assert read_entries(data, committed(row, 5)) == [entry]


def test_two_names_that_avro_takes_for_one_keep_their_own_values():
    partition = StructType(
        (
            NestedField(field_id=1000, name="a b", type=STRING),
            NestedField(field_id=1001, name="a_x20b", type=STRING),
        )
    )
    data, row = write_manifest([added(data_file(partition=("one", "two")))], partition)
    assert records(data)[0]["data_file"]["partition"] == {"a_x20b": "one", "a_x20b_1001": "two"}
    assert read_entries(data, row, partition)[0].data_file.partition == ("one", "two")


# Partition tuples as bytes.


@given(st.data())
def test_partition_tuples_are_encoded_and_decoded(data: st.DataObject):
    partition = data.draw(partition_types())
    values = data.draw(partition_tuples(partition))
    codec = PartitionCodec(partition)
    decoded = codec.decode(codec.encode(values))
    assert repr(decoded) == repr(values)
    assert codec.encode(decoded) == PartitionCodec(partition).encode(values)


def test_different_partition_tuples_have_different_bytes():
    codec = PartitionCodec(columns(STRING, STRING))
    tuples = [("a", "b"), ("ab", ""), ("", "ab"), (None, "ab"), ("ab", None), (None, None), ("", "")]
    assert len({codec.encode(values) for values in tuples}) == len(tuples)


def test_a_partition_tuple_has_a_value_for_each_field():
    with pytest.raises(ValueError, match="zip"):
        PartitionCodec(columns(STRING, STRING)).encode(("a",))


def test_parts_of_a_partition_that_need_a_form_of_their_own():
    partition = columns(UUID_TYPE, UUID_TYPE, decimal(38, 10), fixed(2), decimal(38, 10))
    values = (UUID(int=1), UUID(int=2**128 - 1), Decimal("-1.0000000001"), b"\0\xff", Decimal("9" * 28 + ".0000000000"))
    codec = PartitionCodec(partition)
    assert codec.decode(codec.encode(values)) == values


# Manifest lists.


def test_a_manifest_list_has_the_metadata_that_iceberg_writes():
    written = metadata(written_list(OLD))
    assert {key: value for key, value in written.items() if not key.startswith("avro.")} == {
        "snapshot-id": "7",
        "parent-snapshot-id": "3",
        "sequence-number": "5",
        "format-version": "2",
    }
    assert metadata(written_list(OLD, parent_snapshot_id=None))["parent-snapshot-id"] == "null"


def test_field_ids_of_a_manifest_list_are_in_its_avro_schema():
    schema = avro_schema_of(written_list(OLD))
    assert {f["name"]: f["field-id"] for f in schema["fields"]} == {
        "manifest_path": 500, "manifest_length": 501, "partition_spec_id": 502, "content": 517, "sequence_number": 515,
        "min_sequence_number": 516, "added_snapshot_id": 503, "added_files_count": 504, "existing_files_count": 505,
        "deleted_files_count": 506, "added_rows_count": 512, "existing_rows_count": 513, "deleted_rows_count": 514,
        "partitions": 507, "key_metadata": 519,
    }  # fmt: skip
    partitions = field_of(schema, 507)["type"][1]
    assert partitions["element-id"] == 508
    assert {f["name"]: f["field-id"] for f in partitions["items"]["fields"]} == {
        "contains_null": 509, "contains_nan": 518, "lower_bound": 510, "upper_bound": 511,
    }  # fmt: skip


def numbers_of(manifests: Iterable[ManifestFile]) -> list[tuple[int | None, int | None]]:
    return [(m.sequence_number, m.min_sequence_number) for m in manifests]


def test_new_manifests_get_the_sequence_number_of_the_commit():
    with_existing = msgspec.structs.replace(NEW, min_sequence_number=2)
    with_later = msgspec.structs.replace(NEW, min_sequence_number=9)
    read = read_manifest_list(written_list(NEW, with_existing, with_later, OLD), LIST)
    assert numbers_of(read) == [(5, 5), (5, 2), (5, 5), (2, 1)]


def test_a_retry_numbers_the_same_manifests_anew():
    read = read_manifest_list(written_list(NEW, OLD, sequence_number=8), LIST)
    assert numbers_of(read) == [(8, 8), (2, 1)]


@pytest.mark.parametrize("added_snapshot_id", [3, None])
def test_a_manifest_of_another_snapshot_must_have_its_number(added_snapshot_id: int | None):
    stray = msgspec.structs.replace(NEW, added_snapshot_id=added_snapshot_id)
    with pytest.raises(IcekeepBug, match="has no sequence number and is not of snapshot 7"):
        written_list(OLD, stray)


@pytest.mark.parametrize("name", ["added_files_count", "existing_rows_count"])
def test_a_manifest_without_counts_cannot_go_into_a_list_that_requires_them(name: str):
    from_version_1 = msgspec.structs.replace(OLD, **{name: None})
    with pytest.raises(IcekeepBug, match=f"has no {name}, which version 2 needs"):
        written_list(from_version_1)


def test_a_list_of_no_manifests_is_a_file():
    assert read_manifest_list(written_list(), LIST) == []


def test_a_long_list_is_cut_into_blocks_that_readers_unpack_one_at_a_time():
    many = [msgspec.structs.replace(OLD, manifest_path=f"{OLD.manifest_path}{number:05}") for number in range(3_000)]
    data = written_list(*many)
    assert [m.manifest_path for m in read_manifest_list(data, LIST)] == [m.manifest_path for m in many]
    blocks = [(block.num_records, len(block.bytes_.getvalue())) for block in fastavro.block_reader(io.BytesIO(data))]
    assert sum(count for count, _ in blocks) == 3_000
    assert len(blocks) > 2
    assert max(len(payload) for _, payload in read_blocks(data, read_header(data, LIST))) < 66_000
