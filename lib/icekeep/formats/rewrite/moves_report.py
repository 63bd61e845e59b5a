"""How a task tells where its rows went: in its report, or where that would be too large, in a file that the report names."""

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from icekeep.formats.rewrite.task import RewriteTask
from icekeep.formats.row_mapping.row_moves import MovedPiece, RowMoves
from icekeep.spec.units import MIB
from icekeep.storage.base import Storage

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
