"""Plans of purges: one is carried out once its catalog has forgotten the table, by whoever wrote it or by a later purge.

A plan lies beside the tables from before the drop. It is worth nothing until `dropped.json` lies with it: before that the
table may live, or have been dropped by somebody who keeps its files. And it is worth something in its own catalog only: the
same warehouse may serve another, in which the table lives. Whoever registers a table in another catalog after its purge has
begun loses its files: no catalog but its own is asked.

Everything that a table's metadata leads to, through its history: the files of a table that is to go as a whole.
"""

import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from icekeep.catalog.base import Table, parse_identifier
from icekeep.catalog.filesystem import CHECKSUM_ASIDE, MOVED_ASIDE, dropped_heads
from icekeep.catalog.metadata_files import HINT, is_metadata_file, list_versions, parse_version_name
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
from icekeep.maintenance.delete.execute import NAMED_COUNT, Reclaimed, reclaim
from icekeep.maintenance.delete.garbage import Garbage, garbage_of
from icekeep.maintenance.delete.kept import done_file
from icekeep.maintenance.delete.lease import (
    PlanLease,
    earlier_clock_below,
    last_work,
    refuse_held,
    released,
    take_claim,
)
from icekeep.maintenance.delete.locations import territory
from icekeep.maintenance.delete.neighbours import Neighbours, neighbours
from icekeep.maintenance.delete.pending import DeletionRequest, EarlierPlans, not_finished, settled, unnamed_root
from icekeep.maintenance.delete.plan_file import (
    DROPPED,
    FILES,
    DeletionPlan,
    forget_plan,
    metadata_before,
    plan_directories,
    plans_below,
    read_part,
    read_plan,
    trash_directory,
)
from icekeep.maintenance.delete.reachable import (
    GARBAGE,
    DroppedLook,
    FileKind,
    GarbageFile,
    added,
    by_kind,
    garbage_table,
    read_expired,
    statistics_files,
)
from icekeep.maintenance.drop import JOB
from icekeep.maintenance.rewrite.alive import DEAD_AFTER_MS
from icekeep.planning.spark.session import SparkSource
from icekeep.runtime import Runtime
from icekeep.spec.metadata import TableMetadata, parse_metadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.properties import OWN_DIRECTORY, metadata_directory, own_directory
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import DAY_MS
from icekeep.storage.base import REQUESTS_AT_ONCE, DeleteStatus, FileInfo, Storage, head_many
from icekeep.storage.locations import canonical, checksum_location, has_checksum_files, is_location, is_under, join


def purges_directory(table: Table) -> str:
    """Above the plans of purges: in the warehouse, or beside the table where the catalog tells none."""
    above = table.catalog.warehouse or table.metadata.location.rstrip("/").rpartition("/")[0]
    return f"{above.rstrip('/')}/{OWN_DIRECTORY}/purges"


def writable_purges_directory(table: Table, runtime: Runtime) -> str:
    """Above the plan of a purge: below the table's own location if the credentials of the table do not reach it.

    There no other purge finds it: to finish it, register the table again and purge it.

    Raises:
        UsageError: the store lets nothing be written there either.
    """
    beside = purges_directory(table)
    try:
        earlier_clock_below(beside, table.storage, runtime)
    except UsageError:
        beside = own_directory(table.metadata, "purges")
        earlier_clock_below(beside, table.storage, runtime)
    return beside


def look_around(
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
            f"{table.name!r} is not purged: {names} in the same catalog cannot be loaded, and may lie in the same place; mend or "
            "drop what cannot be loaded first or, if you know that it lies elsewhere, name it in "
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


def carry_out(
    plan: DeletionPlan,
    claim: PlanLease,
    table: Table,
    spark: SparkSource,
    request: DeletionRequest,
    listener: Listener,
    runtime: Runtime,
) -> Reclaimed:
    """Delete the files of a plan and icekeep's own below the table's location; raises as `reclaim` does."""
    look = DroppedLook(table)
    done = reclaim(
        plan,
        claim,
        look,
        table,
        territory(table, request.options.roots, request.other_roots),
        spark,
        options=request.options,
        max_concurrent_deletes=request.max_concurrent_deletes,
        listener=listener,
        runtime=runtime,
    )
    if not done.is_complete:
        return done
    try:
        own = _own_removed(plan, claim, look, table, runtime)
    except Exception as error:  # noqa: BLE001 - whatever it is, the table's files are deleted; the next purge goes on
        reason = reason_of(error)
        listener.on(Warned(f"what icekeep keeps below {table.metadata.location!r} stays: {reason}"))
        with suppress(Exception):
            if isinstance(error, SafetyError) and not _lives(plan, table):
                # Another table has the name, and perhaps the place: there is nothing left to be done for this one.
                forget_plan(plan, table.storage)
                return done
        return msgspec.structs.replace(done, stopped=reason)
    for failure in own.failed:
        listener.on(Warned(f"could not delete {failure}"))
    done = msgspec.structs.replace(
        done, deleted=added(done.deleted, own.deleted), failed_count=own.failed_count, failed=own.failed
    )
    return done if own.failed else settled(partial(forget_plan, plan, table.storage), plan, done, listener)


def _own_removed(plan: DeletionPlan, claim: PlanLease, look: DroppedLook, table: Table, runtime: Runtime) -> Reclaimed:
    """Delete icekeep's own files but the plan, the trash among them."""
    own = {file.location: file for file in own_files(table) if not is_under(file.location, plan.directory)}
    # As in `reclaim`: the listing may have taken hours.
    look()
    claim.check(table.storage, runtime)
    outcomes = table.storage.delete_many([*own])
    failed = [f"{o.location!r}: {o.reason}" for o in outcomes if o.status is DeleteStatus.FAILED]
    return Reclaimed(
        deleted=by_kind(garbage_table(own[o.location] for o in outcomes if o.status is DeleteStatus.DELETED)),
        failed_count=len(failed),
        failed=tuple(failed[:NAMED_COUNT]),
    )


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
    found = [file for file in storage.list(own) if not file.location.startswith(beginnings)]
    return [_own_file(file) for file in found]


def _own_file(file: FileInfo) -> GarbageFile:
    if re.search(MOVED_ASIDE, file.location):
        return GarbageFile(FileKind.METADATA, file.location)
    if re.search(CHECKSUM_ASIDE, file.location):
        return GarbageFile(FileKind.CHECKSUM, file.location)
    return GarbageFile(FileKind.OWN, file.location, file.size_bytes)


def _is_plan_of_another(directory: str, table: Table) -> bool:
    """Whether a plan is of another table; one that cannot be read may be."""
    try:
        return read_plan(directory, table.storage).table_uuid != table.metadata.table_uuid
    except MissingFileError:
        return False
    except InvalidTableError:
        return True


def finish_others(
    table: Table, spark: SparkSource, request: DeletionRequest, listener: Listener, runtime: Runtime, *, but: str
) -> EarlierPlans:
    """Finish purges of the catalog that were cut off, of tables that it has forgotten and whose place is free.

    Each is claimed, and everything is looked at anew after that. What stands in the way is told; the plan stays. Nothing is
    raised: the purge of the run itself is done.

    Args:
        but: the directory of the plan that the run has carried out itself.
    """
    finished, failed, may_have_deleted = 0, 0, False
    problems: list[str] = []
    above = purges_directory(table)
    try:
        directories = [one for one in plans_below(above, table.storage) if one != but]
        _sweep_drafts(above, {but, *directories}, table.storage, runtime)
    except Exception as error:  # noqa: BLE001 - as above
        return not_finished(error, listener)
    for directory in directories:
        try:
            done = _finish(directory, table, spark, request, listener, runtime)
        except ClaimedError as error:
            listener.on(Warned(f"a purge stays in {directory!r}: {error.message}"))
        except MissingFileError:
            # Another run has just finished it.
            continue
        except Exception as error:  # noqa: BLE001 - as above
            problems.append(f"a purge that was not finished stays in {directory!r}: {reason_of(error)}")
            listener.on(Warned(problems[-1]))
        else:
            finished += done.deleted_count
            failed += done.failed_count
            problems += [done.stopped] if done.stopped else []
            may_have_deleted |= done.may_have_deleted
    return EarlierPlans(
        finished_count=finished, failed_count=failed, problems=tuple(problems), may_have_deleted=may_have_deleted
    )


def foreseen_others(table: Table, request: DeletionRequest, listener: Listener, runtime: Runtime) -> int:
    """How many files `finish_others` would delete, by our clock; nothing is written, and nothing raised."""
    count = 0
    try:
        directories = plans_below(purges_directory(table), table.storage)
    except Exception as error:  # noqa: BLE001 - a purge does its own work all the same
        listener.on(Warned(f"what earlier purges left cannot be looked at: {reason_of(error)}"))
        return 0
    for directory in directories:
        try:
            refuse_held(directory, table.storage, runtime.now_ms())
            ready = _ready(directory, table, request, listener, None)
            count += 0 if ready is None else _there_count(ready)
        except MissingFileError:
            # Another run has just finished it.
            continue
        except Exception as error:  # noqa: BLE001 - as above
            listener.on(Warned(f"a purge that was not finished would stay in {directory!r}: {reason_of(error)}"))
    return count


def _there_count(ready: "_Ready") -> int:
    """The files of a purge that are there still, icekeep's own among them."""
    plan, storage = ready.plan, ready.table.storage
    parts = (read_part(part, storage)["location"].to_pylist() for part in plan.parts)
    there = sum(info is not None for locations in parts for info in head_many(locations, storage))
    return there + sum(not is_under(file.location, plan.directory) for file in own_files(ready.table))


def _sweep_drafts(above: str, kept: Collection[str], storage: Storage, runtime: Runtime) -> None:
    """Remove what purges have left that died before their plan had a head: they have dropped nothing."""
    for directory in (f"{above}/{name}" for name in storage.child_names(above)):
        files = [] if directory in kept else [*storage.list(directory)]
        newest_ms = max((file.modified_ms for file in files), default=runtime.now_ms())
        is_dead = runtime.now_ms() - newest_ms > DEAD_AFTER_MS
        if is_dead and earlier_clock_below(above, storage, runtime) - newest_ms > DEAD_AFTER_MS:
            storage.delete_many([file.location for file in files])


def _finish(
    directory: str, like: Table, spark: SparkSource, request: DeletionRequest, listener: Listener, runtime: Runtime
) -> Reclaimed:
    storage, catalog = like.storage, like.catalog
    plan = read_plan(directory, storage)
    if plan.catalog != catalog.identity:
        if not plan.catalog:
            raise SafetyError("its plan does not name its catalog, so nobody carries it out; look at it and remove it")
        # Its own catalog knows whether the table lives.
        return Reclaimed()
    now_ms = earlier_clock_below(directory.rpartition("/")[0], storage, runtime)
    claim = take_claim(directory, JOB.name, storage, runtime, now_ms)
    with released(claim, storage, runtime):
        ready = _ready(directory, like, request, listener, now_ms)
        if ready is None:
            return Reclaimed()
        return carry_out(ready.plan, claim, ready.table, spark, ready.request, listener, runtime)


class _Ready(msgspec.Struct, frozen=True):
    """A purge that may be finished, its table as it was, and the request to finish it by."""

    plan: DeletionPlan
    table: Table
    request: DeletionRequest


def _ready(
    directory: str, like: Table, request: DeletionRequest, listener: Listener, now_ms: int | None
) -> _Ready | None:
    """A purge that may still be finished; `None` where there is nothing to finish, and what is given up is forgotten.

    Args:
        now_ms: by the store's clock; `None` where nothing is to be written or forgotten.

    Raises:
        SafetyError: it may not be finished.
        MissingFileError: another run has just finished it.
    """
    storage, catalog = like.storage, like.catalog
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
        _refuse_dropped(plan, gone)
        if now_ms is not None and now_ms - plan.created_ms > DAY_MS:
            forget_plan(plan, storage)
        return None
    if _lives(plan, gone):
        if now_ms is not None:
            storage.delete_many([f"{directory}/{DROPPED}"])
        listener.on(
            Warned(
                f"table {gone.name!r} is registered again: its purge is given up; what was deleted before is lost, the "
                "other files stay"
            )
        )
        return None
    _refuse_newer_metadata(plan, gone)
    DroppedLook(gone)()
    around = look_around(gone, request.options.roots, SILENT, is_dropped=True)
    request = msgspec.structs.replace(request, other_roots=around.other_roots)
    places = territory(gone, request.options.roots, request.other_roots)
    for part in plan.parts if plan.roots else ():
        names = read_part(part, storage)["location"]
        unnamed = unnamed_root(plan, gone, places, names.filter(pa.array(~places.mask(names))).to_pylist())
        if unnamed is not None:
            listener.on(
                Warned(
                    f"the purge of {gone.name!r} that was cut off is not finished: it has files below {unnamed!r}; to "
                    f"delete them name it in reclaim.roots, else remove {directory!r}"
                )
            )
            return None
    return _Ready(plan, gone, request)


def _refuse_dropped(plan: DeletionPlan, gone: Table) -> None:
    """Raise where the table of a plan may have been dropped, since nobody knows by whom."""
    if not _lives(plan, gone):
        raise SafetyError(
            f"it is not known whether this purge dropped table {gone.name!r}, or somebody who keeps its files; to delete them "
            f"register the table again from {plan.metadata_location!r} and purge it, else remove the plan"
        )


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


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What the table's metadata and those before it lead to, as far as they are still there; no more of them is held.

    Attributes:
        metadata: the newest, with the partition specs and schemas that any of them has.
        snapshots: that any of them has, without their summaries.
        statistics: of all of them, as `statistics_files`.
        locations: of all metadata files that are named anywhere, there or not.
        unreadable: metadata files that cannot be read; what only they lead to stays.
    """

    metadata: TableMetadata
    snapshots: tuple[Snapshot, ...]
    statistics: Mapping[str, int]
    locations: tuple[str, ...]
    unreadable: tuple[str, ...]


def read_history(table: Table) -> History:
    """Read the table's metadata files through their logs, and those that they name in turn, some at a time."""
    found = _Found(table)
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        while found.unread:
            some = [found.unread.popleft() for _ in range(min(REQUESTS_AT_ONCE, len(found.unread)))]
            for location, read in zip(some, pool.map(lambda at: _read(at, table.storage), some), strict=True):
                found.add(location, read)
    return found.history()


class _Found:
    """What was found so far: of each metadata file what none before it has."""

    def __init__(self, table: Table) -> None:
        self._newest = table.metadata
        self._snapshots: dict[int, Snapshot] = {}
        self._statistics: dict[str, int] = {}
        self._specs: dict[int, PartitionSpec] = {}
        self._schemas: dict[int, Schema] = {}
        self._locations = {canonical(table.metadata_location): table.metadata_location}
        self._unreadable: list[str] = []
        self.unread: deque[str] = deque()
        self._take(table.metadata)

    def add(self, location: str, read: TableMetadata | IcekeepError | None) -> None:
        """Take in what came of reading a metadata file."""
        if isinstance(read, IcekeepError):
            self._unreadable.append(location)
        # Another table's metadata in the log would lead to files of another table.
        elif read is not None and read.table_uuid == self._newest.table_uuid:
            self._take(read)

    def history(self) -> History:
        return History(
            metadata=replace(
                self._newest, partition_specs=tuple(self._specs.values()), schemas=tuple(self._schemas.values())
            ),
            snapshots=tuple(self._snapshots.values()),
            statistics=self._statistics,
            locations=tuple(self._locations.values()),
            unreadable=tuple(self._unreadable),
        )

    def _take(self, metadata: TableMetadata) -> None:
        # What is newer comes first, and counts.
        for snapshot in metadata.snapshots:
            if snapshot.snapshot_id not in self._snapshots:
                self._snapshots[snapshot.snapshot_id] = replace(snapshot, summary=None)
        for spec in metadata.partition_specs:
            self._specs.setdefault(spec.spec_id, spec)
        for schema in metadata.schemas:
            self._schemas.setdefault(schema.schema_id, schema)
        self._statistics.update(statistics_files(metadata))
        for entry in metadata.metadata_log:
            # What is no location leads to no file, as in `left_the_log`.
            if is_location(entry.metadata_file) and (key := canonical(entry.metadata_file)) not in self._locations:
                self._locations[key] = entry.metadata_file
                self.unread.append(entry.metadata_file)


def all_garbage(table: Table, spark: SparkSource) -> Garbage:
    """Every file that the table's metadata leads to, now or in its history, and what waits for its deletion.

    What cannot be read is told and stays.
    """
    history = read_history(table)
    waiting, unreadable = _waiting(table, {snapshot.snapshot_id for snapshot in history.snapshots})
    expired = read_expired(
        history.metadata,
        history.snapshots,
        table.storage,
        spark,
        statistics=history.statistics,
        metadata_files=history.locations,
    )
    told = (*history.unreadable, *_still_there(expired.unreadable, table.storage), *unreadable)
    named = pa.concat_tables([expired.named, waiting])
    if table.catalog.drop_frees_metadata_names:
        named = named.filter(
            pa.array([not _is_moved_aside_by_drop(one, table) for one in named["location"].to_pylist()])
        )
    everything = replace(expired, named=named, unreadable=told)
    garbage = garbage_of(everything, None, spark)
    if isinstance(garbage.content, pa.Table):
        # What a plan names and manifests lead to is counted once.
        is_content = pc.is_in(garbage.named["location"], value_set=garbage.content["location"].combine_chunks())
        garbage = replace(garbage, named=garbage.named.filter(pc.invert(is_content)))
    return garbage


def moved_by_drop(table: Table) -> list[GarbageFile]:
    """The metadata files that the drop itself moves to icekeep's own, and the hint, which it deletes, with their checksums."""
    if not table.catalog.drop_frees_metadata_names:
        return []
    storage = table.storage
    versions = list_versions(storage, join(table.metadata.location, "metadata"))
    found = [at for number in sorted(versions) for at in versions[number]]
    checksums = [at for at in map(checksum_location, found) if has_checksum_files(at) and storage.head(at) is not None]
    return [
        *(GarbageFile(FileKind.METADATA, at) for at in found),
        *(GarbageFile(FileKind.CHECKSUM, at) for at in checksums),
        *hint_of(table),
    ]


def hint_of(table: Table) -> list[GarbageFile]:
    """The hint by which readers find the newest version of a table's metadata, where its drop deletes one, and its checksum."""
    if not table.catalog.drop_frees_metadata_names:
        return []
    hint = join(table.metadata.location, "metadata", HINT)
    kinds = {hint: FileKind.METADATA}
    if has_checksum_files(hint):
        kinds[checksum_location(hint)] = FileKind.CHECKSUM
    return [GarbageFile(kind, at) for at, kind in kinds.items() if table.storage.head(at) is not None]


def _is_moved_aside_by_drop(location: str, table: Table) -> bool:
    """Whether the drop moves a file to icekeep's own, with which it goes: its name may be that of another table's file then."""
    directory, _, name = location.rpartition("/")
    return parse_version_name(name) is not None and canonical(directory) == canonical(
        join(table.metadata.location, "metadata")
    )


def _waiting(table: Table, known_ids: set[int]) -> tuple[pa.Table, list[str]]:
    """The files of plans that wait, to which no snapshot of the history leads any more, and the plans that cannot be read.

    Of a plan that is done all files are in the trash, or in use, in another plan, or gone, or they were restored.
    """
    rows, unreadable = [GARBAGE.empty_table()], []
    for directory in plan_directories(table.metadata, table.storage):
        try:
            plan = read_plan(directory, table.storage)
            is_own = plan.table_uuid == table.metadata.table_uuid
            work = last_work(directory, table.storage)
            if done_file(plan, work, table.storage) is not None:
                continue
            if is_own and (not plan.snapshot_ids or not known_ids >= {*plan.snapshot_ids}):
                rows += [read_part(part, table.storage) for part in plan.parts]
        except MissingFileError:
            # Its run has just finished it.
            continue
        except InvalidTableError:
            unreadable.append(directory)
    return pa.concat_tables(rows), unreadable


def _read(location: str, storage: Storage) -> TableMetadata | IcekeepError | None:
    try:
        return parse_metadata(storage.read(location), location)
    except MissingFileError:
        return None
    except IcekeepError as error:
        return error


def _still_there(locations: tuple[str, ...], storage: Storage) -> tuple[str, ...]:
    """Lists of snapshots that expired are gone, and nobody needs to hear of it."""
    return tuple(location for location in locations if storage.head(location) is not None)
