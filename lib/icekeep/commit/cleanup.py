"""Remove what a commit wrote and no snapshot names. Only done when the outcome is known.

Only locations that this very commit wrote are ever given to the storage; nothing is listed. A file that cannot be removed
stays as an orphan: the commit's outcome is decided already, and cleaning must not change it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from icekeep.commit.attempt import CommitFiles
from icekeep.commit.late_swaps import LateSwaps
from icekeep.errors import IcekeepError, one_line
from icekeep.spec.snapshots import Snapshot


@contextmanager
def leaving_nothing(files: CommitFiles, undo: Callable[[], object], late: LateSwaps) -> Iterator[None]:
    """Remove everything that a commit wrote where the block raises; only for a block before which nothing is seen to have landed.

    Args:
        undo: removes what was made for the commit before it began; called where what is raised is no error of ours, as by that
            those who called the commit learn for themselves that nothing landed.
        late: swaps that were refused; as long as one of them may land nothing is removed.

    Raises:
        OutcomeUnknownError: one may; from what the block raised.
    """
    try:
        yield
    except BaseException as error:
        if late.may_land():
            raise late.in_doubt(one_line(error)) from error
        remove_all(files)
        if not isinstance(error, IcekeepError):
            with suppress(Exception):
                undo()
        raise


def remove_all(files: CommitFiles) -> None:
    """Remove everything that a commit wrote which did not land."""
    _remove(files, files.written)


def remove_unused(files: CommitFiles, snapshot: Snapshot | None) -> None:
    """Remove the lists of earlier attempts, and manifests and delete files that the snapshot which landed does not name."""
    if snapshot is None or snapshot.manifest_list not in files.named:
        # The change made no snapshot, or another writer has expired it already: then nobody knows what it named.
        return
    named = files.named[snapshot.manifest_list] | {snapshot.manifest_list}
    _remove(files, [location for location in files.written if location not in named])


def _remove(files: CommitFiles, locations: list[str]) -> None:
    if locations:
        with suppress(Exception):
            files.storage.delete_many(locations)
