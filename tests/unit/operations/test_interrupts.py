import os
import signal
import threading

import pytest

from icekeep.operations.interrupts import Interrupted, interrupts


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_cancels_the_work_and_unwinds_with_the_shell_s_status(number, code):
    cancelled = []
    with interrupts() as taken:
        taken.install(lambda: cancelled.append(True))
        with pytest.raises(Interrupted) as caught:
            os.kill(os.getpid(), number)
        assert caught.value.code == code
        assert taken.signal is number
    assert cancelled == [True]


def test_a_second_signal_does_not_break_the_clean_up():
    with interrupts() as taken:
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert taken.signal is signal.SIGTERM


def test_while_an_answer_is_delivered_the_first_signal_is_passed_over():
    with interrupts() as taken:
        taken.spare_delivery()
        os.kill(os.getpid(), signal.SIGTERM)
        assert taken.signal is None
        with pytest.raises(Interrupted) as caught:
            os.kill(os.getpid(), signal.SIGINT)
        assert caught.value.code == 130


def test_the_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with interrupts():
        assert signal.getsignal(signal.SIGTERM) is not before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_outside_the_main_thread_signals_are_left_alone():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def work():
        with interrupts() as taken:
            taken.install()
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
