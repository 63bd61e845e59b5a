import pytest

from icekeep.planning.spark import workers
from icekeep.planning.spark.conf import SUBMITTED_VARIABLE
from icekeep.planning.spark.limits import LIMITS, Limits
from icekeep.planning.spark.workers import Workers, chosen_workers, thread_workers
from kit.no_spark import no_spark

IN_SPARK = Workers(spark=None, slots=400, process_slots=4, is_local=False)


@pytest.fixture
def started(monkeypatch):
    """A function that starts a session, and what was started."""
    sessions = []
    monkeypatch.setattr(workers, "spark_workers", lambda _: IN_SPARK)
    monkeypatch.delenv(SUBMITTED_VARIABLE, raising=False)
    return lambda: sessions.append("a session") or sessions[-1]


def test_what_is_little_is_done_by_threads_though_a_session_could_be_started():
    assert chosen_workers(no_spark, LIMITS.rewrite_bytes) == thread_workers()
    assert thread_workers().spark is None
    assert thread_workers().slots == thread_workers().process_slots >= 1
    shared = thread_workers(Limits(sharers_count=3))
    assert (shared.slots, shared.process_slots) == (thread_workers().slots, 3 * thread_workers().slots)


@pytest.mark.parametrize("work_bytes", [LIMITS.rewrite_bytes + 1, float("inf")])
def test_what_is_much_is_done_in_spark(started, work_bytes):
    assert chosen_workers(started, work_bytes) is IN_SPARK


def test_under_spark_submit_only_what_is_done_before_an_executor_is_there_is_done_by_threads(started, monkeypatch):
    monkeypatch.setenv(SUBMITTED_VARIABLE, "1234")
    assert chosen_workers(no_spark, LIMITS.submitted_rewrite_bytes) == thread_workers()
    assert chosen_workers(started, LIMITS.submitted_rewrite_bytes + 1) is IN_SPARK
