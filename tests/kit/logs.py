"""Logging as it was before: the command line sets it up for a process that is its own."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NAMES = ("icekeep", "icekeep.events", "py.warnings", "opentelemetry", "openlineage", "thrift", "urllib3", "apprise")


@contextmanager
def restored_logging() -> Iterator[None]:
    """Put handlers, levels and hooks back at the end of the block."""
    before = {name: (logging.getLogger(name).level, logging.getLogger(name).propagate) for name in _NAMES}
    root, hook = [*logging.getLogger().handlers], threading.excepthook
    try:
        yield
    finally:
        logging.captureWarnings(False)
        threading.excepthook = hook
        logging.getLogger().handlers[:] = root
        for name, (level, propagate) in before.items():
            logging.getLogger(name).handlers.clear()
            logging.getLogger(name).setLevel(level)
            logging.getLogger(name).propagate = propagate
