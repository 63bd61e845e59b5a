import logging
import warnings

import pytest

from icekeep.operations.logs import configure_logs


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
