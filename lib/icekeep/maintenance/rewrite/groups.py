"""Groups of files on their way to new files: which go together, which side by side, and how far they have got.

The tasks of many groups are one Spark job, so that they fill the cluster however small each group is. Each group comes back as
soon as all of its tasks have answered. A task that ends the whole job, since it kills its executor or its worker time and again,
fails its own group alone: the job is started again for what is left. Jobs, and groups that are one by themselves, run side by
side in threads: each result comes back as it is there, and one that nobody has seen leaves nothing behind.

Progress is in bytes. They are counted where files are read and written: by threads of this process in memory, by Python workers
on this machine in a file each, which the driver looks at. Workers on a cluster have no such place: there the bytes of a group
count once it is finished. Half of a group is reading and half is writing. How much smaller its new files are is taken from the
groups before it, so what is under way is an estimate, and never more than what is left to do.
"""

import logging
import os
import struct
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, Self, TypeVar, cast

import msgspec

from icekeep.errors import IcekeepError
from icekeep.events import SILENT, Listener, StepAdvanced, StepUnderWay
from icekeep.maintenance.rewrite.run import RewriteRun, undoing
from icekeep.planning.spark.failures import failed_task
from icekeep.planning.spark.jobs import inherited
from icekeep.planning.spark.workers import Workers
from icekeep.runtime import SYSTEM
from icekeep.spec.collections import Limit, packed
from icekeep.storage.base import Storage
from icekeep.storage.wrappers import HookedStream, StorageWrapper, stopping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)

GroupT = TypeVar("GroupT")
P = TypeVar("P")
R = TypeVar("R")
Item = TypeVar("Item")
Finished = TypeVar("Finished")

_JOBS_AT_ONCE = 5
"""Of groups that are a job each, and of jobs of many groups; Iceberg's default of `max-concurrent-file-group-rewrites`."""

TASKS_A_JOB = 10_000
"""The driver holds the payloads of the tasks of a job, and what Spark knows of them."""

_MAX_JOBS = 10
"""After this number of jobs that ended as a whole it is the cluster that fails, not a group."""


class GroupResults(msgspec.Struct, Generic[GroupT, R], frozen=True):
    """A group, and what its tasks answered: results in the order of the tasks, and errors."""

    group: GroupT
    results: tuple[R, ...]
    errors: tuple[IcekeepError, ...] = ()


class GroupRewriter(ABC, Generic[GroupT, Finished]):
    """How a job rewrites groups; what `run_groups` works with.

    Attributes:
        storage: for the work; in threads it ends soon when the run is stopped, in tasks it names their files first.
        concurrency: how many groups, or jobs of groups, are rewritten at a time. A group may be one task: in threads as many
            are begun as fill all turns (`Turns` of `planning.spark.workers`), where nobody says how many.
        limits: on the sums of the groups that are one Spark job.
    """

    limits: tuple[Limit[GroupT], ...]

    def __init__(self, run: RewriteRun, workers: Workers, concurrency: int | None) -> None:
        self.run, self.workers, self.has_own_jobs = run, workers, concurrency is not None
        is_here = workers.spark is None
        storage, self.stop = stopping(run.table.storage, in_threads=is_here)
        self.storage = storage if is_here else run.written.naming(storage)
        self.concurrency = concurrency or (max(_JOBS_AT_ONCE, workers.slots) if is_here else _JOBS_AT_ONCE)

    @abstractmethod
    def is_alone(self, group: GroupT) -> bool:
        """Whether a group is no part of a Spark job with others."""

    @abstractmethod
    def rewrite(self, groups: Sequence[GroupT]) -> Generator[Finished, None, None]:
        """Rewrite groups that go together, in a thread of its own."""

    @abstractmethod
    def report(self, finished: Finished) -> None:
        """Say that a group is finished, before the caller of `run_groups` gets it."""

    @abstractmethod
    def undo(self, finished: Finished) -> None:
        """Remove the new files of a group that the caller does not get."""


def run_groups(
    groups: Sequence[GroupT], work: GroupRewriter[GroupT, Finished], tag: str
) -> Generator[Finished, None, None]:
    """Rewrite groups and yield each as it is finished.

    When the caller stops early, groups that have not begun are dropped, running ones are cancelled, and the files of those
    that were not yielded are removed.

    Args:
        tag: of all Spark jobs of the run; no other run has it.
    """
    spark = work.workers.spark
    items: list[Sequence[GroupT]] = [(group,) for group in groups]
    if spark is not None and not work.has_own_jobs:
        together = [group for group in groups if not work.is_alone(group)]
        items = [*packed(together, *work.limits), *((group,) for group in groups if work.is_alone(group))]
    running = side_by_side(
        items, work.rewrite, spark, tag=tag, concurrency=work.concurrency, stop=work.stop, undo=work.undo
    )
    with closing(running):
        for finished in running:
            with undoing(partial(work.undo, finished)):
                work.report(finished)
            yield finished


Answers = Generator[tuple[int, R | IcekeepError], None, None]
"""As `finished_tasks` gives them."""


def in_one_job(
    groups: Sequence[tuple[GroupT, Sequence[P]]], run: Callable[[Sequence[P]], "Answers[R]"]
) -> Generator[GroupResults[GroupT, R], None, None]:
    """Run the tasks of groups as one job.

    Args:
        groups: each with the payloads of its tasks, one at least.
        run: starts the job.
    """
    open_groups: list[_Open[GroupT, P, R]] = [_Open(group, payloads) for group, payloads in groups]
    for _ in range(_MAX_JOBS):
        order = [(one, number) for one in open_groups for number in one.left]
        if not order:
            return
        spark_error = None
        with closing(run([one.payloads[number] for one, number in order])) as answers:
            for position, answer in answers:
                if position < 0:
                    assert isinstance(answer, IcekeepError)
                    spark_error = answer
                    break
                one, number = order[position]
                one.take(number, answer)
                if not one.left:
                    yield one.answered()
        open_groups = [one for one in open_groups if one.left]
        if spark_error is None:
            # Threads begin no other task after one that failed.
            yield from (one.answered() for one in open_groups)
            return
        failed = failed_task(spark_error)
        if failed is None or failed >= len(order):
            break
        culprit = order[failed][0]
        _LOG.info("a task ended its Spark job; %d other groups go on: %s", len(open_groups) - 1, spark_error.message)
        yield culprit.answered(spark_error)
        open_groups = [one for one in open_groups if one is not culprit]
    for one in open_groups:
        assert spark_error is not None
        yield one.answered(spark_error)


class _Open(Generic[GroupT, P, R]):
    """A group some of whose tasks have not answered; `left` are their numbers."""

    def __init__(self, group: GroupT, payloads: Sequence[P]) -> None:
        self.payloads = payloads
        self.left = dict.fromkeys(range(len(payloads)))
        self._group = group
        self._results: dict[int, R] = {}
        self._errors: list[IcekeepError] = []

    def take(self, number: int, answer: R | IcekeepError) -> None:
        del self.left[number]
        if isinstance(answer, IcekeepError):
            self._errors.append(answer)
        else:
            self._results[number] = answer

    def answered(self, error: IcekeepError | None = None) -> GroupResults[GroupT, R]:
        errors = self._errors if error is None else [*self._errors, error]
        return GroupResults(
            self._group, tuple(self._results[number] for number in sorted(self._results)), tuple(errors)
        )


_BETWEEN_CANCELS_SECONDS = 0.5


def side_by_side(
    items: Sequence[Item],
    work: Callable[[Item], Generator[Finished, None, None]],
    spark: "SparkSession | None",
    *,
    tag: str,
    concurrency: int,
    stop: Callable[[], object],
    undo: Callable[[Finished], object],
) -> Generator[Finished, None, None]:
    """Do some work for each item, at most `concurrency` at a time, and yield what comes of it.

    When the caller stops early, items that have not begun are dropped and the jobs of running ones are cancelled.

    Args:
        work: runs in a thread of its own, with the session's local properties, as a part of the run.
        tag: of all its Spark jobs; no other run has it.
        stop: makes work that is under way end soon, beside cancelling its Spark jobs.
        undo: removes a result that was not yielded.
    """
    # A future says that an item has ended, be it before its work began, as where the JVM is gone.
    arrived: SimpleQueue[Any] = SimpleQueue()
    is_over = threading.Event()

    def feed(item: Item) -> None:
        if spark is not None:
            spark.sparkContext.addJobTag(tag)
        _hand_on(work(item), arrived, is_over)

    target = inherited(spark, feed)
    pool = ThreadPoolExecutor(max(1, min(concurrency, len(items))), thread_name_prefix="group")
    left = len(items)
    futures: list[Future[None]] = []
    try:
        for item in items:
            future = pool.submit(target, item)
            futures.append(future)
            future.add_done_callback(arrived.put)
        while left:
            one = arrived.get()
            if not isinstance(one, Future):
                yield one
                continue
            left -= 1
            one.result()
    finally:
        if left:
            is_over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            stop()
            if spark is not None:
                _cancel_jobs(spark, tag, futures)
        pool.shutdown(wait=True)
        while not arrived.empty():
            if not isinstance(unseen := arrived.get(), Future):
                undo(unseen)


def _hand_on(results: Generator[Any, None, None], arrived: SimpleQueue[Any], is_over: threading.Event) -> None:
    """Hand on what comes of an item, until the caller has enough."""
    with closing(results):
        for one in results:
            arrived.put(one)
            if is_over.is_set():
                break


def _cancel_jobs(spark: "SparkSession", tag: str, futures: Sequence[Future[None]]) -> None:
    """Cancel Spark jobs until all work has ended: work that was between two of them begins the next one."""
    while running := [future for future in futures if not future.done()]:
        # The JVM may be gone.
        with suppress(Exception):
            spark.sparkContext.cancelJobsWithTag(tag)
        wait(running, _BETWEEN_CANCELS_SECONDS)


_EVERY_SECONDS = 0.5
_WRITE_EVERY_MS = 200
_COUNTS = struct.Struct("<QQ")
_MAX_SHARE = 0.99
"""Of what is left: a group that is not finished is never shown as finished."""


class Counts:
    """Bytes that were read and written, by several threads perhaps; in a worker they go to a file, now and then."""

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._path, self._stored_ms = path, 0
        self.read_bytes = self.written_bytes = 0

    def add(self, read_bytes: int = 0, written_bytes: int = 0) -> None:
        """Note some more."""
        with self._lock:
            self.read_bytes += read_bytes
            self.written_bytes += written_bytes
            if self._path is None or SYSTEM.monotonic_ms() - self._stored_ms < _WRITE_EVERY_MS:
                return
            self._stored_ms = SYSTEM.monotonic_ms()
            try:
                self._path.write_bytes(_COUNTS.pack(self.read_bytes, self.written_bytes))
            except OSError:
                # The run is over, or the disk is full: progress ends no work.
                self._path = None


class ByteProgress:
    """Reports the bytes of a step while the block that it is entered for lasts, from a thread of its own.

    Args:
        total_bytes: of the files that are read.
        are_workers_here: whether the work is done by Python workers of Spark on this machine.
    """

    def __init__(self, listener: Listener, step: str, total_bytes: int, *, are_workers_here: bool) -> None:
        self._listener, self._step, self._total_bytes = listener, step, total_bytes
        self._directory = (
            Path(tempfile.mkdtemp(prefix="icekeep-progress-")) if are_workers_here and listener is not SILENT else None
        )
        self._counts, self._lock, self._over = Counts(), threading.Lock(), threading.Event()
        self._finished_bytes = self._added_bytes = self._reported_bytes = 0
        self._thread = threading.Thread(target=self._watch, name="icekeep progress", daemon=True)

    def counting(self, storage: Storage) -> Storage:
        """The storage for the work: it counts the bytes of files that are read and written through it."""
        if self._listener is SILENT:
            return storage
        return CountingStorage(storage, self._counts, self._directory)

    def finish(self, group_bytes: int, added_bytes: int) -> None:
        """A group is finished: the bytes of its files, and of its new ones."""
        with self._lock:
            self._finished_bytes += group_bytes
            self._added_bytes += added_bytes
        self._listener.on(StepAdvanced(self._step, group_bytes))

    def report(self) -> None:
        """Say about how many bytes are done, if that is more than the listener knows."""
        with self._lock:
            left_bytes = self._total_bytes - self._finished_bytes
            done = min(self._under_way(), self._finished_bytes + int(left_bytes * _MAX_SHARE))
            is_news = done > max(self._finished_bytes, self._reported_bytes)
            self._reported_bytes = max(done, self._reported_bytes)
        if is_news:
            self._listener.on(StepUnderWay(self._step, done))

    def __enter__(self) -> Self:
        if self._listener is not SILENT:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._directory is not None:
            for path in [*self._directory.glob("*"), self._directory]:
                path.rmdir() if path == self._directory else path.unlink(missing_ok=True)

    def _under_way(self) -> int:
        """The bytes that are done by the counts of all that has been read and written so far."""
        read, written = self._counts.read_bytes, self._counts.written_bytes
        for path in () if self._directory is None else self._directory.glob("*"):
            stored = path.read_bytes()
            if len(stored) == _COUNTS.size:
                read, written = read + _COUNTS.unpack(stored)[0], written + _COUNTS.unpack(stored)[1]
        shrinks = self._finished_bytes / self._added_bytes if self._added_bytes else 1.0
        return int((min(read, self._total_bytes) + min(written * shrinks, self._total_bytes)) / 2)

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_SECONDS):
            self.report()


class CountingStorage(StorageWrapper):
    """The bytes that go through its streams are counted, in a Spark task those of its process."""

    def __init__(self, inner: Storage, counts: Counts, directory: Path | None) -> None:
        super().__init__(inner)
        self._counts, self._directory = counts, directory

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_worker, (self.inner, self._directory)

    def open(self, location: str) -> BinaryIO:
        return cast(BinaryIO, HookedStream(self.inner.open(location), after=self._counts.add))

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        with self.inner.write(location) as stream:
            yield cast(BinaryIO, HookedStream(stream, after=self._counts.add))


_LOCK = threading.Lock()
_OF_PROCESS: dict[Path, Counts] = {}


def _in_worker(storage: Storage, directory: Path | None) -> Storage:
    """The storage in a Python worker: the bytes of a process are counted in a file, whichever of its tasks reads them."""
    if directory is None or not directory.is_dir():
        return storage
    with _LOCK:
        counts = _OF_PROCESS.get(directory)
        if counts is None:
            _OF_PROCESS.clear()
            counts = _OF_PROCESS[directory] = Counts(directory / f"{os.getpid()}-{SYSTEM.new_uuid()}")
    return CountingStorage(storage, counts, directory)
