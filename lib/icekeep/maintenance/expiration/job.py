"""The job `expire_snapshots`: retention by references, then garbage collection.

metadata -> expired snapshots and refs -> files that only they lead to -> plan on disk -> `ExpireSnapshots` -> reclaimed
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.changes.expire_snapshots import ExpireSnapshots
from icekeep.events import SILENT, Listener
from icekeep.maintenance.deletion.clock import safe_now_ms
from icekeep.maintenance.deletion.earlier import DeletionRequest, Earlier, finish_earlier
from icekeep.maintenance.deletion.neighbours import neighbours
from icekeep.maintenance.deletion.options import (
    ExpirationOptions,
    asked_trash_days,
    checked_options,
    trash_days,
)
from icekeep.maintenance.deletion.reclaim import refuse_if_gc_is_disabled
from icekeep.maintenance.deletion.territory import territory
from icekeep.maintenance.deletion.writing import ClassifiedGarbage, PlanDraft, classify_garbage
from icekeep.maintenance.expiration import JOB
from icekeep.maintenance.expiration.execute import ExpirationRequest, expire_and_reclaim
from icekeep.maintenance.expiration.holdings import ref_holdings
from icekeep.maintenance.expiration.plan import (
    ExpireSnapshotsPlan,
    after_expiration,
    expiration_plan,
    garbage_between,
    retention_policy,
)
from icekeep.maintenance.expiration.result import ExpireSnapshotsResult, result
from icekeep.maintenance.runs import sweep_runs
from icekeep.planning.refusals import refuse_encrypted
from icekeep.planning.spark.source import SparkSource, check_source
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.retention import select_expired
from icekeep.spec.times import Days, Moment
from icekeep.spec.units import DAY_MS
from icekeep.storage.locations import parse_location

__all__ = ["ExpireSnapshotsPlan", "ExpireSnapshotsResult", "expire_snapshots", "plan_expire_snapshots"]


def expire_snapshots(  # noqa: PLR0913 - the arguments of Iceberg's procedure, and ours
    table: Table,
    spark: SparkSource = None,
    *,
    older_than: Moment | None = None,
    retain_last: int | None = None,
    snapshot_ids: Sequence[int] = (),
    clean_expired_metadata: bool = False,
    max_concurrent_deletes: int | None = None,
    stream_results: bool = False,
    trash: Days | None = None,
    approve: str | None = None,
    trust_manifest_list: bool = False,
    options: Mapping[str, Any] | ExpirationOptions | None = None,
    listener: Listener = SILENT,
    runtime: Runtime = SYSTEM,
) -> ExpireSnapshotsResult:
    """Remove snapshots that no policy keeps, and delete the files that only they led to.

    What earlier runs left to be done is done too, as far as it is due.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. None is needed for
            small tables.
        older_than: a moment, or how long ago; the table's `history.expire.max-snapshot-age-ms` (5 days) if `None`.
        retain_last: how many snapshots a branch keeps whatever their age; `history.expire.min-snapshots-to-keep` if `None`.
        snapshot_ids: snapshots that go even where they would be retained.
        clean_expired_metadata: also remove schemas and partition specs that nothing uses any more.
        max_concurrent_deletes: so many calls that delete at once, at most; as many as there is work for if `None`.
        stream_results: as Iceberg's; lists of files are never held as a whole here.
        trash: how many days deleted files stay in `.icekeep/trash/`, from where `restore` brings them back; 0 deletes them at
            once. `None` is 3 on local disks and HDFS, 0 elsewhere.
        approve: the hash of a plan (`plan_expire_snapshots`): exactly that goes, or nothing; nor does what earlier runs left.
        trust_manifest_list: go on although a snapshot's summary counts other files than its manifest list.
        options: `deletion.options.ExpirationOptions`.

    Raises:
        SafetyError: the table has `gc.enabled=false`, another table has this very location or is this one, a writer needs one of
            `snapshot_ids`, the plan is not the approved one, or not everything that is retained can be read: nothing is
            deleted.
        UsageError: `snapshot_ids` names the head of a reference.
        UnsupportedError: the table is of a kind that cannot be expired yet.
        ConflictError: others kept changing the table.
        OutcomeUnknownError: the commit may or may not have landed; nothing is deleted.

    Spec: "Snapshot Retention Policy"; properties `history.expire.*`, `gc.enabled`.
    """
    check_source(spark)
    trash = asked_trash_days(trash)
    checked = check_arguments(
        table.metadata, trash=trash, max_concurrent_deletes=max_concurrent_deletes, options=options
    )
    around = neighbours(table, refuses_overlap=False, listener=listener)
    now_ms = safe_now_ms(table, runtime)
    days = trash_days(trash, parse_location(table.metadata.location).scheme)
    policy = retention_policy(older_than, retain_last, snapshot_ids, checked, now_ms)
    expired = select_expired(table.metadata, policy, now_ms)
    deleting = DeletionRequest(
        options=checked,
        max_concurrent_deletes=max_concurrent_deletes,
        trust_totals=trust_manifest_list,
        skips_trash=trash == 0,
        other_places=around.inner_places,
    )
    request = ExpirationRequest(
        deletion=deleting,
        territory=territory(table.metadata, checked.roots, around.inner_places),
        approve=approve,
        grace_ms=checked.grace_ms(compares_metadata=table.catalog.compares_metadata),
        trash_days_ms=days * DAY_MS,
        now_ms=now_ms,
        began_ms=runtime.monotonic_ms(),
    )
    done = None
    is_tried = not expired.is_empty or clean_expired_metadata or approve is not None
    if is_tried:
        change = ExpireSnapshots(policy=policy, now_ms=now_ms, clean_expired_metadata=clean_expired_metadata)
        done = expire_and_reclaim(table, spark, change, expired, request, listener, runtime)
    earlier = Earlier()
    if approve is None:
        # What is approved is all that goes.
        own = "" if done is None or done.plan is None else done.plan.directory
        earlier = finish_earlier(table, spark, now_ms, deleting, but=own, listener=listener, runtime=runtime)
        sweep_runs(table, runtime, keep="", listener=listener)
    return result(expired, done, earlier, around)


def plan_expire_snapshots(  # noqa: PLR0913 - as the job
    table: Table,
    spark: SparkSource = None,
    *,
    older_than: Moment | None = None,
    retain_last: int | None = None,
    snapshot_ids: Sequence[int] = (),
    clean_expired_metadata: bool = False,
    max_concurrent_deletes: int | None = None,
    stream_results: bool = False,
    trash: Days | None = None,
    approve: str | None = None,
    trust_manifest_list: bool = False,
    options: Mapping[str, Any] | ExpirationOptions | None = None,
    listener: Listener = SILENT,
    runtime: Runtime = SYSTEM,
) -> ExpireSnapshotsPlan:
    """Say what `expire_snapshots` with the same arguments would do, and what each reference keeps alive; raises as it does.

    Nothing is written: plans of earlier runs stay as they are, and only our clock is asked what time it is.
    """
    check_source(spark)
    metadata = table.metadata
    checked = check_arguments(
        metadata, trash=asked_trash_days(trash), max_concurrent_deletes=max_concurrent_deletes, options=options
    )
    around = neighbours(table, refuses_overlap=False, listener=listener)
    now_ms = runtime.now_ms()
    expired = select_expired(metadata, retention_policy(older_than, retain_last, snapshot_ids, checked, now_ms), now_ms)
    after = metadata if expired.is_empty else after_expiration(table, expired, now_ms)
    found, untotalled_count = ClassifiedGarbage(), 0
    if not expired.is_empty:
        garbage = garbage_between(
            metadata, table, spark, now_ms, trust_totals=trust_manifest_list, after_metadata=after
        ).garbage
        found = classify_garbage(garbage, territory(metadata, checked.roots, around.inner_places), None, table.storage)
        untotalled_count = garbage.untotalled_count
    draft = PlanDraft(
        job=JOB.name,
        run="",
        snapshot_ids=tuple(sorted(expired.snapshot_ids)),
        ref_names=tuple(sorted(expired.ref_names)),
    )
    plan = expiration_plan(
        metadata,
        expired,
        found,
        untotalled_count,
        ref_holdings(after, table.storage, spark),
        found.hash(table, draft),
    )
    return msgspec.structs.replace(plan, unlisted_reason=around.unlisted_reason, unreadable_tables=around.unreadable)


def check_arguments(
    metadata: TableMetadata,
    *,
    trash: int | None = None,
    max_concurrent_deletes: int | None = None,
    options: Mapping[str, Any] | ExpirationOptions | None = None,
    **_: Any,
) -> ExpirationOptions:
    """Hold the arguments against the table, before anything is planned; returns the options.

    Raises:
        SafetyError: the table has `gc.enabled=false`.
        UnsupportedError: the table is encrypted.
        OptionError: an argument has a value that it cannot take.
    """
    refuse_if_gc_is_disabled(metadata)
    refuse_encrypted(metadata, JOB.name)
    checked = checked_options(ExpirationOptions, options, max_concurrent_deletes, trash)
    territory(metadata, checked.roots)
    return checked
