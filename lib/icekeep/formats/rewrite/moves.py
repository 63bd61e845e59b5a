"""Where the rows of a rewrite are now: the reports of its tasks, and the search in them.

A task reports the pieces that it read, or a file with them if they are too large. The reports of all tasks of a group map
positions in the old files to positions in the new ones, so that deletes can follow the rows. Beside the result, the bitmaps of
one piece and a batch of origins are in memory at a time.
"""

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b

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
"""Flags of origins modulo this, a power of two, rule out most of the others."""

MAX_REPORTED_BYTES = MIB
"""Larger reports go into storage."""

_HASH_BYTES = 16


def reported_moves(
    task: RewriteTask,
    storage: Storage,
    pieces: Sequence[MovedPiece],
    origins: tuple[str, ...] | None,
    max_bytes: int = MAX_REPORTED_BYTES,
) -> RowMoves | None:
    """The report of the pieces that a task read; null if its moves are not requested.

    `origins` are the locations of the rows' origins, if they have any; pieces above `max_bytes` go into storage.
    """
    if task.moves_directory is None:
        return None
    if origins is not None:
        # Several threads have read them, in any order.
        pieces = sorted(pieces, key=lambda piece: (piece.first_ordinal, piece.first_position, piece.location))
    encoded = msgspec.msgpack.encode(pieces)
    reading = b""
    if task.key_range is not None:
        reading = blake2b(encoded, digest_size=_HASH_BYTES).digest()
        if task.key_range.lower is not None:
            return RowMoves(origins=origins, reading=reading)
    if len(encoded) <= max_bytes:
        return RowMoves(pieces=tuple(pieces), origins=origins, reading=reading)
    location = task.spilled_location("pieces")
    with storage.write(location) as stream:
        stream.write(encoded)
    return RowMoves(stored=(location,), origins=origins, reading=reading)


def whole_pieces(task: RewriteTask) -> list[MovedPiece]:
    """The pieces of a task that reads whole files and drops no row."""
    return [
        MovedPiece(location=piece.location, first_position=0, row_count=piece.record_count) for piece in task.pieces
    ]


def new_positions(
    outcomes: Sequence[RewriteOutcome], storage: Storage, positions: Mapping[str, BitMap64]
) -> dict[str, BitMap64]:
    """The positions of some rows in new files, by path; a row that was dropped, or a position beyond the end of a file, has none.

    Args:
        outcomes: of all tasks of a group, with their moves.
        positions: by the path of the old file.

    Raises:
        MissingFileError, InvalidTableError: what a task put into storage is missing or damaged.
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
    search.validate_complete()
    if ordinals:
        search.follow_origins(outcomes, np.sort(np.concatenate(ordinals)))
    return search.positions


def dropped_positions(
    outcomes: Sequence[RewriteOutcome], storage: Storage, paths: Collection[str], *, by_position: bool = False
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


def moves_locations(outcomes: Sequence[RewriteOutcome]) -> list[str]:
    """The files with moves that tasks put into storage; they can be deleted after the last search."""
    return [
        location
        for one in outcomes
        if one.moves is not None
        for location in (*one.moves.stored, *(one.moves.origins or ()))
    ]


class _Search:
    """The old positions not yet found, which pieces take out, and the new positions of the others, by path."""

    def __init__(self, storage: Storage, positions: Mapping[str, BitMap64]) -> None:
        self._storage = storage
        self._left = {path: bitmap.copy() for path, bitmap in positions.items()}
        self._ends: dict[str, int] = {}
        self.positions: dict[str, BitMap64] = {}

    def take(self, piece: MovedPiece) -> BitMap64:
        """Take out the positions in a piece; returns those that were not dropped."""
        left = self._left.get(piece.location)
        if left is None:
            return BitMap64()
        end = piece.first_position + piece.row_count
        self._ends[piece.location] = max(end, self._ends.get(piece.location, 0))
        here = left & BitMap64(range(piece.first_position, end))
        self._left[piece.location] = left - here
        return here - bitmap_of(piece.dropped) if here and piece.dropped else here

    def validate_complete(self) -> None:
        """Raise `IcekeepBug` if a row was in no piece."""
        for path, left in self._left.items():
            if path not in self._ends:
                raise IcekeepBug(f"no task of the group read data file {path!r}")
            if left and left.min() < self._ends[path]:
                raise IcekeepBug(f"no task of the group read row {left.min()} of data file {path!r}")

    def follow_order(self, outcome: RewriteOutcome) -> None:
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

    def follow_origins(self, outcomes: Sequence[RewriteOutcome], sought: NDArray[np.int64]) -> None:
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


def _moves(outcome: RewriteOutcome) -> RowMoves:
    if outcome.moves is None:
        raise IcekeepBug("a task did not tell where its rows went")
    return outcome.moves
