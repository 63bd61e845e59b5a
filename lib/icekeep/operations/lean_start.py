"""How a command makes its process its own: it leaves out what it has no use for, and takes memory in small pages.

PyArrow imports pandas, where that is installed, for the first list that becomes an array: as long, and as much memory, as
everything else that a small job does before its work. icekeep hands it nothing of pandas.
"""

import sys
from importlib.abc import MetaPathFinder

from icekeep.formats.imported_with import imported_with

_PANDAS = "pandas"


def start_lean() -> None:
    """Prepare a process that belongs to the command alone, which will work on data.

    NumPy comes with a library of linear algebra that starts a thread for each processor when it is loaded, and these spin for a
    while: a twentieth of the processor time of a small job. No job has matrices that would need them.
    """
    with imported_with("numpy", "OPENBLAS_NUM_THREADS", "1"):
        leave_pandas_out()
    # It needs Arrow, which help and mistakes do without.
    from icekeep.formats.arrow.memory_pool import take_small_pages

    take_small_pages()


def leave_pandas_out() -> None:
    """Let PyArrow take pandas for absent, in a process that belongs to the command alone.

    Others can import pandas after that, PySpark among them, and `to_pandas` finds it; only `pyarrow.array` no longer knows
    what is of pandas by itself. Nothing happens where pandas is imported already.
    """
    if _PANDAS in sys.modules:
        return
    import pyarrow as pa

    without = _Without()
    sys.meta_path.insert(0, without)
    try:
        # PyArrow looks once.
        pa.array([None])
    finally:
        sys.meta_path.remove(without)


class _Without(MetaPathFinder):
    """Finds no pandas, and leaves all other modules to others."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == _PANDAS:
            raise ModuleNotFoundError(f"No module named {_PANDAS!r}", name=_PANDAS)
