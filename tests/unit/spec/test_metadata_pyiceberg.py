"""Table metadata between two implementations, and a whole table of PyIceberg read from its pointer down."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType, TimestampType

from icekeep.spec.manifests.read import read_manifest, read_manifest_list
from icekeep.spec.manifests.structs import ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata, format_metadata, metadata_from_json, parse_metadata
from icekeep.storage.locations import local_path
from kit.cases import cases
from kit.foreign_files import our_entries, our_manifest
from kit.metadata import document_bytes, full_document
from kit.strategies import table_metadata

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "kind", StringType()),
    NestedField(3, "ts", TimestampType()),
    NestedField(5, "day", DateType()),
)
SPEC = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "kind"),
    PartitionField(3, 1001, DayTransform(), "ts day"),
    PartitionField(1, 1002, BucketTransform(4), "1d"),
    PartitionField(5, 1003, IdentityTransform(), "day"),
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
    table = catalog.create_table("db.events", SCHEMA, partition_spec=SPEC, properties={"owner": "them"})
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
def test_metadata_of_pyiceberg_that_we_write_again_is_the_same_to_it(table: Table):
    assert TableMetadataUtil.parse_raw(format_metadata(loaded(table)).decode()) == table.metadata


@pytest.mark.slow
def test_every_snapshot_of_a_table_of_pyiceberg_is_read_as_it_reads_it_itself(table: Table):
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
def test_pyiceberg_understands_what_we_write_and_we_what_it_writes(metadata: TableMetadata):
    theirs = TableMetadataUtil.parse_raw(format_metadata(metadata).decode())
    assert theirs.last_sequence_number == metadata.last_sequence_number
    assert [s.snapshot_id for s in theirs.snapshots] == [s.snapshot_id for s in metadata.snapshots]
    assert theirs.refs.keys() == metadata.refs.keys()
    again = metadata_from_json(json.loads(theirs.model_dump_json()))
    assert again == metadata
