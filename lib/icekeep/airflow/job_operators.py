"""An operator for each job, for DAGs of one's own: `CompactOperator(task_id="compact", table="prod.sales.orders")`.

Each is made from the job's settings, as its command line is: a new setting is a keyword here without a line written for it. What
the DAG's file says is checked when Airflow reads it, and what a template has rendered when the task runs.
"""

import inspect
from collections.abc import Mapping
from datetime import datetime
from types import new_class
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from icekeep.airflow.calls import JobOnTable
from icekeep.airflow.installation import Installation
from icekeep.airflow.operators import MaintenanceOperator
from icekeep.airflow.signatures import OFFERED, doc_of, operator_name, signature_of
from icekeep.airflow.versions import AirflowFailException, BaseOperator
from icekeep.errors import UsageError
from icekeep.names import FullName
from icekeep.operations.configuration.setting_values import setting_arguments
from icekeep.operations.help_texts import option_names
from icekeep.policies.resolution import DRY_RUN
from icekeep.settings import Job, Setting, SettingKind
from icekeep.spelling import named_or_known, near_words

_MARKS = ("{{", "{%", "{#")
_PLAIN = (str, bool, int, float, datetime)


class JobOperator(MaintenanceOperator):
    """What the operators of all jobs have in common; `JOB` is the job of one of them.

    Raises:
        UsageError: a value is one that the job cannot take, or a keyword is misspelt.
    """

    JOB: Job

    def __init__(
        self,
        *,
        table: str,
        spark: bool = False,
        dry_run: bool = False,
        installation: Installation | None = None,
        **arguments: Any,
    ) -> None:
        settings = {setting.argument: arguments.pop(setting.argument, None) for setting in self.JOB.settings}
        self._check_keywords(arguments, spark)
        where = installation or Installation.of_worker()
        super().__init__(installation=where, **arguments)
        self.table, self.spark, self._is_dry_run = table, spark, dry_run
        for name, value in settings.items():
            setattr(self, name, value)
        try:
            self._call(is_rendered=False)
        except UsageError as error:
            raise UsageError(f"task {self.task_id!r}: {error.message}") from None

    def _all_calls(self) -> tuple[JobOnTable, ...]:
        try:
            return (self._call(is_rendered=True),)
        except UsageError as error:
            raise AirflowFailException(error.message) from error

    def _call(self, *, is_rendered: bool) -> JobOnTable:
        """The call that the values say; those that are templates still are left out where nothing is rendered yet."""
        if is_rendered or not _is_template(self.table):
            try:
                FullName.parse(self.table)
            except UsageError as error:
                raise UsageError(f"table: {error.message}") from None
        words: list[str] = []
        for setting in self.JOB.settings:
            value = getattr(self, setting.argument)
            if value is not None and (is_rendered or not _is_template(value)):
                words += self._words(setting, value)
        dry_run = [DRY_RUN] if self._is_dry_run else []
        return JobOnTable(job=self.JOB.name, table=self.table, arguments=(*words, *dry_run), submit=self.spark)

    def _words(self, setting: Setting, value: Any) -> list[str]:
        try:
            if setting.kind not in (SettingKind.OPTIONS, SettingKind.PAIRS):
                return [*setting_arguments(setting, _text(value))]
            if not isinstance(value, Mapping):
                raise UsageError(f"{value!r} is not a mapping; give {{key: value}}")
            if setting.kind is SettingKind.OPTIONS:
                self._check_options(value)
            return [word for key, one in value.items() for word in setting_arguments(setting, _text(one), str(key))]
        except UsageError as error:
            raise UsageError(f"{setting.argument}: {error.message}") from None

    def _check_options(self, options: Mapping[str, Any]) -> None:
        try:
            known = option_names(self.JOB)
        except UsageError:
            # Airflow's environment may lack what the job needs; the job itself looks again.
            return
        wrong = next((name for name in options if name not in known), None)
        if wrong is not None:
            raise UsageError(f"there is no option {wrong!r}; {named_or_known(wrong, known)}")

    def _check_keywords(self, arguments: dict[str, Any], spark: bool) -> None:
        """Airflow names a keyword that nobody knows too, but neither the one that is meant nor that spark-submit is not used."""
        of_airflow, of_spark = _keywords(BaseOperator), _keywords(SparkSubmitOperator)
        names = [*signature_of(self.JOB).parameters]
        for key in arguments:
            if key in of_spark and key not in of_airflow and not spark:
                raise UsageError(
                    f"task {arguments.get('task_id')!r}: {key} is for spark-submit; give spark=True with it"
                )
            if key not in {*of_airflow, *of_spark, *names} and near_words(key, names):
                near = named_or_known(key, names)
                raise UsageError(f"task {arguments.get('task_id')!r}: there is no argument {key!r}; {near}")


def _keywords(operator: Any) -> set[str]:
    return {name for cls in (operator,) for name in inspect.signature(cls.__init__).parameters}


def _is_template(value: Any) -> bool:
    """Whether Airflow makes of it what it is to be: it holds a template, or is what another task leaves."""
    if isinstance(value, str):
        return any(mark in value for mark in _MARKS)
    if isinstance(value, Mapping):
        return any(_is_template(one) for one in (*value, *value.values()))
    if isinstance(value, list | tuple):
        return any(_is_template(one) for one in value)
    return not isinstance(value, _PLAIN)


def _text(value: Any) -> str:
    """A value as the command line has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _operator(job: Job) -> type[JobOperator]:
    """The operator of a job."""

    def __init__(self: Any, **arguments: Any) -> None:
        super(made, self).__init__(**arguments)

    __init__.__signature__ = signature_of(job)  # type: ignore[attr-defined]
    templated = ("table", *(setting.argument for setting in job.settings))
    made: type[JobOperator] = new_class(
        operator_name(job),
        (JobOperator,),
        exec_body=lambda names: names.update(
            {
                "JOB": job,
                "__doc__": doc_of(job),
                "__module__": __name__,
                "__init__": __init__,
                "template_fields": (*MaintenanceOperator.template_fields, *templated),
            }
        ),
    )
    return made


OPERATORS = {made.__name__: made for made in map(_operator, OFFERED)}
"""By name."""

globals().update(OPERATORS)
