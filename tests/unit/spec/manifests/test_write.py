"""Manifests and manifest lists both ways: what is written is read, and what was damaged is refused."""

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
from pyiceberg.schema import make_compatible_name

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.avro import read_blocks, read_header
from icekeep.spec.manifests.read import read_manifest, read_manifest_list
from icekeep.spec.manifests.structs import DataFile, FieldSummary, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder, PartitionCodec
from icekeep.spec.partitioning import spec_to_json
from icekeep.spec.schema import schema_to_json
from icekeep.spec.types import DOUBLE, STRING, NestedField, PrimitiveType, StructType, decimal, fixed, parse_type
from icekeep.spec.types import UUID as UUID_TYPE
from kit.cases import cases, for_each
from kit.examples import check_examples
from kit.foreign_files import (
    our_manifest,
    read_list_with_pyiceberg,
    read_with_pyiceberg,
    write_list_with_pyiceberg,
    write_with_pyiceberg,
)
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
    resized,
    spec_and_schema,
    with_schema,
    write_list,
    write_manifest,
)
from kit.strategies import (
    NANOSECOND_TYPES,
    data_files,
    decimal_types,
    fixed_types,
    json_values,
    manifest_entries,
    manifest_files,
    partition_tuples,
    partition_types,
    primitive_types,
)

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


@for_each(
    ("codec", "avro"), [("gzip", "deflate"), ("uncompressed", "null"), ("zstd", "zstandard"), ("snappy", "snappy")]
)
def test_manifests_and_lists_are_compressed_as_asked(codec: str, avro: str):
    for data in (write_manifest([added()], codec=codec)[0], written_list(OLD, codec=codec)):
        assert metadata(data)["avro.codec"] == avro
        assert len(records(data)) == 1


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
        (NestedField(field_id=1000, name="a b", type=STRING), NestedField(field_id=1001, name="a_x20b", type=STRING))
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
    codec = PartitionCodec(columns(DOUBLE, STRING))
    # Equal as keys of a dictionary, and two partitions.
    assert len({codec.encode((zero, "a")) for zero in (0.0, -0.0, 0.0)}) == 2


def test_parts_of_a_partition_that_need_a_form_of_their_own():
    partition = columns(UUID_TYPE, UUID_TYPE, decimal(38, 10), fixed(2), decimal(38, 10))
    values = (UUID(int=1), UUID(int=2**128 - 1), Decimal("-1.0000000001"), b"\0\xff", Decimal("9" * 28 + ".0000000000"))
    codec = PartitionCodec(partition)
    assert codec.decode(codec.encode(values)) == values


# Manifest lists.


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


def test_long_manifest_list_is_split_into_blocks():
    many = [msgspec.structs.replace(OLD, manifest_path=f"{OLD.manifest_path}{number:05}") for number in range(3_000)]
    data = written_list(*many)
    assert [m.manifest_path for m in read_manifest_list(data, LIST)] == [m.manifest_path for m in many]
    blocks = [(block.num_records, len(block.bytes_.getvalue())) for block in fastavro.block_reader(io.BytesIO(data))]
    assert sum(count for count, _ in blocks) == 3_000
    assert len(blocks) > 2
    assert max(len(payload) for _, payload in read_blocks(data, read_header(data, LIST))) < 66_000


def test_examples():
    check_examples("spec/manifests/write.txt", globals())


CODECS = st.sampled_from(["gzip", "uncompressed"])
ENTRIES = (
    added(data_file(lower_bounds={1: b"a"}, value_counts={1: 10}, split_offsets=(4,))),
    existing(data_file("file:/b.parquet", partition=(None,))),
    deleted(data_file("file:/c.parquet", key_metadata=b"k")),
)


def draw_entries(data: st.DataObject, partition: StructType) -> list[ManifestEntry]:
    return data.draw(st.lists(manifest_entries(partition), max_size=3))


@pytest.mark.slow
@given(st.data())
def test_entries_of_any_partition_type_are_written_and_read_back(data: st.DataObject):
    partition = data.draw(partition_types())
    entries = draw_entries(data, partition)
    read = read_entries(*write_manifest(entries, partition, codec=data.draw(CODECS)), partition)
    # NaN is not equal to itself, but it looks the same.
    assert repr(read) == repr(entries)


@pytest.mark.slow
@given(st.data())
@cases(30)
def test_decimal_and_fixed_partitions_round_trip(data: st.DataObject):
    partition = data.draw(partition_types(decimal_types() | fixed_types()))
    entries = draw_entries(data, partition)
    assert read_entries(*write_manifest(entries, partition), partition) == entries


@pytest.mark.slow
@given(st.data())
@cases(30)
def test_delete_files_are_written_and_read_back(data: st.DataObject):
    file = msgspec.structs.replace(
        data.draw(data_files(DAY)),
        content=data.draw(st.sampled_from([1, 2])),
        equality_ids=data.draw(st.none() | st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple)),
        referenced_data_file=data.draw(st.none() | st.just("file:/a.parquet")),
    )
    entry = existing(file)
    assert read_entries(*write_manifest([entry], content=ManifestContent.DELETES)) == [entry]


@pytest.mark.slow
@given(st.lists(manifest_files(), max_size=4), CODECS)
def test_a_manifest_list_is_written_and_read_back(manifests: list[ManifestFile], codec: str):
    assert read_manifest_list(write_list(manifests, codec=codec), LIST) == manifests


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["gzip", "uncompressed"])
def test_truncated_manifest_list_is_refused(codec: str):
    """A list cut anywhere but at the end of a block is refused."""
    manifests = [msgspec.structs.replace(write_manifest(ENTRIES)[1], manifest_path=f"m{i}") for i in range(5)]
    data = write_list(manifests, codec=codec)
    (block,) = blocks(data)
    for length in range(len(data)):
        if length != len(data) - len(block):
            with pytest.raises(InvalidTableError):
                read_manifest_list(data[:length], LIST)


def changed_bytes(data: st.DataObject, original: bytes) -> bytes:
    """A few bytes overwritten, taken out or put in, most of them behind the header."""
    changed = bytearray(original)
    first = data.draw(st.sampled_from([0, len(original) - sum(map(len, blocks(original)))]))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(first, len(changed)))
        end = min(len(changed), start + data.draw(st.integers(0, 3)))
        changed[start:end] = data.draw(st.binary(max_size=3))
    return bytes(changed)


def changed_schema(data: st.DataObject, original: bytes) -> bytes:
    """The Avro schema with one or two values in it replaced or taken away."""

    def change(schema: Any) -> Any:
        for _ in range(data.draw(st.integers(1, 2))):
            holder, key = data.draw(st.sampled_from(list(_places(schema))))
            if isinstance(holder, dict) and data.draw(st.booleans()):
                del holder[key]
            else:
                holder[key] = data.draw(_ODD_SCHEMAS)
        return schema

    return with_schema(original, change)


_ODD_SCHEMAS = json_values() | st.sampled_from(["int", "string", "record", "r2", "null", ["null", "long"], {}, [], 999])
CHANGES = pytest.mark.parametrize("change", [changed_bytes, changed_schema])


@pytest.mark.slow
@CHANGES
@pytest.mark.parametrize("codec", ["gzip", "uncompressed"])
def test_changed_manifest_reads_or_raises_own_error(change: Any, codec: str):
    original, row = write_manifest(ENTRIES, codec=codec)
    outcomes = set()

    @given(st.data())
    @cases(150, least=60)
    def check(data: st.DataObject) -> None:
        changed = change(data, original)
        try:
            entries = read_entries(changed, resized(row, changed))
        except InvalidTableError as error:
            outcomes.add(error.message.count("\n"))
        else:
            assert len(entries) == len(ENTRIES)

    check()
    assert outcomes == {0}


@pytest.mark.slow
@CHANGES
@pytest.mark.parametrize("codec", ["gzip", "uncompressed"])
def test_changed_manifest_list_reads_or_raises_own_error(change: Any, codec: str):
    _, row = write_manifest(ENTRIES)
    original = write_list([row, row], codec=codec)
    outcomes = set()

    @given(st.data())
    @cases(150, least=60)
    def check(data: st.DataObject) -> None:
        changed = change(data, original)
        try:
            manifests = read_manifest_list(changed, LIST)
        except InvalidTableError as error:
            outcomes.add(error.message.count("\n"))
        else:
            # Nothing in the list says how many it holds: where all blocks are gone, nothing is left to notice it.
            assert len(manifests) == 2 or len(changed) == read_header(changed, LIST).length_bytes

    check()
    assert outcomes == {0}


def _places(value: Any) -> Any:
    """Every value in a schema, as what holds it and its key there."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, item in items:
        yield value, key
        yield from _places(item)


# Manifests and manifest lists between two implementations: what one writes, the other reads with equal values.


PYICEBERG_CODECS = st.sampled_from(["gzip", "uncompressed"])
THEIR_CODECS = {"gzip": "deflate", "uncompressed": "null"}


def theirs_too(type_: PrimitiveType) -> bool:
    # PyIceberg does not store nanoseconds in manifests.
    return type_ not in NANOSECOND_TYPES


def drawn_columns(*types: str) -> StructType:
    return StructType(
        tuple(NestedField(field_id=1000 + i, name=f"p{i}", type=parse_type(t)) for i, t in enumerate(types))
    )


def our_list(*rows: ManifestFile, codec: str = "gzip") -> bytes:
    return write_list(rows, codec=codec)


def their_reading(
    entries: list[ManifestEntry], partition: StructType, **how: Any
) -> tuple[ManifestFile, list[ManifestEntry]]:
    """What PyIceberg reads of entries that we wrote as a manifest in a list."""
    data, row = write_manifest(entries, partition, sequence_number=None, **how)
    files = {MANIFEST: data, LIST: our_list(row, codec=how.get("codec", "gzip"))}
    ((manifest, read),) = read_with_pyiceberg(files, LIST)
    return manifest, read


def without_referenced_file(file: DataFile) -> DataFile:
    """PyIceberg knows the field from version 3 on."""
    return msgspec.structs.replace(file, referenced_data_file=None)


EVERY_FIELD = data_file(
    column_sizes={1: 10, 2: 20},
    value_counts={1: 10, 2: 10},
    null_value_counts={1: 0, 2: 3},
    nan_value_counts={2: 1},
    lower_bounds={1: b"\1\0\0\0", 2: b""},
    upper_bounds={1: b"\2\0\0\0", 2: b"\xff"},
    key_metadata=b"key",
    split_offsets=(4, 1000),
    sort_order_id=3,
)


@pytest.mark.slow
def test_pyiceberg_reads_every_field_that_we_write():
    entries = [
        existing(EVERY_FIELD, snapshot_id=1, sequence_number=1, file_sequence_number=2),
        deleted(EVERY_FIELD, snapshot_id=4, sequence_number=0, file_sequence_number=0),
        added(EVERY_FIELD, snapshot_id=4, sequence_number=3, file_sequence_number=4),
    ]
    assert their_reading(entries, DAY)[1] == entries


@pytest.mark.slow
def test_pyiceberg_inherits_what_we_leave_null():
    (entry,) = their_reading([added()], DAY)[1]
    assert (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number) == (SNAPSHOT_ID, 5, 5)


@pytest.mark.slow
def test_pyiceberg_reads_delete_files_that_we_write():
    deletes = [
        data_file(content=1, referenced_data_file="file:/a.parquet"),
        data_file("file:/eq.parquet", content=2, equality_ids=(1, 2)),
    ]
    manifest, read = their_reading([existing(f) for f in deletes], DAY, content=ManifestContent.DELETES)
    assert manifest.content is ManifestContent.DELETES
    assert [e.data_file for e in read] == [without_referenced_file(f) for f in deletes]


@pytest.mark.slow
def test_pyiceberg_rounds_doubles_to_single_precision():
    """Of PyIceberg 0.12, in its compiled decoder of Avro: the file holds the double, as fastavro reads it."""
    partition, values = drawn_columns("double", "double"), (1.5, 16_777_217.0)
    entry = existing(data_file(partition=values))
    assert their_reading([entry], partition)[1][0].data_file.partition == (1.5, 16_777_216.0)
    (record,) = fastavro.reader(io.BytesIO(write_manifest([entry], partition)[0]))
    assert (*record["data_file"]["partition"].values(),) == values


@pytest.mark.slow
@given(st.data())
@cases(40)
def test_pyiceberg_reads_partitions_of_every_type_that_we_write(data: st.DataObject):
    types = primitive_types().filter(lambda type_: theirs_too(type_) and type_ != DOUBLE)
    partition = data.draw(partition_types(types))
    entries = data.draw(st.lists(manifest_entries(partition), max_size=2))
    _, read = their_reading(entries, partition, codec=data.draw(PYICEBERG_CODECS))
    assert repr(read) == repr(entries)


@pytest.mark.slow
@given(st.data())
@cases(40)
def test_we_read_partitions_of_every_type_that_pyiceberg_writes(data: st.DataObject):
    partition = data.draw(
        partition_types(primitive_types().filter(theirs_too)).filter(names_that_pyiceberg_keeps_apart)
    )
    entries = data.draw(st.lists(manifest_entries(partition), min_size=1, max_size=2))
    codec = THEIR_CODECS[data.draw(PYICEBERG_CODECS)]
    written, manifest = write_with_pyiceberg(MANIFEST, entries, partition, codec=codec)
    row = msgspec.structs.replace(our_manifest(manifest), sequence_number=5)
    assert repr(read_entries(written, row, partition)) == repr(entries)


def names_that_pyiceberg_keeps_apart(partition: StructType) -> bool:
    names = [make_compatible_name(field.name) for field in partition.fields]
    return len(set(names)) == len(names)


UUIDS = (UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7"), UUID(int=0))


@pytest.mark.slow
def test_uuids_are_stored_as_pyiceberg_stores_them():
    partition = drawn_columns("uuid")
    entry = added(data_file(partition=UUIDS[:1]))
    ours, theirs = write_manifest([entry], partition)[0], write_with_pyiceberg(MANIFEST, [entry], partition)[0]
    stored = [field_of(read_header(data, "").schema, 1000)["type"] for data in (ours, theirs)]
    assert (
        stored[0] == stored[1] == ["null", {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}]
    )
    for data in (ours, theirs):
        (record,) = fastavro.reader(io.BytesIO(data))
        assert record["data_file"]["partition"] == {"p0": UUIDS[0].bytes}


@pytest.mark.slow
@for_each(
    ("types", "values"),
    [
        (("uuid", "uuid"), UUIDS),
        (("fixed[2]", "fixed[2]", "fixed[3]"), (b"ab", b"cd", b"efg")),
        (("decimal(9, 2)", "decimal(9, 2)"), (Decimal("-1.20"), Decimal("9999999.99"))),
        (("decimal(38, 38)", "decimal(38, 0)"), (Decimal("-0." + "9" * 38), Decimal("9" * 38))),
        (("date", "timestamptz"), (-30_000, -1)),
    ],
)
def test_types_that_are_used_twice_go_both_ways(types: tuple[str, ...], values: tuple[Any, ...]):
    partition = drawn_columns(*types)
    entry = existing(data_file(partition=values))
    assert their_reading([entry], partition)[1] == [entry]
    written, manifest = write_with_pyiceberg(MANIFEST, [entry], partition)
    assert read_entries(written, msgspec.structs.replace(our_manifest(manifest), sequence_number=5), partition) == [
        entry
    ]


@pytest.mark.slow
def test_named_type_reference_as_in_java_is_read():
    partition = drawn_columns("uuid", "uuid")
    data, row = write_manifest([existing(data_file(partition=UUIDS))], partition)

    def refer(schema: Any) -> Any:
        field_of(schema, 1001)["type"] = ["null", "uuid_fixed"]
        return schema

    changed = with_schema(data, refer)
    assert read_entries(changed, resized(row, changed), partition)[0].data_file.partition == UUIDS


@pytest.mark.slow
@given(st.lists(manifest_files(), max_size=3), PYICEBERG_CODECS)
@cases(40)
def test_pyiceberg_reads_our_manifest_lists(manifests: list[ManifestFile], codec: str):
    assert read_list_with_pyiceberg({LIST: our_list(*manifests, codec=codec)}, LIST) == manifests


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["deflate", "null"])
def test_we_read_manifests_and_lists_that_pyiceberg_writes(codec: str):
    entries = [added(), existing(sequence_number=3), deleted()]
    data, manifest = write_with_pyiceberg(MANIFEST, entries, DAY, codec=codec)
    written = write_list_with_pyiceberg(LIST, [manifest], codec=codec)
    (row,) = read_manifest_list(written, LIST)
    assert [row] == read_list_with_pyiceberg({LIST: written}, LIST)
    assert (row.sequence_number, row.min_sequence_number, row.manifest_length) == (5, 3, len(data))
    header, read = read_manifest(data, row, DAY)
    assert header.unknown_field_ids == frozenset()
    assert list(read) == read_with_pyiceberg({LIST: written, MANIFEST: data}, LIST)[0][1]


@pytest.mark.slow
def test_an_empty_list_of_pyiceberg_is_read():
    assert read_manifest_list(write_list_with_pyiceberg(LIST, []), LIST) == []


@pytest.mark.slow
def test_v1_manifest_of_pyiceberg_has_sequence_number_0():
    entries = [msgspec.structs.replace(e, snapshot_id=4) for e in (added(), existing(), deleted())]
    data, manifest = write_with_pyiceberg(MANIFEST, entries, DAY, version=1)
    (row,) = read_manifest_list(write_list_with_pyiceberg(LIST, [manifest], version=1), LIST)
    assert (row.sequence_number, row.min_sequence_number, row.content) == (0, 0, ManifestContent.DATA)
    header, read = read_manifest(data, row, DAY)
    assert header.unknown_field_ids == frozenset()
    assert [(e.status, e.snapshot_id, e.sequence_number, e.file_sequence_number) for e in read] == [
        (status, 4, 0, 0) for status in (Status.ADDED, Status.EXISTING, Status.DELETED)
    ]


@pytest.mark.slow
def test_our_row_of_a_manifest_is_the_one_that_pyiceberg_makes():
    data, row = write_manifest([added(data_file(partition=()))], UNPARTITIONED)
    their_row = write_with_pyiceberg(MANIFEST, [added(data_file(partition=()))], UNPARTITIONED)[1]
    their_row.sequence_number = 5
    (from_list,) = read_manifest_list(write_list_with_pyiceberg(LIST, [their_row]), LIST)
    assert msgspec.structs.replace(from_list, manifest_length=len(data)) == row
