"""Which live files of a base go because of what manifests say of them: by a filter over rows, by path, left behind.

What is asked of many manifests, and made of them: work that a `ManifestReader` does here, or shares out to tasks.

Which partitions the files of a manifest may have, by its row of the manifest list alone.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from icekeep.commit.file_sets import ChangedDeletes, Digest, StoredFileSet, Wanted, digest_of_all, entry_digest
from icekeep.commit.manifest_writer import ManifestWriter
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.filters.evaluators import file_may_match, file_must_match, manifest_may_match, partition_matches
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.filters.projections import project_inclusive, residual
from icekeep.spec.manifests.read import ManifestHeader
from icekeep.spec.manifests.structs import (
    DataFile,
    FieldSummary,
    FileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Status,
)
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import (
    PartitionKey,
    PathDigest,
    is_deletion_vector,
    is_newer,
    own_path,
    own_path_digest,
    partition_key,
    path_digest,
)
from icekeep.spec.types import DOUBLE, FLOAT, OPAQUE, UUID, NestedField, PrimitiveType
from icekeep.spec.values import are_crossed, value_from_bytes
from icekeep.storage.base import Storage


class Selection(Protocol):
    """Which live files a change removes beside those that it names: a question to manifests, and one to their entries.

    It can be pickled. What was found in a manifest is found again by other attempts of a commit where the keys are equal.
    """

    def key(self, manifest: ManifestFile) -> Hashable:
        """What tells its question to a manifest from other questions to the same: equal only where the answers are."""

    def manifest(self, manifest: ManifestFile) -> bool:
        """Whether a manifest may list such a file."""

    def entry(self, entry: ManifestEntry) -> bool:
        """Whether a live file is one."""


class Matching:
    """Which manifests and files may hold rows of a filter that is bound to the current schema."""

    def __init__(self, base: TableMetadata, rows: Expression) -> None:
        self._base, self._rows = base, rows
        self._projections: dict[int, Expression] = {}
        self._residuals: dict[PartitionKey, Expression] = {}

    def manifest(self, manifest: ManifestFile) -> bool:
        """Whether a manifest may list such a file, by its partition summaries."""
        if self._rows is ALWAYS_TRUE or manifest.partitions is None:
            return True
        fields = self._base.partition_type(manifest.partition_spec_id).fields
        return manifest_may_match(self._projected(manifest.partition_spec_id), fields, manifest.partitions)

    def entry(self, entry: ManifestEntry) -> bool:
        """Whether a data file may hold such a row, or a delete file lies where one may be."""
        file = entry.data_file
        if self._rows is ALWAYS_TRUE:
            return True
        fields = self._base.partition_type(file.spec_id).fields
        if not partition_matches(self._projected(file.spec_id), fields, file.partition):
            return False
        return file.content is not FileContent.DATA or file_may_match(self._residual(file), file)

    def is_whole_partition(self, file: DataFile) -> bool:
        """Whether all rows that a file's partition can have match."""
        return self._residual(file) is ALWAYS_TRUE

    def holds_only(self, file: DataFile) -> bool:
        """Whether all rows of a data file match."""
        return file_must_match(self._residual(file), file)

    def _projected(self, spec_id: int) -> Expression:
        if spec_id not in self._projections:
            spec = self._base.specs_by_id[spec_id]
            self._projections[spec_id] = project_inclusive(self._rows, spec, self._base.schema)
        return self._projections[spec_id]

    def _residual(self, file: DataFile) -> Expression:
        """What is left to ask of the rows of a file's partition."""
        key = partition_key(file)
        if key not in self._residuals:
            spec = self._base.specs_by_id[file.spec_id]
            self._residuals[key] = residual(self._rows, spec, self._base.schema, file.partition)
        return self._residuals[key]


class _FilesOf:
    """What both selections by a filter ask of manifests; the filter is bound to the current schema."""

    def __init__(self, rows: Expression, base: TableMetadata) -> None:
        self._matching = Matching(base, rows)
        self._key: Hashable = ("rows", base.current_schema_id)

    def key(self, manifest: ManifestFile) -> Hashable:
        return self._key

    def manifest(self, manifest: ManifestFile) -> bool:
        return self._matching.manifest(manifest)


class DataFilesOf(_FilesOf):
    """The data files all of whose rows match a filter that is bound to the current schema."""

    def entry(self, entry: ManifestEntry) -> bool:
        """Raises `UnsupportedError` for a file of which some rows may match and some may not."""
        if not self._matching.entry(entry):
            return False
        if self._matching.holds_only(entry.data_file):
            return True
        raise UnsupportedError(
            f"data file {entry.data_file.file_path!r} may hold rows that match the filter and rows that do not; it cannot be "
            "removed as a whole, so nothing was changed: rewrite the file, or filter by partition"
        )


class DeleteFilesOf(_FilesOf):
    """The delete files of partitions all of whose rows match a filter that is bound to the current schema.

    Bounds are not asked: those of an equality delete file tell of the rows that were deleted, which need not be the values
    that it is applied by.
    """

    def entry(self, entry: ManifestEntry) -> bool:
        return self._matching.is_whole_partition(entry.data_file)


class AtPaths:
    """The files at some paths, and what another selection asks for."""

    def __init__(self, paths: frozenset[str], other: Selection) -> None:
        self._paths, self._other = paths, other

    def key(self, manifest: ManifestFile) -> Hashable:
        return "paths", self._other.key(manifest)

    def manifest(self, manifest: ManifestFile) -> bool:
        return bool(self._paths) or self._other.manifest(manifest)

    def entry(self, entry: ManifestEntry) -> bool:
        return entry.data_file.file_path in self._paths or self._other.entry(entry)


class LeftBehind:
    """The delete files that are for a data file which goes, or too old for every data file that is left.

    `all_too_old` are the paths of manifests of which all live files are, by their entries; `proven` are the `own_path_digest` of
    delete files that do not name their data file, and whose rows are all of one that goes.
    """

    def __init__(
        self,
        paths: Set[PathDigest],
        min_sequence_number: int,
        other: Selection | None,
        all_too_old: Set[str] = frozenset(),
        proven: Set[PathDigest] = frozenset(),
    ) -> None:
        self._paths, self._least, self._other = frozenset(paths), min_sequence_number, other
        self._all_too_old, self._proven = frozenset(all_too_old), frozenset(proven)
        self._digests = digest_of_all(self._paths), digest_of_all(self._proven)

    def key(self, manifest: ManifestFile) -> Hashable:
        if manifest.manifest_path in self._all_too_old:
            # All go, whatever else is asked, and in each attempt whose base proves it anew: see `live_files`.
            return "all too old"
        return "left", self._digests, self._least, None if self._other is None else self._other.key(manifest)

    def manifest(self, manifest: ManifestFile) -> bool:
        return True

    def entry(self, entry: ManifestEntry) -> bool:
        file = entry.data_file
        own: str | bytes | None = file.referenced_data_file
        if own is None and self._proven and own_path_digest(file) in self._proven:
            own = own_path(file)
        if own is not None and path_digest(own) in self._paths:
            return True
        return not is_newer(entry, self._least) or (self._other is not None and self._other.entry(entry))


class Among:
    """Of the files that another selection selects, those whose `entry_digest` is one of some."""

    def __init__(self, selected: Selection, digests: Set[Digest]) -> None:
        self._selected, self._digests = selected, frozenset(digests)
        self._digest = digest_of_all(self._digests)

    def key(self, manifest: ManifestFile) -> Hashable:
        return "among", self._digest, self._selected.key(manifest)

    def manifest(self, manifest: ManifestFile) -> bool:
        return self._selected.manifest(manifest)

    def entry(self, entry: ManifestEntry) -> bool:
        return entry_digest(entry) in self._digests and self._selected.entry(entry)


class OldVectors:
    """The deletion vectors that are older than their data files, of some by path with their data sequence numbers.

    They delete no row, but a data file may have one vector alone (spec, "Delete Formats").
    """

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._numbers, self._digest = numbers, digest_of_all(numbers.items())

    def key(self, manifest: ManifestFile) -> Hashable:
        return "old vectors", self._digest

    def manifest(self, manifest: ManifestFile) -> bool:
        return bool(self._numbers)

    def entry(self, entry: ManifestEntry) -> bool:
        number = self._numbers.get(entry.data_file.referenced_data_file or "")
        return number is not None and is_deletion_vector(entry.data_file) and not is_newer(entry, number)


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


class PartitionRanges:
    """The partitions that the summaries of a manifest leave possible; all where it has none."""

    def __init__(self, manifest: ManifestFile, base: TableMetadata) -> None:
        self._ranges: list[_Range] = []
        if manifest.partitions is not None:
            fields = base.partition_type(manifest.partition_spec_id).fields
            self._ranges = [_Range(f, summary) for f, summary in zip(fields, manifest.partitions, strict=False)]

    @property
    def first_bounds(self) -> tuple[Any, Any]:
        """The least and the greatest value of the first partition field that may be there; `None` where it is not known."""
        return (self._ranges[0].lower, self._ranges[0].upper) if self._ranges else (None, None)

    def may_hold(self, values: Sequence[Any]) -> bool:
        """Whether a file of the partition with these values may be there."""
        return all(one.may_hold(value) for one, value in zip(self._ranges, values, strict=False))


class _Range:
    """The values that a field summary leaves possible: all where it does not tell, or not in an order that writers share."""

    def __init__(self, field: NestedField, summary: FieldSummary) -> None:
        self.may_hold_null = summary.contains_null
        is_ordered = isinstance(field.type, PrimitiveType) and field.type not in (FLOAT, DOUBLE, UUID, OPAQUE)
        is_bounded = summary.lower_bound is not None or summary.upper_bound is not None
        # Both bounds are null where all values are; where they cannot be, the summary tells nothing.
        self.may_hold_values = is_bounded or not is_ordered or not summary.contains_null
        self.lower = _decoded(field, summary.lower_bound) if is_ordered else None
        self.upper = _decoded(field, summary.upper_bound) if is_ordered else None
        if are_crossed(self.lower, self.upper):
            self.lower = self.upper = None

    def may_hold(self, value: Any) -> bool:
        if value is None:
            return self.may_hold_null
        above = self.lower is None or bool(self.lower <= value)
        return self.may_hold_values and above and (self.upper is None or bool(value <= self.upper))


def _decoded(field: NestedField, bound: bytes | None) -> Any:
    if bound is None:
        return None
    try:
        return value_from_bytes(field.type, bound)
    except (InvalidTableError, UnsupportedError):
        return None
