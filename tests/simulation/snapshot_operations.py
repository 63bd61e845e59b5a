"""Operations that remove snapshots, or set which one is current."""

from msgspec.structs import replace

from icekeep.commit.changes.expire_snapshots import ExpireSnapshots
from icekeep.commit.changes.set_current_snapshot import RollbackToSnapshot, SetCurrentSnapshot
from icekeep.events import SILENT
from icekeep.maintenance.expiration import execute
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.refs import is_ancestor
from icekeep.spec.retention import RetentionPolicy, select_expired
from icekeep.spec.snapshots import MAIN
from simulation.client import Client
from simulation.model import Model
from simulation.operation import Operation
from simulation.world import EVENTS


class Expire(Operation):
    expires = True
    changes = frozenset({"schemas", "partition_specs", "statistics", "partition_statistics"})

    def run(self, client: Client) -> bool:
        return self.commit(client, client.catalog.load(EVENTS), self.change(client))

    def change(self, client: Client) -> ExpireSnapshots:
        older_than = client.now_ms() - self.random.choice([0, 1_000, 20_000])
        policy = RetentionPolicy(older_than_ms=older_than, retain_last=self.random.randint(1, 3))
        # Where updates are applied to what their writer has not seen, nothing can require that a spec is still there.
        cleans = self.random.random() < 0.3 and not client.world.applies_updates
        self.asked = ExpireSnapshots(policy=policy, now_ms=client.now_ms(), clean_expired_metadata=cleans)
        return self.asked

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        for name in ("statistics", "partition_statistics"):
            was, now = (
                tuple(f for f in getattr(metadata, name) if f.snapshot_id in after.snapshots_by_id)
                for metadata in (before, after)
            )
            model.require(was == now, "C10", f"{self.name} changed {name} of what it keeps")
        specs = before.specs_by_id.items() >= after.specs_by_id.items()
        schemas = before.schemas_by_id.items() >= after.schemas_by_id.items()
        model.require(specs and schemas, "C10", f"{self.name} made definitions")
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


class MoveMain(Operation):
    """Sets main to a snapshot that is there; `target` is what it was told to be."""

    moves_refs = frozenset({MAIN})

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


def expired(metadata: TableMetadata, change: ExpireSnapshots) -> TableMetadata:
    """The metadata that a plan to expire foresees."""
    gone = select_expired(metadata, change.policy, change.now_ms)
    return replace(
        metadata,
        snapshots=tuple(s for s in metadata.snapshots if s.snapshot_id not in gone.snapshot_ids),
        refs={name: ref for name, ref in metadata.refs.items() if name not in gone.ref_names},
    )
