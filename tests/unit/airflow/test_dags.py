"""The DAGs and their tasks, by an Airflow that schedules nothing (`kit/fake_airflow`), in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from icekeep.airflow.installation import SUBMITTED
from icekeep.operations.arguments import parse_command
from icekeep.policies.resolution import SCHEDULE_FORM

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
FAKE_AIRFLOW = ROOT / "tests" / "kit" / "fake_airflow"
EXAMPLE = ROOT / "conf" / "icekeep.example.yaml"

LOOK = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import maintenance as m
dags = [value for value in vars(m).values() if type(value).__name__ == "DAG"]

class Events(dict):
    def __missing__(self, alias):
        return self.setdefault(alias, Added())

class Added(list):
    def add(self, asset, extra):
        self.append([asset.uri, extra])

class Instance:
    pushed = None
    def xcom_push(self, key, value):
        self.pushed = value

def outcome(task, case):
    os.environ.update({"STDERR": "", "RESULT": "", **case})
    task.submitted.clear()
    told, events, instance = None, Events(), Instance()
    try:
        left = task.execute({"ti": instance, "outlet_events": events, "params": {}})
    except Exception as error:
        left, told = instance.pushed, [type(error).__name__, str(error)]
    return {"told": told, "left": left, "submitted": [*task.submitted], "events": [[a.name, *e] for a, e in events.items()]}

print(json.dumps({
    "dags": {d.dag_id: {
        "schedule": d.arguments["schedule"], "catchup": d.arguments["catchup"], "file": d.fileloc,
        "max_active_runs": d.arguments.get("max_active_runs"), "defaults": {
            key: str(value) for key, value in d.arguments.get("default_args", {}).items()
        },
        "tasks": {t.task_id: {
            "later": t.later, "rule": t.trigger_rule, "calls": [[c.job, c.table, c.arguments, c.submit] for c in t.calls]
            if hasattr(t, "calls") else None, "unit": getattr(t, "unit", None), "arguments": {
                key: value for key, value in t.arguments.items() if isinstance(value, (str, int, dict))
            },
        } for t in d.tasks},
    } for d in dags},
    "outcomes": [
        outcome(next(t for t in dags[0].tasks if hasattr(t, "calls")), case) for case in json.loads(os.environ.get("CASES", "[]"))
    ],
    "loaded": sorted(sys.modules),
}))
"""


def look(conf=EXAMPLE, directory=ROOT / "airflow_dags", **environ):
    """Import the file in a process of its own that has no Airflow."""
    done = run(conf, directory, **environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def outcome_of(conf=EXAMPLE, directory=ROOT / "airflow_dags", results=None, **case):
    """What becomes of the first task, for what spark-submit does."""
    environ = {} if results is None else {"ICEKEEP_RESULTS": str(results)}
    [outcome] = look(conf, directory, CASES=json.dumps([case]), ICEKEEP_HOME=str(ROOT), **environ)["outcomes"]
    return outcome


def run(conf, directory, **environ):
    if conf is not None:
        environ["ICEKEEP_CONFIG"] = str(conf)
    return subprocess.run(
        [sys.executable, "-c", LOOK, str(directory)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{FAKE_AIRFLOW}:{ROOT / 'lib'}", **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def conf(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(
        """policies:
  - name: nightly
    schedule: "0 2 * * *"
    tables: [c.db.b, "c.db.a é"]
    jobs: {expire_snapshots: {older_than: 7d}, compact: {where: "id > 1"}}
    pool: spark
    timeout: 1h
  - {name: by-hand, schedule: null, tables: [c.db.t], jobs: {rewrite_manifests: }, retries: 0, spark_conf: {spark.a: 1}}
  - {name: here, schedule: null, tables: [c.db.t], jobs: {compact: }, submit_over: null}
  - {name: all, schedule: "@daily", match: c.**, except: c.tmp.*, jobs: {compact: , expire_snapshots: , check: }, pool: p}
"""
    )
    return path


def test_example_configuration_makes_dag_and_manual_dag():
    dags = look()["dags"]
    assert list(dags) == ["icekeep_nightly", "icekeep_by_hand"]
    dag = dags["icekeep_nightly"]
    assert (dag["max_active_runs"], dag["catchup"], dag["defaults"]["retries"]) == (1, False, "2")
    assert list(dag["tasks"]) == [
        "outcome",
        "local.sales.orders.compact",
        "local.sales.orders.rewrite_manifests",
        "local.sales.orders.expire_snapshots",
    ]
    # Airflow takes the file in which a DAG was made for its file.
    assert {one["file"] for one in dags.values()} == {str(ROOT / "airflow_dags" / "maintenance.py")}


def test_listed_table_is_chain_of_jobs_despite_failures(conf):
    dags = look(conf)["dags"]
    nightly, by_hand = dags["icekeep_nightly"], dags["icekeep_by-hand"]
    assert {name: (task["later"], task["rule"]) for name, task in nightly["tasks"].items()} == {
        "outcome": ([], "all_done"),
        "c.db.a-u20--ue9-.compact": (["c.db.a-u20--ue9-.expire_snapshots"], "all_success"),
        "c.db.a-u20--ue9-.expire_snapshots": (["outcome"], "all_done"),
        "c.db.b.compact": (["c.db.b.expire_snapshots"], "all_success"),
        "c.db.b.expire_snapshots": (["outcome"], "all_done"),
    }
    defaults = nightly["defaults"]
    assert (nightly["schedule"], defaults["pool"], defaults["execution_timeout"]) == ("0 2 * * *", "spark", "1:00:00")
    assert (by_hand["schedule"], by_hand["defaults"]["retries"]) == (None, "0")
    assert {"pool", "execution_timeout"}.isdisjoint(by_hand["defaults"])
    assert by_hand["tasks"]["c.db.t.rewrite_manifests"]["arguments"]["conf"] == {"spark.a": "1"}
    # The last task waits for no pool, and is not tried again: it would find the same.
    assert nightly["tasks"]["outcome"]["arguments"] == {"retries": 0, "pool": "default_pool"}


def test_what_is_called_is_what_the_policy_says(conf):
    dags = look(conf)["dags"]
    assert dags["icekeep_nightly"]["tasks"]["c.db.b.compact"]["calls"] == [
        ["compact", "c.db.b", ["--where=id > 1"], True]
    ]
    assert dags["icekeep_here"]["tasks"]["c.db.t.compact"]["calls"] == [["compact", "c.db.t", [], False]]


def test_a_policy_by_pattern_asks_what_is_due_and_maps_over_it(conf):
    tasks = look(conf)["dags"]["icekeep_all"]["tasks"]
    assert {name: (task["later"], task["rule"]) for name, task in tasks.items()} == {
        "due": (["outcome"], "all_success"),
        "tables.compact": (["tables.expire_snapshots"], "all_success"),
        "tables.expire_snapshots": (["tables.check"], "all_done"),
        "tables.check": (["outcome"], "all_done"),
        "outcome": ([], "all_done"),
    }
    assert {name: task["unit"] for name, task in tasks.items() if task["unit"]} == dict.fromkeys(
        ("tables.compact", "tables.expire_snapshots", "tables.check"), "output of due"
    )
    assert (tasks["due"]["arguments"]["pool"], tasks["outcome"]["arguments"]["pool"]) == ("default_pool",) * 2


def test_the_jobs_understand_what_spark_submit_is_told(conf):
    outcome = outcome_of(conf, STATUS="0")
    assert outcome["told"] is None
    [[name, script, words, files]] = outcome["submitted"]
    assert (name, Path(script), files) == ("icekeep compact c.db.a é", ROOT / "jobs" / "compact.py", None)
    command = parse_command(words, "compact", 0)
    assert (command.conf, command.output, command.table) == (str(conf), "table", "c.db.a é")
    # By its policy the job finds its settings, as they are when it begins.
    assert (command.policy, command.arguments) == ("nightly", {})
    assert command.result_file


RETRIED = ("1", "3", "75", "137", "143", "-9", "no status at all")
FAILED = ("2", "4", "5", "127", "130")


def test_only_a_status_that_may_pass_is_retried():
    cases = [{"STATUS": status} for status in (*RETRIED, *FAILED)]
    told = [outcome["told"][0] for outcome in look(CASES=json.dumps(cases))["outcomes"]]
    assert told == ["AirflowException"] * len(RETRIED) + ["AirflowFailException"] * len(FAILED)


def test_what_a_check_has_found_is_not_looked_for_again(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("policies: [{name: weekly, schedule: null, tables: [c.db.t], jobs: {check: {deep: true}}}]")
    outcomes = look(path, CASES='[{"STATUS": "1"}, {"STATUS": "3"}]')["outcomes"]
    assert [outcome["told"][0] for outcome in outcomes] == ["AirflowException", "AirflowFailException"]


REFUSED = {"job": "compact", "error": {"kind": "safety", "message": "gc.enabled is false"}}
MOVED = {"metadata_location_before": "a", "metadata_location_after": "b", "snapshot_id_after": 7, "run_id": "r"}


def test_what_a_task_tells_leaves_and_emits():
    cases = [
        {"STATUS": "4", "RESULT": json.dumps(REFUSED)},
        {"STATUS": "75", "STDERR": "INFO x\nicekeep: the catalog is out of reach\nINFO y"},
        {"STATUS": "0", "RESULT": json.dumps(MOVED)},
        {"STATUS": "0", "RESULT": json.dumps({"status": "done"})},
    ]
    refused, unreachable, moved, still = look(CASES=json.dumps(cases))["outcomes"]
    assert refused["told"][1] == (
        "compact local.sales.orders ended with status 4 (refused), which a retry does not help: gc.enabled is false"
    )
    assert refused["left"] == {**REFUSED, "table": "local.sales.orders", "exit_status": 4}
    assert refused["events"] == []
    assert unreachable["told"][1] == (
        "compact local.sales.orders ended with status 75 (try again later): the catalog is out of reach"
    )
    extra = {"job": "compact", "run_id": "r", "snapshot_id_after": 7, "metadata_location_after": "b"}
    assert moved["events"] == [["icekeep_nightly", ["iceberg://local/sales/orders", extra]]]
    assert still["events"] == [["icekeep_nightly"]]


CLUSTER = """
policies:
  - {name: n, schedule: null, tables: [c.db.t], jobs: {compact: }, deploy_mode: cluster, files: [core-site.xml]}
"""


def test_cluster_driver_gets_config_and_sets_exit_status(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(CLUSTER)
    outcome = outcome_of(path, STATUS="1", STDERR="... User application exited with 4\n")
    [[_, _, words, files]] = outcome["submitted"]
    assert words == ["--table=c.db.t", "--config=my.yaml", "--policy=n", "--output=json"]
    assert files == f"core-site.xml,{path}"
    assert outcome["told"][0] == "AirflowFailException"
    assert outcome["left"] == {"job": "compact", "table": "c.db.t", "exit_status": 4}


def test_cluster_mode_result_comes_by_shared_directory(tmp_path):
    path, results = tmp_path / "my.yaml", tmp_path / "results"
    path.write_text(CLUSTER)
    results.mkdir()
    outcome = outcome_of(path, results=results, STATUS="0", RESULT='{"status": "done"}')
    assert outcome["left"] == {"job": "compact", "table": "c.db.t", "status": "done", "exit_status": 0}
    assert list(results.iterdir()) == []


LAYERED = """
defaults: {mode: observe, jobs: {compact: {options: {min-input-files: 5}}}}
policies:
  - {name: listed, schedule: null, tables: [c.db.a, c.db.b], jobs: {compact: , expire_snapshots: }}
  - {name: patterns, schedule: '@daily', match: c.**, jobs: {check: }}
  - {name: nights, schedule: '@daily', tables: [c.db.a], window: {from: 22:00}, jobs: {check: }}
  - {name: conditions, schedule: '@daily', tables: [c.db.a], jobs: {check: {when: {age_over: 7d}}}}
  - {name: sizes, schedule: '@daily', tables: [c.db.a], jobs: {check: }, submit_over: 1}
namespaces: {c.db: {mode: run}}
tables: {c.db.b: {mode: observe, jobs: {expire_snapshots: {enabled: false}}}}
"""


def test_defaults_and_layers_of_the_file_are_in_force(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(LAYERED)
    tasks = look(path)["dags"]["icekeep_listed"]["tasks"]
    calls = [call for task in tasks.values() for call in task["calls"] or ()]
    assert [(job, table, arguments) for job, table, arguments, _ in calls] == [
        ("compact", "c.db.a", ["--option=min-input-files=5"]),
        ("expire_snapshots", "c.db.a", []),
        ("compact", "c.db.b", ["--option=min-input-files=5", "--dry-run"]),
    ]
    for job, table, arguments, _ in calls:
        parse_command([f"--table={table}", *arguments], job, 0)


def test_policy_that_needs_catalog_is_scheduled_too(tmp_path):
    """Its DAG asks the catalog at run time for what is due."""
    path = tmp_path / "my.yaml"
    path.write_text(LAYERED)
    dags = look(path)["dags"]
    for name in ("patterns", "nights", "conditions", "sizes"):
        assert list(dags[f"icekeep_{name}"]["tasks"]) == ["due", "tables.check", "outcome"]


def test_dag_file_imports_no_spark_arrow_or_catalog():
    loaded = set(look()["loaded"])
    assert not loaded & {"pyspark", "pyarrow", "pandas", "sqlalchemy", "fastavro", "rich", "datafusion"}
    assert "icekeep.catalog" not in loaded


def test_the_dags_may_lie_apart_from_the_rest(tmp_path):
    (tmp_path / "maintenance.py").write_text((ROOT / "airflow_dags" / "maintenance.py").read_text())
    outcome = outcome_of(directory=tmp_path, STATUS="0")
    assert outcome["submitted"][0][1] == str(ROOT / "jobs" / "compact.py")


def test_copied_dag_file_uses_installed_icekeep(tmp_path, conf):
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "maintenance.py").write_text((ROOT / "airflow_dags" / "maintenance.py").read_text())
    [outcome] = look(conf, tmp_path / "dags", CASES=json.dumps([{"STATUS": "0"}]))["outcomes"]
    assert outcome["submitted"][0][1] == str(SUBMITTED)


def test_what_is_installed_needs_no_checkout(tmp_path):
    (tmp_path / "maintenance.py").write_text(
        f"from icekeep.airflow import dags\nglobals().update(dags({str(EXAMPLE)!r}))\n"
    )
    outcome = outcome_of(directory=tmp_path, STATUS="0")
    [[_, application, words, _]] = outcome["submitted"]
    assert (application, words[:2]) == (str(SUBMITTED), ["compact", "--table=local.sales.orders"])


def test_a_policy_that_is_called_by_hand_has_the_name_alone(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("policies: [{name: by_hand, schedule: null, tables: [c.db.t], jobs: {compact: }}]")
    done = run(path, ROOT / "airflow_dags")
    assert "there is no DAG to run a job by hand" in done.stderr
    assert list(json.loads(done.stdout)["dags"]["icekeep_by_hand"]["tasks"]) == ["outcome", "c.db.t.compact"]


def test_unscheduled_policy_taking_job_is_warned_of_at_parse(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(
        "policies: [{name: hand, schedule: null, match: c.**, jobs: {compact: }},"
        " {name: night, schedule: '@daily', tables: [c.db.t], jobs: {compact: , check: }}]"
    )
    done = run(path, ROOT / "airflow_dags")
    assert (
        f"{path}: no schedule runs compact on c.db.t, which policy 'night' asks for: policy 'hand' stands"
        in done.stderr
    )
    assert list(json.loads(done.stdout)["dags"]["icekeep_night"]["tasks"]) == ["outcome", "c.db.t.check"]


def test_wrong_schedule_leaves_dags_of_other_policies(conf):
    conf.write_text(conf.read_text().replace('"0 2 * * *"', '"0 25 * * *"'))
    done = run(conf, ROOT / "airflow_dags")
    line = f"configuration key 'policies[0].schedule': '0 25 * * *' is not a cron schedule; give {SCHEDULE_FORM} ({conf}, line 3)"
    assert f"policy 'nightly' is not scheduled: {line}" in done.stderr
    dags = json.loads(done.stdout)["dags"]
    assert {name: dag["schedule"] for name, dag in dags.items()} == {
        "icekeep_nightly": None,
        "icekeep_by-hand": None,
        "icekeep_here": None,
        "icekeep_all": "@daily",
        "icekeep_by_hand": None,
    }
    assert list(dags["icekeep_nightly"]["tasks"]) == ["schedule"]
    assert list(dags["icekeep_here"]["tasks"]) == ["outcome", "c.db.t.compact"]


def test_broken_configuration_is_import_error_with_key(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("policies: [{name: n}]")
    done = run(path, ROOT / "airflow_dags")
    assert done.returncode == 1
    assert "configuration key 'policies[0].jobs': is missing" in done.stderr
