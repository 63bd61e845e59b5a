"""The `ManifestReader` for large tables: what a commit asks of many entries is worked out in Spark tasks."""

from collections.abc import Hashable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import msgspec

from icekeep.commit.attempt import noting_storage
from icekeep.commit.filtering import FilteredShare, FilterManifests, Gathering, read_as
from icekeep.commit.manifests import StorageManifestReader
from icekeep.planning.entries.decode import DecodedEntries, EntryFilter, SpecFilter
from icekeep.planning.entries.read import folded
from icekeep.planning.manifests.lists import listed_manifests
from icekeep.planning.spark.amounts import FILTERED_MANIFEST_BYTES, tasks_count
from icekeep.planning.spark.limits import Limits
from icekeep.planning.spark.slots import attempt_id
from icekeep.planning.spark.source import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.spec.bins import balanced
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")


class SparkManifestReader(StorageManifestReader):
    """Reads lists and single manifests here; many entries are filtered and asked in tasks, a share of the manifests each."""

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
        tasks = [(tuple(some), next(locations)) for some in _bins(manifests, session)]
        shares, errors = run_tasks(
            session, tasks, _filter, (work, self.storage), step="committing: filtering manifests"
        )
        if errors:
            asked = {manifest.manifest_path for manifest in manifests}
            self.storage.delete_many(location for share in shares for location in share.written(asked))
            raise errors[0]
        return list(shares)

    def check_counts(self, manifests: Sequence[ManifestFile], metadata: TableMetadata) -> None:
        if _are_few(manifests, limits_of(self._spark)):
            super().check_counts(manifests, metadata)
            return
        spec_ids = {manifest.partition_spec_id for manifest in manifests}
        wanted = EntryFilter(specs={spec_id: SpecFilter(metadata.partition_type(spec_id)) for spec_id in spec_ids})
        folded(self.storage, self._spark, manifests, wanted, {"record_count"}, _Nothing)

    def _asked(self, manifests: Sequence[ManifestFile], work: Gathering[T]) -> list[T]:
        if _are_few(manifests, limits_of(self._spark)):
            return super()._asked(manifests, work)
        session = started(self._spark)
        shared, step = (work, self.storage), "committing: asking manifests"
        answers = all_results(run_tasks(session, _bins(manifests, session), _gather, shared, step=step))
        found = dict(pair for some in answers for pair in some)
        return [found[read_as(manifest)] for manifest in manifests]


class _Nothing:
    """A `Fold` of which only the reading counts."""

    def add(self, decoded: DecodedEntries) -> None:
        pass

    def merge(self, other: "_Nothing") -> None:
        pass


def _bins(manifests: Sequence[ManifestFile], session: "SparkSession") -> list[list[ManifestFile]]:
    bins_count = tasks_count(session, sum(m.manifest_length for m in manifests), FILTERED_MANIFEST_BYTES)
    return balanced(manifests, lambda m: m.manifest_length, min(bins_count, len(manifests)))


def _gather(manifests: Sequence[ManifestFile], shared: tuple[Gathering[T], Storage]) -> list[tuple[Hashable, T]]:
    """Put a question to one share of the manifests."""
    work, storage = shared
    reader = StorageManifestReader(storage)
    return [(read_as(manifest), work.run(manifest, reader)) for manifest in manifests]


def _filter(task: tuple[tuple[ManifestFile, ...], str], shared: tuple[FilterManifests, Storage]) -> FilteredShare:
    """Filter one share; its new manifests are named after the task's location, one of the commit's own."""
    (manifests, location), (work, storage) = task, shared
    made: list[str] = []
    writer = msgspec.structs.replace(work.writer, storage=noting_storage(storage, made))
    locations = (f"{location.removesuffix('.avro')}-{attempt_id()}-{number}.avro" for number in count())
    try:
        return msgspec.structs.replace(work, writer=writer).run(manifests, StorageManifestReader(storage), locations)
    except BaseException:
        storage.delete_many(made)
        raise


def _are_few(manifests: Sequence[ManifestFile], limits: Limits) -> bool:
    """Whether the driver is the faster one."""
    counts = [(m.live_files_count, m.deleted_files_count) for m in manifests]
    # A list of version 1 may say nothing; then there may be many.
    are_few = all(None not in pair for pair in counts) and sum(map(_sum, counts)) < limits.commit_entries_count
    return len(manifests) == 1 or (are_few and len(manifests) <= limits.commit_manifests_count)


def _sum(counts: tuple[int | None, int | None]) -> int:
    return sum(count or 0 for count in counts)
