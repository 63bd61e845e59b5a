"""Which jobs are due, held against a naive reading of the rules."""

from datetime import UTC, datetime

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from icekeep.fleet.choosing import (
    NAMED_FROM,
    NEVER_RAN,
    REPEAT_MS,
    Choice,
    Verdict,
    choices,
    is_named,
    postponed,
    wait_ms,
)
from icekeep.health.values import (
    DataHealth,
    DeletesHealth,
    JobAdvice,
    MetadataHealth,
    PartitionsHealth,
    SnapshotsHealth,
    TableHealth,
)
from icekeep.policies.resolution import Effective, JobRule, TableRules
from icekeep.policies.values import Mode, PolicyValue
from icekeep.policies.windows import Window, is_open
from icekeep.run_records.values import LastRuns
from icekeep.spec.types import DAY_MS, HOUR_MS
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
def test_a_failing_job_is_tried_again_in_the_end_and_never_sooner_for_waiting(last, later_ms):
    if postponed(last, NOW_MS) is None:
        assert postponed(last, NOW_MS + later_ms) is None
    assert postponed(last, NOW_MS + 9 * DAY_MS) is None


def test_waits_grow_to_eight_nights_and_the_third_failure_is_named():
    waits = [wait_ms(count) for count in range(20)]
    assert waits == sorted(waits)
    assert waits[-1] < 8 * DAY_MS
    assert [is_named(LastRuns(failures_in_a_row=count)) for count in (0, NAMED_FROM - 1, NAMED_FROM)] == [
        False,
        False,
        True,
    ]


def test_a_first_failure_does_not_make_wait_also_where_the_process_was_killed():
    assert postponed(LastRuns(failures_in_a_row=1, last_failure_ms=NOW_MS), NOW_MS) is None
    died = LastRuns(failures_in_a_row=3, last_failure_ms=NOW_MS)
    assert "its process died" in (postponed(died, NOW_MS) or "")
