"""How long a server may take to answer for the first time."""

import pickle
import threading

import pytest

from icekeep.catalog.open import open_catalog
from icekeep.errors import ConfigError
from icekeep.storage.hdfs.storage import HdfsStorage
from icekeep.storage.ranges import FIRST_ANSWER_TIMEOUT, FirstAnswer, NoAnswerError, first_answer_ms
from kit.cases import for_each


def never():
    threading.Event().wait()


def test_a_server_that_has_never_answered_is_given_up_at_the_limit():
    first = FirstAnswer("http://host:1", 1)
    for _ in range(2):
        with pytest.raises(
            NoAnswerError, match=f"^http://host:1 did not answer within 0.001 s; .* {FIRST_ANSWER_TIMEOUT}$"
        ):
            first.ask(never)


def test_from_the_first_answer_on_nothing_is_bounded():
    first, here = FirstAnswer("http://host:1", 60_000), threading.current_thread()
    assert first.ask(threading.current_thread) is not here
    assert first.ask(threading.current_thread) is here


def test_what_a_call_raises_is_raised_and_a_connection_is_no_answer():
    first, here = FirstAnswer("http://host:1", 60_000), threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        first.ask(lambda: 1 // 0)
    first.ask(lambda: "connected", lambda _: False)
    assert first.asking(threading).current_thread() is not here
    assert first.asking(threading).current_thread() is here


def test_two_minutes_are_the_default():
    assert first_answer_ms("", {}) == 120_000
    assert first_answer_ms("", {FIRST_ANSWER_TIMEOUT: "5"}) == 5


@for_each("kind, given", [(kind, given) for kind in ("rest", "hive", "glue") for given in ("0", "2s", "-1")])
def test_a_limit_that_is_no_number_is_named_before_anybody_is_asked(kind, given):
    properties = {"type": kind, "uri": "http://127.0.0.1:1", FIRST_ANSWER_TIMEOUT: given}
    with pytest.raises(ConfigError, match=f"catalogs.mine.{FIRST_ANSWER_TIMEOUT}.: is .{given}.; give milliseconds"):
        open_catalog("mine", properties)


def test_hdfs_takes_the_limit_to_tasks():
    storage = pickle.loads(pickle.dumps(HdfsStorage({FIRST_ANSWER_TIMEOUT: "7"})))
    assert storage._clients._first_answer_ms == 7
    with pytest.raises(ConfigError, match=f"{FIRST_ANSWER_TIMEOUT}.: is .x."):
        HdfsStorage({FIRST_ANSWER_TIMEOUT: "x"})
