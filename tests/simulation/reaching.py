"""The proof that files are unreachable, as `maintenance.reachability` makes it, without Spark."""

from typing import Any

from icekeep.catalog.base import Table
from icekeep.commit.manifests import StorageManifestReader
from icekeep.errors import IcekeepError, SafetyError
from icekeep.maintenance.reachability import FileKind, GarbageFile, Unreachable
from icekeep.spec.manifests.structs import FileContent, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot

_KINDS = {
    FileContent.DATA: FileKind.DATA,
    FileContent.POSITION_DELETES: FileKind.POSITION_DELETES,
    FileContent.EQUALITY_DELETES: FileKind.EQUALITY_DELETES,
}


def unreachable(table: Table, spark: Any, before: TableMetadata, after: TableMetadata) -> Unreachable:
    """Stands in for the function of that name, which reads in Spark's tasks: the same set difference, one file at a time."""
    try:
        files = _garbage(StorageManifestReader(table.storage), before, after)
    except IcekeepError as error:
        raise SafetyError(f"nothing is deleted, since not everything can be read: {error.message}") from error
    return Unreachable(table_uuid=after.table_uuid, files=tuple(files), outside=())


def _garbage(reader: StorageManifestReader, before: TableMetadata, after: TableMetadata) -> list[GarbageFile]:
    gone = [s for s in before.snapshots if s.snapshot_id not in after.snapshots_by_id]
    kept = {file.statistics_path for file in (*after.statistics, *after.partition_statistics)}
    statistics = [f for f in (*before.statistics, *before.partition_statistics) if f.statistics_path not in kept]
    if not gone and not statistics:
        return []
    retained = _manifests(reader, after.snapshots)
    expired_only = {path: m for path, m in _manifests(reader, gone).items() if path not in retained}
    found: dict[str, GarbageFile] = {}
    if expired_only:
        live = {e.data_file.file_path for m in retained.values() for e in reader.entries(m, after) if e.is_live}
        for manifest in expired_only.values():
            for entry in reader.entries(manifest, before):
                file = entry.data_file
                if entry.is_live and file.file_path not in live:
                    found[file.file_path] = GarbageFile(_KINDS[file.content], file.file_path, file.file_size_in_bytes)
    lists = {s.manifest_list for s in after.snapshots}
    return [
        *found.values(),
        *(GarbageFile(FileKind.MANIFEST, path, m.manifest_length) for path, m in expired_only.items()),
        *(GarbageFile(FileKind.MANIFEST_LIST, s.manifest_list) for s in gone if s.manifest_list not in lists),
        *(GarbageFile(FileKind.STATISTICS, f.statistics_path, f.file_size_in_bytes) for f in statistics),
    ]


def _manifests(reader: StorageManifestReader, snapshots: Any) -> dict[str, ManifestFile]:
    found: dict[str, ManifestFile] = {}
    for snapshot in snapshots:
        assert isinstance(snapshot, Snapshot)
        found.update((m.manifest_path, m) for m in reader.manifests(snapshot))
    return found
