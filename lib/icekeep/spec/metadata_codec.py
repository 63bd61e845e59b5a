"""Table metadata as JSON, both ways (spec, Appendix C "Table Metadata and Snapshots").

Bytes in, values out, and back; how files are packed is in `metadata_packing.py`. Unknown keys survive at every level.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.metadata import SUPPORTED_FORMAT_VERSION, TableMetadata, validate_metadata
from icekeep.spec.metadata_packing import refuse_unknown_packing, unpacked
from icekeep.spec.metadata_v1 import CURRENT_ONLY, current_only, with_derived_keys
from icekeep.spec.partitioning import spec_from_json, spec_to_json
from icekeep.spec.schema import schema_from_json, schema_to_json
from icekeep.spec.snapshots import (
    MAIN,
    MetadataLogEntry,
    PartitionStatisticsFile,
    Snapshot,
    SnapshotLogEntry,
    SnapshotRef,
    StatisticsFile,
)
from icekeep.spec.sorting import sort_order_from_json, sort_order_to_json
from icekeep.spec.views import View, view_from_json, view_to_json

T = TypeVar("T")
V = TypeVar("V", bound=View)


def parse_metadata(data: bytes, location: str) -> TableMetadata:
    """Decode a metadata file.

    Args:
        data: the file's bytes, plain, gzip or zstd; which of them is seen from the bytes, not from the name.
        location: where they come from, for errors.

    Raises:
        InvalidTableError: the bytes are not table metadata of the spec.
        UnsupportedError: the format version, or the way it is packed, is one that we do not read.
    """
    raw = metadata_document(data, location)
    try:
        return metadata_from_json(raw)
    except RecursionError as error:
        raise InvalidTableError(
            f"cannot read table metadata {location!r}: it is nested too deeply", location=location
        ) from error
    except InvalidTableError as error:
        raise InvalidTableError(
            f"cannot read table metadata {location!r}: {error.message}", location=location
        ) from error
    except UnsupportedError as error:
        raise UnsupportedError(
            f"cannot read table metadata {location!r}: {error.message}", location=location
        ) from error


def metadata_document(data: bytes, location: str) -> Any:
    """The JSON of a metadata file, whatever it says; raises `InvalidTableError` where it is none, else as `parse_metadata`."""
    refuse_unknown_packing(data, location)
    try:
        return msgspec.json.decode(unpacked(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, EOFError, OSError, zlib.error) as error:
        raise InvalidTableError(f"cannot read table metadata {location!r}: {error}", location=location) from error


def format_metadata(metadata: TableMetadata) -> bytes:
    """Encode metadata as the bytes of an uncompressed metadata file."""
    return msgspec.json.encode(metadata_to_json(metadata))


def metadata_from_json(raw: Any) -> TableMetadata:
    """Build metadata from a decoded JSON object; raises as `parse_metadata` does."""
    if not isinstance(raw, dict):
        raise InvalidTableError("it is no JSON object")
    rest = dict(raw)
    version = _required(rest, "format-version", int)
    if version > SUPPORTED_FORMAT_VERSION:
        raise UnsupportedError(
            f"format version {version} is newer than {SUPPORTED_FORMAT_VERSION}, the newest that is known{_dialect(rest)}"
        )
    if version < 1:
        raise InvalidTableError(f"format-version is {version}; the spec knows 1 and above")
    if version == 1:
        rest = with_derived_keys(rest)
    # Kept as they were, these would contradict what a commit changes, or come to life by an upgrade.
    for key in CURRENT_ONLY if version >= 3 else (*CURRENT_ONLY, "next-row-id"):
        rest.pop(key, None)
    current = rest.pop("current-snapshot-id", None)
    metadata = TableMetadata(
        format_version=version,
        table_uuid=_table_uuid(rest, version),
        location=_required(rest, "location", str),
        last_sequence_number=_required(rest, "last-sequence-number", int),
        last_updated_ms=_required(rest, "last-updated-ms", int),
        last_column_id=_required(rest, "last-column-id", int),
        schemas=_required_list(rest, "schemas", schema_from_json),
        current_schema_id=_required(rest, "current-schema-id", int),
        partition_specs=_required_list(rest, "partition-specs", spec_from_json),
        default_spec_id=_required(rest, "default-spec-id", int),
        last_partition_id=_required(rest, "last-partition-id", int),
        sort_orders=_required_list(rest, "sort-orders", sort_order_from_json),
        default_sort_order_id=_required(rest, "default-sort-order-id", int),
        properties=_properties(rest.pop("properties", None)),
        # Java wrote -1 for "no snapshot" in v1 and v2.
        current_snapshot_id=None if current in (None, -1) else _whole("current-snapshot-id", current),
        snapshots=_snapshots(rest, version),
        snapshot_log=_views(rest, "snapshot-log", SnapshotLogEntry),
        metadata_log=_views(rest, "metadata-log", MetadataLogEntry),
        refs=_refs(rest.pop("refs", None)),
        statistics=_views(rest, "statistics", StatisticsFile),
        partition_statistics=_views(rest, "partition-statistics", PartitionStatisticsFile),
        next_row_id=_required(rest, "next-row-id", int) if version >= 3 else None,
        encryption_keys=tuple(_list(rest, "encryption-keys")),
        extra=rest,
    )
    return validate_metadata(_with_main(metadata))


def _dialect(raw: Mapping[str, Any]) -> str:
    """Which of two a table of a newer version is: Iceberg 1.12 writes a shape of its own, before version 4 is adopted."""
    snapshots = raw.get("snapshots")
    keys = {key for one in snapshots if isinstance(one, dict) for key in one} if isinstance(snapshots, list) else set()
    if "root-manifest" in keys:
        return "; its snapshots have root manifests, as the draft of version 4 says"
    if "manifest-list" in keys:
        return "; its snapshots have manifest lists, as Iceberg 1.12 writes them and the draft of version 4 does not"
    return ""


def metadata_to_json(metadata: TableMetadata) -> dict[str, Any]:
    """The JSON object of metadata, in the order of the spec's table."""
    version = metadata.format_version
    out: dict[str, Any] = {"format-version": version}
    if metadata.table_uuid is not None:
        out["table-uuid"] = metadata.table_uuid
    out["location"] = metadata.location
    if version > 1:
        out["last-sequence-number"] = metadata.last_sequence_number
    out |= {
        "last-updated-ms": metadata.last_updated_ms,
        "last-column-id": metadata.last_column_id,
        **(current_only(metadata) if version == 1 else {}),
        "current-schema-id": metadata.current_schema_id,
        "schemas": [schema_to_json(s) for s in metadata.schemas],
        "default-spec-id": metadata.default_spec_id,
        "partition-specs": [spec_to_json(s) for s in metadata.partition_specs],
        "last-partition-id": metadata.last_partition_id,
        "default-sort-order-id": metadata.default_sort_order_id,
        "sort-orders": [sort_order_to_json(o) for o in metadata.sort_orders],
        "properties": dict(metadata.properties),
    }
    if metadata.current_snapshot_id is not None:
        out["current-snapshot-id"] = metadata.current_snapshot_id
    if metadata.next_row_id is not None:
        out["next-row-id"] = metadata.next_row_id
    out["refs"] = {name: view_to_json(ref) for name, ref in metadata.refs.items()}
    out["snapshots"] = [_snapshot_to_json(s, version) for s in metadata.snapshots]
    out["statistics"] = [view_to_json(s) for s in metadata.statistics]
    out["partition-statistics"] = [view_to_json(s) for s in metadata.partition_statistics]
    out["snapshot-log"] = [view_to_json(e) for e in metadata.snapshot_log]
    out["metadata-log"] = [view_to_json(e) for e in metadata.metadata_log]
    if metadata.encryption_keys:
        out["encryption-keys"] = list(metadata.encryption_keys)
    out.update(metadata.extra)
    return out


def _snapshots(rest: dict[str, Any], version: int) -> tuple[Snapshot, ...]:
    snapshots = _views(rest, "snapshots", Snapshot)
    if version > 1:
        return snapshots
    return tuple(msgspec.structs.replace(snapshot, sequence_number=0) for snapshot in snapshots)


def _snapshot_to_json(snapshot: Snapshot, version: int) -> dict[str, Any]:
    out = view_to_json(snapshot)
    if version == 1:
        del out["sequence-number"]
    return out


def _table_uuid(rest: dict[str, Any], version: int) -> str | None:
    if version == 1 and rest.get("table-uuid") is None:
        rest.pop("table-uuid", None)
        return None
    return _required(rest, "table-uuid", str)


def _required(rest: dict[str, Any], key: str, kind: type[T]) -> T:
    value = rest.pop(key, None)
    if value is None:
        raise InvalidTableError(f"the required key {key!r} is missing")
    if type(value) is not kind:
        raise InvalidTableError(f"{key} is {value!r}; it must be {'a whole number' if kind is int else 'text'}")
    return value


def _whole(key: str, value: Any) -> int:
    if type(value) is not int:
        raise InvalidTableError(f"{key} is {value!r}; it must be a whole number")
    return value


def _list(rest: dict[str, Any], key: str) -> list[Any]:
    value = rest.pop(key, None)
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidTableError(f"{key} is {value!r}; it must be a list")
    return value


def _required_list(rest: dict[str, Any], key: str, read: Callable[[Any], T]) -> tuple[T, ...]:
    if rest.get(key) is None:
        raise InvalidTableError(f"the required key {key!r} is missing")
    return tuple(map(read, _list(rest, key)))


def _views(rest: dict[str, Any], key: str, cls: type[V]) -> tuple[V, ...]:
    return tuple(view_from_json(cls, item, f"{key}[{i}]") for i, item in enumerate(_list(rest, key)))


def _properties(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise InvalidTableError("properties must be an object of texts")
    return dict(value)


def _refs(value: Any) -> Mapping[str, SnapshotRef]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidTableError(f"refs is {value!r}; it must be an object")
    return {name: view_from_json(SnapshotRef, ref, f"ref {name!r}") for name, ref in value.items()}


def _with_main(metadata: TableMetadata) -> TableMetadata:
    """There is always a main branch at the current snapshot, even if `refs` is missing (spec, "Table Metadata Fields")."""
    if MAIN in metadata.refs or metadata.current_snapshot_id is None:
        return metadata
    main = SnapshotRef(snapshot_id=metadata.current_snapshot_id, type="branch")
    return msgspec.structs.replace(metadata, refs={MAIN: main, **metadata.refs})
