"""icekeep plans, or does, what is measured of tables of millions of files; with its answer comes what Spark did meanwhile."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

import icekeep
from bench.rival.engines import Icekeep, Target
from bench.scale.counting import SparkCounts
from bench.scale.listing import AbsentFilesStorage
from bench.tables.scale_shapes import Scale
from icekeep.planning.spark.session import Engine, Limits

_NOTHING_HERE = Limits(**dict.fromkeys(Limits.__struct_fields__, 0))
"""Small tables warm up what large ones need: all of it is done in tasks."""

_Work = Callable[[], Callable[[], dict[str, Any]]]


def plan_scan(engine: Icekeep, target: Target) -> _Work:
    return _counted(engine, target, icekeep.plan_scan)


def plan_binpack(engine: Icekeep, target: Target) -> _Work:
    # Footers cannot be looked at where there are no files.
    return _counted(engine, target, icekeep.plan_compact, options={"stitch": "never"})


def plan_sort(engine: Icekeep, target: Target) -> _Work:
    return _counted(engine, target, icekeep.plan_compact, sort_order="id")


def plan_position_deletes(engine: Icekeep, target: Target) -> _Work:
    return _counted(engine, target, icekeep.plan_rewrite_position_deletes)


def plan_expiration(engine: Icekeep, target: Target) -> _Work:
    moment = engine.request["older_than_ms"]
    return _counted(engine, target, icekeep.plan_expire_snapshots, older_than=moment, retain_last=1)


def expire_snapshots(engine: Icekeep, target: Target) -> _Work:
    moment = engine.request["older_than_ms"]
    return _counted(engine, target, icekeep.expire_snapshots, older_than=moment, retain_last=1, trash=0)


def plan_orphans(engine: Icekeep, target: Target) -> _Work:
    return _counted(engine, target, partial(_plan_orphans, engine.request["shapes"][target["catalog"]]))


def check(engine: Icekeep, target: Target) -> _Work:
    return _counted(engine, target, partial(_check, engine.request["shapes"][target["catalog"]]))


def table_health(engine: Icekeep, target: Target) -> _Work:
    return _counted(engine, target, icekeep.table_health)


def rewrite_manifests(engine: Icekeep, target: Target) -> _Work:
    return _counted(engine, target, icekeep.rewrite_manifests)


def _plan_orphans(shape: Any, table: Any, spark: Any) -> Any:
    return icekeep.plan_remove_orphan_files(_with_files(table, shape), spark)


def _check(shape: Any, table: Any, spark: Any) -> Any:
    return icekeep.check(_with_files(table, shape), spark)


def _with_files(table: Any, shape: Any) -> Any:
    storage = AbsentFilesStorage(msgspec.convert(shape, Scale), table.metadata.location)
    return msgspec.structs.replace(table, storage=storage)


def _counted(engine: Icekeep, target: Target, job: Callable[..., Any], **arguments: Any) -> _Work:
    table, spark = engine.load(target), engine.spark
    source = Engine(spark=spark, limits=_NOTHING_HERE) if target["is_small"] else spark

    def work() -> Callable[[], dict[str, Any]]:
        with SparkCounts(spark) as counts:
            result = job(table, source, **arguments)
        return lambda: {**counts.figures(), **_said(result)}

    return work


def _said(result: Any) -> dict[str, Any]:
    """What a result counts."""
    values = {name: getattr(result, name) for name in result.__struct_fields__}
    return {name: value for name, value in values.items() if name.endswith("_count") and isinstance(value, int)}
