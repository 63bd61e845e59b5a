"""Several tables looked at at a time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_threads(look: Callable[[T], R], chosen: Iterable[T], at_once: int) -> list[R]:
    """What `look` says of each, in their order; after an error or an interrupt no more of them is begun."""
    pool = ThreadPoolExecutor(at_once)
    try:
        return [*pool.map(look, chosen)]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
