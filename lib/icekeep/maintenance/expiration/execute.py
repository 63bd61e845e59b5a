"""Expire, then collect: a plan on disk, the commit, a proof on what is true after it, and only then deletion."""

import msgspec
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.changes.expire_snapshots import ExpireSnapshots
from icekeep.commit.retry import CommitResult, commit
from icekeep.errors import IcekeepError, OutcomeUnknownError, SafetyError
from icekeep.events import Listener
from icekeep.maintenance.reachability import Unreachable, unreachable
from icekeep.maintenance.reclaim import Reclaimed, reclaim, write_plan
from icekeep.runtime import Runtime
from icekeep.storage.locations import canonical


class Expiration(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did: the commit, the garbage that it made, and what became of it."""

    committed: CommitResult
    garbage: Unreachable
    reclaimed: Reclaimed
    plan_location: str


def expire_and_reclaim(
    table: Table,
    spark: SparkSession,
    change: ExpireSnapshots,
    planned: Unreachable,
    listener: Listener,
    runtime: Runtime,
) -> Expiration | None:
    """Commit the expiration and delete what it made unreachable; null if another run had expired it all already.

    The plan is written before the commit, so that a crash between commit and deletion leaves a list of what was to go.

    Raises:
        SafetyError: after the commit not everything could be read; the snapshots are gone, no file is.
    """
    run = str(runtime.new_uuid())
    plan_location = write_plan(planned, table.metadata, table.storage, "expire_snapshots", run)
    try:
        committed = commit(table, change, runtime=runtime, listener=listener)
    except OutcomeUnknownError:
        raise
    except IcekeepError:
        table.storage.delete_many([plan_location])
        raise
    if not committed.changed:
        table.storage.delete_many([plan_location])
        return None
    try:
        garbage, latest = _proved_again(table, spark, committed, planned)
    except IcekeepError as error:
        # Whatever it was, "nothing was changed" would be wrong now, and another run would find no snapshot to expire.
        raise SafetyError(
            f"{error.message}; the snapshots are expired already, and what was to go with them is listed in {plan_location!r}"
        ) from error
    if garbage != planned:
        table.storage.delete_many([plan_location])
        plan_location = write_plan(garbage, latest.metadata, table.storage, "expire_snapshots", f"{run}-2")
    reclaimed = reclaim(garbage, latest.metadata, table.storage, listener)
    if not reclaimed.failed:
        table.storage.delete_many([plan_location])
    return Expiration(committed=committed, garbage=garbage, reclaimed=reclaimed, plan_location=plan_location)


def _proved_again(
    table: Table, spark: SparkSession, committed: CommitResult, planned: Unreachable
) -> tuple[Unreachable, Table]:
    """The garbage by the metadata that was really replaced and the one that is current now.

    The plan's proof holds if nobody committed since it was made; otherwise it is made anew, since what others added may
    name a file again. A catalog that applies updates to whatever is current may have applied them to another base than
    ours: the metadata log says to which.
    """
    latest = table.catalog.load(table.identifier)
    predecessors = [entry.metadata_file for entry in latest.metadata.metadata_log[-1:]]
    nobody_else = (
        committed.base.metadata_location == table.metadata_location
        and latest.metadata_location == committed.table.metadata_location
        and [canonical(location) for location in predecessors] == [canonical(table.metadata_location)]
    )
    if nobody_else:
        return planned, latest
    return unreachable(table, spark, committed.base.metadata, latest.metadata), latest
