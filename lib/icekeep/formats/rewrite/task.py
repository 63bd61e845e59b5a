"""A task of a rewrite and its outcome: values that travel between driver and executors."""

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
        record_count: of the whole file, as its manifest entry says.
        size_bytes: of the piece.
        spec_id: of the file's partition spec.
        partition: the file's partition tuple.
        split: the first byte and the number of bytes of the piece: row groups or stripes that begin there; `None` for the
            whole file.
        part_rows: about how many rows the piece has, where it is a part of a file.
        deleted_count: about how many of them are deleted.
        first_row_id, data_sequence_number: of the file's entry, which its rows inherit.
        deletes: positions in the task's `delete_files` of those that reach the file.
        first_ordinal: of the file's first row among the rows of all files of the group, where rows have origins.
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
    """Pieces, and the files that shall hold their live rows.

    The new files are in the table's default format, and named and placed as `formats.file_names` says.

    Attributes:
        pieces: of one spec and partition, unless `ordering` says a spec to partition by.
        delete_files: those that reach any of the pieces, each once.
        schema: that the new files are written with.
        table_schemas: of the table, for columns that deletes compare and `schema` lacks.
        specs: the partition specs of the pieces and of the new files, by id.
        spec_id: of the new files.
        table_location: of the table; with `properties` it says where data files go.
        properties: of the table: how to write and where, and the name mapping that files without field ids are read with.
        sort_order: of the table, whose columns keep bounds.
        sort_order_id: what the new files say of the order of their rows.
        ordering: of the rows; `None` leaves them as they are.
        key_range: which rows of the pieces are this task's; `None` for all.
        files_count: of rows of one partition: how many files they are dealt out to, evenly as far as pieces say how many of
            their rows are live, or as those are that are ordered; a file still ends at the target size. `None`: at the target
            size only.
        budget_bytes: how much memory the rows that are to be ordered may take before they are put on disk.
        keeps_lineage: whether the new files store the lineage of rows; `None` if they shall where a piece has a first row id.
            Tasks that read and tasks that write the same rows must say the same.
        moves_pages: whether data pages of small Parquet files may be moved as they are, where no row changes.
        slots: how many tasks share the executor's memory, this one among them.
        is_local: whether the executor is this machine's only one, with a local master.
        is_shuffled: whether tasks that read send their rows to others that write: these come in any order, whatever is asked.
        verifies: whether the rows that go in are hashed, and those that the new files hold in the end.
        operation_id, partition_id, task_attempt_id: in the names of the new files.
        moves_directory: where the task puts what it tells of where its rows went and is too large for its report; `None` where
            that is not asked for.
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
        """Whether rows may be put in another order than they are read in."""
        ordering = self.ordering
        if ordering is None:
            return False
        # All rows that lie in one partition without an order lie right already.
        return bool(ordering.fields or ordering.curve or (ordering.partition_by and ordering.partition_by.fields))

    @property
    def has_origins(self) -> bool:
        """Whether each row carries its number among the rows of the group."""
        return self.moves_directory is not None and (self.is_ordered or self.is_shuffled)

    @property
    def attempt(self) -> str:
        """In the names of all that it writes, as `attempt_name` gives it."""
        return attempt_name(self.operation_id, self.partition_id, self.task_attempt_id)

    def file_names(self) -> FileNames:
        """Locations of its new files, one after the other; raises as `FileNames`."""
        return FileNames(self.attempt, self.table_location, self.properties)

    def spilled_location(self, name: str) -> str:
        """Where it puts something of its moves."""
        return f"{self.moves_directory}/{name}-{self.attempt}"

    def partition_path(self, partition: tuple[Any, ...]) -> str:
        """The directory of new files of a partition, for `FileNames.location`."""
        return partition_path(self.specs[self.spec_id], self.schema, partition)


class RewriteOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a task did.

    Attributes:
        files: the new files, in the order of their rows.
        read_count: rows of the pieces, deleted ones among them.
        live_count: those of them that are not deleted, whatever the key range.
        stitched_count: how many of `files` were put together from whole row groups.
        peak_bytes: the most memory of the process at the end of the task (resident set).
        moves: where the rows went that were read; `None` where that was not asked for.
        proven: as in `DeleteCache`, of the delete files that the task has read whole.
        hash_in: of the live rows that were read, whatever the key range; `None` where that was not asked for.
        hash_out: of the rows that `files` hold, read from storage again; `None` where that was not asked for.
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
    """The task with ordinals for its files in the order of its pieces, where rows need them and have none."""
    if not task.has_origins or all(piece.first_ordinal is not None for piece in task.pieces):
        return task
    firsts: dict[str, int] = {}
    total = 0
    for piece in task.pieces:
        if firsts.setdefault(piece.location, total) == total:
            total += piece.record_count
    pieces = [msgspec.structs.replace(piece, first_ordinal=firsts[piece.location]) for piece in task.pieces]
    return msgspec.structs.replace(task, pieces=tuple(pieces))
