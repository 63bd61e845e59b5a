"""The catalog in a directory, and changes of refs, filters and definitions, broken on purpose: see `mutants`."""

from contextlib import AbstractContextManager
from typing import Any

from msgspec.structs import replace

from icekeep.catalog import filesystem
from icekeep.catalog import metadata_files as version_files
from icekeep.catalog.base import Committed
from icekeep.catalog.filesystem import FilesystemCatalog
from icekeep.catalog.metadata_files import dropped_from_log
from icekeep.commit import outcome as settling
from icekeep.commit.changes import files as cherry_pick
from icekeep.commit.changes import snapshots as expire_snapshots
from icekeep.commit.changes import snapshots as manage_refs
from icekeep.commit.changes.definitions import ChangeStatistics
from icekeep.commit.changes.snapshots import RenameBranch
from icekeep.commit.conflicts import ADDED_DATA, Matching, Since
from icekeep.commit.manifests import MergeManifests
from icekeep.spec.manifests.structs import Status
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.updates import RemoveSnapshotRef, SetSnapshotRef
from simulation.replacing import replaced


def skips_the_look_after_a_commit() -> AbstractContextManager[Any]:
    """Takes the creation of a version for a commit, whatever newer versions there are."""
    return replaced(FilesystemCatalog, "_verified", lambda self, table, data: Committed(table))


def keeps_no_versions() -> AbstractContextManager[Any]:
    """Deletes versions as soon as they fall out of the log, so that a slow writer can create them again."""

    def trim(self: Any, base: Any, new: Any, version: int) -> None:
        self.storage.delete_many(entry.metadata_file for entry in dropped_from_log(base, new))

    return replaced(FilesystemCatalog, "_trim", trim)


def takes_the_hint_for_the_head() -> AbstractContextManager[Any]:
    """Believes the hint as long as it names a version that is there."""
    find = version_files.find_head

    def believe(storage: Any, directory: str) -> Any:
        hint = version_files.read_hint(storage, directory) or 0
        there = (o for o in version_files.version_locations(directory, hint) if storage.head(o))
        location = next(there, None)
        return find(storage, directory) if location is None else version_files.VersionFile(hint, location)

    return replaced(filesystem, "find_head", believe)


def takes_a_name_for_its_own() -> AbstractContextManager[Any]:
    """After a lost answer, takes a version of the number that it wanted for the one that it wrote."""
    return replaced(settling, "parse_version_name", lambda name: None)


def picks_what_was_picked() -> AbstractContextManager[Any]:
    """Publishes a snapshot once more, after it was published."""
    return replaced(cherry_pick, "_check_unpublished", lambda base, picked: None)


def merges_and_drops() -> AbstractContextManager[Any]:
    """Leaves the last entry out where it merges manifests."""

    def without_the_last(work: Any, manifests: Any, reader: Any, locations: Any) -> Any:
        entries = [entry for manifest in manifests for entry in work.kept(reader.entries(manifest, work.base))]
        return [*work.writer.write(entries[:-1], work.spec_id, work.content, locations)]

    return replaced(MergeManifests, "run", without_the_last)


def merges_what_is_deleted() -> AbstractContextManager[Any]:
    """Takes, where it merges manifests, deleted entries for existing ones."""

    def kept(work: Any, entries: Any) -> Any:
        for entry in entries:
            is_own = entry.snapshot_id == work.writer.snapshot_id
            yield entry if is_own else replace(entry, status=Status.EXISTING)

    return replaced(MergeManifests, "kept", kept)


def overwrites_unseen() -> AbstractContextManager[Any]:
    """Does not look, though it was asked to be serializable, whether others added rows."""
    check = Since.check_none

    def unseen(self: Since, change: Any, rows: Any) -> None:
        if change is not ADDED_DATA:
            check(self, change, rows)

    return replaced(Since, "check_none", unseen)


def overwrites_what_it_did_not_read() -> AbstractContextManager[Any]:
    """Does not look, though it was asked to be isolated, whether others deleted rows."""
    check = Since.check_none

    def only_added_data(self: Since, change: Any, rows: Any) -> None:
        if change is ADDED_DATA:
            check(self, change, rows)

    return replaced(Since, "check_none", only_added_data)


def removes_files_that_match_in_part() -> AbstractContextManager[Any]:
    """Removes a data file by a filter of which only some rows match."""
    return replaced(Matching, "holds_only", lambda self, file: True)


def renames_what_it_saw() -> AbstractContextManager[Any]:
    """Renames a branch to what it was when it was seen, without what others have committed to it."""

    def apply(self: RenameBranch, base: Any, attempt: Any) -> Any:
        ref = SnapshotRef(snapshot_id=self.snapshot_id, type="branch")
        return SetSnapshotRef(self.new_name, ref), RemoveSnapshotRef(self.name)

    return replaced(RenameBranch, "apply", apply)


def moves_refs_unseen() -> AbstractContextManager[Any]:
    """Replaces and drops branches and tags wherever others have moved them."""
    return replaced(manage_refs, "check_unmoved", lambda *arguments: None)


def removes_specs_in_use() -> AbstractContextManager[Any]:
    """Removes, with the snapshots that expire, all partition specs but the current one."""
    return replaced(
        expire_snapshots, "unused_spec_ids", lambda base, used: tuple({*base.specs_by_id} - {base.default_spec_id})
    )


def drops_other_statistics() -> AbstractContextManager[Any]:
    """Removes the statistics of all other snapshots where it sets those of one."""
    apply = ChangeStatistics.apply

    def alone(self: ChangeStatistics, base: Any, attempt: Any) -> Any:
        others = {f.snapshot_id for f in base.statistics} - {f.snapshot_id for f in self.updates}
        return apply(replace(self, removals=(*others,)), base, attempt)

    return replaced(ChangeStatistics, "apply", alone)
