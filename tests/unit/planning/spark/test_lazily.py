"""What is PySpark's, while it is not imported yet."""

import sys
from types import ModuleType

import pytest
from pyspark import SparkContext

from icekeep.planning.spark.session import is_session, running_context, task_context
from icekeep.planning.spark.workers import is_running_on_cluster


@pytest.mark.parametrize("is_begun", [False, True])
def test_nothing_runs_before_pyspark_is_imported_as_a_whole(monkeypatch: pytest.MonkeyPatch, is_begun: bool) -> None:
    """A session may be started by another thread: a module that is being imported is there, and has not all of its names."""
    for name in ("pyspark", "pyspark.sql"):
        if is_begun:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        else:
            monkeypatch.delitem(sys.modules, name, raising=False)
    assert running_context() is None
    assert task_context() is None
    assert not is_session(object())


def test_a_session_that_another_thread_is_starting_does_not_run_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark names its context before that has a master, which was an error for those who asked."""
    context = SparkContext.__new__(SparkContext)
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    assert running_context() is None
    assert not is_running_on_cluster()
    context.master = "spark://host:7077"
    assert running_context() is None
    context._jsc = object()
    assert running_context() is context
    assert is_running_on_cluster()
