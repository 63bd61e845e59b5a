"""PyArrow without pandas, which it would import for the first list that becomes an array.

That takes as long, and as much memory, as everything else that a small job does before its work. icekeep hands PyArrow nothing
of pandas.
"""

import sys
from importlib.abc import MetaPathFinder

_PANDAS = "pandas"


def leave_pandas_out() -> None:
    """Let PyArrow take pandas for absent, in a process that does icekeep's work alone.

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
