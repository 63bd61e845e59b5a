"""Entries of manifests: inherited fields, damage, unknown fields; and the values that they are read into."""

import copy
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.manifest import MANIFEST_ENTRY_SCHEMAS, MANIFEST_LIST_FILE_SCHEMAS, PartitionFieldStats
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    UUIDType,
)

from icekeep.errors import InvalidTableError
from icekeep.spec.manifests.read import (
    ManifestHeader,
    completed,
    inspect_manifest,
    lacks_counts,
    read_manifest,
    read_manifest_list,
)
from icekeep.spec.manifests.structs import (
    DataFile,
    FieldSummary,
    FileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    PartitionSummarizer,
    RowIdInheritance,
    Status,
    assign_row_ids,
    entry_type,
    manifest_file_type,
)
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    NestedField,
    StructType,
    Type,
    decimal,
    fixed,
    walk,
)
from icekeep.spec.types import UUID as UUID_TYPE
from icekeep.spec.values import java_order, value_from_bytes
from kit.cases import for_each
from kit.examples import check_examples
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
    with_metadata,
    with_schema,
    write_list,
    write_manifest,
)
from kit.strategies import typed_values, values_of


def changed_schema(data: bytes, change: Callable[[Any], None]) -> bytes:
    def changed(schema: Any) -> Any:
        schema = copy.deepcopy(schema)
        change(schema)
        return schema

    return with_schema(data, changed)


def refused(data: bytes, row: ManifestFile, partition: StructType = DAY) -> str:
    with pytest.raises(InvalidTableError) as raised:
        read_entries(data, row, partition)
    assert raised.value.facts == {"location": MANIFEST}
    assert "\n" not in raised.value.message
    return raised.value.message


def a_list(*changes: dict[str, Any]) -> bytes:
    _, row = write_manifest([added()])
    rows = [msgspec.structs.replace(row, **change) for change in changes or ({},)]
    return write_list(rows)


# Inheritance.


def test_an_added_entry_inherits_snapshot_and_numbers():
    (entry,) = read_entries(*write_manifest([added()], sequence_number=5))
    assert (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number) == (SNAPSHOT_ID, 5, 5)


def test_an_added_entry_keeps_an_older_data_sequence_number():
    (entry,) = read_entries(*write_manifest([added(sequence_number=2)], sequence_number=5))
    assert (entry.sequence_number, entry.file_sequence_number) == (2, 5)


def test_what_an_entry_says_is_not_inherited():
    entries = [
        added(snapshot_id=4, sequence_number=3, file_sequence_number=4),
        existing(snapshot_id=4, sequence_number=1, file_sequence_number=2),
        deleted(snapshot_id=4, sequence_number=0, file_sequence_number=0),
    ]
    assert read_entries(*write_manifest(entries)) == entries


@pytest.mark.parametrize("entry", [existing(), deleted()])
def test_older_entry_inherits_no_file_sequence_number(entry: ManifestEntry):
    without = msgspec.structs.replace(entry, file_sequence_number=None)
    assert read_entries(*write_manifest([without])) == [without]


def as_status(data: bytes, row: ManifestFile, status: Status) -> tuple[bytes, ManifestFile]:
    """The manifest with one added entry as if the entry had another status; the status is the first byte of a record."""
    (block,) = blocks(data)
    start = len(data) - len(block) + 3
    assert data[start] == 2 * Status.ADDED
    counts = {"added_files_count": 0, f"{status.name.lower()}_files_count": 1}
    changed = data[:start] + bytes([2 * status]) + data[start + 1 :]
    return changed, msgspec.structs.replace(row, **counts)


@pytest.mark.parametrize("status", [Status.EXISTING, Status.DELETED])
def test_an_older_entry_without_a_sequence_number_is_an_error(status: Status):
    data, row = as_status(*write_manifest([added()], codec="uncompressed"), status)
    assert refused(data, row) == (
        f"manifest {MANIFEST!r}: the {status.name.lower()} entry of {data_file().file_path!r} has no sequence number"
    )


@pytest.mark.parametrize("status", Status)
def test_in_a_manifest_of_version_1_every_number_is_0(status: Status):
    data, row = as_status(*write_manifest([added()], codec="uncompressed", sequence_number=0), status)
    (entry,) = read_entries(data, row)
    assert (entry.status, entry.sequence_number, entry.file_sequence_number) == (status, 0, 0)


def test_uncommitted_manifest_has_unknown_sequence_numbers():
    (entry,) = read_entries(*write_manifest([added()], sequence_number=None))
    assert (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number) == (SNAPSHOT_ID, None, None)


def test_files_get_the_spec_of_their_manifest():
    data, row = write_manifest([added(data_file(spec_id=3))], spec_id=3)
    assert read_entries(data, row)[0].data_file.spec_id == 3


# Whole files only.


@pytest.mark.parametrize("change", [-1, 1, -50])
def test_a_manifest_must_have_the_length_that_its_list_says(change: int):
    data, row = write_manifest([added()])
    wrong = msgspec.structs.replace(row, manifest_length=row.manifest_length + change)
    assert refused(data, wrong) == (
        f"manifest {MANIFEST!r} has {len(data)} bytes, but its manifest list says {len(data) + change}"
    )


@for_each("name", ["added_files_count", "existing_files_count", "deleted_files_count"])
@for_each("change", [-1, 1])
def test_a_manifest_must_have_as_many_entries_as_its_list_says(name: str, change: int):
    data, row = write_manifest([added(), existing(), deleted()])
    message = refused(data, msgspec.structs.replace(row, **{name: 1 + change}))
    kind = name.removesuffix("_files_count")
    assert message == (
        f"manifest {MANIFEST!r} holds 1 {kind} entries, but its manifest list says {1 + change}; run "
        "`icekeep repair --table NAME --fault 204`, which corrects the list"
    )


def test_counts_that_the_list_does_not_have_are_not_compared():
    data, row = write_manifest([added(), existing()])
    unknown = dict.fromkeys(("added_files_count", "existing_files_count", "deleted_files_count"))
    assert len(read_entries(data, msgspec.structs.replace(row, **unknown))) == 2


def test_entries_come_before_the_error_that_some_are_missing():
    data, row = write_manifest([added(), added()])
    _, entries = read_manifest(data, msgspec.structs.replace(row, added_files_count=3), DAY)
    assert next(entries).is_live
    assert next(entries).is_live
    with pytest.raises(InvalidTableError):
        next(entries)


def several_blocks(codec: str) -> tuple[bytes, ManifestFile]:
    """A manifest of five blocks, more or less."""
    files = [data_file(f"file:/warehouse/{number:03}/{'x' * 3000}") for number in range(100)]
    data, row = write_manifest([added(file) for file in files], codec=codec)
    assert len(blocks(data)) > 3
    return data, row


@pytest.mark.parametrize("codec", ["gzip", "uncompressed"])
def test_a_manifest_of_several_blocks_is_read(codec: str):
    data, row = several_blocks(codec)
    assert [e.data_file.file_path[16:19] for e in read_entries(data, row)] == [f"{n:03}" for n in range(100)]


@pytest.mark.parametrize("codec", ["gzip", "uncompressed"])
def test_a_manifest_that_was_cut_at_a_block_is_an_error(codec: str):
    data, row = several_blocks(codec)
    position = len(data)
    for block in reversed(blocks(data)):
        position -= len(block)
        cut = data[:position]
        assert "bytes, but its manifest list says" in refused(cut, row)
        assert "added entries, but its manifest list says 100" in refused(cut, resized(row, cut))


@pytest.mark.parametrize("codec", ["gzip", "uncompressed"])
def test_a_manifest_that_was_cut_anywhere_is_an_error(codec: str):
    data, row = several_blocks(codec)
    for length in {*range(0, len(data), 997), *range(16), *range(len(data) - 40, len(data))}:
        refused(data[:length], resized(row, data[:length]))


def test_a_block_that_is_missing_or_doubled_is_an_error():
    data, row = several_blocks("gzip")
    parts = blocks(data)
    head = data[: len(data) - sum(map(len, parts))]
    for chosen in (parts[1:], parts[:1] + parts[2:], [*parts, parts[0]]):
        changed = head + b"".join(chosen)
        assert "its manifest list says 100" in refused(changed, resized(row, changed))


# What a manifest says of itself.


def test_a_manifest_says_its_spec_and_content():
    data, row = write_manifest([added(data_file(spec_id=3))], spec_id=3)
    assert read_manifest(data, row, DAY)[0] == ManifestHeader(3, ManifestContent.DATA, frozenset())
    data, row = write_manifest([], content=ManifestContent.DELETES)
    assert read_manifest(data, row, DAY)[0] == ManifestHeader(0, ManifestContent.DELETES, frozenset())


DELETED = data_file(content=FileContent.EQUALITY_DELETES, equality_ids=(1,))


@for_each(("content", "file"), [(ManifestContent.DATA, data_file()), (ManifestContent.DELETES, DELETED)], ids=str)
def test_a_manifest_need_not_say_so(content: ManifestContent, file: DataFile):
    """Those of version 1 do not, nor do ClickHouse's of later versions."""
    data, row = write_manifest([added(file)], content=content)
    bare = with_metadata(data, {"content": None, "partition-spec-id": None, "schema-id": None})
    header, entries = read_manifest(bare, resized(row, bare), DAY)
    assert header == ManifestHeader(None, None, frozenset())
    assert [entry.data_file.content for entry in entries] == [file.content]
    other = next(one for one in ManifestContent if one is not content)
    problem = "is not of the kind of file that the manifest tracks"
    assert problem in refused(bare, msgspec.structs.replace(resized(row, bare), content=other))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"partition_spec_id": 1}, "is of partition spec 0, but its manifest list says spec 1"),
        ({"content": ManifestContent.DELETES}, "holds data, but its manifest list says deletes"),
    ],
)
def test_a_manifest_must_be_what_its_list_says(change: dict[str, Any], problem: str):
    data, row = write_manifest([added()])
    assert problem in refused(data, msgspec.structs.replace(row, **change))


@for_each(
    ("metadata", "problem"),
    [
        ({"content": b"files"}, "has the content 'files'; the spec knows data, deletes"),
        ({"content": b"\xff"}, "the spec knows data, deletes"),
        ({"partition-spec-id": b"zero"}, "has the partition-spec-id b'zero'"),
        ({"partition-spec-id": b"\xff"}, "has the partition-spec-id"),
        ({"partition-spec-id": b""}, "has the partition-spec-id"),
    ],
)
def test_what_a_manifest_says_of_itself_must_make_sense(metadata: dict[str, bytes], problem: str):
    data, row = write_manifest([added()])
    changed = with_metadata(data, metadata)
    assert problem in refused(changed, resized(row, changed))


def test_fields_that_are_not_known_are_reported_and_ignored():
    def add(schema: Any) -> None:
        for field_id, parent in ((901, schema), (902, field_of(schema, 2)["type"])):
            parent["fields"].append({"name": f"new_{field_id}", "type": {"type": "array", "items": "int"}})
            parent["fields"][-1]["field-id"] = field_id

    data, row = write_manifest([])
    changed = changed_schema(data, add)
    header, entries = read_manifest(changed, resized(row, changed), DAY)
    assert header.unknown_field_ids == {901, 902}
    assert list(entries) == []


# Fields are found by id.


def test_fields_are_found_by_id_whatever_their_names():
    def rename(value: Any) -> None:
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            rename(item)
        if isinstance(value, dict) and "field-id" in value:
            value["name"] = f"renamed_{value['field-id']}"

    file = data_file(column_sizes={1: 2}, lower_bounds={3: b"x"}, split_offsets=(4,), equality_ids=None)
    data, row = write_manifest([existing(file)])
    changed = changed_schema(data, rename)
    assert read_entries(changed, resized(row, changed)) == [existing(file)]

    written = a_list({"partitions": (FieldSummary(contains_null=True, contains_nan=False, lower_bound=b"a"),)})
    assert read_manifest_list(changed_schema(written, rename), LIST) == read_manifest_list(written, LIST)


def test_a_name_without_its_id_is_not_the_field():
    def other_id(schema: Any) -> None:
        field_of(schema, 140)["field-id"] = 999

    data, row = write_manifest([added(data_file(sort_order_id=4))])
    assert read_entries(data, row)[0].data_file.sort_order_id == 4
    changed = changed_schema(data, other_id)
    header, entries = read_manifest(changed, resized(row, changed), DAY)
    assert header.unknown_field_ids == {999}
    assert next(entries).data_file.sort_order_id is None


def test_values_of_a_partition_go_by_field_id_not_by_place():
    pair = StructType(
        (NestedField(field_id=1000, name="a", type=LONG), NestedField(field_id=1001, name="b", type=STRING))
    )
    data, row = write_manifest([added(data_file(partition=(5, "x")))], pair)
    swapped = StructType(pair.fields[::-1])
    assert read_entries(data, row, swapped)[0].data_file.partition == ("x", 5)
    assert read_entries(data, row, UNPARTITIONED)[0].data_file.partition == ()


def test_partition_field_without_id_is_an_error_not_null():
    data, row = write_manifest([added()])
    renumbered = StructType((NestedField(field_id=1001, name="day", type=DAY.fields[0].type),))
    assert refused(data, row, renumbered) == f"cannot read {MANIFEST!r}: it has no partition field with id 1001 ('day')"


# Fields that are not what they must be.


@for_each("field_id", [0, 2, 100, 101, 102, 103, 104])
def test_a_field_that_the_spec_requires_must_be_there(field_id: int):
    data, row = write_manifest([added()])
    changed = changed_schema(data, lambda schema: field_of(schema, field_id).update({"field-id": 999}))
    message = refused(changed, resized(row, changed))
    if field_id in (2, 102):
        assert message == f"cannot read {MANIFEST!r}: it has no field with id {field_id}"


@for_each(
    ("field_id", "null_id", "name"),
    [(100, 143, "file_path"), (101, 143, "file_format"), (103, 140, "record_count"), (104, 140, "file_size_in_bytes")],
)
def test_a_field_that_the_spec_requires_must_not_be_null(field_id: int, null_id: int, name: str):
    def swap(schema: Any) -> None:
        field, null = field_of(schema, field_id), field_of(schema, null_id)
        field["field-id"], null["field-id"] = 999, field_id

    data, row = write_manifest([added()])
    changed = changed_schema(data, swap)
    assert refused(changed, resized(row, changed)) == f"cannot read {MANIFEST!r}: an entry lacks {name!r}"


def test_two_fields_of_one_name_are_refused():
    pair = StructType(
        (NestedField(field_id=1000, name="a", type=LONG), NestedField(field_id=1001, name="b", type=LONG))
    )
    data, row = write_manifest([added(data_file(partition=(5, 6)))], pair)
    changed = changed_schema(data, lambda schema: field_of(schema, 1001).update({"name": "a"}))
    message = refused(changed, resized(row, changed), pair)
    assert message == f"cannot read {MANIFEST!r}: its record 'r102' has two fields of one name"


def test_distinct_counts_of_older_writers_are_passed_over():
    data, row = write_manifest([added(data_file(null_value_counts={1: 7}))])
    changed = changed_schema(data, lambda schema: field_of(schema, 110).update({"field-id": 111}))
    (entry,) = read_entries(changed, resized(row, changed))
    assert entry.data_file == data_file()


@for_each("field_id", [500, 501, 502, 503])
def test_a_field_that_the_spec_requires_of_a_list_must_be_there(field_id: int):
    changed = changed_schema(a_list(), lambda schema: field_of(schema, field_id).update({"field-id": 999}))
    with pytest.raises(InvalidTableError, match="an entry lacks ") as raised:
        read_manifest_list(changed, LIST)
    assert raised.value.facts == {"location": LIST}


def test_whole_numbers_may_be_stored_in_either_width():
    data, row = write_manifest([added(data_file(sort_order_id=4))])
    changed = changed_schema(data, lambda schema: field_of(schema, 140).update({"type": ["null", "long"]}))
    assert read_entries(changed, resized(row, changed)) == read_entries(data, row)
    changed = changed_schema(data, lambda schema: field_of(schema, 103).update({"type": "int"}))
    assert read_entries(changed, resized(row, changed)) == read_entries(data, row)


@for_each(
    ("field_id", "type_"),
    [
        (1, "string"),
        (131, ["null", "string"]),
        (100, "bytes"),
        (103, {"type": "fixed", "name": "x", "size": 8}),
        (108, ["null", "bytes"]),
        (108, ["null", "long", "string"]),
        (132, ["null", {"type": "array", "items": "string"}]),
        (102, "long"),
        (2, "r2"),
        (104, ["null"]),
    ],
)
def test_a_field_of_a_wrong_type_is_refused(field_id: int, type_: Any):
    data, row = write_manifest([added()])
    changed = changed_schema(data, lambda schema: field_of(schema, field_id).update({"type": type_}))
    refused(changed, resized(row, changed))


@for_each(
    "change",
    [
        lambda schema: schema.pop("fields"),
        lambda schema: schema.update({"fields": 5}),
        lambda schema: schema["fields"].append(5),
        lambda schema: schema["fields"][0].pop("name"),
        lambda schema: schema["fields"][0].update({"name": schema["fields"][1]["name"]}),
        lambda schema: schema["fields"][0].update({"field-id": [1]}),
        lambda schema: field_of(schema, 2).pop("type"),
        lambda schema: field_of(schema, 108)["type"][1]["items"]["fields"].pop(),
        lambda schema: field_of(schema, 1000).update({"type": ["null", "string"]}),
        lambda schema: field_of(schema, 1000).update({"type": ["null", "double"]}),
    ],
)
def test_a_schema_that_does_not_make_sense_is_refused(change: Callable[[Any], None]):
    data, row = write_manifest([added()])
    changed = changed_schema(data, change)
    refused(changed, resized(row, changed))


@pytest.mark.parametrize("place", ["status", "content"])
def test_a_number_that_stands_for_nothing_is_refused(place: str):
    data, row = write_manifest([added()], codec="uncompressed")
    (block,) = blocks(data)
    start = len(data) - len(block) + 3
    # A record begins with its status; three nulls follow, then the content.
    position = start if place == "status" else start + 4
    assert data[position] == (2 if place == "status" else 0)
    message = refused(data[:position] + bytes([2 * 9]) + data[position + 1 :], row)
    assert message == f"cannot read {MANIFEST!r}: an entry has {place} 9; the spec knows 0, 1, 2"


def test_manifest_list_with_unknown_content_is_refused():
    def swap(schema: Any) -> None:
        partition_spec, content = field_of(schema, 502), field_of(schema, 517)
        partition_spec["field-id"], content["field-id"] = 517, 502

    with pytest.raises(InvalidTableError, match="an entry has content 4; the spec knows 0, 1"):
        read_manifest_list(changed_schema(a_list({"partition_spec_id": 4}), swap), LIST)


@pytest.mark.parametrize("content", [FileContent.POSITION_DELETES, FileContent.EQUALITY_DELETES])
def test_data_and_delete_files_need_own_manifests(content: FileContent):
    deletes = data_file(content=content, equality_ids=(1,) if content is FileContent.EQUALITY_DELETES else None)
    data, row = write_manifest([added(deletes)], content=ManifestContent.DELETES)
    assert read_entries(data, row)[0].data_file == deletes
    assert "is not of the kind of file that the manifest tracks" in refused(*write_manifest([added(deletes)]))
    assert "is not of the kind" in refused(*write_manifest([added()], content=ManifestContent.DELETES))


# Manifest lists of version 1.


def test_v1_list_has_no_sequence_numbers_or_content():
    """A list of version 1 reads as data with sequence number 0, and may have no counts."""
    fields = [
        {"name": "manifest_path", "type": "string", "field-id": 500},
        {"name": "manifest_length", "type": "long", "field-id": 501},
        {"name": "partition_spec_id", "type": "int", "field-id": 502},
        {"name": "added_snapshot_id", "type": ["null", "long"], "default": None, "field-id": 503},
    ]
    schema = {"type": "record", "name": "manifest_file", "fields": fields}
    record = b"\x02m" + b"\x14" + b"\x00" + b"\x02\x08"
    data = with_schema(a_list({}), lambda _: schema)
    head = data[: len(data) - len(blocks(data)[0])]
    sync = data[-16:]
    plain = with_metadata(head, {"avro.codec": b"null"}) + b"\x02" + bytes([2 * len(record)]) + record + sync
    assert read_manifest_list(plain, LIST) == [
        ManifestFile(
            manifest_path="m",
            manifest_length=10,
            partition_spec_id=0,
            added_snapshot_id=4,
            content=ManifestContent.DATA,
            sequence_number=0,
            min_sequence_number=0,
        )
    ]


THREE = [
    existing(data_file("file:/a", record_count=1, partition=(1,)), snapshot_id=9),
    added(data_file("file:/b", record_count=2, partition=(None,)), snapshot_id=8),
    deleted(data_file("file:/c", record_count=4, partition=(3,)), snapshot_id=8),
]


def version_1(entries: list[Any]) -> bytes:
    return write_manifest(entries, format_version=1)[0]


def test_counts_length_and_partitions_are_those_of_the_entries():
    data = version_1(THREE)
    row = inspect_manifest(data, MANIFEST)
    _, expected = write_manifest(THREE, format_version=1, sequence_number=None)
    assert row == msgspec.structs.replace(
        expected, added_snapshot_id=8, sequence_number=0, min_sequence_number=0, manifest_length=len(data)
    )
    assert (row.added_rows_count, row.existing_rows_count, row.deleted_rows_count) == (2, 1, 4)
    assert row.partitions[0].contains_null


@for_each(
    ("metadata", "problem"),
    [
        ({"partition-spec-id": b"x"}, "has the partition-spec-id"),
        ({"partition-spec": None}, "its 'partition-spec' is missing"),
        ({"partition-spec": b"["}, "its 'partition-spec' cannot be read"),
        ({"schema": b"{}"}, "its 'schema' cannot be read: a schema must be an object"),
    ],
)
def test_header_without_partition_type_is_refused(metadata, problem):
    with pytest.raises(InvalidTableError, match=f"manifest '{MANIFEST}'.*{problem}"):
        inspect_manifest(with_metadata(version_1(THREE), metadata), MANIFEST)


def test_partitions_that_are_not_of_the_spec_are_refused():
    schema = {"type": "struct", "fields": [{"id": 1, "name": "s", "required": False, "type": "string"}]}
    changed = {"schema": json.dumps(schema).encode(), "partition-spec": spec_of("identity")}
    with pytest.raises(InvalidTableError, match="holds partitions that are not of its spec"):
        inspect_manifest(with_metadata(version_1(THREE), changed), MANIFEST)


def test_unknown_transform_has_no_partition_summary():
    row = inspect_manifest(with_metadata(version_1(THREE), {"partition-spec": spec_of("unheard-of")}), MANIFEST)
    assert (row.partitions, lacks_counts(row)) == (None, False)


def spec_of(transform):
    fields = [{"name": "day", "transform": transform, "source-id": 1, "field-id": 1000}]
    return json.dumps(fields).encode()


def test_what_a_row_says_already_is_kept():
    data, row = write_manifest(THREE)
    assert completed(row, data, DAY) == row
    bare = msgspec.structs.replace(row, deleted_rows_count=None)
    assert (lacks_counts(row), lacks_counts(bare)) == (False, True)
    assert completed(bare, data, DAY) == row


def described(struct: StructType) -> dict[int, tuple[str, bool, str]]:
    """Every field at every depth by id: its name, whether it is required, its type if it is a plain one."""
    return {f.field_id: (f.name, f.required, str(f.type) if "<" not in str(f.type) else "") for f in walk(struct)}


def foreign(schema: Any) -> dict[int, tuple[str, bool, str]]:
    fields = schema._lazy_id_to_field.values()
    return {f.field_id: (f.name, f.required, "" if "<" in str(f.field_type) else str(f.field_type)) for f in fields}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_manifest_list_fields_agree_with_pyiceberg(version: int):
    assert described(manifest_file_type(version)) == foreign(MANIFEST_LIST_FILE_SCHEMAS[version])


@pytest.mark.parametrize("version", [1, 2, 3])
def test_manifests_have_the_fields_that_pyiceberg_gives_them(version: int):
    ours, theirs = described(entry_type(UNPARTITIONED, version)), foreign(MANIFEST_ENTRY_SCHEMAS[version])
    # The spec has it from version 2 on, PyIceberg from version 3 on.
    assert ours.pop(143, theirs.get(143)) == theirs.pop(
        143, ("referenced_data_file", False, "string") if version > 1 else None
    )
    # PyIceberg requires what version 1 does, and stores equality ids as long where the spec says int.
    ours.pop(1)
    theirs.pop(1)
    if version > 1:
        assert (ours.pop(136)[2], theirs.pop(136)[2]) == ("int", "long")
    assert ours == theirs


@pytest.mark.parametrize("version", [1, 2, 3])
def test_distinct_counts_and_old_fields_are_not_written(version: int):
    ids = described(entry_type(UNPARTITIONED, version)).keys()
    assert not ids & {106, 107, 111, 112, 123, 124}
    assert (105 in ids) is (version == 1)


@pytest.mark.parametrize(("entry", "live"), [(added(), True), (existing(), True), (deleted(), False)])
def test_an_entry_that_is_not_deleted_is_live(entry: ManifestEntry, live: bool):
    assert entry.is_live is live
    assert ManifestEntry(status=Status.DELETED, data_file=data_file()).is_live is False


@for_each(
    ("counts", "live", "may_have"),
    [
        ({"added_files_count": 2, "existing_files_count": 3, "deleted_files_count": 9}, 5, True),
        ({"added_files_count": 0, "existing_files_count": 0, "deleted_files_count": 9}, 0, False),
        ({"added_files_count": 0, "existing_files_count": 1, "deleted_files_count": 0}, 1, True),
        ({"added_files_count": 0}, None, True),
        ({"existing_files_count": 0}, None, True),
        ({}, None, True),
    ],
)
def test_counts_that_are_not_known_may_hide_live_files(counts: dict[str, int], live: int | None, may_have: bool):
    manifest = ManifestFile(manifest_path="m", manifest_length=1, partition_spec_id=0, added_snapshot_id=1, **counts)
    assert manifest.live_files_count == live
    assert manifest.may_have_live_files is may_have


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


_FILES = st.lists(
    st.tuples(
        st.sampled_from([Status.ADDED, Status.EXISTING, Status.DELETED]),
        st.integers(0, 50),
        st.none() | st.integers(0, 99).map(lambda n: 100 * n),
    ),
    max_size=6,
)


@given(st.lists(_FILES, max_size=4), st.integers(10_000, 20_000))
def test_row_ids_are_unique_and_below_next_row_id(contents, next_row_id: int):
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


FOREIGN: list[tuple[Any, PrimitiveType]] = [
    (BOOLEAN, BooleanType()),
    (INT, IntegerType()),
    (LONG, LongType()),
    (DATE, DateType()),
    (TIMESTAMP, TimestampType()),
    (STRING, StringType()),
    (BINARY, BinaryType()),
    (UUID_TYPE, UUIDType()),
    (fixed(3), FixedType(3)),
    (decimal(9, 2), DecimalType(9, 2)),
    (DOUBLE, DoubleType()),
]


def summary(type_: Type, *values: Any) -> FieldSummary:
    summarizer = PartitionSummarizer([type_])
    for value in values:
        summarizer.add((value,))
    return summarizer.summaries()[0]


def bounds(type_: Type, *values: Any) -> tuple[Any, Any]:
    found = summary(type_, *values)
    assert found.lower_bound is not None
    assert found.upper_bound is not None
    return value_from_bytes(type_, found.lower_bound), value_from_bytes(type_, found.upper_bound)


@for_each(
    ("type_", "values", "least", "greatest"),
    [
        (INT, (3, -7, 5), -7, 5),
        (INT, (9,), 9, 9),
        (STRING, ("b", "a", "ab"), "a", "b"),
        (STRING, ("\U0001f600", "\uffee"), "\uffee", "\U0001f600"),
        (BINARY, (b"\x80", b"\x7f"), b"\x7f", b"\x80"),
        (BOOLEAN, (True, False), False, True),
        # In Java's order, as two signed longs.
        (UUID_TYPE, (UUID(int=1 << 127), UUID(int=1)), UUID(int=1 << 127), UUID(int=1)),
        (decimal(9, 2), (Decimal("1.10"), Decimal("-2.00")), Decimal("-2.00"), Decimal("1.10")),
        (DOUBLE, (math.inf, -math.inf, 0.5), -math.inf, math.inf),
    ],
)
def test_bounds_are_the_least_and_the_greatest_value(type_: Type, values: Any, least: Any, greatest: Any):
    assert bounds(type_, *values) == (least, greatest)
    assert bounds(type_, *reversed(values)) == (least, greatest)


@pytest.mark.parametrize("values", [(0.0, -0.0), (-0.0, 0.0), (-0.0, 0.0, -0.0)])
def test_zero_bounds_include_both_signs(values: tuple[float, ...]):
    least, greatest = bounds(FLOAT, *values)
    assert math.copysign(1, least) == -1
    assert math.copysign(1, greatest) == 1


def test_each_field_has_its_own_summary():
    summarizer = PartitionSummarizer([INT, STRING])
    summarizer.add((1, None))
    summarizer.add((2, "x"))
    assert summarizer.summaries() == (
        FieldSummary(contains_null=False, lower_bound=b"\x01\0\0\0", upper_bound=b"\x02\0\0\0"),
        FieldSummary(contains_null=True, lower_bound=b"x", upper_bound=b"x"),
    )
    assert PartitionSummarizer([]).summaries() == ()


def lists_of(type_: Type) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values_of(type_), max_size=6)


@given(typed_values(st.sampled_from(FOREIGN), lambda pair: lists_of(pair[0])))
def test_summaries_are_those_of_pyiceberg(drawn: Any):
    (type_, foreign_type), values = drawn
    foreign = PartitionFieldStats(foreign_type)
    for value in values:
        foreign.update(value)
    theirs, ours = foreign.to_summary(), summary(type_, *values)
    # Theirs takes -0.0 and 0.0 for the same and says of every type whether it contains NaN.
    assert (ours.contains_null, ours.contains_nan or False) == (theirs.contains_null, theirs.contains_nan)
    if type_ == UUID_TYPE:
        # Theirs bounds by bytes; ours by Java's order, so that Java's readers skip no file.
        known = [value for value in values if value is not None]
        bounds = (min(known, key=java_order).bytes, max(known, key=java_order).bytes) if known else (None, None)
        assert (ours.lower_bound, ours.upper_bound) == bounds
    elif not any(value == 0 for value in values if type_ == DOUBLE):
        assert (ours.lower_bound, ours.upper_bound) == (theirs.lower_bound, theirs.upper_bound)


def test_examples():
    check_examples("spec/manifests/read.txt", globals())
