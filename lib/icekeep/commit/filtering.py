"""Questions to manifests, and the filtering and merging of manifests: work that a `ManifestReader` does here or in tasks.

All of it can be pickled and has a key: later attempts of a commit reuse an answer about a manifest where the keys are equal.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from icekeep.commit.file_sets import ChangedDeletes, Digest, FilesToFind, StoredFileSet, digest_of_all, entry_digest
from icekeep.commit.manifest_writer import ManifestWriter
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.spec.filters.evaluators import (
    file_may_match,
    file_must_match,
    manifest_may_match,
    partition_matches,
    project_inclusive,
    residual,
)
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
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
"""A manifest of at most this many entries is held while it is filtered; a longer one is read again to be written."""

Identity = tuple[str, int | None]
Found = TypeVar("Found", covariant=True)
T = TypeVar("T")


def identity(manifest: ManifestFile) -> Identity:
    """Path and first row id: after an upgrade to version 3 a commit may assign row ids to a manifest that it keeps."""
    return manifest.manifest_path, manifest.first_row_id


def read_as(manifest: ManifestFile) -> Hashable:
    """All that entries inherit from the row of their manifest: an answer about them holds only where this is equal.

    Another commit may correct the row of a manifest that stays.
    """
    return identity(manifest), manifest.sequence_number, manifest.added_snapshot_id


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


class EntryReader(Protocol):
    """The part of a `ManifestReader` that this work needs; parts of a stored set are read through `storage`."""

    storage: Storage

    def entries(self, manifest: ManifestFile, metadata: TableMetadata) -> Iterator[ManifestEntry]:
        """All entries of a manifest in order, deleted ones included."""

    def has_unknown_fields(self, manifest: ManifestFile) -> bool:
        """Whether a manifest, whose entries were read, has unknown fields."""

    def header(self, manifest: ManifestFile) -> ManifestHeader: ...


class LastingKey(str):
    """The key of a question whose answers are short and depend on the manifest alone: they hold in all commits of a run."""

    __slots__ = ()


class Gathering(Protocol[Found]):
    """A question to single manifests; can be pickled.

    Equal keys mean equal answers for a manifest with the same `read_as`: in one commit, or, for a `LastingKey`, in all.
    """

    @property
    def key(self) -> Hashable: ...

    def run(self, manifest: ManifestFile, reader: EntryReader) -> Found: ...


class Gatherer(Protocol):
    """Asks manifests, and gives their answers in order: an attempt, which remembers them, or a reader."""

    def gathered(self, manifests: Sequence[ManifestFile], work: Gathering[T]) -> list[T]: ...


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

    def run(self, manifest: ManifestFile, reader: EntryReader) -> T:
        return self.answer(entry for entry in reader.entries(manifest, self.base) if entry.is_live)


class Selection(Protocol):
    """Which live files a change removes beside those that it names."""

    def key(self, manifest: ManifestFile) -> Hashable:
        """Equal only where the answers about the entries of a manifest are; `None` where it cannot list such a file."""

    def entry(self, entry: ManifestEntry) -> bool:
        """Whether a live file is selected."""


class Matching:
    """Which manifests and files may hold rows of a filter, which is bound to the current schema."""

    def __init__(self, base: TableMetadata, rows: Expression) -> None:
        self._base, self._rows = base, rows
        self._projections: dict[int, Expression] = {}
        self._residuals: dict[PartitionKey, Expression] = {}

    def manifest(self, manifest: ManifestFile) -> bool:
        """By partition summaries."""
        if self._rows is ALWAYS_TRUE or manifest.partitions is None:
            return True
        fields = self._base.partition_type(manifest.partition_spec_id).fields
        return manifest_may_match(self._projected(manifest.partition_spec_id), fields, manifest.partitions)

    def entry(self, entry: ManifestEntry) -> bool:
        """By partition, and for a data file by its bounds."""
        file = entry.data_file
        if self._rows is ALWAYS_TRUE:
            return True
        fields = self._base.partition_type(file.spec_id).fields
        if not partition_matches(self._projected(file.spec_id), fields, file.partition):
            return False
        return file.content is not FileContent.DATA or file_may_match(self.residual(file), file)

    def holds_only(self, file: DataFile) -> bool:
        return file_must_match(self.residual(file), file)

    def residual(self, file: DataFile) -> Expression:
        """The residual of the filter in a file's partition; `ALWAYS_TRUE` where all its rows match."""
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
    """The delete files of partitions all of whose rows match a filter, which is bound to the current schema.

    Their bounds are not asked: those of an equality delete file are of the rows that its writer deleted, not of all that it
    applies to.
    """

    def __init__(self, rows: Expression, base: TableMetadata) -> None:
        self._matching, self._schema_id = Matching(base, rows), base.current_schema_id

    def key(self, manifest: ManifestFile) -> Hashable:
        return ("rows", self._schema_id) if self._matching.manifest(manifest) else None

    def entry(self, entry: ManifestEntry) -> bool:
        return self._matching.residual(entry.data_file) is ALWAYS_TRUE


class DataFilesOf(DeleteFilesOf):
    """The data files at these paths, and those all of whose rows match the filter."""

    def __init__(self, rows: Expression, base: TableMetadata, paths: frozenset[str] = frozenset()) -> None:
        super().__init__(rows, base)
        self._paths = paths

    def key(self, manifest: ManifestFile) -> Hashable:
        return ("rows and paths", self._schema_id) if self._paths else super().key(manifest)

    def entry(self, entry: ManifestEntry) -> bool:
        """Raises `UnsupportedError` for a file of which some rows, but perhaps not all, match."""
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
    """The delete files that apply to removed data files alone, or are too old for every data file that is left.

    Args:
        paths: `path_digest` of the removed data files.
        min_sequence_number: the least data sequence number of the data files that are left.
        all_too_old: paths of manifests all of whose live files are too old, by their entries.
        proven: `own_path_digest` of delete files that do not name their data file, and whose rows are all of that one.
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
            # All go, whatever else is asked, in each attempt whose base proves it again (`live_files.remove_deletes`).
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
    """The files of another selection that have one of these digests (`entry_digest`)."""

    def __init__(self, selected: Selection, digests: frozenset[Digest]) -> None:
        self._selected, self._digests, self._digest = selected, digests, digest_of_all(digests)

    def key(self, manifest: ManifestFile) -> Hashable:
        of_all = self._selected.key(manifest)
        return None if of_all is None else ("among", self._digest, of_all)

    def entry(self, entry: ManifestEntry) -> bool:
        return entry_digest(entry) in self._digests and self._selected.entry(entry)


class Filtered(msgspec.Struct, frozen=True):
    """The result of filtering one manifest: the manifests in its place, and the files removed from it.

    `files_count` of them were removed, `named_count` of these by name; `paths` are the digests of their paths.
    """

    manifests: tuple[ManifestFile, ...]
    files_count: int
    named_count: int
    paths: frozenset[PathDigest]
    summary: SummaryBuilder


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

    filtered: Mapping[Identity, Filtered]
    checked: RemovalChecks = RemovalChecks()

    def written(self, others: Set[str]) -> list[str]:
        """The locations of its manifests that are not in `others`: those that were written for it."""
        new = dict.fromkeys(m.manifest_path for filtered in self.filtered.values() for m in filtered.manifests)
        return [location for location in new if location not in others]


class RemovalCheck(Protocol):
    """A condition of the removal of files; can be pickled. Equal keys mean equal results for a file."""

    @property
    def key(self) -> Hashable: ...

    def checked(self, removed: Sequence[ManifestEntry], named: FilesToFind, reader: EntryReader) -> RemovalChecks:
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
    filtered_before: Mapping[Identity, Filtered] = {}

    def question(self, manifest: ManifestFile) -> Hashable:
        """Equal in another attempt that would filter the manifest in the same way."""
        selected = self._selection_key(manifest)
        return read_as(manifest), manifest.content, selected, self.strays, self.writer.format_version

    def run(self, manifests: Sequence[ManifestFile], reader: EntryReader, locations: Iterator[str]) -> FilteredShare:
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
        checked = RemovalChecks() if self.check is None or not removed else self.check.checked(removed, named, reader)
        return FilteredShare(done, checked)

    def _selection_key(self, manifest: ManifestFile) -> Hashable:
        return None if self.selected is None else self.selected.key(manifest)

    def _filter(
        self, manifest: ManifestFile, named: FilesToFind, reader: EntryReader, locations: Iterator[str]
    ) -> tuple[Filtered, list[ManifestEntry]]:
        """The result, and the entries of the removed files."""

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
        """Mark these files as deleted by this snapshot; unknown transforms and fields are carried as they are."""

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
    """Merge manifests of one spec and content, entry by entry.

    An entry that the writer's snapshot adds or deletes keeps its status, other live ones become existing, and earlier deleted
    ones are dropped.
    """

    base: TableMetadata
    writer: ManifestWriter
    spec_id: int
    content: ManifestContent

    def run(
        self, manifests: Sequence[ManifestFile], reader: EntryReader, locations: Iterator[str]
    ) -> list[ManifestFile]:
        entries = (entry for manifest in manifests for entry in self.kept(reader.entries(manifest, self.base)))
        return [*self.writer.write(entries, self.spec_id, self.content, locations)]

    def kept(self, entries: Iterable[ManifestEntry]) -> Iterator[ManifestEntry]:
        for entry in entries:
            if entry.snapshot_id == self.writer.snapshot_id:
                yield entry
            elif entry.is_live:
                yield msgspec.structs.replace(entry, status=Status.EXISTING)


class PartitionRanges:
    """The partitions that a manifest may hold by the field summaries in its row of the list; all where there are none."""

    def __init__(self, manifest: ManifestFile, base: TableMetadata) -> None:
        self._ranges: list[_Range] = []
        if manifest.partitions is not None:
            fields = base.partition_type(manifest.partition_spec_id).fields
            self._ranges = [_Range.of(field, one) for field, one in zip(fields, manifest.partitions, strict=False)]

    @property
    def first_bounds(self) -> tuple[Any, Any]:
        """Lower and upper bound of the first partition field; `None` where unknown."""
        return (self._ranges[0].lower, self._ranges[0].upper) if self._ranges else (None, None)

    def may_hold(self, values: Sequence[Any]) -> bool:
        return all(one.may_hold(value) for one, value in zip(self._ranges, values, strict=False))


class _Range(NamedTuple):
    """The values that a field summary allows: all without bounds, or for a type whose order differs between writers."""

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
        # Both bounds are null where all values are; without nulls, missing bounds say nothing.
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
