"""The numbers that conditions of policies are asked of, from the health of a table."""

from icekeep.health.values import TableHealth
from icekeep.policies.triggers import Facts


def facts_of(health: TableHealth, job: str, last_run_ms: int | None = None) -> Facts:
    """What a job's conditions are held against.

    Args:
        last_run_ms: when the job last ended well, where a record of runs tells, epoch milliseconds. Else its newest snapshot
            stands for it; expiration and orphan removal leave none.
    """
    seen = max((one.timestamp_ms for one in health.last_maintenance if one.job == job), default=None)
    return Facts(
        small_files=health.data.small_files_together_count,
        delete_ratio=health.deletes.deleted_ratio,
        manifests=health.metadata.manifests_count,
        overlap=health.metadata.mean_overlap,
        snapshots=health.snapshots.snapshots_count,
        last_run_ms=seen if last_run_ms is None else last_run_ms,
    )
