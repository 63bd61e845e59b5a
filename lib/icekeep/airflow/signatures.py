"""How the operators of the jobs look to those who write DAGs: names, signatures and docstrings, from the jobs' settings. Pure.

`__init__.pyi` says the same to editors and type checkers, which run no code; `.ci/docs/reference.py` writes it from here.
"""

import inspect
from collections.abc import Iterator
from textwrap import indent, wrap
from typing import Any

from icekeep.operations.help_texts import sentence
from icekeep.operations.jobs import JOBS, POLICY_JOBS
from icekeep.settings import Job, SettingKind

OFFERED: tuple[Job, ...] = tuple(JOBS[name] for name in POLICY_JOBS)
"""The jobs that have an operator: those that a policy may ask for. The others are for somebody who has looked at the table."""

_TYPES = {
    SettingKind.SWITCH: "bool | str | None",
    SettingKind.NUMBER: "int | str | None",
    SettingKind.NUMBER_OR_ALL: "int | str | None",
    SettingKind.TIME: "str | datetime | None",
    SettingKind.IDS: "int | str | list[int] | None",
    SettingKind.NAMES: "str | list[str] | None",
    SettingKind.LOCATIONS: "str | list[str] | None",
    SettingKind.OPTIONS: "dict[str, Any] | None",
    SettingKind.PAIRS: "dict[str, str] | None",
}
"""By the kind of a setting the type of its keyword; any other is a text."""

_COMMON = {
    "task_id": ("str", "of the task."),
    "table": ("str", "CATALOG.NAMESPACE.TABLE, the catalog as the configuration calls it. Templated."),
    "spark": ("bool", "whether spark-submit runs it; by default a process of the worker does, which suits small tables."),
    "dry_run": ("bool", "whether it shows its plan and changes nothing."),
    "installation": ("Installation | None", "where icekeep is; by default as the variables ICEKEEP_CONFIG, ICEKEEP_PYTHON, "
                     "ICEKEEP_HOME, ICEKEEP_RESULTS, ICEKEEP_DOCS_URL and ICEKEEP_REPORT_URL of the worker say."),
    "icekeep_conn_id": ("str | None", "a connection of type `icekeep`, whose catalog the job has too."),
    "deferrable": ("bool | None", "whether a triggerer waits for a job that runs on YARN in cluster mode; for any other the "
                   "worker waits. By default as `[operators] default_deferrable` of Airflow says."),
    "alias": ("str | None", "the asset alias under which a commit is an event; by default there are no events."),
}  # fmt: skip
_REQUIRED = ("task_id", "table")
_DEFAULTS: dict[str, Any] = {
    "spark": False,
    "dry_run": False,
    "installation": None,
    "icekeep_conn_id": None,
    "deferrable": None,
    "alias": None,
}


def operator_name(job: Job) -> str:
    """The name of the operator of a job: `ExpireSnapshotsOperator`."""
    return "".join(part.capitalize() for part in job.name.split("_")) + "Operator"


def signature_of(job: Job) -> inspect.Signature:
    """The signature of the operator's `__init__`."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    made = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    made += [inspect.Parameter(name, keyword, annotation=_COMMON[name][0]) for name in _REQUIRED]
    made += [
        inspect.Parameter(one.argument, keyword, default=None, annotation=_TYPES.get(one.kind, "str | None"))
        for one in job.settings
    ]
    made += [
        inspect.Parameter(name, keyword, default=default, annotation=_COMMON[name][0])
        for name, default in _DEFAULTS.items()
    ]
    made.append(inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD, annotation="Any"))
    return inspect.Signature(made, return_annotation=None)


def doc_of(job: Job) -> str:
    """The docstring of the operator."""
    told = {name: _COMMON[name][1] for name in _REQUIRED}
    told |= {one.argument: f"{one.help}. Templated." for one in job.settings}
    told |= {name: _COMMON[name][1] for name in _DEFAULTS}
    told["arguments"] = "of `BaseOperator`, and with `spark=True` of `SparkSubmitOperator`, such as `conn_id`."
    lines = [
        line
        for name, text in told.items()
        for line in wrap(f"{name}: {text}", 116, initial_indent="    ", subsequent_indent="        ")
    ]
    return "\n".join([f"{sentence(job.summary)}\n\nArgs:", *lines])


def stub() -> str:
    """The text of `__init__.pyi`."""
    return "\n".join(_stub_lines()) + "\n"


def _stub_lines() -> Iterator[str]:
    yield '"""Written by `make reference` from the settings of the jobs; nobody edits it."""'
    yield ""
    yield "from datetime import datetime"
    yield "from typing import Any"
    yield ""
    for name, home in (
        ("IcekeepHook", "connections"),
        ("TableDueSensor", "due"),
        ("dags", "factory"),
        ("Installation", "installation"),
        ("JobOperator", "job_operators"),
        ("MaintenanceOperator", "operators"),
        ("table_uri", "provider"),
    ):
        yield f"from icekeep.airflow.{home} import {name} as {name}"
    for job in OFFERED:
        yield ""
        yield f"class {operator_name(job)}(JobOperator):"
        yield indent(f'"""{doc_of(job)}\n"""', "    ")
        yield ""
        yield "    def __init__("
        yield "        self,"
        yield "        *,"
        for one in [*signature_of(job).parameters.values()][1:-1]:
            default = "" if one.default is inspect.Parameter.empty else f" = {one.default!r}"
            yield f"        {one.name}: {one.annotation}{default},"
        yield "        **arguments: Any,"
        yield "    ) -> None: ..."
