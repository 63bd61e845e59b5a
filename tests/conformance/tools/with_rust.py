"""iceberg-compaction, a Rust engine of DataFusion, in `.venv-rivals`; run as it comes, but that all files are rewritten."""

from importlib.metadata import version

import iceberg_compaction as rust
from serving import Request, serve


def compact(request: Request) -> bool:
    config = rust.CompactionConfig(strategy="full")
    return rust.Compaction(_catalog(request), request["table"], config).run() is not None


def rewrite_manifests(request: Request) -> bool:
    return rust.RewriteManifests(_catalog(request), request["table"], rust.RewriteManifestsConfig()).run() is not None


def expire(request: Request) -> bool:
    config = rust.ExpireSnapshotsConfig(retain_last=1, max_snapshot_age_secs=request["max_age_s"])
    return rust.ExpireSnapshots(_catalog(request), request["table"], config).run() is not None


def _catalog(request: Request) -> rust.RestCatalog:
    return rust.RestCatalog("suite", uri=request["uri"])


if __name__ == "__main__":
    serve(
        {"compact": compact, "rewrite_manifests": rewrite_manifests, "expire": expire},
        lambda: {"iceberg-compaction": version("iceberg-compaction")},
    )
