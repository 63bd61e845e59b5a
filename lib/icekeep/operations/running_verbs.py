"""One command beside the jobs: from the command line to what moved.

What is told comes from the swap itself: the references in its updates, and where they were in the very table that it
replaced, whatever others did between the loading of the table and the commit.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from icekeep.catalog.base import Table, parse_identifier
from icekeep.operations.arguments import Command
from icekeep.operations.configuration.catalogs import TableReference, find_table
from icekeep.operations.job_run import Session, known_catalogs, place_of, position_after
from icekeep.operations.jobs import resolve
from icekeep.operations.outcomes import Outcome, Position, position_of
from icekeep.operations.recording import Recording, recorded
from icekeep.operations.rehearsal import Rehearsal, Swap, WatchedCatalog
from icekeep.operations.surroundings import Surroundings
from icekeep.operations.verbs import About, Verb, tells_of_runs
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
    begun = surroundings.begun
    if verb.about is About.PLAN:
        # The run is that of the job whose plan it is.
        outcome: Outcome = resolve(verb.run)(command, surroundings, **command.arguments)
        return outcome
    begun.begin(command.name, command.arguments, surroundings.runtime)
    surroundings = surroundings.in_run(command.conf)
    if verb.about in _OF_NO_TABLE:
        begun.only_tells = not tells_of_runs(verb) or command.dry_run or bool(command.arguments.get("lists"))
        with recorded(begun, None, surroundings) as recording:
            recording.began()
            outcome = _OF_NO_TABLE[verb.about](command, verb, surroundings)
            recording.ended(outcome)
        return outcome
    catalogs = known_catalogs(command.conf, surroundings.seams)
    reference = find_table(catalogs, command.table, command.catalog)
    begun.table = reference.full_name
    changes = (verb.changes or verb.also_changes) and not _only_looks(command)
    place = place_of(catalogs, reference, surroundings) if changes else None
    begun.only_tells = not changes
    with recorded(begun, place, surroundings) as recording:
        if verb.about is About.NEW_TABLE:
            outcome = _run_on_new_table(command, verb, reference, surroundings, recording)
        else:
            outcome = _run_on_table(command, verb, reference, surroundings, recording)
        recording.ended(outcome)
    return outcome


def _run_on_new_table(
    command: Command, verb: Verb, reference: TableReference, surroundings: Surroundings, recording: Recording
) -> Outcome:
    catalog = resolve(surroundings.seams.open_catalog)(reference.catalog, runtime=surroundings.runtime)
    recording.found(Position())
    extras = {"listener": surroundings.listener} if verb.takes_listener else {}
    with reference.catalog.placing():
        result = resolve(verb.run)(catalog, parse_identifier(reference.name), **command.arguments, **extras)
    after = Position(result.current_snapshot_id, result.metadata_location)
    return surroundings.begun.outcome("done", result, surroundings.runtime, after=after)


def _run_on_table(
    command: Command, verb: Verb, reference: TableReference, surroundings: Surroundings, recording: Recording
) -> Outcome:
    begun, runtime, function = surroundings.begun, surroundings.runtime, resolve(verb.run)
    table: Table = resolve(surroundings.seams.load_table)(reference, runtime=runtime).for_run(begun.run)
    ref = _ref_of(command)
    recording.found(position_of(table, ref))
    if verb.changes:
        catalog = Rehearsal(table.catalog, table.storage) if command.dry_run else WatchedCatalog(table.catalog)
        now = function(catalog.watched(table), **command.arguments)
        result = _changed(now, catalog.last_swap, is_rehearsal=command.dry_run)
        status, after = ("planned", None) if command.dry_run else ("done", position_of(now, ref))
        return begun.outcome(status, result, runtime, is_dry_run=command.dry_run, after=after)
    extras = {"listener": surroundings.listener} if verb.takes_listener else {}
    result = _with_spark(command, verb, surroundings, partial(function, table, **command.arguments, **extras))
    after = position_after(table, ref) if verb.also_changes and not _only_looks(command) else None
    is_planned = bool(command.arguments.get("dry_run"))
    return begun.outcome(getattr(result, "status", "done"), result, runtime, is_dry_run=is_planned, after=after)


def _only_looks(command: Command) -> bool:
    """Whether a command that may change a table is asked not to."""
    return bool(command.dry_run or command.arguments.get("lists") or command.arguments.get("dry_run"))


def _ref_of(command: Command) -> str | None:
    """The branch or tag that a command is about, if it names one."""
    named = command.arguments.get("branch") or command.arguments.get("name")
    return None if named is None else str(named)


def _run_over_catalogs(command: Command, verb: Verb, surroundings: Surroundings) -> Outcome:
    catalogs = partial(known_catalogs, command.conf, surroundings.seams)
    extras: dict[str, Any] = {"listener": surroundings.listener} if verb.takes_listener else {}
    if (text := verb.texts.get(command.output)) is not None:
        extras |= text.arguments
        if text.check is not None:
            resolve(text.check)()
    with Session(f"icekeep {command.name}", surroundings) as spark:
        result = resolve(verb.run)(catalogs, command.catalog, spark.started, **command.arguments, **extras)
    return surroundings.begun.outcome(result.status, result, surroundings.runtime)


def _run_over_policies(command: Command, verb: Verb, surroundings: Surroundings) -> Outcome:
    # A scheduler asks it what became of a job, whatever is wrong with a policy that it does not run.
    checks_schedules = command.name != "runs"
    catalogs = known_catalogs(command.conf, surroundings.seams, checks_schedules=checks_schedules)
    opens = partial(resolve(surroundings.seams.open_catalog), runtime=surroundings.runtime)
    extras = {"listener": surroundings.listener} if verb.takes_listener else {}
    result = resolve(verb.run)(catalogs.config, catalogs, opens, command.catalog, **command.arguments, **extras)
    return surroundings.begun.outcome(result.status, result, surroundings.runtime)


def _run_on_nothing(command: Command, verb: Verb, surroundings: Surroundings) -> Outcome:
    extras = {"listener": surroundings.listener} if verb.takes_listener else {}
    result = resolve(verb.run)(**command.arguments, **extras)
    return surroundings.begun.outcome(getattr(result, "status", "done"), result, surroundings.runtime)


def _run_over_fleet(command: Command, verb: Verb, surroundings: Surroundings) -> Outcome:
    outcome: Outcome = resolve(verb.run)(command, surroundings)
    return outcome


_OF_NO_TABLE: Mapping[About, Callable[[Command, Verb, Surroundings], Outcome]] = {
    About.NOTHING: _run_on_nothing,
    About.CATALOGS: _run_over_catalogs,
    About.POLICIES: _run_over_policies,
    About.FLEET: _run_over_fleet,
}


def _with_spark(command: Command, verb: Verb, surroundings: Surroundings, function: Callable[..., Any]) -> Any:
    """What a function returns, which may start a session if it takes one."""
    if not verb.takes_spark:
        return function()
    with Session(f"icekeep {command.name} {command.table}", surroundings) as spark:
        return function(spark=spark.started)


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
