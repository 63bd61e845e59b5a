import pytest
from msgspec.structs import replace

from icekeep.commit.changes.definitions import UpgradeTable
from icekeep.errors import UsageError
from icekeep.spec.updates import AssignUuid, UpgradeFormatVersion
from kit.changes import run
from kit.memory_catalog import MemoryCatalog
from kit.metadata import MetadataBuilder
from kit.tables import memory_table, stored


@pytest.fixture
def catalog():
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    return memory_table(catalog)


def test_the_version_rises_and_row_ids_begin_at_0(catalog, table):
    metadata = run(table, UpgradeTable(3, "new")).table.metadata
    assert (metadata.format_version, metadata.next_row_id, metadata.table_uuid) == (3, 0, table.metadata.table_uuid)
    assert catalog.swaps[-1][1] == (UpgradeFormatVersion(3),)


def test_a_table_without_a_uuid_gets_one():
    base = replace(MetadataBuilder(1).build(), table_uuid=None)
    assert UpgradeTable(2, "new").apply(base, None) == (AssignUuid("new"), UpgradeFormatVersion(2))


def test_what_is_so_already_is_no_commit(catalog, table):
    before = stored(catalog)
    assert run(table, UpgradeTable(2, "new")).changed is False
    assert (catalog.swaps, stored(catalog)) == ([], before)


@pytest.mark.parametrize("version", [0, 1, 4])
def test_there_is_no_way_back_and_none_beyond_what_is_known(table, version):
    with pytest.raises(UsageError, match=f"it cannot become {version}, only 2 to 3"):
        run(table, UpgradeTable(version, "new"))
