"""The job `upgrade`: obstacles looked for, then one commit of metadata alone.

metadata, entries of heads -> obstacles -> refused, or `UpgradeTable`, which asks again where others committed meanwhile

No file is written but the metadata, and none is deleted. Snapshots stay as they are: the first one after an upgrade to version 3
gives all rows of its branch their ids (spec, "Row Lineage for Upgraded Tables").
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import UpgradeTable
from icekeep.commit.retry import commit
from icekeep.errors import OptionError, SafetyError, UsageError, argument
from icekeep.maintenance.jobs import JobResult, PlannedRequest, takes
from icekeep.maintenance.plans import TABLE, ExactPlan, PlanCost, PlanLine
from icekeep.maintenance.preconditions import AlreadyApplied, moved
from icekeep.maintenance.rewrite.run import retry_with_replan
from icekeep.maintenance.upgrade import JOB
from icekeep.maintenance.upgrade.obstacles import FORCIBLE, UpgradeObstacle, against, obstacles_of
from icekeep.planning.scan.plan import refuse_encrypted
from icekeep.planning.spark.session import SparkSource
from icekeep.rendered import Rendered
from icekeep.spec.metadata import SUPPORTED_FORMAT_VERSION, TableMetadata
from icekeep.spec.snapshots import MAIN

_DO = "upgrade"


class UpgradeResult(JobResult, frozen=True, kw_only=True):
    """What an upgrade did.

    Attributes:
        is_upgraded: whether the format version was raised; not where the table has it already.
        forced: names of the obstacles that were there and did not hold it up, since the caller said so.
        obstacles: all that was to be known before.
        metadata_location: the table's metadata file after it.
    """

    work = ("is_upgraded",)

    status: str = "done"
    is_upgraded: bool = False
    previous_format_version: int
    format_version: int
    forced: tuple[str, ...] = ()
    obstacles: tuple[UpgradeObstacle, ...] = ()
    metadata_location: str
    elapsed_ms: int = 0
    run_id: str | None = None


class UpgradePlan(Rendered, frozen=True, kw_only=True):
    """What stands in the way of an upgrade.

    Attributes:
        is_upgraded: whether the run would raise the format version: nothing holds it up, and the table has it not.
        held_up_by: names of the obstacles because of which the run would refuse.
        obstacles: all that is to be known before, what holds it up first.
    """

    is_upgraded: bool
    previous_format_version: int
    format_version: int
    held_up_by: tuple[str, ...] = ()
    obstacles: tuple[UpgradeObstacle, ...] = ()


class UpgradeRequest(PlannedRequest, frozen=True, kw_only=True):
    """The arguments of `upgrade_table`, which says what each means."""

    to: int = 0
    force: str | Sequence[str] = ()

    @property
    def forced(self) -> frozenset[str]:
        """The names in `force`."""
        given = self.force.split(",") if isinstance(self.force, str) else self.force
        return frozenset(name.strip() for name in given)


@takes(UpgradeRequest, JOB.name, asks=JOB.asks)
def upgrade_table(table: Table, request: UpgradeRequest) -> UpgradeResult:
    """Give a table a newer format version, once nothing stands in its way. There is no way back, but no file changes either.

    Args:
        spark: none is needed for small tables.
        to: the format version, 2 or 3.
        force: names of obstacles that do not hold it up, as a list, or a text with commas: `engines`, `equality-deletes`,
            `flink-history`.
        saved: a plan that was written before (`apply_plan` reads it): that, or nothing.

    Raises:
        SafetyError: an obstacle holds it up that `force` does not name, or a saved plan does not hold any more.
        UsageError: there is no such format version, or the table has a newer one.
        UnsupportedError: the table is encrypted.
        InvalidTableError, MissingFileError: a manifest list or a manifest that a branch or tag leads to cannot be read.
        ConflictError: others kept changing the table.
        OutcomeUnknownError: the commit may or may not have landed.

    Spec: "Row Lineage for Upgraded Tables", Appendix E.
    """
    _check(table.metadata, request)
    _check_saved(request, table.metadata)
    before = table.metadata.format_version
    if before == request.to:
        return UpgradeResult(
            previous_format_version=before, format_version=before, metadata_location=table.metadata_location
        )
    return retry_with_replan(
        table,
        partial(_looked_at_and_committed, request=request),
        what=lambda: "snapshots and obstacles",
        listener=request.listener,
        only_once=request.saved is not None,
    )


def _looked_at_and_committed(table: Table, number: int, request: UpgradeRequest) -> UpgradeResult:
    before, to = table.metadata.format_version, request.to
    found = obstacles_of(table, to, request.spark)
    if held := [one for one in found if one.holds_up and one.name not in request.forced]:
        raise SafetyError(
            f"table {table.name!r} stays at format version {before}: {_held_text(held)}",
            obstacles=[one.name for one in held],
        )
    seen = frozenset(table.metadata.snapshots_by_id)
    change = UpgradeTable(to, str(table.runtime.new_uuid()), partial(against, to=to, seen=seen, forced=request.forced))
    landed = commit(table, change, listener=request.listener)
    return UpgradeResult(
        is_upgraded=landed.changed,
        previous_format_version=before,
        format_version=landed.table.metadata.format_version,
        forced=tuple(one.name for one in found if one.holds_up),
        obstacles=found,
        metadata_location=landed.table.metadata_location,
    )


def _held_text(held: Sequence[UpgradeObstacle]) -> str:
    """Why it is refused, in one line."""
    first = f"{held[0].found}; {held[0].advice}"
    names = ", ".join(one.name for one in held)
    others = f" ({names} hold it up; a dry run shows all)" if len(held) > 1 else f" ({names})"
    return f"{first}{others}"


@takes(UpgradeRequest)
def plan_upgrade_table(table: Table, request: UpgradeRequest) -> UpgradePlan:
    """Say what stands in the way of `upgrade_table` with the same arguments; writes nothing, and refuses no obstacle."""
    return _foreseen(table, request)


@takes(UpgradeRequest, JOB.name)
def exact_upgrade_table(table: Table, request: UpgradeRequest) -> ExactPlan:
    """What `upgrade_table` with the same arguments would do; raises as it does, and writes nothing."""
    plan = _foreseen(table, request)
    if plan.held_up_by:
        held = [one for one in plan.obstacles if one.name in plan.held_up_by]
        raise SafetyError(
            f"there is no plan for table {table.name!r}: {_held_text(held)}", obstacles=list(plan.held_up_by)
        )
    head = table.metadata.head(MAIN)
    lines = []
    if plan.is_upgraded:
        state = f"{plan.previous_format_version} to {plan.format_version}"
        lines = [PlanLine(do=_DO, kind=TABLE, name=table.name, state=state)]
    return ExactPlan(
        shown=plan, snapshot_id=None if head is None else head.snapshot_id, lines=lines, cost=PlanCost(requests_count=1)
    )


def _foreseen(table: Table, request: UpgradeRequest) -> UpgradePlan:
    _check(table.metadata, request)
    _check_saved(request, table.metadata)
    before = table.metadata.format_version
    found = obstacles_of(table, request.to, request.spark)
    held = tuple(one.name for one in found if one.holds_up and one.name not in request.forced)
    return UpgradePlan(
        is_upgraded=before != request.to and not held,
        previous_format_version=before,
        format_version=before if held else request.to,
        held_up_by=held,
        obstacles=found,
    )


def look_before_upgrade(table: Table, to: int, spark: SparkSource = None) -> tuple[UpgradeObstacle, ...]:
    """What is to be known before a table gets a format version, also where it is encrypted; raises as `upgrade_table`."""
    _check_version(table.metadata, to)
    return obstacles_of(table, to, spark)


@takes(UpgradeRequest)
def check_arguments(metadata: TableMetadata, request: UpgradeRequest) -> None:
    """Hold the arguments against the table, before anything is looked at; raises what `upgrade_table` says of them."""
    _check(metadata, request)


def _check(metadata: TableMetadata, request: UpgradeRequest) -> None:
    refuse_encrypted(metadata, JOB.name)
    for name in sorted(request.forced):
        if name not in FORCIBLE:
            raise OptionError("force", given=name, expected=f"names of obstacles among {', '.join(FORCIBLE)}")
    _check_version(metadata, request.to)


def _check_version(metadata: TableMetadata, to: int) -> None:
    if not to:
        raise UsageError(f"no format version is given; say which one it is to be by {argument('to')}, such as 3")
    if not 1 <= to <= SUPPORTED_FORMAT_VERSION:
        raise UsageError(
            f"{argument('to')} is {to}, and there is no such format version that icekeep writes; give 2 or "
            f"{SUPPORTED_FORMAT_VERSION}",
            given=to,
        )
    if to < metadata.format_version:
        raise UsageError(
            f"the table has format version {metadata.format_version}, which cannot become {to}: there is no way back",
            given=to,
        )


def _check_saved(request: UpgradeRequest, metadata: TableMetadata) -> None:
    """Hold a saved plan against the table.

    Raises:
        AlreadyApplied: the table has the format version.
        SafetyError: its format version is another one than it was.
    """
    saved = request.saved
    line: Any = None if saved is None else next(iter(saved.lines()), None)
    if saved is None or line is None:
        return
    if metadata.format_version == request.to:
        raise AlreadyApplied(
            f"the table has format version {request.to}: it was carried out before, or somebody else upgraded it"
        )
    if line.state != f"{metadata.format_version} to {request.to}":
        raise moved(saved, metadata, f"the table has format version {metadata.format_version} now")
