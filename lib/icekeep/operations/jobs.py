"""All jobs, by what their packages say of them, and the functions that commands import when their turn has come.

CONTRIBUTING.md lists where else a new job is added. Functions are named as "module:function": help and mistakes
need neither Spark nor Arrow, and tests put fakes in their place.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import msgspec

from icekeep.errors import UsageError
from icekeep.maintenance import (
    check,
    compact,
    deletes,
    drop,
    expire,
    expire_rows,
    manifests,
    orphans,
    partition_stats,
    repair,
    table_stats,
    upgrade,
)
from icekeep.planning import scan
from icekeep.settings import Job

JOBS: Mapping[str, Job] = {
    package.JOB.name: package.JOB
    for package in (
        scan,
        compact,
        deletes,
        manifests,
        partition_stats,
        table_stats,
        expire_rows,
        expire,
        orphans,
        drop,
        check,
        repair,
        upgrade,
    )
}
"""By name, in the order in which help lists them."""

POLICY_JOBS: tuple[str, ...] = tuple(
    job.name for _, job in sorted((job.rank, job) for job in JOBS.values() if job.rank is not None)
)
"""The jobs that a policy may ask for, in the order in which they run on a table."""


def resolve(name: str) -> Callable[..., Any]:
    """Import what a "module:function" names."""
    module, _, attribute = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "icekeep":
            raise
        from icekeep.planning.spark.session import PACKAGES, spark_is_missing

        if missing in PACKAGES:
            raise spark_is_missing() from error
        raise UsageError(f"package {missing!r} is not installed", module=missing) from error
    return found


class Seams(msgspec.Struct, frozen=True, kw_only=True):
    """The rest of the world, as "module:function"; tests name fakes.

    `build_own_session` is for a process that belongs to the command alone; `None`: as for any other.
    """

    load_table: str
    build_session: str
    stop_session: str
    cancel_jobs: str
    live_properties: str
    open_catalog: str = "icekeep.operations.loading:open_settings"
    build_own_session: str | None = None


# All that is imported late, when its turn has come: help and mistakes answer at once and need no Spark.
SEAMS = Seams(
    load_table="icekeep.operations.loading:load_table",
    build_session="icekeep.planning.spark.session:build_session",
    build_own_session="icekeep.planning.spark.own_session:build_own_session",
    stop_session="icekeep.planning.spark.session:stop_session",
    cancel_jobs="icekeep.planning.spark.session:cancel_jobs",
    live_properties="icekeep.planning.spark.session:live_properties",
)
