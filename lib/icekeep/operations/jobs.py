"""All jobs: what the packages say of their own. A new job is added here, and nowhere else outside its package."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from icekeep.errors import UsageError
from icekeep.maintenance import check as checking
from icekeep.maintenance import compact as compaction
from icekeep.maintenance import deletes as position_deletes
from icekeep.maintenance import drop as purge
from icekeep.maintenance import expire as expiration
from icekeep.maintenance import manifests, orphans
from icekeep.maintenance import repair as repairing
from icekeep.planning import scan
from icekeep.settings import Job

JOBS: Mapping[str, Job] = {
    package.JOB.name: package.JOB
    for package in (scan, compaction, position_deletes, manifests, expiration, orphans, purge, checking, repairing)
}
"""By name, in the order in which help lists them."""

POLICY_JOBS: tuple[str, ...] = tuple(
    job.name for _, job in sorted((job.rank, job) for job in JOBS.values() if job.rank is not None)
)
"""The jobs that a policy may ask for, in the order in which they run on a table."""


def resolve(name: str) -> Callable[..., Any]:
    """Import what a "module:function" names.

    Raises:
        UsageError: it needs a package that is not installed.
    """
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
