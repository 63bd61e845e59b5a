"""The health of a table: values with the names of their JSON. `None` is "not measured", never "none".

Small files are read through a storage that counts requests and remembers: what figures and plans both need is read
once. What icekeep itself keeps of a table below `.icekeep` (plans that wait, the trash) takes one listing for a table
that has nothing there, and for others two more and two requests a plan: heads of plans have the sums, so that neither
their parts nor the files in the trash are looked at. Summaries of snapshots say which maintenance was done last and by
whom, and who streams into the table.
"""

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from threading import Lock
from typing import Any, BinaryIO, Self

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.summary import JOB_KEY, made_by
from icekeep.errors import IcekeepError, MissingFileError
from icekeep.maintenance import compact, deletes, manifests, repair
from icekeep.maintenance.delete.plan_file import DONE, DeletionPlan, plan_directories, read_plan
from icekeep.rendered import Rendered
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import own_directory
from icekeep.spec.retention import Writer, made, writers_of
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import DAY_MS, HOUR_MS
from icekeep.storage.base import Storage
from icekeep.storage.locations import canonical
from icekeep.storage.wrappers import CountedStorage, Meter, StorageWrapper


class SnapshotsHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshots of a table; times are epoch milliseconds.

    Attributes:
        expirable_count: those that `expire_snapshots` would let go now.
        unreferenced_count: those that no branch or tag leads to.
    """

    snapshots_count: int = 0
    expirable_count: int = 0
    unreferenced_count: int = 0
    oldest_timestamp_ms: int | None = None
    newest_timestamp_ms: int | None = None


class RefHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What a branch or tag keeps alive.

    Attributes:
        snapshots_count: a branch keeps its head and all ancestors, a tag its snapshot.
        only_snapshots_count: of these, those that no other reference keeps.
        files_count, bytes: data and delete files that are live at its head; bytes are those that metadata records, of a
            deletion vector those of its blob.
        only_files_count, only_bytes: of these, those that are live at no other reference's head, and so would be garbage
            without this one once history is expired.
    """

    ref: str
    type: str
    snapshot_id: int
    snapshots_count: int = 0
    only_snapshots_count: int = 0
    files_count: int | None = None
    bytes: int | None = None
    only_files_count: int | None = None
    only_bytes: int | None = None


class MetadataHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata, manifest lists and manifests; sizes in bytes.

    Attributes:
        metadata_bytes: of the current metadata file as it is stored; `None` where only its catalog may read it.
        metadata_log_files_count: earlier metadata files that the metadata log names.
        lost_metadata_files_count: metadata files that left the log and that no commit deletes, told by the number in the name of
            the current one: they lie there as orphans unless somebody removed them. 0 where the name has no number.
        manifest_lists_count, manifest_lists_bytes: of all snapshots.
        all_manifests_count, all_manifests_bytes: of all snapshots, each once.
        manifests_count, manifests_bytes: of the current snapshot, those that have live files; so have all that follow.
        small_manifests_count: data and delete manifests below three quarters of `commit.manifest.target-size-bytes`.
        ideal_manifests_count: how many manifests of that size would hold the same.
        mean_overlap, max_overlap_count: how many data manifests a filter on one partition opens, in the mean and at most, of up
            to a thousand partitions of each spec; 1 is best. `None` for a table without partitions.
    """

    metadata_bytes: int | None = None
    metadata_log_files_count: int = 0
    lost_metadata_files_count: int = 0
    manifest_lists_count: int = 0
    manifest_lists_bytes: int = 0
    all_manifests_count: int = 0
    all_manifests_bytes: int = 0
    manifests_count: int = 0
    manifests_bytes: int = 0
    delete_manifests_count: int = 0
    small_manifests_count: int = 0
    ideal_manifests_count: int = 0
    median_manifest_bytes: int | None = None
    largest_manifest_bytes: int | None = None
    mean_overlap: float | None = None
    max_overlap_count: int | None = None


class SizeBucket(msgspec.Struct, frozen=True, kw_only=True):
    """The data files of `least_bytes` or more and of less than twice that; the first bucket, of 1, has empty files too."""

    least_bytes: int
    files_count: int
    bytes: int


class DataHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The live data files of the current snapshot; sizes in bytes.

    Attributes:
        target_file_bytes: `write.target-file-size-bytes`.
        small_files_count, small_files_bytes: files below three quarters of it, which `compact` takes for too small.
        small_files_together_count: of these, those that `compact` takes, since enough of them are together: in their partition,
            or in their spec where it moves its files to the table's own. It leaves the others as they are.
        large_files_count: files above 1.8 of it, which `compact` splits.
        median_file_bytes: to one percent.
        histogram: by powers of two; buckets without a file are left out.
    """

    target_file_bytes: int
    data_files_count: int = 0
    data_files_bytes: int = 0
    record_count: int = 0
    small_files_count: int = 0
    small_files_bytes: int = 0
    small_files_together_count: int = 0
    large_files_count: int = 0
    smallest_file_bytes: int | None = None
    median_file_bytes: int | None = None
    largest_file_bytes: int | None = None
    histogram: tuple[SizeBucket, ...] = ()


class DeletesHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The live delete files of the current snapshot, and what readers pay for them; sizes in bytes.

    Attributes:
        position_delete_files_count, equality_delete_files_count, deletion_vectors_count: with their bytes (of a vector those
            of its blob) and the rows that they hold.
        data_files_with_deletes_count: data files that a reader must apply a delete to.
        scan_read_bytes: what the tasks of a full scan read of deletes: a delete file counts once for each data file that it
            reaches, as each task reads its own.
        mean_deletes: delete files that a reader applies to a data file, in the mean.
        deleted_ratio: rows that vectors and position delete files delete, as a part of all rows; at most, as a position that two
            of them name counts twice, and where it is not known what reaches which files, all positions count.
        dangling_count, dangling_bytes: delete files and vectors that reach no live data file.
    """

    position_delete_files_count: int = 0
    position_delete_files_bytes: int = 0
    position_delete_files_record_count: int = 0
    equality_delete_files_count: int = 0
    equality_delete_files_bytes: int = 0
    equality_delete_files_record_count: int = 0
    deletion_vectors_count: int = 0
    deletion_vectors_bytes: int = 0
    deletion_vectors_record_count: int = 0
    deleted_ratio: float = 0.0
    data_files_with_deletes_count: int | None = None
    scan_read_bytes: int | None = None
    mean_deletes: float | None = None
    dangling_count: int | None = None
    dangling_bytes: int | None = None

    @property
    def files_count(self) -> int:
        """Delete files and vectors."""
        return self.position_delete_files_count + self.equality_delete_files_count + self.deletion_vectors_count


class PartitionsHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How data lies in partitions; each spec has partitions of its own. `skew` is the largest divided by the median, by bytes."""

    partitions_count: int = 0
    largest_partition: str | None = None
    largest_partition_bytes: int | None = None
    median_partition_bytes: int | None = None
    skew: float | None = None


class MaintenanceSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The newest snapshot that a kind of maintenance left, by whatever engine; expiry and orphan removal leave none."""

    job: str
    timestamp_ms: int
    snapshot_id: int
    made_by: str | None = None


class StreamSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A streaming writer that notes its progress in snapshots (Flink, Spark, Kafka Connect).

    Attributes:
        key: of the summary, in which it does so.
        snapshots_count: of the table's snapshots, those that it made.
        timestamp_ms: of the newest of these.
    """

    writer: str
    key: str
    snapshots_count: int
    timestamp_ms: int


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the current branch grows, by the totals in summaries since `since_timestamp_ms`; a day, and below 0 where it
    shrinks. Bytes are those of data and delete files.
    """

    since_timestamp_ms: int
    daily_bytes: int | None = None
    daily_data_files_count: int | None = None
    daily_record_count: int | None = None
    daily_snapshots_count: int = 0


class FaultsCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many faults of a class `check` finds in metadata and manifest lists; notices are not among them."""

    fault_id: int
    name: str
    faults_count: int


class JobAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What a job with its default arguments would do to the current snapshot now.

    Attributes:
        has_work: whether it would do anything; whether it is due is for the conditions of policies to say.
        is_exact: whether the figures are those of the job's plan; else they are worked out from sums, and near to it.
        reason: why, or why not, in one line.
        done_by: the job before it in this list that, where it runs first, leaves it nothing to do; then it is not proposed.
        gain: what it brings, in one line; empty where it has nothing to do.
        files_count: that it would rewrite, or delete.
        spared_opens_count: how many files fewer readers open afterwards, those of a scan of all or those that plan it.
        freed_bytes: of files that it would delete; `None` where that is not known.
        replaced_bytes: of files that it would replace: garbage, which expiration frees.
        read_bytes, written_bytes, requests_count: from and to storage, listing among requests.
        cpu_ms: of one core.
        cost: money, in the currency of the prices that were given; `None` without prices.
        command: what does it.
    """

    job: str
    has_work: bool
    reason: str
    done_by: str | None = None
    is_exact: bool = False
    gain: str = ""
    files_count: int = 0
    spared_opens_count: int = 0
    freed_bytes: int | None = 0
    replaced_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    requests_count: int = 0
    cpu_ms: int = 0
    cost: float | None = None
    command: str = ""


class OwnFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What icekeep itself keeps of a table below `.icekeep`; times are epoch milliseconds, sizes what plans sum up to.

    Attributes:
        waiting_plans_count: plans of deletion that are not carried out yet: their run is at it, or died, or they wait for the
            grace.
        waiting_created_ms: when the oldest of them was made.
        trash_files_count, trash_bytes: of all plans whose files are in the trash, or on their way there.
        trash_until_ms: when the first of them may be deleted for good.
    """

    waiting_plans_count: int = 0
    waiting_bytes: int = 0
    waiting_created_ms: int | None = None
    trash_files_count: int = 0
    trash_bytes: int = 0
    trash_until_ms: int | None = None


SICK_BELOW, HEALTHY_FROM = 50, 80
"""Scores."""


class ScorePart(msgspec.Struct, frozen=True, kw_only=True):
    """What one thing takes from the score of a table that has nothing else; `reason` says what it is, in one line."""

    name: str
    lost: float
    reason: str


class TableHealth(Rendered, frozen=True, kw_only=True):
    """What metadata, manifest lists and the entries of heads say of a table.

    Attributes:
        table: `catalog.namespace.name`.
        format: the version of the table format, such as `v2`.
        score: 0 to 100, where 100 is healthy.
        score_parts: what takes points, the most first.
        faults: what `check` finds at its cheap levels: metadata and manifest lists, not manifests and files.
        own_files: plans and trash; `None` where that was not looked at, as it takes a listing.
        not_measured: what is not in here, and why.
        requests_count, read_bytes: what all of this took of storage, beside the loading of the table.
    """

    table: str
    table_uuid: str | None
    format: str
    location: str
    snapshot_id: int | None
    score: float
    score_parts: tuple[ScorePart, ...]
    snapshots: SnapshotsHealth
    refs: tuple[RefHealth, ...]
    metadata: MetadataHealth
    data: DataHealth
    deletes: DeletesHealth
    partitions: PartitionsHealth
    jobs: tuple[JobAdvice, ...]
    last_maintenance: tuple[MaintenanceSeen, ...] = ()
    streams: tuple[StreamSeen, ...] = ()
    growth: Growth | None = None
    faults: tuple[FaultsCount, ...] = ()
    own_files: OwnFiles | None = None
    not_measured: tuple[str, ...] = ()
    requests_count: int = 0
    read_bytes: int = 0
    elapsed_ms: int = 0

    @property
    def band(self) -> str:
        """The table in a word: `broken` where there is a fault, whatever its score, else `sick`, `fair` or `healthy`."""
        if self.faults_count:
            return "broken"
        return "sick" if self.score < SICK_BELOW else "fair" if self.score < HEALTHY_FROM else "healthy"

    @property
    def faults_count(self) -> int:
        """Faults of all classes."""
        return sum(one.faults_count for one in self.faults)

    @property
    def to_do(self) -> tuple[JobAdvice, ...]:
        """The jobs that have something to do, and still have when those before them are done, in the order to run them in."""
        return tuple(one for one in self.jobs if one.has_work and one.done_by is None)


REMEMBERED_BYTES = 128 * 1024 * 1024
"""So much is remembered of the metadata of all tables that are looked at at once; what is beyond is read again where it is needed
again."""


class Room:
    """Bytes of memory that several threads share."""

    def __init__(self, size: int) -> None:
        self._left, self._lock = size, Lock()

    def take(self, size: int) -> bool:
        """Take so many bytes, if they are left."""
        with self._lock:
            is_there = size <= self._left
            self._left -= size if is_there else 0
            return is_there

    def give_back(self, size: int) -> None:
        """Let others have bytes that were taken."""
        with self._lock:
            self._left += size


_ROOM = Room(REMEMBERED_BYTES)


class MeteredStorage(StorageWrapper):
    """Counts requests, and keeps whole files that were read as long as there is room.

    As a context manager it gives its room back at the end of the block.

    Args:
        room: that it shares with others; by default with all of this process.

    Attributes:
        read_bytes: of whole files.
    """

    def __init__(self, storage: Storage, room: Room = _ROOM) -> None:
        self._meter = Meter()
        super().__init__(CountedStorage(storage, self._meter))
        self._room = room
        self._kept: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}
        self._lock = Lock()
        self.read_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            kept, self._kept = self._kept, {}
        self._room.give_back(sum(map(len, kept.values())))

    @property
    def requests_count(self) -> int:
        """How many requests reached the storage."""
        return self._meter.requests_count

    def size_of(self, location: str) -> int | None:
        """The stored bytes of a file that was read; `None` for any other."""
        return self._sizes.get(canonical(location))

    def read(self, location: str, length_bytes: int | None = None) -> bytes:
        key = canonical(location)
        kept = self._kept.get(key)
        if kept is not None and length_bytes in (None, len(kept)):
            return kept
        data = self.inner.read(location, length_bytes)
        with self._lock:
            self.read_bytes += len(data)
            self._sizes[key] = len(data)
            if key not in self._kept and self._room.take(len(data)):
                self._kept[key] = data
        return data

    def open(self, location: str) -> BinaryIO:
        kept = self._kept.get(canonical(location))
        if kept is not None:
            return BytesIO(kept)
        return self.inner.open(location)


def with_own_files(health: TableHealth, table: Table) -> TableHealth:
    """The health of a table with what icekeep keeps of it; with a note where that cannot be told."""
    storage = MeteredStorage(table.storage)
    try:
        with storage:
            found = _own_files(msgspec.structs.replace(table, storage=storage))
        told: dict[str, Any] = {"own_files": found}
    except IcekeepError as error:
        note = f"plans that wait, and the trash: {error.message}"
        told = {"not_measured": (*health.not_measured, note)}
    return msgspec.structs.replace(
        health,
        requests_count=health.requests_count + storage.requests_count,
        read_bytes=health.read_bytes + storage.read_bytes,
        **told,
    )


def _own_files(table: Table) -> OwnFiles:
    storage = table.storage
    if not storage.child_names(own_directory(table.metadata, "").rstrip("/")):
        return OwnFiles()
    plans = [_plan(directory, table) for directory in plan_directories(table.metadata, storage)]
    known = [plan for plan in plans if plan is not None]
    trash = [plan for plan in known if plan.is_trash]
    done = {p.directory for p in trash if storage.head(f"{p.directory}/{DONE}") is not None}
    waiting = [plan for plan in known if plan.directory not in done]
    return OwnFiles(
        waiting_plans_count=len(waiting),
        waiting_bytes=_bytes(waiting),
        waiting_created_ms=min((plan.created_ms for plan in waiting), default=None),
        trash_files_count=sum(plan.files_count for plan in trash),
        trash_bytes=_bytes(trash),
        trash_until_ms=min((plan.trash_until_ms for plan in trash if plan.trash_until_ms is not None), default=None),
    )


def _plan(directory: str, table: Table) -> DeletionPlan | None:
    try:
        return read_plan(directory, table.storage)
    except MissingFileError:
        # A run has just finished with it.
        return None


def _bytes(plans: list[DeletionPlan]) -> int:
    return sum(files.bytes for plan in plans for files in plan.files)


_JOBS = frozenset({compact.JOB.name, deletes.JOB.name, manifests.JOB.name, repair.JOB.name, "convert_equality_deletes"})
"""Those that make snapshots."""

_MAX_DIGITS = 19

GROWTH_DAYS = 7
"""Growth is told over so many days, or over all that there is where that is less."""

_MIN_SPAN_MS = HOUR_MS


def last_maintenance(snapshots: Iterable[Snapshot]) -> tuple[MaintenanceSeen, ...]:
    """The newest snapshot of each kind of maintenance, the newest first."""
    newest: dict[str, Snapshot] = {}
    for snapshot in snapshots:
        job = job_of(snapshot)
        if job is not None and (job not in newest or made(newest[job]) < made(snapshot)):
            newest[job] = snapshot
    seen = [
        MaintenanceSeen(job=job, timestamp_ms=s.timestamp_ms, snapshot_id=s.snapshot_id, made_by=made_by(s.summary))
        for job, s in newest.items()
    ]
    return tuple(sorted(seen, key=lambda one: (-one.timestamp_ms, one.job)))


def streams(snapshots: Iterable[Snapshot], keys: Sequence[str] = ()) -> tuple[StreamSeen, ...]:
    """Each streaming writer whose progress some snapshot has, the one that wrote last first; `keys` as for `writers_of`."""
    counts: dict[Writer, int] = {}
    newest: dict[Writer, int] = {}
    for snapshot in snapshots:
        for writer in writers_of(snapshot, keys):
            counts[writer] = counts.get(writer, 0) + 1
            newest[writer] = max(newest.get(writer, 0), snapshot.timestamp_ms)
    found = [StreamSeen(writer=w.name, key=w.key, snapshots_count=counts[w], timestamp_ms=newest[w]) for w in counts]
    return tuple(sorted(found, key=lambda one: (-one.timestamp_ms, one.writer, one.key)))


def growth(metadata: TableMetadata) -> Growth | None:
    """Between the head and its oldest ancestor of the last days; `None` where there is no hour between two snapshots."""
    line = [*metadata.ancestors(metadata.current_snapshot_id)]
    if len(line) < 2:
        return None
    head = line[0]
    recent = [s for s in line if s.timestamp_ms >= head.timestamp_ms - GROWTH_DAYS * DAY_MS]
    first = min(recent, key=lambda s: s.timestamp_ms)
    span_ms = head.timestamp_ms - first.timestamp_ms
    if span_ms < _MIN_SPAN_MS:
        return None

    def daily(key: str) -> int | None:
        before, after = (number_of(s.summary, key) for s in (first, head))
        return None if before is None or after is None else round((after - before) * DAY_MS / span_ms)

    return Growth(
        since_timestamp_ms=first.timestamp_ms,
        daily_bytes=daily("total-files-size"),
        daily_data_files_count=daily("total-data-files"),
        daily_record_count=daily("total-records"),
        daily_snapshots_count=round((len(recent) - 1) * DAY_MS / span_ms),
    )


def number_of(summary: Mapping[str, str] | None, key: str) -> int | None:
    """A counter of a summary; `None` where it is not there or no number."""
    text = (summary or {}).get(key, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None


def job_of(snapshot: Snapshot) -> str | None:
    """The kind of maintenance that made a snapshot: as it says itself, else by what a `replace` changed.

    Commands that publish or restore a snapshot leave their names too, and are no maintenance.
    """
    summary = snapshot.summary or {}
    if summary.get(JOB_KEY) in _JOBS:
        return summary[JOB_KEY]
    if snapshot.operation != "replace":
        return None
    if number_of(summary, "deleted-data-files") or number_of(summary, "added-data-files"):
        return "compact"
    if number_of(summary, "removed-delete-files") or number_of(summary, "added-delete-files"):
        return "rewrite_position_deletes"
    return "rewrite_manifests"
