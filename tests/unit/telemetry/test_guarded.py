import threading
import time

import pytest

from icekeep.events import InRun, Listeners, StepAdvanced, StepStarted, Warned, unfailing
from icekeep.runtime import SYSTEM
from icekeep.telemetry import guarded as room
from icekeep.telemetry.guarded import guarded


class Heard:
    def __init__(self):
        self.events, self.is_closed = [], False

    def on(self, event, at_ms=None):
        self.events.append(event)

    def close(self):
        self.is_closed = True


class Failing(Heard):
    def on(self, event, at_ms=None):
        super().on(event, at_ms)
        raise OSError(f"refused {len(self.events)}")

    def close(self):
        raise OSError("refused again")


class Hanging(Heard):
    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def on(self, event, at_ms=None):
        self.gate.wait()


@pytest.fixture
def gate():
    event = threading.Event()
    yield event
    event.set()


def test_all_is_told_in_order_and_closed_but_how_far_a_step_is():
    heard, warned = Heard(), Heard()
    told = [StepStarted(f"step {n}") for n in range(100)]
    with guarded([("metrics", lambda: heard)], warned, SYSTEM) as [one]:
        for event in told:
            one.on(event)
            one.on(StepAdvanced("step"))
            one.on(InRun("compact-1", StepAdvanced("step")))
    assert heard.events == told
    assert heard.is_closed
    assert warned.events == []


def test_one_that_fails_warns_once_and_is_told_the_rest():
    failing, warned = Failing(), Heard()
    with guarded([("metrics cannot be sent", lambda: failing)], warned, SYSTEM) as [one]:
        for n in range(5):
            one.on(StepStarted(f"step {n}"))
    assert len(failing.events) == 5
    assert warned.events == [Warned("metrics cannot be sent: refused 1; the work goes on")]


def test_one_that_cannot_be_made_warns_once():
    def make():
        raise ModuleNotFoundError("No module named 'x'")

    warned = Heard()
    with guarded([("traces cannot be sent", make)], warned, SYSTEM) as [one]:
        one.on(StepStarted("step"))
    assert warned.events == [
        Warned("traces cannot be sent: ModuleNotFoundError: No module named 'x'; the work goes on")
    ]


def test_hanging_sinks_delay_end_once_and_nothing_before(gate):
    warned, heard = Heard(), Heard()
    makers = [("one", lambda: Hanging(gate)), ("good", lambda: heard), ("two", lambda: Hanging(gate))]
    began = time.monotonic()
    with guarded(makers, warned, SYSTEM, patience_ms=200) as all_of_them:
        listener = Listeners(*all_of_them)
        for n in range(1_000):
            listener.on(StepStarted(f"step {n}"))
        assert time.monotonic() - began < 2
    assert 0.15 < time.monotonic() - began < 3
    assert sorted(event.message for event in warned.events) == [
        f"{name}: it does not answer, and is left; the work goes on" for name in ("one", "two")
    ]
    assert len(heard.events) == 1_000


def test_one_that_hangs_does_not_fill_the_memory(gate, monkeypatch):
    monkeypatch.setattr(room, "_MAX_WAITING", 10)
    warned = Heard()
    with guarded([("one", lambda: Hanging(gate))], warned, SYSTEM, patience_ms=0) as [one]:
        for n in range(100):
            one.on(StepStarted(f"step {n}"))
        assert one._events.qsize() <= 10
    assert [event.message for event in warned.events] == [
        "one: it does not keep up, and is not told of all; the work goes on"
    ]


def test_a_listener_of_warnings_that_fails_ends_nothing(caplog):
    with guarded([("metrics", Failing)], unfailing(Failing()), SYSTEM) as [one]:
        one.on(StepStarted("step"))
    assert "a listener failed" in caplog.text
