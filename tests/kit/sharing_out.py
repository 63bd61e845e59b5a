"""Work shared out to processes, as much of it as fits into some minutes."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from functools import partial
from itertools import islice
from time import perf_counter
from typing import TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")

_AHEAD = 8
"""Pieces of each process that are handed out before their turn."""


def shared_out(
    work: Callable[[Piece], Result], pieces: Iterable[Piece], processes: int, minutes: float | None = None
) -> Iterator[Result]:
    """What `work` returns for each piece, in the order in which it is ready; pieces that would begin too late have no result.

    `work` is a function of a module and returns something that is not `None`. Where a process dies, a `RuntimeError` names the
    pieces that were handed out and not ready.
    """
    ends = None if minutes is None else perf_counter() + 60 * minutes
    in_time = partial(_in_time, work, ends)
    rest = iter(pieces)
    waiting: dict[Future[Result | None], Piece] = {}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        try:
            while True:
                for piece in islice(rest, processes * _AHEAD - len(waiting)):
                    waiting[pool.submit(in_time, piece)] = piece
                if not waiting:
                    return
                for ready in wait(waiting, return_when=FIRST_COMPLETED).done:
                    result = ready.result()
                    del waiting[ready]
                    if result is not None:
                        yield result
        except BrokenExecutor as error:
            raise RuntimeError(f"a process died at one of {[*waiting.values()]}") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _in_time(work: Callable[[Piece], Result], ends: float | None, piece: Piece) -> Result | None:
    # Processes of one machine share this clock.
    return work(piece) if ends is None or perf_counter() < ends else None
