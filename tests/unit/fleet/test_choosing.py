"""Which jobs are due, what they are worth and take of a budget."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.fleet.choosing import (
    NAMED_FROM,
    NEVER_RAN,
    OPEN_MS,
    REPEAT_MS,
    SCANS,
    TASK_BYTES,
    USUAL,
    WAITING_NIGHTS,
    Budget,
    Choice,
    JobEstimate,
    Verdict,
    Worth,
    choices,
    estimate_of,
    is_named,
    postponed,
    value_of,
    wait_ms,
    worth_of,
)
from icekeep.health.prices import Prices
from icekeep.health.values import (
    DataHealth,
    DeletesHealth,
    JobAdvice,
    MetadataHealth,
    PartitionsHealth,
    SnapshotsHealth,
    TableHealth,
)
from icekeep.maintenance.compact.options import RATES_BYTES_A_SECOND, RewriteMethod
from icekeep.policies.resolution import Effective, JobRule, TableRules
from icekeep.policies.values import Mode, PolicyValue
from icekeep.policies.windows import Window, is_open
from icekeep.run_records.values import LastRuns
from icekeep.spec.types import DAY_MS, GIB, HOUR_MS, MIB, MINUTE_MS
from kit.cases import cases, for_each

NOW_MS = round(datetime(2026, 3, 4, 12, tzinfo=UTC).timestamp() * 1000)
NIGHT = Window(from_minute=22 * 60, to_minute=6 * 60)
NOON = Window(from_minute=11 * 60, to_minute=13 * 60)


def health_of(small_files: int = 0, *, advice: tuple[JobAdvice, ...] = ()) -> TableHealth:
    return TableHealth(
        table="c.db.t",
        table_uuid=None,
        format="v2",
        location="/t",
        snapshot_id=1,
        score=50.0,
        score_parts=(),
        snapshots=SnapshotsHealth(),
        refs=(),
        metadata=MetadataHealth(),
        data=DataHealth(target_file_bytes=1, small_files_together_count=small_files),
        deletes=DeletesHealth(),
        partitions=PartitionsHealth(),
        jobs=advice,
    )


def rule_of(job="compact", *, window=None, mode=Mode.RUN, held_by=None, small_files_over=None, min_interval_ms=None):
    def said(key, value):
        return Effective(key, PolicyValue(str(value), value, "file"))

    common = [said("mode", mode), *([said("window", window)] if window else [])]
    values = [
        *([said("when.small_files_over", small_files_over)] if small_files_over is not None else []),
        *([said("when.min_interval", min_interval_ms)] if min_interval_ms is not None else []),
    ]
    return JobRule(job=job, policy="nightly", others=(), common=tuple(common), values=tuple(values), held_by=held_by)


def chosen(rule, health, last=NEVER_RAN) -> Choice:
    rules = TableRules(table="c.db.t", policies=("nightly",), jobs=(rule,))
    return choices(rules, health, {rule.job: last}, NOW_MS)[0]


ages = st.none() | st.integers(0, 20 * 24).map(lambda hours: hours * HOUR_MS)
last_runs = st.builds(
    lambda ok, failed, count: LastRuns(
        last_ok_ms=None if ok is None else NOW_MS - ok,
        failures_in_a_row=0 if failed is None else count,
        last_failure_ms=None if failed is None else NOW_MS - failed,
        last_error="it broke",
    ),
    ages,
    ages,
    st.integers(1, 6),
)
rules = st.builds(
    rule_of,
    window=st.sampled_from([None, NIGHT, NOON]),
    mode=st.sampled_from([*Mode]),
    held_by=st.sampled_from([None, None, "switched off by file"]),
    small_files_over=st.none() | st.integers(0, 3),
    min_interval_ms=st.none() | st.integers(0, 48).map(lambda hours: hours * HOUR_MS),
)


def naive(rule, health, last) -> Verdict:
    if rule.held_by:
        return Verdict.HELD
    if rule.window is not None and not is_open(rule.window, NOW_MS):
        return Verdict.CLOSED
    nights = {0: 0, 1: 0, 2: 2, 3: 4}.get(last.failures_in_a_row, 8)
    if last.last_failure_ms is not None and nights and last.last_failure_ms + nights * DAY_MS - 6 * HOUR_MS > NOW_MS:
        return Verdict.POSTPONED
    trigger = rule.trigger
    interval = trigger.min_interval_ms
    if trigger.small_files_over is None and interval is None:
        interval = 6 * HOUR_MS
    if interval is not None and last.last_ok_ms is not None and NOW_MS - last.last_ok_ms < interval:
        return Verdict.NOT_DUE
    if trigger.small_files_over is None:
        return Verdict.DUE
    is_over = health is not None and health.data.small_files_together_count > trigger.small_files_over
    return Verdict.DUE if is_over else Verdict.NOT_DUE


@cases(600)
@given(rule=rules, small=st.none() | st.integers(0, 4), last=last_runs)
def test_what_becomes_of_a_job_is_what_the_rules_say(rule, small, last):
    health = None if small is None else health_of(small)
    choice = chosen(rule, health, last)
    assert choice.verdict is naive(rule, health, last)
    assert choice.why
    assert choice.observes is (rule.mode is Mode.OBSERVE)
    assert (choice.call.job, choice.rule.policy, choice.last) == (rule.job, rule.policy, last)


@cases(300)
@given(rule=rules, small=st.integers(0, 4), last=last_runs, more=st.integers(1, 5))
def test_a_job_that_fails_more_often_is_never_due_sooner(rule, small, last, more):
    worse = msgspec.structs.replace(last, failures_in_a_row=last.failures_in_a_row + more)
    if chosen(rule, health_of(small), worse).verdict is Verdict.DUE:
        assert chosen(rule, health_of(small), last).verdict is Verdict.DUE


@for_each(
    ("rule", "last", "why"),
    [
        (rule_of(held_by="switched off by X"), LastRuns(), "switched off by X"),
        (rule_of(window=NIGHT), LastRuns(), "its window is closed: 22:00 to 06:00 UTC"),
        (
            rule_of(),
            LastRuns(last_ok_ms=NOW_MS - HOUR_MS),
            "it ended well 60.0 min ago; without `when` it runs once in 6.0 h",
        ),
        (
            rule_of(),
            LastRuns(failures_in_a_row=2, last_failure_ms=NOW_MS, last_error="no such store"),
            "it failed 2 times in a row, and is tried again in 42.0 h: no such store",
        ),
        (rule_of(small_files_over=5), LastRuns(), "small_files is 3, not over 5"),
    ],
)
def test_why_not_is_said_in_one_line(rule, last, why):
    assert chosen(rule, health_of(3), last).why == why


def test_an_interval_of_ones_own_is_in_place_of_six_hours():
    ran = LastRuns(last_ok_ms=NOW_MS - HOUR_MS)
    assert chosen(rule_of(min_interval_ms=0), health_of(), ran).verdict is Verdict.DUE
    assert chosen(rule_of(), health_of(), LastRuns(last_ok_ms=NOW_MS - REPEAT_MS)).verdict is Verdict.DUE


def test_the_advice_of_the_job_itself_is_at_hand():
    own, other = (JobAdvice(job=job, has_work=True, reason="r") for job in ("compact", "expire_snapshots"))
    assert chosen(rule_of(), health_of(advice=(other, own))).advice is own
    assert chosen(rule_of("check"), health_of(advice=(other, own))).advice is None
    assert chosen(rule_of(), None).advice is None


@cases(200)
@given(last=last_runs, later_ms=st.integers(0, 10 * DAY_MS))
def test_failing_job_is_retried_after_bounded_delay(last, later_ms):
    """Once its wait is over a job stays eligible: more waiting never postpones it again."""
    if postponed(last, NOW_MS) is None:
        assert postponed(last, NOW_MS + later_ms) is None
    assert postponed(last, NOW_MS + 9 * DAY_MS) is None


def test_waits_stay_below_eight_nights_and_third_failure_named():
    waits = [wait_ms(count) for count in range(20)]
    assert waits == sorted(waits)
    assert waits[-1] < 8 * DAY_MS
    assert [is_named(LastRuns(failures_in_a_row=count)) for count in (0, NAMED_FROM - 1, NAMED_FROM)] == [
        False,
        False,
        True,
    ]


def test_first_failure_does_not_postpone():
    """Later ones do, also where the process was killed and left no error."""
    assert postponed(LastRuns(failures_in_a_row=1, last_failure_ms=NOW_MS), NOW_MS) is None
    died = LastRuns(failures_in_a_row=3, last_failure_ms=NOW_MS)
    assert "its process died" in (postponed(died, NOW_MS) or "")


sizes = st.integers(0, 1 << 44)
advices = st.builds(
    JobAdvice,
    job=st.just("compact"),
    has_work=st.just(True),
    reason=st.just("r"),
    spared_opens_count=st.integers(0, 10**7),
    freed_bytes=st.none() | sizes,
    read_bytes=sizes,
    written_bytes=sizes,
    requests_count=st.integers(0, 10**7),
    cpu_ms=st.integers(0, 10**9),
)


def naive_value(worths):
    benefit, cost, nights = 0.0, 0.0, 0.0
    for one in worths:
        benefit += one.benefit
        cost += one.cost
        nights = max(nights, one.waiting_nights)
    return benefit / cost + nights / 30


@cases(300)
@given(advice=advices, more=st.integers(1, 10**6))
def test_more_benefit_is_worth_more_and_more_cost_less(advice, more):
    value = value_of([worth_of(advice, 0)])
    replaced = msgspec.structs.replace
    assert value_of([worth_of(replaced(advice, spared_opens_count=advice.spared_opens_count + more), 0)]) > value
    assert value_of([worth_of(replaced(advice, cpu_ms=advice.cpu_ms + more), 0)]) <= value
    assert value_of([worth_of(advice, more)]) >= value


@cases(200)
@given(worths=st.lists(st.builds(Worth, st.floats(0, 1e6), st.floats(1e-6, 1e6), st.floats(0, 1e4)), min_size=1))
def test_a_table_is_worth_all_its_jobs_for_all_their_costs(worths):
    assert value_of(worths) == pytest.approx(naive_value(worths))


def test_the_formula_in_numbers():
    advice = JobAdvice(
        job="compact",
        has_work=True,
        reason="r",
        spared_opens_count=100,
        freed_bytes=3 * GIB,
        written_bytes=GIB,
        read_bytes=GIB,
        requests_count=50,
        cpu_ms=35_000,
    )
    worth = worth_of(advice, 3 * DAY_MS)
    core_ms = USUAL.core_hour / 3_600_000
    request = USUAL.million_requests / 1_000_000
    assert worth.benefit == pytest.approx(SCANS * 100 * (request + OPEN_MS * core_ms) + 2 * USUAL.gib_month)
    assert worth.cost == pytest.approx(36_000 * core_ms + 50 * request)
    assert worth.waiting_nights == 3


def test_idle_job_has_no_benefit_but_priority_grows_by_waiting():
    idle = JobAdvice(job="compact", has_work=False, reason="r", spared_opens_count=5, freed_bytes=GIB)
    assert worth_of(idle, 0).benefit == worth_of(None, 0).benefit == 0
    assert value_of([worth_of(None, None)]) == 1
    assert value_of([worth_of(None, 2 * WAITING_NIGHTS * DAY_MS)]) == pytest.approx(2)
    assert value_of([]) == 0


def test_configured_prices_count_even_if_nothing_costs():
    advice = JobAdvice(job="j", has_work=True, reason="r", freed_bytes=2 * GIB, cpu_ms=3_599_000)
    assert worth_of(advice, 0, Prices(core_hour=2.0, gib_month=0.5)) == Worth(1.0, 2.0, 0.0)
    assert value_of([worth_of(advice, 0, Prices())]) == 0


def test_small_table_precedes_large_one_in_same_state():
    small = JobAdvice(job="j", has_work=True, reason="r", spared_opens_count=90, read_bytes=100 * MIB, cpu_ms=2_000)
    large = JobAdvice(job="j", has_work=True, reason="r", spared_opens_count=90, read_bytes=100 * GIB, cpu_ms=2_000_000)
    assert value_of([worth_of(small, 0)]) > value_of([worth_of(large, 0)])


def test_estimates_follow_plan_and_arguments():
    advice = JobAdvice(
        job="compact",
        has_work=True,
        reason="r",
        read_bytes=90 * MIB,
        written_bytes=90 * MIB,
        cpu_ms=2_000,
        requests_count=10,
    )
    assert estimate_of("compact", (), advice, GIB) == JobEstimate(2_600, 180 * MIB, 2_600)
    rates = RATES_BYTES_A_SECOND
    slower = 2_000 * rates[RewriteMethod.REENCODE] // rates[RewriteMethod.SORT]
    assert estimate_of("compact", ("--strategy=sort",), advice, GIB) == JobEstimate(
        600 + slower, 180 * MIB, 600 + slower
    )
    everything = estimate_of("compact", ("--option=rewrite-all=true",), advice, GIB)
    whole_ms = 600 + GIB * 1000 // (45 * MIB)
    assert everything == JobEstimate(whole_ms, 2 * GIB, whole_ms)
    assert estimate_of("check", ("--deep",), None, GIB).bytes == GIB
    assert estimate_of("check", (), None, GIB) == JobEstimate(500, 0, 500)


estimates = st.lists(st.builds(JobEstimate, st.integers(0, 10 * MINUTE_MS), st.integers(0, 100)), max_size=30)


@cases(300)
@given(jobs=estimates, max_ms=st.none() | st.integers(0, 60 * MINUTE_MS), max_bytes=st.none() | st.integers(0, 500))
def test_budget_is_never_exceeded(jobs, max_ms, max_bytes):
    """Jobs started one after another stay within the budget where estimates are right."""
    budget, now_ms, taken = Budget(1_000, max_ms=max_ms, max_bytes=max_bytes), 1_000, 0
    for estimate in jobs:
        refusal = budget.refusal(estimate, now_ms)
        holds_time = max_ms is None or (now_ms - 1_000 < max_ms and now_ms - 1_000 + estimate.elapsed_ms <= max_ms)
        holds_bytes = max_bytes is None or taken + estimate.bytes <= max_bytes
        assert (refusal is None) is (holds_time and holds_bytes)
        if refusal is None:
            budget.begin(estimate)
            now_ms, taken = now_ms + estimate.elapsed_ms, taken + estimate.bytes
            # Exactly as long as estimated, but for what takes no time at all.
            budget.end(
                msgspec.structs.replace(estimate, elapsed_ms=max(1, estimate.elapsed_ms)), max(1, estimate.elapsed_ms)
            )
    assert max_bytes is None or taken <= max_bytes


def test_job_over_budget_leaves_room_for_smaller_ones():
    budget = Budget(0, max_ms=10 * MINUTE_MS, max_bytes=100 * MIB)
    assert (
        budget.refusal(JobEstimate(11 * MINUTE_MS, 0), 0)
        == "it would take about 11.0 min, and 10.0 min of the run's time are left"
    )
    assert budget.refusal(JobEstimate(0, 101 * MIB), 0) == (
        "it would read and write about 101.0 MiB, and 100.0 MiB of the run's bytes are left"
    )
    assert budget.refusal(JobEstimate(0, 0), 10 * MINUTE_MS) == "the time of this run is over"
    assert budget.refusal(JobEstimate(MINUTE_MS, 100 * MIB), 0) is None


def test_estimates_go_by_what_earlier_runs_took():
    by_rates = estimate_of("compact", (), of_bytes(GIB), GIB)
    learned = estimate_of("compact", (), of_bytes(GIB), GIB, pace=2.5)
    assert learned == JobEstimate(round(by_rates.elapsed_ms * 2.5), by_rates.bytes, by_rates.elapsed_ms)


def test_estimates_go_by_the_pace_of_the_run():
    budget = Budget(0, max_ms=10 * MINUTE_MS)
    assert budget.refusal(JobEstimate(6 * MINUTE_MS, 0), 0) is None
    budget.end(JobEstimate(MINUTE_MS, 0), 2 * MINUTE_MS)
    assert budget.pace == 2
    assert budget.refusal(JobEstimate(6 * MINUTE_MS, 0), 0) is not None
    for _ in range(1000):
        budget.end(JobEstimate(MINUTE_MS, 0), HOUR_MS)
    assert budget.pace == 16


def test_overhead_of_small_jobs_is_added_not_multiplied():
    """What small jobs take beside their work does not lengthen large ones in proportion."""
    budget = Budget(0)
    for _ in range(30):
        budget.end(JobEstimate(600, 0), 4_600)
    # One that met another writer for hours says nothing of the others.
    budget.end(JobEstimate(600, 0), 3 * HOUR_MS)
    assert (budget.pace, budget.overhead_ms) == (1, 4_000)
    assert budget.refusal(JobEstimate(HOUR_MS, 0), 0, HOUR_MS + 4_000) is None
    assert budget.refusal(JobEstimate(HOUR_MS, 0), 0, HOUR_MS + 3_999) is not None


def test_larger_cluster_is_learned_from_first_job():
    budget = Budget(0, max_ms=HOUR_MS)
    budget.end(JobEstimate(64 * MINUTE_MS, 0), MINUTE_MS)
    assert budget.refusal(JobEstimate(60 * HOUR_MS, 0), 0) is None


def of_bytes(size):
    cpu_ms = size * 1000 // RATES_BYTES_A_SECOND[RewriteMethod.REENCODE]
    return JobAdvice(
        job="compact", has_work=True, reason="r", cpu_ms=cpu_ms, read_bytes=size, written_bytes=size, requests_count=200
    )


def test_work_is_divided_by_cores_and_waiting_is_not():
    asked = []

    def slots(work_bytes):
        asked.append(work_bytes)
        return 64

    size = 2_000 * GIB
    alone, together = (estimate_of("compact", (), of_bytes(size), size, *some) for some in ((), (slots,)))
    assert together.elapsed_ms - 2_500 == pytest.approx((alone.elapsed_ms - 2_500) / 64, abs=1)
    assert together.bytes == alone.bytes
    assert asked == [size]
    # A night of eight hours holds it, after small tables too.
    budget = Budget(0)
    for _ in range(30):
        budget.end(JobEstimate(650, 0), 4_000)
    assert budget.refusal(together, MINUTE_MS, 8 * HOUR_MS) is None
    assert budget.refusal(alone, MINUTE_MS, 8 * HOUR_MS) is not None


def test_of_a_job_of_one_task_nobody_asks_how_many_run_at_once():
    def slots(_):
        raise AssertionError("it takes half a millisecond, for each job of thousands of tables")

    assert estimate_of("compact", (), of_bytes(MIB), MIB, slots) == estimate_of("compact", (), of_bytes(MIB), MIB)


@for_each(("tasks", "parts"), [(0.5, 1), (1, 1), (2, 2), (3.9, 3), (1000, 8)])
def test_no_more_cores_work_than_there_are_tasks(tasks, parts):
    size = round(tasks * TASK_BYTES)
    advice = of_bytes(size)
    assert estimate_of("compact", (), advice, size, lambda _: 8).elapsed_ms == 2_500 + advice.cpu_ms // parts


def test_whole_table_job_is_divided_by_its_tasks():
    everything = estimate_of("compact", ("--option=rewrite-all=true",), of_bytes(MIB), 64 * GIB, lambda _: 32)
    assert everything.elapsed_ms == 2_500 + 64 * GIB * 1000 // (45 * MIB) // 32
