import pytest

from icekeep.commit.retry import check_submitter
from icekeep.errors import OptionError, UnavailableError
from kit.runtime import FakeRuntime


@pytest.mark.parametrize("told", [None, "", "parent", "none"])
def test_a_process_that_is_abandoned_is_told_by_which_variable(monkeypatch, told):
    if told is not None:
        monkeypatch.setenv("ICEKEEP_SUBMITTER", told)
    runtime = FakeRuntime()
    check_submitter(runtime)
    runtime.abandoned = True
    with pytest.raises(
        UnavailableError, match=r"is gone, so nothing more is committed; .*ICEKEEP_SUBMITTER=none"
    ) as raised:
        check_submitter(runtime)
    assert raised.value.exit_status == 75


def test_a_variable_that_says_nothing_is_refused(monkeypatch):
    monkeypatch.setenv("ICEKEEP_SUBMITTER", "nobody")
    with pytest.raises(OptionError, match="option ICEKEEP_SUBMITTER is 'nobody'; give 'parent' or 'none'"):
        check_submitter(FakeRuntime())
