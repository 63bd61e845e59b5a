import pickle

import msgspec
import pytest

from icekeep.events import (
    SILENT,
    CommitRetried,
    Event,
    InRun,
    Listeners,
    Noted,
    RunEnded,
    RunStarted,
    SnapshotCommitted,
    StepAdvanced,
    StepFinished,
    StepStarted,
    StepUnderWay,
    Warned,
    unfailing,
)
from icekeep.operations.outcomes import RunState
from icekeep.operations.run_context import RunListener
from kit.cases import for_each

EVENTS = [
    StepStarted("planning"),
    StepStarted("rewriting", 7, "files"),
    StepAdvanced("rewriting"),
    StepAdvanced("rewriting", 3),
    StepUnderWay("rewriting", 3),
    StepFinished("rewriting", "7 files -> 1"),
    Warned("careful"),
    Noted("open http://127.0.0.1/"),
    CommitRetried("db.events", 1, 100, "another writer"),
    SnapshotCommitted("db.events", None, "file:///m.json"),
    RunEnded(run_id="compact-1", status="done", exit_status=0, ended_ms=2),
    InRun("compact-1", Warned("careful")),
]
STARTED = RunStarted(run_id="compact-1", job="compact", started_ms=1, arguments={"strategy": "sort"})


def test_the_list_above_is_complete():
    assert {type(event) for event in (*EVENTS, STARTED)} == set(Event.__subclasses__())


@for_each("event", EVENTS, ids=lambda e: type(e).__name__)
def test_an_event_is_a_value_that_says_its_kind_and_travels(event):
    assert pickle.loads(pickle.dumps(event)) == event
    assert hash(event) == hash(msgspec.structs.replace(event))
    assert msgspec.to_builtins(event)["type"] == type(event).__name__
    with pytest.raises(AttributeError):
        event.step = "other"


def test_a_step_advances_by_one_unless_told_otherwise():
    assert (StepAdvanced("s").done, StepStarted("s").total, StepStarted("s").unit, StepFinished("s").note) == (
        1,
        None,
        "",
        "",
    )


@for_each("event", EVENTS, ids=lambda e: type(e).__name__)
def test_nobody_listens_in_silence(event):
    assert SILENT.on(event) is None


def test_the_beginning_of_a_run_travels_too():
    """It has no hash, since arguments have none."""
    assert pickle.loads(pickle.dumps(STARTED)) == STARTED
    assert msgspec.to_builtins(STARTED)["arguments"] == {"strategy": "sort"}


class Heard:
    def __init__(self, failure=None):
        self.events, self.failure = [], failure

    def on(self, event):
        self.events.append(event)
        if self.failure is not None:
            raise self.failure


def test_one_of_several_listeners_fails_and_the_others_hear_all(caplog):
    first, failing, last = Heard(), Heard(ValueError("no")), Heard()
    both = Listeners(first, failing, last)
    for event in EVENTS:
        both.on(event)
    assert first.events == last.events == EVENTS
    assert len(failing.events) == len(EVENTS)
    assert caplog.text.count("a listener failed") == 1


def test_failing_listener_stops_nothing_and_logs_first_error(caplog):
    failing = Heard(ValueError("no"))
    listener = unfailing(failing)
    for event in EVENTS:
        listener.on(event)
    assert failing.events == EVENTS
    assert caplog.text.count("a listener failed") == 1
    assert (unfailing(listener), unfailing(SILENT)) == (listener, SILENT)


def test_what_happens_in_a_run_is_told_with_its_name():
    heard = Heard()
    listener = RunListener("compact-1", heard, RunState())
    for event in (STARTED, Warned("careful"), InRun("compact-2", Warned("other")), EVENTS[-2]):
        listener.on(event)
    assert heard.events == [
        STARTED,
        InRun("compact-1", Warned("careful")),
        InRun("compact-2", Warned("other")),
        EVENTS[-2],
    ]
