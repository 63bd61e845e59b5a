"""What a Python process is and has: asked of this one, and of the workers of executors, which may lack everything of ours.

So this module needs nothing that must be installed, and its functions travel to executors by value.
"""

import os
import platform
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

UNKNOWN_VERSION = ""
"""Of a package that can be imported, and is not installed as one: it lies in a zip, or Spark brings it."""


def described_process(packages: Sequence[str]) -> dict[str, Any]:
    """This process: its host, the process above it, its Python, and the version of each package, `None` of one that is missing.

    The workers of one executor have one process above them.
    """
    return {
        "host": socket.gethostname(),
        "above": os.getppid(),
        "python": platform.python_version(),
        "packages": {package: installed_version(package) for package in packages},
    }


def described_in_task(packages: Sequence[str], seconds: float, _: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """The same as a task, which takes so long that other tasks go elsewhere."""
    yield described_process(packages)
    threading.Event().wait(seconds)


def installed_version(package: str) -> str | None:
    """The version of a package; `None` if there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        pass
    try:
        module = import_module(package.replace("-", "_"))
        return str(module.__version__)
    except ImportError:
        return None
    except Exception:  # noqa: BLE001 - it is there, and does not say its version
        return UNKNOWN_VERSION
