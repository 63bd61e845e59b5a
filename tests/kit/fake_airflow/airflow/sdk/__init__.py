"""As much of Airflow's task SDK as our DAGs touch, for tests without Airflow: nothing is scheduled."""

from typing import Any


class DAG:
    """Keeps its arguments and its tasks."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.tasks: list[Any] = []
