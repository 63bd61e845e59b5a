"""Removing new files that no snapshot names, after work that came to nothing; what cannot be removed is told."""

from collections.abc import Iterable

from icekeep.events import Listener, Warned
from icekeep.storage.base import DeleteStatus, Storage


def discard_files(storage: Storage, locations: Iterable[str], listener: Listener) -> None:
    """Remove files that a job wrote and nothing names; warn of those that stay."""
    failed = [one for one in storage.delete_many({*locations}) if one.status is DeleteStatus.FAILED]
    if failed:
        listener.on(
            Warned(
                f"{len(failed)} new files that no snapshot names could not be removed, {failed[0].location!r} among them "
                f"({failed[0].reason}); they stay until orphan files are removed"
            )
        )
