"""Position delete files whose rows are not in order: each is written anew, in order, and takes the place of the old one."""

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

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
from icekeep.formats.reader import open_reader, read_file
from icekeep.maintenance.checking.faults import Fault
from icekeep.maintenance.repairing.heads import Head
from icekeep.maintenance.repairing.named_entries import Place
from icekeep.maintenance.repairing.new_files import NewFiles
from icekeep.maintenance.repairing.reasons import NOT_FOUND, CannotMendError
from icekeep.maintenance.repairing.refusals import refuse_described, refuse_doubled, refuse_merged
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_layout
from icekeep.spec.reach import is_deletion_vector, may_name, sequence_number
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS, Schema
from icekeep.storage.base import Storage

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


def _deletes(storage: Storage, place: Place) -> pa.Table:
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
