"""The operator that runs jobs of icekeep: by spark-submit, or by a process of the worker where no Spark is needed.

Where it is `deferrable` and YARN runs the driver, the task leaves its worker once YARN has accepted the job. A triggerer looks at
the application until it has ended; then a worker goes on with the task for some seconds. What YARN says of a driver that failed
holds its exit status, as it does for a spark-submit that waits, and the result is found as it is then.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from icekeep.airflow.calls import JobOnTable, unpacked
from icekeep.airflow.connections import connected
from icekeep.airflow.installation import Installation, ProcessOutput, Worker, job_words, recorded_document
from icekeep.airflow.links import ReportLink, RunbookLink, SparkLink, addresses
from icekeep.airflow.outcomes import CallOutcome, document_in, for_xcom, of_process, status_in
from icekeep.airflow.provider import table_uri
from icekeep.airflow.triggers import TIMED_OUT, UNREACHABLE, ApplicationTrigger
from icekeep.airflow.versions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    Asset,
    AssetAlias,
    BaseHook,
    defers_by_default,
)
from icekeep.airflow.yarn import CLUSTER, DOES_NOT_WAIT, ApplicationReport, ResourceManager, Waiting, yarn_of
from icekeep.errors import UsageError, first_line
from icekeep.runtime import SYSTEM

_RESULT, _ANSWER = "result.json", "answer.txt"
_TOLD_COUNT_MAX = 5
_POLL_S_MIN = 10
"""Seconds between two looks at an application, as Airflow's own operator has it at least."""


class MaintenanceOperator(SparkSubmitOperator):
    """Runs jobs of icekeep, one after the other, each whatever became of the others.

    The task fails where one failed; it is tried again where another try may help one of them. It leaves figures in XCom, also
    when it fails, and an event of the asset of each table that it committed to.

    Args:
        installation: where icekeep is.
        calls: what is run; `unit` is the same from XCom, as one mapped task group has it.
        job: of these only its calls; a task without any is skipped.
        policy: whose jobs they are; `None` where somebody asks for them.
        alias: the asset alias through which events are emitted; `None` for no events.
        icekeep_conn_id: a connection of type `icekeep`, whose catalog the jobs have beside those of the configuration.
        arguments: of `SparkSubmitOperator`; and `deferrable`, whether a triggerer waits for jobs that run on YARN in cluster
            mode. For any other the worker waits, and says why. By default as `[operators] default_deferrable` of Airflow says.
    """

    operator_extra_links = (RunbookLink(), ReportLink(), SparkLink())
    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "unit")
    conf: Any

    def __init__(
        self,
        *,
        installation: Installation,
        calls: tuple[JobOnTable, ...] = (),
        unit: Any = None,
        job: str | None = None,
        policy: str | None = None,
        alias: str | None = None,
        icekeep_conn_id: str | None = None,
        **arguments: Any,
    ) -> None:
        deferrable = arguments.pop("deferrable", None)
        if alias is not None:
            arguments["outlets"] = [*arguments.get("outlets", ()), AssetAlias(alias)]
        self._given_files: str | None = arguments.get("files")
        super().__init__(**arguments)
        self._hook: Any = None
        # A task may submit several times, and a retry of Airflow's own kind would take one submission for another.
        self.durable = False
        self.installation, self.calls, self.unit, self.job = installation, calls, unit, job
        self.policy, self.alias, self.icekeep_conn_id = policy, alias, icekeep_conn_id
        self.deferrable = defers_by_default() if deferrable is None else deferrable
        self._until_ms: int | None = None
        self._here = installation
        self._said = ProcessOutput()
        self.links: dict[str, str] = {}
        self._worker: Worker | None = None
        self._is_killed = False

    def execute(self, context: Any) -> dict[str, Any]:
        """Run the calls and say what became of them; raises Airflow's exceptions where one failed."""
        calls = [call for call in self._all_calls() if self.job in (None, call.job)]
        if not calls:
            raise AirflowSkipException(f"{self.job} is not due")
        if self.execution_timeout is not None:
            self._until_ms = SYSTEM.now_ms() + int(self.execution_timeout.total_seconds() * 1000)
        return self._all_run(calls, [], context)

    def execute_complete(self, context: Any, event: Any) -> dict[str, Any]:
        """Resume a task for whose job a triggerer has waited; see `ApplicationTrigger` for its event."""
        waiting = Waiting.unpacked(event["waiting"])
        self._until_ms = waiting.until_ms
        self._said.address, self._said.application = waiting.page, waiting.application
        ended = self._logged(self._waited_for(waiting, event))
        return self._all_run(waiting.rest, [*waiting.ended, ended], context)

    def _all_run(self, calls: Sequence[JobOnTable], ended: list[CallOutcome], context: Any) -> dict[str, Any]:
        """Run the calls after those that have ended, and say what became of all."""
        with connected(self.icekeep_conn_id, self.installation) as self._here:
            for at, call in enumerate(calls):
                one = self._run(call, context)
                if isinstance(one, Waiting):
                    self._defer(msgspec.structs.replace(one, ended=tuple(ended), rest=tuple(calls[at + 1 :])))
                elif one is not None:
                    ended.append(one)
        self.links = addresses(ended, self.installation, self._said.address)
        if not ended:
            raise AirflowSkipException("the window in which it may begin is closed")
        if all(one.hold_reason is not None for one in ended):
            raise AirflowSkipException("; ".join(one.summary for one in ended[:_TOLD_COUNT_MAX]))
        result = for_xcom(ended)
        failed = [one for one in ended if not one.is_done]
        if failed:
            context["ti"].xcom_push(key="return_value", value=result)
            raise _exception(failed, len(ended))
        self._emit(ended, context)
        return result

    def on_kill(self) -> None:
        """End what runs, and begin nothing more: Airflow goes on with the task as if nothing had happened."""
        self._is_killed = True
        if self._worker is not None:
            self._worker.stop()
        elif self._hook is not None:
            super().on_kill()

    def _all_calls(self) -> tuple[JobOnTable, ...]:
        return (*self.calls, *(unpacked(self.unit).calls if self.unit is not None else ()))

    def _run(self, call: JobOnTable, context: Any) -> CallOutcome | Waiting | None:
        """How a call ended, or that it runs on YARN; `None` where its window has closed before."""
        if self._is_killed:
            return CallOutcome(call=call, status=None, said="Airflow has ended the task before")
        if call.until_ms is not None and SYSTEM.now_ms() >= call.until_ms:
            self.log.warning("%s of %s does not begin: its window is closed", call.job, call.table)
            return None
        self._said = ProcessOutput()
        with TemporaryDirectory(prefix="icekeep-") as directory:
            ended = self._ended(call, Path(directory), context)
        return ended if isinstance(ended, Waiting) else self._logged(ended)

    def _logged(self, ended: CallOutcome) -> CallOutcome:
        if ended.is_done:
            self.log.info("%s", ended.summary)
        else:
            self.log.error("%s", ended.failure)
        return ended

    def _ended(self, call: JobOnTable, directory: Path, context: Any) -> CallOutcome | Waiting:
        connection = self._connection() if call.submit else None
        mode = self._mode(connection)
        manager = self._asked_by_a_triggerer(call, mode, connection) if self.deferrable else None
        if not call.submit:
            return self._by_worker(call, directory)
        if mode == CLUSTER:
            if self.icekeep_conn_id is not None:
                raise AirflowFailException(
                    f"connection {self.icekeep_conn_id!r} cannot be given to a driver in cluster mode without showing its "
                    "secrets; put the catalog into the configuration with ${NAME} in their place, or use client mode"
                )
            return self._in_cluster(call, directory, context, manager)
        words = job_words(call, self.policy, self._here.conf, directory / _RESULT)
        status = self._submitted(call, words, self._given_files, context)
        return CallOutcome(call=call, status=status, document=document_in(directory / _RESULT), said=self._said.line)

    def _by_worker(self, call: JobOnTable, directory: Path) -> CallOutcome:
        file, answer = directory / _RESULT, directory / _ANSWER
        words = job_words(call, self.policy, self._here.conf, file)
        self._worker = Worker(self._here, [call.job, *words], self._say)
        try:
            status = of_process(self._worker.run(answer))
        except OSError as error:
            return CallOutcome(call=call, status=None, said=f"cannot start {self.installation.python!r}: {error}")
        finally:
            self._worker = None
        ended = CallOutcome(call=call, status=status, document=document_in(file), said=self._said.line)
        if not ended.is_summary_enough:
            with answer.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    self.log.info("%s", line.rstrip())
        return ended

    def _asked_by_a_triggerer(self, call: JobOnTable, mode: str, connection: Any) -> ResourceManager | None:
        try:
            return yarn_of(call, mode, connection)
        except UsageError as error:
            self.log.info("the worker waits for %s of %s: %s", call.job, call.table, error.message)
            return None

    def _in_cluster(
        self, call: JobOnTable, directory: Path, context: Any, manager: ResourceManager | None
    ) -> CallOutcome | Waiting:
        """The driver is elsewhere: what `--files` sends lies in its working directory, and its result comes by another way."""
        results, conf = self.installation.results, self.installation.conf
        file = None if results is None else Path(results) / f"icekeep-{SYSTEM.new_uuid()}.json"
        words = job_words(call, self.policy, conf and Path(conf).name, file, "json")
        files = ",".join(filter(None, (self._given_files, conf)))
        status = self._submitted(call, words, files or None, context, waits=manager is None)
        if manager is None or status != 0:
            return self._ended_in_cluster(call, status, file, directory)
        if not self._said.application:
            return CallOutcome(call=call, status=None, said="spark-submit names no application of YARN", was_begun=True)
        waiting = Waiting(
            call=call,
            application=self._said.application,
            address=manager.address,
            page=self._said.address,
            result_file=None if file is None else str(file),
            until_ms=self._until_ms,
        )
        if self._is_killed:
            return self._given_up(waiting, "Airflow has ended the task")
        return waiting

    def _ended_in_cluster(
        self, call: JobOnTable, status: int | None, file: Path | None, directory: Path
    ) -> CallOutcome:
        """How a call ended whose driver was elsewhere, with the document that it has left."""
        document = None
        if file is not None:
            document = document_in(file)
            file.unlink(missing_ok=True)
        if document is None and self._said.application:
            document = recorded_document(self.installation, call, self._said.application, directory, self._say)
        recorded = (document or {}).get("exit_status")
        if isinstance(recorded, int) and (status is None or (status and recorded)):
            # spark-submit has but 0 and 1 to say.
            status = recorded
        was_begun = bool(self._said.application)
        return CallOutcome(call=call, status=status, document=document, said=self._said.line, was_begun=was_begun)

    def _defer(self, waiting: Waiting) -> None:
        self.log.info("a triggerer waits for %s at %s", waiting.application, waiting.address)
        trigger = ApplicationTrigger(
            address=waiting.address,
            application=waiting.application,
            poll_s=max(self._status_poll_interval, _POLL_S_MIN),
            until_ms=waiting.until_ms,
            waiting=waiting.packed(),
        )
        self.defer(trigger=trigger, method_name="execute_complete")

    def _waited_for(self, waiting: Waiting, event: Any) -> CallOutcome:
        """How the call ended for which a triggerer has waited."""
        if event["reason"] == TIMED_OUT:
            # What comes after it would begin when the time is over.
            self._is_killed = True
            return self._given_up(waiting, "the time of the task (execution_timeout) was over")
        if event["reason"] == UNREACHABLE:
            return self._given_up(waiting, f"the triggerer cannot ask YARN at {waiting.address}: {event['said']}")
        report, call = ApplicationReport(*event["report"]), waiting.call
        status: int | None = 0
        if not report.state:
            status, self._said.line = None, f"YARN does not know {waiting.application} any more"
        elif not report.has_succeeded:
            # A spark-submit that waits ends with 1 too where YARN names no exit status.
            status = status_in(report.diagnostics) or 1
            self._said.line = _first(report.diagnostics) or f"YARN says {report.state} {report.final_status}"
        file = None if waiting.result_file is None else Path(waiting.result_file)
        with TemporaryDirectory(prefix="icekeep-") as directory:
            return self._ended_in_cluster(call, status, file, Path(directory))

    def _given_up(self, waiting: Waiting, why: str) -> CallOutcome:
        """Of a call for which nobody waits any more: its application is ended, as one is whose task ends."""
        try:
            ResourceManager(waiting.address).kill(waiting.application)
            what = f"YARN was asked to end {waiting.application}"
        except OSError as error:
            what = f"YARN could not be asked to end {waiting.application}: {first_line(error)}"
        return CallOutcome(call=waiting.call, status=None, said=f"{why}; {what}", was_begun=True)

    def _submitted(
        self, call: JobOnTable, words: Sequence[str], files: str | None, context: Any, *, waits: bool = True
    ) -> int | None:
        """Submit it, wait for its end or only until it is accepted, and tell the exit status; `None` where nobody knows it."""
        self.application, first = self.installation.application(call.job)
        self.files, self.application_args = files, [*first, *words]
        self.name, self._hook = f"icekeep {call.job} {call.table}", None
        conf = self.conf
        self.conf = conf if waits else {**(conf or {}), **DOES_NOT_WAIT}
        try:
            super().execute(context)
        except Exception as error:  # noqa: BLE001 - what the hook raises differs by version and kind of cluster
            status = status_in(f"{error}\n{self._said.tail}")
            if status is None and not self._said.line:
                self._said.line = first_line(error)
            return status
        finally:
            self.conf = conf
        return 0

    def _connection(self) -> Any:
        """Of the cluster; `None` where there is none."""
        try:
            return BaseHook.get_connection(self._conn_id)
        except Exception:  # noqa: BLE001 - without a connection the hook goes on with its defaults, and says so
            return None

    def _mode(self, connection: Any) -> str:
        """The deploy mode of the policy, or of the connection."""
        if self._deploy_mode:
            return str(self._deploy_mode)
        extra = {} if connection is None else connection.extra_dejson
        return str(extra.get("deploy-mode") or (self.conf or {}).get("spark.submit.deployMode") or "")

    def _get_hook(self) -> Any:
        """The hook of spark-submit; what it reads is looked at as it goes by."""
        hook = super()._get_hook()
        process = getattr(hook, "_process_spark_submit_log", None)
        if process is not None:
            hook._process_spark_submit_log = lambda lines: process(self._said.looked_at(lines))
        return hook

    def _say(self, line: str) -> None:
        self._said.look_at(line)
        self.log.info("%s", line)

    def _emit(self, ended: Sequence[CallOutcome], context: Any) -> None:
        if self.alias is None:
            return
        events = context["outlet_events"][AssetAlias(self.alias)]
        for one in ended:
            if one.has_committed:
                events.add(Asset(table_uri(one.call.table)), extra=_extra(one))


def _first(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _extra(one: CallOutcome) -> dict[str, Any]:
    document = one.document or {}
    known = {key: document.get(key) for key in ("run_id", "snapshot_id_after", "metadata_location_after")}
    return {"job": one.call.job, **{key: value for key, value in known.items() if value is not None}}


def _exception(failed: Sequence[CallOutcome], calls_count: int) -> Exception:
    """What fails the task: with a further try where that may help one of the calls."""
    said = "; ".join(one.failure for one in failed[:_TOLD_COUNT_MAX])
    said += f"; and {len(failed) - _TOLD_COUNT_MAX} more" if len(failed) > _TOLD_COUNT_MAX else ""
    message = said if calls_count == 1 else f"{len(failed)} of {calls_count} failed: {said}"
    if any(one.is_worth_retrying for one in failed):
        return AirflowException(message)
    return AirflowFailException(message)
