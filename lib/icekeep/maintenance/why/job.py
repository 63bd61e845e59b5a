"""Which snapshots read a file, which of them added it, and which took it out.

Files that metadata leads to by name: metadata files, manifest lists, manifests, statistics. No manifest is opened for them.

The plans of runs that name a file: it is in the trash, or waits for its deletion.

The answers, in words.

`why`: the life of one file of a table, put together. Nothing is changed.

by name, or by the entries of manifests -> who reads it -> until when; else plans of runs -> the trash; else what the store has
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.catalog.metadata_files import HINT, deletes_old_metadata
from icekeep.commit.summary import made_by
from icekeep.errors import InvalidTableError, MissingFileError, PropertyError, SafetyError, UnsupportedError
from icekeep.events import SILENT
from icekeep.maintenance.delete.kept import days_in_trash_end_ms, done_file, restore_ends_ms
from icekeep.maintenance.delete.lease import last_work
from icekeep.maintenance.delete.locations import territory
from icekeep.maintenance.delete.plan_file import (
    DeletionPlan,
    PlanPart,
    is_committed,
    plan_directories,
    read_part,
    read_plan,
    restore_command,
    trash_location,
)
from icekeep.maintenance.delete.reachable import FileKind, ReachableLists, is_gc_enabled, statistics_files
from icekeep.maintenance.orphans.metadata import reached_by
from icekeep.maintenance.why.reasons import (
    FileEvent,
    FileState,
    PlanOfFile,
    ReadingRef,
    WhyResult,
    described,
    judged,
    kind_of,
    listed_with_end,
)
from icekeep.maintenance.why.search import (
    Entries,
    ReadableManifests,
    SnapshotRetention,
    Target,
    find_entries,
    kept_until,
    read_manifests,
    same_file,
    snapshots_of,
)
from icekeep.planning.scan.plan import refuse_encrypted
from icekeep.planning.spark.jobs import spark_run
from icekeep.planning.spark.session import SparkSource, check_source
from icekeep.spec.filters.expressions import Expression
from icekeep.spec.manifests.structs import Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN, Snapshot
from icekeep.spec.times import format_time
from icekeep.storage.base import REQUESTS_AT_ONCE, FileInfo, Storage
from icekeep.storage.locations import is_under

ADDED, REMOVED, IN_PART, DESCRIBES = "added", "removed", "removed in part", "describes"


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """What snapshots did with a file.

    Attributes:
        readers: snapshots of the table that have it.
        unsure: those of which not all could be read; they may have it too.
        added_by, removed_by: ids, also of snapshots that expired.
    """

    readers: frozenset[int] = frozenset()
    unsure: frozenset[int] = frozenset()
    added_by: frozenset[int] = frozenset()
    removed_by: frozenset[int] = frozenset()

    @classmethod
    def of_entries(
        cls, entries: pa.Table, named_by: Mapping[str, frozenset[int]], unsure: frozenset[int] = frozenset()
    ) -> Self:
        """By all entries of the file, and the snapshots that name their manifests."""
        readers: set[int] = set()
        added: set[int] = set()
        removed: set[int] = set()
        for row in _distinct(entries):
            is_live = row["status"] != Status.DELETED
            readers |= named_by[row["manifest_path"]] if is_live else frozenset()
            if row["snapshot_id"] is not None:
                # The entry of a file that was deleted says by whom; of all others, who added it.
                (added if is_live else removed).add(row["snapshot_id"])
        return cls(readers=frozenset(readers), unsure=unsure, added_by=frozenset(added), removed_by=frozenset(removed))

    @property
    def is_known(self) -> bool:
        """Whether the table says anything of the file."""
        return bool(self.readers or self.added_by or self.removed_by)

    def newest_reader(self, metadata: TableMetadata) -> Snapshot | None:
        """The version that is told of: the current one if it reads the file, else the newest that does."""
        current = metadata.current_snapshot_id
        if current in self.readers:
            return metadata.current_snapshot
        known = [metadata.snapshots_by_id[i] for i in self.readers]
        return max(known, key=lambda s: (s.sequence_number, s.timestamp_ms), default=None)


def events(lineage: Lineage, metadata: TableMetadata, added: str = ADDED) -> tuple[FileEvent, ...]:
    """What happened to the file, in the order of time; what expired snapshots did comes first.

    A snapshot that does not have the file while its parent does has taken it out, though no entry may say so.
    """
    removing = {
        s.snapshot_id
        for s in metadata.snapshots
        if s.parent_snapshot_id in lineage.readers and s.snapshot_id not in lineage.readers | lineage.unsure
    }
    told = [(added, i) for i in lineage.added_by]
    told += [(IN_PART if i in lineage.readers else REMOVED, i) for i in lineage.removed_by | removing]
    found = [_event(what, snapshot_id, metadata) for what, snapshot_id in told]
    return tuple(sorted(found, key=lambda event: (event.timestamp_ms or 0, event.event, event.snapshot_id)))


def reading_refs(readers: frozenset[int], metadata: TableMetadata) -> tuple[ReadingRef, ...]:
    """Which references lead to the snapshots that read a file; those that none leads to come last."""
    found: list[ReadingRef] = []
    referenced: set[int] = set()
    for name, ref in sorted(metadata.refs.items(), key=lambda item: (item[0] != MAIN, not item[1].is_branch, item[0])):
        behind = [s for s in metadata.ancestors(ref.snapshot_id) if s.snapshot_id in readers] if ref.is_branch else []
        if not ref.is_branch and ref.snapshot_id in readers:
            behind = [metadata.snapshots_by_id[ref.snapshot_id]]
        referenced |= {s.snapshot_id for s in behind}
        if behind:
            found.append(_ref(name, ref.type, behind, is_in_head=ref.snapshot_id in readers))
    left = [s for s in metadata.snapshots if s.snapshot_id in readers - referenced]
    if left:
        found.append(_ref(None, "", left, is_in_head=False))
    return tuple(found)


def _ref(name: str | None, kind: str, behind: Iterable[Snapshot], *, is_in_head: bool) -> ReadingRef:
    times = [snapshot.timestamp_ms for snapshot in behind]
    return ReadingRef(
        ref=name,
        type=kind,
        is_in_head=is_in_head,
        snapshots_count=len(times),
        oldest_timestamp_ms=min(times),
        newest_timestamp_ms=max(times),
    )


def _event(what: str, snapshot_id: int, metadata: TableMetadata) -> FileEvent:
    snapshot = metadata.snapshots_by_id.get(snapshot_id)
    return FileEvent(
        event=what,
        snapshot_id=snapshot_id,
        timestamp_ms=None if snapshot is None else snapshot.timestamp_ms,
        operation=None if snapshot is None else snapshot.operation,
        made_by=None if snapshot is None else made_by(snapshot.summary),
    )


def _distinct(entries: pa.Table) -> list[dict[str, Any]]:
    """Rows that differ in what matters: a Puffin file has an entry for each of its vectors."""
    names = ["manifest_path", "status", "snapshot_id"]
    rows: list[dict[str, Any]] = entries.select(names).group_by(names).aggregate([]).to_pylist()
    return rows


_HINT = "version hint"


class ByName(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is named, and who does.

    Attributes:
        added: the word for what `lineage.added_by` did.
        fate: why it is there and when it goes, where no snapshot has to do with that.
        is_current: whether it is what the table is now.
    """

    file_path: str
    kind: str
    lineage: Lineage = Lineage()
    added: str = ADDED
    fate: str = ""
    is_current: bool = False


def named_locations(table: Table, manifests: ReadableManifests, target: Target) -> list[str]:
    """The named files that may be meant."""
    metadata = table.metadata
    hint = f"{table.metadata_location.rpartition('/')[0]}/{HINT}"
    lists = (snapshot.manifest_list for snapshot in metadata.snapshots if snapshot.manifest_list)
    found = [table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log), hint]
    found += [*lists, *statistics_files(metadata), *(m.manifest_path for m in manifests.files)]
    return target.among(found)


def told_by_name(location: str, table: Table, manifests: ReadableManifests, spark: SparkSource) -> ByName:
    """What names the file at a location of `named_locations`."""
    metadata = table.metadata
    lists = {s.snapshot_id for s in metadata.snapshots if s.manifest_list and same_file(s.manifest_list, location)}
    if lists:
        lineage = Lineage(readers=frozenset(lists), added_by=frozenset(lists))
        return ByName(file_path=location, kind=FileKind.MANIFEST_LIST, lineage=lineage)
    statistics = [(file.snapshot_id, file.statistics_path) for file in metadata.statistics]
    statistics += [(file.snapshot_id, file.statistics_path) for file in metadata.partition_statistics]
    described = {snapshot_id for snapshot_id, path in statistics if same_file(path, location)}
    if described:
        readers = frozenset(i for i in described if i in metadata.snapshots_by_id)
        lineage = Lineage(readers=readers, added_by=frozenset(described))
        return ByName(file_path=location, kind=FileKind.STATISTICS, lineage=lineage, added=DESCRIBES)
    listed = [m for m in manifests.files if same_file(m.manifest_path, location)]
    if not listed:
        return _metadata_file(location, table)
    named_by = snapshots_of([m.manifest_path for m in listed], table, spark, manifests.files)
    added_by = frozenset(m.added_snapshot_id for m in listed if m.added_snapshot_id is not None)
    lineage = Lineage(
        readers=frozenset[int]().union(*named_by.values()),
        unsure=manifests.unsure(metadata),
        added_by=added_by,
    )
    return ByName(file_path=location, kind=FileKind.MANIFEST, lineage=lineage)


def _metadata_file(location: str, table: Table) -> ByName:
    if same_file(location, table.metadata_location):
        fate = "it is the table's current metadata; the next commit puts it into the metadata log"
        return ByName(file_path=location, kind=FileKind.METADATA, fate=fate, is_current=True)
    log = table.metadata.metadata_log
    place = next((n for n, entry in enumerate(log) if same_file(entry.metadata_file, location)), None)
    if place is None:
        fate = "catalogs that find the table by the number of its version begin to look there; no run deletes it"
        return ByName(file_path=location, kind=_HINT, fate=fate, is_current=True)
    after = "the commit deletes it then"
    if not deletes_old_metadata(table.metadata):
        after = "`expire_snapshots` or `remove_orphan_files` takes it then"
    fate = (
        f"it was the current metadata as of {format_time(log[place].timestamp_ms)} and is number {place + 1} of {len(log)} in "
        f"the metadata log; once later commits push it out (write.metadata.previous-versions-max), {after}"
    )
    return ByName(file_path=location, kind=FileKind.METADATA, fate=fate)


TRASH, IN_PLACE, GONE = "trash", "in place", "gone"


class Named(msgspec.Struct, frozen=True):
    """A file in a plan: its place in the table, what it is, and where it is now."""

    plan: DeletionPlan
    location: str
    kind: str
    place: str = GONE
    found: FileInfo | None = None

    @property
    def counts(self) -> bool:
        """Whether the run has gone beyond its plan, so that the file waits for it or is in the trash."""
        return self.place != GONE


class PlansNaming(msgspec.Struct, frozen=True):
    """All plans that name files which may be meant, and those that cannot be read, each with the reason."""

    named: tuple[Named, ...] = ()
    unreadable: dict[str, str] = {}

    def of_file(self, location: str) -> tuple[Named, ...]:
        """Those of one file, the one in whose trash it is first."""
        own = [one for one in self.named if same_file(one.location, location)]
        return tuple(sorted(own, key=lambda one: (one.place != TRASH, -one.plan.created_ms)))


def plans_naming(table: Table, target: Target) -> PlansNaming:
    """Look for a file in all plans of a table; its place in the trash may be asked for too.

    Raises:
        UnavailableError: the store fails for now.
    """
    storage, unreadable = table.storage, dict[str, str]()
    found: list[Named] = []
    for directory in plan_directories(table.metadata, storage):
        try:
            plan = read_plan(directory, storage)
            if plan.table_uuid == table.metadata.table_uuid:
                found += _named_by(plan, target, storage)
        except MissingFileError:
            # Its run has just finished it.
            continue
        except InvalidTableError as error:
            unreadable[directory] = error.message
    placed = (_placed(one, storage) for one in found)
    counting = (one for one in placed if one.place == TRASH or is_committed(one.plan, table.metadata))
    return PlansNaming(tuple(counting), unreadable)


def told_of(named: Iterable[Named], storage: Storage) -> tuple[PlanOfFile, ...]:
    """What is told of the plans of one file."""
    return tuple(_told(one, storage) for one in named)


def _named_by(plan: DeletionPlan, target: Target, storage: Storage) -> Iterator[Named]:
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        for some in pool.map(partial(_named_in, plan=plan, target=target, storage=storage), plan.parts):
            yield from some


def _named_in(part: PlanPart, *, plan: DeletionPlan, target: Target, storage: Storage) -> list[Named]:
    files = read_part(part, storage)
    files = files.filter(pc.ends_with(files["location"], target.end))
    if not files.num_rows:
        return []
    is_asked = target.mask(files["location"])
    is_in_trash = target.is_location and is_under(target.text, plan.directory)
    return [
        Named(plan, row["location"], row["kind"])
        for row, asked in zip(files.to_pylist(), is_asked.tolist(), strict=True)
        if asked or (is_in_trash and same_file(trash_location(plan, row["location"]), target.text))
    ]


def _placed(named: Named, storage: Storage) -> Named:
    plan = named.plan
    in_trash = storage.head(trash_location(plan, named.location)) if plan.is_trash else None
    if in_trash is not None:
        return msgspec.structs.replace(named, place=TRASH, found=in_trash)
    in_place = storage.head(named.location)
    return msgspec.structs.replace(named, place=GONE if in_place is None else IN_PLACE, found=in_place)


def _told(named: Named, storage: Storage) -> PlanOfFile:
    plan = named.plan
    work = last_work(plan.directory, storage)
    done = done_file(plan, work, storage)
    until_ms = plan.not_before_ms if plan.trash_until_ms is None else plan.trash_until_ms
    if done is not None:
        until_ms = days_in_trash_end_ms(plan, done)
    return PlanOfFile(
        run=plan.run,
        job=plan.job,
        place=named.place,
        created_ms=plan.created_ms,
        until_ms=max(until_ms, restore_ends_ms(plan, work)),
        is_restorable=not work.deletes,
    )


_SHOWN = 10
_KEEPERS_SHOWN = 3


def fate_of_read(
    *, is_current: bool, kept: SnapshotRetention | None, now_ms: int, is_missing: bool, back: str | None
) -> str:
    """What becomes of a file that snapshots read; `back` is the command that fetches it from the trash, if it is missing."""
    said = _kept(is_current=is_current, kept=kept, now_ms=now_ms)
    if not is_missing:
        return said
    where = f"it is in the trash: `{back}` brings it back" if back else "readers of these fail"
    return f"snapshots read it and it is not in storage: {where}; {said}"


def _kept(*, is_current: bool, kept: SnapshotRetention | None, now_ms: int) -> str:
    if is_current:
        return "the current version has it: it can go once main has left it behind and the snapshots that read it have expired"
    said = "the current version does not have it"
    if kept is None:
        return said
    if kept.until_ms is None:
        return f"{said}; no `expire_snapshots` lets it go: kept by {_first(kept.by)}"
    if kept.until_ms <= now_ms:
        return f"{said}, and the next `expire_snapshots` drops the last snapshot that reads it"
    return f"{said}; `expire_snapshots` drops the last snapshot that reads it from {format_time(kept.until_ms)} on"


def _first(names: Sequence[str]) -> str:
    """Some names; of a table that was restored hundreds of tags may keep a file."""
    more = f" and {len(names) - _KEEPERS_SHOWN:,} more" if len(names) > _KEEPERS_SHOWN else ""
    return ", ".join(names[:_KEEPERS_SHOWN]) + more


def fate_of_unread(fate: str) -> str:
    """What becomes of a file of the table that no snapshot reads any more."""
    said = "it was taken out of the table, and no snapshot that can be read has it any more"
    return f"{said}; {fate}" if fate else said


def in_plan(plan: PlanOfFile, table: Table) -> str:
    """What becomes of a file that a plan names and no snapshot reads."""
    back = f"; `{restore_command(table, plan.run)}` brings it back" if plan.is_restorable else ""
    until = format_time(plan.until_ms)
    if plan.place == GONE:
        return f"no snapshot reads it: a plan of {plan.job} names it, and it is gone"
    if plan.place == TRASH:
        return f"no snapshot reads it: {plan.job} moved it to the trash, where it stays until {until}{back}"
    return f"no snapshot reads it, and a plan of {plan.job} takes it from {until} on{back}"


def no_trace(info: FileInfo | None) -> str:
    """What is said of a file that nothing names."""
    if info is not None:
        return f"nothing that is known of the table leads to it; it lies there since {format_time(info.modified_ms)}"
    return "there is no such file, and nothing of the table has one of this name"


def unlooked(unreadable: Mapping[str, str], unsure: Collection[int]) -> list[str]:
    """What could not be looked into, and what follows from it: of the snapshots `unsure` not all is known."""
    shown = [f"could not look into {name}: {why}" for name, why in [*unreadable.items()][:_SHOWN]]
    more = [f"... and {len(unreadable) - _SHOWN:,} more"] if len(unreadable) > _SHOWN else []
    ids = ", ".join(map(str, sorted(unsure)[:_SHOWN])) + (" and others" if len(unsure) > _SHOWN else "")
    readers = f"snapshot{'s' if len(unsure) > 1 else ''} {ids}" if unsure else "other snapshots"
    return [*shown, *more, f"so it may also be read by {readers}"]


def as_far_as_read(said: str, unreadable: Mapping[str, str]) -> str:
    """What is said of a file where not all could be read that may say something else."""
    return f"as far as can be read, {said}" if unreadable else said


_UNNAMED = "file"


def why(
    table: Table,
    path: str,
    spark: SparkSource = None,
    *,
    where: str | Expression | None = None,
    trust_manifest_list: bool = False,
) -> WhyResult:
    """Explain one file: who added it and who removed it, what refers to it, which deletes reach it, when it is deleted or why it
    is still there.

    Args:
        path: the location of a data file, delete file, manifest, manifest list, metadata file or statistics file, in whatever
            spelling, or the end of it; also of a file that is nothing of the table.
        spark: none is needed for small tables.
        where: a filter; the result says which step of a scan skips a data file, and why.
        trust_manifest_list: believe manifest lists although the summaries of snapshots count other files.

    Raises:
        UsageError: several files end so, or `path` is no file.
        ExpressionError, NotFoundError: the filter does not fit the table.
        UnsupportedError: the table is encrypted.
        UnavailableError: the store fails for now.
    """
    target = Target.of(path)
    check_source(spark)
    refuse_encrypted(table.metadata, "why")
    with spark_run("why", table.name, SILENT):
        return _Look(table, target, spark, where, trust_manifest_list=trust_manifest_list).told()


class _Look:
    """One look at a table for one file."""

    def __init__(
        self,
        table: Table,
        target: Target,
        spark: SparkSource,
        where: str | Expression | None,
        *,
        trust_manifest_list: bool,
    ) -> None:
        self._table, self._target, self._spark, self._where = table, target, spark, where
        self._trusts = trust_manifest_list
        self._unreadable: dict[str, str] = {}
        self._unsure: frozenset[int] = frozenset()
        self._notes: list[str] = []

    def told(self) -> WhyResult:
        manifests = read_manifests(self._table, self._spark, trust_manifest_list=self._trusts)
        self._unreadable |= manifests.unreadable
        names = named_locations(self._table, manifests, self._target)
        # A whole name that metadata has is no data file's too.
        if any(self._target.is_location or name.endswith(f"/{self._target.text}") for name in names):
            return self._by_name(self._target.chosen(names) or "", manifests)
        entries = find_entries(manifests.files, self._table, self._spark, self._target)
        self._unreadable |= entries.unreadable
        unread = snapshots_of(entries.unreadable, self._table, self._spark, manifests.files)
        self._unsure = manifests.unsure(self._table.metadata).union(*unread.values())
        chosen = self._target.chosen([*names, *entries.rows["file_path"].unique().to_pylist()])
        if chosen in names:
            return self._by_name(chosen or "", manifests)
        if chosen is not None:
            return self._by_entries(chosen, entries, manifests)
        return self._unnamed(manifests)

    def _by_name(self, location: str, manifests: ReadableManifests) -> WhyResult:
        found = told_by_name(location, self._table, manifests, self._spark)
        if not found.fate:
            return self._read(found, {})
        state = FileState.CURRENT if found.is_current else FileState.RETAINED
        return self._result(location, found.kind, state, found.fate, self._head(location))

    def _by_entries(self, location: str, entries: Entries, manifests: ReadableManifests) -> WhyResult:
        metadata = self._table.metadata
        rows = entries.of_file(location)
        hits = rows["manifest_path"].unique().to_pylist()
        named_by = snapshots_of(hits, self._table, self._spark, manifests.files)
        lineage = Lineage.of_entries(rows, named_by, self._unsure)
        kind = kind_of(rows["content"][0].as_py(), rows["file_format"][0].as_py())
        found = ByName(file_path=location, kind=kind, lineage=lineage)
        version = lineage.newest_reader(metadata)
        if version is None:
            return self._unread(found)
        live = {*rows.filter(pc.not_equal(rows["status"], int(Status.DELETED)))["manifest_path"].to_pylist()}
        named = [
            m for m in manifests.files if m.manifest_path in live and version.snapshot_id in named_by[m.manifest_path]
        ]
        told, notes = described(location, named, version, self._table, self._spark, self._where)
        self._notes += notes
        return self._read(found, told)

    def _read(self, found: ByName, told: dict[str, Any]) -> WhyResult:
        """A file that snapshots read."""
        metadata, lineage = self._table.metadata, found.lineage
        is_current = metadata.current_snapshot_id in lineage.readers
        info, kept, now_ms = self._head(found.file_path), self._kept(lineage.readers), self._table.runtime.now_ms()
        plans = plans_naming(self._table, self._target) if info is None else PlansNaming()
        named = plans.of_file(found.file_path)
        self._unreadable |= plans.unreadable
        if self._where is not None and "is_read_by_filter" not in told:
            self._notes.append("a filter says something of data files that a snapshot reads alone")
        if not territory(self._table).holds(found.file_path):
            self._notes.append(
                "it lies in no place of the table, so that it stays when no snapshot reads it any more, unless reclaim.roots "
                "names a directory above it"
            )
        told |= {
            "snapshots_count": len(lineage.readers),
            "retained_until_ms": None if kept is None else kept.until_ms,
            "kept_by": () if kept is None else kept.by,
            "history": events(lineage, metadata, found.added),
            "refs": reading_refs(lineage.readers, metadata),
            "plans": told_of(named, self._table.storage),
        }
        run = _in_trash(named)
        back = None if run is None else restore_command(self._table, run)
        fate = fate_of_read(is_current=is_current, kept=kept, now_ms=now_ms, is_missing=info is None, back=back)
        if is_current:
            return self._result(found.file_path, found.kind, FileState.CURRENT, fate, info, **told)
        fate = as_far_as_read(fate, self._unreadable)
        return self._result(found.file_path, found.kind, FileState.RETAINED, fate, info, **told)

    def _unread(self, found: ByName) -> WhyResult:
        """A file of the table's that no snapshot reads any more."""
        plans = plans_naming(self._table, self._target)
        self._unreadable |= plans.unreadable
        named = plans.of_file(found.file_path)
        told: dict[str, Any] = {
            "history": events(found.lineage, self._table.metadata),
            "plans": told_of(named, self._table.storage),
        }
        if (answer := self._of_plan(named)) is not None:
            state, fate, info = answer
            return self._result(found.file_path, found.kind, state, fate, info, **told)
        info = self._head(found.file_path)
        if self._unreadable:
            return self._result(found.file_path, found.kind, FileState.UNDECIDED, fate_of_unread(""), info, **told)
        if info is None:
            fate = fate_of_unread("its file is deleted")
            return self._result(found.file_path, found.kind, FileState.GONE, fate, info, **told)
        verdict = judged(info, self._table)
        told["removable_after_ms"] = verdict.removable_after_ms
        state = FileState.GARBAGE if verdict.state is FileState.ORPHAN else verdict.state
        return self._result(found.file_path, found.kind, state, fate_of_unread(verdict.fate), info, **told)

    def _unnamed(self, manifests: ReadableManifests) -> WhyResult:
        """A file that neither metadata nor manifests name."""
        plans = plans_naming(self._table, self._target)
        self._unreadable |= plans.unreadable
        chosen = self._target.chosen([one.location for one in plans.named]) if plans.named else None
        named = plans.named[:1] and plans.of_file(chosen or plans.named[0].location)
        if named and self._target.is_location and not self._target.among([named[0].location]):
            # It was asked for by its place in the trash.
            return self._at(named[0].location)
        if (answer := self._of_plan(named)) is not None:
            state, fate, info = answer
            told = told_of(named, self._table.storage)
            return self._result(named[0].location, named[0].kind, state, fate, info, plans=told)
        location = named[0].location if named else self._target.text
        info = self._found(location)
        if info is None and named:
            told = told_of(named, self._table.storage)
            return self._result(
                location, named[0].kind, FileState.GONE, in_plan(told[0], self._table), None, plans=told
            )
        if info is None:
            state = FileState.UNDECIDED if self._unreadable else FileState.UNKNOWN
            return self._result(location, _UNNAMED, state, no_trace(None), None)
        if not self._unreadable and self._is_in_older_statistics(info, manifests):
            fate = "metadata in the metadata log names it as statistics; it goes when that metadata has left the log"
            return self._result(info.location, "statistics file", FileState.RETAINED, fate, info)
        if self._unreadable:
            return self._result(info.location, _UNNAMED, FileState.UNDECIDED, no_trace(info), info)
        verdict = judged(info, self._table)
        fate = f"{no_trace(info)}; {verdict.fate}"
        after_ms = verdict.removable_after_ms
        return self._result(info.location, _UNNAMED, verdict.state, fate, info, removable_after_ms=after_ms)

    def _at(self, location: str) -> WhyResult:
        """The same look at a file by its location."""
        return _Look(
            self._table, Target.of(location), self._spark, self._where, trust_manifest_list=self._trusts
        ).told()

    def _of_plan(self, named: tuple[Named, ...]) -> tuple[FileState, str, FileInfo | None] | None:
        """What becomes of a file that plans name, none of which may be gone already."""
        counting = [one for one in named if one.counts]
        if not counting:
            return None
        first = counting[0]
        told = told_of([first], self._table.storage)[0]
        state = FileState.TRASH if first.place == TRASH else FileState.PLANNED
        return state, as_far_as_read(in_plan(told, self._table), self._unreadable), first.found

    def _is_in_older_statistics(self, info: FileInfo, manifests: ReadableManifests) -> bool:
        """Whether metadata in the log names a file, by which orphan removal goes too."""
        seen: ReachableLists = manifests.reached.seen
        try:
            reached = reached_by(self._table, self._spark, trust_manifest_list=self._trusts, since=seen)
        except SafetyError as error:
            self._unreadable["the metadata log"] = error.message
            return False
        names = self._target.among(reached.named["location"].to_pylist())
        return any(same_file(name, info.location) for name in names)

    def _found(self, location: str) -> FileInfo | None:
        """The file in storage: at the location, or the only one below the table's location that ends so."""
        if self._target.is_location and (info := self._head(location)) is not None:
            return info
        text = self._target.text
        if self._target.is_location and (not text.startswith("/") or is_under(text, self._table.metadata.location)):
            return None
        listed = {info.location: info for info in listed_with_end(self._table, self._target)}
        chosen = self._target.chosen(listed)
        return None if chosen is None else listed[chosen]

    def _head(self, location: str) -> FileInfo | None:
        try:
            return self._table.storage.head(location)
        except UnsupportedError as error:
            self._notes.append(f"it cannot be looked whether it is there: {error.message}")
            return None

    def _kept(self, readers: frozenset[int]) -> SnapshotRetention | None:
        try:
            table = self._table
            return kept_until(table.metadata, table.catalog.rules, readers, table.runtime.now_ms()) if readers else None
        except PropertyError as error:
            self._notes.append(f"when it expires cannot be determined: {error.message}")
            return None

    def _result(
        self, location: str, kind: str, state: FileState, answer: str, info: FileInfo | None, **told: Any
    ) -> WhyResult:
        notes = list(self._notes)
        text = self._target.text
        if self._target.is_location and not location.endswith(text) and not same_file(location, text):
            notes.append(f"{text!r} has its path under another scheme or authority, and is taken for the same file")
        if not is_gc_enabled(self._table.metadata):
            notes.append("the table has gc.enabled=false, so no run deletes any file of it")
        if (collector := self._table.catalog.garbage_collector) is not None:
            notes.append(f"of tables of catalog {self._table.catalog.name!r} {collector} alone deletes files")
        if self._unreadable:
            notes += unlooked(self._unreadable, self._unsure)
        return WhyResult(
            file_path=location,
            kind=str(kind),
            state=state,
            answer=answer,
            is_in_storage=info is not None,
            stored_bytes=None if info is None else info.size_bytes,
            created_ms=None if info is None else info.modified_ms,
            unreadable_files=tuple(self._unreadable),
            notes=tuple(notes),
            **told,
        )


def _in_trash(named: tuple[Named, ...]) -> str | None:
    """The run in whose trash a file is."""
    return next((one.plan.run for one in named if one.place == TRASH), None)
