"""Questions to manifests about single live files: of a large table a reader puts them to many manifests at once, in Spark tasks.

A change asks by these, and not by going through all entries: what it gets is as much as it asked for.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.file_sets import digest_of_all
from icekeep.commit.filtering import EntryReader, without_history
from icekeep.spec.applicability import (
    PartitionKey,
    PathDigest,
    only_data_file,
    partition_key,
    path_digest,
    sequence_number,
)
from icekeep.spec.bins import growing
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata


def live_at(
    paths: Iterable[str], manifests: Sequence[ManifestFile], base: TableMetadata, attempt: Attempt
) -> dict[str, ManifestEntry]:
    """The live entries of the data files at some paths, by path, as far as there are any."""
    question = _LiveAt(without_history(base), frozenset(map(path_digest, paths)))
    found: dict[str, ManifestEntry] = {}
    for some in growing(manifests):
        if len(found) == len(question.paths):
            break
        found |= {entry.data_file.file_path: entry for each in attempt.gathered(some, question) for entry in each}
    return found


def any_live_at(
    paths: Iterable[str], manifests: Sequence[ManifestFile], base: TableMetadata, attempt: Attempt
) -> str | None:
    """One of some paths at which there is a live data file; `None` if there is none at any."""
    question = _LiveAt(without_history(base), frozenset(map(path_digest, paths)))
    live = (entry for each in attempt.gathered(manifests, question) for entry in each)
    return next((entry.data_file.file_path for entry in live), None)


def deletes_newer_than(
    number: int, manifests: Sequence[ManifestFile], base: TableMetadata, attempt: Attempt
) -> Iterator[ManifestEntry]:
    """The live delete files with greater data sequence numbers; looked for once they are asked for."""
    for each in attempt.gathered(manifests, _NewerThan(without_history(base), number)):
        yield from each


def position_deletes_of(
    data: Iterable[DataFile], manifests: Sequence[ManifestFile], base: TableMetadata, attempt: Attempt
) -> Iterator[ManifestEntry]:
    """The live vectors and position delete files that may be for some data files, by path or partition."""
    files = list(data)
    question = _PositionDeletesOf(
        without_history(base),
        frozenset(path_digest(file.file_path) for file in files),
        frozenset(map(partition_key, files)),
    )
    return (entry for each in attempt.gathered(manifests, question) for entry in each)


class _LiveAt(msgspec.Struct, frozen=True):
    base: TableMetadata
    paths: frozenset[PathDigest]

    @property
    def key(self) -> Hashable:
        return "live at", digest_of_all(self.paths)

    def run(self, manifest: ManifestFile, reader: EntryReader) -> list[ManifestEntry]:
        return [e for e in _live(manifest, self.base, reader) if path_digest(e.data_file.file_path) in self.paths]


class _NewerThan(msgspec.Struct, frozen=True):
    base: TableMetadata
    number: int

    @property
    def key(self) -> Hashable:
        return "newer than", self.number

    def run(self, manifest: ManifestFile, reader: EntryReader) -> list[ManifestEntry]:
        return [entry for entry in _live(manifest, self.base, reader) if sequence_number(entry) > self.number]


class _PositionDeletesOf(msgspec.Struct, frozen=True):
    base: TableMetadata
    paths: frozenset[PathDigest]
    partitions: frozenset[PartitionKey]

    @property
    def key(self) -> Hashable:
        return "position deletes of", digest_of_all(self.paths), digest_of_all(self.partitions)

    def run(self, manifest: ManifestFile, reader: EntryReader) -> list[ManifestEntry]:
        return [entry for entry in _live(manifest, self.base, reader) if self._may_be_for_them(entry.data_file)]

    def _may_be_for_them(self, delete: DataFile) -> bool:
        if delete.content is not FileContent.POSITION_DELETES:
            return False
        only = only_data_file(delete)
        return partition_key(delete) in self.partitions if only is None else path_digest(only) in self.paths


def _live(manifest: ManifestFile, base: TableMetadata, reader: EntryReader) -> Iterator[ManifestEntry]:
    return (entry for entry in reader.entries(manifest, base) if entry.is_live)
