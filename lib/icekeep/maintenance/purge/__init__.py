"""The command `drop`: forget a table and, with `--purge`, delete every file that its metadata leads to.

metadata and its history -> all files -> plan beside the tables -> the catalog forgets the table -> deleted, for good
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError, OutcomeUnknownError, SafetyError
from icekeep.events import SILENT, Listener, StepFinished, StepStarted, Warned
from icekeep.maintenance.deletion.garbage import FilesOfKind
from icekeep.maintenance.deletion.neighbours import Neighbours, neighbours
from icekeep.maintenance.deletion.options import ReclaimOptions, checked_options
from icekeep.maintenance.deletion.plans import (
    BEFORE,
    DeletionPlan,
    forget_plan,
    plans_below,
    read_plan,
    refuse_unapproved,
)
from icekeep.maintenance.deletion.reclaim import Reclaimed, reclaim, refuse_if_gc_is_disabled
from icekeep.maintenance.deletion.territory import territory
from icekeep.maintenance.deletion.writing import PlanDraft, sort_garbage, write_plan
from icekeep.maintenance.purge.history import all_garbage
from icekeep.planning.scan import refuse_encrypted
from icekeep.planning.sessions import SparkSource
from icekeep.runtime import SYSTEM, Runtime
from icekeep.spec.layout import OWN_DIRECTORY
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.metadata_codec import parse_metadata

__all__ = ["DropPlan", "DropResult", "check_arguments", "drop_table", "plan_drop_table"]

_JOB = "drop"
_FINDING = "finding all files of the table"


class DropResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a drop did; bytes are those that metadata records.

    Attributes:
        status: `partial` when files could not be deleted: the next purge of a table of the catalog tries again.
        kept_outside_files_count: files of the table that lie outside its places: they may belong to others.
        unreadable: metadata, manifest lists and manifests that cannot be read; what only they lead to stays.
        finished_files_count: files of purges that had not come to their end.
        plan_location: where the plan lies that is not finished.
    """

    status: str = "done"
    is_purged: bool = False
    deleted_files: tuple[FilesOfKind, ...] = ()
    deleted_bytes: int = 0
    missing_files_count: int = 0
    failed_files_count: int = 0
    kept_outside_files_count: int = 0
    unreadable: tuple[str, ...] = ()
    finished_files_count: int = 0
    unlisted_reason: str = ""
    plan_location: str | None = None


class DropPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a drop would delete; `files` are the locations of the first thousand, `hash` what `--approve` takes."""

    is_purged: bool
    files_by_kind: tuple[FilesOfKind, ...] = ()
    files_count: int = 0
    bytes: int = 0
    kept_outside_files_count: int = 0
    unreadable: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    hash: str | None = None
    unlisted_reason: str = ""


def drop_table(  # noqa: PLR0913 - what all jobs that delete are told
    table: Table,
    spark: SparkSource,
    *,
    purge: bool = False,
    max_concurrent_deletes: int | None = None,
    approve: str | None = None,
    trust_manifest_list: bool = False,
    options: Mapping[str, Any] | ReclaimOptions | None = None,
    listener: Listener = SILENT,
    runtime: Runtime = SYSTEM,
) -> DropResult:
    """Let the catalog forget a table.

    Args:
        purge: also delete the files that its metadata leads to, through the metadata's history, and what icekeep keeps
            below its location, the trash included. The plan lies in `<warehouse>/.icekeep/purges/`; nothing comes back.
        approve: the hash of a plan (`plan_drop_table`): exactly that goes, or nothing.
        trust_manifest_list: as the other jobs'; a purge retains nothing that it could be about.

    Raises:
        SafetyError: the table has `gc.enabled=false`, another table lies where this one does or cannot be loaded, or the
            plan is not the approved one: nothing is dropped. Only a purge asks.
        OutcomeUnknownError: the catalog may or may not have forgotten it; no file is deleted.
    """
    told = check_arguments(table.metadata, purge=purge, max_concurrent_deletes=max_concurrent_deletes, options=options)
    if not purge:
        table.catalog.drop(table.identifier)
        return DropResult()
    around = _look_around(table, listener)
    run = str(runtime.new_uuid())
    directory = f"{_purges(table)}/{run}"
    draft = PlanDraft(job=_JOB, run=run, keeps_before=True)
    listener.on(StepStarted(_FINDING))
    found = sort_garbage(all_garbage(table, spark), territory(table.metadata, told.roots), directory, table.storage)
    listener.on(StepFinished(_FINDING, f"{sum(f.files_count for f in found.files)} files"))
    try:
        refuse_unapproved(approve, found.hash(table, draft), "nothing is dropped")
    except SafetyError:
        table.storage.delete_many([part.location for part in found.parts])
        raise
    plan = write_plan(found, draft, table, runtime, directory=directory)
    try:
        table.catalog.drop(table.identifier)
    except OutcomeUnknownError:
        raise
    except IcekeepError:
        forget_plan(plan, table.storage)
        raise
    done = _carried_out(plan, table, spark, told, max_concurrent_deletes, listener, runtime)
    finished_count = _finish_others(table, spark, told, max_concurrent_deletes, listener, runtime)
    return DropResult(
        status="partial" if done.failed_count else "done",
        is_purged=True,
        deleted_files=done.deleted,
        deleted_bytes=done.deleted_bytes,
        missing_files_count=done.missing_count,
        failed_files_count=done.failed_count,
        kept_outside_files_count=found.outside_count,
        unreadable=found.unreadable,
        finished_files_count=finished_count,
        unlisted_reason=around.unlisted_reason,
        plan_location=plan.directory if done.failed_count else None,
    )


def plan_drop_table(  # noqa: PLR0913 - as the job
    table: Table,
    spark: SparkSource,
    *,
    purge: bool = False,
    max_concurrent_deletes: int | None = None,
    approve: str | None = None,
    trust_manifest_list: bool = False,
    options: Mapping[str, Any] | ReclaimOptions | None = None,
    runtime: Runtime = SYSTEM,
) -> DropPlan:
    """Say what `drop_table` with the same arguments would delete; raises as it does."""
    told = check_arguments(table.metadata, purge=purge, max_concurrent_deletes=max_concurrent_deletes, options=options)
    if not purge:
        return DropPlan(is_purged=False)
    around = _look_around(table, SILENT)
    found = sort_garbage(all_garbage(table, spark), territory(table.metadata, told.roots), None, table.storage)
    return DropPlan(
        is_purged=True,
        files_by_kind=found.files,
        files_count=sum(f.files_count for f in found.files),
        bytes=sum(f.bytes for f in found.files),
        kept_outside_files_count=found.outside_count,
        unreadable=found.unreadable,
        files=found.sample,
        hash=found.hash(table, PlanDraft(job=_JOB, run="")),
        unlisted_reason=around.unlisted_reason,
    )


def check_arguments(
    metadata: TableMetadata,
    *,
    purge: bool = False,
    max_concurrent_deletes: int | None = None,
    options: Mapping[str, Any] | ReclaimOptions | None = None,
    **_: Any,
) -> ReclaimOptions:
    """Hold the arguments against the table, before anything is planned; returns the options.

    Raises:
        SafetyError: the table has `gc.enabled=false`.
        UnsupportedError: the table is encrypted.
        OptionError: an argument has a value that it cannot take.
    """
    told = checked_options(options, max_concurrent_deletes)
    if purge:
        refuse_if_gc_is_disabled(metadata)
        refuse_encrypted(metadata, _JOB)
        territory(metadata, told.roots)
    return told


def _look_around(table: Table, listener: Listener) -> Neighbours:
    around = neighbours(table, listener=listener)
    if around.unreadable:
        names = ", ".join(map(repr, around.unreadable[:5]))
        raise SafetyError(
            f"{table.name!r} is not purged: {names} in the same catalog cannot be loaded, and may lie in the same place; mend or "
            "drop what cannot be loaded first",
            tables=list(around.unreadable),
        )
    return around


def _purges(table: Table) -> str:
    """Above the plans of purges: in the warehouse, or beside the table where the catalog tells none."""
    above = table.catalog.warehouse or table.metadata.location.rstrip("/").rpartition("/")[0]
    return f"{above.rstrip('/')}/{OWN_DIRECTORY}/purges"


def _carried_out(
    plan: DeletionPlan,
    table: Table,
    spark: SparkSource,
    options: ReclaimOptions,
    max_concurrent_deletes: int | None,
    listener: Listener,
    runtime: Runtime,
) -> Reclaimed:
    done = reclaim(
        plan,
        table,
        territory(table.metadata, options.roots),
        spark,
        options=options,
        max_concurrent_deletes=max_concurrent_deletes,
        listener=listener,
        runtime=runtime,
    )
    own = f"{table.metadata.location.rstrip('/')}/{OWN_DIRECTORY}"
    table.storage.delete_many([file.location for file in table.storage.list(own)])
    if not done.failed_count:
        forget_plan(plan, table.storage)
    return done


def _finish_others(
    table: Table,
    spark: SparkSource,
    options: ReclaimOptions,
    max_concurrent_deletes: int | None,
    listener: Listener,
    runtime: Runtime,
) -> int:
    """Finish purges that a crash cut off, of tables that are not in the catalog any more and whose place is free."""
    count = 0
    for directory in plans_below(_purges(table), table.storage):
        try:
            plan = read_plan(directory, table.storage)
            metadata = parse_metadata(table.storage.read(f"{directory}/{BEFORE}"), f"{directory}/{BEFORE}")
            # A table of its name, if there is one, counts like any other.
            nameless = msgspec.structs.replace(
                table,
                identifier=(*table.identifier[:-1], ""),
                metadata=metadata,
                metadata_location=plan.metadata_location,
            )
            _look_around(nameless, SILENT)
            done = _carried_out(plan, nameless, spark, options, max_concurrent_deletes, listener, runtime)
            count += done.deleted_count
        except IcekeepError as error:
            listener.on(Warned(f"a purge that was not finished stays in {directory!r}: {error.message}"))
    return count
