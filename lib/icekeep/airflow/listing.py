"""The first task of a policy whose tables are known only when a run begins, the last, which says how the run has ended, and the
only one of a policy that cannot be run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from icekeep.airflow.connections import connected
from icekeep.airflow.due_calls import due_calls
from icekeep.airflow.installation import Installation
from icekeep.airflow.outcomes import CallOutcome, document_in, of_process
from icekeep.airflow.units import JobOnTable, packed, units_of
from icekeep.airflow.versions import AirflowException, AirflowFailException, BaseOperator, states_of_run
from icekeep.airflow.worker import Worker
from icekeep.errors import and_more
from icekeep.policies.values import Policy, Rules
from icekeep.runtime import SYSTEM

LISTING = "maintain"
NOT_READ = "not_read"
"""The key of XCom under which the first task names what it could not look at, for the last."""

_PARTIAL = 3
_NAMES_COUNT_MAX = 20
_BAD = frozenset({"failed", "upstream_failed"})


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
        context["ti"].xcom_push(key=NOT_READ, value=not_read[:_NAMES_COUNT_MAX])
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
        parts = [f"{len(bad)} failed: {_named(bad)}"] if bad else []
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


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES_COUNT_MAX]) + and_more(names, _NAMES_COUNT_MAX)
