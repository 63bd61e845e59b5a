"""What the file formats have in common: the protocol of readers, errors, and the metrics of a file.

A reader yields the rows of one open file in the file's own columns, part by part (row group, stripe, block); `reader` projects
them to a table's columns. A writer makes one file; `writer` decides when a file is full.

Metrics are counted on Arrow data, a table at a time; Parquet's footers have all but the NaNs (`parquet.metrics`), so its writer
counts only those. Fields inside lists and maps have no metrics: no filter can name them, writers do not agree on what to count
there, and Iceberg Java keeps none either.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, BinaryIO, Protocol
from uuid import UUID as UUIDValue

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import IcekeepError, InvalidTableError, UnavailableError, UnsupportedError
from icekeep.formats.arrow.projection import plain_values
from icekeep.formats.machine import PartSize
from icekeep.spec.filters.evaluators import Metrics
from icekeep.spec.properties import NONE, MetricsMode
from icekeep.spec.schema import Schema
from icekeep.spec.types import FLOATING_TYPES, UNKNOWN, UUID, NestedField, PrimitiveType, StructType, walk
from icekeep.spec.values import lower_bound, upper_bound
from icekeep.storage.base import Storage


class FileReader(Protocol):
    """An open data file; the defaults are those of a format without parts and statistics.

    Attributes:
        schema: the file's columns as Arrow fields, with field ids at every level where the file carries them.
    """

    schema: pa.Schema

    def row_count(self) -> int | None:
        """The number of rows; None where the file does not store it."""
        return None

    def part_offsets(self) -> Sequence[int]:
        """The byte offset of each part (row group, stripe)."""
        return [0]

    def parts_that_may_hold(self, column_id: int, first: str | None, end: str | None) -> Sequence[int] | None:
        """The positions of the parts that may hold a string from `first` to before `end` in a column; None if all may.

        A bound of None is open. The column is a top-level one.
        """
        return None

    def part_metrics(self, columns: pa.Schema, types: Mapping[int, PrimitiveType]) -> Sequence[Metrics] | None:
        """The metrics of columns in each part; None where the file has none.

        `columns` are the file's, with the field ids that they have for the table; `types` those of the requested columns.
        """
        return None

    def largest_part(self, columns: Collection[str] | None = None) -> PartSize | None:
        """The part that takes the most memory when these top-level columns, or all, are read; None where it is unknown."""
        return None

    def tables(
        self,
        columns: Sequence[str],
        parts: Sequence[int] | None,
        kept_dictionaries: Sequence[str],
        batch_rows: int | None,
    ) -> Iterator[tuple[int, pa.Table]]:
        """The file's rows, one part at a time, each with the position of its first row in the file.

        `columns` are the names of the top-level ones to read; the tables may have others too. `kept_dictionaries` are string
        columns that may stay dictionary-encoded, and `batch_rows` is the most rows of a table, where the format can do that.
        Raises `InvalidTableError` if a part does not exist, or has the wrong number of rows.
        """
        ...


def value_width(type_: pa.DataType) -> int:
    """The least bytes of a value in memory: for a string, its offset."""
    try:
        return int(type_.bit_width) // 8
    except ValueError:
        return 4


PartChoice = Callable[[FileReader], Sequence[int] | None]
"""Picks the parts of an open file that are worth reading, None for all of them."""

BatchChoice = Callable[[PartSize | None], int | None]
"""Decides how many rows to read at a time of a file with this largest part, None for whole parts."""


def parts_beginning_in(start_byte: int, length_bytes: int) -> PartChoice:
    """Choose the parts that begin in a range of bytes: of ranges that tile a file, each part belongs to exactly one."""
    end_byte = start_byte + length_bytes
    return lambda reader: [n for n, offset in enumerate(reader.part_offsets()) if start_byte <= offset < end_byte]


@contextmanager
def translated(location: str, noun: str = "data file") -> Iterator[None]:
    """Turn what pyarrow raises on a bad file into `InvalidTableError`, and name the file in every error; `noun` is its kind."""
    try:
        yield
    except (InvalidTableError, UnsupportedError) as error:
        facts = {**error.facts, "location": location}
        raise type(error)(f"{noun} {location!r}: {error.message}", **facts) from error
    except (MemoryError, OSError, UnicodeDecodeError, pa.ArrowException) as error:
        line = " ".join(str(error).split())
        if isinstance(error, MemoryError):
            # It is not about the file; pyarrow's own is an `ArrowException` as well.
            raise MemoryError(f"while {location!r} was read: {line}") from error
        # pyarrow's own have no `errno`: they are about wrong bytes, not about access to them.
        if isinstance(error, OSError) and error.errno is not None:
            raise UnavailableError(f"cannot read {location!r}: {error}", location=location) from error
        if isinstance(error, pa.ArrowNotImplementedError):
            raise UnsupportedError(f"{noun} {location!r} cannot be read: {line}", location=location) from error
        raise InvalidTableError(f"{noun} {location!r} is damaged: {line}", location=location) from error


class FileMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of one file under the spec's names; maps go from field id to a count, a size or a bound's bytes."""

    record_count: int
    column_sizes: Mapping[int, int] | None = None
    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int] = {}
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]
    split_offsets: tuple[int, ...] | None = None


class NewFile:
    """A file that is being written by a format's own writer."""

    def __init__(
        self, storage: Storage, location: str, begin: Callable[[BinaryIO], Any] | None = None, *, head: bytes = b""
    ) -> None:
        """`begin` makes the writer on the stream, if there is one; else `head` begins the file."""
        self._storage, self._location = storage, location
        with ExitStack() as stack:
            self._stream = stack.enter_context(storage.write(location))
            self._writer: Any = None if begin is None else begin(self._stream)
            if head:
                self._stream.write(head)
            self._stack = stack.pop_all()
        self.is_made = False

    @property
    def written_bytes(self) -> float:
        return self._stream.tell()

    def finish(self) -> tuple[int, FileMetrics]:
        """Write the footer; returns the size of the file in bytes and its metrics."""
        raise NotImplementedError

    def abandon(self, error: BaseException) -> None:
        """Give the file up because of `error`; further errors are ignored."""
        # After a failed row group pyarrow has no footer for its collector and raises RuntimeError.
        with suppress(IcekeepError, pa.ArrowException, OSError, ValueError, RuntimeError):
            if self._writer is not None:
                self._writer.close()
        with suppress(IcekeepError, OSError, ValueError):
            self._stack.__exit__(type(error), error, error.__traceback__)

    def end(self) -> int:
        """Make the file durable; returns its size in bytes."""
        if self._writer is not None:
            self._writer.close()
        size_bytes = self._stream.tell()
        self._stack.close()
        self.is_made = True
        return size_bytes


class MetricsCollector:
    """Counts and bounds of a file's columns (spec, "Data File Fields"), from each table that goes into the file."""

    def __init__(self, schema: Schema, modes: Mapping[int, MetricsMode]) -> None:
        """`modes` are by field id; columns without one have no metrics."""
        self._schema, self._modes, self._record_count = schema, modes, 0
        self._nulls: dict[int, int] = {}
        self._nans: dict[int, int] = {}
        self._ranges: dict[int, tuple[Any, Any]] = {}

    def add(self, table: pa.Table) -> None:
        self._record_count += table.num_rows
        for field, column in _primitive_columns(table, self._schema):
            id_ = field.field_id
            mode = self._modes.get(id_, NONE)
            if not mode.counts:
                continue
            self._nulls[id_] = self._nulls.get(id_, 0) + column.null_count
            if field.type in FLOATING_TYPES:
                nans = pc.is_nan(column)
                count = pc.sum(nans).as_py() or 0
                self._nans[id_] = self._nans.get(id_, 0) + count
                if count:
                    column = column.filter(pc.invert(nans))
            ends = pc.min_max(plain_values(column)) if mode.bounds else None
            if ends is None or not ends["min"].is_valid:
                continue
            least, greatest = ends["min"].as_py(), ends["max"].as_py()
            if field.type == UUID:
                least, greatest = UUIDValue(bytes=least), UUIDValue(bytes=greatest)
            if id_ in self._ranges:
                least, greatest = min(self._ranges[id_][0], least), max(self._ranges[id_][1], greatest)
            self._ranges[id_] = (least, greatest)

    def metrics(self, split_offsets: tuple[int, ...] | None = None) -> FileMetrics:
        """The metrics of all rows so far, without column sizes."""
        lower: dict[int, bytes] = {}
        upper: dict[int, bytes] = {}
        for id_, (least, greatest) in self._ranges.items():
            type_, length = self._schema.fields_by_id[id_].type, self._modes[id_].length
            assert isinstance(type_, PrimitiveType)
            lower[id_] = lower_bound(type_, least, length)
            if (bound := upper_bound(type_, greatest, length)) is not None:
                upper[id_] = bound
        return FileMetrics(
            record_count=self._record_count,
            value_counts=dict.fromkeys(self._nulls, self._record_count),
            null_value_counts=dict(self._nulls),
            nan_value_counts=dict(self._nans),
            lower_bounds=lower,
            upper_bounds=upper,
            split_offsets=split_offsets,
        )


def count_nans(table: pa.Table, schema: Schema) -> dict[int, int]:
    """The NaN count of each `float` and `double` outside lists and maps, by field id; `table` has the columns of `schema`."""
    columns = _primitive_columns(table, schema, FLOATING_TYPES)
    return {field.field_id: pc.sum(pc.is_nan(column)).as_py() or 0 for field, column in columns}


def _primitive_columns(
    table: pa.Table, schema: Schema, types: Collection[PrimitiveType] | None = None
) -> Iterator[tuple[NestedField, Any]]:
    """The primitive fields outside lists and maps, or those of some types; null where a struct above is null."""

    def visit(field: NestedField, column: Any) -> Iterator[tuple[NestedField, Any]]:
        if isinstance(field.type, StructType):
            if types is None or any(below.type in types for below in walk(field.type)):
                # All children at once: each `field` call would take time for all. Below a null struct they are null.
                for child, below in zip(field.type.fields, column.flatten(), strict=True):
                    yield from visit(child, below)
        elif isinstance(field.type, PrimitiveType) and field.type != UNKNOWN and (types is None or field.type in types):
            yield field, column

    for position, field in enumerate(schema.fields):
        yield from visit(field, table.column(position))
