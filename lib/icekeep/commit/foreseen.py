"""What a change would take out of a table, without a commit: the change is applied, and what it writes stays in memory."""

from collections.abc import Callable

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt, CommitFiles
from icekeep.commit.changes.base import Change
from icekeep.commit.file_sets import entry_digest
from icekeep.commit.filtering import identity
from icekeep.commit.live_files import live_among
from icekeep.commit.manifests import StorageManifestReader
from icekeep.runtime import new_snapshot_id
from icekeep.spec.manifests.structs import ManifestEntry, ManifestFile
from icekeep.spec.updates import AddSnapshot
from icekeep.storage.overlay import RehearsalStorage


class Removed(msgspec.Struct, frozen=True):
    """A manifest, and the entries of those of its live delete files that go."""

    manifest: ManifestFile
    entries: tuple[ManifestEntry, ...]


def removed_deletes(change: Callable[[], Change], table: Table, branch: str) -> list[Removed]:
    """The delete files that a change would remove from a branch of a table as it is; nothing is written.

    Args:
        change: makes the change; not called for a branch without delete files.

    Raises:
        ConflictError: the change cannot be applied to the table.
        InvalidTableError, MissingFileError, UnsupportedError: a manifest cannot be read.
    """
    base, runtime, storage = table.metadata, table.runtime, RehearsalStorage(table.storage)
    reader, head = StorageManifestReader(storage), base.head(branch)
    before = () if head is None else live_among(reader.manifests(head)).deletes
    if not before:
        return []
    files = CommitFiles(storage, str(runtime.new_uuid()))
    attempt = Attempt(base, 1, new_snapshot_id(runtime, base.snapshots_by_id), files, reader, runtime)
    added = [update.snapshot for update in change().apply(base, attempt) if isinstance(update, AddSnapshot)]
    if not added:
        return []
    after = {identity(one): one for one in live_among(reader.manifests(added[-1])).deletes}
    stay = {identity(one) for one in before}
    new = (entry for key, one in after.items() if key not in stay for entry in reader.entries(one, base))
    kept = {entry_digest(entry) for entry in new if entry.is_live}
    removed = []
    for manifest in before:
        if identity(manifest) not in after:
            live = (entry for entry in reader.entries(manifest, base) if entry.is_live)
            removed.append(Removed(manifest, tuple(entry for entry in live if entry_digest(entry) not in kept)))
    return removed
