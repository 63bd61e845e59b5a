"""The package DataFusion, imported so that its memory stays with it for a second.

Its allocator (mimalloc) hands pages that are free back to the system after ten milliseconds, and gets them again, filled with
zeros, for the next batch. On a machine that is busy this was a fifth of the processor time in which manifests are decoded.
"""

from types import ModuleType

from icekeep.formats.imported_with import imported_with

_DELAY_MS = 1_000


def datafusion_package() -> ModuleType:
    """The package; what an operator has set for its allocator holds.

    Raises:
        ImportError: it is not installed, or cannot be imported.
    """
    with imported_with("datafusion", "MIMALLOC_PURGE_DELAY", str(_DELAY_MS)):
        import datafusion
    return datafusion
