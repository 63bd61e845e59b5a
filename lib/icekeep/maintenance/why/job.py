"""The command `why`: who reads a file -> until when; else plans of runs -> the trash; else what the store has."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.catalog.metadata_files import HINT, deletes_old_metadata
from icekeep.commit.summary import made_by
from icekeep.errors import InvalidTableError, MissingFileError, PropertyError, SafetyError, UnsupportedError
from icekeep.events import SILENT
from icekeep.maintenance.delete.kept import days_in_trash_end_ms, done_file, restore_ends_ms
from icekeep.maintenance.delete.lease import last_work
from icekeep.maintenance.delete.locations import deletable_locations
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
from icekeep.maintenance.delete.reachable import FileKind, is_gc_enabled, statistics_files
from icekeep.maintenance.orphans.metadata import reached_by
from icekeep.maintenance.why.fate import (
    SnapshotRetention,
    classify_unnamed,
    fate_in_plan,
    fate_of_read,
    fate_of_unread,
    fate_without_trace,
    gaps,
    kept_until,
)
from icekeep.maintenance.why.reasons import (
    GONE,
    IN_PLACE,
    TRASH,
    FileEvent,
    FileState,
    PlanOfFile,
    ReadingRef,
    WhyResult,
    described,
    kind_of,
)
from icekeep.maintenance.why.search import (
    Entries,
    ReadableManifests,
    Target,
    find_entries,
    of_file,
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
from icekeep.spec.snapshots import MAIN, PartitionStatisticsFile, Snapshot, StatisticsFile
from icekeep.spec.times import format_time
from icekeep.storage.base import REQUESTS_AT_ONCE, FileInfo, ListingShare, Storage
from icekeep.storage.locations import is_under, requests_at_once

ADDED, REMOVED, IN_PART, DESCRIBES = "added", "removed", "removed in part", "describes"

_UNNAMED = "file"
_MAX_NAMES = 100


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
        return _Look(table, target, spark, where, trust_manifest_list=trust_manifest_list).result()


class _TableFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the table names, and what snapshots did with it.

    Attributes:
        readers: snapshots of the table that have it.
        unsure: those of which not all could be read; they may have it too.
        added_by, removed_by: ids, also of snapshots that expired.
        added: the word for what `added_by` did.
        fate: why it is there and when it goes, where no snapshot has to do with that.
        is_current: whether the table needs it now, where no snapshot has to do with that.
    """

    file_path: str
    kind: str
    readers: frozenset[int] = frozenset()
    unsure: frozenset[int] = frozenset()
    added_by: frozenset[int] = frozenset()
    removed_by: frozenset[int] = frozenset()
    added: str = ADDED
    fate: str = ""
    is_current: bool = False

    def newest_reader(self, metadata: TableMetadata) -> Snapshot | None:
        """The version that is described: the current one if it reads the file, else the newest that does."""
        if metadata.current_snapshot_id in self.readers:
            return metadata.current_snapshot
        readers = (metadata.snapshots_by_id[i] for i in self.readers)
        return max(readers, key=lambda s: (s.sequence_number, s.timestamp_ms), default=None)

    def events(self, metadata: TableMetadata) -> tuple[FileEvent, ...]:
        """What happened to the file, in the order of time; what expired snapshots did comes first.

        A snapshot that does not have the file while its parent does has taken it out, though no entry may say so.
        """
        removing = {
            s.snapshot_id
            for s in metadata.snapshots
            if s.parent_snapshot_id in self.readers and s.snapshot_id not in self.readers | self.unsure
        }
        all_by = [(self.added, i) for i in self.added_by]
        all_by += [(IN_PART if i in self.readers else REMOVED, i) for i in self.removed_by | removing]
        found = []
        for event, snapshot_id in all_by:
            snapshot = metadata.snapshots_by_id.get(snapshot_id)
            found.append(
                FileEvent(
                    event=event,
                    snapshot_id=snapshot_id,
                    timestamp_ms=None if snapshot is None else snapshot.timestamp_ms,
                    operation=None if snapshot is None else snapshot.operation,
                    made_by=None if snapshot is None else made_by(snapshot.summary),
                )
            )
        return tuple(sorted(found, key=lambda one: (one.timestamp_ms or 0, one.event, one.snapshot_id)))

    def refs(self, metadata: TableMetadata) -> tuple[ReadingRef, ...]:
        """Which references lead to the snapshots that read a file; those that none leads to come last."""
        found: list[ReadingRef] = []
        referenced: set[int] = set()

        def add(name: str | None, kind: str, behind: Sequence[Snapshot], *, is_in_head: bool) -> None:
            times = [snapshot.timestamp_ms for snapshot in behind]
            if times:
                found.append(
                    ReadingRef(
                        ref=name,
                        type=kind,
                        is_in_head=is_in_head,
                        snapshots_count=len(times),
                        oldest_timestamp_ms=min(times),
                        newest_timestamp_ms=max(times),
                    )
                )

        refs = sorted(metadata.refs.items(), key=lambda item: (item[0] != MAIN, not item[1].is_branch, item[0]))
        for name, ref in refs:
            reached = (
                metadata.ancestors(ref.snapshot_id)
                if ref.is_branch
                else [metadata.snapshots_by_id.get(ref.snapshot_id)]
            )
            behind = [s for s in reached if s is not None and s.snapshot_id in self.readers]
            referenced |= {s.snapshot_id for s in behind}
            add(name, ref.type, behind, is_in_head=ref.snapshot_id in self.readers)
        rest = [s for s in metadata.snapshots if s.snapshot_id in self.readers - referenced]
        add(None, "", rest, is_in_head=False)
        return tuple(found)


class _PlannedFile(msgspec.Struct, frozen=True):
    """A file in the plan of a run, where it is now, and how the store has it there."""

    plan: DeletionPlan
    location: str
    kind: str
    place: str = GONE
    found: FileInfo | None = None

    def described(self, storage: Storage) -> PlanOfFile:
        """The plan as the result has it."""
        plan = self.plan
        work = last_work(plan.directory, storage)
        done = done_file(plan, work, storage)
        until_ms = plan.not_before_ms if plan.trash_until_ms is None else plan.trash_until_ms
        if done is not None:
            until_ms = days_in_trash_end_ms(plan, done)
        return PlanOfFile(
            run=plan.run,
            job=plan.job,
            place=self.place,
            created_ms=plan.created_ms,
            until_ms=max(until_ms, restore_ends_ms(plan, work)),
            is_restorable=not work.deletes,
        )


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
        self._trusts, self._metadata = trust_manifest_list, table.metadata
        self._unreadable: dict[str, str] = {}
        self._unsure: frozenset[int] = frozenset()
        self._notes: list[str] = []

    def result(self) -> WhyResult:
        target, table, metadata = self._target, self._table, self._metadata
        lists = read_manifests(table, self._spark, trust_manifest_list=self._trusts)
        manifests = lists.reached.manifests
        self._unreadable |= lists.unreadable
        hint = f"{table.metadata_location.rpartition('/')[0]}/{HINT}"
        names = [table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log), hint]
        names += [snapshot.manifest_list for snapshot in metadata.snapshots if snapshot.manifest_list]
        names = target.among([*names, *statistics_files(metadata), *(m.manifest_path for m in manifests)])
        # A whole name that metadata has is no data file's too.
        if any(target.is_location or name.endswith(f"/{target.text}") for name in names):
            return self._of_metadata(target.chosen(names) or "", lists)
        entries = find_entries(manifests, table, self._spark, target)
        self._unreadable |= entries.unreadable
        unread = snapshots_of(entries.unreadable, table, self._spark, manifests)
        self._unsure = lists.unread_snapshots(metadata).union(*unread.values())
        chosen = target.chosen([*names, *entries.rows["file_path"].unique().to_pylist()])
        if chosen in names:
            return self._of_metadata(chosen or "", lists)
        if chosen is not None:
            return self._of_entries(chosen, entries, lists)
        return self._unnamed(lists)

    def _of_metadata(self, location: str, lists: ReadableManifests) -> WhyResult:
        """A file that metadata or a manifest list names; no manifest is opened for it."""
        file = self._named_file(location, lists)
        if not file.fate:
            return self._read(file, {})
        state = FileState.CURRENT if file.is_current else FileState.RETAINED
        return self._result(location, file.kind, state, file.fate, self._head(location))

    def _named_file(self, location: str, lists: ReadableManifests) -> _TableFile:
        metadata = self._metadata
        by_list = {
            s.snapshot_id for s in metadata.snapshots if s.manifest_list and same_file(s.manifest_list, location)
        }
        if by_list:
            ids = frozenset(by_list)
            return _TableFile(file_path=location, kind=FileKind.MANIFEST_LIST, readers=ids, added_by=ids)
        statistics: list[StatisticsFile | PartitionStatisticsFile] = [
            *metadata.statistics,
            *metadata.partition_statistics,
        ]
        described_ids = frozenset(one.snapshot_id for one in statistics if same_file(one.statistics_path, location))
        if described_ids:
            readers = described_ids & metadata.snapshots_by_id.keys()
            return _TableFile(
                file_path=location, kind=FileKind.STATISTICS, readers=readers, added_by=described_ids, added=DESCRIBES
            )
        manifests = lists.reached.manifests
        listed = [m for m in manifests if same_file(m.manifest_path, location)]
        if listed:
            named_by = snapshots_of([m.manifest_path for m in listed], self._table, self._spark, manifests)
            return _TableFile(
                file_path=location,
                kind=FileKind.MANIFEST,
                readers=frozenset[int]().union(*named_by.values()),
                unsure=lists.unread_snapshots(metadata),
                added_by=frozenset(m.added_snapshot_id for m in listed if m.added_snapshot_id is not None),
            )
        if same_file(location, self._table.metadata_location):
            fate = "it is the table's current metadata; the next commit puts it into the metadata log"
            return _TableFile(file_path=location, kind=FileKind.METADATA, fate=fate, is_current=True)
        log = metadata.metadata_log
        place = next((n for n, entry in enumerate(log) if same_file(entry.metadata_file, location)), None)
        if place is None:
            fate = "catalogs that find the table by the number of its version begin to look there; no run deletes it"
            return _TableFile(file_path=location, kind="version hint", fate=fate, is_current=True)
        after = "the commit deletes it then"
        if not deletes_old_metadata(metadata):
            after = "`expire_snapshots` or `remove_orphan_files` takes it then"
        fate = (
            f"it was the current metadata as of {format_time(log[place].timestamp_ms)} and is number {place + 1} of {len(log)} "
            f"in the metadata log; once later commits push it out (write.metadata.previous-versions-max), {after}"
        )
        return _TableFile(file_path=location, kind=FileKind.METADATA, fate=fate)

    def _of_entries(self, location: str, entries: Entries, lists: ReadableManifests) -> WhyResult:
        rows, manifests = of_file(entries.rows, location), lists.reached.manifests
        named_by = snapshots_of(rows["manifest_path"].unique().to_pylist(), self._table, self._spark, manifests)
        readers: set[int] = set()
        added: set[int] = set()
        removed: set[int] = set()
        live: set[str] = set()
        # A Puffin file has an entry for each of its vectors; those that differ in nothing else are one.
        columns = ["manifest_path", "status", "snapshot_id"]
        for row in rows.select(columns).group_by(columns).aggregate([]).to_pylist():
            is_live = row["status"] != Status.DELETED
            if is_live:
                live.add(row["manifest_path"])
                readers |= named_by[row["manifest_path"]]
            if row["snapshot_id"] is not None:
                # The entry of a file that was deleted says by whom; of all others, who added it.
                (added if is_live else removed).add(row["snapshot_id"])
        file = _TableFile(
            file_path=location,
            kind=kind_of(rows["content"][0].as_py(), rows["file_format"][0].as_py()),
            readers=frozenset(readers),
            unsure=self._unsure,
            added_by=frozenset(added),
            removed_by=frozenset(removed),
        )
        version = file.newest_reader(self._metadata)
        if version is None:
            return self._unread(file)
        of_version = [
            m for m in manifests if m.manifest_path in live and version.snapshot_id in named_by[m.manifest_path]
        ]
        fields, notes = described(location, of_version, version, self._table, self._spark, self._where)
        self._notes += notes
        return self._read(file, fields)

    def _read(self, file: _TableFile, fields: dict[str, Any]) -> WhyResult:
        """A file that snapshots read."""
        table, metadata = self._table, self._metadata
        is_current = metadata.current_snapshot_id in file.readers
        info, kept, now_ms = self._head(file.file_path), self._kept(file.readers), table.runtime.now_ms()
        plans = self._plans_of(file.file_path) if info is None else []
        if self._where is not None and "is_read_by_filter" not in fields:
            self._notes.append("a filter says something of data files that a snapshot reads alone")
        if not deletable_locations(table).holds(file.file_path):
            self._notes.append(
                "it lies in no place of the table, so that it stays when no snapshot reads it any more, unless reclaim.roots "
                "names a directory above it"
            )
        fields |= {
            "snapshots_count": len(file.readers),
            "retained_until_ms": None if kept is None else kept.until_ms,
            "kept_by": () if kept is None else kept.by,
            "history": file.events(metadata),
            "refs": file.refs(metadata),
            "plans": tuple(one.described(table.storage) for one in plans),
        }
        run = next((one.plan.run for one in plans if one.place == TRASH), None)
        back = None if run is None else restore_command(table, run)
        fate = fate_of_read(is_current=is_current, kept=kept, now_ms=now_ms, is_missing=info is None, back=back)
        if is_current:
            return self._result(file.file_path, file.kind, FileState.CURRENT, fate, info, **fields)
        return self._result(file.file_path, file.kind, FileState.RETAINED, self._as_far_as_read(fate), info, **fields)

    def _unread(self, file: _TableFile) -> WhyResult:
        """A file of the table's that no snapshot reads any more."""
        plans = self._plans_of(file.file_path)
        fields: dict[str, Any] = {
            "history": file.events(self._metadata),
            "plans": tuple(one.described(self._table.storage) for one in plans),
        }
        if (answer := self._of_plan(plans)) is not None:
            return self._result(file.file_path, file.kind, *answer, **fields)
        info = self._head(file.file_path)
        if self._unreadable:
            state, fate = FileState.UNDECIDED, ""
        elif info is None:
            state, fate = FileState.GONE, "its file is deleted"
        else:
            verdict = classify_unnamed(info, self._table)
            fields["removable_after_ms"] = verdict.removable_after_ms
            state = FileState.GARBAGE if verdict.state is FileState.ORPHAN else verdict.state
            fate = verdict.fate
        return self._result(file.file_path, file.kind, state, fate_of_unread(fate), info, **fields)

    def _unnamed(self, lists: ReadableManifests) -> WhyResult:
        """A file that neither metadata nor manifests name."""
        target, storage = self._target, self._table.storage
        named = self._plans()
        location = target.text
        if named:
            location = target.chosen([one.location for one in named]) or named[0].location
        plans = _of_location(named, location)
        if plans and target.is_location and not target.among([plans[0].location]):
            # It was asked for by its place in the trash.
            by_location = Target.of(plans[0].location)
            again = _Look(self._table, by_location, self._spark, self._where, trust_manifest_list=self._trusts)
            return again.result()
        if plans:
            location, kind = plans[0].location, plans[0].kind
            described_plans = tuple(one.described(storage) for one in plans)
            if (answer := self._of_plan(plans)) is not None:
                return self._result(location, kind, *answer, plans=described_plans)
        info = self._found(location)
        if info is None and plans:
            fate = fate_in_plan(described_plans[0], self._table)
            return self._result(location, kind, FileState.GONE, fate, None, plans=described_plans)
        if info is None:
            state = FileState.UNDECIDED if self._unreadable else FileState.UNKNOWN
            return self._result(location, _UNNAMED, state, fate_without_trace(None), None)
        if not self._unreadable and self._is_in_older_statistics(info, lists):
            fate = "metadata in the metadata log names it as statistics; it goes when that metadata has left the log"
            return self._result(info.location, "statistics file", FileState.RETAINED, fate, info)
        if self._unreadable:
            return self._result(info.location, _UNNAMED, FileState.UNDECIDED, fate_without_trace(info), info)
        verdict = classify_unnamed(info, self._table)
        fate = f"{fate_without_trace(info)}; {verdict.fate}"
        after_ms = verdict.removable_after_ms
        return self._result(info.location, _UNNAMED, verdict.state, fate, info, removable_after_ms=after_ms)

    def _plans(self) -> list[_PlannedFile]:
        """The plans that name matching files; the place in the trash may be asked for too.

        A plan whose run has not gone beyond it counts where the file is in the trash alone.
        """
        storage, found = self._table.storage, list[_PlannedFile]()
        for directory in plan_directories(self._metadata, storage):
            try:
                plan = read_plan(directory, storage)
                if plan.table_uuid == self._metadata.table_uuid:
                    found += _named_by(plan, self._target, storage)
            except MissingFileError:
                # Its run has just finished it.
                continue
            except InvalidTableError as error:
                self._unreadable[directory] = error.message
        placed = [_placed(one, storage) for one in found]
        return [one for one in placed if one.place == TRASH or is_committed(one.plan, self._metadata)]

    def _plans_of(self, location: str) -> list[_PlannedFile]:
        return _of_location(self._plans(), location)

    def _of_plan(self, plans: Sequence[_PlannedFile]) -> tuple[FileState, str, FileInfo | None] | None:
        """What becomes of a file that plans name; `None` where it is gone already."""
        first = next((one for one in plans if one.place != GONE), None)
        if first is None:
            return None
        state = FileState.TRASH if first.place == TRASH else FileState.PLANNED
        fate = fate_in_plan(first.described(self._table.storage), self._table)
        return state, self._as_far_as_read(fate), first.found

    def _is_in_older_statistics(self, info: FileInfo, lists: ReadableManifests) -> bool:
        """Whether metadata in the log names a file, by which orphan removal goes too."""
        seen = lists.reached.seen
        try:
            reached = reached_by(self._table, self._spark, trust_manifest_list=self._trusts, since=seen)
        except SafetyError as error:
            self._unreadable["the metadata log"] = error.message
            return False
        names = self._target.among(reached.named["location"].to_pylist())
        return any(same_file(name, info.location) for name in names)

    def _found(self, location: str) -> FileInfo | None:
        """The file in storage: at the location, or the only one below the table's location that ends so."""
        target, root = self._target, self._metadata.location
        if target.is_location and (info := self._head(location)) is not None:
            return info
        if target.is_location and (not target.text.startswith("/") or is_under(target.text, root)):
            return None
        threads = requests_at_once([root])
        listed = partial(_listed, storage=self._table.storage, end=target.text)
        with ThreadPoolExecutor(threads) as pool:
            shares = pool.map(listed, self._table.storage.shares(root, threads))
            by_location = {info.location: info for some in shares for info in some}
        chosen = target.chosen(by_location)
        return None if chosen is None else by_location[chosen]

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

    def _as_far_as_read(self, fate: str) -> str:
        return f"as far as can be read, {fate}" if self._unreadable else fate

    def _result(
        self, location: str, kind: str, state: FileState, answer: str, info: FileInfo | None, **fields: Any
    ) -> WhyResult:
        notes, target = list(self._notes), self._target
        if target.is_location and not location.endswith(target.text) and not same_file(location, target.text):
            notes.append(
                f"{target.text!r} has its path under another scheme or authority, and is taken for the same file"
            )
        if not is_gc_enabled(self._metadata):
            notes.append("the table has gc.enabled=false, so no run deletes any file of it")
        if (collector := self._table.catalog.garbage_collector) is not None:
            notes.append(f"of tables of catalog {self._table.catalog.name!r} {collector} alone deletes files")
        if self._unreadable:
            notes += gaps(self._unreadable, self._unsure)
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
            **fields,
        )


def _of_location(plans: Iterable[_PlannedFile], location: str) -> list[_PlannedFile]:
    """Those of one file, the one in whose trash it is first."""
    own = [one for one in plans if same_file(one.location, location)]
    return sorted(own, key=lambda one: (one.place != TRASH, -one.plan.created_ms))


def _named_by(plan: DeletionPlan, target: Target, storage: Storage) -> Iterator[_PlannedFile]:
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        for some in pool.map(partial(_named_in, plan=plan, target=target, storage=storage), plan.parts):
            yield from some


def _named_in(part: PlanPart, *, plan: DeletionPlan, target: Target, storage: Storage) -> list[_PlannedFile]:
    files = read_part(part, storage)
    files = files.filter(pc.ends_with(files["location"], target.end))
    if not files.num_rows:
        return []
    is_in_trash = target.is_location and is_under(target.text, plan.directory)
    return [
        _PlannedFile(plan, row["location"], row["kind"])
        for row, matches in zip(files.to_pylist(), target.mask(files["location"]).tolist(), strict=True)
        if matches or (is_in_trash and same_file(trash_location(plan, row["location"]), target.text))
    ]


def _placed(file: _PlannedFile, storage: Storage) -> _PlannedFile:
    in_trash = storage.head(trash_location(file.plan, file.location)) if file.plan.is_trash else None
    if in_trash is not None:
        return msgspec.structs.replace(file, place=TRASH, found=in_trash)
    in_place = storage.head(file.location)
    return msgspec.structs.replace(file, place=GONE if in_place is None else IN_PLACE, found=in_place)


def _listed(share: ListingShare, *, storage: Storage, end: str) -> list[FileInfo]:
    """The first files of a share that end so: a listing of all of it, of which little is held."""
    found: list[FileInfo] = []
    for info in storage.list_share(share):
        if len(found) < _MAX_NAMES and info.location.endswith(end):
            found.append(info)
    return found
