"""What the readers and writers of the file formats have in common, and how their errors are told.

A reader gives the rows of one open file in the file's own columns, part by part (row group, stripe, block); `read` turns
them into a table's columns. A writer makes one file; `rolling_writer` decides when a file is full.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import msgspec
import pyarrow as pa

from icekeep.errors import InvalidTableError, UnavailableError, UnsupportedError
from icekeep.formats.arrow.masks import Mask
from icekeep.spec.filters.evaluators import Metrics
from icekeep.spec.filters.expressions import Expression, predicates
from icekeep.spec.types import PrimitiveType

_OFFSET_BYTES = 4
_LOOKS_LEFT_OUT = 7


class PartSize(msgspec.Struct, frozen=True, kw_only=True):
    """What a part takes of memory, as far as a file's footer tells.

    Attributes:
        number: of the part in its file.
        size_bytes: of the part's data in memory.
    """

    number: int
    row_count: int
    size_bytes: int


class Looks(msgspec.Struct):
    """Whether it pays to look for the rows that match before other columns are read; of files that are read one by one.

    Where all pages of a part were needed nevertheless, the next ones are not looked at, and then one is again.
    """

    left_out: int = 0

    def are_worth_it(self) -> bool:
        """Whether the next part is to be looked at."""
        if self.left_out:
            self.left_out -= 1
            return False
        return True

    def did_not_pay(self) -> None:
        """All pages of a part were needed."""
        self.left_out = _LOOKS_LEFT_OUT


class NeededRows(msgspec.Struct, frozen=True):
    """The rows of a file that a filter matches.

    Attributes:
        bound: the filter, over columns of the table.
        columns: the file's, with the field ids that they have for the table.
        names: of the top-level columns of the file that the filter looks at.
        matches: which rows of a table with these columns match.
        looks: shared with the files before and after.
    """

    bound: Expression
    columns: pa.Schema
    names: Sequence[str]
    matches: Callable[[pa.Table], Mask]
    looks: Looks

    @property
    def types(self) -> dict[int, PrimitiveType]:
        """Of the fields that the filter asks for, by field id."""
        return {
            predicate.field.field_id: predicate.field.type
            for predicate in predicates(self.bound)
            if isinstance(predicate.field.type, PrimitiveType)
        }


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
