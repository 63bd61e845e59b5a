"""Remove what a commit wrote and no snapshot names. Only called when the outcome is known.

Only locations that this very commit wrote are ever given to the storage; nothing is listed. A file that cannot be removed
stays as an orphan: the commit's outcome is decided already, and cleaning must not change it.
"""

from contextlib import suppress

from icekeep.commit.attempt import CommitFiles
from icekeep.errors import IcekeepError
from icekeep.spec.snapshots import Snapshot


def remove_all(files: CommitFiles) -> None:
    """Remove everything that a commit wrote which did not land."""
    _remove(files, [*files.lists_written, *files.manifests_written])


def remove_unused(files: CommitFiles, snapshot: Snapshot | None) -> None:
    """Remove the lists of earlier attempts, and manifests that the list of the snapshot which landed does not name."""
    named = None if snapshot is None else files.named.get(snapshot.manifest_list or "")
    if named is None:
        # The change made no snapshot, or another writer has expired it already: then nobody knows what it named.
        return
    assert snapshot is not None
    spare = [location for location in files.lists_written if location != snapshot.manifest_list]
    _remove(files, spare + [location for location in files.manifests_written if location not in named])


def _remove(files: CommitFiles, locations: list[str]) -> None:
    if locations:
        with suppress(IcekeepError):
            files.storage.delete_many(locations)
