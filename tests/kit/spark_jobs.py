"""The Spark jobs that a session has run, by its own status store, and how often tasks worked out the rows of a DataFrame."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from icekeep.events import Listener
from icekeep.planning.spark import jobs as steps
from icekeep.runtime import SYSTEM

NAMESAKES = (
    "icekeep.maintenance.copy.job",
    "icekeep.maintenance.copy.rewrite_path",
    "icekeep.maintenance.jobs",
    "icekeep.planning.scan.explain",
    "icekeep.planning.scan.report",
    "icekeep.planning.scan.tasks",
    "icekeep.tables.read",
)
"""The modules that open a run."""


class SeenJob(msgspec.Struct, frozen=True):
    """A Spark job: what its pages say of it."""

    number: int
    description: str
    group: str
    tags: frozenset[str]


def jobs_after(number: int) -> list[SeenJob]:
    """The Spark jobs of this process that began after one of a number; none where Spark does not run."""
    spark: Any = SparkContext._active_spark_context
    if spark is None:
        return []
    context = spark._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    jobs = context.statusStore().jobsList(None)
    return [_seen(job) for job in map(jobs.apply, range(jobs.size())) if job.jobId() > number]


def last_job() -> int:
    return max((job.number for job in jobs_after(-1)), default=-1)


def running_tasks_count(spark: SparkSession) -> int:
    """How many tasks run now, as Spark's status says."""
    tracker: Any = spark.sparkContext._jsc.sc().statusTracker()
    return sum(one.numRunningTasks() for one in tracker.getExecutorInfos())


def count_at_rest(spark: SparkSession, count: Callable[[], int], interval_ms: int = 1_000) -> int:
    """A count that no Spark job changes any more.

    Spark ends the worker of a cancelled task within two seconds, or a few where the machine is slow.

    Args:
        interval_ms: what changes the count does so more often than this.
    """
    seen = count()
    for _ in range(30):
        SYSTEM.sleep_ms(interval_ms)
        before, seen = seen, count()
        if before == seen and not spark.sparkContext.statusTracker().getActiveJobsIds():
            return seen
    raise AssertionError(f"tasks go on, or a Spark job does: {seen}")


@contextmanager
def checked_run(job: str, table_name: str, listener: Listener) -> Iterator[None]:
    """In the place of `spark_run`: all Spark jobs that begin meanwhile have a tag of ours, a group, and say what they are."""
    is_part = steps._RUN.get() is not None
    before = -1 if is_part else last_job()
    with steps.spark_run(job, table_name, listener):
        yield
    if not is_part:
        for one in jobs_after(before):
            assert one.description.startswith(f"icekeep {job} {table_name}: "), one
            assert [tag for tag in one.tags if tag.startswith("icekeep-")], one
            assert one.group, one


def _seen(job: Any) -> SeenJob:
    tags = job.jobTags()
    return SeenJob(
        job.jobId(),
        _text(job.description()),
        _text(job.jobGroup()),
        frozenset(tags.apply(number) for number in range(tags.size())),
    )


def _text(option: Any) -> str:
    return option.get() if option.isDefined() else ""


class Counted:
    """Counts for each DataFrame that it is given how often all of its partitions were worked out."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._frames: list[DataFrame] = []

    def frame(self, rows: DataFrame) -> DataFrame:
        """The same rows, counted."""
        log = self._directory / f"frame-{len(self._frames)}"
        log.touch()

        def told(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with log.open("a", encoding="utf-8") as file:
                file.write("x")
            yield from batches

        self._frames.append(rows)
        return rows.mapInArrow(told, rows.schema)

    @property
    def times(self) -> list[float]:
        """Of each DataFrame in turn; a part of a time is some of its partitions."""
        logs = [self._directory / f"frame-{number}" for number in range(len(self._frames))]
        return [log.stat().st_size / rows.rdd.getNumPartitions() for log, rows in zip(logs, self._frames, strict=True)]
