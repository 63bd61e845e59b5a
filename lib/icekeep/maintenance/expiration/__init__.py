"""The job `expire_snapshots`: retention by references, then garbage collection.

metadata -> expired snapshots and refs -> files that only they lead to -> plan on disk -> `ExpireSnapshots` -> reclaimed
"""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.changes.expire_snapshots import ExpireSnapshots
from icekeep.events import SILENT, Listener, StepFinished, StepStarted
from icekeep.maintenance.expiration.execute import expire_and_reclaim
from icekeep.maintenance.expiration.plan import (
    ExpirationPlan,
    garbage_of,
    plan_expire_snapshots,
    refuse,
    retention_policy,
)
from icekeep.maintenance.expiration.result import ExpireSnapshotsResult, result
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.retention import select_expired

__all__ = ["ExpirationPlan", "ExpireSnapshotsResult", "expire_snapshots", "plan_expire_snapshots"]


def expire_snapshots(  # noqa: PLR0913 - the arguments of Iceberg's procedure
    table: Table,
    spark: SparkSession,
    *,
    older_than: int | None = None,
    retain_last: int | None = None,
    snapshot_ids: Sequence[int] = (),
    clean_expired_metadata: bool = False,
    listener: Listener = SILENT,
    runtime: Runtime = SYSTEM,
) -> ExpireSnapshotsResult:
    """Remove snapshots that no policy keeps, and delete the files that only they led to.

    Args:
        older_than: a moment, epoch milliseconds; the table's `history.expire.max-snapshot-age-ms` (5 days) if null.
        retain_last: how many snapshots a branch keeps whatever their age; `history.expire.min-snapshots-to-keep` if null.
        snapshot_ids: snapshots that go even where they would be retained.
        clean_expired_metadata: also remove schemas and partition specs that nothing uses any more.

    Raises:
        SafetyError: the table has `gc.enabled=false`, or not everything that is retained can be read: nothing is deleted.
        UsageError: `snapshot_ids` names the head of a reference.
        UnsupportedError: the table is of a kind that cannot be expired yet.
        ConflictError: others kept changing the table.
        OutcomeUnknownError: the commit may or may not have landed; nothing is deleted.

    Spec: "Snapshot Retention Policy"; properties `history.expire.*`, `gc.enabled`.
    """
    refuse(table.metadata)
    now_ms = runtime.now_ms()
    policy = retention_policy(older_than, retain_last, snapshot_ids)
    expired = select_expired(table.metadata, policy, now_ms)
    if expired.is_empty and not clean_expired_metadata:
        return ExpireSnapshotsResult()
    listener.on(StepStarted("finding files that only expired snapshots lead to"))
    planned = garbage_of(table, spark, expired, now_ms)
    listener.on(StepFinished("finding files that only expired snapshots lead to", f"{len(planned.files)} files"))
    change = ExpireSnapshots(policy=policy, now_ms=now_ms, clean_expired_metadata=clean_expired_metadata)
    done = expire_and_reclaim(table, spark, change, planned, listener, runtime)
    if done is None:
        return ExpireSnapshotsResult()
    gone = done.committed.base.metadata.snapshots_by_id.keys() - done.committed.table.metadata.snapshots_by_id.keys()
    return result(len(gone), done.garbage, done.reclaimed, done.plan_location)
