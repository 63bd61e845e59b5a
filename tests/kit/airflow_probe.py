"""Looks at our DAGs from inside a real Airflow, or runs them; in `.venv-airflow`, writes one JSON object as its last line.

airflow_probe.py look DIRECTORY     what the DAGs are; and what becomes of a task for each exit status of $STATUSES,
                                    and of the only task of the DAG $FAILS
airflow_probe.py schedules SCHEDULES  of each of a JSON list whether Airflow takes it
airflow_probe.py runs DIRECTORY RUNS each of RUNS, a JSON list of [DAG, CONF], by `dag.test()`
"""

import json
import os
import sys
from typing import Any

from airflow.dag_processing.dagbag import DagBag


class Instance:
    """Of a task that is executed outside of a run."""

    def xcom_push(self, key: str, value: Any) -> None: ...


def look(directory: str) -> dict[str, Any]:
    bag = DagBag(directory)
    dags = {dag_id: _dag(dag) for dag_id, dag in sorted(bag.dags.items())}
    outcomes = {}
    if os.environ.get("STATUSES"):
        task = next(task for dag in bag.dags.values() for task in dag.tasks if getattr(task, "calls", ()))
        task.alias = None
        outcomes = {status: _outcome(task, status) for status in os.environ["STATUSES"].split(",")}
    spark = sorted({name.partition(".")[0] for name in sys.modules} & {"pyspark", "py4j", "pyarrow", "datafusion"})
    errors = bag.import_errors
    found = {"import_errors": errors, "dags": dags, "outcomes": outcomes, "spark": spark, "provider": _provider()}
    if os.environ.get("FAILS"):
        [task] = bag.dags[os.environ["FAILS"]].tasks
        found["failure"] = _failure(task)
    return found


def _provider() -> dict[str, Any]:
    from airflow.providers_manager import ProvidersManager
    from airflow.sdk import Asset

    data = ProvidersManager().providers["icekeep"].data
    try:
        wrong = Asset("iceberg://prod/t").uri
    except ValueError as error:
        wrong = type(error).__name__
    hook = ProvidersManager().hooks["icekeep"]
    connection = [hook.hook_class_name, hook.connection_id_attribute_name] if hook else None
    return {
        "connection": connection,
        "links": sorted(one for one in ProvidersManager().extra_links_class_names if one.startswith("icekeep.")),
        "name": data["name"],
        "assets": [Asset("iceberg://prod/db/t/").uri],
        "wrong": wrong,
    }


def _dag(dag: Any) -> dict[str, Any]:
    return {
        "max_active_runs": dag.max_active_runs,
        "catchup": dag.catchup,
        "cron": dag.schedule,
        "is_paused": dag.is_paused_upon_creation,
        "tasks": {
            task.task_id: {
                "after": sorted(task.upstream_task_ids),
                "retries": task.retries,
                "rule": task.trigger_rule.value,
                "calls": [[call.job, call.table, [*call.arguments]] for call in getattr(task, "calls", ())],
            }
            for task in dag.tasks
        },
    }


def _outcome(task: Any, status: str) -> str | None:
    os.environ["STATUS"] = status
    return (_failure(task) or [None])[0]


def _failure(task: Any) -> list[str] | None:
    """The exception of a task that is executed, its name and what it says."""
    try:
        task.execute({"ti": Instance()})
    except Exception as error:  # noqa: BLE001 - its name is the answer
        return [type(error).__name__, str(error)]
    return None


def run(directory: str, runs: str) -> list[Any]:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session

    initdb()
    bag = DagBag(directory)
    assert not bag.import_errors, bag.import_errors
    found = []
    for dag_id, conf in json.loads(runs):
        done = bag.dags[dag_id].test(run_conf=conf)
        with create_session() as session:
            query = session.query(TaskInstance).filter_by(dag_id=dag_id, run_id=done.run_id)
            tasks = {f"{one.task_id}[{one.map_index}]": _instance(one) for one in query}
            found.append({"state": str(done.state), "tasks": tasks, "events": _events(session, done.run_id)})
    return found


def schedules(texts: str) -> list[bool]:
    from airflow.sdk import DAG

    def takes(text: str) -> bool:
        try:
            DAG("d", schedule=text, max_active_runs=1).validate()
        except Exception:  # noqa: BLE001 - whatever it is, Airflow drops the file
            return False
        return True

    return [takes(text) for text in json.loads(texts)]


def _instance(one: Any) -> dict[str, Any]:
    def pulled(key: str) -> Any:
        return one.xcom_pull(task_ids=one.task_id, map_indexes=one.map_index, key=key)

    links = {name: pulled(f"_link_{name}Link") for name in ("Runbook", "Report", "Spark")}
    return {"state": str(one.state), "name": one.rendered_map_index, "left": pulled("return_value"), "links": links}


def _events(session: Any, run_id: str) -> list[Any]:
    from airflow.models.asset import AssetEvent

    events = session.query(AssetEvent).filter_by(source_run_id=run_id)
    return [[event.uri, event.source_task_id, event.extra] for event in events]


if __name__ == "__main__":
    answer = {"runs": run, "look": look, "schedules": schedules}[sys.argv[1]](*sys.argv[2:])
    sys.stdout.write(json.dumps(answer, default=str) + "\n")
