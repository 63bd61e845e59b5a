"""The numbers that conditions of policies are asked of, from the health of a table."""

from collections.abc import Sequence

from icekeep.health.values import TableHealth
from icekeep.policies.triggers import Facts
from icekeep.spec.snapshots import MAIN

_SWEEPING = frozenset({"expire_snapshots", "remove_orphan_files"})
"""Jobs that also finish what earlier runs left, of which a table's health says nothing."""


def facts_of(health: TableHealth, job: str, last_run_ms: int | None = None, *, arguments: Sequence[str] = ()) -> Facts:
    """What a job's conditions are held against.

    Args:
        arguments: of the job's command line: what it would do is known of the default ones alone.
        last_run_ms: when the job last ended well, where a record of runs tells, epoch milliseconds. Else its newest snapshot
            stands for it; expiration and orphan removal leave none.
    """
    seen = max((one.timestamp_ms for one in health.last_maintenance if one.job == job), default=None)
    return Facts(
        small_files=health.data.small_files_together_count,
        delete_ratio=health.deletes.deleted_ratio,
        manifests=health.metadata.manifests_count,
        overlap=health.metadata.mean_overlap,
        snapshots=health.snapshots.snapshots_count - _named_count(health),
        last_run_ms=seen if last_run_ms is None else last_run_ms,
        idle="" if arguments or job in _SWEEPING else _idle(health, job),
    )


def _named_count(health: TableHealth) -> int:
    """The snapshots that no expiration can remove, since a tag or a branch beside `main` names them."""
    return len({ref.snapshot_id for ref in health.refs if ref.ref != MAIN})


def _idle(health: TableHealth, job: str) -> str:
    """Why a job would do nothing, by its own plan."""
    return next((one.reason for one in health.jobs if one.job == job and one.is_exact and not one.has_work), "")
