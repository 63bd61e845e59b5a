"""Remove what a commit wrote and no snapshot names. Only called when the outcome is known.

Only locations that this very commit wrote are ever given to the storage; nothing is listed. A file that cannot be removed
stays as an orphan: the commit's outcome is decided already, and cleaning must not change it.
"""

from contextlib import suppress

from icekeep.commit.attempt import CommitFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import IcekeepError
from icekeep.spec.snapshots import Snapshot


def remove_all(files: CommitFiles) -> None:
    """Remove everything that a commit wrote which did not land."""
    _remove(files, [*files.lists_written, *files.manifests_written])


def remove_unused(files: CommitFiles, snapshot: Snapshot | None, reader: ManifestReader) -> None:
    """Remove the lists of earlier attempts, and manifests that the snapshot which landed does not list."""
    if snapshot is None:
        # The change made no snapshot, or another writer has expired it already: then nobody knows what it named.
        return
    spare = [location for location in files.lists_written if location != snapshot.manifest_list]
    if len(files.lists_written) > 1:
        try:
            named = {m.manifest_path for m in reader.manifests(snapshot)}
        except IcekeepError:
            return
        spare += [location for location in files.manifests_written if location not in named]
    _remove(files, spare)


def _remove(files: CommitFiles, locations: list[str]) -> None:
    if locations:
        with suppress(IcekeepError):
            files.storage.delete_many(locations)
