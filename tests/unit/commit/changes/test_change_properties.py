import pytest

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.spec.updates import RemoveProperties, SetProperties
from kit.changes import run
from kit.memory_catalog import CONFLICTS, MemoryCatalog, after
from kit.tables import memory_table, stored, swap


@pytest.fixture
def catalog():
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    return memory_table(catalog, owner="me", stage="raw")


def test_properties_are_set_and_removed_in_one_commit(catalog, table):
    result = run(table, ChangeProperties(updates={"owner": "you", "new": "1"}, removals=("stage", "none")))
    assert result.table.metadata.properties == {"owner": "you", "new": "1"}
    assert catalog.swaps[-1][1] == (SetProperties({"owner": "you", "new": "1"}), RemoveProperties(("stage",)))
    assert result.table.metadata.snapshots == ()


@pytest.mark.parametrize(
    "change",
    [
        ChangeProperties(),
        ChangeProperties(updates={"owner": "me"}),
        ChangeProperties(removals=("none",)),
        ChangeProperties(updates={"stage": "raw"}, removals=("none",)),
    ],
)
def test_what_is_so_already_is_no_commit(catalog, table, change):
    before = stored(catalog)
    assert run(table, change).changed is False
    assert (catalog.swaps, stored(catalog)) == ([], before)


def test_only_what_differs_from_the_new_base_is_changed(catalog, table):
    catalog.follow(after(lambda: swap(table, SetProperties({"owner": "you"}))))
    result = run(table, ChangeProperties(updates={"owner": "you", "new": "1"}))
    assert catalog.swaps[-1][1] == (SetProperties({"new": "1"}),)
    assert result.table.metadata.properties == {"owner": "you", "stage": "raw", "new": "1"}


def test_properties_that_others_set_meanwhile_stay(catalog, table):
    catalog.follow(CONFLICTS, after(lambda: swap(table, SetProperties({"theirs": "1"}))))
    result = run(table, ChangeProperties(updates={"mine": "1"}))
    assert result.table.metadata.properties == {"owner": "me", "stage": "raw", "theirs": "1", "mine": "1"}
