"""iceberg-zamboni expires snapshots, and deletes what only they lead to."""

from collections.abc import Callable
from typing import Any

from bench.rival.engines import Target, Zamboni


def expire_snapshots(engine: Zamboni, target: Target) -> Callable[[], Any]:
    from zamboni.expire import RetentionPolicy, SnapshotExpirer

    name = engine.register(target)
    # Of no age but that of the newest one: as `older_than` now.
    policy = RetentionPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)

    def work() -> Callable[[], Any]:
        done = SnapshotExpirer(policy).run(engine.session.table(name))
        return lambda: {"expired_snapshots_count": done.expired_snapshots, "deleted_files_count": done.deleted_files}

    return work
