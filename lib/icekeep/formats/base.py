"""What the readers and writers of the file formats have in common, and how their errors are told.

A reader gives the rows of one open file in the file's own columns, part by part (row group, stripe, block); `read` turns
them into a table's columns. A writer makes one file; `rolling_writer` decides when a file is full.

What a manifest says about the values of a file, counted while its rows are written (spec, "Data File Fields").

Works on Arrow data, a table at a time, for every format; Parquet's footers know all but the NaNs (`parquet.footer_metrics`), so
its writer counts only those. Fields inside lists and maps get nothing: no filter can name them, and readers and writers do
not agree on what to count there. Iceberg Java keeps nothing of them either.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from uuid import UUID as UUIDValue

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import InvalidTableError, UnavailableError, UnsupportedError
from icekeep.spec.filters.evaluators import Metrics
from icekeep.spec.properties import NONE, MetricsMode
from icekeep.spec.schema import Schema
from icekeep.spec.types import DOUBLE, FLOAT, UNKNOWN, UUID, NestedField, PrimitiveType, StructType
from icekeep.spec.values import lower_bound, upper_bound

_OFFSET_BYTES = 4


class PartSize(msgspec.Struct, frozen=True, kw_only=True):
    """What a part takes of memory, as far as a file's footer tells.

    Attributes:
        number: of the part in its file.
        size_bytes: of the part's data in memory.
    """

    number: int
    row_count: int
    size_bytes: int


class FileReader(Protocol):
    """An open data file.

    Attributes:
        schema: the file's columns as Arrow fields, with field ids at every level where the file carries them.
    """

    schema: pa.Schema

    def row_count(self) -> int | None:
        """How many rows the file has; None where the format tells only by its last row."""

    def part_count(self) -> int:
        """How many parts the file has; a format without parts has one."""

    def part_offsets(self) -> Sequence[int]:
        """Where each part begins in the file, in bytes; a format without parts has one that begins at 0."""

    def parts_that_may_hold(self, column_id: int, first: str | None, end: str | None) -> Sequence[int] | None:
        """The parts whose statistics do not rule out that a top-level column of texts has one of a range of them.

        Args:
            column_id: the field id of the column.
            first, end: the range of texts, the end not in it; null: no bound.

        Returns:
            Positions of the parts; None if all may have one.
        """

    def part_metrics(self, columns: pa.Schema, types: Mapping[int, PrimitiveType]) -> Sequence[Metrics] | None:
        """What the file says of the values of some columns in each part; a part that it says nothing of may hold any.

        Args:
            columns: the file's columns, with the field ids that they have for the table.
            types: of the table's columns that are asked for, by field id.

        Returns:
            The metrics of each part; None where nothing is known of any.
        """

    def largest_part(self, columns: Collection[str] | None = None) -> PartSize | None:
        """The part that takes the most memory where some top-level columns are read, or all; None where nobody can tell."""

    def held_bytes(self, part: int, columns: Collection[str] | None = None) -> int:
        """The memory that is held beside a batch while some columns of a part, or all, are read in batches."""

    def tables(
        self,
        columns: Sequence[str],
        parts: Sequence[int] | None,
        kept_dictionaries: Sequence[str],
        batch_rows: int | None,
    ) -> Iterator[tuple[int, pa.Table]]:
        """The file's rows, one part at a time, each with the position of its first row in the file.

        Args:
            columns: names of the top-level columns to read; others may come along.
            parts: positions of the parts to read, all if None; a format without parts has the first one only.
            kept_dictionaries: top-level string columns that may stay encoded, where the format can do that.
            batch_rows: the most rows of a table, where the format can read less than a part; None for whole parts.

        Raises:
            InvalidTableError: a part is not there, or has not the rows that it should.
            UnsupportedError: the file holds something that we do not read.
        """


def value_width(type_: pa.DataType) -> int:
    """The bytes that a value takes in memory at least: a text takes an offset."""
    try:
        return int(type_.bit_width) // 8
    except ValueError:
        return _OFFSET_BYTES


PartChoice = Callable[[FileReader], Sequence[int] | None]
"""Picks the parts of an open file that are worth reading, None for all of them."""


class PartSizes(Protocol):
    """What reading parts of an open file takes of memory; see `FileReader`."""

    def largest_part(self) -> PartSize | None:
        """The part that takes the most memory."""

    def held_bytes(self, part: int) -> int:
        """The memory that is held beside a batch."""


class SizesOfColumns(msgspec.Struct, frozen=True):
    """The `PartSizes` of a file of which some columns are read."""

    reader: FileReader
    columns: Collection[str]

    def largest_part(self) -> PartSize | None:
        """The part whose columns take the most memory."""
        return self.reader.largest_part(self.columns)

    def held_bytes(self, part: int) -> int:
        """The memory that is held beside a batch of the columns."""
        return self.reader.held_bytes(part, self.columns)


BatchChoice = Callable[[PartSizes], int | None]
"""Says how many rows of an open file to read at one time, None for whole parts."""


def parts_beginning_in(start_byte: int, length_bytes: int) -> PartChoice:
    """The parts that begin in a range of bytes: ranges that tile a file share its parts out, each to one range."""
    end_byte = start_byte + length_bytes
    return lambda reader: [n for n, offset in enumerate(reader.part_offsets()) if start_byte <= offset < end_byte]


class FileMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of one file under the spec's names; maps go from field id to a count, a size or a bound's bytes."""

    record_count: int
    column_sizes: Mapping[int, int] | None
    value_counts: Mapping[int, int]
    null_value_counts: Mapping[int, int]
    nan_value_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]
    split_offsets: tuple[int, ...] | None


class FileWriter(Protocol):
    """A file that is being written; it exists for good only after `finish`."""

    @property
    def is_made(self) -> bool:
        """Whether the file is there, made by this writer; until then, a file of that name is another's."""

    @property
    def written_bytes(self) -> float:
        """The size of the file if it ended now; an estimate where rows wait to be encoded."""

    def write(self, table: pa.Table) -> None:
        """Add rows in the columns that the writer was opened with."""

    def finish(self) -> tuple[int, FileMetrics]:
        """Make the file complete and durable; returns its size in bytes and its metrics."""

    def abandon(self, error: BaseException) -> None:
        """Give up a file that is not made; nothing that goes wrong with it now matters beside `error`."""


@contextmanager
def translated(location: str, noun: str = "data file") -> Iterator[None]:
    """What pyarrow raises on a bad file as an invalid table, and the file's name in every error; `noun` says which kind it is."""
    try:
        yield
    except (InvalidTableError, UnsupportedError) as error:
        facts = {**error.facts, "location": location}
        raise type(error)(f"{noun} {location!r}: {error.message}", **facts) from error
    except MemoryError as error:
        # Nothing is said of the file; pyarrow's own is one of its errors, too.
        raise MemoryError(f"while {location!r} was read: {_line(error)}") from error
    except OSError as error:
        # pyarrow's own have no number: those say that the bytes are wrong, not that they cannot be had.
        if error.errno is not None:
            raise UnavailableError(f"cannot read {location!r}: {error}", location=location) from error
        raise InvalidTableError(f"{noun} {location!r} is damaged: {_line(error)}", location=location) from error
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedError(f"{noun} {location!r} cannot be read: {_line(error)}", location=location) from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InvalidTableError(f"{noun} {location!r} is damaged: {_line(error)}", location=location) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


_FLOATING = (FLOAT, DOUBLE)


class MetricsCollector:
    """Counts and bounds of a file's columns; give it each table that goes into the file."""

    def __init__(self, schema: Schema, modes: Mapping[int, MetricsMode]) -> None:
        """`modes` says what to keep of each column, by field id; the others keep nothing."""
        self._schema = schema
        self._modes = modes
        self._record_count = 0
        self._nulls: dict[int, int] = {}
        self._nans: dict[int, int] = {}
        self._ranges: dict[int, tuple[Any, Any]] = {}

    def add(self, table: pa.Table) -> None:
        """Count rows in the columns of the schema."""
        self._record_count += table.num_rows
        for field, column in primitive_columns(table, self._schema):
            mode = self._modes.get(field.field_id, NONE)
            if not mode.counts:
                continue
            self._nulls[field.field_id] = self._nulls.get(field.field_id, 0) + column.null_count
            if field.type in _FLOATING:
                nans = pc.is_nan(column)
                count = pc.sum(nans).as_py() or 0
                self._nans[field.field_id] = self._nans.get(field.field_id, 0) + count
                if count:
                    column = column.filter(pc.invert(nans))
            if mode.bounds:
                self._widen(field, column)

    def metrics(self, split_offsets: tuple[int, ...] | None = None) -> FileMetrics:
        """The metrics of all rows so far; sizes of columns are not known here."""
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
            column_sizes=None,
            value_counts=dict.fromkeys(self._nulls, self._record_count),
            null_value_counts=dict(self._nulls),
            nan_value_counts=dict(self._nans),
            lower_bounds=lower,
            upper_bounds=upper,
            split_offsets=split_offsets,
        )

    def _widen(self, field: NestedField, column: pa.ChunkedArray) -> None:
        range_ = pc.min_max(_comparable(column))
        if not range_["min"].is_valid:
            return
        least, greatest = (_value(field, range_[end].as_py()) for end in ("min", "max"))
        if (known := self._ranges.get(field.field_id)) is not None:
            least, greatest = min(known[0], least), max(known[1], greatest)
        self._ranges[field.field_id] = (least, greatest)


def count_nans(table: pa.Table, schema: Schema) -> dict[int, int]:
    """Count the NaN of each `float` and `double` outside lists and maps, by field id.

    Args:
        table: data as `project` gives it.
        schema: the columns that it has.
    """
    return {
        field.field_id: pc.sum(pc.is_nan(column)).as_py() or 0
        for number, top in enumerate(schema.fields)
        if _holds_floats(top)
        for field, column in _primitive_columns(table.column(number), top)
        if field.type in _FLOATING
    }


def primitive_columns(table: pa.Table, schema: Schema) -> Iterator[tuple[NestedField, Any]]:
    """Every primitive field outside lists and maps with its values, null where a struct above it is null."""
    for position, field in enumerate(schema.fields):
        yield from _primitive_columns(table.column(position), field)


def _primitive_columns(column: Any, field: NestedField) -> Iterator[tuple[NestedField, Any]]:
    if isinstance(field.type, StructType):
        # All children at once: to ask for one takes time for each of the others. Below a null struct they are null.
        for child, below in zip(field.type.fields, column.flatten(), strict=True):
            yield from _primitive_columns(below, child)
    elif isinstance(field.type, PrimitiveType) and field.type != UNKNOWN:
        yield field, column


def _holds_floats(field: NestedField) -> bool:
    """Whether a field is a `float` or a `double`, or a struct that has one at any depth."""
    if isinstance(field.type, StructType):
        return any(map(_holds_floats, field.type.fields))
    return field.type in _FLOATING


def _comparable(column: Any) -> Any:
    """The values as Arrow can compare them and `spec` has them: whole numbers for times, bytes for UUIDs."""
    type_ = column.type
    if pa.types.is_dictionary(type_):
        return column.cast(type_.value_type)
    if pa.types.is_date32(type_):
        return column.cast(pa.int32())
    if pa.types.is_time64(type_) or pa.types.is_timestamp(type_):
        return column.cast(pa.int64())
    return column.cast(pa.binary(16)) if type_ == pa.uuid() else column


def _value(field: NestedField, value: Any) -> Any:
    return UUIDValue(bytes=value) if field.type == UUID else value
