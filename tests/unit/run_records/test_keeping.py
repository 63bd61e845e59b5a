"""A run that is kept: begun, alive, ended; and what goes wrong, which is warned of once."""

import threading

import msgspec
import pytest

from icekeep.errors import UnavailableError, UsageError
from icekeep.events import Warned
from icekeep.processes import process_name
from icekeep.run_records import keeping
from icekeep.run_records.keeping import RunKeeper, new_record
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunFilter
from icekeep.runs import Run
from icekeep.spec.types import DAY_MS
from icekeep.version import ICEKEEP_VERSION
from kit.runtime import START_MS, FakeRuntime

RUN = Run(run_id="compact-1", job="compact", policy="nightly", parent_id="maintain-1")


class Heard:
    def __init__(self):
        self.warnings = []

    def on(self, event):
        assert isinstance(event, Warned)
        self.warnings.append(event.message)


class Failing:
    """A record of runs of which some calls fail, as often as is said."""

    def __init__(self, records, error, **calls):
        self._records, self._error, self._calls = records, error, calls
        self.asked = []

    def __getattr__(self, name):
        def call(*arguments):
            self.asked.append(name)
            if self._calls.get(name, 0):
                self._calls[name] -= 1
                raise self._error
            return getattr(self._records, name)(*arguments)

        return call


@pytest.fixture
def records(tmp_path):
    return RunRecords.at(f"sqlite:///{tmp_path}/runs.db")


@pytest.fixture
def heard():
    return Heard()


def keeper(records, heard, run=RUN, runtime=None, **more):
    runtime = runtime or FakeRuntime()
    return RunKeeper(records, new_record(run, "lake.db.t", runtime.now_ms()), runtime, heard, **more)


def all_of(records, now_ms=START_MS):
    return records.select(RunFilter(), now_ms)


def test_a_run_is_written_at_its_beginning_and_at_its_end(records, heard):
    runtime = FakeRuntime()
    kept = keeper(records, heard, runtime=runtime)
    kept.begin(snapshot_id_before=7)
    (begun,) = all_of(records)
    assert (begun.run_id, begun.job, begun.policy, begun.parent_id) == ("compact-1", "compact", "nightly", "maintain-1")
    assert (begun.status, begun.snapshot_id_before, begun.table) == ("running", 7, "lake.db.t")
    assert (begun.process, begun.version) == (process_name(), ICEKEEP_VERSION)
    runtime.pass_ms(500)
    kept.end(status="done", exit_status=0)
    (ended,) = all_of(records)
    assert ended == msgspec.structs.replace(
        begun, status="done", exit_status=0, ended_ms=START_MS + 500, seen_ms=START_MS + 500
    )
    assert heard.warnings == []


class Beaten:
    """Remembers the beats, and lets a test wait for them."""

    def __init__(self):
        self.seen_ms, self.came = [], threading.Condition()

    def beat(self, run_id, now_ms):
        with self.came:
            self.seen_ms.append(now_ms)
            self.came.notify_all()

    def __getattr__(self, name):
        return lambda *_: None


def test_while_it_works_it_says_so(heard, monkeypatch):
    monkeypatch.setattr(keeping, "BEAT_EVERY_MS", 1)
    runtime, beaten = FakeRuntime(), Beaten()
    kept = keeper(beaten, heard, runtime=runtime)
    kept.begin()
    runtime.pass_ms(5)
    with beaten.came:
        assert beaten.came.wait_for(lambda: START_MS + 5 in beaten.seen_ms, 20)
    kept.end(status="done", exit_status=0)
    assert not [one for one in threading.enumerate() if one.name == "record of compact-1"]


@pytest.mark.parametrize(
    ("calls", "error", "status"),
    [
        ({"begin": 1}, UnavailableError("x"), "done"),
        ({"end": 1}, UnavailableError("x"), "running"),
        ({"begin": 1, "end": 1}, UnavailableError("x"), None),
        ({"begin": 1}, UsageError("x"), None),
        ({"begin": 1}, ZeroDivisionError("x"), None),
    ],
)
def test_failed_record_warns_once_and_is_retried_at_end(records, heard, calls, error, status):
    kept = keeper(Failing(records, error, **calls), heard)
    kept.begin()
    kept.end(status="done", exit_status=0)
    assert len(heard.warnings) == 1
    assert heard.warnings[0].startswith("run compact-1 is not written down: ")
    assert [one.status for one in all_of(records)] == ([] if status is None else [status])


def test_old_runs_are_forgotten_by_top_level_run_only(records, heard):
    alone = msgspec.structs.replace(RUN, parent_id=None)
    for number, run in ((1, RUN), (2, alone)):
        runtime = FakeRuntime(now_ms=START_MS + number * 10 * DAY_MS)
        old = msgspec.structs.replace(alone, run_id=f"old-{number}")
        kept = keeper(records, heard, old, FakeRuntime())
        kept.end(status="done", exit_status=0)
        # The record goes on until then.
        between = msgspec.structs.replace(alone, run_id=f"between-{number}")
        night_before = FakeRuntime(now_ms=START_MS + number * 10 * DAY_MS - DAY_MS)
        keeper(records, heard, between, night_before).end(status="done", exit_status=0)
        kept = keeper(records, heard, msgspec.structs.replace(run, run_id=f"new-{number}"), runtime, keep_ms=DAY_MS)
        kept.end(status="done", exit_status=0)
        there = {one.run_id for one in all_of(records)}
        assert (f"old-{number}" in there) is (number == 1)
        assert f"new-{number}" in there


def test_end_of_run_also_goes_elsewhere_if_database_fails(records, heard):
    told = []
    kept = keeper(Failing(records, UsageError("x"), begin=1), heard, also=told.append)
    kept.begin()
    kept.end(status="done", exit_status=0)
    assert [(one.run_id, one.status, one.ended_ms) for one in told] == [("compact-1", "done", START_MS)]
    alone = keeper(None, heard, also=told.append)
    alone.begin()
    alone.end(status="failed", exit_status=1)
    assert told[-1].status == "failed"


def test_what_fails_elsewhere_is_warned_of(records, heard):
    def fail(record):
        raise UsageError("there is no such catalog")

    keeper(records, heard, also=fail).end(status="done", exit_status=0)
    assert heard.warnings == ["run compact-1 is not written down: there is no such catalog"]
    assert [one.status for one in all_of(records)] == ["done"]


def test_what_is_left_alone_is_not_warned_of_again(records, heard):
    kept = keeper(Failing(records, UnavailableError("x", is_left_alone=True), begin=1), heard)
    kept.begin()
    kept.end(status="done", exit_status=0)
    assert heard.warnings == []
    assert [one.status for one in all_of(records)] == ["done"]
