"""Changes of metadata alone: properties, statistics files, counters, schema, sort order, partition spec, format version.

Statistics files (spec, "Table Statistics", "Partition Statistics") are neither written nor deleted here; one that is no
longer named is garbage.
"""

from collections.abc import Callable, Mapping

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.errors import ConflictError, UsageError
from icekeep.spec.evolution import PartitionChange, SchemaChange, evolve_schema, evolve_spec
from icekeep.spec.metadata import SUPPORTED_FORMAT_VERSION, TableMetadata
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.sorting import SortKey, build_sort_order
from icekeep.spec.updates import (
    LAST_ADDED,
    AddPartitionSpec,
    AddSchema,
    AddSortOrder,
    AssignUuid,
    RaiseCounters,
    RemovePartitionStatistics,
    RemoveProperties,
    RemoveStatistics,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetPartitionStatistics,
    SetProperties,
    SetStatistics,
    Update,
    UpgradeFormatVersion,
    column_property_updates,
    low_counters,
)


class ChangeProperties(msgspec.Struct, frozen=True, kw_only=True):
    """Properties to set, and names of properties to remove."""

    updates: Mapping[str, str] = {}
    removals: tuple[str, ...] = ()

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        changed = {k: v for k, v in self.updates.items() if base.properties.get(k) != v}
        removed = tuple(name for name in self.removals if name in base.properties)
        updates: tuple[Update, ...] = (SetProperties(changed),) if changed else ()
        return (*updates, RemoveProperties(removed)) if removed else updates


class ChangeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics files to set, one of each kind for a snapshot, and snapshots whose statistics or partition statistics to remove.

    A snapshot that no longer exists is a `NotFoundError` for a file to set, and is ignored for a removal.
    """

    updates: tuple[StatisticsFile | PartitionStatisticsFile, ...] = ()
    removals: tuple[int, ...] = ()
    partition_removals: tuple[int, ...] = ()

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        updates: list[Update] = []
        for file in self.updates:
            base.snapshot(file.snapshot_id)
            if isinstance(file, StatisticsFile):
                updates += [] if file in base.statistics else [SetStatistics(file)]
            else:
                updates += [] if file in base.partition_statistics else [SetPartitionStatistics(file)]
        held = {file.snapshot_id for file in base.statistics}
        updates += [RemoveStatistics(snapshot_id) for snapshot_id in self.removals if snapshot_id in held]
        held = {file.snapshot_id for file in base.partition_statistics}
        updates += [RemovePartitionStatistics(one) for one in self.partition_removals if one in held]
        return tuple(updates)


class RaiseLowCounters(msgspec.Struct, frozen=True):
    """Counters to raise, by attribute of `TableMetadata`, to the least values that each base allows."""

    names: frozenset[str]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        low = {name: least for name, least in low_counters(base).items() if name in self.names}
        return (RaiseCounters(**low),) if low else ()


class UpdateSchema(msgspec.Struct, frozen=True):
    """Changes of the current schema, in order; properties that name columns are changed with them."""

    changes: tuple[SchemaChange, ...]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        evolution = evolve_schema(base, self.changes)
        schema = evolution.schema
        if schema.schema_id == base.current_schema_id:
            return ()
        properties = column_property_updates(base.schema, schema, base.properties)
        if schema.schema_id in base.schemas_by_id:
            return SetCurrentSchema(schema.schema_id), *properties
        return AddSchema(schema, evolution.last_column_id), SetCurrentSchema(LAST_ADDED), *properties


class UpdateSortOrder(msgspec.Struct, frozen=True):
    """The sort keys of new files, none for unsorted files."""

    keys: tuple[SortKey, ...]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        new = build_sort_order(base.schema, self.keys)
        for order in base.sort_orders:
            if order.fields == new.fields:
                is_default = order.order_id == base.default_sort_order_id
                return () if is_default else (SetDefaultSortOrder(order.order_id),)
        return AddSortOrder(new), SetDefaultSortOrder(LAST_ADDED)


class UpdateSpec(msgspec.Struct, frozen=True):
    """Changes of the default partition spec, in order; existing files keep the spec that they were written with."""

    changes: tuple[PartitionChange, ...]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        spec = evolve_spec(base, self.changes)
        if spec.spec_id == base.default_spec_id:
            return ()
        if spec.spec_id in base.specs_by_id:
            return (SetDefaultSpec(spec.spec_id),)
        return AddPartitionSpec(spec), SetDefaultSpec(LAST_ADDED)


class UpgradeTable(msgspec.Struct, frozen=True):
    """The format version to upgrade to, and the uuid for a table that has none (format version 1).

    `against` says what stands against the upgrade of a base, empty where nothing does: it is asked again where others have
    committed since the table was looked at.
    """

    format_version: int
    new_uuid: str
    against: Callable[[TableMetadata], str] | None = None

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        new, old = self.format_version, base.format_version
        if not old <= new <= SUPPORTED_FORMAT_VERSION:
            raise UsageError(
                f"the table has format version {old}; it cannot become {new}, only {old} to {SUPPORTED_FORMAT_VERSION}"
            )
        if new == old:
            return ()
        if self.against is not None and (reason := self.against(base)):
            raise ConflictError(f"the table cannot get format version {new} as it is now: {reason}")
        uuid = () if base.table_uuid is not None else (AssignUuid(self.new_uuid),)
        return *uuid, UpgradeFormatVersion(new)
