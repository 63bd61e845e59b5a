"""Which delete files reach which data files, where both are few: the rule of `spec.applicability` over Arrow tables.

Spark takes longer to begin than this takes to end. Here delete files come one after another, each with the data files that
it may reach: those of one path, of one partition, or all. `planning.deletes` says the same as joins.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError
from icekeep.planning.columns import REACHING_DELETES
from icekeep.spec.applicability import (
    PartitionKey,
    greatest_reached,
    is_deletion_vector,
    is_global,
    named_range,
    only_data_file,
    partition_key,
    reaches,
)
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, Status
from icekeep.spec.metadata_columns import DELETE_FILE_PATH
from icekeep.spec.partitioning import PartitionSpec

MOST_PAIRS = 5_000_000
"""The driver holds so many pairs of a data file and a delete file that reaches it, some 100 MB."""

_FIELDS = tuple(field.name for field in REACHING_DELETES.value_type)
_OF_DATA = ("file_path", "spec_id", "partition", "sequence_number")
_OF_DELETES = ("content", "file_path", "file_format", "spec_id", "partition", "sequence_number", "referenced_data_file")

_Numbers = NDArray[np.int64]
_Bounds = tuple[bytes | None, bytes | None]
_NONE: _Numbers = np.empty(0, np.int64)


class Reaching(msgspec.Struct, frozen=True, kw_only=True):
    """What reaches each row of a table of data files.

    Attributes:
        deletes: delete files in the order of a plan's column `deletes`, and its fields.
        offsets: those of the row n are `positions[offsets[n] : offsets[n + 1]]`.
        positions: in `deletes`.
    """

    deletes: pa.Table
    offsets: _Numbers
    positions: _Numbers

    @property
    def rows(self) -> _Numbers:
        """For each of `positions` the row that is reached."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def of_row(self, row: int) -> list[int]:
        """The positions of what reaches a row."""
        found: list[int] = self.positions[self.offsets[row] : self.offsets[row + 1]].tolist()
        return found


def reaching(
    data: pa.Table, deletes: pa.Table, specs: Mapping[int, PartitionSpec], most_pairs: int = MOST_PAIRS
) -> Reaching | None:
    """Match delete files to data files; null where too many reach too many.

    Args:
        data: live data files; at least `file_path`, `spec_id`, `partition` and `sequence_number` of `columns.ENTRIES`.
        deletes: live delete files; the fields of `columns.REACHING_DELETES`, and `lower_bounds` and `upper_bounds`.
        specs: the partition specs of the table.

    Raises:
        InvalidTableError: two deletion vectors reach one data file, a delete file for one data file lies in another partition,
            a vector names no data file, or a partition spec is missing.

    Spec: "Scan Planning", "Delete Formats".
    """
    if not deletes.num_rows:
        return Reaching(
            deletes=deletes.select([*_FIELDS]), offsets=np.zeros(data.num_rows + 1, np.int64), positions=_NONE
        )
    ordered = _in_order(deletes)
    entries = _entries(ordered)
    rows_of = _RowsOf(data, entries, specs)
    rows, positions = [_NONE], [_NONE]
    pairs_count = 0
    for position, (entry, bounds) in enumerate(zip(entries, _path_bounds(ordered), strict=True)):
        reached = rows_of.reached(entry, bounds)
        pairs_count += len(reached)
        if pairs_count > most_pairs:
            return None
        rows.append(reached)
        positions.append(np.full(len(reached), position))
    return _in_force(data, ordered.select([*_FIELDS]), entries, np.concatenate(rows), np.concatenate(positions))


class _RowsOf:
    """Finds the data files that a delete file reaches, vectors not being asked whether they take its place."""

    def __init__(self, data: pa.Table, deletes: Sequence[ManifestEntry], specs: Mapping[int, PartitionSpec]) -> None:
        self._specs = specs
        # By path, as UTF-8 is ordered: what path bounds leave of a partition are neighbours.
        self._order: _Numbers = (
            pc.sort_indices(data, sort_keys=[("file_path", "ascending")]).to_numpy().astype(np.int64)
        )
        in_order = data.select([*_OF_DATA]).take(self._order)
        self._numbers: _Numbers = in_order["sequence_number"].to_numpy()
        self._files: list[tuple[Any, ...]] = [*zip(*(in_order[name].to_pylist() for name in _OF_DATA), strict=True)]
        self._at_path = _places(
            (path for path, *_ in self._files), {only_data_file(delete.data_file) for delete in deletes}
        )
        self._in_partition = _places(
            ((spec_id, (partition,)) for _, spec_id, partition, _ in self._files),
            {partition_key(delete.data_file) for delete in deletes if not is_global(delete.data_file, specs)},
        )
        self._paths: dict[PartitionKey, list[bytes]] = {}

    def reached(self, delete: ManifestEntry, bounds: _Bounds) -> _Numbers:
        """Rows of the data, in no order."""
        only = only_data_file(delete.data_file)
        if is_global(delete.data_file, self._specs):
            places = np.arange(len(self._order))
        elif only is not None:
            named = self._at_path.get(only, _NONE).tolist()
            places = np.array([p for p in named if reaches(delete, self._data_file(p), self._specs)], np.int64)
        else:
            places = self._of_partition(partition_key(delete.data_file), bounds)
        return self._order[places[self._numbers[places] <= greatest_reached(delete)]]

    def _of_partition(self, partition: PartitionKey, bounds: _Bounds) -> _Numbers:
        places = self._in_partition.get(partition, _NONE)
        if bounds == (None, None) or not len(places):
            return places
        if partition not in self._paths:
            self._paths[partition] = [self._files[place][0].encode() for place in places.tolist()]
        return places[named_range(self._paths[partition], *bounds)]

    def _data_file(self, place: int) -> ManifestEntry:
        path, spec_id, partition, number = self._files[place]
        return _entry(FileContent.DATA, path, "", spec_id, partition, number, None)


def _places(keys: Iterable[Hashable], asked: Collection[Hashable]) -> dict[Any, _Numbers]:
    found = defaultdict(list)
    for place, key in enumerate(keys):
        if key in asked:
            found[key].append(place)
    return {key: np.array(places, np.int64) for key, places in found.items()}


def _in_order(deletes: pa.Table) -> pa.Table:
    """By sequence number, path and offset; what has no offset comes first."""
    keys = deletes.select(["sequence_number", "file_path"])
    keys = keys.append_column("offset", pc.fill_null(deletes["content_offset"], -1))
    return deletes.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names]))


def _entries(deletes: pa.Table) -> list[ManifestEntry]:
    return [*map(_entry, *(deletes[name].to_pylist() for name in _OF_DELETES))]


def _entry(
    content: int, path: str, file_format: str, spec_id: int, partition: bytes, number: int, only: str | None
) -> ManifestEntry:
    """As much of an entry as the rule asks for; bytes stand for the partition, equal where partitions are."""
    file = DataFile(
        content=FileContent(content),
        file_path=path,
        file_format=file_format,
        spec_id=spec_id,
        partition=(partition,),
        record_count=0,
        file_size_in_bytes=0,
        referenced_data_file=only,
    )
    return ManifestEntry(status=Status.EXISTING, sequence_number=number, data_file=file)


def _path_bounds(deletes: pa.Table) -> Iterator[_Bounds]:
    """What delete files say of the paths that they name; nothing where they do not hold positions."""
    path_id = pa.scalar(DELETE_FILE_PATH.field_id, pa.int32())
    lower, upper = (
        pc.map_lookup(deletes[name], path_id, "first").to_pylist() for name in ("lower_bounds", "upper_bounds")
    )
    for content, *bounds in zip(deletes["content"].to_pylist(), lower, upper, strict=True):
        yield (bounds[0], bounds[1]) if content == FileContent.POSITION_DELETES else (None, None)


def _in_force(
    data: pa.Table, deletes: pa.Table, entries: Sequence[ManifestEntry], rows: _Numbers, positions: _Numbers
) -> Reaching:
    """What remains of pairs once a deletion vector took the place of position deletes."""
    is_vector = np.array([is_deletion_vector(entry.data_file) for entry in entries], np.bool_)
    is_equality = deletes["content"].to_numpy() == FileContent.EQUALITY_DELETES
    vectors_count = np.bincount(rows[is_vector[positions]], minlength=data.num_rows)
    if (vectors_count > 1).any():
        row = int(np.argmax(vectors_count > 1))
        path = data["file_path"][row].as_py()
        raise InvalidTableError(f"data file {path!r} has {vectors_count[row]} deletion vectors; it may have one")
    kept = is_vector[positions] | is_equality[positions] | (vectors_count[rows] == 0)
    rows, positions = rows[kept], positions[kept]
    by_row = np.argsort(rows, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=data.num_rows))])
    return Reaching(deletes=deletes, offsets=offsets, positions=positions[by_row])
