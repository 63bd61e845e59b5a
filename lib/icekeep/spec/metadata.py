"""Table metadata: the one object that a catalog points at (spec, "Table Metadata"), and its JSON, both ways (Appendix C).

Unknown keys survive at every level. Files are plain or gzip by the spec; other writers use zstd too.

Version 1 has one `schema` and one `partition-spec`; lists of them, ids and sort orders came with version 2, and are optional
in version 1 (spec, "Table Metadata Fields"; Appendix E "Version 2").
"""

import gzip
import io
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from icekeep.errors import THIS_TABLE, InvalidTableError, NotFoundError, UnsupportedError, shown_command, table_at
from icekeep.spec.partitioning import (
    PartitionSpec,
    last_assigned_field_id,
    partition_fields_from_json,
    partition_path,
    partition_type,
    spec_from_json,
    spec_to_json,
    validate_spec,
)
from icekeep.spec.schema import Schema, schema_from_json, schema_to_json
from icekeep.spec.snapshots import (
    MAIN,
    JsonObject,
    MetadataLogEntry,
    PartitionStatisticsFile,
    Snapshot,
    SnapshotLogEntry,
    SnapshotRef,
    StatisticsFile,
    object_from_json,
    object_to_json,
)
from icekeep.spec.sorting import (
    UNSORTED,
    SortOrder,
    find_sort_order,
    sort_order_from_json,
    sort_order_to_json,
    validate_sort_order,
)
from icekeep.spec.transforms import Void
from icekeep.spec.types import StructType

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

T = TypeVar("T")
V = TypeVar("V", bound=JsonObject)

SUPPORTED_FORMAT_VERSION = 3

MAX_METADATA_BYTES = 4 << 30
"""A file that unpacks to more than this is an attack or an accident, not table metadata."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_UNREADABLE = {b"\x04\x22\x4d\x18": "lz4", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\xff\x06\x00\x00sNaPpY": "snappy"}
_PACKED_NAME = re.compile(r"\.([a-z0-9]+)\.metadata\.json$")


class TableMetadata(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The state of a table, with attributes named like the spec's keys; `extra` holds unknown keys.

    Only tables of version 1 may lack a `table_uuid`; their sequence numbers are 0.
    """

    format_version: int
    table_uuid: str | None
    location: str
    last_sequence_number: int
    last_updated_ms: int
    last_column_id: int
    schemas: tuple[Schema, ...]
    current_schema_id: int
    partition_specs: tuple[PartitionSpec, ...]
    default_spec_id: int
    last_partition_id: int
    sort_orders: tuple[SortOrder, ...]
    default_sort_order_id: int
    properties: Mapping[str, str] = {}
    current_snapshot_id: int | None = None
    snapshots: tuple[Snapshot, ...] = ()
    snapshot_log: tuple[SnapshotLogEntry, ...] = ()
    metadata_log: tuple[MetadataLogEntry, ...] = ()
    refs: Mapping[str, SnapshotRef] = {}
    statistics: tuple[StatisticsFile, ...] = ()
    partition_statistics: tuple[PartitionStatisticsFile, ...] = ()
    next_row_id: int | None = None
    encryption_keys: tuple[Any, ...] = ()
    extra: Mapping[str, Any] = {}

    @cached_property
    def schemas_by_id(self) -> dict[int, Schema]:
        return {schema.schema_id: schema for schema in self.schemas}

    @cached_property
    def specs_by_id(self) -> dict[int, PartitionSpec]:
        return {spec.spec_id: spec for spec in self.partition_specs}

    @cached_property
    def snapshots_by_id(self) -> dict[int, Snapshot]:
        return {snapshot.snapshot_id: snapshot for snapshot in self.snapshots}

    @property
    def schema(self) -> Schema:
        return self.schemas_by_id[self.current_schema_id]

    @property
    def spec(self) -> PartitionSpec:
        return self.specs_by_id[self.default_spec_id]

    @property
    def is_encrypted(self) -> bool:
        """Whether manifests and data files are encrypted, or will be: by the table's keys, or property `encryption.key-id`."""
        keyed = any(snapshot.key_id is not None for snapshot in self.snapshots)
        return bool(self.encryption_keys) or keyed or "encryption.key-id" in self.properties

    @property
    def sort_order(self) -> SortOrder:
        return find_sort_order(self.sort_orders, self.default_sort_order_id)

    def partition_type(self, spec_id: int) -> StructType:
        """The struct of a spec's partition tuples; dropped source columns take their types from older schemas.

        Raises `InvalidTableError` where the table has no such spec, or no schema with its source columns.
        """
        # Called for each manifest, and a table may have hundreds of schemas.
        known: dict[int, StructType] = self.__dict__.setdefault("_partition_types", {})
        if spec_id not in known:
            spec = self.specs_by_id.get(spec_id)
            if spec is None:
                raise InvalidTableError(f"{table_at(self.location)} has no partition spec {spec_id}")
            structs = [partition_type(replace(spec, fields=(f,)), self.schema_of(f.source_id)) for f in spec.fields]
            known[spec_id] = StructType(tuple(field for one in structs for field in one.fields))
        return known[spec_id]

    @property
    def partition_types(self) -> dict[int, StructType]:
        """The structs of all specs' partition tuples, by spec id; raises as `partition_type` does."""
        return {spec_id: self.partition_type(spec_id) for spec_id in self.specs_by_id}

    def partition_path(self, spec_id: int, values: Sequence[Any]) -> str:
        """A partition as people read it (`day=2013-01-05/kind=a`); raises as `partition_type` does."""
        spec = self.specs_by_id[spec_id]
        return "/".join(
            partition_path(replace(spec, fields=(field,)), self.schema_of(field.source_id), (value,))
            for field, value in zip(spec.fields, values, strict=True)
        )

    def schema_of(self, field_id: int) -> Schema:
        """The schema that defines a column: the current one if it has it, else the newest that does."""
        return self._newest_schema_with({field_id})

    def manifest_schema(self, spec_id: int) -> Schema:
        """The schema for the header of a new manifest of a spec: the current one, or if that lacks source columns of the spec,
        the newest that has them all, if any. Some readers take the types of partition fields from it alone.
        """
        sources = (f.source_ids for f in self.specs_by_id[spec_id].fields if not isinstance(f.transform, Void))
        return self._newest_schema_with(set().union(*sources))

    def _newest_schema_with(self, field_ids: Set[int]) -> Schema:
        if field_ids <= self.schema.fields_by_id.keys():
            return self.schema
        newest_first = sorted(self.schemas, key=lambda s: s.schema_id, reverse=True)
        return next((s for s in newest_first if field_ids <= s.fields_by_id.keys()), self.schema)

    @property
    def current_snapshot(self) -> Snapshot | None:
        """The head of `main`, `None` for a table without data."""
        return None if self.current_snapshot_id is None else self.snapshot(self.current_snapshot_id)

    @property
    def next_sequence_number(self) -> int:
        """The sequence number that the next commit takes; 0 in v1, which has none."""
        return self.last_sequence_number + 1 if self.format_version > 1 else 0

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """A snapshot by its id; raises `NotFoundError` if the table does not have it."""
        snapshot = self.snapshots_by_id.get(snapshot_id)
        if snapshot is None:
            raise NotFoundError(
                f"{table_at(self.location)} has no snapshot {snapshot_id}; "
                f"`{shown_command('history', '--table', THIS_TABLE, '--all')}` lists those that it has",
                snapshot_id=snapshot_id,
            )
        return snapshot

    def head(self, branch: str = MAIN) -> Snapshot | None:
        """The snapshot that a branch or tag names, else `NotFoundError`; `None` only for `main` of a table without data."""
        ref = self.refs.get(branch)
        if ref is not None:
            return self.snapshot(ref.snapshot_id)
        if branch == MAIN:
            return self.current_snapshot
        others = f"; there is {', '.join(map(repr, sorted(self.refs)))}" if self.refs else ""
        raise NotFoundError(f"{table_at(self.location)} has no branch or tag {branch!r}{others}", ref=branch)

    def ancestors(self, snapshot_id: int | None) -> Iterator[Snapshot]:
        """A snapshot, its parent and so on, as far as the table still has them."""
        seen: set[int] = set()
        while snapshot_id is not None and snapshot_id in self.snapshots_by_id and snapshot_id not in seen:
            seen.add(snapshot_id)
            snapshot = self.snapshots_by_id[snapshot_id]
            yield snapshot
            snapshot_id = snapshot.parent_snapshot_id


def is_ancestor(metadata: TableMetadata, snapshot_id: int, *, of: int | None) -> bool:
    """Whether a snapshot is `of` itself, or one of its ancestors as far as the table still has them."""
    return any(ancestor.snapshot_id == snapshot_id for ancestor in metadata.ancestors(of))


def newest_ancestor_before(metadata: TableMetadata, timestamp_ms: int) -> Snapshot | None:
    """The newest snapshot of `main`'s history that is older than a moment (epoch ms)."""
    older = (s for s in metadata.ancestors(metadata.current_snapshot_id) if s.timestamp_ms < timestamp_ms)
    return max(older, key=lambda snapshot: snapshot.timestamp_ms, default=None)


def has_been_current_since(metadata: TableMetadata, snapshot_id: int, former_id: int | None) -> bool:
    """Whether a snapshot is current, or was by the snapshot log at some time after `former_id` last was."""
    ids = [entry.snapshot_id for entry in metadata.snapshot_log]
    since = len(ids) - ids[::-1].index(former_id) if former_id in ids else len(ids) if former_id is not None else 0
    return metadata.current_snapshot_id == snapshot_id or snapshot_id in ids[since:]


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """From `made_current_at` (UTC) on a snapshot was the current one; a row of Iceberg's metadata table `history`.

    Attributes:
        parent_id: the snapshot that it was made from; `None` for a first one, and where the snapshot has expired.
        is_current_ancestor: whether the table as it is now comes from it, or it is the current one itself.
    """

    made_current_at: datetime
    snapshot_id: int
    parent_id: int | None
    is_current_ancestor: bool


def history(metadata: TableMetadata) -> tuple[HistoryEntry, ...]:
    """The table's `snapshot-log`, the oldest first."""
    ancestors = {snapshot.snapshot_id for snapshot in metadata.ancestors(metadata.current_snapshot_id)}
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in metadata.snapshots}
    return tuple(
        HistoryEntry(
            made_current_at=_EPOCH + timedelta(milliseconds=entry.timestamp_ms),
            snapshot_id=entry.snapshot_id,
            parent_id=parents.get(entry.snapshot_id),
            is_current_ancestor=entry.snapshot_id in ancestors,
        )
        for entry in metadata.snapshot_log
    )


def new_table_metadata(  # noqa: PLR0913 - each is one part of the value
    *,
    schema: Schema,
    spec: PartitionSpec,
    location: str,
    table_uuid: str,
    now_ms: int,
    sort_order: SortOrder = UNSORTED,
    properties: Mapping[str, str] | None = None,
    format_version: int = 2,
) -> TableMetadata:
    """Metadata of a new table without snapshots; ids in the schema, spec and sort order are kept."""
    return validate_metadata(
        TableMetadata(
            format_version=format_version,
            table_uuid=table_uuid,
            location=location.rstrip("/"),
            last_sequence_number=0,
            last_updated_ms=now_ms,
            last_column_id=schema.highest_field_id,
            schemas=(schema,),
            current_schema_id=schema.schema_id,
            partition_specs=(spec,),
            default_spec_id=spec.spec_id,
            last_partition_id=last_assigned_field_id((spec,)),
            sort_orders=(sort_order,),
            default_sort_order_id=sort_order.order_id,
            properties=dict(properties or {}),
            next_row_id=0 if format_version >= 3 else None,
        )
    )


def validate_metadata(metadata: TableMetadata) -> TableMetadata:
    """Return the metadata, or raise `InvalidTableError` where its parts do not fit together."""
    where = f"table metadata of {metadata.location!r}"
    ids: dict[str, list[int]] = {
        "schemas": [schema.schema_id for schema in metadata.schemas],
        "partition specs": [spec.spec_id for spec in metadata.partition_specs],
        "sort orders": [order.order_id for order in metadata.sort_orders],
        "snapshots": [snapshot.snapshot_id for snapshot in metadata.snapshots],
    }
    for what, used in ids.items():
        if len(set(used)) != len(used):
            raise InvalidTableError(f"{where}: two {what} have the same id")
    chosen = {
        ("current-schema-id", "schemas"): metadata.current_schema_id,
        ("default-spec-id", "partition specs"): metadata.default_spec_id,
        ("default-sort-order-id", "sort orders"): metadata.default_sort_order_id,
        ("current-snapshot-id", "snapshots"): metadata.current_snapshot_id,
    }
    for (key, what), chosen_id in chosen.items():
        if chosen_id is not None and chosen_id not in ids[what]:
            raise InvalidTableError(f"{where}: {key} {chosen_id} is not among the {what.removeprefix('sort ')}")
    validate_spec(metadata.spec, metadata.schema)
    validate_sort_order(metadata.sort_order, metadata.schema)
    newest = max((s.sequence_number for s in metadata.snapshots), default=0)
    if metadata.format_version > 1 and newest > metadata.last_sequence_number:
        raise InvalidTableError(f"{where}: a snapshot has sequence number {newest}, above last-sequence-number")
    _validate_refs(metadata, where)
    return metadata


def _validate_refs(metadata: TableMetadata, where: str) -> None:
    for name, ref in metadata.refs.items():
        if ref.snapshot_id not in metadata.snapshots_by_id:
            raise InvalidTableError(f"{where}: ref {name!r} points at snapshot {ref.snapshot_id}, which is not there")
        # An age of 0 would expire the reference at once, and with it what it alone keeps.
        limits = (ref.min_snapshots_to_keep, ref.max_snapshot_age_ms, ref.max_ref_age_ms)
        if any(limit is not None and limit < 1 for limit in limits):
            raise InvalidTableError(f"{where}: ref {name!r} has a retention limit that is not a positive number")
    main = metadata.refs.get(MAIN)
    if main is None:
        return
    if not main.is_branch:
        raise InvalidTableError(f"{where}: main is a tag; it must be a branch")
    if main.snapshot_id != metadata.current_snapshot_id:
        raise InvalidTableError(
            f"{where}: the current snapshot is {metadata.current_snapshot_id}, but main points at {main.snapshot_id}"
        )


def parse_metadata(data: bytes, location: str) -> TableMetadata:
    """Decode a metadata file, plain, gzip or zstd by its bytes and not by its name; `location` is for errors.

    Raises `InvalidTableError` for anything but table metadata, `UnsupportedError` for an unknown format version or compression.
    """
    raw = metadata_document(data, location)
    try:
        return metadata_from_json(raw)
    except (RecursionError, InvalidTableError, UnsupportedError) as error:
        kind = UnsupportedError if isinstance(error, UnsupportedError) else InvalidTableError
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error.message
        raise kind(f"cannot read table metadata {location!r}: {reason}", location=location) from error


def metadata_document(data: bytes, location: str) -> Any:
    """The JSON of a metadata file, whether it is valid metadata or not; raises as `parse_metadata` does."""
    codec = next((name for magic, name in _UNREADABLE.items() if data.startswith(magic)), None)
    named = _PACKED_NAME.search(location)
    is_packed = not data.lstrip().startswith((b"{", _GZIP, _ZSTD))
    # A file named as gzip or zstd with other bytes is damaged; one named as another codec is packed with it.
    if codec is None and named is not None and named[1] not in ("gz", "zstd") and is_packed:
        codec = named[1]
    if codec is not None:
        raise UnsupportedError(
            f"cannot read table metadata {location!r}: it is packed with {codec}; plain files, gzip and zstd are read",
            location=location,
        )
    try:
        return msgspec.json.decode(unpacked(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, EOFError, OSError, zlib.error) as error:
        raise InvalidTableError(f"cannot read table metadata {location!r}: {error}", location=location) from error


def unpacked(data: bytes, max_bytes: int = MAX_METADATA_BYTES) -> bytes:
    """A metadata file's text; raises `OSError`, `EOFError` or `zlib.error` where it cannot be unpacked."""
    if data.startswith(_ZSTD):
        plain, is_whole = _zstd_unpacked(data, max_bytes + 1)
        if not is_whole and len(plain) <= max_bytes:
            raise EOFError("the packed file ends before its end was reached")
    elif data.startswith(_GZIP):
        with gzip.open(io.BytesIO(data)) as stream:
            plain = stream.read(max_bytes + 1)
    else:
        return data
    if len(plain) > max_bytes:
        raise OSError(f"it unpacks to more than {max_bytes} bytes")
    return plain


def unpacked_head(data: bytes, max_bytes: int) -> bytes:
    """The start of a metadata file's text, from the file's first bytes; raises `zlib.error` where these are damaged."""
    if data.startswith(_ZSTD):
        return _zstd_unpacked(data, max_bytes)[0]
    if data.startswith(_GZIP):
        return zlib.decompressobj(wbits=31).decompress(data, max_bytes)
    return data


def _zstd_unpacked(data: bytes, max_bytes: int) -> tuple[bytes, bool]:
    """At most `max_bytes` of text, and whether it is complete: the last frame has ended."""
    plain = bytearray()
    while True:
        stream: Any = zstd.ZstdDecompressor()
        try:
            plain += stream.decompress(data, max_bytes - len(plain))
        except zstd.ZstdError as error:
            raise zlib.error(f"Error while unpacking zstd: {error}") from error
        if not stream.eof or not stream.unused_data or len(plain) >= max_bytes:
            return bytes(plain), stream.eof and not stream.unused_data
        data = stream.unused_data


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
        rest = _with_derived_keys(rest)
    # If kept, these would contradict what a commit changes, or take effect by an upgrade. The first two repeat the current
    # schema and the default spec for old readers.
    for key in ("schema", "partition-spec", "next-row-id")[: 2 if version >= 3 else 3]:
        rest.pop(key, None)
    # Java wrote -1 for "no snapshot" in v1 and v2.
    if rest.get("current-snapshot-id") == -1:
        del rest["current-snapshot-id"]
    refs = rest.pop("refs", None)
    if not isinstance(refs, dict | None):
        raise InvalidTableError(f"refs is {refs!r}; it must be an object")
    metadata = TableMetadata(
        format_version=version,
        table_uuid=(_optional if version == 1 else _required)(rest, "table-uuid", str),
        location=_required(rest, "location", str),
        last_sequence_number=_required(rest, "last-sequence-number", int),
        last_updated_ms=_required(rest, "last-updated-ms", int),
        last_column_id=_required(rest, "last-column-id", int),
        schemas=tuple(map(schema_from_json, _list(rest, "schemas", is_required=True))),
        current_schema_id=_required(rest, "current-schema-id", int),
        partition_specs=tuple(map(spec_from_json, _list(rest, "partition-specs", is_required=True))),
        default_spec_id=_required(rest, "default-spec-id", int),
        last_partition_id=_required(rest, "last-partition-id", int),
        sort_orders=tuple(map(sort_order_from_json, _list(rest, "sort-orders", is_required=True))),
        default_sort_order_id=_required(rest, "default-sort-order-id", int),
        properties=_properties(rest.pop("properties", None)),
        current_snapshot_id=_optional(rest, "current-snapshot-id", int),
        snapshots=_objects(rest, "snapshots", Snapshot),
        snapshot_log=_objects(rest, "snapshot-log", SnapshotLogEntry),
        metadata_log=_objects(rest, "metadata-log", MetadataLogEntry),
        refs={name: object_from_json(SnapshotRef, ref, f"ref {name!r}") for name, ref in (refs or {}).items()},
        statistics=_objects(rest, "statistics", StatisticsFile),
        partition_statistics=_objects(rest, "partition-statistics", PartitionStatisticsFile),
        next_row_id=_required(rest, "next-row-id", int) if version >= 3 else None,
        encryption_keys=tuple(_list(rest, "encryption-keys")),
        extra=rest,
    )
    if version == 1:
        metadata = replace(metadata, snapshots=tuple(replace(s, sequence_number=0) for s in metadata.snapshots))
    if MAIN not in metadata.refs and metadata.current_snapshot_id is not None:
        # `main` always points at the current snapshot, even if `refs` is missing (spec, "Table Metadata Fields").
        main = SnapshotRef(snapshot_id=metadata.current_snapshot_id, type="branch")
        metadata = replace(metadata, refs={MAIN: main, **metadata.refs})
    return validate_metadata(metadata)


def _with_derived_keys(raw: dict[str, Any]) -> dict[str, Any]:
    """Version 1 metadata with every key that version 2 requires but `table-uuid`, derived as the spec says.

    Keys that it has are kept; `schemas` and `partition-specs` take precedence over `schema` and `partition-spec`.
    """
    full = {key: value for key, value in raw.items() if value is not None}
    full["last-sequence-number"] = 0
    if "schemas" not in full:
        schema = full.get("schema")
        if not isinstance(schema, dict):
            raise InvalidTableError("the required key 'schema' is missing")
        full["schemas"] = [schema]
        full["current-schema-id"] = schema.get("schema-id", 0)
    if "partition-specs" not in full:
        if "partition-spec" not in full:
            raise InvalidTableError("the required key 'partition-spec' is missing")
        spec = PartitionSpec(spec_id=0, fields=partition_fields_from_json(full["partition-spec"]))
        full["partition-specs"] = [spec_to_json(spec)]
        full["default-spec-id"] = spec.spec_id
    if "last-partition-id" not in full and isinstance(full["partition-specs"], list):
        full["last-partition-id"] = last_assigned_field_id(map(spec_from_json, full["partition-specs"]))
    if "sort-orders" not in full:
        full["sort-orders"] = [sort_order_to_json(UNSORTED)]
        full["default-sort-order-id"] = UNSORTED.order_id
    return full


def _dialect(raw: Mapping[str, Any]) -> str:
    """Which dialect of version 4 metadata is in: Iceberg 1.12 writes another one than the draft describes."""
    snapshots = raw.get("snapshots")
    keys = {key for one in snapshots if isinstance(one, dict) for key in one} if isinstance(snapshots, list) else set()
    if "root-manifest" in keys:
        return "; its snapshots have root manifests, as the draft of version 4 says"
    if "manifest-list" in keys:
        return "; its snapshots have manifest lists, as Iceberg 1.12 writes them and the draft of version 4 does not"
    return ""


def format_metadata(metadata: TableMetadata) -> bytes:
    return msgspec.json.encode(metadata_to_json(metadata))


def metadata_to_json(metadata: TableMetadata) -> dict[str, Any]:
    """The JSON object, in the order of the spec's table; null attributes are left out."""
    is_first = metadata.format_version == 1
    old_keys: dict[str, Any] = {}
    snapshots = [object_to_json(snapshot) for snapshot in metadata.snapshots]
    if is_first:
        old_keys = {"schema": schema_to_json(metadata.schema), "partition-spec": spec_to_json(metadata.spec)["fields"]}
        for snapshot in snapshots:
            del snapshot["sequence-number"]
    out = {
        "format-version": metadata.format_version,
        "table-uuid": metadata.table_uuid,
        "location": metadata.location,
        "last-sequence-number": None if is_first else metadata.last_sequence_number,
        "last-updated-ms": metadata.last_updated_ms,
        "last-column-id": metadata.last_column_id,
        **old_keys,
        "current-schema-id": metadata.current_schema_id,
        "schemas": [schema_to_json(schema) for schema in metadata.schemas],
        "default-spec-id": metadata.default_spec_id,
        "partition-specs": [spec_to_json(spec) for spec in metadata.partition_specs],
        "last-partition-id": metadata.last_partition_id,
        "default-sort-order-id": metadata.default_sort_order_id,
        "sort-orders": [sort_order_to_json(order) for order in metadata.sort_orders],
        "properties": dict(metadata.properties),
        "current-snapshot-id": metadata.current_snapshot_id,
        "next-row-id": metadata.next_row_id,
        "refs": {name: object_to_json(ref) for name, ref in metadata.refs.items()},
        "snapshots": snapshots,
        "statistics": [object_to_json(file) for file in metadata.statistics],
        "partition-statistics": [object_to_json(file) for file in metadata.partition_statistics],
        "snapshot-log": [object_to_json(entry) for entry in metadata.snapshot_log],
        "metadata-log": [object_to_json(entry) for entry in metadata.metadata_log],
        "encryption-keys": list(metadata.encryption_keys) or None,
    }
    return {key: value for key, value in out.items() if value is not None} | dict(metadata.extra)


def _required(rest: dict[str, Any], key: str, kind: type[T]) -> T:
    value = _optional(rest, key, kind)
    if value is None:
        raise InvalidTableError(f"the required key {key!r} is missing")
    return value


def _optional(rest: dict[str, Any], key: str, kind: type[T]) -> T | None:
    value = rest.pop(key, None)
    if value is not None and type(value) is not kind:
        raise InvalidTableError(f"{key} is {value!r}; it must be {'a whole number' if kind is int else 'text'}")
    return value


def _list(rest: dict[str, Any], key: str, *, is_required: bool = False) -> list[Any]:
    value = rest.pop(key, None)
    if value is None and is_required:
        raise InvalidTableError(f"the required key {key!r} is missing")
    if not isinstance(value, list | None):
        raise InvalidTableError(f"{key} is {value!r}; it must be a list")
    return value or []


def _objects(rest: dict[str, Any], key: str, cls: type[V]) -> tuple[V, ...]:
    return tuple(object_from_json(cls, item, f"{key}[{i}]") for i, item in enumerate(_list(rest, key)))


def _properties(value: Any) -> dict[str, str]:
    if value is not None and (not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values())):
        raise InvalidTableError("properties must be an object of texts")
    return dict(value or {})
