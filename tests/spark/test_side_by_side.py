"""Groups that are done side by side, and a caller who stops early."""

import threading
from collections.abc import Callable, Generator
from concurrent.futures import wait as wait_for
from contextlib import closing
from unittest import mock

from pyspark.sql import SparkSession

from icekeep.maintenance.groups import side_by_side as module
from icekeep.maintenance.groups.side_by_side import side_by_side


def beside(
    groups: list[int],
    work: Callable[[int], int],
    spark: SparkSession,
    undo: Callable[[int], object],
    *,
    concurrency: int,
    stop: Callable[[], object] = lambda: None,
) -> Generator[int, None, None]:
    return side_by_side(groups, work, spark, tag="tagged", concurrency=concurrency, stop=stop, undo=undo)


def test_each_group_comes_back_once(spark_session: SparkSession) -> None:
    undone: list[int] = []
    done = beside([1, 2, 3], lambda n: 10 * n, spark_session, undone.append, concurrency=2)
    assert sorted(done) == [10, 20, 30]
    assert undone == []


def test_what_was_done_and_not_seen_is_undone(spark_session: SparkSession) -> None:
    """Also a group that was finished at the same moment as the one that was seen last."""
    undone: list[int] = []

    def all_of_them(futures, return_when):
        return wait_for(futures)

    with mock.patch.object(module, "wait", all_of_them):
        groups = beside([1, 2, 3], lambda n: n, spark_session, undone.append, concurrency=3)
        with closing(groups) as done:
            seen = next(done)
    assert sorted([seen, *undone]) == [1, 2, 3]


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
