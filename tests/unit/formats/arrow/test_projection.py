from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID as UUIDValue

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icekeep.spec.schema
import icekeep.spec.types
import kit.columns
from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError, UsageError
from icekeep.formats.arrow.projection import (
    KEPT_DICTIONARY,
    cast_to_schema,
    described_as,
    leaf_path,
    leaf_schema,
    leaf_values,
    project,
    projected_columns,
)
from icekeep.formats.arrow.schema import (
    FIELD_ID_KEY,
    arrow_field,
    arrow_schema,
    arrow_type,
    field_id,
    iceberg_schema,
    stored_schema,
)
from icekeep.formats.sort import external as sort_merge
from icekeep.spec.avro import min_decimal_bytes
from icekeep.spec.schema import Schema
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
    NestedField,
    StructType,
    decimal,
    fixed,
)
from kit.cases import cases, for_each
from kit.columns import EVERY_TYPE, column, empty_table, parquet_file, rows, schema_of, table_of
from kit.examples import check_examples


def one(type_, required=False):
    return schema_of(column(1, "c", type_, required))


def projected_one(array, source, target):
    """A column of one schema, through a Parquet file, into another."""
    table = pa.Table.from_arrays([pa.array(array, arrow_schema(one(source))[0].type)], schema=arrow_schema(one(source)))
    return project(parquet_file(table).read(), one(target))


def test_projection_renames_reorders_and_adds_nulls():
    file_schema = schema_of(column(1, "a", INT), column(2, "b", STRING), column(3, "c", DOUBLE))
    schema = schema_of(column(3, "measurement", DOUBLE), column(2, "name", STRING), column(4, "a", INT))
    data = parquet_file(table_of(file_schema, [{"a": 7, "b": "x", "c": 1.5}, {"a": 8, "b": None, "c": 2.5}])).read()
    projected = project(data, schema)
    assert projected.schema.equals(arrow_schema(schema), check_metadata=True)
    assert projected.to_pylist() == [
        {"measurement": 1.5, "name": "x", "a": None},
        {"measurement": 2.5, "name": None, "a": None},
    ]


def test_columns_that_fit_already_are_not_copied():
    data = parquet_file(table_of(EVERY_TYPE, [{"key": 1, "counts": [("a", 1)], "numbers": [1]}])).read()
    projected = project(data, EVERY_TYPE)
    assert projected.schema.equals(arrow_schema(EVERY_TYPE), check_metadata=True)
    for before, after in zip(data.columns, projected.columns, strict=True):
        assert _addresses(after.chunk(0)) == _addresses(before.chunk(0))


def _addresses(array):
    return [buffer and buffer.address for buffer in array.buffers()]


@pytest.mark.slow
@cases(40)
@given(rows(EVERY_TYPE), st.randoms(use_true_random=False))
def test_reordered_and_renamed_columns_keep_their_values(data, random):
    fields = list(EVERY_TYPE.fields)
    random.shuffle(fields)
    schema = Schema(fields=tuple(column(f.field_id, f.name.upper(), f.type, f.required) for f in fields))
    table = parquet_file(table_of(EVERY_TYPE, data)).read()
    projected = project(table, schema)
    assert projected.schema.equals(arrow_schema(schema), check_metadata=True)
    for field in EVERY_TYPE.fields:
        assert str(projected[field.name.upper()].to_pylist()) == str(table[field.name].to_pylist())


PROMOTIONS = [
    (INT, LONG, [2**31 - 1, None]),
    (FLOAT, DOUBLE, [1.5, None]),
    (decimal(9, 2), decimal(18, 2), [Decimal("-1.25"), None]),
    (decimal(9, 2), decimal(38, 2), [Decimal("9999999.99"), None]),
    (DATE, TIMESTAMP, [-1, 20_000, None]),
    (DATE, TIMESTAMP_NS, [-1, 20_000, None]),
]


@for_each(("source", "target", "values"), PROMOTIONS, ids=str)
def test_a_promoted_type_keeps_the_values(source, target, values):
    projected = projected_one(values, source, target)
    assert projected.schema.equals(arrow_schema(one(target)))
    expected = (
        values if source != DATE else [None if v is None else datetime(1970, 1, 1) + timedelta(v) for v in values]
    )
    assert projected["c"].to_pylist() == expected


@for_each(("source", "target", "values"), PROMOTIONS, ids=str)
def test_types_are_promoted_in_structs_lists_and_maps_too(source, target, values):
    def nested(type_):
        return schema_of(
            column(1, "s", StructType((column(2, "x", type_),))),
            column(3, "l", ListType(element_id=4, element=type_)),
            column(5, "m", MapType(key_id=6, key=INT, value_id=7, value=type_)),
        )

    rows_ = [{"s": {"x": value}, "l": [value], "m": [(1, value)]} for value in values]
    projected = project(parquet_file(table_of(nested(source), rows_)).read(), nested(target))
    expected = projected_one(values, source, target)["c"].to_pylist()
    assert projected.schema.equals(arrow_schema(nested(target)))
    assert projected.to_pylist() == [{"s": {"x": v}, "l": [v], "m": [(1, v)]} for v in expected]


def test_foreign_storage_types_are_projected():
    """Types that other writers store differently, as large strings or milliseconds, are understood."""
    ids = [{b"PARQUET:field_id": str(i).encode()} for i in range(1, 6)]
    arrow = [pa.large_string(), pa.int16(), pa.timestamp("ms"), pa.time32("ms"), pa.binary(16)]
    data = pa.table(
        [
            pa.array(["a"], arrow[0]),
            pa.array([7], arrow[1]),
            pa.array([3], arrow[2]),
            pa.array([5], arrow[3]),
            pa.array([b"0" * 16], arrow[4]),
        ],
        schema=pa.schema([pa.field(f"c{i}", t, metadata=m) for i, (t, m) in enumerate(zip(arrow, ids, strict=True))]),
    )
    schema = schema_of(
        column(1, "s", STRING),
        column(2, "i", INT),
        column(3, "ts", TIMESTAMP),
        column(4, "t", TIME),
        column(5, "u", UUID),
    )
    projected = project(data, schema)
    assert projected.schema.equals(arrow_schema(schema))
    assert projected["ts"].cast(pa.int64()).to_pylist() == [3000]
    assert projected["t"].cast(pa.int64()).to_pylist() == [5000]
    assert projected["u"].to_pylist() == [UUIDValue(bytes=b"0" * 16)]


def test_inexact_nanoseconds_are_refused():
    """Nanoseconds that are not whole microseconds are not rounded without notice."""
    field = pa.field("c", pa.timestamp("ns"), metadata={b"PARQUET:field_id": b"1"})
    exact = pa.table([pa.array([5000], field.type)], schema=pa.schema([field]))
    assert project(exact, one(TIMESTAMP))["c"].cast(pa.int64()).to_pylist() == [5]
    with pytest.raises(InvalidTableError, match="'c' has a value that is not exact as 'timestamp'"):
        project(pa.table([pa.array([5001], field.type)], schema=pa.schema([field])), one(TIMESTAMP))


def test_missing_column_takes_partition_value():
    schema = schema_of(
        column(1, "c", INT), column(2, "day", DATE), column(3, "who", UUID), column(4, "at", TIMESTAMPTZ)
    )
    who = UUIDValue(int=5)
    projected = project(table_of(one(INT), [{"c": 1}, {"c": 2}]), schema, {1: 99, 2: 3, 3: who, 4: 7})
    assert projected["c"].to_pylist() == [1, 2]
    assert projected["day"].cast(pa.int32()).to_pylist() == [3, 3]
    assert projected["who"].to_pylist() == [who, who]
    assert projected["at"].cast(pa.int64()).to_pylist() == [7, 7]


def test_a_missing_column_takes_its_initial_default():
    schema = schema_of(
        NestedField(field_id=2, name="n", type=INT, required=True, initial_default=5, write_default=6),
        NestedField(field_id=3, name="who", type=UUID, initial_default="f79c3e09-677c-4bbd-a479-3f349cb785e7"),
        NestedField(field_id=4, name="l", type=ListType(element_id=5, element=UUID), initial_default=[]),
    )
    (row,) = project(table_of(one(INT), [{"c": 1}]), schema).to_pylist()
    assert row == {"n": 5, "who": UUIDValue("f79c3e09-677c-4bbd-a479-3f349cb785e7"), "l": []}


def defaulted_point(default):
    """The spec's example: a column `point` whose fields default to 0."""
    fields = [
        NestedField(field_id=i, name=name, type=LONG, initial_default=0, write_default=0)
        for i, name in ((2, "x"), (3, "y"))
    ]
    return NestedField(
        field_id=1, name="point", type=StructType(tuple(fields)), initial_default=default, write_default=default
    )


POINTS = [
    (None, None, None),
    (None, {"x": 3}, {"x": 3, "y": 0}),
    ({}, None, {"x": 0, "y": 0}),
    ({}, {"y": -1}, {"x": 0, "y": -1}),
]


@for_each(("default", "given", "expected"), POINTS)
def test_a_struct_takes_defaults_as_the_specs_table_says(default, given, expected):
    schema = schema_of(defaulted_point(default), column(9, "k", LONG))
    stored = [f for f in schema.fields[0].type.fields if given is not None and f.name in given]
    file = schema_of(column(9, "k", LONG), *([column(1, "point", StructType(tuple(stored)))] if stored else []))
    data = table_of(file, [{"k": 1, "point": given}])
    assert project(data, schema)["point"].to_pylist() == [expected]
    assert cast_to_schema(pa.Table.from_pylist(data.to_pylist()), schema)["point"].to_pylist() == [expected]


def test_null_struct_stays_null_beside_default():
    schema = schema_of(defaulted_point(None))
    file = schema_of(column(1, "point", StructType((column(2, "x", INT),))))
    assert project(table_of(file, [{"point": None}, {"point": {"x": None}}]), schema)["point"].to_pylist() == [
        None,
        {"x": None, "y": 0},
    ]


def test_null_struct_with_required_fields_is_writable():
    # pyarrow writes no nulls in a required column, though they lie below a null.
    inner = StructType((column(3, "x", LONG, required=True), column(4, "u", UUID, required=True)))
    struct = StructType((column(2, "inner", inner, required=True), column(5, "y", STRING, required=True)))
    schema = schema_of(column(1, "s", struct))
    child = pa.StructArray.from_arrays(
        [pa.array([None, 1]), pa.array([None, b"u" * 16], pa.binary(16))],
        names=["x", "u"],
        mask=pa.array([True, False]),
    )
    array = pa.StructArray.from_arrays(
        [child, pa.array([None, "a"])], names=["inner", "y"], mask=pa.array([True, False])
    )
    found = cast_to_schema(pa.table({"s": array}), schema)
    expected = [None, {"inner": {"x": 1, "u": UUIDValue(bytes=b"u" * 16)}, "y": "a"}]
    assert parquet_file(found).read()["s"].to_pylist() == expected


def test_missing_input_column_takes_write_default():
    """A column that the caller leaves out takes its write default; an explicit null stays null."""
    field = NestedField(field_id=1, name="d", type=INT, initial_default=5, write_default=6)
    schema = schema_of(field, column(2, "c", LONG))
    assert cast_to_schema(pa.table({"c": [1]}), schema)["d"].to_pylist() == [6]
    assert cast_to_schema(pa.table({"c": [1], "d": pa.nulls(1)}), schema)["d"].to_pylist() == [None]


@for_each("type_", [INT, STRING, StructType((column(7, "x", INT),)), ListType(element_id=7, element=INT)])
def test_unknown_type_column_reads_as_null(type_):
    data = table_of(one(type_), [{"c": None}])
    assert project(data, one(UNKNOWN))["c"].equals(pa.chunked_array([pa.nulls(1)]))
    nothing = pa.table([pa.nulls(2)], schema=pa.schema([pa.field("c", pa.null(), metadata={FIELD_ID_KEY: b"1"})]))
    assert project(nothing, one(type_))["c"].to_pylist() == [None, None]


def test_a_list_element_without_field_id_is_refused_and_not_lost():
    type_ = pa.list_(pa.field("element", pa.int32()))
    field = pa.field("c", type_, metadata={b"PARQUET:field_id": b"1"})
    data = pa.table([pa.array([[1]], type_)], schema=pa.schema([field]))
    with pytest.raises(UnsupportedError, match=r"'c\.element' has no field id"):
        project(data, one(ListType(element_id=2, element=INT)))


def test_another_list_element_is_an_invalid_table():
    source, target = ListType(element_id=2, element=INT), ListType(element_id=3, element=INT)
    with pytest.raises(InvalidTableError, match=r"'c\.element' has field id 2"):
        project(empty_table(one(source)), one(target))


def test_structs_change_below_lists_and_maps():
    before = MapType(
        key_id=2,
        key=INT,
        value_id=3,
        value=ListType(
            element_id=4, element=StructType((column(5, "a", INT), column(6, "b", STRING), column(7, "c", FLOAT)))
        ),
    )
    after = MapType(
        key_id=2,
        key=LONG,
        value_id=3,
        value=ListType(
            element_id=4, element=StructType((column(7, "z", DOUBLE), column(8, "new", DATE), column(5, "a", LONG)))
        ),
    )
    rows_before = [
        {"c": [(1, [{"a": 1, "b": "x", "c": 0.5}, None]), (2, None), (3, [])]},
        {"c": None},
        {"c": []},
        {"c": [(4, [{"a": None, "b": None, "c": None}])]},
    ]
    rows_after = [
        {"c": [(1, [{"z": 0.5, "new": None, "a": 1}, None]), (2, None), (3, [])]},
        {"c": None},
        {"c": []},
        {"c": [(4, [{"z": None, "new": None, "a": None}])]},
    ]
    data = parquet_file(table_of(one(before), rows_before)).read()
    for start in range(4):
        projected = project(data.slice(start), one(after))
        projected.validate(full=True)
        assert projected.schema.equals(arrow_schema(one(after)))
        assert projected.to_pylist() == rows_after[start:]


def test_elements_that_null_lists_hide_are_no_data():
    values = pa.array(
        [{"a": 1, "u": None}, None, {"a": 3, "u": b"3" * 16}], pa.struct([("a", pa.int32()), ("u", pa.binary(16))])
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), values, mask=pa.array([False, True, False]))
    element = StructType((column(3, "a", LONG, required=True), column(4, "u", UUID)))
    type_ = ListType(element_id=2, element=element, element_required=True)
    expected = [{"c": [{"a": 1, "u": None}]}, {"c": None}, {"c": [{"a": 3, "u": UUIDValue(bytes=b"3" * 16)}]}]
    for start in range(3):
        cast = cast_to_schema(
            pa.table({"c": lists.cast(pa.list_(pa.struct([("a", pa.int32()), ("u", pa.uuid())])))[start:]}), one(type_)
        )
        cast.validate(full=True)
        assert cast.to_pylist() == expected[start:]


@pytest.mark.parametrize("element", [INT, LONG], ids=str)
def test_nulls_among_required_elements_are_an_invalid_table(element):
    source, target = ListType(element_id=2, element=INT), ListType(element_id=2, element=element, element_required=True)
    with pytest.raises(InvalidTableError, match=r"'c\.element' is required and has 1 nulls"):
        project(table_of(one(source), [{"c": [1, None]}]), one(target))


def test_a_string_column_read_as_a_dictionary_stays_one():
    table = table_of(schema_of(column(1, "c", STRING), column(2, "n", INT)), [{"c": "x", "n": 1}, {"c": None, "n": 2}])
    read = parquet_file(table).read()
    data = read.set_column(0, read.schema.field(0).with_type(KEPT_DICTIONARY), read["c"].dictionary_encode())
    projected = project(data, schema_of(column(2, "n", LONG), column(1, "s", STRING)))
    assert projected.schema.field("s").type == KEPT_DICTIONARY
    assert projected.schema.field("s").metadata == {b"PARQUET:field_id": b"1"}
    assert projected.to_pydict() == {"n": [1, 2], "s": ["x", None]}


def test_every_other_dictionary_is_decoded():
    type_ = pa.dictionary(pa.int8(), pa.large_string())
    field = pa.field("c", type_, metadata={b"PARQUET:field_id": b"1"})
    data = pa.table([pa.array(["x", None, "x"], type_)], schema=pa.schema([field]))
    assert project(data, one(STRING)).schema.equals(arrow_schema(one(STRING)))
    assert project(data, one(STRING)).to_pydict() == {"c": ["x", None, "x"]}


def test_only_the_columns_that_the_schema_has_are_read():
    file_schema = arrow_schema(schema_of(column(1, "a", INT), column(2, "b", POINT), column(3, "c", INT)))
    assert projected_columns(file_schema, schema_of(column(3, "a", INT), column(2, "x", POINT))) == ["b", "c"]
    assert projected_columns(file_schema, schema_of(column(9, "a", INT))) == []


POINT = StructType((column(10, "x", INT),))


@pytest.mark.slow
@cases(40)
@given(rows(EVERY_TYPE))
def test_a_callers_data_of_any_shape_is_cast_by_name(data):
    expected = table_of(EVERY_TYPE, data)
    plain = pa.Table.from_arrays(
        [_foreign(c.chunk(0) if c.num_chunks else c) for c in reversed(expected.columns)],
        names=list(reversed(expected.column_names)),
    )
    cast = cast_to_schema(plain, EVERY_TYPE)
    cast.validate(full=True)
    assert cast.schema.equals(expected.schema, check_metadata=True)
    assert str(cast.to_pylist()) == str(expected.to_pylist())


def _foreign(array):
    """The same values as another library hands them over."""
    if pa.types.is_string(array.type):
        return array.dictionary_encode()
    if pa.types.is_list(array.type):
        return array.cast(pa.large_list(pa.field("item", array.type.value_type)))
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.timestamp("us", array.type.tz and "Asia/Tokyo"))
    if pa.types.is_binary(array.type):
        return array.cast(pa.large_binary())
    return array


EXACT = [
    (pa.array([1, None], pa.int8()), LONG, [1, None]),
    (pa.array([2**32 - 1], pa.uint32()), LONG, [2**32 - 1]),
    (pa.array([65535], pa.uint16()), INT, [65535]),
    (pa.array([0.5], pa.float32()), DOUBLE, [0.5]),
    (pa.array(["a", None]).dictionary_encode(), STRING, ["a", None]),
    (pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None])), STRING, ["a", None]),
    (pa.array(["a"], pa.string_view()), STRING, ["a"]),
    (pa.array([None, None]), DATE, [None, None]),
    (pa.array([[1, 2], None], pa.list_(pa.int16(), 2)), ListType(element_id=2, element=INT), [[1, 2], None]),
    (pa.array([Decimal("1.50")], pa.decimal256(5, 2)), decimal(9, 2), [Decimal("1.50")]),
]


@for_each(("array", "type_", "expected"), EXACT, ids=lambda value: str(getattr(value, "type", value)))
def test_a_cast_that_keeps_every_value_is_made(array, type_, expected):
    cast = cast_to_schema(pa.table({"c": array}), one(type_))
    assert cast.schema.equals(arrow_schema(one(type_)))
    assert cast["c"].to_pylist() == expected


REFUSED = [
    ({"b": [1]}, "column 'a' is required and missing"),
    ({"a": [1], "x": [1]}, "column 'x' is not in the schema; its columns are a, b"),
    ({"a": [None, 1]}, "column 'a' is required and has 1 nulls"),
    ({"a": [1], "b": [{"x": 1, "q": 2}]}, r"column 'b\.q' is not in the schema"),
    ({"a": [1], "b": [{}]}, r"column 'b\.x' is required and missing"),
    ({"a": [1], "b": [{"x": None}]}, r"column 'b\.x' is required and has 1 nulls"),
]


@for_each(("data", "message"), REFUSED)
def test_mismatched_data_is_refused_by_column_name(data, message):
    schema = schema_of(
        column(1, "a", LONG, required=True), column(2, "b", StructType((column(3, "x", LONG, required=True),)))
    )
    with pytest.raises(UsageError, match=message):
        cast_to_schema(pa.table(data), schema)


INNER = StructType((column(4, "x", DOUBLE), column(5, "id", UUID, required=True)))
SCHEMA = schema_of(
    column(1, "n", LONG, required=True),
    column(2, "outer", StructType((column(3, "inner", INNER), column(6, "label", STRING))), required=True),
    column(7, "list", ListType(element_id=8, element=StructType((column(9, "y", INT),)))),
    column(10, "map", MapType(key_id=11, key=STRING, value_id=12, value=LONG)),
)


def test_leaf_schema_prunes_structs_and_is_optional():
    assert leaf_schema([5, 1, 6], [SCHEMA]) == schema_of(
        column(
            2,
            "outer",
            StructType((column(3, "inner", StructType((column(5, "id", UUID),))), column(6, "label", STRING))),
        ),
        column(1, "n", LONG),
    )


def test_the_first_schema_that_has_a_field_says_its_type():
    older, newer = schema_of(column(1, "n", INT), column(20, "gone", STRING)), schema_of(column(1, "n", LONG))
    assert leaf_schema([1, 20], [newer, older]) == schema_of(column(1, "n", LONG), column(20, "gone", STRING))


def test_what_is_added_later_keeps_its_initial_default():
    field = NestedField(field_id=1, name="n", type=LONG, required=True, initial_default=7)
    (leaf,) = leaf_schema([1], [schema_of(field)]).fields
    assert (leaf.initial_default, leaf.required) == (7, False)


@for_each("field_id", [2, 3, 7, 8, 9, 10, 11, 12])
def test_what_is_no_single_value_of_a_row_is_no_leaf(field_id):
    with pytest.raises(InvalidTableError, match=f"\\(id {field_id}\\) is no single value of a row"):
        leaf_path(field_id, [SCHEMA])


def test_a_leaf_below_a_null_struct_is_null():
    leaves = leaf_schema([4, 6], [SCHEMA])
    outer = [{"inner": {"x": 1.5, "id": b"1" * 16}, "label": "a"}, {"inner": None, "label": "b"}]
    rows = [{"n": 1, "outer": one, "list": None, "map": None} for one in outer]
    table = project(table_of(SCHEMA, rows), leaves)
    assert leaf_values(table, leaves, 4).to_pylist() == [1.5, None]
    assert leaf_values(table, leaves, 6).to_pylist() == ["a", "b"]


def test_leaves_of_dropped_and_new_fields_may_share_a_name():
    older = schema_of(column(1, "s", StructType((column(2, "x", STRING),))))
    newer = schema_of(column(1, "s", StructType((column(3, "x", LONG),))))
    leaves = leaf_schema([2, 3], [newer, older])
    table = project(table_of(older, [{"s": {"x": "a"}}, {"s": None}]), leaves)
    assert leaf_values(table, leaves, 2).to_pylist() == ["a", None]
    assert leaf_values(table, leaves, 3).to_pylist() == [None, None]
    assert leaf_values(table, leaves, 3).type == pa.int64()


NESTED = pa.struct([pa.field("f0", pa.list_(pa.field("element", pa.map_(pa.string(), pa.binary()))))])
LARGE = pa.struct([pa.field("f0", pa.large_list(pa.field("element", pa.map_(pa.large_string(), pa.large_binary()))))])
TEXTS = ["", None, "a text that is too long for a view of twelve bytes", "ö"]
DEEP = [{"f0": [[("key", b"value"), ("k", None)], None]}, None, {"f0": None}, {"f0": []}]


@pytest.mark.parametrize("given", [pa.string(), pa.large_string(), pa.string_view()])
def test_texts_of_every_layout_come_as_the_texts_that_they_are(given):
    """64-bit offsets were taken for 32-bit ones."""
    batch = pa.record_batch([pa.array(TEXTS, given)], names=["a"])
    found = described_as(batch, pa.schema([pa.field("b", pa.string())]))
    found.validate(full=True)
    assert found.to_pydict() == {"b": TEXTS}
    assert found.schema == pa.schema([pa.field("b", pa.string())])


@pytest.mark.parametrize("given", [NESTED, LARGE])
def test_nested_columns_of_every_layout_come_as_they_are(given):
    batch = pa.record_batch([pa.array(DEEP, given)], names=["a"])
    found = described_as(batch, pa.schema([pa.field("b", NESTED)]))
    found.validate(full=True)
    assert found.column(0).to_pylist() == DEEP
    assert described_as(batch.slice(2, 2), found.schema).column(0).to_pylist() == DEEP[2:]


def test_what_is_laid_out_alike_is_not_copied():
    values = pa.array(["a", "b"], pa.string())
    found = described_as(pa.record_batch([values, pa.array([1, 2])], names=["a", "b"]), pa.schema([
        pa.field("x", pa.string(), metadata={b"k": b"v"}), pa.field("y", pa.timestamp("us", "UTC"))
    ]))  # fmt: skip
    assert found.column(0).buffers()[2].address == values.buffers()[2].address
    assert found.column(1).cast(pa.int64()).to_pylist() == [1, 2]


@for_each(
    ("given", "wanted"),
    [
        (pa.int64(), pa.int32()),
        (pa.string(), pa.binary()),
        (pa.string(), pa.int32()),
        (pa.binary(), pa.binary(2)),
        (pa.binary(3), pa.binary(2)),
        (pa.bool_(), pa.int8()),
        (pa.decimal128(9, 2), pa.decimal128(9, 3)),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.struct([pa.field("a", pa.int32())]), pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.int32())])),
    ],
)
def test_another_layout_is_a_bug_and_not_read(given, wanted):
    """Nothing but the row count would show it."""
    batch = pa.record_batch([pa.nulls(1, given)], names=["a"])
    with pytest.raises(IcekeepBug, match="cannot be described as"):
        described_as(batch, pa.schema([pa.field("a", wanted)]))
    with pytest.raises(IcekeepBug, match="1 Arrow columns cannot be described as 0"):
        described_as(batch, pa.schema([]))


def test_rows_come_back_from_a_datafusion_that_hands_out_views(tmp_path, monkeypatch):
    """What it merges is looked at as well."""
    import datafusion

    schema = pa.schema([pa.field("text", pa.string()), pa.field("key", pa.binary())])
    tables = [pa.Table.from_arrays([TEXTS, [b"a", b"c", b"e", b"g"]], schema=schema) for _ in range(2)]
    for number, table in enumerate(tables):
        sort_merge.write_sorted_file(tmp_path / f"{number}.arrow", iter([table]))
    to_pyarrow = datafusion.RecordBatch.to_pyarrow

    def in_views(batch):
        return to_pyarrow(batch).cast(pa.schema([pa.field("c0", pa.string_view()), pa.field("c1", pa.binary_view())]))

    monkeypatch.setattr(datafusion.RecordBatch, "to_pyarrow", in_views)
    found = pa.concat_tables(sort_merge.merged_files(tmp_path, 2, schema))
    assert found.schema == schema
    assert found["text"].to_pylist() == [text for text in TEXTS for _ in range(2)]


def test_examples():
    check_examples("formats/arrow/projection.txt", icekeep.spec.types, globals())


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
def test_decimal_uses_fewest_fixed_bytes(precision):
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


def test_every_level_has_field_id_and_nullability():
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
def test_large_decimal_uses_fewest_fixed_bytes(precision):
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
def test_uninterpreted_type_is_refused_by_full_name(type_):
    inner = StructType((column(3, "b", type_),))
    schema = schema_of(column(1, "a", ListType(element_id=2, element=inner)))
    with pytest.raises(UnsupportedError, match=r"'a\.element\.b'"):
        arrow_schema(schema)


def test_unknown_type_columns_are_not_stored():
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


def test_examples_of_schema():
    check_examples("formats/arrow/schema.txt", icekeep.spec.schema, kit.columns, globals())
