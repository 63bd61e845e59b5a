"""What is said of the health of a table: values with the names of their JSON. `None` is "not measured", never "none"."""

import msgspec

from icekeep.rendered import Rendered


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
