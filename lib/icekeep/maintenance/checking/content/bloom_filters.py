"""Whether Parquet's Bloom filters say of each value of their column chunk that it may be there (418)."""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import UnsupportedError, first_line
from icekeep.formats.arrow.arrays import elements
from icekeep.formats.arrow.schema import child_fields, is_list
from icekeep.formats.base import FileReader
from icekeep.formats.parquet.bloom_filter import BloomFilter, hashes_of, read_bloom_filter
from icekeep.formats.parquet.reader import BloomFilterPlace, ParquetReader
from icekeep.formats.parquet.thrift import Damaged
from icekeep.storage.base import Storage


class BloomCheck:
    """Asks the filters of a file for the values that are read of it; a file of another format has none.

    Attributes:
        problems: what is wrong, a sentence for each column chunk.
        wrong: which chunks these are.
        gaps: why filters could not be asked.
    """

    def __init__(
        self, reader: FileReader, storage: Storage, location: str, stored: pa.Schema, names: Collection[str]
    ) -> None:
        """`stored` are all columns of the file, `names` those that are read."""
        self.problems: list[str] = []
        self.wrong: list[dict[str, int | str]] = []
        self.gaps: list[str] = []
        self._reader = reader if isinstance(reader, ParquetReader) else None
        self._storage, self._location = storage, location
        self._part = -1
        self._filters: dict[int, tuple[BloomFilterPlace, BloomFilter]] = {}
        self._columns = [*_leaf_positions(stored, names)]

    def add(self, number: int, data: pa.Table) -> None:
        """Take in rows of a part, in the file's own columns."""
        if self._reader is None:
            return
        if number != self._part:
            self._part, self._filters = number, dict(self._opened(self._reader, number))
        for name, first, count in self._columns:
            if not any(position in self._filters for position in range(first, first + count)):
                continue
            for chunk in data.column(name).chunks:
                for position, values in enumerate(_leaf_arrays(chunk), start=first):
                    if position in self._filters:
                        self._ask(position, name, values)

    def _opened(self, reader: ParquetReader, number: int) -> Iterator[tuple[int, tuple[BloomFilterPlace, BloomFilter]]]:
        wanted = {n for _, first, count in self._columns for n in range(first, first + count)}
        places = reader.bloom_filters(number, wanted)
        if not places:
            return
        names = {n: name for name, first, count in self._columns for n in range(first, first + count)}
        with self._storage.open(self._location) as stream:
            for position, place in places.items():
                try:
                    yield position, (place, read_bloom_filter(stream, place.offset, place.length))
                except Damaged as error:
                    self._tell(position, names[position], f"cannot be read: {error}")
                except UnsupportedError as error:
                    self.gaps.append(first_line(error))

    def _ask(self, position: int, name: str, values: pa.Array) -> None:
        place, filter_ = self._filters[position]
        try:
            hashes = hashes_of(values, place.physical_type, place.width)
        except UnsupportedError as error:
            self.gaps.append(first_line(error))
            del self._filters[position]
            return
        lost = int(np.count_nonzero(~filter_.may_hold(hashes)))
        if lost:
            del self._filters[position]
            self._tell(position, name, f"says of {lost} values that they are not there")

    def _tell(self, position: int, name: str, problem: str) -> None:
        self.problems.append(f"in row group {self._part} the Bloom filter of column {name!r} {problem}")
        self.wrong.append({"row_group": self._part, "column": name, "leaf": position})


def _leaf_positions(stored: pa.Schema, names: Collection[str]) -> Iterator[tuple[str, int, int]]:
    """The columns that are read, the position of the first leaf of each among all of the file, and how many leaves it has."""
    position = 0
    for field in stored:
        count = _leaves_count(field.type)
        if field.name in names:
            yield field.name, position, count
        position += count


def _leaves_count(type_: pa.DataType) -> int:
    children = child_fields(type_)
    return sum(_leaves_count(child.type) for _, child in children) if children else 1


def _leaf_arrays(array: Any) -> Iterator[pa.Array]:
    """The values of each leaf of a column, those that no row shows among them only where they are null."""
    type_ = array.type
    if pa.types.is_struct(type_) and type_.num_fields:
        for position in range(type_.num_fields):
            yield from _leaf_arrays(pc.struct_field(array, [position]))
    elif pa.types.is_map(type_):
        yield from _leaf_arrays(elements(array, array.keys))
        yield from _leaf_arrays(elements(array, array.items))
    elif pa.types.is_fixed_size_list(type_):
        yield from _leaf_arrays(array.flatten())
    elif is_list(type_):
        yield from _leaf_arrays(elements(array))
    else:
        yield array
