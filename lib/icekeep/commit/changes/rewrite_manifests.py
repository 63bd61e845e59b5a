"""Replace manifests by others that list the same live files."""

from collections.abc import Mapping

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.filtering import identity
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, IcekeepBug
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update


class RewriteManifests(msgspec.Struct, frozen=True, kw_only=True):
    """Manifests to leave out and manifests, written already, to list in their place.

    The added ones hold existing entries only, each with its snapshot id and sequence numbers, so that they belong to no
    snapshot and stay good over attempts. `format_version` is that of the table which was read, null where it does not
    matter: entries of one version are not those of another.
    """

    replaced: tuple[ManifestFile, ...]
    added: tuple[ManifestFile, ...]
    format_version: int | None = None
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Every replaced manifest must still be in the base; what others have added meanwhile stays."""
        if not self.replaced and not self.added:
            return ()
        if self.format_version not in (None, base.format_version):
            raise ConflictError(f"the table has format version {base.format_version} now; plan again")
        before = sum(m.live_files_count or 0 for m in self.replaced)
        after = sum(m.existing_files_count or 0 for m in self.added)
        if before != after or any(m.added_files_count or m.deleted_files_count for m in self.added):
            raise IcekeepBug(f"rewritten manifests hold {after} live files, the replaced ones {before}")
        head = base.head(self.branch)
        current = [] if head is None else attempt.reader.manifests(head)
        gone = {identity(m) for m in self.replaced}
        missing = gone - {identity(m) for m in current}
        if missing:
            path = min(path for path, _ in missing)
            raise ConflictError(
                f"manifest {path!r} ({len(missing)} in all) is no longer in the table as it was read; plan again"
            )
        kept = [m for m in current if identity(m) not in gone]
        added = [msgspec.structs.replace(m, added_snapshot_id=attempt.snapshot_id) for m in self.added]
        summary = SummaryBuilder(
            {
                **self.summary,
                "manifests-created": str(len(added)),
                "manifests-kept": str(len(kept)),
                "manifests-replaced": str(len(gone)),
                "entries-processed": str(after),
            }
        )
        return attempt.snapshot_updates("replace", [*added, *kept], summary, branch=self.branch)
