"""icekeep keeps Apache Iceberg tables healthy from PySpark, with no Iceberg JVM jar.

    from icekeep import compact, load_catalog

    table = load_catalog("local").load("demo.flights")
    compact(table, where="month >= 6")

This is the door; `__init__.pyi` says what is behind it. Each name is imported when it is first used, so that `import icekeep`
needs neither Spark nor Arrow.
Reading order: `catalog/base.py` (a table), `spec/metadata.py`, `planning/scan/plan.py`, `maintenance/`, `commit/retry.py`.
"""

import ast
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pkgutil import get_data
from typing import Any


@cache
def _homes() -> dict[str, str]:
    """The module of each name of the door."""
    stub = ast.parse(get_data(__name__, "__init__.pyi") or b"")
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        try:
            return version("icekeep")
        except PackageNotFoundError:
            raise AttributeError("icekeep is not installed, and has no version") from None
    if name == "__all__":
        return __dir__()
    if name.startswith("__") or name not in _homes():
        raise AttributeError(f"module 'icekeep' has no attribute {name!r}")
    value = getattr(import_module(_homes()[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_homes())
