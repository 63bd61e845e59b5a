"""What is asked of many manifests, and made of them: work that a `ManifestReader` does here, or shares out to tasks."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from icekeep.commit.carrying import ChangedDeletes
from icekeep.commit.file_sets import Digest, StoredFileSet, Wanted, entry_digest
from icekeep.commit.manifest_writer import ManifestWriter
from icekeep.commit.selection import Selection
from icekeep.commit.summary import SummaryBuilder
from icekeep.spec.applicability import PathDigest, path_digest
from icekeep.spec.manifests.decode import ManifestHeader
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.storage.base import Storage

_HELD_ENTRIES_COUNT = 20_000
"""A manifest of so many entries is held while it is filtered; a longer one is read a second time to be written."""

Identity = tuple[str, int | None]
Found = TypeVar("Found", covariant=True)
T = TypeVar("T")


def identity(manifest: ManifestFile) -> Identity:
    """What a manifest's entries are read as: after an upgrade to version 3 a commit may give row ids to one that is kept."""
    return manifest.manifest_path, manifest.first_row_id


def read_as(manifest: ManifestFile) -> Hashable:
    """All of a manifest's row that its entries take values from: what was found in them holds only where this is equal.

    Another commit may correct a row meanwhile, and its manifest stays.
    """
    return identity(manifest), manifest.sequence_number, manifest.added_snapshot_id


def without_history(metadata: TableMetadata) -> TableMetadata:
    """A table's definitions alone, which do not grow with its age: what tasks are sent."""
    return msgspec.structs.replace(
        metadata,
        snapshots=(),
        snapshot_log=(),
        metadata_log=(),
        statistics=(),
        partition_statistics=(),
        refs={},
        current_snapshot_id=None,
    )


class Filtered(msgspec.Struct, frozen=True):
    """What became of one manifest: those in its place, and what they have no more.

    `wanted_count` is how many of the files that were named it had, `files_count` how many went in all; `paths` are the
    digests of their paths.
    """

    manifests: tuple[ManifestFile, ...]
    files_count: int
    wanted_count: int
    paths: frozenset[PathDigest]
    summary: SummaryBuilder


class Checked(msgspec.Struct, frozen=True):
    """What a check says of removed files, by path: why some may not go, and whose deletes of positions have changed."""

    refusals: Mapping[str, str] = {}
    changed: Mapping[str, ChangedDeletes] = {}

    @classmethod
    def joined(cls, some: Iterable["Checked"]) -> "Checked":
        """What checks of different files say."""
        refusals: dict[str, str] = {}
        changed: dict[str, ChangedDeletes] = {}
        for one in some:
            refusals.update(one.refusals)
            changed.update(one.changed)
        return cls(refusals, changed)


class FilteredShare(msgspec.Struct, frozen=True):
    """What came of one share of the work; what the check found is for the one who decides."""

    filtered: Mapping[Identity, Filtered]
    checked: Checked = Checked()

    def written(self, others: AbstractSet[str]) -> list[str]:
        """The locations of the manifests that were written for it: those of its manifests that are not among the others."""
        new = dict.fromkeys(m.manifest_path for filtered in self.filtered.values() for m in filtered.manifests)
        return [location for location in new if location not in others]


class EntryReader(Protocol):
    """The part of a `ManifestReader` that this work needs."""

    storage: Storage
    """Where parts of a stored set are read."""

    def entries(self, manifest: ManifestFile, metadata: TableMetadata) -> Iterator[ManifestEntry]:
        """All entries of a manifest in order, deleted ones included."""

    def has_unknown_fields(self, manifest: ManifestFile) -> bool:
        """Whether a manifest, whose entries were read, has fields that we do not know."""

    def header(self, manifest: ManifestFile) -> ManifestHeader:
        """What a manifest says of itself; only its head is read."""


class LastingKey(str):
    """The key of a question that has short answers and depends on nothing but the manifest: they hold in all commits of a run."""

    __slots__ = ()


class Gathering(Protocol[Found]):
    """A question to single manifests; can be pickled.

    `key` is equal where the answers are, for a manifest that is read as the same: in one commit, or, where it is a
    `LastingKey`, in all.
    """

    @property
    def key(self) -> Hashable:
        """See above."""

    def run(self, manifest: ManifestFile, reader: EntryReader) -> Found:
        """The answer of one manifest."""


class Gatherer(Protocol):
    """Who has manifests asked: an attempt, which remembers the answers, or a reader."""

    def gathered(self, manifests: Sequence[ManifestFile], work: Gathering[T]) -> list[T]:
        """What some work finds in each manifest, in their order."""


class RemovalCheck(Protocol):
    """What must hold of files before they may go; can be pickled.

    `key` is equal for checks of the same base as far as they ask it.
    """

    @property
    def key(self) -> Hashable:
        """See above."""

    def checked(self, removed: Sequence[ManifestEntry], wanted: Wanted, reader: EntryReader) -> Checked:
        """Which of them may not, and which only if their deletes of positions are carried over."""


class FilterManifests(msgspec.Struct, frozen=True, kw_only=True):
    """Mark files as deleted in manifests of one content; can be pickled.

    Args:
        base: the table, of which only definitions are asked.
        files: which files are named; of a stored set, those that were read from the manifests of a share are looked for,
            and those of `strays`, manifests that the base does not have any more, anywhere.
        remaining_count: how many of the named files are still to be found; then only `selected` is asked.
        selected: which other files go.
        known: manifests that an earlier attempt has filtered: they are read for `check` alone.
    """

    base: TableMetadata
    writer: ManifestWriter
    files: Wanted | StoredFileSet
    remaining_count: int
    strays: frozenset[str] = frozenset()
    selected: Selection | None = None
    check: RemovalCheck | None = None
    known: Mapping[Identity, Filtered] = {}

    def question(self, manifest: ManifestFile) -> Hashable:
        """Equal for what asks the same of the manifest in another attempt."""
        asked = self._asked(manifest)
        selected = None if asked is None else asked.key(manifest)
        return read_as(manifest), manifest.content, selected, self.strays, self.writer.format_version

    def run(self, manifests: Sequence[ManifestFile], reader: EntryReader, locations: Iterator[str]) -> FilteredShare:
        """Filter a share of the manifests; new ones are written at the next of some locations."""
        wanted = self._wanted(manifests, reader)
        removed: list[ManifestEntry] = []
        filtered: dict[Identity, Filtered] = {}
        remaining = self.remaining_count
        for manifest in manifests:
            asked = self._asked(manifest)
            if remaining <= 0 and asked is None:
                continue
            entries = _Entries(manifest, self.base, reader)
            gone = [e for e in entries if entry_digest(e) in wanted.paths or (asked is not None and asked.entry(e))]
            found = self.known.get(identity(manifest))
            found = found or self._filtered(manifest, entries, gone, wanted, reader, locations)
            filtered[identity(manifest)] = found
            remaining -= found.wanted_count
            if self.check is not None:
                removed += gone
        checked = Checked() if self.check is None or not removed else self.check.checked(removed, wanted, reader)
        return FilteredShare(filtered, checked)

    def _asked(self, manifest: ManifestFile) -> Selection | None:
        return self.selected if self.selected is not None and self.selected.manifest(manifest) else None

    def _wanted(self, manifests: Sequence[ManifestFile], reader: EntryReader) -> Wanted:
        if isinstance(self.files, Wanted):
            return self.files
        own = [m.manifest_path for m in manifests if m.manifest_path in self.files.parts]
        return self.files.load(reader.storage, [*own, *self.strays])

    def _filtered(
        self,
        manifest: ManifestFile,
        entries: "_Entries",
        gone: Sequence[ManifestEntry],
        wanted: Wanted,
        reader: EntryReader,
        locations: Iterator[str],
    ) -> Filtered:
        summary = SummaryBuilder()
        for entry in gone:
            summary.remove(entry.data_file)
        digests = {entry_digest(entry) for entry in gone}
        return Filtered(
            manifests=self._written(manifest, entries, digests, reader, locations) if gone else (manifest,),
            files_count=len(gone),
            wanted_count=len(digests & wanted.paths.keys()),
            paths=frozenset(path_digest(entry.data_file.file_path) for entry in gone),
            summary=summary,
        )

    def _written(
        self,
        manifest: ManifestFile,
        entries: "_Entries",
        digests: set[Digest],
        reader: EntryReader,
        locations: Iterator[str],
    ) -> tuple[ManifestFile, ...]:
        """What comes in the place of a manifest some of whose files go; what we do not know of it stays as it is."""
        mark = partial(_marked, digests, self.writer.snapshot_id)
        spec_id, content = manifest.partition_spec_id, manifest.content
        if self.writer.specs[spec_id].has_unknown_transform or reader.has_unknown_fields(manifest):
            data = reader.storage.read(manifest.manifest_path, manifest.manifest_length)
            return (self.writer.carried(data, manifest, lambda e: mark(e) if e.is_live else None, next(locations)),)
        return tuple(self.writer.write(map(mark, entries), spec_id, content, locations))


class MergeManifests(msgspec.Struct, frozen=True, kw_only=True):
    """Put the entries of some manifests of one spec and content into new ones.

    An entry that the writer's snapshot adds or deletes keeps its status, other live ones become existing, and what was
    deleted before is dropped.
    """

    base: TableMetadata
    writer: ManifestWriter
    spec_id: int
    content: ManifestContent

    def run(
        self, manifests: Sequence[ManifestFile], reader: EntryReader, locations: Iterator[str]
    ) -> list[ManifestFile]:
        """Merge, entry by entry; new manifests are written at the next of some locations."""
        entries = (entry for manifest in manifests for entry in self.kept(reader.entries(manifest, self.base)))
        return [*self.writer.write(entries, self.spec_id, self.content, locations)]

    def kept(self, entries: Iterable[ManifestEntry]) -> Iterator[ManifestEntry]:
        """The entries that are not dropped, as they are written."""
        for entry in entries:
            if entry.snapshot_id == self.writer.snapshot_id:
                yield entry
            elif entry.is_live:
                yield msgspec.structs.replace(entry, status=Status.EXISTING)


class _Entries:
    """The live entries of a manifest, as often as they are asked for."""

    def __init__(self, manifest: ManifestFile, base: TableMetadata, reader: EntryReader) -> None:
        self._manifest, self._base, self._reader = manifest, base, reader
        count = manifest.live_files_count
        self._held = [*self._read()] if count is not None and count <= _HELD_ENTRIES_COUNT else None

    def __iter__(self) -> Iterator[ManifestEntry]:
        return self._read() if self._held is None else iter(self._held)

    def _read(self) -> Iterator[ManifestEntry]:
        return (entry for entry in self._reader.entries(self._manifest, self._base) if entry.is_live)


def _marked(removed: set[Digest], snapshot_id: int, entry: ManifestEntry) -> ManifestEntry:
    """A live entry of a removed file as deleted by this snapshot, another one as existing."""
    if entry_digest(entry) in removed:
        return msgspec.structs.replace(entry, status=Status.DELETED, snapshot_id=snapshot_id)
    return msgspec.structs.replace(entry, status=Status.EXISTING)
