"""The metadata file against the spec: each fault, with its place and no other."""

from icekeep.maintenance.check.metadata import refusal_to_load
from kit.cases import for_each
from kit.faults import WHERE, Edit, add, checked, drop, edited, facts, put, snapshot, the_fault, told
from kit.metadata import full_document

OLD, NEW = 3051729675574597004, 3055729675574597004


CIRCLE = [put("snapshots", 0, "parent-snapshot-id", NEW), put("snapshots", 0, "sequence-number", 34)]

FAULTS: dict[str, tuple[int, list[Edit], list[tuple[int, str]]]] = {
    "a key is missing": (2, [drop("last-column-id")], [(101, WHERE)]),
    "a key is of another type": (2, [put("location", 7)], [(101, WHERE)]),
    "a snapshot is none": (2, [put("snapshots", 0, {"snapshot-id": "x"})], [(101, "snapshots[0]")]),
    "a type that is not known": (2, [put("schemas", 0, "fields", 0, "type", "money")], [(101, "schemas[0]")]),
    "a schema without its type": (1, [drop("schema", "type")], [(101, "schemas[1]")]),
    "a number beyond 64 bits": (2, [put("snapshots", 1, "timestamp-ms", 1 << 64)], [(101, "snapshots[1]")]),
    "a property that is no text": (2, [put("properties", "a", 1)], [(101, WHERE)]),
    "a blob that names no type": (
        2,
        [drop("statistics", 0, "blob-metadata", 0, "type")],
        [(101, "blob-metadata of statistics 's3://a/b/stats.puffin'")],
    ),
    "a blob whose type is null": (
        2,
        [put("statistics", 0, "blob-metadata", 0, "type", None)],
        [(101, "blob-metadata of statistics 's3://a/b/stats.puffin'")],
    ),
    "a default that is none for its type": (3, [put("schemas", 1, "fields", 2, "write-default", "x")], [(101, "schema 1")]),
    "schemas of version 1 without the current one's id": (1, [drop("current-schema-id")], [(101, WHERE)]),
    "a number below zero": (2, [put("last-sequence-number", -1)], [(101, WHERE)]),
    "a snapshot's number below zero": (3, [put("snapshots", 1, "added-rows", -1)], [(101, "snapshots[1]")]),
    "102": (2, [put("last-sequence-number", 33)], [(102, WHERE)]),
    "103 of schemas": (2, [add("schemas", full_document()["schemas"][0])], [(103, "schema 0")]),
    "103 of snapshots": (
        2,
        [add("snapshots", snapshot(OLD, 20, timestamp_ms=1515100955770))],
        [(103, f"snapshot {OLD}")],
    ),
    "104": (2, [put("current-schema-id", 9)], [(104, WHERE)]),
    "105": (2, [put("default-spec-id", 9)], [(105, WHERE)]),
    "106": (2, [put("default-sort-order-id", 9)], [(106, WHERE)]),
    "107 of the default spec": (2, [put("partition-specs", 1, "fields", 0, "source-id", 99)], [(107, "partition spec 1")]),
    "107 of a transform that does not take it": (
        2,
        [put("partition-specs", 1, "fields", 0, "source-id", 1)],
        [(107, "partition spec 1")],
    ),
    "107 of an older spec": (2, [put("partition-specs", 0, "fields", 0, "source-id", 99)], [(107, "partition spec 0")]),
    "108": (2, [put("last-column-id", 11)], [(108, WHERE)]),
    "109": (2, [put("last-partition-id", 1001)], [(109, WHERE)]),
    "110 of an id in two specs": (
        2,
        [put("partition-specs", 1, "fields", 0, "field-id", 1000)],
        [(110, "partition spec 1")],
    ),
    "110 of an id that was void": (
        2,
        [
            put("partition-specs", 0, "fields", 0, "transform", "void"),
            add("partition-specs", *({"spec-id": n, "fields": [
                {"name": "x", "transform": transform, "source-id": 1, "field-id": 1000}]}
                for n, transform in ((2, "identity"), (3, "bucket[4]")))),
        ],
        [(110, "partition spec 3")],
    ),
    "110 of a name in one spec": (
        1,
        [put("partition-specs", 1, "fields", 0, "name", "y_bucket")],
        [(110, "partition spec 1")],
    ),
    "111 of an id": (2, [put("schemas", 1, "fields", 6, "id", 11)], [(107, "partition spec 1"), (111, "schema 1")]),
    "111 of a name": (2, [put("schemas", 1, "fields", 6, "name", "place")], [(111, "schema 1")]),
    "112": (2, [put("sort-orders", 1, "fields", 1, "source-id", 99)], [(112, "sort order 3")]),
    "113": (2, [put("schemas", 1, "identifier-field-ids", [1, 3])], [(113, "schema 1")]),
    "114": (2, [put("current-snapshot-id", 8), put("snapshot-log", []), drop("refs", "main")], [(114, WHERE)]),
    "115": (2, [put("refs", "test", "snapshot-id", 8)], [(115, "ref 'test'")]),
    "116 by another snapshot": (2, [put("refs", "main", "snapshot-id", OLD)], [(116, "ref 'main'")]),
    "116 by a tag": (2, [put("refs", "main", {"snapshot-id": NEW, "type": "tag"})], [(116, "ref 'main'")]),
    "117 of zero": (2, [put("refs", "test", "max-ref-age-ms", 0)], [(117, "ref 'test'")]),
    "117 of a tag": (2, [put("refs", "test", "min-snapshots-to-keep", 3)], [(117, "ref 'test'")]),
    "118": (2, CIRCLE, [(118, f"snapshot {OLD}"), (119, f"snapshot {NEW}"), (138, f"snapshot {OLD}")]),
    "119 by a parent": (2, [put("snapshots", 0, "sequence-number", 35), put("last-sequence-number", 35)],
                        [(119, f"snapshot {NEW}")]),
    "119 by a number that is there twice": (2, [add("snapshots", snapshot(7, 34))], [(119, "snapshot 7")]),
    "120": (2, [drop("snapshots", 1, "manifest-list")], [(120, f"snapshot {NEW}")]),
    "120 by manifests that version 2 made": (
        2,
        [drop("snapshots", 1, "manifest-list"), put("snapshots", 1, "manifests", [])],
        [(120, f"snapshot {NEW}")],
    ),
    "121 out of order": (2, [put("snapshot-log", 0, "timestamp-ms", 1555100955770 + 60_001)], [(121, "snapshot-log[1]")]),
    "121 of another snapshot": (2, [drop("snapshot-log", 1)], [(121, "snapshot-log")]),
    "138 of the metadata log by itself": (2, [put("metadata-log", 0, "metadata-file", WHERE)], [(138, WHERE)]),
    "138 of a file that is twice in the metadata log": (
        2,
        [add("metadata-log", full_document()["metadata-log"][0])],
        [(138, "s3://b/wh/data.db/table/metadata/v1.json")],
    ),
    "124 of no snapshot": (2, [put("statistics", 0, "snapshot-id", 8)], [(124, "s3://a/b/stats.puffin")]),
    "124 of one kind twice": (
        2,
        [add("partition-statistics", {**full_document()["partition-statistics"][0], "statistics-path": "s3://a/two"})],
        [(124, "s3://a/two")],
    ),
    "125": (2, [put("metadata-log", 0, "timestamp-ms", 1602638573590 + 60_001)], [(125, "metadata-log")]),
    "126": (2, [put("table-uuid", "events")], [(126, WHERE)]),
    "127": (2, [put("location", "wh/table")], [(127, WHERE)]),
    "128": (3, [put("next-row-id", 6)], [(128, WHERE)]),
    "129": (
        3,
        [add("snapshots", snapshot(5, 36, first_row_id=6, added_rows=1)), put("last-sequence-number", 36)],
        [(129, "snapshot 5")],
    ),
    "129 by two within one": (
        3,
        [
            add("snapshots", *(snapshot(n, 30 + n, first_row_id=n - 4, added_rows=1) for n in (5, 7))),
            put("last-sequence-number", 37),
        ],
        [(129, "snapshot 5"), (129, "snapshot 7")],
    ),
    "130 of a later snapshot": (
        3,
        [add("snapshots", snapshot(5, 36)), put("last-sequence-number", 36)],
        [(130, "snapshot 5")],
    ),
    "130 by added-rows": (3, [drop("snapshots", 1, "added-rows")], [(130, f"snapshot {NEW}")]),
    "138 of a schema": (2, [put("snapshots", 1, "schema-id", 9)], [(138, f"snapshot {NEW}")]),
    "138 of an early time": (2, [put("snapshots", 0, "timestamp-ms", 1555100955770 + 60_001)], [(138, f"snapshot {NEW}")]),
    "138 of a late time": (2, [put("snapshots", 1, "timestamp-ms", 1602638573590 + 60_001)], [(138, f"snapshot {NEW}")]),
    "138 of no operation": (2, [put("snapshots", 1, "summary", {})], [(138, f"snapshot {NEW}")]),
    "138 of another operation": (2, [put("snapshots", 1, "summary", {"operation": "merge"})], [(138, f"snapshot {NEW}")]),
    "136 of a default": (2, [put("schemas", 1, "fields", 2, "write-default", "0.00")], [(136, "schema 1")]),
    "136 of a type": (2, [put("schemas", 0, "fields", 0, "type", "timestamp_ns")], [(136, "schema 0")]),
    "136 of keys": (2, [put("encryption-keys", full_document()["encryption-keys"])], [(136, WHERE)]),
    "136 of row ids": (
        2,
        [put("next-row-id", 7), put("snapshots", 1, "first-row-id", 0)],
        [(136, WHERE), (136, f"snapshot {NEW}")],
    ),
    "136 of several columns": (
        2,
        [put("partition-specs", 1, "fields", 0, "source-ids", [1, 2]), put("partition-specs", 1, "fields", 0, "transform", "z")],
        [(136, "partition spec 1")],
    ),
    "137": (2, [put("properties", "schema.name-mapping.default", "{}")], [(137, WHERE)]),
}  # fmt: skip


@for_each(("version", "edits", "expected"), FAULTS.values(), ids=FAULTS)
def test_each_fault_is_told_with_its_place_and_no_other(version, edits, expected):
    assert told(edited(*edits, version=version)) == expected


def test_what_does_not_load_is_a_fault_whatever_the_rules_know_of_it():
    [found] = refusal_to_load({"format-version": 2})
    assert (found.number, found.detail) == (101, "the required key 'table-uuid' is missing")


def test_what_repair_sets_right_is_told_with_the_least_that_is_right():
    assert facts(edited(put("last-sequence-number", 33)), 102) == {"recorded": 33, "least": 34}
    assert facts(edited(put("last-column-id", 11)), 108) == {"recorded": 11, "least": 12}
    assert facts(edited(put("last-partition-id", 3)), 109) == {"recorded": 3, "least": 1002}
    assert facts(edited(put("next-row-id", 6), version=3), 128) == {"recorded": 6, "least": 7}
    path = "s3://a/b/partitions.parquet"
    assert facts(edited(put("partition-statistics", 0, "snapshot-id", 8)), 124) == {
        "snapshot_id": 8, "statistics_path": path, "kind": "partition-statistics",
    }  # fmt: skip


def test_a_fault_says_what_stands_there_and_what_should():
    assert (
        "snapshots"
        in the_fault(edited(put("current-snapshot-id", 8), put("refs", {}), put("snapshot-log", [])), 114).detail
    )
    assert the_fault(edited(put("location", 7)), 101).detail == "location is 7; it must be text"
    assert "`$.snapshot-id`" in the_fault(edited(put("snapshots", 0, "snapshot-id", "x")), 101).detail
    assert (
        the_fault(edited(put("default-spec-id", 9)), 105).detail == "9 is not among the partition-specs, which are 0, 1"
    )


def test_a_list_with_an_item_that_cannot_be_read_is_not_said_to_lack_what_that_may_be():
    assert told(edited(put("snapshots", 1, 7))) == [(101, "snapshots[1]")]
    assert told(edited(put("schemas", 1, 7))) == [(101, "schemas[1]")]


def test_a_later_format_version_is_a_gap_and_no_fault():
    tally = checked({"format-version": 4})
    assert tally.counts == {}
    assert "format version 4" in tally.gaps()[0].why


@for_each("document", [None, 7, [], {}, {"format-version": "2"}, {"format-version": 0}])
def test_what_is_no_metadata_at_all_is_a_fault(document):
    assert told(checked(document)) == [(101, WHERE)]
