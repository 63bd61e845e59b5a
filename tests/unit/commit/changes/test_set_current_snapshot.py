"""Rollback and its undoing: what others commit meanwhile stays, whatever was decided before."""

import pytest

from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.snapshots import RollbackToSnapshot, SetCurrentSnapshot
from icekeep.errors import ConflictError, NotFoundError, UsageError
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.updates import AssertRefSnapshotId, RemoveSnapshots, SetSnapshotRef
from kit.changes import Applying, run
from kit.memory_catalog import (
    CONFLICTS,
    LANDS_BUT_IS_UNKNOWN,
    LANDS_BUT_SAYS_CONFLICT,
    after,
)
from kit.tables import EVENTS, add, files, ids, live, memory_table, set_ref, swap

BOTH = [SetCurrentSnapshot, RollbackToSnapshot]


@pytest.fixture(params=[1, 2, 3])
def table(catalog, request):
    """Three snapshots of main with files a, b and c, and a branch with d beside b's."""
    table = memory_table(catalog, format_version=request.param)
    for name in "ab":
        table = add(table, name)
    table = set_ref(table, "side", ids(table)[1], "branch", min_snapshots_to_keep=7)
    return add(add(table, "c"), "d", branch="side")


def moves(cls, table, target):
    return cls(snapshot_id=target, expected_id=table.metadata.current_snapshot_id)


@pytest.mark.parametrize("cls", BOTH)
def test_an_older_snapshot_becomes_current_and_no_snapshot_is_lost(catalog, table, cls):
    third = table.metadata.current_snapshot_id
    result = run(table, moves(cls, table, ids(table)[0]))
    assert live(result.table) == {"a": 1}
    assert result.snapshot_id is None
    assert ids(result.table) == ids(table)
    assert [e.snapshot_id for e in result.table.metadata.snapshot_log] == [*ids(table)[:3], ids(table)[0]]
    assert AssertRefSnapshotId("main", third) in catalog.swaps[-1][0]


@pytest.mark.parametrize("cls", BOTH)
def test_what_is_written_after_a_rollback_goes_on_from_there(table, cls):
    back = run(table, moves(cls, table, ids(table)[0])).table
    later = add(back, "e")
    assert live(later) == {"a": 1, "e": 1}
    assert later.metadata.current_snapshot.parent_snapshot_id == ids(table)[0]
    if later.metadata.format_version > 1:
        assert later.metadata.current_snapshot.sequence_number == 5


@pytest.mark.parametrize("cls", BOTH)
def test_the_limits_of_main_stay(table, cls):
    table = swap(
        table, SetSnapshotRef("main", SnapshotRef(snapshot_id=ids(table)[2], type="branch", min_snapshots_to_keep=4))
    )
    result = run(table, moves(cls, table, ids(table)[0]))
    assert result.table.metadata.refs["main"] == SnapshotRef(
        snapshot_id=ids(table)[0], type="branch", min_snapshots_to_keep=4
    )


def test_only_an_ancestor_is_rolled_back_to_and_any_snapshot_can_be_set(table):
    side = table.metadata.refs["side"].snapshot_id
    with pytest.raises(UsageError, match=f"cannot roll back to snapshot {side}: it is not an ancestor of the current"):
        run(table, moves(RollbackToSnapshot, table, side))
    assert live(run(table, moves(SetCurrentSnapshot, table, side)).table) == {"a": 1, "b": 1, "d": 1}


def test_a_rollback_is_undone_by_setting_the_snapshot_that_it_left(table):
    back = run(table, moves(RollbackToSnapshot, table, ids(table)[0])).table
    with pytest.raises(UsageError, match="not an ancestor"):
        run(back, moves(RollbackToSnapshot, back, ids(table)[2]))
    again = run(back, moves(SetCurrentSnapshot, back, ids(table)[2])).table
    assert live(again) == live(table)


@pytest.mark.parametrize("cls", BOTH)
def test_a_snapshot_that_is_not_there_or_expires_meanwhile_is_not_found(catalog, table, cls):
    with pytest.raises(NotFoundError, match="no snapshot 99"):
        run(table, moves(cls, table, 99))
    catalog.follow(after(lambda: swap(table, RemoveSnapshots((ids(table)[0],)))))
    with pytest.raises(NotFoundError, match=f"no snapshot {ids(table)[0]}"):
        run(table, moves(cls, table, ids(table)[0]))


@pytest.mark.parametrize("cls", BOTH)
def test_the_current_snapshot_is_nothing_to_do(table, cls):
    assert not run(table, moves(cls, table, ids(table)[2])).changed


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("script", [(), (CONFLICTS,)])
def test_what_another_writer_commits_meanwhile_is_not_undone(catalog, table, cls, script):
    catalog.follow(*script, after(lambda: add(table, "theirs")))
    with pytest.raises(ConflictError, match=f"main was moved from snapshot {ids(table)[2]} to"):
        run(table, moves(cls, table, ids(table)[0]))
    assert live(catalog.load(EVENTS)) == {"a": 1, "b": 1, "c": 1, "theirs": 1}


@pytest.mark.parametrize("cls", BOTH)
def test_a_decision_on_an_outdated_table_is_a_conflict(catalog, table, cls):
    add(table, "theirs")
    swaps = len(catalog.swaps)
    with pytest.raises(ConflictError, match="look at what is there now and run it again"):
        run(table, moves(cls, table, ids(table)[0]))
    assert len(catalog.swaps) == swaps


@pytest.mark.parametrize("cls", BOTH)
def test_what_others_do_on_another_branch_does_not_matter(catalog, table, cls):
    catalog.follow(after(lambda: add(table, "theirs", branch="side")))
    result = run(table, moves(cls, table, ids(table)[0]))
    assert live(result.table) == {"a": 1}
    assert live(result.table, "side") == {"a": 1, "b": 1, "d": 1, "theirs": 1}


@pytest.mark.parametrize("cls", BOTH)
def test_a_rollback_under_an_append_is_where_the_append_goes_on(catalog, table, cls):
    catalog.follow(after(lambda: run(table, moves(cls, table, ids(table)[0]))))
    assert live(run(table, AppendFiles(files=files("mine"))).table) == {"a": 1, "mine": 1}


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("step", [LANDS_BUT_SAYS_CONFLICT, LANDS_BUT_IS_UNKNOWN])
def test_a_change_that_landed_though_its_answer_was_lost_is_made_once_peers_10(catalog, table, cls, step):
    catalog.follow(step)
    change = Applying(moves(cls, table, ids(table)[0]))
    result = run(table, change)
    log = [e.snapshot_id for e in result.table.metadata.snapshot_log]
    assert log == [*ids(table)[:3], ids(table)[0]]
    assert live(result.table) == {"a": 1}


@pytest.mark.parametrize("cls", BOTH)
def test_one_that_landed_is_not_made_again_over_what_others_have_built_on_it_since(catalog, table, cls):
    change = moves(cls, table, ids(table)[0])
    back = run(table, change).table
    add(back, "theirs")
    result = run(table, change)
    assert not result.changed
    assert live(catalog.load(EVENTS)) == {"a": 1, "theirs": 1}


def test_main_of_an_empty_table_is_set_and_a_first_commit_of_others_is_in_the_way(catalog):
    empty = memory_table(catalog)
    staged = add(empty, "x")
    change = SetCurrentSnapshot(snapshot_id=staged.metadata.current_snapshot_id, expected_id=None)
    assert not run(empty, change).changed
    with pytest.raises(ConflictError, match="main was moved from snapshot None"):
        run(empty, SetCurrentSnapshot(snapshot_id=99, expected_id=None))
