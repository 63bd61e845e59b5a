"""`--plan-out`, which writes a job's plan to a file, and what `apply` says of one that is carried out (`docs/plans.md`)."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.summary import run_of
from icekeep.errors import NotFoundError, UsageError, argument
from icekeep.events import SILENT, Listener
from icekeep.health.prices import Prices
from icekeep.maintenance import drop
from icekeep.maintenance.plans import FORMAT, VERSION, ExactPlan, PlanHead, SavedPlan, write_lines
from icekeep.maintenance.preconditions import AlreadyApplied
from icekeep.operations.console.output import require_new_file, written_at_once
from icekeep.operations.jobs import resolve
from icekeep.operations.outcomes import AppliedBefore, PlanWritten
from icekeep.rendered import Rendered
from icekeep.settings import Job, SettingKind
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.times import moment_ms, whole_days
from icekeep.version import ICEKEEP_VERSION

_SPARK_RUN = "icekeep.planning.spark.jobs:spark_run"


class PlanSource(msgspec.Struct, frozen=True, kw_only=True):
    """Of what, and when, a plan is made.

    Attributes:
        name: of the table, with that of its catalog in the configuration.
        arguments: of the job, absolute.
    """

    job: str
    name: str
    table: Table
    created_ms: int
    arguments: Mapping[str, Any]


def write_exact(
    path: str, exact: ExactPlan, source: PlanSource, prices: Prices | None, listener: Listener = SILENT
) -> PlanWritten:
    """Write a job's plan to a file, all of it or nothing.

    Raises:
        UsageError: it cannot be written, or is there already: somebody may have approved it.
    """
    cost = exact.cost
    costs: dict[str, Any] = msgspec.structs.asdict(cost)
    if prices is not None:
        costs |= {"cost": round(prices.cost(**costs), 6), "currency": prices.currency}
    head = PlanHead(
        format=FORMAT,
        version=VERSION,
        icekeep=ICEKEEP_VERSION,
        job=source.job,
        table=source.name,
        table_uuid=source.table.metadata.table_uuid,
        location=source.table.metadata.location,
        metadata_location=source.table.metadata_location,
        branch=exact.branch,
        snapshot_id=exact.snapshot_id,
        created_ms=source.created_ms,
        arguments=dict(source.arguments),
        approve=exact.approve,
        notes=exact.notes,
        catalog=source.table.catalog.identity,
        decided_by=dict(exact.decided_by),
    )
    try:
        # Lines that are in Spark come from there by jobs of the same run.
        with resolve(_SPARK_RUN)(source.job, source.name, listener):
            require_new_file(path, "plan")
            # At once: a reader sees the whole of it or nothing.
            with written_at_once(path, "plan", is_new=True) as stream:
                totals, digest = write_lines(stream, head, exact.lines, costs)
    finally:
        if exact.close is not None:
            exact.close()
    return PlanWritten(path=path, hash=digest, totals=totals, notes=exact.notes)


def absolute_arguments(job: Job, arguments: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """Arguments as a file has them: ages are moments, and a filter is text, read as of when the plan was made."""
    if arguments.get("approve") is not None:
        raise UsageError(
            f"{argument('approve')} is the hash of a plan, and a new plan is asked for; leave one of them out"
        )
    kinds = {setting.argument: setting.kind for setting in job.settings}
    found = {name: _plain(name, value, kinds.get(name), now_ms) for name, value in arguments.items()}
    return {name: value for name, value in found.items() if value is not None}


def _plain(name: str, value: Any, kind: SettingKind | None, now_ms: int) -> Any:
    if value is None or value is ALWAYS_TRUE:
        return None
    if kind is SettingKind.TIME:
        return moment_ms(value, now_ms)
    if kind is SettingKind.DAYS:
        return whole_days(value)
    if kind in (SettingKind.FILTER, SettingKind.MANIFEST_FILTER) and not isinstance(value, str):
        raise UsageError(f"{argument(name)} is an expression, and a plan's file holds text: give it as text")
    try:
        plain = msgspec.to_builtins(value, str_keys=True)
    except TypeError as error:
        raise UsageError(f"{argument(name)} cannot be written to a plan's file: {error}") from None
    if kind is SettingKind.OPTIONS and isinstance(plain, dict):
        return {key: one for key, one in plain.items() if one is not None}
    return plain


class ApplyResult(Rendered, frozen=True, kw_only=True):
    """What came of a plan.

    Attributes:
        status: that of the job; `planned` where the plan was only held against the table, `done` where there was nothing to do.
        job: whose plan it is.
        plan_hash: of the file.
        applied_before: how it shows that the plan was carried out before, for people; `None` where it was not.
        applied_snapshot_id, applied_run_id: the newest of the snapshots by which it was, and the run that made it; `None` where
            no snapshot of the table says so.
        result: of the job; its plan, where nothing was to be changed; `None` where the plan was carried out before.
    """

    status: str
    job: str
    plan_hash: str
    applied_before: str | None = None
    applied_snapshot_id: int | None = None
    applied_run_id: str | None = None
    result: Any = None


def applied_before(found: AlreadyApplied) -> AppliedBefore:
    """What a job found that carries out a plan of which nothing is left."""
    if not found.snapshots:
        return AppliedBefore(applied_before=str(found))
    newest = max(found.snapshots, key=lambda one: one.sequence_number)
    return AppliedBefore(
        applied_before=str(found), snapshot_id=newest.snapshot_id, run_id=run_of(newest.summary) or None
    )


def dropped_before(job: str, saved: SavedPlan, missing: NotFoundError, identity: Callable[[], str]) -> AppliedBefore:
    """That the table is gone which a plan drops.

    Args:
        identity: gives that of the catalog that has no such table.
    """
    if job != drop.JOB.name:
        raise missing
    asked = identity()
    if saved.head.catalog != asked:
        made_in = "a catalog that it does not name" if saved.head.catalog is None else repr(saved.head.catalog)
        raise NotFoundError(
            f"{missing.message}, which is {asked!r}; the plan was made in {made_in}: name that catalog with --catalog, or "
            "make a new plan",
            catalog=asked,
        )
    return AppliedBefore(
        applied_before=f"{missing.message}: it was carried out before, or somebody else dropped the table"
    )
