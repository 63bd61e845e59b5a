"""How a command makes its process its own: it leaves out what it has no use for, and chooses how Arrow takes its memory."""

from contextlib import AbstractContextManager, nullcontext

from icekeep.formats.machine import (
    LIMITED_POOL,
    POOL_VARIABLE,
    choose_pool,
    imported_with,
    is_limited,
    leave_pandas_out,
)


def start_lean() -> None:
    """Prepare a process that belongs to the command alone, which will work on data.

    NumPy comes with a library of linear algebra that starts a thread for each processor when it is loaded, and these spin for a
    while: a twentieth of the processor time of a small job. No job has matrices that would need them.
    """
    # They need Arrow, which help and mistakes do without.
    with imported_with("numpy", "OPENBLAS_NUM_THREADS", "1"), _arrow_of_a_limited_process():
        import pyarrow  # noqa: F401
    leave_pandas_out()
    choose_pool()


def _arrow_of_a_limited_process() -> AbstractContextManager[None]:
    """Arrow is loaded with the allocator that it keeps: some of it never asks again which one was chosen."""
    return imported_with("pyarrow", POOL_VARIABLE, LIMITED_POOL) if is_limited() else nullcontext()
