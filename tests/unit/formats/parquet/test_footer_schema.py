import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from icekeep.errors import UnsupportedError
from icekeep.formats.arrow.schema import stored_schema
from icekeep.formats.parquet.footer import read_footer, read_schema
from icekeep.formats.parquet.thrift import (
    BINARY,
    I32,
    STRUCT,
    Damaged,
    binary_bytes,
    list_bytes,
    struct_bytes,
)
from icekeep.spec.avro import encode_long
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from icekeep.spec.types import (
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UNKNOWN,
    UUID,
    ListType,
    MapType,
    StructType,
    decimal,
    fixed,
)
from kit.cases import for_each
from kit.columns import EVERY_TYPE, column, empty_table, parquet_bytes, schema_of
from kit.stitched import put_bytes
from kit.storage import MemoryStorage
from kit.strategies import schemas

ID = b"PARQUET:field_id"
A = column(1, "a", INT)


def stored(table, **options):
    storage = MemoryStorage()
    file = put_bytes(storage, "memory:/t/f", parquet_bytes(table, **options))
    return read_footer(storage, file.file_path, file.file_size_in_bytes).stored


def stored_as(schema):
    return stored(empty_table(schema))


def foreign(*fields):
    return stored(pa.schema([f.with_metadata({ID: b"1"}) if not f.metadata else f for f in fields]).empty_table())


def holds(file_columns, table_columns):
    return stored_as(schema_of(*file_columns)).holds(schema_of(*table_columns))


@pytest.mark.parametrize("as_integer", [True, False])
def test_a_file_holds_the_columns_that_it_was_written_with(as_integer):
    assert stored(empty_table(EVERY_TYPE), store_decimal_as_integer=as_integer).holds(EVERY_TYPE)


@pytest.mark.slow
@given(schemas())
def test_a_file_of_any_schema_holds_its_columns(schema):
    try:
        written = stored_schema(schema)
        table = empty_table(written)
    except UnsupportedError:
        # Of types that files cannot hold, or that nobody can interpret.
        return
    assert stored(table).holds(schema)


def test_leaves_are_the_columns_of_row_groups_in_their_order():
    data = parquet_bytes(empty_table(EVERY_TYPE))
    names = pq.ParquetFile(io.BytesIO(data)).schema.names
    leaves = stored_as(EVERY_TYPE).leaves
    assert len(leaves) == len(names)
    assert [leaf.field_id for leaf in leaves[:3]] == [1, 2, 3]
    # Only the column `key` is required; what is required within something optional may be missing with it.
    assert [leaf.field_id for leaf in leaves if leaf.is_required] == [20]


@pytest.mark.parametrize(
    "now",
    [
        [column(1, "renamed", INT), column(2, "b", STRING)],
        [column(2, "b", STRING), column(1, "a", INT)],
        [column(1, "a", INT, required=True), column(2, "b", STRING)],
        [column(1, "a", INT), column(2, "b", STRING), column(3, "c", UNKNOWN)],
    ],
    ids=["name", "order", "required", "unknown"],
)
def test_columns_are_the_same_whatever_their_names_order_and_nulls(now):
    assert holds([A, column(2, "b", STRING)], now)


@pytest.mark.parametrize(
    "now",
    [
        [column(1, "a", LONG), column(2, "b", STRING)],
        [column(1, "a", INT)],
        [column(1, "a", INT), column(2, "b", STRING), column(3, "c", INT)],
        [column(3, "a", INT), column(2, "b", STRING)],
        [column(1, "a", INT), column(2, "b", StructType((column(3, "c", STRING),)))],
    ],
    ids=["promoted", "dropped", "added", "another id", "nested"],
)
def test_columns_that_the_schema_has_otherwise_are_not_held(now):
    assert not holds([A, column(2, "b", STRING)], now)


@for_each(
    ("file", "table"),
    [
        (decimal(9, 2), decimal(10, 2)),
        (decimal(9, 2), decimal(9, 3)),
        (fixed(16), UUID),
        (fixed(5), fixed(6)),
        (TIMESTAMP, TIMESTAMPTZ),
        (TIMESTAMP, TIMESTAMP_NS),
        (TIMESTAMPTZ, TIMESTAMPTZ_NS),
        (FLOAT, DOUBLE),
        (DATE, TIMESTAMP),
        (DATE, INT),
        (ListType(element_id=2, element=INT), ListType(element_id=2, element=LONG)),
        (ListType(element_id=2, element=INT), ListType(element_id=3, element=INT)),
        (
            MapType(key_id=2, key=INT, value_id=3, value=INT),
            MapType(key_id=3, key=INT, value_id=2, value=INT),
        ),
        (StructType((column(2, "x", INT),)), StructType((column(2, "x", INT), column(3, "y", INT)))),
        (StructType((column(2, "x", INT), column(3, "y", INT))), StructType((column(2, "x", INT),))),
    ],
    ids=str,
)
def test_a_column_of_another_type_is_not_held(file, table):
    assert holds([column(1, "a", file)], [column(1, "a", file)])
    assert not holds([column(1, "a", file)], [column(1, "a", table)])


@for_each(
    ("type_", "table"),
    [
        (pa.int16(), INT),
        (pa.uint32(), LONG),
        (pa.uint64(), LONG),
        (pa.timestamp("ms"), TIMESTAMP),
        (pa.time32("ms"), INT),
        (pa.float16(), FLOAT),
    ],
    ids=str,
)
def test_a_column_stored_as_iceberg_stores_none_is_not_held(type_, table):
    assert not foreign(pa.field("a", type_)).holds(schema_of(column(1, "a", table)))


def test_a_file_without_field_ids_holds_no_columns():
    assert not stored(pa.schema([pa.field("a", pa.int32())]).empty_table()).holds(schema_of(A))
    nested = pa.field("a", pa.list_(pa.field("element", pa.int32())))
    assert not foreign(nested).holds(schema_of(column(1, "a", ListType(element_id=2, element=INT))))


def test_columns_of_row_lineage_may_be_there_or_not():
    with_lineage = schema_of(A, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER)
    assert stored_as(with_lineage).holds(schema_of(A))
    assert not stored_as(schema_of(A, column(2147483546, "file_path", STRING))).holds(schema_of(A))


def element(name, *fields):
    return struct_bytes([*((f, I32, encode_long(v)) for f, v in fields if f < 4), (4, BINARY, binary_bytes(name)),
                         *((f, I32, encode_long(v)) for f, v in fields if f > 4)])  # fmt: skip


def elements(*nodes):
    return read_schema(list_bytes(STRUCT, [element(b"root", (5, 1)), *nodes]))


def test_the_older_annotations_are_understood():
    def is_type(type_, *fields):
        return elements(element(b"a", *fields, (9, 1))).holds(schema_of(column(1, "a", type_)))

    assert is_type(STRING, (1, 6), (3, 1), (6, 0))
    assert is_type(DATE, (1, 1), (3, 1), (6, 6))
    assert is_type(TIMESTAMPTZ, (1, 2), (3, 1), (6, 10))
    assert is_type(decimal(9, 2), (1, 1), (3, 1), (6, 5), (7, 2), (8, 9))
    # UINT_32, TIMESTAMP_MILLIS and INT96.
    assert not is_type(INT, (1, 1), (3, 1), (6, 13))
    assert not is_type(TIMESTAMPTZ, (1, 2), (3, 1), (6, 9))
    assert not is_type(TIMESTAMP, (1, 3), (3, 1))


def test_only_lists_in_three_levels_are_held():
    table = schema_of(column(1, "a", ListType(element_id=2, element=INT)))
    three = [
        element(b"a", (3, 1), (5, 1), (6, 3), (9, 1)),
        element(b"list", (3, 2), (5, 1)),
        element(b"element", (1, 1), (3, 1), (9, 2)),
    ]
    assert elements(*three).holds(table)
    two = [element(b"a", (3, 1), (5, 1), (6, 3), (9, 1)), element(b"array", (1, 1), (3, 2), (9, 2))]
    assert not elements(*two).holds(table)
    assert len(elements(*two).leaves) == 1
    alone = [element(b"a", (1, 1), (3, 2), (9, 1))]
    assert not elements(*alone).holds(table)


@pytest.mark.parametrize(
    "data",
    [
        list_bytes(STRUCT, []),
        list_bytes(STRUCT, [element(b"root", (5, 2)), element(b"a", (1, 1), (3, 1))]),
        list_bytes(STRUCT, [element(b"root", (5, 0)), element(b"a", (1, 1), (3, 1))]),
        list_bytes(STRUCT, [element(b"root", (5, 1))] + [element(b"s", (3, 1), (5, 1))] * 2000),
        list_bytes(STRUCT, [element(b"root", (5, 1)), element(b"l", (3, 1), (5, 2**31 - 1), (6, 3))]),
        list_bytes(STRUCT, [element(b"root", (5, 2**62)), element(b"a", (1, 1), (3, 1))]),
    ],
    ids=["empty", "too few", "too many", "too deep", "no middle", "huge"],
)
def test_a_schema_that_does_not_fit_itself_is_damaged(data):
    with pytest.raises(Damaged):
        read_schema(data)
