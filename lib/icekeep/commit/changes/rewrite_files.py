"""Replace data files by others that hold the same rows: what compaction commits."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.file_sets import FileSet, StoredFileSet, Wanted, count_of, live_twice
from icekeep.commit.filtering import EntryReader, identity, without_history
from icekeep.commit.live_files import add, live_manifests, remove, remove_deletes
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, IcekeepBug, InvalidTableError
from icekeep.spec.applicability import (
    AppliedDelete,
    PartitionKey,
    applied_delete,
    is_global,
    is_newer,
    partition_key,
    reaching_deletes,
)
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update


class RewriteFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Live files to remove, as they were read, and the files to add in their place.

    `applied_deletes` says, by the path of a removed file, which delete files its rewrite applied (a stored set says so
    itself); `format_version` is that
    of the table that was read, null where it does not matter. `data_sequence_number` is given to the added files, so that
    deletes that are newer still reach their rows; null: they take the commit's own. `schema_id` is the schema that they
    were written with. `manifest_paths` says where the removed entries were read, and only saves work.
    """

    removed: FileSet
    added: tuple[DataFile, ...]
    schema_id: int
    applied_deletes: Mapping[str, frozenset[AppliedDelete]] = {}
    format_version: int | None = None
    data_sequence_number: int | None = None
    manifest_paths: frozenset[str] = frozenset()
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Needs no history: in this base each removed file is live as it was read, with the deletes that were applied.

        An equality delete that is newer may have come, where it reaches the rows in the new files too: these keep the
        starting sequence number and the spec, and were written with a schema that has the columns it deletes by.
        """
        if not count_of(self.removed) and not self.added:
            return ()
        self._check_base(base)
        manifests = live_manifests(base, self.branch, attempt)
        kept = remove(
            manifests.data,
            base,
            attempt,
            as_read=self.removed,
            first=self.manifest_paths,
            check=self._check(manifests.deletes, base),
        )
        if len(kept.paths) != kept.removed_count:
            raise InvalidTableError("a data file that is to be rewritten is live more than once in the table")
        deletes = remove_deletes(manifests, kept, base, attempt, added_number=self.data_sequence_number)
        summary = SummaryBuilder(self.summary)
        summary.absorb(kept.summary)
        summary.absorb(deletes.summary)
        added = add(self.added, base, attempt, summary, sequence_number=self.data_sequence_number)
        new = [*added, *kept.manifests, *deletes.manifests]
        return attempt.snapshot_updates("replace", new, summary, branch=self.branch)

    def _removed_records_count(self) -> int:
        if isinstance(self.removed, StoredFileSet):
            return self.removed.records_count
        paths = Counter(entry.data_file.file_path for entry in self.removed)
        if twice := [path for path, count in paths.items() if count > 1]:
            raise live_twice(twice[0])
        return sum(entry.data_file.record_count for entry in self.removed)

    def _check(self, deletes: tuple[ManifestFile, ...], base: TableMetadata) -> "AppliedDeletes":
        return AppliedDeletes(
            base=without_history(base),
            deletes=deletes,
            applied=self.applied_deletes,
            start=self.data_sequence_number,
            added_partitions=frozenset(partition_key(file) for file in self.added),
            field_ids=frozenset(base.schemas_by_id[self.schema_id].fields_by_id),
        )

    def _check_base(self, base: TableMetadata) -> None:
        if sum(f.record_count for f in self.added) > self._removed_records_count():
            raise IcekeepBug("a rewrite would add more rows than it removes")
        if self.format_version not in (None, base.format_version):
            raise ConflictError(
                f"the table has format version {base.format_version} now, and was read with {self.format_version}; plan again"
            )
        if self.schema_id not in base.schemas_by_id:
            raise ConflictError(f"schema {self.schema_id}, which the new files were written with, is no longer there")
        for file in self.added:
            if file.spec_id not in base.specs_by_id:
                raise ConflictError(
                    f"partition spec {file.spec_id}, which the new files were written with, is no longer there"
                )


class AppliedDeletes(msgspec.Struct, frozen=True, kw_only=True):
    """What deletes rows of a removed file is what its rewrite applied, or reaches its rows in the new files as well.

    Args:
        deletes: the live delete manifests of `base`.
        applied: what the rewrite applied, by the path of the removed file; a stored set says so itself.
        start: the data sequence number of the new files, null for the commit's own.
        added_partitions: the partition specs and partitions of the new files.
        field_ids: the columns of the schema that they were written with.
    """

    base: TableMetadata
    deletes: tuple[ManifestFile, ...]
    applied: Mapping[str, frozenset[AppliedDelete]]
    start: int | None
    added_partitions: frozenset[PartitionKey]
    field_ids: frozenset[int]

    @property
    def key(self) -> Hashable:
        return frozenset(map(identity, self.deletes))

    def problem(self, removed: Sequence[ManifestEntry], wanted: Wanted, reader: EntryReader) -> str | None:
        spec_ids = {entry.data_file.file_path: entry.data_file.spec_id for entry in removed}
        if any(map(self._is_moved, spec_ids.values())) and (problem := self._problem_of_moving(reader)):
            return problem
        for path, reaching in reaching_deletes(removed, self._live_deletes(reader), self.base.specs_by_id).items():
            applied = self.applied.get(path) or wanted.applied.get(path, frozenset())
            if gone := applied - {applied_delete(delete) for delete in reaching}:
                name = min(delete.file_path for delete in gone)
                return f"delete file {name!r} no longer reaches data file {path!r}, whose rewrite applied it"
            for delete in reaching:
                if applied_delete(delete) not in applied and not self._still_reaches(delete, spec_ids[path]):
                    return (
                        f"delete file {delete.data_file.file_path!r} reaches data file {path!r}, whose rewrite did not apply it; "
                        "plan again"
                    )
        return None

    def _live_deletes(self, reader: EntryReader) -> Iterator[ManifestEntry]:
        return (entry for m in self.deletes for entry in reader.entries(m, self.base) if entry.is_live)

    def _is_moved(self, spec_id: int) -> bool:
        """Whether rows of files of a partition spec may be in files of another now."""
        return any(added != spec_id for added, _ in self.added_partitions)

    def _problem_of_moving(self, reader: EntryReader) -> str | None:
        """An equality delete that is to spare rows where they were, and would delete them where they are put."""
        for delete in self._live_deletes(reader):
            file = delete.data_file
            is_later = (
                file.content is FileContent.EQUALITY_DELETES and self.start is not None and is_newer(delete, self.start)
            )
            if is_later and (is_global(file, self.base.specs_by_id) or partition_key(file) in self.added_partitions):
                return (
                    f"equality delete file {file.file_path!r} would delete rows that are moved into its partition from files "
                    "of another partition spec; plan again"
                )
        return None

    def _still_reaches(self, delete: ManifestEntry, spec_id: int) -> bool:
        """Whether an equality delete that came meanwhile deletes the same rows of the new files."""
        file = delete.data_file
        return (
            file.content is FileContent.EQUALITY_DELETES
            and self.start is not None
            and is_newer(delete, self.start)
            and not self._is_moved(spec_id)
            and bool(file.equality_ids)
            and self.field_ids >= set(file.equality_ids or ())
        )
