"""Table metadata for tests: a builder of histories, and one JSON document that has every key of the spec.

The builder makes the value directly, so that no rule of `updates.py` or `validate_metadata` is needed to set up a test.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Self

import msgspec

from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import UNPARTITIONED, PartitionSpec, last_assigned_field_id
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotLogEntry, SnapshotRef
from icekeep.spec.sorting import UNSORTED
from icekeep.spec.types import LONG, STRING, NestedField

START_MS = 1_700_000_000_000
MINUTE_MS = 60_000
DAY_MS = 86_400_000

LOCATION = "file:/warehouse/db/events"
SCHEMA = Schema(
    fields=(
        NestedField(field_id=1, name="id", type=LONG, required=True),
        NestedField(field_id=2, name="name", type=STRING),
    )
)


class MetadataBuilder:
    """A table's history, one call a change. Snapshots are numbered 1, 2, 3, ... and lie a day apart unless told otherwise."""

    def __init__(
        self,
        format_version: int = 2,
        *,
        schema: Schema = SCHEMA,
        spec: PartitionSpec = UNPARTITIONED,
        location: str = LOCATION,
    ) -> None:
        self._version, self._location = format_version, location
        self._schemas, self._specs = [schema], [spec]
        self._snapshots: list[Snapshot] = []
        self._log: list[SnapshotLogEntry] = []
        self._refs: dict[str, SnapshotRef] = {}
        self._properties: dict[str, str] = {}
        self._now_ms = START_MS

    def commits(self, count: int = 1, *, branch: str = MAIN, step_ms: int = DAY_MS) -> Self:
        """Snapshots on a branch, each `step_ms` after what came before; the branch is made if it is not there."""
        for _ in range(count):
            self.commit(at_ms=self._now_ms + step_ms if self._snapshots else self._now_ms, branch=branch)
        return self

    def commit(self, *, at_ms: int, branch: str = MAIN) -> Self:
        """One snapshot on a branch at a moment."""
        parent = self._refs.get(branch) or self._refs.get(MAIN)
        snapshot = self._add(at_ms, None if parent is None else parent.snapshot_id)
        return (
            self.branch(branch, at=snapshot.snapshot_id) if branch not in self._refs else self._move(branch, snapshot)
        )

    def stage(self, *, at_ms: int | None = None) -> Self:
        """One snapshot on top of main that no reference names."""
        parent = self._refs.get(MAIN)
        self._add(self._now_ms + DAY_MS if at_ms is None else at_ms, None if parent is None else parent.snapshot_id)
        return self

    def branch(self, name: str, *, at: int | None = None, **retention: int) -> Self:
        """A branch at a snapshot (the newest one), or the retention of one that is there."""
        return self._ref(name, "branch", at, retention)

    def tag(self, name: str, *, at: int | None = None, **retention: int) -> Self:
        """A tag at a snapshot (the newest one)."""
        return self._ref(name, "tag", at, retention)

    def roll_back(self, *, to: int) -> Self:
        """Make an older snapshot current, a day later."""
        self._now_ms += DAY_MS
        return self._move(MAIN, self._snapshot(to), at_ms=self._now_ms)

    def properties(self, properties: Mapping[str, str]) -> Self:
        self._properties |= properties
        return self

    def schema(self, schema: Schema) -> Self:
        """A newer schema, which becomes the current one."""
        self._schemas.append(schema)
        return self

    def spec(self, spec: PartitionSpec) -> Self:
        """A newer partition spec, which becomes the default one."""
        self._specs.append(spec)
        return self

    def build(self) -> TableMetadata:
        main = self._refs.get(MAIN)
        return TableMetadata(
            format_version=self._version,
            table_uuid="fb072c92-a02b-11e9-ae9c-1bb7bc9eca94",
            location=self._location,
            last_sequence_number=len(self._snapshots),
            last_updated_ms=self._now_ms,
            last_column_id=max(schema.highest_field_id for schema in self._schemas),
            schemas=tuple(self._schemas),
            current_schema_id=self._schemas[-1].schema_id,
            partition_specs=tuple(self._specs),
            default_spec_id=self._specs[-1].spec_id,
            last_partition_id=last_assigned_field_id(self._specs),
            sort_orders=(UNSORTED,),
            default_sort_order_id=0,
            properties=dict(self._properties),
            current_snapshot_id=None if main is None else main.snapshot_id,
            snapshots=tuple(self._snapshots),
            snapshot_log=tuple(self._log),
            refs=dict(self._refs),
            next_row_id=0 if self._version >= 3 else None,
        )

    def _add(self, at_ms: int, parent_id: int | None) -> Snapshot:
        number = len(self._snapshots) + 1
        self._snapshots.append(
            Snapshot(
                snapshot_id=number,
                parent_snapshot_id=parent_id,
                sequence_number=number,
                timestamp_ms=at_ms,
                manifest_list=f"{self._location}/metadata/snap-{number}.avro",
                summary={"operation": "append"},
                schema_id=self._schemas[-1].schema_id,
            )
        )
        self._now_ms = max(self._now_ms, at_ms)
        return self._snapshots[-1]

    def _snapshot(self, snapshot_id: int) -> Snapshot:
        return next(s for s in self._snapshots if s.snapshot_id == snapshot_id)

    def _ref(self, name: str, kind: Any, at: int | None, retention: Mapping[str, int]) -> Self:
        known = self._refs.get(name)
        at = (self._snapshots[-1].snapshot_id if known is None else known.snapshot_id) if at is None else at
        self._refs[name] = SnapshotRef(snapshot_id=at, type=kind, **retention)
        return self if known is not None or name != MAIN else self._move(name, self._snapshot(at))

    def _move(self, branch: str, snapshot: Snapshot, at_ms: int | None = None) -> Self:
        self._refs[branch] = msgspec.structs.replace(self._refs[branch], snapshot_id=snapshot.snapshot_id)
        if branch == MAIN:
            moment_ms = snapshot.timestamp_ms if at_ms is None else at_ms
            self._log.append(SnapshotLogEntry(timestamp_ms=moment_ms, snapshot_id=snapshot.snapshot_id))
        return self


def full_document() -> dict[str, Any]:
    """Metadata of a version 2 table as JSON, with every key that the spec has for it; a new object at each call."""
    document: dict[str, Any] = json.loads(_FULL)
    return document


def sound_document(format_version: int = 2) -> dict[str, Any]:
    """`full_document` as a table of some version, with nothing that only later versions have; a new object at each call."""
    document = full_document()
    document["format-version"] = format_version
    if format_version >= 3:
        document["next-row-id"] = 7
        document["snapshots"][1] |= {"first-row-id": 0, "added-rows": 7}
        return document
    del document["encryption-keys"], document["snapshots"][1]["key-id"]
    field = document["schemas"][1]["fields"][2]
    del field["initial-default"], field["write-default"]
    if format_version == 1:
        document |= {"schema": document["schemas"][1], "partition-spec": document["partition-specs"][1]["fields"]}
        for key in ("last-sequence-number", "table-uuid"):
            del document[key]
        for snapshot in document["snapshots"]:
            del snapshot["sequence-number"]
    return document


def document_bytes(document: Mapping[str, Any]) -> bytes:
    """A document as the bytes of a metadata file, by another encoder than the library's."""
    return json.dumps(document).encode()


def spec_objects(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every JSON object in a metadata document that the spec describes key by key, with what it is."""
    yield "table", document
    for schema in document["schemas"]:
        yield from _type_objects(schema, "schema")
    for spec in document["partition-specs"]:
        yield "partition spec", spec
        yield from (("partition field", field) for field in spec["fields"])
    for order in document["sort-orders"]:
        yield "sort order", order
        yield from (("sort field", field) for field in order["fields"])
    for statistics in document.get("statistics", ()):
        yield "statistics", statistics
        yield from (("blob metadata", blob) for blob in statistics["blob-metadata"])
    plain = {
        "snapshots": "snapshot",
        "partition-statistics": "partition statistics",
        "snapshot-log": "snapshot log entry",
        "metadata-log": "metadata log entry",
        "encryption-keys": "encryption key",
    }
    for key, what in plain.items():
        yield from ((what, item) for item in document.get(key, ()))
    yield from (("ref", ref) for ref in document.get("refs", {}).values())


def _type_objects(value: Any, what: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(value, dict):
        return
    yield what or f"{value['type']} type", value
    for field in value.get("fields", ()):
        yield "struct field", field
        yield from _type_objects(field["type"])
    for key in ("element", "key", "value"):
        yield from _type_objects(value.get(key))


_FULL = """{
  "format-version": 2,
  "table-uuid": "fb072c92-a02b-11e9-ae9c-1bb7bc9eca94",
  "location": "s3://b/wh/data.db/table",
  "last-sequence-number": 34,
  "last-updated-ms": 1602638573590,
  "last-column-id": 12,
  "current-schema-id": 1,
  "schemas": [
    {"type": "struct", "schema-id": 0, "fields": [
      {"id": 1, "name": "x", "required": true, "type": "long"}
    ]},
    {"type": "struct", "schema-id": 1, "identifier-field-ids": [1, 2], "fields": [
      {"id": 1, "name": "x", "required": true, "type": "long"},
      {"id": 2, "name": "y", "required": true, "type": "long", "doc": "comment"},
      {"id": 3, "name": "z", "required": false, "type": "decimal(9, 2)",
       "initial-default": "14.20", "write-default": "0.00"},
      {"id": 4, "name": "place", "required": false, "type":
        {"type": "struct", "fields": [{"id": 5, "name": "city", "required": false, "type": "string"}]}},
      {"id": 6, "name": "tags", "required": false, "type":
        {"type": "list", "element-id": 7, "element-required": true, "element": "string"}},
      {"id": 8, "name": "counts", "required": false, "type":
        {"type": "map", "key-id": 9, "key": "string", "value-id": 10, "value-required": false, "value":
          {"type": "list", "element-id": 11, "element-required": false, "element": "double"}}},
      {"id": 12, "name": "ts", "required": false, "type": "timestamptz"}
    ]}
  ],
  "default-spec-id": 1,
  "partition-specs": [
    {"spec-id": 0, "fields": [{"name": "x", "transform": "identity", "source-id": 1, "field-id": 1000}]},
    {"spec-id": 1, "fields": [
      {"name": "ts_day", "transform": "day", "source-id": 12, "field-id": 1001},
      {"name": "y_bucket", "transform": "bucket[16]", "source-id": 2, "field-id": 1002}
    ]}
  ],
  "last-partition-id": 1002,
  "default-sort-order-id": 3,
  "sort-orders": [
    {"order-id": 0, "fields": []},
    {"order-id": 3, "fields": [
      {"transform": "identity", "source-id": 2, "direction": "asc", "null-order": "nulls-first"},
      {"transform": "bucket[4]", "source-id": 3, "direction": "desc", "null-order": "nulls-last"}
    ]}
  ],
  "properties": {"read.split.target.size": "134217728", "commit.retry.num-retries": "4"},
  "current-snapshot-id": 3055729675574597004,
  "refs": {
    "main": {"snapshot-id": 3055729675574597004, "type": "branch",
             "min-snapshots-to-keep": 10, "max-snapshot-age-ms": 259200000},
    "test": {"snapshot-id": 3051729675574597004, "type": "tag", "max-ref-age-ms": 10000000}
  },
  "snapshots": [
    {"snapshot-id": 3051729675574597004, "timestamp-ms": 1515100955770, "sequence-number": 0,
     "summary": {"operation": "append"}, "manifest-list": "s3://a/b/1.avro"},
    {"snapshot-id": 3055729675574597004, "parent-snapshot-id": 3051729675574597004, "timestamp-ms": 1555100955770,
     "sequence-number": 34, "summary": {"operation": "append", "added-data-files": "4"},
     "manifest-list": "s3://a/b/2.avro", "schema-id": 1, "key-id": "5f819b"}
  ],
  "statistics": [
    {"snapshot-id": 3055729675574597004, "statistics-path": "s3://a/b/stats.puffin", "file-size-in-bytes": 413,
     "file-footer-size-in-bytes": 42, "key-metadata": "aWNlYmVyZwo=", "blob-metadata": [
       {"type": "apache-datasketches-theta-v1", "snapshot-id": 3055729675574597004, "sequence-number": 34, "fields": [1],
        "properties": {"ndv": "7"}}
    ]}
  ],
  "partition-statistics": [
    {"snapshot-id": 3055729675574597004, "statistics-path": "s3://a/b/partitions.parquet", "file-size-in-bytes": 43}
  ],
  "snapshot-log": [
    {"snapshot-id": 3051729675574597004, "timestamp-ms": 1515100955770},
    {"snapshot-id": 3055729675574597004, "timestamp-ms": 1555100955770}
  ],
  "metadata-log": [
    {"metadata-file": "s3://b/wh/data.db/table/metadata/v1.json", "timestamp-ms": 1515100955770}
  ],
  "encryption-keys": [
    {"key-id": "5f819b", "encrypted-key-metadata": "aWNlYmVyZwo=", "encrypted-by-id": "kms", "properties": {"a": "b"}}
  ]
}"""
