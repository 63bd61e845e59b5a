"""The operators of the jobs in a DAG of somebody's own, by `dag.test()` of a real Airflow, on a real table with real deletion."""

import json
import os
from pathlib import Path

import pytest

from icekeep.tables.verbs import append, create_table
from kit.in_airflow import SAID, run
from kit.lake import SCHEMA, events
from kit.shell import BIN, Operator

pytestmark = pytest.mark.deep

DAG = """
import os

from airflow.sdk import DAG

from icekeep.airflow import (
    Installation, CheckOperator, CompactOperator, ExpireSnapshotsOperator, RemoveOrphanFilesOperator, RewriteManifestsOperator,
    RewritePositionDeletesOperator, TableDueSensor,
)

PLACE = {"python": os.environ["ICEKEEP_PYTHON"], "home": os.environ["ICEKEEP_HOME"]}

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

with DAG("connected", schedule=None) as connected:
    shown = {"docs_url": "https://docs/", "report_url": "https://pages/report.html"}
    here = Installation(conf=None, **PLACE, **shown)
    common = {"table": "local.db.t", "icekeep_conn_id": "my_lake", "installation": here}
    CheckOperator(task_id="missing", retries=0, **{**common, "table": "local.db.none"})
    CheckOperator(task_id="worker", **common)
    CheckOperator(task_id="submitted", spark=True, **common)
    CheckOperator(task_id="cluster", spark=True, deploy_mode="cluster", **common)

with DAG("waits", schedule=None) as waits:
    def due(task_id, conf, python=PLACE["python"], **given):
        place = Installation(conf=os.environ[conf], **{**PLACE, "python": python})
        given = {"table": "local.db.{{ 'waits' }}", "policy": "big", "icekeep_conn_id": "my_lake", "retries": 0, **given}
        return TableDueSensor(task_id=task_id, installation=place, **given)

    due("now", "DUE_CONF", timeout=0)
    due("later", "LATER_CONF", os.environ["CHANGES_CONF"], deferrable=True, poke_interval=0)
    due("never", "NEVER_CONF", timeout=0, poke_interval=0, soft_fail=True)
    due("missing", "DUE_CONF", table="local.db.none", deferrable=True)

with DAG("wrong", schedule=None) as wrong:
    ExpireSnapshotsOperator(task_id="expire", table="local.db.t", older_than="{{ 'yesterday' }}", retries=3)
"""
FILES_COUNT = 6
POLICY = """
policies:
  - {{name: big, schedule: null, match: local.db.waits, jobs: {{compact: {{when: {{small_files_over: {limit}}}}}}}}}
"""
CHANGES = """#!{python}
import os, sys
from pathlib import Path

looks = Path({looks!r})
looks.touch()
assert looks.stat().st_size < 20
if looks.stat().st_size:
    words = [word for word in sys.argv if word.startswith("--config=")]
    own = Path(words[0].partition("=")[2])
    own.write_text(own.read_text().replace("over: 100", "over: 1"))
looks.write_text(looks.read_text() + "look ")
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""
"""A Python at whose second look the policy wants less."""
LOOKS = "looks"
SECRET = "s3cr3t-of-the-lake"


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
    extra = {**operator.lake.properties, "s3.secret-access-key": SECRET}
    connection = json.dumps({"conn_type": "icekeep", "schema": "local", "extra": extra})
    waits = create_table(operator.lake.catalog, ("db", "waits"), SCHEMA)
    for number in range(FILES_COUNT):
        waits = append(waits, [events(number)])
    confs = {"DUE_CONF": 1, "LATER_CONF": 100, "NEVER_CONF": 100}
    for name, limit in confs.items():
        (home / name).write_text(POLICY.format(limit=limit))
    changes = home / "changes"
    changes.write_text(CHANGES.format(python=str(BIN / "python"), looks=str(home / LOOKS)))
    changes.chmod(0o700)
    places = {**{name: str(home / name) for name in confs}, "CHANGES_CONF": str(changes)}
    names = ("own", "wrong", "connected", "waits")
    done = run(home, operator.conf, [[name, None] for name in names], DAG, AIRFLOW_CONN_MY_LAKE=connection, **places)
    logs = (home / SAID).read_text() + (home / LOOKS).read_text()
    return dict(zip(names, done, strict=True)), operator.lake, directory, before, logs


def left(runs, task):
    return runs["own"]["tasks"][f"{task}[-1]"]["left"]


def test_each_job_has_an_operator_and_does_its_work_on_the_table_that_a_template_names(ran):
    runs, lake, directory, before, _ = ran
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
    runs = ran[0]
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


def test_a_connection_is_a_catalog_for_the_worker_and_for_spark_submit(ran):
    tasks = ran[0]["connected"]["tasks"]
    states = {name: (task["state"], (task["left"] or {}).get("status")) for name, task in tasks.items()}
    assert states == {
        "worker[-1]": ("success", "sound"),
        "submitted[-1]": ("success", "sound"),
        "cluster[-1]": ("failed", None),
        "missing[-1]": ("failed", None),
    }


def test_no_secret_of_a_connection_is_shown(ran):
    assert SECRET not in json.dumps(ran[0])
    assert "submitted" in ran[4]
    assert SECRET not in ran[4]


def test_a_task_links_to_the_report_and_a_failed_one_to_the_runbook_of_its_error(ran):
    tasks = ran[0]["connected"]["tasks"]
    report = "https://pages/report.html"
    assert tasks["worker[-1]"]["links"] == {"Runbook": "", "Report": report, "Spark": ""}
    assert tasks["missing[-1]"]["links"] == {
        "Runbook": "https://docs/runbooks/not-found.html",
        "Report": report,
        "Spark": "",
    }


def test_a_sensor_waits_until_the_table_is_due_in_a_worker_or_in_a_triggerer(ran):
    tasks = ran[0]["waits"]["tasks"]
    assert {name: (task["state"], task["left"]) for name, task in tasks.items()} == {
        "now[-1]": ("success", ["compact"]),
        "later[-1]": ("success", ["compact"]),
        "never[-1]": ("skipped", None),
        "missing[-1]": ("failed", None),
    }
    assert ran[4].endswith("look look ")
    assert ran[4].count("running trigger in line") == 1
