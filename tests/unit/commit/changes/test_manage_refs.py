"""Branches and tags, also while others move them."""

import pytest

from icekeep.commit.changes.snapshots import (
    CreateBranchOfEmptyTable,
    CreateOrReplaceRef,
    CreateRef,
    DropRef,
    FastForwardBranch,
    RenameBranch,
    ReplaceRef,
    SetRefRetention,
)
from icekeep.errors import ConflictError, NotFoundError, OptionError, UsageError
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.updates import AssertRefSnapshotId, RemoveSnapshotRef
from kit.changes import Applying, run
from kit.memory_catalog import CONFLICTS, LANDS_BUT_SAYS_CONFLICT, MemoryCatalog, after
from kit.tables import EVENTS, add, ids, live, memory_table, orphans, set_ref, stored, swap

CHANGES = ["create", "create or replace", "replace", "fast-forward", "rename", "drop", "retention"]


@pytest.fixture
def table(catalog):
    """Three snapshots with files a, b and c, and a tag at the second."""
    table = memory_table(catalog)
    for name in "abc":
        table = add(table, name)
    return set_ref(table, "t", ids(table)[1], max_ref_age_ms=77)


def at(table, name):
    ref = table.metadata.refs.get(name)
    return None if ref is None else ref.snapshot_id


def branch(snapshot_id, **limits):
    return SnapshotRef(snapshot_id=snapshot_id, type="branch", **limits)


def tag(snapshot_id, **limits):
    return SnapshotRef(snapshot_id=snapshot_id, type="tag", **limits)


@pytest.mark.parametrize("make", [branch, tag])
def test_create_ref_sets_limits_and_requires_absence(catalog, table, make):
    wanted = make(ids(table)[0], max_ref_age_ms=5)
    result = run(table, CreateRef("new", wanted))
    assert result.table.metadata.refs == {**table.metadata.refs, "new": wanted}
    assert result.snapshot_id is None
    assert AssertRefSnapshotId("new", None) in catalog.swaps[-1][0]


def test_existing_ref_with_other_settings_is_a_conflict(table):
    first, second, _ = ids(table)
    for wanted in (branch(second, max_ref_age_ms=77), tag(first, max_ref_age_ms=77), tag(second)):
        with pytest.raises(UsageError, match=f"tag 't' exists already, at snapshot {second}; drop or replace it"):
            run(table, CreateRef("t", wanted))


def test_a_reference_to_a_missing_snapshot_is_refused(catalog, table):
    swaps = len(catalog.swaps)
    for change in (
        CreateRef("new", tag(99)),
        ReplaceRef(name="t", type="tag", snapshot_id=99, expected_id=ids(table)[1]),
        FastForwardBranch("main", 99),
    ):
        with pytest.raises(NotFoundError, match="no snapshot 99"):
            run(table, change)
    assert len(catalog.swaps) == swaps


def test_main_cannot_be_made_a_tag(catalog, table):
    staged = memory_table(MemoryCatalog())
    with pytest.raises(UsageError, match="exists already"):
        run(table, CreateRef("main", tag(ids(table)[0])))
    with pytest.raises(UsageError, match="main is a branch"):
        run(staged, CreateRef("main", tag(1)))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_branch_of_an_empty_table_leaves_main_empty(catalog, version):
    table = memory_table(catalog, format_version=version)
    after_ = run(table, CreateBranchOfEmptyTable(name="dev", max_ref_age_ms=5)).table
    (snapshot,) = after_.metadata.snapshots
    assert after_.metadata.refs == {"dev": branch(snapshot.snapshot_id, max_ref_age_ms=5)}
    assert after_.metadata.current_snapshot_id is None
    assert (snapshot.operation, snapshot.parent_snapshot_id, snapshot.summary["total-data-files"]) == (
        "append",
        None,
        "0",
    )
    assert live(add(after_, "x", branch="dev"), "dev") == {"x": 1}
    assert live(add(after_, "y")) == {"y": 1}


def test_empty_branch_fails_if_table_got_data(catalog):
    """A branch of an empty table is not made once the table has a snapshot, and no file is left."""
    table = memory_table(catalog)
    catalog.follow(after(lambda: add(table, "theirs")))
    with pytest.raises(ConflictError, match="no longer empty"):
        run(table, CreateBranchOfEmptyTable(name="dev"))
    assert orphans(catalog) == set()
    assert catalog.load(EVENTS).metadata.refs.keys() == {"main"}


def test_empty_branch_is_made_once_under_free_name(catalog):
    table = memory_table(catalog)
    catalog.follow(LANDS_BUT_SAYS_CONFLICT)
    made = run(table, CreateBranchOfEmptyTable(name="dev"))
    assert (len(made.table.metadata.snapshots), made.changed) == (1, True)
    with pytest.raises(UsageError, match="branch 'dev' exists already"):
        run(table, CreateBranchOfEmptyTable(name="dev"))
    before = stored(catalog)
    with pytest.raises(OptionError):
        run(table, CreateBranchOfEmptyTable(name="other", min_snapshots_to_keep=0))
    assert stored(catalog) == before


def test_a_name_that_another_writer_takes_meanwhile_is_refused(catalog, table):
    catalog.follow(after(lambda: set_ref(table, "new", ids(table)[0])))
    with pytest.raises(UsageError, match="tag 'new' exists already"):
        run(table, CreateRef("new", tag(ids(table)[1])))
    assert at(catalog.load(EVENTS), "new") == ids(table)[0]


@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_a_reference_is_replaced_and_keeps_its_limits(catalog, table, kind):
    first, _, third = ids(table)
    table = set_ref(table, "r", third, kind, max_ref_age_ms=9)
    result = run(table, ReplaceRef(name="r", type=kind, snapshot_id=first, expected_id=third))
    assert result.table.metadata.refs["r"] == SnapshotRef(snapshot_id=first, type=kind, max_ref_age_ms=9)
    assert AssertRefSnapshotId("r", third) in catalog.swaps[-1][0]
    assert not run(table, ReplaceRef(name="r", type=kind, snapshot_id=first, expected_id=third)).changed


@pytest.mark.parametrize(
    "change",
    [
        ReplaceRef(name="t", type="branch", snapshot_id=1, expected_id=1),
        RenameBranch(name="t", new_name="x", snapshot_id=1),
        DropRef(name="t", type="branch", expected_id=1),
    ],
)
def test_what_is_for_branches_is_refused_for_a_tag(table, change):
    for refused in (change, FastForwardBranch("t", ids(table)[2])):
        with pytest.raises(UsageError, match="'t' is a tag, not a branch"):
            run(table, refused)


def test_a_branch_is_no_tag_to_be_dropped_or_replaced(table):
    table = set_ref(table, "b", ids(table)[0], "branch")
    for change in (
        ReplaceRef(name="b", type="tag", snapshot_id=ids(table)[1], expected_id=ids(table)[0]),
        DropRef(name="b", type="tag", expected_id=ids(table)[0]),
    ):
        with pytest.raises(UsageError, match="'b' is a branch, not a tag"):
            run(table, change)


def test_missing_ref_error_lists_existing_refs(table):
    for change in (
        ReplaceRef(name="x", type="tag", snapshot_id=1, expected_id=1),
        SetRefRetention(name="x", max_ref_age_ms=1),
    ):
        with pytest.raises(NotFoundError, match=r"has no (tag|branch or tag) 'x'; there is ('main', )?'t'$"):
            run(table, change)
    with pytest.raises(NotFoundError, match=r"has no branch 'x'; there is 'main'$"):
        run(table, RenameBranch(name="x", new_name="y", snapshot_id=ids(table)[0]))


def test_replace_ref_never_discards_concurrent_commit(catalog, table):
    first, second, _ = ids(table)
    table = set_ref(table, "b", second, "branch")
    catalog.follow(after(lambda: add(table, "theirs", branch="b")))
    with pytest.raises(ConflictError, match=f"branch 'b' was moved from snapshot {second} to"):
        run(table, ReplaceRef(name="b", type="branch", snapshot_id=first, expected_id=second))
    assert live(catalog.load(EVENTS), "b") == {"a": 1, "b": 1, "theirs": 1}


def test_branch_fast_forwards_and_keeps_limits(catalog, table):
    first, second, third = ids(table)
    table = set_ref(table, "b", first, "branch", min_snapshots_to_keep=3)
    result = run(table, FastForwardBranch("b", third))
    assert result.table.metadata.refs["b"] == branch(third, min_snapshots_to_keep=3)
    assert AssertRefSnapshotId("b", first) in catalog.swaps[-1][0]
    # It holds the second one already.
    assert not run(result.table, FastForwardBranch("b", second)).changed


def test_main_fast_forwards_to_audited_branch(table):
    """After write-audit-publish, main holds the audited snapshot and the snapshot log records it."""
    table = set_ref(table, "audit", ids(table)[2], "branch")
    table = add(table, "audited", branch="audit")
    result = run(table, FastForwardBranch("main", at(table, "audit")))
    assert live(result.table) == {"a": 1, "b": 1, "c": 1, "audited": 1}
    assert result.table.metadata.snapshot_log[-1].snapshot_id == at(table, "audit")


def test_empty_main_fast_forwards_to_any_snapshot(catalog):
    table = run(memory_table(catalog), CreateBranchOfEmptyTable(name="dev")).table
    table = add(table, "x", branch="dev")
    result = run(table, FastForwardBranch("main", at(table, "dev")))
    assert result.table.metadata.current_snapshot_id == at(table, "dev")


def test_a_branch_that_went_another_way_is_not_fast_forwarded(catalog, table):
    table = set_ref(table, "audit", ids(table)[2], "branch")
    table = add(table, "audited", branch="audit")
    target = at(table, "audit")
    catalog.follow(after(lambda: add(table, "theirs")))
    with pytest.raises(UsageError, match=f"cannot fast-forward 'main' to snapshot {target}: the branch is at snapshot"):
        run(table, FastForwardBranch("main", target))
    assert live(catalog.load(EVENTS)) == {"a": 1, "b": 1, "c": 1, "theirs": 1}


def test_fast_forward_does_not_recreate_dropped_branch(catalog, table):
    table = set_ref(table, "b", ids(table)[0], "branch")
    catalog.follow(after(lambda: swap(table, RemoveSnapshotRef("b"))))
    with pytest.raises(NotFoundError, match="no branch 'b'"):
        run(table, FastForwardBranch("b", ids(table)[2]))


def test_rename_branch_carries_concurrent_commits(catalog, table):
    table = set_ref(table, "b", ids(table)[0], "branch", min_snapshots_to_keep=3)
    catalog.follow(after(lambda: add(table, "theirs", branch="b")))
    result = run(table, RenameBranch(name="b", new_name="c", snapshot_id=ids(table)[0]))
    assert result.table.metadata.refs.keys() == {"main", "t", "c"}
    assert result.table.metadata.refs["c"].min_snapshots_to_keep == 3
    assert live(result.table, "c") == {"a": 1, "theirs": 1}
    needed = catalog.swaps[-1][0]
    assert AssertRefSnapshotId("c", None) in needed
    assert AssertRefSnapshotId("b", at(result.table, "c")) in needed


def test_main_keeps_its_name_and_taken_names_stay_taken(table):
    table = set_ref(table, "b", ids(table)[0], "branch")
    with pytest.raises(UsageError, match="main cannot be renamed"):
        run(table, RenameBranch(name="main", new_name="x", snapshot_id=ids(table)[2]))
    for taken in ("t", "main", "b"):
        with pytest.raises(UsageError, match=f"'{taken}' exists already"):
            run(table, RenameBranch(name="b", new_name=taken, snapshot_id=ids(table)[0]))
    with pytest.raises(UsageError, match="cannot be the name"):
        run(table, RenameBranch(name="b", new_name="", snapshot_id=ids(table)[0]))


def test_a_branch_that_is_gone_is_not_taken_for_renamed(table):
    table = set_ref(table, "c", ids(table)[0], "branch")
    with pytest.raises(NotFoundError, match="no branch 'b'"):
        run(table, RenameBranch(name="b", new_name="c", snapshot_id=ids(table)[1]))


@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_a_reference_is_dropped_and_its_snapshots_stay(catalog, table, kind):
    table = set_ref(table, "r", ids(table)[0], kind)
    result = run(table, DropRef(name="r", type=kind, expected_id=ids(table)[0]))
    assert result.table.metadata.refs.keys() == {"main", "t"}
    assert ids(result.table) == ids(table)
    assert AssertRefSnapshotId("r", ids(table)[0]) in catalog.swaps[-1][0]


def test_main_is_never_dropped(table):
    with pytest.raises(UsageError, match="main cannot be dropped"):
        run(table, DropRef(name="main", type="branch", expected_id=ids(table)[2]))


def test_branch_with_concurrent_commit_is_not_dropped(catalog, table):
    table = set_ref(table, "b", ids(table)[0], "branch")
    catalog.follow(after(lambda: add(table, "theirs", branch="b")))
    with pytest.raises(ConflictError, match="branch 'b' was moved"):
        run(table, DropRef(name="b", type="branch", expected_id=ids(table)[0]))
    assert live(catalog.load(EVENTS), "b") == {"a": 1, "theirs": 1}


def test_retention_is_set_at_the_current_head(catalog, table):
    """Retention is set on a branch that moved, and settings that were not given stay."""
    table = set_ref(table, "b", ids(table)[0], "branch", max_ref_age_ms=7)
    catalog.follow(after(lambda: add(table, "theirs", branch="b")))
    result = run(table, SetRefRetention(name="b", min_snapshots_to_keep=2, max_snapshot_age_ms=5))
    head = result.table.metadata.snapshots[-1].snapshot_id
    assert result.table.metadata.refs["b"] == branch(
        head, min_snapshots_to_keep=2, max_snapshot_age_ms=5, max_ref_age_ms=7
    )
    assert not run(table, SetRefRetention(name="b", min_snapshots_to_keep=2)).changed


def test_limits_of_main_leave_main_where_it_is(table):
    result = run(table, SetRefRetention(name="main", min_snapshots_to_keep=9))
    assert result.table.metadata.refs["main"] == branch(ids(table)[2], min_snapshots_to_keep=9)
    assert result.table.metadata.snapshot_log == table.metadata.snapshot_log


def test_limits_that_a_reference_cannot_have_are_refused(table):
    with pytest.raises(UsageError, match="only a branch can have min-snapshots-to-keep"):
        run(table, SetRefRetention(name="t", min_snapshots_to_keep=1))
    with pytest.raises(OptionError, match="max_ref_age_ms"):
        run(table, SetRefRetention(name="t", max_ref_age_ms=0))


def changes_of_refs(table):
    """A table, and one change of each kind that fits it."""
    first, second, third = ids(table)
    table = set_ref(table, "b", first, "branch")
    return table, {
        "create": CreateRef("new", branch(second)),
        "create or replace": CreateOrReplaceRef(name="b", ref=branch(second), expected_id=first),
        "replace": ReplaceRef(name="b", type="branch", snapshot_id=second, expected_id=first),
        "fast-forward": FastForwardBranch("b", third),
        "rename": RenameBranch(name="b", new_name="c", snapshot_id=first),
        "drop": DropRef(name="t", type="tag", expected_id=second),
        "retention": SetRefRetention(name="t", max_ref_age_ms=5),
    }


@pytest.mark.parametrize("name", CHANGES)
def test_landed_but_rejected_ref_change_is_not_repeated_peers_10(catalog, table, name):
    table, changes = changes_of_refs(table)
    swaps = len(catalog.swaps)
    catalog.follow(LANDS_BUT_SAYS_CONFLICT)
    change = Applying(changes[name])
    result = run(table, change)
    assert (len(change.bases), len(catalog.swaps) - swaps) == (2, 1)
    assert result.table.metadata.refs != table.metadata.refs


def test_rename_is_recognised_after_later_commits(catalog, table):
    """A rename that has landed is not repeated, though others have committed to the branch since."""
    table, changes = changes_of_refs(table)
    renamed = run(table, changes["rename"]).table
    add(renamed, "theirs", branch="c")
    result = run(table, changes["rename"])
    assert not result.changed
    assert live(result.table, "c") == {"a": 1, "theirs": 1}


@pytest.mark.parametrize("name", CHANGES)
def test_a_rejected_change_is_made_on_the_next_base(catalog, table, name):
    table, changes = changes_of_refs(table)
    catalog.follow(CONFLICTS)
    result = run(table, changes[name])
    assert result.changed
    assert result.table.metadata.refs != table.metadata.refs
