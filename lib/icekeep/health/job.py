"""The function `table_health`: lists and manifests read once, figures, what jobs would do, a score.

Manifests are judged by what manifest lists say of them. Metadata files that left the log may still lie there, or
`remove_orphan_files` may have removed them: the number in a name says only how many have left. One listing of the
metadata directory shows which are there; it is made only where some have left, and ends after `NAMES_MAX` names.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import msgspec
import numpy as np

from icekeep.catalog.base import Table
from icekeep.catalog.metadata_files import parse_version_name
from icekeep.commit.manifest_writer import manifest_target_bytes
from icekeep.errors import ConflictError, IcekeepError, MissingFileError, TryAgainError
from icekeep.health.advice import Expiring, TableFacts, advice, expiring, fault_advice, finished
from icekeep.health.files import (
    DATA_COLUMNS,
    DELETE_COLUMNS,
    KEY_COLUMNS,
    MAX_HEADS,
    DataFold,
    DeleteFold,
    HeldFold,
    PartitionId,
    PartitionSums,
    Sickness,
    ancestors_of,
    compacted_together,
    deletes_health,
    reached_by,
    refs_health,
    score_of,
)
from icekeep.health.prices import Prices
from icekeep.health.values import (
    DataHealth,
    DeletesHealth,
    FaultsCount,
    JobAdvice,
    MetadataHealth,
    MeteredStorage,
    PartitionsHealth,
    SnapshotsHealth,
    TableHealth,
    growth,
    last_maintenance,
    streams,
)
from icekeep.maintenance.check.faults import CLASSES, OF_EXPIRED, FaultId, Tally
from icekeep.maintenance.check.job import raw_metadata
from icekeep.maintenance.check.lists import CheckedTable, Listed, read_lists
from icekeep.maintenance.check.metadata import check_metadata
from icekeep.maintenance.compact.job import chosen_sizes
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.planner import output_specs
from icekeep.maintenance.jobs import JobRequest, takes
from icekeep.maintenance.manifests.ranges import Overlap, expected_manifests_count, overlap
from icekeep.maintenance.manifests.survey import sampled
from icekeep.maintenance.orphans.metadata import may_be_found_by_name
from icekeep.maintenance.orphans.options import eligible_before_ms
from icekeep.maintenance.rewrite.options import WELL_SIZED, FileSizes, file_sizes
from icekeep.planning.deletes import ReachingDeletes
from icekeep.planning.entries import EntryFilter, SpecFilter, entries_count, entries_schema, folded
from icekeep.planning.scan.plan import data_manifests, delete_manifests, refuse_encrypted, snapshot_manifests
from icekeep.planning.scan.report import SizeDistribution
from icekeep.planning.spark.session import limits_of
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.metadata import TableMetadata, metadata_to_json
from icekeep.spec.properties import is_true
from icekeep.spec.types import MIB
from icekeep.spelling import counted, counted_doing
from icekeep.storage.base import FileInfo, ListingShare
from icekeep.storage.locations import canonical, is_under
from icekeep.storage.wrappers import CountedStorage, Meter

_NUMBER = re.compile(r"(?:v(\d+)|(\d+)-[^/]*)\.(?:[a-z]+\.)?metadata\.json(?:\.[a-z]+)?")
_DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"


def metadata_health(
    metadata: TableMetadata, location: str, listed: Listed, head: Sequence[ManifestFile], storage: MeteredStorage
) -> MetadataHealth:
    """The figures but for the overlap.

    Args:
        head: the manifests of the current snapshot.

    Raises:
        PropertyError: the size of manifests is no number.
    """
    lists = {one.manifest_list for one in metadata.snapshots if one.manifest_list is not None}
    lengths = SizeDistribution()
    lengths.add(np.array([m.manifest_length for m in head], np.int64))
    target = manifest_target_bytes(metadata)
    groups = (data_manifests(head), delete_manifests(head))
    return MetadataHealth(
        metadata_bytes=storage.size_of(location),
        metadata_log_files_count=len(metadata.metadata_log),
        lost_metadata_files_count=lost_metadata_files(metadata, location),
        manifest_lists_count=len(lists),
        manifest_lists_bytes=sum(storage.size_of(one) or 0 for one in lists),
        all_manifests_count=len(listed.manifests),
        all_manifests_bytes=sum(m.manifest_length for m in listed.manifests),
        manifests_count=len(head),
        manifests_bytes=sum(m.manifest_length for m in head),
        delete_manifests_count=len(groups[1]),
        small_manifests_count=sum(m.manifest_length < WELL_SIZED[0] * target for m in head),
        ideal_manifests_count=sum(_ideal_count(some, target) for some in groups),
        median_manifest_bytes=lengths.quantile(0.5),
        largest_manifest_bytes=lengths.greatest,
    )


def with_overlap(
    health: MetadataHealth, metadata: TableMetadata, head: Sequence[ManifestFile], partitions: Iterable[PartitionId]
) -> MetadataHealth:
    """The same with how many data manifests a filter on one of some partitions opens."""
    by_spec: dict[int, list[bytes]] = {}
    for spec_id, key in partitions:
        by_spec.setdefault(spec_id, []).append(key)
    found = [
        one
        for spec_id, keys in by_spec.items()
        if not metadata.specs_by_id[spec_id].is_unpartitioned
        for one in [_overlap_of(spec_id, keys, metadata, data_manifests(head))]
    ]
    count = sum(one.partitions_count for one in found)
    if not count:
        return health
    return msgspec.structs.replace(
        health,
        mean_overlap=round(sum(one.mean_manifests * one.partitions_count for one in found) / count, 2),
        max_overlap_count=max(one.max_manifests for one in found),
    )


def lost_metadata_files(metadata: TableMetadata, location: str) -> int:
    """How many metadata files left the log without being deleted, if nobody removed them since.

    The name of the current file has the number of metadata files that were before it. A table that was registered, or that a
    catalog without such numbers had before, has more of them than this knows of, or fewer.
    """
    number = metadata_number(location)
    if number is None or is_true(metadata.properties, _DELETE_AFTER_COMMIT, False):
        return 0
    return max(0, number - len(metadata.metadata_log))


def metadata_number(location: str) -> int | None:
    """How many metadata files of a table were before one, by its name; `None` where that has no number, or is of another file.

    >>> metadata_number("/wh/t/metadata/v1.metadata.json"), metadata_number("/wh/t/metadata/00002-a.gz.metadata.json")
    (0, 2)
    """
    match = _NUMBER.fullmatch(location.rpartition("/")[2])
    if match is None:
        return None
    return int(match[1]) - 1 if match[1] is not None else int(match[2])


def _overlap_of(spec_id: int, keys: Sequence[bytes], metadata: TableMetadata, data: Sequence[ManifestFile]) -> Overlap:
    partition = metadata.partition_type(spec_id)
    codec = PartitionCodec(partition)
    values = [codec.decode(key) for key in sampled(keys)]
    return overlap([m for m in data if m.partition_spec_id == spec_id], values, partition.fields)


def _ideal_count(manifests: Sequence[ManifestFile], target_bytes: int) -> int:
    """Manifests of one spec are never put together with those of another."""
    by_spec: dict[int, int] = {}
    for one in manifests:
        by_spec[one.partition_spec_id] = by_spec.get(one.partition_spec_id, 0) + one.manifest_length
    return sum(expected_manifests_count(size, target_bytes) for size in by_spec.values())


def masks_of(heads: Mapping[int, Sequence[ManifestFile]]) -> dict[str, int]:
    """By the path of a manifest the heads that list it, bit n for the nth."""
    masks: dict[str, int] = {}
    for number, manifests in enumerate(heads.values()):
        for manifest in manifests:
            masks[manifest.manifest_path] = masks.get(manifest.manifest_path, 0) | (1 << number)
    return masks


E = TypeVar("E")


_REPORT = "the report of health"

_MOVES_MAX = 3
_OF_REPLACED = {FaultId.UNREADABLE_METADATA}
"""What is found where the metadata file itself goes, of a table whose commits delete earlier ones."""


class HealthRequest(JobRequest, frozen=True, kw_only=True):
    """The arguments of `table_health`, which says what each means."""

    prices: Prices | None = None


@takes(HealthRequest, job="report")
def table_health(table: Table, request: HealthRequest) -> TableHealth:
    """Say how healthy a table is, and what each job would do to it, by its metadata alone. Writes nothing.

    The manifest lists of all snapshots are read, and the manifests of the heads of branches and tags, each once. No data file is
    opened, nothing is listed.

    Args:
        spark: a session, or a function that starts one; by default the session that runs, or a new one. None is needed for
            tables of up to two million entries.
        prices: what work and storage cost; without them no job has a `cost`.

    Raises:
        UnsupportedError: the table is encrypted.
        InvalidTableError, MissingFileError: a manifest list or a manifest of a head cannot be read whole, or deletes contradict
            the data.
        NotFoundError: the table was dropped meanwhile.
        UnavailableError: the store or Spark is out of reach.
        ConflictError: others change the table faster than it can be read.
    """
    for _ in range(_MOVES_MAX):
        refuse_encrypted(table.metadata, _REPORT)
        examination = _Examination(table, request)
        try:
            with examination.storage:
                found = examination.health()
        except MissingFileError:
            now = table.refresh()
            if now.metadata_location == table.metadata_location:
                raise
        else:
            told = examination.tally.counts.keys()
            if not told & (OF_EXPIRED | _OF_REPLACED):
                return found
            now = table.refresh()
            is_replaced = bool(told & _OF_REPLACED) and now.metadata_location != table.metadata_location
            if not is_replaced and table.metadata.snapshots_by_id.keys() <= now.metadata.snapshots_by_id.keys():
                return found
        # Its files went after a commit that somebody made meanwhile: the table of now is looked at.
        table = now
    raise ConflictError(
        f"table {table.name!r} was changed while it was looked at, {_MOVES_MAX} times; try it again later",
        attempts=_MOVES_MAX,
    )


def cheap_faults(table: Table, request: HealthRequest) -> tuple[FaultsCount, ...]:
    """What `check` finds in metadata and manifest lists, of a table whose health cannot be told; raises `TryAgainError`."""
    examination = _Examination(table, request)
    with examination.storage:
        examination.checked_lists()
    return examination.faults()


class _Examination:
    """One table, and all that is read of it, through a storage that remembers."""

    def __init__(self, table: Table, request: HealthRequest) -> None:
        self.storage = MeteredStorage(table.storage)
        metered: Any = self.storage
        self.table: Table = msgspec.structs.replace(table, storage=metered)
        self.metadata: TableMetadata = table.metadata
        self.request, self.limits = request, limits_of(request.spark)
        self.not_measured: list[str] = []
        self.tally = Tally()
        self.sizes = self._or_noted("sizes of files go by the defaults", self._table_sizes, _DEFAULT_SIZES)

    def health(self) -> TableHealth:
        """Look at all of it."""
        metadata, table = self.metadata, self.table
        listed = self.checked_lists()
        heads = {one: self._manifests(one) for one in self._head_ids()}
        head = heads.get(metadata.current_snapshot_id, []) if metadata.current_snapshot_id is not None else []
        data, deletes, reached = self._folds(head)
        of_metadata = self._or_noted(
            "manifests",
            partial(metadata_health, metadata, table.metadata_location, listed, head, self.storage),
            MetadataHealth(),
        )
        of_metadata = self._or_noted(
            "how manifests overlap", partial(with_overlap, of_metadata, metadata, head, data.partitions), of_metadata
        )
        of_deletes = deletes_health(data, deletes, reached)
        found = self._expiring(listed)
        of_snapshots = self._snapshots(found)
        partitions = self._or_noted(
            "sizes of partitions", partial(_partitions, data.partitions, metadata), PartitionsHealth()
        )
        groups = compacted_together(data.partitions, output_specs(metadata, deletes.equality_spec_ids))
        known = TableFacts(
            table=table,
            limits=self.limits,
            sizes=self.sizes,
            groups=groups,
            data=data,
            deletes=deletes,
            metadata=of_metadata,
            expiring=found,
            entries_count=entries_count(head),
            prices=self.request.prices,
        )
        faults = self.faults()
        jobs = (*fault_advice(faults, known), *advice(known))
        refs = refs_health(metadata, [*heads], self._held(heads, data, deletes))
        together = sum(one.small_count for one in groups if one.is_rewritten(self.sizes))
        sick = _sickness(data, of_deletes, of_metadata, of_snapshots, partitions, faults)
        small = sum(one.small_count for one in groups)
        score, parts = score_of(
            msgspec.structs.replace(
                sick,
                small_files_count=small,
                other_files_count=data.files_count - small,
                left_files_count=small - together,
            )
        )
        return TableHealth(
            table=table.full_name,
            table_uuid=metadata.table_uuid,
            format=f"v{metadata.format_version}",
            location=metadata.location,
            snapshot_id=metadata.current_snapshot_id,
            score=score,
            score_parts=parts,
            snapshots=of_snapshots,
            refs=refs,
            metadata=of_metadata,
            data=_data(data, self.sizes, together),
            deletes=of_deletes,
            partitions=partitions,
            jobs=jobs,
            last_maintenance=last_maintenance(metadata.snapshots),
            streams=streams(metadata.snapshots, table.catalog.rules.carried_keys),
            growth=growth(metadata),
            faults=faults,
            not_measured=tuple(self.not_measured),
            requests_count=self.storage.requests_count,
            read_bytes=self.storage.read_bytes,
        )

    def checked_lists(self) -> Listed:
        """The manifests of all snapshots; what is wrong with metadata and lists goes to the tally."""
        table, tally = self.table, self.tally
        raw = raw_metadata(table.storage, table.metadata_location, tally)
        document = metadata_to_json(table.metadata) if raw is None else raw
        check_metadata(document, table.metadata_location, tally)
        subject = CheckedTable(
            table=table,
            snapshots=tuple(sorted(table.metadata.snapshots, key=lambda s: (s.sequence_number, s.timestamp_ms))),
            spark=self.request.spark,
            listener=self.request.listener,
            tally=tally,
        )
        listed = read_lists(subject).listed
        self.not_measured += [f"{gap.what}: {gap.why}" for gap in tally.gaps()]
        return listed

    def _head_ids(self) -> list[int]:
        """The current snapshot and those that references are at, each once."""
        current = self.metadata.current_snapshot_id
        ids = [] if current is None else [current]
        return [*dict.fromkeys([*ids, *(ref.snapshot_id for _, ref in sorted(self.metadata.refs.items()))])]

    def _manifests(self, snapshot_id: int) -> list[ManifestFile]:
        return snapshot_manifests(self.table, self.metadata.snapshot(snapshot_id))

    def _folds(self, head: Sequence[ManifestFile]) -> tuple[DataFold, DeleteFold, ReachingDeletes | None]:
        data, deletes = data_manifests(head), delete_manifests(head)
        is_few = entries_count(head) <= self.limits.entries_count
        keeps_rows = bool(deletes) and is_few
        of_data = self._folded(data, DATA_COLUMNS, partial(DataFold, self.sizes, keeps_rows=keeps_rows))
        of_deletes = self._folded(deletes, DELETE_COLUMNS, partial(DeleteFold, keeps_rows=keeps_rows))
        if odd_count := of_data.odd_count + of_deletes.odd_count:
            self.not_measured.append(
                f"sizes and rows: {counted_doing(odd_count, 'entries', 'state')} what no file has; `icekeep check` names "
                f"{'it' if odd_count == 1 else 'them'}"
            )
        if not keeps_rows:
            if deletes:
                self.not_measured.append(
                    f"which deletes reach which files: there are more than {self.limits.entries_count:,} entries; "
                    "`icekeep plan_scan` tells it"
                )
            return of_data, of_deletes, None
        rows, of = of_data.rows(entries_schema(DATA_COLUMNS)), of_deletes.rows(entries_schema(DELETE_COLUMNS))
        return of_data, of_deletes, reached_by(rows, of, self.metadata)

    def _held(
        self, heads: Mapping[int, Sequence[ManifestFile]], data: DataFold, deletes: DeleteFold
    ) -> dict[int, tuple[int, int]] | None:
        """By the set of heads that files are live at, how many there are and their bytes."""
        if [*heads] == [self.metadata.current_snapshot_id]:
            return {1: (data.files_count + deletes.files_count, data.bytes + deletes.bytes)}
        by_path = {m.manifest_path: m for manifests in heads.values() for m in manifests}
        manifests = [*by_path.values()]
        if len(heads) > MAX_HEADS or entries_count(manifests) > self.limits.ref_entries_count:
            self.not_measured.append(
                "the files that each reference keeps: there are too many; `icekeep expire_snapshots --dry-run` tells them"
            )
            return None
        return self._folded(manifests, KEY_COLUMNS, partial(HeldFold, masks_of(heads))).held()

    def _folded(self, manifests: Sequence[ManifestFile], columns: frozenset[str], new: Any) -> Any:
        spec_ids = {m.partition_spec_id for m in manifests}
        specs = {spec_id: SpecFilter(self.metadata.partition_type(spec_id)) for spec_id in spec_ids}
        return folded(self.table.storage, self.request.spark, manifests, EntryFilter(specs=specs), columns, new)

    def _expiring(self, listed: Listed) -> Expiring:
        try:
            return expiring(self.table, listed, self.storage)
        except TryAgainError:
            raise
        except IcekeepError as error:
            return Expiring(error=error.message)

    def _snapshots(self, found: Expiring) -> SnapshotsHealth:
        snapshots = self.metadata.snapshots
        times = [snapshot.timestamp_ms for snapshot in snapshots]
        reached = ancestors_of(self.metadata, self._head_ids())
        return SnapshotsHealth(
            snapshots_count=len(snapshots),
            expirable_count=len(found.expired.snapshot_ids),
            unreferenced_count=sum(snapshot.snapshot_id not in reached for snapshot in snapshots),
            oldest_timestamp_ms=min(times, default=None),
            newest_timestamp_ms=max(times, default=None),
        )

    def faults(self) -> tuple[FaultsCount, ...]:
        """What was found in metadata and manifest lists so far."""
        return tuple(
            FaultsCount(fault_id=number, name=CLASSES[number].name, faults_count=count)
            for number, count in sorted(self.tally.counts.items())
            if not CLASSES[number].is_notice
        )

    def _table_sizes(self) -> FileSizes:
        return chosen_sizes(self.metadata, RewriteDataFilesOptions())

    def _or_noted(self, what: str, measure: Callable[[], E], default: E) -> E:
        """What is measured; the default and a note where it cannot be, by a wrong property of the table for example."""
        try:
            return measure()
        except TryAgainError:
            raise
        except IcekeepError as error:
            self.not_measured.append(f"{what}: {error.message}")
            return default


_DEFAULT_SIZES = file_sizes(RewriteDataFilesOptions(), 512 * MIB)


def _data(data: DataFold, sizes: FileSizes, together_count: int) -> DataHealth:
    return DataHealth(
        target_file_bytes=sizes.target_bytes,
        data_files_count=data.files_count,
        data_files_bytes=data.bytes,
        record_count=data.record_count,
        small_files_count=data.small_count,
        small_files_bytes=data.small_bytes,
        small_files_together_count=together_count,
        large_files_count=data.large_count,
        smallest_file_bytes=data.sizes.least,
        median_file_bytes=data.sizes.quantile(0.5),
        largest_file_bytes=data.sizes.greatest,
        histogram=data.histogram(),
    )


def _partitions(partitions: Mapping[PartitionId, PartitionSums], metadata: TableMetadata) -> PartitionsHealth:
    if not partitions:
        return PartitionsHealth()
    sizes = SizeDistribution()
    sizes.add(np.fromiter((sums.bytes for sums in partitions.values()), np.int64, len(partitions)))
    (spec_id, key), largest = max(partitions.items(), key=lambda item: (item[1].bytes, item[0]))
    median = sizes.quantile(0.5)
    values = PartitionCodec(metadata.partition_type(spec_id)).decode(key)
    return PartitionsHealth(
        partitions_count=len(partitions),
        largest_partition=metadata.partition_path(spec_id, values),
        largest_partition_bytes=largest.bytes,
        median_partition_bytes=median,
        skew=round(largest.bytes / median, 1) if median else None,
    )


def _sickness(
    data: DataFold,
    deletes: DeletesHealth,
    of_metadata: MetadataHealth,
    snapshots: SnapshotsHealth,
    partitions: PartitionsHealth,
    faults: Sequence[FaultsCount],
) -> Sickness:
    read_bytes, mean_deletes = deletes.scan_read_bytes, deletes.mean_deletes
    if read_bytes is None or mean_deletes is None:
        # What reaches what is not known: at least each delete file is read once.
        mean_deletes = deletes.files_count / data.files_count if data.files_count else 0.0
        read_bytes = sum(
            (deletes.position_delete_files_bytes, deletes.equality_delete_files_bytes, deletes.deletion_vectors_bytes)
        )
    return Sickness(
        faults_count=sum(one.faults_count for one in faults),
        deleted_ratio=deletes.deleted_ratio,
        delete_read_ratio=read_bytes / data.bytes if data.bytes else 0.0,
        mean_deletes=mean_deletes,
        equality_delete_files_count=deletes.equality_delete_files_count,
        spare_manifests_count=max(0, of_metadata.manifests_count - of_metadata.ideal_manifests_count),
        mean_overlap=max(0.0, (of_metadata.mean_overlap or 1.0) - 1),
        expirable_count=snapshots.expirable_count,
        metadata_bytes=of_metadata.metadata_bytes or 0,
        dangling_count=deletes.dangling_count or 0,
        partition_skew=partitions.skew or 1.0,
    )


NAMES_MAX = 10_000
"""So many names are looked at: ten requests of an object store, which lists the oldest metadata files first."""

_JOB = "remove_orphan_files"


class _There(msgspec.Struct, frozen=True):
    """The lost metadata files that lie there; `is_all`: the listing came to its end."""

    files_count: int
    bytes: int
    is_all: bool


def with_lost_metadata(health: TableHealth, table: Table, prices: Prices | None) -> TableHealth:
    """The health of a table with what `remove_orphan_files` would find of metadata files, where any may be there.

    Args:
        prices: those that the health was asked with.
    """
    if not any(one.job == _JOB and one.has_work for one in health.jobs):
        return health
    meter = Meter()
    try:
        there = _there(table, meter)
    except IcekeepError as error:
        note = f"which metadata files that left the log are still there: {error.message}"
        return msgspec.structs.replace(health, not_measured=(*health.not_measured, note))
    jobs = (finished(_told(one, there), table, prices) if one.job == _JOB else one for one in health.jobs)
    return msgspec.structs.replace(
        health, jobs=tuple(jobs), requests_count=health.requests_count + meter.requests_count
    )


def _told(one: JobAdvice, there: _There) -> JobAdvice:
    count = there.files_count
    if not count and not there.is_all:
        return one
    some = "" if there.is_all else "at least "
    reason = f"{some}{counted(count, 'metadata files')} left the log and {'was' if count == 1 else 'were'} not deleted"
    gain = f"{some}{there.bytes:,} bytes of old metadata are freed"
    if not count:
        reason = "metadata files that left the log were removed; only a listing tells of what failed writes leave"
        gain = ""
    return msgspec.structs.replace(
        one,
        has_work=count > 0,
        reason=reason,
        gain=gain,
        files_count=count,
        freed_bytes=there.bytes,
        requests_count=one.requests_count - one.files_count + count,
    )


def _there(table: Table, meter: Meter) -> _There:
    directory = table.metadata_location.rpartition("/")[0]
    if not is_under(directory, table.metadata.location):
        # By default the job lists only what is below the table's location.
        return _There(0, 0, is_all=True)
    listed = CountedStorage(table.storage, meter).list_share(ListingShare(directory, is_deep=False))
    seen = [*islice(listed, NAMES_MAX)]
    found = [*_lost(table, seen)]
    return _There(len(found), sum(one.size_bytes for one in found), is_all=len(seen) < NAMES_MAX)


def _lost(table: Table, files: list[FileInfo]) -> Iterator[FileInfo]:
    """Those of some files that the job would take for old metadata, as far as names and times tell."""
    now_ms = table.runtime.now_ms()
    before_ms = eligible_before_ms(None, now_ms)
    last_version = parse_version_name(table.metadata_location.rpartition("/")[2])
    current_number = metadata_number(table.metadata_location) or 0
    named = {canonical(one.metadata_file) for one in table.metadata.metadata_log}
    named.add(canonical(table.metadata_location))
    for one in files:
        number = metadata_number(one.location)
        if number is None or number > current_number or one.modified_ms >= before_ms:
            continue
        is_kept = may_be_found_by_name(one.location, one.modified_ms, last_version, now_ms)
        if not is_kept and canonical(one.location) not in named:
            yield one
