"""All tasks of many groups as one Spark job, so that they fill the cluster however small each group is.

Each group comes back as soon as all of its tasks have answered. A task that ends the whole job, since it kills its executor
or its worker time and again, fails its own group alone: the job is started anew for what is left.

Work of a run side by side, in Spark or here: each result comes back as it is there; what nobody saw leaves nothing behind.

How far a rewrite has got, in bytes, while its groups are under way.

Bytes are counted where files are read and written: by threads of this process in memory, by Python workers on this machine in a
file each, which the driver looks at. Workers on a cluster have no such place: there the bytes of a group count once it is
finished. Half of a group is reading and half is writing. How much smaller its new files are is taken from the groups before it,
so what is under way is an estimate, and never more than what is left to do.
"""

import logging
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, Self, TypeAlias, TypeVar, cast

import msgspec

from icekeep.errors import IcekeepError
from icekeep.events import SILENT, Listener, StepAdvanced, StepUnderWay
from icekeep.planning.spark.failures import failed_task
from icekeep.planning.spark.jobs import inherited
from icekeep.planning.spark.workers import Workers
from icekeep.runtime import SYSTEM
from icekeep.spec.collections import Limit, packed
from icekeep.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)

GroupT = TypeVar("GroupT")
P = TypeVar("P")
R = TypeVar("R")

_JOBS_AT_ONCE = 5
"""Of groups that are a job each, and of jobs of many groups; Iceberg's default of `max-concurrent-file-group-rewrites`."""

TASKS_A_JOB = 10_000
"""The driver holds what it tells the tasks of a job, and what Spark knows of them."""

_MAX_JOBS = 10
"""After so many jobs that ended as a whole it is the cluster that fails, not a group."""


class GroupResults(msgspec.Struct, Generic[GroupT, R], frozen=True):
    """A group, and what its tasks answered: results in the order of the tasks, and errors."""

    group: GroupT
    results: tuple[R, ...]
    errors: tuple[IcekeepError, ...] = ()


Answers = Generator[tuple[int, R | IcekeepError], None, None]
"""As `finished_tasks` gives them."""


def groups_at_once(workers: Workers) -> int:
    """How many groups, or jobs of groups, are rewritten at a time where nobody says it.

    A group may be one task: in threads as many are begun as fill all turns (`Turns` of `planning.spark.workers`).
    """
    return _JOBS_AT_ONCE if workers.spark is not None else max(_JOBS_AT_ONCE, workers.slots)


def jobs_of(
    groups: Sequence[GroupT], is_alone: Callable[[GroupT], bool], *limits: Limit[GroupT]
) -> list[Sequence[GroupT]]:
    """Groups that are a Spark job together, within limits on their sums; last those that are done by themselves."""
    together = [group for group in groups if not is_alone(group)]
    return [*packed(together, *limits), *((group,) for group in groups if is_alone(group))]


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


Item = TypeVar("Item")
Done = TypeVar("Done")


_BETWEEN_CANCELS_SECONDS = 0.5


class _Ended(msgspec.Struct, frozen=True):
    """An item has no more results, because of an error if there is one."""

    error: BaseException | None


class _Result(msgspec.Struct, Generic[Done], frozen=True):
    done: Done


_Arrived: TypeAlias = SimpleQueue[_Result[Done] | _Ended]


def side_by_side(
    items: Sequence[Item],
    work: Callable[[Item], Generator[Done, None, None]],
    spark: "SparkSession | None",
    *,
    tag: str,
    concurrency: int,
    stop: Callable[[], object],
    undo: Callable[[Done], object],
) -> Generator[Done, None, None]:
    """Do some work for each item, at most `concurrency` at a time, and yield what comes of it.

    When the caller stops early, items that have not begun are dropped and the jobs of running ones are cancelled.

    Args:
        work: runs in a thread of its own, with the session's local properties, as a part of the run.
        tag: of all its Spark jobs; no other run has it.
        stop: makes work that is under way end soon, beside cancelling its Spark jobs.
        undo: removes a result that was not yielded.
    """
    arrived: _Arrived[Done] = SimpleQueue()
    is_over = threading.Event()

    feed = partial(_feed, work, arrived, is_over, None if spark is None else partial(spark.sparkContext.addJobTag, tag))
    target = inherited(spark, feed)
    pool = ThreadPoolExecutor(max(1, min(concurrency, len(items))), thread_name_prefix="group")
    left = len(items)
    futures: list[Future[None]] = []
    try:
        for item in items:
            future = pool.submit(target, item)
            futures.append(future)
            future.add_done_callback(partial(_told, arrived))
        while left:
            one = arrived.get()
            if isinstance(one, _Result):
                yield one.done
                continue
            left -= 1
            if one.error is not None:
                raise one.error
    finally:
        if left:
            is_over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            stop()
            # Again and again: work that was between two Spark jobs begins the next one.
            while spark is not None and (running := [future for future in futures if not future.done()]):
                # The JVM may be gone.
                with suppress(Exception):
                    spark.sparkContext.cancelJobsWithTag(tag)
                wait(running, _BETWEEN_CANCELS_SECONDS)
        pool.shutdown(wait=True)
        while not arrived.empty():
            unseen = arrived.get()
            if isinstance(unseen, _Result):
                undo(unseen.done)


def told(
    results: Generator[Done, None, None], tell: Callable[[Done], object], undo: Callable[[Done], object]
) -> Generator[Done, None, None]:
    """The same results, each told of before it is yielded. One at which `tell` raises is undone: nobody else has it by then."""
    with closing(results):
        for one in results:
            try:
                tell(one)
            except BaseException:
                undo(one)
                raise
            yield one


def _feed(
    work: Callable[[Item], Generator[Done, None, None]],
    arrived: "_Arrived[Done]",
    is_over: threading.Event,
    begin: Callable[[], None] | None,
    item: Item,
) -> None:
    """Hand on what comes of an item, until the caller has enough; in a thread of its own."""
    if begin is not None:
        begin()
    with closing(work(item)) as results:
        for done in results:
            arrived.put(_Result(done))
            if is_over.is_set():
                break


def _told(arrived: "_Arrived[Done]", future: "Future[None]") -> None:
    """Hand on that an item has ended, be it before its work began, as where the JVM is gone."""
    if not future.cancelled():
        arrived.put(_Ended(future.exception()))


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
        counting: Any = CountingStorage(storage, self._counts, self._directory)
        return cast(Storage, counting)

    def finish(self, group_bytes: int, added_bytes: int) -> None:
        """A group is finished: the bytes of its files, and of its new ones."""
        with self._lock:
            self._finished_bytes += group_bytes
            self._added_bytes += added_bytes
        self._listener.on(StepAdvanced(self._step, group_bytes))

    def report(self) -> None:
        """Tell the listener about how many bytes are done, if that is more than it knows."""
        with self._lock:
            done = min(self._under_way(), self._limit())
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

    def _limit(self) -> int:
        return self._finished_bytes + int((self._total_bytes - self._finished_bytes) * _MAX_SHARE)

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_SECONDS):
            self.report()


class CountingStorage:
    """All of a storage; the bytes that go through its streams are counted, in a Spark task those of its process."""

    def __init__(self, storage: Storage, counts: Counts, directory: Path | None) -> None:
        self._storage, self._counts, self._directory = storage, counts, directory

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _in_worker, (self._storage, self._directory)

    def open(self, location: str) -> BinaryIO:
        return cast(BinaryIO, _CountedStream(self._storage.open(location), self._counts))

    @contextmanager
    def write(self, location: str) -> Iterator[BinaryIO]:
        with self._storage.write(location) as stream:
            yield cast(BinaryIO, _CountedStream(stream, self._counts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


class _CountedStream:
    """All of a stream, whose bytes are counted."""

    def __init__(self, stream: BinaryIO, counts: Counts) -> None:
        self._stream, self._counts = stream, counts

    def __enter__(self) -> Self:
        self._stream.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stream.__exit__(*error)

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._counts.add(read_bytes=len(data))
        return data

    def readinto(self, buffer: Any) -> Any:
        count = cast(Any, self._stream).readinto(buffer)
        self._counts.add(read_bytes=count or 0)
        return count

    def write(self, data: Any) -> int:
        count = self._stream.write(data)
        self._counts.add(written_bytes=memoryview(data).nbytes)
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


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
    counting: Any = CountingStorage(storage, counts, directory)
    return cast(Storage, counting)
