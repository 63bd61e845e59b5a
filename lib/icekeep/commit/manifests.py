"""The seam through which a change reads manifests, and the small reader for the driver.

A change must know which files are live in its base. Few entries are read here, one manifest at a time; where a table is
large, `planning` hands in a reader that uses Spark.
"""

from collections.abc import Iterator
from typing import Protocol

from icekeep.errors import UnsupportedError
from icekeep.spec.manifest_decode import ManifestHeader, read_manifest, read_manifest_list
from icekeep.spec.manifests import ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import StructType
from icekeep.storage.base import Storage


class ManifestReader(Protocol):
    """Reads what a snapshot consists of; every file is checked to be whole."""

    def manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        """The rows of a snapshot's manifest list, in order."""

    def entries(self, manifest: ManifestFile, metadata: TableMetadata) -> Iterator[ManifestEntry]:
        """All entries of a manifest in order, deleted ones included."""


class StorageManifestReader:
    """Reads through a storage, in this process."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        if snapshot.manifest_list is None:
            raise UnsupportedError(f"snapshot {snapshot.snapshot_id} has no manifest list (format version 1)")
        return read_manifest_list(self._storage.read(snapshot.manifest_list), snapshot.manifest_list)

    def entries(self, manifest: ManifestFile, metadata: TableMetadata) -> Iterator[ManifestEntry]:
        return self.typed_entries(manifest, metadata.partition_type(manifest.partition_spec_id))

    def typed_entries(self, manifest: ManifestFile, partition: StructType) -> Iterator[ManifestEntry]:
        """The same as `entries`, for a task that was given the partition type of the manifest's spec."""
        return self.open(manifest, partition)[1]

    def open(self, manifest: ManifestFile, partition: StructType) -> tuple[ManifestHeader, Iterator[ManifestEntry]]:
        """What a manifest says of itself, and its entries."""
        if manifest.key_metadata is not None:
            raise UnsupportedError(
                f"manifest {manifest.manifest_path!r} is encrypted; encrypted tables are not supported yet"
            )
        data = self._storage.read(manifest.manifest_path, manifest.manifest_length)
        return read_manifest(data, manifest, partition)
