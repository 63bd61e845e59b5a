"""What jobs have in common: their arguments as values, their results, and what they cost.

A job's arguments are listed once, as a frozen value, of which the public functions make keyword arguments:

    @takes(CompactRequest)
    def compact(table: Table, request: CompactRequest) -> ...

is called as `compact(table, spark, where=...)`. The job, its plan and its check take the same request, and what a policy, a
command line or a caller asks for is the same value everywhere. `takes` also measures how long a run needs, and opens the run
that its Spark jobs belong to. Costs are milliseconds of a core, as docs/performance.md has them measured.
"""

import inspect
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, cast
from weakref import WeakValueDictionary

import msgspec

from icekeep.catalog.base import Table
from icekeep.catalog.wrappers import check_change
from icekeep.errors import UsageError, one_line
from icekeep.events import SILENT, Listener, Warned, unfailing
from icekeep.maintenance.plans import SavedPlan
from icekeep.planning.spark.jobs import is_in_run, spark_run
from icekeep.planning.spark.session import SparkSource, check_source
from icekeep.rendered import Rendered
from icekeep.runs import Run, new_run
from icekeep.settings import CatalogChange
from icekeep.spec.snapshots import checked_properties

P = ParamSpec("P")
Subject = TypeVar("Subject")
Request = TypeVar("Request", bound="JobRequest")
Result = TypeVar("Result")


class _OnSpark(msgspec.Struct, frozen=True):
    """What may be passed without its name."""

    spark: SparkSource = None


class JobRequest(_OnSpark, frozen=True, kw_only=True):
    """What every job is asked with.

    Attributes:
        spark: a session, or a function that starts one; by default the session that runs, or a new one where one is needed.
        listener: hears of steps, warnings and commits; by default nobody does.
    """

    listener: Listener = SILENT


class PlannedRequest(JobRequest, frozen=True, kw_only=True):
    """What a job is asked with that can carry out a saved plan; `saved` is `None` for a job that makes its own."""

    saved: SavedPlan | None = None


class CommittingRequest(PlannedRequest, frozen=True, kw_only=True):
    """What a job is asked with that makes snapshots.

    Attributes:
        snapshot_properties: keys and values of the user for the summaries of its snapshots, such as a ticket or an owner.
    """

    snapshot_properties: Mapping[str, str] | None = None


def takes(
    request: Callable[P, Request],
    job: str = "",
    asks: CatalogChange | None = None,
) -> Callable[[Callable[[Subject, Request], Result]], Callable[Concatenate[Subject, P], Result]]:
    """Make a function of a table and a request one of the table and the request's fields as keyword arguments.

    The function that comes out raises `UsageError` for a `spark` that is no session, and for snapshot properties that cannot be
    any, and `TypeError` for a keyword that is no field. A table that no run works on yet gets one (`Table.run`), which all
    commits name; one that has a run of another job, or one by which a call has worked already, is refused with `UsageError`. A
    result that has `elapsed_ms` says there how long the function took, and one that has `run_id` which run it was. All Spark jobs
    that it begins are those of one run, which ends with it.

    Args:
        job: its name, where that is not the function's, but for `plan_` at the beginning.
        asks: what the catalog has to do for it, of a function that changes the table: one that refuses that is asked before any
            work (`check_change`). A plan asks for nothing.
    """

    def decorate(function: Callable[[Subject, Request], Result]) -> Callable[Concatenate[Subject, P], Result]:
        @wraps(function)
        def call(table: Subject, *positional: P.args, **named: P.kwargs) -> Result:
            try:
                asked = request(*positional, **named)
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            if isinstance(table, str):
                raise UsageError(
                    f"{function.__name__}() takes a table, not its name; load it: "
                    f'load_catalog("CATALOG").load({table!r})',
                    given=table,
                )
            check_source(asked.spark)
            asked = msgspec.structs.replace(asked, listener=unfailing(asked.listener))
            properties = checked_properties(getattr(asked, "snapshot_properties", None) or {})
            if not isinstance(table, Table):
                return function(table, asked)
            if asks is not None:
                check_change(table.catalog, asks)
            began_ms = table.runtime.monotonic_ms()
            name = job or function.__name__.removeprefix("plan_")
            # A job that another one calls is a part of its run.
            if table.run is not None and not is_in_run() and not function.__name__.startswith(_PLAN_PREFIXES):
                _take(table.run, name)
            mine: Any = table if table.run is not None else table.for_run(new_run(name, table.runtime))
            if properties:
                mine = mine.for_run(msgspec.structs.replace(mine.run, snapshot_properties=properties))
            with spark_run(name, table.name, asked.listener):
                result = function(mine, asked)
            if not isinstance(result, msgspec.Struct):
                return result
            fields = {"elapsed_ms": table.runtime.monotonic_ms() - began_ms, "run_id": mine.run and mine.run.run_id}
            return msgspec.structs.replace(result, **{k: v for k, v in fields.items() if k in result.__struct_fields__})

        # What `help` shows: the function's first parameter, then the request's fields.
        own = inspect.signature(function)
        parameters = [next(iter(own.parameters.values())), *inspect.signature(request).parameters.values()]
        decorated: Any = call
        decorated.__signature__ = own.replace(parameters=parameters)
        return cast(Callable[Concatenate[Subject, P], Result], decorated)

    return decorate


def _take(run: Run, job: str) -> None:
    """Let a call of a job work as a run; raises `UsageError` where its files would have the names of another call's."""
    if run.job != job:
        raise UsageError(
            f"run {run.run_id!r} is of the job {run.job!r}, and its table was given to {job}; give each job a table of its own "
            f"run, or of none: table.for_run(new_run({job!r}, table.runtime, parent_id={run.run_id!r}))"
        )
    with _LOCK:
        if _TAKEN.get(id(run)) is run:
            raise UsageError(
                f"run {run.run_id!r} has been used already; give each call of {job} a table of its own run"
            )
        _TAKEN[id(run)] = run


_PLAN_PREFIXES = ("plan_", "exact_")
_LOCK = threading.Lock()
_TAKEN: "WeakValueDictionary[int, Run]" = WeakValueDictionary()
"""The runs by which a call works, or has worked, by identity: equal ones may be of different processes, or tests."""


class JobResult(Rendered, frozen=True, kw_only=True):
    """What a run of a job did.

    Attributes:
        work: names of fields. One of them at least is neither 0 nor empty where the run did what the job is for, or has left it
            to a later run.
    """

    work: ClassVar[tuple[str, ...]]

    @property
    def is_idle(self) -> bool:
        """Whether the run did nothing of what the job is for, and left nothing of it to a later run."""
        values = (getattr(self, name) for name in self.work)
        return all(value.is_idle if isinstance(value, JobResult) else not value for value in values)


ENTRY_CPU_MS = 0.02
"""Of a job on metadata, for each entry that it reads: 150 to 220 s for ten million."""

FILE_CPU_MS = 0.02
"""Of expiration and orphan removal, for each file: 190 s for ten million."""

Figure = TypeVar("Figure")
Default = TypeVar("Default")


def or_warned(what: str, measure: Callable[[], Figure], default: Default, listener: Listener) -> Figure | Default:
    """A figure of the result; `default` and a warning where it cannot be found out, whatever the reason: that ends no run."""
    try:
        return measure()
    except Exception as error:  # noqa: BLE001 - a number in the result is not worth the work of the run
        listener.on(Warned(f"{what} is not known: {one_line(error)}; the work itself is not affected"))
        return default
