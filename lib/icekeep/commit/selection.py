"""Which live files of a base a filter over rows selects, from what manifests say of them."""

from collections.abc import Callable

import msgspec

from icekeep.errors import UnsupportedError
from icekeep.spec.applicability import PartitionKey, partition_key
from icekeep.spec.filters.evaluators import file_may_match, file_must_match, manifest_may_match, partition_matches
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.filters.projections import project_inclusive
from icekeep.spec.filters.residuals import residual
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata


class Selection(msgspec.Struct, frozen=True):
    """Which live files a change removes beside those that it names: a question to manifests, and one to their entries."""

    manifest: Callable[[ManifestFile], bool]
    entry: Callable[[ManifestEntry], bool]


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


def data_files_of(rows: Expression, base: TableMetadata) -> Selection:
    """The data files all of whose rows match a filter that is bound to the current schema.

    The selection raises `UnsupportedError` for a file of which some rows may match and some may not.
    """
    matching = Matching(base, rows)

    def is_selected(entry: ManifestEntry) -> bool:
        if not matching.entry(entry):
            return False
        if matching.holds_only(entry.data_file):
            return True
        raise UnsupportedError(
            f"data file {entry.data_file.file_path!r} may hold rows that match the filter and rows that do not; it cannot be "
            "removed as a whole, so nothing was changed: rewrite the file, or filter by partition"
        )

    return Selection(matching.manifest, is_selected)


def delete_files_of(rows: Expression, base: TableMetadata) -> Selection:
    """The delete files of partitions all of whose rows match a filter that is bound to the current schema.

    Bounds are not asked: those of an equality delete file tell of the rows that were deleted, which need not be the values
    that it is applied by.
    """
    matching = Matching(base, rows)
    return Selection(matching.manifest, lambda entry: matching.is_whole_partition(entry.data_file))
