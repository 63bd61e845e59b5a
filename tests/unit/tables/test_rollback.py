"""Rollback, set current snapshot and cherry-pick on every catalog that we write ourselves, beside PyIceberg."""

from datetime import UTC, datetime

import pytest

from icekeep.commit.changes.files import AppendFiles
from icekeep.errors import ConflictError, NotFoundError, UsageError
from icekeep.tables.refs import create_tag
from icekeep.tables.verbs import (
    append,
    cherrypick_snapshot,
    publish_changes,
    rollback_to_snapshot,
    rollback_to_timestamp,
    set_current_snapshot,
)
from kit.changes import Staged, run
from kit.lake import Lake, events, multiset
from kit.memory_catalog import MemoryCatalog
from kit.tables import add, files, live, memory_table, set_ref


@pytest.fixture
def memory():
    """A table with three snapshots, ten seconds apart."""
    catalog = MemoryCatalog()
    table = memory_table(catalog)
    for name in "abc":
        catalog.runtime.pass_ms(10_000)
        table = add(table, name)
    return table


@pytest.fixture(params=["sql", "filesystem"])
def lake(request, tmp_path):
    return Lake(tmp_path, request.param)


def ids(table):
    return [s.snapshot_id for s in table.metadata.snapshots]


def staged(table, name, **summary):
    """The table after somebody staged a snapshot, and its id."""
    change = AppendFiles(files=files(name), summary={key.replace("_", "."): value for key, value in summary.items()})
    result = run(table, Staged(change))
    return result.table, result.snapshot_id


@pytest.mark.slow
def test_pyiceberg_reads_the_rows_of_the_snapshot_that_was_rolled_back_to(lake):
    table = lake.create()
    for number in range(3):
        table = append(table, events(number))
    table = rollback_to_snapshot(table, ids(table)[1])
    assert lake.rows() == multiset(events(0)) + multiset(events(1))
    table = rollback_to_timestamp(table, table.metadata.snapshots[0].timestamp_ms + 1)
    assert lake.rows() == multiset(events(0))
    table = set_current_snapshot(table, ids(table)[2])
    assert lake.rows() == multiset(events(0)) + multiset(events(1)) + multiset(events(2))
    table = set_current_snapshot(create_tag(table, "v1", ids(table)[0]), ref="v1")
    append(table, events(5))
    assert lake.rows() == multiset(events(0)) + multiset(events(5))


@pytest.mark.slow
def test_a_staged_append_is_published_beside_others_and_pyiceberg_reads_its_rows_once(lake):
    table = append(lake.create(), events(0))
    # A snapshot that was taken out of main's history is one that was staged.
    late = append(table, events(1), summary={"wap.id": "w1"})
    picked = late.metadata.current_snapshot_id
    table = append(rollback_to_snapshot(late, table.metadata.current_snapshot_id), events(2))
    assert lake.rows() == multiset(events(0)) + multiset(events(2))
    table = publish_changes(table, "w1")
    assert lake.rows() == multiset(events(0)) + multiset(events(1)) + multiset(events(2))
    summary = lake.foreign().current_snapshot().summary.additional_properties
    assert (summary["source-snapshot-id"], summary["published-wap-id"]) == (str(picked), "w1")
    assert (summary["total-records"], summary["total-data-files"]) == ("60", "3")
    for again in (lambda: publish_changes(table, "w1"), lambda: cherrypick_snapshot(table, picked)):
        with pytest.raises(UsageError, match="cherry-picked already"):
            again()
    assert sum(lake.rows().values()) == 60


@pytest.mark.slow
def test_both_roll_back_to_the_same_and_each_goes_on_from_the_other(tmp_path):
    lake = Lake(tmp_path)
    table = lake.filled(commits=4, files=1)
    with lake.foreign().manage_snapshots() as manage:
        manage.rollback_to_snapshot(ids(table)[2])
    theirs = lake.load()
    assert theirs.metadata.current_snapshot_id == ids(table)[2]
    assert rollback_to_snapshot(theirs, ids(table)[1]).metadata.current_snapshot_id == ids(table)[1]
    moment = table.metadata.snapshots[1].timestamp_ms
    with lake.foreign().manage_snapshots() as manage:
        manage.set_current_snapshot(ids(table)[3])
    ours = rollback_to_timestamp(lake.load(), moment).metadata
    set_current_snapshot(lake.load(), ids(table)[3])
    with lake.foreign().manage_snapshots() as manage:
        manage.rollback_to_timestamp(moment)
    assert lake.load().metadata.current_snapshot_id == ours.current_snapshot_id == ids(table)[0]
    assert lake.load().metadata.refs == ours.refs
    names = ("made_current_at", "snapshot_id", "parent_id", "is_current_ancestor")
    foreign = lake.foreign().inspect.history().to_pylist()
    ours_at = [tuple(getattr(entry, name) for name in names) for entry in lake.load().history()]
    assert ours_at == [(row[names[0]].replace(tzinfo=UTC), *(row[name] for name in names[1:])) for row in foreign]


def test_the_moment_itself_is_not_older_than_the_moment(memory):
    times = [s.timestamp_ms for s in memory.metadata.snapshots]
    assert rollback_to_timestamp(memory, times[1]).metadata.current_snapshot_id == ids(memory)[0]
    at = datetime.fromtimestamp(times[1] / 1000, UTC)
    again = rollback_to_timestamp(memory.catalog.load(memory.identifier), at)
    assert again.metadata.current_snapshot_id == ids(memory)[0]
    with pytest.raises(
        NotFoundError, match=r"has no snapshot that is older than 2023-11-14T22:13:30Z; `icekeep history"
    ):
        rollback_to_timestamp(memory.catalog.load(memory.identifier), times[0])


def test_a_snapshot_or_a_reference_is_given_and_not_both(memory):
    for arguments in ({}, {"snapshot_id": ids(memory)[0], "ref": "main"}):
        with pytest.raises(UsageError, match="give either a snapshot_id or a ref"):
            set_current_snapshot(memory, **arguments)
    with pytest.raises(NotFoundError, match="no branch or tag 'x'"):
        set_current_snapshot(memory, ref="x")
    with pytest.raises(NotFoundError, match="no snapshot on 'main' yet"):
        set_current_snapshot(memory_table(), ref="main")


def test_a_reference_means_the_snapshot_that_it_was_seen_at(memory):
    table = set_ref(memory, "dev", ids(memory)[0], "branch")
    add(table, "later", branch="dev")
    assert live(set_current_snapshot(table, ref="dev")) == {"a": 1}


@pytest.mark.parametrize(
    "act",
    [
        lambda table: rollback_to_snapshot(table, ids(table)[0]),
        lambda table: rollback_to_timestamp(table, table.metadata.snapshots[1].timestamp_ms),
        lambda table: set_current_snapshot(table, ids(table)[0]),
    ],
)
def test_what_was_committed_since_the_table_was_loaded_is_not_undone(memory, act):
    add(memory, "theirs")
    with pytest.raises(ConflictError, match="main was moved"):
        act(memory)
    assert live(memory.catalog.load(memory.identifier))["theirs"] == 1
    assert live(act(memory.catalog.load(memory.identifier))) == {"a": 1}


def test_a_snapshot_in_the_history_of_main_is_not_picked(memory):
    for snapshot_id in ids(memory):
        with pytest.raises(
            UsageError, match=f"cannot cherry-pick snapshot {snapshot_id}: it is in the history of main"
        ):
            cherrypick_snapshot(memory, snapshot_id)


def test_a_pick_goes_beside_what_was_committed_since_the_table_was_loaded(memory):
    table, picked = staged(memory, "s")
    add(table, "theirs")
    assert live(cherrypick_snapshot(table, picked)) == {"a": 1, "b": 1, "c": 1, "s": 1, "theirs": 1}


def test_the_snapshot_with_a_wap_id_is_published(memory):
    table, _ = staged(memory, "s1", wap_id="w1")
    table, second = staged(table, "s2", wap_id="w2")
    published = publish_changes(table, "w2")
    assert published.metadata.current_snapshot_id == second
    with pytest.raises(UsageError, match="in the history of main already"):
        publish_changes(published, "w2")


def test_a_wap_id_that_nobody_or_several_have_is_refused(memory):
    with pytest.raises(NotFoundError, match=r"has no snapshot with the wap\.id 'w1'"):
        publish_changes(memory, "w1")
    table, first = staged(memory, "s1", wap_id="w1")
    table, second = staged(table, "s2", wap_id="w1")
    with pytest.raises(UsageError, match=f"snapshots {first}, {second} of table 'db.events' all have"):
        publish_changes(table, "w1")
