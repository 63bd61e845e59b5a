"""How a command makes its process its own: it leaves out what it has no use for, and takes memory in small pages."""

import resource
from contextlib import AbstractContextManager, nullcontext

from icekeep.formats.imported_with import imported_with


def start_lean() -> None:
    """Prepare a process that belongs to the command alone, which will work on data.

    NumPy comes with a library of linear algebra that starts a thread for each processor when it is loaded, and these spin for a
    while: a twentieth of the processor time of a small job. No job has matrices that would need them.
    """
    # They need Arrow, which help and mistakes do without.
    with imported_with("numpy", "OPENBLAS_NUM_THREADS", "1"), _arrow_of_a_limited_process():
        from icekeep.formats.arrow.memory_pool import take_small_pages
        from icekeep.formats.arrow.without_pandas import leave_pandas_out
    leave_pandas_out()
    take_small_pages()


def _arrow_of_a_limited_process() -> AbstractContextManager[None]:
    """Where address space is limited (`ulimit -v`), Arrow is loaded with the allocator for that (`LIMITED_POOL`)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    # Whoever imports these names imports Arrow.
    is_limited = limit != resource.RLIM_INFINITY
    return imported_with("pyarrow", "ARROW_DEFAULT_MEMORY_POOL", "system") if is_limited else nullcontext()
