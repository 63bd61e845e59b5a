"""The codec seam: metadata, manifest lists and manifests as values that travel through storage undecoded.

Encoding and decoding is most of what a commit costs. With these stand-ins for the functions of `spec` a simulated storage
holds the values themselves. What is stored is what the real codec would give back: fields that a format version lacks are
dropped, and what an entry leaves null is inherited when it is read.
"""

import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from msgspec.structs import replace

from icekeep.catalog import metadata_files
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.planning import entries
from icekeep.spec import metadata as metadata_codec
from icekeep.spec.manifests import read as decode
from icekeep.spec.manifests import write as encode
from icekeep.spec.manifests.structs import (
    MANIFEST_FILE_FIELDS,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    PartitionSummarizer,
    RowIdInheritance,
    Status,
)
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import StructType

_BYTES_AN_ENTRY = 100


class Decoded:
    """What a file would hold, not encoded; its length is made up."""

    def __init__(self, value: Any, length: int = _BYTES_AN_ENTRY) -> None:
        self.value = value
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decoded) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


class _Encoder:
    def __init__(self, partition: StructType, format_version: int, also: Collection[int] = ()) -> None:
        self.partition = partition
        self.format_version = format_version

    def encode(self, entry: ManifestEntry) -> ManifestEntry:
        file = entry.data_file
        if self.format_version < 3 and file.first_row_id is not None:
            entry = replace(entry, data_file=replace(file, first_row_id=None))
        if self.format_version > 1:
            return entry
        return replace(entry, sequence_number=None, file_sequence_number=None)


class _Builder:
    """Counts as `ManifestBuilder` does."""

    def __init__(
        self,
        location: str,
        encoder: _Encoder,
        spec: PartitionSpec,
        schema: Schema,
        *,
        format_version: int,
        content: ManifestContent = ManifestContent.DATA,
        codec: str = "gzip",
        level: int | None = None,
        pack: object = None,
    ) -> None:
        self.location = location
        self._spec, self._content, self._encoder = spec, content, encoder
        self._entries: list[ManifestEntry] = []
        self._partitions = PartitionSummarizer([field.type for field in encoder.partition.fields])
        self._least: int | None = None

    @property
    def entries_count(self) -> int:
        return len(self._entries)

    @property
    def length_bytes(self) -> int:
        return _BYTES_AN_ENTRY * (1 + len(self._entries))

    def add(self, entry: ManifestEntry) -> None:
        if entry.data_file.spec_id != self._spec.spec_id:
            raise IcekeepBug(f"{entry.data_file.file_path!r} is of another spec than its manifest")
        if entry.status is not Status.ADDED and entry.sequence_number is None:
            raise IcekeepBug(f"manifest {self.location!r}: an entry that is not added has no sequence number")
        self._entries.append(self._encoder.encode(entry))
        self._partitions.add(entry.data_file.partition)
        if entry.is_live and entry.sequence_number is not None:
            self._least = min(entry.sequence_number, entry.sequence_number if self._least is None else self._least)

    def finish(self, snapshot_id: int | None) -> tuple[Decoded, ManifestFile]:
        counts: dict[str, int] = {}
        for status in Status:
            files = [e.data_file for e in self._entries if e.status is status]
            counts[f"{status.name.lower()}_files_count"] = len(files)
            counts[f"{status.name.lower()}_rows_count"] = sum(f.record_count for f in files)
        data = Decoded(tuple(self._entries), self.length_bytes)
        return data, ManifestFile(
            manifest_path=self.location,
            manifest_length=len(data),
            partition_spec_id=self._spec.spec_id,
            added_snapshot_id=snapshot_id,
            content=self._content,
            min_sequence_number=self._least,
            partitions=self._partitions.summaries(),
            **counts,
        )


def _write_manifest_list(
    manifests: Iterable[ManifestFile],
    snapshot: Snapshot,
    *,
    format_version: int,
    codec: str = "gzip",
    level: int | None = None,
) -> Decoded:
    unversioned = {f.name: None for f in MANIFEST_FILE_FIELDS if f.since > format_version and f.name != "content"}
    rows = []
    for manifest in manifests:
        row = encode._numbered(manifest, snapshot) if manifest.sequence_number is None else manifest
        rows.append(replace(row, **unversioned) if unversioned else row)
    return Decoded(tuple(rows), _BYTES_AN_ENTRY * (1 + len(rows)))


def _read_manifest_list(data: Decoded, location: str) -> list[ManifestFile]:
    return [
        m
        if m.sequence_number is not None and m.min_sequence_number is not None
        else replace(m, sequence_number=m.sequence_number or 0, min_sequence_number=m.min_sequence_number or 0)
        for m in data.value
    ]


def _read_manifest(
    data: Decoded, manifest: ManifestFile, partition: StructType
) -> tuple[decode.ManifestHeader, Iterator[ManifestEntry]]:
    if len(data) != manifest.manifest_length:
        raise InvalidTableError(f"manifest {manifest.manifest_path!r} has another length than its list says")
    header = decode.ManifestHeader(manifest.partition_spec_id, manifest.content, frozenset())
    return header, _inherited(data.value, manifest)


def _header(self: ManifestReader, manifest: ManifestFile) -> decode.ManifestHeader:
    self.storage.read(manifest.manifest_path)
    return decode.ManifestHeader(manifest.partition_spec_id, manifest.content, frozenset())


def _inherited(entries: Iterable[ManifestEntry], manifest: ManifestFile) -> Iterator[ManifestEntry]:
    with_row_id = RowIdInheritance(manifest)
    for entry in entries:
        inherits = entry.status is Status.ADDED or manifest.sequence_number == 0
        if entry.sequence_number is None and not inherits:
            raise InvalidTableError(f"manifest {manifest.manifest_path!r}: an entry has no sequence number")
        file_number = entry.file_sequence_number
        yield ManifestEntry(
            status=entry.status,
            data_file=with_row_id(entry.status, entry.data_file),
            snapshot_id=manifest.added_snapshot_id if entry.snapshot_id is None else entry.snapshot_id,
            sequence_number=manifest.sequence_number if entry.sequence_number is None else entry.sequence_number,
            file_sequence_number=manifest.sequence_number if file_number is None and inherits else file_number,
        )


def _encode_metadata(metadata: TableMetadata) -> Decoded:
    return Decoded(metadata)


def _parse_metadata(data: Any, location: str) -> TableMetadata:
    found = data.value if isinstance(data, Decoded) else data
    assert isinstance(found, TableMetadata)
    return found


def _table_uuid_in(data: Any) -> str | None:
    return _parse_metadata(data, "").table_uuid


def _format_metadata(metadata: TableMetadata) -> TableMetadata:
    return metadata


def _decode_entries(task: entries.DecodeTask) -> Iterator[entries.DecodedEntries]:
    """The same in columns, as far as whoever deletes asks for them."""
    reader = ManifestReader(task.storage)
    for manifest in task.manifests:
        partition = task.wanted.specs[manifest.partition_spec_id].partition
        files = [entry.data_file for entry in reader.typed_entries(manifest, partition) if entry.is_live]
        columns = {
            "content": pa.array([int(file.content) for file in files], pa.int32()),
            "file_path": pa.array([file.file_path for file in files], pa.string()),
            "file_size_in_bytes": pa.array([file.file_size_in_bytes for file in files], pa.int64()),
        }
        yield entries.DecodedEntries(
            pa.record_batch({name: columns[name] for name in task.columns}), entries.PruningStats()
        )


_STAND_INS = (
    (encode.EntryEncoder, _Encoder),
    (encode.ManifestBuilder, _Builder),
    (encode.write_manifest_list, _write_manifest_list),
    (decode.read_manifest_list, _read_manifest_list),
    (decode.read_manifest, _read_manifest),
    (metadata_files.encode, _encode_metadata),
    (metadata_files.table_uuid_in, _table_uuid_in),
    (metadata_codec.parse_metadata, _parse_metadata),
    (metadata_codec.format_metadata, _format_metadata),
    (entries.decode, _decode_entries),
)


def _uses() -> list[tuple[Any, str, Any]]:
    """Every module of icekeep and of the simulation that holds one of the functions by a name, with the stand-in."""
    stand_ins = {id(original): stand_in for original, stand_in in _STAND_INS}
    modules = [m for name, m in sorted(sys.modules.items()) if name.split(".")[0] == "icekeep"]
    modules += [
        m for name, m in sorted(sys.modules.items()) if name.startswith("simulation.") and m.__name__ != __name__
    ]
    return [
        (module, name, stand_ins[id(value)])
        for module in modules
        for name, value in list(vars(module).items())
        if id(value) in stand_ins
    ]


@contextmanager
def values_in_place_of_bytes() -> Iterator[None]:
    """Within the block the library, wherever it encodes or decodes metadata and manifests, passes values."""
    uses = _uses()
    before = [(module, name, getattr(module, name)) for module, name, _ in uses]
    for module, name, stand_in in uses:
        setattr(module, name, stand_in)
    try:
        with patch.object(ManifestReader, "header", _header):
            yield
    finally:
        for module, name, original in before:
            setattr(module, name, original)
