"""Replace data files by others that hold the same rows: what compaction commits."""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.live_files import add, live_entries, live_manifests, remove, remove_deletes
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, IcekeepBug, InvalidTableError
from icekeep.spec.applicability import AppliedDelete, applied_delete, is_newer, reaching_deletes
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update


class RewriteFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Live entries to remove, as they were read, and the files to add in their place.

    `applied_deletes` says, by the path of a removed file, which delete files its rewrite applied; `format_version` is that
    of the table that was read, null where it does not matter. `data_sequence_number` is given to the added files, so that
    deletes that are newer still reach their rows; null: they take the commit's own. `schema_id` is the schema that they
    were written with. `manifest_paths` says where the removed entries were read, and only saves work.
    """

    removed: tuple[ManifestEntry, ...]
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
        if not self.removed and not self.added:
            return ()
        self._check_base(base)
        manifests = live_manifests(base, self.branch, attempt)
        kept = remove(manifests.data, base, attempt, as_read=self.removed, first=self.manifest_paths)
        self._check_deletes(kept.removed, live_entries(manifests.deletes, base, attempt), base)
        deletes = remove_deletes(manifests, kept, base, attempt, added_number=self.data_sequence_number)
        summary = SummaryBuilder(self.summary)
        for entry in (*self.removed, *deletes.removed):
            summary.remove(entry.data_file)
        added = add(self.added, base, attempt, summary, sequence_number=self.data_sequence_number)
        new = [*added, *kept.manifests, *deletes.manifests]
        return attempt.snapshot_updates("replace", new, summary, branch=self.branch)

    def _check_base(self, base: TableMetadata) -> None:
        paths = Counter(entry.data_file.file_path for entry in self.removed)
        if twice := [path for path, count in paths.items() if count > 1]:
            # Its rows were read as often as it is listed, but only one of its entries would be removed.
            raise InvalidTableError(
                f"data file {twice[0]!r} ({len(twice)} in all) is live more than once in the table; it cannot be rewritten"
            )
        if sum(f.record_count for f in self.added) > sum(e.data_file.record_count for e in self.removed):
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

    def _check_deletes(
        self, removed: Iterable[ManifestEntry], deletes: Iterable[ManifestEntry], base: TableMetadata
    ) -> None:
        """What deletes rows of a removed file is what its rewrite applied, or reaches its rows in the new files as well."""
        removed = tuple(removed)
        spec_ids = {entry.data_file.file_path: entry.data_file.spec_id for entry in removed}
        for path, reaching in reaching_deletes(removed, deletes, base.specs_by_id).items():
            applied = self.applied_deletes.get(path, frozenset())
            if gone := applied - {applied_delete(delete) for delete in reaching}:
                name = min(delete.file_path for delete in gone)
                raise ConflictError(
                    f"delete file {name!r} no longer reaches data file {path!r}, whose rewrite applied it"
                )
            for delete in reaching:
                if applied_delete(delete) not in applied and not self._still_reaches(delete, spec_ids[path], base):
                    raise ConflictError(
                        f"delete file {delete.data_file.file_path!r} reaches data file {path!r}, whose rewrite did not apply it; "
                        "plan again"
                    )

    def _still_reaches(self, delete: ManifestEntry, spec_id: int, base: TableMetadata) -> bool:
        """Whether an equality delete that came meanwhile deletes the same rows of the new files."""
        file, start = delete.data_file, self.data_sequence_number
        return (
            file.content is FileContent.EQUALITY_DELETES
            and start is not None
            and is_newer(delete, start)
            and all(added.spec_id == spec_id for added in self.added)
            and bool(file.equality_ids)
            and base.schemas_by_id[self.schema_id].fields_by_id.keys() >= set(file.equality_ids or ())
        )
