"""The rows of data files that match a filter, found by reading and taken out: by deletes of their positions, or by new files.

A task reads of each data file the columns of the filter, in the row groups that may hold a match, with all deletes applied. A
file none of whose rows match stays as it is, and one of which no other row is left goes as a whole. The others are given position
delete files or, in format version 3, vectors, which hold what was deleted before too; or their other rows are copied into a
new file, in their order and with their lineage.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec
import numpy as np
import pyarrow.compute as pc

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.deletes.apply import DeletesByKind, LivePiece, LiveRowsReader, deleted_positions
from icekeep.formats.deletes.read import DeleteCache, Positions
from icekeep.formats.deletes.rewrite import Granularity, PositionsWriter, is_of_one_file
from icekeep.formats.evaluate import rows_that_match
from icekeep.formats.machine import TaskMemory, peak_memory_bytes, task_memory_bytes
from icekeep.formats.options import FileNames, attempt_name
from icekeep.formats.reader import SourceFile, open_reader
from icekeep.formats.rewrite.task import FilePiece, RewriteTask, TaskRows, TaskWriter
from icekeep.spec.collections import PositionSet
from icekeep.spec.filters.evaluators import residual
from icekeep.spec.filters.expressions import ALWAYS_FALSE, Expression
from icekeep.spec.manifests.structs import DataFile, ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import identity_values
from icekeep.spec.reach import sequence_number
from icekeep.spec.schema import POS, NameMapping, Schema, name_mapping_of
from icekeep.storage.base import Storage


class TakenOut(StrEnum):
    """How matching rows leave a data file that holds others too; `NOT` is for a search that writes nothing."""

    DELETES = "deletes"
    REWRITE = "rewrite"
    NOT = "not"


class SearchedFile(msgspec.Struct, frozen=True):
    """A live data file as it was read; `deletes` are indices in the task's delete files of those that reach it."""

    entry: ManifestEntry
    deletes: tuple[int, ...] = ()


class MatchedRowsTask(msgspec.Struct, frozen=True, kw_only=True):
    """Data files that may hold rows of a filter.

    Attributes:
        files: those of one partition side by side.
        deletes: live delete files that reach any of the files, each once.
        rows: the filter, bound to the table's schema.
        metadata: with the schemas, specs, location and properties of the table.
        delete_format: of position delete files.
        target_file_size_bytes: of new data files.
        slots: how many tasks share the memory of the process.
        operation_id, partition_id, task_attempt_id: in the names of the new files.
    """

    files: tuple[SearchedFile, ...]
    deletes: tuple[ManifestEntry, ...] = ()
    rows: Expression
    taken_out: TakenOut
    metadata: TableMetadata
    delete_format: str = "PARQUET"
    granularity: Granularity = "file"
    target_file_size_bytes: int
    slots: int = 1
    operation_id: str
    partition_id: int = 0
    task_attempt_id: int = 0


class MatchedRowsOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a task did.

    Attributes:
        emptied: data files that go as a whole, since no other row is left in them.
        rewritten: data files whose other rows are in `added`, or would be.
        added_deletes: the new position delete files or vectors.
        named: the paths of the data files that these are for.
        replaced: vectors, and position delete files of one data file, whose positions new vectors hold as well.
        matched_count: rows that matched and were not deleted before.
        read_count: rows of all files, as their entries say.
        peak_bytes: the peak memory of the process at the end of the task (resident set).
    """

    emptied: tuple[ManifestEntry, ...] = ()
    rewritten: tuple[ManifestEntry, ...] = ()
    added: tuple[DataFile, ...] = ()
    added_deletes: tuple[DataFile, ...] = ()
    named: tuple[str, ...] = ()
    replaced: tuple[ManifestEntry, ...] = ()
    matched_count: int = 0
    read_count: int = 0
    peak_bytes: int = 0


def take_out(task: MatchedRowsTask, storage: Storage) -> MatchedRowsOutcome:
    """Find the matching rows of a task's files and take them out; on failure no new file is left."""
    work = _Work(task, storage)
    try:
        work.run()
    except BaseException:
        storage.delete_many({file.file_path for file in (*work.added, *work.writer.added)})
        raise
    return MatchedRowsOutcome(
        emptied=tuple(work.emptied),
        rewritten=tuple(work.rewritten),
        added=tuple(work.added),
        added_deletes=tuple(work.writer.added),
        named=tuple(work.named),
        replaced=tuple(work.replaced),
        matched_count=work.matched_count,
        read_count=sum(file.entry.data_file.record_count for file in task.files),
        peak_bytes=peak_memory_bytes(),
    )


class _Work:
    """One attempt at a task, and its results so far."""

    def __init__(self, task: MatchedRowsTask, storage: Storage) -> None:
        self._task, self._storage, self._metadata = task, storage, task.metadata
        self._cache = DeleteCache()
        self._mapping: NameMapping | None = name_mapping_of(task.metadata.properties)
        self._memory = TaskMemory(task_memory_bytes(task.slots))
        self._reader = LiveRowsReader(
            storage, Schema(fields=(POS,)), table_schemas=task.metadata.schemas, cache=self._cache
        )
        self._attempt = attempt_name(task.operation_id, task.partition_id, task.task_attempt_id)
        names = FileNames(self._attempt, task.metadata.location, task.metadata.properties)
        self.writer = PositionsWriter(task.metadata, storage, names, task.delete_format, task.granularity)
        self.emptied: list[ManifestEntry] = []
        self.rewritten: list[ManifestEntry] = []
        self.added: list[DataFile] = []
        self.named: list[str] = []
        self.replaced: list[ManifestEntry] = []
        self.matched_count = self._read_count = 0

    def run(self) -> None:
        if self._task.taken_out is TakenOut.DELETES:
            self.writer.write(self._marked())
            return
        for number, (searched, positions) in enumerate(self._partly_matched()):
            if self._task.taken_out is TakenOut.REWRITE:
                self.added += self._rewritten(searched, len(positions), number)
            self.rewritten.append(searched.entry)

    def _deletes(self, searched: SearchedFile) -> list[DataFile]:
        return [self._task.deletes[place].data_file for place in searched.deletes]

    def _partly_matched(self) -> Iterator[tuple[SearchedFile, Positions]]:
        """The files of which some rows match and others are left, with the positions of those that match and are live."""
        for searched in self._task.files:
            positions = self._matching(searched)
            if not len(positions):
                continue
            self.matched_count += len(positions)
            if self._left_count(searched, positions) == 0:
                self._check_count(searched)
                self.emptied.append(searched.entry)
            else:
                yield searched, positions

    def _matching(self, searched: SearchedFile) -> Positions:
        """The positions of live rows that match, ascending."""
        file, metadata = searched.entry.data_file, self._metadata
        spec = metadata.specs_by_id[file.spec_id]
        left = residual(self._task.rows, spec, metadata.schema, file.partition)
        if left is ALWAYS_FALSE:
            return np.empty(0, np.int64)
        source = SourceFile(
            location=file.file_path,
            file_format=file.file_format,
            constants=identity_values(spec, file.partition),
            name_mapping=self._mapping,
        )
        piece = LivePiece(source=source, deletes=self._deletes(searched))
        before = self._reader.read_count
        tables = self._reader.read([piece], residual=left, batch_rows=self._memory.batch_rows)
        found = [table.column(0).to_numpy() for table in tables]
        self._read_count = self._reader.read_count - before
        return np.concatenate([np.empty(0, np.int64), *found])

    def _left_count(self, searched: SearchedFile, positions: Positions) -> int:
        """How many rows are left that neither match nor are deleted; with equality deletes, those that may be."""
        file, deletes = searched.entry.data_file, DeletesByKind.of(self._deletes(searched))
        gone = self._deleted(file, deletes.by_position)
        gone = gone[(gone >= 0) & (gone < file.record_count)]
        return file.record_count - len(np.union1d(positions, gone))

    def _check_count(self, searched: SearchedFile) -> None:
        """Before a file goes as a whole: it holds no more rows than its entry says."""
        file = searched.entry.data_file
        with open_reader(self._storage, file.file_path, file.file_format) as reader:
            stored = reader.row_count()
        # Where the file does not say it, all of its rows were read.
        count = self._read_count if stored is None else stored
        if count != file.record_count:
            raise InvalidTableError(
                f"data file {file.file_path!r} has {count} rows where its manifest says {file.record_count}",
                location=file.file_path,
            )

    def _deleted(self, file: DataFile, deletes: Sequence[DataFile]) -> Positions:
        if not deletes:
            return np.empty(0, np.int64)
        return deleted_positions(self._storage, deletes, file.file_path, self._cache)

    def _marked(self) -> Iterator[tuple[DataFile, Positions]]:
        """The files whose matching rows are deleted by position; in version 3 with all positions that are deleted."""
        for searched, positions in self._partly_matched():
            file = searched.entry.data_file
            self.named.append(file.file_path)
            if self._metadata.format_version > 2:
                by_position = DeletesByKind.of(self._deletes(searched)).by_position
                positions = np.union1d(positions, self._deleted(file, by_position))
                entries = (self._task.deletes[place] for place in searched.deletes)
                paths = {one.file_path for one in by_position}
                self.replaced += (one for one in entries if one.data_file.file_path in paths and is_of_one_file(one))
            yield file, positions

    def _rewritten(self, searched: SearchedFile, matched_count: int, number: int) -> Sequence[DataFile]:
        """New files of the rows of a file that are neither deleted nor match."""
        task, metadata, entry = self._task, self._metadata, searched.entry
        file, deletes = entry.data_file, tuple(self._deletes(searched))
        copy = RewriteTask(
            pieces=(
                FilePiece(
                    location=file.file_path,
                    record_count=file.record_count,
                    size_bytes=file.file_size_in_bytes,
                    file_format=file.file_format,
                    spec_id=file.spec_id,
                    partition=file.partition,
                    first_row_id=file.first_row_id,
                    data_sequence_number=sequence_number(entry),
                    deletes=PositionSet(range(len(deletes))),
                ),
            ),
            delete_files=deletes,
            schema=metadata.schema,
            table_schemas=metadata.schemas,
            specs=metadata.specs_by_id,
            spec_id=file.spec_id,
            table_location=metadata.location,
            properties=metadata.properties,
            target_file_size_bytes=task.target_file_size_bytes,
            sort_order=metadata.sort_order,
            # A part of the rows in the same order is sorted as all of them were.
            sort_order_id=file.sort_order_id,
            slots=task.slots,
            operation_id=f"{self._attempt}-{number}",
        )
        rows = TaskRows(copy, self._storage)
        with TaskWriter(copy, rows.columns, self._storage) as writer:
            dropped_count = 0
            for table in rows.read():
                matched = rows_that_match(task.rows, table)
                kept = table.filter(pc.invert(matched))
                dropped_count += table.num_rows - kept.num_rows
                writer.write(kept)
            written = writer.close()
        new_count = sum(one.record_count for one in written.files)
        if (dropped_count, new_count) != (matched_count, rows.live_count - matched_count):
            self._storage.delete_many([one.file_path for one in written.files])
            raise IcekeepBug(
                f"{matched_count} rows of {file.file_path!r} were found to match and {dropped_count} left out, of "
                f"{rows.live_count} live rows, and {new_count} written; nothing of it is committed"
            )
        return written.files
