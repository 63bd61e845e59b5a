"""One command beside the jobs: from the command line to its outcome."""

import os
from functools import partial
from typing import Any

import msgspec

from icekeep.catalog.base import Catalog, Table, parse_identifier
from icekeep.catalog.wrappers import check_change, refusal_of
from icekeep.operations.arguments import Command
from icekeep.operations.command_specs import CommandScope, CommandSpec
from icekeep.operations.configuration.catalogs import Catalogs, TableReference, find_table
from icekeep.operations.job_run import Session, known_catalogs, place_of, position_after
from icekeep.operations.jobs import resolve
from icekeep.operations.outcomes import Outcome, Position, position_of
from icekeep.operations.recording import Recording, recorded
from icekeep.operations.rehearsal import Rehearsal, Swap, WatchedCatalog
from icekeep.operations.run_context import RunContext
from icekeep.settings import CatalogChange
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


class CommandRun:
    """One command beside the jobs, from a command line to its outcome; with `--dry-run` it is rehearsed with all its checks."""

    def __init__(self, command: Command, spec: CommandSpec, context: RunContext) -> None:
        self._command, self._spec, self._context, self._state = command, spec, context, context.state

    def outcome(self) -> Outcome:
        """Run the command.

        Raises:
            IcekeepError: any error of the configuration, the table or the command.
        """
        command, spec, state = self._command, self._spec, self._state
        if spec.scope is CommandScope.PLAN:
            # The run is that of the job whose plan it is.
            outcome: Outcome = resolve(spec.run)(command, self._context, **command.arguments)
            return outcome
        state.start(command.name, command.arguments, self._context.runtime)
        context = self._context = self._context.in_run()
        only_looks = bool(command.dry_run or command.arguments.get("lists") or command.arguments.get("dry_run"))
        changes = spec.changes_tables and not only_looks
        state.is_read_only = not changes
        if spec.scope not in (CommandScope.TABLE, CommandScope.NEW_TABLE):
            with recorded(state, None, context) as recording:
                recording.start()
                outcome = self._without_table()
                recording.finish(outcome)
            return outcome
        catalogs = known_catalogs(command.conf, context.seams)
        reference = find_table(catalogs, command.table, command.catalog)
        state.table = reference.full_name
        place = place_of(catalogs, reference, context) if changes else None
        with recorded(state, place, context) as recording:
            if spec.scope is CommandScope.NEW_TABLE:
                outcome = self._on_new_table(reference, recording)
            elif spec.changes:
                outcome = self._committed(reference, recording)
            else:
                outcome = self._on_table(reference, recording, catalogs, changes=changes)
            recording.finish(outcome)
        return outcome

    def _keywords(self) -> dict[str, Any]:
        """What the command's function takes beside what it is about."""
        listener = {"listener": self._context.listener} if self._spec.takes_listener else {}
        return {**self._command.arguments, **listener}

    def _on_new_table(self, reference: TableReference, recording: Recording) -> Outcome:
        runtime = self._context.runtime
        catalog = resolve(self._context.seams.open_catalog)(reference.catalog, runtime=runtime)
        recording.table_loaded(Position())
        with reference.catalog.placing():
            result = resolve(self._spec.run)(catalog, parse_identifier(reference.name), **self._keywords())
        after = Position(result.current_snapshot_id, result.metadata_location)
        return self._state.outcome("done", result, runtime, after=after)

    def _open_catalog(self, catalogs: Catalogs, name: str) -> Catalog:
        settings = catalogs.get(name)
        with settings.placing():
            catalog: Catalog = resolve(self._context.seams.open_catalog)(settings, runtime=self._context.runtime)
        return catalog

    def _load(self, reference: TableReference, recording: Recording) -> tuple[Table, str | None]:
        arguments = self._command.arguments
        ref = arguments.get("branch") or arguments.get("name")
        load = resolve(self._context.seams.load_table)
        table: Table = load(reference, runtime=self._context.runtime).for_run(self._state.run)
        recording.table_loaded(position_of(table, ref))
        return table, ref

    def _committed(self, reference: TableReference, recording: Recording) -> Outcome:
        dry_run = self._command.dry_run
        table, ref = self._load(reference, recording)
        if dry_run:
            self._state.refusal = refusal_of(table.catalog, CatalogChange.COMMIT)
        else:
            # Also where there would be nothing to commit.
            check_change(table.catalog, CatalogChange.COMMIT)
        catalog = Rehearsal(table.catalog, table.storage) if dry_run else WatchedCatalog(table.catalog)
        now = resolve(self._spec.run)(catalog.over(table), **self._command.arguments)
        result = _changed(now, catalog.last_swap, is_rehearsal=dry_run)
        status, after = ("planned", None) if dry_run else ("done", position_of(now, ref))
        return self._state.outcome(status, result, self._context.runtime, is_dry_run=dry_run, after=after)

    def _on_table(
        self, reference: TableReference, recording: Recording, catalogs: Catalogs, *, changes: bool
    ) -> Outcome:
        table, ref = self._load(reference, recording)
        open_catalog = partial(self._open_catalog, catalogs)
        others = {"open_catalog": open_catalog} if self._spec.opens_catalogs else {}
        with Session(f"icekeep {self._command.name} {self._command.table}", self._context) as session:
            spark = {"spark": session.started} if self._spec.takes_spark else {}
            result = resolve(self._spec.run)(table, **self._keywords(), **spark, **others)
        after = position_after(table, ref) if changes else None
        is_plan, status = bool(self._command.arguments.get("dry_run")), getattr(result, "status", "done")
        return self._state.outcome(status, result, self._context.runtime, is_dry_run=is_plan, after=after)

    def _without_table(self) -> Outcome:
        command, spec, context = self._command, self._spec, self._context
        function, keywords = resolve(spec.run), self._keywords()
        match spec.scope:
            case CommandScope.FLEET:
                outcome: Outcome = function(command, context)
                return outcome
            case CommandScope.CATALOGS:
                if (text := spec.texts.get(command.output)) is not None:
                    keywords |= text.arguments
                    if text.check is not None:
                        resolve(text.check)()
                catalogs = partial(known_catalogs, command.conf, context.seams)
                with Session(f"icekeep {command.name}", context) as spark:
                    result = function(catalogs, command.catalog, spark.started, **keywords)
            case CommandScope.POLICIES:
                # A scheduler asks `runs` what became of a job, whatever is wrong with a policy that it does not run.
                known = known_catalogs(command.conf, context.seams, checks_schedules=command.name != "runs")
                opens = partial(resolve(context.seams.open_catalog), runtime=context.runtime)
                result = function(known.config, known, opens, command.catalog, **keywords)
            case CommandScope.CONFIGURATION:
                known = known_catalogs(command.conf, context.seams)
                result = function(known.config, known.all().values(), os.environ)
            case _:
                result = function(**keywords)
        return self._state.outcome(getattr(result, "status", "done"), result, context.runtime)


def _changed(after: Table, swap: Swap | None, *, is_rehearsal: bool) -> TableChanged:
    """What moved, by the swap itself: where references were in the very table that it replaced, whatever others did meanwhile."""
    if swap is None or not swap.is_in(after):
        return TableChanged(
            has_effect=False,
            adds_snapshot=False,
            previous_metadata_location=after.metadata_location,
            metadata_location=after.metadata_location,
            refs=(),
        )
    hidden = swap.added_ids if is_rehearsal else frozenset()
    refs = [_ref_changed(update, swap.base, hidden) for update in swap.updates]
    # A commit may name a snapshot by a reference that it drops again.
    known = swap.base.metadata.refs.keys() | after.metadata.refs.keys()
    return TableChanged(
        has_effect=True,
        adds_snapshot=bool(swap.added_ids),
        previous_metadata_location=swap.base.metadata_location,
        metadata_location=None if is_rehearsal else after.metadata_location,
        refs=tuple(ref for ref in refs if ref is not None and ref.ref in known),
    )


def _ref_changed(update: Update, base: Table, hidden: frozenset[int]) -> RefChanged | None:
    """What an update does to a reference, `None` if nothing; the ids in `hidden` are left out."""
    if not isinstance(update, SetSnapshotRef | RemoveSnapshotRef):
        return None
    before = base.metadata.refs.get(update.ref_name)
    after = update.ref if isinstance(update, SetSnapshotRef) else None
    kind = after or before
    return RefChanged(
        ref=update.ref_name,
        type="" if kind is None else kind.type,
        previous_snapshot_id=None if before is None else before.snapshot_id,
        current_snapshot_id=None if after is None or after.snapshot_id in hidden else after.snapshot_id,
        max_ref_age_ms=None if after is None else after.max_ref_age_ms,
        max_snapshot_age_ms=None if after is None else after.max_snapshot_age_ms,
        min_snapshots_to_keep=None if after is None else after.min_snapshots_to_keep,
    )
