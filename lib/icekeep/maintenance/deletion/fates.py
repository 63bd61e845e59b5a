"""Delete or move some files by one call to the store, and what became of each."""

from collections.abc import Sequence
from enum import StrEnum

from icekeep.storage.base import DeleteStatus, MoveStatus, Storage


class Fate(StrEnum):
    """What became of a file that was to be deleted, or moved to the trash."""

    GONE = "gone"
    MISSING = "missing"
    UNMOVED = "unmoved"
    """The store cannot move it."""

    TAKEN = "taken"
    """The plan's file is in the trash already: what lies in its place is another one, which is in no plan."""

    FAILED = "failed"


_AFTER_DELETE = {
    DeleteStatus.DELETED: Fate.GONE,
    DeleteStatus.MISSING: Fate.MISSING,
    DeleteStatus.FAILED: Fate.FAILED,
}
_AFTER_MOVE = {
    MoveStatus.MOVED: Fate.GONE,
    MoveStatus.MISSING: Fate.MISSING,
    MoveStatus.IMPOSSIBLE: Fate.UNMOVED,
    MoveStatus.TAKEN: Fate.TAKEN,
    MoveStatus.FAILED: Fate.FAILED,
}


def deleted(storage: Storage, locations: Sequence[str]) -> list[tuple[Fate, str]]:
    """Delete files; the fate of each, with the reason where it failed."""
    return [(_AFTER_DELETE[outcome.status], outcome.reason) for outcome in storage.delete_many(locations)]


def moved(storage: Storage, moves: Sequence[tuple[str, str]]) -> list[tuple[Fate, str]]:
    """Move files from a place to another; the fate of each, with the reason where it stays."""
    return [(_AFTER_MOVE[outcome.status], outcome.reason) for outcome in storage.move_many(moves)]
