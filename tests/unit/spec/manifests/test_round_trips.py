"""Manifests and manifest lists both ways: what is written is read, and what was damaged is refused."""

import io
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import make_compatible_name

from icekeep.errors import InvalidTableError
from icekeep.spec.avro import read_header
from icekeep.spec.manifests.read import read_manifest, read_manifest_list
from icekeep.spec.manifests.structs import DataFile, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.types import DOUBLE, NestedField, PrimitiveType, StructType, parse_type
from kit.cases import cases, for_each
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
    data_file,
    deleted,
    existing,
    field_of,
    read_entries,
    resized,
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
    partition_types,
    primitive_types,
)

pytestmark = pytest.mark.slow

CODECS = st.sampled_from(["gzip", "uncompressed"])
ENTRIES = (
    added(data_file(lower_bounds={1: b"a"}, value_counts={1: 10}, split_offsets=(4,))),
    existing(data_file("file:/b.parquet", partition=(None,))),
    deleted(data_file("file:/c.parquet", key_metadata=b"k")),
)


def draw_entries(data: st.DataObject, partition: StructType) -> list[ManifestEntry]:
    return data.draw(st.lists(manifest_entries(partition), max_size=3))


@given(st.data())
def test_entries_of_any_partition_type_are_written_and_read_back(data: st.DataObject):
    partition = data.draw(partition_types())
    entries = draw_entries(data, partition)
    read = read_entries(*write_manifest(entries, partition, codec=data.draw(CODECS)), partition)
    # NaN is not equal to itself, but it looks the same.
    assert repr(read) == repr(entries)


@given(st.data())
@cases(30)
def test_partitions_of_decimals_and_fixed_values_of_every_size_come_back(data: st.DataObject):
    partition = data.draw(partition_types(decimal_types() | fixed_types()))
    entries = draw_entries(data, partition)
    assert read_entries(*write_manifest(entries, partition), partition) == entries


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


@given(st.lists(manifest_files(), max_size=4), CODECS)
def test_a_manifest_list_is_written_and_read_back(manifests: list[ManifestFile], codec: str):
    assert read_manifest_list(write_list(manifests, codec=codec), LIST) == manifests


@pytest.mark.parametrize("codec", ["gzip", "uncompressed"])
def test_a_manifest_list_that_was_cut_short_is_refused_wherever_no_block_ends(codec: str):
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


@CHANGES
@pytest.mark.parametrize("codec", ["gzip", "uncompressed"])
def test_a_changed_manifest_is_read_or_refused_by_an_error_of_ours(change: Any, codec: str):
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


@CHANGES
@pytest.mark.parametrize("codec", ["gzip", "uncompressed"])
def test_a_changed_manifest_list_is_read_or_refused_by_an_error_of_ours(change: Any, codec: str):
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


def columns(*types: str) -> StructType:
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


def test_pyiceberg_reads_every_field_that_we_write():
    entries = [
        existing(EVERY_FIELD, snapshot_id=1, sequence_number=1, file_sequence_number=2),
        deleted(EVERY_FIELD, snapshot_id=4, sequence_number=0, file_sequence_number=0),
        added(EVERY_FIELD, snapshot_id=4, sequence_number=3, file_sequence_number=4),
    ]
    assert their_reading(entries, DAY)[1] == entries


def test_pyiceberg_inherits_what_we_leave_null():
    (entry,) = their_reading([added()], DAY)[1]
    assert (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number) == (SNAPSHOT_ID, 5, 5)


def test_pyiceberg_reads_delete_files_that_we_write():
    deletes = [
        data_file(content=1, referenced_data_file="file:/a.parquet"),
        data_file("file:/eq.parquet", content=2, equality_ids=(1, 2)),
    ]
    manifest, read = their_reading([existing(f) for f in deletes], DAY, content=ManifestContent.DELETES)
    assert manifest.content is ManifestContent.DELETES
    assert [e.data_file for e in read] == [without_referenced_file(f) for f in deletes]


def test_pyiceberg_rounds_doubles_to_single_precision():
    """Of PyIceberg 0.12, in its compiled decoder of Avro: the file holds the double, as fastavro reads it."""
    partition, values = columns("double", "double"), (1.5, 16_777_217.0)
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


def test_uuids_are_stored_as_pyiceberg_stores_them():
    partition = columns("uuid")
    entry = added(data_file(partition=UUIDS[:1]))
    ours, theirs = write_manifest([entry], partition)[0], write_with_pyiceberg(MANIFEST, [entry], partition)[0]
    stored = [field_of(read_header(data, "").schema, 1000)["type"] for data in (ours, theirs)]
    assert (
        stored[0] == stored[1] == ["null", {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}]
    )
    for data in (ours, theirs):
        (record,) = fastavro.reader(io.BytesIO(data))
        assert record["data_file"]["partition"] == {"p0": UUIDS[0].bytes}


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
    partition = columns(*types)
    entry = existing(data_file(partition=values))
    assert their_reading([entry], partition)[1] == [entry]
    written, manifest = write_with_pyiceberg(MANIFEST, [entry], partition)
    assert read_entries(written, msgspec.structs.replace(our_manifest(manifest), sequence_number=5), partition) == [
        entry
    ]


def test_a_second_use_that_refers_to_the_first_as_java_writes_it_is_read():
    partition = columns("uuid", "uuid")
    data, row = write_manifest([existing(data_file(partition=UUIDS))], partition)

    def refer(schema: Any) -> Any:
        field_of(schema, 1001)["type"] = ["null", "uuid_fixed"]
        return schema

    changed = with_schema(data, refer)
    assert read_entries(changed, resized(row, changed), partition)[0].data_file.partition == UUIDS


@given(st.lists(manifest_files(), max_size=3), PYICEBERG_CODECS)
@cases(40)
def test_pyiceberg_reads_our_manifest_lists(manifests: list[ManifestFile], codec: str):
    assert read_list_with_pyiceberg({LIST: our_list(*manifests, codec=codec)}, LIST) == manifests


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


def test_an_empty_list_of_pyiceberg_is_read():
    assert read_manifest_list(write_list_with_pyiceberg(LIST, []), LIST) == []


def test_version_1_as_pyiceberg_writes_it_is_read_with_sequence_number_0():
    entries = [msgspec.structs.replace(e, snapshot_id=4) for e in (added(), existing(), deleted())]
    data, manifest = write_with_pyiceberg(MANIFEST, entries, DAY, version=1)
    (row,) = read_manifest_list(write_list_with_pyiceberg(LIST, [manifest], version=1), LIST)
    assert (row.sequence_number, row.min_sequence_number, row.content) == (0, 0, ManifestContent.DATA)
    header, read = read_manifest(data, row, DAY)
    assert header.unknown_field_ids == frozenset()
    assert [(e.status, e.snapshot_id, e.sequence_number, e.file_sequence_number) for e in read] == [
        (status, 4, 0, 0) for status in (Status.ADDED, Status.EXISTING, Status.DELETED)
    ]


def test_our_row_of_a_manifest_is_the_one_that_pyiceberg_makes():
    data, row = write_manifest([added(data_file(partition=()))], UNPARTITIONED)
    their_row = write_with_pyiceberg(MANIFEST, [added(data_file(partition=()))], UNPARTITIONED)[1]
    their_row.sequence_number = 5
    (from_list,) = read_manifest_list(write_list_with_pyiceberg(LIST, [their_row]), LIST)
    assert msgspec.structs.replace(from_list, manifest_length=len(data)) == row
