"""What readers that follow a table still need: by properties, tags and positions, up to a lag."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import SafetyError
from icekeep.spec.metadata import metadata_from_json
from icekeep.spec.readers import CHECKPOINT, CONSUMER, ReaderPosition, registered_readers
from icekeep.spec.retention import RetentionPolicy, select_expired
from kit.cases import cases
from kit.metadata import DAY_MS, START_MS, MetadataBuilder, full_document
from kit.strategies import histories

LAG = 7 * DAY_MS


def day(number):
    """The moment of the snapshot with a number, where snapshots lie a day apart."""
    return START_MS + (number - 1) * DAY_MS


def consumer(name, snapshot_id, updated_ms=None):
    """The properties by which a reader registers."""
    more = {} if updated_ms is None else {f"{CONSUMER}{name}.updated-ms": str(updated_ms)}
    return {f"{CONSUMER}{name}.snapshot-id": str(snapshot_id), **more}


def expire(builder, *positions, now_ms=None, **policy):
    """What would go of all but the heads."""
    metadata = builder.build() if isinstance(builder, MetadataBuilder) else builder
    now_ms = metadata.last_updated_ms if now_ms is None else now_ms
    told = {"older_than_ms": 2**62, "retain_last": 1, "max_reader_lag_ms": LAG, "reader_positions": positions, **policy}
    return select_expired(metadata, RetentionPolicy(**told), now_ms)


def at(snapshot_id, **changes):
    return ReaderPosition(name="s", source=CHECKPOINT, snapshot_id=snapshot_id, **changes)


def statuses(expired):
    return {one.name: one.status for one in expired.readers}


def test_snapshot_that_was_read_last_and_all_after_it_stay():
    found = expire(MetadataBuilder().commits(6).properties(consumer("billing", 3)))
    assert found.snapshot_ids == {1, 2}
    assert [(one.snapshot_id, one.reader) for one in found.kept_for_readers] == [(n, "billing") for n in (3, 4, 5)]
    [seen] = found.readers
    assert (seen.source, seen.snapshot_id, seen.status, seen.lag_ms) == ("property", 3, "waited_for", 2 * DAY_MS)


def test_tag_registers_a_reader_too():
    builder = MetadataBuilder().commits(6).tag("icekeep-consumer-billing", at=3).tag("other", at=1)
    found = expire(builder)
    assert found.snapshot_ids == {2}
    assert [(one.name, one.source, one.snapshot_id) for one in found.readers] == [("billing", "tag", 3)]
    # It is one only while it is retained itself.
    assert expire(builder.tag("icekeep-consumer-billing", at=3, max_ref_age_ms=1)).snapshot_ids == {2, 3, 4, 5}


@pytest.mark.parametrize(("days", "status", "gone"), [(7, "waited_for", {1}), (8, "too_far_behind", {1, 2, 3})])
def test_reader_is_waited_for_up_to_a_lag(days, status, gone):
    """It lags since the first snapshot was committed that it has not read."""
    builder = MetadataBuilder().commits(4).properties(consumer("billing", 2))
    found = expire(builder, now_ms=day(3) + days * DAY_MS)
    assert (statuses(found), found.snapshot_ids) == ({"billing": status}, gone)


def test_reader_that_moves_is_waited_for_at_any_age():
    builder = MetadataBuilder().commits(4)
    late = day(60)
    assert statuses(expire(builder.properties(consumer("b", 2, late - DAY_MS)), now_ms=late)) == {"b": "waited_for"}
    # A time that has not come is none.
    assert statuses(expire(builder.properties(consumer("b", 2, late + DAY_MS)), now_ms=late)) == {"b": "too_far_behind"}


def test_reader_at_the_head_does_not_lag():
    found = expire(MetadataBuilder().commits(4).properties(consumer("b", 4)), now_ms=day(900))
    assert (statuses(found), found.readers[0].lag_ms, found.snapshot_ids) == ({"b": "waited_for"}, 0, {1, 2, 3})


def test_reader_whose_snapshot_is_gone_keeps_nothing():
    found = expire(MetadataBuilder().commits(4).properties(consumer("b", 99)))
    assert (statuses(found), found.snapshot_ids) == ({"b": "gone"}, {1, 2, 3})


@pytest.mark.parametrize(
    "properties",
    [
        {f"{CONSUMER}b.snapshot-id": "seven"},
        {f"{CONSUMER}b.snapshot-id": "-1"},
        {f"{CONSUMER}b.snapshot-id": "9" * 30},
        {**consumer("b", 3), f"{CONSUMER}b.updated-ms": "yesterday"},
    ],
)
def test_position_that_is_not_known_keeps_everything(properties):
    builder = MetadataBuilder().commits(4).tag("old", at=1, max_ref_age_ms=1).properties(properties)
    found = expire(builder)
    assert found.is_empty
    assert statuses(found) == {"b": "unreadable"}
    # The tag, whose time is over, stays too, and its snapshot by it.
    assert {one.snapshot_id for one in found.kept_for_readers} == {2, 3}


def test_nobody_is_waited_for_without_a_lag():
    builder = MetadataBuilder().commits(4).properties(consumer("b", 1))
    found = expire(builder, at(None, problem="unreadable"), max_reader_lag_ms=0)
    assert (found.snapshot_ids, found.readers) == ({1, 2, 3}, ())


def test_named_snapshot_is_refused_while_a_reader_needs_it():
    builder = MetadataBuilder().commits(4).properties(consumer("b", 2))
    with pytest.raises(SafetyError, match="cannot expire snapshot 3: reader 'b' has not read all after it"):
        expire(builder, snapshot_ids=(3,))
    assert expire(builder, snapshot_ids=(1,)).snapshot_ids == {1}


def test_other_branches_and_staged_snapshots_are_not_kept_for_it():
    builder = MetadataBuilder().commits(2).commits(2, branch="dev").commits(2).stage(at_ms=START_MS)
    # 3 and 4 are on dev after 2, 5 and 6 on main after 2, 7 is staged after 6.
    found = expire(builder.properties(consumer("b", 5)))
    assert found.snapshot_ids == {1, 2, 3, 7}
    assert expire(builder.properties(consumer("b", 2))).snapshot_ids == {1, 7}


def test_reader_of_a_line_that_was_rolled_back_keeps_that_line():
    builder = MetadataBuilder().commits(4).roll_back(to=2).commits(1)
    found = expire(builder.properties(consumer("b", 3)))
    assert {one.snapshot_id for one in found.kept_for_readers} == {3, 4}


def test_reader_that_has_read_nothing_needs_all_of_a_branch():
    found = expire(MetadataBuilder().commits(3).stage(at_ms=START_MS), at(None))
    assert found.snapshot_ids == {4}


def test_only_whole_names_of_properties_register():
    metadata = MetadataBuilder().commits(1).properties({f"{CONSUMER}a.b.snapshot-id": "1", f"{CONSUMER}c": "1"}).build()
    assert [one.name for one in registered_readers(metadata, metadata.refs)] == ["a.b"]


@cases(300)
@given(histories(), st.integers(0, 12), st.integers(0, 20))
def test_what_a_reader_has_not_read_stays_and_nothing_else(history, number, days):
    """Against walks from each head back: what has the reached snapshot behind it, and that itself."""
    empty = {"snapshot-log": [], "statistics": [], "partition-statistics": [], "properties": {}}
    metadata = metadata_from_json({**full_document(), **history, **empty})
    if not metadata.snapshots:
        return
    reached = metadata.snapshots[number % len(metadata.snapshots)].snapshot_id
    now_ms = max(s.timestamp_ms for s in metadata.snapshots) + days * DAY_MS
    without = expire(metadata, now_ms=now_ms, max_reader_lag_ms=0)
    found = expire(metadata, at(reached), now_ms=now_ms)
    lines = [[s.snapshot_id for s in metadata.ancestors(r.snapshot_id)] for r in metadata.refs.values() if r.is_branch]
    after = {i for line in lines if reached in line for i in line[: line.index(reached) + 1]}
    is_waited_for = found.readers[0].status == "waited_for"
    if is_waited_for and after:
        assert found.snapshot_ids == without.snapshot_ids - after
        assert {one.snapshot_id for one in found.kept_for_readers} == without.snapshot_ids & after
    elif is_waited_for:
        assert found.snapshot_ids <= without.snapshot_ids - {reached}
    else:
        assert found.snapshot_ids == without.snapshot_ids
        assert found.readers[0].lag_ms > LAG
