"""Swaps that a catalog refused and that may land all the same: what proves of one that it does no longer.

A request that was sent twice on its way, by a proxy that lost patience for example, may be refused while its twin is still at
work. Then the table as it is a moment later shows no snapshot of ours, and a moment after that it does. So whoever wants to
remove what such a swap names needs more than its absence: what it was made for must be over.
"""

from collections.abc import Sequence

from icekeep.catalog.base import Conflict, Table
from icekeep.errors import NotFoundError, OutcomeUnknownError, UnavailableError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.requirements import AssertRefSnapshotId, Requirement, failing, requirements_for
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.updates import AddSnapshot, Update


class LateSwaps:
    """The refused swaps of one commit that may land still; those alone that add its snapshot, as others name no new files."""

    def __init__(self, table: Table, snapshot_id: int) -> None:
        self._table, self._snapshot_id = table, snapshot_id
        self._open: list[tuple[Table, Sequence[Requirement]]] = []

    def refused(self, base: Table, updates: Sequence[Update], answer: Conflict | UnavailableError) -> None:
        """Take note of a swap that was made for `base`, unless the answer proves that it will not land."""
        is_final = answer.is_final if isinstance(answer, Conflict) else not answer.was_sent
        if not is_final and any(isinstance(update, AddSnapshot) for update in updates):
            self._open.append((base, requirements_for(base.metadata, updates)))

    def look(self, now: Table) -> Snapshot | None:
        """The commit's snapshot, if the table has it by now; else what is over is no longer in doubt."""
        found = now.metadata.snapshots_by_id.get(self._snapshot_id)
        if found is None:
            self._open = [(base, needed) for base, needed in self._open if not is_over(base, needed, now)]
        return found

    def may_land(self) -> bool:
        """Whether one may have landed or may come yet; raises no error: one that hid the answer would prove that nothing landed.

        The table is looked at once more, unless nothing is in doubt.
        """
        if not self._open:
            return False
        try:
            return self.look(self._table.refresh()) is not None or bool(self._open)
        except NotFoundError:
            # Nothing lands on a table that is gone.
            return False
        except Exception:  # noqa: BLE001 - whoever's it is, it shows nothing
            return True

    def in_doubt(self, cause: str) -> OutcomeUnknownError:
        """What to raise where one may land: the commit ends by `cause`, and an attempt before may still be carried out."""
        return OutcomeUnknownError(
            f"the commit to {self._table.name!r} ended ({cause}), but an attempt that was refused may have landed or land still; "
            f"nothing was deleted; see in a while whether snapshot {self._snapshot_id} is there before anything is run again",
            metadata_location="",
            snapshot_id=self._snapshot_id,
        )


def is_over(base: Table, requirements: Sequence[Requirement], now: Table) -> bool:
    """Whether a swap that adds a snapshot, was made for `base` and is not to be seen in `now` has not landed and cannot any more.

    Who compares metadata refuses it once that has moved. Others apply it to whatever is current: they refuse what does not meet
    the requirements, and somebody would have to move the branch back to the very snapshot of `base` while the request is under
    way; and a sequence number that another snapshot has by now (spec, "Sequence Numbers"), but for a snapshot without a parent.
    """
    old, new = base.metadata, now.metadata
    if old.table_uuid != new.table_uuid and old.table_uuid is not None:
        return True
    if may_have_expired(new, old):
        return False
    if base.catalog.compares_metadata:
        return now.metadata_location != base.metadata_location
    if failing(requirements, new) is not None:
        return True
    is_first = any(isinstance(one, AssertRefSnapshotId) and one.snapshot_id is None for one in requirements)
    return old.format_version > 1 and new.last_sequence_number >= old.next_sequence_number and not is_first


def may_have_expired(now: TableMetadata, base: TableMetadata) -> bool:
    """Whether a snapshot that was committed on `base`, and is not in `now`, could have come and gone.

    The one with its sequence number is not there; in version 1, which has none, history has any gap at all.
    """
    if base.format_version == 1:
        before, known = base.snapshots_by_id.keys(), now.snapshots_by_id.keys()
        parents = {s.parent_snapshot_id for s in now.snapshots if s.snapshot_id not in before} - {None}
        is_whole = before <= known and parents <= known
        return not is_whole or now.snapshot_log[: len(base.snapshot_log)] != base.snapshot_log
    number = base.next_sequence_number
    return now.last_sequence_number >= number and all(s.sequence_number != number for s in now.snapshots)
