"""References are made, moved and dropped, and tables rolled back."""

from datetime import UTC, datetime, timedelta

import pytest

from icekeep.commit.changes.files import AppendFiles
from icekeep.errors import ConflictError, NotFoundError, OptionError, UsageError
from icekeep.spec.snapshots import SnapshotRef
from icekeep.tables.refs import (
    create_branch,
    create_tag,
    drop_branch,
    drop_tag,
    fast_forward,
    head_to_commit_to,
    rename_branch,
    replace_branch,
    replace_tag,
    set_ref_retention,
)
from icekeep.tables.verbs import (
    append,
    cherrypick_snapshot,
    publish_changes,
    rollback_to_snapshot,
    rollback_to_timestamp,
    set_current_snapshot,
)
from kit.cases import for_each
from kit.changes import Staged, run
from kit.lake import Lake, events, multiset
from kit.memory_catalog import MemoryCatalog
from kit.tables import add, files, ids, live, memory_table, set_ref


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


def foreign_refs(lake):
    """What PyIceberg reads: snapshot, type and limits of each reference."""
    return {
        name: (r.snapshot_id, r.snapshot_ref_type, r.min_snapshots_to_keep, r.max_snapshot_age_ms, r.max_ref_age_ms)
        for name, r in lake.foreign().metadata.refs.items()
    }


def test_only_a_branch_that_is_there_can_be_committed_to(memory):
    first, second, third = ids(memory)
    table = create_tag(create_branch(memory, "dev", second), "v1", first)
    assert head_to_commit_to(table.metadata, "dev").snapshot_id == second
    assert head_to_commit_to(table.metadata, "main").snapshot_id == third
    with pytest.raises(UsageError, match="'v1' is a tag; only a branch can be committed to"):
        head_to_commit_to(table.metadata, "v1")
    with pytest.raises(NotFoundError, match="no branch 'deb'; there is 'dev', 'main'"):
        head_to_commit_to(table.metadata, "deb")
    assert table.metadata.head("v1").snapshot_id == first
    with pytest.raises(NotFoundError, match="no branch or tag 'v2'; there is 'dev', 'main', 'v1'"):
        table.metadata.head("v2")


def test_main_of_empty_table_has_no_head_to_commit_to():
    metadata = memory_table(MemoryCatalog()).metadata
    assert head_to_commit_to(metadata, "main") is None
    assert metadata.head("main") is None


def test_to_set_no_limit_is_a_slip(memory):
    with pytest.raises(UsageError, match="no limit to set on 'main'; give at least one"):
        set_ref_retention(memory, "main")


def test_pyiceberg_follows_each_ref_change(lake):
    table = lake.filled(commits=3, files=1)
    first, second, third = ids(table)
    table = create_branch(table, "dev", second, min_snapshots_to_keep=2, max_snapshot_age=5, max_ref_age=7)
    table = create_tag(table, "v1", max_ref_age=9)
    main = {"main": (third, "branch", None, None, None)}
    assert foreign_refs(lake) == {**main, "dev": (second, "branch", 2, 5, 7), "v1": (third, "tag", None, None, 9)}
    table = rename_branch(table, "dev", "work")
    table = fast_forward(table, "work", "v1")
    table = replace_tag(table, "v1", first)
    table = set_ref_retention(table, "v1", max_ref_age=timedelta(milliseconds=10))
    assert foreign_refs(lake) == {**main, "work": (third, "branch", 2, 5, 7), "v1": (first, "tag", None, None, 10)}
    table = replace_branch(table, "work", first)
    table = drop_tag(drop_branch(table, "work"), "v1")
    assert foreign_refs(lake) == main
    assert lake.load().metadata == table.metadata
    assert ids(table) == [first, second, third]


@pytest.mark.slow
def test_pyiceberg_makes_the_same_references(tmp_path):
    lake = Lake(tmp_path)
    table = lake.filled(commits=3, files=1)
    _, second, third = ids(table)
    table = create_branch(table, "ours", second, min_snapshots_to_keep=2, max_snapshot_age=5, max_ref_age=7)
    create_tag(table, "our-tag", third, max_ref_age=9)
    with lake.foreign().manage_snapshots() as manage:
        manage.create_branch(second, "theirs", 7, 5, 2).create_tag(third, "their-tag", 9)
    refs = lake.load().metadata.refs
    assert (refs["ours"], refs["our-tag"]) == (refs["theirs"], refs["their-tag"])
    table = drop_branch(drop_tag(lake.load(), "their-tag"), "theirs")
    with lake.foreign().manage_snapshots() as manage:
        manage.remove_branch("ours").remove_tag("our-tag")
    assert lake.load().metadata.refs.keys() == {"main"}


def test_pyiceberg_reads_the_rows_of_a_tag_after_main_went_on(lake):
    table = lake.create()
    table = create_tag(append(table, events(1)), "v1")
    append(table, events(2))
    if lake.properties["type"] == "sql":
        scan = lake.foreign().scan(snapshot_id=lake.foreign().snapshot_by_name("v1").snapshot_id)
        assert sorted(scan.to_arrow()["id"].to_pylist()) == sorted(events(1)["id"].to_pylist())
    assert sum(lake.rows().values()) == 40


def test_a_branch_of_an_empty_table_can_be_read_by_pyiceberg(lake):
    table = create_branch(lake.create(), "dev")
    (snapshot,) = table.metadata.snapshots
    assert foreign_refs(lake) == {"dev": (snapshot.snapshot_id, "branch", None, None, None)}
    assert lake.foreign().scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == 0
    assert lake.foreign().current_snapshot() is None


def test_refs_default_to_snapshot_that_was_loaded(memory):
    add(memory, "theirs")
    assert create_tag(memory, "v1").metadata.refs["v1"].snapshot_id == ids(memory)[2]
    assert create_branch(memory, "dev").metadata.refs["dev"].snapshot_id == ids(memory)[2]


def test_existing_ref_is_refused_even_if_equal(memory):
    table = create_tag(memory, "v1")
    for verb in (create_tag, create_branch):
        with pytest.raises(UsageError, match="tag 'v1' exists already"):
            verb(table, "v1")
    with pytest.raises(UsageError, match="branch 'main' exists already"):
        create_branch(table, "main")


MAKE = {"branch": create_branch, "tag": create_tag}
DROP = {"branch": drop_branch, "tag": drop_tag}


@for_each("kind", MAKE)
def test_if_not_exists_creates_or_keeps(memory, kind):
    first, second, third = ids(memory)
    table = MAKE[kind](memory, kind, first, max_ref_age=7, if_not_exists=True)
    assert table.metadata.refs[kind] == SnapshotRef(snapshot_id=first, type=kind, max_ref_age_ms=7)
    again = MAKE[kind](table, kind, second, max_ref_age=9, if_not_exists=True)
    assert (again.metadata, again.metadata_location) == (table.metadata, table.metadata_location)
    # Others have made it since the table was loaded.
    assert MAKE[kind](memory, kind, third, if_not_exists=True).metadata.refs[kind] == table.metadata.refs[kind]


@for_each("kind", MAKE)
def test_or_replace_creates_or_moves_with_the_limits(memory, kind):
    first, second, third = ids(memory)
    limits = {"min_snapshots_to_keep": 2} if kind == "branch" else {}
    table = MAKE[kind](memory, kind, first, max_ref_age=7, **limits, or_replace=True)
    assert table.metadata.refs[kind] == SnapshotRef(snapshot_id=first, type=kind, max_ref_age_ms=7, **limits)
    moved = MAKE[kind](table, kind, max_ref_age=9, or_replace=True)
    assert moved.metadata.refs[kind] == SnapshotRef(snapshot_id=third, type=kind, max_ref_age_ms=9, **limits)
    same = MAKE[kind](moved, kind, or_replace=True)
    assert same.metadata_location == moved.metadata_location
    with pytest.raises(ConflictError, match=f"{kind} '{kind}' was moved from snapshot {first} to {third} meanwhile"):
        MAKE[kind](table, kind, second, or_replace=True)
    with pytest.raises(ConflictError, match=f"{kind} '{kind}' was made meanwhile, at snapshot {third}"):
        MAKE[kind](memory, kind, second, or_replace=True)
    with pytest.raises(NotFoundError, match="no snapshot 5"):
        MAKE[kind](moved, kind, 5, or_replace=True)
    dropped = DROP[kind](moved, kind)
    remade = MAKE[kind](moved, kind, second, or_replace=True)
    assert kind not in dropped.metadata.refs
    assert remade.metadata.refs[kind] == SnapshotRef(snapshot_id=second, type=kind)


@for_each("kind", MAKE)
def test_a_reference_of_the_other_kind_is_left_alone(memory, kind):
    other = {"branch": "tag", "tag": "branch"}[kind]
    table = MAKE[kind](memory, kind)
    for flag in ("if_not_exists", "or_replace"):
        # Also where it was made since the table was loaded.
        for seen in (table, memory):
            with pytest.raises(UsageError, match=f"'{kind}' is a {kind}, not a {other}"):
                MAKE[other](seen, kind, **{flag: True})
    with pytest.raises(UsageError, match=f"'{kind}' is a {kind}, not a {other}"):
        DROP[other](table, kind, if_exists=True)
    with pytest.raises(UsageError, match=f"if_not_exists keeps a {kind} that is there, and or_replace moves it"):
        MAKE[kind](table, "new", if_not_exists=True, or_replace=True)


@for_each("kind", MAKE)
def test_if_exists_drops_or_does_nothing(memory, kind):
    loads = memory.catalog.loads_count
    assert DROP[kind](memory, "gone", if_exists=True) is memory
    assert memory.catalog.loads_count == loads
    assert kind not in DROP[kind](MAKE[kind](memory, kind), kind, if_exists=True).metadata.refs
    for main in (memory, memory_table(MemoryCatalog())):
        with pytest.raises((UsageError, NotFoundError)):
            DROP[kind](main, "main", if_exists=True)


def test_branch_of_empty_table_is_created_if_missing():
    empty = memory_table(MemoryCatalog())
    for flag in ("if_not_exists", "or_replace"):
        table = create_branch(empty, flag, **{flag: True})
        assert table.metadata.head(flag).manifest_list
        assert table.metadata.current_snapshot_id is None
    assert create_branch(table, "or_replace", if_not_exists=True) is table
    # It was made since the table was loaded.
    assert create_branch(empty, "or_replace", if_not_exists=True).metadata.refs == table.metadata.refs
    with pytest.raises(NotFoundError, match="has no snapshot on 'main' to which 'or_replace' could be moved"):
        create_branch(table, "or_replace", or_replace=True)


def test_a_table_without_data_has_nothing_that_a_tag_could_name():
    with pytest.raises(NotFoundError, match="has no snapshot that 'v1' could name"):
        create_tag(memory_table(), "v1")
    with pytest.raises(NotFoundError, match="has no snapshot on 'main' yet"):
        fast_forward(memory_table(), "dev", "main")


def test_a_fast_forward_makes_the_branch_that_is_not_there(memory):
    table = fast_forward(memory, "dev", "main")
    assert table.metadata.refs["dev"] == SnapshotRef(snapshot_id=ids(memory)[2], type="branch")


def test_fast_forward_stops_at_the_loaded_head(memory):
    table = create_branch(memory, "audit")
    table = add(table, "audited", branch="audit")
    add(table, "not audited", branch="audit")
    result = fast_forward(table, "main", "audit")
    assert result.metadata.current_snapshot_id == table.metadata.refs["audit"].snapshot_id


def test_fast_forward_backwards_is_refused(memory):
    first, _, third = ids(memory)
    table = create_tag(create_tag(memory, "old", first), "same")
    with pytest.raises(
        UsageError, match=f"cannot fast-forward 'main' to 'old', which is behind it: 'main' is at .*{third}"
    ):
        fast_forward(table, "main", "old")
    assert fast_forward(table, "main", "same").metadata.current_snapshot_id == third


def test_a_branch_that_others_fast_forward_is_no_conflict(memory):
    table = add(create_branch(memory, "audit"), "audited", branch="audit")
    add(fast_forward(table, "main", "audit"), "more")
    assert len(ids(fast_forward(table, "main", "audit"))) == 5


def test_a_branch_goes_to_where_another_reference_is(memory):
    first, _, third = ids(memory)
    table = create_branch(create_tag(memory, "v1", first), "dev", min_snapshots_to_keep=2)
    table = replace_branch(table, "dev", to="v1")
    assert table.metadata.refs["dev"] == SnapshotRef(snapshot_id=first, type="branch", min_snapshots_to_keep=2)
    table = replace_branch(table, "new", to="main")
    assert table.metadata.refs["new"] == SnapshotRef(snapshot_id=third, type="branch")
    for arguments, error in (((1, "main"), UsageError), ((None, None), UsageError), ((None, "x"), NotFoundError)):
        with pytest.raises(error):
            replace_branch(table, "dev", arguments[0], to=arguments[1])
    with pytest.raises(UsageError, match="'v1' is a tag"):
        replace_branch(table, "v1", to="main")


def test_main_of_empty_table_is_created_from_branch():
    table = create_branch(memory_table(MemoryCatalog()), "dev")
    assert (
        replace_branch(table, "main", to="dev").metadata.current_snapshot_id == table.metadata.refs["dev"].snapshot_id
    )


@pytest.mark.parametrize("verb", [replace_branch, replace_tag, drop_branch, drop_tag, rename_branch, fast_forward])
def test_unknown_ref_is_refused_without_a_catalog_load(memory, verb):
    arguments = {replace_branch: (1,), replace_tag: (1,), rename_branch: ("y",)}.get(verb, ())
    loads = memory.catalog.loads_count
    with pytest.raises(NotFoundError, match="'x'"):
        verb(memory, "main", "x") if verb is fast_forward else verb(memory, "x", *arguments)
    assert memory.catalog.loads_count == loads


def test_a_branch_that_has_moved_is_neither_moved_nor_dropped(memory):
    table = create_branch(memory, "dev")
    add(table, "theirs", branch="dev")
    for act in (lambda: drop_branch(table, "dev"), lambda: replace_branch(table, "dev", ids(table)[0])):
        with pytest.raises(ConflictError, match="branch 'dev' was moved"):
            act()
    assert rename_branch(table, "dev", "work").metadata.refs.keys() == {"main", "work"}


def test_main_is_neither_dropped_nor_renamed(memory):
    with pytest.raises(UsageError, match="main cannot be dropped"):
        drop_branch(memory, "main")
    with pytest.raises(UsageError, match="main cannot be renamed"):
        rename_branch(memory, "main", "old")


def test_limits_are_checked(memory):
    for age in (0, "0d", timedelta(microseconds=5)):
        with pytest.raises(OptionError, match=r"option max_ref_age is .*; give an age of 1 ms or more"):
            create_tag(memory, "v1", max_ref_age=age)
    with pytest.raises(OptionError, match="min_snapshots_to_keep"):
        create_branch(memory, "dev", min_snapshots_to_keep=-1)
    with pytest.raises(UsageError, match="only a branch can have max-snapshot-age-ms"):
        set_ref_retention(create_tag(memory, "v1"), "v1", max_snapshot_age=1)
    assert memory.catalog.load(memory.identifier).metadata.refs.keys() == {"main", "v1"}


def staged(table, name, **summary):
    """The table after somebody staged a snapshot, and its id."""
    change = AppendFiles(files=files(name), summary={key.replace("_", "."): value for key, value in summary.items()})
    result = run(table, Staged(change))
    return result.table, result.snapshot_id


@pytest.mark.slow
def test_pyiceberg_reads_rows_after_rollback(lake):
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
def test_published_append_is_read_once_by_pyiceberg(lake):
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
def test_rollbacks_of_both_libraries_agree(tmp_path):
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
def test_commit_since_load_is_not_undone(memory, act):
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


def test_pick_is_added_beside_commits_since_load(memory):
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
