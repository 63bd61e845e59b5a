import copy
import gzip
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.metadata import TableMetadataUtil

from icekeep.errors import IcekeepError, InvalidTableError, UnsupportedError
from icekeep.spec.metadata import (
    TableMetadata,
    format_metadata,
    metadata_from_json,
    metadata_to_json,
    parse_metadata,
    unpacked,
    unpacked_head,
    zstd,
)
from icekeep.spec.snapshots import Snapshot, SnapshotRef
from icekeep.spec.sorting import SortOrder
from icekeep.spec.types import UUID, parse_type
from icekeep.spec.updates import AddSnapshot, SetProperties, SetSnapshotRef, apply_updates
from kit.cases import cases, for_each
from kit.metadata import document_bytes, full_document, spec_objects
from kit.strategies import json_values, table_metadata

pytestmark = pytest.mark.slow

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


def test_the_document_has_every_kind_of_object():
    assert Counter(what for what, _ in spec_objects(full_document())) == OBJECTS


def test_every_key_of_the_spec_comes_back():
    assert round_trip(full_document()) == full_document()


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


def test_minus_one_means_no_current_snapshot():
    document = {**full_document(), "current-snapshot-id": -1, "snapshots": [], "refs": {}}
    metadata = metadata_from_json(document)
    assert metadata.current_snapshot_id is None
    assert "current-snapshot-id" not in metadata_to_json(metadata)


def test_main_is_at_the_current_snapshot_even_where_refs_are_missing():
    for refs in (None, {}, {"test": full_document()["refs"]["test"]}):
        document = {**full_document(), "refs": refs}
        metadata = metadata_from_json(document)
        assert metadata.refs["main"] == SnapshotRef(snapshot_id=3055729675574597004, type="branch")
        assert metadata.refs.keys() == {"main", *(refs or {})}


def test_a_table_without_snapshots_has_no_main():
    document = full_document()
    for key in ("current-snapshot-id", "snapshots", "refs"):
        del document[key]
    assert metadata_from_json(document).refs == {}


def test_version_3_has_a_next_row_id():
    metadata = metadata_from_json({**full_document(), "format-version": 3, "next-row-id": 1375})
    assert metadata.next_row_id == 1375
    assert metadata_to_json(metadata)["next-row-id"] == 1375
    assert "'next-row-id' is missing" in refused({**full_document(), "format-version": 3})


def test_gzip_is_seen_from_the_bytes():
    data = document_bytes(full_document())
    assert parse_metadata(gzip.compress(data), "s3://b/v1.metadata.json") == parse_metadata(data, LOCATION)


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


@pytest.mark.parametrize("version", [4, 5, 1000])
def test_a_newer_version_is_not_supported(version: int):
    message = refused({**full_document(), "format-version": version, "snapshots": []}, UnsupportedError)
    assert message == f"format version {version} is newer than 3, the newest that is known"


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


@pytest.mark.parametrize("version", [0, -3])
def test_a_version_below_1_is_no_version(version: int):
    assert refused({**full_document(), "format-version": version}).startswith(f"format-version is {version}")


@for_each("document", [None, 5, "text", [], [{}]])
def test_metadata_is_an_object(document: Any):
    assert refused(document) == "it is no JSON object"


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


def test_zstd_is_seen_from_the_bytes_too():
    """Other writers pack metadata so."""
    data = document_bytes(full_document())
    packed = zstd.compress(data)
    assert packed[:4] == b"\x28\xb5\x2f\xfd"
    assert parse_metadata(packed, "s3://b/00001-a.zstd.metadata.json") == parse_metadata(data, LOCATION)
    in_frames = zstd.compress(data[:100]) + zstd.compress(data[100:])
    assert parse_metadata(in_frames, LOCATION) == parse_metadata(data, LOCATION)


def test_a_zstd_file_that_was_cut_short_or_changed_is_refused():
    data = zstd.compress(document_bytes(full_document()))
    for length in range(4, len(data), 7):
        refused(data[:length])
    refused(data[:4] + b"\xff" * 30)


@pytest.mark.parametrize("max_bytes", [99, 100])
def test_what_unpacks_to_more_than_there_may_be_is_refused(max_bytes):
    for packed in (gzip.compress(b"x" * 100), zstd.compress(b"x" * 100)):
        if max_bytes < 100:
            with pytest.raises(OSError, match="more than 99 bytes"):
                unpacked(packed, max_bytes)
        else:
            assert unpacked(packed, max_bytes) == b"x" * 100


def test_the_head_of_a_packed_file_is_its_text_as_far_as_it_goes():
    text = document_bytes(full_document()) * 50
    for packed in (gzip.compress(text), zstd.compress(text)):
        head = unpacked_head(packed[: len(packed) // 2], 1 << 20)
        assert text.startswith(head)
        assert unpacked_head(packed, 10) == text[:10]


@pytest.mark.parametrize(
    ("data", "location", "codec"),
    [
        (b"\x04\x22\x4d\x18abc", LOCATION, "lz4"),
        (b"BZh91AY", LOCATION, "bzip2"),
        (b"\x00\x01", "s3://b/00001-a.brotli.metadata.json", "brotli"),
    ],
)
def test_a_packing_that_is_not_known_is_not_supported(data, location, codec):
    with pytest.raises(UnsupportedError, match=f"packed with {codec}; plain files, gzip and zstd are read"):
        parse_metadata(data, location)


@for_each("location", ["s3://b/v1.gz.metadata.json", "s3://b/v1.zstd.metadata.json"])
@for_each("data", [b"", b"\x00\x00\x00", b"<html>"])
def test_a_file_that_its_name_says_is_gzip_or_zstd_and_that_is_not_is_no_metadata(data, location):
    with pytest.raises(InvalidTableError):
        parse_metadata(data, location)


def test_a_gzip_file_that_was_cut_short_is_refused_wherever_the_cut_is():
    data = gzip.compress(document_bytes(full_document()))
    for length in range(2, len(data)):
        refused(data[:length])


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


def test_nested_types_are_read_and_written():
    data = nested_lists(60)
    assert json.loads(format_metadata(parse_metadata(data, LOCATION))) == json.loads(data)


@pytest.mark.parametrize("depth", [1000, 3000, 100_000])
def test_types_that_are_nested_too_deeply_are_refused(depth: int):
    refused(nested_lists(depth))


def test_unknown_values_that_are_nested_too_deeply_are_refused():
    refused(document_bytes(full_document())[:-1] + b', "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_two_snapshots_with_one_id_are_refused():
    document = full_document()
    document["snapshots"].append(document["snapshots"][0])
    assert refused(document).endswith("two snapshots have the same id")


@pytest.mark.parametrize("name", ["main", "test"])
def test_a_ref_to_a_snapshot_that_is_not_there_is_refused(name: str):
    document = full_document()
    document["refs"][name]["snapshot-id"] = 7
    assert f"ref {name!r} points at snapshot 7" in refused(document)


def test_a_current_snapshot_that_is_not_there_is_refused():
    assert "current-snapshot-id 7 is not among the snapshots" in refused(
        {**full_document(), "current-snapshot-id": 7, "refs": {}}
    )


@for_each("what", OBJECTS)
def test_an_unknown_key_comes_back_at_every_level(what: str):
    document = full_document()
    for kind, item in spec_objects(document):
        if kind == what:
            item["x-later"] = {"a": [1, {"b": None}], "big": 2**70}
    assert document != full_document()
    assert round_trip(document) == document


@given(st.data())
@cases(20)
def test_random_unknown_keys_come_back_at_every_level(data: st.DataObject):
    keys = st.dictionaries(st.text(max_size=6).map(lambda name: f"x-{name}"), json_values(), max_size=2)
    document = with_unknown_keys(full_document(), lambda: data.draw(keys))
    assert round_trip(document) == document


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


@given(table_metadata())
def test_metadata_is_written_and_read_back(metadata: TableMetadata):
    data = format_metadata(metadata)
    assert parse_metadata(data, LOCATION) == metadata
    assert parse_metadata(gzip.compress(data), LOCATION) == metadata


@given(table_metadata())
def test_what_was_read_is_written_as_it_was(metadata: TableMetadata):
    document = json.loads(format_metadata(metadata))
    assert round_trip(document) == document


def test_a_sort_order_that_is_not_the_default_comes_back():
    metadata = metadata_from_json({**full_document(), "default-sort-order-id": 0})
    assert metadata.sort_orders[0] == SortOrder(order_id=0, fields=())
    assert metadata_to_json(metadata)["sort-orders"] == full_document()["sort-orders"]


@given(st.data())
@cases(300)
def test_changed_bytes_are_read_or_refused_by_an_error_of_ours(data: st.DataObject):
    original = document_bytes(full_document())
    start = data.draw(st.integers(0, len(original)))
    end = data.draw(st.integers(start, min(len(original), start + 8)))
    changed = original[:start] + data.draw(st.binary(max_size=8)) + original[end:]
    assert_reads_or_refuses(gzip.compress(changed, mtime=0) if data.draw(st.booleans()) else changed)


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


def test_schemas_are_derived_from_the_schema():
    metadata = metadata_from_json(oldest())
    assert metadata.current_schema_id == metadata.schema.schema_id == 0
    assert [field.name for field in metadata.schema.fields] == ["x", "day"]


def test_partition_specs_and_the_last_partition_id_are_derived_from_the_partition_spec():
    metadata = metadata_from_json(oldest())
    assert metadata.default_spec_id == 0
    assert [(f.field_id, f.name) for f in metadata.spec.fields] == [(1000, "x"), (1001, "day_month")]
    assert metadata.last_partition_id == 1001
    assert metadata_from_json(oldest(**{"partition-spec": []})).last_partition_id == 999


def test_sort_orders_are_derived_as_unsorted():
    metadata = metadata_from_json(oldest())
    assert metadata.default_sort_order_id == 0
    assert [order.fields for order in metadata.sort_orders] == [()]


def test_sequence_numbers_are_0_and_a_missing_uuid_stays_missing():
    snapshot = {"snapshot-id": 5, "timestamp-ms": 1, "manifest-list": "s3://b/t/metadata/snap-5.avro"}
    metadata = metadata_from_json(oldest(**{"snapshots": [snapshot], "current-snapshot-id": 5}))
    assert (metadata.last_sequence_number, metadata.next_sequence_number, metadata.table_uuid) == (0, 0, None)
    assert metadata.current_snapshot.sequence_number == 0
    assert metadata.refs["main"].snapshot_id == 5


def test_a_snapshot_may_list_its_manifests_itself():
    snapshot = {"snapshot-id": 5, "timestamp-ms": 1, "manifests": ["s3://b/t/metadata/m0.avro"]}
    metadata = metadata_from_json(oldest(snapshots=[snapshot]))
    assert metadata.snapshots[0].manifests == ("s3://b/t/metadata/m0.avro",)
    assert metadata_to_json(metadata)["snapshots"] == [snapshot]


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


@for_each("key", ["schema", "partition-spec", "location", "last-column-id", "last-updated-ms"])
def test_a_missing_required_key_is_named(key: str):
    document = oldest()
    del document[key]
    with pytest.raises(InvalidTableError, match=f"the required key '{key}' is missing"):
        metadata_from_json(document)


def test_old_readers_get_the_current_schema_and_the_default_spec():
    written = metadata_to_json(metadata_from_json(oldest()))
    assert written["schema"] == {"schema-id": 0, **SCHEMA}
    assert [(f["name"], f["field-id"]) for f in written["partition-spec"]] == [("x", 1000), ("day_month", 1001)]
    assert "last-sequence-number" not in written
    assert "table-uuid" not in written
    assert metadata_from_json(written) == metadata_from_json(oldest())


@pytest.mark.parametrize("version", [2, 3])
def test_later_versions_have_no_keys_of_version_1(version: int):
    document = {**full_document(), "format-version": version, "schema": SCHEMA, "partition-spec": [], "next-row-id": 0}
    written = json.loads(format_metadata(parse_metadata(document_bytes(document), "m")))
    assert "schema" not in written
    assert "partition-spec" not in written


def test_a_row_id_counter_of_no_effect_does_not_come_to_life_by_an_upgrade():
    document = {**full_document(), "format-version": 2, "next-row-id": 77}
    assert "next-row-id" not in metadata_to_json(metadata_from_json(document))


def test_later_versions_need_a_uuid():
    with pytest.raises(InvalidTableError, match="'table-uuid' is missing"):
        metadata_from_json({key: v for key, v in full_document().items() if key != "table-uuid"})


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
