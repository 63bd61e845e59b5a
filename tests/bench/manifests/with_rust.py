"""iceberg-compaction rewrites manifests, clustered by partition."""

from collections.abc import Callable
from typing import Any

from bench.rival.engines import Rust, Target


def rewrite_manifests(engine: Rust, target: Target) -> Callable[[], Any]:
    from iceberg_compaction import RewriteManifests, RewriteManifestsConfig

    name = engine.register(target)
    config = RewriteManifestsConfig(clustering_strategy=engine.request.get("clustering", "single"))

    def work() -> Callable[[], Any]:
        done = RewriteManifests(engine.catalog, name, config).run()
        return lambda: {
            "rewritten_manifests_count": done.replaced_manifests_count,
            "added_manifests_count": done.created_manifests_count,
        }

    return work
