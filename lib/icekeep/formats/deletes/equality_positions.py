"""Which positions of data files equality deletes remove: found as a reader finds them, by the same code.

Of a data file the columns that are compared are read, and nothing else. What is held of deletes at one time is bounded as in
`merge_on_read`, whose marks of deleted rows these are.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from icekeep.errors import IcekeepBug
from icekeep.formats.deletes.cache import DeleteCache
from icekeep.formats.deletes.merge_on_read import LivePiece, LiveRowsReader
from icekeep.spec.metadata_columns import DELETED
from icekeep.spec.schema import Schema
from icekeep.storage.base import Storage

Positions = NDArray[np.int64]

_MARKS = Schema(fields=(DELETED,))


def equality_positions(
    storage: Storage,
    pieces: Sequence[LivePiece],
    table_schemas: Sequence[Schema],
    *,
    cache: DeleteCache | None = None,
) -> Iterator[Positions]:
    """For each of some data files, in order, the positions that its equality deletes remove, ascending.

    Args:
        pieces: whole data files, with the number of their rows; `deletes` are equality deletes alone.
        table_schemas: of the table, in any order; a column that is compared may have been dropped since.
        cache: of delete files.

    Raises:
        MissingFileError: a file is not there.
        InvalidTableError: a file is damaged, does not fit the schemas or has not the rows that it must have, or a
            delete file is not what its entry says.
        UnsupportedError: a file is encrypted, or needs a feature of its format that we do not handle.
    """
    for piece in pieces:
        if piece.record_count is None or piece.split is not None:
            raise IcekeepBug(f"positions in a part of data file {piece.source.location!r} were asked for")
    reader = LiveRowsReader(storage, _MARKS, table_schemas=table_schemas, cache=cache)
    # Deleted rows are read too: every row of a file comes, in order, so its place in the file need not be read.
    marks = (table.column(0).to_numpy() for table in reader.read(pieces))
    waiting: NDArray[np.bool_] = np.empty(0, np.bool_)
    for piece in pieces:
        assert piece.record_count is not None
        found: list[Positions] = []
        start = 0
        while start < piece.record_count:
            if not len(waiting):
                waiting = next(marks)
            mine, waiting = waiting[: piece.record_count - start], waiting[piece.record_count - start :]
            found.append(np.flatnonzero(mine) + start)
            start += len(mine)
        yield np.concatenate(found) if found else np.empty(0, np.int64)
    # To the end, where the reader sees whether the last file has more rows than it must have.
    if len(waiting) or any(map(len, marks)):
        raise IcekeepBug("more rows were read than the data files have")
