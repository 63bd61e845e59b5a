"""Expire, then collect: a plan on disk, the commit, a proof on what is true after it, and only then deletion.

    expired snapshots -> files that only they lead to -> plan on disk -> `ExpireSnapshots` -> reclaimed

The plan is written before the commit, so that a crash between commit and deletion leaves a list of what was to go.
"""

from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.changes.snapshots import ExpireSnapshots
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import CommitResult, commit
from icekeep.errors import ClaimedError, IcekeepError, MissingFileError, OutcomeUnknownError, SafetyError, reason_of
from icekeep.events import StepFinished, StepStarted, Warned
from icekeep.maintenance.delete.kept import KeptByPlans
from icekeep.maintenance.delete.lease import PlanLease
from icekeep.maintenance.delete.plan_file import (
    ClassifiedGarbage,
    DeletionPlan,
    PlanDraft,
    combined_digest,
    delete_plan,
    plan_directory,
    write_plan,
)
from icekeep.maintenance.delete.reachable import ReachableLists
from icekeep.maintenance.delete.run import DeletionRun, Reclaimed
from icekeep.maintenance.expire import JOB
from icekeep.maintenance.expire.plan import (
    REST_IS_ORPHANED,
    CleanupLevel,
    after_expiration,
    expiration_draft,
    garbage_between,
)
from icekeep.maintenance.rewrite.run import retry_with_replan, run_name
from icekeep.spec.metadata import TableMetadata, parse_metadata
from icekeep.spec.retention import Expired, select_expired
from icekeep.spelling import counted
from icekeep.storage.locations import canonical

_FINDING = "finding files that only expired snapshots lead to"


class PlannedExpiration(NamedTuple):
    """A plan on disk with the lease on it, both `None` where there is no garbage, and what its proof was made of.

    `table` is what it was planned on.
    """

    table: Table
    found: ClassifiedGarbage
    draft: PlanDraft
    plan: DeletionPlan | None
    lease: PlanLease | None
    seen: ReachableLists
    untotalled_count: int


class Expiration(NamedTuple):
    """What a run did.

    Attributes:
        before, after: the metadata that the commit replaced, and that it made.
        planned: the garbage that it made, and the proof of that.
        plan: what was, or will be, deleted; `None` where there was nothing.
        reclaimed: what became of it; `None` where it is left to a later run.
        kept_reason: why it is left, empty if that is for the grace only.
        is_cut_off: whether it is left although it should have been carried out.
    """

    before: TableMetadata
    after: TableMetadata
    planned: PlannedExpiration
    plan: DeletionPlan | None
    reclaimed: Reclaimed | None = None
    kept_reason: str = ""
    is_cut_off: bool = False


class ExpirationRun:
    """One run of the job, whose plans' leases end with those of its `DeletionRun`."""

    def __init__(
        self, run: DeletionRun, change: ExpireSnapshots, reader: ManifestReader, draft: PlanDraft, clean: CleanupLevel
    ) -> None:
        """Begin with what each plan says, whatever expires (`draft`), and which files go at all."""
        self._run, self._change, self._reader, self._draft, self._clean = run, change, reader, draft, clean
        self._began_ms = run.table.runtime.monotonic_ms()

    def expire(self, expired: Expired) -> Expiration | None:
        """Commit the expiration and delete what it made unreachable; `None` if another run had expired it all already.

        After the commit nothing is raised any more: what stands in the way of the deletion is the reason why the plan is left.
        Where others make references to what is to go it is planned again, unless the plan is an approved one: that, or nothing.

        Raises:
            SafetyError: the plan is not the approved one; nothing was changed.
            ConflictError: others kept making references to what was to go, or changing the table.
        """
        run = self._run
        done = retry_with_replan(
            run.table,
            partial(self._planned_and_committed, expired),
            what=lambda: "snapshots that expire",
            listener=run.listener,
            only_once=run.request.approve is not None,
        )
        if done is None:
            return None
        planned, committed = done
        try:
            return self._collected(planned, committed)
        except Exception as error:  # noqa: BLE001 - whatever it was, "nothing was changed" would be wrong now; the next run goes on
            where = (
                "" if planned.plan is None else f"; what was to go with them is listed in {planned.plan.directory!r}"
            )
            reason = f"the snapshots are expired, and not all of their files are deleted: {reason_of(error)}{where}"
            run.listener.on(Warned(reason))
            before, after = committed.base.metadata, committed.table.metadata
            return Expiration(before, after, planned, planned.plan, kept_reason=reason, is_cut_off=True)

    def _planned_and_committed(
        self, expired: Expired, now: Table, number: int
    ) -> tuple[PlannedExpiration, CommitResult] | None:
        """Plan on the table as it is now, as the run's `number`th plan, and commit; `None` where nothing is left to expire."""
        run = self._run.on(now)
        reading = self._reader.with_storage(now.storage)
        chosen = expired if number == 1 else self._change.expired(now.metadata, reading)
        if number > 1 and chosen.is_empty:
            return None
        run.listener.on(StepStarted(_FINDING))
        planned = self._planned(run, chosen, number)
        run.listener.on(StepFinished(_FINDING, counted(sum(f.files_count for f in planned.found.files), "files")))
        forget = partial(_delete_unless_landed, planned.plan, now)
        try:
            # What is on disk before the commit is what goes with it.
            committed = commit(
                now,
                msgspec.structs.replace(self._change, expected=chosen),
                reader=reading,
                runtime=now.runtime,
                listener=run.listener,
                undo=forget,
            )
        except OutcomeUnknownError:
            raise
        except IcekeepError:
            forget()
            raise
        if not committed.changed:
            forget()
            return None
        return planned, committed

    def _planned(self, run: DeletionRun, expired: Expired, number: int) -> PlannedExpiration:
        """Write a plan of what the table, as it was loaded, would make garbage; approved, if that is asked."""
        draft = expiration_draft(self._draft, expired, run_name(run.table, number)).at(run.now_ms)
        return self._written(run, run.table.metadata, draft, after_expiration(run.table, expired, run.now_ms))

    def _written(
        self, run: DeletionRun, before: TableMetadata, draft: PlanDraft, after: TableMetadata | None = None
    ) -> PlannedExpiration:
        """The plan of what went, or will go, between some metadata and the table; approved where that is asked before."""
        table = run.table
        garbage, seen = garbage_between(before, run, self._clean, after)
        directory = plan_directory(table, draft)
        refusal = None if after is None else "nothing is expired"
        found = run.classified(garbage, draft, refusal, REST_IS_ORPHANED, directory)
        plan = lease = None
        if found.parts:
            lease = run.lease(directory, JOB.name)
            # Its times count from now, when its proof is made and the commit follows, not from the begin of the run.
            draft = draft.at(run.now_ms + table.runtime.monotonic_ms() - self._began_ms)
            plan = write_plan(found, draft, table, table.runtime, base=msgspec.structs.replace(table, metadata=before))
        return PlannedExpiration(table, found, draft, plan, lease, seen, garbage.untotalled_count)

    def _collected(self, planned: PlannedExpiration, committed: CommitResult) -> Expiration:
        """Delete what is garbage by the metadata that was really replaced and the one that is current now.

        The plan's proof holds if nobody committed since it was made; otherwise it is made again, since what others added may
        name a file again.
        """
        latest = planned.table.catalog.load(planned.table.identifier)
        run = self._run.on(latest)
        before = _predecessor(committed, self._change, latest)
        after = committed.table.metadata
        gone = before.snapshots_by_id.keys() - latest.metadata.snapshots_by_id.keys()
        old = planned
        if not _nobody_else(planned.table, committed, latest):
            draft = msgspec.structs.replace(old.draft, run=f"{old.draft.run}-anew", snapshot_ids=tuple(sorted(gone)))
            planned = self._written(run, before, draft)
            if run.request.approve is not None and not _is_same(planned.found, old.found):
                run.listener.on(
                    Warned(
                        "others changed the table, and what is garbage now is not what was approved: no file is deleted"
                    )
                )
                _delete(planned.plan, latest)
                reason = "what is garbage now is not what was approved; the next run deletes it"
                return Expiration(before, after, planned, old.plan, kept_reason=reason)
            if old.lease is not None:
                try:
                    old.lease.check(latest.storage, latest.runtime)
                except ClaimedError:
                    # Another run is at the first plan, and what it moves comes back by that alone.
                    _delete(planned.plan, latest)
                    raise
            _delete(old.plan, latest)
        plan, lease = planned.plan, planned.lease
        if plan is None or lease is None or self._draft.grace_ms:
            return Expiration(before, after, planned, plan)
        done = run.carry_out(plan, lease, planned.seen)
        if isinstance(done, KeptByPlans):
            return Expiration(before, after, planned, plan, kept_reason=done.reason)
        return Expiration(before, after, planned, plan, done, done.stopped, is_cut_off=bool(done.stopped))


def _is_same(found: ClassifiedGarbage, other: ClassifiedGarbage) -> bool:
    return combined_digest(p.digest for p in found.parts) == combined_digest(p.digest for p in other.parts)


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
        SafetyError: it would have, or that is not known.
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


def _delete_unless_landed(plan: DeletionPlan | None, table: Table) -> None:
    """Delete a plan that was not committed; one whose snapshots are gone stays, for it may be the only word of its files.

    Nothing is raised: an error here would hide what became of the commit, and a later run deletes the plan.
    """
    with suppress(Exception):
        if plan is not None:
            latest = table.catalog.load(table.identifier)
            if latest.metadata.snapshots_by_id.keys() >= set(plan.snapshot_ids):
                delete_plan(plan, latest.storage)


def _delete(plan: DeletionPlan | None, table: Table) -> None:
    if plan is not None:
        delete_plan(plan, table.storage)
