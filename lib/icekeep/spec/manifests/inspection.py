"""What a manifest list would say of a manifest, worked out from the manifest itself.

Version 1 lists may leave counts out, and a version 1 snapshot may name its manifests with no list at all (spec,
"Snapshots", `manifests`). Every count that a later version requires is then found by reading.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.avro import read_header
from icekeep.spec.manifests.decode import read_manifest
from icekeep.spec.manifests.structs import FieldSummary, ManifestEntry, ManifestFile, Status
from icekeep.spec.manifests.summaries import PartitionSummarizer
from icekeep.spec.partitioning import PartitionSpec, partition_fields_from_json, partition_type
from icekeep.spec.schema import schema_from_json
from icekeep.spec.types import OPAQUE, StructType

COUNTS = {
    Status.ADDED: ("added_files_count", "added_rows_count"),
    Status.EXISTING: ("existing_files_count", "existing_rows_count"),
    Status.DELETED: ("deleted_files_count", "deleted_rows_count"),
}


def inspect_manifest(data: bytes, location: str) -> ManifestFile:
    """The row of a version 1 manifest that no list tells of; its partition type is read from its own header.

    `added_snapshot_id` is that of its first added or deleted entry, or the greatest of all where it has none.

    Raises:
        InvalidTableError: the file is damaged, or its header lacks the schema or the partition spec.
    """
    metadata = read_header(data, location).metadata
    row = ManifestFile(
        manifest_path=location,
        manifest_length=len(data),
        partition_spec_id=_spec_id(metadata, location),
        added_snapshot_id=None,
        sequence_number=0,
        min_sequence_number=0,
    )
    return completed(row, data, _own_partition_type(metadata, location))


def completed(row: ManifestFile, data: bytes, partition: StructType) -> ManifestFile:
    """A row of a manifest list with its counts, partition summaries and snapshot filled in where it has none.

    Raises:
        InvalidTableError: the manifest is damaged, or not what the row says.
    """
    entries = list(read_manifest(data, row, partition)[1])
    try:
        summaries = _summaries(entries, partition)
    except IcekeepBug as error:
        raise InvalidTableError(
            f"manifest {row.manifest_path!r} holds partitions that are not of its spec: {error.message}",
            location=row.manifest_path,
        ) from error
    found: dict[str, Any] = {"added_snapshot_id": _adding_snapshot(entries), "partitions": summaries}
    for status, (files_count, rows_count) in COUNTS.items():
        files = [entry.data_file for entry in entries if entry.status is status]
        found |= {files_count: len(files), rows_count: sum(file.record_count for file in files)}
    return msgspec.structs.replace(row, **{name: v for name, v in found.items() if getattr(row, name) is None})


def lacks_counts(row: ManifestFile) -> bool:
    """Whether a row leaves out a count that versions 2 and 3 require."""
    return any(getattr(row, name) is None for names in COUNTS.values() for name in names)


def _adding_snapshot(entries: list[ManifestEntry]) -> int | None:
    changed = (e.snapshot_id for e in entries if e.status is not Status.EXISTING)
    return next(changed, max((e.snapshot_id for e in entries if e.snapshot_id is not None), default=None))


def _summaries(entries: list[ManifestEntry], partition: StructType) -> tuple[FieldSummary, ...] | None:
    if any(field.type == OPAQUE for field in partition.fields):
        # A summary without bounds says that all values are null, and nobody can make them.
        return None
    summarizer = PartitionSummarizer([field.type for field in partition.fields])
    for entry in entries:
        summarizer.add(entry.data_file.partition)
    return summarizer.summaries()


def _spec_id(metadata: Mapping[str, bytes], location: str) -> int:
    # The first writers of version 1 knew one spec only, and did not number it.
    text = metadata.get("partition-spec-id", b"0")
    if not text.isdigit():
        raise InvalidTableError(f"manifest {location!r} has the partition-spec-id {text!r}", location=location)
    return int(text)


def _own_partition_type(metadata: Mapping[str, bytes], location: str) -> StructType:
    def part(key: str, read: Callable[[Any], Any]) -> Any:
        try:
            return read(msgspec.json.decode(metadata[key]))
        except (KeyError, ValueError, InvalidTableError) as error:
            problem = "is missing" if isinstance(error, KeyError) else f"cannot be read: {error}"
            raise InvalidTableError(f"manifest {location!r}: its {key!r} {problem}", location=location) from error

    spec = PartitionSpec(spec_id=0, fields=part("partition-spec", partition_fields_from_json))
    return partition_type(spec, part("schema", schema_from_json))
