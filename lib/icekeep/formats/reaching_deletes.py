"""What the delete files of a data file say, read within the budget of a cache that the files of a task share."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.delete_cache import DeleteCache
from icekeep.formats.deletes import (
    Positions,
    read_all_position_deletes,
    read_equality_keys,
    read_position_deletes,
    validate_plain,
)
from icekeep.formats.deletion_vectors import read_deletion_vector
from icekeep.formats.equality import key_columns
from icekeep.spec.applicability import is_deletion_vector
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.schema import Schema
from icekeep.storage.base import Storage

_POSITION_BYTES = 8


def deletes_by_kind(deletes: Sequence[DataFile]) -> tuple[list[DataFile], dict[tuple[int, ...], list[DataFile]]]:
    """Deletes of positions, and those of equality by the ids that they compare, in whatever order these are written.

    Raises:
        InvalidTableError: equality deletes compare nothing.
        IcekeepBug: a file is none of deletes.
    """
    by_position: list[DataFile] = []
    by_equality: dict[tuple[int, ...], list[DataFile]] = {}
    for file in deletes:
        match file.content:
            case FileContent.POSITION_DELETES:
                by_position.append(file)
            case FileContent.EQUALITY_DELETES:
                if not file.equality_ids:
                    raise InvalidTableError(
                        f"equality delete file {file.file_path!r} has no equality_ids", location=file.file_path
                    )
                by_equality.setdefault(_in_order(file.equality_ids), []).append(file)
            case _:
                raise IcekeepBug(f"{file.file_path!r} is a data file, not a delete file")
    return by_position, by_equality


@lru_cache(maxsize=128)
def _in_order(ids: tuple[int, ...]) -> tuple[int, ...]:
    """Each id once, ascending; a data file asks it of each of its delete files, which have few ids among them."""
    return tuple(sorted(set(ids)))


def deleted_positions(storage: Storage, files: list[DataFile], path: str, cache: DeleteCache) -> Positions:
    """The positions in the data file at `path` that any of some delete files deletes.

    Raises:
        InvalidTableError: there are two deletion vectors, or a delete file is not what its entry says.
        UnsupportedError: a delete file is encrypted, or needs a feature of its format that we do not handle.
        IcekeepBug: a deletion vector is another data file's.
    """
    vectors = [file for file in files if is_deletion_vector(file)]
    if len(vectors) > 1:
        raise InvalidTableError(
            f"data file {path!r} has {len(vectors)} deletion vectors; it may have one", location=path
        )
    found = [_vector_positions(storage, file, path) for file in vectors]
    found += [_file_positions(storage, file, path, cache) for file in files if not is_deletion_vector(file)]
    return np.concatenate(found)


def equality_keys(
    storage: Storage, files: list[DataFile], schema: Schema, ids: tuple[int, ...], cache: DeleteCache
) -> Iterator[pa.Table]:
    """The keys of equality delete files, batch by batch; what is small enough is kept for the next who asks.

    Args:
        schema: the columns that `ids` name, as `leaf_schema` makes it.

    Raises:
        InvalidTableError: a delete file is damaged, or does not fit the schema.
        UnsupportedError: a delete file is encrypted, or needs a feature of its format that we do not handle.
    """
    for file in files:
        # The types as well: promoted ones have other values to compare.
        key = (file.file_path, ids, str(schema.as_struct()))
        known = cache.get(key)
        if known is not None:
            yield from known
            continue
        kept: list[pa.Table] = []
        size_bytes = 0
        for table in read_equality_keys(storage, file, schema):
            batch = key_columns(table, schema, ids)
            size_bytes += batch.nbytes
            if cache.make_room(size_bytes):
                kept.append(batch)
            else:
                kept.clear()
            yield batch
        cache.keep(key, kept, size_bytes)


def _vector_positions(storage: Storage, file: DataFile, path: str) -> Positions:
    validate_plain(file)
    if file.referenced_data_file != path:
        raise IcekeepBug(f"a deletion vector of {file.referenced_data_file!r} was planned for {path!r}")
    positions = read_deletion_vector(storage, file)
    return np.array(positions.to_array(), dtype=np.int64)


def _file_positions(storage: Storage, file: DataFile, path: str, cache: DeleteCache) -> Positions:
    """What one position delete file says of a data file; read for all data files at once if that can be kept."""
    key = (file.file_path,)
    known = cache.get(key)
    limit_bytes = _POSITION_BYTES * file.record_count
    if known is None and file.referenced_data_file is None and cache.make_room(limit_bytes):
        known = read_all_position_deletes(storage, file, limit_bytes)
        if known is not None:
            size_bytes = sum(len(text) + positions.nbytes for text, positions in known.items())
            cache.keep(key, known, size_bytes)
    if known is None:
        return read_position_deletes(storage, file, path)
    found: Positions = known.get(path, np.empty(0, np.int64))
    return found
