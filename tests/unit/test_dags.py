import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from icekeep.operations.arguments import parse_command

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
FAKE_AIRFLOW = ROOT / "tests" / "kit" / "fake_airflow"

LOOK = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import maintenance as m
dags = [value for value in vars(m).values() if type(value).__name__ == "DAG"]
def outcome(task):
    try:
        task.execute({})
    except Exception as error:
        return type(error).__name__
print(json.dumps({
    "dags": [{
        "id": d.arguments["dag_id"], "schedule": d.arguments["schedule"], "catchup": d.arguments["catchup"],
        "max_active_runs": d.arguments["max_active_runs"], "retries": d.arguments["default_args"]["retries"],
        "pool": d.arguments["default_args"].get("pool"),
        "timeout": str(d.arguments["default_args"].get("execution_timeout")),
        "tasks": [[t.task_id, t.later, t.arguments] for t in d.tasks],
    } for d in dags],
    "outcome": outcome(dags[0].tasks[0]) if dags else None,
    "loaded": sorted(sys.modules),
}))
"""


def look(conf=None, directory=ROOT / "airflow_dags", **environ):
    """Import the file in a process of its own that has no Airflow and no installed icekeep."""
    done = run(conf, directory, **environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run(conf, directory, **environ):
    if conf is not None:
        environ["ICEKEEP_CONF"] = str(conf)
    return subprocess.run(
        [sys.executable, "-c", LOOK, str(directory)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(FAKE_AIRFLOW), "STATUS": "0", **environ},
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
"""
    )
    return path


def test_the_shipped_configuration_makes_its_dag():
    (dag,) = look()["dags"]
    assert dag["id"] == "icekeep_nightly"
    assert (dag["max_active_runs"], dag["catchup"], dag["retries"]) == (1, False, 2)
    assert [task[0] for task in dag["tasks"]] == [
        "local.demo.flights.compact",
        "local.demo.flights.rewrite_manifests",
        "local.demo.flights.expire_snapshots",
    ]


def test_each_policy_is_a_dag_and_each_table_a_chain_of_its_jobs(conf):
    nightly, by_hand = look(conf)["dags"]
    assert [(task[0], task[1]) for task in nightly["tasks"]] == [
        ("c.db.a-u20--ue9-.compact", ["c.db.a-u20--ue9-.expire_snapshots"]),
        ("c.db.a-u20--ue9-.expire_snapshots", []),
        ("c.db.b.compact", ["c.db.b.expire_snapshots"]),
        ("c.db.b.expire_snapshots", []),
    ]
    assert (nightly["schedule"], nightly["pool"], nightly["timeout"]) == ("0 2 * * *", "spark", "1:00:00")
    assert (by_hand["schedule"], by_hand["pool"], by_hand["timeout"], by_hand["retries"]) == (None, None, "None", 0)
    assert by_hand["tasks"][0][2]["conf"] == {"spark.a": "1"}


def test_the_jobs_understand_what_the_tasks_tell_them(conf):
    for _, _, arguments in look(conf)["dags"][0]["tasks"]:
        script = Path(arguments["application"])
        assert script.parent == ROOT / "jobs"
        assert script.is_file()
        command = parse_command(arguments["application_args"], script.stem, 0, "")
        assert (command.conf, command.output) == (str(conf), "json")
        assert command.table in ("c.db.b", "c.db.a é")
        assert command.arguments.keys() == ({"where"} if script.stem == "compact" else {"older_than"})


@pytest.mark.parametrize(
    ("status", "outcome"),
    [("0", None)]
    + [(status, "AirflowException") for status in ("1", "3", "75", "no status at all")]
    + [(status, "AirflowFailException") for status in ("2", "4", "5", "127", "130", "143")],
)
def test_only_a_status_that_may_pass_is_retried(status, outcome):
    assert look(STATUS=status)["outcome"] == outcome


@pytest.mark.parametrize(("status", "outcome"), [("1", "AirflowException"), ("3", "AirflowFailException")])
def test_what_a_check_has_found_is_not_looked_for_again(tmp_path, status, outcome):
    path = tmp_path / "my.yaml"
    path.write_text("policies: [{name: weekly, schedule: null, tables: [c.db.t], jobs: {check: {deep: true}}}]")
    assert look(path, STATUS=status)["outcome"] == outcome


LAYERED = """
defaults: {mode: observe, jobs: {compact: {options: {min-input-files: 5}}}}
policies:
  - {name: listed, schedule: null, tables: [c.db.a, c.db.b], jobs: {compact: , expire_snapshots: }}
  - {name: patterns, schedule: '@daily', match: c.**, jobs: {check: }}
  - {name: nights, schedule: '@daily', tables: [c.db.a], window: {from: 22:00}, jobs: {check: }}
  - {name: conditions, schedule: '@daily', tables: [c.db.a], jobs: {check: {when: {age_over: 7d}}}}
namespaces: {c.db: {mode: run}}
tables: {c.db.b: {mode: observe, jobs: {expire_snapshots: {enabled: false}}}}
"""


def test_defaults_and_layers_of_the_file_are_in_force(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(LAYERED)
    (dag,) = look(path)["dags"]
    arguments = {task[0]: task[2]["application_args"][2:-1] for task in dag["tasks"]}
    assert arguments == {
        "c.db.a.compact": ["--option=min-input-files=5"],
        "c.db.a.expire_snapshots": [],
        "c.db.b.compact": ["--option=min-input-files=5", "--dry-run"],
    }
    for _, _, told in dag["tasks"]:
        parse_command(told["application_args"], Path(told["application"]).stem, 0, "")


def test_a_policy_that_only_a_catalog_can_resolve_is_named_in_one_line_and_not_scheduled(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(LAYERED)
    done = run(path, ROOT / "airflow_dags")
    assert (done.returncode, json.loads(done.stdout)["dags"][0]["id"]) == (0, "icekeep_listed")
    assert done.stderr.splitlines() == [
        f"{path}: policy {name!r} is not scheduled by Airflow: {why}"
        for name, why in (
            ("patterns", "it has `match`, and which tables there are only the catalog knows"),
            ("nights", "table c.db.a has a `window`"),
            ("conditions", "job check of table c.db.a has conditions (`when`)"),
        )
    ]


def test_importing_the_file_loads_neither_spark_nor_arrow_nor_a_catalog():
    loaded = set(look()["loaded"])
    assert not loaded & {"pyspark", "pyarrow", "pandas", "sqlalchemy", "fastavro", "rich"}
    assert "icekeep.catalog" not in loaded


def test_the_dags_may_lie_apart_from_the_rest(tmp_path):
    (tmp_path / "maintenance.py").write_text((ROOT / "airflow_dags" / "maintenance.py").read_text())
    (dag,) = look(directory=tmp_path, ICEKEEP_HOME=str(ROOT))["dags"]
    assert dag["tasks"][0][2]["application"] == str(ROOT / "jobs" / "compact.py")


def test_a_broken_configuration_is_an_import_error_that_names_the_key(tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text("policies: [{name: n}]")
    done = run(path, ROOT / "airflow_dags")
    assert done.returncode == 1
    assert "configuration key 'policies[0].schedule': is missing" in done.stderr
