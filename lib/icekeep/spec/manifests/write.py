"""Structs -> bytes of manifests and manifest lists, with the key-value metadata that the spec asks for.

An encoded entry is an Avro record that fits into any manifest of its spec and format version. A manifest with unknown fields
or transforms is rewritten in its own schema (`carried_manifest`).
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
    AvroContainer,
    Packer,
    avro_names,
    avro_schema,
    encode_record,
    from_avro,
    packer,
    read_records,
    sync_marker,
    to_avro,
    without_logical_types,
)
from icekeep.spec.manifests.read import open_manifest, read_manifest, record_field, stored_fields
from icekeep.spec.manifests.structs import (
    COUNTS,
    DATA_FILE_FIELD_ID,
    DATA_FILE_FIELDS,
    ENTRY_FIELDS,
    PARTITION_FIELD_ID,
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
from icekeep.spec.types import MIB, ListType, MapType, NestedField, StructType, Type

_VERSION_1_DEFAULTS = {"block_size_in_bytes": 64 * MIB}
"""Fields that version 1 requires although they have no meaning."""

_Writers = list[tuple[str, Callable[[Any], Any]]]


# Most manifests of a table are of one struct, whose schema takes longer to make than ten entries take to encode.
@lru_cache(maxsize=64)
def _avro_schemas(struct: StructType, name: str) -> tuple[bytes, Any]:
    """The Avro schema of a struct as JSON, and without logical types as fastavro has parsed it."""
    schema = avro_schema(struct, name)
    return msgspec.json.encode(schema), fastavro.parse_schema(without_logical_types(schema))


_entry_type = lru_cache(maxsize=64)(entry_type)


def _writers(fields: Iterable[NestedField]) -> _Writers:
    """The fields' names in Avro, and the conversion of their values; lists of structs are partition summaries."""

    def writer(type_: Type) -> Callable[[Any], Any]:
        match type_:
            case MapType():
                return lambda value: [{"key": k, "value": v} for k, v in value.items()]
            case ListType(element=StructType()):
                return lambda value: [msgspec.structs.asdict(summary) for summary in value]
            case ListType():
                return list
        return to_avro(type_)

    fields = [*fields]
    return [(name, writer(f.type)) for name, f in zip(avro_names(fields), fields, strict=True)]


def _record(values: Iterable[Any], writers: _Writers) -> dict[str, Any]:
    return {name: None if v is None else write(v) for (name, write), v in zip(writers, values, strict=True)}


_ENCODED_MAX_COUNT = 50_000


class PartitionCodec:
    """Partition tuples of one spec as bytes, both ways: equal tuples have equal bytes. Threads may share one."""

    def __init__(self, partition: StructType) -> None:
        self._encoded: dict[tuple[Any, ...], bytes] = {}
        _, self._parsed = _avro_schemas(partition, "partition")
        self._writers = _writers(partition.fields)
        self._readers = [
            (name, from_avro(f.type)) for (name, _), f in zip(self._writers, partition.fields, strict=True)
        ]

    def encode(self, values: tuple[Any, ...]) -> bytes:
        if any(isinstance(value, float) for value in values):
            # NaN has many bit patterns, which are all one partition; 0.0 and -0.0 are equal, and two.
            values = tuple(math.nan if value != value else value for value in values)
            return encode_record(self._parsed, _record(values, self._writers))
        found = self._encoded.get(values)
        if found is None:
            found = encode_record(self._parsed, _record(values, self._writers))
            if len(self._encoded) < _ENCODED_MAX_COUNT:
                self._encoded[values] = found
        return found

    def decode(self, data: bytes) -> tuple[Any, ...]:
        record = fastavro.schemaless_reader(io.BytesIO(data), self._parsed, None)
        return tuple(None if record[name] is None else read(record[name]) for name, read in self._readers)


@lru_cache(maxsize=16)
def partition_codec(partition: StructType) -> PartitionCodec:
    """The codec that all readers of manifests of a spec share: a batch of entries mostly has the partitions of the one before."""
    return PartitionCodec(partition)


class PartitionCodecs:
    """Decodes partition tuples of several specs, each once: many files have one partition."""

    def __init__(self, types: Mapping[int, StructType]) -> None:
        self._types = types
        self._codecs: dict[int, PartitionCodec] = {}
        self._decoded: dict[tuple[int, bytes], tuple[Any, ...]] = {}

    def decode(self, spec_id: int, key: bytes) -> tuple[Any, ...]:
        if (spec_id, key) not in self._decoded:
            if spec_id not in self._codecs:
                self._codecs[spec_id] = PartitionCodec(self._types[spec_id])
            self._decoded[spec_id, key] = self._codecs[spec_id].decode(key)
        return self._decoded[spec_id, key]


class EntryEncoder:
    """Encodes entries of one partition type and format version as Avro records of `struct`."""

    def __init__(self, partition: StructType, format_version: int) -> None:
        self.partition = partition
        self.struct = _entry_type(partition, format_version)
        self.schema_json, self._parsed = _avro_schemas(self.struct, "manifest_entry")
        file_struct = next(f.type for f in self.struct.fields if f.field_id == DATA_FILE_FIELD_ID)
        assert isinstance(file_struct, StructType)
        file_fields = [f for f in file_struct.fields if f.field_id != PARTITION_FIELD_ID]
        self._constants = {f.name: _VERSION_1_DEFAULTS[f.name] for f in file_fields if f.name in _VERSION_1_DEFAULTS}
        self._file = _writers(f for f in file_fields if f.name not in self._constants)
        self._entry_names = [f.name for f in self.struct.fields if f.field_id != DATA_FILE_FIELD_ID]
        self._partition = _writers(partition.fields)

    def encode(self, entry: ManifestEntry) -> bytes:
        source = entry.data_file
        file = _record([getattr(source, name) for name, _ in self._file], self._file) | self._constants
        file["partition"] = _record(source.partition, self._partition)
        return encode_record(
            self._parsed, {**{name: getattr(entry, name) for name in self._entry_names}, "data_file": file}
        )


class _Totals:
    """The counts and the least sequence number of a manifest, as `fields` of `ManifestFile`."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = dict.fromkeys((name for names in COUNTS.values() for name in names), 0)
        self.fields["min_sequence_number"] = None

    def add(self, status: Status, files_count: int, rows_count: int, sequence_number: int | None) -> None:
        for name, count in zip(COUNTS[status], (files_count, rows_count), strict=True):
            self.fields[name] += count
        if status is not Status.DELETED and sequence_number is not None:
            least = self.fields["min_sequence_number"]
            self.fields["min_sequence_number"] = sequence_number if least is None else min(least, sequence_number)


class ManifestBuilder:
    """Builds a manifest and its row of the manifest list."""

    def __init__(  # noqa: PLR0913 - the metadata of a manifest
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
        """`codec` and `level` are as in `write.manifest.compression-codec` and `-level`; `pack` replaces `avro.packer`."""
        self.location = location
        self._spec, self._content, self._encoder, self._format_version = spec, content, encoder, format_version
        if format_version == 1 and content is not ManifestContent.DATA:
            raise IcekeepBug(f"manifest {location!r}: version 1 has no delete files")
        avro_codec, own_pack = manifest_packer(codec, level)
        metadata = {
            "avro.schema": encoder.schema_json,
            "avro.codec": avro_codec.encode(),
            "schema": msgspec.json.encode(schema_to_json(schema)),
            "schema-id": str(schema.schema_id).encode(),
            "partition-spec": msgspec.json.encode(spec_to_json(spec)["fields"]),
            "partition-spec-id": str(spec.spec_id).encode(),
            "format-version": str(format_version).encode(),
        }
        if format_version > 1:
            metadata["content"] = content.name.lower().encode()
        self._file = AvroContainer(metadata, sync_marker(location.encode()), own_pack if pack is None else pack)
        self._totals = _Totals()
        self._partitions = PartitionSummarizer([f.type for f in encoder.partition.fields])

    @property
    def length_bytes(self) -> int:
        """Of the header and of the complete blocks."""
        return self._file.length_bytes

    def add(self, entry: ManifestEntry) -> None:
        file = entry.data_file
        if file.spec_id != self._spec.spec_id:
            raise IcekeepBug(
                f"file {file.file_path!r} is of partition spec {file.spec_id}, its manifest of {self._spec.spec_id}"
            )
        if file.content_offset is not None and self._format_version < 3:
            raise IcekeepBug(
                f"{file.file_path!r} is a deletion vector, which version {self._format_version} does not have"
            )
        # Otherwise nobody could read it again.
        if entry.status is not Status.ADDED and entry.sequence_number is None:
            raise IcekeepBug(f"manifest {self.location!r}: an entry that is not added has no sequence number")
        self._file.add(self._encoder.encode(entry))
        self._totals.add(entry.status, 1, file.record_count, entry.sequence_number)
        self._partitions.add(file.partition)

    def add_block(
        self, payload: bytes, files_count: int, rows_count: int, block_min_sequence_number: int | None
    ) -> None:
        """Add a block of existing entries that an `EntryEncoder` of the same types encoded.

        Their partitions must go through `add_partitions`.
        """
        self._file.add_block(payload, files_count)
        self._totals.add(Status.EXISTING, files_count, rows_count, block_min_sequence_number)

    def add_partitions(self, partitions: Iterable[tuple[Any, ...]]) -> None:
        """Add the distinct partitions of entries that were added as blocks to the summaries."""
        for partition in partitions:
            self._partitions.add(partition)

    def finish(self, snapshot_id: int | None) -> tuple[bytes, ManifestFile]:
        """The file's bytes and its row; `snapshot_id` is that of the snapshot that adds it."""
        data = self._file.finish()
        return data, ManifestFile(
            manifest_path=self.location,
            manifest_length=len(data),
            partition_spec_id=self._spec.spec_id,
            added_snapshot_id=snapshot_id,
            content=self._content,
            partitions=self._partitions.summaries(),
            **self._totals.fields,
        )


def write_manifest_list(
    manifests: Iterable[ManifestFile],
    snapshot: Snapshot,
    *,
    format_version: int,
    codec: str = "gzip",
    level: int | None = None,
) -> bytes:
    """Encode the manifest list of a snapshot; its own manifests without sequence numbers get the snapshot's.

    From version 3 on data manifests must have their `first_row_id` (`structs.assign_row_ids`), from version 2 on all must have
    counts (`read.completed`).
    """
    struct = manifest_file_type(format_version)
    schema_json, parsed = _avro_schemas(struct, "manifest_file")
    writers = _writers(struct.fields)
    required = [f.name for f in struct.fields if f.required]
    avro_codec, pack = manifest_packer(codec, level)
    numbers: dict[str, int | None] = {
        "snapshot-id": snapshot.snapshot_id,
        "parent-snapshot-id": snapshot.parent_snapshot_id,
        "format-version": format_version,
    }
    if format_version > 1:
        numbers["sequence-number"] = snapshot.sequence_number
    if format_version > 2:
        numbers["first-row-id"] = snapshot.first_row_id
    metadata = {
        "avro.schema": schema_json,
        "avro.codec": avro_codec.encode(),
        **{key: b"null" if value is None else str(value).encode() for key, value in numbers.items()},
    }
    file = AvroContainer(metadata, sync_marker((snapshot.manifest_list or "").encode()), pack)
    for row in manifests:
        if row.sequence_number is None:
            row = _numbered(row, snapshot)
        if missing := next((name for name in required if getattr(row, name) is None), None):
            raise IcekeepBug(f"manifest {row.manifest_path!r} has no {missing}, which version {format_version} needs")
        file.add(encode_record(parsed, _record([getattr(row, name) for name, _ in writers], writers)))
    return file.finish()


def manifest_packer(codec: str, level: int | None = None) -> tuple[str, Packer]:
    """Avro's name for a codec of table properties, and its compressor; raises as `avro.packer`."""
    name = AVRO_CODECS.get(codec, codec)
    return name, packer(name, level)


def _numbered(manifest: ManifestFile, snapshot: Snapshot) -> ManifestFile:
    if manifest.added_snapshot_id != snapshot.snapshot_id:
        raise IcekeepBug(
            f"manifest {manifest.manifest_path!r} has no sequence number and is not of snapshot {snapshot.snapshot_id}"
        )
    number, least = snapshot.sequence_number, manifest.min_sequence_number
    return msgspec.structs.replace(
        manifest, sequence_number=number, min_sequence_number=number if least is None else min(least, number)
    )


_CHANGED = ("status", "snapshot_id", "sequence_number", "file_sequence_number")
_ROW_ID = "first_row_id"


def carried_manifest(  # noqa: PLR0913 - the metadata of a manifest and a change of its entries
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
    """A manifest with some entries changed, or removed where `change` returns `None`: its bytes and its row.

    It may have fields of a later version, which encoding our structs would lose, or values of an unknown transform, whose
    type only its schema has. So the records keep its schema, and only their status, snapshot, sequence numbers and first row
    id change.

    Raises `UnsupportedError` if it was written in version 1 and the table has a later one.
    """
    avro, _ = open_manifest(data, manifest)
    if avro.metadata.get("format-version", b"1") == b"1" and format_version > 1:
        raise UnsupportedError(
            f"manifest {manifest.manifest_path!r} is of version 1 and holds what icekeep does not know, a transform or "
            f"fields, which cannot be carried into version {format_version}; change its files with the engine that wrote it",
            location=manifest.manifest_path,
        )
    schema = avro.schema
    file_field, file_schema = record_field(schema, DATA_FILE_FIELD_ID)
    names = [name for name in _CHANGED if format_version > 1 or not name.endswith("sequence_number")]
    entry_fields = {f.name: _field_name(schema, f.field_id, f.name) for f in ENTRY_FIELDS if f.name in names}
    row_id = next(f.field_id for f in DATA_FILE_FIELDS if f.name == _ROW_ID)
    row_id_field = _field_name(file_schema, row_id, _ROW_ID) if format_version > 2 else None
    parsed = fastavro.parse_schema(without_logical_types(schema))
    avro_codec, pack = manifest_packer(codec, level)
    own = {"avro.schema": msgspec.json.encode(schema), "avro.codec": avro_codec.encode()}
    metadata = {**avro.metadata, "format-version": str(format_version).encode(), **own}
    file, totals = AvroContainer(metadata, sync_marker(location.encode()), pack), _Totals()
    # Both read the whole file, so that its counts are checked after the last entry.
    records = read_records(data, avro, manifest.manifest_path)
    for record, entry in zip(records, read_manifest(data, manifest, partition)[1], strict=True):
        if (changed := change(entry)) is None:
            continue
        new = {**record, **{stored: getattr(changed, name) for name, stored in entry_fields.items()}}
        if row_id_field is not None:
            new[file_field] = {**record[file_field], row_id_field: changed.data_file.first_row_id}
        file.add(encode_record(parsed, new))
        totals.add(changed.status, 1, changed.data_file.record_count, changed.sequence_number)
    out = file.finish()
    return out, ManifestFile(
        manifest_path=location,
        manifest_length=len(out),
        partition_spec_id=manifest.partition_spec_id,
        added_snapshot_id=snapshot_id,
        content=manifest.content,
        partitions=manifest.partitions,  # wider than the bounds of fewer entries, which is allowed
        **totals.fields,
    )


def _field_name(record: Any, field_id: int, name: str) -> str:
    """The name of an integer field in a record's schema, to which it is added if it is missing."""
    stored = stored_fields(record).get(field_id)
    if stored is not None:
        return str(stored["name"])
    if any(field["name"] == name for field in record["fields"]):
        raise InvalidTableError(f"field {name!r} of record {record['name']!r} has not the field id {field_id}")
    record["fields"].append({"name": name, "type": ["null", "long"], "default": None, "field-id": field_id})
    return name
