"""The verbs that change what a table is, on every catalog that we write ourselves; PyIceberg reads the outcome."""

import json

import pytest
from pyiceberg.table import StaticTable

from icekeep.catalog.open import open_catalog
from icekeep.errors import NotFoundError, UnsupportedError, UsageError
from icekeep.spec.evolution import (
    AddColumn,
    AddPartitionField,
    DropColumn,
    MoveFirst,
    RemovePartitionField,
    RenameColumn,
    SetWriteDefault,
    UpdateColumnType,
)
from icekeep.spec.metadata import metadata_to_json
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import SortKey
from icekeep.spec.types import DATE, INT, STRING, UNKNOWN, NestedField, StructType
from icekeep.tables.verbs import create_table, update_schema, update_sort_order, update_spec, upgrade_format_version
from kit.memory_catalog import MemoryCatalog

COLUMNS = Schema(
    fields=(
        NestedField(field_id=1, name="id", type=INT, required=True),
        NestedField(field_id=2, name="day", type=DATE),
        NestedField(field_id=3, name="place", type=StructType((NestedField(field_id=4, name="code", type=STRING),))),
    ),
    identifier_field_ids=(1,),
)


@pytest.fixture(params=["memory", "sql", "filesystem"])
def catalog(request, tmp_path):
    if request.param == "memory":
        catalog = MemoryCatalog()
    else:
        uri = {"uri": f"sqlite:///{tmp_path}/c.db"} if request.param == "sql" else {}
        catalog = open_catalog("local", {"type": request.param, "warehouse": f"{tmp_path}/warehouse", **uri})
    catalog.create_namespace(("db",))
    return catalog


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_table_is_evolved_step_by_step_and_read_again(catalog, version):
    table = create_table(catalog, "db.t", COLUMNS, partition_by=[("day", "month")], format_version=version)
    assert (table.metadata.format_version, table.metadata.next_row_id) == (version, 0 if version == 3 else None)
    table = update_schema(
        table,
        [
            AddColumn("n", "int", parent="place"),
            RenameColumn("id", "key"),
            UpdateColumnType("key", "long"),
            MoveFirst("day"),
        ],
    )
    table = update_spec(table, [RemovePartitionField("day_month"), AddPartitionField("key", "bucket[4]")])
    table = update_sort_order(table, ["day", SortKey("place.n", direction="desc")])
    assert catalog.load(("db", "t")) == table
    metadata = table.metadata
    fields = metadata.schema.fields_by_id
    assert {metadata.schema.names_by_id[i]: (i, str(fields[i].type)) for i in fields if i != 3} == {
        "day": (2, "date"), "key": (1, "long"), "place.code": (4, "string"), "place.n": (5, "int"),
    }  # fmt: skip
    dropped = [("day_month", 1000, "void")] if version == 1 else []
    assert [(f.name, f.field_id, str(f.transform)) for f in metadata.spec.fields] == [
        *dropped, ("key_bucket_4", 1001, "bucket[4]"),
    ]  # fmt: skip
    assert (metadata.current_schema_id, metadata.default_spec_id, metadata.default_sort_order_id) == (1, 1, 1)
    assert (metadata.last_column_id, metadata.last_partition_id) == (5, 1001)
    assert metadata.schema.identifier_field_ids == (1,)


@pytest.mark.parametrize("version", [1, 2])
def test_a_table_is_upgraded_to_version_3_and_may_then_have_what_is_new(catalog, version):
    table = create_table(catalog, "db.t", COLUMNS, format_version=version)
    for change in (
        AddColumn("u", UNKNOWN),
        AddColumn("n", INT, required=True, default=1),
        SetWriteDefault("day", "2024-01-31"),
    ):
        with pytest.raises(UsageError, match="format version 3"):
            update_schema(table, [change])
    if version == 1:
        assert upgrade_format_version(table, 2).metadata.format_version == 2
    table = upgrade_format_version(table, 3)
    assert (table.metadata.format_version, table.metadata.next_row_id) == (3, 0)
    table = update_schema(table, [AddColumn("n", INT, required=True, default=1), UpdateColumnType("day", "timestamp")])
    assert table.metadata.schema.field("n").initial_default == 1
    assert catalog.load(("db", "t")) == table
    with pytest.raises(UsageError, match="the table has format version 3; it cannot become 2"):
        upgrade_format_version(table, 2)


def test_nothing_is_committed_where_a_change_is_refused(catalog):
    table = create_table(catalog, "db.t", COLUMNS, partition_by=[("day", "month")])
    for act in (
        lambda: update_schema(table, [AddColumn("a", INT), DropColumn("day")]),
        lambda: update_spec(table, [AddPartitionField("id"), AddPartitionField("day", "year")]),
        lambda: update_sort_order(table, ["id", SortKey("place")]),
    ):
        with pytest.raises(UsageError):
            act()
    with pytest.raises(NotFoundError):
        update_spec(table, [RemovePartitionField("nope")])
    assert catalog.load(("db", "t")).metadata_location == table.metadata_location


@pytest.mark.parametrize("version", [0, 4])
def test_a_table_has_a_format_version_that_exists(catalog, version):
    with pytest.raises(UsageError, match=f"there is no format version {version}; give 1 to 3"):
        create_table(catalog, "db.t", COLUMNS, format_version=version)


def test_a_new_table_of_version_3_may_have_what_older_ones_may_not(catalog):
    new = Schema(fields=(NestedField(field_id=1, name="u", type=UNKNOWN),))
    with pytest.raises(UnsupportedError, match="only format version 3 has"):
        create_table(catalog, "db.t", new, format_version=1)
    assert create_table(catalog, "db.t", new, format_version=3).metadata.schema.field("u").type == UNKNOWN


@pytest.mark.parametrize("version", [1, 2])
def test_pyiceberg_reads_a_table_that_we_evolved(tmp_path, version):
    catalog = open_catalog("local", {"type": "hadoop", "warehouse": f"{tmp_path}/warehouse"})
    catalog.create_namespace(("db",))
    table = create_table(catalog, "db.t", COLUMNS, partition_by=[("day", "month")], format_version=version)
    table = update_schema(table, [AddColumn("n", "int", parent="place"), RenameColumn("id", "key")])
    table = update_spec(table, [RemovePartitionField("day_month"), AddPartitionField("key", "bucket[4]")])
    table = update_sort_order(table, [SortKey("day", direction="desc")])
    theirs = StaticTable.from_metadata(table.metadata_location)
    assert json.loads(theirs.schema().model_dump_json()) == metadata_to_json(table.metadata)["schemas"][1]
    assert [(f.name, f.field_id, str(f.transform)) for f in theirs.spec().fields] == [
        (f.name, f.field_id, str(f.transform)) for f in table.metadata.spec.fields
    ]
    assert [(f.source_id, f.direction.value) for f in theirs.sort_order().fields] == [(2, "desc")]
    assert theirs.metadata.last_column_id == 5
