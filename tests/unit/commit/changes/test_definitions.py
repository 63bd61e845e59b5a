import pytest
from msgspec.structs import replace

from icekeep.commit.changes.definitions import (
    ChangeProperties,
    ChangeStatistics,
    UpdateSchema,
    UpdateSortOrder,
    UpdateSpec,
    UpgradeTable,
)
from icekeep.errors import NotFoundError, UsageError
from icekeep.spec.evolution import (
    AddColumn,
    AddPartitionField,
    DropColumn,
    RemovePartitionField,
    RenameColumn,
    RenamePartitionField,
    UpdateColumnDoc,
)
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.sorting import SortKey
from icekeep.spec.types import INT, STRING
from icekeep.spec.updates import (
    AddPartitionSpec,
    AddSchema,
    AddSortOrder,
    AssignUuid,
    RemoveProperties,
    RemoveSnapshots,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetProperties,
    UpgradeFormatVersion,
)
from kit.cases import for_each
from kit.changes import run
from kit.memory_catalog import CONFLICTS, LANDS_BUT_SAYS_CONFLICT, after
from kit.metadata import MetadataBuilder
from kit.tables import BY_KIND, EVENTS, add, data_file, ids, live, memory_table, stored, swap

METRICS = "write.metadata.metrics.column"
SORTED = UpdateSortOrder((SortKey("kind"), SortKey("id", direction="desc")))
UNSORTED = UpdateSortOrder(())


@pytest.fixture
def table(catalog):
    properties = {"owner": "me", "stage": "raw", f"{METRICS}.kind": "full"}
    return memory_table(catalog, spec=BY_KIND, **{name.replace(".", "__"): one for name, one in properties.items()})


def columns(table):
    return [(f.field_id, f.name) for f in table.metadata.schema.fields]


def fields(table):
    return [(f.field_id, f.name) for f in table.metadata.spec.fields]


@for_each(
    "change",
    [
        ChangeProperties(),
        ChangeProperties(updates={"owner": "me"}),
        ChangeProperties(removals=("none",)),
        ChangeProperties(updates={"stage": "raw"}, removals=("none",)),
        UpdateSchema(()),
        UpdateSchema((AddColumn("n", INT), DropColumn("n"))),
        UpdateSchema((RenameColumn("id", "id"),)),
        UNSORTED,
        UpdateSpec(()),
        UpdateSpec((RenamePartitionField("kind", "kind"),)),
        UpgradeTable(2, "new"),
    ],
)
def test_what_is_so_already_is_no_commit(catalog, table, change):
    before = stored(catalog)
    assert run(table, change).changed is False
    assert (catalog.swaps, stored(catalog)) == ([], before)


def test_properties_are_set_and_removed_in_one_commit(catalog, table):
    result = run(table, ChangeProperties(updates={"owner": "you", "new": "1"}, removals=("stage", "none")))
    assert result.table.metadata.properties == {"owner": "you", "new": "1", f"{METRICS}.kind": "full"}
    assert catalog.swaps[-1][1] == (SetProperties({"owner": "you", "new": "1"}), RemoveProperties(("stage",)))
    assert result.table.metadata.snapshots == ()


def test_only_differing_properties_are_set(catalog, table):
    """Properties that the new base already has are left out of the retried commit."""
    catalog.follow(after(lambda: swap(table, SetProperties({"owner": "you"}))))
    run(table, ChangeProperties(updates={"owner": "you", "new": "1"}))
    assert catalog.swaps[-1][1] == (SetProperties({"new": "1"}),)


def test_properties_that_others_set_meanwhile_stay(catalog, table):
    catalog.follow(CONFLICTS, after(lambda: swap(table, SetProperties({"theirs": "1"}))))
    result = run(table, ChangeProperties(updates={"mine": "1"}))
    assert result.table.metadata.properties == {**table.metadata.properties, "theirs": "1", "mine": "1"}


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


def test_changes_are_applied_to_the_schema_that_is_there_then(catalog, table):
    catalog.follow(after(lambda: run(table, UpdateSchema((AddColumn("theirs", STRING),)))))
    result = run(table, UpdateSchema((AddColumn("ours", INT),)))
    assert columns(result.table)[-2:] == [(4, "theirs"), (5, "ours")]


def test_inapplicable_change_is_refused_without_effect(catalog, table):
    catalog.follow(after(lambda: run(table, UpdateSchema((RenameColumn("kind", "sort"),)))), CONFLICTS)
    with pytest.raises(UsageError, match="there is a column 'sort' already"):
        run(table, UpdateSchema((AddColumn("sort", INT),)))
    assert len(catalog.load(table.identifier).metadata.schemas) == 2


def test_properties_that_name_columns_follow_in_the_same_commit(catalog, table):
    table = run(table, UpdateSchema((RenameColumn("kind", "sort"),))).table
    assert catalog.swaps[-1][1][2:][-1] == SetProperties({f"{METRICS}.sort": "full"})
    assert f"{METRICS}.kind" not in table.metadata.properties


def test_snapshots_stay_with_the_schema_that_they_were_made_with(table):
    table = add(table, data_file("a", partition=("x",)))
    table = run(table, UpdateSchema((AddColumn("n", INT),))).table
    table = add(table, data_file("b", partition=("x",)))
    assert [s.schema_id for s in table.metadata.snapshots] == [0, 1]


def test_a_new_sort_order_is_added_and_made_the_default_one(catalog, table):
    metadata = run(table, SORTED).table.metadata
    added, default = catalog.swaps[-1][1]
    assert isinstance(added, AddSortOrder)
    assert default == SetDefaultSortOrder(-1)
    assert [order.order_id for order in metadata.sort_orders] == [0, 1]
    assert metadata.default_sort_order_id == 1
    assert [f.source_id for f in metadata.sort_orders[1].fields] == [2, 1]


def test_an_earlier_sort_order_is_made_the_default_again(catalog, table):
    table = run(table, SORTED).table
    table = run(table, UNSORTED).table
    assert catalog.swaps[-1][1] == (SetDefaultSortOrder(0),)
    table = run(table, SORTED).table
    assert catalog.swaps[-1][1] == (SetDefaultSortOrder(1),)
    assert len(table.metadata.sort_orders) == 2


def test_sort_columns_are_resolved_in_latest_schema(catalog, table):
    catalog.follow(after(lambda: run(table, UpdateSchema((RenameColumn("kind", "sort"),)))))
    with pytest.raises(NotFoundError, match="there is no column 'kind'"):
        run(table, SORTED)


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


def test_changes_are_applied_to_the_spec_that_is_there_then(catalog, table):
    catalog.follow(after(lambda: run(table, UpdateSpec((AddPartitionField("score"),)))))
    result = run(table, UpdateSpec((AddPartitionField("id"),)))
    assert fields(result.table) == [(1000, "kind"), (1001, "score"), (1002, "id")]


def test_files_of_several_specs_live_side_by_side(table):
    table = add(table, data_file("a", partition=("x",)))
    table = run(table, UpdateSpec((RemovePartitionField("kind"), AddPartitionField("id")))).table
    table = add(table, data_file("b", partition=(7,), spec_id=1))
    assert set(live(table)) == {"a", "b"}
    assert [spec.spec_id for spec in table.metadata.partition_specs] == [0, 1]


def test_the_format_version_rises_and_row_ids_begin_at_0(catalog, table):
    metadata = run(table, UpgradeTable(3, "new")).table.metadata
    assert (metadata.format_version, metadata.next_row_id, metadata.table_uuid) == (3, 0, table.metadata.table_uuid)
    assert catalog.swaps[-1][1] == (UpgradeFormatVersion(3),)


def test_a_table_without_a_uuid_gets_one_with_its_upgrade():
    base = replace(MetadataBuilder(1).build(), table_uuid=None)
    assert UpgradeTable(2, "new").apply(base, None) == (AssignUuid("new"), UpgradeFormatVersion(2))


@for_each("version", [0, 1, 4])
def test_there_is_no_way_back_and_none_beyond_what_is_known(table, version):
    with pytest.raises(UsageError, match=f"it cannot become {version}, only 2 to 3"):
        run(table, UpgradeTable(version, "new"))


@pytest.fixture
def two(catalog):
    """A table with two snapshots."""
    return add(add(memory_table(catalog), "a"), "b")


def table_file(snapshot_id, name="s"):
    return StatisticsFile(
        snapshot_id=snapshot_id,
        statistics_path=f"memory://lake/{name}.puffin",
        file_size_in_bytes=100,
        file_footer_size_in_bytes=10,
        blob_metadata=[{"type": "apache-datasketches-theta-v1", "fields": [1], "properties": {"ndv": "3"}}],
    )


def partition_file(snapshot_id, name="p"):
    return PartitionStatisticsFile(
        snapshot_id=snapshot_id, statistics_path=f"memory://lake/{name}.parquet", file_size_in_bytes=50
    )


KINDS = [
    pytest.param("removals", table_file, "statistics", id="table"),
    pytest.param("partition_removals", partition_file, "partition_statistics", id="partition"),
]


def held(table, attribute):
    return {file.statistics_path.rsplit("/", 1)[-1].split(".")[0] for file in getattr(table.metadata, attribute)}


@pytest.mark.parametrize(("removals", "file", "attribute"), KINDS)
def test_new_statistics_file_replaces_that_of_its_snapshot(two, removals, file, attribute):
    first, second = ids(two)
    two = run(two, ChangeStatistics(updates=(file(first, "one"), file(second, "two")))).table
    assert held(two, attribute) == {"one", "two"}
    two = run(two, ChangeStatistics(updates=(file(second, "three"),))).table
    assert held(two, attribute) == {"one", "three"}
    assert {f.snapshot_id for f in getattr(two.metadata, attribute)} == {first, second}


@pytest.mark.parametrize(("removals", "file", "attribute"), KINDS)
def test_statistics_removal_keeps_the_other_kind(two, removals, file, attribute):
    """Table and partition statistics of a snapshot are removed independently of each other."""
    first, second = ids(two)
    two = run(two, ChangeStatistics(updates=(table_file(first), table_file(second)))).table
    two = run(two, ChangeStatistics(updates=(partition_file(first), partition_file(second)))).table
    other = {"statistics": "partition_statistics", "partition_statistics": "statistics"}[attribute]
    after_ = run(two, ChangeStatistics(**{removals: (first,)})).table
    assert [f.snapshot_id for f in getattr(after_.metadata, attribute)] == [second]
    assert getattr(after_.metadata, other) == getattr(two.metadata, other)


@pytest.mark.parametrize(("removals", "file", "attribute"), KINDS)
def test_a_file_is_set_and_another_one_removed_in_one_commit(catalog, two, removals, file, attribute):
    first, second = ids(two)
    two = run(two, ChangeStatistics(updates=(file(first, "one"),))).table
    swaps = len(catalog.swaps)
    two = run(two, ChangeStatistics(updates=(file(second, "two"),), **{removals: (first,)})).table
    assert held(two, attribute) == {"two"}
    assert len(catalog.swaps) == swaps + 1


@pytest.mark.parametrize(("removals", "file", "attribute"), KINDS)
def test_what_is_as_it_should_be_is_nothing_to_do(two, removals, file, attribute):
    two = run(two, ChangeStatistics(updates=(file(ids(two)[0]),))).table
    assert not run(two, ChangeStatistics(updates=(file(ids(two)[0]),), **{removals: (ids(two)[1], 99)})).changed


@pytest.mark.parametrize(("removals", "file", "attribute"), KINDS)
def test_statistics_of_expired_snapshot_are_not_set(catalog, two, removals, file, attribute):
    catalog.follow(after(lambda: swap(two, RemoveSnapshots((ids(two)[0],)))))
    with pytest.raises(NotFoundError, match=f"no snapshot {ids(two)[0]}"):
        run(two, ChangeStatistics(updates=(file(ids(two)[0]),)))
    assert held(catalog.load(EVENTS), attribute) == set()


@pytest.mark.parametrize(("removals", "file", "attribute"), KINDS)
def test_statistics_are_set_beside_what_others_commit_and_once(catalog, two, removals, file, attribute):
    catalog.follow(after(lambda: add(two, "theirs")))
    result = run(two, ChangeStatistics(updates=(file(ids(two)[0]),)))
    assert live(result.table) == {"a": 1, "b": 1, "theirs": 1}
    catalog.follow(LANDS_BUT_SAYS_CONFLICT)
    result = run(two, ChangeStatistics(updates=(file(ids(two)[1], "two"),)))
    assert (held(result.table, attribute), len(getattr(result.table.metadata, attribute))) == (
        {"two", "s" if attribute == "statistics" else "p"},
        2,
    )
