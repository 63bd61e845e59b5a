import os
import signal

import pytest

from kit.runs import shared_out

pytestmark = pytest.mark.slow


def halved(number):
    if number == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return number / 2


def test_each_piece_has_its_result():
    assert sorted(shared_out(halved, range(12), 2)) == [number / 2 for number in range(12)]


def test_pieces_that_would_begin_too_late_have_none():
    assert list(shared_out(halved, range(12), 1, minutes=0)) == []


def test_a_process_that_dies_is_an_error_which_names_what_it_may_have_been_at():
    with pytest.raises(RuntimeError, match=r"a process died at one of \[.*\b13\b"):
        list(shared_out(halved, range(20), 2))
