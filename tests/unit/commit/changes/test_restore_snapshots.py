"""Expired snapshots come back, and an older one becomes the current one."""

import pytest
from msgspec.structs import replace

from icekeep.commit.changes.files import AppendFiles, DeleteFiles
from icekeep.commit.changes.snapshots import ExpireSnapshots, RestoreExpired, RollbackToSnapshot, SetCurrentSnapshot
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import ConflictError, InvalidTableError, NotFoundError, UsageError
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.retention import RetentionPolicy
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.updates import AssertRefSnapshotId, RemoveSnapshotRef, RemoveSnapshots, SetSnapshotRef
from kit.changes import Applying, run
from kit.memory_catalog import (
    CONFLICTS,
    LANDS_BUT_IS_UNKNOWN,
    LANDS_BUT_SAYS_CONFLICT,
    after,
)
from kit.tables import BY_KIND, BY_SCORE, EVENTS, add, data_file, files, ids, live, memory_table, set_ref, swap

ALL_BUT_HEADS = RetentionPolicy(older_than_ms=2**62, retain_last=1)


@pytest.fixture
def table(catalog):
    """Four snapshots; files that only the first three have are gone from the last."""
    table = memory_table(catalog)
    for name in "abc":
        table = add(table, name)
    return run(table, DeleteFiles(paths=frozenset({data_file("a").file_path}))).table


def expire(table, **options):
    return run(table, ExpireSnapshots(policy=ALL_BUT_HEADS, now_ms=0, **options)).table


def restore(table, before, snapshot_ids=None, **options):
    wanted = tuple(ids(before)[:-1] if snapshot_ids is None else snapshot_ids)
    return run(table, RestoreExpired(before=before.metadata, snapshot_ids=wanted), **options)


def test_expired_snapshots_come_back_each_under_its_tag(table):
    after_expiration = expire(table)
    assert len(ids(after_expiration)) == 1
    result = restore(after_expiration, table)
    now = result.table.metadata
    assert now.snapshots_by_id == table.metadata.snapshots_by_id
    tags = {f"restored-{i}": i for i in ids(table)[:-1]}
    assert {n: r.snapshot_id for n, r in now.refs.items()} == {"main": ids(table)[-1], **tags}
    assert {(r.type, r.max_ref_age_ms) for n, r in now.refs.items() if n != "main"} == {("tag", 2**63 - 1)}
    assert live(result.table, f"restored-{ids(table)[2]}") == {"a": 1, "b": 1, "c": 1}
    assert now.snapshot_log == after_expiration.metadata.snapshot_log
    assert result.snapshot_id is None


def test_commits_go_on_after_it(table):
    now = restore(expire(table), table).table
    now = add(now, "d")
    assert live(now) == {"b": 1, "c": 1, "d": 1}
    assert now.metadata.last_sequence_number == table.metadata.last_sequence_number + 1


def test_each_tag_must_not_be_there_when_it_lands(table, catalog):
    restore(expire(table), table)
    requirements, _ = catalog.swaps[-1]
    assert {r for r in requirements if isinstance(r, AssertRefSnapshotId)} == {
        AssertRefSnapshotId(f"restored-{i}", None) for i in ids(table)[:-1]
    }


def test_existing_snapshots_get_no_tag(table):
    assert restore(table, table).changed is False
    some = restore(expire(table), table, ids(table)[:1]).table
    without_tag = swap(some, RemoveSnapshotRef(f"restored-{ids(table)[0]}"))
    now = restore(without_tag, table).table.metadata
    assert now.snapshots_by_id == table.metadata.snapshots_by_id
    assert {n for n in now.refs if n != "main"} == {f"restored-{i}" for i in ids(table)[1:3]}


def test_what_others_restore_meanwhile_is_fine(table, catalog):
    gone = expire(table)
    catalog.follow(after(lambda: restore(gone, table)))
    assert restore(gone, table).changed is False


def test_what_was_restored_although_the_answer_was_lost_is_fine(table, catalog):
    gone = expire(table)
    catalog.follow(LANDS_BUT_SAYS_CONFLICT)
    assert restore(gone, table).table.metadata.snapshots_by_id == table.metadata.snapshots_by_id


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_a_name_that_others_take_meanwhile_is_not_moved(table, catalog, kind):
    gone = expire(table)
    name = f"restored-{ids(table)[0]}"
    catalog.follow(after(lambda: set_ref(gone, name, ids(gone)[0], kind)))
    with pytest.raises(UsageError, match=f"{kind} '{name}' exists already, at snapshot {ids(gone)[0]}"):
        restore(gone, table)
    assert ids(catalog.load(EVENTS)) == ids(gone)


def test_another_snapshot_of_the_same_id_is_not_touched(table):
    other = replace(table.metadata.snapshots[0], timestamp_ms=1)
    before = replace(table, metadata=replace(table.metadata, snapshots=(other, *table.metadata.snapshots[1:])))
    with pytest.raises(
        InvalidTableError, match=f"snapshot {other.snapshot_id} cannot be restored: the table has another"
    ):
        restore(table, before)


def test_snapshots_that_were_never_there_cannot_be_restored(table):
    with pytest.raises(
        InvalidTableError, match="snapshot 4711 cannot be restored: the metadata from before it expired does"
    ):
        restore(table, table, [4711])


def test_a_table_that_is_gone_is_not_found(table, catalog):
    catalog.drop(EVENTS)
    with pytest.raises(NotFoundError):
        restore(table, table)


# What they need.


def evolved(catalog):
    """A table that was partitioned by `kind` and lost that and the column; its one file of that time is gone.

    A third spec, by `score`, was never used.
    """
    table = add(memory_table(catalog, spec=BY_KIND), data_file("old", partition=("x",)))
    without_kind = Schema(fields=tuple(f for f in table.metadata.schema.fields if f.name != "kind"), schema_id=1)
    specs = BY_KIND, replace(UNPARTITIONED, spec_id=1), replace(BY_SCORE, spec_id=2)
    metadata = replace(
        table.metadata,
        schemas=(*table.metadata.schemas, without_kind),
        current_schema_id=1,
        partition_specs=specs,
        default_spec_id=1,
    )
    catalog.drop(EVENTS)
    table = catalog.create(EVENTS, metadata)
    table = run(table, DeleteFiles(paths=frozenset({data_file("old").file_path}))).table
    return add(table, data_file("new", spec_id=1))


def cleaned(table):
    """The table without what nothing uses any more: a spec holds its schema, so that it takes two runs."""
    once = expire(table, clean_expired_metadata=True)
    return add(expire(once, clean_expired_metadata=True), data_file("more", spec_id=1))


class Counting(ManifestReader):
    """Remembers how many manifest lists were read."""

    read = 0

    def manifests(self, snapshot):
        self.read += 1
        return super().manifests(snapshot)


def test_only_needed_schemas_and_specs_are_restored(catalog):
    table = evolved(catalog)
    gone = cleaned(table)
    assert [s.schema_id for s in gone.metadata.schemas] == [1]
    assert [s.spec_id for s in gone.metadata.partition_specs] == [1]
    now = restore(gone, table).table
    assert set(now.metadata.schemas_by_id) == {0, 1}
    assert set(now.metadata.specs_by_id) == {0, 1}
    assert now.metadata.partition_type(0) == table.metadata.partition_type(0)
    assert live(now, f"restored-{ids(table)[0]}") == {"old": 1}
    assert (now.metadata.current_schema_id, now.metadata.default_spec_id) == (1, 1)


def test_no_list_is_read_where_the_specs_are_all_there(table, catalog):
    gone = expire(table)
    reader = Counting(catalog.storage)
    restore(gone, table, reader=reader)
    assert reader.read == 0


def test_schema_needed_only_by_spec_is_restored(catalog):
    table = evolved(catalog)
    # As tables of version 1 have them, which need not say their schema.
    nameless = tuple(replace(s, schema_id=None) for s in table.metadata.snapshots)
    catalog.drop(EVENTS)
    table = catalog.create(EVENTS, replace(table.metadata, snapshots=nameless))
    now = restore(cleaned(table), table).table
    assert set(now.metadata.schemas_by_id) == {0, 1}
    assert now.metadata.partition_type(0) == table.metadata.partition_type(0)


def test_reused_id_matters_only_where_needed(catalog):
    """A schema or spec id that was given out again stops a restore only where the old one is needed."""
    table = evolved(catalog)
    gone = cleaned(table)

    def with_spec(spec):
        catalog.drop(EVENTS)
        return catalog.create(
            EVENTS, replace(gone.metadata, partition_specs=(*gone.metadata.partition_specs, spec), schemas=schemas)
        )

    schemas = gone.metadata.schemas
    unneeded = with_spec(replace(UNPARTITIONED, spec_id=2))
    assert restore(unneeded, table).table.metadata.specs_by_id[2].fields == ()
    needed = with_spec(replace(UNPARTITIONED, spec_id=0))
    with pytest.raises(
        InvalidTableError, match="partition spec 0 cannot be restored: the table has another one of this id"
    ):
        restore(needed, table)
    assert ids(catalog.load(EVENTS)) == ids(gone)
    schemas = (*schemas, replace(schemas[0], schema_id=0))
    with pytest.raises(InvalidTableError, match="schema 0 cannot be restored: the table has another one of this id"):
        restore(with_spec(replace(UNPARTITIONED, spec_id=2)), table)


BOTH = [SetCurrentSnapshot, RollbackToSnapshot]


@pytest.fixture(params=[1, 2, 3])
def history(catalog, request):
    """Three snapshots of main with files a, b and c, and a branch with d beside b's."""
    history = memory_table(catalog, format_version=request.param)
    for name in "ab":
        history = add(history, name)
    history = set_ref(history, "side", ids(history)[1], "branch", min_snapshots_to_keep=7)
    return add(add(history, "c"), "d", branch="side")


def moves(cls, history, target):
    return cls(snapshot_id=target, expected_id=history.metadata.current_snapshot_id)


@pytest.mark.parametrize("cls", BOTH)
def test_rollback_keeps_every_snapshot(catalog, history, cls):
    third = history.metadata.current_snapshot_id
    result = run(history, moves(cls, history, ids(history)[0]))
    assert live(result.table) == {"a": 1}
    assert result.snapshot_id is None
    assert ids(result.table) == ids(history)
    assert [e.snapshot_id for e in result.table.metadata.snapshot_log] == [*ids(history)[:3], ids(history)[0]]
    assert AssertRefSnapshotId("main", third) in catalog.swaps[-1][0]


@pytest.mark.parametrize("cls", BOTH)
def test_what_is_written_after_a_rollback_goes_on_from_there(history, cls):
    back = run(history, moves(cls, history, ids(history)[0])).table
    later = add(back, "e")
    assert live(later) == {"a": 1, "e": 1}
    assert later.metadata.current_snapshot.parent_snapshot_id == ids(history)[0]
    if later.metadata.format_version > 1:
        assert later.metadata.current_snapshot.sequence_number == 5


@pytest.mark.parametrize("cls", BOTH)
def test_the_limits_of_main_stay(history, cls):
    history = swap(
        history,
        SetSnapshotRef("main", SnapshotRef(snapshot_id=ids(history)[2], type="branch", min_snapshots_to_keep=4)),
    )
    result = run(history, moves(cls, history, ids(history)[0]))
    assert result.table.metadata.refs["main"] == SnapshotRef(
        snapshot_id=ids(history)[0], type="branch", min_snapshots_to_keep=4
    )


def test_rollback_needs_ancestor_but_set_current_does_not(history):
    side = history.metadata.refs["side"].snapshot_id
    with pytest.raises(UsageError, match=f"cannot roll back to snapshot {side}: it is not an ancestor of the current"):
        run(history, moves(RollbackToSnapshot, history, side))
    assert live(run(history, moves(SetCurrentSnapshot, history, side)).table) == {"a": 1, "b": 1, "d": 1}


def test_set_current_snapshot_undoes_rollback(history):
    back = run(history, moves(RollbackToSnapshot, history, ids(history)[0])).table
    with pytest.raises(UsageError, match="not an ancestor"):
        run(back, moves(RollbackToSnapshot, back, ids(history)[2]))
    again = run(back, moves(SetCurrentSnapshot, back, ids(history)[2])).table
    assert live(again) == live(history)


@pytest.mark.parametrize("cls", BOTH)
def test_missing_or_expired_target_is_not_found(catalog, history, cls):
    with pytest.raises(NotFoundError, match="no snapshot 99"):
        run(history, moves(cls, history, 99))
    catalog.follow(after(lambda: swap(history, RemoveSnapshots((ids(history)[0],)))))
    with pytest.raises(NotFoundError, match=f"no snapshot {ids(history)[0]}"):
        run(history, moves(cls, history, ids(history)[0]))


@pytest.mark.parametrize("cls", BOTH)
def test_the_current_snapshot_is_nothing_to_do(history, cls):
    assert not run(history, moves(cls, history, ids(history)[2])).changed


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("script", [(), (CONFLICTS,)])
def test_what_another_writer_commits_meanwhile_is_not_undone(catalog, history, cls, script):
    catalog.follow(*script, after(lambda: add(history, "theirs")))
    with pytest.raises(ConflictError, match=f"main was moved from snapshot {ids(history)[2]} to"):
        run(history, moves(cls, history, ids(history)[0]))
    assert live(catalog.load(EVENTS)) == {"a": 1, "b": 1, "c": 1, "theirs": 1}


@pytest.mark.parametrize("cls", BOTH)
def test_a_decision_on_an_outdated_table_is_a_conflict(catalog, history, cls):
    add(history, "theirs")
    swaps = len(catalog.swaps)
    with pytest.raises(ConflictError, match="look at what is there now and run it again"):
        run(history, moves(cls, history, ids(history)[0]))
    assert len(catalog.swaps) == swaps


@pytest.mark.parametrize("cls", BOTH)
def test_what_others_do_on_another_branch_does_not_matter(catalog, history, cls):
    catalog.follow(after(lambda: add(history, "theirs", branch="side")))
    result = run(history, moves(cls, history, ids(history)[0]))
    assert live(result.table) == {"a": 1}
    assert live(result.table, "side") == {"a": 1, "b": 1, "d": 1, "theirs": 1}


@pytest.mark.parametrize("cls", BOTH)
def test_a_rollback_under_an_append_is_where_the_append_goes_on(catalog, history, cls):
    catalog.follow(after(lambda: run(history, moves(cls, history, ids(history)[0]))))
    assert live(run(history, AppendFiles(files=files("mine"))).table) == {"a": 1, "mine": 1}


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("step", [LANDS_BUT_SAYS_CONFLICT, LANDS_BUT_IS_UNKNOWN])
def test_move_with_lost_answer_is_applied_once_peers_10(catalog, history, cls, step):
    catalog.follow(step)
    change = Applying(moves(cls, history, ids(history)[0]))
    result = run(history, change)
    log = [e.snapshot_id for e in result.table.metadata.snapshot_log]
    assert log == [*ids(history)[:3], ids(history)[0]]
    assert live(result.table) == {"a": 1}


@pytest.mark.parametrize("cls", BOTH)
def test_landed_move_is_not_repeated_over_later_commits(catalog, history, cls):
    change = moves(cls, history, ids(history)[0])
    back = run(history, change).table
    add(back, "theirs")
    result = run(history, change)
    assert not result.changed
    assert live(catalog.load(EVENTS)) == {"a": 1, "theirs": 1}


def test_set_main_of_empty_table(catalog):
    """Setting main of an empty table succeeds once, and is a conflict where the expected head differs."""
    empty = memory_table(catalog)
    staged = add(empty, "x")
    change = SetCurrentSnapshot(snapshot_id=staged.metadata.current_snapshot_id, expected_id=None)
    assert not run(empty, change).changed
    with pytest.raises(ConflictError, match="main was moved from snapshot None"):
        run(empty, SetCurrentSnapshot(snapshot_id=99, expected_id=None))
