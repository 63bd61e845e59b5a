"""icekeep rewrites manifests, or merges them in an append; and plans the table before and after."""

from collections.abc import Callable
from typing import Any

import msgspec

import icekeep
from bench.manifests.plans import timed_plans
from bench.planning.with_icekeep import planning
from bench.rival.engines import Icekeep, Target


def rewrite_manifests(engine: Icekeep, target: Target) -> Callable[[], Any]:
    def work() -> Callable[[], Any]:
        result = icekeep.rewrite_manifests(engine.load(target), engine.spark)
        return lambda: msgspec.to_builtins(result)

    return work


def append(engine: Icekeep, target: Target) -> Callable[[], Any]:
    """One file in one commit, which merges manifests where the table has enough of them."""
    # Behind the door: another checkout may have none of these.
    from icekeep.commit.changes.files import AppendFiles
    from icekeep.commit.retry import commit
    from icekeep.planning.commit_readers import MergingManifestReader
    from icekeep.spec.manifests.structs import DataFile

    path, day, size_bytes, records = (engine.request["file"][name] for name in ("path", "day", "bytes", "records"))
    file = DataFile(
        file_path=path,
        file_format="PARQUET",
        spec_id=0,
        partition=(day,),
        record_count=records,
        file_size_in_bytes=size_bytes,
    )
    table, change = engine.load(target), AppendFiles(files=(file,))

    def work() -> Callable[[], Any]:
        commit(table, change, reader=MergingManifestReader(table.storage))
        return dict

    return work


def plans(engine: Icekeep, target: Target) -> dict[str, Any]:
    return timed_plans(engine.request["filters"], lambda asked: planning(engine, engine.load(target), asked["where"]))
