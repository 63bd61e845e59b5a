"""As much of Airflow as our DAGs and operators touch, for tests without Airflow: nothing is scheduled, and time does not pass.

One file stands for all of its packages: `PLACES` says under which names Airflow has what is here.
"""

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType
from typing import Any, Self

_OPEN: list[Any] = []
_GROUPS: list[str] = []


class DAG:
    """Keeps its arguments and its tasks."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.dag_id = arguments["dag_id"]
        self.tasks: list[BaseOperator] = []

    def __enter__(self) -> Self:
        _OPEN.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        _OPEN.pop()


class _Chained:
    """What `>>` is for, also between lists."""

    def ends(self) -> "list[BaseOperator]":
        raise NotImplementedError

    def starts(self) -> "list[BaseOperator]":
        return self.ends()

    def __rshift__(self, other: Any) -> Any:
        _link([self], other)
        return other

    def __rrshift__(self, other: Any) -> Any:
        _link(other, self)
        return self


def _link(before: Any, after: Any) -> None:
    for one in before:
        for end in one.ends():
            end.later += [start.task_id for start in after.starts()]


class Deferred(BaseException):
    """A task has gone, and a trigger waits."""

    def __init__(self, trigger: Any, method_name: str) -> None:
        self.trigger, self.method_name = trigger, method_name


class BaseOperator(_Chained):
    """Keeps its arguments and what comes after it."""

    execution_timeout: Any = None

    def __init__(self, *, task_id: str, trigger_rule: str = "all_success", **arguments: Any) -> None:
        self.task_id = ".".join([*_GROUPS, task_id])
        self.trigger_rule, self.arguments = trigger_rule, arguments
        self.later: list[str] = []
        self.log = _Log()
        _OPEN[-1].tasks.append(self)

    def ends(self) -> "list[BaseOperator]":
        return [self]

    def defer(self, *, trigger: Any, method_name: str) -> None:
        raise Deferred(trigger, method_name)

    @property
    def output(self) -> str:
        return f"output of {self.task_id}"


class _Log:
    def info(self, *_: Any) -> None: ...

    warning = error = info


class _Group(_Chained):
    def __init__(self, tasks: list[BaseOperator]) -> None:
        self._tasks = tasks

    def ends(self) -> list[BaseOperator]:
        return [task for task in self._tasks if not task.later]


class task_group:
    """A function that makes tasks, mapped over a list."""

    def __init__(self, *, group_id: str) -> None:
        self._group_id = group_id

    def __call__(self, function: Any) -> Self:
        self._function = function
        return self

    def expand(self, **mapped: Any) -> _Group:
        with _group(self._group_id):
            before = len(_OPEN[-1].tasks)
            self._function(**mapped)
        return _Group(_OPEN[-1].tasks[before:])


@contextmanager
def _group(group_id: str) -> Any:
    _GROUPS.append(group_id)
    yield
    _GROUPS.pop()


class Param:
    """A field of a form."""

    def __init__(self, default: Any, **schema: Any) -> None:
        self.value, self.schema = default, schema


class Asset:
    """A table, for example."""

    def __init__(self, uri: str) -> None:
        self.uri = uri


class AssetAlias:
    """A name under which assets are found."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, AssetAlias) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class AirflowException(Exception):
    """A failure that may be retried."""


class AirflowFailException(AirflowException):
    """A failure that may not."""


class AirflowSensorTimeout(AirflowException):
    """What was waited for did not come."""


class AirflowSkipException(AirflowException):
    """There was nothing to do."""


class _Conf:
    def getboolean(self, section: str, key: str, fallback: bool) -> bool:
        given = os.environ.get(f"AIRFLOW__{section}__{key}".upper())
        return fallback if given is None else given == "True"


conf = _Conf()


masked: list[str] = []
"""Secrets that logs must not show."""


def mask_secret(secret: str, name: str | None = None) -> None:
    masked.append(secret)


class BaseHook:
    """Knows the connections."""

    @staticmethod
    def get_connection(conn_id: str) -> Any:
        raise KeyError(conn_id)


class BaseOperatorLink:
    """Has a name."""

    name = ""


class PokeReturnValue:
    """What a look has found."""

    def __init__(self, is_done: bool, xcom_value: Any = None) -> None:
        self.is_done, self.xcom_value = is_done, xcom_value

    def __bool__(self) -> bool:
        return self.is_done


class BaseSensorOperator(BaseOperator):
    """Keeps what it is deferred with in `deferred`."""

    def __init__(
        self, *, mode: str = "poke", poke_interval: float = 60, timeout: float = 600, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self.mode, self.poke_interval, self.timeout = mode, poke_interval, timeout
        self.deferred: list[Any] = []

    def execute(self, context: Any) -> Any:
        return self.poke(context).xcom_value  # type: ignore[attr-defined]

    def resume_execution(self, method: str, kwargs: Any, context: Any) -> Any:
        return getattr(self, method)(context, **(kwargs or {}))

    def defer(self, *, trigger: Any, method_name: str, kwargs: Any) -> None:
        self.deferred.append([trigger.delta, method_name, kwargs])


class BaseTrigger:
    """Has a log."""

    def __init__(self) -> None:
        self.log = logging.getLogger("trigger")


class TriggerEvent:
    """What a trigger has to say."""

    def __init__(self, payload: Any) -> None:
        self.payload = payload


class TimeDeltaTrigger:
    """Keeps how long it would wait."""

    def __init__(self, delta: timedelta) -> None:
        self.delta = delta


class _Hook:
    def _process_spark_submit_log(self, lines: Any) -> None:
        self.lines = [*lines]


class SparkSubmitOperator(BaseOperator):
    """Submits nothing: it fails with the status in STATUS, in the words of Airflow's hook.

    What it would submit is kept in `submitted`. The lines of STDERR go through the hook, and RESULT into the result file.
    """

    template_fields: Sequence[str] = ("application_args",)

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.files, self.conf = arguments.get("files"), arguments.get("conf")
        self._deploy_mode, self._conn_id = arguments.get("deploy_mode"), arguments.get("conn_id", "spark_default")
        self._hook: Any = None
        self._status_poll_interval = arguments.get("status_poll_interval", 1)
        self.submitted: list[Any] = []

    def _get_hook(self) -> Any:
        return _Hook()

    def on_kill(self) -> None:
        self.submitted.append("killed")

    def execute(self, context: Any) -> None:
        self.submitted.append([self.name, self.application, self.application_args, self.files])  # type: ignore[attr-defined]
        self.submitted_conf = self.conf
        self._get_hook()._process_spark_submit_log(os.environ.get("STDERR", "").splitlines())
        files = [one.partition("=")[2] for one in self.application_args if one.startswith("--result-file=")]  # type: ignore[attr-defined]
        if files and os.environ.get("RESULT"):
            with open(files[0], "w") as file:
                file.write(os.environ["RESULT"])
        status = os.environ["STATUS"]
        if status != "0":
            said = f"Error code is: {status}." if status.lstrip("-").isdigit() else status
            raise AirflowException(f"Cannot execute: spark-submit --name x. {said}\nLast spark-submit output:\nx")


PLACES: dict[str, Sequence[Any]] = {
    "sdk": (DAG, Asset, AssetAlias, BaseOperator, Deferred, Param, task_group),
    "sdk.exceptions": (AirflowException, AirflowFailException, AirflowSensorTimeout, AirflowSkipException),
    "sdk.log": (mask_secret,),
    "sdk.bases.hook": (BaseHook,),
    "sdk.bases.operatorlink": (BaseOperatorLink,),
    "sdk.bases.sensor": (BaseSensorOperator, PokeReturnValue),
    "triggers.base": (BaseTrigger, TriggerEvent),
    "providers.standard.triggers.temporal": (TimeDeltaTrigger,),
    "providers.apache.spark.operators.spark_submit": (SparkSubmitOperator,),
    "sdk.configuration": (),
}


def _module(name: str) -> ModuleType:
    """The module of a full name, which its parents have as an attribute."""
    if name not in sys.modules:
        parent, _, own = name.rpartition(".")
        sys.modules[name] = ModuleType(name)
        setattr(_module(parent), own, sys.modules[name])
    return sys.modules[name]


for place, members in PLACES.items():
    vars(_module(f"{__name__}.{place}")).update({member.__name__: member for member in members})
vars(_module("airflow.sdk.configuration"))["conf"] = conf
vars(_module("airflow.sdk.log"))["masked"] = masked
