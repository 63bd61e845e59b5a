"""What fails on a cluster while a job runs: rows stay, nothing is committed twice, and what is left behind goes."""

from collections.abc import Callable
from functools import partial

import pytest

from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.runtime import SYSTEM
from kit.cluster import JOBS, ClusterTable, check_done, check_table, make_older, prepared
from kit.object_store import ObjectStore
from kit.submitting import SparkProcesses, Standalone, Submitter

AT_WORK = {
    "compact": ("PUT", ".parquet"),
    "compact-sorted": ("PUT", ".parquet"),
    "position-deletes": ("PUT", ".parquet"),
    "equality-deletes": ("PUT", ".parquet"),
    "manifests": ("PUT", ".avro"),
    "expire": ("GET", ".avro"),
    "orphans": ("GET", "list-type"),
    "plan": ("GET", ".avro"),
    "check": ("GET", ".parquet"),
    "purge": ("GET", ".avro"),
}
"""What executors ask the store for in the middle of each job."""
COMMITTING = ("PUT", ".metadata.json")
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.task.duration.threshold": "1s",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
}
DYNAMIC_ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.initialExecutors": "1",
    "spark.dynamicAllocation.minExecutors": "1",
    "spark.dynamicAllocation.maxExecutors": "3",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
}


class FaultAtWork:
    """Something that is done once, while executors are at work; whether it has begun, and has been done."""

    def __init__(self, store: ObjectStore, cluster: SparkProcesses, name: str, act: Callable[[], object]) -> None:
        self._store, self._cluster, self._request, self._act = store, cluster, AT_WORK[name], act
        self.has_begun = self.is_done = False
        self._wait()

    def _wait(self) -> None:
        self._store.before(*self._request, self._happen)

    def _happen(self) -> None:
        if not self._cluster.python_workers():
            self._wait()
            return
        self.has_begun = True
        self._act()
        self.is_done = True


def check_cleaned_up(store: ObjectStore, table: ClusterTable) -> None:
    """A removal of orphans leaves no file that nobody names, in icekeep's own directory neither."""
    if not table.is_there:
        return
    store.reset()
    make_older(store, table)
    remove_orphan_files(table.table, options={"max-orphan-ratio": "1", "grace": "0s"}, trash="0")
    assert not table.left_files()
    table.check()


@pytest.mark.parametrize("kill", [Standalone.kill_executor, Standalone.kill_worker], ids=["executor", "Python worker"])
@pytest.mark.parametrize("name", JOBS)
def test_who_is_killed_in_the_middle_of_a_job(
    standalone: Standalone,
    store: ObjectStore,
    by_zip: Submitter,
    s3_table: ClusterTable,
    name: str,
    kill: Callable[[Standalone], int],
) -> None:
    """An executor with its machine; a worker of Python for want of memory."""
    case, before = prepared(name, s3_table, partial(make_older, store))
    fault = FaultAtWork(store, standalone, name, lambda: kill(standalone))
    done = by_zip.run(case.job, *case.arguments, table=s3_table.name, in_tasks=True)
    assert fault.is_done
    check_done(case, done, s3_table, before)
    check_cleaned_up(store, s3_table)


@pytest.mark.parametrize("name", ["compact", "position-deletes", "equality-deletes", "manifests"])
def test_killed_task_file_is_removed_by_run(
    standalone: Standalone, store: ObjectStore, by_zip: Submitter, s3_table: ClusterTable, name: str
) -> None:
    """The request arrives and is carried out, and nobody is left who could tell its name."""
    case, before = prepared(name, s3_table, partial(make_older, store))
    fault = FaultAtWork(store, standalone, name, standalone.kill_worker)
    done = by_zip.run(case.job, *case.arguments, table=s3_table.name, in_tasks=True)
    assert fault.is_done
    check_done(case, done, s3_table, before)
    assert not s3_table.left_files()


@pytest.mark.parametrize(
    "name", ["compact", "compact-sorted", "position-deletes", "equality-deletes", "manifests", "expire", "orphans"]
)
def test_speculation_beside_slow_tasks(
    standalone: Standalone, store: ObjectStore, by_zip: Submitter, s3_table: ClusterTable, name: str
) -> None:
    """A second attempt of the same task begins while the first is slow; one of them is told."""
    case, before = prepared(name, s3_table, partial(make_older, store))
    fault = FaultAtWork(store, standalone, name, lambda: SYSTEM.sleep_ms(12_000))
    done = by_zip.run(case.job, *case.arguments, table=s3_table.name, in_tasks=True, settings=SPECULATION)
    # The second attempt may end, and the job with it, before the first goes on.
    assert fault.has_begun
    check_done(case, done, s3_table, before)
    assert any(event["Task Info"]["Speculative"] for event in by_zip.events().of("TaskStart"))
    check_cleaned_up(store, s3_table)


@pytest.mark.parametrize(
    ("name", "least"), [("compact", 2), ("compact-sorted", 2), ("equality-deletes", 1), ("orphans", 1)]
)
def test_dynamic_allocation_from_one_executor(
    store: ObjectStore, by_zip: Submitter, s3_table: ClusterTable, name: str, least: int
) -> None:
    """Executors come while tasks wait; the steps of the last two jobs have one task each on a table as small as this."""
    case, before = prepared(name, s3_table, partial(make_older, store))
    for _ in range(3):
        store.before(*AT_WORK[name], lambda: SYSTEM.sleep_ms(3_000))
    done = by_zip.run(case.job, *case.arguments, table=s3_table.name, in_tasks=True, settings=DYNAMIC_ALLOCATION)
    check_done(case, done, s3_table, before)
    assert len(by_zip.events().of("ExecutorAdded")) >= least
    check_cleaned_up(store, s3_table)


@pytest.mark.parametrize("name", JOBS)
def test_a_store_that_is_busy_and_stalls(
    store: ObjectStore, by_zip: Submitter, s3_table: ClusterTable, name: str
) -> None:
    case, before = prepared(name, s3_table, partial(make_older, store))
    store.be_unreliable(busy_every=20, stalled_every=100, stall_ms=5_000)
    done = by_zip.run(case.job, *case.arguments, table=s3_table.name, in_tasks=True)
    store.reset()
    check_done(case, done, s3_table, before)
    check_cleaned_up(store, s3_table)


@pytest.mark.parametrize("moment", [AT_WORK["compact"], COMMITTING], ids=["working", "committing"])
@pytest.mark.parametrize("name", ["compact", "position-deletes", "equality-deletes", "manifests", "expire"])
def test_a_driver_that_is_killed_and_the_next_run(
    standalone: Standalone,
    store: ObjectStore,
    by_zip: Submitter,
    s3_table: ClusterTable,
    name: str,
    moment: tuple[str, str],
) -> None:
    case, before = prepared(name, s3_table, partial(make_older, store))
    run = by_zip.start(case.job, *case.arguments, table=s3_table.name, in_tasks=True)
    fallen: list[int] = []

    def kill() -> None:
        if not standalone.python_workers():
            store.before(*(moment if moment == COMMITTING else AT_WORK[name]), kill)
            return
        run.kill()
        fallen.append(run.process.pid)

    store.before(*(moment if moment == COMMITTING else AT_WORK[name]), kill)
    run.finished()
    assert fallen
    store.reset()
    s3_table.check()
    done = by_zip.run(case.job, *case.arguments, table=s3_table.name, in_tasks=True)
    assert done.status == 0, done.err[-4000:]
    check_table(case, s3_table, before)
    check_cleaned_up(store, s3_table)
