"""Which allocator Arrow takes its memory from, in a process that does icekeep's work alone."""

import os

import pyarrow as pa

from icekeep.formats.arrow.address_space import POOL_VARIABLE, is_limited


def choose_pool() -> None:
    """Let Arrow allocate by jemalloc where it was built with that, and by C's allocator where address space is limited.

    Its default allocator (mimalloc) asks for pages of 2 MB. The kernel fills each with zeros, gets many of them back soon after,
    and fills the next: a fifth of the processor time in which files are rewritten. Nothing happens where an operator has chosen.
    """
    if POOL_VARIABLE in os.environ:
        return
    if is_limited():
        pa.set_memory_pool(pa.system_memory_pool())
        return
    try:
        pool = pa.jemalloc_memory_pool()
    except NotImplementedError:
        return
    pa.set_memory_pool(pool)
