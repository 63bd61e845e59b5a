"""A flow of Prefect that maintains tables: `python prefect_icekeep.py` serves it, with icekeep_process.py beside it."""

from typing import Any

from icekeep_process import RETRIES, RETRY_SECONDS, TRY_AGAIN, Ended, run
from prefect import flow, get_run_logger, task
from prefect.tasks import exponential_backoff


def may_get_better(task: Any, task_run: Any, state: Any) -> bool:
    """Whether another try may help; Prefect asks it of a task that has failed."""
    failure = state.result(raise_on_failure=False)
    return isinstance(failure, Ended) and failure.status == TRY_AGAIN


@task(
    retries=RETRIES,
    retry_delay_seconds=exponential_backoff(backoff_factor=RETRY_SECONDS),
    retry_condition_fn=may_get_better,
)
def maintain() -> dict[str, Any]:
    """All that the policies want."""
    return run("maintain", "--max-minutes", "240", say=get_run_logger().info)


@flow
def nightly() -> dict[str, Any]:
    """What `maintain` says of its run, for the flows that call this one."""
    return maintain()


if __name__ == "__main__":
    nightly.serve(cron="0 2 * * *")
