"""Expiration where Spark has the files: the same garbage, plans and counts as on the driver, which tables in memory show."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import ClaimedError
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.delete import lease as claims
from icekeep.maintenance.delete import pending as earlier_runs
from icekeep.maintenance.delete import plan_file as plan_writing
from icekeep.maintenance.delete import reachable as last_look
from icekeep.maintenance.delete import run as deleting
from icekeep.maintenance.delete.plan_file import read_part
from icekeep.maintenance.expire.job import ExpireSnapshotsResult, expire_snapshots, plan_expire_snapshots
from icekeep.maintenance.restore.job import restore
from icekeep.planning.spark.session import Engine
from icekeep.runtime import SYSTEM
from icekeep.spec.manifests.structs import DataFile
from icekeep.tables.refs import create_tag
from icekeep.tables.verbs import append
from kit.lake import Lake, events
from kit.runtime import no_spark
from kit.spark_jobs import Counted


@pytest.fixture
def tasks(in_tasks: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Nothing is few enough for the driver, and a plan has many parts."""
    monkeypatch.setattr(plan_writing, "_PART_ROWS", 5)
    return in_tasks


def filled(lake: Lake, spark: SparkSession) -> Table:
    table = lake.filled(commits=4, files=3)
    create_tag(table, "kept", table.metadata.snapshots[1].snapshot_id)
    compact(lake.load(), spark, options={"rewrite-all": True})
    return append(lake.load(), events(99))


def arguments() -> dict[str, Any]:
    return {"older_than": SYSTEM.now_ms() + 1, "retain_last": 1}


def content(lake: Lake) -> set[Path]:
    return {p for p in lake.content_on_disk() if ".icekeep" not in p.parts}


def test_tasks_find_and_delete_what_the_driver_would(
    lake: Lake, spark_session: SparkSession, request: pytest.FixtureRequest
) -> None:
    table = filled(lake, spark_session)
    told = {**arguments(), "trash": 0}
    expected = plan_expire_snapshots(table, no_spark, **told)
    files, rows = lake.files_on_disk(), lake.rows()
    tasks = request.getfixturevalue("tasks")
    plan = plan_expire_snapshots(table, tasks, **told)
    assert (plan.hash, plan.files_by_kind, plan.refs) == (expected.hash, expected.files_by_kind, expected.refs)
    assert {*plan.files} == {*expected.files}
    result = expire_snapshots(table, tasks, approve=plan.hash, max_concurrent_deletes=2, **told)
    assert result.deleted_data_files_count == 6
    assert {f"file://{p}" for p in files - lake.files_on_disk()} == {*expected.files}
    assert lake.rows() == rows


def test_the_trash_is_filled_and_emptied_by_tasks(lake: Lake, spark_session: SparkSession, tasks: Engine) -> None:
    table = filled(lake, spark_session)
    rows = lake.rows()
    result = expire_snapshots(table, tasks, trash=1, options={"grace": "1s"}, **arguments())
    left_count = result.left_files_count
    assert left_count > 6
    assert due(lake, "not-before-ms", tasks).finished_files_count == left_count
    assert lake.rows() == rows
    assert len([p for p in lake.files_on_disk() if "trash" in p.parts and "files" in p.parts]) == left_count
    assert due(lake, "trash-until-ms", tasks).emptied_trash_files_count == left_count
    assert not [p for p in lake.files_on_disk() if ".icekeep" in p.parts]
    assert lake.rows() == rows


def test_what_a_run_left_is_held_against_what_is_retained_once(
    lake: Lake, spark_session: SparkSession, tasks: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was done three times: for what stays, and on both sides of what lies elsewhere by now."""
    table = filled(lake, spark_session)
    result = expire_snapshots(table, tasks, trash=1, options={"grace": "1s"}, **arguments())
    # Of the files that wait one is in use again.
    [head] = [p for p in lake.files_on_disk() if p.name == "plan.json"]
    part = next(p for p in head.parent.iterdir() if p.suffix == ".jsonl" and '"data file"' in p.read_text())
    [location, *_] = re.findall(r'"location": ?"([^"]+)"', part.read_text())
    reader = ManifestReader(table.storage)
    manifests = [m for s in table.metadata.snapshots for m in reader.manifests(s)]
    entries = [entry for m in manifests for entry in reader.entries(m, table.metadata)]
    back = next(entry.data_file for entry in entries if entry.data_file.file_path == location)
    commit(lake.load(), AppendFiles(files=(back,)))
    counted, real = Counted(tmp_path), earlier_runs.marked_garbage
    monkeypatch.setattr(earlier_runs, "marked_garbage", lambda *told: counted.frame(real(*told)))
    finished = due(lake, "not-before-ms", tasks)
    assert (finished.finished_files_count, finished.kept_again_files_count) == (result.left_files_count - 1, 1)
    assert counted.times == [1]
    assert Path(urlparse(location).path).exists()


def test_tasks_stop_when_the_plan_is_taken_over_and_restore_brings_everything_back(
    lake: Lake, spark_session: SparkSession, tasks: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two rounds of tasks an operator takes back what the first has moved."""
    table = filled(lake, spark_session)
    before, restored = content(lake), []
    monkeypatch.setattr(deleting, "batches_of_parts", lambda parts, *_: [[part] for part in parts])
    look = last_look.TableLook.__call__

    def look_and_restore(self: last_look.TableLook) -> Any:
        if not restored and any("files" in p.parts for p in lake.files_on_disk() if "trash" in p.parts):
            with pytest.raises(ClaimedError):
                restore(lake.load())
            # As a machine that stood still for longer than its claim lasts.
            with monkeypatch.context() as gone:
                gone.setattr(claims, "has_ended", lambda process: True)
                restored.append(restore(lake.load()))
        return look(self)

    monkeypatch.setattr(last_look.TableLook, "__call__", look_and_restore)
    result = expire_snapshots(table, tasks, trash=1, **arguments())
    assert (result.status, "taken over by restore" in result.left_reason) == ("partial", True)
    assert restored[0].restored_snapshots_count > 0
    assert before <= content(lake)


def test_tasks_keep_what_is_adopted_between_two_rounds(
    lake: Lake, spark_session: SparkSession, tasks: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What metadata leads to by now stays."""
    table = filled(lake, spark_session)
    adopted: list[DataFile] = []
    real = deleting.batches_of_parts

    def batches(parts: Any, *told: Any) -> Any:
        for number, some in enumerate(real(parts, *told)):
            if not adopted and number == 0:
                gone = [row["location"] for part in parts for row in read_part(part, table.storage).to_pylist()]
                reader = ManifestReader(table.storage)
                manifests = [m for s in table.metadata.snapshots for m in reader.manifests(s)]
                entries = (entry for m in manifests for entry in reader.entries(m, table.metadata))
                adopted.append(next(entry.data_file for entry in entries if entry.data_file.file_path in gone))
                commit(lake.load(), AppendFiles(files=(adopted[0],)))
            yield some

    monkeypatch.setattr(deleting, "batches_of_parts", batches)
    result = expire_snapshots(table, tasks, trash=0, **arguments())
    assert (result.status, result.left_reason, result.kept_again_files_count) == ("done", "", 1)
    assert Path(urlparse(adopted[0].file_path).path).exists()


def due(lake: Lake, moment: str, spark: Engine) -> ExpireSnapshotsResult:
    """Run the job when a moment of the plan has come: that is set back, and the clocks stay."""
    [head] = [p for p in lake.files_on_disk() if p.name == "plan.json"]
    plan = re.sub(rf'"{moment}": \d+', f'"{moment}": 1', head.read_text())
    head.unlink()
    head.write_text(plan)
    return expire_snapshots(lake.load(), spark, trash=1)
