"""What a lost manifest list was made of: the manifests of the snapshot before, and those that the commit itself wrote.

A manifest list that is gone, put together from what it must have named; only where the table's own words prove that.

What is live after a commit is what was live before, less what the commit's manifests say is gone, and what they add. A choice
among the manifests that lie beside the list fits if its numbers are those of the snapshot's summary, all of them.

Files that are missing and lie in the trash of one of our own runs: found there, and put back in their places.

Manifest lists and manifests that are gone: brought back from the trash of our own runs, and lists else put together anew.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import combinations

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import asdict, replace

from icekeep.catalog.base import Table
from icekeep.commit.live_files import FileKey
from icekeep.commit.manifest_writer import manifest_compression
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.summary import TOTALS, totals_of
from icekeep.errors import (
    ConflictError,
    IcekeepError,
    InvalidTableError,
    SafetyError,
    UnavailableError,
    UnsupportedError,
    first_line,
)
from icekeep.maintenance.check.faults import Fault
from icekeep.maintenance.delete.lease import RESTORE, earlier_clock_ms, holding, last_work, take_lease
from icekeep.maintenance.delete.locations import deletable_locations
from icekeep.maintenance.delete.neighbours import neighbours
from icekeep.maintenance.delete.plan_file import (
    DeletionPlan,
    chosen_plan,
    clear_done_mark,
    plans_of,
    read_part,
    trash_location,
)
from icekeep.maintenance.repair.heads import Head
from icekeep.maintenance.repair.metadata import CannotMendError, manifests_of
from icekeep.maintenance.repair.plan import NewList, TrashedFile
from icekeep.spec.avro import read_header
from icekeep.spec.manifests.read import completed, lacks_counts, read_manifest, read_manifest_header, read_manifest_list
from icekeep.spec.manifests.structs import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Status,
    assign_row_ids,
)
from icekeep.spec.manifests.write import write_manifest_list
from icekeep.spec.snapshots import Snapshot
from icekeep.spelling import counted
from icekeep.storage.base import ListingShare, MoveStatus, head_many
from icekeep.storage.local.links import confined_to
from icekeep.storage.locations import canonical, checksum_location, is_location

MAX_ENTRIES = 200_000
"""So many entries are read to put one list together."""

_LIST_NAME = re.compile(r"snap-(\d+)-\d+-(.+)\.avro")
_NUMBER = re.compile(r"m(\d+)[-.]")
_ID_BASES = (0, 1 << 60)
"""Two row ids to begin with: entries that say one of their own say it both times."""


class Parent(Struct, frozen=True, dict=True):
    """The snapshot before, or nothing where there is none.

    Attributes:
        rows: of its list.
        entries: by its manifests' locations, the live entries of each; those that would inherit a row id have none.
    """

    rows: tuple[ManifestFile, ...] = ()
    entries: Mapping[str, tuple[ManifestEntry, ...]] = {}

    @cached_property
    def live(self) -> Mapping[FileKey, ManifestEntry]:
        """By file."""
        return {key_of(entry): entry for some in self.entries.values() for entry in some}

    @cached_property
    def manifest_of(self) -> Mapping[FileKey, str]:
        """Which manifest a file is live in."""
        return {key_of(entry): path for path, some in self.entries.items() for entry in some}


class WrittenManifest(Struct, frozen=True):
    """A manifest that the commit wrote, in its last attempt or in one before.

    Attributes:
        row: of the list, if the list has it.
        added: live from this snapshot on; without a row id where they inherit one.
        kept, gone: files of the parent that stay live, and that do not.
        inheriting: live data files, in order, that have no row id of their own.
    """

    row: ManifestFile
    added: tuple[ManifestEntry, ...]
    kept: frozenset[FileKey]
    gone: frozenset[FileKey]
    inheriting: tuple[FileKey, ...] = ()

    @property
    def keeps_unnumbered(self) -> bool:
        """Whether files of the parent are among those without a row id."""
        return not self.kept.isdisjoint(self.inheriting)


class OfCommit(Struct, frozen=True):
    """The manifests that are named by the UUID of one commit.

    Attributes:
        written: those that can be of its snapshot.
        named_count: of all.
        has_gaps: whether some are gone, by their numbers.
    """

    written: tuple[WrittenManifest, ...]
    named_count: int
    has_gaps: bool


def key_of(entry: ManifestEntry) -> FileKey:
    """What names the file of an entry."""
    return entry.data_file.file_path, entry.data_file.content_offset


def parent_of(table: Table, snapshot: Snapshot, reader: ManifestReader) -> Parent:
    """What a snapshot was built on; raises `CannotMendError` where not all of that can be read."""
    metadata, parent_id = table.metadata, snapshot.parent_snapshot_id
    if parent_id is None:
        return Parent()
    parent = metadata.snapshots_by_id.get(parent_id)
    if parent is None:
        raise CannotMendError(f"snapshot {parent_id}, on which it was built, is no longer in the metadata")
    try:
        rows = reader.manifests(parent)
        _refuse_many(sum((row.live_files_count or 0) + (row.deleted_files_count or 0) for row in rows))
        entries = {row.manifest_path: tuple(e for e in reader.entries(row, metadata) if e.is_live) for row in rows}
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotMendError(
            f"snapshot {parent_id}, on which it was built, cannot be read: {first_line(error)}"
        ) from error
    found = Parent(tuple(rows), entries)
    if len(entries) < len(rows) or len(found.live) < sum(map(len, entries.values())):
        raise CannotMendError(f"files or manifests are doubled in snapshot {parent_id}, on which it was built")
    return found


def written_by(table: Table, snapshot: Snapshot, parent: Parent) -> OfCommit:
    """The manifests beside a list that are named by the UUID of its commit.

    Those cannot be of its snapshot that tell of files which the parent does not have: that attempt was made on something else.

    Raises:
        CannotMendError: the list's name does not say the commit, or there are too many entries, or a manifest cannot be read, or
            describes a file of the parent anew.
    """
    location = str(snapshot.manifest_list)
    directory, _, name = location.rpartition("/")
    said = _LIST_NAME.fullmatch(name)
    if said is None or int(said[1]) != snapshot.snapshot_id:
        raise CannotMendError(f"the name {name!r} of the list does not say which commit wrote it")
    start = f"{said[2]}-"
    share = ListingShare(directory, is_deep=False, starts_with=start)
    names = (info.location.removeprefix(f"{directory}/") for info in table.storage.list_share(share))
    named = sorted(name for name in names if name.startswith(start) and name.endswith(".avro"))
    numbers = {int(found[1]) for name in named if (found := _NUMBER.match(name, len(start)))}
    known = {row.manifest_path for row in parent.rows}
    reading = _Reading(table, snapshot, parent)
    read = [reading.written(path) for name in named if (path := f"{directory}/{name}") not in known]
    return OfCommit(
        written=tuple(one for one in read if one is not None),
        named_count=len(named),
        has_gaps=numbers != {*range(len(numbers))},
    )


def _refuse_many(count: int) -> None:
    if count > MAX_ENTRIES:
        raise CannotMendError(f"{count:,} entries would have to be read, and {MAX_ENTRIES:,} are at most")


class _Reading:
    """Reads the manifests of one commit."""

    def __init__(self, table: Table, snapshot: Snapshot, parent: Parent) -> None:
        self._table, self._snapshot, self._parent = table, snapshot, parent
        self._count = 0

    def written(self, path: str) -> WrittenManifest | None:
        try:
            row, entries = self._read(path)
        except (InvalidTableError, UnsupportedError) as error:
            raise CannotMendError(f"manifest {path!r} of its commit cannot be read: {first_line(error)}") from error
        self._count += len(entries)
        _refuse_many(self._count)
        by_status: dict[Status, list[ManifestEntry]] = {status: [] for status in Status}
        for entry in entries:
            by_status[entry.status].append(entry)
        changed = (*by_status[Status.ADDED], *by_status[Status.DELETED])
        old = (*by_status[Status.EXISTING], *by_status[Status.DELETED])
        own_id, live = self._snapshot.snapshot_id, self._parent.live
        if any(entry.snapshot_id != own_id for entry in changed) or any(key_of(entry) not in live for entry in old):
            return None
        for entry in by_status[Status.EXISTING]:
            if _described(entry) != _described(live[key_of(entry)]):
                raise CannotMendError(
                    f"manifest {path!r} describes file {entry.data_file.file_path!r} anew, and it is not known whether the list "
                    "named it"
                )
        kept = by_status[Status.EXISTING]
        return WrittenManifest(
            row=row,
            added=tuple(by_status[Status.ADDED]),
            kept=frozenset(map(key_of, kept)),
            gone=frozenset(map(key_of, by_status[Status.DELETED])),
            inheriting=tuple(
                key_of(entry)
                for entry in entries
                if entry.is_live and row.content is ManifestContent.DATA and entry.data_file.first_row_id is None
            ),
        )

    def _read(self, path: str) -> tuple[ManifestFile, Sequence[ManifestEntry]]:
        """A manifest as a list would name it, and its entries; where it does not say what it holds, these say it."""
        try:
            return self._read_as(path, ManifestContent.DATA)
        except InvalidTableError:
            with suppress(InvalidTableError):
                return self._read_as(path, ManifestContent.DELETES)
            raise

    def _read_as(self, path: str, content: ManifestContent) -> tuple[ManifestFile, Sequence[ManifestEntry]]:
        metadata, snapshot = self._table.metadata, self._snapshot
        data = self._table.storage.read(path)
        header = read_manifest_header(data, path)
        if header.partition_spec_id not in metadata.specs_by_id:
            raise InvalidTableError(f"manifest {path!r} does not say which of the table's specs it has", location=path)
        partition = metadata.partition_type(header.partition_spec_id)
        row = ManifestFile(
            manifest_path=path,
            manifest_length=len(data),
            partition_spec_id=header.partition_spec_id,
            added_snapshot_id=snapshot.snapshot_id,
            content=content if header.content is None else header.content,
            sequence_number=snapshot.sequence_number,
        )
        first, second = (read_manifest(data, replace(row, first_row_id=base), partition)[1] for base in _ID_BASES)
        entries = [*_with_own_ids(first, second)]
        numbers = [entry.sequence_number or 0 for entry in entries if entry.is_live]
        row = replace(row, min_sequence_number=min(numbers, default=snapshot.sequence_number))
        return completed(row, data, partition), entries


def _with_own_ids(first: Iterable[ManifestEntry], second: Iterable[ManifestEntry]) -> Iterator[ManifestEntry]:
    for one, other in zip(first, second, strict=True):
        is_own = one.data_file.first_row_id == other.data_file.first_row_id
        yield one if is_own else replace(one, data_file=replace(one.data_file, first_row_id=None))


def _described(entry: ManifestEntry) -> tuple[object, ...]:
    """All that an entry says of its file; what is empty is not said."""
    file: DataFile = entry.data_file
    said = tuple(None if value in ({}, ()) else value for value in asdict(file).values())
    return entry.snapshot_id, entry.sequence_number, entry.file_sequence_number, *said


_NEEDED = ("total-data-files", "total-delete-files", "total-records")
_SIZE = "total-files-size"
_CREATED = "manifests-created"
_MAX_CHOSEN_FROM = 12
"""So many manifests are tried in all ways."""


class Rebuilt(Struct, frozen=True):
    """A list that can be written, and how many manifests it names that are the commit's own, and that are older."""

    new: NewList
    own_count: int
    carried_count: int


def rebuilt_list(table: Table, snapshot: Snapshot, reader: ManifestReader) -> Rebuilt:
    """Put the manifest list of a snapshot together.

    Raises:
        CannotMendError: nothing proves what it held.
    """
    _refuse_untold(snapshot)
    _refuse_checksum(table, str(snapshot.manifest_list))
    parent = parent_of(table, snapshot, reader)
    _refuse_wrong_totals(table, snapshot, parent)
    of_commit = written_by(table, snapshot, parent)
    proof = _Proof(snapshot, parent, of_commit.written)
    chosen = proof.chosen()
    if of_commit.has_gaps and of_commit.named_count > len(chosen):
        raise CannotMendError("of the manifests that its commit left some are no part of it, and others are gone")
    _refuse_missing_files(table, chosen)
    _refuse_wrong_sum(snapshot, parent, chosen, proof.carried(chosen))
    rows = _rows(table, reader, [*(one.row for one in chosen), *proof.carried(chosen)], snapshot)
    data = _encoded(table, snapshot, rows)
    return Rebuilt(NewList(location=str(snapshot.manifest_list), data=data), len(chosen), len(rows) - len(chosen))


def _refuse_untold(snapshot: Snapshot) -> None:
    summary = snapshot.summary or {}
    for name in _NEEDED:
        if not summary.get(name, "").isdecimal():
            raise CannotMendError(f"the summary of snapshot {snapshot.snapshot_id} does not say {name}")


def _refuse_checksum(table: Table, location: str) -> None:
    checksum = checksum_location(location)
    if table.storage.head(checksum) is not None:
        raise CannotMendError(
            f"{checksum!r} is the checksum of the lost list, by which Hadoop would refuse another one"
        )


def _refuse_wrong_totals(table: Table, snapshot: Snapshot, parent: Parent) -> None:
    before = table.metadata.snapshots_by_id.get(snapshot.parent_snapshot_id or 0)
    summary = {} if before is None else before.summary or {}
    files = [entry.data_file for entry in parent.live.values()]
    for name in TOTALS:
        if name in summary and summary[name] not in {str(way[name]) for way in _ways(files)}:
            raise CannotMendError(
                f"the summary of snapshot {snapshot.parent_snapshot_id}, on which it was built, has a wrong {name}"
            )


def _refuse_wrong_sum(
    snapshot: Snapshot, parent: Parent, chosen: Iterable[WrittenManifest], carried: Iterable[ManifestFile]
) -> None:
    """Hold the list itself against the summary, whatever was said of the changes."""
    old = [entry.data_file for row in carried for entry in parent.entries[row.manifest_path]]
    kept = [parent.live[key].data_file for one in chosen for key in one.kept]
    added = [entry.data_file for one in chosen for entry in one.added]
    totals = totals_of([*old, *kept, *added])
    for name in _NEEDED:
        if str(totals[name]) != (snapshot.summary or {})[name]:
            raise CannotMendError(f"the list would come to {name} {totals[name]}, where its summary says otherwise")


def _refuse_missing_files(table: Table, chosen: Iterable[WrittenManifest]) -> None:
    """The files of an attempt that failed may be gone."""
    files = [entry.data_file for one in chosen for entry in one.added]
    found = head_many([file.file_path for file in files], table.storage)
    for file, info in zip(files, found, strict=True):
        if info is None or info.size_bytes != file.file_size_in_bytes:
            raise CannotMendError(f"file {file.file_path!r}, which it would add, is not there, or has another size")


class _Fit(Struct, frozen=True):
    """What is live by a choice that fits: the same for choices by which readers have the same rows and row ids."""

    outcome: Hashable
    knows_ids: bool


class _Proof:
    """Holds choices of the commit's manifests against the summary."""

    def __init__(self, snapshot: Snapshot, parent: Parent, written: Sequence[WrittenManifest]) -> None:
        self._snapshot, self._parent, self._written = snapshot, parent, written
        self._summary: Mapping[str, str] = snapshot.summary or {}
        self._before = _ways([entry.data_file for entry in parent.live.values()])
        self._sums = {
            one.row.manifest_path: (
                _ways([entry.data_file for entry in one.added]),
                _ways([parent.live[key].data_file for key in one.gone]),
            )
            for one in written
        }

    def chosen(self) -> Sequence[WrittenManifest]:
        """The manifests that the list named, or others by which exactly the same is live; raises `CannotMendError`."""
        found: dict[_Fit, Sequence[WrittenManifest]] = {}
        for choice in self._choices():
            fit = self._fit(choice)
            if fit is not None:
                found.setdefault(fit, choice)
        if not found:
            raise CannotMendError(
                f"no choice of the {len(self._written)} manifests that its commit left comes to what its summary says"
            )
        if len(found) > 1:
            raise CannotMendError(
                f"{len(found)} choices of manifests come to what its summary says, and differ in files"
            )
        [(fit, choice)] = found.items()
        if not fit.knows_ids:
            raise CannotMendError("it numbered the rows of several manifests, and the order of these is not known")
        return choice

    def carried(self, chosen: Iterable[WrittenManifest]) -> list[ManifestFile]:
        """The rows of the parent's manifests whose live files no chosen manifest tells of."""
        told = {self._parent.manifest_of[key] for one in chosen for key in (*one.kept, *one.gone)}
        return [
            row
            for row in self._parent.rows
            if row.manifest_path not in told and self._parent.entries[row.manifest_path]
        ]

    def _choices(self) -> Iterator[Sequence[WrittenManifest]]:
        """All of them; and every other choice, but where that could only come to the same."""
        every = tuple(self._written)
        yield every
        if self._fit(every) is not None and not any(one.keeps_unnumbered for one in every):
            # Without one that adds or removes files the counts are others; without one that only carries, its files are
            # carried by the parent's manifests, as they are.
            return
        if len(every) > _MAX_CHOSEN_FROM:
            raise CannotMendError(
                f"its commit left {len(every)} manifests, not all of which fit, and {_MAX_CHOSEN_FROM} are tried at most"
            )
        for size in reversed(range(len(every))):
            yield from combinations(every, size)

    def _fit(self, chosen: Sequence[WrittenManifest]) -> _Fit | None:
        if not self._counts_fit(chosen):
            return None
        gone = [key for one in chosen for key in one.gone]
        added = [entry for one in chosen for entry in one.added]
        return self._numbered(chosen, gone, added) if self._files_fit(chosen, gone, added) else None

    def _counts_fit(self, chosen: Sequence[WrittenManifest]) -> bool:
        created = self._summary.get(_CREATED)
        if created not in (None, str(len(chosen))) and not self._is_replaced_by_parent(chosen):
            return False
        # Where nothing is told of files, their bytes have to be what they were.
        if not chosen and self._parent.live and _SIZE not in self._summary:
            return False
        sums = [self._sums[one.row.manifest_path] for one in chosen]
        new, old = ([_summed(some[which][way] for some in sums) for way in range(2)] for which in range(2))
        before = self._before
        for total, (adding, removing) in TOTALS.items():
            is_size = total == _SIZE
            after = [str(b[total] + n[total] - o[total]) for b, n, o in zip(before, new, old, strict=True)]
            if total in self._summary and self._summary[total] not in after:
                return False
            for key, ways in ((adding, new), (removing, old)):
                if is_size and key not in self._summary:
                    continue
                if self._summary.get(key, "0") not in {str(way[total]) for way in ways}:
                    return False
        return True

    def _is_replaced_by_parent(self, chosen: Sequence[WrittenManifest]) -> bool:
        """Whether the parent's manifests stand for others, of names that do not say the commit, which hold the same files."""
        return not chosen and self._snapshot.operation == "replace"

    def _files_fit(
        self, chosen: Sequence[WrittenManifest], gone: Iterable[FileKey], added: Iterable[ManifestEntry]
    ) -> bool:
        """Each file is told of once, and of a manifest of the parent all files or none."""
        told = [key for one in chosen for key in (*one.kept, *one.gone)]
        new = [*map(key_of, added)]
        if len({*told}) < len(told) or len({*new}) < len(new):
            return False
        if {*new} & (self._parent.live.keys() - {*gone}):
            return False
        times = Counter(self._parent.manifest_of[key] for key in told)
        return all(len(self._parent.entries[path]) == count for path, count in times.items())

    def _numbered(
        self, chosen: Sequence[WrittenManifest], gone: Iterable[FileKey], added: Iterable[ManifestEntry]
    ) -> _Fit | None:
        """With the rows that it numbered (spec, "First Row ID Assignment"), which it says how many they are."""
        files = (frozenset(gone), frozenset(map(repr, added)))
        if self._snapshot.first_row_id is None:
            return _Fit((files, ()), knows_ids=True)
        carried = self.carried(chosen)
        rows = [
            row
            for row in (*(one.row for one in chosen), *carried)
            if row.content is ManifestContent.DATA and row.first_row_id is None
        ]
        room = {row.manifest_path: (row.added_rows_count or 0) + (row.existing_rows_count or 0) for row in rows}
        if sum(room.values()) != self._snapshot.added_rows and not (self._is_replaced_by_parent(chosen) and not room):
            return None
        inheriting = [(path, ids) for path, ids in self._inheriting(chosen, carried) if path in room and ids]
        knows_ids = not inheriting or sum(count > 0 for count in room.values()) == 1
        return _Fit((files, tuple(ids for _, ids in inheriting)), knows_ids=knows_ids)

    def _inheriting(
        self, chosen: Iterable[WrittenManifest], carried: Iterable[ManifestFile]
    ) -> Iterator[tuple[str, tuple[FileKey, ...]]]:
        """By manifest the files, in order, that inherit a row id."""
        for one in chosen:
            yield one.row.manifest_path, one.inheriting
        for row in carried:
            entries = self._parent.entries[row.manifest_path]
            yield row.manifest_path, tuple(key_of(e) for e in entries if e.data_file.first_row_id is None)


def _summed(totals: Iterable[Mapping[str, int]]) -> Counter[str]:
    found = Counter[str]()
    for one in totals:
        found.update(one)
    return found


def _ways(files: Sequence[DataFile]) -> tuple[Counter[str], Counter[str]]:
    """The totals of files; engines count of a vector its file, or its own bytes."""
    totals = totals_of(files)
    return totals, Counter({**totals, _SIZE: sum(file.own_bytes for file in files)})


def _rows(
    table: Table, reader: ManifestReader, rows: Sequence[ManifestFile], snapshot: Snapshot
) -> Sequence[ManifestFile]:
    """With counts where the table's version needs them, and numbered."""
    metadata = table.metadata
    try:
        if metadata.format_version > 1:
            rows = [reader.completed(row, metadata) if lacks_counts(row) else row for row in rows]
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotMendError(f"not every manifest can be read: {first_line(error)}") from error
    return rows if snapshot.first_row_id is None else assign_row_ids(rows, snapshot.first_row_id)[0]


def _encoded(table: Table, snapshot: Snapshot, rows: Sequence[ManifestFile]) -> bytes:
    metadata, location = table.metadata, str(snapshot.manifest_list)
    codec, level = manifest_compression(metadata.properties)
    data = write_manifest_list(rows, snapshot, format_version=metadata.format_version, codec=codec, level=level)
    if read_manifest_list(data, location) != [*rows]:
        raise CannotMendError("what would be written is not what is read back")
    return data


class Trash:
    """The trash of a table, looked through once it is asked for a file."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def find(self, head: Head, fault: Fault) -> TrashedFile | None:
        """A missing file that a head needs, where it is in the trash with the size that all its entries say."""
        path, storage = str(fault.facts["file_path"]), self._table.storage
        sizes = {place.entry.data_file.file_size_in_bytes for place in head.places(path, manifests_of(fault))}
        if len(sizes) != 1 or storage.head(path) is not None:
            return None
        return self.at(path, sizes.pop())

    def at(self, path: str, size_bytes: int | None = None) -> TrashedFile | None:
        """What was at a location and is in the trash, of a size if that is known; none where that is no place of the table."""
        if not deletable_locations(self._table).holds(path):
            return None
        for plan in self._plans:
            trash = trash_location(plan, path)
            info = self._table.storage.head(trash)
            if info is not None and size_bytes in (None, info.size_bytes) and self._names(plan, path):
                return TrashedFile(location=path, trash=trash, run=plan.run, size_bytes=info.size_bytes)
        return None

    @cached_property
    def _plans(self) -> list[DeletionPlan]:
        storage, uuid = self._table.storage, self._table.metadata.table_uuid
        return [
            plan
            for plan in plans_of(self._table)
            # A table that was dropped may have left plans at the location of this one.
            if plan.is_trash and plan.table_uuid == uuid and not last_work(plan.directory, storage).deletes
        ]

    def _names(self, plan: DeletionPlan, path: str) -> bool:
        wanted = canonical(path)
        try:
            parts = (read_part(part, self._table.storage) for part in plan.parts)
            return any(canonical(one) == wanted for part in parts for one in part["location"].to_pylist())
        except IcekeepError:
            return False


def bring_back(table: Table, files: Sequence[TrashedFile]) -> Iterator[TrashedFile]:
    """Move files from the trash to their places, and tell of each once it is there.

    Raises:
        ClaimedError: a run is at work on the files of the trash.
        ConflictError: a file is no longer in the trash, or its place is taken.
        SafetyError: it is being deleted for good, no move leads to its place, or that is no place of the table.
        UnavailableError: the store failed; what was moved is in its place.
    """
    if not files:
        return
    around = neighbours(table, refuses_overlap=False)
    places = deletable_locations(table, (), around.other_roots)
    for file in files:
        if not places.reaches(pa.array([file.location]))[0]:
            raise SafetyError(
                f"file {file.location!r} of run {file.run!r} cannot come back from the trash: it lies outside the places of "
                f"table {table.name!r}; if it is its own, name its directory in reclaim.roots of the catalog"
            )
    for run in dict.fromkeys(file.run for file in files):
        plan, storage, runtime = chosen_plan(table, run), table.storage, table.runtime
        claim = take_lease(plan.directory, RESTORE, storage, runtime, earlier_clock_ms(table, runtime))
        with holding(claim, storage, runtime):
            if claim.deletes:
                raise SafetyError(f"the files of run {run!r} are being deleted for good; nothing was changed")
            # From now on a run that finishes this plan proves each file anew, and sees that it is needed.
            clear_done_mark(plan, storage)
            for file in files:
                if file.run == run:
                    claim.check(storage, runtime)
                    with confined_to(places.roots):
                        _move(table, file)
                    yield file


def _move(table: Table, file: TrashedFile) -> None:
    storage = table.storage
    info = storage.head(file.trash)
    if info is None or info.size_bytes != file.size_bytes:
        raise ConflictError(f"file {file.location!r} is no longer in the trash of run {file.run!r} as it was")
    [outcome] = storage.move_many([(file.trash, file.location)])
    match outcome.status:
        case MoveStatus.MISSING | MoveStatus.TAKEN:
            raise ConflictError(f"file {file.location!r} cannot come back from the trash: {outcome.status.value}")
        case MoveStatus.IMPOSSIBLE:
            raise SafetyError(
                f"no move leads from {file.trash!r} to {file.location!r}: {outcome.reason}; copy it by hand"
            )
        case MoveStatus.FAILED:
            raise UnavailableError(f"file {file.location!r} cannot be moved back: {outcome.reason}; run it again")


class ListMend(Struct, frozen=True, kw_only=True):
    """What is done, in a sentence: files that come back, in this order, or a list that is written."""

    action: str
    returns: tuple[TrashedFile, ...] = ()
    new: NewList | None = None


def mend_manifest(head: Head, fault: Fault, trash: Trash) -> ListMend:
    """Bring a missing manifest of a branch back from the trash.

    Raises:
        CannotMendError: it is there, or the trash has none that the branch's list can mean.
    """
    rows = [row for row in head.rows if row.manifest_path == fault.where]
    if not rows:
        raise CannotMendError("")
    if not is_location(fault.where):
        raise CannotMendError("what the list names is no location")
    if head.table.storage.head(fault.where) is not None:
        raise CannotMendError("the manifest is there and cannot be read: bring it back by hand, from a backup")
    found = _manifest(head.table, rows[0], trash) if all(row == rows[0] for row in rows) else None
    if found is None:
        raise CannotMendError(
            "it is not in the trash of a run as the list describes it: bring it back by hand, from a backup"
        )
    return ListMend(action=f"the manifest comes back from the trash of run {found.run!r}", returns=(found,))


def mend_list(head: Head, fault: Fault, trash: Trash, reader: ManifestReader) -> ListMend:
    """Bring the missing manifest list of a branch's head back from the trash, or put it together.

    Raises:
        CannotMendError: it is there, or nothing proves what it held.
    """
    if head.snapshot.manifest_list != fault.where:
        raise CannotMendError("")
    if head.table.storage.head(fault.where) is not None:
        raise CannotMendError("the list is there and cannot be read: bring it back by hand, from a backup")
    try:
        return _returned(head.table, head.snapshot, trash)
    except CannotMendError as error:
        reason = str(error)
    try:
        return _rebuilt(head, reader)
    except CannotMendError as error:
        why = "; ".join(filter(None, (reason, str(error))))
        raise CannotMendError(f"{why}; bring the list back from a backup, or go back to another snapshot") from error


def write_list(table: Table, new: NewList, reader: ManifestReader) -> None:
    """Write a list that was planned, if it would be planned again; never over another file.

    Raises:
        ConflictError: it is there by now, or the table or its files are not as they were.
        OutcomeUnknownError: it may or may not have been written; to run it again settles that.
    """
    now = table.refresh()
    snapshot = next((one for one in now.metadata.snapshots if one.manifest_list == new.location), None)
    try:
        again = None if snapshot is None else rebuilt_list(now, snapshot, reader).new
    except CannotMendError as error:
        raise ConflictError(f"manifest list {new.location!r} cannot be put together any more: {error}") from error
    if again != new:
        raise ConflictError(f"manifest list {new.location!r} would be another one now")
    try:
        table.storage.create(new.location, new.data)
    except FileExistsError as error:
        raise ConflictError(f"manifest list {new.location!r} is there by now; it stays as it is") from error
    if table.storage.read(new.location) != new.data:
        raise ConflictError(f"manifest list {new.location!r} is not read back as it was written")


def _rebuilt(head: Head, reader: ManifestReader) -> ListMend:
    found = rebuilt_list(head.table, head.snapshot, reader)
    return ListMend(
        action=(
            f"the list is put together of {counted(found.own_count, 'manifests')} that its commit wrote and "
            f"{found.carried_count} of the "
            "snapshot before, which come to what its summary says"
        ),
        new=found.new,
    )


def _returned(table: Table, snapshot: Snapshot, trash: Trash) -> ListMend:
    """The list, with those of its manifests that are in the trash too; they come first."""
    location = str(snapshot.manifest_list)
    found = trash.at(location)
    if found is None:
        raise CannotMendError("")
    try:
        rows = _rows_of(table, snapshot, found)
        missing = [row for row in rows if not _is_there(table, row)]
        returns = [_manifest(table, row, trash) for row in missing]
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotMendError(
            f"the list in the trash of run {found.run!r} is not whole: {first_line(error)}"
        ) from error
    known = [one for one in returns if one is not None]
    if len(known) < len(returns):
        raise CannotMendError(
            f"manifests of the list in the trash of run {found.run!r} are neither there nor in the trash"
        )
    _check_totals(snapshot, rows, found)
    more = f", and {len(known)} of its manifests" if known else ""
    return ListMend(action=f"the list comes back from the trash of run {found.run!r}{more}", returns=(*known, found))


def _rows_of(table: Table, snapshot: Snapshot, found: TrashedFile) -> list[ManifestFile]:
    """Raises `CannotMendError` where the list says that it is of another snapshot."""
    data = table.storage.read(found.trash, found.size_bytes)
    said = read_header(data, found.trash).metadata.get("snapshot-id")
    rows = read_manifest_list(data, found.trash)
    ids = {snapshot.snapshot_id, *(one.snapshot_id for one in table.metadata.ancestors(snapshot.parent_snapshot_id))}
    newest = max((row.sequence_number or 0 for row in rows), default=0)
    is_own = said in (None, str(snapshot.snapshot_id).encode()) and newest <= snapshot.sequence_number
    later = {one.snapshot_id for one in table.metadata.snapshots} - ids
    if not is_own or any(row.added_snapshot_id in later for row in rows):
        raise CannotMendError(f"the list in the trash of run {found.run!r} is of another snapshot")
    return rows


def _is_there(table: Table, row: ManifestFile) -> bool:
    info = table.storage.head(row.manifest_path)
    if info is not None and info.size_bytes != row.manifest_length:
        raise CannotMendError(f"manifest {row.manifest_path!r} has {info.size_bytes} bytes, not {row.manifest_length}")
    return info is not None


def _manifest(table: Table, row: ManifestFile, trash: Trash) -> TrashedFile | None:
    """A manifest in the trash that reads as its row says."""
    found = trash.at(row.manifest_path, row.manifest_length)
    if found is None:
        return None
    try:
        partition = table.metadata.partition_type(row.partition_spec_id)
        for _ in read_manifest(table.storage.read(found.trash, found.size_bytes), row, partition)[1]:
            pass
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotMendError(
            f"the manifest in the trash of run {found.run!r} is not it: {first_line(error)}"
        ) from error
    return found


def _check_totals(snapshot: Snapshot, rows: Sequence[ManifestFile], found: TrashedFile) -> None:
    """Nothing else says the length of a list, and one that was cut off may read well."""
    if any(lacks_counts(row) for row in rows):
        raise CannotMendError(f"the list in the trash of run {found.run!r} has no counts that show whether it is whole")
    data = [row for row in rows if row.content is ManifestContent.DATA]
    deletes = [row for row in rows if row.content is ManifestContent.DELETES]
    counted: Mapping[str, int] = {
        "total-data-files": sum(row.live_files_count or 0 for row in data),
        "total-delete-files": sum(row.live_files_count or 0 for row in deletes),
        "total-records": sum((row.added_rows_count or 0) + (row.existing_rows_count or 0) for row in data),
    }
    summary = snapshot.summary or {}
    wrong = [name for name, count in counted.items() if summary.get(name) != str(count)]
    if wrong:
        raise CannotMendError(
            f"the list in the trash of run {found.run!r} comes to {wrong[0]} {counted[wrong[0]]}, where the summary of its "
            f"snapshot says {summary.get(wrong[0], 'nothing')}"
        )
