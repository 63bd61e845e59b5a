"""iceberg-zamboni compacts (PyIceberg reads and writes, DuckDB sorts), expires, and rewrites manifests in Python."""

from collections.abc import Callable
from typing import Any

from bench.rival.engines import Target, Zamboni


def rewrite_data_files(engine: Zamboni, target: Target) -> Callable[[], Any]:
    from zamboni.compactor import TableCompactor
    from zamboni.config import CompactionConfig

    name = engine.register(target)
    config = CompactionConfig(
        rewrite_all=True,
        target_file_size_bytes=int(engine.request["options"]["target-file-size-bytes"]),
        **_order(engine.request["arguments"].get("sort_order")),
    )

    def work() -> Callable[[], Any]:
        done = TableCompactor(engine.session, name, config).execute()
        return lambda: {
            "rewritten_data_files_count": done.rewritten_data_files,
            "added_data_files_count": done.added_data_files,
        }

    return work


def _order(sort_order: str | None) -> dict[str, Any]:
    if sort_order is None:
        return {}
    if sort_order.startswith("zorder("):
        return {"zorder_columns": tuple(sort_order.removeprefix("zorder(").rstrip(")").split(", "))}
    return {"sort_expression": sort_order}


def expire_snapshots(engine: Zamboni, target: Target) -> Callable[[], Any]:
    from zamboni.expire import RetentionPolicy, SnapshotExpirer

    name = engine.register(target)
    # Of no age but that of the newest one: as `older_than` now.
    policy = RetentionPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)

    def work() -> Callable[[], Any]:
        done = SnapshotExpirer(policy).run(engine.session.table(name))
        return lambda: {"expired_snapshots_count": done.expired_snapshots, "deleted_files_count": done.deleted_files}

    return work


def rewrite_manifests(engine: Zamboni, target: Target) -> Callable[[], Any]:
    from zamboni.manifests import ManifestRewriter

    name = engine.register(target)

    def work() -> Callable[[], Any]:
        done = ManifestRewriter().run(engine.session.table(name))
        return lambda: {
            "rewritten_manifests_count": len(done.plan.replaced),
            "added_manifests_count": len(done.plan.bins),
        }

    return work
