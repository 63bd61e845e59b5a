import pytest

from icekeep.commit.changes.definitions import UpdateSchema
from icekeep.errors import UsageError
from icekeep.spec.evolution import AddColumn, DropColumn, RenameColumn, UpdateColumnDoc
from icekeep.spec.types import INT, STRING
from icekeep.spec.updates import AddSchema, SetCurrentSchema, SetProperties
from kit.changes import run
from kit.memory_catalog import CONFLICTS, MemoryCatalog, after
from kit.tables import add, memory_table, stored


@pytest.fixture
def catalog():
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    return memory_table(catalog, write__metadata__metrics__column__kind="full")


def columns(table):
    return [(f.field_id, f.name) for f in table.metadata.schema.fields]


def test_a_new_schema_is_added_and_made_the_current_one(catalog, table):
    after_it = run(table, UpdateSchema((AddColumn("n", INT),))).table
    added, current = catalog.swaps[-1][1]
    assert isinstance(added, AddSchema)
    assert (added.last_column_id, current) == (4, SetCurrentSchema(-1))
    assert columns(after_it) == [(1, "id"), (2, "kind"), (3, "score"), (4, "n")]
    assert after_it.metadata.last_column_id == 4


def test_an_earlier_schema_is_made_the_current_one_again(catalog, table):
    table = run(table, UpdateSchema((UpdateColumnDoc("id", "key"),))).table
    table = run(table, UpdateSchema((UpdateColumnDoc("id", None),))).table
    assert catalog.swaps[-1][1] == (SetCurrentSchema(0),)
    assert (table.metadata.current_schema_id, len(table.metadata.schemas)) == (0, 2)


@pytest.mark.parametrize("changes", [(), (AddColumn("n", INT), DropColumn("n")), (RenameColumn("id", "id"),)])
def test_what_is_so_already_is_no_commit(catalog, table, changes):
    before = stored(catalog)
    assert run(table, UpdateSchema(changes)).changed is False
    assert (catalog.swaps, stored(catalog)) == ([], before)


def test_changes_are_applied_to_the_schema_that_is_there_then(catalog, table):
    theirs = UpdateSchema((AddColumn("theirs", STRING),))
    catalog.follow(after(lambda: run(table, theirs)))
    result = run(table, UpdateSchema((AddColumn("ours", INT),)))
    assert columns(result.table)[-2:] == [(4, "theirs"), (5, "ours")]


def test_a_change_that_no_longer_applies_is_refused_and_nothing_is_changed(catalog, table):
    catalog.follow(after(lambda: run(table, UpdateSchema((RenameColumn("kind", "sort"),)))), CONFLICTS)
    with pytest.raises(UsageError, match="there is a column 'sort' already"):
        run(table, UpdateSchema((AddColumn("sort", INT),)))
    assert len(catalog.load(table.identifier).metadata.schemas) == 2


def test_properties_that_name_columns_follow_in_the_same_commit(catalog, table):
    table = run(table, UpdateSchema((RenameColumn("kind", "sort"),))).table
    assert catalog.swaps[-1][1][2:][-1] == SetProperties({"write.metadata.metrics.column.sort": "full"})
    assert "write.metadata.metrics.column.kind" not in table.metadata.properties


def test_snapshots_stay_with_the_schema_that_they_were_made_with(catalog, table):
    table = add(table, "a")
    table = run(table, UpdateSchema((AddColumn("n", INT),))).table
    table = add(table, "b")
    assert [s.schema_id for s in table.metadata.snapshots] == [0, 1]
