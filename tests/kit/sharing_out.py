"""Work shared out to processes, as much of it as fits into some minutes."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import perf_counter
from typing import TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def shared_out(
    work: Callable[[Piece], Result], pieces: Iterable[Piece], processes: int, minutes: float | None = None
) -> Iterator[Result]:
    """What `work` returns for each piece, in the order in which it is ready; pieces that would begin too late have no result.

    `work` is a function of a module and returns something that is not `None`.
    """
    ends = None if minutes is None else perf_counter() + 60 * minutes
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for result in pool.imap_unordered(partial(_in_time, work, ends), pieces):
            if result is not None:
                yield result


def _in_time(work: Callable[[Piece], Result], ends: float | None, piece: Piece) -> Result | None:
    # Processes of one machine share this clock.
    return work(piece) if ends is None or perf_counter() < ends else None
