"""Our DAGs in a real Airflow: how they load, and runs of them by `dag.test()`, by spark-submit and by the worker."""

from collections import Counter

import pytest

from icekeep.errors import UsageError
from icekeep.operations.arguments import parse_command
from icekeep.policies.resolution import parse_schedule
from icekeep.tables.verbs import append, create_table
from kit.in_airflow import look, run, takes_schedules
from kit.lake import SCHEMA, events
from kit.shell import Operator

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


def test_a_wrong_schedule_of_one_policy_leaves_the_dags_of_the_others(tmp_path):
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


def test_what_is_due_is_found_when_the_run_begins_and_each_table_is_a_task_group(ran):
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


def test_a_run_fails_where_one_task_has_though_the_last_job_of_the_table_has_not(ran):
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
