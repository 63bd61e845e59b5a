"""Jobs that always find work, for tests in which foreign writers commit beside each of them."""

from collections.abc import Callable, Mapping
from typing import Any

from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests

FAR_AHEAD_MS = 4_102_444_800_000  # the year 2100
ALL = {"rewrite-all": "true"}

Work = Callable[..., Any]
"""Takes a table, a session and a listener."""

COMMON: Mapping[str, Work] = {
    "rewrite_manifests": rewrite_manifests,
    "rewrite_position_deletes": lambda *table, **more: rewrite_position_deletes(*table, options=ALL, **more),
    "compact after deletes": lambda *table, **more: compact(*table, options={"delete-file-threshold": "1"}, **more),
    "expire_snapshots": lambda *table, **more: expire_snapshots(*table, older_than=FAR_AHEAD_MS, retain_last=1, **more),
    "compact everything": lambda *table, **more: compact(
        *table, options={**ALL, "remove-dangling-deletes": "true"}, **more
    ),
}


def sorting(order: str) -> Work:
    """A compaction of all files in an order of rows."""
    return lambda *table, **more: compact(*table, sort_order=order, options=ALL, **more)
