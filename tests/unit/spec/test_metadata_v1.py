"""Version 1 metadata by version 2's rules (spec, Appendix E "Version 2"), and what is written for old readers."""

import json
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from icekeep.errors import InvalidTableError
from icekeep.spec.metadata import format_metadata, metadata_from_json, metadata_to_json, parse_metadata
from kit.cases import for_each
from kit.metadata import document_bytes, full_document

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
    assert [order.is_unsorted for order in metadata.sort_orders] == [True]


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
