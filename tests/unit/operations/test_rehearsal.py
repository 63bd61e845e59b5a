"""A rehearsed commit runs as it always does, and nothing of it reaches the catalog or the store."""

import pytest

from icekeep.catalog.base import Committed
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles, CherryPick
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, IcekeepBug, PropertyError
from icekeep.operations.rehearsal import Rehearsal, WatchedCatalog
from icekeep.storage.base import DeleteStatus
from icekeep.tables.refs import create_tag
from icekeep.tables.verbs import rollback_to_snapshot
from kit.memory_catalog import COMMITS, CONFLICTS, LANDS_BUT_IS_UNKNOWN, LANDS_BUT_SAYS_CONFLICT, MemoryCatalog, after
from kit.tables import add, files, live, memory_table, stored


@pytest.fixture
def catalog():
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    """A table with two snapshots."""
    return add(add(memory_table(catalog), "a"), "b")


@pytest.fixture
def rehearsal(table):
    return Rehearsal(table.catalog, table.storage)


def test_dry_run_commit_returns_new_table_and_changes_nothing(catalog, table, rehearsal):
    before, swaps = stored(catalog), len(catalog.swaps)
    result = commit(rehearsal.over(table), AppendFiles(files=files("c")), runtime=catalog.runtime)
    assert result.changed
    assert result.table.metadata.current_snapshot_id == result.snapshot_id
    assert result.table.metadata.current_snapshot.summary["total-data-files"] == "3"
    assert (stored(catalog), len(catalog.swaps)) == (before, swaps)
    assert catalog.load(table.identifier).metadata == table.metadata


def test_a_rehearsed_commit_reads_what_it_has_written(catalog, table, rehearsal):
    before = stored(catalog)
    appended = commit(rehearsal.over(table), AppendFiles(files=files("c")), runtime=catalog.runtime).table
    assert live(appended) == {"a": 1, "b": 1, "c": 1}
    assert stored(catalog) == before


def test_dry_run_meets_same_conflict_as_commit(catalog, table, rehearsal):
    first = table.metadata.snapshots[0].snapshot_id
    add(table, "c")
    with pytest.raises(ConflictError, match="main was moved"):
        rollback_to_snapshot(rehearsal.over(table), first)


def test_a_rehearsal_refuses_metadata_that_could_not_be_written(catalog, table, rehearsal):
    change = ChangeProperties(updates={"write.metadata.compression-codec": "zstd"})
    with pytest.raises(PropertyError, match="compression-codec"):
        commit(rehearsal.over(table), change, runtime=catalog.runtime)


def test_the_last_swap_has_the_table_that_was_replaced(catalog, table):
    first = table.metadata.snapshots[0].snapshot_id
    watched = WatchedCatalog(catalog)
    catalog.follow(after(lambda: create_tag(catalog.load(table.identifier), "theirs", first), then=CONFLICTS), COMMITS)
    done = create_tag(watched.over(table), "ours")
    assert watched.last_swap.base.metadata.refs.keys() == {"main", "theirs"}
    assert watched.last_swap.is_in(done)
    assert done.metadata_location == catalog.load(table.identifier).metadata_location
    assert isinstance(catalog.swap(done, (), ()), Committed)


def test_a_commit_that_has_nothing_to_do_asks_for_no_swap(catalog, table):
    watched = WatchedCatalog(catalog)
    rollback_to_snapshot(watched.over(table), table.metadata.current_snapshot_id)
    assert watched.last_swap is None


def test_refused_swap_with_nothing_left_is_not_in_table(catalog, table):
    """Another writer had made the same change already."""
    watched = WatchedCatalog(catalog)
    second = table.metadata.current_snapshot_id
    catalog.follow(after(lambda: create_tag(catalog.load(table.identifier), "v1", second), then=CONFLICTS))
    done = create_tag(watched.over(table), "v1")
    assert not watched.last_swap.is_in(done)


@pytest.mark.parametrize("answer", [LANDS_BUT_SAYS_CONFLICT, LANDS_BUT_IS_UNKNOWN])
def test_swap_with_wrong_answer_is_in_table_by_snapshot(catalog, table, answer):
    watched = WatchedCatalog(catalog)
    third = add(table, "c")
    staged = third.metadata.current_snapshot_id
    back = add(rollback_to_snapshot(third, table.metadata.current_snapshot_id), "d")
    catalog.follow(answer)
    done = commit(watched.over(back), CherryPick(staged), runtime=catalog.runtime)
    assert watched.last_swap.is_in(done.table)
    assert watched.last_swap.added_ids == {done.snapshot_id}


def test_a_catalog_that_is_watched_does_nothing_but_swaps(catalog, table):
    watched = WatchedCatalog(catalog)
    for act in (
        lambda: watched.create(("db", "t"), table.metadata),
        lambda: watched.drop(table.identifier),
        lambda: watched.rename(table.identifier, ("db", "t")),
        lambda: watched.create_namespace(("x",)),
        lambda: watched.drop_namespace(("db",)),
    ):
        with pytest.raises(IcekeepBug):
            act()
    assert watched.list_namespaces() == catalog.list_namespaces()
    assert watched.list_tables(("db",)) == [table.identifier]
    assert watched.name == catalog.name
    assert watched.default_location(("db", "t")) == catalog.default_location(("db", "t"))


@pytest.mark.parametrize("flag", [True, False])
def test_a_catalog_that_is_watched_is_what_it_was(flag):
    catalog = MemoryCatalog(compares_metadata=flag, restores_snapshots=flag)
    catalog.drop_frees_metadata_names = flag
    table = memory_table(catalog)
    for seen in (WatchedCatalog(catalog), Rehearsal(catalog, catalog.storage)):
        assert (seen.compares_metadata, seen.restores_snapshots, seen.warehouse) == (flag, flag, catalog.warehouse)
        assert seen.drop_frees_metadata_names is flag
        assert seen.find(table.identifier).metadata_location == table.metadata_location


def test_what_a_rehearsal_finds_cannot_be_changed(catalog, table, rehearsal):
    before = stored(catalog)
    found = rehearsal.find(table.identifier)
    assert found.storage.read(found.metadata_location) == table.storage.read(table.metadata_location)
    found.storage.create("memory://lake/new", b"")
    assert found.storage.delete_many([found.metadata_location])[0].status is DeleteStatus.FAILED
    assert stored(catalog) == before
