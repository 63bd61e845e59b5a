"""icekeep plans scans, compacts, expires snapshots, removes orphan files, and rewrites manifests or merges them in an append."""

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

import icekeep
from bench.rival.engines import Icekeep, Target
from bench.rival.watching import timed_plans
from icekeep import compact, plan_scan, rewrite_position_deletes


def plan(engine: Icekeep, target: Target) -> Callable[[], Any]:
    """Of a table that was just loaded, which is not counted; with a memory, if the request says so, that earlier plans filled."""
    table = engine.load(target)
    return planning(
        engine, _memory().over(table) if engine.request.get("remembers") else table, engine.request["where"]
    )


@cache
def _memory() -> Any:
    from icekeep import Memory

    return Memory()


def planning(engine: Icekeep, table: Any, where: str) -> Callable[[], Any]:
    def work() -> Callable[[], dict[str, int]]:
        found = plan_scan(table, engine.spark, where=where)
        count, size = found.data_files_count, found.data_files_bytes
        return lambda: {"data_files_count": count, "data_files_bytes": size}

    return work


def plan_compaction(engine: Icekeep, target: Target) -> Callable[[], Any]:
    """Of a table whose data files are not there: footers cannot be looked at."""
    table = engine.load(target)

    def work() -> Callable[[], dict[str, int]]:
        found = icekeep.plan_compact(table, engine.spark, options={"stitch": "never"})
        return lambda: _rewritten(found.rewritten_data_files_count, found.rewritten_bytes_count)

    return work


def plan_position_deletes(engine: Icekeep, target: Target) -> Callable[[], Any]:
    table = engine.load(target)

    def work() -> Callable[[], dict[str, int]]:
        found = icekeep.plan_rewrite_position_deletes(table, engine.spark)
        return lambda: _rewritten(found.rewritten_delete_files_count, found.rewritten_bytes_count)

    return work


def _rewritten(files: int, size_bytes: int) -> dict[str, int]:
    return {"data_files_count": files, "data_files_bytes": size_bytes}


def rewrite_data_files(engine: Icekeep, target: Target) -> Callable[[], Any]:
    request = engine.request
    stitch = {"stitch": request["stitch"]} if "stitch" in request else {}
    arguments = {**request["arguments"], "options": {**request["options"], **stitch}}

    def work() -> Callable[[], Any]:
        result = compact(engine.load(target), engine.spark, **arguments)
        return lambda: msgspec.to_builtins(result)

    return work


def rewrite_position_delete_files(engine: Icekeep, target: Target) -> Callable[[], Any]:
    def work() -> Callable[[], Any]:
        result = rewrite_position_deletes(engine.load(target), engine.spark, options=engine.request["options"])
        return lambda: msgspec.to_builtins(result)

    return work


def opened(engine: Icekeep, _: Target) -> Callable[[], Any]:
    """Of each table the mean number of data files that a query opens."""

    def work() -> Callable[[], dict[str, float]]:
        filters, means = engine.request["filters"], {}
        for catalog, name in engine.request["tables"]:
            table = engine.load({"catalog": catalog, "name": name})
            counts = [plan_scan(table, engine.spark, where=where).data_files_count for where in filters]
            means[catalog] = sum(counts) / len(counts)
        return lambda: means

    return work


SOME = 100


def expire_snapshots(engine: Icekeep, target: Target) -> Callable[[], Any]:
    moment = engine.request["older_than_ms"]

    def work() -> Callable[[], Any]:
        table = engine.load(target)
        result = icekeep.expire_snapshots(table, engine.spark, older_than=moment, retain_last=1, trash=0)
        return lambda: msgspec.to_builtins(result)

    return work


def remove_orphan_files(engine: Icekeep, target: Target) -> Callable[[], Any]:
    request = engine.request
    job = icekeep.plan_remove_orphan_files if request["is_dry_run"] else icekeep.remove_orphan_files

    def work() -> Callable[[], Any]:
        found = job(engine.load(target), engine.spark, older_than=request["older_than_ms"], trash=0)
        some = [location.rpartition("/")[2] for location in found.orphan_file_locations[:SOME]]
        return lambda: {"orphans_count": found.orphan_files_count, "some": some}

    return work


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
