"""Why faults stay as they are."""

import shlex
from collections.abc import Sequence

from icekeep.maintenance.checking.classes import CLASSES
from icekeep.maintenance.checking.faults import Fault

NEEDS_EARLIER = frozenset((101, 103, 104, 105, 106, 111, 114, 115, 116, 117, 118, 120, 126, 130))
"""What a metadata file can have of which it cannot be told what would be right: the table begins again from an earlier one."""


class CannotMendError(Exception):
    """A fault stays; the text says why."""


def not_accepted(what: str, locations: Sequence[str], more: str = "") -> CannotMendError:
    """Why a loss stays undone that nobody has accepted: the flag to give for it, as a shell takes it, and what would be lost."""
    return CannotMendError(f"only done with --accept-loss {shlex.quote(','.join(locations))}{more}: {what}")


def no_repair(number: int) -> str:
    """Why a kind of faults is never mended here."""
    if number in NEEDS_EARLIER:
        return (
            "the metadata file contradicts other files only, or the catalog writes metadata itself: which is right cannot be "
            "told here; look at the metadata files, and register a sound one by hand: `icekeep drop` without --purge, then "
            "`icekeep register`"
        )
    return f"there is no repair of this kind; {CLASSES[number].mend}"


def only_older(fault: Fault) -> str:
    """Why what no branch begins with is left."""
    if fault.snapshot_id is None:
        return NOT_FOUND
    return f"no branch has it at its head, only snapshot {fault.snapshot_id} or a tag; it goes with its expiration"


NOT_FOUND = "it was not found any more when it was measured again"
