"""How a command makes its process its own: it leaves out what it has no use for, and takes memory in small pages."""

from icekeep.formats.imported_with import imported_with


def start_lean() -> None:
    """Prepare a process that belongs to the command alone, which will work on data.

    NumPy comes with a library of linear algebra that starts a thread for each processor when it is loaded, and these spin for a
    while: a twentieth of the processor time of a small job. No job has matrices that would need them.
    """
    # They need Arrow, which help and mistakes do without.
    with imported_with("numpy", "OPENBLAS_NUM_THREADS", "1"):
        from icekeep.formats.arrow.memory_pool import take_small_pages
        from icekeep.formats.arrow.without_pandas import leave_pandas_out
    leave_pandas_out()
    take_small_pages()
