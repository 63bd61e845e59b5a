"""An operator that submits nothing: it fails with the status in STATUS, in the words of Airflow's hook."""

import os
from typing import Any, Self

from airflow.sdk.exceptions import AirflowException


class SparkSubmitOperator:
    """Keeps its arguments and what comes after it."""

    def __init__(self, *, dag: Any, task_id: str, **arguments: Any) -> None:
        self.task_id = task_id
        self.arguments = arguments
        self.later: list[str] = []
        dag.tasks.append(self)

    def __rshift__(self, other: Self) -> Self:
        self.later.append(other.task_id)
        return other

    def execute(self, context: Any) -> None:
        status = os.environ["STATUS"]
        if status != "0":
            said = f"Error code is: {status}." if status.isdigit() else status
            raise AirflowException(f"Cannot execute: spark-submit --name x. {said}\nLast spark-submit output:\nx")
