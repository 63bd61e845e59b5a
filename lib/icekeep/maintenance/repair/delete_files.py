"""Puffin files whose footer is wrong while their vectors are sound: the vectors are written into a new file, as they are.

Readers that go by entries find the vectors without a footer, so that they read the same rows before and after.

Position delete files whose rows are not in order: each is written anew, in order, and takes the place of the old one.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.deletes import AddedDeletes
from icekeep.commit.changes.repair_entries import RepairedEntry
from icekeep.errors import ConflictError, InvalidTableError, UnsupportedError, UsageError, first_line
from icekeep.formats.deletes.read import (
    BATCH_ROWS,
    DELETE_FILE,
    delete_source,
    refuse_wrong_ids,
    write_position_deletes,
)
from icekeep.formats.puffin import BlobMetadata, PuffinFooter, read_deletion_vector, read_puffin_footer
from icekeep.formats.reader import open_reader, read_file
from icekeep.maintenance.check.deletes import wrong_blob
from icekeep.maintenance.check.faults import Fault
from icekeep.maintenance.repair.heads import EntryPosition, Head, refuse_described, refuse_doubled, refuse_merged
from icekeep.maintenance.repair.metadata import NOT_FOUND, CannotMendError
from icekeep.maintenance.repair.plan import NewFiles, VectorMerge
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_layout
from icekeep.spec.reach import is_deletion_vector, may_name, sequence_number
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS, Schema
from icekeep.storage.base import Storage

PUFFIN = frozenset((416,))


class Puffins:
    """Plans new Puffin files for the vectors that branches have in bad ones."""

    def __init__(self) -> None:
        self._live: dict[str, _Live] = {}

    def mend(self, head: Head, fault: Fault) -> str:
        """Plan a copy of each vector that a branch has in a file; returns what is written, in a sentence.

        A copy has the data sequence number, partition, data file and positions of its vector, and so reaches the same rows.

        Raises:
            CannotMendError: a vector is not sound, or it is in doubt for which data file it is, or the file is as it should be.
        """
        path = str(fault.facts["file_path"])
        if head.branch not in self._live:
            self._live[head.branch] = _live_of(head)
        live = self._live[head.branch]
        places = live.vectors.get(path, ())
        if not places:
            raise CannotMendError("")
        merged = head.work.merged
        places = [place for place in places if place.key not in merged]
        if not places:
            return "its live vectors are written into a new Puffin file"
        positions = _sound(head, path, places)
        if not _is_wrong(head, path, places, positions):
            raise CannotMendError(NOT_FOUND)
        _refuse_several(live, places)
        for place in places:
            refuse_doubled(head, place.row)
            refuse_described(head, place)
        head.work.merges += [
            VectorMerge(
                data_file=str(place.entry.data_file.referenced_data_file),
                entries=(place.mended(None, is_replaced=True),),
                cardinality=len(found),
            )
            for place, found in zip(places, positions, strict=True)
        ]
        count = sum(map(len, positions))
        return f"its {len(places)} live vectors, of {count} positions, are written into a new Puffin file, as they are"


class _Live(msgspec.Struct):
    """What is live on a branch: its vectors by their file, how many there are for each data file, and how often that is live."""

    vectors: Mapping[str, Sequence[EntryPosition]]
    vectors_of: Counter[str]
    times: Counter[str]


def _live_of(head: Head) -> _Live:
    vectors: defaultdict[str, list[EntryPosition]] = defaultdict(list)
    for place in head.all_live(ManifestContent.DELETES):
        if is_deletion_vector(place.entry.data_file):
            vectors[place.entry.data_file.file_path].append(place)
    targets = (str(place.entry.data_file.referenced_data_file) for some in vectors.values() for place in some)
    times = Counter(place.entry.data_file.file_path for place in head.all_live(ManifestContent.DATA))
    return _Live(vectors, Counter(targets), times)


def _sound(head: Head, path: str, places: Sequence[EntryPosition]) -> list[BitMap64]:
    """The positions of each vector, by its own length, magic and checksum, as many as its entry says."""
    storage = head.table.storage
    info = storage.head(path)
    if info is None:
        raise CannotMendError("there is no such file")
    files = [place.entry.data_file for place in places]
    if any(file.key_metadata is not None for file in files):
        raise CannotMendError("the file is encrypted")
    said = max(file.file_size_in_bytes for file in files)
    # One that was cut off lacks its footer, and may have all its vectors.
    if info.size_bytes > said:
        raise CannotMendError(
            f"the file has {info.size_bytes} bytes where its entries say {said}, so it may be another one; see fault 302"
        )
    try:
        return [read_deletion_vector(storage, file) for file in files]
    except (InvalidTableError, UnsupportedError, UsageError) as error:
        raise CannotMendError(f"not every vector in it is sound: {first_line(error)}") from error


def _is_wrong(head: Head, path: str, places: Sequence[EntryPosition], positions: Sequence[BitMap64]) -> bool:
    """Whether the footer is wrong of these vectors; raises `CannotMendError` where it contradicts what they are for."""
    files = [place.entry.data_file for place in places]
    _refuse_shared_bytes(files)
    try:
        footer = read_puffin_footer(head.table.storage, path)
    except InvalidTableError:
        return True
    for file in files:
        _refuse_contradiction(footer, file)
    rows = map(msgspec.structs.asdict, files)
    return any(wrong_blob(footer, row, found) is not None for row, found in zip(rows, positions, strict=True))


def _refuse_shared_bytes(files: Iterable[DataFile]) -> None:
    ranges = sorted(map(_range, files))
    if any(start < end for (_, end), (start, _) in pairwise(ranges)):
        raise CannotMendError("two entries name the same bytes of it, and it is not known whose vector they are")


def _refuse_contradiction(footer: PuffinFooter, file: DataFile) -> None:
    """A footer that can be read is a witness too: of two that differ nobody knows which one is right."""
    start, end = _range(file)
    for blob in footer.blobs:
        named = blob.properties.get("referenced-data-file")
        is_there = (blob.offset, blob.offset + blob.length) == (start, end)
        if _overlaps(blob, start, end) and named not in (None, file.referenced_data_file):
            raise CannotMendError(
                f"its footer says that the vector at {blob.offset} is for data file {named!r}, its entry for "
                f"{file.referenced_data_file!r}, and it is not known which one is right"
            )
        if named == file.referenced_data_file and not is_there:
            raise CannotMendError(
                f"its footer says that the vector of {named!r} lies at {blob.offset}, its entry at {start}, and it is not known "
                "which one is right"
            )


def _range(file: DataFile) -> tuple[int, int]:
    start = file.content_offset or 0
    return start, start + (file.content_size_in_bytes or 0)


def _overlaps(blob: BlobMetadata, start: int, end: int) -> bool:
    return blob.offset < end and start < blob.offset + blob.length


def _refuse_several(live: _Live, places: Iterable[EntryPosition]) -> None:
    for place in places:
        target = str(place.entry.data_file.referenced_data_file)
        if live.vectors_of[target] > 1:
            raise CannotMendError(f"data file {target!r} has {live.vectors_of[target]} vectors: mend fault 213 first")
        if live.times[target] > 1:
            raise CannotMendError(f"data file {target!r} is live {live.times[target]} times: mend fault 212 first")


UNSORTED = frozenset((412,))

_COLUMNS = Schema(fields=(DELETE_FILE_PATH, DELETE_FILE_POS))
_MAX_ROWS = 5_000_000
"""So many deletes are sorted in memory."""

_ELSE = "run `icekeep rewrite_position_deletes` with rewrite-all=true"


def mend_order(head: Head, fault: Fault) -> str:
    """Plan to write a position delete file in order; returns what is written, in a sentence.

    The new file has the same deletes, partition and data sequence number, and so reaches the same rows.

    Raises:
        CannotMendError: it stays.
    """
    path = str(fault.facts["file_path"])
    places = [p for p in head.places(path, {str(fault.facts["manifest"])}) if not is_deletion_vector(p.entry.data_file)]
    if not places:
        raise CannotMendError("")
    if head.work.format_version > 2:
        raise CannotMendError(f"from version 3 on no position delete file is written: {_ELSE}")
    if len(places) > 1:
        raise CannotMendError(f"the file is live {len(places)} times: mend fault 212 first")
    [place] = places
    refuse_doubled(head, place.row)
    refuse_merged(head, place)
    refuse_described(head, place)
    try:
        rows = _deletes(head.table.storage, place)
    except (InvalidTableError, UnsupportedError, UsageError) as error:
        raise CannotMendError(f"the file cannot be read: {first_line(error)}") from error
    if rows.equals(_sorted(rows)):
        raise CannotMendError(NOT_FOUND)
    head.work.sorts.append(place.mended(None, is_replaced=True))
    return f"its {rows.num_rows} deletes are written into a new file, in order"


def _deletes(storage: Storage, place: EntryPosition) -> pa.Table:
    """The rows of a file, where they are all that it holds and what its entry says of them is so."""
    file = place.entry.data_file
    if file.content is not FileContent.POSITION_DELETES or file.key_metadata is not None:
        raise CannotMendError("it is no position delete file, or is encrypted")
    if file.record_count > _MAX_ROWS:
        raise CannotMendError(f"it has {file.record_count:,} deletes, too many to be sorted here: {_ELSE}")
    with open_reader(storage, file.file_path, file.file_format, DELETE_FILE) as reader:
        if len(reader.schema.names) > len(_COLUMNS.fields):
            raise CannotMendError(f"it holds more than paths and positions: {_ELSE}")
    rows = read_deletes(storage, file)
    if rows.num_rows != file.record_count:
        raise CannotMendError(
            f"it has {rows.num_rows} deletes where its entry says {file.record_count}: mend fault 415 first"
        )
    for path in pc.unique(rows.column(0)).to_pylist():
        # Readers pass a file over for data files that its entry leaves out.
        if not may_name(file, path):
            raise CannotMendError(f"its entry says that it is for other data files than {path!r}: see fault 421")
    return rows


def read_deletes(storage: Storage, file: DataFile) -> pa.Table:
    """Paths and positions as they are stored; raises `InvalidTableError` and `UnsupportedError` where these cannot be read."""
    source = delete_source(file.file_path, file.file_format, file.content)
    parts = [*read_file(storage, source, _COLUMNS, refuse_wrong_ids, batch_rows=BATCH_ROWS)]
    if not parts:
        raise InvalidTableError(f"delete file {file.file_path!r} has no rows", location=file.file_path)
    return pa.concat_tables(parts)


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in rows.column_names])


class Sorting:
    """Makes the files of one branch that are in order."""

    def __init__(self, entries: Sequence[RepairedEntry], run_id: str, table: Table) -> None:
        self._entries, self._run_id, self._table = tuple(entries), run_id, table
        self._made: NewFiles | None = None

    def made(self, _: TableMetadata, attempt: Attempt) -> NewFiles:
        """Raises `ConflictError` where a file has not as many rows as were read."""
        if self._made is None:
            added = tuple(self._written(one, attempt) for one in self._entries)
            locations = tuple(one.file.file_path for one in added)
            self._made = NewFiles(locations=locations, entries=self._entries, deletes=added)
        return self._made

    def _written(self, entry: RepairedEntry, attempt: Attempt) -> AddedDeletes:
        old, storage, metadata = entry.planned.data_file, attempt.reader.storage, self._table.metadata
        rows = read_deletes(storage, old)
        if rows.num_rows != old.record_count:
            raise ConflictError(f"delete file {old.file_path!r} has {rows.num_rows} rows now, not {old.record_count}")
        name = f"{self._run_id}-{self._table.runtime.new_uuid()}-deletes.{old.file_format.lower()}"
        location = data_layout(metadata.location, metadata.properties).location(name)
        new = write_position_deletes(
            storage,
            location,
            old.file_format.upper(),
            rows,
            spec_id=old.spec_id,
            partition=old.partition,
            properties=metadata.properties,
        )
        attempt.delete_file_written(location)
        return AddedDeletes(
            msgspec.structs.replace(new, referenced_data_file=old.referenced_data_file), sequence_number(entry.planned)
        )
