"""What a change asks of manifests and makes of them: work that a `ManifestReader` does here or shares out to tasks.

All of it can be pickled and has a key. What was answered for a manifest is not asked again by later attempts of a commit
where the keys are equal.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from icekeep.commit.file_sets import ChangedDeletes, Digest, FilesToFind, StoredFileSet, digest_of_all, entry_digest
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
from icekeep.spec.reach import PartitionKey, PathDigest, is_newer, own_path, own_path_digest, partition_key, path_digest
from icekeep.spec.types import DOUBLE, FLOAT, OPAQUE, UUID, NestedField, PrimitiveType
from icekeep.spec.values import are_crossed, value_from_bytes
from icekeep.storage.base import Storage

_HELD_ENTRIES_COUNT = 20_000
"""A manifest of at most this many entries is held while it is filtered; a longer one is read a second time to be written."""

Identity = tuple[str, int | None]
Found = TypeVar("Found", covariant=True)
T = TypeVar("T")


def identity(manifest: ManifestFile) -> Identity:
    """What a manifest's entries are read as: after an upgrade to version 3 a commit may give row ids to one that is kept."""
    return manifest.manifest_path, manifest.first_row_id


def read_as(manifest: ManifestFile) -> Hashable:
    """All of a manifest's row that its entries inherit: an answer about them holds only where this is equal.

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


class EntryReader(Protocol):
    """The part of a `ManifestReader` that this work needs, parts of a stored set being read through its storage."""

    storage: Storage

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
    def key(self) -> Hashable: ...

    def run(self, manifest: ManifestFile, reader: EntryReader) -> Found: ...


class Gatherer(Protocol):
    """Asks manifests, and gives the answers in their order: an attempt, which remembers them, or a reader."""

    def gathered(self, manifests: Sequence[ManifestFile], work: Gathering[T]) -> list[T]: ...


class LiveFilesQuestion(msgspec.Struct, Generic[T], frozen=True):
    """A `Gathering` that asks nothing but live entries; `answer` is a function of a module, or a `partial` of one."""

    base: TableMetadata
    key: Hashable
    answer: Callable[[Iterator[ManifestEntry]], T]

    @classmethod
    def of(
        cls, base: TableMetadata, key: Hashable, answer: Callable[[Iterator[ManifestEntry]], T]
    ) -> "LiveFilesQuestion[T]":
        """The question with as much of the base as is needed to read entries."""
        return cls(without_history(base), key, answer)

    def run(self, manifest: ManifestFile, reader: EntryReader) -> T:
        return self.answer(entry for entry in reader.entries(manifest, self.base) if entry.is_live)


class Selection(Protocol):
    """Which live files a change removes beside those that it names: a question to manifests, and one to their entries."""

    def key(self, manifest: ManifestFile) -> Hashable:
        """Equal only where the answers about the entries of a manifest are; `None` where it cannot list such a file."""

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
        return file.content is not FileContent.DATA or file_may_match(self.residual(file), file)

    def holds_only(self, file: DataFile) -> bool:
        """Whether all rows of a data file match."""
        return file_must_match(self.residual(file), file)

    def residual(self, file: DataFile) -> Expression:
        """What is left to ask of the rows of a file's partition; `ALWAYS_TRUE` where all that it can have match."""
        key = partition_key(file)
        if key not in self._residuals:
            spec = self._base.specs_by_id[file.spec_id]
            self._residuals[key] = residual(self._rows, spec, self._base.schema, file.partition)
        return self._residuals[key]

    def _projected(self, spec_id: int) -> Expression:
        if spec_id not in self._projections:
            spec = self._base.specs_by_id[spec_id]
            self._projections[spec_id] = project_inclusive(self._rows, spec, self._base.schema)
        return self._projections[spec_id]


class DeleteFilesOf(Selection):
    """The delete files of partitions all of whose rows match a filter that is bound to the current schema.

    Bounds are not asked: those of an equality delete file tell of the rows that were deleted, which need not be the values
    that it is applied by.
    """

    def __init__(self, rows: Expression, base: TableMetadata) -> None:
        self._matching, self._schema_id = Matching(base, rows), base.current_schema_id

    def key(self, manifest: ManifestFile) -> Hashable:
        return ("rows", self._schema_id) if self._matching.manifest(manifest) else None

    def entry(self, entry: ManifestEntry) -> bool:
        return self._matching.residual(entry.data_file) is ALWAYS_TRUE


class DataFilesOf(DeleteFilesOf):
    """The data files at some paths, and those all of whose rows match the filter."""

    def __init__(self, rows: Expression, base: TableMetadata, paths: frozenset[str] = frozenset()) -> None:
        super().__init__(rows, base)
        self._paths = paths

    def key(self, manifest: ManifestFile) -> Hashable:
        return ("rows and paths", self._schema_id) if self._paths else super().key(manifest)

    def entry(self, entry: ManifestEntry) -> bool:
        """Raises `UnsupportedError` for a file of which some rows may match and some may not."""
        file = entry.data_file
        if file.file_path in self._paths:
            return True
        if not self._matching.entry(entry):
            return False
        if self._matching.holds_only(file):
            return True
        raise UnsupportedError(
            f"data file {file.file_path!r} may hold rows that match the filter and rows that do not; it cannot be "
            "removed as a whole, so nothing was changed: rewrite the file, or filter by partition"
        )


class LeftBehind(Selection):
    """The delete files that are for a data file which goes, or too old for every data file that is left.

    `all_too_old` are the paths of manifests of which all live files are, by their entries; `proven` are the `own_path_digest` of
    delete files that do not name their data file, and whose rows are all of one that goes.
    """

    def __init__(
        self,
        paths: frozenset[PathDigest],
        min_sequence_number: int,
        other: Selection | None,
        all_too_old: frozenset[str],
        proven: frozenset[PathDigest],
    ) -> None:
        self._paths, self._least, self._other = paths, min_sequence_number, other
        self._all_too_old, self._proven = all_too_old, proven
        self._digests = digest_of_all(paths), digest_of_all(proven)

    def key(self, manifest: ManifestFile) -> Hashable:
        if manifest.manifest_path in self._all_too_old:
            # All go, whatever else is asked, and in each attempt whose base proves it again: see `live_files`.
            return "all too old"
        return "left", self._digests, self._least, None if self._other is None else self._other.key(manifest)

    def entry(self, entry: ManifestEntry) -> bool:
        file = entry.data_file
        own: str | bytes | None = file.referenced_data_file
        if own is None and self._proven and own_path_digest(file) in self._proven:
            own = own_path(file)
        if own is not None and path_digest(own) in self._paths:
            return True
        return not is_newer(entry, self._least) or (self._other is not None and self._other.entry(entry))


class Among(Selection):
    """Of the files that another selection selects, those whose `entry_digest` is one of some."""

    def __init__(self, selected: Selection, digests: frozenset[Digest]) -> None:
        self._selected, self._digests, self._digest = selected, digests, digest_of_all(digests)

    def key(self, manifest: ManifestFile) -> Hashable:
        of_all = self._selected.key(manifest)
        return None if of_all is None else ("among", self._digest, of_all)

    def entry(self, entry: ManifestEntry) -> bool:
        return entry_digest(entry) in self._digests and self._selected.entry(entry)


class Filtered(msgspec.Struct, frozen=True):
    """What became of one manifest: those in its place, and what they have no more.

    `named_count` is how many of the files that were named it had, `files_count` how many went in all; `paths` are the
    digests of their paths.
    """

    manifests: tuple[ManifestFile, ...]
    files_count: int
    named_count: int
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
    """What came of one share of the work; whether what the check found is a conflict, the attempt decides."""

    filtered: Mapping[Identity, Filtered]
    checked: Checked = Checked()

    def written(self, others: Set[str]) -> list[str]:
        """The locations of the manifests that were written for it: those of its manifests that are not among the others."""
        new = dict.fromkeys(m.manifest_path for filtered in self.filtered.values() for m in filtered.manifests)
        return [location for location in new if location not in others]


class RemovalCheck(Protocol):
    """What must hold of files before they may go; can be pickled.

    `key` is equal for checks of the same base as far as they ask it.
    """

    @property
    def key(self) -> Hashable: ...

    def checked(self, removed: Sequence[ManifestEntry], named: FilesToFind, reader: EntryReader) -> Checked:
        """Which of them may not, and which only if their deletes of positions are carried over."""


class FilterManifests(msgspec.Struct, frozen=True, kw_only=True):
    """Mark files as deleted in manifests of one content; can be pickled.

    Args:
        base: the table, of which only definitions are asked.
        files: which files are named; of a stored set, those that were read from the manifests of a share are looked for,
            and those of `strays`, manifests that the base does not have any more, anywhere.
        remaining_count: how many of the named files are still to be found; then only `selected` is asked.
        selected: which other files go.
        filtered_before: manifests that an earlier attempt has filtered: they are read for `check` alone.
    """

    base: TableMetadata
    writer: ManifestWriter
    files: FilesToFind | StoredFileSet
    remaining_count: int
    strays: frozenset[str] = frozenset()
    selected: Selection | None = None
    check: RemovalCheck | None = None
    filtered_before: Mapping[Identity, Filtered] = {}

    def question(self, manifest: ManifestFile) -> Hashable:
        """Equal for what asks the same of the manifest in another attempt."""
        selected = self._selection_key(manifest)
        return read_as(manifest), manifest.content, selected, self.strays, self.writer.format_version

    def run(self, manifests: Sequence[ManifestFile], reader: EntryReader, locations: Iterator[str]) -> FilteredShare:
        """Filter a share of the manifests; new ones are written at the next of some locations."""
        if isinstance(self.files, FilesToFind):
            named = self.files
        else:
            own = [m.manifest_path for m in manifests if m.manifest_path in self.files.parts]
            named = self.files.load(reader.storage, [*own, *self.strays])
        removed: list[ManifestEntry] = []
        done: dict[Identity, Filtered] = {}
        remaining = self.remaining_count
        for manifest in manifests:
            if remaining <= 0 and self._selection_key(manifest) is None:
                continue
            filtered, gone = self._filter(manifest, named, reader, locations)
            done[identity(manifest)] = filtered
            remaining -= filtered.named_count
            if self.check is not None:
                removed += gone
        checked = Checked() if self.check is None or not removed else self.check.checked(removed, named, reader)
        return FilteredShare(done, checked)

    def _selection_key(self, manifest: ManifestFile) -> Hashable:
        return None if self.selected is None else self.selected.key(manifest)

    def _filter(
        self, manifest: ManifestFile, named: FilesToFind, reader: EntryReader, locations: Iterator[str]
    ) -> tuple[Filtered, list[ManifestEntry]]:
        """What became of a manifest, and the entries that go."""

        def read() -> Iterator[ManifestEntry]:
            return (entry for entry in reader.entries(manifest, self.base) if entry.is_live)

        count = manifest.live_files_count
        held = [*read()] if count is not None and count <= _HELD_ENTRIES_COUNT else None
        selection = None if self._selection_key(manifest) is None else self.selected
        gone = [
            entry
            for entry in (read() if held is None else held)
            if entry_digest(entry) in named.paths or (selection is not None and selection.entry(entry))
        ]
        if (before := self.filtered_before.get(identity(manifest))) is not None:
            return before, gone
        digests = {entry_digest(entry) for entry in gone}
        summary = SummaryBuilder()
        for entry in gone:
            summary.remove(entry.data_file)
        filtered = Filtered(
            manifests=self._rewrite(manifest, read() if held is None else held, digests, reader, locations)
            if gone
            else (manifest,),
            files_count=len(gone),
            named_count=len(digests & named.paths.keys()),
            paths=frozenset(path_digest(entry.data_file.file_path) for entry in gone),
            summary=summary,
        )
        return filtered, gone

    def _rewrite(
        self,
        manifest: ManifestFile,
        live: Iterable[ManifestEntry],
        gone: set[Digest],
        reader: EntryReader,
        locations: Iterator[str],
    ) -> tuple[ManifestFile, ...]:
        """A manifest with these files marked as deleted by this snapshot; what we do not know of it stays as it is."""

        def marked(entry: ManifestEntry) -> ManifestEntry:
            if entry_digest(entry) in gone:
                return msgspec.structs.replace(entry, status=Status.DELETED, snapshot_id=self.writer.snapshot_id)
            return msgspec.structs.replace(entry, status=Status.EXISTING)

        spec_id = manifest.partition_spec_id
        if self.writer.specs[spec_id].has_unknown_transform or reader.has_unknown_fields(manifest):
            data = reader.storage.read(manifest.manifest_path, manifest.manifest_length)
            return (self.writer.carried(data, manifest, lambda e: marked(e) if e.is_live else None, next(locations)),)
        return tuple(self.writer.write(map(marked, live), spec_id, manifest.content, locations))


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


class PartitionRanges:
    """The partitions that the summaries of a manifest leave possible, by its row of the manifest list; all where it has none."""

    def __init__(self, manifest: ManifestFile, base: TableMetadata) -> None:
        self._ranges: list[_Range] = []
        if manifest.partitions is not None:
            fields = base.partition_type(manifest.partition_spec_id).fields
            self._ranges = [_Range.of(field, one) for field, one in zip(fields, manifest.partitions, strict=False)]

    @property
    def first_bounds(self) -> tuple[Any, Any]:
        """The least and the greatest value of the first partition field that may be there; `None` where it is not known."""
        return (self._ranges[0].lower, self._ranges[0].upper) if self._ranges else (None, None)

    def may_hold(self, values: Sequence[Any]) -> bool:
        """Whether a file of the partition with these values may be there."""
        return all(one.may_hold(value) for one, value in zip(self._ranges, values, strict=False))


class _Range(NamedTuple):
    """The values that a field summary leaves possible: all where it has no bounds, or not in an order that writers share."""

    may_hold_null: bool
    may_hold_values: bool
    lower: Any
    upper: Any

    @classmethod
    def of(cls, field: NestedField, summary: FieldSummary) -> "_Range":
        is_ordered = isinstance(field.type, PrimitiveType) and field.type not in (FLOAT, DOUBLE, UUID, OPAQUE)
        is_bounded = summary.lower_bound is not None or summary.upper_bound is not None
        lower = upper = None
        if is_ordered:
            lower, upper = (_decoded(field, bound) for bound in (summary.lower_bound, summary.upper_bound))
        if are_crossed(lower, upper):
            lower = upper = None
        # Both bounds are null where all values are; where they cannot be, the summary tells nothing.
        may_hold_values = is_bounded or not is_ordered or not summary.contains_null
        return cls(summary.contains_null, may_hold_values, lower, upper)

    def may_hold(self, value: Any) -> bool:
        if value is None:
            return self.may_hold_null
        above = self.lower is None or bool(self.lower <= value)
        return self.may_hold_values and above and (self.upper is None or bool(value <= self.upper))


def _decoded(field: NestedField, bound: bytes | None) -> Any:
    try:
        return None if bound is None else value_from_bytes(field.type, bound)
    except (InvalidTableError, UnsupportedError):
        return None
