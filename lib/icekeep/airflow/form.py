"""What somebody has typed into the form of the DAG that runs a job by hand, as a call. Pure."""

from collections.abc import Mapping
from typing import Any

from icekeep.airflow.units import JobOnTable
from icekeep.errors import UsageError
from icekeep.names import FullName
from icekeep.operations.arguments import Command, parse_command

SUBMIT, WORKER = "spark-submit", "worker"
_DRY_RUN = "--dry-run"


def asked_call(params: Mapping[str, Any], now_ms: int) -> JobOnTable:
    """What the form asks for; raises `UsageError` where the job would not understand it.

    The form is for a job's settings alone: where the configuration is and where results go, the DAG says.
    """
    job, table, arguments = str(params["job"]), str(params["table"]).strip(), tuple(map(str, params["arguments"] or ()))
    FullName.parse(table)
    try:
        command = parse_command([f"--table={table}", *arguments], job, now_ms)
    except SystemExit:
        raise UsageError("the arguments ask for help; give settings of the job") from None
    plain = Command(
        name=job,
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
    return JobOnTable(job=job, table=table, arguments=(*arguments, *dry_run), submit=params["run_by"] == SUBMIT)
