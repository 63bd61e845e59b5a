"""The `ManifestReader` for large tables: what a commit asks of many entries is worked out in Spark tasks."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from icekeep.commit.filtering import FilterManifests, Gathering, Identity, Share, identity
from icekeep.commit.manifests import StorageManifestReader
from icekeep.planning.spark.tasks import (
    REPORT,
    attempt_id,
    dataframe_from_tasks,
    max_task_failures,
    parallelism,
    read_reports,
    reported,
)
from icekeep.spec.bins import balanced
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.storage.base import Storage

T = TypeVar("T")
DRIVER_ENTRIES_COUNT = 20_000
"""Below so many entries the driver is done before a Spark task has begun."""


class SparkManifestReader(StorageManifestReader):
    """Reads lists and single manifests here; many entries are filtered and asked in tasks, a share of the manifests each."""

    def __init__(self, spark: SparkSession, storage: Storage) -> None:
        super().__init__(storage)
        self._spark = spark

    def filtered(
        self, manifests: Sequence[ManifestFile], work: FilterManifests, locations: Iterator[str]
    ) -> list[Share]:
        if _are_few(manifests):
            return super().filtered(manifests, work, locations)
        tries = max_task_failures(self._spark)
        tasks = [_Task(tuple(some), work, self.storage, next(locations), tries) for some in self._piles(manifests)]
        shares, errors = read_reports(dataframe_from_tasks(self._spark, tasks, _run, REPORT))
        if errors:
            self.storage.delete_many(location for share in shares for location in share.written(manifests))
            raise errors[0]
        return list(shares)

    def gathered(self, manifests: Sequence[ManifestFile], work: Gathering[T]) -> list[T]:
        if _are_few(manifests):
            return super().gathered(manifests, work)
        tries = max_task_failures(self._spark)
        tasks = [_GatherTask(tuple(some), work, self.storage, tries) for some in self._piles(manifests)]
        answers, errors = read_reports(dataframe_from_tasks(self._spark, tasks, _gather, REPORT))
        if errors:
            raise errors[0]
        found = dict(pair for some in answers for pair in some)
        return [found[identity(manifest)] for manifest in manifests]

    def _piles(self, manifests: Sequence[ManifestFile]) -> list[list[ManifestFile]]:
        return balanced(manifests, lambda m: m.manifest_length, min(parallelism(self._spark), len(manifests)))


class _GatherTask(msgspec.Struct, frozen=True):
    """A question to one share of the manifests."""

    manifests: tuple[ManifestFile, ...]
    work: Gathering[Any]
    storage: Storage
    max_failures: int

    def do(self) -> list[tuple[Identity, Any]]:
        reader = StorageManifestReader(self.storage)
        return [(identity(manifest), self.work.run(manifest, reader)) for manifest in self.manifests]


class _Task(msgspec.Struct, frozen=True):
    """One share; its manifests are named after `location`, one of the commit's own."""

    manifests: tuple[ManifestFile, ...]
    work: FilterManifests
    storage: Storage
    location: str
    max_failures: int

    def do(self, task_attempt_id: int) -> Share:
        given: list[str] = []
        try:
            reader = StorageManifestReader(self.storage)
            return self.work.run(self.manifests, reader, self._locations(task_attempt_id, given))
        except BaseException:
            self.storage.delete_many(given)
            raise

    def _locations(self, task_attempt_id: int, given: list[str]) -> Iterator[str]:
        while True:
            given.append(f"{self.location.removesuffix('.avro')}-{task_attempt_id}-{len(given)}.avro")
            yield given[-1]


def _run(task: _Task) -> Iterator[pa.RecordBatch]:
    yield reported(partial(task.do, attempt_id()), task.max_failures)


def _gather(task: _GatherTask) -> Iterator[pa.RecordBatch]:
    yield reported(task.do, task.max_failures)


def _are_few(manifests: Sequence[ManifestFile]) -> bool:
    """Whether the driver is the faster one."""
    counts = [(m.live_files_count, m.deleted_files_count) for m in manifests]
    # A list of version 1 may say nothing; then there may be many.
    are_few = all(None not in pair for pair in counts) and sum(map(_sum, counts)) < DRIVER_ENTRIES_COUNT
    return are_few or len(manifests) == 1


def _sum(counts: tuple[int | None, int | None]) -> int:
    return sum(count or 0 for count in counts)
