"""Equality deletes converted to position delete files or deletion vectors: a task's work, for a share of the data files.

The deleted positions are computed with the code of a reader (`apply`), within the same bounds of memory: of a data file only the
compared columns are read.

In format version 2 the positions are written even if other deletes have them, so that they do not depend on those. In version 3
a vector replaces all position deletes of its data file, so it includes them.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby, islice

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.commit.changes.deletes import ConvertedFile, EntryDigests
from icekeep.commit.file_sets import entry_digest
from icekeep.errors import IcekeepBug
from icekeep.formats.deletes.apply import LivePiece, LiveRowsReader, deleted_positions
from icekeep.formats.deletes.positions import Granularity, delete_suffix
from icekeep.formats.deletes.read import DeleteCache, Positions, write_position_deletes
from icekeep.formats.file_names import FileNames, attempt_name
from icekeep.formats.machine import peak_memory_bytes
from icekeep.formats.puffin import FILE_FORMAT, VectorTarget, write_deletion_vectors
from icekeep.formats.reader import SourceFile
from icekeep.formats.row_moves import bitmap_from
from icekeep.spec.collections import packed
from icekeep.spec.manifests.structs import DataFile, ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import identity_values
from icekeep.spec.reach import is_deletion_vector, partition_key
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS, DELETED, Schema, name_mapping_of
from icekeep.storage.base import Storage

VECTORS_A_FILE = 500
"""The most vectors in a Puffin file."""

POSITIONS_A_FILE = 4_000_000
"""Positions, in memory and sorted, at which a delete file for a whole partition ends."""

_MARKS = Schema(fields=(DELETED,))


def equality_positions(
    storage: Storage,
    pieces: Sequence[LivePiece],
    table_schemas: Sequence[Schema],
    *,
    cache: DeleteCache | None = None,
) -> Iterator[Positions]:
    """The ascending positions that equality deletes remove from each data file, in order; raises as `LiveRowsReader`.

    Args:
        pieces: whole data files, with the number of their rows; `deletes` are only equality deletes.
        table_schemas: as for `LiveRowsReader`.
    """
    for piece in pieces:
        if piece.record_count is None or piece.split is not None:
            raise IcekeepBug(f"positions in a part of data file {piece.source.location!r} were asked for")
    reader = LiveRowsReader(storage, _MARKS, table_schemas=table_schemas, cache=cache)
    # Deleted rows are read too: all rows of a file come in order, so their positions need not be read.
    marks = (table.column(0).to_numpy() for table in reader.read(pieces))
    waiting: NDArray[np.bool_] = np.empty(0, np.bool_)
    for piece in pieces:
        assert piece.record_count is not None
        parts: list[Positions] = [np.empty(0, np.int64)]
        start = 0
        while start < piece.record_count:
            if not len(waiting):
                waiting = next(marks)
            mine, waiting = waiting[: piece.record_count - start], waiting[piece.record_count - start :]
            parts.append(np.flatnonzero(mine) + start)
            start += len(mine)
        yield np.concatenate(parts)
    # To the end, where the reader checks the number of rows of the last file.
    if len(waiting) or any(map(len, marks)):
        raise IcekeepBug("more rows were read than the data files have")


class ReachedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A live data file of a task.

    Attributes:
        entry: as it was read.
        reach: the task's `equality_deletes` that reach it: pairs of a scope and the first of its deletes, which all follow.
        position_deletes: indices in the task's `position_deletes` of those that reach it; used in version 3 only.
    """

    entry: ManifestEntry
    reach: tuple[tuple[int, int], ...]
    position_deletes: tuple[int, ...] = ()


class ConversionTask(msgspec.Struct, frozen=True, kw_only=True):
    """Data files, and the deletes that reach them.

    Attributes:
        files: those of one partition side by side.
        equality_deletes: by scope, such as one partition; within one, those that reach more files come last.
        metadata: with the schemas, specs, location and properties of the table.
        delete_format: of position delete files.
        operation_id, partition_id, task_attempt_id: in the names of the new files.
    """

    files: tuple[ReachedFile, ...]
    equality_deletes: tuple[tuple[DataFile, ...], ...]
    position_deletes: tuple[ManifestEntry, ...] = ()
    metadata: TableMetadata
    delete_format: str = "PARQUET"
    granularity: Granularity = "file"
    operation_id: str
    partition_id: int = 0
    task_attempt_id: int = 0


class ConversionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a task did.

    Attributes:
        data_files: those of the task.
        added: the new delete files or vectors.
        named: the data files with rows that equality deletes remove.
        replaced: vectors and position delete files for one data file, whose positions are in `added`.
        positions_count: how many positions equality deletes remove.
        read_count: rows that were read.
        peak_bytes: the peak memory of the process at the end of the task (resident set).
    """

    data_files: EntryDigests
    added: tuple[DataFile, ...] = ()
    named: tuple[ConvertedFile, ...] = ()
    replaced: tuple[ManifestEntry, ...] = ()
    positions_count: int = 0
    read_count: int = 0
    peak_bytes: int = 0


def convert(task: ConversionTask, storage: Storage) -> ConversionOutcome:
    """Find the positions that the equality deletes of a task remove and write them; on failure no file is left.

    Raises:
        As `equality_positions`; and
        PropertyError: a table property of the writer is invalid.
        UnsupportedError: a location provider of another engine places the table's files.
    """
    work = _Work(task, storage)
    try:
        work.run()
    except BaseException:
        storage.delete_many({file.file_path for file in work.added})
        raise
    return ConversionOutcome(
        data_files=EntryDigests.of(entry_digest(file.entry) for file in task.files),
        added=tuple(work.added),
        named=tuple(work.named),
        replaced=tuple(work.replaced),
        positions_count=work.positions_count,
        read_count=sum(file.entry.data_file.record_count for file in task.files),
        peak_bytes=peak_memory_bytes(),
    )


_Deleted = tuple[DataFile, Positions]
"""A data file and deleted positions in it."""


class _Work:
    """One attempt at a task, and its results so far."""

    def __init__(self, task: ConversionTask, storage: Storage) -> None:
        self._task, self._storage = task, storage
        self._cache = DeleteCache()
        attempt = attempt_name(task.operation_id, task.partition_id, task.task_attempt_id)
        self._names = FileNames(attempt, task.metadata.location, task.metadata.properties)
        self.added: list[DataFile] = []
        self.named: list[ConvertedFile] = []
        self.replaced: list[ManifestEntry] = []
        self.positions_count = 0

    def run(self) -> None:
        if self._task.metadata.format_version > 2:
            self._write_vectors(self._deleted())
            return
        # Positions of one delete file; of a single data file they exceed 0.
        most = 0 if self._task.granularity == "file" else POSITIONS_A_FILE
        for _, of_partition in groupby(self._deleted(), lambda one: partition_key(one[0])):
            for batch in packed(of_partition, (lambda one: len(one[1]), most)):
                self._write_positions(batch)

    def _pieces(self) -> Iterator[LivePiece]:
        metadata, scopes = self._task.metadata, self._task.equality_deletes
        reach: tuple[tuple[int, int], ...] | None = None
        deletes: list[DataFile] = []
        for reached in self._task.files:
            file = reached.entry.data_file
            # One list for neighbours of the same reach, since it may be long.
            if reached.reach != reach:
                reach = reached.reach
                deletes = [delete for scope, first in reach for delete in scopes[scope][first:]]
            source = SourceFile(
                location=file.file_path,
                file_format=file.file_format,
                constants=identity_values(metadata.specs_by_id[file.spec_id], file.partition),
                name_mapping=name_mapping_of(metadata.properties),
            )
            yield LivePiece(source=source, deletes=deletes, record_count=file.record_count)

    def _deleted(self) -> Iterator[_Deleted]:
        """The data files with rows that equality deletes remove.

        In version 3 with the positions that are deleted already, and without files of which these are all.
        """
        task, pieces = self._task, [*self._pieces()]
        deleted = equality_positions(self._storage, pieces, task.metadata.schemas, cache=self._cache)
        for reached, positions in zip(task.files, deleted, strict=True):
            if not len(positions):
                continue
            self.positions_count += len(positions)
            file = reached.entry.data_file
            includes_earlier = task.metadata.format_version > 2
            earlier = [task.position_deletes[n] for n in reached.position_deletes] if includes_earlier else []
            self.named.append(ConvertedFile(reached.entry, tuple(earlier)))
            if earlier:
                files = [entry.data_file for entry in earlier]
                gone = deleted_positions(self._storage, files, file.file_path, self._cache)
                # Positions beyond the end of the file delete nothing, but the vector that is replaced has them.
                if np.isin(positions, gone, kind="sort").all():
                    continue
                positions = np.union1d(positions, gone)
                # Delete files for several data files are kept.
                self.replaced += [
                    entry
                    for entry in earlier
                    if is_deletion_vector(entry.data_file) or entry.data_file.referenced_data_file is not None
                ]
            yield file, positions

    def _write_positions(self, deleted: Sequence[_Deleted]) -> None:
        task, (first, _) = self._task, deleted[0]
        paths = [
            pa.DictionaryArray.from_arrays(np.zeros(len(positions), np.int8), [file.file_path]).cast("string")
            for file, positions in deleted
        ]
        rows = pa.table(
            [pa.chunked_array(paths), pa.chunked_array([positions for _, positions in deleted])],
            names=[DELETE_FILE_PATH.name, DELETE_FILE_POS.name],
        )
        file = write_position_deletes(
            self._storage,
            self._new_location(first, task.delete_format),
            task.delete_format,
            rows,
            spec_id=first.spec_id,
            partition=first.partition,
            properties=task.metadata.properties,
        )
        self.added.append(file)

    def _write_vectors(self, deleted: Iterator[_Deleted]) -> None:
        for first in deleted:
            vectors = (
                (
                    VectorTarget(location=file.file_path, spec_id=file.spec_id, partition=file.partition),
                    bitmap_from(positions),
                )
                for file, positions in chain([first], islice(deleted, VECTORS_A_FILE - 1))
            )
            location = self._new_location(first[0], FILE_FORMAT)
            self.added += write_deletion_vectors(self._storage, location, vectors)

    def _new_location(self, file: DataFile, file_format: str) -> str:
        directory = self._task.metadata.partition_path(file.spec_id, file.partition)
        return self._names.location(delete_suffix(file_format), directory)
