"""A run and its commits: what is undone, and what waits to be cleaned up by others."""

from typing import Any

import pytest

from icekeep.commit.changes.files import AppendFiles
from icekeep.errors import ConflictError, OutcomeUnknownError, SafetyError, UnavailableError
from icekeep.events import SILENT
from icekeep.maintenance.rewrite.alive import LOOK_AFTER_MS, living_runs
from icekeep.maintenance.rewrite.run import RewriteRun, undoing
from kit.memory_catalog import IS_UNKNOWN, MemoryCatalog
from kit.tables import EVENTS, add, data_file, live, memory_table


class Refused:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def apply(self, base: Any, attempt: Any) -> Any:
        raise self.error


@pytest.fixture
def table() -> Any:
    return add(memory_table(MemoryCatalog(), commit__retry__num_retries="1"), "a")


def committed(table: Any, change: Any, added: list[str], undone: list[str]) -> None:
    with RewriteRun(table, "compact", "run", SILENT) as run:
        assert living_runs(table, table.runtime) == {"run"}
        run.commit(change, added, lambda: undone.append("files"))


def test_what_landed_is_not_undone_and_the_run_is_over(table: Any) -> None:
    undone: list[str] = []
    committed(table, AppendFiles(files=(data_file("b"),)), [], undone)
    assert (undone, live(table.catalog.load(EVENTS))) == ([], {"a": 1, "b": 1})
    assert living_runs(table, table.runtime) == set()


@pytest.mark.parametrize("error", [ConflictError("gone"), SafetyError("another table"), UnavailableError("away")])
def test_what_did_not_land_is_undone_once(table: Any, error: Exception) -> None:
    undone: list[str] = []
    with pytest.raises(type(error)):
        committed(table, Refused(error), [], undone)
    assert undone == ["files"]


def test_what_may_have_landed_is_not_undone_and_the_run_counts_as_alive(table: Any) -> None:
    undone: list[str] = []
    table.catalog.follow(*[IS_UNKNOWN] * 50)
    with pytest.raises(OutcomeUnknownError):
        committed(table, AppendFiles(files=(data_file("b"),)), [], undone)
    assert undone == []
    assert living_runs(table, table.runtime) == {"run"}


def test_an_old_run_whose_files_somebody_took_commits_nothing(table: Any) -> None:
    undone: list[str] = []
    with RewriteRun(table, "compact", "run", SILENT) as run:
        table.catalog.runtime.pass_ms(LOOK_AFTER_MS)
        with pytest.raises(SafetyError, match="gone before their commit"):
            run.commit(AppendFiles(files=(data_file("b"),)), ["memory://lake/b"], lambda: undone.append("files"))
    assert (undone, live(table.catalog.load(EVENTS))) == (["files"], {"a": 1})


@pytest.mark.parametrize("error", [None, ValueError("a bug"), KeyboardInterrupt()])
def test_a_block_that_fails_is_undone_whatever_the_error(error: BaseException | None) -> None:
    undone: list[str] = []

    def act() -> None:
        with undoing(lambda: undone.append("files")):
            if error is not None:
                raise error

    if error is None:
        act()
    else:
        with pytest.raises(type(error)):
            act()
    assert undone == ([] if error is None else ["files"])
