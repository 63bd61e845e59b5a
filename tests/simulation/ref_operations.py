"""Operations on branches and tags."""

from icekeep.commit.changes.snapshots import CreateRef, DropRef, FastForwardBranch, RenameBranch, ReplaceRef
from icekeep.maintenance.rewrite.run import TAG_PREFIX
from icekeep.spec.metadata import TableMetadata, is_ancestor
from icekeep.spec.snapshots import MAIN, SnapshotRef
from simulation.client import Client
from simulation.model import Model
from simulation.operation import Operation
from simulation.world import EVENTS


class OnRefs(Operation):
    """An operation that moves the refs it says, and says itself what must be true of them."""

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        return None


class MakeBranchOrTag(OnRefs):
    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        self.ref = f"{self.random.choice(['branch', 'tag'])}-{self.random.randint(1, 2)}"
        self.moves_refs = frozenset({self.ref})
        if not table.metadata.snapshots:
            return False
        snapshot = self.random.choice(table.metadata.snapshots)
        self.target = SnapshotRef(snapshot_id=snapshot.snapshot_id, type=self.ref.partition("-")[0])
        return self.commit(client, table, CreateRef(self.ref, self.target))

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        model.require(self.ref not in before.refs, "C10", f"{self.name} moved {self.ref!r}, which was there")
        model.require(after.refs.get(self.ref) == self.target, "C10", f"{self.name} made something else")


class DropBranchOrTag(OnRefs):
    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        names = _of_people(table.metadata)
        if not names:
            return False
        self.ref = name = self.random.choice(names)
        self.moves_refs = frozenset({name})
        self.seen = table.metadata.refs[name]
        return self.commit(client, table, DropRef(name=name, type=self.seen.type, expected_id=self.seen.snapshot_id))

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        model.require(before.refs.get(self.ref) == self.seen, "C10", f"{self.name} dropped what others had moved")
        model.require(self.ref not in after.refs, "C10", f"{self.name} left it")


class RenameABranch(OnRefs):
    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        names = sorted(name for name, ref in table.metadata.refs.items() if ref.is_branch and name != MAIN)
        if not names:
            return False
        self.old = self.random.choice(names)
        self.new = self.random.choice([name for name in ("branch-1", "branch-2", "branch-3") if name != self.old])
        self.moves_refs = frozenset({self.old, self.new})
        seen_id = table.metadata.refs[self.old].snapshot_id
        return self.commit(client, table, RenameBranch(name=self.old, new_name=self.new, snapshot_id=seen_id))

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        model.require(self.new not in before.refs, "C10", f"{self.name} moved {self.new!r}, which was there")
        moved = after.refs.get(self.new) == before.refs.get(self.old) and self.old not in after.refs
        model.require(moved, "C10", f"{self.name} lost what others had committed to {self.old!r}")


class MoveBranchOrTag(OnRefs):
    """Sets a branch or tag, not main, to any snapshot."""

    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        names = _of_people(table.metadata)
        if not names:
            return False
        self.ref = self.random.choice(names)
        self.moves_refs = frozenset({self.ref})
        self.seen = table.metadata.refs[self.ref]
        self.target = self.random.choice(table.metadata.snapshots).snapshot_id
        change = ReplaceRef(
            name=self.ref, type=self.seen.type, snapshot_id=self.target, expected_id=self.seen.snapshot_id
        )
        return self.commit(client, table, change)

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        model.require(before.refs.get(self.ref) == self.seen, "C5", f"{self.name} undid what it had not seen")
        model.require(after.refs[self.ref].snapshot_id == self.target, "C10", f"{self.name} moved it elsewhere")


class FastForward(OnRefs):
    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        refs = table.metadata.refs
        branches = sorted({MAIN} | {name for name, ref in refs.items() if ref.is_branch})
        further = {branch: heads for branch in branches if (heads := self._further(table.metadata, branch))}
        if further and self.random.random() < 0.7:
            self.branch = self.random.choice([*further])
            heads = further[self.branch]
        else:
            self.branch = MAIN if self.random.random() < 0.6 else self.random.choice(branches)
            heads = [ref.snapshot_id for name, ref in sorted(refs.items()) if name != self.branch]
        self.moves_refs = frozenset({self.branch})
        if not heads:
            return False
        self.target = self.random.choice(heads)
        return self.commit(client, table, FastForwardBranch(self.branch, self.target))

    def _further(self, metadata: TableMetadata, branch: str) -> list[int]:
        """The snapshots of other references that a branch leads to."""
        at = metadata.refs[branch].snapshot_id if branch in metadata.refs else None
        heads = [ref.snapshot_id for name, ref in sorted(metadata.refs.items()) if name != branch]
        return [n for n in heads if n != at and (at is None or is_ancestor(metadata, at, of=n))]

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        was, now = before.refs.get(self.branch), after.refs[self.branch]
        model.require(now.snapshot_id == self.target, "C10", f"{self.name} moved {self.branch} elsewhere")
        on_the_way = was is None or model.is_ancestor(was.snapshot_id, of=self.target)
        model.require(on_the_way, "C5", f"{self.name} took snapshots off {self.branch}")


def _of_people(metadata: TableMetadata) -> list[str]:
    """The branches and tags that nobody's job made for itself."""
    return sorted(name for name in metadata.refs if name != MAIN and not name.startswith(TAG_PREFIX))
