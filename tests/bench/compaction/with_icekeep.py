"""icekeep compacts a table, or merges its position deletes; and which files queries open afterwards."""

from collections.abc import Callable
from typing import Any

import msgspec

from bench.rival.engines import Icekeep, Target
from icekeep import compact, plan_scan, rewrite_position_deletes


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
