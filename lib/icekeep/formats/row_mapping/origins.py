"""Origins of the rows of new files, in storage: which row of its group each of them was, in the order in which they lie.

One file a task, an Arrow stream of one column. It is written as rows go to the new files and read a batch at a time, so that
no more of it is in memory however many rows there are.
"""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.errors import IcekeepBug, IcekeepError
from icekeep.formats.base import translated
from icekeep.formats.row_mapping.row_moves import ORIGIN
from icekeep.storage.base import Storage

_BATCH_ROWS = 131_072
"""Rows that are compressed, and read, at one time."""


class OriginsWriter:
    """Puts origins into one file, which is there if there are any.

    Use it as a context manager and call `close` at the end of the block: when the block ends without that, or raises, the
    file is not left.
    """

    def __init__(self, storage: Storage, location: str) -> None:
        self._storage, self._location = storage, location
        self._waiting: list[pa.Array] = []
        self._waiting_rows = 0
        self._stack: ExitStack | None = None
        self._writer: Any = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closed and error is None:
            return
        if self._stack is not None:
            failure = error or IcekeepBug("a rewrite was not finished")
            with suppress(IcekeepError, pa.ArrowException, OSError, ValueError):
                self._stack.__exit__(type(failure), failure, failure.__traceback__)
            self._stack = None
        elif self._closed and self._writer is not None:
            self._storage.delete_many([self._location])

    def write(self, origins: pa.ChunkedArray) -> None:
        """Add the origins of the rows that come next."""
        self._waiting += origins.chunks
        self._waiting_rows += len(origins)
        if self._waiting_rows >= _BATCH_ROWS:
            self._flush()

    def close(self) -> tuple[str, ...]:
        """Make the file durable; returns its location, if there were rows."""
        self._flush()
        if self._stack is not None:
            self._writer.close()
            stack, self._stack = self._stack, None
            stack.close()
        self._closed = True
        return () if self._writer is None else (self._location,)

    def _flush(self) -> None:
        if not self._waiting_rows:
            return
        column = pa.concat_arrays(self._waiting)
        self._waiting, self._waiting_rows = [], 0
        batch = pa.RecordBatch.from_arrays([column], names=[ORIGIN])
        if self._writer is None:
            with ExitStack() as stack:
                stream = stack.enter_context(self._storage.write(self._location))
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                self._writer = pa.ipc.new_stream(stream, batch.schema, options=options)
                self._stack = stack.pop_all()
        self._writer.write_batch(batch)


def read_origins(storage: Storage, location: str) -> Iterator[NDArray[Any]]:
    """The origins in a file, a batch at a time, as unsigned or whole numbers.

    Raises:
        MissingFileError, InvalidTableError: the file is not there, or damaged.
    """
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
