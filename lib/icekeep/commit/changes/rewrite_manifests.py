"""Replace manifests by others that list the same live files."""

from collections.abc import Mapping, Sequence, Set

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.dangling import dangling
from icekeep.commit.file_sets import Digest
from icekeep.commit.filtering import Identity, identity
from icekeep.commit.live_files import PathProof, head_manifests, live_among, remove
from icekeep.commit.selection import Among, Selection
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, IcekeepBug
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update


class RewriteManifests(msgspec.Struct, frozen=True, kw_only=True):
    """Manifests to leave out and manifests, written already, to list in their place.

    The added ones hold existing entries only, each with its snapshot id, sequence numbers and first row id, so that they
    belong to no snapshot and stay good over attempts. One of them of which delete files were left out again is removed with
    the rest when the commit ends.

    Attributes:
        drop_dangling_deletes: remove the delete files, too, that reach no live data file of the branch.
        only_dangling: which of these may go; `None` for all.
        proof: reads the rows of position delete files, as `dangling` asks for it.
        format_version: of the table that was read, `None` where it does not matter: entries of one version are not those of
            another.
    """

    replaced: tuple[ManifestFile, ...]
    added: tuple[ManifestFile, ...]
    drop_dangling_deletes: bool = False
    only_dangling: frozenset[Digest] | None = None
    proof: PathProof | None = None
    format_version: int | None = None
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """What others have added meanwhile stays.

        Raises:
            ConflictError: others have replaced one of these manifests, as whoever deletes or merges what it lists does.
            InvalidTableError: as `head_manifests`.
        """
        if not self.replaced and not self.added and not self.drop_dangling_deletes:
            return ()
        if self.format_version not in (None, base.format_version):
            raise ConflictError(f"the table has format version {base.format_version} now")
        _check_counts(self.replaced, self.added)
        current = head_manifests(base, self.branch, attempt)
        here = {identity(m) for m in current}
        replaced = self._replaced(here)
        _check_counts(replaced, self.added)
        gone = {identity(m) for m in replaced}
        new = [msgspec.structs.replace(m, added_snapshot_id=attempt.snapshot_id) for m in self.added]
        # One without any live file may not even say which snapshot added it, if a version 1 snapshot names it without a list.
        kept = (m for m in current if identity(m) not in gone and m.may_have_live_files)
        rows, dropped = [*new, *kept], SummaryBuilder()
        if self.drop_dangling_deletes:
            rows, dropped = self._without_dangling(rows, current, attempt)
        listed = {identity(m) for m in rows}
        attempt.leave_out(m for m in self.added if identity(m) not in listed)
        if listed == here:
            return ()
        created = [m for m in rows if identity(m) not in here]
        stays = [m for m in rows if identity(m) in here]
        summary = SummaryBuilder({**self.summary, **_counts(created, stays, len(here - listed))})
        summary.absorb(dropped)
        return attempt.snapshot_updates("replace", [*created, *stays], summary, branch=self.branch)

    def _replaced(self, here: Set[Identity]) -> list[ManifestFile]:
        """The manifests to leave out of a base, by what its manifests are; raises `ConflictError` where one is gone from it."""
        # Most commits leave out manifests without live files.
        replaced = [m for m in self.replaced if m.may_have_live_files or identity(m) in here]
        if missing := {identity(m) for m in replaced} - here:
            path = min(path for path, _ in missing)
            raise ConflictError(f"manifest {path!r} ({len(missing)} in all) is no longer in the table as it was read")
        return replaced

    def _without_dangling(
        self, rows: Sequence[ManifestFile], current: Sequence[ManifestFile], attempt: Attempt
    ) -> tuple[list[ManifestFile], SummaryBuilder]:
        """Manifests without the delete files that reach nothing, and a count of these.

        Which these are is asked of the base: its manifests list the same live files, and later attempts know most of them.
        """
        base, live = attempt.base, live_among(current)
        found = dangling(live.deletes, live.data, (), base, attempt, proof=self.proof)
        if found is None:
            return list(rows), SummaryBuilder()
        selected: Selection = found if self.only_dangling is None else Among(found, self.only_dangling)
        deletes = live_among(rows).deletes
        kept = remove(deletes, base, attempt, selected=selected)
        filtered = {identity(m) for m in deletes}
        return [*(m for m in rows if identity(m) not in filtered), *kept.manifests], kept.summary


def _check_counts(replaced: Sequence[ManifestFile], added: Sequence[ManifestFile]) -> None:
    before = sum(m.live_files_count or 0 for m in replaced)
    after = sum(m.existing_files_count or 0 for m in added)
    if before != after or any(m.added_files_count or m.deleted_files_count for m in added):
        raise IcekeepBug(f"rewritten manifests hold {after} live files, the replaced ones {before}")


def _counts(created: Sequence[ManifestFile], kept: Sequence[ManifestFile], replaced_count: int) -> dict[str, str]:
    """As Iceberg counts them; entries processed are those that were written, where Iceberg's actions always say none."""
    return {
        "manifests-created": str(len(created)),
        "manifests-kept": str(len(kept)),
        "manifests-replaced": str(replaced_count),
        "entries-processed": str(sum(m.existing_files_count or 0 for m in created)),
    }
