"""Table maintenance for Apache Iceberg from Python, with no Iceberg jar.

    from icekeep import compact, expire_snapshots, load_catalog, plan_compact

    table = load_catalog("lake").load("sales.orders")
    print(plan_compact(table))
    compact(table, where="ordered_at >= '2026-01-20'")
    expire_snapshots(table.refresh(), older_than="7d")

`load_catalog` opens a catalog of `conf/icekeep.yaml`, or one that Spark or PyIceberg has configured. Each job is a function
that takes a table: `compact`, `rewrite_position_deletes`, `rewrite_manifests`, `expire_snapshots`, `remove_orphan_files`,
`drop`, `check` and `repair`. `plan_...` says what the job would do and changes nothing; `restore` and `rollback` undo. Results
and plans are frozen values that notebooks show as tables. All errors derive from `IcekeepError`, and are sorted by what to do
next.

`dir(icekeep)` lists the public names, and `help(icekeep.compact)` describes one of them. A name is imported when it is first
used, so `import icekeep` loads neither Spark nor Arrow.
"""

from functools import cache
from typing import Any

from icekeep.version import ICEKEEP_VERSION as __version__  # noqa: F401


@cache
def _homes() -> dict[str, str]:
    """The module of each public name, as the stub has them."""
    import ast
    from pkgutil import get_data

    stub = ast.parse(get_data(__name__, "__init__.pyi") or b"")
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name.startswith("__") or name not in _homes():
        raise AttributeError(f"module 'icekeep' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_homes()[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_homes())
