"""Expire, then collect: a plan on disk, the commit, a proof on what is true after it, and only then deletion."""

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.changes.expire_snapshots import ExpireSnapshots
from icekeep.commit.retry import CommitResult, commit
from icekeep.errors import ConflictError, IcekeepError, MissingFileError, OutcomeUnknownError, SafetyError
from icekeep.events import Listener, StepFinished, StepStarted, Warned
from icekeep.maintenance.deletion.earlier import settle_plan
from icekeep.maintenance.deletion.options import ReclaimOptions
from icekeep.maintenance.deletion.plans import DeletionPlan, forget_plan, refuse_unapproved
from icekeep.maintenance.deletion.reclaim import Reclaimed, reclaim
from icekeep.maintenance.deletion.territory import Territory
from icekeep.maintenance.deletion.writing import PlanDraft, Sorted, plan_directory, sort_garbage, write_plan
from icekeep.maintenance.expiration.plan import after_expiration, garbage_between
from icekeep.planning.sessions import SparkSource
from icekeep.runtime import Runtime
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.metadata_codec import parse_metadata
from icekeep.spec.retention import Expired, select_expired
from icekeep.storage.locations import canonical

_PLANS_MAX = 10
"""So often a run plans anew, when others make references to what was to go."""

_FINDING = "finding files that only expired snapshots lead to"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was told about deletion, worked out."""

    options: ReclaimOptions
    territory: Territory
    max_concurrent_deletes: int | None
    trust_totals: bool
    approve: str | None
    grace_ms: int
    trash_days_ms: int
    now_ms: int


class Expiration(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did.

    Attributes:
        snapshots_count: how many snapshots are gone.
        ref_names: which branches and tags are gone.
        schemas_count, specs_count: how many schemas and partition specs are gone.
        found: the garbage that it made.
        plan: what was, or will be, deleted; null where there was nothing.
        reclaimed: what became of it; null where it is left to a later run.
        kept_reason: why it is left, empty if that is for the grace only.
    """

    snapshots_count: int
    ref_names: tuple[str, ...]
    schemas_count: int
    specs_count: int
    found: Sorted
    untotalled_count: int
    plan: DeletionPlan | None
    reclaimed: Reclaimed | None = None
    kept_reason: str = ""


class _Planned(msgspec.Struct, frozen=True):
    found: Sorted
    draft: PlanDraft
    plan: DeletionPlan | None
    untotalled_count: int


def expire_and_reclaim(
    table: Table,
    spark: SparkSource,
    change: ExpireSnapshots,
    expired: Expired,
    wish: Wish,
    listener: Listener,
    runtime: Runtime,
) -> Expiration | None:
    """Commit the expiration and delete what it made unreachable; null if another run had expired it all already.

    The plan is written before the commit, so that a crash between commit and deletion leaves a list of what was to go.

    Raises:
        SafetyError: the plan is not the approved one, and nothing was changed; or after the commit not everything could be
            read, and the snapshots are gone and no file is.
    """
    for _ in range(_PLANS_MAX):
        listener.on(StepStarted(_FINDING))
        planned = _planned(table, spark, expired, wish, runtime)
        listener.on(StepFinished(_FINDING, f"{sum(f.files_count for f in planned.found.files)} files"))
        try:
            # What is on disk before the commit is what goes with it.
            exactly = msgspec.structs.replace(change, expected=expired)
            committed = commit(table, exactly, runtime=runtime, listener=listener)
            break
        except OutcomeUnknownError:
            raise
        except IcekeepError as error:
            table = _forgotten_unless_landed(planned.plan, table)
            if wish.approve is not None or not isinstance(error, ConflictError) or "kept_count" not in error.facts:
                raise
            expired = select_expired(table.metadata, change.policy, change.now_ms)
            if expired.is_empty and not change.clean_expired_metadata:
                return None
    else:
        raise ConflictError(f"others kept changing what expires in {table.name!r}; run it again")
    if not committed.changed:
        _forgotten_unless_landed(planned.plan, table)
        return None
    try:
        return _reclaimed(table, spark, change, committed, planned, wish, listener, runtime)
    except IcekeepError as error:
        # Whatever it was, "nothing was changed" would be wrong now; the next run finds the plan and finishes it.
        where = (
            "" if planned.plan is None else f", and what was to go with them is listed in {planned.plan.directory!r}"
        )
        raise SafetyError(f"{error.message}; the snapshots are expired already{where}", **error.facts) from error


def _planned(table: Table, spark: SparkSource, expired: Expired, wish: Wish, runtime: Runtime) -> _Planned:
    """Write the plan of what the table, as it was loaded, would make garbage; approved, if that is asked."""
    metadata = table.metadata
    draft = PlanDraft(
        job="expire_snapshots",
        run=str(runtime.new_uuid()),
        snapshot_ids=tuple(sorted(expired.snapshot_ids)),
        ref_names=tuple(sorted(expired.ref_names)),
        not_before_ms=wish.now_ms + wish.grace_ms,
        trash_until_ms=wish.now_ms + wish.grace_ms + wish.trash_days_ms if wish.trash_days_ms else None,
        keeps_before=bool(expired.snapshot_ids),
    )
    garbage = garbage_between(
        metadata,
        table,
        spark,
        wish.now_ms,
        trust_totals=wish.trust_totals,
        after_metadata=after_expiration(table, expired, wish.now_ms),
    ).garbage
    found = sort_garbage(garbage, wish.territory, plan_directory(table, draft), table.storage)
    try:
        refuse_unapproved(wish.approve, found.hash(table, draft), "nothing is expired")
    except SafetyError:
        table.storage.delete_many([part.location for part in found.parts])
        raise
    plan = write_plan(found, draft, table, runtime) if found.parts else None
    return _Planned(found, draft, plan, garbage.untotalled_count)


def _reclaimed(  # noqa: PLR0913 - the parts of one run
    table: Table,
    spark: SparkSource,
    change: ExpireSnapshots,
    committed: CommitResult,
    planned: _Planned,
    wish: Wish,
    listener: Listener,
    runtime: Runtime,
) -> Expiration:
    """Delete what is garbage by the metadata that was really replaced and the one that is current now.

    The plan's proof holds if nobody committed since it was made; otherwise it is made anew, since what others added may
    name a file again.
    """
    latest = table.catalog.load(table.identifier)
    before = _predecessor(committed, change, latest)
    gone = before.snapshots_by_id.keys() - latest.metadata.snapshots_by_id.keys()
    draft, found, plan, untotalled = planned.draft, planned.found, planned.plan, planned.untotalled_count
    if not _nobody_else(table, committed, latest):
        draft = msgspec.structs.replace(draft, run=str(runtime.new_uuid()), snapshot_ids=tuple(sorted(gone)))
        garbage = garbage_between(before, latest, spark, wish.now_ms, trust_totals=wish.trust_totals).garbage
        untotalled = garbage.untotalled_count
        found = sort_garbage(garbage, wish.territory, plan_directory(latest, draft), latest.storage)
        base = msgspec.structs.replace(latest, metadata=before)
        plan = write_plan(found, draft, latest, runtime, base=base) if found.parts else None
        if wish.approve is not None and not _is_same(found, planned.found):
            listener.on(
                Warned("others changed the table, and what is garbage now is not what was approved: no file is deleted")
            )
            _forget(plan, latest)
            return _expiration(
                before,
                committed,
                found,
                untotalled,
                planned.plan,
                kept_reason="what is garbage now is not what was approved; the next run deletes it",
            )
        _forget(planned.plan, latest)
    reclaimed = None
    if plan is not None and plan.not_before_ms <= wish.now_ms:
        reclaimed = reclaim(
            plan,
            latest,
            wish.territory,
            spark,
            options=wish.options,
            max_concurrent_deletes=wish.max_concurrent_deletes,
            listener=listener,
            runtime=runtime,
        )
        settle_plan(plan, reclaimed, latest.storage)
    return _expiration(before, committed, found, untotalled, plan, reclaimed)


def _expiration(
    before: TableMetadata,
    committed: CommitResult,
    found: Sorted,
    untotalled_count: int,
    plan: DeletionPlan | None,
    reclaimed: Reclaimed | None = None,
    kept_reason: str = "",
) -> Expiration:
    after = committed.table.metadata
    return Expiration(
        snapshots_count=len(before.snapshots_by_id.keys() - after.snapshots_by_id.keys()),
        ref_names=tuple(sorted(before.refs.keys() - after.refs.keys())),
        schemas_count=len(before.schemas_by_id.keys() - after.schemas_by_id.keys()),
        specs_count=len(before.specs_by_id.keys() - after.specs_by_id.keys()),
        found=found,
        untotalled_count=untotalled_count,
        plan=plan,
        reclaimed=reclaimed,
        kept_reason=kept_reason,
    )


def _is_same(found: Sorted, other: Sorted) -> bool:
    return sum(int(p.digest, 16) for p in found.parts) == sum(int(p.digest, 16) for p in other.parts)


def _nobody_else(table: Table, committed: CommitResult, latest: Table) -> bool:
    """Whether the commit replaced the very table that was planned for, and nobody committed after it."""
    predecessors = [entry.metadata_file for entry in latest.metadata.metadata_log[-1:]]
    return (
        committed.base.metadata_location == table.metadata_location
        and latest.metadata_location == committed.table.metadata_location
        and [canonical(location) for location in predecessors] == [canonical(table.metadata_location)]
    )


def _predecessor(committed: CommitResult, change: ExpireSnapshots, latest: Table) -> TableMetadata:
    """The metadata that the commit really replaced, and the policy proved again on it.

    A catalog that applies updates to whatever is current may have applied them to another base than ours, in which the
    policy would have kept more.

    Raises:
        SafetyError: it would have, or it cannot be told.
    """
    base, after = committed.base, committed.table
    if base.catalog.compares_metadata:
        return base.metadata
    log = [entry.metadata_file for entry in after.metadata.metadata_log]
    if not log or canonical(log[-1]) == canonical(base.metadata_location):
        return base.metadata
    try:
        replaced = parse_metadata(latest.storage.read(log[-1]), log[-1])
    except MissingFileError as error:
        raise SafetyError(
            f"nothing is deleted: the metadata that the commit replaced, {log[-1]!r}, is not there any more, so that it cannot "
            "be proved what the policy keeps of it"
        ) from error
    gone = replaced.snapshots_by_id.keys() - after.metadata.snapshots_by_id.keys()
    lost = gone - select_expired(replaced, change.policy, change.now_ms).snapshot_ids
    if lost:
        raise SafetyError(
            f"nothing is deleted: others changed the table at the same time, and snapshots {', '.join(map(str, sorted(lost)))} "
            f"went that the policy keeps in {log[-1]!r}",
            snapshot_ids=sorted(lost),
        )
    return replaced


def _forgotten_unless_landed(plan: DeletionPlan | None, table: Table) -> Table:
    """Forget a plan that was not committed; one whose snapshots are gone stays, for it may be the only word of its files."""
    latest = table.catalog.load(table.identifier)
    if plan is not None and latest.metadata.snapshots_by_id.keys() >= set(plan.snapshot_ids):
        forget_plan(plan, latest.storage)
    return latest


def _forget(plan: DeletionPlan | None, table: Table) -> None:
    if plan is not None:
        forget_plan(plan, table.storage)
