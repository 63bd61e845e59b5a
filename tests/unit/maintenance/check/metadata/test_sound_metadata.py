"""What writers of all versions leave behind, which is no fault."""

import msgspec
import pytest
from msgspec.structs import replace

from icekeep.spec.metadata import metadata_to_json
from kit.cases import for_each
from kit.faults import Edit, add, checked, drop, edited, put, snapshot, told
from kit.metadata import MetadataBuilder, sound_document
from kit.tables import add as commit
from kit.tables import memory_table, set_ref


@pytest.mark.parametrize("version", [1, 2, 3])
def test_what_we_write_is_sound(version):
    table = commit(commit(memory_table(format_version=version), "a", "b"), "c")
    table = commit(set_ref(table, "audit", table.metadata.snapshots[0].snapshot_id, "branch"), "d", branch="audit")
    raw = msgspec.json.decode(table.storage.read(table.metadata_location))
    assert len(raw["snapshots"]) == 3
    assert told(checked(raw, table.metadata_location)) == []


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_sound_table_has_no_fault(version):
    tally = checked(sound_document(version))
    assert (told(tally), tally.gaps()) == ([], ())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_history_with_branches_tags_staged_snapshots_and_a_roll_back_is_sound(version):
    history = MetadataBuilder(version).commits(3).branch("audit", at=2).commits(2, branch="audit").tag("v1", at=1)
    metadata = history.stage().roll_back(to=2).commits(1).build()
    if version == 3:
        rows = {
            s.snapshot_id: replace(s, first_row_id=s.sequence_number * 10, added_rows=10) for s in metadata.snapshots
        }
        metadata = replace(metadata, snapshots=tuple(rows.values()), next_row_id=100)
    assert told(checked(metadata_to_json(metadata))) == []


SOUND: dict[str, tuple[int, list[Edit]]] = {
    "v1 with a schema and a partition spec alone": (
        1,
        [
            drop(key)
            for key in (
                *("schemas", "current-schema-id", "partition-specs", "default-spec-id", "last-partition-id"),
                *("sort-orders", "default-sort-order-id", "refs"),
            )
        ]
        + [drop("snapshots", 1, "schema-id")],
    ),
    "v1 that names manifests, and no operation": (
        1,
        [
            drop("snapshots", 0, "manifest-list"),
            put("snapshots", 0, "manifests", ["s3://a/m.avro"]),
            drop("snapshots", 0, "summary"),
        ],
    ),
    "v1 whose specs number their fields from 1000 each": (1, [put("partition-specs", 1, "fields", 0, "field-id", 1000)]),
    "upgraded, with what version 1 made": (
        2,
        [
            drop("snapshots", 0, "manifest-list"),
            put("snapshots", 0, "manifests", ["s3://a/m.avro"]),
            drop("snapshots", 0, "summary"),
            drop("snapshots", 0, "sequence-number"),
        ],
    ),
    "no current snapshot, as Java writes it": (
        2,
        [put("current-snapshot-id", -1), drop("refs", "main")],
    ),
    "no refs, though a snapshot is current": (2, [put("refs", None)]),
    "an empty log": (2, [put("snapshot-log", [])]),
    "a log that is a minute off": (2, [put("snapshot-log", 0, "timestamp-ms", 1555100955770 + 60_000)]),
    "a parent that has expired": (2, [put("snapshots", 0, "parent-snapshot-id", 77)]),
    "a field that was dropped": (
        2,
        [
            put("partition-specs", 1, "fields", 0, {"name": "gone", "transform": "void", "source-id": 99, "field-id": 1001}),
        ],
    ),
    "a dropped field that is void under its id": (
        2,
        [add("partition-specs", {"spec-id": 2, "fields": [
            {"name": "x", "transform": "void", "source-id": 1, "field-id": 1000}]})],
    ),
    "an older spec whose column no schema has, and whose values are numbers whatever it was": (
        2,
        [
            put("partition-specs", 0, "fields", 0, "transform", "bucket[4]"),
            put("partition-specs", 0, "fields", 0, "source-id", 99),
        ],
    ),
    "a transform that is not known": (2, [put("partition-specs", 1, "fields", 0, "transform", "zorder[3]")]),
    "v3 with a snapshot from before its upgrade": (3, [add("snapshots", snapshot(5, 36, first_row_id=7, added_rows=0)),
                                                     put("last-sequence-number", 36)]),
    "v3 without any snapshot that has row ids": (3, [drop("snapshots", 1, "first-row-id")]),
    "two snapshots of version 1": (2, [put("snapshots", 1, "sequence-number", 0)]),
    "a table that never had a partition field": (
        2,
        [put("partition-specs", [{"spec-id": 1, "fields": []}]), put("last-partition-id", 0)],
    ),
    "v3 with a transform of several columns": (
        3,
        [add("partition-specs", {"spec-id": 2, "fields": [
            {"name": "z", "transform": "zorder", "source-ids": [1, 2], "field-id": 1000}]}),
         put("partition-specs", 0, "fields", [])],
    ),
    "v3 with a snapshot that assigns no row ids": (
        3,
        [add("snapshots", snapshot(5, 36, first_row_id=3, added_rows=0)), put("last-sequence-number", 36)],
    ),
    "a name mapping": (2, [put("properties", "schema.name-mapping.default", '[{"field-id": 1, "names": ["x"]}]')]),
}  # fmt: skip


@for_each(("version", "edits"), SOUND.values(), ids=SOUND)
def test_what_engines_leave_behind_is_sound(version, edits):
    tally = edited(*edits, version=version)
    assert (told(tally), tally.gaps()) == ([], ())
