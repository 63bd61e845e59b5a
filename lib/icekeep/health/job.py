"""The function `table_health`: lists and manifests read once, figures, what jobs would do, a score."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np

from icekeep.catalog.base import Table
from icekeep.errors import ConflictError, IcekeepError, MissingFileError, TryAgainError
from icekeep.health.advice import Known, advice, fault_advice
from icekeep.health.commits import growth, last_maintenance, streams
from icekeep.health.deletes import deletes_health, reached_by
from icekeep.health.expiring import Expiring, expiring
from icekeep.health.files import (
    DATA_COLUMNS,
    DELETE_COLUMNS,
    DataFold,
    DeleteFold,
    PartitionId,
    PartitionSums,
    compacted_together,
)
from icekeep.health.manifests import masks_of, metadata_health, with_overlap
from icekeep.health.metered import MeteredStorage
from icekeep.health.prices import Prices
from icekeep.health.references import KEY_COLUMNS, MAX_HEADS, HeldFold, ancestors_of, refs_health
from icekeep.health.score import Sickness, score_of
from icekeep.health.values import (
    DataHealth,
    DeletesHealth,
    FaultsCount,
    MetadataHealth,
    PartitionsHealth,
    SnapshotsHealth,
    TableHealth,
)
from icekeep.maintenance.check.faults import CLASSES, METADATA_UNREADABLE, OF_EXPIRED, Tally
from icekeep.maintenance.check.job import raw_metadata
from icekeep.maintenance.check.lists import Listed, Subject, read_lists
from icekeep.maintenance.check.metadata import check_metadata
from icekeep.maintenance.compact.job import chosen_sizes
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.jobs import JobRequest, takes
from icekeep.maintenance.rewrite.options import FileSizes, file_sizes
from icekeep.planning.deletes import Reaching
from icekeep.planning.entries import (
    EntryFilter,
    SpecFilter,
    data_manifests,
    delete_manifests,
    entries_count,
    entries_schema,
    folded,
    snapshot_manifests,
)
from icekeep.planning.scan.plan import SizeDistribution
from icekeep.planning.spark.session import limits_of, refuse_encrypted
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.metadata import TableMetadata, metadata_to_json
from icekeep.spec.types import MIB
from icekeep.spelling import counted_doing

E = TypeVar("E")

__all__ = ["table_health"]

_REPORT = "the report of health"

_MOVES_MAX = 3
_OF_REPLACED = {METADATA_UNREADABLE}
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
        known = Known(
            table=table,
            limits=self.limits,
            sizes=self.sizes,
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
        groups = compacted_together(data.partitions, metadata, deletes.equality_spec_ids)
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
        subject = Subject(
            table=table,
            raw=document,
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

    def _folds(self, head: Sequence[ManifestFile]) -> tuple[DataFold, DeleteFold, Reaching | None]:
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
