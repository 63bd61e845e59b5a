"""How a change reads, asks, filters and merges manifests: in this process, one manifest at a time.

For large tables `planning.commit_readers` has subclasses of the reader that use Spark, or copy encoded entries: so all work
can be pickled. It has keys, too: later attempts of a commit reuse an answer about a manifest where the keys are equal.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from functools import partial
from threading import Lock
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec

from icekeep.commit.file_sets import Digest, FilesToFind, StoredFileSet, entry_digest
from icekeep.commit.manifest_writer import ManifestWriter
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.manifests.read import (
    ManifestHeader,
    completed,
    inspect_manifest,
    read_manifest,
    read_manifest_header,
    read_manifest_list,
)
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import PathDigest, path_digest
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import StructType
from icekeep.storage.base import Storage, answer_each
from icekeep.storage.locations import requests_at_once

_HEAD_BYTES = 64 << 10
_HELD_ENTRIES_COUNT = 20_000
"""A manifest of at most this many entries is held while it is filtered; a longer one is read again to be written."""
_REMEMBERED_COUNT = 20_000
"""Remembered entries: some 60 MB, and as many as a driver reads without Spark."""
_ANSWERS_COUNT = 100_000
"""Remembered short answers: some 40 MB."""

ManifestKey = tuple[str, int | None]
Answer = TypeVar("Answer", covariant=True)
T = TypeVar("T")
R = TypeVar("R")


def manifest_key(manifest: ManifestFile) -> ManifestKey:
    """Path and first row id: after an upgrade to version 3 a commit may assign row ids to a manifest that it keeps."""
    return manifest.manifest_path, manifest.first_row_id


def read_as(manifest: ManifestFile) -> Hashable:
    """All that entries inherit from the row of their manifest: an answer about them holds only where this is equal.

    Another commit may correct the row of a manifest that stays.
    """
    return manifest_key(manifest), manifest.sequence_number, manifest.added_snapshot_id


def without_history(metadata: TableMetadata) -> TableMetadata:
    """A table's definitions alone, which do not grow with its age: these are sent to tasks."""
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


class LastingKey(str):
    """The key of a question whose answers are short and depend on the manifest alone: they hold in all commits of a run."""

    __slots__ = ()


class Gathering(Protocol[Answer]):
    """A question to single manifests; can be pickled.

    Equal keys mean equal answers for a manifest with the same `read_as`: in one commit, or, for a `LastingKey`, in all.
    """

    @property
    def key(self) -> Hashable: ...

    def run(self, manifest: ManifestFile, reader: "ManifestReader") -> Answer: ...


class LiveFilesQuestion(msgspec.Struct, Generic[T], frozen=True):
    """A `Gathering` over the live entries of a manifest; `answer` is a function of a module, or a `partial` of one."""

    base: TableMetadata
    key: Hashable
    answer: Callable[[Iterator[ManifestEntry]], T]

    @classmethod
    def of(
        cls, base: TableMetadata, key: Hashable, answer: Callable[[Iterator[ManifestEntry]], T]
    ) -> "LiveFilesQuestion[T]":
        return cls(without_history(base), key, answer)

    def run(self, manifest: ManifestFile, reader: "ManifestReader") -> T:
        return self.answer(entry for entry in reader.entries(manifest, self.base) if entry.is_live)


class Selection(Protocol):
    """Which live files a change removes beside those that it names."""

    def key(self, manifest: ManifestFile) -> Hashable:
        """Equal only where the answers about the entries of a manifest are; `None` where it cannot list such a file."""

    def entry(self, entry: ManifestEntry) -> bool:
        """Whether a live file is selected."""


class Filtered(msgspec.Struct, frozen=True):
    """The result of filtering one manifest: the manifests in its place, and the files removed from it.

    `files_count` of them were removed, `named_count` of these by name; `paths` are the digests of their paths.
    """

    manifests: tuple[ManifestFile, ...]
    files_count: int
    named_count: int
    paths: frozenset[PathDigest]
    summary: SummaryBuilder


class ChangedDeletes(msgspec.Struct, frozen=True, kw_only=True):
    """The deletes of positions of one replaced data file in a base, where they differ from those that the rewrite applied.

    Attributes:
        deletes: the live position delete files, or the vector, to compare.
        lacks_positions: an applied one is no longer live: `deletes` must hold all positions that it held.
        lacks_keys: an applied equality delete file is no longer live: `deletes` must hold every row that the rewrite dropped.
    """

    deletes: tuple[ManifestEntry, ...]
    lacks_positions: bool = False
    lacks_keys: bool = False


class RemovalChecks(msgspec.Struct, frozen=True):
    """The result of a check, by the path of a file: reasons against its removal, and changed deletes of its positions."""

    refusals: Mapping[str, str] = {}
    changed: Mapping[str, ChangedDeletes] = {}

    @classmethod
    def joined(cls, some: Iterable["RemovalChecks"]) -> "RemovalChecks":
        refusals: dict[str, str] = {}
        changed: dict[str, ChangedDeletes] = {}
        for one in some:
            refusals.update(one.refusals)
            changed.update(one.changed)
        return cls(refusals, changed)


class FilteredShare(msgspec.Struct, frozen=True):
    """The result of one share of the work; the attempt decides whether refusals of the check are a conflict."""

    filtered: Mapping[ManifestKey, Filtered]
    checked: RemovalChecks = RemovalChecks()

    def written(self, others: Set[str]) -> list[str]:
        """The locations of its manifests that are not in `others`: those that were written for it."""
        new = dict.fromkeys(m.manifest_path for filtered in self.filtered.values() for m in filtered.manifests)
        return [location for location in new if location not in others]


class RemovalCheck(Protocol):
    """A condition of the removal of files; can be pickled. Equal keys mean equal results for a file."""

    @property
    def key(self) -> Hashable: ...

    def checked(self, removed: Sequence[ManifestEntry], named: FilesToFind, reader: "ManifestReader") -> RemovalChecks:
        """Which of them may not be removed, and which only if their deletes of positions are carried over."""


class FilterManifests(msgspec.Struct, frozen=True, kw_only=True):
    """Mark files as deleted in manifests of one content; can be pickled.

    Args:
        base: only its definitions are used.
        files: the named files; of a stored set, those that were read from the manifests of a share, and in every share those
            of `strays`, manifests that the base no longer has.
        remaining_count: how many of the named files are still to be found; at zero, only `selected` is asked.
        selected: which other files to remove.
        filtered_before: results of an earlier attempt: these manifests are read for `check` alone.
    """

    base: TableMetadata
    writer: ManifestWriter
    files: FilesToFind | StoredFileSet
    remaining_count: int
    strays: frozenset[str] = frozenset()
    selected: Selection | None = None
    check: RemovalCheck | None = None
    filtered_before: Mapping[ManifestKey, Filtered] = {}

    def question(self, manifest: ManifestFile) -> Hashable:
        """Equal in another attempt that would filter the manifest in the same way."""
        selected = None if self.selected is None else self.selected.key(manifest)
        return read_as(manifest), manifest.content, selected, self.strays, self.writer.format_version

    def run(
        self, manifests: Sequence[ManifestFile], reader: "ManifestReader", locations: Iterator[str]
    ) -> FilteredShare:
        if isinstance(self.files, FilesToFind):
            named = self.files
        else:
            own = [m.manifest_path for m in manifests if m.manifest_path in self.files.parts]
            named = self.files.load(reader.storage, [*own, *self.strays])
        removed: list[ManifestEntry] = []
        done: dict[ManifestKey, Filtered] = {}
        remaining = self.remaining_count
        for manifest in manifests:
            selected = self.selected
            if selected is not None and selected.key(manifest) is None:
                selected = None
            if remaining <= 0 and selected is None:
                continue
            filtered, gone = self._filter(manifest, named, selected, reader, locations)
            done[manifest_key(manifest)] = filtered
            remaining -= filtered.named_count
            if self.check is not None:
                removed += gone
        checked = RemovalChecks() if self.check is None or not removed else self.check.checked(removed, named, reader)
        return FilteredShare(done, checked)

    def _filter(
        self,
        manifest: ManifestFile,
        named: FilesToFind,
        selected: Selection | None,
        reader: "ManifestReader",
        locations: Iterator[str],
    ) -> tuple[Filtered, list[ManifestEntry]]:
        """The result, and the entries of the removed files."""
        count = manifest.live_files_count
        held = None
        if count is not None and count <= _HELD_ENTRIES_COUNT:
            held = [entry for entry in reader.entries(manifest, self.base) if entry.is_live]
        gone = [
            entry
            for entry in (reader.entries(manifest, self.base) if held is None else held)
            if entry.is_live
            and (entry_digest(entry) in named.paths or (selected is not None and selected.entry(entry)))
        ]
        if (before := self.filtered_before.get(manifest_key(manifest))) is not None:
            return before, gone
        digests = {entry_digest(entry) for entry in gone}
        summary = SummaryBuilder()
        for entry in gone:
            summary.remove(entry.data_file)
        filtered = Filtered(
            manifests=self._rewrite(manifest, held, digests, reader, locations) if gone else (manifest,),
            files_count=len(gone),
            named_count=len(digests & named.paths.keys()),
            paths=frozenset(path_digest(entry.data_file.file_path) for entry in gone),
            summary=summary,
        )
        return filtered, gone

    def _rewrite(
        self,
        manifest: ManifestFile,
        held: list[ManifestEntry] | None,
        gone: set[Digest],
        reader: "ManifestReader",
        locations: Iterator[str],
    ) -> tuple[ManifestFile, ...]:
        """Mark these files as deleted by this snapshot; unknown transforms and fields are carried as they are."""

        def marked(entry: ManifestEntry) -> ManifestEntry | None:
            if not entry.is_live:
                return None
            if entry_digest(entry) in gone:
                return msgspec.structs.replace(entry, status=Status.DELETED, snapshot_id=self.writer.snapshot_id)
            return msgspec.structs.replace(entry, status=Status.EXISTING)

        spec_id = manifest.partition_spec_id
        if self.writer.specs[spec_id].has_unknown_transform or reader.has_unknown_fields(manifest):
            data = reader.storage.read(manifest.manifest_path, manifest.manifest_length)
            return (self.writer.carried(data, manifest, marked, next(locations)),)
        entries = reader.entries(manifest, self.base) if held is None else held
        return tuple(self.writer.write(filter(None, map(marked, entries)), spec_id, manifest.content, locations))


class MergeManifests(msgspec.Struct, frozen=True, kw_only=True):
    """Merge manifests of one spec and content, entry by entry.

    An entry that the writer's snapshot adds or deletes keeps its status, other live ones become existing, and earlier deleted
    ones are dropped.
    """

    base: TableMetadata
    writer: ManifestWriter
    spec_id: int
    content: ManifestContent

    def run(
        self, manifests: Sequence[ManifestFile], reader: "ManifestReader", locations: Iterator[str]
    ) -> list[ManifestFile]:
        entries = (entry for manifest in manifests for entry in self.kept(reader.entries(manifest, self.base)))
        return [*self.writer.write(entries, self.spec_id, self.content, locations)]

    def kept(self, entries: Iterable[ManifestEntry]) -> Iterator[ManifestEntry]:
        for entry in entries:
            if entry.snapshot_id == self.writer.snapshot_id:
                yield entry
            elif entry.is_live:
                yield msgspec.structs.replace(entry, status=Status.EXISTING)


class EntryMemory:
    """Entries of as many manifests as there is room for: later attempts of a commit, or later commits of a run, read nearly
    all of them again, and manifests never change.
    """

    def __init__(self, max_entries: int = _REMEMBERED_COUNT) -> None:
        self._room = max_entries
        self.entries: dict[Hashable, tuple[ManifestEntry, ...]] = {}
        """All entries of a manifest, by its `read_as`."""
        self._lock = Lock()
        self.with_unknown_fields: set[str] = set()
        """Paths of the manifests with unknown fields among those that were read."""

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
            if len(held) <= self._room and read_as(manifest) not in self.entries:
                self.entries[read_as(manifest)] = tuple(held)
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
        remembered = self._memory.entries.get(read_as(manifest))
        if remembered is not None:
            return iter(remembered)
        partition = metadata.partition_type(manifest.partition_spec_id)
        return self._memory.keeping(manifest, self.typed_entries(manifest, partition))

    def typed_entries(self, manifest: ManifestFile, partition: StructType) -> Iterator[ManifestEntry]:
        """As `entries`, not remembered, for tasks that have only the partition type of the manifest's spec."""
        refuse_encrypted_manifest(manifest)
        data = self.storage.read(manifest.manifest_path, manifest.manifest_length)
        header, entries = read_manifest(data, manifest, partition)
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
        refuse_encrypted_manifest(manifest)
        data = self.storage.read(manifest.manifest_path, manifest.manifest_length)
        return completed(manifest, data, metadata.partition_type(manifest.partition_spec_id))

    def check_counts(self, manifests: Sequence[ManifestFile], metadata: TableMetadata) -> None:
        """Read whole manifests, and raise `InvalidTableError` if the list of one counts other entries."""
        # No entry needs to be remembered.
        self._each(
            lambda m: sum(1 for _ in self.typed_entries(m, metadata.partition_type(m.partition_spec_id))), manifests
        )

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
        return self._each(partial(work.run, reader=self), manifests)

    def _each(self, function: Callable[[ManifestFile], R], manifests: Sequence[ManifestFile]) -> list[R]:
        """Results for manifests, several of which are read at once; reads of a remote store mostly wait."""
        return answer_each(function, manifests, read_as, requests_at_once(one.manifest_path for one in manifests))

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


def refuse_encrypted_manifest(manifest: ManifestFile) -> None:
    if manifest.key_metadata is not None:
        raise UnsupportedError(
            f"manifest {manifest.manifest_path!r} is encrypted; encrypted tables are not supported yet"
        )
