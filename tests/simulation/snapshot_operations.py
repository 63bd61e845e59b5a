"""Operations that remove snapshots, or set which one is current."""

from msgspec.structs import replace

from icekeep.commit.changes.snapshots import ExpireSnapshots, RollbackToSnapshot, SetCurrentSnapshot
from icekeep.errors import NotFoundError
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.restore.job import restore
from icekeep.spec.metadata import TableMetadata, is_ancestor
from icekeep.spec.retention import RetentionPolicy, select_expired
from icekeep.spec.snapshots import MAIN
from kit.runtime import no_spark, with_runtime
from simulation.client import Client
from simulation.model import SKEW_MS, Model
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
    """The job, as it is: what it made unreachable is deleted or moved to the trash, and what earlier runs left is finished.

    An error of its own after the commit says nothing about the commit.
    """

    grace: tuple[str, ...] = ("0", "0", "10s")
    trash: tuple[int, ...] = (0, 0, 1)

    def run(self, client: Client) -> bool:
        change = self.change(client)
        done = expire_snapshots(
            with_runtime(client.catalog.load(EVENTS), client),
            no_spark,
            older_than=change.policy.older_than_ms,
            retain_last=change.policy.retain_last,
            clean_expired_metadata=change.clean_expired_metadata,
            trash=self.random.choice(self.trash),
            options={"grace": self.random.choice(self.grace), "keep-writer-progress": "0"},
        )
        seen = client.world.seen
        seen["files of earlier plans that were deleted"] += done.finished_files_count
        seen["files that the trash was emptied of"] += done.emptied_trash_files_count
        seen["expirations that left files for later"] += done.left_files_count > 0
        removed_count = done.expired_snapshots_count + done.removed_schemas_count + done.removed_specs_count
        # Where updates are applied to what is current, another run may have removed the same just before.
        is_empty_commit = client.world.applies_updates and self.landings > 0
        return bool(removed_count or done.expired_ref_names or is_empty_commit)

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        # Ages are measured against a moment between the begin of the run and its commit, by one clock or the other.
        self.asked = replace(self.asked, now_ms=model.world.scheduler.now_ms + SKEW_MS)
        super().check(model, before, after)


class _RestoredTags(frozenset[str]):
    """The names of all tags under which snapshots come back."""

    def __contains__(self, name: object) -> bool:
        return str(name).startswith("restored-")


class Restore(Operation):
    """Brings back what the newest run has expired, whoever is at work on its files."""

    restores = True
    moves_refs = _RestoredTags()
    changes = frozenset({"schemas", "partition_specs", "statistics", "partition_statistics"})

    def run(self, client: Client) -> bool:
        try:
            done = restore(with_runtime(client.catalog.load(EVENTS), client))
        except NotFoundError:
            return False
        client.world.seen["files brought back"] += done.restored_files_count
        return done.restored_snapshots_count > 0

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        return None


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
