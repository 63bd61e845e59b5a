"""Operations that replace data files by others that hold the same rows, and what each may do beside that."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from icekeep.catalog.base import Table
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.events import Event, Warned
from icekeep.maintenance.rewrite.run import TAG_PREFIX, hold_start
from icekeep.spec.manifests.structs import FileContent, ManifestContent, ManifestEntry
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.reach import applied_delete
from icekeep.spec.snapshots import SnapshotRef
from simulation.carrying import CarriedRows
from simulation.client import Client
from simulation.doing import Effect
from simulation.file_operations import OnBranch
from simulation.model import SKEW_MS, Live, Model

_CLEANS = 0.3
_CARRIES = 0.8


class Compact(OnBranch):
    """Rewrites some files into the current partition spec, with all deletes that reach them applied.

    Most carry over what others delete in these files meanwhile; to some, as to other users of the library, it is a conflict.
    """

    remove_dangling = False
    carrier: CarriedRows | None = None

    def change(self, client: Client, table: Table) -> Any:
        metadata = table.metadata
        entries, deletes = self.entries(client, table), self.entries(client, table, ManifestContent.DELETES)
        spec = self.spec(table)
        chosen = self.chosen(entries, spec)
        if not chosen:
            return None
        head = metadata.head(self.branch)
        assert head is not None
        self.removed = frozenset(e.data_file.file_path for e in chosen)
        self.read_number = head.sequence_number
        self.sequence_number = head.sequence_number if self.random.random() < 0.7 else None
        self.moved = frozenset(e.data_file.spec_id for e in chosen) - {spec.spec_id}
        visible = self.model.visible(self.live(table))
        rows = _as_sets(visible[path] for path in sorted(self.removed))
        applied = reaching_deletes(chosen, deletes, metadata.specs_by_id)
        added = self.write_files(client, table, *rows, spec=spec)
        if self.random.random() < _CARRIES:
            kept = {path: visible[path] for path in self.removed}
            self.carrier = CarriedRows(self, client, kept, applied, added)
            self.model.being_rewritten |= self.removed
            # A rewrite takes its time, and that is when others delete.
            client.sleep_ms(self.random.choice([0, 500, 2_000]))
        return RewriteFiles(
            removed=tuple(chosen),
            added=added,
            schema_id=metadata.current_schema_id,
            applied_deletes={path: frozenset(map(applied_delete, found)) for path, found in applied.items()},
            moved_spec_ids=self.random.choice([None, self.moved]),
            format_version=metadata.format_version,
            starting_sequence_number=self.read_number,
            data_sequence_number=self.sequence_number,
            remove_dangling=self.remove_dangling,
            proof=self.shown,
            carrier=self.carrier,
            branch=self.branch,
        )

    def spec(self, table: Table) -> PartitionSpec:
        """What the new files are written with."""
        return table.metadata.spec

    def chosen(self, entries: list[ManifestEntry], spec: PartitionSpec) -> list[ManifestEntry]:
        """The data files to replace."""
        return self.random.sample(entries, min(len(entries), self.random.randint(1, 4)))

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect | None:
        carried = frozenset[str]() if self.carrier is None else self.carrier.written
        return Effect(self.branch, self.removed, self.added, self.sequence_number, same_rows=True, may_carry=carried)

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        super().check(model, before, after)
        live = model.live(after, self.branch)
        left = sorted(p for p in live if model.deletes.get(p, ("",))[0] in self.removed and model.unnamed.get(p, True))
        model.require(not left, "D7", f"{self.name} left {left}, which are for files that it replaced")
        if self.moved and self.added:
            live = model.live(before, self.branch)
            newer = sorted(path for path, file in live.items() if _is_newer_equality_delete(file, self.read_number))
            model.require(not newer, "D4", f"{self.name} moved rows to another spec, and {newer} came meanwhile")


class CompactAndClean(Compact):
    """Removes the delete files as well that reach nothing once it is done."""

    remove_dangling = True

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        super().check(model, before, after)
        require_no_dangling(model, model.live(after, self.branch), self.name)
        gone = model.live(before, self.branch).keys() - model.live(after, self.branch).keys() - self.removed
        self.model.world.seen["dangling delete files removed"] += len(gone)


class CompactIntoAnotherSpec(Compact):
    """Moves files of other partition specs into one of the table's, and may clean up as well."""

    def change(self, client: Client, table: Table) -> Any:
        self.remove_dangling = self.random.random() < _CLEANS
        return super().change(client, table)

    def spec(self, table: Table) -> PartitionSpec:
        return self.random.choice(table.metadata.partition_specs)

    def chosen(self, entries: list[ManifestEntry], spec: PartitionSpec) -> list[ManifestEntry]:
        return super().chosen([entry for entry in entries if entry.data_file.spec_id != spec.spec_id], spec)


class CompactHoldingItsStart(Compact):
    """Holds the snapshot that it read by a tag, as the job does, and takes its time.

    It lands up to three times, and once more for each tag that another run has left.
    """

    tag = ""

    @property
    def unrecognised(self) -> bool:
        return True

    def commit(self, client: Client, table: Table, change: Any) -> bool:
        assert self.start_id is not None
        run_id = str(client.new_uuid())
        self.tag = f"{TAG_PREFIX}{run_id}"
        runs = {name for name in table.metadata.refs if name.startswith(TAG_PREFIX)}
        self.moves_refs |= {self.tag, *runs}
        warnings = _Warnings()
        with hold_start(table, self.start_id, run_id, client, warnings):
            for _ in range(self.random.randint(1, 4)):
                client.sleep_ms(self.random.choice([1_000, 30_000]))
                self._check_held()
            warnings.count = 0
            changed = super().commit(client, table, change)
            self._check_held()
        assert self.model.current is not None
        left = self.tag in self.model.current.refs
        self.model.require(bool(warnings.count) or not left, "R1", f"{self.name} left its tag behind")
        return changed

    def _check_held(self) -> None:
        """As long as the tag's age allows, what was read is there, whoever expires what."""
        current, world = self.model.current, self.model.world
        assert current is not None
        assert self.start_id is not None
        age_ms = world.scheduler.now_ms - self.began_ms
        held = self.tag in current.refs and self.start_id in current.snapshots_by_id
        may_be_gone = age_ms > 24 * 3600 * 1000 - SKEW_MS
        self.model.require(held or may_be_gone, "R1", f"snapshot {self.start_id}, which {self.name} reads, is not held")
        world.seen["looks at a starting snapshot that is held"] += 1

    def effect(self, model: Model, before: TableMetadata, after: TableMetadata) -> Effect | None:
        return None if _tags(before) != _tags(after) else super().effect(model, before, after)

    def check(self, model: Model, before: TableMetadata, after: TableMetadata) -> None:
        was, now = _tags(before), _tags(after)
        if was == now:
            super().check(model, before, after)
            return
        same = before.snapshots == after.snapshots
        model.require(same, "C10", f"{self.name} changed snapshots where it moved a tag")
        for name in was.keys() - now.keys() - {self.tag}:
            ref = was[name]
            age_ms = model.world.scheduler.now_ms - before.snapshots_by_id[ref.snapshot_id].timestamp_ms
            is_dead = age_ms > (ref.max_ref_age_ms or 0) - SKEW_MS
            model.require(is_dead, "R1", f"{self.name} dropped {name!r} of a run that may be alive")
        model.require(now.keys() - was.keys() <= {self.tag}, "C10", f"{self.name} made tags of other runs")


def require_no_dangling(model: Model, live: dict[str, Live], name: str) -> None:
    """What reaches nothing is gone; that of unnamed deletes with bounds that were cut nobody can know by these."""
    left = [path for path in dangling(model, live) if model.unnamed.get(path, True)]
    model.require(not left, "D7", f"{name} left {left}, which reach no live data file")


def dangling(model: Model, live: dict[str, Live]) -> list[str]:
    """The delete files that reach no live data file, as the spec has it, one pair at a time."""
    data = {path: file for path, file in live.items() if file.content is FileContent.DATA}
    return sorted(
        path
        for path, file in live.items()
        if path not in data and not any(_reaches(model, path, file, *one) for one in data.items())
    )


def _reaches(model: Model, path: str, delete: Live, data_path: str, data: Live) -> bool:
    target, _ = model.deletes[path]
    number, data_number = delete.sequence_number or 0, data.sequence_number or 0
    if target is not None:
        return target == data_path and data_number <= number
    return (delete.is_global or delete.partition == data.partition) and data_number < number


def _is_newer_equality_delete(file: Live, number: int) -> bool:
    return file.content is FileContent.EQUALITY_DELETES and (file.sequence_number or 0) > number


def _tags(metadata: TableMetadata) -> dict[str, SnapshotRef]:
    return {name: ref for name, ref in metadata.refs.items() if name.startswith(TAG_PREFIX)}


def _as_sets(rows: Iterable[frozenset[int]]) -> list[frozenset[int]]:
    """The same rows in as few sets as hold them: what was published twice is there twice."""
    counts = Counter(row for held in rows for row in held)
    return [
        frozenset(row for row, count in counts.items() if count > at) for at in range(max(counts.values(), default=0))
    ]


class _Warnings:
    """A listener that counts what went wrong on the side."""

    def __init__(self) -> None:
        self.count = 0

    def on(self, event: Event) -> None:
        self.count += isinstance(event, Warned)
