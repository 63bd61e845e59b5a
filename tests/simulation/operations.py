"""All that writers do, and the operations on what a table says of itself.

To add an operation: a class with `run` (decide, write files, commit), `effect` (which files of which branch come and go)
and `check` (what else must hold of it), and a line here.
"""

from collections.abc import Callable
from typing import Any

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import (
    ChangeProperties,
    ChangeStatistics,
    UpdateSchema,
    UpdateSortOrder,
    UpdateSpec,
    UpgradeTable,
)
from icekeep.spec.evolution import AddColumn, AddPartitionField, RemovePartitionField
from icekeep.spec.metadata import SUPPORTED_FORMAT_VERSION, TableMetadata
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.sorting import SortKey, build_sort_order
from icekeep.spec.transforms import Void
from simulation.client import Client
from simulation.compaction_operations import (
    Compact,
    CompactAndClean,
    CompactHoldingItsStart,
    CompactIntoAnotherSpec,
    ConvertByValue,
    MergeDeletes,
    MergeManifests,
    MergeManifestsAndClean,
)
from simulation.file_operations import (
    Append,
    Delete,
    DeleteByFilter,
    DeleteByValue,
    DeleteRows,
    DeleteRowsUnnamed,
    Operation,
    Overwrite,
    OverwriteByFilter,
)
from simulation.model import Model
from simulation.snapshot_operations import (
    DropBranchOrTag,
    Expire,
    ExpireAndReclaim,
    FastForward,
    MakeBranchOrTag,
    MoveBranchOrTag,
    Publish,
    RegisterReader,
    RenameABranch,
    Rollback,
    SetCurrent,
    Stage,
)
from simulation.world import EVENTS


class SetProperty(Operation):
    changes = frozenset({"properties"})

    def run(self, client: Client) -> bool:
        key = f"writer.{self.random.randint(1, 3)}"
        self.properties = {key: self.name}
        return self.commit(client, client.catalog.load(EVENTS), ChangeProperties(updates=self.properties))

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        model.require(
            after.properties == {**before.properties, **self.properties}, "C10", f"{self.name} changed other properties"
        )


class AddAColumn(Operation):
    changes = frozenset({"schemas", "current_schema_id"})

    def run(self, client: Client) -> bool:
        change = UpdateSchema((AddColumn(f"c{self.number}", "long"),))
        return self.commit(client, client.catalog.load(EVENTS), change)

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        one_more = len(after.schema.fields) == len(before.schema.fields) + 1
        model.require(one_more, "C10", f"{self.name} made {len(after.schema.fields)} columns")
        model.require(after.last_column_id == before.last_column_id + 1, "C9", "a field id is not the next")


class ChangePartitioning(Operation):
    """Partitions the table by the column `kind`, or no longer; files that are there keep their spec."""

    changes = frozenset({"partition_specs", "default_spec_id"})

    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        fields = [f for f in table.metadata.spec.fields if not isinstance(f.transform, Void)]
        self.partitions = not fields
        change = AddPartitionField("kind") if self.partitions else RemovePartitionField(fields[0].name)
        return self.commit(client, table, UpdateSpec((change,)))

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        model.require(after.spec.is_unpartitioned is not self.partitions, "C10", f"{self.name} made {after.spec}")
        kept = before.specs_by_id.items() <= after.specs_by_id.items()
        model.require(kept, "C10", f"{self.name} changed specs that were there")
        one_field = not self.partitions or before.last_partition_id <= after.last_partition_id
        model.require(one_field, "C9", "partition field ids are given out again")


class ChangeOrder(Operation):
    changes = frozenset({"sort_orders", "default_sort_order_id"})

    def run(self, client: Client) -> bool:
        keys = [SortKey(column, direction=self.random.choice(["asc", "desc"])) for column in ("id", "kind")]
        self.keys = tuple(self.random.sample(keys, self.random.randint(0, 2)))
        return self.commit(client, client.catalog.load(EVENTS), UpdateSortOrder(self.keys))

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        orders = {order.order_id: order for order in after.sort_orders}
        wanted = build_sort_order(after.schema, self.keys).fields
        model.require(orders[after.default_sort_order_id].fields == wanted, "C10", f"{self.name} made another order")
        kept = all(orders.get(order.order_id) == order for order in before.sort_orders)
        model.require(kept, "C10", f"{self.name} changed orders that were there")


class SetStatistics(Operation):
    """A file of statistics, of the table or of its partitions, for one of its snapshots.

    Where it is refused the file stays for orphan removal: a refusal may hide that it was set, since no snapshot tells.
    """

    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        if not table.metadata.snapshots:
            return False
        self.field = self.random.choice(["statistics", "partition_statistics"])
        self.changes = frozenset({self.field})
        location = f"{table.metadata.location}/metadata/{self.number:03d}.stats"
        snapshot_id = self.random.choice(table.metadata.snapshots).snapshot_id
        self.left = frozenset({location})
        with client.storage.write(location) as stream:
            stream.write(b"PFA1")
        return self.commit(client, table, self.change(location, snapshot_id))

    def change(self, location: str, snapshot_id: int) -> Any:
        """The change that names the file."""
        if self.field == "statistics":
            self.file: Any = StatisticsFile(
                snapshot_id=snapshot_id,
                statistics_path=location,
                file_size_in_bytes=4,
                file_footer_size_in_bytes=1,
            )
            return ChangeStatistics(updates=(self.file,))
        self.file = PartitionStatisticsFile(snapshot_id=snapshot_id, statistics_path=location, file_size_in_bytes=4)
        return ChangeStatistics(updates=(self.file,))

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        others = {f for f in _paths(before, self.field) if f[0] != self.file.snapshot_id}
        wanted = others | {(self.file.snapshot_id, self.file.statistics_path)}
        model.require(_paths(after, self.field) == wanted, "C10", f"{self.name} changed other {self.field}")


class RemoveStatistics(Operation):
    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        self.field = self.random.choice(["statistics", "partition_statistics"])
        self.changes = frozenset({self.field})
        known = sorted(_paths(table.metadata, self.field))
        if not known:
            return False
        self.snapshot_id = self.random.choice(known)[0]
        removals = "removals" if self.field == "statistics" else "partition_removals"
        return self.commit(client, table, ChangeStatistics(**{removals: (self.snapshot_id,)}))

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        wanted = {f for f in _paths(before, self.field) if f[0] != self.snapshot_id}
        model.require(_paths(after, self.field) == wanted, "C10", f"{self.name} changed other {self.field}")


class Upgrade(Operation):
    def run(self, client: Client) -> bool:
        table: Table = client.catalog.load(EVENTS)
        if self.model.unnamed:
            # In version 3 vectors would have to take them in.
            return False
        version = min(table.metadata.format_version + 1, SUPPORTED_FORMAT_VERSION)
        return self.commit(client, table, UpgradeTable(version, str(client.new_uuid())))

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        model.require(after.snapshots == before.snapshots, "C10", f"{self.name} changed snapshots")


def _paths(metadata: TableMetadata, field: str) -> set[tuple[int, str]]:
    return {(file.snapshot_id, file.statistics_path) for file in getattr(metadata, field)}


Make = Callable[..., Operation]
OPERATIONS: dict[Make, int] = {
    Append: 30,
    Compact: 10,
    CompactAndClean: 5,
    CompactIntoAnotherSpec: 3,
    CompactHoldingItsStart: 3,
    DeleteRows: 18,
    DeleteByValue: 6,
    ConvertByValue: 5,
    MergeDeletes: 5,
    Overwrite: 6,
    OverwriteByFilter: 5,
    Delete: 4,
    DeleteByFilter: 2,
    MergeManifests: 7,
    MergeManifestsAndClean: 3,
    Stage: 4,
    Publish: 5,
    Expire: 4,
    ExpireAndReclaim: 7,
    SetProperty: 5,
    AddAColumn: 3,
    ChangePartitioning: 3,
    ChangeOrder: 2,
    SetStatistics: 4,
    RemoveStatistics: 2,
    Upgrade: 1,
    MakeBranchOrTag: 7,
    MoveBranchOrTag: 2,
    RenameABranch: 2,
    DropBranchOrTag: 3,
    Rollback: 4,
    SetCurrent: 2,
    FastForward: 4,
}
"""Each operation and how often it is chosen."""

LIKED_ALONE: tuple[Make, ...] = (DeleteRowsUnnamed, RegisterReader)
"""Those that are chosen in histories that like them, and in no others."""
