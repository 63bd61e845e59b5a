import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import UsageError
from icekeep.policies.windows import ALWAYS, CONDITIONS, DueDecision, Facts, Trigger, is_due, parse_condition
from kit.cases import cases, for_each

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
MEASURED = ("small_files", "delete_ratio", "manifests", "overlap", "snapshots")

triggers = st.builds(
    Trigger,
    **{f"{name}_over": st.none() | st.integers(0, 5) for name in MEASURED},
    age_over_ms=st.none() | st.integers(0, 5).map(lambda hours: hours * HOUR_MS),
    min_interval_ms=st.none() | st.integers(0, 5).map(lambda hours: hours * HOUR_MS),
)
facts_of = st.builds(
    Facts,
    **{name: st.none() | st.integers(0, 6) for name in MEASURED},
    last_run_ms=st.none() | st.integers(-1, 6).map(lambda hours: NOW_MS - hours * HOUR_MS),
)


def naive(trigger: Trigger, facts: Facts) -> bool:
    ran = facts.last_run_ms
    if trigger.min_interval_ms is not None and ran is not None and ran + trigger.min_interval_ms > NOW_MS:
        return False
    limits = {name: getattr(trigger, f"{name}_over") for name in MEASURED}
    if all(limit is None for limit in (*limits.values(), trigger.age_over_ms)):
        return True
    if trigger.age_over_ms is not None and (ran is None or ran + trigger.age_over_ms < NOW_MS):
        return True
    return any(
        limit is not None and getattr(facts, name) is not None and getattr(facts, name) > limit
        for name, limit in limits.items()
    )


@cases(500)
@given(trigger=triggers, facts=facts_of)
def test_a_job_is_due_where_one_condition_holds_and_its_interval_has_passed(trigger, facts):
    due = is_due(trigger, facts, NOW_MS)
    assert due.is_due is bool(due) is naive(trigger, facts)
    assert due.why


@cases(200)
@given(trigger=triggers, facts=facts_of, name=st.sampled_from(MEASURED))
def test_a_worse_table_is_never_less_due_and_an_unknown_number_never_makes_it_due(trigger, facts, name):
    due = is_due(trigger, facts, NOW_MS).is_due
    value = getattr(facts, name)
    worse = msgspec.structs.replace(facts, **{name: (value or 0) + 3})
    unknown = msgspec.structs.replace(facts, **{name: None})
    assert is_due(trigger, worse, NOW_MS).is_due >= due >= is_due(trigger, unknown, NOW_MS).is_due


def test_what_the_job_would_do_nothing_about_makes_it_not_due():
    trigger = Trigger(manifests_over=5, snapshots_over=9, age_over_ms=HOUR_MS)
    facts = Facts(manifests=6, snapshots=3, last_run_ms=NOW_MS, idle="there is one manifest")
    assert is_due(trigger, facts, NOW_MS).why == (
        "manifests is 6, over 5, but the job would do nothing: there is one manifest; snapshots is 3, not over 9; "
        "it ran 0.0 s ago, not over 1h"
    )
    late = msgspec.structs.replace(facts, last_run_ms=NOW_MS - 2 * HOUR_MS)
    assert is_due(trigger, late, NOW_MS) == DueDecision(True, "it ran 2h ago, over 1h")
    assert is_due(ALWAYS, facts, NOW_MS).is_due


def test_why_is_said_with_the_numbers():
    trigger = Trigger(
        small_files_over=100, delete_ratio_over=0.1, age_over_ms=7 * 24 * HOUR_MS, min_interval_ms=6 * HOUR_MS
    )
    facts = Facts(small_files=4, last_run_ms=NOW_MS - 24 * HOUR_MS)
    assert is_due(trigger, facts, NOW_MS).why == (
        "small_files is 4, not over 100; delete_ratio is not known; it ran 1d ago, not over 7d"
    )
    assert is_due(trigger, msgspec.structs.replace(facts, delete_ratio=0.25), NOW_MS).why == (
        "delete_ratio is 0.25, over 0.1"
    )
    early = msgspec.structs.replace(facts, small_files=1_000, last_run_ms=NOW_MS - HOUR_MS)
    assert is_due(trigger, early, NOW_MS).why == "it ran 1h ago, and min_interval is 6h"
    to_come = msgspec.structs.replace(early, last_run_ms=4_000_000_000_000)
    assert is_due(trigger, to_come, NOW_MS).why == (
        "it ran at 2096-10-02T07:06:40Z, which is still to come, and min_interval is 6h"
    )
    assert is_due(Trigger(age_over_ms=1), Facts(last_run_ms=2**63 - 1), NOW_MS).why.endswith("to come, not over 1ms")
    assert is_due(ALWAYS, Facts(), NOW_MS).why == "no condition is set"
    assert is_due(Trigger(age_over_ms=1), Facts(), NOW_MS).why == "no policy has run it, as far as is known"


def test_conditions_have_the_names_of_the_fields():
    assert {name.removesuffix("_ms") for name in Trigger.__struct_fields__} == {*CONDITIONS}
    assert {f"{name}_over" for name in MEASURED} < {*CONDITIONS}


@for_each(
    ("name", "text", "value"),
    [
        ("small_files_over", "0", 0),
        ("delete_ratio_over", "0.25", 0.25),
        ("delete_ratio_over", "1", 1.0),
        ("overlap_over", "4", 4.0),
        ("min_interval", "36h", 36 * HOUR_MS),
    ],
)
def test_a_limit_is_read(name, text, value):
    assert parse_condition(name, text) == value


@for_each(
    ("name", "text", "problem"),
    [
        ("small_files_over", "1.5", "give a whole number"),
        ("small_files_over", "-1", "give a whole number"),
        ("delete_ratio_over", "10", "give a number of 0 or more, 1 at most"),
        ("overlap_over", "0.5", "give a number of 1 or more"),
        ("overlap_over", "1e3", "give a number"),
        ("age_over", "7", "cannot read the duration '7'"),
        ("small_files", "7", "there is no condition 'small_files'; there is small_files_over"),
    ],
)
def test_what_is_no_limit_is_told(name, text, problem):
    with pytest.raises(UsageError) as caught:
        parse_condition(name, text)
    assert problem in caught.value.message
