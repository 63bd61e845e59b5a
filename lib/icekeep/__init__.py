"""icekeep keeps Apache Iceberg tables healthy from PySpark, with no Iceberg JVM jar.

    from icekeep import compact, load_catalog

    table = load_catalog("local").load("demo.flights")
    compact(table, spark, where="month >= 6")

This is the door; each name is imported when it is first used, so that `import icekeep` needs neither Spark nor Arrow.
Reading order: `catalog/base.py` (a table), `spec/metadata.py`, `planning/scan.py`, `maintenance/`, `commit/retry.py`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icekeep.catalog.base import Catalog, Table
    from icekeep.errors import IcekeepError
    from icekeep.maintenance.compaction import compact, plan_compaction
    from icekeep.maintenance.expiration import expire_snapshots, plan_expire_snapshots
    from icekeep.maintenance.manifests import plan_rewrite_manifests, rewrite_manifests
    from icekeep.operations.loading import load_catalog
    from icekeep.operations.session import build_session
    from icekeep.planning.scan import plan_scan
    from icekeep.tables.append import append
    from icekeep.tables.create import create_table

__all__ = [
    "Catalog",
    "IcekeepError",
    "Table",
    "append",
    "build_session",
    "compact",
    "create_table",
    "expire_snapshots",
    "load_catalog",
    "plan_compaction",
    "plan_expire_snapshots",
    "plan_rewrite_manifests",
    "plan_scan",
    "rewrite_manifests",
]

_HOMES = {
    "Catalog": "icekeep.catalog.base",
    "IcekeepError": "icekeep.errors",
    "Table": "icekeep.catalog.base",
    "append": "icekeep.tables.append",
    "build_session": "icekeep.operations.session",
    "compact": "icekeep.maintenance.compaction",
    "create_table": "icekeep.tables.create",
    "expire_snapshots": "icekeep.maintenance.expiration",
    "load_catalog": "icekeep.operations.loading",
    "plan_compaction": "icekeep.maintenance.compaction",
    "plan_expire_snapshots": "icekeep.maintenance.expiration",
    "plan_rewrite_manifests": "icekeep.maintenance.manifests",
    "plan_scan": "icekeep.planning.scan",
    "rewrite_manifests": "icekeep.maintenance.manifests",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'icekeep' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
