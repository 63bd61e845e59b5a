"""All jobs: what the packages say of their own. A new job is added here, and nowhere else outside its package."""

from collections.abc import Mapping

from icekeep.maintenance import compaction, expiration, manifests, orphans, position_deletes, purge
from icekeep.planning import scan
from icekeep.settings import Job

JOBS: Mapping[str, Job] = {
    package.JOB.name: package.JOB
    for package in (scan, compaction, position_deletes, manifests, expiration, orphans, purge)
}
"""By name, in the order in which help lists them."""

POLICY_JOBS: tuple[str, ...] = tuple(
    job.name for _, job in sorted((job.rank, job) for job in JOBS.values() if job.rank is not None)
)
"""The jobs that a policy may ask for, in the order in which they run on a table."""
