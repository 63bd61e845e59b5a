"""How a change reads and filters manifests: in this process, one manifest at a time.

For large tables `planning.commit_readers` has subclasses of the reader that use Spark, or copy encoded entries.
"""

from collections.abc import Hashable, Iterator, Sequence
from copy import copy
from functools import partial
from threading import Lock
from typing import Any, Self, TypeVar

from icekeep.commit.filtering import FilteredShare, FilterManifests, Gathering, LastingKey, MergeManifests, read_as
from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.manifests.read import (
    ManifestHeader,
    completed,
    inspect_manifest,
    read_manifest,
    read_manifest_header,
    read_manifest_list,
)
from icekeep.spec.manifests.structs import ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import StructType
from icekeep.storage.base import Storage, answer_each
from icekeep.storage.locations import requests_at_once

T = TypeVar("T")
_HEAD_BYTES = 64 << 10
_REMEMBERED_COUNT = 20_000
"""Remembered entries: some 60 MB, and as many as a driver reads without Spark."""
_ANSWERS_COUNT = 100_000
"""Remembered short answers: some 40 MB."""


class EntryMemory:
    """Entries of as many manifests as there is room for: later attempts of a commit, or later commits of a run, read nearly
    all of them again, and manifests never change.
    """

    def __init__(self, max_entries: int = _REMEMBERED_COUNT) -> None:
        self._room = max_entries
        self._entries: dict[Hashable, tuple[ManifestEntry, ...]] = {}
        self._lock = Lock()
        self.with_unknown_fields: set[str] = set()
        """Paths of the manifests with unknown fields among those that were read."""

    def get(self, manifest: ManifestFile) -> tuple[ManifestEntry, ...] | None:
        """All entries of a manifest, if they are remembered."""
        return self._entries.get(read_as(manifest))

    def keeping(self, manifest: ManifestFile, entries: Iterator[ManifestEntry]) -> Iterator[ManifestEntry]:
        """The same entries, which are remembered after the last one if there is room for them."""
        if manifest.entries_count is None or manifest.entries_count > self._room:
            yield from entries
            return
        held = []
        for entry in entries:
            held.append(entry)
            yield entry
        with self._lock:
            if len(held) <= self._room and read_as(manifest) not in self._entries:
                self._entries[read_as(manifest)] = tuple(held)
                self._room -= len(held)


class ManifestReader:
    """Reads manifest lists and manifests through a storage, and remembers entries and answers within limits."""

    def __init__(self, storage: Storage, memory: EntryMemory | None = None) -> None:
        self.storage = storage
        self._memory = EntryMemory() if memory is None else memory
        self._answers: dict[Hashable, Any] = {}

    def with_storage(self, storage: Storage) -> Self:
        """The same reader, with the same memory, over the storage of another load of the table."""
        if storage is self.storage:
            return self
        other = copy(self)
        other.storage = storage
        return other

    def manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        """The rows of a snapshot's manifest list, in order."""
        if snapshot.manifest_list is None:
            # Version 1 only: no list has their lengths and counts, so whole manifests are read.
            return [inspect_manifest(self.storage.read(location), location) for location in snapshot.manifests or ()]
        return read_manifest_list(self.storage.read(snapshot.manifest_list), snapshot.manifest_list)

    def spec_ids(self, snapshots: Sequence[Snapshot]) -> frozenset[int]:
        """The ids of the partition specs of the manifests of some snapshots."""
        return frozenset(m.partition_spec_id for snapshot in snapshots for m in self.manifests(snapshot))

    def entries(self, manifest: ManifestFile, metadata: TableMetadata) -> Iterator[ManifestEntry]:
        """All entries of a manifest in order, deleted ones included."""
        remembered = self._memory.get(manifest)
        if remembered is not None:
            return iter(remembered)
        partition = metadata.partition_type(manifest.partition_spec_id)
        return self._memory.keeping(manifest, self.typed_entries(manifest, partition))

    def typed_entries(self, manifest: ManifestFile, partition: StructType) -> Iterator[ManifestEntry]:
        """As `entries`, not remembered, for tasks that have only the partition type of the manifest's spec."""
        header, entries = read_manifest(self._read(manifest), manifest, partition)
        if header.unknown_field_ids:
            self._memory.with_unknown_fields.add(manifest.manifest_path)
        return entries

    def has_unknown_fields(self, manifest: ManifestFile) -> bool:
        """Whether a manifest, whose entries were read, has unknown fields."""
        return manifest.manifest_path in self._memory.with_unknown_fields

    def header(self, manifest: ManifestFile) -> ManifestHeader:
        """The metadata of a manifest; only its first bytes are read."""
        location = manifest.manifest_path
        with self.storage.open(location) as stream:
            head = stream.read(_HEAD_BYTES)
            try:
                return read_manifest_header(head, location)
            except InvalidTableError:
                # A schema of hundreds of columns may take more.
                return read_manifest_header(head + stream.read(), location)

    def completed(self, manifest: ManifestFile, metadata: TableMetadata) -> ManifestFile:
        """A manifest's row with the counts that a list of version 1 may lack."""
        return completed(manifest, self._read(manifest), metadata.partition_type(manifest.partition_spec_id))

    def check_counts(self, manifests: Sequence[ManifestFile], metadata: TableMetadata) -> None:
        """Read whole manifests, and raise `InvalidTableError` if the list of one counts other entries."""

        def check(manifest: ManifestFile) -> None:
            # No entry needs to be remembered.
            for _ in self.typed_entries(manifest, metadata.partition_type(manifest.partition_spec_id)):
                pass

        answer_each(check, manifests, read_as, requests_at_once(one.manifest_path for one in manifests))

    def gathered(self, manifests: Sequence[ManifestFile], work: Gathering[T]) -> list[T]:
        """The answers of some work for each manifest, in their order."""
        key = work.key
        if not isinstance(key, LastingKey):
            return self._asked(manifests, work)
        rows = [(key, read_as(manifest)) for manifest in manifests]
        answers = {row: self._answers[row] for row in rows if row in self._answers}
        todo = {row: manifest for row, manifest in zip(rows, manifests, strict=True) if row not in answers}
        if todo:
            answers.update(zip(todo, self._asked([*todo.values()], work), strict=True))
            room = _ANSWERS_COUNT - len(self._answers)
            self._answers.update((row, answers[row]) for row in [*todo][:room])
        return [answers[row] for row in rows]

    def _asked(self, manifests: Sequence[ManifestFile], work: Gathering[T]) -> list[T]:
        """The answers for manifests whose answers are not remembered."""
        return answer_each(
            partial(work.run, reader=self), manifests, read_as, requests_at_once(one.manifest_path for one in manifests)
        )

    def filtered(
        self, manifests: Sequence[ManifestFile], work: FilterManifests, locations: Iterator[str]
    ) -> list[FilteredShare]:
        """Do the work on all manifests, together or in shares; each manifest is in the answer of one share.

        After an error, manifests that were written at locations other than those of `locations` are deleted.
        """
        return [work.run(manifests, self, locations)]

    def merged(
        self, manifests: Sequence[ManifestFile], work: MergeManifests, locations: Iterator[str]
    ) -> list[ManifestFile]:
        """Merge manifests into new ones, written at the next of some locations."""
        return work.run(manifests, self, locations)

    def _read(self, manifest: ManifestFile) -> bytes:
        refuse_encrypted_manifest(manifest)
        return self.storage.read(manifest.manifest_path, manifest.manifest_length)


def refuse_encrypted_manifest(manifest: ManifestFile) -> None:
    """Raise `UnsupportedError` for an encrypted manifest."""
    if manifest.key_metadata is not None:
        raise UnsupportedError(
            f"manifest {manifest.manifest_path!r} is encrypted; encrypted tables are not supported yet"
        )
