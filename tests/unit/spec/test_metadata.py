"""Table metadata: as a document, as a value, and between two implementations."""

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField as TheirField
from pyiceberg.partitioning import PartitionSpec as TheirSpec
from pyiceberg.schema import Schema as TheirSchema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import DateType, LongType, StringType, TimestampType
from pyiceberg.types import NestedField as TheirColumn

import icekeep.spec.metadata
import icekeep.spec.sorting
from icekeep.errors import IcekeepError, InvalidTableError, NotFoundError, UnsupportedError
from icekeep.spec.manifests.read import read_manifest, read_manifest_list
from icekeep.spec.manifests.structs import ManifestEntry, ManifestFile
from icekeep.spec.metadata import (
    TableMetadata,
    format_metadata,
    metadata_from_json,
    metadata_to_json,
    new_table_metadata,
    newest_ancestor_before,
    parse_metadata,
    unpacked,
    unpacked_head,
    validate_metadata,
    zstd,
)
from icekeep.spec.partitioning import UNPARTITIONED, PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot, SnapshotLogEntry, SnapshotRef
from icekeep.spec.sorting import SortField, SortOrder
from icekeep.spec.transforms import Bucket, Day, Identity, UnknownTransform, Void
from icekeep.spec.types import INT, LONG, STRING, TIMESTAMP, UUID, NestedField, parse_type
from icekeep.spec.updates import AddSnapshot, SetProperties, SetSnapshotRef, apply_updates
from icekeep.storage.locations import local_path
from kit.cases import cases, for_each
from kit.examples import check_examples
from kit.foreign_files import our_entries, our_manifest
from kit.metadata import LOCATION as BASE_LOCATION
from kit.metadata import SCHEMA as ID_SCHEMA
from kit.metadata import START_MS, MetadataBuilder, document_bytes, full_document, spec_objects
from kit.strategies import json_values, table_metadata
from kit.tables import COLUMNS

LOCATION = "s3://b/wh/data.db/table/metadata/v2.json"
OBJECTS = {
    "table": 1,
    "schema": 2,
    "struct field": 8 + 1,
    "struct type": 1,
    "list type": 2,
    "map type": 1,
    "partition spec": 2,
    "partition field": 3,
    "sort order": 2,
    "sort field": 2,
    "snapshot": 2,
    "ref": 2,
    "statistics": 1,
    "blob metadata": 1,
    "partition statistics": 1,
    "snapshot log entry": 2,
    "metadata log entry": 1,
    "encryption key": 1,
}


def round_trip(document: Any) -> Any:
    return json.loads(format_metadata(parse_metadata(document_bytes(document), LOCATION)))


def refused(document: Any, error: type[IcekeepError] = InvalidTableError) -> str:
    """The message of the one error that a document gives; it is one line that names the file."""
    data = document if isinstance(document, bytes) else document_bytes(document)
    with pytest.raises(error) as raised:
        parse_metadata(data, LOCATION)
    message = raised.value.message
    assert message.startswith(f"cannot read table metadata {LOCATION!r}: ")
    assert "\n" not in message
    assert raised.value.facts["location"] == LOCATION
    return message.partition(": ")[2]


def with_unknown_keys(document: Any, unknown: Callable[[], dict[str, Any]]) -> Any:
    """A copy of a document with more keys in every object that the spec describes."""
    document = copy.deepcopy(document)
    for _, item in list(spec_objects(document)):
        item.update({key: value for key, value in unknown().items() if key not in item})
    return document


@pytest.mark.slow
def test_keys_are_read_into_the_attributes_of_their_names():
    metadata = parse_metadata(document_bytes(full_document()), LOCATION)
    assert metadata.format_version == 2
    assert metadata.location == "s3://b/wh/data.db/table"
    assert metadata.last_sequence_number == 34
    assert metadata.schema.schema_id == 1
    assert metadata.schema.identifier_field_ids == (1, 2)
    assert metadata.spec.spec_id == 1
    assert metadata.default_sort_order_id == 3
    assert metadata.current_snapshot is not None
    assert metadata.current_snapshot.snapshot_id == 3055729675574597004
    assert metadata.refs["test"] == SnapshotRef(snapshot_id=3051729675574597004, type="tag", max_ref_age_ms=10_000_000)
    assert metadata.statistics[0].blob_metadata[0]["properties"] == {"ndv": "7"}
    assert metadata.partition_statistics[0].file_size_in_bytes == 43
    assert [entry.metadata_file for entry in metadata.metadata_log] == ["s3://b/wh/data.db/table/metadata/v1.json"]
    assert metadata.encryption_keys[0]["key-id"] == "5f819b"


@pytest.mark.slow
def test_examples_of_appendix_c_are_read():
    document = full_document()
    document["schemas"][1]["fields"] += [
        {
            "id": 20,
            "name": "u",
            "required": True,
            "type": "uuid",
            "initial-default": "0db3e2a8-9d1d-42b9-aa7b-74ebe558dceb",
            "write-default": "ec5911be-b0a7-458c-8438-c9a3e53cffae",
        },
        {
            "id": 21,
            "name": "m",
            "required": False,
            "type": {
                "type": "map",
                "key-id": 22,
                "key": "string",
                "value-id": 23,
                "value-required": False,
                "value": "double",
            },
        },
    ]
    metadata = metadata_from_json(document)
    assert metadata.schema.field("u").type == UUID
    assert metadata.schema.field("u").initial_default == "0db3e2a8-9d1d-42b9-aa7b-74ebe558dceb"
    assert metadata.schema.fields_by_id[23].type == parse_type("double")
    assert [str(f.transform) for f in metadata.spec.fields] == ["day", "bucket[16]"]
    assert [str(f.transform) for f in metadata.sort_orders[1].fields] == ["identity", "bucket[4]"]
    assert [f.direction for f in metadata.sort_orders[1].fields] == ["asc", "desc"]
    assert [f.null_order for f in metadata.sort_orders[1].fields] == ["nulls-first", "nulls-last"]


@pytest.mark.slow
def test_optional_keys_may_be_missing_or_null():
    optional = [
        "properties", "current-snapshot-id", "snapshots", "snapshot-log", "metadata-log", "refs", "statistics",
        "partition-statistics", "encryption-keys",
    ]  # fmt: skip
    for keep in (False, True):
        document = full_document()
        for key in optional:
            document.pop(key)
            if keep:
                document[key] = None
        metadata = metadata_from_json(document)
        assert (metadata.current_snapshot, metadata.snapshots, dict(metadata.refs)) == (None, (), {})
        assert (metadata.properties, metadata.statistics, metadata.encryption_keys) == ({}, (), ())
        assert not {"current-snapshot-id", "encryption-keys", "next-row-id"} & metadata_to_json(metadata).keys()


@pytest.mark.slow
def test_minus_one_means_no_current_snapshot():
    document = {**full_document(), "current-snapshot-id": -1, "snapshots": [], "refs": {}}
    metadata = metadata_from_json(document)
    assert metadata.current_snapshot_id is None
    assert "current-snapshot-id" not in metadata_to_json(metadata)


@pytest.mark.slow
def test_main_is_current_snapshot_without_refs():
    for refs in (None, {}, {"test": full_document()["refs"]["test"]}):
        document = {**full_document(), "refs": refs}
        metadata = metadata_from_json(document)
        assert metadata.refs["main"] == SnapshotRef(snapshot_id=3055729675574597004, type="branch")
        assert metadata.refs.keys() == {"main", *(refs or {})}


@pytest.mark.slow
def test_a_table_without_snapshots_has_no_main():
    document = full_document()
    for key in ("current-snapshot-id", "snapshots", "refs"):
        del document[key]
    assert metadata_from_json(document).refs == {}


@pytest.mark.slow
def test_version_3_has_a_next_row_id():
    metadata = metadata_from_json({**full_document(), "format-version": 3, "next-row-id": 1375})
    assert metadata.next_row_id == 1375
    assert metadata_to_json(metadata)["next-row-id"] == 1375
    assert "'next-row-id' is missing" in refused({**full_document(), "format-version": 3})


@pytest.mark.slow
@for_each(
    "key",
    [
        "format-version", "table-uuid", "location", "last-sequence-number", "last-updated-ms", "last-column-id",
        "schemas", "current-schema-id", "partition-specs", "default-spec-id", "last-partition-id", "sort-orders",
        "default-sort-order-id",
    ],
)  # fmt: skip
def test_a_required_key_must_be_there_and_not_null(key: str):
    document = full_document()
    del document[key]
    assert refused(document) == f"the required key {key!r} is missing"
    assert refused({**document, key: None}) == f"the required key {key!r} is missing"


@pytest.mark.slow
@for_each(
    ("key", "value", "problem"),
    [
        ("format-version", "2", "it must be a whole number"),
        ("format-version", 2.0, "it must be a whole number"),
        ("format-version", True, "it must be a whole number"),
        ("table-uuid", 5, "it must be text"),
        ("location", ["s3://b"], "it must be text"),
        ("last-updated-ms", "now", "it must be a whole number"),
        ("schemas", {}, "it must be a list"),
        ("schemas", [5], "a schema must be an object"),
        ("partition-specs", "x", "it must be a list"),
        ("partition-specs", [{}], "a partition spec must be an object"),
        ("sort-orders", 5, "it must be a list"),
        ("sort-orders", [None], "a sort order must be an object"),
        ("properties", [], "properties must be an object of texts"),
        ("properties", {"a": 5}, "properties must be an object of texts"),
        ("current-snapshot-id", "3055729675574597004", "it must be a whole number"),
        ("snapshots", {}, "it must be a list"),
        ("snapshots", [{}], "snapshots[0]"),
        (
            "snapshots",
            [{"snapshot-id": 1, "timestamp-ms": 1, "summary": {"operation": "append", "added-records": 3}}],
            "snapshots[0]: 'added-records' of its 'summary' is 3; it must be text",
        ),
        ("snapshot-log", 5, "it must be a list"),
        ("metadata-log", [7], "metadata-log[0]"),
        ("refs", [], "it must be an object"),
        ("refs", {"a": 5}, "ref 'a' is 5; it must be an object"),
        ("statistics", [{"snapshot-id": 1}], "statistics[0]"),
        ("partition-statistics", [{"snapshot-id": 1}], "partition-statistics[0]"),
        ("encryption-keys", 5, "it must be a list"),
        ("encryption-keys", "5f819b", "it must be a list"),
        ("encryption-keys", {"key-id": "5f819b"}, "it must be a list"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_with_its_key(key: str, value: Any, problem: str):
    message = refused({**full_document(), key: value})
    assert problem in message
    assert key.rstrip("s") in message.replace(" ", "-")


@pytest.mark.slow
@pytest.mark.parametrize("version", [4, 5, 1000])
def test_a_newer_version_is_not_supported(version: int):
    message = refused({**full_document(), "format-version": version, "snapshots": []}, UnsupportedError)
    assert message == f"format version {version} is newer than 3, the newest that is known"


@pytest.mark.slow
@for_each(
    ("snapshots", "said"),
    [
        (
            [{"snapshot-id": 1, "root-manifest": "s3://b/r"}],
            "; its snapshots have root manifests, as the draft of version 4",
        ),
        (
            [{"snapshot-id": 1, "manifest-list": "s3://b/l"}],
            "; its snapshots have manifest lists, as Iceberg 1.12 writes them",
        ),
        ([], ""),
        (None, ""),
        ([5], ""),
    ],
)
def test_of_two_shapes_of_version_4_it_is_told_which_it_is(snapshots: Any, said: str):
    message = refused({**full_document(), "format-version": 4, "snapshots": snapshots}, UnsupportedError)
    assert message.startswith(f"format version 4 is newer than 3, the newest that is known{said}")
    assert bool(said) == (";" in message)


@pytest.mark.slow
@pytest.mark.parametrize("version", [0, -3])
def test_a_version_below_1_is_no_version(version: int):
    assert refused({**full_document(), "format-version": version}).startswith(f"format-version is {version}")


@pytest.mark.slow
@for_each("document", [None, 5, "text", [], [{}]])
def test_metadata_is_an_object(document: Any):
    assert refused(document) == "it is no JSON object"


@pytest.mark.slow
@for_each(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"not json",
        b'{"a": NaN}',
        b'{"a": "\\ud800"}',
        document_bytes(full_document())[:-1],
        document_bytes(full_document()) + b"}",
        b'{"a": "\xc3\x28"}',
    ],
)
def test_garbage_is_refused(data: bytes):
    refused(data)


@pytest.mark.slow
def test_a_zstd_file_that_was_cut_short_or_changed_is_refused():
    data = zstd.compress(document_bytes(full_document()))
    for length in range(4, len(data), 7):
        refused(data[:length])
    refused(data[:4] + b"\xff" * 30)


@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [99, 100])
def test_what_unpacks_to_more_than_there_may_be_is_refused(max_bytes):
    for packed in (gzip.compress(b"x" * 100), zstd.compress(b"x" * 100)):
        if max_bytes < 100:
            with pytest.raises(OSError, match="more than 99 bytes"):
                unpacked(packed, max_bytes)
        else:
            assert unpacked(packed, max_bytes) == b"x" * 100


@pytest.mark.slow
def test_the_head_of_a_packed_file_is_its_text_as_far_as_it_goes():
    text = document_bytes(full_document()) * 50
    for packed in (gzip.compress(text), zstd.compress(text)):
        head = unpacked_head(packed[: len(packed) // 2], 1 << 20)
        assert text.startswith(head)
        assert unpacked_head(packed, 10) == text[:10]


@pytest.mark.slow
@for_each("location", ["s3://b/v1.gz.metadata.json", "s3://b/v1.zstd.metadata.json"])
@for_each("data", [b"", b"\x00\x00\x00", b"<html>"])
def test_misnamed_compressed_file_is_refused(data, location):
    with pytest.raises(InvalidTableError):
        parse_metadata(data, location)


@pytest.mark.slow
def test_truncated_gzip_metadata_is_refused():
    data = gzip.compress(document_bytes(full_document()))
    for length in range(2, len(data)):
        refused(data[:length])


@pytest.mark.slow
def test_a_gzip_file_with_changed_bytes_is_refused():
    data = bytearray(gzip.compress(document_bytes(full_document())))
    data[len(data) // 2] ^= 0xFF
    refused(bytes(data))
    refused(b"\x1f\x8b" + b"\x00" * 30)
    refused(b"\x1f\x8b\x08" + b"\x00" * 7 + b"\xff" * 20)


def nested_lists(depth: int) -> bytes:
    """The document with a column that is a list of lists of lists ..."""
    opening = "".join(
        f'{{"type":"list","element-id":{100 + i},"element-required":true,"element":' for i in range(depth)
    )
    return document_bytes(full_document()).replace(b'"double"', f'{opening}"int"{"}" * depth}'.encode())


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1000, 3000, 100_000])
def test_types_that_are_nested_too_deeply_are_refused(depth: int):
    refused(nested_lists(depth))


@pytest.mark.slow
def test_unknown_values_that_are_nested_too_deeply_are_refused():
    refused(document_bytes(full_document())[:-1] + b', "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@pytest.mark.slow
def test_two_snapshots_with_one_id_are_refused():
    document = full_document()
    document["snapshots"].append(document["snapshots"][0])
    assert refused(document).endswith("two snapshots have the same id")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["main", "test"])
def test_a_ref_to_a_snapshot_that_is_not_there_is_refused(name: str):
    document = full_document()
    document["refs"][name]["snapshot-id"] = 7
    assert f"ref {name!r} points at snapshot 7" in refused(document)


@pytest.mark.slow
@for_each("what", OBJECTS)
def test_an_unknown_key_comes_back_at_every_level(what: str):
    document = full_document()
    for kind, item in spec_objects(document):
        if kind == what:
            item["x-later"] = {"a": [1, {"b": None}], "big": 2**70}
    assert document != full_document()
    assert round_trip(document) == document


@pytest.mark.slow
@given(st.data())
@cases(20)
def test_random_unknown_keys_come_back_at_every_level(data: st.DataObject):
    keys = st.dictionaries(st.text(max_size=6).map(lambda name: f"x-{name}"), json_values(), max_size=2)
    document = with_unknown_keys(full_document(), lambda: data.draw(keys))
    assert round_trip(document) == document


@pytest.mark.slow
@given(st.data())
@cases(20)
def test_unknown_keys_survive_a_commit(data: st.DataObject):
    keys = st.dictionaries(st.text(max_size=6).map(lambda name: f"x-{name}"), json_values(), max_size=2)
    document = with_unknown_keys(full_document(), lambda: data.draw(keys))
    base = metadata_from_json(copy.deepcopy(document))
    snapshot = Snapshot(snapshot_id=9, timestamp_ms=1602638573600, sequence_number=35, manifest_list="s3://a/b/3.avro")
    updates = [
        AddSnapshot(snapshot),
        SetSnapshotRef("main", msgspec.structs.replace(base.refs["main"], snapshot_id=9)),
        SetProperties({"a": "b"}),
    ]
    after = metadata_to_json(apply_updates(base, updates, now_ms=1602638573600))
    document["properties"]["a"] = "b"
    document["refs"]["main"]["snapshot-id"] = document["current-snapshot-id"] = 9
    document["last-sequence-number"], document["last-updated-ms"] = 35, 1602638573600
    assert after["snapshots"].pop()["snapshot-id"] == 9
    assert after["snapshot-log"].pop() == {"snapshot-id": 9, "timestamp-ms": 1602638573600}
    assert after == document


@pytest.mark.slow
@given(table_metadata())
def test_metadata_is_written_and_read_back(metadata: TableMetadata):
    data = format_metadata(metadata)
    assert parse_metadata(data, LOCATION) == metadata
    assert parse_metadata(gzip.compress(data), LOCATION) == metadata


@pytest.mark.slow
@given(table_metadata())
def test_what_was_read_is_written_as_it_was(metadata: TableMetadata):
    document = json.loads(format_metadata(metadata))
    assert round_trip(document) == document


@pytest.mark.slow
@given(st.data())
@cases(300)
def test_changed_bytes_are_read_or_refused_by_an_error_of_ours(data: st.DataObject):
    original = document_bytes(full_document())
    start = data.draw(st.integers(0, len(original)))
    end = data.draw(st.integers(start, min(len(original), start + 8)))
    changed = original[:start] + data.draw(st.binary(max_size=8)) + original[end:]
    assert_reads_or_refuses(gzip.compress(changed, mtime=0) if data.draw(st.booleans()) else changed)


@pytest.mark.slow
@given(st.data())
@cases(500)
def test_changed_values_are_read_or_refused_by_an_error_of_ours(data: st.DataObject):
    document = full_document()
    places = list(_places(document))
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(places))
        if isinstance(holder, dict) and data.draw(st.booleans()):
            holder.pop(key, None)
        elif isinstance(holder, dict) or key < len(holder):
            holder[key] = data.draw(_ODD_VALUES)
    assert_reads_or_refuses(document_bytes(document))


_ODD_VALUES = st.sampled_from([None, 0, -1, 2**70, 1.5, "", "x", True, [], {}, [[]], [{}], {"a": 1}]) | json_values()


def assert_reads_or_refuses(data: bytes) -> None:
    outcome = _outcome(data)
    if isinstance(outcome, TableMetadata):
        assert parse_metadata(format_metadata(outcome), LOCATION) == outcome
    else:
        assert "\n" not in outcome.message


def _outcome(data: bytes) -> TableMetadata | IcekeepError:
    try:
        return parse_metadata(data, LOCATION)
    except (InvalidTableError, UnsupportedError) as error:
        return error


def _places(value: Any) -> Any:
    """Every value in a document, as what holds it and its key there."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, item in items:
        yield value, key
        yield from _places(item)


SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "x", "required": True, "type": "long"},
        {"id": 2, "name": "day", "required": False, "type": "date", "doc": "of the event"},
    ],
}


def oldest(**keys: Any) -> dict[str, Any]:
    """What the first writers of Iceberg wrote: no lists, no ids of schemas and partition fields, no uuid."""
    return {
        "format-version": 1,
        "location": "s3://b/t",
        "last-updated-ms": 1_602_638_573_874,
        "last-column-id": 2,
        "schema": SCHEMA,
        "partition-spec": [
            {"name": "x", "transform": "identity", "source-id": 1},
            {"name": "day_month", "transform": "month", "source-id": 2},
        ],
        "properties": {},
        "current-snapshot-id": -1,
        "snapshots": [],
        **keys,
    }


@pytest.mark.slow
def test_sequence_numbers_are_0_and_a_missing_uuid_stays_missing():
    snapshot = {"snapshot-id": 5, "timestamp-ms": 1, "manifest-list": "s3://b/t/metadata/snap-5.avro"}
    metadata = metadata_from_json(oldest(**{"snapshots": [snapshot], "current-snapshot-id": 5}))
    assert (metadata.last_sequence_number, metadata.next_sequence_number, metadata.table_uuid) == (0, 0, None)
    assert metadata.current_snapshot.sequence_number == 0
    assert metadata.refs["main"].snapshot_id == 5


@pytest.mark.slow
def test_a_snapshot_may_list_its_manifests_itself():
    snapshot = {"snapshot-id": 5, "timestamp-ms": 1, "manifests": ["s3://b/t/metadata/m0.avro"]}
    metadata = metadata_from_json(oldest(snapshots=[snapshot]))
    assert metadata.snapshots[0].manifests == ("s3://b/t/metadata/m0.avro",)
    assert metadata_to_json(metadata)["snapshots"] == [snapshot]


@pytest.mark.slow
def test_lists_rule_over_what_they_replaced():
    newer = {"schema-id": 7, **SCHEMA, "fields": SCHEMA["fields"][:1]}
    spec = {"spec-id": 3, "fields": [{"name": "xb", "transform": "bucket[4]", "source-id": 1, "field-id": 1005}]}
    metadata = metadata_from_json(
        oldest(
            **{
                "schemas": [{"schema-id": 0, **SCHEMA}, newer],
                "current-schema-id": 7,
                "partition-specs": [spec],
                "default-spec-id": 3,
            }
        )
    )
    assert [field.name for field in metadata.schema.fields] == ["x"]
    assert (metadata.spec.fields[0].name, metadata.last_partition_id) == ("xb", 1005)
    assert metadata_from_json(oldest(**{"last-partition-id": 1044})).last_partition_id == 1044


@pytest.mark.slow
@for_each("key", ["schema", "partition-spec", "location", "last-column-id", "last-updated-ms"])
def test_a_missing_required_key_is_named(key: str):
    document = oldest()
    del document[key]
    with pytest.raises(InvalidTableError, match=f"the required key '{key}' is missing"):
        metadata_from_json(document)


@pytest.mark.slow
def test_old_readers_get_the_current_schema_and_the_default_spec():
    written = metadata_to_json(metadata_from_json(oldest()))
    assert written["schema"] == {"schema-id": 0, **SCHEMA}
    assert [(f["name"], f["field-id"]) for f in written["partition-spec"]] == [("x", 1000), ("day_month", 1001)]
    assert "last-sequence-number" not in written
    assert "table-uuid" not in written
    assert metadata_from_json(written) == metadata_from_json(oldest())


@pytest.mark.slow
@pytest.mark.parametrize("version", [2, 3])
def test_later_versions_have_no_keys_of_version_1(version: int):
    document = {**full_document(), "format-version": version, "schema": SCHEMA, "partition-spec": [], "next-row-id": 0}
    written = json.loads(format_metadata(parse_metadata(document_bytes(document), "m")))
    assert "schema" not in written
    assert "partition-spec" not in written


@pytest.mark.slow
def test_pyiceberg_derives_the_same():
    # It does not count up ids of partition fields that have none.
    fields = [{**field, "field-id": 1000 + i} for i, field in enumerate(oldest()["partition-spec"])]
    document = oldest(**{"partition-spec": fields})
    theirs = json.loads(TableMetadataUtil.parse_raw(json.dumps(document)).model_dump_json(by_alias=True))
    ours = metadata_to_json(metadata_from_json(document))
    for key in ("default-spec-id", "last-partition-id", "sort-orders", "default-sort-order-id", "current-schema-id"):
        assert ours[key] == theirs[key]
    assert ours["partition-specs"] == theirs["partition-specs"]
    assert [f["name"] for f in ours["schemas"][0]["fields"]] == [f["name"] for f in theirs["schemas"][0]["fields"]]


@pytest.mark.slow
def test_examples():
    check_examples("spec/metadata_codec.txt", icekeep.spec.sorting, globals())


def column(field_id: int, type_: Any = LONG) -> NestedField:
    return NestedField(field_id=field_id, name=f"c{field_id}", type=type_)


def schema(schema_id: int, *columns: NestedField) -> Schema:
    return Schema(fields=columns, schema_id=schema_id)


def spec(spec_id: int, *fields: tuple[int, Any]) -> PartitionSpec:
    return PartitionSpec(
        spec_id=spec_id,
        fields=tuple(
            PartitionField(source_id=source, field_id=1000 + i, name=f"p{i}", transform=transform)
            for i, (source, transform) in enumerate(fields)
        ),
    )


def changed(**changes: Any) -> TableMetadata:
    return msgspec.structs.replace(MetadataBuilder().commits(3).tag("audit", at=1).build(), **changes)


def refused_document(metadata: TableMetadata) -> str:
    with pytest.raises(InvalidTableError) as raised:
        validate_metadata(metadata)
    return raised.value.message.removeprefix(f"table metadata of {BASE_LOCATION!r}: ")


def test_a_new_table_has_version_2_and_no_snapshot():
    order = SortOrder(order_id=1, fields=(SortField(source_id=1, transform=Identity()),))
    metadata = new_table_metadata(
        schema=msgspec.structs.replace(ID_SCHEMA, schema_id=3),
        spec=spec(2, (1, Bucket(8)), (2, Identity())),
        location="s3://b/t/",
        table_uuid="u",
        now_ms=START_MS,
        sort_order=order,
        properties={"a": "b"},
    )
    assert (metadata.format_version, metadata.table_uuid, metadata.location) == (2, "u", "s3://b/t")
    assert (metadata.last_sequence_number, metadata.last_updated_ms) == (0, START_MS)
    assert (metadata.last_column_id, metadata.last_partition_id) == (2, 1001)
    assert (metadata.current_schema_id, metadata.default_spec_id, metadata.default_sort_order_id) == (3, 2, 1)
    assert (metadata.current_snapshot, metadata.snapshots, metadata.refs) == (None, (), {})
    assert metadata.properties == {"a": "b"}


def test_current_schema_and_default_spec_are_found_by_id():
    metadata = MetadataBuilder().schema(schema(1, column(7))).spec(spec(5, (7, Identity()))).build()
    assert metadata.schema.fields[0].field_id == 7
    assert metadata.spec.spec_id == 5


def test_a_snapshot_is_found_by_its_id():
    metadata = MetadataBuilder().commits(3).build()
    assert metadata.snapshot(2).parent_snapshot_id == 1
    with pytest.raises(NotFoundError, match="has no snapshot 9; `icekeep history --table NAME --all` lists") as raised:
        metadata.snapshot(9)
    assert raised.value.facts == {"snapshot_id": 9}


def test_a_head_is_found_by_the_name_of_a_branch_or_tag():
    metadata = MetadataBuilder().commits(2).tag("audit", at=1).commits(1, branch="dev").build()
    assert [metadata.head(name).snapshot_id for name in ("main", "audit", "dev")] == [2, 1, 3]  # type: ignore[union-attr]
    assert metadata.current_snapshot is metadata.head()


def test_main_of_empty_table_has_no_head():
    metadata = MetadataBuilder().build()
    assert metadata.head() is None
    with pytest.raises(NotFoundError, match="no branch or tag 'dev'") as raised:
        metadata.head("dev")
    assert raised.value.facts == {"ref": "dev"}


def test_ancestors_go_from_a_snapshot_to_the_first():
    metadata = MetadataBuilder().commits(3).commits(2, branch="dev").build()
    assert [s.snapshot_id for s in metadata.ancestors(5)] == [5, 4, 3, 2, 1]
    assert [s.snapshot_id for s in metadata.ancestors(2)] == [2, 1]
    assert list(metadata.ancestors(None)) == []


def test_dropped_source_column_is_found_in_newest_schema():
    metadata = (
        MetadataBuilder(schema=schema(0, column(1, INT), column(2)), spec=spec(0, (1, Identity())))
        .schema(schema(2, column(1, LONG), column(2)))
        .schema(schema(3, column(2)))
        .spec(spec(1, (2, Identity())))
        .build()
    )
    assert [f.type for f in metadata.partition_type(0).fields] == [LONG]


def test_source_columns_may_be_found_in_different_schemas():
    metadata = (
        MetadataBuilder(schema=schema(0, column(1, STRING)), spec=spec(0, (1, Identity()), (9, Void()), (2, Day())))
        .schema(schema(1, column(2, TIMESTAMP)))
        .spec(spec(1))
        .build()
    )
    partition = metadata.partition_type(0)
    assert [(f.field_id, f.name, str(f.type)) for f in partition.fields] == [
        (1000, "p0", "string"),
        (1001, "p1", "string"),
        (1002, "p2", "date"),
    ]


def test_missing_source_column_matters_only_for_known_transform():
    metadata = MetadataBuilder(spec=spec(0, (9, Identity()))).spec(spec(1, (9, UnknownTransform("x")))).build()
    assert len(metadata.partition_type(1).fields) == 1
    with pytest.raises(InvalidTableError, match="source column 9"):
        metadata.partition_type(0)


def test_manifest_schema_has_source_columns_of_its_spec():
    metadata = (
        MetadataBuilder(schema=schema(0, column(1), column(2)), spec=spec(0, (2, Identity())))
        .schema(schema(1, column(1), column(2), column(3)))
        .schema(schema(2, column(1), column(3)))
        .spec(spec(1, (1, Identity())))
        .spec(spec(2, (2, Void())))
        .spec(spec(3, (2, Bucket(4)), (9, Bucket(4))))
        .build()
    )
    assert metadata.current_schema_id == 2
    assert [metadata.manifest_schema(number).schema_id for number in range(4)] == [1, 2, 2, 2]


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_metadata_that_fits_together_is_valid(format_version: int):
    metadata = MetadataBuilder(format_version).commits(3).tag("audit", at=1).branch("dev", max_ref_age_ms=1).build()
    assert validate_metadata(metadata) is metadata
    assert validate_metadata(MetadataBuilder(format_version).build())


def test_only_default_spec_must_fit_current_schema():
    assert "source column 9" in refused_document(changed(partition_specs=(spec(0, (9, Identity())),)))
    validate_metadata(MetadataBuilder(spec=spec(0, (9, Identity()))).spec(spec(1, (1, Identity()))).build())


@pytest.mark.parametrize("current", [1, None])
def test_main_must_be_at_the_current_snapshot(current: int | None):
    assert refused_document(changed(current_snapshot_id=current)) == (
        f"the current snapshot is {current}, but main points at 3"
    )


@for_each("limit", ["min_snapshots_to_keep", "max_snapshot_age_ms", "max_ref_age_ms"])
@for_each("value", [0, -1])
def test_retention_limits_of_a_ref_must_be_positive(limit: str, value: int):
    refs = {**changed().refs, "dev": SnapshotRef(snapshot_id=3, type="branch", **{limit: value})}
    assert refused_document(changed(refs=refs)) == "ref 'dev' has a retention limit that is not a positive number"


EMPTY = new_table_metadata(schema=COLUMNS, spec=UNPARTITIONED, location="memory://t", table_uuid="u", now_ms=0)


def with_history(
    *snapshots: tuple[int, int | None, int], current: int | None = None, log: tuple[int, ...] = ()
) -> TableMetadata:
    """Snapshots as (id, parent, timestamp); the log's entries one after the other."""
    return replace(
        EMPTY,
        snapshots=tuple(Snapshot(snapshot_id=i, parent_snapshot_id=p, timestamp_ms=t) for i, p, t in snapshots),
        current_snapshot_id=current,
        snapshot_log=tuple(SnapshotLogEntry(timestamp_ms=n, snapshot_id=i) for n, i in enumerate(log)),
    )


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(-1, 11))
def test_newest_ancestor_before_a_moment(times, moment):
    chain = [(n, n - 1 if n else None, t) for n, t in enumerate(times)]
    found = newest_ancestor_before(with_history(*chain, current=len(times) - 1), moment)
    below = [t for t in times if t < moment]
    assert (None if found is None else found.timestamp_ms) == (max(below) if below else None)


def test_examples_of_metadata():
    check_examples("spec/metadata.txt", icekeep.spec.metadata, icekeep.spec.sorting, globals())


THEIR_SCHEMA = TheirSchema(
    TheirColumn(1, "id", LongType()),
    TheirColumn(2, "kind", StringType()),
    TheirColumn(3, "ts", TimestampType()),
    TheirColumn(5, "day", DateType()),
)
SPEC = TheirSpec(
    TheirField(2, 1000, IdentityTransform(), "kind"),
    TheirField(3, 1001, DayTransform(), "ts day"),
    TheirField(1, 1002, BucketTransform(4), "1d"),
    TheirField(5, 1003, IdentityTransform(), "day"),
)


def rows(*ids: int) -> pa.Table:
    columns = {
        "id": pa.array(ids, pa.int64()),
        "kind": pa.array([None if i == 3 else f"kind/{i}" for i in ids], pa.string()),
        "ts": pa.array([i * 86_400_000_000 for i in ids], pa.timestamp("us")),
        "day": pa.array([-i for i in ids], pa.date32()),
    }
    return pa.table(columns)


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """Three appends, a delete, a tag and a branch, by PyIceberg."""
    catalog = SqlCatalog("local", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("db")
    table = catalog.create_table("db.events", THEIR_SCHEMA, partition_spec=SPEC, properties={"owner": "them"})
    for ids in ((1, 2), (3,), (4, 5, -6)):
        table.append(rows(*ids))
    table.manage_snapshots().create_tag(table.metadata.snapshots[0].snapshot_id, "audit").create_branch(
        table.metadata.snapshots[1].snapshot_id, "dev"
    ).commit()
    table.delete("id = 2")
    yield table
    catalog.close()


def content(location: str) -> bytes:
    return Path(local_path(location)).read_bytes()


def loaded(table: Table) -> TableMetadata:
    return parse_metadata(content(table.metadata_location), table.metadata_location)


@pytest.mark.slow
def test_metadata_of_a_table_of_pyiceberg_is_read(table: Table):
    ours, theirs = loaded(table), table.metadata
    assert (ours.format_version, ours.table_uuid, ours.location) == (2, str(theirs.table_uuid), theirs.location)
    assert ours.last_sequence_number == theirs.last_sequence_number == len(ours.snapshots) == 4
    assert ours.last_updated_ms == theirs.last_updated_ms
    assert [f.name for f in ours.schema.fields] == [f.name for f in theirs.schema().fields]
    assert [(f.name, str(f.transform)) for f in ours.spec.fields] == [(f.name, str(f.transform)) for f in SPEC.fields]
    assert {name: ref.snapshot_id for name, ref in ours.refs.items()} == {
        name: ref.snapshot_id for name, ref in theirs.refs.items()
    }
    assert ours.refs.keys() == {"main", "audit", "dev"}
    assert [s.snapshot_id for s in ours.ancestors(ours.current_snapshot_id)] == [
        s.snapshot_id for s in reversed(theirs.snapshots)
    ]
    assert [s.operation for s in ours.snapshots] == ["append", "append", "append", "delete"]
    assert len(ours.metadata_log) == len(theirs.metadata_log) > 0


@pytest.mark.slow
def test_pyiceberg_metadata_round_trips(table: Table):
    assert TableMetadataUtil.parse_raw(format_metadata(loaded(table)).decode()) == table.metadata


@pytest.mark.slow
def test_snapshots_of_pyiceberg_are_read_identically(table: Table):
    ours = loaded(table)
    seen = 0
    for snapshot, theirs in zip(ours.snapshots, table.metadata.snapshots, strict=True):
        manifests = theirs.manifests(table.io)
        assert read_list(snapshot.manifest_list) == [our_manifest(m) for m in manifests]
        for row, manifest in zip(read_list(snapshot.manifest_list), manifests, strict=True):
            entries = read_entries(row, ours)
            assert entries == our_entries(manifest.fetch_manifest_entry(table.io, discard_deleted=False))
            seen += len(entries)
    assert seen > 10


def read_list(location: str | None) -> list[ManifestFile]:
    assert location is not None
    return read_manifest_list(content(location), location)


def read_entries(row: ManifestFile, metadata: TableMetadata) -> list[ManifestEntry]:
    partition = metadata.partition_type(row.partition_spec_id)
    return list(read_manifest(content(row.manifest_path), row, partition)[1])


def test_pyiceberg_reads_the_document_with_every_key():
    document = full_document()
    theirs = TableMetadataUtil.parse_raw(document_bytes(document).decode())
    ours = TableMetadataUtil.parse_raw(format_metadata(metadata_from_json(document)).decode())
    assert ours == theirs
    assert ours.current_snapshot().snapshot_id == 3055729675574597004
    assert ours.refs["test"].max_ref_age_ms == 10_000_000


def theirs_too(metadata: TableMetadata) -> bool:
    """PyIceberg writes every transform that it does not know as `unknown`."""
    return metadata.format_version == 2 and not any(spec.has_unknown_transform for spec in metadata.partition_specs)


@pytest.mark.slow
@given(table_metadata().filter(theirs_too))
@cases(30)
def test_metadata_is_understood_in_both_directions(metadata: TableMetadata):
    theirs = TableMetadataUtil.parse_raw(format_metadata(metadata).decode())
    assert theirs.last_sequence_number == metadata.last_sequence_number
    assert [s.snapshot_id for s in theirs.snapshots] == [s.snapshot_id for s in metadata.snapshots]
    assert theirs.refs.keys() == metadata.refs.keys()
    again = metadata_from_json(json.loads(theirs.model_dump_json()))
    assert again == metadata
