"""Table metadata: the one object that a catalog points at (spec, "Table Metadata").

A value: changes make new ones (`updates.py`). Reading and writing its JSON is `metadata_codec.py`.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import Any

import msgspec
from msgspec.structs import replace

from icekeep.errors import InvalidTableError, NotFoundError
from icekeep.spec.partitioning import (
    PartitionSpec,
    last_assigned_field_id,
    partition_path,
    partition_type,
    validate_spec,
)
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import (
    MAIN,
    MetadataLogEntry,
    PartitionStatisticsFile,
    Snapshot,
    SnapshotLogEntry,
    SnapshotRef,
    StatisticsFile,
)
from icekeep.spec.sorting import UNSORTED, SortOrder, find_sort_order, validate_sort_order
from icekeep.spec.transforms import Void
from icekeep.spec.types import StructType

SUPPORTED_FORMAT_VERSION = 3


class TableMetadata(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The state of a table: schemas, specs, snapshots, references, properties.

    Attributes carry the names of the spec's keys; `extra` holds the keys that we do not know. Only tables of version 1
    may lack a `table_uuid`; their sequence numbers are 0.
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
        """The current schema."""
        return self.schemas_by_id[self.current_schema_id]

    @property
    def spec(self) -> PartitionSpec:
        """The partition spec that writers use by default."""
        return self.specs_by_id[self.default_spec_id]

    @property
    def is_encrypted(self) -> bool:
        """Whether manifests and data files are encrypted, or will be: by the table's keys, or property `encryption.key-id`."""
        keyed = any(snapshot.key_id is not None for snapshot in self.snapshots)
        return bool(self.encryption_keys) or keyed or "encryption.key-id" in self.properties

    @property
    def sort_order(self) -> SortOrder:
        """The sort order that writers use by default."""
        return find_sort_order(self.sort_orders, self.default_sort_order_id)

    def partition_type(self, spec_id: int) -> StructType:
        """The struct of a spec's partition tuples; source columns that were dropped are found in older schemas.

        Raises:
            InvalidTableError: the table has no such spec, or no schema that holds its source columns.
        """
        # Asked for each manifest, and a table may have hundreds of schemas.
        known = self._partition_types.get(spec_id)
        if known is None:
            known = self._partition_types[spec_id] = self._partition_type(spec_id)
        return known

    @property
    def partition_types(self) -> dict[int, StructType]:
        """The structs of all specs' partition tuples, by spec; raises as `partition_type` does."""
        return {spec_id: self.partition_type(spec_id) for spec_id in self.specs_by_id}

    @cached_property
    def _partition_types(self) -> dict[int, StructType]:
        return {}

    def _partition_type(self, spec_id: int) -> StructType:
        spec = self.specs_by_id.get(spec_id)
        if spec is None:
            raise InvalidTableError(f"the table at {self.location!r} has no partition spec {spec_id}")
        structs = [partition_type(replace(spec, fields=(f,)), self.schema_of(f.source_id)) for f in spec.fields]
        return StructType(tuple(field for struct in structs for field in struct.fields))

    def partition_path(self, spec_id: int, values: Sequence[Any]) -> str:
        """A partition of any spec as people read it (`day=2013-01-05/kind=a`); raises as `partition_type` does."""
        spec = self.specs_by_id[spec_id]
        return "/".join(
            partition_path(replace(spec, fields=(field,)), self.schema_of(field.source_id), (value,))
            for field, value in zip(spec.fields, values, strict=True)
        )

    def schema_of(self, field_id: int) -> Schema:
        """The schema that says what a column is, or was: the current one if it has it, else the newest that does."""
        return self._newest_schema_with({field_id})

    def manifest_schema(self, spec_id: int) -> Schema:
        """The schema for the header of a new manifest of a spec: the current one, unless it lacks a source column of the spec.

        Then it is the newest that has them all, if one does: some readers know the type of a partition field by no other.
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
        """The snapshot with an id; raises `NotFoundError` if the table has no such snapshot."""
        found = self.snapshots_by_id.get(snapshot_id)
        if found is None:
            raise NotFoundError(
                f"the table at {self.location!r} has no snapshot {snapshot_id}; `icekeep history --table NAME --all` lists those "
                "that it has",
                snapshot_id=snapshot_id,
            )
        return found

    def head(self, branch: str = MAIN) -> Snapshot | None:
        """The snapshot that a branch or tag names; `None` only for `main` of a table without data.

        Raises:
            NotFoundError: there is no such branch or tag; says which there are.
        """
        ref = self.refs.get(branch)
        if ref is not None:
            return self.snapshot(ref.snapshot_id)
        if branch == MAIN:
            return self.current_snapshot
        known = f"; there is {', '.join(map(repr, sorted(self.refs)))}" if self.refs else ""
        raise NotFoundError(f"the table at {self.location!r} has no branch or tag {branch!r}{known}", ref=branch)

    def ancestors(self, snapshot_id: int | None) -> Iterator[Snapshot]:
        """A snapshot, its parent, and so on until one has no parent that the table still knows."""
        seen: set[int] = set()
        while snapshot_id is not None and snapshot_id in self.snapshots_by_id and snapshot_id not in seen:
            seen.add(snapshot_id)
            snapshot = self.snapshots_by_id[snapshot_id]
            yield snapshot
            snapshot_id = snapshot.parent_snapshot_id


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
    """Metadata of a new table without snapshots; all ids in its parts are taken as they are."""
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
    _validate_ids(metadata, where)
    if metadata.current_schema_id not in metadata.schemas_by_id:
        raise InvalidTableError(f"{where}: current-schema-id {metadata.current_schema_id} is not among the schemas")
    if metadata.default_spec_id not in metadata.specs_by_id:
        raise InvalidTableError(f"{where}: default-spec-id {metadata.default_spec_id} is not among the partition specs")
    if metadata.default_sort_order_id not in {order.order_id for order in metadata.sort_orders}:
        raise InvalidTableError(
            f"{where}: default-sort-order-id {metadata.default_sort_order_id} is not among the orders"
        )
    validate_spec(metadata.spec, metadata.schema)
    validate_sort_order(metadata.sort_order, metadata.schema)
    _validate_snapshots(metadata, where)
    _validate_refs(metadata, where)
    return metadata


def _validate_ids(metadata: TableMetadata, where: str) -> None:
    ids: dict[str, list[int]] = {
        "schemas": [schema.schema_id for schema in metadata.schemas],
        "partition specs": [spec.spec_id for spec in metadata.partition_specs],
        "sort orders": [order.order_id for order in metadata.sort_orders],
        "snapshots": [snapshot.snapshot_id for snapshot in metadata.snapshots],
    }
    for what, used in ids.items():
        if len(set(used)) != len(used):
            raise InvalidTableError(f"{where}: two {what} have the same id")


def _validate_snapshots(metadata: TableMetadata, where: str) -> None:
    known = metadata.snapshots_by_id
    if metadata.current_snapshot_id is not None and metadata.current_snapshot_id not in known:
        raise InvalidTableError(
            f"{where}: current-snapshot-id {metadata.current_snapshot_id} is not among the snapshots"
        )
    newest = max((s.sequence_number for s in metadata.snapshots), default=0)
    if metadata.format_version > 1 and newest > metadata.last_sequence_number:
        raise InvalidTableError(f"{where}: a snapshot has sequence number {newest}, above last-sequence-number")


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
