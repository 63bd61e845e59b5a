"""As much of Airflow's task SDK as our DAGs touch, for tests without Airflow: nothing is scheduled."""

from contextlib import contextmanager
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
