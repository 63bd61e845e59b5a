"""The tasks of many groups as one job: who comes back when, and what a task that ends the whole job takes along."""

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from icekeep.errors import IcekeepError, JobFailedError, OptionError
from icekeep.maintenance.rewrite.groups import GroupResults, in_one_job

Answers = Generator[tuple[int, Any], None, None]


class Job:
    """Answers each payload with its text doubled, in an order of its own; tasks that kill end the job when they are reached."""

    def __init__(self, order: str = "forwards", kills: Sequence[str] = (), says_which: bool = True) -> None:
        self._order, self._kills, self._says_which = order, kills, says_which
        self.started: list[list[str]] = []
        self.open_count = 0

    def __call__(self, payloads: Sequence[str]) -> Answers:
        self.started.append([*payloads])
        self.open_count += 1
        try:
            numbers = range(len(payloads)) if self._order == "forwards" else reversed(range(len(payloads)))
            for number in numbers:
                if payloads[number] in self._kills:
                    yield -1, self._failure(number)
                    return
                yield number, payloads[number] * 2
        finally:
            self.open_count -= 1

    def _failure(self, number: int) -> IcekeepError:
        failed = JobFailedError("Spark failed: a worker is lost")
        what = (
            f"Task {number} in stage 7.0 failed 4 times, most recent failure: Lost task"
            if self._says_which
            else "ended"
        )
        failed.__cause__ = RuntimeError(f"Job aborted due to stage failure: {what}")
        return failed


GROUPS = [("a", ["a0", "a1"]), ("b", ["b0"]), ("c", ["c0", "c1", "c2"])]


@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_each_group_comes_once_with_its_results_in_order(order: str) -> None:
    job = Job(order)
    answered = list(in_one_job(GROUPS, job))
    assert sorted(answered, key=lambda one: one.group) == [
        GroupResults("a", ("a0a0", "a1a1")),
        GroupResults("b", ("b0b0",)),
        GroupResults("c", ("c0c0", "c1c1", "c2c2")),
    ]
    assert [one.group for one in answered] == (["a", "b", "c"] if order == "forwards" else ["c", "b", "a"])
    assert job.started == [["a0", "a1", "b0", "c0", "c1", "c2"]]


def test_a_group_comes_before_the_others_have_ended() -> None:
    job = Job()
    answered = in_one_job(GROUPS, job)
    assert next(answered).group == "a"
    assert job.open_count == 1
    answered.close()
    assert job.open_count == 0


def test_an_error_of_a_task_is_its_groups_alone() -> None:
    error = OptionError("o", given=1, expected="2")

    def run(payloads: Sequence[str]) -> Answers:
        for number, payload in enumerate(payloads):
            yield number, error if payload == "a0" else payload

    answered = list(in_one_job(GROUPS[:2], run))
    assert answered == [GroupResults("a", ("a1",), (error,)), GroupResults("b", ("b0",))]


@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_a_task_that_ends_the_job_fails_its_group_alone_and_no_answer_is_asked_for_twice(order: str) -> None:
    job = Job(order, kills=["b0"])
    answered = {one.group: one for one in in_one_job(GROUPS, job)}
    assert {name for name, one in answered.items() if one.errors} == {"b"}
    assert answered["a"].results == ("a0a0", "a1a1")
    assert answered["c"].results == ("c0c0", "c1c1", "c2c2")
    assert job.started[1:] == [["c0", "c1", "c2"] if order == "forwards" else ["a0", "a1"]]


def test_what_a_failed_group_has_done_comes_with_it() -> None:
    """Somebody has to remove the files."""
    [a, b, c] = sorted(in_one_job(GROUPS, Job(kills=["c1"])), key=lambda one: one.group)
    assert (a.errors, b.errors) == ((), ())
    assert (c.results, [error.message for error in c.errors]) == (("c0c0",), ["Spark failed: a worker is lost"])


@pytest.mark.parametrize("says_which", [True, False])
def test_a_cluster_that_fails_is_not_asked_for_ever(says_which: bool) -> None:
    groups = [(f"g{n}", [f"t{n}"]) for n in range(50)]
    job = Job(kills=[f"t{n}" for n in range(50)], says_which=says_which)
    answered = list(in_one_job(groups, job))
    assert sorted(one.group for one in answered) == sorted(name for name, _ in groups)
    assert all(one.errors for one in answered)
    assert len(job.started) == (10 if says_which else 1)


def test_threads_that_begin_nothing_more_after_an_error_leave_no_group_out() -> None:
    error = OptionError("o", given=1, expected="2")

    def run(payloads: Sequence[str]) -> Answers:
        yield 0, error

    assert list(in_one_job([("a", ["a0", "a1"])], run)) == [GroupResults("a", (), (error,))]


def test_no_groups_start_no_job() -> None:
    job = Job()
    assert list(in_one_job([], job)) == []
    assert job.started == []
