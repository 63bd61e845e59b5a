"""Write, audit, publish: snapshots that no ref names, and snapshots that are published by picking them."""

from typing import Any

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.files import AppendFiles, CherryPick, OverwriteFiles
from icekeep.commit.summary import STAGED_WAP_ID
from icekeep.errors import ConflictError
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.metadata import TableMetadata, is_ancestor
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import AddSnapshot, SetSnapshotRef, Update
from simulation.client import Client
from simulation.doing import KINDS, Effect
from simulation.file_operations import is_of
from simulation.model import Model
from simulation.operation import Operation
from simulation.world import EVENTS


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
