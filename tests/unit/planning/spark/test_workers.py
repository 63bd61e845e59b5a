import pytest
from pyspark import SparkContext

from icekeep.planning.spark import session as source
from icekeep.planning.spark import workers
from icekeep.planning.spark.session import LIMITS, SUBMITTED_VARIABLE, Engine, Limits
from icekeep.planning.spark.workers import Workers, chosen_workers, thread_workers
from icekeep.spec.types import GIB
from kit.no_spark import no_spark

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


def test_what_is_little_is_done_by_threads_though_a_session_could_be_started():
    assert chosen_workers(no_spark, LIMITS.rewrite_bytes, 1) == thread_workers()
    assert thread_workers().spark is None
    assert thread_workers().slots == thread_workers().process_slots >= 1


@pytest.mark.parametrize("work_bytes", [LIMITS.rewrite_bytes + 1, float("inf")])
def test_what_is_much_is_done_in_spark(started, work_bytes):
    assert chosen_workers(started, work_bytes, 1) is IN_SPARK


def test_under_spark_submit_only_what_is_done_before_an_executor_is_there_is_done_by_threads(started, monkeypatch):
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


def test_where_a_session_of_a_cluster_runs_only_little_is_done_by_threads(started, monkeypatch):
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


def test_a_local_session_that_is_given_gets_what_it_does_as_fast_as_threads_which_are_no_more_than_its_slots(given):
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
def test_many_small_files_go_to_a_cluster_that_spark_submit_was_told(started, monkeypatch, master, goes):
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
