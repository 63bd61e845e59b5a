"""The package DataFusion, imported so that its memory stays with it for a second.

Its allocator (mimalloc) hands pages that are free back to the system after ten milliseconds, and gets them again, filled with
zeros, for the next batch. On a machine that is busy this was a fifth of the processor time in which manifests are decoded.
"""

import os
import sys
from types import ModuleType

_DELAY = "MIMALLOC_PURGE_DELAY"
_DELAY_MS = 1_000


def datafusion_package() -> ModuleType:
    """The package; what an operator has set for its allocator holds.

    Raises:
        ImportError: it is not installed, or cannot be imported.
    """
    # Looked at when the package is loaded, and then no more. Processes that are started from here do not inherit it.
    is_ours = "datafusion" not in sys.modules and _DELAY not in os.environ
    if is_ours:
        os.environ[_DELAY] = str(_DELAY_MS)
    try:
        import datafusion
    finally:
        if is_ours:
            del os.environ[_DELAY]
    return datafusion
