import json
import logging
import re
import socket
import threading
import warnings

import pytest
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TTransportException

from icekeep.events import (
    CommitRetried,
    InRun,
    RunEnded,
    RunStarted,
    SnapshotCommitted,
    StepAdvanced,
    StepFinished,
    StepStarted,
    Warned,
)
from icekeep.operations.console import logs
from icekeep.operations.console.logs import (
    LoggedEvents,
    configure_logs,
    logged_events,
    logged_progress,
    say_error,
    say_traceback,
)
from kit.rewritten_manifests import kinds, rewrite
from kit.runtime import FakeRuntime
from kit.shell import restored_logging


@pytest.fixture(autouse=True)
def _restore_logging():
    with restored_logging():
        yield


def test_log_lines_go_to_stderr_from_warnings_up(capsys):
    configure_logs(verbose=False)
    logging.getLogger("icekeep.x").info("hidden")
    logging.getLogger("icekeep.x").warning("seen")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("Z WARNING icekeep.x: seen\n")
    assert "hidden" not in err
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", err.partition(" ")[0])


def test_log_call_with_wrong_values_is_still_a_line(capsys):
    configure_logs(verbose=False, log_format="json")
    # Right to the handler: pytest has one of its own, which raises.
    logs._HANDLER.handle(logging.LogRecord("a.b", logging.WARNING, __file__, 1, "%d files", ("no number",), None))
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"].startswith("%d files (its values do not fit: TypeError: %d format")


def test_verbose_shows_all_and_the_warnings_of_libraries_too(capsys):
    configure_logs(verbose=True)
    logging.getLogger("icekeep.x").debug("seen")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old", FutureWarning, stacklevel=1)
        logging.captureWarnings(False)
    err = capsys.readouterr().err
    assert "DEBUG icekeep.x: seen" in err
    assert "old" in err


@pytest.mark.server
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_the_client_of_hive_raises_it_does_not_log_beside(log_format, capsys, caplog):
    """Its line had no time and no name before it: nothing said where it came from."""
    configure_logs(verbose=False, log_format=log_format)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(TTransportException):
            TSocket(*taken.getsockname()).open()
    assert (capsys.readouterr().err, caplog.records) == ("", [])


def test_configuring_twice_does_not_tell_twice(capsys):
    configure_logs(verbose=False)
    configure_logs(verbose=False)
    logging.getLogger("icekeep").warning("once")
    assert capsys.readouterr().err.count("once") == 1


def test_each_event_is_a_line_with_its_time_and_its_weight(capsys):
    """There was a pipe that nothing flowed through."""
    configure_logs(verbose=True)
    listener = LoggedEvents()
    for event in (
        StepStarted("deleting files", 2_000_000, "files"),
        StepStarted("planning"),
        StepAdvanced("deleting files", 1000),
        StepFinished("deleting files", "1000 files"),
        Warned("100% odd"),
        CommitRetried("db.t", 1, 1500, "others were faster"),
        SnapshotCommitted("db.t", 7, "x"),
    ):
        listener.on(event)
    lines = [line.partition("Z ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "INFO icekeep.events: deleting files: started, 2000000 files",
        "INFO icekeep.events: planning: started",
        "DEBUG icekeep.events: deleting files: 1000 more",
        "INFO icekeep.events: deleting files: done, 1000 files",
        "WARNING icekeep.events: 100% odd",
        "INFO icekeep.events: db.t: attempt 1 to commit did not land (others were faster); again in 1.5 s",
        "INFO icekeep.events: db.t: committed snapshot 7",
    ]


def test_job_logs_plan_sweep_and_commit_attempts(capsys):
    """On a real table in memory."""
    configure_logs(verbose=True)
    table = kinds(3)
    rewrite(table, listener=LoggedEvents())
    lines = [line.partition("Z ")[2] for line in capsys.readouterr().err.splitlines()]
    [planned] = [line for line in lines if " manifests in " in line]
    assert planned.startswith("INFO icekeep.maintenance.manifests.job: db.events: run ")
    assert planned.endswith("3 manifests in 1 groups, target 8388608 bytes")
    attempts = [
        line for line in lines if line.startswith("INFO icekeep.commit.retry: db.events: attempt 1 to commit to ")
    ]
    assert len(attempts) == 4
    assert any(
        line.startswith("INFO icekeep.maintenance.rewrite.alive: ") and "dead runs have left 0 files" in line
        for line in lines
    )
    assert any(line.startswith("INFO icekeep.events: ") and "committed snapshot" in line for line in lines)


def test_library_records_name_run_table_and_job(caplog):
    table = kinds(3)
    with caplog.at_level(logging.DEBUG, logger="icekeep"):
        rewrite(table)
    ours = [record for record in caplog.records if record.name.startswith("icekeep.")]
    assert {(record.table, record.job) for record in ours} == {("local.db.events", "rewrite_manifests")}
    assert len({record.run for record in ours}) == 1
    assert ours[0].run.startswith("rewrite_manifests-")


def test_without_verbose_the_same_job_has_no_log_line(capsys):
    configure_logs(verbose=False)
    rewrite(kinds(3))
    assert capsys.readouterr().err == ""


STARTED = RunStarted(run_id="compact-1", job="compact", table="lake.db.t", policy="nightly", started_ms=1)
ENDED = RunEnded(
    run_id="compact-1", status="failed", exit_status=4, ended_ms=2, error_kind="safety", error_message="no"
)


def lines_of(capsys):
    """The JSON objects on stderr, without their times, which have a form of their own."""
    out, err = capsys.readouterr()
    assert out == ""
    lines = [json.loads(line) for line in err.splitlines()]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time")) for line in lines)
    return lines


def line(message, level="info", logger="icekeep.events", run=None, table=None, job=None, step=None, **more):
    return {
        "level": level,
        "run": run,
        "table": table,
        "job": job,
        "step": step,
        "message": message,
        "logger": logger,
        **more,
    }


def test_as_json_each_line_is_an_object_with_what_is_known(capsys):
    configure_logs(verbose=False, log_format="json")
    log = logging.getLogger("icekeep.x")
    log.info("hidden")
    log.warning("seen %d\n", 1, extra={"run": "compact-1", "table": "lake.db.t", "job": "compact", "step": "planning"})
    log.warning("plain")
    logging.getLogger("urllib3").warning("of another library")
    assert lines_of(capsys) == [
        line("seen 1\n", "warning", "icekeep.x", "compact-1", "lake.db.t", "compact", "planning"),
        line("plain", "warning", "icekeep.x"),
        line("of another library", "warning", "urllib3"),
    ]


def test_as_json_progress_is_lines_of_the_log_with_their_run(capsys):
    configure_logs(verbose=False, log_format="json")
    runtime = FakeRuntime()
    listener = logged_progress(runtime)
    run = {"run": "compact-1", "table": "lake.db.t", "job": "compact"}
    listener.on(STARTED)
    for event in (
        StepStarted("rewriting", 1_200, "files"),
        StepAdvanced("rewriting", 10),
        Warned("careful"),
        CommitRetried("db.t", 1, 1_500, "others", is_conflict=True),
        SnapshotCommitted("db.t", 7, "m"),
    ):
        listener.on(InRun("compact-1", event))
    runtime.pass_ms(6_000)
    listener.on(InRun("compact-1", StepAdvanced("rewriting", 90)))
    listener.on(InRun("compact-1", StepFinished("rewriting")))
    listener.on(ENDED)
    logging.getLogger("icekeep.x").warning("afterwards")
    began = {"policy": "nightly", "parent_run": None, "only_tells": False}
    assert lines_of(capsys) == [
        line("compact lake.db.t: run compact-1", **run, facts=began),
        line("rewriting: started, 1,200 files", step="rewriting", **run, facts={"total": 1200, "unit": "files"}),
        line("careful", "warning", **run),
        line(
            "db.t: attempt 1 to commit did not land (others); again in 1.5 s",
            **run,
            facts={"attempt": 1, "wait_ms": 1500, "is_conflict": True},
        ),
        line("db.t: committed snapshot 7", **run, facts={"snapshot_id": "7", "metadata_location": "m"}),
        line("rewriting: 100 of 1,200 files, about 66.0 s left", step="rewriting", **run),
        line("rewriting: done in 6.0 s", step="rewriting", **run),
        line(
            "run compact-1: failed",
            **run,
            facts={"status": "failed", "exit_status": 4, "error_kind": "safety", "error_message": "no"},
        ),
        line("afterwards", "warning", "icekeep.x", **run),
    ]


@pytest.mark.parametrize("make", [logged_events, lambda: logged_progress(FakeRuntime())])
def test_lines_of_child_runs_bear_their_run(make, capsys):
    configure_logs(verbose=True, log_format="json")
    listener = make()
    listener.on(RunStarted(run_id="maintain-1", job="maintain", started_ms=1))
    listener.on(RunStarted(run_id="compact-1", job="compact", table="lake.db.t", parent_id="maintain-1", started_ms=1))
    listener.on(RunStarted(run_id="check-1", job="check", table="lake.db.u", parent_id="maintain-1", started_ms=1))
    listener.on(InRun("compact-1", StepStarted("planning")))
    listener.on(InRun("check-1", StepStarted("planning")))
    listener.on(InRun("maintain-1", Warned("tired")))
    listener.on(InRun("nobody-1", Warned("lost")))
    logging.getLogger("icekeep.x").warning("careful")
    found = [(one["run"], one["table"], one["message"]) for one in lines_of(capsys)][3:]
    assert found == [
        ("compact-1", "lake.db.t", "planning: started"),
        ("check-1", "lake.db.u", "planning: started"),
        ("maintain-1", None, "tired"),
        ("maintain-1", None, "lost"),
        ("maintain-1", None, "careful"),
    ]


def test_json_error_and_traceback_are_separate_lines(capsys):
    configure_logs(verbose=True, log_format="json")
    try:
        raise ValueError("inside")
    except ValueError as error:
        say_traceback(error)
    say_error("no", {"kind": "safety", "exit_status": 4})
    traceback, said = lines_of(capsys)
    assert "ValueError: inside" in traceback.pop("traceback")
    assert traceback == line("traceback", "debug", "icekeep")
    assert said == line("no", "error", "icekeep", facts={"kind": "safety", "exit_status": 4})


def test_text_error_and_traceback_stay_readable(capsys):
    configure_logs(verbose=True)
    say_traceback(ValueError("inside"))
    say_error("no", {"kind": "safety"})
    assert capsys.readouterr().err == "ValueError: inside\nicekeep: no (icekeep help safety)\n"


def test_what_a_thread_dies_of_is_a_line_too(capsys):
    configure_logs(verbose=False, log_format="json")

    def fail():
        raise ValueError("alone")

    thread = threading.Thread(target=fail, name="worker")
    thread.start()
    thread.join()
    [found] = lines_of(capsys)
    assert "ValueError: alone" in found.pop("traceback")
    assert found == line("thread worker failed", "error", "icekeep")


def test_facts_that_json_has_not_become_text(capsys):
    configure_logs(verbose=False, log_format="json")
    say_error("no", {"one": {1}, "kind": object})
    [found] = lines_of(capsys)
    assert found["facts"] == {"one": [1], "kind": "<class 'object'>"}


def test_text_lines_of_child_runs_name_job_and_table(capsys):
    configure_logs(verbose=True)
    listener = logged_events()
    listener.on(RunStarted(run_id="maintain-1", job="maintain", started_ms=1))
    listener.on(RunStarted(run_id="compact-1", job="compact", table="lake.db.t", parent_id="maintain-1", started_ms=1))
    listener.on(InRun("compact-1", StepStarted("planning")))
    listener.on(InRun("maintain-1", StepStarted("looking")))
    lines = [one.partition("icekeep.events: ")[2] for one in capsys.readouterr().err.splitlines()]
    assert lines == [
        "maintain: run maintain-1",
        "compact lake.db.t: run compact-1",
        "compact lake.db.t: planning: started",
        "looking: started",
    ]


def test_in_text_a_run_says_its_name_once(capsys):
    configure_logs(verbose=True)
    listener = logged_events()
    listener.on(STARTED)
    listener.on(InRun("compact-1", StepStarted("planning")))
    listener.on(ENDED)
    lines = [one.partition("Z ")[2] for one in capsys.readouterr().err.splitlines()]
    assert lines == [
        "INFO icekeep.events: compact lake.db.t: run compact-1",
        "INFO icekeep.events: planning: started",
        "INFO icekeep.events: run compact-1: failed",
    ]
