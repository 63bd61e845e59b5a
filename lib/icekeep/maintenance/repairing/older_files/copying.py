"""Copies of files of an older snapshot, written by the commit that has them in the place of lost files.

The old files themselves are not put back: the snapshot that took them out says so in its manifests, and engines that clean
up by such marks delete the files once it expires, wherever else they are live.
"""

from collections.abc import Sequence

from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.deletes import AddedDeletes
from icekeep.commit.changes.repair_entries import AddedCopy
from icekeep.commit.filtering import without_history
from icekeep.errors import ConflictError, MissingFileError, first_line
from icekeep.formats.deletes.apply import deleted_positions
from icekeep.formats.deletes.positions import delete_format
from icekeep.formats.deletes.read import DeleteCache, write_position_deletes
from icekeep.formats.puffin import VectorTarget, write_deletion_vectors
from icekeep.maintenance.repairing.new_files import NewFiles
from icekeep.maintenance.repairing.older_files.source_questions import InTheWay, problems
from icekeep.maintenance.repairing.plan import OldFile, Replacement
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_layout
from icekeep.spec.reach import sequence_number
from icekeep.spec.types import MIB
from icekeep.spelling import counted
from icekeep.storage.base import Storage

_PIECE_BYTES = 8 * MIB


class Copying:
    """Makes the copies of one branch, with the deletes of their rows."""

    def __init__(self, branch: str, replacements: Sequence[Replacement], run_id: str, table: Table) -> None:
        self._branch, self._replacements, self._table = branch, tuple(replacements), table
        self._layout = data_layout(table.metadata.location, table.metadata.properties)
        self._name = f"{run_id}-{branch}".replace("/", "-")
        self._made: NewFiles | None = None

    def made(self, base: TableMetadata, attempt: Attempt) -> NewFiles:
        """Raises `ConflictError` where the copies would change a row of this base, or an old file is not as it was."""
        if any(one.schema_id != base.current_schema_id for one in self._replacements):
            raise ConflictError("the columns of the table have changed")
        head = base.head(self._branch)
        rows = [] if head is None else attempt.reader.manifests(head)
        answers = attempt.gathered(rows, InTheWay(without_history(base), self._replacements))
        found = problems(answers, self._replacements, attempt.reader.storage)
        for number, problem in found.items():
            raise ConflictError(f"file {self._replacements[number].lost[0].data_file.file_path!r}: {problem}")
        if self._made is None:
            self._made = self._written(attempt)
        return self._made

    def _written(self, attempt: Attempt) -> NewFiles:
        copies: list[AddedCopy] = []
        deleted: list[tuple[DataFile, BitMap64, int]] = []
        cache = DeleteCache()
        try:
            for old in (old for one in self._replacements for old in one.old):
                positions = positions_of(old, attempt.reader.storage, cache)
                copy = self._copy(old.entry.data_file, attempt)
                copies.append(AddedCopy(copy, sequence_number(old.entry)))
                if positions:
                    deleted.append((copy, positions, max(map(sequence_number, old.deletes))))
        except MissingFileError as error:
            raise ConflictError(first_line(error)) from error
        deletes = self._deletes(deleted, attempt) if deleted else ()
        locations = {one.file.file_path for one in copies} | {one.file.file_path for one in deletes}
        return NewFiles(locations=tuple(sorted(locations)), deletes=deletes, copies=tuple(copies))

    def _location(self, suffix: str) -> str:
        return self._layout.location(f"{self._name}-{self._table.runtime.new_uuid()}{suffix}")

    def _copy(self, file: DataFile, attempt: Attempt) -> DataFile:
        location = self._location(f".{file.file_format.lower()}")
        copy_file(attempt.reader.storage, file, location)
        attempt.delete_file_written(location)
        return replace(file, file_path=location)

    def _deletes(self, deleted: Sequence[tuple[DataFile, BitMap64, int]], attempt: Attempt) -> tuple[AddedDeletes, ...]:
        storage, metadata = attempt.reader.storage, self._table.metadata
        if metadata.format_version > 2:
            targets = [
                (VectorTarget(location=copy.file_path, spec_id=copy.spec_id, partition=copy.partition), positions)
                for copy, positions, _ in deleted
            ]
            location = self._location("-deletes.puffin")
            vectors = write_deletion_vectors(storage, location, targets)
            attempt.delete_file_written(location)
            return tuple(AddedDeletes(file, number) for file, (_, _, number) in zip(vectors, deleted, strict=True))
        file_format = delete_format(metadata.properties)
        added: list[AddedDeletes] = []
        for copy, positions, number in deleted:
            written = write_position_deletes(
                storage,
                self._location(f"-deletes.{file_format.lower()}"),
                file_format,
                [(copy.file_path, position) for position in positions],
                spec_id=copy.spec_id,
                partition=copy.partition,
                properties=metadata.properties,
            )
            attempt.delete_file_written(written.file_path)
            added.append(AddedDeletes(written, number))
        return tuple(added)


def positions_of(old: OldFile, storage: Storage, cache: DeleteCache) -> BitMap64:
    """The rows of an old file that its deletes delete.

    Raises:
        ConflictError: there are not as many as were planned.
        InvalidTableError, UnsupportedError: a delete file cannot be read.
    """
    found = read_positions(old, storage, cache)
    if len(found) != old.deleted_count:
        raise ConflictError(
            f"{counted(len(found), 'rows')} of {old.entry.data_file.file_path!r} {'is' if len(found) == 1 else 'are'} deleted now"
        )
    return found


def read_positions(old: OldFile, storage: Storage, cache: DeleteCache) -> BitMap64:
    """The same, however many there are; positions behind the end of the file are none."""
    file = old.entry.data_file
    if not old.deletes:
        return BitMap64()
    deletes = [one.data_file for one in old.deletes]
    cache.begin_file()
    found = deleted_positions(storage, deletes, file.file_path, cache)
    return BitMap64(found[found < file.record_count].tolist())


def copy_file(storage: Storage, file: DataFile, location: str) -> None:
    """Write a file's bytes to another place; nothing is there where it fails.

    Raises:
        ConflictError: the file has not the size that its entry says.
        MissingFileError: there is no such file.
    """
    count = 0
    with storage.open(file.file_path) as old, storage.write(location) as new:
        while piece := old.read(_PIECE_BYTES):
            new.write(piece)
            count += len(piece)
        if count != file.file_size_in_bytes:
            raise ConflictError(f"file {file.file_path!r} has {count} bytes now, not {file.file_size_in_bytes}")
