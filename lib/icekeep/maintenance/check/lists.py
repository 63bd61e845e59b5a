"""What is checked: the table as it was loaded, its metadata as the file has it, and the snapshots that are looked at.

Manifest lists: whether each is whole, and what its rows say of manifests; of each manifest the rows that differ are kept.

What the entries of a manifest come to, for the totals of snapshots.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.locations import canonical, is_location


class CheckedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table under examination.

    Attributes:
        raw: the metadata file's JSON object.
        snapshots: those that are looked at, the oldest first: all of the table, or the head of one reference.
        tally: takes all faults; of this process only, tasks have their own and it takes them in.
        is_current: whether the table is what its catalog has; earlier metadata is not, and snapshots that expired since count.
    """

    table: Table
    raw: Mapping[str, Any]
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


_AT_ONCE = 64


class RowsOfManifest(msgspec.Struct, frozen=True):
    """What lists say of a manifest: mostly one row; each with the oldest snapshot whose list has it."""

    rows: tuple[tuple[ManifestFile, int], ...]

    def with_row(self, row: ManifestFile, snapshot_id: int) -> "RowsOfManifest":
        """The same and another row, unless it is there."""
        if any(known == row for known, _ in self.rows):
            return self
        return RowsOfManifest((*self.rows, (row, snapshot_id)))


class ReadLists(msgspec.Struct, frozen=True):
    """The manifests that lists name, and by index what the lists say of each."""

    listed: Listed
    rows: tuple[RowsOfManifest, ...]


def read_lists(subject: CheckedTable) -> ReadLists:
    """Read the manifest list of each snapshot, the oldest first, each list once; faults go to the subject's tally."""
    metadata, tally = subject.table.metadata, subject.tally
    found = _Found(metadata, tally)
    with ThreadPoolExecutor(threads_count(s.manifest_list for s in subject.snapshots if s.manifest_list)) as pool:
        by_list: dict[str, Snapshot] = {}
        for some in _chunks(subject.snapshots):
            # One that names neither a list nor manifests is a fault of the metadata.
            some = [one for one in some if one.manifest_list is not None or one.manifests is not None]
            for snapshot, rows in zip(some, pool.map(lambda s: _rows(s, subject), some), strict=True):
                if isinstance(rows, Fault):
                    tally.add(rows)
                elif isinstance(rows, UnsupportedError | UsageError):
                    tally.gap(f"snapshot {snapshot.snapshot_id}", first_line(rows))
                else:
                    location = None if snapshot.manifest_list is None else canonical(snapshot.manifest_list)
                    first = snapshot if location is None else by_list.setdefault(location, snapshot)
                    if first is snapshot:
                        found.add(snapshot, rows)
                    else:
                        found.share(snapshot, first)
    return found.result()


def _chunks(snapshots: Sequence[Snapshot]) -> Iterator[Sequence[Snapshot]]:
    """Some at a time, since the rows of ten thousand lists are too many to be held."""
    for start in range(0, len(snapshots), _AT_ONCE):
        yield snapshots[start : start + _AT_ONCE]


def _rows(snapshot: Snapshot, subject: CheckedTable) -> list[ManifestFile] | Fault | UnsupportedError | UsageError:
    storage = subject.table.storage
    location = snapshot.manifest_list
    try:
        if location is not None:
            return read_manifest_list(storage.read(location), location)
        return [inspect_manifest(storage.read(path), path) for path in snapshot.manifests or ()]
    except (UnsupportedError, UsageError) as error:
        # A store that denies access raises the latter.
        return error
    except InvalidTableError as error:
        return Fault(
            number=FaultId.MANIFEST_LIST_UNREADABLE if location is not None else FaultId.MANIFEST_UNREADABLE,
            where=location or str(error.facts.get("location", f"snapshot {snapshot.snapshot_id}")),
            detail=first_line(error),
            snapshot_id=snapshot.snapshot_id,
        )


class _Found:
    """Collects rows, list by list."""

    def __init__(self, metadata: TableMetadata, tally: Tally) -> None:
        self.members: dict[int, BitMap] = {}
        self._metadata, self._tally = metadata, tally
        self._snapshots = metadata.snapshots_by_id
        self._indices: dict[str, int] = {}
        # Many lists name a manifest, and all of them spell it alike: to bring a path to its key takes longer than all else.
        self._spelled: dict[str, int] = {}
        self._rows: list[RowsOfManifest] = []
        self._told: set[tuple[int, str]] = set()
        self._unread: set[int] = set()

    def share(self, snapshot: Snapshot, first: Snapshot) -> None:
        """Take in a snapshot that has the same list as another."""
        self.members[snapshot.snapshot_id] = self.members[first.snapshot_id]
        if first.snapshot_id in self._unread:
            self._unread.add(snapshot.snapshot_id)

    def add(self, snapshot: Snapshot, rows: Iterable[ManifestFile]) -> None:
        """Take in the rows of a snapshot's list."""
        members = self.members[snapshot.snapshot_id] = BitMap()
        numbers: list[int] = []
        for row in rows:
            index = self._spelled.get(row.manifest_path)
            if index is None and not is_location(row.manifest_path):
                detail = f"the list names a manifest {row.manifest_path!r}, which is no location"
                self._tell(FaultId.MANIFEST_UNREADABLE, row, snapshot, detail)
                self._unread.add(snapshot.snapshot_id)
                continue
            self._check(row, snapshot)
            if row.partition_spec_id not in self._metadata.specs_by_id:
                self._unread.add(snapshot.snapshot_id)
                continue
            if index is None:
                index = self._spelled[row.manifest_path] = self._index(row, snapshot)
            self._rows[index] = self._rows[index].with_row(row, snapshot.snapshot_id)
            numbers.append(index)
        members.update(numbers)
        if len(members) < len(numbers):
            self._tell_doubled(numbers, snapshot)

    def _index(self, row: ManifestFile, snapshot: Snapshot) -> int:
        """The place of a manifest whose path no row has spelled so far in this way."""
        key = canonical(row.manifest_path)
        if key not in self._indices:
            self._indices[key] = len(self._rows)
            self._rows.append(RowsOfManifest(((row, snapshot.snapshot_id),)))
        return self._indices[key]

    def result(self) -> ReadLists:
        """All of it."""
        firsts = [one.rows[0] for one in self._rows]
        listed = Listed(
            manifests=tuple(row for row, _ in firsts),
            members=self.members,
            since=tuple(snapshot_id for _, snapshot_id in firsts),
            unread=frozenset(self._unread),
        )
        return ReadLists(listed, tuple(self._rows))

    def _check(self, row: ManifestFile, snapshot: Snapshot) -> None:
        metadata, path = self._metadata, row.manifest_path
        if row.partition_spec_id not in metadata.specs_by_id:
            self._tell(
                FaultId.MANIFEST_SPEC_MISSING,
                row,
                snapshot,
                f"the list says partition spec {row.partition_spec_id}, which the table does not have",
            )
        if metadata.format_version == 1:
            if row.content is ManifestContent.DELETES:
                self._tell(
                    FaultId.DELETE_OF_ANOTHER_VERSION,
                    row,
                    snapshot,
                    "a list of a table of version 1 names a manifest of deletes",
                )
            return
        number = row.sequence_number or 0
        if number > snapshot.sequence_number:
            self._tell(
                FaultId.MANIFEST_SEQUENCE_NUMBER_WRONG,
                row,
                snapshot,
                f"its sequence number is {number}, that of the snapshot is {snapshot.sequence_number}",
            )
        adding = self._snapshots.get(-1 if row.added_snapshot_id is None else row.added_snapshot_id)
        if adding is not None and adding.sequence_number not in (0, number):
            self._tell(
                FaultId.MANIFEST_SEQUENCE_NUMBER_WRONG,
                row,
                snapshot,
                f"its sequence number is {number}, that of snapshot {adding.snapshot_id}, its own, {adding.sequence_number}",
            )
        if snapshot.first_row_id is not None and row.content is ManifestContent.DATA:
            self._check_row_id(row, snapshot, path)

    def _check_row_id(self, row: ManifestFile, snapshot: Snapshot, path: str) -> None:
        limit = self._metadata.next_row_id or 0
        if row.first_row_id is None:
            self._tell(FaultId.FIRST_ROW_ID_OF_MANIFEST_WRONG, row, snapshot, "it has no first row id")
        elif row.first_row_id > limit or row.first_row_id < 0:
            self._tell(
                FaultId.FIRST_ROW_ID_OF_MANIFEST_WRONG,
                row,
                snapshot,
                f"its first row id is {row.first_row_id}, the table's next is {limit}",
            )

    def _tell(self, number: int, row: ManifestFile, snapshot: Snapshot, detail: str) -> None:
        """Of a manifest that many lists name so the oldest tells."""
        if (number, row.manifest_path) in self._told:
            return
        self._told.add((number, row.manifest_path))
        self._tally.add(
            Fault(
                number=number,
                where=row.manifest_path,
                detail=detail,
                snapshot_id=snapshot.snapshot_id,
                facts={"manifest": row.manifest_path, "manifest_list": snapshot.manifest_list},
            )
        )

    def _tell_doubled(self, numbers: Sequence[int], snapshot: Snapshot) -> None:
        for index, count in sorted(Counter(numbers).items()):
            if count > 1:
                row = self._rows[index].rows[0][0]
                self._tell(
                    FaultId.DOUBLED_MANIFEST,
                    row,
                    snapshot,
                    f"the manifest list {snapshot.manifest_list!r} names it {count} times",
                )


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over live entries, and over those that are added; `own_bytes` counts of a deletion vector its blob alone."""

    data_files: int = 0
    records: int = 0
    delete_files: int = 0
    position_deletes: int = 0
    equality_deletes: int = 0
    bytes: int = 0
    own_bytes: int = 0
    added_data_files: int = 0
    added_records: int = 0
    added_delete_files: int = 0
    added_position_deletes: int = 0
    added_equality_deletes: int = 0
    added_bytes: int = 0
    added_own_bytes: int = 0


SUMS = Counted.__struct_fields__
