"""What a file is that nothing of the table leads to, by the rules of `remove_orphan_files` at its defaults."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.maintenance.deletion.territory import territory
from icekeep.maintenance.file_life.result import State
from icekeep.maintenance.file_life.target import Target
from icekeep.maintenance.orphans.candidates import sorter_of
from icekeep.maintenance.orphans.hidden import hidden_names
from icekeep.maintenance.orphans.listing import keyed_rows
from icekeep.maintenance.orphans.metadata_files import Sort
from icekeep.maintenance.orphans.options import DEFAULT_AGE_MS, eligible_before_ms
from icekeep.maintenance.runs.left_behind import living_runs
from icekeep.spec.properties import OWN_DIRECTORY
from icekeep.spec.times import format_time
from icekeep.storage.base import FileInfo, ListingShare
from icekeep.storage.location_keys import AS_SPELLED
from icekeep.storage.locations import canonical, is_under, parse_location
from icekeep.storage.many import LOCAL_REQUESTS_AT_ONCE, REQUESTS_AT_ONCE

_MAX_NAMES = 100


class Judged(msgspec.Struct, frozen=True):
    """What it is, what becomes of it, and from when on it may go, epoch milliseconds; `None` where it stays."""

    state: State
    fate: str
    removable_after_ms: int | None = None


def judged(info: FileInfo, table: Table) -> Judged:
    """Judge a file of which it is certain that no metadata, no manifest and no plan of the table names it.

    Raises:
        IcekeepError: the store does not answer.
    """
    metadata, location = table.metadata, info.location
    if is_under(location, metadata.location) and f"/{OWN_DIRECTORY}/" in canonical(location):
        return Judged(State.OWN, "it is icekeep's own, which removes it itself when it is done with it")
    if not territory(table).holds(location):
        return Judged(
            State.ELSEWHERE, "it lies in no place of the table, and below no `reclaim.roots`, so no run deletes it"
        )
    if not is_under(location, metadata.location):
        directory = location.rpartition("/")[0]
        return Judged(
            State.ORPHAN,
            f"`remove_orphan_files` takes it only where it is told `--location {directory}` or a directory above that",
        )
    if hidden_names(metadata.location, metadata.partition_specs).mask(pa.array([location]))[0]:
        return Judged(State.ORPHAN, "`remove_orphan_files` does not look at hidden names, so it stays")
    return _sorted(info, table)


def _sorted(info: FileInfo, table: Table) -> Judged:
    now_ms = table.runtime.now_ms()
    sorter = sorter_of(table, eligible_before_ms(None, now_ms), now_ms, living_runs(table, table.runtime, is_plan=True))
    location, size_bytes, modified_ms = (pa.array([one]) for one in (info.location, info.size_bytes, info.modified_ms))
    row = sorter.sort(keyed_rows(location, size_bytes, modified_ms, AS_SPELLED)).to_pylist()[0]
    after_ms = info.modified_ms + DEFAULT_AGE_MS
    match Sort(row["kind"]):
        case Sort.ORPHAN | Sort.METADATA:
            return Judged(State.ORPHAN, "the next `remove_orphan_files` takes it", after_ms)
        case Sort.YOUNG if after_ms > now_ms:
            return Judged(State.ORPHAN, f"`remove_orphan_files` takes it from {format_time(after_ms)} on", after_ms)
        case Sort.YOUNG:
            return Judged(State.ORPHAN, "`remove_orphan_files` leaves it alone: the run that wrote it is at work")
        case Sort.VERSION:
            return Judged(
                State.ORPHAN, "`remove_orphan_files` leaves it alone: a catalog may find the table by this version"
            )
    return Judged(State.ORPHAN, f"`remove_orphan_files` refuses to go on because of it: {row['reason']}")


def listed_with_end(table: Table, target: Target) -> list[FileInfo]:
    """The files below the table's location that end as asked: a listing of all of it, of which little is held.

    Raises:
        IcekeepError: it could not be listed whole.
    """
    storage, root = table.storage, table.metadata.location
    threads = LOCAL_REQUESTS_AT_ONCE if parse_location(root).scheme == "file" else REQUESTS_AT_ONCE

    def listed(share: ListingShare) -> list[FileInfo]:
        found: list[FileInfo] = []
        for info in storage.list_share(share):
            if len(found) < _MAX_NAMES and info.location.endswith(target.text):
                found.append(info)
        return found

    with ThreadPoolExecutor(threads) as pool:
        return [info for some in pool.map(listed, storage.shares(root, threads)) for info in some]
