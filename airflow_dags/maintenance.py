"""One DAG for each policy in conf/icekeep.yaml, one task for each table and job.

    compact -> rewrite_manifests -> expire_snapshots      (of each table; tables side by side)

Importing this needs neither Spark nor a catalog nor the network: it reads the file and nothing else. Where the folder of
the DAGs is not next to `conf/` and `jobs/`, the variables ICEKEEP_CONF and ICEKEEP_HOME say where they are. Each task runs
`spark-submit jobs/JOB.py` through the policy's Airflow connection.

`defaults`, `namespaces` and `tables` of the file are in force; what a table's own properties say is not asked, since that takes a
catalog. Policies with `match`, `when` or `window` are not scheduled here: each is named in a warning of the log.
"""

import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

try:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException
except ImportError:  # the first releases of Airflow 3 have them in the old place
    from airflow.exceptions import AirflowException, AirflowFailException

HOME = Path(os.environ.get("ICEKEEP_HOME") or Path(__file__).resolve().parents[1])
CONF = Path(os.environ.get("ICEKEEP_CONF") or HOME / "conf" / "icekeep.yaml")
if find_spec("icekeep") is None:
    sys.path.insert(0, str(HOME / "lib"))

from icekeep.operations.config import read_config  # noqa: E402
from icekeep.policies.scheduling import schedule_of  # noqa: E402
from icekeep.policies.values import JobCall, Policy  # noqa: E402

WORTH_RETRYING = frozenset({1, 3, 75})
"""Failed, done in part, try again later; any other status means that somebody must look first."""

FOUND = {"check": 3}
"""By job the status by which it says what it has found: another try would find it again."""

_STATUS = re.compile(r"Error code is: (\d+)")


class MaintenanceOperator(SparkSubmitOperator):
    """Runs a job of icekeep; a failure that another try cannot help fails the task at once."""

    def execute(self, context: Any) -> None:
        try:
            super().execute(context)
        except AirflowException as error:
            status = exit_status(str(error))
            if status is None or (status in WORTH_RETRYING and status != FOUND.get(self.task_id.rpartition(".")[2])):
                raise
            raise AirflowFailException(
                f"{self.task_id} ended with status {status}, which a retry does not help"
            ) from error


def exit_status(message: str) -> int | None:
    """The exit status in an error of Airflow's spark-submit hook, null if it names none."""
    match = _STATUS.search(message)
    return None if match is None else int(match[1])


def make_dag(policy: Policy, calls: Mapping[str, Sequence[JobCall]]) -> DAG:
    """The DAG of a policy, from the calls of each table."""
    dag = DAG(
        dag_id=f"icekeep_{policy.name}",
        description=f"Iceberg table maintenance: {', '.join(call.job for call in policy.calls)}",
        schedule=policy.schedule,
        start_date=datetime(2024, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        tags=["icekeep"],
        default_args={
            "retries": policy.retries,
            "retry_delay": timedelta(milliseconds=policy.retry_delay_ms),
            "retry_exponential_backoff": True,
            **({"execution_timeout": timedelta(milliseconds=policy.timeout_ms)} if policy.timeout_ms else {}),
            **({"pool": policy.pool} if policy.pool else {}),
        },
    )
    for table, of_table in calls.items():
        tasks = [make_task(dag, policy, table, call) for call in of_table]
        for earlier, later in pairwise(tasks):
            earlier >> later
    return dag


def make_task(dag: DAG, policy: Policy, table: str, call: JobCall) -> MaintenanceOperator:
    """The task that runs one job on one table."""
    return MaintenanceOperator(
        dag=dag,
        task_id=task_id(table, call.job),
        application=str(HOME / "jobs" / f"{call.job}.py"),
        application_args=application_args(table, call),
        name=f"icekeep {call.job} {table}",
        conn_id=policy.connection,
        conf=dict(policy.spark_conf),
    )


def task_id(table: str, job: str) -> str:
    """`catalog.namespace.table.job`; what Airflow does not allow in an id is spelled as its code point."""
    return "".join(char if re.fullmatch(r"[A-Za-z0-9_.-]", char) else f"-u{ord(char):x}-" for char in f"{table}.{job}")


def application_args(table: str, call: JobCall) -> Sequence[str]:
    """The command line of a job."""
    return [f"--table={table}", f"--config={CONF}", *call.arguments, "--output=json"]


_config = read_config(str(CONF))
for _policy in _config.policies:
    _schedule = schedule_of(_config.rules, _policy)
    if _schedule.unscheduled is None:
        globals()[f"icekeep_{_policy.name}"] = make_dag(_policy, _schedule.calls)
    else:
        logging.getLogger("icekeep").warning(
            "%s: policy %r is not scheduled by Airflow: %s", CONF, _policy.name, _schedule.unscheduled
        )
