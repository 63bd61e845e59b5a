"""A task of a rewrite and its outcome: values that are sent between driver and executors."""

from collections.abc import Mapping
from typing import Any

import msgspec

from icekeep.formats.file_names import FileNames, attempt_name
from icekeep.formats.row_hash import RowSum
from icekeep.formats.row_moves import RowMoves
from icekeep.formats.sort.encode import KeyRange, Ordering
from icekeep.spec.collections import NO_POSITIONS, PositionSet
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.partitioning import PartitionSpec, partition_path
from icekeep.spec.reach import PathDigest
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import UNSORTED, SortOrder
from icekeep.spec.types import MIB


class FilePiece(msgspec.Struct, frozen=True, kw_only=True):
    """A data file to read, whole or in part.

    Attributes:
        record_count: of the whole file, by its manifest entry.
        size_bytes: of the piece.
        split: the first byte and the number of bytes of the row groups or stripes in the piece; null for the whole file.
        part_rows: an estimate of the piece's rows, if it is a part of a file.
        deleted_count: an estimate of how many of them are deleted.
        first_row_id, data_sequence_number: of the file's entry, which its rows inherit.
        deletes: indices in the task's `delete_files` of those that reach the file.
        first_ordinal: of the file's first row among the rows of all files of the group, if rows have origins.
    """

    location: str
    record_count: int
    size_bytes: int
    file_format: str = "PARQUET"
    spec_id: int = 0
    partition: tuple[Any, ...] = ()
    split: tuple[int, int] | None = None
    part_rows: int | None = None
    deleted_count: int = 0
    first_row_id: int | None = None
    data_sequence_number: int | None = None
    deletes: PositionSet = NO_POSITIONS
    first_ordinal: int | None = None


class RewriteTask(msgspec.Struct, frozen=True, kw_only=True):
    """Pieces whose live rows are written into new files, in the table's default format and named by `formats.file_names`.

    Attributes:
        pieces: of one spec and partition, unless `ordering` has a spec to partition by.
        delete_files: those that reach any of the pieces, each once.
        schema: of the new files.
        table_schemas: all of the table's, for columns that deletes compare and `schema` lacks.
        specs: the partition specs of the pieces and of the new files, by id.
        spec_id: of the new files.
        properties: of the table, for the writer, the locations of data files, and the name mapping.
        sort_order: of the table, whose columns keep bounds.
        sort_order_id: of the new files.
        ordering: of the rows; null keeps their order.
        key_range: of this task's rows; null for all.
        files_count: the number of files for the rows of one partition, evenly, by estimated live rows if they are not ordered; a
            file still ends at the target size. Null: only there.
        budget_bytes: the memory for rows to be ordered before they are spilled to disk.
        keeps_lineage: whether the new files store row lineage; null: if a piece has a first row id. It must be the same for
            tasks that read and tasks that write the same rows.
        moves_pages: whether data pages of small Parquet files may be copied if no row changes.
        slots: how many tasks share the executor's memory, with this one.
        is_local: whether the executor is the only one of this machine, with a local master.
        is_shuffled: whether other tasks write the rows that this one reads: then they arrive in any order.
        verifies: whether the rows that go in and those in the new files are hashed.
        operation_id, partition_id, task_attempt_id: in the names of the new files.
        moves_directory: for moves that are too large for the report; null if moves are not requested.
    """

    pieces: tuple[FilePiece, ...]
    delete_files: tuple[DataFile, ...] = ()
    schema: Schema
    table_schemas: tuple[Schema, ...] = ()
    specs: Mapping[int, PartitionSpec]
    spec_id: int
    table_location: str
    properties: Mapping[str, str]
    target_file_size_bytes: int
    sort_order: SortOrder = UNSORTED
    sort_order_id: int | None = 0
    ordering: Ordering | None = None
    key_range: KeyRange | None = None
    files_count: int | None = None
    budget_bytes: int = 512 * MIB
    keeps_lineage: bool | None = None
    moves_pages: bool = True
    slots: int = 1
    is_local: bool = False
    is_shuffled: bool = False
    operation_id: str
    partition_id: int = 0
    task_attempt_id: int = 0
    verifies: bool = False
    moves_directory: str | None = None

    @property
    def is_ordered(self) -> bool:
        """Whether rows may be written in another order than they are read in."""
        ordering = self.ordering
        if ordering is None:
            return False
        # Rows of one partition without an order are in place already.
        return bool(ordering.fields or ordering.curve or (ordering.partition_by and ordering.partition_by.fields))

    @property
    def has_origins(self) -> bool:
        """Whether each row has a column with its number among the rows of the group."""
        return self.moves_directory is not None and (self.is_ordered or self.is_shuffled)

    @property
    def attempt(self) -> str:
        """The start of the names of all files that the task writes."""
        return attempt_name(self.operation_id, self.partition_id, self.task_attempt_id)

    def file_names(self) -> FileNames:
        """Locations of new files; raises as `FileNames`."""
        return FileNames(self.attempt, self.table_location, self.properties)

    def spilled_location(self, name: str) -> str:
        """The location of a file with some of the task's moves."""
        return f"{self.moves_directory}/{name}-{self.attempt}"

    def partition_path(self, partition: tuple[Any, ...]) -> str:
        """The directory of a partition's new files, for `FileNames.location`."""
        return partition_path(self.specs[self.spec_id], self.schema, partition)


class RewriteOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a task did.

    Attributes:
        files: the new files, in the order of their rows.
        read_count: rows of the pieces, with deleted ones.
        live_count: those of them that are not deleted, whatever the key range.
        stitched_count: how many of `files` were stitched from whole row groups.
        peak_bytes: the peak memory of the process at the end of the task (resident set).
        moves: where the rows went; null if not requested.
        proven: as in `DeleteCache`, of the delete files that the task has read whole.
        hash_in: of the live rows that were read, whatever the key range; null if the task verifies nothing.
        hash_out: of the rows in `files`, read from storage again; null if the task verifies nothing.
    """

    files: tuple[DataFile, ...]
    read_count: int
    live_count: int
    stitched_count: int = 0
    peak_bytes: int = 0
    moves: RowMoves | None = None
    proven: frozenset[PathDigest] = frozenset()
    hash_in: RowSum | None = None
    hash_out: RowSum | None = None


def numbered(task: RewriteTask) -> RewriteTask:
    """The task with ordinals for its files, in the order of its pieces, if rows have origins and ordinals are missing."""
    if not task.has_origins or all(piece.first_ordinal is not None for piece in task.pieces):
        return task
    firsts: dict[str, int] = {}
    total = 0
    for piece in task.pieces:
        if firsts.setdefault(piece.location, total) == total:
            total += piece.record_count
    pieces = [msgspec.structs.replace(piece, first_ordinal=firsts[piece.location]) for piece in task.pieces]
    return msgspec.structs.replace(task, pieces=tuple(pieces))
