"""Remove data files whole, by path or because all their rows match a filter: a delete that rewrites no data."""

from collections.abc import Mapping

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.live_files import KeptManifests, live_manifests, remove, remove_deletes
from icekeep.commit.selection import AtPaths, DataFilesOf, DeleteFilesOf
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError
from icekeep.spec.applicability import path_digest
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import ALWAYS_FALSE, Expression
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update


class DeleteFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Data files to remove, by path and by an unbound filter over rows; both are looked up in the base, so nobody can conflict.

    `must_exist` says that a path which is not live is an error, not done already.
    """

    paths: frozenset[str] = frozenset()
    rows: Expression = ALWAYS_FALSE
    must_exist: bool = True
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """The base without these files, and without the delete files that were for them alone.

        Raises:
            ConflictError: a path is not live, and must be.
            UnsupportedError: the filter matches some rows of a file, but perhaps not all.
        """
        rows = bind(self.rows, base.schema, base.partition_specs)
        if not self.paths and rows is ALWAYS_FALSE:
            return ()
        manifests = live_manifests(base, self.branch, attempt)
        kept = remove(manifests.data, base, attempt, selected=AtPaths(self.paths, DataFilesOf(rows, base)))
        self._check_found(kept)
        deletes = remove_deletes(manifests, kept, base, attempt, selected=DeleteFilesOf(rows, base))
        if not kept.removed_count and not deletes.removed_count:
            return ()
        summary = SummaryBuilder(self.summary)
        summary.absorb(kept.summary)
        summary.absorb(deletes.summary)
        return attempt.snapshot_updates("delete", [*kept.manifests, *deletes.manifests], summary, branch=self.branch)

    def _check_found(self, kept: KeptManifests) -> None:
        missing = [path for path in self.paths if path_digest(path) not in kept.paths]
        if missing and self.must_exist:
            raise ConflictError(f"data file {min(missing)!r} ({len(missing)} in all) is not live in the table")
