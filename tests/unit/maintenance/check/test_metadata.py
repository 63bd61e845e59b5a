"""Metadata files against the spec: each fault with its place and no other, what is sound, any JSON; and earlier metadata."""

import copy
import gzip
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, UnavailableError, UnsupportedError, UsageError
from icekeep.events import SILENT
from icekeep.maintenance.check.faults import CLASSES, Fault, Tally
from icekeep.maintenance.check.lists import CheckedTable
from icekeep.maintenance.check.metadata import check_logs, check_metadata, last_sound
from icekeep.spec.metadata import metadata_from_json
from icekeep.spec.snapshots import MetadataLogEntry
from kit.cases import cases, for_each
from kit.memory_catalog import MemoryCatalog
from kit.metadata import full_document, sound_document
from kit.storage import HookedStorage, MemoryStorage
from kit.strategies import json_values
from kit.tables import add as commit
from kit.tables import memory_table, set_ref

WHERE = "s3://b/wh/data.db/table/metadata/v2.json"
"""Of the documents in `metadata.py`."""

Edit = Callable[[dict[str, Any]], object]


def told(tally: Tally) -> list[tuple[int, str]]:
    """The faults as number and place."""
    return [(fault.number, fault.where) for fault in all_faults(tally)]


def all_faults(tally: Tally) -> list[Fault]:
    """All faults that are kept, by number and place."""
    return [fault for number in sorted(tally.counts) for fault in tally.faults(number)]


def the_fault(tally: Tally, number: int) -> Fault:
    """The one fault of a class; fails where there is none, or more."""
    (fault,) = tally.faults(number)
    return fault


def serious(tally: Tally) -> set[int]:
    """Numbers of what was found, notices left out."""
    return {number for number in tally.counts if not CLASSES[number].is_notice}


def facts(tally: Tally, number: int) -> dict[str, Any]:
    """What a machine is told of the one fault of a class."""
    return dict(the_fault(tally, number).facts)


def checked(document: object, location: str = WHERE) -> Tally:
    """What `check_metadata` finds."""
    tally = Tally()
    check_metadata(document, location, tally)
    return tally


def put(*path_and_value: Any) -> Edit:
    """An edit that sets the value at a path of keys and positions."""
    *path, key, value = path_and_value

    def act(document: Any) -> None:
        for step in path:
            document = document[step]
        document[key] = value

    return act


def drop(*path: Any) -> Edit:
    """An edit that takes out what is at a path."""
    *above, key = path

    def act(document: Any) -> None:
        for step in above:
            document = document[step]
        del document[key]

    return act


def add(key: str, *items: dict[str, Any]) -> Edit:
    """An edit that appends items to a list at the top, which is made if it is not there."""
    return lambda document: document.setdefault(key, []).extend(items)


def edited(*edits: Edit, version: int = 2) -> Tally:
    """What is found in a sound document that was edited."""
    document = sound_document(version)
    for edit in edits:
        edit(document)
    return checked(document)


def snapshot(snapshot_id: int, sequence_number: int, **keys: Any) -> dict[str, Any]:
    """A sound snapshot without a parent; keys are spelled with underscores."""
    return {
        "snapshot-id": snapshot_id,
        "sequence-number": sequence_number,
        "timestamp-ms": 1602638573590,
        "manifest-list": f"s3://a/b/{snapshot_id}.avro",
        "summary": {"operation": "append"},
        **{key.replace("_", "-"): value for key, value in keys.items()},
    }


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


@for_each(("version", "edits", "expected"), [pytest.param(*case, id=name) for name, case in FAULTS.items()])
def test_each_fault_has_its_place(version, edits, expected):
    assert told(edited(*edits, version=version)) == expected


def test_facts_for_repair():
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


def test_an_unreadable_item_is_not_missing():
    assert told(edited(put("snapshots", 1, 7))) == [(101, "snapshots[1]")]
    assert told(edited(put("schemas", 1, 7))) == [(101, "schemas[1]")]


def test_a_later_format_version_is_a_gap_and_no_fault():
    tally = checked({"format-version": 4})
    assert tally.counts == {}
    assert "format version 4" in tally.gaps()[0].why


@for_each("document", [None, 7, [], {}, {"format-version": "2"}, {"format-version": 0}])
def test_what_is_no_metadata_at_all_is_a_fault(document):
    assert told(checked(document)) == [(101, WHERE)]


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


@for_each(("version", "edits"), [pytest.param(*case, id=name) for name, case in SOUND.items()])
def test_what_engines_leave_behind_is_sound(version, edits):
    tally = edited(*edits, version=version)
    assert (told(tally), tally.gaps()) == ([], ())


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A sound document of which something is another value, gone, or there twice, a few times over."""
    document: Any = sound_document(draw(st.sampled_from([1, 2, 3])))
    for _ in range(draw(st.integers(1, 3))):
        places = [*_places(document)]
        holder, key = draw(st.sampled_from(places))
        match draw(st.integers(0, 3)):
            case 0:
                del holder[key]
            case 1:
                holder[key] = copy.deepcopy(draw(st.sampled_from([h[k] for h, k in places])))
            case 2 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case _:
                holder[key] = draw(json_values() | st.integers(-2, 3) | st.text(max_size=3))
        if not document:
            break
    return document


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = range(len(value)) if isinstance(value, list) else list(value) if isinstance(value, dict) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


@cases(200)
@given(mutated())
def test_sound_metadata_loads(document):
    before = json.dumps(document)
    tally = checked(document)
    assert json.dumps(document) == before, "the document was changed"
    if not serious(tally) and not tally.gaps():
        metadata_from_json(document)


@cases(200)
@given(mutated())
def test_what_does_not_load_has_a_fault_or_a_gap(document):
    try:
        metadata_from_json(document)
    except (InvalidTableError, UnsupportedError):
        tally = checked(document)
        assert serious(tally) or tally.gaps()


@for_each("key", ["schemas", "snapshots", "properties", "refs", "statistics"])
def test_deeply_nested_metadata(key):
    deep: Any = []
    for _ in range(800):
        deep = [deep]
    for value in (deep, [deep], {"a": deep}):
        assert 101 in checked({**sound_document(), key: value}).counts


def looked_at(table: Table) -> Tally:
    tally = Tally()
    check_logs(CheckedTable(table=table, snapshots=(), spark=None, listener=SILENT, tally=tally))
    return tally


def logged(table: Table) -> list[str]:
    return [entry.metadata_file for entry in table.metadata.metadata_log]


def with_log(table: Table, *locations: str) -> Table:
    log = tuple(MetadataLogEntry(timestamp_ms=0, metadata_file=location) for location in locations)
    return msgspec.structs.replace(table, metadata=msgspec.structs.replace(table.metadata, metadata_log=log))


def with_storage(table: Table, hook) -> Table:
    return msgspec.structs.replace(table, storage=HookedStorage(table.storage, before=hook))


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def table(storage) -> Table:
    table = memory_table(MemoryCatalog(storage))
    for name in ("a", "b", "c"):
        table = commit(table, name)
    assert len(logged(table)) == 3
    return table


def overwrite(storage: MemoryStorage, location: str, data: bytes) -> None:
    storage.delete_many([location])
    storage.create(location, data)


def test_a_metadata_file_that_is_missing(table, storage):
    storage.delete_many(logged(table)[:1])
    assert told(looked_at(table)) == [(138, logged(table)[0])]


def test_another_uuid_in_the_metadata_before(table, storage):
    overwrite(storage, logged(table)[-1], b'{"table-uuid": "0d5e5e3f-0000-4000-8000-000000000000"}')
    tally = looked_at(table)
    assert told(tally) == [(126, table.metadata_location)]
    assert tally.faults(126)[0].facts["metadata_file"] == logged(table)[-1]


@pytest.mark.parametrize("before", [b"{}", b'{"table-uuid": null}'])
def test_metadata_without_a_uuid(table, storage, before):
    overwrite(storage, logged(table)[-1], before)
    assert told(looked_at(table)) == []


def test_the_case_of_a_uuid_makes_no_other_table(table, storage):
    overwrite(storage, logged(table)[-1], f'{{"table-uuid": "{table.metadata.table_uuid.upper()}"}}'.encode())
    assert told(looked_at(table)) == []


def test_the_uuid_of_an_older_file(table, storage):
    overwrite(storage, logged(table)[-1], b"{")
    overwrite(storage, logged(table)[-2], b'{"table-uuid": "other"}')
    tally = looked_at(table)
    assert told(tally) == [(126, table.metadata_location)]
    assert [logged(table)[-1] in gap.what for gap in tally.gaps()] == [True]


def test_a_long_metadata_log(table):
    gone = [f"memory://lake/gone/{number:05d}-x.metadata.json" for number in range(150)]
    assert looked_at(with_log(table, *gone)).counts == {138: 100}


def test_a_metadata_file_that_is_no_location(table):
    assert told(looked_at(with_log(table, *logged(table), "v1.json"))) == [(138, "v1.json")]


@pytest.mark.parametrize("denied", ["head", "read"])
def test_a_metadata_file_that_is_denied(table, denied):
    def deny(operation: str, location: str) -> None:
        if operation == denied and location == logged(table)[-1]:
            raise UsageError("denied")

    tally = looked_at(with_storage(table, deny))
    assert told(tally) == []
    assert [(logged(table)[-1] in gap.what, gap.why) for gap in tally.gaps()] == [(True, "denied")]


def test_a_metadata_file_in_another_store(table, storage):
    def refuse(operation: str, location: str) -> None:
        if "elsewhere" in location:
            raise UnsupportedError("no such store")

    storage.delete_many(logged(table)[:1])
    tally = looked_at(with_storage(with_log(table, *logged(table), "memory://elsewhere/v1.json"), refuse))
    assert told(tally) == [(138, logged(table)[0])]
    assert [gap.why for gap in tally.gaps()] == ["no such store"]


@pytest.mark.parametrize("failing", ["head", "read"])
def test_a_store_out_of_reach_ends_the_look(table, failing):
    def fail(operation: str, location: str) -> None:
        if operation == failing:
            raise UnavailableError("out of reach")

    with pytest.raises(UnavailableError):
        looked_at(with_storage(table, fail))


HOME = "memory://lake/t/metadata"
OTHER_UUID = "0d5e5e3f-0000-4000-8000-000000000000"


def name(version: int, tail: str = "aa") -> str:
    return f"{HOME}/{version:05d}-{tail}.metadata.json"


def document(version: int, *log: str, **keys: Any) -> dict[str, Any]:
    """A sound table at some version, whose time is that of the version."""
    entries = [{"timestamp-ms": 0, "metadata-file": one} for one in log]
    found = {**sound_document(), "last-updated-ms": 1602638573590 + version, "metadata-log": entries}
    return found | {key.replace("_", "-"): value for key, value in keys.items()}


def lake(files: dict[str, Any]) -> MemoryStorage:
    storage = MemoryStorage()
    for location, content in files.items():
        storage.create(location, content if isinstance(content, bytes) else json.dumps(content).encode())
    return storage


def found(storage: Any, location: str, raw: object = None) -> list[str]:
    return [one.location for one in last_sound(storage, location, raw)]


def test_the_newest_sound_files_of_the_log():
    storage = lake({name(n): document(n) for n in (1, 2)} | {name(3): b"{"})
    damaged = document(4, name(1), name(2), name(3))
    assert found(storage, name(4), damaged) == [name(2), name(1)]
    newest = last_sound(storage, name(4), damaged)[0]
    assert newest.timestamp_ms == 1602638573592
    assert newest.last_sequence_number == 34
    assert newest.snapshot_ids == (3051729675574597004, 3055729675574597004)
    assert newest.current_snapshot_id == newest.snapshot_ids[1]


def test_at_most_five_are_found():
    names = [name(n) for n in range(8)]
    storage = lake({one: document(n) for n, one in enumerate(names)})
    assert found(storage, name(8), document(8, *names)) == names[:2:-1]


def test_not_more_than_twenty_files_are_read():
    names = [name(n) for n in range(30)]
    reads: list[str] = []
    storage = HookedStorage(lake(dict.fromkeys(names, b"{")), before=lambda op, where: reads.append(op))
    assert found(storage, name(30), document(30, *names)) == []
    assert reads.count("read") == 20


def test_metadata_that_is_passed_over():
    storage = lake(
        {
            name(1): document(1),
            name(2): document(2, table_uuid=OTHER_UUID),
            name(3): document(3, last_column_id=2),
            name(4): {"format-version": 4},
        }
    )
    damaged = document(6, *(name(n) for n in range(1, 6)))
    assert found(storage, name(6), damaged) == [name(1)]


def test_a_notice_does_not_make_metadata_unsound():
    storage = lake({name(1): document(1, name(0), name(0))})
    assert found(storage, name(2), document(2, name(1))) == [name(1)]


LOGS = [None, [], {"metadata-log": 7}, {"metadata-log": [7, {"metadata-file": 7}, {"metadata-file": "x"}]}]


@for_each("raw", LOGS)
def test_files_beside_a_damaged_one(raw):
    files = {name(n): document(n) for n in (8, 9, 10)}
    gzipped = f"{HOME}/00007-aa.gz.metadata.json"
    others = [f"{HOME}/snap-9.avro", f"{HOME}/00009-aa.stats", f"{HOME}/deeper/00009-aa.metadata.json"]
    storage = lake(files | {gzipped: gzip.compress(json.dumps(document(7)).encode())} | dict.fromkeys(others, b"{}"))
    # The newest that is sound leads to its log, and this one has none.
    assert found(storage, name(11), raw) == [name(10)]


def test_the_log_goes_before_names():
    lost = name(9, "lost-a-race")
    storage = lake({name(8): document(8), lost: document(9), name(10): document(10, name(8)), name(11): document(11)})
    assert found(storage, name(11), None) == [name(10), name(8)]


def test_several_files_of_the_newest_version():
    twins = {name(10): document(10, name(8)), name(10, "bb"): document(10, name(8))}
    storage = lake({name(8): document(8), name(9): document(9), name(12): b"{", **twins})
    assert sorted(found(storage, name(12), None)) == [name(8), name(10), name(10, "bb")]


def test_versions_of_a_directory_catalog():
    storage = lake({f"{HOME}/v{n}.metadata.json": document(n) for n in (9, 10)})
    assert found(storage, f"{HOME}/v11.metadata.json", None) == [f"{HOME}/v10.metadata.json"]


def test_a_directory_full_of_manifests():
    listed: list[str] = []
    inner = lake({name(n): document(n) for n in (98, 101)})
    storage = HookedStorage(inner, before=lambda operation, where: listed.append(operation))
    assert found(storage, name(102), None) == [name(101)]
    assert "list" not in listed


def test_versions_far_behind_are_found_too():
    storage = lake({name(7): document(7), f"{HOME}/deeper/00008-aa.metadata.json": document(8)})
    assert found(storage, name(12345), None) == [name(7)]


def test_the_uuid_of_the_first_found():
    storage = lake(
        {name(2): document(2, name(1), name(0)), name(1): document(1, table_uuid=OTHER_UUID), name(0): document(0)}
    )
    assert found(storage, name(3), None) == [name(2), name(0)]
    assert found(storage, name(3), {"table-uuid": OTHER_UUID}) == [name(1)]
    assert found(storage, name(3), {"table-uuid": "damaged"}) == [name(2), name(0)]


def test_nothing_is_found_where_there_is_nothing():
    assert found(lake({}), name(3), None) == []
    assert found(lake({name(3): document(3)}), name(3), document(3)) == []


def test_a_store_that_is_out_of_reach_ends_the_search():
    def fail(operation: str, location: str) -> None:
        raise UnavailableError("out of reach")

    with pytest.raises(UnavailableError):
        found(HookedStorage(lake({}), before=fail), name(3), document(3, name(2)))
