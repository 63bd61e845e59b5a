"""Looks at our DAGs from inside a real Airflow; runs in `.venv-airflow`, writes one JSON object as its last line.

With a `spark-submit` on the PATH that ends with $STATUS, a task is executed too.
"""

import json
import os
import sys
from typing import Any

from airflow.dag_processing.dagbag import DagBag


def look(directory: str) -> dict[str, Any]:
    bag = DagBag(directory)
    dags = {dag_id: _dag(dag) for dag_id, dag in sorted(bag.dags.items())}
    outcomes = {}
    if os.environ.get("STATUSES"):
        dag = next(iter(bag.dags.values()))
        outcomes = {status: _outcome(dag.tasks[0], status) for status in os.environ["STATUSES"].split(",")}
    spark = sorted(name for name in sys.modules if name.partition(".")[0] in ("pyspark", "py4j"))
    return {"import_errors": bag.import_errors, "dags": dags, "outcomes": outcomes, "spark": spark}


def _dag(dag: Any) -> dict[str, Any]:
    return {
        "max_active_runs": dag.max_active_runs,
        "catchup": dag.catchup,
        "cron": dag.schedule,
        "tasks": {
            task.task_id: {
                "after": sorted(task.upstream_task_ids),
                "retries": task.retries,
                "application": task.application,
                "arguments": list(task.application_args),
            }
            for task in dag.tasks
        },
    }


def _outcome(task: Any, status: str) -> str | None:
    os.environ["STATUS"] = status
    try:
        task.execute({})
    except Exception as error:  # noqa: BLE001 - its name is the answer
        return type(error).__name__
    return None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(look(sys.argv[1])) + "\n")
