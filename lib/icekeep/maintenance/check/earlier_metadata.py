"""Earlier metadata files of a table: whether those of its log are there and its own, and which it can be registered by.

The metadata log says which files were the table. Where it cannot be read, the names beside the damaged file are all there is;
among those may be files that lost a race and never were the table, so that a log which is read on the way goes before them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from icekeep.catalog.metadata_files import file_version, is_metadata_file
from icekeep.errors import IcekeepError, InvalidTableError, TryAgainError, UnsupportedError
from icekeep.maintenance.check.faults import CLASSES, Fault, FaultId, Tally
from icekeep.maintenance.check.lists import CheckedTable, look_up
from icekeep.maintenance.check.metadata import check_metadata, is_uuid
from icekeep.spec.metadata import TableMetadata, metadata_document, metadata_from_json
from icekeep.storage.base import FileInfo, ListingShare, Storage
from icekeep.storage.locations import canonical, is_location

_ENTRIES_MAX = 100
"""So many of the newest entries are looked for: tables keep 100 by default, and some keep all."""

_TRIED_MAX = 3
"""So many of their files are tried, the newest first, for one that can be read."""

_FOUND_MAX = 5
_READ_MAX = 20
"""So many files are read for those: a table whose writer broke metadata long ago is not read to its beginning."""

_TENS = 3
"""Of versions whose names begin alike, so many tens are listed below the damaged one."""


class EarlierMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A sound metadata file.

    Attributes:
        timestamp_ms: when it was written, epoch milliseconds: its `last-updated-ms`.
        snapshot_ids: of its snapshots, in its order; their files may be gone by now.
    """

    location: str
    timestamp_ms: int
    last_sequence_number: int
    snapshot_ids: tuple[int, ...]
    current_snapshot_id: int | None


def check_logs(subject: CheckedTable) -> None:
    """Look for the files of the metadata log, and compare the table's uuid with the newest of them.

    Raises:
        UnavailableError: storage is out of reach for now.
    """
    table, tally = subject.table, subject.tally
    logged = reversed(table.metadata.metadata_log[-_ENTRIES_MAX:])
    newest = [*dict.fromkeys(entry.metadata_file for entry in logged)]
    known = [location for location in newest if is_location(location)]
    infos = dict(zip(known, look_up(known, table.storage), strict=True))
    there = [location for location in known if isinstance(infos[location], FileInfo)]
    for location in newest:
        info = infos.get(location)
        if info is None:
            detail = "it is in the metadata log, and not in storage"
            tally.add(Fault(number=FaultId.ODD_HISTORY, where=location, detail=detail))
        elif isinstance(info, str):
            tally.gap(f"metadata {location!r}", info)
    if table.metadata.table_uuid is not None:
        _check_uuid(there[:_TRIED_MAX], table.metadata.table_uuid, subject)


def _check_uuid(locations: Sequence[str], table_uuid: str, subject: CheckedTable) -> None:
    for location in locations:
        try:
            raw = metadata_document(subject.table.storage.read(location), location)
        except TryAgainError:
            raise
        except IcekeepError as error:
            subject.tally.gap(f"metadata {location!r}", error.message)
            continue
        before = raw.get("table-uuid") if isinstance(raw, dict) else None
        # In version 1 a table may have been without.
        if isinstance(before, str) and before.lower() != table_uuid.lower():
            subject.tally.add(
                Fault(
                    number=FaultId.TABLE_UUID_WRONG,
                    where=subject.table.metadata_location,
                    detail=f"table-uuid is {table_uuid}, and {before} in the metadata before, {location!r}",
                    facts={"recorded": table_uuid, "found": before, "metadata_file": location},
                )
            )
        return


def last_sound(storage: Storage, location: str, raw: object, *, without: Iterable[str] = ()) -> list[EarlierMetadata]:
    """The newest metadata files before one that load, have no fault but notices, and are of the same table.

    Args:
        location: of the damaged metadata file, which may be missing.
        raw: its decoded JSON, as far as there is any; `None` if there is none. Its log and `table-uuid` are looked at, so leave
            the latter out where it is known to be wrong.
        without: locations of files that are passed over.

    Returns:
        At most 5, the newest first. Where `raw` says no `table-uuid`, the first that is found says what it is for the others.

    Raises:
        UnavailableError: storage is out of reach for now.
        UsageError: it denies access, so that nobody knows what is there.
    """
    said = raw if isinstance(raw, Mapping) else {}
    table_uuid, log = said.get("table-uuid"), said.get("metadata-log")
    its_uuid = table_uuid.lower() if isinstance(table_uuid, str) and is_uuid(table_uuid) else None
    entries = [entry for entry in reversed(log if isinstance(log, list) else []) if isinstance(entry, Mapping)]
    logged = [name for entry in entries if isinstance(name := entry.get("metadata-file"), str)]
    search = _Search(storage, location, its_uuid, without)
    found = [one for one, _ in islice(search.sound(logged), _FOUND_MAX)] or search.beside()
    return sorted(found, key=lambda one: (one.timestamp_ms, file_version(one.location)), reverse=True)


class _Search:
    """Reads metadata files for sound ones of one table, each once and not too many."""

    def __init__(self, storage: Storage, location: str, table_uuid: str | None, without: Iterable[str]) -> None:
        self._storage = storage
        self._location = location
        self._table_uuid = table_uuid
        self._passed = {canonical(one) for one in (location, *without) if is_location(one)}
        self._read: set[str] = set()

    def sound(self, locations: Iterable[str]) -> Iterator[tuple[EarlierMetadata, TableMetadata]]:
        """Those that are sound, in their order."""
        for location in locations:
            if not is_location(location) or canonical(location) in self._read | self._passed:
                continue
            if len(self._read) >= _READ_MAX:
                return
            self._read.add(canonical(location))
            metadata = _sound(self._storage, location)
            if metadata is None:
                continue
            its_uuid = metadata.table_uuid and metadata.table_uuid.lower()
            self._table_uuid = self._table_uuid or its_uuid
            if its_uuid == self._table_uuid:
                snapshot_ids = tuple(snapshot.snapshot_id for snapshot in metadata.snapshots)
                found = EarlierMetadata(
                    location=location,
                    timestamp_ms=metadata.last_updated_ms,
                    last_sequence_number=metadata.last_sequence_number,
                    snapshot_ids=snapshot_ids,
                    current_snapshot_id=metadata.current_snapshot_id,
                )
                yield found, metadata

    def beside(self) -> list[EarlierMetadata]:
        """Those in the directory of the damaged one: the newest, others of its version, and what its log names."""
        names = _beside(self._storage, self._location)
        first = next(self.sound(names), None)
        if first is None:
            return []
        newest, metadata = first
        others = [name for name in names if _version(name) == _version(newest.location)]
        logged = [entry.metadata_file for entry in reversed(metadata.metadata_log)]
        return [newest, *(one for one, _ in islice(self.sound([*others, *logged]), _FOUND_MAX - 1))]


def _sound(storage: Storage, location: str) -> TableMetadata | None:
    """The metadata of a file; `None` if it is not sound."""
    tally = Tally()
    try:
        raw = metadata_document(storage.read(location), location)
        check_metadata(raw, location, tally)
        return None if any(not CLASSES[number].is_notice for number in tally.counts) else metadata_from_json(raw)
    except (InvalidTableError, UnsupportedError):
        return None


def _beside(storage: Storage, location: str) -> list[str]:
    """Metadata files in the directory of one, the newest first by their versions; none that is not older."""
    directory, _, name = location.rpartition("/")
    version = file_version(name)
    infos = {info.location: info for info in _listed(storage, directory, name, version)}
    older = [(_version(one), infos[one].modified_ms, one) for one in infos if one.rpartition("/")[0] == directory]
    ranked = [one for one in older if one[0] >= 0 and (version < 0 or one[0] < version)]
    return [one for _, _, one in sorted(ranked, reverse=True)]


def _listed(storage: Storage, directory: str, name: str, version: int) -> Iterator[FileInfo]:
    """Files beside one; of a version that is known only names like it, since manifests lie there too, a hundred thousand."""
    starts: list[str] = []
    if version >= 0:
        tens = range(version // 10, max(-1, version // 10 - _TENS), -1)
        starts = ["v"] if name.startswith("v") else [f"{ten:04d}" for ten in tens]
    try:
        infos = [
            info
            for start in starts
            for info in storage.list_share(ListingShare(directory, is_deep=False, starts_with=start))
        ]
    except UnsupportedError:
        # What begins alike is not together in this store's listings.
        infos = []
    if any(0 <= _version(info.location) < version for info in infos):
        yield from infos
    else:
        yield from storage.list(directory)


def _version(location: str) -> int:
    """The version in the name of a metadata file, -1 for any other file."""
    name = location.rsplit("/", 1)[-1]
    return file_version(name) if is_metadata_file(name) else -1
