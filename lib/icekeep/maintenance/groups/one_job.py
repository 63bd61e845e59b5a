"""All tasks of many groups as one Spark job, so that they fill the cluster however small each group is.

Each group comes back as soon as all of its tasks have answered. A task that ends the whole job, since it kills its executor
or its worker time and again, fails its own group alone: the job is started anew for what is left.
"""

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Generic, TypeVar

import msgspec

from icekeep.errors import IcekeepError
from icekeep.planning.spark.failures import failed_task
from icekeep.planning.spark.workers import Workers
from icekeep.spec.collections import Limit, packed

_LOG = logging.getLogger(__name__)

GroupT = TypeVar("GroupT")
P = TypeVar("P")
R = TypeVar("R")

_JOBS_AT_ONCE = 5
"""Of groups that are a job each, and of jobs of many groups; Iceberg's default of `max-concurrent-file-group-rewrites`."""

TASKS_A_JOB = 10_000
"""The driver holds what it tells the tasks of a job, and what Spark knows of them."""

_MAX_JOBS = 10
"""After so many jobs that ended as a whole it is the cluster that fails, not a group."""


class Answered(msgspec.Struct, Generic[GroupT, R], frozen=True):
    """A group, and what its tasks answered: results in the order of the tasks, and errors."""

    group: GroupT
    results: tuple[R, ...]
    errors: tuple[IcekeepError, ...] = ()


Answers = Generator[tuple[int, R | IcekeepError], None, None]
"""As `finished_tasks` gives them."""


def groups_at_once(workers: Workers) -> int:
    """How many groups, or jobs of groups, are rewritten at a time where nobody says it.

    A group may be one task: in threads as many are begun as fill all turns (`Turns` of `planning.spark.workers`).
    """
    return _JOBS_AT_ONCE if workers.spark is not None else max(_JOBS_AT_ONCE, workers.slots)


def jobs_of(
    groups: Sequence[GroupT], is_alone: Callable[[GroupT], bool], *limits: Limit[GroupT]
) -> list[Sequence[GroupT]]:
    """Groups that are a Spark job together, within limits on their sums; last those that are done by themselves."""
    together = [group for group in groups if not is_alone(group)]
    return [*packed(together, *limits), *((group,) for group in groups if is_alone(group))]


def in_one_job(
    groups: Sequence[tuple[GroupT, Sequence[P]]], run: Callable[[Sequence[P]], "Answers[R]"]
) -> Generator[Answered[GroupT, R], None, None]:
    """Run the tasks of groups as one job.

    Args:
        groups: each with the payloads of its tasks, one at least.
        run: starts the job.
    """
    open_groups: list[_Open[GroupT, P, R]] = [_Open(group, payloads) for group, payloads in groups]
    for _ in range(_MAX_JOBS):
        order = [(one, number) for one in open_groups for number in one.left]
        if not order:
            return
        spark_error = None
        with closing(run([one.payloads[number] for one, number in order])) as answers:
            for position, answer in answers:
                if position < 0:
                    assert isinstance(answer, IcekeepError)
                    spark_error = answer
                    break
                one, number = order[position]
                one.take(number, answer)
                if not one.left:
                    yield one.answered()
        open_groups = [one for one in open_groups if one.left]
        if spark_error is None:
            # Threads begin no other task after one that failed.
            yield from (one.answered() for one in open_groups)
            return
        failed = failed_task(spark_error)
        if failed is None or failed >= len(order):
            break
        culprit = order[failed][0]
        _LOG.info("a task ended its Spark job; %d other groups go on: %s", len(open_groups) - 1, spark_error.message)
        yield culprit.answered(spark_error)
        open_groups = [one for one in open_groups if one is not culprit]
    for one in open_groups:
        assert spark_error is not None
        yield one.answered(spark_error)


class _Open(Generic[GroupT, P, R]):
    """A group some of whose tasks have not answered; `left` are their numbers."""

    def __init__(self, group: GroupT, payloads: Sequence[P]) -> None:
        self.payloads = payloads
        self.left = dict.fromkeys(range(len(payloads)))
        self._group = group
        self._results: dict[int, R] = {}
        self._errors: list[IcekeepError] = []

    def take(self, number: int, answer: R | IcekeepError) -> None:
        del self.left[number]
        if isinstance(answer, IcekeepError):
            self._errors.append(answer)
        else:
            self._results[number] = answer

    def answered(self, error: IcekeepError | None = None) -> Answered[GroupT, R]:
        errors = self._errors if error is None else [*self._errors, error]
        return Answered(self._group, tuple(self._results[number] for number in sorted(self._results)), tuple(errors))
