"""iceberg-zamboni rewrites manifests in Python, by PyIceberg's reader and writer."""

from collections.abc import Callable
from typing import Any

from bench.rival.engines import Target, Zamboni


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
