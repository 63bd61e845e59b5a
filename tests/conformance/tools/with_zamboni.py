"""iceberg-zamboni with its own engine (PyIceberg, DuckDB), in `.venv-rivals`; as it comes, but that all files are rewritten."""

from importlib.metadata import version

import zamboni
from pyiceberg.catalog import load_catalog
from serving import Request, serve
from zamboni.compactor import TableCompactor
from zamboni.config import CompactionConfig
from zamboni.expire import RetentionPolicy, SnapshotExpirer
from zamboni.manifests import ManifestRewriter


def compact(request: Request) -> bool:
    config = CompactionConfig(rewrite_all=True)
    return bool(TableCompactor(_session(request), request["table"], config).execute().added_data_files)


def rewrite_manifests(request: Request) -> bool:
    return ManifestRewriter().run(_session(request).table(request["table"])).snapshot_id is not None


def expire(request: Request) -> bool:
    policy = RetentionPolicy(max_snapshot_age_ms=request["max_age_s"] * 1000, min_snapshots_to_keep=1)
    return bool(SnapshotExpirer(policy).run(_session(request).table(request["table"])).expired_snapshots)


def _session(request: Request) -> zamboni.CatalogSession:
    return zamboni.CatalogSession.from_catalog(load_catalog("suite", type="rest", uri=request["uri"]), threads=2)


if __name__ == "__main__":
    serve(
        {"compact": compact, "rewrite_manifests": rewrite_manifests, "expire": expire},
        lambda: {name: version(name) for name in ("iceberg-zamboni", "pyiceberg", "duckdb")},
    )
