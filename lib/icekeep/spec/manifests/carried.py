"""Manifests that are written again as their writer laid them out, since we do not know all that they hold.

A partition spec may have a transform that we do not know, whose values are of a type that only the manifest tells, and a
manifest may have fields of a later version. Whoever encodes its entries anew would lose the ones and spoil the others. So the
records stay as they are, under the schema of the file, but for what a commit changes: which entries there are, and status,
snapshot, sequence numbers and first row id of those that stay.
"""

import io
from collections.abc import Callable
from typing import Any

import fastavro
import msgspec

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.avro import AvroHeader, read_records, sync_marker, without_logical_types, write_header
from icekeep.spec.avro_packing import encode_block
from icekeep.spec.manifests.decode import open_manifest, read_manifest, record_field, stored_fields
from icekeep.spec.manifests.encode import manifest_packer
from icekeep.spec.manifests.structs import (
    DATA_FILE_FIELD_ID,
    DATA_FILE_FIELDS,
    ENTRY_FIELDS,
    ManifestEntry,
    ManifestFile,
    Status,
)
from icekeep.spec.types import StructType

_BLOCK_BYTES = 64 << 10
_ROW_ID = "first_row_id"
_CHANGED = ("status", "snapshot_id", "sequence_number", "file_sequence_number")


def carried_manifest(  # noqa: PLR0913 - what a manifest says of itself and of its entries
    data: bytes,
    manifest: ManifestFile,
    partition: StructType,
    change: Callable[[ManifestEntry], ManifestEntry | None],
    *,
    location: str,
    snapshot_id: int,
    format_version: int,
    codec: str,
    level: int | None = None,
) -> tuple[bytes, ManifestFile]:
    """A manifest with some of its entries changed: its bytes, and its row of the manifest list.

    Args:
        data: the whole file.
        manifest: its row of the manifest list.
        partition: the partition type of its spec.
        change: an entry as it is to be, with the same file; `None` where it goes.
        location, snapshot_id: of the new manifest, and of the snapshot that adds it.
        format_version: of the table.
        codec, level: as for `ManifestBuilder`.

    Raises:
        UnsupportedError: it was written in version 1, and the table has a later one.
        InvalidTableError: the file is damaged.
    """
    avro, _ = open_manifest(data, manifest)
    layout = _Layout(avro, manifest, format_version)
    records = read_records(data, avro, manifest.manifest_path)
    _, entries = read_manifest(data, manifest, partition)
    blocks = _Blocks(layout, sync_marker(location.encode()), codec, level)
    counts, rows = dict.fromkeys(Status, 0), dict.fromkeys(Status, 0)
    least: int | None = None
    # Both read all of the file, so that its counts are checked after the last entry.
    for record, entry in zip(records, entries, strict=True):
        changed = change(entry)
        if changed is None:
            continue
        blocks.add(layout.record(record, changed))
        counts[changed.status] += 1
        rows[changed.status] += changed.data_file.record_count
        if changed.status is not Status.DELETED and changed.sequence_number is not None:
            least = changed.sequence_number if least is None else min(least, changed.sequence_number)
    out = blocks.finished()
    return out, ManifestFile(
        manifest_path=location,
        manifest_length=len(out),
        partition_spec_id=manifest.partition_spec_id,
        added_snapshot_id=snapshot_id,
        content=manifest.content,
        min_sequence_number=least,
        added_files_count=counts[Status.ADDED],
        existing_files_count=counts[Status.EXISTING],
        deleted_files_count=counts[Status.DELETED],
        added_rows_count=rows[Status.ADDED],
        existing_rows_count=rows[Status.EXISTING],
        deleted_rows_count=rows[Status.DELETED],
        # Of fewer entries they may reach too far, which is allowed.
        partitions=manifest.partitions,
    )


class _Layout:
    """The schema of a manifest, with the fields that this format version needs for what a commit changes."""

    def __init__(self, avro: AvroHeader, manifest: ManifestFile, format_version: int) -> None:
        written = avro.metadata.get("format-version", b"1")
        if written == b"1" and format_version > 1:
            raise UnsupportedError(
                f"manifest {manifest.manifest_path!r} is of version 1 and holds what icekeep does not know, a transform or "
                f"fields, which cannot be carried into version {format_version}; change its files with the engine that wrote it",
                location=manifest.manifest_path,
            )
        self.schema: Any = avro.schema
        self.metadata = {**avro.metadata, "format-version": str(format_version).encode()}
        self._file, file_schema = record_field(self.schema, DATA_FILE_FIELD_ID)
        wanted = {f.name: f.field_id for f in ENTRY_FIELDS if f.name in _CHANGED}
        names = (name for name in _CHANGED if format_version > 1 or not name.endswith("sequence_number"))
        self._entry = {name: _name_of(self.schema, wanted[name], name) for name in names}
        row_id = next(f.field_id for f in DATA_FILE_FIELDS if f.name == _ROW_ID)
        self._row_id = _name_of(file_schema, row_id, _ROW_ID) if format_version > 2 else None
        self.parsed = fastavro.parse_schema(without_logical_types(self.schema))

    def record(self, record: dict[str, Any], entry: ManifestEntry) -> dict[str, Any]:
        """A record as it was, with what the entry says of status, snapshot, sequence numbers and row id."""
        new = {**record, **{name: getattr(entry, ours) for ours, name in self._entry.items()}}
        new[self._entry["status"]] = int(entry.status)
        if self._row_id is not None:
            new[self._file] = {**record[self._file], self._row_id: entry.data_file.first_row_id}
        return new


class _Blocks:
    def __init__(self, layout: _Layout, sync: bytes, codec: str, level: int | None) -> None:
        self._parsed, self._sync = layout.parsed, sync
        self._codec, self._pack = manifest_packer(codec, level)
        told = {"avro.schema": msgspec.json.encode(layout.schema), "avro.codec": self._codec.encode()}
        self._done = [write_header({**layout.metadata, **told}, sync)]
        self._pending, self._count = io.BytesIO(), 0

    def add(self, record: dict[str, Any]) -> None:
        fastavro.schemaless_writer(self._pending, self._parsed, record)
        self._count += 1
        if self._pending.tell() >= _BLOCK_BYTES:
            self._flush()

    def finished(self) -> bytes:
        self._flush()
        return b"".join(self._done)

    def _flush(self) -> None:
        if self._count:
            self._done.append(encode_block(self._pending.getvalue(), self._count, self._codec, self._sync, self._pack))
            self._pending, self._count = io.BytesIO(), 0


def _name_of(record: Any, field_id: int, name: str) -> str:
    """The name of a field of whole numbers in a record's schema, which is given one where it has none."""
    stored = stored_fields(record).get(field_id)
    if stored is not None:
        return str(stored["name"])
    if any(field["name"] == name for field in record["fields"]):
        raise InvalidTableError(f"field {name!r} of record {record['name']!r} has not the field id {field_id}")
    record["fields"].append({"name": name, "type": ["null", "long"], "default": None, "field-id": field_id})
    return name
