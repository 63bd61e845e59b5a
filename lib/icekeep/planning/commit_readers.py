"""The `ManifestReader`s of commits to large tables: one runs in Spark tasks, the other merges manifests as encoded records."""

from collections.abc import Hashable, Iterator, Sequence
from itertools import count, groupby
from typing import TypeVar

import msgspec

from icekeep.commit.attempt import noting_storage
from icekeep.commit.manifest_writer import RollingManifests
from icekeep.commit.manifests import FilteredShare, FilterManifests, Gathering, ManifestReader, MergeManifests, read_as
from icekeep.planning.decoder import ManifestDecoder, chosen_decoder
from icekeep.planning.entries import EntryFilter, PruningStats, SpecFilter, folded, in_threads, manifests_by_task
from icekeep.planning.manifest_lists import listed_manifests
from icekeep.planning.spark.session import Limits, SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, attempt_id, run_tasks
from icekeep.planning.spark.workers import FILTERED_MANIFEST_BYTES
from icekeep.planning.transcode import RecordsTask, RecordTarget, fast_packer, live_records, record_blocks
from icekeep.spec.manifests.structs import ManifestFile, total_count
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage

T = TypeVar("T")

_FEW_ENTRIES_COUNT = 1000
"""Up to this number entries are merged one by one, without loading DataFusion."""

_MAX_SHARE_OF_TARGET = 1.5
"""A merged manifest is cut well above the target size, since it may compress a little worse than its sources did."""


class SparkManifestReader(ManifestReader):
    """Reads lists and single manifests on the driver; filters and queries many in tasks, each with a share of the manifests."""

    def __init__(self, spark: SparkSource, storage: Storage) -> None:
        super().__init__(storage)
        self._spark = spark

    def spec_ids(self, snapshots: Sequence[Snapshot]) -> frozenset[int]:
        listed = listed_manifests(self.storage, self._spark, snapshots, check=True, trust=True)
        return frozenset(manifest.partition_spec_id for manifest in listed.manifests)

    def filtered(
        self, manifests: Sequence[ManifestFile], work: FilterManifests, locations: Iterator[str]
    ) -> list[FilteredShare]:
        if _are_few(manifests, limits_of(self._spark)):
            return super().filtered(manifests, work, locations)
        session = started(self._spark)
        tasks = [
            (tuple(share), next(locations)) for share in manifests_by_task(manifests, session, FILTERED_MANIFEST_BYTES)
        ]
        shares, errors = run_tasks(
            session, tasks, _filter, (work, self.storage), step="committing: filtering manifests"
        )
        if errors:
            paths = {manifest.manifest_path for manifest in manifests}
            self.storage.delete_many(location for share in shares for location in share.written(paths))
            raise errors[0]
        return list(shares)

    def check_counts(self, manifests: Sequence[ManifestFile], metadata: TableMetadata) -> None:
        if _are_few(manifests, limits_of(self._spark)):
            super().check_counts(manifests, metadata)
            return
        spec_ids = {manifest.partition_spec_id for manifest in manifests}
        entries = EntryFilter(specs={spec_id: SpecFilter(metadata.partition_type(spec_id)) for spec_id in spec_ids})
        # To read entries checks their counts; what is folded does not matter.
        folded(self.storage, self._spark, manifests, entries, {"record_count"}, PruningStats)

    def _asked(self, manifests: Sequence[ManifestFile], work: Gathering[T]) -> list[T]:
        if _are_few(manifests, limits_of(self._spark)):
            return super()._asked(manifests, work)
        session = started(self._spark)
        shared, step = (work, self.storage), "committing: asking manifests"
        tasks = manifests_by_task(manifests, session, FILTERED_MANIFEST_BYTES)
        answers = all_results(run_tasks(session, tasks, _gather, shared, step=step))
        by_manifest = dict(pair for share in answers for pair in share)
        return [by_manifest[read_as(manifest)] for manifest in manifests]


def _are_few(manifests: Sequence[ManifestFile], limits: Limits) -> bool:
    """Whether the driver is faster than tasks; a list of version 1 may not count entries, then there may be many."""
    count = total_count(manifest.entries_count for manifest in manifests)
    are_few = count is not None and count < limits.commit_entries_count
    return len(manifests) == 1 or (are_few and len(manifests) <= limits.commit_manifests_count)


def _gather(manifests: Sequence[ManifestFile], shared: tuple[Gathering[T], Storage]) -> list[tuple[Hashable, T]]:
    work, storage = shared
    reader = ManifestReader(storage)
    return [(read_as(manifest), work.run(manifest, reader)) for manifest in manifests]


def _filter(task: tuple[tuple[ManifestFile, ...], str], shared: tuple[FilterManifests, Storage]) -> FilteredShare:
    """Filter one share; its new manifests are named after the task's location."""
    (manifests, location), (work, storage) = task, shared
    made: list[str] = []
    writer = msgspec.structs.replace(work.writer, storage=noting_storage(storage, made))
    locations = (f"{location.removesuffix('.avro')}-{attempt_id()}-{number}.avro" for number in count())
    try:
        return msgspec.structs.replace(work, writer=writer).run(manifests, ManifestReader(storage), locations)
    except BaseException:
        storage.delete_many(made)
        raise


class MergingManifestReader(ManifestReader):
    """Merges many entries as encoded records."""

    def merged(
        self, manifests: Sequence[ManifestFile], work: MergeManifests, locations: Iterator[str]
    ) -> list[ManifestFile]:
        """Entries of the writer's own snapshot are added one by one, those of older manifests as blocks."""
        decoder = ManifestDecoder.FASTAVRO
        if sum(m.live_files_count or 0 for m in manifests) > _FEW_ENTRIES_COUNT:
            decoder, _ = chosen_decoder()
        if decoder is ManifestDecoder.FASTAVRO:
            return super().merged(manifests, work, locations)
        writer, written = work.writer, list[ManifestFile]()
        target = RecordTarget(partition=writer.partitions[work.spec_id], format_version=writer.format_version)
        codec = PartitionCodec(target.partition)
        pack = fast_packer(writer.codec, writer.level)
        rolling = RollingManifests(writer, work.spec_id, work.content, locations, pack)
        max_bytes = _MAX_SHARE_OF_TARGET * writer.target_bytes
        for is_own, group in groupby(manifests, lambda m: m.added_snapshot_id == writer.snapshot_id):
            if is_own:
                for entry in (e for manifest in group for e in work.kept(self.entries(manifest, work.base))):
                    rolling.current().add(writer.owned(entry))
                    written += rolling.written_at(max_bytes)
                continue
            task = RecordsTask.of([*group], target, self.storage, decoder)
            for batches in in_threads(task, lambda share: [*live_records(share)]):
                for block in (block for batch in batches for block in record_blocks(batch)):
                    builder = rolling.current()
                    builder.add_block(block.payload, block.files_count, block.rows_count, block.min_sequence_number)
                    builder.add_partitions(map(codec.decode, block.partitions))
                    written += rolling.written_at(max_bytes)
        return [*written, *rolling.written_at(0)]
