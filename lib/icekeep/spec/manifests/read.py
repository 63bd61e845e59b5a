"""Bytes of manifest lists and manifests -> structs: the exact reader, entry by entry, whose errors say what is wrong.

Fields are looked up by field id, never by name (spec, "Manifests": a manifest is read by column projection). Ids and numbers
that a file leaves null are inherited as the spec says. A file whose length or counts differ from its row in the manifest
list is an error: what is read here decides what may be deleted.

Version 1 lists may leave counts out, and a version 1 snapshot may name its manifests without a list (spec, "Snapshots",
`manifests`). Then the row of a manifest is computed from the manifest itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from icekeep.errors import THIS_TABLE, IcekeepBug, InvalidTableError, shown_command
from icekeep.spec.avro import AvroHeader, from_avro, read_header, read_records
from icekeep.spec.manifests.structs import (
    COUNTS,
    DATA_FILE_FIELD_ID,
    DATA_FILE_FIELDS,
    ENTRY_FIELDS,
    MANIFEST_FILE_FIELDS,
    PARTITION_FIELD_ID,
    DataFile,
    FieldSummary,
    FileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    PartitionSummarizer,
    RowIdInheritance,
    Status,
    VersionedField,
)
from icekeep.spec.partitioning import PartitionSpec, partition_fields_from_json, partition_type
from icekeep.spec.schema import schema_from_json
from icekeep.spec.types import OPAQUE, ListType, MapType, NestedField, StructType, child_fields

E = TypeVar("E", bound=IntEnum)
_Column = tuple[str, str, Callable[[Any], Any]]

_FILE_ATTRIBUTES = frozenset(DataFile.__struct_fields__)
_REQUIRED_FILE_FIELDS = ("file_path", "file_format", "record_count", "file_size_in_bytes")
_AVRO_KINDS: dict[str, tuple[str, ...]] = {
    "boolean": ("boolean",),
    "int": ("int", "long"),
    "long": ("int", "long"),
    "string": ("string",),
    "binary": ("bytes",),
}
"""The Avro types that may hold the fields of manifests and manifest lists."""


class ManifestHeader(msgspec.Struct, frozen=True):
    """The key-value metadata of a manifest; `content` is missing in version 1.

    Attributes:
        unknown_field_ids: ids in its schema that are not in `ENTRY_FIELDS` or `DATA_FILE_FIELDS`.
    """

    partition_spec_id: int | None
    content: ManifestContent | None
    unknown_field_ids: frozenset[int]


def read_manifest_list(data: bytes, location: str) -> list[ManifestFile]:
    """Decode a manifest list; raises `InvalidTableError` if it is damaged, cut short, or lacks a required field."""
    header = read_header(data, location)
    with _damage(location):
        columns = _list_columns(header.metadata["avro.schema"])
        return [_manifest_file(_values(record, columns), location) for record in read_records(data, header, location)]


def read_manifest(
    data: bytes, manifest: ManifestFile, partition: StructType
) -> tuple[ManifestHeader, Iterator[ManifestEntry]]:
    """Decode a manifest: its metadata, and its entries in order, inherited ids and numbers filled in.

    Raises `InvalidTableError` if the file is damaged, has another length, spec or content than the list says, or lacks a
    partition field of its spec. Counts that differ are only seen, and raised, after the last entry.
    """
    avro, header = open_manifest(data, manifest)
    with _damage(manifest.manifest_path):
        columns = _entry_columns(avro.metadata["avro.schema"], partition)
    return header, _entries(read_records(data, avro, manifest.manifest_path), columns, manifest)


def open_manifest(data: bytes, manifest: ManifestFile) -> tuple[AvroHeader, ManifestHeader]:
    """The header of a manifest, checked against its row of the manifest list; raises as `read_manifest`."""
    location = manifest.manifest_path
    mismatch = None
    if len(data) != manifest.manifest_length:
        mismatch = f"has {len(data)} bytes, but its manifest list says {manifest.manifest_length}"
    else:
        avro = read_header(data, location)
        header = _manifest_header(avro.metadata, location)
        spec_id = header.partition_spec_id
        if header.content not in (None, manifest.content):
            contents = header.content.name.lower(), manifest.content.name.lower()
            mismatch = f"holds {contents[0]}, but its manifest list says {contents[1]}"
        elif spec_id not in (None, manifest.partition_spec_id):
            mismatch = f"is of partition spec {spec_id}, but its manifest list says spec {manifest.partition_spec_id}"
    if mismatch is not None:
        raise InvalidTableError(f"manifest {location!r} {mismatch}", location=location)
    return avro, header


def stored_fields(record: Any) -> dict[int, dict[str, Any]]:
    """The fields of an Avro record schema by field id; raises `ValueError` if a name or an id is missing or repeated."""
    fields: dict[int, dict[str, Any]] = {}
    for field in record["fields"]:
        field_id = field.get("field-id")
        if type(field_id) is not int or field_id in fields:
            # Ignored, it would be read as null: deletes without their ids, files without their content.
            raise ValueError(f"field {field.get('name')!r} of its record {record['name']!r} has no field id of its own")
        fields[field_id] = field
    if len({f["name"] for f in record["fields"]}) < len(record["fields"]):
        raise ValueError(f"its record {record['name']!r} has two fields of one name")
    return fields


def record_field(record: Any, field_id: int) -> tuple[str, Any]:
    """The name and the schema of a field that is itself a record; raises `ValueError` if there is none."""
    stored = stored_fields(record).get(field_id)
    if stored is None:
        raise ValueError(f"it has no field with id {field_id}")
    return stored["name"], without_null(stored["type"])


def without_null(schema: Any) -> Any:
    """The Avro schema of the non-null values of a field; raises `ValueError` for any union but an optional."""
    if not isinstance(schema, list):
        return schema
    branches = [branch for branch in schema if branch != "null"]
    if len(branches) != 1:
        raise ValueError(f"a field is stored as one of {len(branches)} types")
    return branches[0]


def _manifest_file(values: dict[str, Any], location: str) -> ManifestFile:
    missing = next((f.name for f in MANIFEST_FILE_FIELDS if f.required_since == 1 and values.get(f.name) is None), None)
    if missing:
        raise InvalidTableError(f"manifest list {location!r}: an entry lacks {missing!r}", location=location)
    values["content"] = _enum(ManifestContent, values.get("content") or 0, "content", location)
    # Version 1 has no sequence numbers: readers take 0 (spec, "Reading v1 metadata for v2").
    values["sequence_number"] = values.get("sequence_number") or 0
    values["min_sequence_number"] = values.get("min_sequence_number") or 0
    summaries = values.get("partitions")
    values["partitions"] = None if summaries is None else tuple(FieldSummary(**s) for s in summaries)
    return ManifestFile(**values)


class _EntryColumns(msgspec.Struct, frozen=True):
    entry: list[_Column]
    data_file: str
    file: list[_Column]
    partition_record: str
    partition: list[tuple[str, Callable[[Any], Any]]]


# Most manifests of a table have the same schema, byte for byte.
@lru_cache(maxsize=64)
def _entry_columns(schema_json: bytes, partition: StructType) -> _EntryColumns:
    schema = msgspec.json.decode(schema_json)
    data_file, file_schema = record_field(schema, DATA_FILE_FIELD_ID)
    partition_record, partition_schema = record_field(file_schema, PARTITION_FIELD_ID)
    stored = stored_fields(partition_schema)
    for field in partition.fields:
        if field.field_id not in stored:
            raise ValueError(f"it has no partition field with id {field.field_id} ({field.name!r})")
    file_fields = (f for f in DATA_FILE_FIELDS if f.field_id != PARTITION_FIELD_ID and f.name in _FILE_ATTRIBUTES)
    return _EntryColumns(
        entry=_columns(schema, (f for f in ENTRY_FIELDS if f.field_id != DATA_FILE_FIELD_ID)),
        data_file=data_file,
        file=_columns(file_schema, file_fields),
        partition_record=partition_record,
        partition=[(stored[f.field_id]["name"], from_avro(f.type)) for f in partition.fields],
    )


@lru_cache(maxsize=64)
def _list_columns(schema_json: bytes) -> list[_Column]:
    return _columns(msgspec.json.decode(schema_json), MANIFEST_FILE_FIELDS)


def _entries(
    records: Iterator[dict[str, Any]], columns: _EntryColumns, manifest: ManifestFile
) -> Iterator[ManifestEntry]:
    location = manifest.manifest_path
    with_row_id = RowIdInheritance(manifest)
    counts = dict.fromkeys(Status, 0)
    with _damage(location):
        for record in records:
            stored, raw = _values(record, columns.entry), record[columns.data_file]
            file = _data_file(raw, columns, manifest)
            status = _enum(Status, stored.get("status"), "status", location)
            entry = ManifestEntry(
                status=status, data_file=with_row_id(status, file), **_inherit(stored, file, manifest)
            )
            counts[status] += 1
            yield entry
    # A file that was cut at a block boundary parses; only its counts show that something is missing.
    for status, (files_count, _) in COUNTS.items():
        if (count := getattr(manifest, files_count)) not in (None, counts[status]):
            raise InvalidTableError(
                f"manifest {location!r} holds {counts[status]} {status.name.lower()} entries, but its manifest list says "
                f"{count}; run `{shown_command('repair', '--table', THIS_TABLE, '--fault', '204')}`, which corrects the list",
                location=location,
            )


def _data_file(raw: dict[str, Any], columns: _EntryColumns, manifest: ManifestFile) -> DataFile:
    values, tuple_ = _values(raw, columns.file), raw[columns.partition_record]
    if missing := next((name for name in _REQUIRED_FILE_FIELDS if values.get(name) is None), None):
        raise ValueError(f"an entry lacks {missing!r}")
    values["content"] = _enum(FileContent, values.get("content") or 0, "content", manifest.manifest_path)
    if (values["content"] is FileContent.DATA) is not (manifest.content is ManifestContent.DATA):
        raise ValueError(f"{values['file_path']!r} is not of the kind of file that the manifest tracks")
    return DataFile(
        spec_id=manifest.partition_spec_id,
        partition=tuple(None if (v := tuple_[name]) is None else read(v) for name, read in columns.partition),
        **values,
    )


def _inherit(stored: dict[str, Any], file: DataFile, manifest: ManifestFile) -> dict[str, int | None]:
    """Spec, "Sequence Number Inheritance"."""
    snapshot_id = stored.get("snapshot_id")
    sequence_number, file_sequence_number = stored.get("sequence_number"), stored.get("file_sequence_number")
    inherits = stored["status"] == Status.ADDED or manifest.sequence_number == 0
    if sequence_number is None:
        if not inherits:
            raise InvalidTableError(
                f"manifest {manifest.manifest_path!r}: the {Status(stored['status']).name.lower()} entry of "
                f"{file.file_path!r} has no sequence number",
                location=manifest.manifest_path,
            )
        sequence_number = manifest.sequence_number
    if file_sequence_number is None and inherits:
        file_sequence_number = manifest.sequence_number
    return {
        "snapshot_id": manifest.added_snapshot_id if snapshot_id is None else snapshot_id,
        "sequence_number": sequence_number,
        "file_sequence_number": file_sequence_number,
    }


_CONTENTS = {content.name.lower().encode(): content for content in ManifestContent}


def read_manifest_header(head: bytes, location: str) -> ManifestHeader:
    """The metadata of a manifest from its first bytes; raises `InvalidTableError` also if they are too few."""
    return _manifest_header(read_header(head, location).metadata, location)


def _manifest_header(metadata: Mapping[str, bytes], location: str) -> ManifestHeader:
    text = metadata.get("content")
    content = None if text is None else _CONTENTS.get(text)
    if text is not None and content is None:
        raise InvalidTableError(
            f"manifest {location!r} has the content {text.decode(errors='replace')!r}; the spec knows data, deletes",
            location=location,
        )
    spec_id = metadata.get("partition-spec-id")
    try:
        number = None if spec_id is None else int(spec_id)
    except ValueError:
        raise InvalidTableError(
            f"manifest {location!r} has the partition-spec-id {spec_id!r}", location=location
        ) from None
    with _damage(location):
        return ManifestHeader(number, content, _unknown_field_ids(metadata["avro.schema"]))


@lru_cache(maxsize=64)
def _unknown_field_ids(schema_json: bytes) -> frozenset[int]:
    schema = msgspec.json.decode(schema_json)
    known_ids = {f.field_id for f in (*ENTRY_FIELDS, *DATA_FILE_FIELDS)}
    file_fields = stored_fields(record_field(schema, DATA_FILE_FIELD_ID)[1])
    return frozenset({*stored_fields(schema), *file_fields} - known_ids)


@contextmanager
def _damage(location: str) -> Iterator[None]:
    """Raise `InvalidTableError` for errors of code that takes a file apart."""
    try:
        yield
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"it is not laid out as the spec says ({error!r})"
        raise InvalidTableError(f"cannot read {location!r}: {reason}", location=location) from error


def _columns(record: Any, fields: Iterable[VersionedField | NestedField]) -> list[_Column]:
    """For each of the fields that a record has: the spec's name, the record's name, and the conversion of its values."""
    stored = stored_fields(record)
    present = (f for f in fields if f.field_id in stored)
    return [(f.name, stored[f.field_id]["name"], _reader(stored[f.field_id]["type"], f)) for f in present]


def _values(record: dict[str, Any], columns: list[_Column]) -> dict[str, Any]:
    return {name: None if (v := record[avro_name]) is None else read(v) for name, avro_name, read in columns}


def _reader(schema: Any, field: VersionedField | NestedField) -> Callable[[Any], Any]:
    """The conversion of non-null values of a field; fastavro has checked that they are what their schema says."""
    schema = without_null(schema)
    kind = schema["type"] if isinstance(schema, dict) else schema
    match field.type:
        case MapType() if kind == "array":
            # Avro's own maps have string keys, so pairs are stored, the key first (spec, Appendix A "Avro").
            key, value = schema["items"]["fields"]
            for part, child in zip((key, value), child_fields(field.type), strict=True):
                _reader(part["type"], child)
            return lambda pairs: {pair[key["name"]]: pair[value["name"]] for pair in pairs}
        case ListType() if kind == "array":
            read = _reader(schema["items"], child_fields(field.type)[0])
            return lambda items: tuple(map(read, items))
        case StructType() if kind == "record":
            columns = _columns(schema, field.type.fields)
            return lambda record: _values(record, columns)
    if kind not in _AVRO_KINDS.get(str(field.type), ()):
        raise ValueError(f"field {field.name!r} is stored as {kind!r}")
    return lambda value: value


def _enum(cls: type[E], value: Any, what: str, location: str) -> E:
    try:
        return cls(value)
    except ValueError:
        values = ", ".join(str(int(member)) for member in cls)
        raise InvalidTableError(
            f"cannot read {location!r}: an entry has {what} {value!r}; the spec knows {values}", location=location
        ) from None


def inspect_manifest(data: bytes, location: str) -> ManifestFile:
    """The row of a version 1 manifest that is in no list; its partition type is read from its own header.

    `added_snapshot_id` is that of its first added or deleted entry, or the greatest of all if it has none.
    """
    metadata = read_header(data, location).metadata
    # The first writers of version 1 had a single spec and did not number it.
    spec_id = metadata.get("partition-spec-id", b"0")
    if not spec_id.isdigit():
        raise InvalidTableError(f"manifest {location!r} has the partition-spec-id {spec_id!r}", location=location)
    row = ManifestFile(
        manifest_path=location,
        manifest_length=len(data),
        partition_spec_id=int(spec_id),
        added_snapshot_id=None,
        sequence_number=0,
        min_sequence_number=0,
    )

    def part(key: str, read: Callable[[Any], Any]) -> Any:
        try:
            return read(msgspec.json.decode(metadata[key]))
        except (KeyError, ValueError, InvalidTableError) as error:
            problem = "is missing" if isinstance(error, KeyError) else f"cannot be read: {error}"
            raise InvalidTableError(f"manifest {location!r}: its {key!r} {problem}", location=location) from error

    spec = PartitionSpec(spec_id=0, fields=part("partition-spec", partition_fields_from_json))
    return completed(row, data, partition_type(spec, part("schema", schema_from_json)))


def completed(row: ManifestFile, data: bytes, partition: StructType) -> ManifestFile:
    """A row of a manifest list with missing counts, partition summaries and snapshot filled in."""
    entries = list(read_manifest(data, row, partition)[1])
    changed = (e.snapshot_id for e in entries if e.status is not Status.EXISTING)
    greatest = max((e.snapshot_id for e in entries if e.snapshot_id is not None), default=None)
    computed: dict[str, Any] = {"added_snapshot_id": next(changed, greatest), "partitions": None}
    # Values of an unknown transform have no bounds, and a summary without bounds says that all values are null.
    if all(field.type != OPAQUE for field in partition.fields):
        summarizer = PartitionSummarizer([field.type for field in partition.fields])
        try:
            for entry in entries:
                summarizer.add(entry.data_file.partition)
            computed["partitions"] = summarizer.summaries()
        except IcekeepBug as error:
            raise InvalidTableError(
                f"manifest {row.manifest_path!r} holds partitions that are not of its spec: {error.message}",
                location=row.manifest_path,
            ) from error
    for status, (files_count, rows_count) in COUNTS.items():
        files = [entry.data_file for entry in entries if entry.status is status]
        computed |= {files_count: len(files), rows_count: sum(file.record_count for file in files)}
    return msgspec.structs.replace(row, **{name: v for name, v in computed.items() if getattr(row, name) is None})


def lacks_counts(row: ManifestFile) -> bool:
    """Whether a row lacks a count that versions 2 and 3 require."""
    return any(getattr(row, name) is None for names in COUNTS.values() for name in names)
