"""How a table grew, as the points of a plot: of a long history some commits, evenly chosen; the manifest list of each is read."""

from collections.abc import Collection, Sequence
from contextlib import suppress

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError
from icekeep.maintenance.commit_history.changed_files import totals_after
from icekeep.maintenance.commit_history.lists import ListSums, read_list_sums
from icekeep.maintenance.commit_history.result import GrowthPoint
from icekeep.spec.snapshots import MAIN, Snapshot
from icekeep.storage.locations import parse_location
from icekeep.storage.many import LOCAL_REQUESTS_AT_ONCE, REQUESTS_AT_ONCE, answer_each


def growth_points(
    table: Table, *, ref: str = MAIN, most: int = 200, also: Collection[int] = ()
) -> tuple[GrowthPoint, ...]:
    """How large a table was after each commit of a branch or tag that it still has, the oldest first.

    Args:
        most: at most this many points, 2 or more; the first and the last commit are always among them.
        also: ids of snapshots whose points are wanted beside these, if the branch or tag has them.

    Raises:
        NotFoundError: there is no such branch or tag.
    """
    head = table.metadata.head(ref)
    line = [*table.metadata.ancestors(None if head is None else head.snapshot_id)][::-1]
    spread = {id(snapshot) for snapshot in evenly(line, most)}
    chosen = [snapshot for snapshot in line if id(snapshot) in spread or snapshot.snapshot_id in also]
    is_local = parse_location(table.metadata_location).scheme == "file"
    at_once = LOCAL_REQUESTS_AT_ONCE if is_local else REQUESTS_AT_ONCE
    return tuple(answer_each(lambda snapshot: _point(snapshot, table), chosen, id, at_once))


def evenly(line: Sequence[Snapshot], most: int) -> Sequence[Snapshot]:
    """Some of a line, as far from each other as can be, with both ends."""
    if len(line) <= most:
        return line
    last = len(line) - 1
    return [line[round(number * last / (most - 1))] for number in range(most)]


def _point(snapshot: Snapshot, table: Table) -> GrowthPoint:
    sums: ListSums | None = None
    # Nothing is known where it cannot be read: the plot has no point there, and `icekeep history` tells why.
    with suppress(IcekeepError):
        sums = read_list_sums(snapshot, table.storage)
    after = totals_after(sums, snapshot.summary or {})
    return GrowthPoint(
        timestamp_ms=snapshot.timestamp_ms,
        snapshot_id=snapshot.snapshot_id,
        data_files_count=after.data_files_count,
        bytes=after.bytes,
        delete_files_count=after.delete_files_count,
        metadata_bytes=None if sums is None else sums.manifests.metadata_bytes,
    )
