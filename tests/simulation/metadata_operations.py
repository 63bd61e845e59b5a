"""Operations on snapshots, refs, properties and definitions."""

from msgspec.structs import replace

from icekeep.commit.changes.change_properties import ChangeProperties
from icekeep.commit.changes.expire_snapshots import ExpireSnapshots
from icekeep.commit.changes.manage_refs import CreateRef, DropRef, FastForwardBranch
from icekeep.commit.changes.set_current_snapshot import RollbackToSnapshot, SetCurrentSnapshot
from icekeep.commit.changes.update_schema import UpdateSchema
from icekeep.commit.changes.upgrade_format_version import UpgradeTable
from icekeep.events import SILENT
from icekeep.maintenance.expiration import execute
from icekeep.spec.evolution.schema_changes import AddColumn
from icekeep.spec.metadata import SUPPORTED_FORMAT_VERSION, TableMetadata
from icekeep.spec.refs import is_ancestor
from icekeep.spec.retention import RetentionPolicy, select_expired
from icekeep.spec.snapshots import MAIN, SnapshotRef
from simulation.model import Model
from simulation.operation import Operation
from simulation.world import EVENTS, Client


class Expire(Operation):
    expires = True

    def run(self, client: Client) -> bool:
        return self.commit(client, client.catalog.load(EVENTS), self.change(client))

    def change(self, client: Client) -> ExpireSnapshots:
        older_than = client.now_ms() - self.random.choice([0, 1_000, 20_000])
        policy = RetentionPolicy(older_than_ms=older_than, retain_last=self.random.randint(1, 3))
        self.asked = ExpireSnapshots(policy=policy, now_ms=client.now_ms())
        return self.asked

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        if model.world.applies_updates:
            # There a branch may be new, and its own limits would have kept more (H4); its head is safe all the same.
            return
        may_go = select_expired(before, self.asked.policy, self.asked.now_ms)
        gone = before.snapshots_by_id.keys() - after.snapshots_by_id.keys()
        model.require(gone <= may_go.snapshot_ids, "R2", f"{self.name} expired {gone - may_go.snapshot_ids}")
        refs = before.refs.keys() - after.refs.keys()
        model.require(refs <= may_go.ref_names, "R1", f"{self.name} dropped {refs - may_go.ref_names}")


class ExpireAndReclaim(Expire):
    """The job: what it made unreachable is deleted; an error of its own after the commit says nothing about the commit."""

    def run(self, client: Client) -> bool:
        table, change = client.catalog.load(EVENTS), self.change(client)
        planned = execute.unreachable(table, None, table.metadata, expired(table.metadata, change))
        return execute.expire_and_reclaim(table, None, change, planned, SILENT, client) is not None


class SetProperty(Operation):
    def run(self, client: Client) -> bool:
        key = f"writer.{self.random.randint(1, 3)}"
        self.properties = {key: self.name}
        return self.commit(client, client.catalog.load(EVENTS), ChangeProperties(updates=self.properties))

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        model.require(
            after.properties == {**before.properties, **self.properties}, "C10", f"{self.name} changed other properties"
        )


class AddAColumn(Operation):
    def run(self, client: Client) -> bool:
        change = UpdateSchema((AddColumn(f"c{self.number}", "long"),))
        return self.commit(client, client.catalog.load(EVENTS), change)

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        one_more = len(after.schema.fields) == len(before.schema.fields) + 1
        model.require(one_more, "C10", f"{self.name} made {len(after.schema.fields)} columns")
        model.require(after.last_column_id == before.last_column_id + 1, "C9", "a field id is not the next")


class Upgrade(Operation):
    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        version = min(table.metadata.format_version + 1, SUPPORTED_FORMAT_VERSION)
        return self.commit(client, table, UpgradeTable(version, str(client.new_uuid())))

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        model.require(after.snapshots == before.snapshots, "C10", f"{self.name} changed snapshots")


class MakeBranchOrTag(Operation):
    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        self.branch = self.moves_ref = f"{self.random.choice(['branch', 'tag'])}-{self.random.randint(1, 2)}"
        kind = self.branch.partition("-")[0]
        if not table.metadata.snapshots:
            return False
        snapshot = self.random.choice(table.metadata.snapshots)
        self.target = SnapshotRef(snapshot_id=snapshot.snapshot_id, type=kind)
        return self.commit(client, table, CreateRef(self.branch, self.target))

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        return None

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        model.require(self.branch not in before.refs, "C10", f"{self.name} moved {self.branch!r}, which was there")
        model.require(after.refs.get(self.branch) == self.target, "C10", f"{self.name} made something else")


class DropBranchOrTag(Operation):
    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        names = sorted(table.metadata.refs.keys() - {MAIN})
        if not names:
            return False
        self.moves_ref = name = self.random.choice(names)
        self.seen = table.metadata.refs[name]
        return self.commit(client, table, DropRef(name=name, type=self.seen.type, expected_id=self.seen.snapshot_id))

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        model.require(before.refs.get(self.moves_ref) == self.seen, "C10", f"{self.name} dropped what others had moved")


class MoveMain(Operation):
    """Sets main to a snapshot that is there; `target` is what it was told to be."""

    moves_ref = MAIN

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        return None

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        model.require(after.current_snapshot_id == self.target, "C10", f"{self.name} moved main elsewhere")
        model.require(before.current_snapshot_id == self.expected, "C5", f"{self.name} undid what it had not seen")


class Rollback(MoveMain):
    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        metadata = table.metadata
        self.expected = metadata.current_snapshot_id
        known = [s.snapshot_id for s in metadata.snapshots if is_ancestor(metadata, s.snapshot_id, of=self.expected)]
        if len(known) < 2:
            return False
        self.target = self.random.choice([n for n in known if n != self.expected])
        change = RollbackToSnapshot(snapshot_id=self.target, expected_id=self.expected)
        return self.commit(client, table, change)


class SetCurrent(MoveMain):
    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        self.expected = table.metadata.current_snapshot_id
        others = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id != self.expected]
        if not others or self.expected is None:
            return False
        self.target = self.random.choice(others)
        change = SetCurrentSnapshot(snapshot_id=self.target, expected_id=self.expected)
        return self.commit(client, table, change)


class FastForward(Operation):
    moves_ref = MAIN

    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        metadata = table.metadata
        heads = [ref.snapshot_id for name, ref in sorted(metadata.refs.items()) if name != MAIN]
        if not heads:
            return False
        self.target = self.random.choice(heads)
        return self.commit(client, table, FastForwardBranch(MAIN, self.target))

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        return None

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        model.require(after.current_snapshot_id == self.target, "C10", f"{self.name} moved main elsewhere")
        on_the_way = is_ancestor(before, before.current_snapshot_id, of=self.target)
        model.require(on_the_way, "C5", f"{self.name} took snapshots off main")


def expired(metadata: TableMetadata, change: ExpireSnapshots) -> TableMetadata:
    """The metadata that a plan to expire foresees."""
    gone = select_expired(metadata, change.policy, change.now_ms)
    return replace(
        metadata,
        snapshots=tuple(s for s in metadata.snapshots if s.snapshot_id not in gone.snapshot_ids),
        refs={name: ref for name, ref in metadata.refs.items() if name not in gone.ref_names},
    )
