"""The loop around the plans of a job, alone: how often it plans, on what, what ends it and what it says."""

import pytest

from icekeep.commit.retry import RetryPolicy
from icekeep.errors import (
    ConflictError,
    IcekeepError,
    InvalidTableError,
    JobFailedError,
    NotFoundError,
    OutcomeUnknownError,
    SafetyError,
    UnavailableError,
)
from icekeep.maintenance.rewrite.run import retry_with_replan
from kit.cases import for_each
from kit.changes import Recorder
from kit.memory_catalog import MemoryCatalog
from kit.tables import EVENTS, add, memory_table, set_ref

REFUSED = ConflictError("file 'a' is gone")
OUTPACED = ConflictError("others kept changing it: gave up after 3 attempts", attempts=3)
FOR_GOOD = (
    OUTPACED,
    SafetyError("another table"),
    OutcomeUnknownError("may have landed"),
    UnavailableError("away"),
    JobFailedError("a file is broken"),
    ValueError("a bug"),
    KeyboardInterrupt(),
)


class Job:
    """A job that others hinder: each of its plans ends with the next of some errors, and then it is done."""

    def __init__(self, *errors, **properties):
        self.catalog, self.listener = MemoryCatalog(), Recorder()
        self.table = memory_table(self.catalog, **{f"commit__retry__{name}": str(n) for name, n in properties.items()})
        self.errors = list(errors)
        self.plans = []
        self.before_next_plan = lambda: None
        self.has_others = True

    def run(self):
        return retry_with_replan(self.table, self.plan_and_commit, what=lambda: "7 files", listener=self.listener)

    def plan_and_commit(self, table, number):
        self.plans.append((number, len(table.metadata.snapshots)))
        # What others commit is in the table that the next plan is made on.
        if self.has_others:
            add(self.catalog.load(EVENTS), f"x{number}")
        if self.errors:
            self.before_next_plan()
            raise self.errors.pop(0)
        return f"done by plan {number}"


@for_each("last", [None, *FOR_GOOD], ids=lambda error: type(error).__name__)
@for_each("retries", range(3))
@for_each("refusals", range(5))
def test_each_refusal_up_to_the_limit_has_another_plan_made_on_the_table_as_it_is_and_nothing_else_has(
    retries, refusals, last
):
    job = Job(*[REFUSED] * refusals, *([] if last is None else [last]), num_retries=retries)
    plans_count = min(refusals, retries) + 1
    if refusals > retries:
        with pytest.raises(ConflictError) as raised:
            job.run()
        assert str(raised.value) == (
            f"others kept changing 7 files of 'db.events': gave up after {plans_count} plans ({REFUSED.message}); "
            "run it again"
        )
        assert (raised.value.facts, raised.value.__cause__) == ({"plans": plans_count}, REFUSED)
    elif last is not None:
        with pytest.raises(type(last)) as raised:
            job.run()
        assert raised.value is last
    else:
        assert job.run() == f"done by plan {plans_count}"
    assert job.plans == [(number, number - 1) for number in range(1, plans_count + 1)]
    assert job.listener.warnings == [f"7 files of 'db.events' are planned again: {REFUSED.message}"] * (plans_count - 1)
    assert len(job.catalog.runtime.sleeps_ms) == plans_count - 1


def test_it_plans_five_times_and_waits_as_a_commit_does_where_the_table_says_nothing():
    job = Job(*[REFUSED] * 9)
    with pytest.raises(ConflictError, match="gave up after 5 plans"):
        job.run()
    policy = RetryPolicy.of(job.table.metadata)
    assert len(job.plans) == policy.num_retries + 1
    assert job.catalog.runtime.sleeps_ms == [policy.wait_ms(number, job.catalog.runtime) for number in range(1, 5)]


def test_a_conflict_that_no_plan_helps_against_is_told_from_one_that_a_plan_may():
    assert (OUTPACED.is_outpaced, REFUSED.is_outpaced) == (True, False)


def test_what_is_refused_twice_though_nobody_changed_the_table_is_not_planned_again():
    job = Job(*[REFUSED] * 9)
    job.has_others = False
    with pytest.raises(InvalidTableError) as raised:
        job.run()
    assert str(raised.value) == (
        "cannot commit the plan for 7 files of 'db.events': file 'a' is gone; nobody else has changed the table, so its "
        "metadata contradicts itself; run `icekeep check --table local.db.events --deep` to find where"
    )
    assert (len(job.plans), len(job.listener.warnings)) == (2, 1)


def test_a_tag_that_the_job_holds_its_start_by_is_no_change_of_others():
    job = Job(*[REFUSED] * 9)
    add(job.table, "first")
    job.table, job.has_others = job.catalog.load(EVENTS), False
    head = job.table.metadata.current_snapshot_id
    job.before_next_plan = lambda: set_ref(job.table, f"start-{len(job.plans)}", head)
    with pytest.raises(InvalidTableError, match="nobody else has changed the table"):
        job.run()
    assert len(job.plans) == 2


def test_what_is_refused_once_though_nobody_changed_the_table_is_planned_again():
    """A file may have come or gone, which the table does not know of."""
    job = Job(REFUSED)
    job.has_others = False
    assert job.run() == "done by plan 2"


def test_a_table_that_was_made_again_meanwhile_is_not_planned_on():
    job = Job(REFUSED)

    def made_again():
        job.catalog.drop(EVENTS)
        add(memory_table(job.catalog), "theirs")

    job.before_next_plan = made_again
    with pytest.raises(SafetyError, match="is another table now"):
        job.run()
    assert len(job.plans) == 1


@pytest.mark.parametrize(("hinder", "error"), [("drop", NotFoundError), ("outage", UnavailableError)])
def test_a_table_that_cannot_be_loaded_is_not_planned_on(hinder, error):
    job = Job(REFUSED)

    def hindered():
        if hinder == "drop":
            job.catalog.drop(EVENTS)
        else:
            job.catalog.failing_loads = 1

    job.before_next_plan = hindered
    with pytest.raises(error):
        job.run()
    assert len(job.plans) == 1


def test_a_process_that_is_abandoned_plans_nothing_more():
    job = Job(REFUSED)
    job.before_next_plan = lambda: setattr(job.catalog.runtime, "abandoned", True)
    with pytest.raises(UnavailableError, match="is gone, so nothing more is committed"):
        job.run()
    assert (len(job.plans), job.listener.warnings, job.catalog.runtime.sleeps_ms) == (1, [], [])


def test_a_limit_that_is_no_number_is_refused_before_the_first_plan():
    job = Job(num_retries="often")
    with pytest.raises(IcekeepError, match=r"commit\.retry\.num-retries"):
        job.run()
    assert job.plans == []
