"""The command `drop`: forget a table and, with `--purge`, delete every file that its metadata leads to.

metadata and its history -> all files -> plan beside the tables -> the catalog forgets the table -> deleted, for good

Of a table whose metadata does not load the catalog forgets the name alone: only metadata says which files are the table's own, so
none is deleted, and a purge is refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from shlex import quote
from typing import Any, NamedTuple

import msgspec

from icekeep.catalog.base import Catalog, Identifier, Pointer, Table, format_identifier
from icekeep.errors import (
    ConflictError,
    IcekeepError,
    InvalidTableError,
    MissingFileError,
    OutcomeUnknownError,
    SafetyError,
    UsageError,
    argument,
    reason_of,
    shown_command,
)
from icekeep.events import StepFinished, StepStarted, Warned
from icekeep.maintenance.check.metadata import last_sound
from icekeep.maintenance.delete.lease import PlanLease, holding, new_lease
from icekeep.maintenance.delete.locations import check_roots, named_roots
from icekeep.maintenance.delete.neighbours import Neighbours
from icekeep.maintenance.delete.options import ReclaimOptions, accepted_names, checked_options
from icekeep.maintenance.delete.pending import PendingPlans
from icekeep.maintenance.delete.plan_file import (
    DROPPED,
    HEAD,
    ClassifiedGarbage,
    DeletionPlan,
    PlanDraft,
    delete_draft,
    delete_plan,
    read_part,
    refuse_unapproved,
    write_plan,
)
from icekeep.maintenance.delete.reachable import (
    FilesOfKind,
    GarbageFile,
    added,
    by_kind,
    garbage_table,
    refuse_if_gc_is_disabled,
)
from icekeep.maintenance.delete.run import DeletionRequest, DeletionRun, Reclaimed
from icekeep.maintenance.delete.saved import DELETE, deletion_cost, deletion_lines
from icekeep.maintenance.drop import JOB
from icekeep.maintenance.drop.history import all_garbage, hint_of, moved_by_drop
from icekeep.maintenance.drop.pending import (
    carry_out,
    checked_neighbours,
    finish_purges,
    foreseen_purges,
    own_files,
    purges_directory,
    writable_purges_directory,
)
from icekeep.maintenance.jobs import JobResult, PlannedRequest, takes
from icekeep.maintenance.plans import TABLE, ExactPlan, PlanLine
from icekeep.maintenance.preconditions import moved
from icekeep.maintenance.rewrite.run import run_name
from icekeep.names import full_name
from icekeep.planning.scan.plan import refuse_encrypted
from icekeep.rendered import Rendered
from icekeep.runs import Run
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spelling import counted
from icekeep.storage.base import Storage
from icekeep.storage.locations import is_under

_FINDING = "finding all files of the table"


class DropResult(JobResult, frozen=True, kw_only=True):
    """What a drop did; bytes are those that metadata records.

    Attributes:
        status: `partial` when not all files were deleted: the next purge of a table of the catalog tries again.
        kept_outside_files_count: files of the table that lie outside its places: they may belong to others.
        unreadable_tables: tables that cannot be loaded and were accepted by name.
        unreadable_files: metadata, manifest lists and manifests that cannot be read; what only they lead to stays.
        finished_files_count: files of purges that had not come to their end.
        plan_location: where the plan lies that is not finished.
        problems: why this purge, or one that died before, was not carried out to its end.
        metadata_location: where the metadata of a table is that was not purged, by which `register_table` takes it back, unless
            `unreadable_files` names it.
        sound_metadata: sound metadata files before one that cannot be read, the newest first: `register_table` takes the table
            back as it was at one of them.
        hash: of the plan of a purge.
    """

    work = ("status",)

    status: str = "done"
    is_purged: bool = False
    files_by_kind: tuple[FilesOfKind, ...] = ()
    deleted_files_count: int = 0
    deleted_bytes_count: int = 0
    missing_files_count: int = 0
    failed_files_count: int = 0
    kept_outside_files_count: int = 0
    unreadable_files: tuple[str, ...] = ()
    finished_files_count: int = 0
    unlisted_reason: str = ""
    unreadable_tables: tuple[str, ...] = ()
    plan_location: str | None = None
    problems: tuple[str, ...] = ()
    metadata_location: str | None = None
    sound_metadata: tuple[str, ...] = ()
    hash: str | None = None
    elapsed_ms: int = 0
    run_id: str | None = None


class DropPlan(Rendered, frozen=True, kw_only=True):
    """What a drop would delete; `hash` is what `--approve` takes.

    Attributes:
        files: locations of the first thousand files that would be deleted.
        finished_files_count: files of purges that were cut off, which this one would delete as well. `hash` does not cover them,
            and a run with `approve` leaves them alone.
        sound_metadata: sound metadata files before one that cannot be read, the newest first: `register_table` takes the table
            back as it was at one of them.
    """

    is_purged: bool
    files_by_kind: tuple[FilesOfKind, ...] = ()
    deleted_files_count: int = 0
    deleted_bytes_count: int = 0
    kept_outside_files_count: int = 0
    unreadable_files: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    hash: str | None = None
    finished_files_count: int = 0
    unlisted_reason: str = ""
    unreadable_tables: tuple[str, ...] = ()
    sound_metadata: tuple[str, ...] = ()


class DropRequest(PlannedRequest, frozen=True, kw_only=True):
    """The arguments of `drop_table`, which says what each means."""

    purge: bool = False
    max_concurrent_deletes: int | None = None
    approve: str | None = None
    accept_unreadable: Sequence[str] = ()
    options: Mapping[str, Any] | ReclaimOptions | None = None


@takes(DropRequest, "drop", asks=JOB.asks)
def drop_table(table: Table, request: DropRequest) -> DropResult:
    """Let the catalog forget a table.

    Args:
        purge: also delete the files that its metadata leads to, through the metadata's history, and what icekeep keeps
            below its location, the trash included. The plan lies in `<warehouse>/.icekeep/purges/`, or below the table's
            location if its credentials do not reach that directory; nothing comes back.
        max_concurrent_deletes: how many calls that delete run at once, at most; as many as there is work for if `None`.
        approve: the hash of a plan (`plan_drop_table`): exactly that goes, or nothing.
        accept_unreadable: names of tables of the catalog (`db.events`) that cannot be loaded, and lie elsewhere.
        options: `max-deletes-per-second` and `reclaim.roots`.
        saved: a plan that was written before (`apply_plan` reads it): exactly that goes, or nothing.

    Raises:
        SafetyError: the table has `gc.enabled=false`, another table lies where this one does or cannot be loaded, or the
            plan is not the approved one: nothing is dropped. Only a purge asks. Or somebody committed since a plan was made
            that was saved.
        ConflictError: another table has the name now or, for a purge, somebody committed: nothing is dropped.
        UsageError: `approve` is given without `purge`.
        OutcomeUnknownError: the catalog may or may not have forgotten it; no file is deleted.
        MissingFileError: without `purge`: it is dropped, and its server has deleted its files all the same.
    """
    checked = _allowed(table, request)
    listener = request.listener
    approve = _approved_hash(table, request)
    if not request.purge:
        location = None if request.saved is None else table.metadata_location
        return DropResult(metadata_location=drop_and_keep_files(table, location) or None)
    around = checked_neighbours(table, checked.roots, listener, accepted_names(request.accept_unreadable))
    run_id = run_name(table)
    above = writable_purges_directory(table)
    draft = PlanDraft(
        job=JOB.name,
        run=run_id,
        keeps_before=True,
        roots=named_roots(table, checked.roots),
        accepted=around.accepted,
    )
    run = _deletion_run(table, request, checked, around, approve)
    hint = hint_of(table)
    found, plan, lease = _written(run, draft, f"{above}/{run_id}")
    is_alone = above != purges_directory(table)
    if is_alone:
        # Killed after the drop it could not say so any more.
        listener.on(Warned(f"if this purge of {table.name!r} is cut off: {_way_out(table, table.metadata_location)}"))
    try:
        far = _elsewhere(plan, run)
        # What was committed since is in no plan: it would stay, and nobody would find it.
        kept = _dropped(table, table.metadata_location)
    except OutcomeUnknownError:
        raise
    except IcekeepError:
        with suppress(Exception):
            delete_plan(plan, table.storage)
        raise
    done = _deleted(run, plan, lease, far)
    gone: list[GarbageFile] = []
    with suppress(Exception):
        # An error would say that nothing was dropped.
        gone = [file for file in hint if table.storage.head(file.location) is None]
    with_drop = by_kind(garbage_table(gone))
    others = PendingPlans()
    if is_alone and not done.is_complete:
        way_out = _way_out(table, kept or table.metadata_location)
        done = msgspec.structs.replace(done, stopped="; ".join(filter(None, (done.stopped, way_out))))
    elif not is_alone and approve is None:
        # What is approved is all that goes.
        others = finish_purges(run, but=plan.directory)
    return DropResult(
        status="done" if done.is_complete and others.is_complete else "partial",
        is_purged=True,
        files_by_kind=added(done.deleted, with_drop),
        deleted_files_count=done.deleted_count + sum(files.files_count for files in with_drop),
        deleted_bytes_count=done.deleted_bytes_count,
        missing_files_count=done.missing_count,
        failed_files_count=done.failed_count + others.failed_count,
        kept_outside_files_count=found.outside_count,
        unreadable_files=found.unreadable,
        finished_files_count=others.finished_count,
        unlisted_reason=around.unlisted_reason,
        unreadable_tables=around.accepted,
        plan_location=None if done.is_complete else plan.directory,
        problems=(*((done.stopped,) if done.stopped else ()), *others.problems),
        hash=plan.hash,
    )


def drop_and_keep_files(table: Table, metadata_location: str | None = None) -> str:
    """Let the catalog forget this very table, none of whose files goes; returns where its metadata is.

    Args:
        metadata_location: of the metadata that it must still have; `None` where any of this table will do.

    Raises:
        ConflictError: another table has the name now, or this one other metadata than it must have: nothing is dropped.
        MissingFileError: it is dropped, and its server has deleted its files all the same.
        OutcomeUnknownError: the catalog may or may not have forgotten it.
    """
    kept = _dropped(table, metadata_location)
    _refuse_lost(table, kept)
    return kept


def _refuse_lost(table: Table, location: str) -> None:
    """Raise `MissingFileError` where the files of a table went with it: some servers keep none, whatever they are asked."""
    try:
        is_lost = bool(location) and table.storage.head(location) is None
    except IcekeepError:
        # The credentials for a table may end with it.
        return
    if is_lost:
        raise MissingFileError(
            f"table {table.name!r} is dropped, and its metadata file {location!r} is gone with it: the server of catalog "
            f"{table.catalog.name!r} was asked to keep its files, and deletes those of each table that is dropped; if the store "
            "keeps old versions of objects, bring the files back, and register the table by that location",
            location=location,
        )


def _deletion_run(
    table: Table, request: DropRequest, options: ReclaimOptions, around: Neighbours, approve: str | None
) -> DeletionRun:
    deletion = DeletionRequest(
        options=options,
        max_concurrent_deletes=request.max_concurrent_deletes,
        other_roots=around.other_roots,
        approve=approve,
    )
    return DeletionRun.of(table, request.spark, deletion, request.listener, table.runtime.now_ms())


@takes(DropRequest, "drop")
def plan_drop_table(table: Table, request: DropRequest) -> DropPlan:
    """Say what `drop_table` with the same arguments would delete; raises as it does."""
    shown: DropPlan = _foreseen(table, request).shown
    approve = _approved_hash(table, request)
    if shown.hash is not None:
        refuse_unapproved(approve, shown.hash, "nothing would be dropped")
    return shown


@takes(DropRequest, "drop")
def exact_drop_table(table: Table, request: DropRequest) -> ExactPlan:
    """What `drop_table` with the same arguments would delete, all of it; raises as it does."""
    return _foreseen(table, request)


def _foreseen(table: Table, request: DropRequest) -> ExactPlan:
    checked = _allowed(table, request)
    if not request.purge:
        return _exact(table, DropPlan(is_purged=False), ())
    around = checked_neighbours(table, checked.roots, request.listener, accepted_names(request.accept_unreadable))
    run = _deletion_run(table, request, checked, around, None)
    garbage, beside = all_garbage(table, request.spark), _beside(table)
    draft = PlanDraft(job=JOB.name, run="", accepted=around.accepted)
    found = run.classified(garbage, draft, None, _rest_of(table), beside=garbage_table(beside))
    finished_count = foreseen_purges(run) if request.approve is None and request.saved is None else 0
    shown = DropPlan(
        is_purged=True,
        finished_files_count=finished_count,
        files_by_kind=found.files,
        deleted_files_count=sum(f.files_count for f in found.files),
        deleted_bytes_count=sum(f.bytes for f in found.files),
        kept_outside_files_count=found.outside_count,
        unreadable_files=found.unreadable,
        files=found.sample,
        hash=found.hash(table, draft),
        unlisted_reason=around.unlisted_reason,
        unreadable_tables=around.accepted,
    )
    lines = (PlanLine(do=DELETE, kind=file.kind, name=file.location, size_bytes=file.size_bytes) for file in beside)
    return _exact(table, shown, chain(deletion_lines(garbage, found, run.locations, table.storage), lines))


def _exact(table: Table, shown: DropPlan, files: Iterable[PlanLine]) -> ExactPlan:
    head = table.metadata.head(MAIN)
    return ExactPlan(
        shown=shown,
        snapshot_id=None if head is None else head.snapshot_id,
        lines=chain([PlanLine(do="drop", kind=TABLE, name=table.name, state=table.metadata_location)], files),
        approve=shown.hash,
        cost=deletion_cost(shown.deleted_files_count),
    )


def _beside(table: Table) -> list[GarbageFile]:
    """What goes of a table that is purged, and is in no plan."""
    return [*moved_by_drop(table), *own_files(table)]


def _approved_hash(table: Table, request: DropRequest) -> str | None:
    """The hash of what may go; a saved plan is of this very version of the table, or refused."""
    saved = request.saved
    if saved is None:
        return request.approve
    if saved.head.metadata_location != table.metadata_location:
        problem = f"its metadata is in {table.metadata_location!r} now, and was in {saved.head.metadata_location!r}"
        raise moved(saved, table.metadata, problem)
    return saved.head.approve


@takes(DropRequest, "drop")
def check_arguments(metadata: TableMetadata, request: DropRequest) -> None:
    """Hold the arguments against the table, before anything is planned.

    Raises:
        UnsupportedError: the table is encrypted.
        UsageError: a plan is approved, and no purge is asked for, which alone has one.
        OptionError: an argument has a value that it cannot take.
    """
    _checked(metadata, request)


def _allowed(table: Table, request: DropRequest) -> ReclaimOptions:
    """The options, once the table may be dropped by these arguments."""
    if request.purge:
        refuse_if_gc_is_disabled(table)
    return _checked(table.metadata, request)


def _checked(metadata: TableMetadata, request: DropRequest) -> ReclaimOptions:
    """The options of valid arguments."""
    checked = checked_arguments(request)
    if request.purge:
        refuse_encrypted(metadata, JOB.name)
        check_roots(checked.roots)
    return checked


def checked_arguments(request: DropRequest) -> ReclaimOptions:
    """The options of arguments that are valid for any table; raises as `check_arguments`."""
    checked = checked_options(ReclaimOptions, request.options, request.max_concurrent_deletes)
    if request.approve is not None and not request.purge:
        raise UsageError(
            f"{argument('approve')} is {request.approve!r}, the hash of a purge's plan, but {argument('purge')} is not given: "
            f"nothing is dropped; add {argument('purge')}, or leave out {argument('approve')} to drop the table and keep all of "
            "its files"
        )
    return checked


def _dropped(table: Table, metadata_location: str | None) -> str:
    """Let the catalog forget this very table; returns where its metadata is."""
    table_uuid = table.metadata.table_uuid
    if table_uuid is None:
        # A table of version 1 may have none; then its metadata file says which it is.
        metadata_location = table.metadata_location
    return table.catalog.drop(table.identifier, table_uuid=table_uuid, metadata_location=metadata_location)


def _rest_of(table: Table) -> str:
    return f"no command finds it once the table is gone: look below {table.metadata.location!r} then, and delete it by hand"


def _written(run: DeletionRun, draft: PlanDraft, directory: str) -> tuple[ClassifiedGarbage, DeletionPlan, PlanLease]:
    """The plan of a purge on disk, approved where that is asked; an error leaves nothing of it."""
    table, runtime = run.table, run.table.runtime
    run.listener.on(StepStarted(_FINDING))
    beside = garbage_table(_beside(table))
    garbage = all_garbage(table, run.spark)
    found = run.classified(garbage, draft, "nothing is dropped", _rest_of(table), directory, beside)
    run.listener.on(StepFinished(_FINDING, counted(sum(f.files_count for f in found.files), "files")))
    try:
        lease = new_lease(directory, JOB.name, table.storage, runtime)
        return found, write_plan(found, draft, table, runtime, directory=directory), lease
    except FileExistsError:
        # Another process works under the id of this run.
        raise
    except BaseException:
        delete_draft(directory, table.storage)
        raise


def _way_out(table: Table, metadata_location: str) -> str:
    register = shown_command("register", "--table", table.full_name, "--metadata-location", metadata_location)
    purge = shown_command("drop", "--table", table.full_name, "--purge")
    return (
        f"the table's credentials do not reach {purges_directory(table)!r}, where later purges look for plans, so none finishes "
        f"this one; run `{register}`, then `{purge}`; where only the server has "
        "credentials for that file, it is registered with keys for the store in the catalog's properties"
    )


def _deleted(run: DeletionRun, plan: DeletionPlan, lease: PlanLease, far: str) -> Reclaimed:
    """Delete the files of a table that the catalog has forgotten; no error says from here on that nothing was dropped."""
    table, storage = run.table, run.table.storage
    try:
        # Before it is marked no other run goes by it: its server alone can have deleted it.
        if storage.head(f"{plan.directory}/{HEAD}") is None:
            return _left_by_server(plan, table, far)
        with holding(lease, storage, table.runtime):
            try:
                # Now that the catalog has forgotten its table a later purge may finish it.
                storage.create(f"{plan.directory}/{DROPPED}", b"{}")
            except Exception as error:  # noqa: BLE001 - whatever it is, the files can be deleted all the same
                run.listener.on(Warned(f"no later purge can finish this one if it is cut off: {reason_of(error)}"))
            return carry_out(run, plan, lease)
    except Exception as error:  # noqa: BLE001 - whatever it was, the table is dropped; the next purge goes on
        reason = reason_of(error)
        run.listener.on(Warned(f"table {table.name!r} is dropped, and its files are not deleted yet: {reason}"))
        return Reclaimed(stopped=reason)


def _elsewhere(plan: DeletionPlan, run: DeletionRun) -> str:
    """The first file of a plan that a server leaves which deletes all below a table's location; empty if there is none."""
    location = run.table.metadata.location
    if is_under(plan.directory, location) and any(not is_under(f"{root}/x", location) for root in run.locations.roots):
        for part in plan.parts:
            for file in read_part(part, run.table.storage)["location"].to_pylist():
                if not is_under(file, location):
                    return str(file)
    return ""


def _left_by_server(plan: DeletionPlan, table: Table, far: str) -> Reclaimed:
    """What a purge has left to do whose plan went with the table, since the server deletes all below a table's location.

    Args:
        far: a file of the plan that lies elsewhere, if there is one.
    """
    location = table.metadata.location
    by_server = f"the server of catalog {table.catalog.name!r} deletes the files of the table itself, this run's plan among them"
    left = next(iter(table.storage.list(location)), None)
    if left is not None:
        return Reclaimed(
            stopped=f"{by_server}, and has left {left.location!r}; look below {location!r} later, and delete by hand what is left"
        )
    if far and table.storage.head(far) is not None:
        return Reclaimed(
            stopped=f"{by_server}, and leaves those outside of {location!r}, such as {far!r}; delete by hand what is left"
        )
    return Reclaimed(missing_count=plan.files_count)


def drop_unreadable(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, run: Run | None = None, **arguments: Any
) -> DropResult:
    """Let the catalog forget a table whose metadata file is gone or damaged; no file is deleted.

    Args:
        error: what its catalog raised.
        run: which run it is; nothing is written below its name.
        arguments: those of `drop_table`.

    Raises:
        SafetyError: a purge is asked for; nothing is dropped.
        ConflictError: the metadata loads again, or the catalog names other metadata now; nothing is dropped.
        NotFoundError: the catalog has no such table.
        UsageError, OptionError: as `drop_table`.
        OutcomeUnknownError: the catalog may or may not have forgotten it.
    """
    began_ms = catalog.runtime.monotonic_ms()
    request, pointer = _asked(catalog, identifier, error, arguments)
    meant = None if pointer is None else pointer.metadata_location
    # There is no uuid to compare where the file cannot be read: its location says that it is still this table.
    location = catalog.drop(identifier, metadata_location=meant) or meant
    left = _left(catalog.storage if pointer is None else pointer.storage, location)
    words = ("register", "--table", full_name(catalog.name, identifier), "--metadata-location", *left.sound[:1])
    back = f"run `{shown_command(*words)}` to take it back as it was then"
    request.listener.on(Warned(_warning(identifier, "is dropped", error, left, back)))
    return DropResult(
        unreadable_files=left.unreadable,
        sound_metadata=left.sound,
        metadata_location=location,
        elapsed_ms=catalog.runtime.monotonic_ms() - began_ms,
        run_id=None if run is None else run.run_id,
    )


def plan_drop_unreadable(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, run: Run | None = None, **arguments: Any
) -> DropPlan:
    """Say what `drop_unreadable` would do; raises what it raises before it drops."""
    request, pointer = _asked(catalog, identifier, error, arguments)
    left = _Left() if pointer is None else _left(pointer.storage, pointer.metadata_location)
    back = f"the newest sound metadata file is {quote(next(iter(left.sound), ''))}"
    request.listener.on(Warned(_warning(identifier, "would be dropped", error, left, back)))
    return DropPlan(is_purged=False, unreadable_files=left.unreadable, sound_metadata=left.sound)


class _Left(NamedTuple):
    """What is known of a table: its metadata file, where the catalog names one, and sound ones before it, the newest first."""

    unreadable: tuple[str, ...] = ()
    sound: tuple[str, ...] = ()


def _asked(
    catalog: Catalog, identifier: Identifier, error: InvalidTableError, arguments: dict[str, Any]
) -> tuple[DropRequest, Pointer | None]:
    """The checked arguments, and where the catalog says that the metadata is; `None` where it does not say it."""
    request = DropRequest(**arguments)
    checked_arguments(request)
    try:
        pointer = catalog.find(identifier)
    except InvalidTableError:
        pointer = None
    _refuse_readable(catalog, identifier)
    if request.purge:
        left = _Left() if pointer is None else _left(pointer.storage, pointer.metadata_location)
        more = (
            "; to delete the files that earlier metadata names, register the sound metadata file that this drop prints, and "
            "purge the table then"
        )
        raise SafetyError(
            f"table {format_identifier(identifier)!r} is not purged: its metadata does not load ({error.message}), and only "
            f"metadata says which files are its own; nothing is dropped or deleted; drop it without {argument('purge')}, which "
            f"takes its name out of the catalog and keeps all files{more if left.sound else ''}",
            **error.facts,
        )
    return request, pointer


def _refuse_readable(catalog: Catalog, identifier: Identifier) -> None:
    """Raise `ConflictError` where the metadata loads: another file than the one that did not, or that file, which is back.

    Whoever drops compares with the pointer that was found before.
    """
    try:
        table = catalog.load(identifier)
    except InvalidTableError:
        return
    raise ConflictError(
        f"the metadata of table {format_identifier(identifier)!r} did not load, and loads now, from {table.metadata_location!r}: "
        "somebody repaired it, or created it again; nothing is dropped; look at it, and drop it again",
        table=format_identifier(identifier),
        metadata_location=table.metadata_location,
    )


def _left(storage: Storage, location: str | None) -> _Left:
    """What is left of a table whose metadata file cannot be read; no sound file is named where storage cannot be searched."""
    if not location:
        return _Left()
    try:
        sound = [one.location for one in last_sound(storage, location, None)]
    except IcekeepError:
        sound = []
    return _Left((location,), tuple(sound))


def _warning(identifier: Identifier, done: str, error: InvalidTableError, left: _Left, back: str) -> str:
    """What the operator is warned of; `back` is said where a sound metadata file was found."""
    if left.sound:
        rest = back
    elif left.unreadable:
        rest = f"no sound metadata file was found in {left.unreadable[0].rpartition('/')[0]!r}"
    else:
        rest = "the catalog does not say where they are"
    return (
        f"table {format_identifier(identifier)!r} {done}, although its metadata does not load ({error.message}): no metadata "
        f"says which files are its own, so all of them stay; {rest}"
    )
