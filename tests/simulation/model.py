"""What must be true of the table after every step, whatever writers do and whatever goes wrong.

Its level is files: rows are numbers that the model keeps of each file, and no bytes, so that thousands of steps take seconds;
what readers make of real rows is for `kit.row_histories`.

The letters and numbers are those of the invariants: G of garbage, C of commits, D of content, R of retention, X of crashes.
H are those of a catalog in a directory, V of credentials that end. E are errors that no writer may be told of: E1 that the
library is broken or the table is damaged, E2 one that is not icekeep's.
"""

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

from icekeep.catalog.filesystem import VERSION_AGE_KEPT_MS
from icekeep.catalog.metadata_files import HINT, file_version, read_table
from icekeep.commit.manifests import ManifestReader
from icekeep.spec.manifests.structs import FileContent, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import PartitionKey, is_global, partition_key
from icekeep.spec.snapshots import MAIN, Snapshot
from icekeep.storage.base import DeleteStatus
from simulation.world import EVENTS, LOCATION, Disk, Doing, Effect, Told, Violation, World, kind_of

DEFINITIONS = (
    "properties",
    "schemas",
    "current_schema_id",
    "partition_specs",
    "default_spec_id",
    "sort_orders",
    "default_sort_order_id",
    "statistics",
    "partition_statistics",
)
"""What of a table an operation leaves as it is unless it is for that."""

SKEW_MS = 20 * 60 * 1000
"""How far the clocks of two writers may be apart."""


class Live(NamedTuple):
    """A live file as a snapshot has it: what no later commit may change."""

    sequence_number: int | None
    file_sequence_number: int | None
    snapshot_id: int | None
    first_row_id: int | None
    content: FileContent
    record_count: int
    partition: PartitionKey
    is_global: bool


class View(NamedTuple):
    """A snapshot as it lies in storage: its live files, and all files that it leads to."""

    live: dict[str, Live]
    files: frozenset[str]


class Model:
    """Follows what lands and what is deleted.

    `rows` says which rows each data file holds, `deletes` which rows a delete file deletes, of one data file or (null) of
    all that are older in its partition; `unnamed` are delete files whose bounds alone say of which data file they are, and
    whether these are its whole path; `replays` which snapshots were made of which by picking them, `being_rewritten`
    which data files compactions have read to replace them.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.rows: dict[str, frozenset[int]] = {}
        self.deletes: dict[str, tuple[str | None, frozenset[int]]] = {}
        self.unnamed: dict[str, bool] = {}
        self.replays: defaultdict[int, list[int | None]] = defaultdict(list)
        self.being_rewritten: set[str] = set()
        self.current: TableMetadata | None = None
        self.commits_count = 0
        self.checks_count = 0
        self._reader = ManifestReader(Truth(world.disk))
        self._views: dict[int, View] = {}
        self._entries: dict[Any, list[tuple[str, Live]]] = {}
        self._ever_reachable: set[str] = set()
        self._parents: dict[int, int | None] = {}
        self._made_ms: dict[str, int] = {}
        self._rows_given = 0
        self._has_expired = False
        self._astray: set[Any] = set()
        world.landed = self.landed
        world.went_astray = self.went_astray
        world.disk.deleted = self.deleted

    def view(self, snapshot: Snapshot) -> View:
        """A snapshot, read from the disk as it is, once."""
        if snapshot.snapshot_id not in self._views:
            self._views[snapshot.snapshot_id] = self._viewed(snapshot)
        return self._views[snapshot.snapshot_id]

    def known_view(self, snapshot_id: int) -> View:
        """A snapshot that was there once, and may have expired since."""
        return self._views[snapshot_id]

    def live(self, metadata: TableMetadata, ref: str) -> dict[str, Live]:
        """The live files of a branch or tag."""
        if ref not in metadata.refs:
            return {}
        return self.view(metadata.snapshots_by_id[metadata.refs[ref].snapshot_id]).live

    def manifests(self, metadata: TableMetadata, ref: str) -> list[ManifestFile]:
        """The manifests of a branch or tag."""
        head = metadata.head(ref)
        return [] if head is None else self._reader.manifests(head)

    def visible(self, live: dict[str, Live]) -> dict[str, frozenset[int]]:
        """The rows that a reader finds in each live data file (spec, "Scan Planning")."""
        deletes = [(file, *self.deletes[path]) for path, file in live.items() if file.content is not FileContent.DATA]
        found = {}
        for path, file in live.items():
            if file.content is not FileContent.DATA:
                continue
            found[path] = rows = self.rows[path]
            number = file.sequence_number or 0
            for delete, target, gone in deletes:
                if target is not None:
                    reaches = target == path
                else:
                    there = delete.is_global or delete.partition == file.partition
                    reaches = there and number < (delete.sequence_number or 0)
                if reaches and number <= (delete.sequence_number or 0):
                    found[path] = rows = rows - gone
        return found

    def rows_of(self, live: dict[str, Live]) -> Counter[int]:
        """The rows of some live files, as a multiset."""
        return Counter(row for rows in self.visible(live).values() for row in rows)

    def landed(self, doing: Doing, location: str, new: TableMetadata) -> None:
        """A new metadata is about to be current."""
        self.checks_count += 1
        before, self.current = self.current, new
        self._ever_reachable |= {location, *_statistics(new)}
        self._made_ms[location] = new.last_updated_ms
        self._parents |= {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in new.snapshots}
        if before is None:
            return
        self.commits_count += 1
        doing.landings += 1
        if not doing.unrecognised:
            self.require(doing.landings == 1, "C4", f"{doing.name} landed {doing.landings} times")
            open_ = doing.told in (Told.NOTHING, Told.UNKNOWN, Told.CRASHED, Told.INTERRUPTED)
            self.require(open_, "C3", f"{doing.name} landed after its writer was told {doing.told.value}")
        log = [entry.metadata_file for entry in new.metadata_log]
        self.require(log[-1:] == [self.world.pointer], "C1", f"{location!r} does not follow {self.world.pointer!r}")
        self._check_identity(before, new)
        for file in (location, *log, *_statistics(new)):
            self.require(file in self.world.disk.files, "G1", f"{file!r}, which metadata names, is not in storage")
        for snapshot in new.snapshots:
            if snapshot.snapshot_id in before.snapshots_by_id:
                continue
            if doing.restores and snapshot.snapshot_id in self._views:
                self._check_restored(snapshot)
            else:
                self._check_new(snapshot, before, new)
        self._check_history(doing, before, new)
        self._check_effect(doing, before, new)
        # Rows and files come first: totals are wrong as well where these are.
        for snapshot in new.snapshots:
            if snapshot.snapshot_id not in before.snapshots_by_id:
                self._check_totals(snapshot, self.view(snapshot))
        doing.check(self, before, new)

    def is_ancestor(self, snapshot_id: int, of: int) -> bool:
        """Whether one snapshot led to another, whatever of the history between them has expired since."""
        at: int | None = of
        while at is not None and at != snapshot_id:
            at = self._parents.get(at)
        return at == snapshot_id

    def deleted(self, location: str, doing: Doing | None) -> None:
        """A file is about to be deleted, or moved elsewhere."""
        self.checks_count += 1
        new = self.current
        if new is None:
            return
        reaching = [s.snapshot_id for s in new.snapshots if location in self.view(s).files]
        self.require(not reaching, "G1", f"{location!r} is deleted, which snapshots {reaching} lead to")
        self.require(location != self.world.pointer, "G1", f"the current metadata {location!r} is deleted")
        log = {entry.metadata_file for entry in new.metadata_log}
        self.require(location not in log, "G1", f"{location!r} is deleted, which is in the metadata log")
        self.require(location not in _statistics(new), "G1", f"{location!r} is deleted, which is named as statistics")
        if self.world.is_version(location):
            # By its own time: it may have been created long after it was made.
            age_ms = self.world.scheduler.now_ms - self._made_ms[location]
            is_old = age_ms >= VERSION_AGE_KEPT_MS - SKEW_MS
            self.require(is_old, "H2", f"version {location!r} is deleted at an age of {age_ms} ms")
            behind = file_version(self.world.pointer) - file_version(location)
            self.require(behind >= self.world.versions_kept, "H2", f"{location!r} is deleted, {behind} behind the head")
        if doing is not None:
            doing.deletes(self, location)

    def went_astray(self, doing: Doing, location: str) -> None:
        """A version was created that nobody reads, since there are newer ones: only somebody very slow may do that."""
        age_ms = self.world.scheduler.now_ms - doing.began_ms
        told = f"{doing.name} created {location!r} behind the head, {age_ms} ms after it began"
        self.require(self._is_slow(doing), "C1", told)
        self._astray.add(doing)

    def _is_slow(self, doing: Doing) -> bool:
        """Whether versions that were made since it began may be deleted by now."""
        return self.world.scheduler.now_ms - doing.began_ms >= VERSION_AGE_KEPT_MS - SKEW_MS

    def told(self, doing: Doing) -> None:
        """A writer knows what became of its operation."""
        self.checks_count += 1
        # Where snapshots have expired, nobody can say any more whose they were.
        met_something = doing.met_faults or doing in self._astray or self._has_expired or self._is_slow(doing)
        for_no_reason = doing.told is Told.UNKNOWN and not (met_something or doing.outrun)
        self.require(not for_no_reason, "C3", f"{doing.name} is in doubt though nothing went wrong")
        if doing.unrecognised:
            return
        if doing.told is Told.COMMITTED:
            self.require(
                doing.landings == 1, "C2", f"{doing.name} was told committed; it landed {doing.landings} times"
            )
        if doing.told in (Told.FAILED, Told.UNCHANGED):
            self.require(doing.landings == 0, "C3", f"{doing.name} was told {doing.told.value}, but it landed")

    def finish(self) -> None:
        """The end: the table loads, is whole (X1), and what is left over is known to be an orphan."""
        disk, world = self.world.disk, self.world
        table = read_table(None, EVENTS, world.pointer, Truth(disk))
        self.require(table.metadata == self.current, "X1", "the table loads as something that nobody committed")
        self._entries.clear()
        reachable = {world.pointer, *(entry.metadata_file for entry in table.metadata.metadata_log)}
        reachable |= _statistics(table.metadata)
        reachable.add(f"{LOCATION}/metadata/{HINT}")
        missing = sorted(_statistics(table.metadata) - disk.files.keys())
        self.require(not missing, "G1", f"statistics {missing} are not in storage")
        for snapshot in table.metadata.snapshots:
            fresh = self._viewed(snapshot)
            self.require(fresh == self.view(snapshot), "D7", f"snapshot {snapshot.snapshot_id} is not what it was")
            of_others = any(f.partition[0] != table.metadata.default_spec_id for f in fresh.live.values())
            world.seen["retained snapshots with files of another spec than the current one"] += of_others
            self._check_present(fresh, snapshot)
            reachable |= fresh.files
        root = table.metadata.location
        known = tuple(f"{root}/{name}/" for name in ("data", "metadata"))
        for location in sorted(disk.files.keys() - reachable):
            self.require(location.startswith(known), "X3", f"{location!r} is left where nobody looks for orphans")
            doing = disk.owners[location]
            if doing is None or doing.met_faults or location in self._ever_reachable | doing.left:
                continue
            knew = doing.told in (Told.COMMITTED, Told.UNCHANGED, Told.FAILED)
            self.require(not knew, "X3", f"{doing.name}, told {doing.told.value}, left {location!r} behind")

    def _viewed(self, snapshot: Snapshot) -> View:
        manifests = self._reader.manifests(snapshot)
        live: dict[str, Live] = {}
        files = {snapshot.manifest_list or ""}
        for manifest in manifests:
            files.add(manifest.manifest_path)
            for path, found in self._live_entries(manifest):
                self.require(path not in live, "D1", f"{path!r} is live twice in snapshot {snapshot.snapshot_id}")
                live[path] = found
        return View(live, frozenset(files | live.keys()))

    def _live_entries(self, manifest: ManifestFile) -> list[tuple[str, Live]]:
        key = (manifest.manifest_path, manifest.sequence_number, manifest.added_snapshot_id, manifest.first_row_id)
        if key not in self._entries:
            assert self.current is not None
            self._entries[key] = [
                (
                    e.data_file.file_path,
                    Live(
                        e.sequence_number,
                        e.file_sequence_number,
                        e.snapshot_id,
                        e.data_file.first_row_id,
                        e.data_file.content,
                        e.data_file.record_count,
                        partition_key(e.data_file),
                        is_global(e.data_file, self.current.specs_by_id),
                    ),
                )
                for e in self._reader.entries(manifest, self.current)
                if e.is_live
            ]
        return self._entries[key]

    def _check_identity(self, before: TableMetadata, new: TableMetadata) -> None:
        self.require(new.table_uuid == before.table_uuid and new.location == before.location, "C8", "another table")
        self.require(new.format_version >= before.format_version, "C8", "the format version fell")
        self.require(new.last_updated_ms >= before.last_updated_ms, "C9", "last-updated-ms ran backwards")
        self.require(new.last_column_id >= before.last_column_id, "C9", "field ids are given out again")
        fell = new.last_sequence_number < before.last_sequence_number
        self.require(not fell, "C9", "last-sequence-number fell")
        self.require((new.next_row_id or 0) >= (before.next_row_id or 0), "D5", "next-row-id fell")

    def _check_new(self, snapshot: Snapshot, before: TableMetadata, new: TableMetadata) -> None:
        number = snapshot.snapshot_id
        self.require(number not in self._views, "C9", f"snapshot id {number} is used again")
        if new.format_version > 1:
            rises = before.last_sequence_number < snapshot.sequence_number == new.last_sequence_number
            self.require(rises, "C9", f"sequence number {snapshot.sequence_number} after {before.last_sequence_number}")
        if before.next_row_id is not None:
            self.require(snapshot.first_row_id == before.next_row_id, "D5", "row ids do not follow on")
        manifests = self._manifests(snapshot)
        for location in (snapshot.manifest_list, *(m.manifest_path for m in manifests)):
            self.require(location in self.world.disk.files, "G1", f"new snapshot {number} needs {location!r}")
        if snapshot.operation == "append":
            own = (m for m in manifests if m.added_snapshot_id == number)
            self.world.seen["appends that merged manifests"] += any(m.existing_files_count for m in own)
        view = self.view(snapshot)
        self._check_present(view, snapshot)
        self._ever_reachable |= view.files

    def _check_restored(self, snapshot: Snapshot) -> None:
        """It is what it was before it expired, and all of its files are back."""
        known = self._views[snapshot.snapshot_id]
        self._check_present(known, snapshot)
        self._entries.clear()
        self.require(self._viewed(snapshot) == known, "D7", f"snapshot {snapshot.snapshot_id} is not what it was")
        self.world.seen["snapshots restored"] += 1

    def _manifests(self, snapshot: Snapshot) -> list[ManifestFile]:
        present = snapshot.manifest_list in self.world.disk.files
        self.require(present, "G1", f"manifest list {snapshot.manifest_list!r} is not in storage")
        return self._reader.manifests(snapshot)

    def _check_present(self, view: View, snapshot: Snapshot) -> None:
        gone = sorted(view.files - self.world.disk.files.keys())
        self.require(not gone, "G1", f"snapshot {snapshot.snapshot_id} leads to files that are not there: {gone}")

    def _check_totals(self, snapshot: Snapshot, view: View) -> None:
        data = [f for f in view.live.values() if f.content is FileContent.DATA]
        found = {"total-data-files": len(data), "total-records": sum(f.record_count for f in data)}
        for total, count in found.items():
            said = (snapshot.summary or {}).get(total)
            self.require(said == str(count), "D8", f"{total} of snapshot {snapshot.snapshot_id} is {said}, not {count}")

    def _check_history(self, doing: Doing, before: TableMetadata, new: TableMetadata) -> None:
        gone = [s.snapshot_id for s in before.snapshots if s.snapshot_id not in new.snapshots_by_id]
        self._has_expired = self._has_expired or bool(gone)
        self.require(doing.expires or not gone, "C10", f"{doing.name} removed snapshots {gone}")
        for name, ref in new.refs.items():
            self.require(ref.snapshot_id in new.snapshots_by_id, "R1", f"ref {name!r} points at nothing")
        head = new.refs.get(MAIN)
        at_head = new.current_snapshot_id == (None if head is None else head.snapshot_id)
        self.require(at_head, "C10", "main is not the current snapshot")
        log = new.snapshot_log
        self.require(
            all(e.snapshot_id in new.snapshots_by_id for e in log), "C9", "the snapshot log names what is gone"
        )
        rises = all(a.timestamp_ms <= b.timestamp_ms for a, b in pairwise(log))
        self.require(rises, "C9", "the snapshot log runs backwards")
        is_last = not log or log[-1].snapshot_id == new.current_snapshot_id
        self.require(is_last, "C9", "the snapshot log does not end with the current snapshot")

    def _check_effect(self, doing: Doing, before: TableMetadata, new: TableMetadata) -> None:
        for name in sorted(before.refs.keys() | new.refs.keys()):
            old, now = before.refs.get(name), new.refs.get(name)
            if old != now and name not in doing.moves_refs:
                expired = doing.expires and now is None and name != MAIN
                self.require(expired, "C10", f"{doing.name} moved ref {name!r} from {old} to {now}")
        for name in DEFINITIONS:
            if name not in doing.changes and getattr(before, name) != getattr(new, name):
                self.require(False, "C10", f"{doing.name} changed {name}")
        effect = doing.effect(self, before, new)
        if effect is None:
            return
        was, now_live = self.live(before, effect.branch), self.live(new, effect.branch)
        lost = sorted(effect.removed - was.keys())
        self.require(not lost, "D3", f"{doing.name} replaced {lost}, which were not live any more")
        kept = {path: file for path, file in was.items() if path not in effect.removed}
        carried = effect.may_carry & now_live.keys()
        expected = kept.keys() | effect.added | carried
        # Delete files that reach nothing any more may go with any commit; that rows stay deleted is seen below.
        missing = sorted(p for p in expected - now_live.keys() if p not in self.deletes)
        extra = sorted(now_live.keys() - expected)
        self.require(not missing, "D1", f"{doing.name} lost {missing} in {effect.branch!r}")
        self.require(not extra, "D1", f"{doing.name} brought {extra} into {effect.branch!r}")
        for path, file in kept.items():
            now = now_live.get(path, file)
            if file.first_row_id is None:
                # After an upgrade to version 3 the next commit gives row ids to files that had none.
                now = now._replace(first_row_id=None)
            self.require(now == file, "D6", f"{doing.name} made {path!r} {now}, which was {file}")
        if effect.added or carried:
            self._check_added(doing, effect, carried, now_live, new)
        self._check_rows(doing, effect, was, now_live)

    def _check_rows(self, doing: Doing, effect: Effect, was: dict[str, Live], now: dict[str, Live]) -> None:
        expected = self.rows_of(was)
        if not effect.same_rows:
            visible = self.visible(was)
            expected.subtract(row for path in effect.removed for row in visible.get(path, ()))
            expected.update(row for path in effect.added for row in self.rows.get(path, ()))
            expected.subtract(row for row in effect.deleted_rows if expected[row] > 0)
        found = self.rows_of(now)
        lost, back = sorted((+expected - found).elements()), sorted((found - +expected).elements())
        self.require(not lost, "D1", f"rows {lost} of {effect.branch!r} are gone after {doing.name}")
        self.require(
            not back, "D4", f"rows {back} of {effect.branch!r} are there after {doing.name}, and should not be"
        )

    def _check_added(
        self, doing: Doing, effect: Effect, carried: frozenset[str], live: dict[str, Live], new: TableMetadata
    ) -> None:
        snapshot = new.snapshots_by_id[new.refs[effect.branch].snapshot_id]
        number = snapshot.sequence_number if effect.sequence_number is None else effect.sequence_number
        for path in sorted(effect.added):
            file = live[path]
            own = effect.numbers.get(path, number)
            right = file.snapshot_id == snapshot.snapshot_id and file.sequence_number == own
            self.require(right, "C9", f"{doing.name} added {path!r} as {file}, not at number {own}")
        for path in sorted(carried):
            file, (target, _) = live[path], self.deletes[path]
            right = file.snapshot_id == snapshot.snapshot_id and file.sequence_number == snapshot.sequence_number
            self.require(right, "C9", f"{doing.name} carried {path!r} over as {file}, not at the snapshot's number")
            born = target in effect.added
            self.require(born, "D3", f"{doing.name} carried {path!r} over, which is for {target!r} that it did not add")
        if snapshot.first_row_id is None:
            return
        data = (path for path in effect.added if path in self.rows)
        given = sorted((live[path].first_row_id, live[path].record_count, path) for path in data)
        at = snapshot.first_row_id
        for first, count, path in given:
            self.require(first is not None and first >= at, "D5", f"{path!r} has row ids from {first}, below {at}")
            at = first + count
        self.require(at <= (new.next_row_id or 0), "D5", f"row ids up to {at} are given out again")

    def check_nothing_else_is_left(self) -> None:
        """After orphans were removed there is no file of rows to which no snapshot leads."""
        assert self.current is not None
        reached = {path for snapshot in self.current.snapshots for path in self.view(snapshot).files}
        left = sorted(
            path for path in self.world.disk.files if path.startswith(f"{LOCATION}/data/") and path not in reached
        )
        self.require(not left, "X4", f"{left} are left, to which nothing leads")

    def next_row(self, kind: str | None = None) -> int:
        """A number that no row has yet, nor any after it; of a kind where one is asked for."""
        self._rows_given += 10
        while kind is not None and kind_of(self._rows_given) != kind:
            self._rows_given += 10
        return self._rows_given

    def require(self, holds: bool, invariant: str, message: str) -> None:
        """End the run where an invariant does not hold."""
        if not holds:
            self.world.scheduler.fail(Violation(invariant, message))


def _statistics(metadata: TableMetadata) -> set[str]:
    return {file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics)}


class Truth:
    """The disk as a storage on which nothing goes wrong."""

    def __init__(self, disk: Disk) -> None:
        self.read = disk.read
        self.delete_many = lambda locations: [DeleteStatus.FAILED for _ in locations]
