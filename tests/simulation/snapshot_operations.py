"""Operations on snapshots, branches and tags: expiration, orphan removal, rollback, write-audit-publish."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles, CherryPick, OverwriteFiles
from icekeep.commit.changes.snapshots import (
    CreateRef,
    DropRef,
    ExpireSnapshots,
    FastForwardBranch,
    RenameBranch,
    ReplaceRef,
    RollbackToSnapshot,
    SetCurrentSnapshot,
)
from icekeep.commit.summary import STAGED_WAP_ID
from icekeep.errors import ConflictError, NotFoundError
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.maintenance.restore.job import restore
from icekeep.maintenance.rewrite.run import TAG_PREFIX
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.metadata import TableMetadata, is_ancestor
from icekeep.spec.retention import RetentionPolicy, select_expired
from icekeep.spec.snapshots import MAIN, SnapshotRef
from icekeep.spec.types import DAY_MS
from icekeep.spec.updates import AddSnapshot, SetSnapshotRef, Update
from kit.runtime import no_spark, with_runtime
from simulation.client import Client
from simulation.file_operations import Operation, is_of
from simulation.model import SKEW_MS, Model
from simulation.world import EVENTS, KINDS, LOCATION, Disk, Effect


class Expire(Operation):
    expires = True
    changes = frozenset({"schemas", "partition_specs", "statistics", "partition_statistics"})

    def run(self, client: Client) -> bool:
        return self.commit(client, client.catalog.load(EVENTS), self.change(client))

    def change(self, client: Client) -> ExpireSnapshots:
        older_than = client.now_ms() - self.random.choice([0, 1_000, 20_000])
        policy = RetentionPolicy(
            older_than_ms=older_than, retain_last=self.random.randint(1, 3), max_reader_lag_ms=READERS_LAG_MS
        )
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
        unread = _unread(before, self.asked.now_ms)
        model.require(not gone & unread, "R3", f"{self.name} expired {gone & unread}, which a reader has not read")
        refs = before.refs.keys() - after.refs.keys()
        model.require(refs <= may_go.ref_names, "R1", f"{self.name} dropped {refs - may_go.ref_names}")


READERS_LAG_MS = 7 * DAY_MS


def _unread(metadata: TableMetadata, now_ms: int) -> set[int]:
    """The snapshot that each reader of main has read last, and those after it, while none of them is older than its lag."""
    line = [snapshot.snapshot_id for snapshot in metadata.ancestors(metadata.current_snapshot_id)]
    found: set[int] = set()
    for key, reached in metadata.properties.items():
        if key.startswith("icekeep.consumer.") and int(reached) in line:
            after = line[: line.index(int(reached))]
            times = [metadata.snapshots_by_id[i].timestamp_ms for i in after]
            if not times or now_ms - min(times) <= READERS_LAG_MS:
                found |= {int(reached), *after}
    return found


class RegisterReader(Operation):
    """A reader says how far it has come: it reads on along main from where it was, or begins anywhere on it."""

    changes = frozenset({"properties"})

    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        self.key = f"icekeep.consumer.reader-{self.random.randint(1, 2)}.snapshot-id"
        line = [snapshot.snapshot_id for snapshot in table.metadata.ancestors(table.metadata.current_snapshot_id)]
        reached = int(table.metadata.properties.get(self.key, "0"))
        ahead = line[: line.index(reached)] if reached in line else line
        if not ahead:
            return False
        self.reached = str(self.random.choice(ahead))
        return self.commit(client, table, ChangeProperties(updates={self.key: self.reached}))

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        model.require(
            after.properties == {**before.properties, self.key: self.reached},
            "C10",
            f"{self.name} changed other properties",
        )


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


DAY_MS = 24 * 3600 * 1000


class RemoveOrphans(Operation):
    """The job as it is; files that were written a day ago, and that nothing leads to, are orphans.

    It begins when two days have gone by in which nobody did anything: no file of a writer under way is that old.
    """

    waits = True

    def run(self, client: Client) -> bool:
        client.world.removing_orphans.add(self)
        try:
            done = remove_orphan_files(
                with_runtime(client.catalog.load(EVENTS), client),
                no_spark,
                older_than=client.now_ms() - DAY_MS,
                trash=self.random.choice([0, 0, 1]),
                force=True,
            )
        finally:
            client.world.removing_orphans.remove(self)
        seen = client.world.seen
        seen["files removed as orphans"] += done.deleted_files_count
        seen["files that are no orphans since a plan names them"] += done.kept.waiting_count
        return False

    def effect(self, model: Model, before: object, after: object) -> Effect | None:
        raise NotImplementedError("it never commits")

    def deletes(self, model: Model, location: str) -> None:
        """Nothing goes as an orphan that a plan names, unless its time has come, or some run carries it out.

        A file of two plans goes by the one that keeps it for longer: to its trash, while the other still waits.
        """
        disk, now_ms = model.world.disk, model.world.scheduler.now_ms
        for directory, names, until_ms in waiting_plans(disk, now_ms):
            model.require(
                location not in names or days_in_trash_end_ms(disk, location, now_ms) >= until_ms,
                "G2",
                f"{location!r} is deleted as an orphan; plan {directory!r} names it",
            )


class ExpireAndWait(ExpireAndReclaim):
    """Its files stay in their places for days, so that its snapshots can come back."""

    grace = ("0", "5d")
    trash = (0, 1, 3)


class RestoreBeside(Restore):
    """Brings back what somebody is about to delete, or while orphans are removed: when most is at stake."""

    def run(self, client: Client) -> bool:
        for _ in range(self.random.randint(1, 200)):
            world = client.world
            if world.removing_orphans or any(claim["owner"] for _, claim in claimed_plans(world.disk)):
                break
            client.sleep_ms(100)
        client.sleep_ms(self.random.choice([0, 100, 500]))
        return super().run(client)


def waiting_plans(disk: Disk, now_ms: int) -> Iterator[tuple[str, set[str], int]]:
    """The plans of expirations that wait, are done or are being restored: what each names, and until when it keeps that.

    A file of two plans whose time has come goes by either of them, to the trash of the one that keeps it for longer. A restore
    that has not said yet that it brings its files back gives up where another run is at work on them.
    """
    for directory, claim in claimed_plans(disk):
        plan = json.loads(disk.files[f"{directory}/plan.json"][0])
        if plan["job"] != "expire_snapshots" or claim["job"] not in ("expire_snapshots", "restore"):
            continue
        is_done = f"{directory}/done.json" in disk.files
        if claim["job"] == "restore" and not claim["restored_ms"] and not is_done:
            continue
        if claim["job"] == "expire_snapshots" and plan["not-before-ms"] <= now_ms and not is_done:
            continue
        until_ms = plan["not-before-ms"]
        if claim["restored_ms"] or is_done:
            until_ms = max(until_ms, plan["trash-until-ms"] or 0, claim["restored_ms"] + DAY_MS)
        yield directory, named_by(disk, plan), until_ms


def named_by(disk: Disk, plan: dict[str, Any]) -> set[str]:
    """The files of a plan."""
    parts = (disk.files.get(part["location"], (b"", 0))[0] for part in plan["parts"])
    return {json.loads(line)["location"] for part in parts for line in part.splitlines()}


def days_in_trash_end_ms(disk: Disk, location: str, now_ms: int) -> int:
    """Until when a file that goes to a trash now is kept there; 0 if it is in none."""
    ends = [0]
    for directory, _ in claimed_plans(disk):
        plan = json.loads(disk.files[f"{directory}/plan.json"][0])
        in_trash = f"{directory}/files/{location.removeprefix(LOCATION).lstrip('/')}"
        if plan["trash-until-ms"] is not None and in_trash in disk.files:
            ends.append(now_ms + plan["trash-until-ms"] - plan["not-before-ms"])
    return max(ends)


def claimed_plans(disk: Disk) -> Iterator[tuple[str, dict[str, Any]]]:
    """The directories of plans that count, with the last claim of each: which job is or was at work on it, and who is now."""
    own = [name for name in disk.files if name.startswith(f"{LOCATION}/.icekeep/")]
    for head in own:
        directory, _, name = head.rpartition("/")
        last = max((claim for claim in own if claim.startswith(f"{directory}/claims/")), default=None)
        if name == "plan.json" and last is not None:
            yield directory, json.loads(disk.files[last][0])


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


class _Staged(msgspec.Struct, frozen=True):
    """A change whose snapshot no ref is set to, as engines make it that stage what they write.

    Main is set to where it is, which requires that it is there still: else a catalog that applies updates to what their
    writer has not seen would take a snapshot of files that were expired meanwhile, and deleted.
    """

    change: Any

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        added = tuple(update for update in self.change.apply(base, attempt) if isinstance(update, AddSnapshot))
        return (*added, SetSnapshotRef(MAIN, base.refs[MAIN])) if MAIN in base.refs else added


class _AsItIs(msgspec.Struct, frozen=True):
    """The picking of a snapshot where it becomes current itself.

    A catalog that applies updates to what its writer has not seen can be required nothing of snapshots that no ref names: a
    replay could bring in files of one that has just expired, and whose files are being deleted.
    """

    change: CherryPick

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        updates = self.change.apply(base, attempt)
        if any(isinstance(update, AddSnapshot) for update in updates):
            raise ConflictError("main has moved on")
        return updates


class Stage(Operation):
    """Appends rows, or replaces the partitions that they belong to, in a snapshot beside main."""

    makes_snapshot = True

    def run(self, client: Client) -> bool:
        table = client.catalog.load(EVENTS)
        summary = {STAGED_WAP_ID: self.name} if self.random.random() < 0.7 else {}
        kind = self.random.choice(KINDS)
        with self.discarded_if_refused(client):
            files = self.write_files(client, table, self.new_rows(kind))
            if self.random.random() < 0.6:
                return self.commit(client, table, _Staged(AppendFiles(files=files, summary=summary)))
            change = OverwriteFiles(
                rows=ALWAYS_TRUE if table.metadata.spec.is_unpartitioned else is_of(kind),
                added=files,
                starting_snapshot_id=table.metadata.current_snapshot_id,
                summary={**summary, "replace-partitions": "true"},
            )
            return self.commit(client, table, _Staged(change))

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect:
        return Effect(MAIN)


class Publish(Operation):
    """Picks a snapshot that is not in the history of main: main moves to it, or what it did is done once more."""

    makes_snapshot = True
    moves_refs = frozenset({MAIN})

    def run(self, client: Client) -> bool:
        metadata = (table := client.catalog.load(EVENTS)).metadata
        others = [
            s for s in metadata.snapshots if not is_ancestor(metadata, s.snapshot_id, of=metadata.current_snapshot_id)
        ]
        if not others:
            return False
        next_ = [s for s in others if s.parent_snapshot_id == metadata.current_snapshot_id]
        self.picked = self.random.choice(next_ if next_ and self.random.random() < 0.4 else others)
        change = CherryPick(self.picked.snapshot_id)
        return self.commit(client, table, _AsItIs(change) if self.model.world.applies_updates else change)

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect | None:
        number = self.picked.snapshot_id
        # A writer whose answer is lost recognises only a snapshot of its own.
        self.makes_snapshot = after.current_snapshot_id != number
        if not self.makes_snapshot:
            model.world.seen["snapshots published as they are"] += 1
            return None
        model.world.seen["snapshots replayed"] += 1
        view, parent = model.known_view(number), self.picked.parent_snapshot_id
        was_live = model.known_view(parent).live if parent is not None else {}
        data = {path for path, file in view.live.items() if file.content is FileContent.DATA}
        removed = {path for path, file in was_live.items() if file.content is FileContent.DATA} - data
        added = {path for path in data if view.live[path].snapshot_id == number}
        return Effect(MAIN, frozenset(removed), frozenset(added))

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        number = self.picked.snapshot_id
        head = before.current_snapshot_id
        if not self.makes_snapshot:
            model.require(self.picked.parent_snapshot_id == head, "C5", f"{self.name} took snapshots off main")
            return
        done = [other for other in model.replays[number] if is_ancestor(before, other, of=head)]
        model.require(not done, "C4", f"{self.name} published {number} again, which {done} did")
        model.replays[number].append(after.current_snapshot_id)
