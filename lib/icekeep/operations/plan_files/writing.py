"""A job's real plan -> a file, with the arguments as they mean one moment.

What comes of carrying a plan out.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.summary import run_of
from icekeep.errors import NotFoundError, UsageError, argument
from icekeep.events import SILENT, Listener
from icekeep.health.prices import Prices
from icekeep.maintenance import drop
from icekeep.maintenance.saved_plans import AlreadyApplied, ExactPlan, GivenPlan
from icekeep.operations.jobs import resolve
from icekeep.operations.plan_files.format import (
    FORMAT,
    VERSION,
    PlanFile,
    PlanHead,
    PlanTotals,
    Totals,
    write_plan_file,
)
from icekeep.rendered import Rendered
from icekeep.settings import Job, SettingKind
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.times import moment_ms, whole_days
from icekeep.version import ICEKEEP_VERSION

_SPARK_RUN = "icekeep.planning.spark.jobs:spark_run"


class PlanWritten(Rendered, frozen=True, kw_only=True):
    """A plan that lies in a file; bytes and milliseconds are what carrying it out takes, as far as that is known.

    Attributes:
        hash: names the plan: it stands in the snapshots that carry it out.
        notes: what is done beside what the file names.
    """

    path: str
    hash: str
    totals: PlanTotals
    notes: tuple[str, ...] = ()


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """Of what, and when, a plan is made; `table` is its full name."""

    job: str
    table: str
    table_uuid: str | None
    location: str
    metadata_location: str
    created_ms: int
    arguments: Mapping[str, Any]
    catalog: str | None = None

    @classmethod
    def of(cls, job: Job, name: str, table: Table, created_ms: int, arguments: Mapping[str, Any]) -> "Made":
        return cls(
            job=job.name,
            table=name,
            table_uuid=table.metadata.table_uuid,
            location=table.metadata.location,
            metadata_location=table.metadata_location,
            created_ms=created_ms,
            arguments=arguments,
            catalog=table.catalog.identity,
        )


def write_exact(
    path: str, exact: ExactPlan, made: Made, prices: Prices | None, listener: Listener = SILENT
) -> PlanWritten:
    """Write a job's plan to a file, all of it or nothing; raises `UsageError` where it cannot be written."""
    cost = exact.cost
    costs: dict[str, Any] = msgspec.structs.asdict(cost)
    if prices is not None:
        costs |= {"cost": round(prices.cost(**costs), 6), "currency": prices.currency}
    head = PlanHead(
        format=FORMAT,
        version=VERSION,
        icekeep=ICEKEEP_VERSION,
        job=made.job,
        table=made.table,
        table_uuid=made.table_uuid,
        location=made.location,
        metadata_location=made.metadata_location,
        branch=exact.branch,
        snapshot_id=exact.snapshot_id,
        created_ms=made.created_ms,
        arguments=dict(made.arguments),
        approve=exact.approve,
        notes=exact.notes,
        catalog=made.catalog,
        decided_by=dict(exact.decided_by),
    )
    try:
        # Lines that are in Spark come from there by jobs of the same run.
        with resolve(_SPARK_RUN)(made.job, made.table, listener):
            written = write_plan_file(path, head, exact.lines, Totals(costs))
    finally:
        if exact.close is not None:
            exact.close()
    return PlanWritten(path=path, hash=written.hash, totals=written.totals, notes=exact.notes)


def given_of(file: PlanFile) -> GivenPlan:
    head = file.head
    return GivenPlan(
        hash=file.hash,
        created_ms=head.created_ms,
        table_uuid=head.table_uuid,
        location=head.location,
        metadata_location=head.metadata_location,
        snapshot_id=head.snapshot_id,
        branch=head.branch,
        approve=head.approve,
        lines=file.lines,
        catalog=head.catalog,
        decided_by=head.decided_by,
    )


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


class AppliedBefore(msgspec.Struct, frozen=True, kw_only=True):
    """In place of a job's result: nothing of the plan is left to be done, and how that shows.

    Attributes:
        applied_before: that, for people.
        snapshot_id, run_id: the newest of the snapshots by which it was carried out, and the run that made it; `None` where it
            shows in another way.
    """

    applied_before: str
    snapshot_id: int | None = None
    run_id: str | None = None
    status: str = "done"


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
    """What a job found that was given a plan of which nothing is left."""
    if not found.snapshots:
        return AppliedBefore(applied_before=str(found))
    newest = max(found.snapshots, key=lambda one: one.sequence_number)
    return AppliedBefore(
        applied_before=str(found), snapshot_id=newest.snapshot_id, run_id=run_of(newest.summary) or None
    )


def dropped_before(job: str, given: GivenPlan, missing: NotFoundError, identity: Callable[[], str]) -> AppliedBefore:
    """That the table is gone which a plan drops.

    Args:
        identity: gives that of the catalog that has no such table.
    """
    if job != drop.JOB.name:
        raise missing
    asked = identity()
    if given.catalog != asked:
        made_in = "a catalog that it does not name" if given.catalog is None else repr(given.catalog)
        raise NotFoundError(
            f"{missing.message}, which is {asked!r}; the plan was made in {made_in}: name that catalog with --catalog, or "
            "make a new plan",
            catalog=asked,
        )
    return AppliedBefore(
        applied_before=f"{missing.message}: it was carried out before, or somebody else dropped the table"
    )
