"""Structs -> bytes of manifests and manifest lists, with the key-value metadata that the spec asks for.

An encoded entry is an Avro record that can travel and be put into any manifest of its spec and format version without
being decoded again.

Manifests that are written again as their writer laid them out, since we do not know all that they hold.

A partition spec may have a transform that we do not know, whose values are of a type that only the manifest tells, and a
manifest may have fields of a later version. Whoever encodes its entries anew would lose the ones and spoil the others. So the
records stay as they are, under the schema of the file, but for what a commit changes: which entries there are, and status,
snapshot, sequence numbers and first row id of those that stay.
"""

import io
import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import fastavro
import msgspec

from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError
from icekeep.spec.avro import (
    AVRO_CODECS,
    AvroHeader,
    Packer,
    avro_names,
    avro_schema,
    encode_block,
    from_avro,
    packer,
    read_records,
    sync_marker,
    to_avro,
    without_logical_types,
    write_header,
)
from icekeep.spec.manifests.read import open_manifest, read_manifest, record_field, stored_fields
from icekeep.spec.manifests.structs import (
    DATA_FILE_FIELD_ID,
    DATA_FILE_FIELDS,
    ENTRY_FIELDS,
    PARTITION_FIELD_ID,
    FieldSummary,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    PartitionSummarizer,
    Status,
    entry_type,
    manifest_file_type,
)
from icekeep.spec.partitioning import PartitionSpec, spec_to_json
from icekeep.spec.schema import Schema, schema_to_json
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import MIB, ListType, MapType, StructType, Type

_BLOCK_BYTES = 64 << 10
_VERSION_1_DEFAULTS = {"block_size_in_bytes": 64 * MIB}
"""What version 1 requires of every file although it means nothing any more."""


class PartitionCodec:
    """Partition tuples of one spec as bytes, both ways: equal tuples have equal bytes."""

    def __init__(self, partition: StructType) -> None:
        stored = _stored(partition, "partition")
        self._encode, self._schema = stored.encode, stored.parsed
        self._fields = _partition_fields(partition)
        names = avro_names(partition.fields)
        self._readers = [(name, from_avro(f.type)) for name, f in zip(names, partition.fields, strict=True)]

    def encode(self, values: tuple[Any, ...]) -> bytes:
        # There are many NaN, and partitions of one are one partition.
        one = tuple(math.nan if isinstance(value, float) and value != value else value for value in values)
        return self._encode(_partition_record(self._fields, one))

    def decode(self, data: bytes) -> tuple[Any, ...]:
        record = fastavro.schemaless_reader(io.BytesIO(data), self._schema, None)
        return tuple(None if record[name] is None else read(record[name]) for name, read in self._readers)


class PartitionCodecs:
    """Partition tuples of several specs from their bytes; a spec's codec is made when it is first asked for."""

    def __init__(self, types: Mapping[int, StructType]) -> None:
        self._types = types
        self._codecs: dict[int, PartitionCodec] = {}

    def decode(self, spec_id: int, key: bytes) -> tuple[Any, ...]:
        """The tuple of a partition of one spec."""
        if spec_id not in self._codecs:
            self._codecs[spec_id] = PartitionCodec(self._types[spec_id])
        return self._codecs[spec_id].decode(key)


class EntryEncoder:
    """Encodes entries of one partition type and format version as Avro records."""

    def __init__(self, partition: StructType, format_version: int) -> None:
        """Prepare for entries of a partition type."""
        self.struct = _entry_type(partition, format_version)
        stored = _stored(self.struct, "manifest_entry")
        self._encode, self.schema_json = stored.encode, stored.schema_json
        file_struct = next(f.type for f in self.struct.fields if f.field_id == DATA_FILE_FIELD_ID)
        assert isinstance(file_struct, StructType)
        self._file_fields = [
            (f.name, _container(f.type)) for f in file_struct.fields if f.field_id != PARTITION_FIELD_ID
        ]
        self._constants = {
            name: _VERSION_1_DEFAULTS[name] for name, _ in self._file_fields if name in _VERSION_1_DEFAULTS
        }
        self._file_fields = [field for field in self._file_fields if field[0] not in self._constants]
        self._entry_names = [f.name for f in self.struct.fields if f.field_id != DATA_FILE_FIELD_ID]
        self._partition = _partition_fields(partition)

    def encode(self, entry: ManifestEntry) -> bytes:
        """One Avro record of `manifest_entry`."""
        file = entry.data_file
        values = {name: None if (v := getattr(file, name)) is None else write(v) for name, write in self._file_fields}
        values |= self._constants
        values["partition"] = _partition_record(self._partition, file.partition)
        record = {name: getattr(entry, name) for name in self._entry_names}
        record["data_file"] = values
        return self._encode(record)


class ManifestBuilder:
    """Collects entries into the bytes of one manifest and its row of the manifest list."""

    def __init__(  # noqa: PLR0913 - what the head of a manifest says
        self,
        location: str,
        encoder: EntryEncoder,
        spec: PartitionSpec,
        schema: Schema,
        *,
        format_version: int,
        content: ManifestContent = ManifestContent.DATA,
        codec: str = "gzip",
        level: int | None = None,
        pack: Packer | None = None,
    ) -> None:
        """Begin a manifest at `location`.

        Args:
            codec, level: properties `write.manifest.compression-codec` and `write.manifest.compression-level`.
            pack: what packs blocks so; `None`: what `avro.packer` gives.

        Raises:
            UnsupportedError: `codec` is not one of `AVRO_CODECS`, or has no such level.
        """
        self.location = location
        self._spec, self._content, self._encoder, self._format_version = spec, content, encoder, format_version
        if format_version == 1 and content is not ManifestContent.DATA:
            raise IcekeepBug(f"manifest {location!r}: version 1 has no delete files")
        avro_codec, packs = manifest_packer(codec, level)
        metadata = {
            "schema": msgspec.json.encode(schema_to_json(schema)),
            "schema-id": str(schema.schema_id).encode(),
            "partition-spec": msgspec.json.encode(spec_to_json(spec)["fields"]),
            "partition-spec-id": str(spec.spec_id).encode(),
            "format-version": str(format_version).encode(),
        }
        if format_version > 1:
            metadata["content"] = content.name.lower().encode()
        self._file = _Container(
            encoder.schema_json, avro_codec, packs if pack is None else pack, metadata, sync_marker(location.encode())
        )
        self._files = dict.fromkeys(Status, 0)
        self._rows = dict.fromkeys(Status, 0)
        self._min_sequence_number: int | None = None
        self._partitions = PartitionSummarizer(_partition_types(encoder.struct))

    @property
    def length_bytes(self) -> int:
        """Of the header and the blocks so far."""
        return self._file.length_bytes

    @property
    def entries_count(self) -> int:
        return sum(self._files.values())

    def add(self, entry: ManifestEntry) -> None:
        """Add an entry."""
        file = entry.data_file
        if file.spec_id != self._spec.spec_id:
            raise IcekeepBug(
                f"file {file.file_path!r} is of partition spec {file.spec_id}, its manifest of {self._spec.spec_id}"
            )
        if file.content_offset is not None and self._format_version < 3:
            raise IcekeepBug(
                f"{file.file_path!r} is a deletion vector, which version {self._format_version} does not have"
            )
        self.add_encoded(
            self._encoder.encode(entry), entry.status, file.record_count, entry.sequence_number, file.partition
        )

    def add_encoded(
        self, record: bytes, status: Status, record_count: int, sequence_number: int | None, partition: tuple[Any, ...]
    ) -> None:
        """Add an entry that an `EntryEncoder` of the same types made; the rest is what the manifest's summary needs.

        Raises:
            IcekeepBug: the entry is not an added one and has no sequence number, so nobody could read it again.
        """
        if status is not Status.ADDED and sequence_number is None:
            raise IcekeepBug(f"manifest {self.location!r}: an entry that is not added has no sequence number")
        self._file.add(record)
        self._files[status] += 1
        self._rows[status] += record_count
        if status is not Status.DELETED:
            self._note_sequence_number(sequence_number)
        self._partitions.add(partition)

    def add_block(
        self, payload: bytes, files_count: int, rows_count: int, block_min_sequence_number: int | None
    ) -> None:
        """Add existing entries that an `EntryEncoder` of the same types made, one after another, as a block of their own.

        `add_partitions` is to be told of their partitions.
        """
        self._file.add_block(payload, files_count)
        self._files[Status.EXISTING] += files_count
        self._rows[Status.EXISTING] += rows_count
        self._note_sequence_number(block_min_sequence_number)

    def add_partitions(self, partitions: Iterable[tuple[Any, ...]]) -> None:
        """Take the partitions of entries that came as blocks into the summaries; each different one is enough."""
        for partition in partitions:
            self._partitions.add(partition)

    def finish(self, snapshot_id: int | None) -> tuple[bytes, ManifestFile]:
        """The file's bytes and its row; `snapshot_id` is the snapshot that adds it."""
        data = self._file.finish()
        return data, ManifestFile(
            manifest_path=self.location,
            manifest_length=len(data),
            partition_spec_id=self._spec.spec_id,
            added_snapshot_id=snapshot_id,
            content=self._content,
            min_sequence_number=self._min_sequence_number,
            added_files_count=self._files[Status.ADDED],
            existing_files_count=self._files[Status.EXISTING],
            deleted_files_count=self._files[Status.DELETED],
            added_rows_count=self._rows[Status.ADDED],
            existing_rows_count=self._rows[Status.EXISTING],
            deleted_rows_count=self._rows[Status.DELETED],
            partitions=self._partitions.summaries(),
        )

    def _note_sequence_number(self, number: int | None) -> None:
        if number is not None:
            least = self._min_sequence_number
            self._min_sequence_number = number if least is None else min(least, number)


class _Container:
    """An Avro container file in the making: records are collected into blocks, so that readers unpack some at a time."""

    def __init__(
        self, schema_json: bytes, codec: str, pack: Packer, metadata: Mapping[str, bytes], sync: bytes
    ) -> None:
        header = write_header({"avro.schema": schema_json, "avro.codec": codec.encode(), **metadata}, sync)
        self._codec, self._pack, self._sync = codec, pack, sync
        self._parts = [header]
        self.length_bytes = len(header)
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def add(self, record: bytes) -> None:
        self._pending.append(record)
        self._pending_bytes += len(record)
        if self._pending_bytes >= _BLOCK_BYTES:
            self._flush()

    def add_block(self, payload: bytes, records_count: int) -> None:
        """Records one after another, as a block of their own."""
        self._flush()
        block = encode_block(payload, records_count, self._codec, self._sync, self._pack)
        self._parts.append(block)
        self.length_bytes += len(block)

    def finish(self) -> bytes:
        """The whole file."""
        self._flush()
        return b"".join(self._parts)

    def _flush(self) -> None:
        if self._pending:
            payload, count = b"".join(self._pending), len(self._pending)
            self._pending, self._pending_bytes = [], 0
            self.add_block(payload, count)


def write_manifest_list(
    manifests: Iterable[ManifestFile],
    snapshot: Snapshot,
    *,
    format_version: int,
    codec: str = "gzip",
    level: int | None = None,
) -> bytes:
    """Encode the manifest list of a snapshot; manifests without sequence numbers get the snapshot's.

    From version 3 on data manifests have their `first_row_id` already (`row_lineage.assign_row_ids`).

    Raises:
        IcekeepBug: a manifest without a sequence number belongs to another snapshot, or one lacks counts that this
            format version requires (`inspection.completed` fills them in).
        UnsupportedError: `codec` is not one of `AVRO_CODECS`, or has no such level.
    """
    struct = manifest_file_type(format_version)
    stored = _stored(struct, "manifest_file")
    fields = [(f.name, _container(f.type)) for f in struct.fields]
    required = [f.name for f in struct.fields if f.required]
    (avro_codec, pack), sync = manifest_packer(codec, level), sync_marker((snapshot.manifest_list or "").encode())
    file = _Container(stored.schema_json, avro_codec, pack, _list_metadata(snapshot, format_version), sync)
    for manifest in manifests:
        row = _numbered(manifest, snapshot)
        if missing := next((name for name in required if getattr(row, name) is None), None):
            raise IcekeepBug(f"manifest {row.manifest_path!r} has no {missing}, which version {format_version} needs")
        file.add(
            stored.encode({name: None if (v := getattr(row, name)) is None else write(v) for name, write in fields})
        )
    return file.finish()


def manifest_packer(codec: str, level: int | None = None) -> tuple[str, Packer]:
    """Avro's name for a codec of manifests, and what packs their blocks.

    Raises:
        UnsupportedError: `codec` is not one of `AVRO_CODECS`, or has no such level.
    """
    name = AVRO_CODECS.get(codec, codec)
    return name, packer(name, level)


def _list_metadata(snapshot: Snapshot, format_version: int) -> dict[str, bytes]:
    values: dict[str, int | None] = {
        "snapshot-id": snapshot.snapshot_id,
        "parent-snapshot-id": snapshot.parent_snapshot_id,
        "format-version": format_version,
    }
    if format_version > 1:
        values["sequence-number"] = snapshot.sequence_number
    if format_version > 2:
        values["first-row-id"] = snapshot.first_row_id
    return {key: b"null" if value is None else str(value).encode() for key, value in values.items()}


def _numbered(manifest: ManifestFile, snapshot: Snapshot) -> ManifestFile:
    if manifest.sequence_number is not None:
        return manifest
    if manifest.added_snapshot_id != snapshot.snapshot_id:
        raise IcekeepBug(
            f"manifest {manifest.manifest_path!r} has no sequence number and is not of snapshot {snapshot.snapshot_id}"
        )
    number, least = snapshot.sequence_number, manifest.min_sequence_number
    return msgspec.structs.replace(
        manifest, sequence_number=number, min_sequence_number=number if least is None else min(least, number)
    )


class _Stored:
    """A struct as Avro stores it: its schema, and what encodes one record of it."""

    def __init__(self, struct: StructType, name: str) -> None:
        schema = avro_schema(struct, name)
        self.schema_json = msgspec.json.encode(schema)
        self.parsed = fastavro.parse_schema(without_logical_types(schema))

    def encode(self, record: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self.parsed, record)
        return out.getvalue()


# Most manifests of a table are of one struct, and to work out its schema takes longer than to encode ten entries.
_stored = lru_cache(maxsize=64)(_Stored)
_entry_type = lru_cache(maxsize=64)(entry_type)


def _partition_types(entry: StructType) -> list[Type]:
    file = next(f.type for f in entry.fields if f.field_id == DATA_FILE_FIELD_ID)
    assert isinstance(file, StructType)
    partition = next(f.type for f in file.fields if f.field_id == PARTITION_FIELD_ID)
    assert isinstance(partition, StructType)
    return [f.type for f in partition.fields]


def _partition_fields(partition: StructType) -> list[tuple[str, Callable[[Any], Any]]]:
    names = avro_names(partition.fields)
    return [(name, to_avro(f.type)) for name, f in zip(names, partition.fields, strict=True)]


def _partition_record(fields: list[tuple[str, Callable[[Any], Any]]], values: tuple[Any, ...]) -> dict[str, Any]:
    return {name: None if v is None else write(v) for (name, write), v in zip(fields, values, strict=True)}


def _container(type_: Type) -> Callable[[Any], Any]:
    if isinstance(type_, MapType):
        return lambda value: [{"key": k, "value": v} for k, v in value.items()]
    if isinstance(type_, ListType) and isinstance(type_.element, StructType):
        return lambda value: [_summary_record(summary) for summary in value]
    if isinstance(type_, ListType):
        return list
    return lambda value: value


def _summary_record(summary: FieldSummary) -> dict[str, Any]:
    return msgspec.structs.asdict(summary)


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
