import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from icekeep.planning.spark import workers as module
from icekeep.planning.spark.tasks import run_tasks
from icekeep.planning.spark.workers import Turns, Workers, in_turns

THREADS = Workers(spark=None, slots=3, process_slots=3, is_local=True)


@pytest.fixture
def turns(monkeypatch):
    """The turns of this process, as if nobody else had any."""
    monkeypatch.setattr(module, "TURNS", Turns())
    return module.TURNS


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


def test_runs_that_go_side_by_side_share_the_threads_of_the_process(turns):
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
