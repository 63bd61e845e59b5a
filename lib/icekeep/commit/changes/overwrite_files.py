"""Remove data files, by name or because all their rows match a filter, and add others, in one snapshot."""

from collections.abc import Mapping

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.conflicts import (
    Isolation,
    Since,
    check_no_lost_data,
    check_no_new_data,
    check_no_new_deletes,
    check_no_new_deletes_for,
)
from icekeep.commit.file_questions import deletes_newer_than
from icekeep.commit.live_files import (
    KeptManifests,
    add,
    live_manifests,
    remove,
    remove_deletes,
    require_spec,
)
from icekeep.commit.selection import DataFilesOf, DeleteFilesOf, Matching
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import UsageError
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import ALWAYS_FALSE, ALWAYS_TRUE, Expression
from icekeep.spec.manifests.structs import DataFile, ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update


class OverwriteFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Live entries to remove, as they were read, a filter whose rows go, and data files to add.

    Filters are not bound. `starting_snapshot_id` is the snapshot that was read; `None`: the table was empty. `isolation` is
    asked over `conflict_rows`; `None`: over `rows`, and over all new data where entries were named. Whatever the isolation,
    rows of a named file that were deleted since it was read do not come back in the files that replace it.
    """

    removed: tuple[ManifestEntry, ...] = ()
    rows: Expression = ALWAYS_FALSE
    added: tuple[DataFile, ...] = ()
    added_match_rows: bool = False
    isolation: Isolation | None = None
    conflict_rows: Expression | None = None
    starting_snapshot_id: int | None = None
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """The base without what is to go, with what is to come.

        Raises:
            ConflictError: a removed file is not live as it was read, new deletes reach it, or the isolation is broken.
            UnsupportedError: the filter matches some rows of a file, but perhaps not all.
            UsageError: an added file may hold rows that do not match the filter, and `added_match_rows`.
        """
        rows = bind(self.rows, base.schema, base.partition_specs)
        if not self.removed and not self.added and rows is ALWAYS_FALSE:
            return ()
        self._check_added(base, rows)
        since = Since(base, base.head(self.branch), self.starting_snapshot_id, attempt.reader)
        self._check_isolation(base, since, rows)
        manifests = live_manifests(base, self.branch, attempt)
        if self.removed and (self.added or self.isolation is not None):
            newer = deletes_newer_than(since.sequence_number, manifests.deletes, base, attempt)
            check_no_new_deletes_for(since, self.removed, newer, base)
        kept = remove(manifests.data, base, attempt, as_read=self.removed, selected=DataFilesOf(rows, base))
        deletes = remove_deletes(manifests, kept, base, attempt, selected=DeleteFilesOf(rows, base))
        if not self.added and not kept.removed_count and not deletes.removed_count:
            return ()
        summary = SummaryBuilder(self.summary)
        summary.absorb(kept.summary)
        summary.absorb(deletes.summary)
        added = add(self.added, base, attempt, summary)
        new = [*added, *kept.manifests, *deletes.manifests]
        return attempt.snapshot_updates(self._operation(kept, deletes), new, summary, branch=self.branch)

    def _check_added(self, base: TableMetadata, rows: Expression) -> None:
        for spec_id in sorted({file.spec_id for file in self.added}):
            require_spec(base, spec_id)
        matching = Matching(base, rows)
        outside = next((f for f in self.added if self.added_match_rows and not matching.holds_only(f)), None)
        if outside is not None:
            raise UsageError(
                f"data file {outside.file_path!r} may hold rows that do not match the filter it is added for"
            )

    def _check_isolation(self, base: TableMetadata, since: Since, rows: Expression) -> None:
        if self.isolation is None:
            return
        asked = None if self.conflict_rows is None else bind(self.conflict_rows, base.schema, base.partition_specs)
        if rows is not ALWAYS_FALSE:
            check_no_new_deletes(since, asked or rows)
            check_no_lost_data(since, asked or rows)
        if self.isolation is Isolation.SERIALIZABLE:
            # The rows of named files may have been chosen by any other row.
            read = ALWAYS_TRUE if self.removed or rows is ALWAYS_FALSE else rows
            check_no_new_data(since, asked or read)

    def _operation(self, kept: KeptManifests, deletes: KeptManifests) -> str:
        if not self.added:
            return "delete"
        return "overwrite" if kept.removed_count or deletes.removed_count else "append"
