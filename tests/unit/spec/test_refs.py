import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import OptionError, UsageError
from icekeep.spec.metadata import TableMetadata, new_table_metadata
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.refs import has_been_current_since, is_ancestor, moved, newest_ancestor_before, validated_ref
from icekeep.spec.snapshots import Snapshot, SnapshotLogEntry, SnapshotRef
from kit.cases import for_each
from kit.tables import COLUMNS

EMPTY = new_table_metadata(schema=COLUMNS, spec=UNPARTITIONED, location="memory://t", table_uuid="u", now_ms=0)
BRANCH = SnapshotRef(snapshot_id=1, type="branch")
TAG = SnapshotRef(snapshot_id=1, type="tag")


def history(
    *snapshots: tuple[int, int | None, int], current: int | None = None, log: tuple[int, ...] = ()
) -> TableMetadata:
    """Snapshots as (id, parent, timestamp); the log's entries one after the other."""
    return replace(
        EMPTY,
        snapshots=tuple(Snapshot(snapshot_id=i, parent_snapshot_id=p, timestamp_ms=t) for i, p, t in snapshots),
        current_snapshot_id=current,
        snapshot_log=tuple(SnapshotLogEntry(timestamp_ms=n, snapshot_id=i) for n, i in enumerate(log)),
    )


def test_a_snapshot_is_an_ancestor_of_itself_and_of_what_came_after_it_on_the_same_line():
    table = history((1, None, 10), (2, 1, 20), (3, 1, 30), (4, 2, 40))
    assert [i for i in (1, 2, 3, 4) if is_ancestor(table, i, of=4)] == [1, 2, 4]
    assert [i for i in (1, 2, 3, 4) if is_ancestor(table, i, of=3)] == [1, 3]


def test_nothing_is_an_ancestor_beyond_a_snapshot_that_expired():
    table = history((1, None, 10), (3, 2, 30))
    assert not is_ancestor(table, 1, of=3)
    assert not is_ancestor(table, 2, of=3)
    assert not is_ancestor(table, 1, of=None)


def test_the_newest_ancestor_is_strictly_older_than_the_moment():
    table = history((1, None, 10), (2, 1, 20), (9, 1, 25), (3, 2, 30), current=3)
    found = {t: s and s.snapshot_id for t in (10, 11, 20, 21, 26, 30, 31) for s in [newest_ancestor_before(table, t)]}
    assert found == {10: None, 11: 1, 20: 1, 21: 2, 26: 2, 30: 2, 31: 3}


def test_of_ancestors_of_one_time_the_newest_in_the_history_is_meant_and_clocks_that_ran_back_do_not_hide_it():
    assert newest_ancestor_before(history((1, None, 10), (2, 1, 10), current=2), 11).snapshot_id == 2
    assert newest_ancestor_before(history((1, None, 50), (2, 1, 20), (3, 2, 70), current=3), 60).snapshot_id == 1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(-1, 11))
def test_the_newest_ancestor_before_a_moment_is_the_one_with_the_greatest_time_below_it(times, moment):
    chain = [(n, n - 1 if n else None, t) for n, t in enumerate(times)]
    found = newest_ancestor_before(history(*chain, current=len(times) - 1), moment)
    below = [t for t in times if t < moment]
    assert (None if found is None else found.timestamp_ms) == (max(below) if below else None)


@for_each(
    ("log", "current", "target", "former", "expected"),
    [
        ((1, 2, 1), 1, 1, 2, True),
        ((1, 2, 1, 3), 3, 1, 2, True),
        ((1, 2), 2, 1, 2, False),
        ((1, 2, 3), 3, 1, 2, False),
        ((1, 2, 1, 2), 2, 1, 2, False),
        ((1,), 1, 1, None, True),
        ((1, 2), 2, 1, None, True),
        ((), None, 1, None, False),
        ((3,), 3, 1, 2, False),
        ((1, 3), 3, 1, 2, False),
    ],
)
def test_the_log_tells_whether_a_snapshot_became_current_after_another_one(log, current, target, former, expected):
    table = history((1, None, 1), (2, 1, 2), (3, 1, 3), current=current, log=log)
    assert has_been_current_since(table, target, former) is expected


@pytest.mark.parametrize("name", ["", " ", "\t"])
def test_a_reference_needs_a_name(name):
    with pytest.raises(UsageError, match="cannot be the name of a tag"):
        validated_ref(name, TAG)


def test_main_is_no_tag():
    with pytest.raises(UsageError, match="main is a branch"):
        validated_ref("main", TAG)
    assert validated_ref("main", BRANCH) is BRANCH


@pytest.mark.parametrize("limit", ["min_snapshots_to_keep", "max_snapshot_age_ms"])
def test_only_a_branch_has_limits_for_its_snapshots(limit):
    with pytest.raises(UsageError, match=f"'t' is a tag; only a branch can have {limit.replace('_', '-')}"):
        validated_ref("t", replace(TAG, **{limit: 5}))
    assert validated_ref("b", replace(BRANCH, **{limit: 5}))


@for_each("limit", ["min_snapshots_to_keep", "max_snapshot_age_ms", "max_ref_age_ms"])
@for_each("value", [0, -1, 2**63])
def test_limits_are_positive_numbers_that_other_engines_can_read(limit, value):
    with pytest.raises(OptionError, match=f"option {limit} is {value}; give a whole number from 1 to"):
        validated_ref("b", replace(BRANCH, **{limit: value}))


def test_the_greatest_number_of_snapshots_is_that_of_an_int():
    assert validated_ref("b", replace(BRANCH, min_snapshots_to_keep=2**31 - 1))
    with pytest.raises(OptionError):
        validated_ref("b", replace(BRANCH, min_snapshots_to_keep=2**31))


def test_a_reference_that_is_moved_keeps_what_it_says_beside_its_snapshot():
    ref = SnapshotRef(snapshot_id=1, type="tag", max_ref_age_ms=7, extra={"new": "key"})
    assert moved(ref, 2) == SnapshotRef(snapshot_id=2, type="tag", max_ref_age_ms=7, extra={"new": "key"})
    assert moved(None, 2) == SnapshotRef(snapshot_id=2, type="branch")
