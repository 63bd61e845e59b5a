"""Replace data files by others that hold the same rows: what compaction commits."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, IcekeepBug, InvalidTableError
from icekeep.spec.manifests.structs import DataFile, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update


class RewriteFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Live entries to remove, as they were read, and the files to add in their place.

    `data_sequence_number` is given to the added files, so that deletes that are newer still reach their rows; null: they
    take the commit's own. `schema_id` is the schema that they were written with. `manifest_paths` says where the removed
    entries were read, and only saves work.
    """

    removed: tuple[ManifestEntry, ...]
    added: tuple[DataFile, ...]
    schema_id: int
    data_sequence_number: int | None = None
    manifest_paths: frozenset[str] = frozenset()
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Needs no history: in this base each removed file is live as it was read, and nothing deletes rows of it."""
        if not self.removed and not self.added:
            return ()
        self._check_base(base)
        head = base.head(self.branch)
        manifests = [] if head is None else [m for m in attempt.reader.manifests(head) if m.may_have_live_files]
        deletes = next((m for m in manifests if m.content is ManifestContent.DELETES), None)
        if deletes is not None:
            raise ConflictError(
                f"the table has delete files now (manifest {deletes.manifest_path!r}); files with deletes are not rewritten yet"
            )
        summary = SummaryBuilder(self.summary)
        kept = self._without_removed(manifests, base, attempt)
        for entry in self.removed:
            summary.remove(entry.data_file)
        added: list[ManifestFile] = []
        by_spec: dict[int, list[DataFile]] = defaultdict(list)
        for file in self.added:
            summary.add(file)
            by_spec[file.spec_id].append(file)
        for spec_id, files in by_spec.items():
            added += attempt.write_manifests("added", self._adding(files), spec_id)
        return attempt.snapshot_updates("replace", [*added, *kept], summary, branch=self.branch)

    def _check_base(self, base: TableMetadata) -> None:
        paths = Counter(entry.data_file.file_path for entry in self.removed)
        if twice := [path for path, count in paths.items() if count > 1]:
            # Its rows were read as often as it is listed, but only one of its entries would be removed.
            raise InvalidTableError(
                f"data file {twice[0]!r} ({len(twice)} in all) is live more than once in the table; it cannot be rewritten"
            )
        if sum(f.record_count for f in self.added) > sum(e.data_file.record_count for e in self.removed):
            raise IcekeepBug("a rewrite would add more rows than it removes")
        if self.schema_id not in base.schemas_by_id:
            raise ConflictError(f"schema {self.schema_id}, which the new files were written with, is no longer there")
        for file in self.added:
            if file.spec_id not in base.specs_by_id:
                raise ConflictError(
                    f"partition spec {file.spec_id}, which the new files were written with, is no longer there"
                )

    def _adding(self, files: list[DataFile]) -> Iterator[ManifestEntry]:
        for file in files:
            yield ManifestEntry(status=Status.ADDED, data_file=file, sequence_number=self.data_sequence_number)

    def _without_removed(
        self, manifests: list[ManifestFile], base: TableMetadata, attempt: Attempt
    ) -> list[ManifestFile]:
        """The base's manifests, those that hold removed files written anew with these marked as deleted."""
        missing = {entry.data_file.file_path: entry for entry in self.removed}
        replaced: dict[str, tuple[ManifestFile, ...]] = {}
        for manifest in sorted(manifests, key=lambda m: m.manifest_path not in self.manifest_paths):
            if not missing:
                break
            # A file is live once in a snapshot, so each manifest takes its own away from what is still to be found.
            found = {
                entry.data_file.file_path
                for entry in attempt.reader.entries(manifest, base)
                if entry.is_live
                and entry.data_file.file_path in missing
                and _same(entry, missing[entry.data_file.file_path])
            }
            if found:
                replaced[manifest.manifest_path] = attempt.write_manifests(
                    (manifest.manifest_path, frozenset(found)),
                    _marked(attempt.reader.entries(manifest, base), found, attempt.snapshot_id),
                    manifest.partition_spec_id,
                )
                for path in found:
                    del missing[path]
        if missing:
            path = next(iter(missing))
            raise ConflictError(
                f"data file {path!r} ({len(missing)} in all) is no longer live as it was read; plan again"
            )
        return [m for manifest in manifests for m in replaced.get(manifest.manifest_path, (manifest,))]


def _same(entry: ManifestEntry, read: ManifestEntry) -> bool:
    return (
        entry.sequence_number == read.sequence_number
        and entry.data_file.spec_id == read.data_file.spec_id
        and _same_partition(entry.data_file.partition, read.data_file.partition)
        and entry.data_file.first_row_id == read.data_file.first_row_id
    )


def _same_partition(values: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    # A NaN is a partition value like any other, although it equals nothing.
    return len(values) == len(others) and all(
        a == b or (a != a and b != b) for a, b in zip(values, others, strict=True)
    )


def _marked(entries: Iterator[ManifestEntry], removed: set[str], snapshot_id: int) -> Iterator[ManifestEntry]:
    """Removed files as deleted by this snapshot, the other live ones as existing; what was deleted before is dropped."""
    for entry in entries:
        if not entry.is_live:
            continue
        if entry.data_file.file_path in removed:
            yield msgspec.structs.replace(entry, status=Status.DELETED, snapshot_id=snapshot_id)
        else:
            yield msgspec.structs.replace(entry, status=Status.EXISTING)
