"""What fails after a commit has landed makes the run `partial`, and a figure that is only told fails nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from icekeep.errors import IcekeepError, JobFailedError, UnavailableError
from icekeep.events import SnapshotCommitted
from icekeep.maintenance.compact import job as compaction
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes import job as position_deletes
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.rewrite.run import RewriteRun
from kit.deletes import data_files, delete_positions
from kit.lake import Lake
from kit.numbered_rows import deletes_of, gone, ids_of, made
from kit.runtime import no_spark
from unit.maintenance.compact.test_beside_writers import Others

PARTIAL = {"partial-progress.enabled": "true", "partial-progress.max-commits": "3"}


def failing_from(number: int, function: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """The function, which fails from its `number`th call on."""
    calls: list[None] = []

    def wrapped(*arguments: Any, **named: Any) -> Any:
        calls.append(None)
        if len(calls) >= number:
            raise error
        return function(*arguments, **named)

    return wrapped


def test_a_compaction_that_has_committed_and_cannot_plan_the_rest_anew_is_partial(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.filled(commits=6, files=2)
    model = lake.rows()
    first = [file for file in data_files(table) if "at_month=2013-01" in file.file_path]

    def another_run() -> None:
        others.off()
        compact(lake.load(), no_spark, where="at < '2013-02-01T00:00:00+00:00'", options={"rewrite-all": "true"})
        again = failing_from(1, compaction.plan, JobFailedError("a manifest is broken; the table is broken"))
        monkeypatch.setattr(compaction, "plan", again)

    others = Others(another_run)
    result = compact(table, no_spark, options={"rewrite-all": "true"}, listener=others)
    assert (result.status, result.commits_count, result.failed_data_files_count) == ("partial", 1, len(first))
    assert result.rewritten_data_files_count == len(data_files(table)) - len(first)
    assert "a manifest is broken" in others.warnings[-1]
    assert lake.rows() == model


def test_position_deletes_that_fail_after_the_conversion_make_the_run_partial(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = gone(made(lake), 1, 6)
    failing = failing_from(1, position_deletes.plan, UnavailableError("the store is away"))
    monkeypatch.setattr(position_deletes, "plan", failing)
    others = Others(lambda: None)
    result = rewrite_position_deletes(table, no_spark, convert_equality_deletes=True, listener=others)
    assert result.status == "partial"
    assert result.conversion is not None
    assert result.conversion.converted_equality_delete_files_count == 1
    assert others.warnings == ["equality deletes are converted, position deletes were not rewritten: the store is away"]
    after = lake.catalog.load(table.identifier)
    assert (deletes_of(after), ids_of(after)) == ([], [0, 2, 3, 4, 5, 7, 8, 9])


def test_position_deletes_that_fail_and_nothing_was_converted_fail_the_run(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(lake)
    monkeypatch.setattr(position_deletes, "plan", failing_from(1, position_deletes.plan, UnavailableError("away")))
    with pytest.raises(UnavailableError):
        rewrite_position_deletes(table, no_spark, convert_equality_deletes=True)


@pytest.mark.parametrize("error", [IcekeepError("refused"), ValueError("broken")])
def test_a_batch_of_position_deletes_that_fails_after_one_landed_makes_the_run_partial(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    table = lake.filled(commits=3)
    for number in range(6):
        for file in data_files(table):
            table = delete_positions(table, [(file.file_path, number)])
    before = lake.rows()
    monkeypatch.setattr(RewriteRun, "send", failing_from(2, RewriteRun.send, error))
    heard: list[Any] = []

    class Ear:
        def on(self, event: Any) -> None:
            heard.append(event)

    options = PARTIAL | {"partial-progress.max-failed-commits": "0", "rewrite-all": "true"}
    result = rewrite_position_deletes(table, no_spark, options=options, listener=Ear())
    assert (result.status, result.commits_count) == ("partial", 1)
    planned_count = 6 * len(data_files(table))
    assert result.rewritten_delete_files_count + result.failed_delete_files_count == planned_count
    assert sum(isinstance(event, SnapshotCommitted) for event in heard) == 1
    assert lake.rows() == before
