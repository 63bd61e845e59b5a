import pytest

from icekeep.commit.changes.definitions import UpdateSpec
from icekeep.spec.evolution import AddPartitionField, RemovePartitionField, RenamePartitionField
from icekeep.spec.updates import AddPartitionSpec, SetDefaultSpec
from kit.changes import run
from kit.memory_catalog import MemoryCatalog, after
from kit.tables import BY_KIND, add, data_file, live, memory_table, stored


@pytest.fixture
def catalog():
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    return memory_table(catalog, spec=BY_KIND)


def fields(table):
    return [(f.field_id, f.name) for f in table.metadata.spec.fields]


def test_a_new_spec_is_added_and_made_the_default_one(catalog, table):
    after_it = run(table, UpdateSpec((AddPartitionField("id", "bucket[4]"),))).table
    added, default = catalog.swaps[-1][1]
    assert isinstance(added, AddPartitionSpec)
    assert default == SetDefaultSpec(-1)
    assert fields(after_it) == [(1000, "kind"), (1001, "id_bucket_4")]
    assert (after_it.metadata.default_spec_id, after_it.metadata.last_partition_id) == (1, 1001)


def test_an_earlier_spec_is_made_the_default_again(catalog, table):
    table = run(table, UpdateSpec((AddPartitionField("id"),))).table
    table = run(table, UpdateSpec((RemovePartitionField("id"),))).table
    assert catalog.swaps[-1][1] == (SetDefaultSpec(0),)
    assert (fields(table), table.metadata.last_partition_id) == ([(1000, "kind")], 1001)


@pytest.mark.parametrize("changes", [(), (RenamePartitionField("kind", "kind"),)])
def test_what_is_so_already_is_no_commit(catalog, table, changes):
    before = stored(catalog)
    assert run(table, UpdateSpec(changes)).changed is False
    assert (catalog.swaps, stored(catalog)) == ([], before)


def test_changes_are_applied_to_the_spec_that_is_there_then(catalog, table):
    catalog.follow(after(lambda: run(table, UpdateSpec((AddPartitionField("score"),)))))
    result = run(table, UpdateSpec((AddPartitionField("id"),)))
    assert fields(result.table) == [(1000, "kind"), (1001, "score"), (1002, "id")]


def test_files_of_several_specs_live_side_by_side(catalog, table):
    table = add(table, data_file("a", partition=("x",)))
    table = run(table, UpdateSpec((RemovePartitionField("kind"), AddPartitionField("id")))).table
    table = add(table, data_file("b", partition=(7,), spec_id=1))
    assert set(live(table)) == {"a", "b"}
    assert [spec.spec_id for spec in table.metadata.partition_specs] == [0, 1]
