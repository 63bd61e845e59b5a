"""Which allocator Arrow takes its memory from, in a process that does icekeep's work alone."""

import os

import pyarrow as pa

_CHOSEN = "ARROW_DEFAULT_MEMORY_POOL"
"""Arrow's own variable: where an operator has set it, that holds."""


def take_small_pages() -> None:
    """Let Arrow allocate by jemalloc, where it was built with that.

    Its default allocator (mimalloc) asks for pages of 2 MB. The kernel fills each with zeros, gets many of them back soon after,
    and fills the next: a fifth of the processor time in which files are rewritten.
    """
    if _CHOSEN in os.environ:
        return
    try:
        pool = pa.jemalloc_memory_pool()
    except NotImplementedError:
        return
    pa.set_memory_pool(pool)
