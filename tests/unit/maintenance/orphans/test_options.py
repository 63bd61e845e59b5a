from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import OptionError, SafetyError, UnsupportedError, UsageError
from icekeep.maintenance.delete.options import OrphanOptions, checked_options
from icekeep.maintenance.orphans.job import check_arguments
from icekeep.maintenance.orphans.options import (
    PrefixMismatchMode,
    Spelling,
    eligible_before_ms,
    mismatch_mode,
    spelling,
)
from kit.cases import for_each

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


def test_files_are_old_enough_after_three_days_if_nobody_says_otherwise():
    assert eligible_before_ms(None, NOW_MS) == NOW_MS - 72 * HOUR_MS


@for_each("hours", [24, 25, 72, 24 * 365, 24 * 365 * 60])
def test_an_age_of_a_day_or_more_is_taken_as_it_is(hours):
    for older_than in (NOW_MS - hours * HOUR_MS, timedelta(hours=hours), f"{hours}h"):
        assert eligible_before_ms(older_than, NOW_MS) == NOW_MS - hours * HOUR_MS


@for_each("hours", [0, 1, 23, 23.8, -1, -1000])
def test_an_age_below_a_day_is_refused_in_the_library_too(hours):
    """apache/iceberg #4194, #8994, delta-rs #3645."""
    with pytest.raises(UsageError, match="give an age of 24h or more") as raised:
        eligible_before_ms(round(NOW_MS - hours * HOUR_MS), NOW_MS)
    assert raised.value.exit_status == 2


@for_each(
    ("age_ms", "message"),
    [
        (HOUR_MS, "is 1.0 hours ago, and"),
        (0, "is 0.0 hours ago, and"),
        (-1000, "is 0.0 hours ago, and"),
        (-631_936 * HOUR_MS, "is in the future, and"),
    ],
)
def test_the_error_says_when_it_is(age_ms, message):
    with pytest.raises(UsageError, match=message):
        eligible_before_ms(NOW_MS - age_ms, NOW_MS)


@given(st.integers(-(2**40), 2**42))
def test_no_file_is_old_enough_that_is_younger_than_a_day(age_ms):
    try:
        before_ms = eligible_before_ms(NOW_MS - age_ms, NOW_MS)
    except UsageError:
        assert age_ms < 24 * HOUR_MS
    else:
        assert before_ms <= NOW_MS - 24 * HOUR_MS
        assert before_ms <= NOW_MS - age_ms


def test_a_clock_of_the_store_that_is_a_little_behind_makes_no_day_too_short():
    before_ms = eligible_before_ms(NOW_MS - 24 * HOUR_MS, NOW_MS - 999)
    assert before_ms == NOW_MS - 24 * HOUR_MS - 999


@pytest.mark.parametrize("text", ["ERROR", "error", " Error "])
def test_modes_are_named_in_any_case(text):
    assert mismatch_mode(text) is PrefixMismatchMode.ERROR
    assert mismatch_mode("ignore") is PrefixMismatchMode.IGNORE


@pytest.mark.parametrize("text", ["DELETE", "delete"])
def test_files_that_metadata_spells_otherwise_are_never_deleted(text):
    """Java's testRemoveOrphanFileActionWithDeleteMode: refused here."""
    with pytest.raises(UnsupportedError, match="equal_schemes"):
        mismatch_mode(text)


def test_other_modes_are_refused():
    with pytest.raises(OptionError, match="ERROR or IGNORE"):
        mismatch_mode("NONE")


def test_maps_are_taken_apart_at_their_commas():
    assert spelling(None, None) == Spelling({}, {})
    given_one = spelling({"oss , S3B": "s3", "s3a": "other"}, {"old:8020, older": "New"})
    assert given_one.schemes == {"s3a": "other", "oss": "s3", "s3b": "s3"}
    assert given_one.authorities == {"old:8020": "new", "older": "new"}


@for_each("given_map", [{"": "s3"}, {"a,,b": "s3"}, {"a": " "}])
def test_maps_with_empty_names_are_refused(given_map):
    with pytest.raises(OptionError):
        spelling(given_map, None)


def test_several_names_on_the_right_are_refused():
    """Such as the command line makes of `--equal-schemes a=b,c=d`."""
    with pytest.raises(
        OptionError, match=r"is 'a=b,c=d'; give one name on the right, as in .*, and each pair by itself"
    ):
        spelling({"a": "b,c=d"}, None)


@for_each("given_map", [{"a": "b", "a,c": "d"}, {"a,c": "d", "A": "b"}, {"a,A ": "b", "c,a": "d"}])
def test_a_name_that_is_said_to_be_equal_to_two_others_is_refused_whichever_came_first(given_map):
    for maps in ((given_map, None), (None, given_map)):
        with pytest.raises(OptionError, match=r"give each name once: 'a' is said to be '[bd]' as well"):
            spelling(*maps)
    assert spelling({"a": "b", "a,c": "B"}, None).schemes == {"a": "b", "c": "b"}


@pytest.mark.parametrize("count", [0, -1])
def test_at_least_one_task_deletes(count):
    """Java's testRemoveOrphanFilesProcedure: concurrent deletes, invalid."""
    with pytest.raises(OptionError, match="max_concurrent_deletes"):
        checked_options(OrphanOptions, {}, count)
    checked_options(OrphanOptions, {}, 1)
    checked_options(OrphanOptions, {}, None)


ROOT = "memory://lake/wh/db/events"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"location": "data"}, UsageError),
        ({"location": f"{ROOT}/.icekeep/trash"}, SafetyError),
        ({"prefix_mismatch_mode": "DELETE"}, UnsupportedError),
        ({"prefix_mismatch_mode": "GUESS"}, OptionError),
        ({"equal_schemes": {"s3a": ""}}, OptionError),
        ({"accept_unreadable": ["events"]}, OptionError),
        ({"max_concurrent_deletes": 0}, OptionError),
        ({"trash": "soon"}, UsageError),
        ({"options": {"max-orphan-ratio": "2"}}, OptionError),
        ({"options": {"reclaim.roots": "memory://lake"}}, OptionError),
    ],
)
def test_a_wrong_argument_is_refused_as_by_the_job_which_reads_and_writes_nothing(world, arguments, error):
    table = world.table
    with pytest.raises(error) as refused:
        check_arguments(table.metadata, **arguments)
    world.storage.before = lambda what, at: pytest.fail(f"{what} {at}")
    for ask in (world.run, world.plan):
        with pytest.raises(error) as raised:
            ask(table, **arguments)
        assert str(raised.value) == str(refused.value)


def test_what_holds_is_let_through(world):
    check_arguments(world.table.metadata)
    check_arguments(
        world.table.metadata,
        older_than="5d",
        location=f"{ROOT}/data",
        equal_schemes={"s3a,s3n": "s3"},
        prefix_mismatch_mode="ignore",
        accept_unreadable=["db.others"],
        trash="3d",
        options={"reclaim.roots": "memory://lake/elsewhere"},
    )
