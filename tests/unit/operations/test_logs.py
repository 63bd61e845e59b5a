import logging
import warnings

import pytest

from icekeep.events import CommitRetried, SnapshotCommitted, StepAdvanced, StepFinished, StepStarted, Warned
from icekeep.operations.logs import LoggedEvents, configure_logs
from kit.small_manifests import kinds, rewrite


@pytest.fixture(autouse=True)
def _restore_logging():
    names = ("icekeep", "py.warnings")
    before = {name: (logging.getLogger(name).level, logging.getLogger(name).propagate) for name in names}
    yield
    logging.captureWarnings(False)
    for name, (level, propagate) in before.items():
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).propagate = propagate


def test_log_lines_go_to_stderr_from_warnings_up(capsys):
    configure_logs(verbose=False)
    logging.getLogger("icekeep.x").info("hidden")
    logging.getLogger("icekeep.x").warning("seen")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("Z WARNING icekeep.x: seen\n")
    assert "hidden" not in err


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


def test_a_job_says_what_it_planned_what_it_swept_and_each_attempt_to_commit(capsys):
    """On a real table in memory."""
    configure_logs(verbose=True)
    table = kinds(3)
    rewrite(table, listener=LoggedEvents())
    lines = [line.partition("Z ")[2] for line in capsys.readouterr().err.splitlines()]
    [planned] = [line for line in lines if " manifests in " in line]
    assert planned.startswith("INFO icekeep.maintenance.manifests.rewriting: db.events: run ")
    assert planned.endswith("3 manifests in 1 groups, target 8388608 bytes")
    attempts = [
        line for line in lines if line.startswith("INFO icekeep.commit.retry: db.events: attempt 1 to commit to ")
    ]
    assert len(attempts) == 4
    assert any(
        line.startswith("INFO icekeep.maintenance.runs.left_behind: ") and "dead runs have left 0 files" in line
        for line in lines
    )
    assert any(line.startswith("INFO icekeep.events: ") and "committed snapshot" in line for line in lines)


def test_without_verbose_the_same_job_has_no_log_line(capsys):
    configure_logs(verbose=False)
    rewrite(kinds(3))
    assert capsys.readouterr().err == ""
