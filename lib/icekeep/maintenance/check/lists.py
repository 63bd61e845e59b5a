"""A table under check, and its manifest lists: whether each is whole, and what its rows say of manifests.

Of each manifest the rows are kept that differ, since each list may describe it in its own way.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import msgspec
from pyroaring import BitMap

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, UnsupportedError, UsageError, first_line
from icekeep.events import Listener
from icekeep.maintenance.check.faults import Fault, FaultId, Tally
from icekeep.planning.entries import threads_count
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.manifests.read import inspect_manifest, read_manifest_list
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN, Snapshot
from icekeep.storage.base import REQUESTS_AT_ONCE, FileInfo, Storage, answer_each
from icekeep.storage.locations import canonical, is_location

_AT_ONCE = 64
"""How many lists are held at a time: the rows of ten thousand are too many."""

MOVED_ON = "the table moved on while it was checked"

ListedRows: TypeAlias = tuple[tuple[ManifestFile, int], ...]
"""What lists say of a manifest, mostly in one row; each with the oldest snapshot whose list has it."""


class CheckedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table under examination.

    Attributes:
        snapshots: those that are looked at, the oldest first: all of the table, or the head of one reference.
        tally: takes all faults; of this process only, tasks have their own and it takes them in.
        is_current: whether the table is what its catalog has; earlier metadata is not, and snapshots that expired since count.
    """

    table: Table
    snapshots: tuple[Snapshot, ...]
    spark: SparkSource
    listener: Listener
    tally: Tally
    is_current: bool = True


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """The manifests that the lists of the snapshots name.

    Attributes:
        manifests: each once, by location; as the oldest snapshot's list describes it. Only those whose rows make sense: a
            spec that the table has, a length, a content.
        members: by snapshot the indices of its manifests in `manifests`; a snapshot whose list could not be read is not there.
        since: by index of a manifest the oldest snapshot that has it.
        unread: snapshots of which a manifest is not in `manifests`, since it or its row in the list could not be read.
    """

    manifests: tuple[ManifestFile, ...]
    members: Mapping[int, BitMap]
    since: tuple[int, ...]
    unread: frozenset[int]


class ReadLists(msgspec.Struct, frozen=True):
    """The manifests that lists name, and by index what the lists say of each."""

    listed: Listed
    rows: tuple[ListedRows, ...]


def branch_heads(metadata: TableMetadata) -> dict[int, tuple[str, ...]]:
    """The snapshots that are heads of branches, with the names of these in order."""
    heads = {name: ref.snapshot_id for name, ref in metadata.refs.items() if ref.is_branch}
    if metadata.current_snapshot_id is not None:
        heads.setdefault(MAIN, metadata.current_snapshot_id)
    return {head: tuple(sorted(n for n in heads if heads[n] == head)) for head in dict.fromkeys(heads.values())}


def look_up(locations: Sequence[str], storage: Storage) -> list[FileInfo | str | None]:
    """What lies at some locations, as `Storage.head` answers; a text says why that is not known.

    Raises:
        UnavailableError: the store is out of reach.
    """

    def head(location: str) -> FileInfo | str | None:
        try:
            return storage.head(location)
        except (InvalidTableError, UnsupportedError, UsageError) as error:
            return first_line(error)

    return answer_each(head, locations, lambda location: location, REQUESTS_AT_ONCE)


def read_lists(subject: CheckedTable) -> ReadLists:
    """Read the manifest list of each snapshot, the oldest first, each list once; faults go to the subject's tally."""
    tally = subject.tally
    collector = _Collector(subject.table.metadata, tally)
    # A snapshot that names neither a list nor manifests is a fault of the metadata.
    snapshots = [one for one in subject.snapshots if one.manifest_list is not None or one.manifests is not None]
    by_list: dict[str, Snapshot] = {}
    with ThreadPoolExecutor(threads_count(s.manifest_list for s in snapshots if s.manifest_list)) as pool:
        for start in range(0, len(snapshots), _AT_ONCE):
            some = snapshots[start : start + _AT_ONCE]
            for snapshot, rows in zip(some, pool.map(lambda s: _rows(s, subject), some), strict=True):
                if isinstance(rows, Fault):
                    tally.add(rows)
                elif isinstance(rows, str):
                    tally.gap(f"snapshot {snapshot.snapshot_id}", rows)
                else:
                    location = None if snapshot.manifest_list is None else canonical(snapshot.manifest_list)
                    first = snapshot if location is None else by_list.setdefault(location, snapshot)
                    if first is snapshot:
                        collector.add(snapshot, rows)
                    else:
                        collector.share(snapshot, first)
    return collector.result()


def _rows(snapshot: Snapshot, subject: CheckedTable) -> list[ManifestFile] | Fault | str:
    """The rows of a snapshot's list; or a fault; or why they are not looked at."""
    storage, location = subject.table.storage, snapshot.manifest_list
    try:
        if location is not None:
            return read_manifest_list(storage.read(location), location)
        return [inspect_manifest(storage.read(path), path) for path in snapshot.manifests or ()]
    except (UnsupportedError, UsageError) as error:
        # A store that denies access raises the latter.
        return first_line(error)
    except InvalidTableError as error:
        return Fault(
            number=FaultId.MANIFEST_UNREADABLE if location is None else FaultId.MANIFEST_LIST_UNREADABLE,
            where=location or str(error.facts.get("location", f"snapshot {snapshot.snapshot_id}")),
            detail=first_line(error),
            snapshot_id=snapshot.snapshot_id,
        )


class _Collector:
    """Collects rows, list by list."""

    def __init__(self, metadata: TableMetadata, tally: Tally) -> None:
        self._metadata, self._tally = metadata, tally
        self._members: dict[int, BitMap] = {}
        self._indices: dict[str, int] = {}
        # Many lists name a manifest, and all of them spell it alike: to bring a path to its key takes longer than all else.
        self._spelled: dict[str, int] = {}
        self._rows: list[ListedRows] = []
        self._reported: set[tuple[int, str]] = set()
        self._unread: set[int] = set()

    def share(self, snapshot: Snapshot, first: Snapshot) -> None:
        """Take in a snapshot that has the same list as another."""
        self._members[snapshot.snapshot_id] = self._members[first.snapshot_id]
        if first.snapshot_id in self._unread:
            self._unread.add(snapshot.snapshot_id)

    def add(self, snapshot: Snapshot, rows: Iterable[ManifestFile]) -> None:
        """Take in the rows of a snapshot's list."""
        numbers: list[int] = []
        for row in rows:
            path = row.manifest_path
            index = self._spelled.get(path)
            if index is None and not is_location(path):
                detail = f"the list names a manifest {path!r}, which is no location"
                self._report(FaultId.MANIFEST_UNREADABLE, path, snapshot, detail)
                self._unread.add(snapshot.snapshot_id)
                continue
            for number, detail in _problems(row, snapshot, self._metadata):
                self._report(number, path, snapshot, detail)
            if row.partition_spec_id not in self._metadata.specs_by_id:
                self._unread.add(snapshot.snapshot_id)
                continue
            if index is None:
                index = self._spelled[path] = self._indices.setdefault(canonical(path), len(self._rows))
                if index == len(self._rows):
                    self._rows.append(())
            if all(known != row for known, _ in self._rows[index]):
                self._rows[index] = (*self._rows[index], (row, snapshot.snapshot_id))
            numbers.append(index)
        members = self._members[snapshot.snapshot_id] = BitMap(numbers)
        for index, count in sorted(Counter(numbers).items()) if len(members) < len(numbers) else ():
            if count > 1:
                detail = f"the manifest list {snapshot.manifest_list!r} names it {count} times"
                self._report(FaultId.DOUBLED_MANIFEST, self._rows[index][0][0].manifest_path, snapshot, detail)

    def result(self) -> ReadLists:
        """All of it."""
        listed = Listed(
            manifests=tuple(rows[0][0] for rows in self._rows),
            members=self._members,
            since=tuple(rows[0][1] for rows in self._rows),
            unread=frozenset(self._unread),
        )
        return ReadLists(listed, tuple(self._rows))

    def _report(self, number: FaultId, path: str, snapshot: Snapshot, detail: str) -> None:
        """Where many lists describe a manifest wrongly, the oldest of them is reported."""
        if (number, path) not in self._reported:
            self._reported.add((number, path))
            facts = {"manifest": path, "manifest_list": snapshot.manifest_list}
            self._tally.add(
                Fault(number=number, where=path, detail=detail, snapshot_id=snapshot.snapshot_id, facts=facts)
            )


def _problems(row: ManifestFile, snapshot: Snapshot, metadata: TableMetadata) -> Iterator[tuple[FaultId, str]]:
    """What a list says of a manifest that is impossible."""
    if row.partition_spec_id not in metadata.specs_by_id:
        detail = f"the list says partition spec {row.partition_spec_id}, which the table does not have"
        yield FaultId.MANIFEST_SPEC_MISSING, detail
    if metadata.format_version == 1:
        if row.content is ManifestContent.DELETES:
            yield FaultId.DELETE_OF_ANOTHER_VERSION, "a list of a table of version 1 names a manifest of deletes"
        return
    number = row.sequence_number or 0
    if number > snapshot.sequence_number:
        detail = f"its sequence number is {number}, but that of the snapshot is {snapshot.sequence_number}"
        yield FaultId.MANIFEST_SEQUENCE_NUMBER_WRONG, detail
    adding = metadata.snapshots_by_id.get(-1 if row.added_snapshot_id is None else row.added_snapshot_id)
    if adding is not None and adding.sequence_number not in (0, number):
        own = f"that of snapshot {adding.snapshot_id}, its own, {adding.sequence_number}"
        yield FaultId.MANIFEST_SEQUENCE_NUMBER_WRONG, f"its sequence number is {number}, {own}"
    if snapshot.first_row_id is not None and row.content is ManifestContent.DATA:
        first, limit = row.first_row_id, metadata.next_row_id or 0
        if first is None:
            yield FaultId.FIRST_ROW_ID_OF_MANIFEST_WRONG, "it has no first row id"
        elif first > limit or first < 0:
            yield FaultId.FIRST_ROW_ID_OF_MANIFEST_WRONG, f"its first row id is {first}, but next-row-id is {limit}"
