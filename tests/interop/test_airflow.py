import json
import os
import subprocess
from pathlib import Path

import pytest

from icekeep.operations.arguments import parse_command

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-airflow" / "bin" / "python"


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What a real Airflow sees of our DAGs, and what becomes of a task for each exit status of `spark-submit`."""
    if not PYTHON.exists():
        pytest.fail("there is no .venv-airflow; run `make airflow-env` first", pytrace=False)
    home = tmp_path_factory.mktemp("airflow")
    (home / "spark-submit").write_text("#!/bin/sh\nexit $STATUS\n")
    (home / "spark-submit").chmod(0o755)
    done = subprocess.run(
        [str(PYTHON), str(Path(__file__).with_name("airflow_probe.py")), str(ROOT / "airflow_dags")],
        env={
            "PATH": f"{home}:{os.environ['PATH']}",
            "HOME": str(home),
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[1]", "extra": {"deploy-mode": "client"}}',
            "STATUSES": "0,1,2,3,4,5,75",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_dags_load_without_an_error(seen):
    assert seen["import_errors"] == {}
    assert list(seen["dags"]) == ["icekeep_nightly"]


def test_loading_the_dags_loads_no_spark(seen):
    assert seen["spark"] == []


def test_the_dag_is_as_the_policy_says(seen):
    dag = seen["dags"]["icekeep_nightly"]
    assert (dag["max_active_runs"], dag["catchup"], dag["cron"]) == (1, False, "0 2 * * *")
    assert {name: task["after"] for name, task in dag["tasks"].items()} == {
        "local.demo.flights.compact": [],
        "local.demo.flights.rewrite_manifests": ["local.demo.flights.compact"],
        "local.demo.flights.expire_snapshots": ["local.demo.flights.rewrite_manifests"],
    }
    assert {task["retries"] for task in dag["tasks"].values()} == {2}


def test_the_jobs_understand_what_the_tasks_tell_them(seen):
    for task in seen["dags"]["icekeep_nightly"]["tasks"].values():
        job = Path(task["application"]).stem
        command = parse_command(task["arguments"], job, 0, "")
        assert command.table == "local.demo.flights"


def test_airflow_retries_only_what_may_pass(seen):
    assert seen["outcomes"] == {
        "0": None,
        "1": "AirflowException",
        "2": "AirflowFailException",
        "3": "AirflowException",
        "4": "AirflowFailException",
        "5": "AirflowFailException",
        "75": "AirflowException",
    }
