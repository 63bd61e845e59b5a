"""The seam through which a change reads manifests and has them filtered, and the reader for the driver.

A change must know which files are live in its base. Few entries are read here, one manifest at a time; where a table is
large, `planning` hands in a reader that uses Spark.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from icekeep.commit.filtering import FilterManifests, Gathering, Share
from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.manifests.decode import ManifestHeader, read_manifest, read_manifest_header, read_manifest_list
from icekeep.spec.manifests.inspection import completed, inspect_manifest
from icekeep.spec.manifests.structs import ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import StructType
from icekeep.storage.base import Storage

T = TypeVar("T")
_HEAD_BYTES = 64 << 10


class ManifestReader(Protocol):
    """Reads what a snapshot consists of; every file is checked to be whole."""

    storage: Storage

    def manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        """The rows of a snapshot's manifest list, in order."""

    def entries(self, manifest: ManifestFile, metadata: TableMetadata) -> Iterator[ManifestEntry]:
        """All entries of a manifest in order, deleted ones included."""

    def completed(self, manifest: ManifestFile, metadata: TableMetadata) -> ManifestFile:
        """A manifest's row with the counts that a list of version 1 may leave out."""

    def gathered(self, manifests: Sequence[ManifestFile], work: Gathering[T]) -> list[T]:
        """What some work finds in each manifest, in their order."""

    def filtered(
        self, manifests: Sequence[ManifestFile], work: FilterManifests, locations: Iterator[str]
    ) -> list[Share]:
        """Do the work on all manifests, at once or in shares; each that was asked is in one share's answer.

        An error leaves none of the manifests that were written at locations which `locations` did not give.
        """


class StorageManifestReader:
    """Reads through a storage, in this process."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        if snapshot.manifest_list is None:
            # Version 1 only: no list says how long they are, so they are read, whole, to know what they hold.
            return [inspect_manifest(self.storage.read(location), location) for location in snapshot.manifests or ()]
        return read_manifest_list(self.storage.read(snapshot.manifest_list), snapshot.manifest_list)

    def entries(self, manifest: ManifestFile, metadata: TableMetadata) -> Iterator[ManifestEntry]:
        return self.typed_entries(manifest, metadata.partition_type(manifest.partition_spec_id))

    def completed(self, manifest: ManifestFile, metadata: TableMetadata) -> ManifestFile:
        partition = metadata.partition_type(manifest.partition_spec_id)
        return completed(manifest, self._read(manifest), partition)

    def gathered(self, manifests: Sequence[ManifestFile], work: Gathering[T]) -> list[T]:
        return [work.run(manifest, self) for manifest in manifests]

    def filtered(
        self, manifests: Sequence[ManifestFile], work: FilterManifests, locations: Iterator[str]
    ) -> list[Share]:
        return [work.run(manifests, self, locations)]

    def typed_entries(self, manifest: ManifestFile, partition: StructType) -> Iterator[ManifestEntry]:
        """The same as `entries`, for a task that was given the partition type of the manifest's spec."""
        return read_manifest(self._read(manifest), manifest, partition)[1]

    def header(self, manifest: ManifestFile) -> ManifestHeader:
        """What a manifest says of itself; only its head is read."""
        location = manifest.manifest_path
        with self.storage.open(location) as stream:
            head = stream.read(_HEAD_BYTES)
            try:
                return read_manifest_header(head, location)
            except InvalidTableError:
                # A schema of hundreds of columns may take more.
                return read_manifest_header(head + stream.read(), location)

    def _read(self, manifest: ManifestFile) -> bytes:
        refuse_encrypted_manifest(manifest)
        return self.storage.read(manifest.manifest_path, manifest.manifest_length)


def refuse_encrypted_manifest(manifest: ManifestFile) -> None:
    """Refuse what cannot be read; raises `UnsupportedError`."""
    if manifest.key_metadata is not None:
        raise UnsupportedError(
            f"manifest {manifest.manifest_path!r} is encrypted; encrypted tables are not supported yet"
        )
