"""Add data files to a branch; existing files stay as they are."""

from collections.abc import Mapping

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.live_files import add, live_manifests
from icekeep.commit.merging import merged
from icekeep.commit.summary import SummaryBuilder
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update


class AppendFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files to add; an append has no condition but that the specs it wrote with still exist.

    Without `merges_manifests` the table's manifests stay as they are, however many there are (a fast append).
    """

    files: tuple[DataFile, ...]
    branch: str = MAIN
    merges_manifests: bool = True
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if not self.files:
            return ()
        summary = SummaryBuilder(self.summary)
        added = add(self.files, base, attempt, summary)
        kept = live_manifests(base, self.branch, attempt)
        data = [*added, *kept.data]
        data = merged(data, attempt) if self.merges_manifests else data
        return attempt.snapshot_updates("append", [*data, *kept.deletes], summary, branch=self.branch)
