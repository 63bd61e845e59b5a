"""Jobs in threads of one process, whose run is being stopped: where they end, and where they do not."""

import pickle
import threading
from contextlib import suppress

import pytest

from icekeep.events import (
    CommitRetried,
    InRun,
    SnapshotCommitted,
    StepAdvanced,
    StepFinished,
    StepStarted,
    Warned,
)
from icekeep.operations.interrupts import Interrupted, JobInterrupts
from icekeep.runtime import SYSTEM, SystemRuntime, cleaning_up
from kit.changes import Recorder
from kit.runtime import FakeRuntime

BETWEEN_STEPS = (StepStarted("x"), StepAdvanced("x"), CommitRetried("db.t", 1, 5, "z"))
OTHERS = (StepFinished("x"), Warned("careful"), SnapshotCommitted("db.t", 1, "m"))


@pytest.fixture
def stop():
    return threading.Event()


@pytest.fixture
def interrupts(stop):
    return JobInterrupts(stop)


def test_as_long_as_nothing_stops_all_is_passed_on_and_slept(interrupts):
    told, runtime = Recorder(), FakeRuntime()
    with interrupts.of_job():
        for event in (*BETWEEN_STEPS, *OTHERS):
            interrupts.listener(told).on(event)
        interrupts.runtime(SYSTEM).sleep_ms(1)
    assert told.events == [*BETWEEN_STEPS, *OTHERS]
    assert (interrupts.runtime(runtime).now_ms(), interrupts.runtime(runtime).is_abandoned()) == (
        runtime.now_ms(),
        False,
    )


@pytest.mark.parametrize("event", [said for one in BETWEEN_STEPS for said in (one, InRun("compact-1", one))])
def test_a_job_ends_between_steps_and_what_it_says_is_passed_on(interrupts, stop, event):
    told = Recorder()
    listener = interrupts.listener(told)
    stop.set()
    with interrupts.of_job():
        for other in OTHERS:
            listener.on(other)
        with pytest.raises(Interrupted) as ended:
            listener.on(event)
        # It cleans up now, and whatever it does is done to its end.
        listener.on(event)
    assert ended.value.code == 130
    assert told.events == [*OTHERS, event, event]


def test_retry_wait_is_woken_once_and_cleanup_may_sleep(interrupts, stop):
    runtime = FakeRuntime()
    stoppable = interrupts.runtime(runtime)
    threading.Timer(0.05, stop.set).start()
    with interrupts.of_job():
        with pytest.raises(Interrupted):
            stoppable.sleep_ms(60_000)
        assert runtime.sleeps_ms == []
        stoppable.sleep_ms(7)
    assert runtime.sleeps_ms == [7]
    # The next job of the thread ends, too.
    with interrupts.of_job(), pytest.raises(Interrupted):
        stoppable.sleep_ms(60_000)


def test_failing_job_is_not_interrupted_in_cleanup(interrupts, stop):
    runtime, told = FakeRuntime(), Recorder()
    stop.set()
    with interrupts.of_job():
        with suppress(ZeroDivisionError):
            try:
                _ = 1 // 0
            finally:
                interrupts.runtime(runtime).sleep_ms(3)
                interrupts.listener(told).on(StepAdvanced("x"))
        with cleaning_up():
            interrupts.runtime(runtime).sleep_ms(4)
        assert (runtime.sleeps_ms, told.events) == ([3, 4], [StepAdvanced("x")])
        with pytest.raises(Interrupted):
            interrupts.runtime(runtime).sleep_ms(5)


def test_waiting_cleanup_wakes_on_stop_without_interrupt(interrupts, stop):
    runtime = FakeRuntime()
    stoppable = interrupts.runtime(runtime)
    threading.Timer(0.05, stop.set).start()
    with interrupts.of_job():
        with cleaning_up():
            assert not stoppable.is_stopping()
            stoppable.sleep_ms(60_000)
            assert stoppable.is_stopping()
            stoppable.sleep_ms(7)
        assert runtime.sleeps_ms == [7]
        with pytest.raises(Interrupted):
            interrupts.check()


def test_threads_that_are_no_job_s_own_are_left_alone(interrupts, stop):
    runtime, told = FakeRuntime(), Recorder()
    stop.set()

    def beat():
        interrupts.runtime(runtime).sleep_ms(3)
        interrupts.listener(told).on(StepAdvanced("x"))

    with interrupts.of_job():
        thread = threading.Thread(target=beat)
        thread.start()
        thread.join()
        assert (runtime.sleeps_ms, told.events) == ([3], [StepAdvanced("x")])
        with pytest.raises(Interrupted):
            interrupts.check()
    # After a job, its thread is none either.
    beat()


def test_tasks_of_spark_take_the_runtime_itself(interrupts):
    assert isinstance(pickle.loads(pickle.dumps(interrupts.runtime(SYSTEM))), SystemRuntime)
