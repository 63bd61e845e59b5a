"""iceberg-compaction rewrites manifests, clustered by partition, and compacts a table.

It does so in batches of 8,192 rows, since with its own 1,024 it takes longer; it writes Snappy alone.
"""

from collections.abc import Callable
from typing import Any

from bench.rival.engines import Rust, Target


def rewrite_data_files(engine: Rust, target: Target) -> Callable[[], Any]:
    from iceberg_compaction import Compaction, CompactionConfig

    name = engine.register(target)
    config = CompactionConfig(
        strategy="full",
        target_file_size_bytes=int(engine.request["options"]["target-file-size-bytes"]),
        max_input_parallelism=engine.request["cores"],
        max_output_parallelism=engine.request["cores"],
        max_record_batch_rows=8192,
        enable_prefetch=True,
    )

    def work() -> Callable[[], Any]:
        done = Compaction(engine.catalog, name, config).run()
        return lambda: {
            "rewritten_data_files_count": done.input_files_count,
            "added_data_files_count": done.output_files_count,
        }

    return work


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
