"""icekeep expires snapshots, or removes orphan files."""

from collections.abc import Callable
from typing import Any

import msgspec

import icekeep
from bench.rival.engines import Icekeep, Target

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
