"""DAGs from the policies of a configuration, and one to run a job by hand.

A policy that lists its tables and asks nothing of them has a chain of tasks for each table. Any other has a task that asks what
is due, and a mapped task group over what it answers. In either a job runs whatever became of the one before it on the same
table, and the last task fails where any has failed.

A policy whose schedule is wrong has a DAG that only says so: an import error would stop the DAGs of all others of the file too.
"""

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from icekeep.airflow.calls import (
    SUBMIT,
    WORKER,
    JobOnTable,
    Unit,
    arguments_of_defaults,
    asked_call,
    packed,
    submit_arguments,
)
from icekeep.airflow.due import NAMES_COUNT_MAX, NOT_READ, DueOperator
from icekeep.airflow.installation import Installation
from icekeep.airflow.operators import MaintenanceOperator
from icekeep.airflow.versions import DAG, AirflowFailException, BaseOperator, Param, states_of_run, task_group
from icekeep.errors import ConfigError, UsageError, and_more
from icekeep.maintenance import compact
from icekeep.operations.configuration.file import Configuration, read_config
from icekeep.operations.jobs import POLICY_JOBS
from icekeep.policies.resolution import Schedule, schedule_of
from icekeep.policies.values import Layer, Policy, Rules
from icekeep.runtime import SYSTEM

UNITS_COUNT_MAX = 256
"""How many mapped task groups a run has at most; Airflow refuses more than `core.max_map_length`, 1024."""

_START = datetime(2024, 1, 1, tzinfo=UTC)
_NO_POOL = "default_pool"
BY_HAND = "icekeep_by_hand"
_ALL_DONE, _ALL_SUCCESS = "all_done", "all_success"
_BAD = frozenset({"failed", "upstream_failed"})
_LISTING, _TABLES, _OUTCOME, _REFUSED = "due", "tables", "outcome", "schedule"


def dags(
    conf: str | Path,
    *,
    home: str | Path | None = None,
    python: str | None = None,
    results: str | Path | None = None,
    units_count_max: int = UNITS_COUNT_MAX,
    submit: Mapping[str, Any] | None = None,
    icekeep_conn_id: str | None = None,
) -> dict[str, DAG]:
    """A DAG for each policy of a configuration, `icekeep_POLICY`, and `icekeep_by_hand`; by their ids.

    The DAG of a policy whose schedule is wrong has no schedule, is paused, and fails with the line of the error when it is run.

    Args:
        conf: the configuration, at a path that workers have too.
        home: a checkout with `jobs/` and `lib/`; by default `python` has icekeep installed.
        python: the Python of the workers that has what icekeep needs; by default the one that runs Airflow.
        results: a directory that workers and the drivers of cluster mode both see; without it a job in cluster mode has no
            result in XCom, and no asset event.
        units_count_max: see `UNITS_COUNT_MAX`.
        submit: more arguments of Airflow's `SparkSubmitOperator`, such as `num_executors`, for all jobs.
        icekeep_conn_id: a connection of type `icekeep`, whose catalog all jobs have beside those of the configuration.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it cannot be read, is not YAML, or has a wrong key (`ConfigError`) other than a policy's schedule.
    """
    config = read_config(str(conf), checks_schedules=False)
    installation = msgspec.structs.replace(
        Installation.of_worker(),
        conf=str(conf),
        python=python or sys.executable,
        home=None if home is None else str(home),
        results=None if results is None else str(results),
    )
    found = {}
    common = {**(submit or {}), **({"icekeep_conn_id": icekeep_conn_id} if icekeep_conn_id else {})}
    for policy in config.policies:
        if policy.name in config.wrong_schedules:
            dag = _wrong_dag(policy, config.wrong_schedules[policy.name])
        else:
            dag = _policy_dag(config, policy, installation, units_count_max, common)
        found[dag.dag_id] = dag
    if BY_HAND in found:
        logging.getLogger("icekeep").warning(
            "%s: a policy has the name by_hand, so there is no DAG to run a job by hand", conf
        )
    else:
        found[BY_HAND] = by_hand_dag(config.rules.defaults, installation, common)
    for dag in found.values():
        # Airflow takes the file of the frame that makes a DAG for the file of the DAG, and looks for it there later.
        dag.fileloc = sys._getframe(1).f_code.co_filename
    return found


def task_id(table: str, job: str) -> str:
    """`catalog.namespace.table.job`; what Airflow does not allow in an id is spelled as its code point."""
    return "".join(char if re.fullmatch(r"[A-Za-z0-9_.-]", char) else f"-u{ord(char):x}-" for char in f"{table}.{job}")


class OutcomeOperator(BaseOperator):
    """Fails where a task of this run has failed, and names those: the last job of a table runs whatever became of the others.

    Args:
        listing: the first task, where there is one.
    """

    def __init__(self, *, listing: str | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.listing = listing

    def execute(self, context: Any) -> None:
        """Look at all tasks of the run."""
        bad = sorted(name for name, state in states_of_run(context).items() if state in _BAD)
        not_read: Sequence[str] = ()
        if self.listing is not None:
            instance = context["ti"]
            not_read = instance.xcom_pull(task_ids=self.listing, key=NOT_READ) or ()
            units = instance.xcom_pull(task_ids=self.listing) if bad else ()
            bad = [_of_unit(name, units or ()) for name in bad]
        if not bad and not not_read:
            return
        parts = (
            [f"{len(bad)} failed: {', '.join(bad[:NAMES_COUNT_MAX])}{and_more(bad, NAMES_COUNT_MAX)}"] if bad else []
        )
        parts += [f"tables could not be looked at: {'; '.join(not_read)}"] if not_read else []
        raise AirflowFailException("; ".join(parts))


class RefusedOperator(BaseOperator):
    """Fails with the reason for which a policy is not run; the only task of its DAG.

    Args:
        reason: the line.
    """

    def __init__(self, *, reason: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.reason = reason

    def execute(self, context: Any) -> None:
        """Fail."""
        raise AirflowFailException(self.reason)


def _of_unit(name: str, units: Sequence[Any]) -> str:
    """The name of an instance of a mapped task, `TASK_INDEX`, as people know it."""
    task, _, index = name.rpartition("_")
    is_mapped = index.isdecimal() and int(index) < len(units)
    return f"{task.rpartition('.')[2]} {units[int(index)]['name']}" if is_mapped else name


class _Maker:
    """Makes the tasks of one policy's DAG."""

    def __init__(self, rules: Rules, policy: Policy, installation: Installation, submit: Mapping[str, Any]) -> None:
        self.rules, self.policy, self.installation = rules, policy, installation
        self._submit = {**submit_arguments(policy), **submit}
        self.icekeep_conn_id = submit.get("icekeep_conn_id")

    @property
    def dag_id(self) -> str:
        """Also the alias of the assets that its tasks commit to."""
        return _dag_id(self.policy)

    def chain(self, tasks: Mapping[str, Mapping[str, Any]]) -> list[MaintenanceOperator]:
        """Tasks by their ids, one after the other, each whatever became of the one before it."""
        made: list[MaintenanceOperator] = []
        for task_id, arguments in tasks.items():
            task = MaintenanceOperator(
                task_id=task_id,
                installation=self.installation,
                policy=self.policy.name,
                alias=self.dag_id,
                trigger_rule=_ALL_DONE if made else _ALL_SUCCESS,
                **self._submit,
                **arguments,
            )
            made[-1:] >> task
            made.append(task)
        return made

    def outcome(self, **arguments: Any) -> OutcomeOperator:
        """The last task."""
        return OutcomeOperator(task_id=_OUTCOME, trigger_rule=_ALL_DONE, retries=0, pool=_NO_POOL, **arguments)


def _dag_id(policy: Policy) -> str:
    return f"icekeep_{policy.name}"


def _wrong_dag(policy: Policy, error: ConfigError) -> DAG:
    """In the place of the DAG of a policy whose schedule is wrong."""
    logging.getLogger("icekeep").error("policy %r is not scheduled: %s", policy.name, error.message)
    with DAG(
        dag_id=_dag_id(policy),
        description=f"Not scheduled: {error.message}",
        schedule=None,
        start_date=_START,
        catchup=False,
        is_paused_upon_creation=True,
        tags=["icekeep", "icekeep-error"],
        doc_md=f"Policy `{policy.name}` is not scheduled: {error.message}",
    ) as dag:
        RefusedOperator(task_id=_REFUSED, reason=error.message, retries=0, pool=_NO_POOL)
    return dag


def _policy_dag(
    config: Configuration, policy: Policy, installation: Installation, units_count_max: int, submit: Mapping[str, Any]
) -> DAG:
    schedule = schedule_of(config.rules, policy)
    for one in schedule.never_run:
        logging.getLogger("icekeep").warning("%s: %s", config.path, one.line)
    maker = _Maker(config.rules, policy, installation, submit)
    with DAG(
        dag_id=maker.dag_id,
        description=f"Iceberg table maintenance: {', '.join(call.job for call in policy.calls)}",
        schedule=policy.schedule,
        start_date=_START,
        catchup=False,
        max_active_runs=1,
        tags=["icekeep"],
        doc_md=_doc(config, policy, schedule),
        default_args={
            "retries": policy.retries,
            "retry_delay": timedelta(milliseconds=policy.retry_delay_ms),
            "retry_exponential_backoff": True,
            **({"execution_timeout": timedelta(milliseconds=policy.timeout_ms)} if policy.timeout_ms else {}),
            **({"pool": policy.pool} if policy.pool else {}),
        },
    ) as dag:
        if schedule.asks is None:
            _listed(maker, schedule)
        else:
            _mapped(maker, units_count_max)
    return dag


def _listed(maker: _Maker, schedule: Schedule) -> None:
    """A chain of tasks for each table."""
    is_submitted = maker.policy.submit_over_bytes is not None
    outcome = maker.outcome()
    for table, calls in schedule.calls.items():
        one = [JobOnTable(job=call.job, table=table, arguments=call.arguments, submit=is_submitted) for call in calls]
        chain = maker.chain({task_id(table, call.job): {"calls": (call,)} for call in one})
        chain[-1:] >> outcome


def _mapped(maker: _Maker, units_count_max: int) -> None:
    """A task that asks what is due, and a mapped task group with a task for each job."""
    due = DueOperator(
        task_id=_LISTING,
        installation=maker.installation,
        policy=maker.policy,
        rules=maker.rules,
        units_count_max=units_count_max,
        icekeep_conn_id=maker.icekeep_conn_id,
        pool=_NO_POOL,
    )

    @task_group(group_id=_TABLES)
    def tables(unit: Any) -> None:
        named = {"unit": unit, "map_index_template": "{{ task.unit['name'] }}"}
        maker.chain({call.job: {"job": call.job, **named} for call in maker.policy.calls})

    [due, tables.expand(unit=due.output)] >> maker.outcome(listing=_LISTING)


def _doc(config: Configuration, policy: Policy, schedule: Schedule) -> str:
    """What the DAG's page in Airflow says."""
    how = "listed in the file" if schedule.asks is None else f"asked for when a run begins: {schedule.asks}"
    others = ", ".join(schedule.left_to_others)
    left = f" An earlier policy of the file decides of {others}." if others else ""
    return f"Policy `{policy.name}` of `{config.path}`. Its tables are {how}.{left}"


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
        start_date=_START,
        catchup=False,
        tags=["icekeep"],
        params={
            "table": Param("", type="string", minLength=5, title="Table", description="CATALOG.NAMESPACE.TABLE"),
            "job": Param(compact.JOB.name, type="string", enum=[*POLICY_JOBS], title="Job"),
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
