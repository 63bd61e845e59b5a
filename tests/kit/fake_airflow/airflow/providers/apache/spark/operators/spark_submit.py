"""An operator that submits nothing: it fails with the status in STATUS, in the words of Airflow's hook.

What it would submit is kept in `submitted`. What STDERR holds goes through the hook as lines, and RESULT into the result file.
"""

import os
from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException


class _Hook:
    def _process_spark_submit_log(self, lines: Any) -> None:
        self.lines = [*lines]


class SparkSubmitOperator(BaseOperator):
    """Keeps its arguments."""

    template_fields: Sequence[str] = ("application_args",)

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.files, self.conf = arguments.get("files"), arguments.get("conf")
        self._deploy_mode, self._conn_id = arguments.get("deploy_mode"), arguments.get("conn_id", "spark_default")
        self._hook: Any = None
        self._status_poll_interval = arguments.get("status_poll_interval", 1)
        self.submitted: list[Any] = []

    def _get_hook(self) -> Any:
        return _Hook()

    def on_kill(self) -> None:
        self.submitted.append("killed")

    def execute(self, context: Any) -> None:
        self.submitted.append([self.name, self.application, self.application_args, self.files])  # type: ignore[attr-defined]
        self.submitted_conf = self.conf
        self._get_hook()._process_spark_submit_log(os.environ.get("STDERR", "").splitlines())
        files = [one.partition("=")[2] for one in self.application_args if one.startswith("--result-file=")]  # type: ignore[attr-defined]
        if files and os.environ.get("RESULT"):
            with open(files[0], "w") as file:
                file.write(os.environ["RESULT"])
        status = os.environ["STATUS"]
        if status != "0":
            said = f"Error code is: {status}." if status.lstrip("-").isdigit() else status
            raise AirflowException(f"Cannot execute: spark-submit --name x. {said}\nLast spark-submit output:\nx")
