"""The operators of the jobs in a DAG of somebody's own, by `dag.test()` of a real Airflow, on a real table with real deletion."""

import os
from pathlib import Path

import pytest

from icekeep.tables.append import append
from icekeep.tables.create import create_table
from kit.in_airflow import run
from kit.lake import SCHEMA, events
from kit.shell import Operator

pytestmark = pytest.mark.deep

DAG = """
from airflow.sdk import DAG

from icekeep.airflow import (
    CheckOperator, CompactOperator, ExpireSnapshotsOperator, RemoveOrphanFilesOperator, RewriteManifestsOperator,
    RewritePositionDeletesOperator,
)

with DAG("own", schedule=None, params={"table": "local.db.t", "age": "0d", "files": 2}) as dag:
    table = {"table": "{{ params.table }}", "retries": 0}
    (
        CompactOperator(
            task_id="compact", where="id >= 0", options={"min-input-files": "{{ params.files }}"}, alias="own", spark=True,
            snapshot_properties={"ticket": "{{ run_id }}"}, **table,
        )
        >> RewritePositionDeletesOperator(task_id="deletes", **table)
        >> RewriteManifestsOperator(task_id="manifests", **table)
        >> ExpireSnapshotsOperator(task_id="expire", older_than="{{ params.age }}", retain_last=1, **table)
        >> RemoveOrphanFilesOperator(task_id="plan", older_than="3d", dry_run=True, **table)
        >> RemoveOrphanFilesOperator(task_id="orphans", older_than="3d", **table)
        >> CheckOperator(task_id="check", deep=True, **table)
    )

with DAG("wrong", schedule=None) as wrong:
    ExpireSnapshotsOperator(task_id="expire", table="local.db.t", older_than="{{ 'yesterday' }}", retries=3)
"""
FILES_COUNT = 6


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    home = tmp_path_factory.mktemp("airflow_operators")
    operator = Operator(home / "lake")
    table = create_table(operator.lake.catalog, ("db", "t"), SCHEMA)
    for number in range(FILES_COUNT):
        table = append(table, [events(number)])
    directory = Path(table.metadata.location.removeprefix("file://"))
    orphan = directory / "data" / "orphan.parquet"
    orphan.write_bytes(b"nobody's")
    os.utime(orphan, (0, 0))
    before = {path.name for path in (directory / "data").rglob("*.parquet")}
    done = run(home, operator.conf, [["own", None], ["wrong", None]], DAG)
    return dict(zip(("own", "wrong"), done, strict=True)), operator.lake, directory, before


def left(runs, task):
    return runs["own"]["tasks"][f"{task}[-1]"]["left"]


def test_each_job_has_an_operator_and_does_its_work_on_the_table_that_a_template_names(ran):
    runs, lake, directory, before = ran
    tasks = runs["own"]["tasks"]
    assert {name: task["state"] for name, task in tasks.items()} == dict.fromkeys(tasks, "success")
    assert {left(runs, task)["table"] for task in ("compact", "expire", "check")} == {"local.db.t"}
    assert left(runs, "compact")["result"]["rewritten_data_files_count"] == FILES_COUNT
    metadata = lake.catalog.load(("db", "t")).metadata
    assert len(metadata.snapshots) == 1
    files = {path.name for path in (directory / "data").rglob("*.parquet")}
    assert len(before) == FILES_COUNT + 1
    assert len(files) == 1
    assert not files & before


def test_a_dry_run_deletes_nothing_and_what_follows_does(ran):
    runs, _, _, _ = ran
    assert (left(runs, "plan")["status"], left(runs, "plan")["dry_run"]) == ("planned", True)
    assert left(runs, "orphans")["status"] == "done"


def test_a_commit_is_an_event_under_the_alias(ran):
    [[uri, task, extra]] = ran[0]["own"]["events"]
    assert (uri, task, extra["job"]) == ("iceberg://local/db/t", "compact", "compact")


def test_a_value_that_a_template_made_wrong_begins_no_job_and_is_not_tried_again(ran):
    done = ran[0]["wrong"]
    assert (done["state"], done["tasks"]["expire[-1]"]["state"], done["tasks"]["expire[-1]"]["left"]) == (
        "failed",
        "failed",
        None,
    )
