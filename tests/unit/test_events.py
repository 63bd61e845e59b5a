import pickle

import msgspec
import pytest

from icekeep.events import (
    SILENT,
    CommitRetried,
    Event,
    SnapshotCommitted,
    StepAdvanced,
    StepFinished,
    StepStarted,
    Warned,
)

EVENTS = [
    StepStarted("planning"),
    StepStarted("rewriting", 7, "files"),
    StepAdvanced("rewriting"),
    StepAdvanced("rewriting", 3),
    StepFinished("rewriting", "7 files -> 1"),
    Warned("careful"),
    CommitRetried("db.events", 1, 100, "another writer"),
    SnapshotCommitted("db.events", None, "file:///m.json"),
]


def test_the_list_above_is_complete():
    assert {type(event) for event in EVENTS} == set(Event.__subclasses__())


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
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


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_nobody_listens_in_silence(event):
    assert SILENT.on(event) is None
