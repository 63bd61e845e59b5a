"""A DAG to run one job on one table when somebody asks, with a form in Airflow's page."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from icekeep.airflow.installation import Installation
from icekeep.airflow.operators import MaintenanceOperator
from icekeep.airflow.submitting import arguments_of_defaults
from icekeep.airflow.units import Call, Unit, packed
from icekeep.airflow.versions import DAG, AirflowFailException, BaseOperator, Param
from icekeep.errors import UsageError
from icekeep.operations.arguments import Command, parse_command
from icekeep.operations.jobs import POLICY_JOBS
from icekeep.policies.values import Layer
from icekeep.runtime import SYSTEM

BY_HAND = "icekeep_by_hand"
_DRY_RUN = "--dry-run"


class AskedOperator(BaseOperator):
    """Checks what somebody has typed into the form, and leaves it in XCom as a unit."""

    def execute(self, context: Any) -> Any:
        """The unit; raises Airflow's exception where something is wrong with it."""
        try:
            call = asked_call(context["params"], SYSTEM.now_ms())
        except UsageError as error:
            raise AirflowFailException(error.message) from error
        return packed([Unit(name=call.table, calls=(call,))])[0]


def asked_call(params: Mapping[str, Any], now_ms: int) -> Call:
    """What the form asks for; raises `UsageError` where the job would not understand it.

    The form is for a job's settings alone: where the configuration is and where results go, the DAG says.
    """
    job, table, arguments = str(params["job"]), str(params["table"]).strip(), tuple(map(str, params["arguments"] or ()))
    if len(table.split(".")) < 3:
        raise UsageError(f"{table!r} is no full name of a table; give CATALOG.NAMESPACE.TABLE")
    try:
        command = parse_command([f"--table={table}", *arguments], job, now_ms, "")
    except SystemExit:
        raise UsageError("the arguments ask for help; give settings of the job") from None
    plain = Command(
        name=job,
        conf=None,
        output="table",
        result_file=None,
        verbose=command.verbose,
        table=table,
        dry_run=command.dry_run,
        arguments=command.arguments,
    )
    if command != plain:
        raise UsageError(
            "the arguments name a table, a catalog, a configuration or an output; give settings of the job"
        )
    dry_run = (_DRY_RUN,) if params["dry_run"] and not command.dry_run else ()
    return Call(job=job, table=table, arguments=(*arguments, *dry_run), submit=params["run_by"] == "spark-submit")


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
                "spark-submit",
                type="string",
                enum=["spark-submit", "worker"],
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
