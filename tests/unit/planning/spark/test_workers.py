"""How many tasks would run at once, by configuration alone."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from icekeep.events import Event, Warned
from icekeep.planning.spark import configuration, workers
from icekeep.planning.spark import session as source
from icekeep.planning.spark.configuration import SUBMITTED_VARIABLE
from icekeep.planning.spark.session import LIMITS, Engine, Limits
from icekeep.planning.spark.tasks import run_tasks
from icekeep.planning.spark.workers import (
    TaskSize,
    Turns,
    Workers,
    chosen_workers,
    expected_slots,
    foreseen_workers,
    in_turns,
    small_tasks,
    tasks_count,
    thread_workers,
    warn_of_memory,
)
from icekeep.spec.types import GIB
from kit.cases import for_each
from kit.runtime import no_spark
from unit.planning.spark.test_tasks import Session

IN_SPARK = Workers(spark=None, slots=400, process_slots=4, is_local=False)


A_FEW = LIMITS.waiting_files_count


@pytest.fixture(autouse=True)
def _limits_are_those_of_jobs(monkeypatch):
    monkeypatch.setattr(source, "LIMITS", LIMITS)


@pytest.fixture
def started(monkeypatch):
    """A function that starts a session, and what was started."""
    sessions = []
    monkeypatch.setattr(workers, "spark_workers", lambda _: IN_SPARK)
    monkeypatch.delenv(SUBMITTED_VARIABLE, raising=False)
    return lambda: sessions.append("a session") or sessions[-1]


def test_little_work_runs_in_threads():
    assert chosen_workers(no_spark, LIMITS.rewrite_bytes, 1) == thread_workers()
    assert thread_workers().spark is None
    assert thread_workers().slots == thread_workers().process_slots >= 1


@pytest.mark.parametrize("work_bytes", [LIMITS.rewrite_bytes + 1, float("inf")])
def test_what_is_much_is_done_in_spark(started, work_bytes):
    assert chosen_workers(started, work_bytes, 1) is IN_SPARK


def test_spark_submit_leaves_only_tiny_work_to_threads(started, monkeypatch):
    monkeypatch.setenv(SUBMITTED_VARIABLE, "1234")
    assert chosen_workers(no_spark, LIMITS.submitted_rewrite_bytes, 1) == thread_workers()
    assert chosen_workers(started, LIMITS.submitted_rewrite_bytes + 1, 1) is IN_SPARK


@pytest.mark.parametrize(
    ("processors", "memory_bytes", "threads"),
    [(64, 4 * GIB, 4), (2, 64 * GIB, 2), (8, GIB // 2, 1), (1, GIB, 1)],
    ids=["little memory", "few processors", "next to no memory", "one"],
)
def test_each_thread_has_a_processor_and_memory_of_its_own(monkeypatch, processors, memory_bytes, threads):
    monkeypatch.setattr(workers, "processors_count", lambda: processors)
    monkeypatch.setattr(workers, "task_memory_bytes", lambda slots: memory_bytes // slots)
    assert (thread_workers().slots, thread_workers().process_slots) == (threads, threads)


def test_running_cluster_session_leaves_little_to_threads(started, monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", Running("spark://host:7077"))
    assert chosen_workers(no_spark, LIMITS.submitted_rewrite_bytes, 1) == thread_workers()
    assert chosen_workers(None, LIMITS.submitted_rewrite_bytes + 1, 1) is IN_SPARK


def test_a_local_session_that_runs_takes_no_work_from_threads(started, monkeypatch):
    """It has the same processors, and a first job in it takes longer than the work."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", Running("local[4]"))
    assert chosen_workers(None, LIMITS.rewrite_bytes, 1) == thread_workers()


LOCAL = Workers(spark=None, slots=3, process_slots=3, is_local=True)


@pytest.fixture
def given(monkeypatch):
    """Stands for a session that somebody gives, and tells who works for it."""
    monkeypatch.setattr(source, "is_session", lambda given: given == "a session")
    found = [LOCAL]
    monkeypatch.setattr(workers, "spark_workers", lambda _: found[0])
    monkeypatch.setattr(workers, "processors_count", lambda: 64)
    monkeypatch.setattr(workers, "task_memory_bytes", lambda slots: 64 * GIB // slots)
    return found


def test_given_local_session_leaves_some_work_to_threads(given):
    """Work that threads do as fast runs in threads, which are no more than the session's slots."""
    chosen = chosen_workers("a session", LIMITS.session_rewrite_bytes, A_FEW)
    assert (chosen.spark, chosen.slots, chosen.process_slots) == (None, 3, 3)
    assert chosen_workers("a session", LIMITS.session_rewrite_bytes + 1, 1) is LOCAL
    assert chosen_workers("a session", 0, A_FEW + 1) is LOCAL
    none_here = Engine(spark="a session", limits=Limits(session_rewrite_bytes=-1))
    assert chosen_workers(none_here, 0, 0) is LOCAL


def test_the_session_of_a_cluster_that_is_given_gets_all(given):
    """Its executors have memory, and try a failed task again."""
    given[0] = IN_SPARK
    assert chosen_workers("a session", 0, 0) is IN_SPARK


@pytest.mark.parametrize(("master", "goes"), [("yarn", True), ("local[4]", False)])
def test_many_small_files_go_to_submitted_cluster(started, monkeypatch, master, goes):
    assert chosen_workers(no_spark, 0, A_FEW + 1) == thread_workers()
    monkeypatch.setenv(SUBMITTED_VARIABLE, "1234")
    monkeypatch.setattr(workers, "live_properties", lambda: {"spark.master": master})
    assert chosen_workers(no_spark, 0, A_FEW) == thread_workers()
    assert chosen_workers(started, 0, A_FEW + 1) == (IN_SPARK if goes else thread_workers())


def test_many_small_files_go_to_the_cluster_whose_session_runs(started, monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", Running("spark://host:7077"))
    assert chosen_workers(started, 0, A_FEW + 1) is IN_SPARK
    # Whatever spark-submit was told.
    monkeypatch.setenv(SUBMITTED_VARIABLE, "1234")
    monkeypatch.setattr(workers, "live_properties", lambda: {"spark.master": "local[4]"})
    assert chosen_workers(started, 0, A_FEW + 1) is IN_SPARK


class Running:
    _jsc = "its JVM's"

    def __init__(self, master):
        self.master = master


AMOUNT = TaskSize(10, 100)
GIVEN = {"spark__default__parallelism": "4"}


@for_each(
    ("total", "count"),
    [(0, 1), (9, 1), (19, 1), (20, 2), (55, 5), (999, 99), (1_000, 100), (10_000, 100), (10_001, 101), (99_999, 1_000)],
)
@for_each("cores", [2, 400, 40_000])
def test_work_is_cut_by_its_amount_whatever_cores_are_there(total, count, cores):
    """Two cores were registered when a run began that had four hundred a minute later."""
    assert tasks_count(Session("yarn", parallelism=cores), total, AMOUNT) == count


@for_each(
    ("session", "a_slot", "count"),
    [
        (Session("local[3]", parallelism=3), 1, 3),
        (Session("local[3]", parallelism=3), 4, 12),
        (Session("local[3]", parallelism=4, **GIVEN), 4, 4),
        (Session("yarn", parallelism=4, **GIVEN), 4, 4),
        (Session("spark://host:7077", parallelism=2), 4, 100),
        (Session("local-cluster[2,3,1024]", parallelism=2), 1, 100),
    ],
)
def test_small_task_count_follows_operator_or_local_master(session, a_slot, count):
    assert small_tasks(session, a_slot=a_slot) == count
    assert tasks_count(session, 10**4, AMOUNT, a_slot=a_slot) == max(count, 100)
    assert tasks_count(session, 2_000, AMOUNT, a_slot=a_slot) == max(count, 20)
    # An operator's number makes no task that is not worth its start.
    assert tasks_count(session, 25, AMOUNT, a_slot=a_slot) == 2


def test_a_task_has_as_much_of_its_own_as_it_reads_beside():
    yarn = Session("yarn")
    assert [tasks_count(yarn, 10_000, AMOUNT, beside=beside) for beside in (5, 50, 200, 20_000)] == [100, 100, 50, 1]
    assert tasks_count(yarn, 150, AMOUNT, beside=50) == 3


MUCH = LIMITS.rewrite_bytes + 1
YARN = {"spark.master": "yarn", "spark.executor.cores": "4", "spark.executor.instances": "8"}
DYNAMIC = {**YARN, "spark.dynamicAllocation.enabled": "true"}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv(SUBMITTED_VARIABLE, raising=False)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    for module in (configuration, workers):
        monkeypatch.setattr(module, "processors_count", lambda: 6)


class RunningSession:
    """A session of a cluster; `at_once` are the cores of the executors that are there by now."""

    _jsc = "its JVM's"

    def __init__(self, at_once, properties=YARN):
        self.master, self.defaultParallelism, self._properties = properties["spark.master"], at_once, properties

    def getConf(self):
        return self

    def getAll(self):
        return [*self._properties.items()]


def refused():
    raise AssertionError("Spark's configuration is asked for")


def fails():
    raise OSError("the gateway is gone")


def test_expected_slots_of_little_work_need_no_spark():
    assert expected_slots(refused, LIMITS.rewrite_bytes) == thread_workers().slots


def test_expected_slots_of_much_work_come_from_config():
    assert expected_slots(lambda: YARN, MUCH) == 32


def test_under_spark_submit_less_is_much(monkeypatch):
    monkeypatch.setenv(SUBMITTED_VARIABLE, "1234")
    assert expected_slots(lambda: YARN, LIMITS.submitted_rewrite_bytes + 1) == 32
    assert expected_slots(refused, LIMITS.submitted_rewrite_bytes) == thread_workers().slots


@pytest.mark.parametrize(
    ("at_once", "properties", "count"),
    [(400, YARN, 400), (2, YARN, 32), (2, {**DYNAMIC, "spark.dynamicAllocation.maxExecutors": "50"}, 200)],
)
def test_running_session_reports_slots_and_future_executors(monkeypatch, at_once, properties, count):
    monkeypatch.setattr(SparkContext, "_active_spark_context", RunningSession(at_once, properties))
    assert expected_slots(refused, MUCH) == count


def test_a_spark_that_does_not_answer_makes_no_error():
    assert expected_slots(fails, MUCH) >= 1


def test_a_preview_starts_no_session(monkeypatch):
    def never():
        raise AssertionError("a session is started")

    for much, files in ((LIMITS.rewrite_bytes, 10**9), (1, 1)):
        assert foreseen_workers(never, much, files) == thread_workers()
    local = foreseen_workers(never, MUCH, 1)
    assert (local.spark, local.would_start, local.is_local) == (None, True, True)
    monkeypatch.setattr(workers, "live_properties", lambda: YARN)
    monkeypatch.setenv(SUBMITTED_VARIABLE, "1234")
    for much, files in ((LIMITS.submitted_rewrite_bytes + 1, 1), (1, LIMITS.waiting_files_count + 1)):
        cluster = foreseen_workers(never, much, files)
        assert (cluster.slots, cluster.would_start, cluster.is_local) == (32, True, False)


class Told:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on(self, event: Event) -> None:
        self.events.append(event)


def in_spark(master: str, **properties: str) -> Workers:
    conf = SimpleNamespace(getAll=lambda: [(f"spark.executor.{key}", value) for key, value in properties.items()])
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master, getConf=lambda: conf))
    return Workers(spark=session, slots=400, process_slots=4, is_local=False)


@for_each(
    ("workers", "is_warned"),
    [
        (in_spark("yarn"), True),
        (in_spark("yarn", memoryOverhead="5g"), False),
        (in_spark("spark://host:7077"), False),
        (thread_workers(), False),
    ],
)
def test_a_job_warns_in_one_line_before_it_begins(workers: Workers, is_warned: bool) -> None:
    told = Told()
    warn_of_memory(workers, GIB, told)
    assert [type(event) for event in told.events] == [Warned] * is_warned


THREADS = Workers(spark=None, slots=3, process_slots=3, is_local=True)


@pytest.fixture
def turns(monkeypatch):
    """The turns of this process, as if nobody else had any."""
    monkeypatch.setattr(workers, "TURNS", Turns())
    return workers.TURNS


class Crowd:
    """How many threads were busy at once, at most. The first stay until all others have come too, or wait for their turn."""

    def __init__(self, turns, threads_count):
        self._lock, self._busy, self.most, self.done_count = threading.Lock(), [], 0, 0
        self._turns, self._threads_count, self._has_met = turns, threads_count, False

    def enter(self, count=1):
        with self._lock:
            self._busy.append(count)
            self.most = max(self.most, sum(self._busy))
        assert _until(self._meet)
        with self._lock:
            self._busy.remove(count)
            self.done_count += 1

    def _meet(self):
        with self._lock:
            self._has_met |= len(self._busy) + len(self._turns._waiting) >= self._threads_count
            return self._has_met


def test_concurrent_runs_share_the_process_threads(turns):
    crowd = Crowd(turns, 4 * THREADS.slots)
    work = in_turns(lambda _, __: crowd.enter(), THREADS)
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(run_tasks, None, range(5), work, None, threads=THREADS.slots) for _ in range(4)]
        assert [run.result()[1] for run in runs] == [[]] * 4
    assert (crowd.most, crowd.done_count) == (3, 20)


def test_what_keeps_several_threads_busy_takes_as_many_turns(turns):
    crowd = Crowd(turns, 7)
    work = in_turns(lambda count, _: crowd.enter(count), THREADS, lambda count: count)
    assert run_tasks(None, [2, 1, 1, 2, 3, 1, 2], work, None, threads=7)[1] == []
    assert (crowd.most, crowd.done_count) == (3, 7)


def test_what_takes_more_than_there_are_goes_alone(turns):
    crowd = Crowd(turns, 4)
    work = in_turns(lambda count, _: crowd.enter(count), THREADS, lambda count: count)
    assert run_tasks(None, [1, 5, 1, 5], work, None, threads=4)[1] == []
    assert crowd.most == 5


def test_who_came_first_goes_first_though_it_takes_more(turns):
    """Else a sort by all threads would wait for as long as there are small tasks."""
    order = []
    began, may_end = threading.Event(), threading.Event()

    def wait(name, count):
        with turns.taken(count, 2):
            order.append(name)
            if name == "first":
                began.set()
                may_end.wait(30)

    threads = []
    for name, count in [("first", 1), ("large", 2), ("small", 1)]:
        threads.append(threading.Thread(target=wait, args=(name, count)))
        threads[-1].start()
        if name == "first":
            assert began.wait(30)
        else:
            assert _until(lambda: len(turns._waiting) >= len(threads) - 1 or len(order) > 1)
    may_end.set()
    for thread in threads:
        thread.join(30)
    assert order == ["first", "large", "small"]


def test_a_failure_gives_its_turn_back(turns):
    def fail(payload, _):
        raise ValueError(payload)

    assert len(run_tasks(None, range(9), in_turns(fail, THREADS), None)[1]) == 1
    with turns.taken(3, 3):
        pass
    assert turns._busy == 0


def test_in_spark_the_work_is_the_work_itself():
    work = len
    assert in_turns(work, Workers(spark=object(), slots=3, process_slots=3, is_local=True)) is work


def _until(is_so):
    """Wait for another thread, a moment at a time."""
    return any(is_so() or threading.Event().wait(0.001) for _ in range(5_000))
