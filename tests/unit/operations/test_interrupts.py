import os
import signal
import threading

import pytest

from icekeep.operations.interrupts import Interrupted, interrupts, passing_on


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_cancels_work_and_exits_with_shell_status(number, code):
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


def test_first_signal_is_ignored_while_answer_is_delivered():
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


@pytest.fixture
def host(monkeypatch):
    """A program that has a handler of its own for SIGTERM, which may end it."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    yield heard
    signal.signal(signal.SIGTERM, before)


def test_signal_is_passed_to_previous_handler_after_block(host):
    with passing_on() as taken:
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
        assert (taken.signal, host) == (signal.SIGTERM, [])
    assert host == [signal.SIGTERM]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_block_ended_by_signal_raises_keyboard_interrupt(host, number):
    with pytest.raises(KeyboardInterrupt), passing_on():
        os.kill(os.getpid(), number)
    assert host == [signal.SIGTERM] * (number == signal.SIGTERM)


def test_signal_survives_error_that_ends_block(host):
    def fails():
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError("cancelled")

    with pytest.raises(ValueError, match="cancelled"), passing_on():
        fails()
    assert host == [signal.SIGTERM]


def test_without_a_signal_nothing_is_passed_on(host):
    with passing_on():
        pass
    with pytest.raises(ValueError, match="of its own"), passing_on():
        raise ValueError("of its own")
    assert host == []


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
