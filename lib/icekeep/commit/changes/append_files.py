"""Add data files to a branch; existing files and manifests stay as they are (a fast append)."""

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError
from icekeep.spec.manifests.structs import DataFile, ManifestEntry, ManifestFile, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update


class AppendFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files to add; an append has no condition but that the specs it wrote with still exist."""

    files: tuple[DataFile, ...]
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if not self.files:
            return ()
        summary = SummaryBuilder(self.summary)
        by_spec: dict[int, list[DataFile]] = defaultdict(list)
        for file in self.files:
            summary.add(file)
            by_spec[file.spec_id].append(file)
        added: list[ManifestFile] = []
        for spec_id, files in by_spec.items():
            if spec_id not in base.specs_by_id:
                raise ConflictError(
                    f"partition spec {spec_id}, which the new files were written with, is no longer there"
                )
            entries = (ManifestEntry(status=Status.ADDED, data_file=file) for file in files)
            added += attempt.write_manifests("added", entries, spec_id)
        head = base.head(self.branch)
        kept = [] if head is None else [m for m in attempt.reader.manifests(head) if m.may_have_live_files]
        return attempt.snapshot_updates("append", [*added, *kept], summary, branch=self.branch)
