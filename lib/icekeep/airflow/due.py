"""What is due, by `icekeep maintain --list`: the first task of policies without a list of tables, and a sensor for one table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from icekeep.airflow.calls import JobOnTable, due_calls, packed, units_of
from icekeep.airflow.connections import connected
from icekeep.airflow.installation import Installation, Worker
from icekeep.airflow.outcomes import CallOutcome, document_in, of_process
from icekeep.airflow.versions import (
    AirflowException,
    AirflowFailException,
    AirflowSensorTimeout,
    BaseOperator,
    BaseSensorOperator,
    PokeReturnValue,
    defers_by_default,
    trigger_after,
)
from icekeep.errors import UsageError
from icekeep.names import FullName
from icekeep.policies.values import Policy, Rules
from icekeep.runtime import SYSTEM

LISTING = "maintain"
NOT_READ = "not_read"
"""The key of XCom under which the first task names what it could not look at, for the last."""

_PARTIAL = 3
NAMES_COUNT_MAX = 20
"""How many tables or tasks are named at most."""


class DueListing:
    """Asks `icekeep maintain --list` what is due.

    Args:
        icekeep_conn_id: a connection of type `icekeep`, whose catalog is asked too; `None` for none.
        log: gets each line that it prints.
    """

    def __init__(self, installation: Installation, icekeep_conn_id: str | None, log: Any) -> None:
        self._installation, self._icekeep_conn_id, self._log = installation, icekeep_conn_id, log
        self._worker: Worker | None = None

    def due(self, *words: str) -> Mapping[str, Any]:
        """The result, of the tables and the policy that `words` choose; raises Airflow's exceptions where there is no answer."""
        with (
            connected(self._icekeep_conn_id, self._installation) as here,
            TemporaryDirectory(prefix="icekeep-") as directory,
        ):
            file = Path(directory) / "due.json"
            config = [] if here.conf is None else [f"--config={here.conf}"]
            asked = [LISTING, "--list", *words, *config, f"--result-file={file}"]
            self._worker = Worker(here, asked, lambda line: self._log.info("%s", line))
            try:
                status = of_process(self._worker.run())
            except OSError as error:
                raise AirflowException(f"cannot start {self._installation.python!r}: {error}") from error
            document = document_in(file)
        found = (document or {}).get("result")
        if status in (0, _PARTIAL) and isinstance(found, Mapping):
            return found
        ended = CallOutcome(
            call=JobOnTable(job=f"{LISTING} --list", table=""), status=status or None, document=document
        )
        raise (AirflowException if ended.is_worth_retrying else AirflowFailException)(ended.failure)

    def stop(self) -> None:
        """End what runs."""
        if self._worker is not None:
            self._worker.stop()


class DueOperator(BaseOperator):
    """Asks `icekeep maintain --list` what of a policy is due, and leaves it in XCom as units to map over.

    Args:
        units_count_max: how many mapped task groups there may be; where more tables have something due, several share one.
        icekeep_conn_id: a connection of type `icekeep`, whose catalog is asked too.
    """

    def __init__(
        self,
        *,
        installation: Installation,
        policy: Policy,
        rules: Rules,
        units_count_max: int,
        icekeep_conn_id: str | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.installation, self.policy, self.rules = installation, policy, rules
        self.units_count_max, self.icekeep_conn_id = units_count_max, icekeep_conn_id
        self._listing: DueListing | None = None

    def execute(self, context: Any) -> list[Any]:
        """Ask, and give the units; raises Airflow's exceptions where there is no answer."""
        self._listing = DueListing(self.installation, self.icekeep_conn_id, self.log)
        found = self._listing.due(f"--policy={self.policy.name}")
        not_read = [f"{one['name']}: {one['reason']}" for one in found.get(NOT_READ, ())]
        context["ti"].xcom_push(key=NOT_READ, value=not_read[:NAMES_COUNT_MAX])
        for line in not_read:
            self.log.error("cannot look at %s", line)
        for note in found.get("notes", ()):
            self.log.warning("%s", note)
        units = units_of(due_calls(found, self.policy, self.rules, SYSTEM.now_ms()), self.units_count_max)
        self.log.info("policy %s: %s task groups for %s tables", self.policy.name, len(units), len(found["tables"]))
        return packed(units)

    def on_kill(self) -> None:
        """End what runs."""
        if self._listing is not None:
            self._listing.stop()


class TableDueSensor(BaseSensorOperator):
    """Waits until a policy's jobs are due on a table; XCom has their names, in the order in which the policy has them.

    Each look is a process of some seconds in a worker. With `deferrable=True` a triggerer waits between two looks, and no worker
    slot is held.

    Args:
        table: CATALOG.NAMESPACE.TABLE, the catalog as the configuration calls it. Templated.
        policy: the policy whose conditions (`when`) are asked; by default all that have a schedule. Templated.
        deferrable: whether a triggerer waits. By default as `[operators] default_deferrable` of Airflow says; not where `mode`
            frees the worker already.
        installation: where icekeep is; by default as the variables of the worker say.
        icekeep_conn_id: a connection of type `icekeep`, whose catalog is asked too.
        arguments: of `BaseSensorOperator`, such as `poke_interval`, `timeout`, `mode` and `soft_fail`.

    Raises:
        UsageError: `table` is no full name, or `mode` is given beside `deferrable`.
    """

    template_fields: Sequence[str] = ("table", "policy")

    def __init__(
        self,
        *,
        table: str,
        policy: str | None = None,
        deferrable: bool | None = None,
        installation: Installation | None = None,
        icekeep_conn_id: str | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        if "{" not in table:
            self._check(table)
        if deferrable and self.mode != "poke":
            raise UsageError(
                f"task {self.task_id!r}: deferrable frees the worker by itself; leave out mode={self.mode!r}"
            )
        self.table, self.policy = table, policy
        self.deferrable = self.mode == "poke" and defers_by_default() if deferrable is None else deferrable
        self.installation, self.icekeep_conn_id = installation, icekeep_conn_id
        self._listing: DueListing | None = None

    def execute(self, context: Any) -> Any:
        """Wait; raises `AirflowSensorTimeout` after `timeout` seconds."""
        # `soft_fail` is heeded by this one method of Airflow, whichever look it is.
        return self.resume_execution("look", None, context) if self.deferrable else super().execute(context)

    def look(self, context: Any, event: Any = None, until_ms: int | None = None) -> Any:
        """Look once, and have a triggerer wait where nothing is due.

        Args:
            until_ms: when the waiting ends, epoch milliseconds; `None` for the first look.
        """
        found = self.poke(context)
        if found:
            return found.xcom_value
        now_ms = SYSTEM.now_ms()
        if until_ms is not None and now_ms >= until_ms:
            raise AirflowSensorTimeout(f"nothing was due on {self.table} within {self.timeout:g} seconds")
        end_ms = now_ms + int(self.timeout * 1000) if until_ms is None else until_ms
        wait_s = min(self.poke_interval, max(0.0, (end_ms - now_ms) / 1000))
        self.defer(trigger=trigger_after(wait_s), method_name="look", kwargs={"until_ms": end_ms})

    def poke(self, context: Any) -> Any:
        """Whether something is due; raises Airflow's exceptions where there is no answer."""
        self._check(self.table)
        words = [f"--tables={self.table}", *([f"--policy={self.policy}"] if self.policy else [])]
        self._listing = DueListing(self.installation or Installation.of_worker(), self.icekeep_conn_id, self.log)
        found = self._listing.due(*words)
        for one in found.get(NOT_READ, ()):
            raise AirflowException(f"cannot look at {one['name']}: {one['reason']}")
        # One that a policy only observes would change nothing.
        due = [job["job"] for table in found["tables"] for job in table["jobs"] if not job["observes"]]
        self.log.info("%s: %s", self.table, f"due: {', '.join(due)}" if due else "nothing is due")
        return PokeReturnValue(is_done=bool(due), xcom_value=due or None)

    def on_kill(self) -> None:
        """End what runs."""
        if self._listing is not None:
            self._listing.stop()

    def _check(self, table: str) -> None:
        try:
            FullName.parse(table)
        except UsageError as error:
            message = f"task {self.task_id!r}: table: {error.message}"
            raise (UsageError if not hasattr(self, "table") else AirflowFailException)(message) from None
