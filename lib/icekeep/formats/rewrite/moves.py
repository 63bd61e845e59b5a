"""Positions in old files as positions in the new ones, from what all tasks of a group told of where their rows went.

Bitmaps of one piece are in memory at a time, and a batch of origins, beside what is asked for.

How a task tells where its rows went: in its report, or where that would be too large, in a file that the report names.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from icekeep.errors import IcekeepBug
from icekeep.formats.rewrite.task import RewriteOutcome, RewriteTask
from icekeep.formats.row_moves import (
    MovedPiece,
    RowMoves,
    bitmap_from,
    bitmap_of,
    pieces_of,
    positions_in,
    read_origins,
)
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage

_COARSE = 1 << 22
"""Flags by which most origins that nobody asks for are told at a glance; a power of two."""


def new_positions(
    outcomes: Sequence[RewriteOutcome], storage: Storage, wanted: Mapping[str, BitMap64]
) -> dict[str, BitMap64]:
    """Where some rows of old files are now: positions by the path of the new file; a new file without any is left out.

    A row that was dropped is nowhere, and a position beyond the end of its file is no row.

    Args:
        outcomes: of all tasks of a group, whose moves were kept.
        wanted: positions by the path of the old file.

    Raises:
        IcekeepBug: no task read a file or a row that is asked for, or the moves do not fit the new files.
        MissingFileError, InvalidTableError: what a task put into storage is not there, or damaged.
    """
    asked = _Asked(wanted)
    found = _Found()
    ordinals: list[NDArray[np.int64]] = []
    for outcome in outcomes:
        if _moves(outcome).origins is None:
            _find_in_order(outcome, asked, found, storage)
            continue
        for piece in pieces_of(_moves(outcome), storage):
            live = asked.take(piece)
            if live:
                ordinals.append(positions_in(live) + _first_ordinal(piece))
    asked.validate_complete()
    if ordinals:
        _find_by_origin(outcomes, np.sort(np.concatenate(ordinals)), found, storage)
    return found.positions


def dropped_positions(
    outcomes: Sequence[RewriteOutcome], storage: Storage, paths: Collection[str]
) -> dict[str, BitMap64]:
    """The positions in each of some old files whose rows are in no new file; raises as `new_positions`."""
    return _positions(outcomes, storage, paths, lambda piece: piece.dropped)


def applied_positions(
    outcomes: Sequence[RewriteOutcome], storage: Storage, paths: Collection[str]
) -> dict[str, BitMap64]:
    """Those of the dropped ones that position delete files or vectors named; raises as `new_positions`."""
    return _positions(outcomes, storage, paths, lambda piece: piece.dropped if piece.applied is None else piece.applied)


def moves_locations(outcomes: Sequence[RewriteOutcome]) -> list[str]:
    """What the tasks put into storage of where their rows went; of no use once nobody asks any more."""
    return [location for one in outcomes if one.moves is not None for location in one.moves.locations]


class _Asked:
    """Positions that are looked for: taken out as pieces are found that hold them."""

    def __init__(self, wanted: Mapping[str, BitMap64]) -> None:
        self._left = {path: positions.copy() for path, positions in wanted.items()}
        self._ends: dict[str, int] = {}

    def take(self, piece: MovedPiece) -> BitMap64:
        """Those of a piece, without the ones that were dropped."""
        left = self._left.get(piece.location)
        if left is None:
            return BitMap64()
        end = piece.first_position + piece.row_count
        self._ends[piece.location] = max(end, self._ends.get(piece.location, 0))
        here = left & BitMap64(range(piece.first_position, end))
        left -= here
        self._left[piece.location] = left
        return here - bitmap_of(piece.dropped) if here and piece.dropped else here

    def validate_complete(self) -> None:
        """Raise `IcekeepBug` if a row that is looked for was in no piece."""
        for path, left in self._left.items():
            if path not in self._ends:
                raise IcekeepBug(f"no task of the group read data file {path!r}")
            if left and left.min() < self._ends[path]:
                raise IcekeepBug(f"no task of the group read row {left.min()} of data file {path!r}")


class _Found:
    """New positions that were found, by path."""

    def __init__(self) -> None:
        self.positions: dict[str, BitMap64] = {}

    def add(self, files: Sequence[DataFile], starts: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        """Some rows of a task, by their numbers among all that it wrote, ascending; `starts` are those of its files."""
        numbers = np.searchsorted(starts, rows, side="right") - 1
        for number in np.unique(numbers):
            low, high = np.searchsorted(numbers, (number, number + 1))
            positions = bitmap_from(rows[low:high] - starts[number])
            self.positions.setdefault(files[number].file_path, BitMap64()).update(positions)


def _moves(outcome: RewriteOutcome) -> RowMoves:
    if outcome.moves is None:
        raise IcekeepBug("a task did not tell where its rows went")
    return outcome.moves


def _first_ordinal(piece: MovedPiece) -> int:
    if piece.first_ordinal is None:
        raise IcekeepBug(f"the rows of {piece.location!r} have no ordinals")
    return piece.first_ordinal


def _starts(files: Sequence[DataFile]) -> tuple[NDArray[np.int64], int]:
    """The number of the first row of each file among those that a task wrote, and of all rows."""
    ends = np.cumsum([file.record_count for file in files], dtype=np.int64)
    return np.concatenate([np.zeros(1, np.int64), ends])[:-1], int(ends[-1]) if len(ends) else 0


def _find_in_order(outcome: RewriteOutcome, asked: _Asked, found: _Found, storage: Storage) -> None:
    """Find rows of a task that kept their order: each is where as many live ones were before it."""
    starts, total = _starts(outcome.files)
    first_row = 0
    for piece in pieces_of(_moves(outcome), storage):
        live = asked.take(piece)
        dropped = bitmap_of(piece.dropped)
        if live:
            positions = positions_in(live)
            gone = np.searchsorted(positions_in(dropped), positions)
            found.add(outcome.files, starts, positions - piece.first_position - gone + first_row)
        first_row += piece.row_count - len(dropped)
    if first_row != total:
        raise IcekeepBug(f"a task says that it kept {first_row} rows, and wrote {total}")


def _find_by_origin(
    outcomes: Sequence[RewriteOutcome], wanted: NDArray[np.int64], found: _Found, storage: Storage
) -> None:
    """Find rows that were put in another order by their ordinals, which are sorted."""
    coarse = np.zeros(_COARSE, dtype=bool)
    coarse[wanted & (_COARSE - 1)] = True
    seen = np.zeros(len(wanted), dtype=np.int64)
    for outcome in outcomes:
        if _moves(outcome).origins is None:
            continue
        starts, total = _starts(outcome.files)
        first_row = 0
        for origins in _origins(_moves(outcome), storage):
            rows = np.flatnonzero(coarse[origins & origins.dtype.type(_COARSE - 1)])
            ordinals = origins[rows].astype(np.int64)
            places = np.minimum(np.searchsorted(wanted, ordinals), len(wanted) - 1)
            same = wanted[places] == ordinals
            np.add.at(seen, places[same], 1)
            found.add(outcome.files, starts, rows[same] + first_row)
            first_row += len(origins)
        if first_row != total:
            raise IcekeepBug(f"a task says where {first_row} rows came from, and wrote {total}")
    if (seen != 1).any():
        raise IcekeepBug(
            f"of {len(wanted)} rows of a group {np.count_nonzero(seen != 1)} are not once in its new files"
        )


def _origins(moves: RowMoves, storage: Storage) -> Iterator[NDArray[Any]]:
    for location in moves.origins or ():
        yield from read_origins(storage, location)


def _positions(
    outcomes: Sequence[RewriteOutcome], storage: Storage, paths: Collection[str], data_of: Callable[[MovedPiece], bytes]
) -> dict[str, BitMap64]:
    found: dict[str, BitMap64] = {}
    for outcome in outcomes:
        for piece in pieces_of(_moves(outcome), storage):
            if piece.location in paths:
                found.setdefault(piece.location, BitMap64()).update(bitmap_of(data_of(piece)))
    missing = set(paths) - found.keys()
    if missing:
        raise IcekeepBug(f"no task of the group read data file {min(missing)!r}")
    return found


MAX_REPORTED_BYTES = MIB
"""Pieces that take more go into storage."""

_HASH_BYTES = 16


def spilled_location(task: RewriteTask, name: str) -> str:
    """Where an attempt at a task puts something of its moves."""
    number = f"{task.partition_id:05d}-{task.task_attempt_id}-{task.operation_id}"
    return f"{task.moves_directory}/{name}-{number}"


def reported_moves(
    task: RewriteTask,
    storage: Storage,
    pieces: Sequence[MovedPiece],
    origins: tuple[str, ...] | None,
    max_bytes: int = MAX_REPORTED_BYTES,
) -> RowMoves | None:
    """What a task reports of pieces that it read; `None` where it is not asked for.

    Args:
        origins: where they were put, if the rows have any.
        max_bytes: pieces that take more go into storage.
    """
    if task.moves_directory is None:
        return None
    if origins is not None:
        # They were read by several threads, in whatever order.
        pieces = sorted(pieces, key=lambda piece: (piece.first_ordinal, piece.first_position, piece.location))
    encoded = msgspec.msgpack.encode(pieces)
    reading = b""
    if task.key_range is not None:
        reading = blake2b(encoded, digest_size=_HASH_BYTES).digest()
        if task.key_range.lower is not None:
            return RowMoves(origins=origins, reading=reading)
    if len(encoded) <= max_bytes:
        return RowMoves(pieces=tuple(pieces), origins=origins, reading=reading)
    location = spilled_location(task, "pieces")
    with storage.write(location) as stream:
        stream.write(encoded)
    return RowMoves(stored=(location,), origins=origins, reading=reading)


def whole_pieces(task: RewriteTask) -> list[MovedPiece]:
    """The pieces of a task that reads whole files, of which no row is dropped."""
    return [
        MovedPiece(location=piece.location, first_position=0, row_count=piece.record_count) for piece in task.pieces
    ]
