import pyarrow as pa
import pytest
from hypothesis import given

import icekeep.spec.schema
import kit.columns
from icekeep.errors import UnsupportedError
from icekeep.formats.arrow.schema import arrow_field, arrow_schema, arrow_type, field_id, iceberg_schema, stored_schema
from icekeep.spec.avro import min_decimal_bytes
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UNKNOWN,
    UUID,
    VARIANT,
    GeographyType,
    GeometryType,
    ListType,
    MapType,
    StructType,
    decimal,
    fixed,
)
from kit.cases import cases, for_each
from kit.columns import EVERY_TYPE, column, empty_table, parquet_file, rows, schema_of, table_of
from kit.examples import check_examples

APPENDIX_A = [
    (BOOLEAN, "BOOLEAN", "None"),
    (INT, "INT32", "None"),
    (LONG, "INT64", "None"),
    (FLOAT, "FLOAT", "None"),
    (DOUBLE, "DOUBLE", "None"),
    (decimal(9, 2), "INT32", "Decimal(precision=9, scale=2)"),
    (decimal(18, 2), "INT64", "Decimal(precision=18, scale=2)"),
    (decimal(19, 2), "FIXED_LEN_BYTE_ARRAY", "Decimal(precision=19, scale=2)"),
    (DATE, "INT32", "Date"),
    (TIME, "INT64", "Time(isAdjustedToUTC=false, timeUnit=microseconds)"),
    (TIMESTAMP, "INT64", "Timestamp(isAdjustedToUTC=false, timeUnit=microseconds"),
    (TIMESTAMPTZ, "INT64", "Timestamp(isAdjustedToUTC=true, timeUnit=microseconds"),
    (TIMESTAMP_NS, "INT64", "Timestamp(isAdjustedToUTC=false, timeUnit=nanoseconds"),
    (TIMESTAMPTZ_NS, "INT64", "Timestamp(isAdjustedToUTC=true, timeUnit=nanoseconds"),
    (STRING, "BYTE_ARRAY", "String"),
    (UUID, "FIXED_LEN_BYTE_ARRAY", "UUID"),
    (fixed(7), "FIXED_LEN_BYTE_ARRAY", "None"),
    (BINARY, "BYTE_ARRAY", "None"),
]


@for_each(("type_", "physical", "logical"), APPENDIX_A, ids=lambda value: str(value))
def test_a_type_is_stored_as_appendix_a_says(type_, physical, logical):
    stored = parquet_file(empty_table(schema_of(column(1, "c", type_)))).schema.column(0)
    assert stored.physical_type == physical
    assert str(stored.logical_type).startswith(logical)


@for_each("precision", range(1, 39))
def test_a_fixed_decimal_takes_the_fewest_bytes_that_hold_its_precision(precision):
    stored = parquet_file(empty_table(schema_of(column(1, "c", decimal(precision, 0))))).schema.column(0)
    fewest = next(n for n in range(1, 17) if 2 ** (8 * n - 1) > 10**precision - 1)
    assert stored.length == (0 if precision <= 18 else fewest)


def test_uuids_and_fixed_values_take_their_own_length():
    stored = parquet_file(empty_table(schema_of(column(1, "u", UUID), column(2, "f", fixed(7))))).schema
    assert (stored.column(0).length, stored.column(1).length) == (16, 7)


def test_lists_and_maps_have_three_levels():
    schema = schema_of(
        column(1, "l", ListType(element_id=2, element=INT)),
        column(3, "m", MapType(key_id=4, key=STRING, value_id=5, value=INT)),
    )
    stored = parquet_file(empty_table(schema)).schema
    assert [stored.column(i).path for i in range(3)] == ["l.list.element", "m.key_value.key", "m.key_value.value"]


def test_every_level_carries_its_field_id_and_whether_it_is_required():
    type_ = MapType(
        key_id=2,
        key=STRING,
        value_id=3,
        value_required=True,
        value=ListType(element_id=4, element=StructType((column(5, "x", INT, required=True),))),
    )
    field = arrow_field(column(1, "m", type_, required=True))
    levels = [
        field,
        field.type.key_field,
        field.type.item_field,
        field.type.item_field.type.value_field,
        field.type.item_field.type.value_type.field("x"),
    ]
    assert [(field_id(f), f.name, f.nullable) for f in levels] == [
        (1, "m", False),
        (2, "key", False),
        (3, "value", False),
        (4, "element", True),
        (5, "x", False),
    ]


@for_each("precision", range(19, 39))
def test_a_large_decimal_takes_the_fewest_bytes_that_hold_its_precision(precision):
    stored = parquet_file(empty_table(schema_of(column(1, "c", decimal(precision, 2))))).schema.column(0)
    assert stored.length == min_decimal_bytes(precision)


@pytest.mark.slow
@cases(40)
@given(rows(EVERY_TYPE))
def test_rows_of_every_type_come_back_from_parquet(data):
    table = table_of(EVERY_TYPE, data)
    read = parquet_file(table).read()
    assert read.schema.equals(table.schema)
    assert str(read.to_pylist()) == str(table.to_pylist())


@pytest.mark.parametrize("type_", [VARIANT, GeometryType("geometry"), GeographyType("geography")], ids=str)
def test_a_type_that_is_not_interpreted_is_refused_with_the_columns_full_name(type_):
    inner = StructType((column(3, "b", type_),))
    schema = schema_of(column(1, "a", ListType(element_id=2, element=inner)))
    with pytest.raises(UnsupportedError, match=r"'a\.element\.b'"):
        arrow_schema(schema)


def test_columns_of_type_unknown_are_left_out_of_files_at_every_level():
    schema = schema_of(
        column(1, "u", UNKNOWN),
        column(2, "s", StructType((column(3, "x", INT), column(4, "u", UNKNOWN)))),
        column(5, "l", ListType(element_id=6, element=StructType((column(7, "u", UNKNOWN), column(8, "y", INT))))),
        column(9, "m", MapType(key_id=10, key=INT, value_id=11, value=StructType((column(12, "z", INT),)))),
    )
    assert list(stored_schema(schema).fields_by_id) == [2, 3, 5, 6, 8, 9, 10, 11, 12]
    assert arrow_type(UNKNOWN) == pa.null()


FROM_ARROW = [
    (pa.bool_(), BOOLEAN),
    (pa.int8(), INT),
    (pa.int16(), INT),
    (pa.int32(), INT),
    (pa.uint8(), INT),
    (pa.uint16(), INT),
    (pa.uint32(), LONG),
    (pa.int64(), LONG),
    (pa.float32(), FLOAT),
    (pa.float64(), DOUBLE),
    (pa.date32(), DATE),
    (pa.time32("ms"), TIME),
    (pa.time64("us"), TIME),
    (pa.time64("ns"), TIME),
    (pa.timestamp("s"), TIMESTAMP),
    (pa.timestamp("ns"), TIMESTAMP),
    (pa.timestamp("ms", "UTC"), TIMESTAMPTZ),
    (pa.timestamp("us", "Europe/Berlin"), TIMESTAMPTZ),
    (pa.string(), STRING),
    (pa.large_string(), STRING),
    (pa.string_view(), STRING),
    (pa.dictionary(pa.int8(), pa.large_string()), STRING),
    (pa.binary(), BINARY),
    (pa.large_binary(), BINARY),
    (pa.binary_view(), BINARY),
    (pa.binary(4), fixed(4)),
    (pa.uuid(), UUID),
    (pa.decimal32(7, 2), decimal(7, 2)),
    (pa.decimal128(38, 0), decimal(38, 0)),
    (pa.decimal256(38, 2), decimal(38, 2)),
]


@for_each(("arrow", "expected"), FROM_ARROW, ids=lambda value: str(value))
def test_a_new_table_gets_the_type_that_holds_the_arrow_values(arrow, expected):
    assert iceberg_schema(pa.schema([pa.field("c", arrow)])).fields == (column(1, "c", expected),)


def test_fresh_ids_count_each_level_before_the_one_below_it():
    arrow = pa.schema(
        [
            pa.field("l", pa.large_list(pa.field("item", pa.struct([pa.field("x", pa.int32())]), nullable=False))),
            pa.field("m", pa.map_(pa.string(), pa.field("v", pa.int64(), nullable=False))),
            pa.field("k", pa.int64(), nullable=False),
        ]
    )
    item = StructType((column(5, "x", INT),))
    assert iceberg_schema(arrow).fields == (
        column(1, "l", ListType(element_id=4, element=item, element_required=True)),
        column(2, "m", MapType(key_id=6, key=STRING, value_id=7, value=LONG, value_required=True)),
        column(3, "k", LONG, required=True),
    )


def test_examples():
    check_examples("formats/arrow/schema.txt", icekeep.spec.schema, kit.columns, globals())
