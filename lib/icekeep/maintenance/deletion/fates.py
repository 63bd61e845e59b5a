"""Delete or move some files by one call to the store, and what became of each."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

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


class Answer(NamedTuple):
    """The fate of one file; the reason where it failed; whether the store keeps its bytes as an older version."""

    fate: Fate
    reason: str
    is_kept_as_version: bool = False


def deleted(storage: Storage, locations: Sequence[str]) -> list[Answer]:
    """Delete files."""
    outcomes = storage.delete_many(locations)
    return [Answer(_AFTER_DELETE[one.status], one.reason, one.is_kept_as_version) for one in outcomes]


def moved(storage: Storage, moves: Sequence[tuple[str, str]]) -> list[Answer]:
    """Move files from a place to another."""
    return [Answer(_AFTER_MOVE[one.status], one.reason) for one in storage.move_many(moves)]
