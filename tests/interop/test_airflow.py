"""Our DAGs in a real Airflow: how they load, and runs of them by `dag.test()`, by spark-submit and by the worker."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from icekeep.errors import UsageError
from icekeep.operations.arguments import parse_command
from icekeep.policies.resolution import parse_schedule
from icekeep.tables.verbs import append, create_table
from kit.in_airflow import SAID, look, run, takes_schedules
from kit.lake import SCHEMA, events
from kit.shell import BIN, Operator

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What a real Airflow sees of our DAGs, and what becomes of a task for each exit status of `spark-submit`."""
    home = tmp_path_factory.mktemp("airflow")
    (home / "spark-submit").write_text("#!/bin/sh\nexit $STATUS\n")
    (home / "spark-submit").chmod(0o755)
    return look(home, STATUSES="0,1,2,3,4,5,75,137,143")


def test_the_dags_load_without_an_error(seen):
    assert seen["import_errors"] == {}
    assert list(seen["dags"]) == ["icekeep_by_hand", "icekeep_nightly"]


WRONG = """
policies:
  - {name: careful, schedule: "0 25 * * *", match: local.**, jobs: {compact: }}
  - {name: night, schedule: "@daily", tables: [local.db.t], jobs: {compact: , check: }}
"""


def test_wrong_schedule_leaves_dags_of_other_policies(tmp_path):
    """Airflow takes all DAGs of a file for stale that has an import error."""
    conf, home = tmp_path / "wrong.yaml", tmp_path / "home"
    conf.write_text(WRONG)
    home.mkdir()
    found = look(home, ICEKEEP_CONFIG=str(conf), STATUSES="", FAILS="icekeep_careful")
    assert found["import_errors"] == {}
    careful, night = found["dags"]["icekeep_careful"], found["dags"]["icekeep_night"]
    assert (careful["cron"], careful["is_paused"], list(careful["tasks"])) == (None, True, ["schedule"])
    kind, line = found["failure"]
    assert kind == "AirflowFailException"
    assert line.startswith("configuration key 'policies[0].schedule': '0 25 * * *' is not a cron schedule")
    assert line.endswith(f"({conf}, line 3)")
    # What the wrong policy decides of is left to no other.
    assert (night["cron"], list(night["tasks"])) == ("@daily", ["outcome", "local.db.t.check"])


def test_loading_the_dags_loads_no_spark(seen):
    assert seen["spark"] == []


def test_airflow_knows_the_provider_and_its_assets(seen):
    assert seen["provider"] == {
        "name": "icekeep",
        "assets": ["iceberg://prod/db/t"],
        "wrong": "ValueError",
        "links": [f"icekeep.airflow.links.{name}Link" for name in ("Report", "Runbook", "Spark")],
        "connection": ["icekeep.airflow.connections.IcekeepHook", "icekeep_conn_id"],
    }


def test_the_dag_is_as_the_policy_says(seen):
    dag = seen["dags"]["icekeep_nightly"]
    assert (dag["max_active_runs"], dag["catchup"], dag["cron"]) == (1, False, "0 2 * * *")
    tasks = dict(dag["tasks"])
    outcome = tasks.pop("outcome")
    assert {name: (task["after"], task["rule"]) for name, task in tasks.items()} == {
        "local.sales.orders.compact": ([], "all_success"),
        "local.sales.orders.rewrite_manifests": (["local.sales.orders.compact"], "all_done"),
        "local.sales.orders.expire_snapshots": (["local.sales.orders.rewrite_manifests"], "all_done"),
    }
    assert {task["retries"] for task in tasks.values()} == {2}
    assert (outcome["after"], outcome["rule"]) == (["local.sales.orders.expire_snapshots"], "all_done")


def test_the_jobs_understand_what_the_tasks_tell_them(seen):
    calls = [call for task in seen["dags"]["icekeep_nightly"]["tasks"].values() for call in task["calls"]]
    assert len(calls) == 3
    for job, table, arguments in calls:
        command = parse_command([f"--table={table}", *arguments], job, 0)
        assert command.table == "local.sales.orders"


def test_airflow_retries_only_what_may_pass(seen):
    assert seen["outcomes"] == {
        "0": None,
        "1": "AirflowException",
        "2": "AirflowFailException",
        "3": "AirflowException",
        "4": "AirflowFailException",
        "5": "AirflowFailException",
        "75": "AirflowException",
        "137": "AirflowException",
        "143": "AirflowException",
    }


SCHEDULES = [
    *(
        "0 2 * * *",
        "*/5 0,12 1-7 * 0",
        "0 2 * * MON-FRI",
        "0 2 * * 7",
        "0 2 * * 1#2",
        "0 2 L * *",
        "0 0 29 2 *",
        "0  2 * * *",
    ),
    *("@once", "@continuous", "@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly"),
    *("0 25 * * *", "99 99 * * *", "0 2 * *", "*/0 * * * *", "H 2 * * *", "@sometimes", "@reboot", "0 2 * * fry", "x"),
]


def test_a_schedule_is_taken_where_airflow_takes_it(tmp_path):
    def is_taken(text):
        try:
            return bool(parse_schedule(text))
        except UsageError:
            return False

    taken = takes_schedules(tmp_path, SCHEDULES)
    assert taken == [is_taken(text) for text in SCHEDULES]
    assert {*taken} == {True, False}


POLICIES = """
policies:
  - {name: listed, schedule: "@daily", tables: [local.db.a], jobs: {compact: }, retries: 0}
  - name: found
    schedule: "@daily"
    match: local.db.*
    except: local.db.a
    submit_over: 50000
    retries: 0
    jobs:
      compact: {when: {small_files_over: 4}}
      expire_snapshots: {older_than: 0d}
tables:
  local.db.large: {jobs: {compact: {where: no_such_column = 1}}}
"""
FILES = {"a": 5, "calm": 1, "large": 30, "small": 6}
BY_HAND = {
    "table": "local.db.calm",
    "job": "expire_snapshots",
    "arguments": ["--older-than=0d"],
    "dry_run": True,
    "run_by": "worker",
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Runs of three DAGs on a lake of four tables, and the lake; of one table the compaction cannot work."""
    home = tmp_path_factory.mktemp("airflow_runs")
    operator = Operator(home / "lake")
    for name, files in FILES.items():
        table = create_table(operator.lake.catalog, ("db", name), SCHEMA)
        for number in range(files):
            table = append(table, [events(number)])
    operator.conf.write_text(operator.conf.read_text() + POLICIES)
    runs = [["icekeep_listed", None], ["icekeep_found", None], ["icekeep_by_hand", BY_HAND]]
    told = run(home, operator.conf, runs)
    return dict(zip(("listed", "found", "by_hand"), told, strict=True)), operator.lake


def loaded(lake, name):
    return lake.catalog.load(("db", name)).metadata


def test_a_listed_table_is_maintained_by_spark_submit(ran):
    (runs, lake) = ran
    done = runs["listed"]
    assert (done["state"], {task["state"] for task in done["tasks"].values()}) == ("success", {"success"})
    left = done["tasks"]["local.db.a.compact[-1]"]["left"]
    assert (left["status"], left["result"]["rewritten_data_files_count"]) == ("done", 5)
    head = str(loaded(lake, "a").current_snapshot_id)
    assert [(uri, task, extra["snapshot_id_after"]) for uri, task, extra in done["events"]] == [
        ("iceberg://local/db/a", "local.db.a.compact", head),
    ]


def test_each_due_table_is_a_task_group(ran):
    (runs, lake) = ran
    tasks = runs["found"]["tasks"]
    names = {task["name"]: index for index, task in tasks.items() if index.startswith("tables.compact[")}
    assert names.keys() == {"local.db.large", "local.db.small", "local.db.calm"}
    states = {
        name: [tasks[index.replace("compact", job)]["state"] for job in ("compact", "expire_snapshots")]
        for name, index in names.items()
    }
    assert states == {
        "local.db.calm": ["skipped", "success"],
        "local.db.large": ["failed", "success"],
        "local.db.small": ["success", "success"],
    }
    assert (len(loaded(lake, "small").snapshots), len(loaded(lake, "large").snapshots)) == (1, 1)


def test_a_run_fails_where_one_task_has(ran):
    done = ran[0]["found"]
    assert (done["state"], done["tasks"]["outcome[-1]"]["state"]) == ("failed", "failed")
    assert Counter(task["state"] for task in done["tasks"].values())["failed"] == 2


def test_large_tables_are_submitted_and_small_ones_are_not(ran):
    [units] = [task["left"] for task in ran[0]["found"]["tasks"].values() if isinstance(task["left"], list)]
    submitted = {call["table"]: call["submit"] for unit in units for call in unit["calls"] if call["job"] == "compact"}
    assert submitted == {"local.db.large": True, "local.db.small": False}


def test_a_job_by_hand_shows_its_plan(ran):
    (runs, lake) = ran
    done = runs["by_hand"]
    left = done["tasks"]["job[-1]"]["left"]
    assert (done["state"], left["status"], left["dry_run"]) == ("success", "planned", True)
    assert done["events"] == []
    assert len(loaded(lake, "calm").snapshots) == 1


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
def operators_ran(tmp_path_factory):
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


def test_each_job_has_an_operator_that_works(operators_ran):
    runs, lake, directory, before, _ = operators_ran
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


def test_a_dry_run_deletes_nothing_and_what_follows_does(operators_ran):
    runs = operators_ran[0]
    assert (left(runs, "plan")["status"], left(runs, "plan")["dry_run"]) == ("planned", True)
    assert left(runs, "orphans")["status"] == "done"


def test_a_commit_is_an_event_under_the_alias(operators_ran):
    [[uri, task, extra]] = operators_ran[0]["own"]["events"]
    assert (uri, task, extra["job"]) == ("iceberg://local/db/t", "compact", "compact")


def test_a_value_that_a_template_made_wrong(operators_ran):
    done = operators_ran[0]["wrong"]
    assert (done["state"], done["tasks"]["expire[-1]"]["state"], done["tasks"]["expire[-1]"]["left"]) == (
        "failed",
        "failed",
        None,
    )


def test_connection_is_catalog_for_worker_and_spark_submit(operators_ran):
    tasks = operators_ran[0]["connected"]["tasks"]
    states = {name: (task["state"], (task["left"] or {}).get("status")) for name, task in tasks.items()}
    assert states == {
        "worker[-1]": ("success", "sound"),
        "submitted[-1]": ("success", "sound"),
        "cluster[-1]": ("failed", None),
        "missing[-1]": ("failed", None),
    }


def test_no_secret_of_a_connection_is_shown(operators_ran):
    assert SECRET not in json.dumps(operators_ran[0])
    assert "submitted" in operators_ran[4]
    assert SECRET not in operators_ran[4]


def test_links_of_tasks_to_report_and_runbook(operators_ran):
    tasks = operators_ran[0]["connected"]["tasks"]
    report = "https://pages/report.html"
    assert tasks["worker[-1]"]["links"] == {"Runbook": "", "Report": report, "Spark": ""}
    assert tasks["missing[-1]"]["links"] == {
        "Runbook": "https://docs/runbooks/not-found.html",
        "Report": report,
        "Spark": "",
    }


def test_a_sensor_waits_until_the_table_is_due(operators_ran):
    tasks = operators_ran[0]["waits"]["tasks"]
    assert {name: (task["state"], task["left"]) for name, task in tasks.items()} == {
        "now[-1]": ("success", ["compact"]),
        "later[-1]": ("success", ["compact"]),
        "never[-1]": ("skipped", None),
        "missing[-1]": ("failed", None),
    }
    assert operators_ran[4].endswith("look look ")
    assert operators_ran[4].count("running trigger in line") == 1
