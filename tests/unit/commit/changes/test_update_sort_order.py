import pytest

from icekeep.commit.changes.definitions import UpdateSchema, UpdateSortOrder
from icekeep.errors import NotFoundError
from icekeep.spec.evolution import RenameColumn
from icekeep.spec.sorting import SortKey
from icekeep.spec.updates import AddSortOrder, SetDefaultSortOrder
from kit.changes import run
from kit.memory_catalog import MemoryCatalog, after
from kit.tables import memory_table, stored

BY_KIND = UpdateSortOrder((SortKey("kind"), SortKey("id", direction="desc")))
UNSORTED = UpdateSortOrder(())


@pytest.fixture
def catalog():
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    return memory_table(catalog)


def test_a_new_order_is_added_and_made_the_default_one(catalog, table):
    metadata = run(table, BY_KIND).table.metadata
    added, default = catalog.swaps[-1][1]
    assert isinstance(added, AddSortOrder)
    assert default == SetDefaultSortOrder(-1)
    assert [order.order_id for order in metadata.sort_orders] == [0, 1]
    assert metadata.default_sort_order_id == 1
    assert [f.source_id for f in metadata.sort_orders[1].fields] == [2, 1]


def test_an_earlier_order_is_made_the_default_again(catalog, table):
    table = run(table, BY_KIND).table
    table = run(table, UNSORTED).table
    assert catalog.swaps[-1][1] == (SetDefaultSortOrder(0),)
    table = run(table, BY_KIND).table
    assert catalog.swaps[-1][1] == (SetDefaultSortOrder(1),)
    assert len(table.metadata.sort_orders) == 2


def test_what_is_so_already_is_no_commit(catalog, table):
    before = stored(catalog)
    assert run(table, UNSORTED).changed is False
    assert (catalog.swaps, stored(catalog)) == ([], before)


def test_columns_are_looked_up_in_the_schema_that_is_there_then(catalog, table):
    catalog.follow(after(lambda: run(table, UpdateSchema((RenameColumn("kind", "sort"),)))))
    with pytest.raises(NotFoundError, match="there is no column 'kind'"):
        run(table, BY_KIND)
