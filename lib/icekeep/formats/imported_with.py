"""A package that looks at a variable of the environment once, while it is loaded, and is given it for so long."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imported_with(package: str, name: str, value: str) -> Iterator[None]:
    """Give a variable to a package that the block imports first; what an operator has set holds.

    Processes that are started from here do not inherit it. Nothing happens where the package is loaded already.
    """
    is_ours = package not in sys.modules and name not in os.environ
    if is_ours:
        os.environ[name] = value
    try:
        yield
    finally:
        if is_ours:
            del os.environ[name]
