"""Vectors of one data file that become one, in a new Puffin file that the commit writes."""

from collections.abc import Sequence

from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.deletes import AddedDeletes
from icekeep.errors import ConflictError
from icekeep.formats.puffin import VectorTarget, read_deletion_vector, write_deletion_vectors
from icekeep.maintenance.repairing.new_files import NewFiles
from icekeep.maintenance.repairing.plan import VectorMerge
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_layout
from icekeep.spec.reach import sequence_number
from icekeep.spelling import counted


class Merging:
    """Makes the merged vectors of one branch."""

    def __init__(self, merges: Sequence[VectorMerge], run_id: str, table: Table) -> None:
        self._merges, self._run_id, self._table = merges, run_id, table
        self._added: tuple[AddedDeletes, ...] = ()

    def made(self, _: TableMetadata, attempt: Attempt) -> NewFiles:
        """Raises `ConflictError` where a vector has other positions than were read."""
        if not self._added:
            self._added = self._written(attempt)
        gone = tuple(entry for merge in self._merges for entry in merge.entries)
        locations = tuple(sorted({one.file.file_path for one in self._added}))
        return NewFiles(locations=locations, entries=gone, deletes=self._added)

    def _written(self, attempt: Attempt) -> tuple[AddedDeletes, ...]:
        storage = attempt.reader.storage
        vectors = []
        for merge in self._merges:
            positions = [read_deletion_vector(storage, one.planned.data_file) for one in merge.entries]
            union = BitMap64.union(*positions)
            if len(union) != merge.cardinality:
                raise ConflictError(f"the vectors of {merge.data_file!r} have {counted(len(union), 'positions')} now")
            file = merge.entries[0].planned.data_file
            target = VectorTarget(location=merge.data_file, spec_id=file.spec_id, partition=file.partition)
            vectors.append((target, union))
        metadata = self._table.metadata
        # Another name each time: one that was written may be there although no answer came.
        name = f"{self._run_id}-{self._table.runtime.new_uuid()}-deletes.puffin"
        location = data_layout(metadata.location, metadata.properties).location(name)
        files = write_deletion_vectors(storage, location, vectors)
        attempt.delete_file_written(location)
        numbers = [max(sequence_number(one.planned) for one in merge.entries) for merge in self._merges]
        return tuple(AddedDeletes(file, number) for file, number in zip(files, numbers, strict=True))
