"""One command beside the jobs: from the command line to what moved.

What is told comes from the swap itself: the references in its updates, and where they were in the very table that it
replaced, whatever others did between the loading of the table and the commit.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from icekeep.catalog.base import Table, parse_identifier
from icekeep.operations.arguments import Command
from icekeep.operations.catalogs import find_table
from icekeep.operations.config import read_config
from icekeep.operations.jobs import resolve
from icekeep.operations.rehearsal import Rehearsal, Swap, WatchedCatalog
from icekeep.operations.running_jobs import Outcome, Session, Surroundings, known_catalogs
from icekeep.operations.verbs import About, Verb
from icekeep.spec.updates import RemoveSnapshotRef, SetSnapshotRef, Update


class RefChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A branch or tag before and after; `None` before it was made, after it was dropped. Its limits are those after.

    In a rehearsal `current_snapshot_id` is null too where the commit would make the snapshot.
    """

    ref: str
    type: str
    previous_snapshot_id: int | None
    current_snapshot_id: int | None
    max_ref_age_ms: int | None = None
    max_snapshot_age_ms: int | None = None
    min_snapshots_to_keep: int | None = None


class TableChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What a command did, or would do.

    Attributes:
        has_effect: whether there is anything to do.
        adds_snapshot: whether the commit made a snapshot of its own.
        metadata_location: the table's metadata after it; `None` for a rehearsed change, which writes none.
    """

    has_effect: bool
    adds_snapshot: bool
    previous_metadata_location: str
    metadata_location: str | None
    refs: tuple[RefChanged, ...]


def run_verb(command: Command, verb: Verb, surroundings: Surroundings) -> Outcome:
    """Run a command or, with `--dry-run`, rehearse it with all its checks.

    Raises:
        IcekeepError: any error of the configuration, the table or the command.
    """
    if verb.about is About.CATALOGS:
        return _run_over_catalogs(command, verb, surroundings)
    if verb.about is About.POLICIES:
        return _run_over_policies(command, verb, surroundings)
    seams, runtime = surroundings.seams, surroundings.runtime
    reference = find_table(known_catalogs(command.conf, seams), command.table, command.catalog)
    function = resolve(verb.run)
    extras = {"listener": surroundings.listener} if verb.takes_listener else {}
    if verb.about is About.NEW_TABLE:
        catalog_of = resolve(seams.open_catalog)(reference.catalog, runtime=runtime)
        result = function(catalog_of, parse_identifier(reference.name), **command.arguments, **extras)
        return Outcome(job=command.name, table=reference.full_name, dry_run=False, status="done", result=result)
    table: Table = resolve(seams.load_table)(reference, runtime=runtime)
    if not verb.changes:
        result = _with_spark(command, verb, surroundings, partial(function, table, **command.arguments, **extras))
        status = getattr(result, "status", "done")
    else:
        status = "planned" if command.dry_run else "done"
        catalog = Rehearsal(table.catalog, table.storage) if command.dry_run else WatchedCatalog(table.catalog)
        after = function(catalog.watched(table), **command.arguments)
        result = _changed(after, catalog.last_swap, is_rehearsal=command.dry_run)
    return Outcome(job=command.name, table=reference.full_name, dry_run=command.dry_run, status=status, result=result)


def _run_over_catalogs(command: Command, verb: Verb, surroundings: Surroundings) -> Outcome:
    catalogs = partial(known_catalogs, command.conf, surroundings.seams)
    spark = Session(f"icekeep {command.name}", surroundings)
    extras = {"listener": surroundings.listener} if verb.takes_listener else {}
    try:
        result = resolve(verb.run)(catalogs, command.catalog, spark.started, **command.arguments, **extras)
    finally:
        spark.stop()
    return Outcome(job=command.name, dry_run=False, status=result.status, result=result)


def _run_over_policies(command: Command, verb: Verb, surroundings: Surroundings) -> Outcome:
    catalogs = known_catalogs(command.conf, surroundings.seams)
    opens = partial(resolve(surroundings.seams.open_catalog), runtime=surroundings.runtime)
    result = resolve(verb.run)(read_config(command.conf), catalogs, opens, command.catalog, **command.arguments)
    return Outcome(job=command.name, dry_run=False, status=result.status, result=result)


def _with_spark(command: Command, verb: Verb, surroundings: Surroundings, function: Callable[..., Any]) -> Any:
    """What a function returns, which may start a session if it takes one."""
    if not verb.takes_spark:
        return function()
    spark = Session(f"icekeep {command.name} {command.table}", surroundings)
    try:
        return function(spark=spark.started)
    finally:
        spark.stop()


def _changed(after: Table, swap: Swap | None, *, is_rehearsal: bool) -> TableChanged:
    if swap is None or not swap.is_in(after):
        return TableChanged(
            has_effect=False,
            adds_snapshot=False,
            previous_metadata_location=after.metadata_location,
            metadata_location=after.metadata_location,
            refs=(),
        )
    untold = swap.added_ids if is_rehearsal else frozenset()
    refs = [_ref_changed(update, swap.base, untold) for update in swap.updates]
    # A commit may name a snapshot by a reference that it drops again.
    known = swap.base.metadata.refs.keys() | after.metadata.refs.keys()
    return TableChanged(
        has_effect=True,
        adds_snapshot=bool(swap.added_ids),
        previous_metadata_location=swap.base.metadata_location,
        metadata_location=None if is_rehearsal else after.metadata_location,
        refs=tuple(ref for ref in refs if ref is not None and ref.ref in known),
    )


def _ref_changed(update: Update, base: Table, untold: frozenset[int]) -> RefChanged | None:
    """What an update does to a reference, `None` if nothing; the ids in `untold` are left out."""
    if not isinstance(update, SetSnapshotRef | RemoveSnapshotRef):
        return None
    before = base.metadata.refs.get(update.ref_name)
    after = update.ref if isinstance(update, SetSnapshotRef) else None
    previous_id = None if before is None else before.snapshot_id
    if after is None:
        kind = "" if before is None else before.type
        return RefChanged(ref=update.ref_name, type=kind, previous_snapshot_id=previous_id, current_snapshot_id=None)
    return RefChanged(
        ref=update.ref_name,
        type=after.type,
        previous_snapshot_id=previous_id,
        current_snapshot_id=None if after.snapshot_id in untold else after.snapshot_id,
        max_ref_age_ms=after.max_ref_age_ms,
        max_snapshot_age_ms=after.max_snapshot_age_ms,
        min_snapshots_to_keep=after.min_snapshots_to_keep,
    )
