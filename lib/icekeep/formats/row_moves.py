"""Where the rows of a rewrite went, so that position deletes can follow them: the reports of its tasks, and the search in them.

If rows keep their order, the pieces that a task read and their dropped rows are enough; they go into a file if they are too large
for its report. Otherwise each row has an origin, its number among the rows of all files of the group. The origins of a task's
rows are a file, an Arrow stream of one column in the order of the rows. The search holds the bitmaps of one piece and a batch of
origins at a time.
"""

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyroaring import BitMap64

from icekeep.decoding import from_msgpack
from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.arrow.projection import Mask
from icekeep.formats.base import NewFile, translated
from icekeep.spec.manifests.structs import DataFile
from icekeep.storage.base import Storage

ORIGIN = "\x00origin"
"""The column of origins, after all others; no column of a table has this name."""


class MovedPiece(msgspec.Struct, frozen=True, kw_only=True):
    """Contiguous rows of an old file that were read, with deleted ones.

    Attributes:
        first_position: of the first row in the file; 0 if there are no rows.
        dropped: a serialized bitmap of the positions in the file that are in no new file, by whatever delete; empty for none.
        applied: those of them that position delete files or vectors name; null: all of `dropped`.
        first_ordinal: the origin of the file's first row, if rows have origins.
    """

    location: str
    first_position: int
    row_count: int
    dropped: bytes = b""
    applied: bytes | None = None
    first_ordinal: int | None = None


class RowMoves(msgspec.Struct, frozen=True, kw_only=True):
    """Where the rows that a task read went.

    Attributes:
        pieces: what was read, in the order of the new rows unless these have origins.
        stored: locations of pieces that are too large for the report; they come before `pieces`.
        origins: locations of the origins of all new rows, in the order of the files and their rows; null if rows keep their
            order.
        reading: a hash of what was read and dropped, if several tasks read the same; only the first of them reports pieces.
    """

    pieces: tuple[MovedPiece, ...] = ()
    stored: tuple[str, ...] = ()
    origins: tuple[str, ...] | None = None
    reading: bytes = b""


class TaskMoves(msgspec.Struct, frozen=True, kw_only=True):
    """The new files of a task, in the order of their rows, and where the rows went; null if that is not requested."""

    files: tuple[DataFile, ...]
    moves: RowMoves | None = None


def bitmap_of(data: bytes) -> BitMap64:
    """Empty from no bytes."""
    return BitMap64.deserialize(data) if data else BitMap64()


def pieces_of(moves: RowMoves, storage: Storage) -> Iterator[MovedPiece]:
    """All pieces, those in storage one file at a time; raises `InvalidTableError` for a damaged file."""
    for location in moves.stored:
        try:
            yield from from_msgpack(storage.read(location), tuple[MovedPiece, ...])
        except msgspec.MsgspecError as error:
            raise InvalidTableError(f"file {location!r} is damaged: {error}", location=location) from error
    yield from moves.pieces


class ReadNotes:
    """Records the rows of pieces while they are read, and which of them are dropped.

    `origin_type` is the type of the rows' origins; null if rows keep their order.
    """

    def __init__(self, origin_type: pa.DataType | None = None) -> None:
        self.origin_type = origin_type
        self._pieces: list[_Piece] = []

    def begin(self, location: str, first_ordinal: int | None = None, *, has_key_deletes: bool = False) -> None:
        """Start a piece; `has_key_deletes`: rows may be dropped that position deletes do not name."""
        applied = BitMap64() if has_key_deletes else None
        self._pieces.append(_Piece(location, first_ordinal=first_ordinal, applied=applied))

    def add(self, first_position: int, row_count: int) -> "NotedRows":
        piece = self._pieces[-1]
        if piece.row_count and piece.first_position + piece.row_count != first_position:
            self.begin(piece.location, piece.first_ordinal, has_key_deletes=piece.applied is not None)
            piece = self._pieces[-1]
        if not piece.row_count:
            piece.first_position = first_position
        piece.row_count += row_count
        return NotedRows(piece, first_position, row_count)

    def pieces(self) -> tuple[MovedPiece, ...]:
        """The pieces in the order in which they were read; complete after the last row."""
        return tuple(
            MovedPiece(
                location=piece.location,
                first_position=piece.first_position,
                row_count=piece.row_count,
                dropped=_serialized(piece.dropped),
                applied=None if piece.applied in (None, piece.dropped) else _serialized(piece.applied),
                first_ordinal=piece.first_ordinal,
            )
            for piece in self._pieces
        )


class _Piece(msgspec.Struct):
    location: str
    first_position: int = 0
    row_count: int = 0
    dropped: BitMap64 = msgspec.field(default_factory=BitMap64)
    applied: BitMap64 | None = None
    first_ordinal: int | None = None


class NotedRows(msgspec.Struct, frozen=True):
    """Rows that are contiguous both in a table and in a file."""

    piece: _Piece
    first_position: int
    row_count: int


def note_dropped(rows: Sequence[NotedRows], deleted: Mask, by_position: Mask) -> None:
    """Record the rows of a table that are dropped: `deleted`, and those of them that position deletes name.

    `rows` are those of the whole table, in order.
    """
    for mask, is_applied in ((deleted, False), (by_position, True)):
        numbers = np.flatnonzero(mask)
        start = 0
        for one in rows:
            bitmap = one.piece.applied if is_applied else one.piece.dropped
            low, high = np.searchsorted(numbers, (start, start + one.row_count))
            if low < high and bitmap is not None:
                bitmap.update(bitmap_from(numbers[low:high] - start + one.first_position))
            start += one.row_count


def bitmap_from(positions: NDArray[np.integer]) -> BitMap64:
    # Anything but an `array` of the standard library is iterated number by number.
    return BitMap64(array("Q", positions.astype(np.uint64).tobytes()))


def positions_in(bitmap: BitMap64) -> NDArray[np.int64]:
    """Ascending."""
    return np.asarray(bitmap.to_array(), dtype=np.int64)


def _serialized(bitmap: BitMap64 | None) -> bytes:
    if not bitmap:
        return b""
    bitmap.run_optimize()
    return bytes(bitmap.serialize())


_BATCH_ROWS = 131_072
"""Rows in a compressed batch."""


class OriginsWriter:
    """Writes origins into a file; without any there is no file.

    Use it as a context manager and call `close` at the end of the block; a block that ends without it, or raises, leaves no file.
    """

    def __init__(self, storage: Storage, location: str) -> None:
        self._storage, self._location = storage, location
        self._waiting: list[pa.Array] = []
        self._waiting_rows = 0
        self._file: _OriginsFile | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None or (self._closed and error is None):
            return
        if self._file.is_made:
            self._storage.delete_many([self._location])
        else:
            self._file.abandon(error or IcekeepBug("a rewrite was not finished"))
        self._file = None

    def write(self, origins: pa.ChunkedArray) -> None:
        self._waiting += origins.chunks
        self._waiting_rows += len(origins)
        if self._waiting_rows >= _BATCH_ROWS:
            self._flush()

    def close(self) -> tuple[str, ...]:
        """Make the file durable; returns its location, if there is one."""
        self._flush()
        self._closed = True
        if self._file is None:
            return ()
        self._file.end()
        return (self._location,)

    def _flush(self) -> None:
        if not self._waiting_rows:
            return
        batch = pa.RecordBatch.from_arrays([pa.concat_arrays(self._waiting)], names=[ORIGIN])
        self._waiting, self._waiting_rows = [], 0
        if self._file is None:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            begin = partial(pa.ipc.new_stream, schema=batch.schema, options=options)
            self._file = _OriginsFile(self._storage, self._location, begin)
        self._file.write(batch)


class _OriginsFile(NewFile):
    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)


def read_origins(storage: Storage, location: str) -> Iterator[NDArray[Any]]:
    """The origins in a file, one batch at a time; raises `InvalidTableError` for a damaged file."""
    with storage.open(location) as stream:
        with translated(location):
            reader = pa.ipc.open_stream(stream)
        while True:
            with translated(location):
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
            yield np.asarray(batch.column(0))


_COARSE = 1 << 22
"""Flags of origins modulo this, a power of two, rule out most of the others."""


def new_positions(
    outcomes: Sequence[TaskMoves], storage: Storage, positions: Mapping[str, BitMap64]
) -> dict[str, BitMap64]:
    """The positions of some rows in new files, by path; a row that was dropped, or a position beyond the end of a file, has none.

    `outcomes` are those of all tasks of a group; `positions` are by the path of the old file. Raises `MissingFileError` or
    `InvalidTableError` if what a task put into storage is missing or damaged.
    """
    search = _Search(storage, positions)
    ordinals: list[NDArray[np.int64]] = []
    for outcome in outcomes:
        if _moves(outcome).origins is None:
            search.follow_order(outcome)
            continue
        for piece in pieces_of(_moves(outcome), storage):
            live = search.take(piece)
            if live:
                if piece.first_ordinal is None:
                    raise IcekeepBug(f"the rows of {piece.location!r} have no ordinals")
                ordinals.append(positions_in(live) + piece.first_ordinal)
    for path, left in search.left.items():
        if path not in search.ends:
            raise IcekeepBug(f"no task of the group read data file {path!r}")
        if left and left.min() < search.ends[path]:
            raise IcekeepBug(f"no task of the group read row {left.min()} of data file {path!r}")
    if ordinals:
        search.follow_origins(outcomes, np.sort(np.concatenate(ordinals)))
    return search.positions


def dropped_positions(
    outcomes: Sequence[TaskMoves], storage: Storage, paths: Collection[str], *, by_position: bool = False
) -> dict[str, BitMap64]:
    """The positions in some old files whose rows are in no new file; raises as `new_positions`.

    With `by_position` only those that position delete files or vectors name.
    """
    dropped: dict[str, BitMap64] = {}
    for outcome in outcomes:
        for piece in pieces_of(_moves(outcome), storage):
            if piece.location in paths:
                bitmap = piece.applied if by_position and piece.applied is not None else piece.dropped
                dropped.setdefault(piece.location, BitMap64()).update(bitmap_of(bitmap))
    missing = set(paths) - dropped.keys()
    if missing:
        raise IcekeepBug(f"no task of the group read data file {min(missing)!r}")
    return dropped


def moves_locations(outcomes: Sequence[TaskMoves]) -> list[str]:
    """The files with moves that tasks put into storage; they can be deleted after the last search."""
    return [
        location
        for one in outcomes
        if one.moves is not None
        for location in (*one.moves.stored, *(one.moves.origins or ()))
    ]


class _Search:
    """By path the old positions not yet found, which pieces take out, their ends, and the new positions of the others."""

    def __init__(self, storage: Storage, positions: Mapping[str, BitMap64]) -> None:
        self._storage = storage
        self.left = {path: bitmap.copy() for path, bitmap in positions.items()}
        self.ends: dict[str, int] = {}
        self.positions: dict[str, BitMap64] = {}

    def take(self, piece: MovedPiece) -> BitMap64:
        """Take out the positions in a piece; returns those that were not dropped."""
        left = self.left.get(piece.location)
        if left is None:
            return BitMap64()
        end = piece.first_position + piece.row_count
        self.ends[piece.location] = max(end, self.ends.get(piece.location, 0))
        here = left & BitMap64(range(piece.first_position, end))
        self.left[piece.location] = left - here
        return here - bitmap_of(piece.dropped) if here and piece.dropped else here

    def follow_order(self, outcome: TaskMoves) -> None:
        """Rows of a task that kept their order: the new position is the number of live rows before."""
        first_row = 0
        for piece in pieces_of(_moves(outcome), self._storage):
            live, dropped = self.take(piece), bitmap_of(piece.dropped)
            if live:
                positions = positions_in(live)
                gone = np.searchsorted(positions_in(dropped), positions)
                self._add(outcome.files, positions - piece.first_position - gone + first_row)
            first_row += piece.row_count - len(dropped)
        if first_row != (total := sum(file.record_count for file in outcome.files)):
            raise IcekeepBug(f"a task says that it kept {first_row} rows, and wrote {total}")

    def follow_origins(self, outcomes: Sequence[TaskMoves], sought: NDArray[np.int64]) -> None:
        """Rows in another order, by their sorted ordinals."""
        coarse = np.zeros(_COARSE, dtype=bool)
        coarse[sought & (_COARSE - 1)] = True
        seen = np.zeros(len(sought), dtype=np.int64)
        for outcome in outcomes:
            locations = _moves(outcome).origins
            if locations is None:
                continue
            first_row = 0
            for origins in (batch for location in locations for batch in read_origins(self._storage, location)):
                rows = np.flatnonzero(coarse[origins & origins.dtype.type(_COARSE - 1)])
                ordinals = origins[rows].astype(np.int64)
                places = np.minimum(np.searchsorted(sought, ordinals), len(sought) - 1)
                same = sought[places] == ordinals
                np.add.at(seen, places[same], 1)
                self._add(outcome.files, rows[same] + first_row)
                first_row += len(origins)
            if first_row != (total := sum(file.record_count for file in outcome.files)):
                raise IcekeepBug(f"a task says where {first_row} rows came from, and wrote {total}")
        if (seen != 1).any():
            raise IcekeepBug(
                f"of {len(sought)} rows of a group {np.count_nonzero(seen != 1)} are not once in its new files"
            )

    def _add(self, files: Sequence[DataFile], rows: NDArray[np.int64]) -> None:
        """Add some rows of a task, by their ascending numbers among all that it wrote."""
        starts = np.cumsum([0, *(file.record_count for file in files)], dtype=np.int64)[:-1]
        numbers = np.searchsorted(starts, rows, side="right") - 1
        for number in np.unique(numbers):
            low, high = np.searchsorted(numbers, (number, number + 1))
            positions = bitmap_from(rows[low:high] - starts[number])
            self.positions.setdefault(files[number].file_path, BitMap64()).update(positions)


def _moves(outcome: TaskMoves) -> RowMoves:
    if outcome.moves is None:
        raise IcekeepBug("a task did not report where its rows went")
    return outcome.moves
