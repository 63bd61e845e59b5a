"""Which live files of a base go because of what manifests say of them: by a filter over rows, by path, left behind."""

from collections.abc import Hashable, Mapping, Set
from typing import Protocol

from icekeep.commit.file_sets import Digest, digest_of_all, entry_digest
from icekeep.errors import UnsupportedError
from icekeep.spec.applicability import (
    PartitionKey,
    PathDigest,
    is_deletion_vector,
    is_newer,
    own_path,
    own_path_digest,
    partition_key,
    path_digest,
)
from icekeep.spec.filters.evaluators import file_may_match, file_must_match, manifest_may_match, partition_matches
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.filters.projections import project_inclusive
from icekeep.spec.filters.residuals import residual
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata


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
