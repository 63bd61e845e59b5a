"""Which allocator Arrow takes its memory from, in a process that does icekeep's work alone."""

import os

import pyarrow as pa

POOL_VARIABLE = "ARROW_DEFAULT_MEMORY_POOL"
"""Arrow's own variable, which it looks at while it is loaded: where an operator has set it, that holds."""

LIMITED_POOL = "system"
"""The allocator for a process whose address space is limited: C's own, which gives back what it is given back. What the others
keep for later, or ask for beforehand, counts by such a limit too."""


def take_small_pages() -> None:
    """Let Arrow allocate by jemalloc, where it was built with that.

    Its default allocator (mimalloc) asks for pages of 2 MB. The kernel fills each with zeros, gets many of them back soon after,
    and fills the next: a fifth of the processor time in which files are rewritten.
    """
    if POOL_VARIABLE in os.environ or pa.default_memory_pool().backend_name == LIMITED_POOL:
        return
    try:
        pool = pa.jemalloc_memory_pool()
    except NotImplementedError:
        return
    pa.set_memory_pool(pool)
