"""A restore of many files: Spark tasks look at them and move them, and the driver holds no names."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.errors import ClaimedError, SafetyError
from icekeep.events import StepAdvanced
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.delete import lease as claims
from icekeep.maintenance.delete import plan_file as plan_writing
from icekeep.maintenance.delete.plan_file import chosen_plan, read_part, trash_location
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.restore import files as restored_files
from icekeep.maintenance.restore.job import restore
from icekeep.planning.spark.session import Engine
from icekeep.planning.spark.tasks import finished_tasks
from icekeep.runtime import SYSTEM
from kit.changes import Recorder
from kit.lake import Lake


@pytest.fixture
def tasks(in_tasks: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Nothing is few enough for the driver, and a plan has many parts."""
    monkeypatch.setattr(plan_writing, "_PART_ROWS", 5)
    return in_tasks


def content(lake: Lake) -> set[Path]:
    return {p for p in lake.content_on_disk() if ".icekeep" not in p.parts}


def in_the_trash(lake: Lake, spark: Any) -> tuple[Table, set[Path]]:
    compact(lake.filled(commits=3, files=2), spark, options={"rewrite-all": True})
    before = content(lake)
    expire_snapshots(lake.load(), spark, trash=1, older_than=SYSTEM.now_ms() + 1, retain_last=1)
    assert content(lake) < before
    return lake.load(), before


def test_tasks_bring_everything_back(lake: Lake, tasks: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    table, before = in_the_trash(lake, tasks)
    plan, heard, shared_out = chosen_plan(table, None), Recorder(), []
    assert len(plan.parts) > 1

    def noted(session: Any, payloads: Any, *told: Any, step: str) -> Any:
        shared_out.append((step, len(payloads)))
        return finished_tasks(session, payloads, *told, step=step)

    monkeypatch.setattr(restored_files, "finished_tasks", noted)
    result = restore(table, spark=tasks, listener=heard)
    steps = ("looking at what is to come back", restored_files.STEP, restored_files.STEP)
    assert shared_out == [(step, len(plan.parts)) for step in steps]
    told = [e.done for e in heard.events if isinstance(e, StepAdvanced) and e.step == restored_files.STEP]
    assert sum(told) == plan.files_count
    assert (result.status, result.restored_files_count) == ("done", plan.files_count)
    assert result.restored_snapshots_count == len(plan.snapshot_ids)
    assert before <= content(lake)
    assert not [p for p in lake.files_on_disk() if ".icekeep" in p.parts]


def test_tasks_see_that_the_path_of_a_file_is_in_use_again_before_one_is_moved(lake: Lake, tasks: Engine) -> None:
    table, _ = in_the_trash(lake, tasks)
    plan = chosen_plan(table, None)
    places = [place for part in plan.parts for place in read_part(part, table.storage)["location"].to_pylist()]
    table.storage.create(places[-1], b"another file")
    here = content(lake)
    with pytest.raises(SafetyError, match=r"is in use again by another file") as raised:
        restore(table, spark=tasks)
    assert raised.value.facts["locations"] == [places[-1]]
    table.storage.delete_many([places[-1], trash_location(plan, places[0])])
    with pytest.raises(SafetyError, match="1 file is neither in its trash nor in their places"):
        restore(table, spark=tasks)
    assert content(lake) == here - {Path(places[-1].removeprefix("file://"))}


def test_tasks_move_nothing_more_once_another_run_has_the_plan(
    lake: Lake, tasks: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = in_the_trash(lake, tasks)
    here, whole = content(lake), restored_files.move_back

    def taken_over(work: Any, *others: Any) -> Any:
        monkeypatch.setattr(claims, "has_ended", lambda process: True)
        claims.take_lease(work.plan.directory, "expire_snapshots", work.storage, SYSTEM, SYSTEM.now_ms())
        return whole(work, *others)

    monkeypatch.setattr("icekeep.maintenance.restore.job.move_back", taken_over)
    with pytest.raises(ClaimedError):
        restore(table, spark=tasks)
    assert content(lake) == here


def test_tasks_tell_what_the_snapshots_need_that_later_runs_have_removed(
    lake: Lake, spark_session: SparkSession, tasks: Engine
) -> None:
    compact(lake.filled(commits=3, files=1), spark_session, options={"rewrite-all": True})
    table = lake.load()
    before, (first, *_) = content(lake), table.metadata.snapshots_by_id
    expire_snapshots(table, tasks, trash=1, snapshot_ids=[first])
    older = chosen_plan(lake.load(), None)
    expire_snapshots(lake.load(), tasks, trash=1, older_than=SYSTEM.now_ms() + 1, retain_last=1)
    files = lake.files_on_disk()
    with pytest.raises(SafetyError, match=r"need \d+ files? that later runs have removed"):
        restore(lake.load(), run=older.run, spark=tasks)
    assert {p for p in lake.files_on_disk() ^ files if "claims" not in p.parts} == set()
    assert restore(lake.load(), spark=tasks).status == "done"
    assert restore(lake.load(), run=older.run, spark=tasks).status == "done"
    assert before <= content(lake)
