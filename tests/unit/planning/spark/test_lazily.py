"""What is PySpark's, while it is not imported yet."""

import sys
from types import ModuleType

import pytest

from icekeep.planning.spark.lazily import active_session, is_session, running_context, task_context


@pytest.mark.parametrize("is_begun", [False, True])
def test_nothing_runs_before_pyspark_is_imported_as_a_whole(monkeypatch: pytest.MonkeyPatch, is_begun: bool) -> None:
    """A session may be started by another thread: a module that is being imported is there, and has not all of its names."""
    for name in ("pyspark", "pyspark.sql"):
        if is_begun:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        else:
            monkeypatch.delitem(sys.modules, name, raising=False)
    assert active_session() is None
    assert running_context() is None
    assert task_context() is None
    assert not is_session(object())
