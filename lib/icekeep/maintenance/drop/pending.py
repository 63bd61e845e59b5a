"""Plans of purges: one is carried out once its catalog has forgotten the table, by whoever wrote it or by a later purge.

A plan lies beside the tables from before the drop. It is worth nothing until `dropped.json` lies with it: before that the
table may live, or have been dropped by somebody who keeps its files. And it is worth something in its own catalog only: the
same warehouse may serve another, in which the table lives. Whoever registers a table in another catalog after its purge has
begun loses its files: no catalog but its own is asked.
"""

import re
from collections.abc import Collection, Sequence
from contextlib import suppress

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table, parse_identifier
from icekeep.catalog.filesystem import CHECKSUM_ASIDE, MOVED_ASIDE, dropped_heads
from icekeep.catalog.metadata_files import is_metadata_file
from icekeep.errors import (
    ClaimedError,
    IcekeepError,
    InvalidTableError,
    MissingFileError,
    NotFoundError,
    SafetyError,
    UsageError,
    argument,
    reason_of,
)
from icekeep.events import SILENT, Listener, Warned
from icekeep.maintenance.delete.lease import PlanLease, earlier_clock_below, holding, refuse_leased, take_lease
from icekeep.maintenance.delete.neighbours import Neighbours, neighbours
from icekeep.maintenance.delete.pending import PendingPlans, not_finished, unnamed_root
from icekeep.maintenance.delete.plan_file import (
    DROPPED,
    FILES,
    DeletionPlan,
    delete_plan,
    metadata_before,
    plan_directories,
    plans_below,
    read_part,
    read_plan,
    trash_directory,
)
from icekeep.maintenance.delete.reachable import DroppedLook, FileKind, GarbageFile, added, by_kind, garbage_table
from icekeep.maintenance.delete.run import NAMED_COUNT, DeletionRun, Reclaimed
from icekeep.maintenance.drop import JOB
from icekeep.maintenance.rewrite.alive import DEAD_AFTER_MS
from icekeep.runtime import Runtime
from icekeep.spec.metadata import parse_metadata
from icekeep.spec.properties import OWN_DIRECTORY, metadata_directory, own_directory
from icekeep.spec.types import DAY_MS
from icekeep.storage.base import DeleteStatus, Storage, head_many
from icekeep.storage.locations import canonical, is_under


def purges_directory(table: Table) -> str:
    """Above the plans of purges: in the warehouse, or beside the table where the catalog names none."""
    above = table.catalog.warehouse or table.metadata.location.rstrip("/").rpartition("/")[0]
    return f"{above.rstrip('/')}/{OWN_DIRECTORY}/purges"


def writable_purges_directory(table: Table) -> str:
    """Above the plan of a purge: below the table's own location if the credentials of the table do not reach it.

    There no other purge finds it: to finish it, register the table again and purge it.

    Raises:
        UsageError: the store lets nothing be written there either.
    """
    beside = purges_directory(table)
    try:
        earlier_clock_below(beside, table.storage, table.runtime)
    except UsageError:
        beside = own_directory(table.metadata, "purges")
        earlier_clock_below(beside, table.storage, table.runtime)
    return beside


def checked_neighbours(
    table: Table, roots: Sequence[str], listener: Listener, accepted: Sequence[str] = (), *, is_dropped: bool = False
) -> Neighbours:
    """The table's neighbours, none of which may lie where its files are deleted; nor may a table that was dropped and kept.

    Args:
        roots: directories that the operator names for the run.
        accepted: names of tables that cannot be loaded, and of which the operator knows that they lie elsewhere.
        is_dropped: the catalog has forgotten the table. Nobody looks at what is deleted now, so that a listing of the
            catalog which is not complete is not enough.

    Raises:
        SafetyError: one lies there, or cannot be loaded.
    """
    _refuse_kept(table)
    around = neighbours(table, roots=roots, accepted=accepted, is_listed=not is_dropped, listener=listener)
    if around.unreadable:
        names = ", ".join(map(repr, around.unreadable[:5]))
        raise SafetyError(
            f"{table.name!r} is not purged: {names} in the same catalog cannot be loaded, and may lie in the same place; repair "
            "or drop what cannot be loaded first or, if you know that it lies elsewhere, name it in "
            f"{argument('accept_unreadable')}",
            tables=list(around.unreadable),
        )
    if is_dropped and around.unlisted_reason:
        raise SafetyError(f"tables that are not known may lie where {table.name!r} did: {around.unlisted_reason}")
    return around


def _refuse_kept(table: Table) -> None:
    """Raise where another table was dropped in the same place and kept: nobody knows which files the two share."""
    for head in dropped_heads(table.storage, table.metadata.location):
        if not _is_of(table, head):
            raise SafetyError(
                f"{table.name!r} is not purged: another table was dropped in the same place and kept, and its metadata is in "
                f"{head!r}: the two may share files; drop {table.name!r} without --purge, after which `icekeep register` can "
                f"take the other one back, or remove {head.rpartition('/')[0]!r} first if nobody needs that one any more",
                location=head,
            )


def _is_of(table: Table, head: str) -> bool:
    """Whether metadata that a drop has moved aside is the table's own; what cannot be read is somebody else's."""
    try:
        metadata = parse_metadata(table.storage.read(head), head)
    except MissingFileError:
        # It is registered again, or was purged by another run.
        return True
    except IcekeepError:
        return False
    if metadata.table_uuid is None:
        return metadata == table.metadata
    return metadata.table_uuid == table.metadata.table_uuid


def carry_out(run: DeletionRun, plan: DeletionPlan, lease: PlanLease) -> Reclaimed:
    """Delete the files of a plan and icekeep's own below the table's location; raises as `DeletionRun.reclaim` does."""
    table, look = run.table, DroppedLook(run.table)
    done = run.reclaim(plan, lease, look)
    if not done.is_complete:
        return done
    try:
        # Icekeep's own files but the plan, the trash among them.
        own = {file.location: file for file in own_files(table) if not is_under(file.location, plan.directory)}
        # As in `reclaim`: the listing may have taken hours.
        look()
        lease.check(table.storage, table.runtime)
        outcomes = table.storage.delete_many([*own])
    except Exception as error:  # noqa: BLE001 - whatever it is, the table's files are deleted; the next purge goes on
        reason = reason_of(error)
        run.listener.on(Warned(f"what icekeep keeps below {table.metadata.location!r} stays: {reason}"))
        with suppress(Exception):
            if isinstance(error, SafetyError) and not _lives(plan, table):
                # Another table has the name, and perhaps the place: there is nothing left to be done for this one.
                delete_plan(plan, table.storage)
                return done
        return msgspec.structs.replace(done, stopped=reason)
    failed = [f"{o.location!r}: {o.reason}" for o in outcomes if o.status is DeleteStatus.FAILED]
    deleted = by_kind(garbage_table(own[o.location] for o in outcomes if o.status is DeleteStatus.DELETED))
    for failure in failed[:NAMED_COUNT]:
        run.listener.on(Warned(f"could not delete {failure}"))
    done = msgspec.structs.replace(
        done,
        deleted=added(done.deleted, deleted),
        failed_count=len(failed),
        failed=tuple(failed[:NAMED_COUNT]),
    )
    return run.settle(plan, lease, done)


def own_files(table: Table) -> list[GarbageFile]:
    """What icekeep keeps below the table's location, except for files of a table that had the same place before.

    The version files that a drop has moved there still count as metadata files, of which no size is known.

    That is its metadata, if it was dropped and kept, and plans, by which its files in the trash can be restored. Files in the
    trash without a plan may be of either.
    """
    storage, own = table.storage, own_directory(table.metadata, "").rstrip("/")
    kept = [
        head.rpartition("/")[0] for head in dropped_heads(storage, table.metadata.location) if not _is_of(table, head)
    ]
    kept += [
        directory for directory in plan_directories(table.metadata, storage) if _is_plan_of_another(directory, table)
    ]
    if kept:
        trash = trash_directory(table.metadata)
        headless = {f"{trash}/{run}" for run in storage.child_names(trash)} - {*plans_below(trash, storage)}
        kept += [f"{one}/{FILES}" for one in headless]
    beginnings = tuple(f"{one}/" for one in kept)
    found = []
    for file in storage.list(own):
        if file.location.startswith(beginnings):
            continue
        if re.search(MOVED_ASIDE, file.location):
            found.append(GarbageFile(FileKind.METADATA, file.location))
        elif re.search(CHECKSUM_ASIDE, file.location):
            found.append(GarbageFile(FileKind.CHECKSUM, file.location))
        else:
            found.append(GarbageFile(FileKind.OWN, file.location, file.size_bytes))
    return found


def _is_plan_of_another(directory: str, table: Table) -> bool:
    """Whether a plan is of another table; one that cannot be read may be."""
    try:
        return read_plan(directory, table.storage).table_uuid != table.metadata.table_uuid
    except MissingFileError:
        return False
    except InvalidTableError:
        return True


def finish_purges(run: DeletionRun, *, but: str) -> PendingPlans:
    """Finish purges of the catalog that were cut off, of tables that it has forgotten and whose location is free.

    Each is leased, and everything is looked at again after that. What stands in the way is a warning; the plan stays. Nothing is
    raised: the purge of the run itself is done.

    Args:
        but: the directory of the plan that the run has carried out itself.
    """
    storage, listener = run.table.storage, run.listener
    total = PendingPlans()
    above = purges_directory(run.table)
    try:
        directories = [one for one in plans_below(above, storage) if one != but]
        _sweep_drafts(above, {but, *directories}, storage, run.table.runtime)
    except Exception as error:  # noqa: BLE001 - as above
        return not_finished(error, listener)
    for directory in directories:
        try:
            done = _finish(directory, run)
        except ClaimedError as error:
            listener.on(Warned(f"a purge stays in {directory!r}: {error.message}"))
        except MissingFileError:
            # Another run has just finished it.
            continue
        except Exception as error:  # noqa: BLE001 - as above
            problem = f"a purge that was not finished stays in {directory!r}: {reason_of(error)}"
            listener.on(Warned(problem))
            total += PendingPlans(problems=(problem,))
        else:
            total += PendingPlans.of(done)
    return total


def foreseen_purges(run: DeletionRun) -> int:
    """How many files `finish_purges` would delete, by our clock; nothing is written, and nothing raised."""
    table, count = run.table, 0
    try:
        directories = plans_below(purges_directory(table), table.storage)
    except Exception as error:  # noqa: BLE001 - a purge does its own work all the same
        run.listener.on(Warned(f"what earlier purges left cannot be looked at: {reason_of(error)}"))
        return 0
    for directory in directories:
        try:
            refuse_leased(directory, table.storage, table.runtime.now_ms())
            ready = _ready(directory, run, None)
            if ready is None:
                continue
            plan, on_gone = ready
            gone = on_gone.table
            for part in plan.parts:
                found = head_many(read_part(part, gone.storage)["location"].to_pylist(), gone.storage)
                count += sum(info is not None for info in found)
            count += sum(not is_under(file.location, plan.directory) for file in own_files(gone))
        except MissingFileError:
            # Another run has just finished it.
            continue
        except Exception as error:  # noqa: BLE001 - as above
            run.listener.on(Warned(f"a purge that was not finished would stay in {directory!r}: {reason_of(error)}"))
    return count


def _sweep_drafts(above: str, kept: Collection[str], storage: Storage, runtime: Runtime) -> None:
    """Remove what purges have left that died before their plan had a head: they have dropped nothing."""
    for directory in (f"{above}/{name}" for name in storage.child_names(above)):
        files = [] if directory in kept else [*storage.list(directory)]
        newest_ms = max((file.modified_ms for file in files), default=runtime.now_ms())
        is_dead = runtime.now_ms() - newest_ms > DEAD_AFTER_MS
        if is_dead and earlier_clock_below(above, storage, runtime) - newest_ms > DEAD_AFTER_MS:
            storage.delete_many([file.location for file in files])


def _finish(directory: str, run: DeletionRun) -> Reclaimed:
    storage, catalog, runtime = run.table.storage, run.table.catalog, run.table.runtime
    plan = read_plan(directory, storage)
    if plan.catalog != catalog.identity:
        if not plan.catalog:
            raise SafetyError("its plan does not name its catalog, so nobody carries it out; look at it and remove it")
        # Its own catalog knows whether the table lives.
        return Reclaimed()
    now_ms = earlier_clock_below(directory.rpartition("/")[0], storage, runtime)
    lease = take_lease(directory, JOB.name, storage, runtime, now_ms)
    with holding(lease, storage, runtime):
        ready = _ready(directory, run, now_ms)
        if ready is None:
            return Reclaimed()
        plan, on_gone = ready
        return carry_out(on_gone, plan, lease)


def _ready(directory: str, run: DeletionRun, now_ms: int | None) -> tuple[DeletionPlan, DeletionRun] | None:
    """A purge that may still be finished, and the run that does it, on its table as it was.

    `None` where there is nothing to finish; what is given up is deleted.

    Args:
        now_ms: by the store's clock; `None` where nothing is to be written or deleted.

    Raises:
        SafetyError: it may not be finished.
        MissingFileError: another run has just finished it.
    """
    storage, catalog = run.table.storage, run.table.catalog
    plan = read_plan(directory, storage)
    if plan.catalog != catalog.identity:
        return None
    before = metadata_before(plan, storage)
    if before is None:
        # Another run has just finished it.
        return None
    gone = Table(
        identifier=parse_identifier(plan.table),
        metadata=before,
        metadata_location=plan.metadata_location,
        storage=storage,
        catalog=catalog,
    )
    if canonical(purges_directory(gone)) != canonical(directory.rpartition("/")[0]):
        # Where the catalog names no warehouse, anyone who may write beside a table may write a plan there.
        raise SafetyError(
            f"its plan is of a table at {before.location!r}, but does not lie where plans of that table lie, so it is not "
            "carried out; find out who wrote it, then remove it"
        )
    if storage.head(f"{directory}/{DROPPED}") is None:
        if not _lives(plan, gone):
            raise SafetyError(
                f"it is not known whether this purge dropped table {gone.name!r}, or somebody who keeps its files; to delete "
                f"them register the table again from {plan.metadata_location!r} and purge it, else remove the plan"
            )
        if now_ms is not None and now_ms - plan.created_ms > DAY_MS:
            delete_plan(plan, storage)
        return None
    if _lives(plan, gone):
        if now_ms is not None:
            storage.delete_many([f"{directory}/{DROPPED}"])
        run.listener.on(
            Warned(
                f"table {gone.name!r} is registered again: its purge is given up; what was deleted before is lost, the "
                "other files stay"
            )
        )
        return None
    _refuse_newer_metadata(plan, gone)
    DroppedLook(gone)()
    around = checked_neighbours(gone, run.request.options.roots, SILENT, is_dropped=True)
    request = msgspec.structs.replace(run.request, other_roots=around.other_roots)
    on_gone = DeletionRun.of(gone, run.spark, request, run.listener, run.now_ms)
    unnamed = _waits_for(plan, on_gone)
    if unnamed is not None:
        run.listener.on(
            Warned(
                f"the purge of {gone.name!r} that was cut off is not finished: it has files below {unnamed!r}; to "
                f"delete them name it in reclaim.roots, else remove {directory!r}"
            )
        )
        return None
    return plan, on_gone


def _waits_for(plan: DeletionPlan, run: DeletionRun) -> str | None:
    """A directory below which a plan has files, and that the operator does not name any more."""
    locations = run.locations
    for part in plan.parts if plan.roots else ():
        names = read_part(part, run.table.storage)["location"]
        outside = names.filter(pa.array(~locations.mask(names))).to_pylist()
        unnamed = unnamed_root(plan, run.table, locations, outside)
        if unnamed is not None:
            return unnamed
    return None


def _lives(plan: DeletionPlan, gone: Table) -> bool:
    """Whether the catalog has the very table of a plan, under its name."""
    try:
        return gone.catalog.load(gone.identifier).metadata.table_uuid == plan.table_uuid
    except NotFoundError:
        return False


def _refuse_newer_metadata(plan: DeletionPlan, gone: Table) -> None:
    """Raise where there is table metadata that the plan does not name: the table lives on, under another name or elsewhere."""
    parts = [part for part in plan.parts if any(files.kind is FileKind.METADATA for files in part.files)]
    named = {canonical(at) for part in parts for at in read_part(part, gone.storage)["location"].to_pylist()}
    for file in gone.storage.list(metadata_directory(gone.metadata)):
        if is_metadata_file(file.location) and canonical(file.location) not in named:
            raise SafetyError(
                f"there is newer metadata of table {gone.name!r}, {file.location!r}: it lives on under another name, or in "
                "another catalog; remove the plan"
            )
