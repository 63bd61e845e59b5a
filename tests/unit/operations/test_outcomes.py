"""How a run ended that raised something, where a signal was taken meanwhile."""

from signal import SIGTERM

import pytest

from icekeep.errors import JobFailedError, OutcomeUnknownError, SafetyError, UnavailableError, UnsupportedError
from icekeep.events import SILENT, RunEnded, SnapshotCommitted
from icekeep.operations.interrupts import Interrupted, Interrupts
from icekeep.operations.jobs import Seams
from icekeep.operations.outcomes import RunState, run_failure
from icekeep.operations.recording import recorded
from icekeep.operations.run_context import FleetContext, RunContext
from kit.cases import for_each
from kit.changes import Recorder
from kit.fake_jobs import SEAMS
from kit.runtime import FakeRuntime

CANCELLED = [JobFailedError("Job 3 cancelled"), UnavailableError("no Spark"), ValueError("no JVM"), Interrupted(130)]
OF_ITS_OWN = [OutcomeUnknownError("look"), SafetyError("no"), UnsupportedError("encrypted")]


@for_each("error", CANCELLED)
def test_failure_by_own_cancel_is_interrupt_in_child_run(error):
    ended = run_failure(error, SIGTERM, RunState(), is_part=True)
    assert (ended.status, ended.exit_status, ended.error.kind) == ("interrupted", 143, "interrupted")
    ours = getattr(error, "message", None)
    assert ended.error.message == ("interrupted by SIGTERM" if ours is None else f"interrupted by SIGTERM: {ours}")


@pytest.mark.parametrize(
    ("known", "left"),
    [
        ({"changes_by_commits": True}, "; nothing was committed, the table is as it was"),
        (
            {"changes_by_commits": True, "commits_count": 1},
            "; 1 commit has landed and stays, run it again for the rest",
        ),
        (
            {"changes_by_commits": True, "commits_count": 12},
            "; 12 commits have landed and stay, run it again for the rest",
        ),
        ({"changes_by_commits": True, "is_read_only": True}, "; nothing was changed"),
        # What is deleted is no commit, and what writes a file, as init does, tells nothing alone either.
        ({}, ""),
        ({"is_read_only": True}, ""),
    ],
)
def test_an_interrupt_says_what_became_of_the_work(known, left):
    state = RunState(**known)
    state.start("compact", {}, FakeRuntime())
    assert run_failure(KeyboardInterrupt(), None, state).error.message == f"interrupted by SIGINT{left}"


def test_commits_are_counted_as_they_land():
    state = RunState()
    state.start("compact", {}, FakeRuntime())
    context = RunContext(seams=SEAMS, listener=SILENT, interrupts=Interrupts(), runtime=FakeRuntime(), state=state)
    for number in range(2):
        context.in_run().listener.on(SnapshotCommitted("db.t", number, "m"))
    assert state.commits_count == 2


@pytest.mark.parametrize("error", OF_ITS_OWN)
def test_what_somebody_must_look_at_is_no_interrupt(error):
    ended = run_failure(error, SIGTERM, RunState(), is_part=True)
    status = "refused" if error.exit_status == 4 else "failed"
    assert (ended.status, ended.exit_status, ended.error.kind) == (status, error.exit_status, error.kind)


def test_a_run_alone_that_fails_with_an_error_of_ours_has_failed():
    assert run_failure(UnavailableError("away"), SIGTERM, RunState()).exit_status == 75
    assert run_failure(JobFailedError("broken"), None, RunState(), is_part=True).status == "failed"


@pytest.mark.parametrize(("is_part", "told"), [(True, ("interrupted", 143)), (False, ("failed", 1))])
def test_a_part_of_a_run_is_written_down_as_interrupted(is_part, told):
    listener, interrupts, state, runtime = Recorder(), Interrupts(), RunState(), FakeRuntime()
    state.start("compact", {}, runtime)
    interrupts.signal = SIGTERM
    names = dict.fromkeys(("load_table", "build_session", "stop_session", "cancel_jobs", "live_properties"), "")
    shared = FleetContext(catalogs=None, load=None, session=None) if is_part else None
    context = RunContext(
        seams=Seams(**names), listener=listener, interrupts=interrupts, runtime=runtime, state=state, shared=shared
    )
    with pytest.raises(JobFailedError), recorded(state, None, context):
        raise JobFailedError("Job 3 cancelled as part of cancellation of all jobs")
    (ended,) = [event for event in listener.events if isinstance(event, RunEnded)]
    assert (ended.status, ended.exit_status) == told
