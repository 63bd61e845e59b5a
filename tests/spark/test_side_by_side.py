"""Groups that are done side by side, and a caller who stops early."""

import threading
from collections.abc import Callable, Generator
from contextlib import closing
from unittest import mock

import pytest
from pyspark.sql import SparkSession

from icekeep.maintenance.rewrite import groups as module
from icekeep.maintenance.rewrite.groups import side_by_side


def beside(
    groups: list[int],
    work: Callable[[int], int],
    spark: SparkSession,
    undo: Callable[[int], object],
    *,
    concurrency: int,
    stop: Callable[[], object] = lambda: None,
) -> Generator[int, None, None]:
    def one(group: int) -> Generator[int, None, None]:
        yield work(group)

    return side_by_side(groups, one, spark, tag="tagged", concurrency=concurrency, stop=stop, undo=undo)


def test_each_group_comes_back_once(spark_session: SparkSession) -> None:
    undone: list[int] = []
    done = beside([1, 2, 3], lambda n: 10 * n, spark_session, undone.append, concurrency=2)
    assert sorted(done) == [10, 20, 30]
    assert undone == []


def test_what_was_done_and_not_seen_is_undone(spark_session: SparkSession) -> None:
    """Also a group that was finished at the same moment as the one that was seen last."""
    undone: list[int] = []
    all_done = threading.Barrier(3)

    def work(number: int) -> int:
        all_done.wait()
        return number

    with closing(beside([1, 2, 3], work, spark_session, undone.append, concurrency=3)) as done:
        seen = next(done)
    assert sorted([seen, *undone]) == [1, 2, 3]


def test_results_of_one_item_come_one_by_one_and_end_where_the_caller_stops(spark_session: SparkSession) -> None:
    undone: list[int] = []
    may_go_on = threading.Event()
    ended = []

    def work(first: int) -> Generator[int, None, None]:
        try:
            for number in range(first, first + 100):
                yield number
                may_go_on.wait()
        finally:
            ended.append(first)

    def stop() -> None:
        may_go_on.set()

    items = side_by_side([0, 100], work, spark_session, tag="tagged", concurrency=2, stop=stop, undo=undone.append)
    with closing(items) as done:
        seen = next(done)
    assert sorted(ended) == [0, 100]
    assert len(undone) < 5
    assert {seen % 100, *(one % 100 for one in undone)} <= {0, 1, 2}


def test_an_error_that_is_no_result_is_raised(spark_session: SparkSession) -> None:
    undone: list[int] = []
    with pytest.raises(ZeroDivisionError):
        list(beside([1, 0], lambda n: 1 // n, spark_session, undone.append, concurrency=1))


def test_groups_that_have_not_begun_never_begin_once_the_caller_stops(spark_session: SparkSession) -> None:
    begun, may_end = [], threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        if number > 1:
            may_end.wait()
        return number

    def stop(_: str) -> None:
        may_end.set()

    undone: list[int] = []
    stops = mock.Mock()
    with (
        mock.patch.object(type(spark_session.sparkContext), "cancelJobsWithTag", lambda self, tag: stop(tag)),
        closing(beside([1, 2, 3, 4], work, spark_session, undone.append, concurrency=1, stop=stops)) as done,
    ):
        assert next(done) == 1
    stops.assert_called_once_with()
    assert begun in ([1], [1, 2])
    assert undone == begun[1:]


def test_a_thread_that_cannot_begin_its_work_ends_the_run(
    spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks the JVM first, which may be gone: the run must not wait for ever, with a heart that beats."""

    def cannot_begin(*_: object) -> Callable[[int], None]:
        def begin(_: int) -> None:
            raise OSError("no JVM")

        return begin

    monkeypatch.setattr(module, "inherited", cannot_begin)
    with pytest.raises(OSError, match="no JVM"):
        list(beside([1, 2], lambda n: n, spark_session, list[int]().append, concurrency=1))
