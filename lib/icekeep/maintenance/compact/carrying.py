"""Deletes of positions that came while their data files were rewritten become deletes of the same rows in the new files.

old positions in the base, less the rows that the tasks dropped -> new positions, by what the tasks reported -> delete files
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.commit.changes.rewrites import Carried
from icekeep.commit.manifests import ChangedDeletes
from icekeep.errors import InvalidTableError
from icekeep.formats.deletes.read import (
    read_all_position_deletes,
    read_position_deletes,
    validate_plain,
    write_position_deletes,
)
from icekeep.formats.deletes.rewrite import delete_format, delete_suffix
from icekeep.formats.options import FileNames, attempt_name
from icekeep.formats.puffin import FILE_FORMAT as PUFFIN
from icekeep.formats.puffin import VectorTarget, read_deletion_vector, write_deletion_vectors
from icekeep.formats.row_moves import dropped_positions, new_positions
from icekeep.maintenance.compact.execute import RewrittenGroup
from icekeep.maintenance.compact.plan import group_files
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import partition_path
from icekeep.spec.reach import is_deletion_vector
from icekeep.spec.types import MIB
from icekeep.spelling import counted
from icekeep.storage.base import REQUESTS_AT_ONCE

_HELD_BYTES = 64 * MIB
"""Of one delete file: up to here it is read once for all data files that it names."""


_DeleteKey = tuple[str, int | None]


_ByPath = Mapping[str, BitMap64]


class CarriedDeletes:
    """A `DeleteCarrier` for the rows of some rewritten groups.

    What a delete file holds is read once, and a delete file is written once, for all attempts of a commit.
    """

    def __init__(self, groups: Sequence[RewrittenGroup], table: Table, operation_id: str) -> None:
        """Args:
        operation_id: in the names of new delete files; no other commit has it.
        """
        self._groups, self._table = groups, table
        metadata = table.metadata
        self._names = FileNames(attempt_name(operation_id), metadata.location, metadata.properties)
        self._group_of: dict[str, int] = {}
        self._read: dict[tuple[_DeleteKey, str], BitMap64] = {}
        self._written: dict[tuple[str, bytes], DataFile] = {}
        self._vectors: dict[bytes, tuple[DataFile, ...]] = {}

    def carried(
        self, changed: Mapping[str, ChangedDeletes], base: TableMetadata, noted: Callable[[str], None]
    ) -> Carried:
        deleted = self._deleted_positions(changed)
        refusals: dict[str, str] = {}
        moved: dict[str, BitMap64] = {}
        for number, paths in self._by_group(changed).items():
            group = self._groups[number]
            wanted, refused = self._wanted(group, {path: changed[path] for path in paths}, deleted)
            refusals.update(refused)
            if wanted and not refusals:
                moved.update(new_positions(group.outcomes, self._table.storage, wanted))
        if refusals:
            return Carried(refusals=refusals)
        return Carried(self._write(moved, base, noted))

    def _wanted(
        self, group: RewrittenGroup, changed: Mapping[str, ChangedDeletes], deleted: _ByPath
    ) -> tuple[dict[str, BitMap64], dict[str, str]]:
        """The positions to carry over of each file of a group, and the files whose rows were dropped wrongly, with why."""
        storage = self._table.storage
        dropped = dropped_positions(group.outcomes, storage, changed.keys())
        some_lack = any(one.lacks_positions for one in changed.values())
        applied = dropped_positions(group.outcomes, storage, changed.keys(), by_position=True) if some_lack else {}
        wanted: dict[str, BitMap64] = {}
        refusals: dict[str, str] = {}
        for path, one in changed.items():
            needed = BitMap64()
            if one.lacks_keys:
                needed = dropped[path]
            elif one.lacks_positions:
                needed = applied[path]
            if lost := needed - deleted[path]:
                refusals[path] = (
                    f"{counted(len(lost), 'rows')} of data file {path!r}, which its rewrite left out, "
                    f"{'is' if len(lost) == 1 else 'are'} not deleted any more"
                )
            elif extra := deleted[path] - dropped[path]:
                wanted[path] = extra
        return wanted, refusals

    def _by_group(self, changed: Iterable[str]) -> dict[int, list[str]]:
        """The changed files of each group, by its place."""
        unknown = set(changed) - self._group_of.keys()
        for number, group in enumerate(self._groups):
            if not unknown:
                break
            found = {file.file_path for file in group_files(group.group, self._table.storage).files} & unknown
            self._group_of.update(dict.fromkeys(found, number))
            unknown -= found
        by_group: dict[int, list[str]] = {}
        for path in changed:
            by_group.setdefault(self._group_of[path], []).append(path)
        return by_group

    def _deleted_positions(self, changed: Mapping[str, ChangedDeletes]) -> dict[str, BitMap64]:
        """The positions that delete files of a base delete in each file; what an earlier attempt has read is known."""
        asked: dict[_DeleteKey, tuple[DataFile, list[str]]] = {}
        for path, one in changed.items():
            for delete in one.deletes:
                if (_key(delete.data_file), path) not in self._read:
                    asked.setdefault(_key(delete.data_file), (delete.data_file, []))[1].append(path)
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            for (file, paths), found in zip(asked.values(), pool.map(self._positions_in, asked.values()), strict=True):
                self._read.update({(_key(file), path): found.get(path, BitMap64()) for path in paths})
        return {
            path: BitMap64.union(BitMap64(), *(self._read[_key(d.data_file), path] for d in one.deletes))
            for path, one in changed.items()
        }

    def _positions_in(self, asked: tuple[DataFile, list[str]]) -> dict[str, BitMap64]:
        """What one delete file says of some data files."""
        (file, paths), storage = asked, self._table.storage
        if is_deletion_vector(file):
            validate_plain(file)
            if [file.referenced_data_file] != paths:
                raise InvalidTableError(
                    f"the deletion vector in {file.file_path!r} is for another file than {paths[0]!r}"
                )
            return {paths[0]: read_deletion_vector(storage, file)}
        held = read_all_position_deletes(storage, file, _HELD_BYTES) if len(paths) > 1 else None
        if held is None:
            return {path: BitMap64(read_position_deletes(storage, file, path)) for path in paths}
        return {path: BitMap64(held[path]) for path in paths if path in held}

    def _write(self, moved: _ByPath, base: TableMetadata, noted: Callable[[str], None]) -> tuple[DataFile, ...]:
        born = {file.file_path: file for group in self._groups for file in group.added}
        if not moved:
            return ()
        in_order = sorted(moved)
        if base.format_version > 2:
            return self._write_vectors([(born[path], moved[path]) for path in in_order], noted)
        return tuple(self._write_positions(born[path], moved[path], noted) for path in in_order)

    def _write_positions(self, file: DataFile, positions: BitMap64, noted: Callable[[str], None]) -> DataFile:
        key = file.file_path, _digest(positions)
        if key not in self._written:
            metadata = self._table.metadata
            properties = metadata.properties
            file_format = delete_format(properties)
            directory = partition_path(metadata.specs_by_id[file.spec_id], metadata.schema, file.partition)
            location = self._names.location(delete_suffix(file_format), directory)
            self._written[key] = write_position_deletes(
                self._table.storage,
                location,
                file_format,
                _rows(file.file_path, positions),
                spec_id=file.spec_id,
                partition=file.partition,
                properties=properties,
            )
            noted(location)
        return self._written[key]

    def _write_vectors(
        self, moved: Sequence[tuple[DataFile, BitMap64]], noted: Callable[[str], None]
    ) -> tuple[DataFile, ...]:
        key = b"".join(file.file_path.encode() + _digest(positions) for file, positions in moved)
        if key not in self._vectors:
            location = self._names.location(delete_suffix(PUFFIN))
            targets = (
                (VectorTarget(location=file.file_path, spec_id=file.spec_id, partition=file.partition), positions)
                for file, positions in moved
            )
            self._vectors[key] = write_deletion_vectors(self._table.storage, location, targets)
            noted(location)
        return self._vectors[key]


def _key(file: DataFile) -> _DeleteKey:
    return file.file_path, file.content_offset


def _digest(positions: BitMap64) -> bytes:
    return blake2b(positions.serialize(), digest_size=16).digest()


def _rows(path: str, positions: BitMap64) -> pa.Table:
    pos = pa.array(positions.to_array(), pa.int64())
    paths: Any = pa.DictionaryArray.from_arrays(pa.nulls(len(pos), pa.int32()).fill_null(0), pa.array([path]))
    return pa.table({"file_path": paths.cast(pa.string()), "pos": pos})
