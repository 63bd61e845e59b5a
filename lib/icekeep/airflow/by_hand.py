"""A DAG to run one job on one table when somebody asks, with a form in Airflow's page."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from icekeep.airflow.form import SUBMIT, WORKER, asked_call
from icekeep.airflow.installation import Installation
from icekeep.airflow.operators import MaintenanceOperator
from icekeep.airflow.submitting import arguments_of_defaults
from icekeep.airflow.units import Unit, packed
from icekeep.airflow.versions import DAG, AirflowFailException, BaseOperator, Param
from icekeep.errors import UsageError
from icekeep.operations.jobs import POLICY_JOBS
from icekeep.policies.values import Layer
from icekeep.runtime import SYSTEM

BY_HAND = "icekeep_by_hand"


class AskedOperator(BaseOperator):
    """Checks what somebody has typed into the form, and leaves it in XCom as a unit."""

    def execute(self, context: Any) -> Any:
        """The unit; raises Airflow's exception where something is wrong with it."""
        try:
            call = asked_call(context["params"], SYSTEM.now_ms())
        except UsageError as error:
            raise AirflowFailException(error.message) from error
        return packed([Unit(name=call.table, calls=(call,))])[0]


def by_hand_dag(defaults: Layer, installation: Installation, submit: Mapping[str, Any]) -> DAG:
    """The DAG; spark-submit is told what the `defaults` of the configuration say, and `submit`."""
    with DAG(
        dag_id=BY_HAND,
        description="One job on one Iceberg table",
        schedule=None,
        start_date=datetime(2024, 1, 1, tzinfo=UTC),
        catchup=False,
        tags=["icekeep"],
        params={
            "table": Param("", type="string", minLength=5, title="Table", description="CATALOG.NAMESPACE.TABLE"),
            "job": Param(POLICY_JOBS[0], type="string", enum=[*POLICY_JOBS], title="Job"),
            "arguments": Param(
                [],
                type="array",
                items={"type": "string"},
                title="Arguments",
                description="Settings of the job as its command line has them, one a line, such as --older-than=7d",
            ),
            "dry_run": Param(True, type="boolean", title="Dry run", description="Show the plan and change nothing"),
            "run_by": Param(
                SUBMIT,
                type="string",
                enum=[SUBMIT, WORKER],
                title="Run by",
                description="spark-submit, or a process of the worker, which is enough for small tables",
            ),
        },
        doc_md="Runs one job on one table. What it did, or would do, stands in the log and in XCom of the task `job`.",
    ) as dag:
        asked = AskedOperator(task_id="asked", retries=0)
        MaintenanceOperator(
            task_id="job",
            installation=installation,
            alias=BY_HAND,
            unit=asked.output,
            **{**arguments_of_defaults(defaults), **submit},
        )
    return dag
