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


def test_silent_server_is_abandoned_at_limit():
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


def test_call_error_is_raised_and_connection_is_not_an_answer():
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
def test_invalid_limit_is_reported_before_any_request(kind, given):
    properties = {"type": kind, "uri": "http://127.0.0.1:1", FIRST_ANSWER_TIMEOUT: given}
    with pytest.raises(ConfigError, match=f"catalogs.mine.{FIRST_ANSWER_TIMEOUT}.: is .{given}.; give milliseconds"):
        open_catalog("mine", properties)


def test_hdfs_takes_the_limit_to_tasks():
    storage = pickle.loads(pickle.dumps(HdfsStorage({FIRST_ANSWER_TIMEOUT: "7"})))
    assert storage._clients._first_answer_ms == 7
    with pytest.raises(ConfigError, match=f"{FIRST_ANSWER_TIMEOUT}.: is .x."):
        HdfsStorage({FIRST_ANSWER_TIMEOUT: "x"})
