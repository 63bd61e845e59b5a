"""What the snapshots of a run need beside the files that the run removed: later runs may have removed that.

A file that an older and a younger snapshot share is not in the plan of the run that expired the older one. It goes with the
younger one, and may be in another trash, or nowhere.
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader, StorageManifestReader
from icekeep.errors import SafetyError
from icekeep.maintenance.deletion.plans import DeletionPlan, read_part, trash_location
from icekeep.maintenance.restoring.looking import seen
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage
from icekeep.storage.locations import canonical


def check_needs(plan: DeletionPlan, before: TableMetadata, table: Table) -> None:
    """Prove that nothing which the plan's snapshots lead to is missing, beside the files of the plan itself.

    Where all snapshots that the run left are still there, so are their files, and nothing is read.

    Raises:
        SafetyError: something is missing.
    """
    now = table.metadata.snapshots_by_id
    expired = {*plan.snapshot_ids}
    if before.snapshots_by_id.keys() - expired <= now.keys():
        return
    gone = [s for s in before.snapshots if s.snapshot_id in expired and s.snapshot_id not in now]
    planned = {
        canonical(place) for part in plan.parts for place in read_part(part, table.storage)["location"].to_pylist()
    }
    missing = _Needs(plan, before, table, planned).missing(gone)
    if missing:
        raise SafetyError(
            f"cannot restore run {plan.run!r}: its snapshots need {len(missing)} files that later runs have removed, "
            f"{missing[0]!r} among them; restore those runs first, the newest before the others; nothing was restored",
            locations=missing[:100],
        )


class _Needs:
    """Looks through snapshots whose files may be in the trash of a plan still."""

    def __init__(self, plan: DeletionPlan, before: TableMetadata, table: Table, planned: set[str]) -> None:
        self._plan, self._before, self._planned = plan, before, planned
        self._storage: Storage = table.storage
        self._reader: ManifestReader = StorageManifestReader(table.storage)
        self._metadata = table.metadata

    def missing(self, snapshots: Iterable[Snapshot]) -> list[str]:
        """Files that the snapshots lead to and that are neither in their places nor the plan's."""
        lists = [s for s in snapshots if s.manifest_list is None or self._is_there(s.manifest_list)]
        lost = [s.manifest_list for s in snapshots if s.manifest_list is not None and s not in lists]
        manifests = {canonical(m.manifest_path): m for s in lists for m in self._reader.manifests(self._found(s))}
        for key in self._in_use():
            manifests.pop(key, None)
        lost += [m.manifest_path for m in manifests.values() if not self._is_there(m.manifest_path)]
        whole = [m for m in manifests.values() if m.manifest_path not in lost]
        files = {canonical(path): path for manifest in whole for path in self._live(manifest)}
        needed = [path for key, path in files.items() if key not in self._planned]
        there = seen(needed, self._storage)
        return lost + [path for path, found in zip(needed, there, strict=True) if found is None]

    def _in_use(self) -> Iterator[str]:
        """Manifests of branches and tags: all that is live in them is there."""
        heads = {ref.snapshot_id for ref in self._metadata.refs.values()}
        for snapshot_id in heads:
            for manifest in self._reader.manifests(self._metadata.snapshot(snapshot_id)):
                yield canonical(manifest.manifest_path)

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

    def _is_there(self, location: str) -> bool:
        return canonical(location) in self._planned or self._storage.head(location) is not None
