"""What the snapshots of a run need beside the files that the run removed: later runs may have removed that.

A file that an older and a younger snapshot share is not in the plan of the run that expired the older one. It goes with the
younger one, and may be in another trash, or nowhere. That it is in its place proves nothing: the run that expired the younger
one may be about to delete it. So each file that is needed must be in the plan, or live in a snapshot that the table has at the
commit. Data and delete files may also lie outside the table's own places, where no run deletes them, as imported files do.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader, StorageManifestReader
from icekeep.errors import SafetyError
from icekeep.maintenance.deletion.named_files import paths_of_others
from icekeep.maintenance.deletion.plans import DeletionPlan, read_part, trash_location
from icekeep.maintenance.deletion.reachable import Reached, reached_paths
from icekeep.maintenance.deletion.territory import territory
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.locations import canonical
from icekeep.storage.many import head_many


def check_needs(plan: DeletionPlan, before: TableMetadata, table: Table) -> None:
    """Prove that each file to which the plan's snapshots lead is there, and stays when they are back.

    Where all snapshots are still there that the table had beside these when the plan was proved, so are their files, and
    nothing is read.

    Args:
        before: the table before the run.
        table: to which the snapshots come back, as it is.

    Raises:
        SafetyError: one is not, or not everything that the table leads to can be read.
    """
    now, storage = table.metadata.snapshots_by_id, table.storage
    expired = {*plan.snapshot_ids}
    if (before.snapshots_by_id.keys() - expired) | {*plan.newer_snapshot_ids} <= now.keys():
        return
    gone = [s for s in before.snapshots if s.snapshot_id in expired and s.snapshot_id not in now]
    planned = {canonical(place) for part in plan.parts for place in read_part(part, storage)["location"].to_pylist()}
    missing = _Needs(plan, before, table, planned).missing(gone)
    if missing:
        raise SafetyError(
            f"cannot restore run {plan.run!r}: its snapshots need {len(missing)} files that later runs have removed, or are "
            f"about to remove, {missing[0]!r} among them; restore later runs first, the newest before the others (`icekeep "
            "restore --list`); where there is none the files are gone; no snapshot was restored",
            locations=missing[:100],
        )


class _Needs:
    """Finds what snapshots need and lack; their own metadata files may be in the trash of the plan still."""

    def __init__(self, plan: DeletionPlan, before: TableMetadata, table: Table, planned: set[str]) -> None:
        self._plan, self._before, self._base, self._planned = plan, before, table.metadata, planned
        self._table, self._storage = table, table.storage
        self._reader: ManifestReader = StorageManifestReader(table.storage)

    def missing(self, snapshots: Iterable[Snapshot]) -> list[str]:
        """Files that the snapshots lead to and that are neither the plan's nor held by a snapshot of the table."""
        held_lists = {canonical(s.manifest_list) for s in self._base.snapshots if s.manifest_list is not None}
        named = [(s, s.manifest_list) for s in snapshots]
        there = self._planned | held_lists
        readable = [s for s, at in named if at is None or canonical(at) in there]
        lost = [at for _, at in named if at is not None and canonical(at) not in there]
        manifests = {canonical(m.manifest_path): m for s in readable for m in self._reader.manifests(self._found(s))}
        held = {canonical(m.manifest_path): m for s in self._base.snapshots for m in self._reader.manifests(s)}
        others = [m for key, m in manifests.items() if key not in held]
        lost += [m.manifest_path for m in others if canonical(m.manifest_path) not in self._planned]
        whole = [m for m in others if canonical(m.manifest_path) in self._planned]
        files = {canonical(path): path for manifest in whole for path in self._live(manifest)}
        needed = pa.array([path for key, path in files.items() if key not in self._planned], pa.string())
        if not len(needed):
            return lost
        retained = Reached(metadata=self._base, storage=self._storage, manifests=tuple(held.values()))
        live = reached_paths(retained, stays="no snapshot is restored").paths
        unheld = [str(path) for path in needed.filter(pa.array(~live.mask(needed)))]
        return lost + self._gone_or_planned(unheld)

    def _gone_or_planned(self, files: list[str]) -> list[str]:
        """Of data and delete files that no snapshot holds all but those that nobody deletes, and that are there.

        In the table's own places an engine of others may be deleting them.
        """
        if not files:
            return files
        is_ours = territory(self._base, self._plan.roots, ()).mask(pa.chunked_array([pa.array(files, pa.string())]))
        named = paths_of_others(self._plan, self._table).mask(files)
        there = head_many(files, self._storage)
        return [
            path
            for path, *may_go, found in zip(files, is_ours, named, there, strict=True)
            if any(may_go) or found is None
        ]

    def _live(self, manifest: ManifestFile) -> Iterator[str]:
        where = self._where(manifest.manifest_path)
        for entry in self._reader.entries(replace(manifest, manifest_path=where), self._before):
            if entry.is_live:
                yield entry.data_file.file_path

    def _found(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the locations from which it can be read now."""
        if snapshot.manifest_list is not None:
            return replace(snapshot, manifest_list=self._where(snapshot.manifest_list))
        return replace(snapshot, manifests=tuple(self._where(location) for location in snapshot.manifests or ()))

    def _where(self, location: str) -> str:
        trashed = trash_location(self._plan, location)
        return trashed if self._plan.is_trash and self._storage.head(trashed) is not None else location
