"""What a rewrite reads: the live rows of a task's pieces, in the columns that its new files have."""

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from icekeep.errors import UnsupportedError
from icekeep.formats.deletes.merge_on_read import PIECE_BYTES, LivePiece, LiveRowsReader
from icekeep.formats.memory import TaskMemory, task_memory_bytes
from icekeep.formats.parquet.reader import repeating_strings
from icekeep.formats.read import SourceFile, open_reader
from icekeep.formats.rewrite.task import FilePiece, RewriteTask
from icekeep.formats.row_hash.multiset import RowHash, RowSum
from icekeep.formats.row_hash.sequence import RowSequence
from icekeep.formats.row_mapping.row_moves import MovedPiece, ReadNotes
from icekeep.spec.applicability import PathDigest
from icekeep.spec.metadata_columns import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from icekeep.spec.name_mapping import NameMapping, name_mapping_of
from icekeep.spec.partitioning import identity_values
from icekeep.spec.position_sets import Part
from icekeep.spec.schema import Schema
from icekeep.spec.units import MIB
from icekeep.storage.base import Storage

_LARGE_BYTES = 16 * MIB
"""A file as large is looked at before anything is read; a smaller one when its turn comes."""


def columns_to_write(task: RewriteTask) -> Schema:
    """The table's columns, and the lineage of rows that have one: they keep it in their new file (spec, "Row Lineage").

    Raises:
        UnsupportedError: a column of the table has the name of one of lineage: no file can hold both.
    """
    keeps_lineage = task.keeps_lineage
    if keeps_lineage is None:
        keeps_lineage = any(piece.first_row_id is not None for piece in task.pieces)
    if not keeps_lineage:
        return task.schema
    for field in task.schema.fields:
        if field.name in (ROW_ID.name, LAST_UPDATED_SEQUENCE_NUMBER.name):
            raise UnsupportedError(
                f"the table has a column of its own named {field.name!r}, under which data files of format version 3 keep the "
                "lineage of rows: rename the column, then its data files can be rewritten",
                column=field.name,
            )
    return msgspec.structs.replace(task.schema, fields=(*task.schema.fields, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER))


class TaskRows:
    """The rows of a task's pieces without those that are deleted, in the order of the pieces.

    Iterate once. Columns are `columns_to_write`; string columns that repeat may be dictionaries.

    Attributes:
        columns: of the rows.
        read_count: rows that were read so far, deleted ones among them.
        live_count: rows that were handed out so far.
        hashed: what has hashed these; `None` where nobody asks for it.
    """

    def __init__(self, task: RewriteTask, storage: Storage, *, in_order: bool = False) -> None:
        """`in_order` says whether the rows are to be hashed in their order, since whoever takes them keeps it.

        Raises:
        UnsupportedError: a large file has a row group that this task could not hold; nothing was read.
        """
        self.columns = columns_to_write(task)
        self.live_count = 0
        self._task, self._storage = task, storage
        self._memory = TaskMemory(task_memory_bytes(task.slots), task.is_local)
        self._name_mapping = name_mapping_of(task.properties)
        hashing = RowSequence if in_order else RowHash
        self.hashed = hashing(self.columns) if task.verifies else None
        self._notes = None if task.moves_directory is None else ReadNotes(_origin_type(task))
        self._reader = LiveRowsReader(
            storage,
            self.columns,
            table_schemas=task.table_schemas,
            kept_dictionaries=self._kept_dictionaries(),
            piece_bytes=min(PIECE_BYTES, self._memory.batch_bytes),
            notes=self._notes,
        )
        for location, file_format in dict.fromkeys((p.location, p.file_format) for p in task.pieces if _is_large(p)):
            with open_reader(storage, location, file_format) as reader:
                self._memory.batch_rows(reader)

    @property
    def read_count(self) -> int:
        return self._reader.read_count

    @property
    def hash(self) -> RowSum | None:
        """Of the rows that were handed out so far; `None` where nobody asks for it."""
        return None if self.hashed is None else self.hashed.total

    @property
    def proven(self) -> frozenset[PathDigest]:
        """As in `RewriteOutcome`, of the delete files that were read so far."""
        return self._reader.proven

    @property
    def pieces(self) -> tuple[MovedPiece, ...]:
        """What was read, and which rows of it are dropped; complete after the last row; empty where nobody asks for it."""
        return () if self._notes is None else self._notes.pieces()

    def __iter__(self) -> Iterator[pa.Table]:
        """Raises:
        MissingFileError: a file is not there.
        InvalidTableError: a file is damaged, does not fit the schema, or has not the rows that its manifest says.
        UnsupportedError: a file needs a feature of the format that we do not handle, or more memory than there is.
        """
        yield from self.read(self._task.pieces)

    def read(self, pieces: Iterable[FilePiece]) -> Iterator[pa.Table]:
        """The rows of some pieces of the task; raises what iterating raises."""
        found = (_live_piece(piece, self._task, self._name_mapping) for piece in pieces)
        for table in self._reader.read(found, batch_rows=self._memory.batch_rows):
            self.live_count += table.num_rows
            if self.hashed is not None:
                self.hashed.add(table)
            yield table

    def _kept_dictionaries(self) -> frozenset[int]:
        """Columns that need not be decoded; the first file speaks for all: where it is wrong, only time is lost."""
        first = self._task.pieces[0] if self._task.pieces else None
        if first is None or first.file_format.upper() != "PARQUET":
            return frozenset()
        return repeating_strings(self._storage, first.location)


def _is_large(piece: FilePiece) -> bool:
    return piece.size_bytes >= _LARGE_BYTES


def _live_piece(piece: FilePiece, task: RewriteTask, name_mapping: NameMapping | None) -> LivePiece:
    source = SourceFile(
        location=piece.location,
        file_format=piece.file_format,
        constants=identity_values(task.specs[piece.spec_id], piece.partition),
        name_mapping=name_mapping,
        first_row_id=piece.first_row_id,
        data_sequence_number=piece.data_sequence_number,
    )
    return LivePiece(
        source=source,
        deletes=Part(task.delete_files, piece.deletes),
        split=piece.split,
        record_count=piece.record_count if piece.split is None else None,
        first_ordinal=piece.first_ordinal,
    )


def _origin_type(task: RewriteTask) -> pa.DataType | None:
    """As narrow as the rows of all files allow, as far as the task knows of them."""
    if not task.has_origins:
        return None
    last = max(((piece.first_ordinal or 0) + piece.record_count for piece in task.pieces), default=0)
    return pa.uint32() if last < 1 << 32 else pa.int64()
