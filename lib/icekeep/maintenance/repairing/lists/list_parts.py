"""What a lost manifest list was made of: the manifests of the snapshot before, and those that the commit itself wrote."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

from msgspec import Struct
from msgspec.structs import asdict, replace

from icekeep.catalog.base import Table
from icekeep.commit.live_files import FileKey
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import InvalidTableError, UnsupportedError, first_line
from icekeep.maintenance.repairing.reasons import CannotMendError
from icekeep.spec.manifests.read import completed, read_manifest, read_manifest_header
from icekeep.spec.manifests.structs import DataFile, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import ListingShare

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


class Written(Struct, frozen=True):
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

    written: tuple[Written, ...]
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

    def written(self, path: str) -> Written | None:
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
        return Written(
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
