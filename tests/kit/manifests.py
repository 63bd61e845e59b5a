"""Sample files, entries and manifests, and ways to take an Avro file apart and put it together wrongly."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from icekeep.spec.avro import encode_long, packer, read_header, write_header
from icekeep.spec.manifests.read import read_manifest
from icekeep.spec.manifests.structs import DataFile, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder, write_manifest_list
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.transforms import Identity
from icekeep.spec.types import DATE, LONG, NestedField, StructType

LIST = "file:/warehouse/db/events/metadata/snap-7.avro"
MANIFEST = "file:/warehouse/db/events/metadata/m0.avro"
SNAPSHOT_ID = 7
DAY = StructType((NestedField(field_id=1000, name="day", type=DATE),))
UNPARTITIONED = StructType(())


def data_file(path: str = "file:/warehouse/db/events/data/a.parquet", **changes: Any) -> DataFile:
    """A Parquet file of ten rows in a partition of `DAY`, unless told otherwise."""
    return DataFile(
        **{
            "file_path": path,
            "file_format": "PARQUET",
            "spec_id": 0,
            "record_count": 10,
            "file_size_in_bytes": 1000,
            "partition": (19_000,),
            **changes,
        }
    )


def added(file: DataFile | None = None, **numbers: int) -> ManifestEntry:
    """An entry whose numbers are inherited, unless they are given."""
    return ManifestEntry(status=Status.ADDED, data_file=file or data_file(), **numbers)


def existing(file: DataFile | None = None, **numbers: int) -> ManifestEntry:
    return _numbered(Status.EXISTING, file, numbers)


def deleted(file: DataFile | None = None, **numbers: int) -> ManifestEntry:
    return _numbered(Status.DELETED, file, numbers)


def spec_and_schema(partition: StructType, spec_id: int = 0) -> tuple[PartitionSpec, Schema]:
    """A spec with these partition fields as identities, and a schema of their columns and one more."""
    pairs = list(enumerate(partition.fields, start=2))
    fields = tuple(
        PartitionField(source_id=i, field_id=f.field_id, name=f.name, transform=Identity()) for i, f in pairs
    )
    columns = (NestedField(field_id=i, name=f"column {i}", type=f.type) for i, f in pairs)
    schema = Schema(fields=(NestedField(field_id=1, name="id", type=LONG), *columns), schema_id=4)
    return PartitionSpec(spec_id=spec_id, fields=fields), schema


def write_manifest(
    entries: Iterable[ManifestEntry],
    partition: StructType = DAY,
    *,
    location: str = MANIFEST,
    spec_id: int = 0,
    content: ManifestContent = ManifestContent.DATA,
    codec: str = "gzip",
    sequence_number: int | None = 5,
    format_version: int = 2,
) -> tuple[bytes, ManifestFile]:
    """A manifest of `SNAPSHOT_ID` and its row of a manifest list, as if it were committed at `sequence_number`."""
    spec, schema = spec_and_schema(partition, spec_id)
    encoder = EntryEncoder(partition, format_version)
    builder = ManifestBuilder(
        location, encoder, spec, schema, format_version=format_version, content=content, codec=codec
    )
    for entry in entries:
        builder.add(entry)
    data, row = builder.finish(SNAPSHOT_ID)
    return data, row if sequence_number is None else committed(row, sequence_number)


def write_list(
    manifests: Iterable[ManifestFile], *, format_version: int = 2, codec: str = "gzip", **snapshot: Any
) -> bytes:
    """The manifest list of snapshot `SNAPSHOT_ID`, number 5, with the parent 3, unless `snapshot` says otherwise."""
    keys = {"snapshot_id": SNAPSHOT_ID, "parent_snapshot_id": 3, "sequence_number": 5, "timestamp_ms": 1, **snapshot}
    made = Snapshot(manifest_list=LIST, **keys)
    return write_manifest_list(manifests, made, format_version=format_version, codec=codec)


def committed(row: ManifestFile, sequence_number: int) -> ManifestFile:
    """The row of a new manifest with the numbers that a commit gives it."""
    least = row.min_sequence_number
    return msgspec.structs.replace(
        row,
        sequence_number=sequence_number,
        min_sequence_number=sequence_number if least is None else min(least, sequence_number),
    )


def read_entries(data: bytes, row: ManifestFile, partition: StructType = DAY) -> list[ManifestEntry]:
    return list(read_manifest(data, row, partition)[1])


def resized(row: ManifestFile, data: bytes) -> ManifestFile:
    """The row with the length of other bytes, so that a reader cannot tell by the length that they were changed."""
    return msgspec.structs.replace(row, manifest_length=len(data))


def with_schema(data: bytes, change: Callable[[Any], Any]) -> bytes:
    """An Avro file with another schema over the same records."""
    schema = change(read_header(data, "").schema)
    return with_metadata(data, {"avro.schema": msgspec.json.encode(schema)})


def with_metadata(data: bytes, metadata: Mapping[str, bytes | None]) -> bytes:
    """An Avro file with other key-value metadata; null removes a key."""
    header = read_header(data, "")
    changed = {k: v for k, v in {**header.metadata, **metadata}.items() if v is not None}
    return write_header(changed, header.sync) + data[header.length_bytes :]


def field_of(schema: Any, field_id: int) -> dict[str, Any]:
    """The Avro field with an id, wherever it is in a schema."""
    found = _find_field(schema, field_id)
    assert found is not None, f"no field {field_id}"
    return found


def blocks(data: bytes) -> list[bytes]:
    """The blocks of an Avro file, each with its count, its length and its sync marker."""
    position = read_header(data, "").length_bytes
    found = []
    while position < len(data):
        _, after_count = _varint(data, position)
        size, payload = _varint(data, after_count)
        found.append(data[position : payload + size + 16])
        position = payload + size + 16
    return found


def encode_block(payload: bytes, count: int, codec: str, sync: bytes) -> bytes:
    """One Avro block of so many encoded records."""
    packed = packer(codec)(payload)
    return encode_long(count) + encode_long(len(packed)) + packed + sync


def recounted(block: bytes, change: int) -> bytes:
    """A block that says it has `change` records more than it has."""
    count, position = _varint(block, 0)
    return write_varint(count + change) + block[position:]


def write_varint(number: int) -> bytes:
    number = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number % 128 + 128)
        number //= 128
    return bytes([*out, number])


def _numbered(status: Status, file: DataFile | None, numbers: Mapping[str, int]) -> ManifestEntry:
    defaults = {"snapshot_id": 3, "sequence_number": 2, "file_sequence_number": 2}
    return ManifestEntry(status=status, data_file=file or data_file(), **{**defaults, **numbers})


def _find_field(schema: Any, field_id: int) -> dict[str, Any] | None:
    if isinstance(schema, dict):
        if schema.get("field-id") == field_id:
            return schema
        schema = list(schema.values())
    if isinstance(schema, list):
        return next((found for item in schema if (found := _find_field(item, field_id))), None)
    return None


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        byte = data[position]
        number += (byte % 128) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return (number // 2 if number % 2 == 0 else -(number + 1) // 2), position
