"""Tables are made, evolve, and are given statistics."""

import json

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from icekeep.catalog.open import open_catalog
from icekeep.commit.changes.definitions import ChangeStatistics
from icekeep.commit.retry import commit
from icekeep.errors import InvalidTableError, NotFoundError, UnsupportedError, UsageError
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
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.sorting import SortKey
from icekeep.spec.types import (
    DATE,
    INT,
    LONG,
    STRING,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UNKNOWN,
    VARIANT,
    GeographyType,
    GeometryType,
    NestedField,
    StructType,
)
from icekeep.tables.verbs import (
    create_table,
    drop_statistics,
    update_schema,
    update_sort_order,
    update_spec,
    upgrade_format_version,
)
from kit.memory_catalog import MemoryCatalog
from kit.runtime import START_MS, FakeRuntime
from kit.tables import add, memory_table, stored

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("place", pa.struct([pa.field("code", pa.string())])),
    ]
)


@pytest.fixture
def catalog():
    catalog = MemoryCatalog()
    catalog.create_namespace(("db",))
    return catalog


def test_one_change_in_the_place_of_a_list_is_refused(catalog):
    table = memory_table(catalog)
    change = AddPartitionField("id", "identity")
    for name, call in (
        ("changes", lambda: update_spec(table, change)),
        ("changes", lambda: update_schema(table, DropColumn("id"))),
        ("keys", lambda: update_sort_order(table, "id")),
    ):
        with pytest.raises(UsageError, match=rf"^{name} is .*; give a list: \[.*\]$"):
            call()


def test_a_new_table_is_empty_and_of_version_2():
    catalog = MemoryCatalog(runtime=FakeRuntime(7))
    catalog.create_namespace(("db",))
    table = create_table(catalog, "db.events", COLUMNS)
    metadata = table.metadata
    assert catalog.load(("db", "events")) == table
    assert (metadata.format_version, metadata.last_sequence_number, metadata.snapshots) == (2, 0, ())
    assert (metadata.current_snapshot, metadata.refs) == (None, {})
    assert metadata.table_uuid == str(FakeRuntime(7).new_uuid())
    assert metadata.last_updated_ms == START_MS
    assert metadata.location == "memory://lake/wh/db/events"
    assert metadata.spec.fields == ()
    assert metadata.properties == {}


def test_two_tables_are_not_one(catalog):
    one, two = (create_table(catalog, f"db.{name}", COLUMNS) for name in ("one", "two"))
    assert one.metadata.table_uuid != two.metadata.table_uuid
    assert one.metadata.location != two.metadata.location


@pytest.mark.parametrize("identifier", ["db.events", ("db", "events")])
def test_a_name_is_text_or_parts(catalog, identifier):
    assert create_table(catalog, identifier, COLUMNS).name == "db.events"


def test_field_ids_are_assigned_level_by_level(catalog):
    schema = create_table(catalog, "db.events", COLUMNS).metadata.schema
    assert [(f.field_id, f.name, f.required) for f in schema.fields] == [
        (1, "id", True),
        (2, "at", False),
        (3, "place", False),
    ]
    assert schema.field("place.code").field_id == 4


def test_ids_that_a_schema_has_already_are_assigned_anew(catalog):
    place = StructType((NestedField(field_id=70, name="code", type=STRING),))
    given = Schema(
        fields=(
            NestedField(field_id=50, name="id", type=LONG, required=True),
            NestedField(field_id=9, name="place", type=place),
        ),
        identifier_field_ids=(50,),
    )
    metadata = create_table(catalog, "db.events", given).metadata
    assert [metadata.schema.field(name).field_id for name in ("id", "place", "place.code")] == [1, 2, 3]
    assert metadata.last_column_id == 3
    assert metadata.schema.identifier_field_ids == (1,)


def test_partition_by_takes_column_transform_and_name(catalog):
    partition_by = [("at", "month"), ("id", "bucket[16]", "shard"), ("place.code", "identity")]
    metadata = create_table(catalog, "db.events", COLUMNS, partition_by=iter(partition_by)).metadata
    assert [(f.name, str(f.transform), f.source_id, f.field_id) for f in metadata.spec.fields] == [
        ("at_month", "month", 2, 1000),
        ("shard", "bucket[16]", 1, 1001),
        ("place.code", "identity", 4, 1002),
    ]
    assert (metadata.default_spec_id, metadata.last_partition_id) == (0, 1002)


def test_a_table_lies_where_it_is_wanted(catalog):
    table = create_table(catalog, "db.events", COLUMNS, location="memory://lake/mine/", properties={"owner": "me"})
    assert table.metadata.location == "memory://lake/mine"
    assert table.metadata_location.startswith("memory://lake/mine/metadata/")
    assert table.metadata.properties == {"owner": "me"}


@pytest.mark.parametrize(
    ("partition_by", "error"),
    [
        ([("nope", "identity")], NotFoundError),
        ([("id", "month")], UsageError),
        ([("id", "fold")], UsageError),
        ([("id", "bucket[0]")], UsageError),
        ([("at", "day"), ("at", "month")], UsageError),
        ([("place", "identity")], UsageError),
        ([("at", "day", "id")], UsageError),
    ],
)
def test_invalid_partitioning_creates_nothing(catalog, partition_by, error):
    with pytest.raises(error):
        create_table(catalog, "db.events", COLUMNS, partition_by=partition_by)
    assert (catalog.list_tables(("db",)), stored(catalog)) == ([], set())


def column(name, type_, **more):
    return NestedField(field_id=len(name), name=name, type=type_, **more)


@pytest.mark.parametrize("type_", [pa.null(), pa.month_day_nano_interval(), pa.dense_union([pa.field("a", pa.int8())])])
def test_unsupported_arrow_type_is_refused_by_name(catalog, type_):
    with pytest.raises(UnsupportedError, match="'bad'"):
        create_table(catalog, "db.events", pa.schema([pa.field("bad", type_)]))
    assert stored(catalog) == set()


@pytest.mark.parametrize(
    "field",
    [
        *(column("bad", type_) for type_ in (TIMESTAMP_NS, TIMESTAMPTZ_NS, UNKNOWN, VARIANT)),
        column("bad", GeometryType("geometry")),
        column("bad", GeographyType("geography")),
        column("bad", LONG, initial_default=1),
        column("bad", LONG, write_default=1),
        column("s", StructType((column("bad", TIMESTAMP_NS),))),
    ],
    ids=str,
)
def test_what_only_version_3_has_is_refused_and_the_column_named(catalog, field):
    name = "'s.bad'" if field.name == "s" else "'bad'"
    with pytest.raises(UnsupportedError, match=f"column {name}.* only format version 3 has"):
        create_table(catalog, "db.events", Schema(fields=(field,)))
    assert stored(catalog) == set()


def test_columns_that_make_no_schema_are_refused(catalog):
    with pytest.raises(InvalidTableError):
        create_table(catalog, "db.events", Schema(fields=(column("a", LONG), column("a", STRING))))
    with pytest.raises(UsageError):
        create_table(catalog, "db.events", pa.schema([("a", pa.int64()), ("a", pa.int64())]))
    assert stored(catalog) == set()


def test_timestamp_units_are_converted_for_v2(catalog):
    schema = create_table(catalog, "db.events", pa.schema([("at", pa.timestamp("ns", "UTC"))])).metadata.schema
    assert schema.field("at").type == TIMESTAMPTZ


def test_a_name_that_is_taken_or_has_no_namespace_is_refused(catalog):
    create_table(catalog, "db.events", COLUMNS)
    before = stored(catalog)
    with pytest.raises(UsageError, match="exists already"):
        create_table(catalog, "db.events", COLUMNS)
    with pytest.raises(NotFoundError, match="no namespace 'none'"):
        create_table(catalog, "none.events", COLUMNS)
    with pytest.raises(UsageError, match="no namespace"):
        create_table(catalog, "events", COLUMNS)
    assert stored(catalog) == before


FIELDS = Schema(
    fields=(
        NestedField(field_id=1, name="id", type=INT, required=True),
        NestedField(field_id=2, name="day", type=DATE),
        NestedField(field_id=3, name="place", type=StructType((NestedField(field_id=4, name="code", type=STRING),))),
    ),
    identifier_field_ids=(1,),
)


@pytest.fixture(params=["memory", "sql", "filesystem"])
def any_catalog(request, tmp_path):
    if request.param == "memory":
        any_catalog = MemoryCatalog()
    else:
        uri = {"uri": f"sqlite:///{tmp_path}/c.db"} if request.param == "sql" else {}
        any_catalog = open_catalog("local", {"type": request.param, "warehouse": f"{tmp_path}/warehouse", **uri})
    any_catalog.create_namespace(("db",))
    return any_catalog


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_table_is_evolved_step_by_step_and_read_again(any_catalog, version):
    table = create_table(any_catalog, "db.t", FIELDS, partition_by=[("day", "month")], format_version=version)
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
    assert any_catalog.load(("db", "t")) == table
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
def test_upgrade_to_v3_allows_new_features(any_catalog, version):
    table = create_table(any_catalog, "db.t", FIELDS, format_version=version)
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
    assert any_catalog.load(("db", "t")) == table
    with pytest.raises(UsageError, match="the table has format version 3; it cannot become 2"):
        upgrade_format_version(table, 2)


def test_nothing_is_committed_where_a_change_is_refused(any_catalog):
    table = create_table(any_catalog, "db.t", FIELDS, partition_by=[("day", "month")])
    for act in (
        lambda: update_schema(table, [AddColumn("a", INT), DropColumn("day")]),
        lambda: update_spec(table, [AddPartitionField("id"), AddPartitionField("day", "year")]),
        lambda: update_sort_order(table, ["id", SortKey("place")]),
    ):
        with pytest.raises(UsageError):
            act()
    with pytest.raises(NotFoundError):
        update_spec(table, [RemovePartitionField("nope")])
    assert any_catalog.load(("db", "t")).metadata_location == table.metadata_location


@pytest.mark.parametrize("version", [0, 4])
def test_a_table_has_a_format_version_that_exists(any_catalog, version):
    with pytest.raises(UsageError, match=f"there is no format version {version}; give 1 to 3"):
        create_table(any_catalog, "db.t", FIELDS, format_version=version)


def test_new_v3_table_may_use_v3_types(any_catalog):
    new = Schema(fields=(NestedField(field_id=1, name="u", type=UNKNOWN),))
    with pytest.raises(UnsupportedError, match="only format version 3 has"):
        create_table(any_catalog, "db.t", new, format_version=1)
    assert create_table(any_catalog, "db.t", new, format_version=3).metadata.schema.field("u").type == UNKNOWN


@pytest.mark.parametrize("version", [1, 2])
def test_pyiceberg_reads_a_table_that_we_evolved(tmp_path, version):
    any_catalog = open_catalog("local", {"type": "hadoop", "warehouse": f"{tmp_path}/warehouse"})
    any_catalog.create_namespace(("db",))
    table = create_table(any_catalog, "db.t", FIELDS, partition_by=[("day", "month")], format_version=version)
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


@pytest.fixture
def table():
    """Two snapshots, each with statistics of both kinds."""
    table = add(add(memory_table(), "a"), "b")
    for snapshot in table.metadata.snapshots:
        number = snapshot.snapshot_id
        of_table = StatisticsFile(
            snapshot_id=number,
            statistics_path=f"memory://lake/{number}.puffin",
            file_size_in_bytes=100,
            file_footer_size_in_bytes=10,
            blob_metadata=(),
        )
        of_partitions = PartitionStatisticsFile(
            snapshot_id=number, statistics_path=f"memory://lake/{number}.parquet", file_size_in_bytes=50
        )
        table = commit(table, ChangeStatistics(updates=(of_table,))).table
        table = commit(table, ChangeStatistics(updates=(of_partitions,))).table
    return table


def left(table):
    return [{one.snapshot_id for one in of} for of in (table.metadata.statistics, table.metadata.partition_statistics)]


def test_both_kinds_of_statistics_are_dropped_in_one_commit(table):
    first, second = (one.snapshot_id for one in table.metadata.snapshots)
    swaps = len(table.catalog.swaps)
    after = drop_statistics(table)
    assert left(after) == [{first}, {first}]
    assert len(table.catalog.swaps) == swaps + 1
    assert left(drop_statistics(after, first)) == [set(), set()]
    assert second == after.metadata.current_snapshot_id


def test_where_there_are_none_nothing_is_committed(table):
    after = drop_statistics(table)
    assert drop_statistics(after).metadata_location == after.metadata_location


def test_a_snapshot_that_is_not_there_is_not_found(table):
    with pytest.raises(NotFoundError, match="99"):
        drop_statistics(table, 99)
    with pytest.raises(NotFoundError, match="has no snapshot that could have statistics"):
        drop_statistics(memory_table())
