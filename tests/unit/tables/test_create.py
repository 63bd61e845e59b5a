import pyarrow as pa
import pytest

from icekeep.errors import InvalidTableError, NotFoundError, UnsupportedError, UsageError
from icekeep.spec.schema import Schema
from icekeep.spec.types import (
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
from icekeep.tables.verbs import create_table
from kit.memory_catalog import MemoryCatalog
from kit.runtime import START_MS, FakeRuntime
from kit.tables import stored

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


def test_partitions_are_given_by_column_and_transform_and_perhaps_a_name(catalog):
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
def test_a_partitioning_that_does_not_fit_is_refused_and_nothing_is_made(catalog, partition_by, error):
    with pytest.raises(error):
        create_table(catalog, "db.events", COLUMNS, partition_by=partition_by)
    assert (catalog.list_tables(("db",)), stored(catalog)) == ([], set())


def column(name, type_, **more):
    return NestedField(field_id=len(name), name=name, type=type_, **more)


@pytest.mark.parametrize("type_", [pa.null(), pa.month_day_nano_interval(), pa.dense_union([pa.field("a", pa.int8())])])
def test_an_arrow_type_that_no_column_can_have_is_refused_and_named(catalog, type_):
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


def test_timestamps_of_other_units_become_those_that_version_2_has(catalog):
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
