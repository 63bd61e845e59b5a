"""What the delete files of a data file say, read within the budget of a cache that the files of a task share."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.deletes.cache import DeleteCache
from icekeep.formats.deletes.equality_match import key_columns
from icekeep.formats.deletes.files import (
    Positions,
    read_all_position_deletes,
    read_equality_keys,
    read_position_deletes,
    validate_plain,
)
from icekeep.formats.puffin.deletion_vectors import read_deletion_vector
from icekeep.spec.applicability import is_deletion_vector, path_pair_digest
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.name_mapping import NameMapping
from icekeep.spec.position_sets import Part, PositionSet, is_span, of_spans
from icekeep.spec.schema import Schema
from icekeep.storage.base import Storage

_POSITION_BYTES = 8
_MAX_KNOWN = 64


class EqualityRun(msgspec.Struct, frozen=True):
    """Equality deletes that are a run of a list: those from `start` up to `stop`, without it.

    `places` says where in the list a delete file stands, by path; runs of one list have the very same.
    """

    places: Mapping[str, int]
    start: int
    stop: int

    def ends_as(self, other: "EqualityRun") -> bool:
        """Whether both go to the same place of one list, so that the longer one has all of the other."""
        return self.places is other.places and self.stop == other.stop


class Kinds(msgspec.Struct, frozen=True):
    """The delete files of a data file by their kinds.

    Attributes:
        by_position: deletes of positions.
        by_equality: those of equality by the ids that they compare, in whatever order these are written.
        run: what all of these are, if they are one run.
    """

    by_position: Sequence[DataFile]
    by_equality: dict[tuple[int, ...], list[DataFile]]
    run: EqualityRun | None = None


class KindsOfParts:
    """Tells the kinds of the delete files of data files, whose deletes are parts of one list.

    Equality deletes of one run are told apart once; data files that have the same ones are given the same dictionary.
    """

    def __init__(self) -> None:
        self._whole: Sequence[DataFile] = ()
        self._places: dict[str, int] = {}
        self._known: dict[PositionSet, dict[tuple[int, ...], list[DataFile]]] = {}

    def by_kind(self, deletes: Sequence[DataFile]) -> Kinds:
        """The kinds of some delete files; raises as `deletes_by_kind`."""
        if not isinstance(deletes, Part):
            return deletes_by_kind(deletes)
        if deletes.whole is not self._whole:
            self._begin(deletes.whole)
        of_equality = deletes.positions & of_spans([(0, len(self._places))])
        rest = deletes_by_kind(Part(self._whole, deletes.positions - of_equality))
        if rest.by_equality:
            # They do not come first in the list.
            return deletes_by_kind(deletes)
        if of_equality not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[of_equality] = deletes_by_kind(Part(self._whole, of_equality)).by_equality
        run = None
        if is_span(of_equality):
            run = EqualityRun(self._places, of_equality.min(), of_equality.max() + 1)
        return Kinds(rest.by_position, self._known[of_equality], run)

    def _begin(self, whole: Sequence[DataFile]) -> None:
        self._whole, self._known = whole, {}
        first = takewhile(lambda one: one.content is FileContent.EQUALITY_DELETES, whole)
        self._places = {one.file_path: place for place, one in enumerate(first)}


def deletes_by_kind(deletes: Iterable[DataFile]) -> Kinds:
    """Tell the kinds of delete files.

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
    return Kinds(by_position, by_equality)


@lru_cache(maxsize=128)
def _in_order(ids: tuple[int, ...]) -> tuple[int, ...]:
    """Each id once, ascending; a data file asks it of each of its delete files, which have few ids among them."""
    return tuple(sorted(set(ids)))


def deleted_positions(storage: Storage, files: Sequence[DataFile], path: str, cache: DeleteCache) -> Positions:
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
    storage: Storage,
    files: list[DataFile],
    schema: Schema,
    ids: tuple[int, ...],
    cache: DeleteCache,
    run: EqualityRun | None = None,
    name_mapping: NameMapping | None = None,
) -> Iterator[pa.Table]:
    """The keys of equality delete files, batch by batch; what is small enough is kept for the next who asks.

    Args:
        schema: the columns that `ids` name, as `leaf_schema` makes it.
        run: what all the files are in; with it there is one column more, the place of a key's file.
        name_mapping: the table's.

    Raises:
        InvalidTableError: a delete file is damaged, or does not fit the schema.
        UnsupportedError: a delete file is encrypted, or needs a feature of its format that we do not handle.
    """
    # The types as well: promoted ones have other values to compare.
    types = str(schema.as_struct())
    for file in files:
        key = (file.file_path, ids, types, name_mapping)
        for batch in _keys_of_file(storage, file, schema, ids, key, cache, name_mapping):
            if run is None:
                yield batch
            else:
                place = np.full(batch.num_rows, run.places[file.file_path])
                yield batch.append_column("place", pa.array(place))


def _keys_of_file(
    storage: Storage,
    file: DataFile,
    schema: Schema,
    ids: tuple[int, ...],
    key: Hashable,
    cache: DeleteCache,
    name_mapping: NameMapping | None,
) -> Iterator[pa.Table]:
    known = cache.get(key)
    if known is not None:
        yield from known
        return
    kept: list[pa.Table] = []
    size_bytes = 0
    for table in read_equality_keys(storage, file, schema, name_mapping=name_mapping):
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
            if len(known) == 1:
                cache.proven.add(path_pair_digest(file.file_path, next(iter(known)).encode()))
            size_bytes = sum(len(text) + positions.nbytes for text, positions in known.items())
            cache.keep(key, known, size_bytes)
    if known is None:
        return read_position_deletes(storage, file, path)
    found: Positions = known.get(path, np.empty(0, np.int64))
    return found
