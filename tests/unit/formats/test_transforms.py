"""Transforms of whole arrays are the transforms of their values one by one."""

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError, UnsupportedError, UsageError
from icekeep.formats.arrow.projection import column_values
from icekeep.formats.evaluate import split_by_partition, transformed
from icekeep.spec.partitioning import PartitionField, PartitionSpec, build_spec
from icekeep.spec.transforms import UnknownTransform, Void, parse_transform
from icekeep.spec.types import (
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ_NS,
    ListType,
    PrimitiveType,
    StructType,
    decimal,
)
from icekeep.spec.values import sort_key
from kit.cases import cases, for_each
from kit.columns import PRIMITIVES, column, field_values, rows, schema_of, table_of
from kit.strategies import values_of

pytestmark = pytest.mark.slow

TYPES = (*PRIMITIVES, TIMESTAMP_NS, TIMESTAMPTZ_NS, decimal(1, 0))
TEXTS = ("identity", "bucket[1]", "bucket[7]", "bucket[2147483647]", "truncate[1]", "truncate[3]", "truncate[1000]")
BEYOND = (INT, LONG, decimal(38, 10))
"""Types whose range a truncation may leave; they have tests of their own."""

TRANSFORMS = [parse_transform(text) for text in (*TEXTS, "year", "month", "day", "hour")]


def array_of(type_, found) -> pa.Array:
    array = table_of(schema_of(column(1, "a", type_)), [{"a": value} for value in found]).column(0).combine_chunks()
    return array.storage if isinstance(array, pa.ExtensionArray) else array


@pytest.mark.parametrize("type_", TYPES, ids=str)
@cases(25)
@given(data=st.data())
def test_an_array_is_transformed_as_each_of_its_values(type_, data):
    found = data.draw(st.lists(st.none() | values_of(type_), max_size=8))
    for transform in TRANSFORMS:
        if not transform.accepts(type_):
            continue
        array, result_type = transformed(array_of(type_, found), type_, transform)
        expected = [transform.apply(type_, value) for value in found]
        if str(transform).startswith("truncate") and type_ in BEYOND:
            continue
        # As text: NaN is itself.
        assert repr(column_values(array, result_type)) == repr(expected)


@pytest.mark.parametrize(("type_", "least"), [(INT, -(2**31)), (LONG, -(2**63))], ids=str)
@given(data=st.data())
def test_whole_numbers_are_truncated_to_no_less_than_there_is(type_, least, data):
    found = data.draw(st.lists(st.none() | st.integers(least, least + 2000) | values_of(type_), max_size=8))
    for width in (1, 3, 1000, 2**31 - 1):
        transform = parse_transform(f"truncate[{width}]")
        array, _ = transformed(array_of(type_, found), type_, transform)
        exact = [transform.apply(type_, value) for value in found]
        # Of an int the number below the least one has room.
        assert array.to_pylist() == [None if v is None else max(v, -(2**63)) for v in exact]


def test_decimals_are_truncated_beyond_the_digits_of_their_type():
    widest = decimal(38, 0)
    for type_, digits in ((decimal(2, 0), 2), (widest, 38)):
        least = Decimal(-(10**digits) + 1)
        array, wide = transformed(array_of(type_, [least, None]), type_, parse_transform("truncate[10]"))
        assert wide == widest
        assert array.to_pylist() == [max(Decimal(-(10**digits)), Decimal(1 - 10**38)), None]


@pytest.mark.parametrize("found", [[], ["a"], [None]])
def test_inapplicable_transform_is_refused_for_any_values(found):
    array = array_of(STRING, found)
    with pytest.raises(InvalidTableError, match="'hour' cannot be applied to a column of type string"):
        transformed(array, STRING, parse_transform("hour"))
    with pytest.raises(UnsupportedError, match="shiny"):
        transformed(array, STRING, UnknownTransform("shiny"))


PARTITION_TRANSFORMS = [
    parse_transform(text) for text in ("identity", "bucket[7]", "truncate[3]", "year", "month", "day", "hour", "void")
]
PLACE = StructType((column(11, "code", STRING), column(12, "at", TIMESTAMP)))
HOUR_MICROS = 3_600_000_000
LEAST = {-(2**bits) + n for bits in (31, 63) for n in range(3)}
NESTED = schema_of(
    column(1, "id", LONG, required=True),
    column(10, "place", PLACE),
    column(20, "deep", StructType((column(21, "inner", StructType((column(22, "n", INT),))),))),
)


def partitioned(schema, *fields) -> PartitionSpec:
    return build_spec(schema, [(*field, None)[:3] for field in fields])


def spec_of(*fields) -> PartitionSpec:
    return PartitionSpec(
        spec_id=0,
        fields=tuple(
            PartitionField(source_id=source_id, field_id=1000 + n, name=f"p{n}", transform=transform)
            for n, (source_id, transform) in enumerate(fields)
        ),
    )


def source_value(row: dict[str, Any], schema, source_id: int) -> Any:
    value: Any = row
    for name in schema.names_by_id[source_id].split("."):
        value = None if value is None else value[name]
    return value


def by_rows(data: list[dict[str, Any]], spec, schema) -> dict[bytes, list[int]]:
    """The numbers of the rows of each partition, in the order of the first: one row after the other."""
    types = [schema.fields_by_id[field.source_id].type for field in spec.fields]
    groups: dict[bytes, list[int]] = {}
    for number, row in enumerate(data):
        values = [
            field.transform.apply(type_, source_value(row, schema, field.source_id))
            for field, type_ in zip(spec.fields, types, strict=True)
        ]
        groups.setdefault(key(spec, schema, values), []).append(number)
    return groups


def key(spec, schema, values) -> bytes:
    """What equal tuples have in common: every NaN is one value, and -0.0 is another than 0.0."""
    types = [f.transform.result_type(schema.fields_by_id[f.source_id].type) for f in spec.fields]
    return sort_key([t if isinstance(t, PrimitiveType) else STRING for t in types], values)


def assert_split(data: list[dict[str, Any]], spec, schema) -> None:
    numbered = table_of(schema, data).append_column("number", pa.array(range(len(data)), pa.int64()))
    parts = list(split_by_partition(numbered, spec, schema))
    found = {key(spec, schema, values): part["number"].to_pylist() for values, part in parts}
    assert len(found) == len(parts)
    expected = by_rows(data, spec, schema)
    assert found == expected
    assert list(found) == list(expected)
    assert all(part.schema == numbered.schema for _, part in parts)


@pytest.mark.parametrize("type_", PRIMITIVES, ids=str)
@cases(15)
@given(data=st.data())
def test_every_type_and_transform_splits_as_its_rows_say(type_, data):
    schema = schema_of(column(1, "a", type_), column(2, "b", type_))
    # The multiple below the least whole number of a type is none of the type's.
    values = field_values(schema.fields[0]).filter(lambda value: value not in LEAST)
    few = data.draw(st.lists(values, min_size=1, max_size=3))
    data_rows = data.draw(
        st.lists(st.fixed_dictionaries({"a": st.sampled_from(few), "b": st.sampled_from(few)}), min_size=1, max_size=12)
    )
    for transform in PARTITION_TRANSFORMS:
        if transform.accepts(type_):
            assert_split(data_rows, spec_of((1, transform), (2, transform)), schema)


@cases(25)
@given(rows(NESTED))
def test_fields_of_structs_are_null_where_the_struct_is(data):
    identity, month = parse_transform("identity"), parse_transform("month")
    for fields in (
        [(11, identity)],
        [(12, month), (22, identity)],
        [(1, parse_transform("bucket[2]")), (22, identity)],
    ):
        assert_split(data, spec_of(*fields), NESTED)


def table(**columns) -> pa.Table:
    return pa.table(columns)


KINDS = schema_of(column(1, "kind", STRING), column(2, "n", INT))


def test_without_partition_fields_table_is_not_copied():
    data = table(kind=["b", "a"], n=pa.array([1, 2], pa.int32()))
    ((values, part),) = split_by_partition(data, PartitionSpec(spec_id=0, fields=()), KINDS)
    assert values == ()
    assert part is data
    ((values, part),) = split_by_partition(data, partitioned(KINDS, ("kind", "void")), KINDS)
    assert values == (None,)
    assert part is data


@pytest.mark.parametrize("fields", [[], [("kind", "identity")]])
def test_no_rows_are_in_no_partition(fields):
    data = table(kind=pa.array([], pa.string()), n=pa.array([], pa.int32()))
    assert list(split_by_partition(data, partitioned(KINDS, *fields), KINDS)) == []


def test_chunks_and_dictionaries_make_no_difference():
    kinds = pa.chunked_array([["a", "b"], [None], [], ["b", "c"]], pa.string())
    kept = pa.chunked_array([chunk.dictionary_encode() for chunk in kinds.chunks])
    with_null = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 1, 3]), pa.array(["a", "b", None, "c"]))
    n = pa.array([1, 2, 3, 4, 5], pa.int32())
    expected = {("a",): [1], ("b",): [2, 4], (None,): [3], ("c",): [5]}
    for column_ in (kinds, kept, with_null):
        parts = split_by_partition(table(kind=column_, n=n), partitioned(KINDS, ("kind", "identity")), KINDS)
        assert {values: part["n"].to_pylist() for values, part in parts} == expected


def test_all_nans_are_one_partition_and_the_two_zeros_are_two():
    schema = schema_of(column(1, "x", DOUBLE))
    data = table(x=[math.nan, -0.0, -math.nan, 0.0, math.nan])
    parts = list(split_by_partition(data, partitioned(schema, ("x", "identity")), schema))
    assert [part.num_rows for _, part in parts] == [3, 1, 1]
    assert [str(values[0]) for values, _ in parts] == ["nan", "-0.0", "0.0"]


@for_each("size", [62, 63, 64, 65, 100])
def test_as_many_fields_and_values_as_there_are_do_not_overflow(size):
    # Combinations of 13 fields have more numbers than 64 bits; where 64 is a field's, the first fields would not count.
    numbers = range(1, 14)
    schema = schema_of(*(column(n, f"c{n}", INT) for n in numbers))
    expected = [(row,) * 13 for row in range(size)] + [(row, *[0] * 12) for row in range(1, size)]
    data = table(**{f"c{n}": pa.array([row[n - 1] for row in expected], pa.int32()) for n in numbers})
    spec = partitioned(schema, *((f"c{n}", "identity") for n in numbers))
    parts = list(split_by_partition(data, spec, schema))
    assert [values for values, _ in parts] == expected


def test_many_partitions_of_many_rows_are_split_in_one_pass():
    # Looking through all rows once for each partition would take minutes here.
    size = 60_000
    data = table(kind=[None] * size, n=pa.array([row % 20_000 for row in range(size)], pa.int32()))
    parts = list(split_by_partition(data, partitioned(KINDS, ("n", "identity")), KINDS))
    assert len(parts) == 20_000
    assert all(part.num_rows == 3 and pc.all(pc.equal(part["n"], values[0])).as_py() for values, part in parts[::1000])


def test_void_field_needs_no_column_or_comparable_type():
    schema = schema_of(column(1, "id", LONG), column(2, "tags", ListType(element_id=3, element=STRING)))
    data = table(id=[1, 1, 2], tags=[["a"], None, []])
    spec = spec_of((2, Void()), (1, parse_transform("identity")), (77, Void()))
    assert [values for values, _ in split_by_partition(data, spec, schema)] == [(None, 1, None), (None, 2, None)]


@for_each(
    ("type_", "value", "transform", "result"),
    [
        (INT, -(2**31), "truncate[10]", "int"),
        (LONG, -(2**63), "truncate[10]", "long"),
        (TIMESTAMP, 2**63 - 1, "hour", "int"),
        (TIMESTAMP, 2**31 * HOUR_MICROS, "hour", "int"),
        (TIMESTAMP, -(2**63) + 1, "hour", "int"),
    ],
)
def test_value_with_out_of_range_partition_is_refused(type_, value, transform, result):
    schema = schema_of(column(1, "a", type_))
    data = table_of(schema, [{"a": 0}, {"a": value}])
    with pytest.raises(UsageError, match=f"column 'a' holds {value}.* out of the range of {result}"):
        list(split_by_partition(data, partitioned(schema, ("a", transform)), schema))


def test_the_greatest_hour_that_has_a_number_is_taken():
    schema = schema_of(column(1, "at", TIMESTAMP))
    data = table_of(schema, [{"at": 2**31 * HOUR_MICROS - 1}])
    ((values, _),) = split_by_partition(data, partitioned(schema, ("at", "hour")), schema)
    assert values == (2**31 - 1,)


def test_the_least_numbers_that_have_a_partition_are_taken():
    schema = schema_of(column(1, "a", INT))
    data = table_of(schema, [{"a": -(2**31) + 8}, {"a": 2**31 - 1}])
    parts = split_by_partition(data, partitioned(schema, ("a", "truncate[10]")), schema)
    assert [values for values, _ in parts] == [(-(2**31) + 8,), (2**31 - 8,)]


def test_split_refuses_inapplicable_transform_for_any_rows():
    schema = schema_of(column(1, "ratio", DOUBLE))
    spec = spec_of((1, parse_transform("day")))
    for value in (None, 1.5):
        table = table_of(schema, [{"ratio": value}])
        with pytest.raises(InvalidTableError):
            list(split_by_partition(table, spec, schema))


def test_a_transform_that_is_not_known_is_refused():
    spec = spec_of((1, UnknownTransform("zorder")))
    with pytest.raises(UnsupportedError, match="partition spec 0 has a transform that is not known"):
        list(split_by_partition(table(kind=["a"], n=pa.array([1], pa.int32())), spec, KINDS))


@pytest.mark.parametrize(
    ("array", "type_", "expected"),
    [
        (pa.array([-1, None], pa.date32()), DATE, [-1, None]),
        (pa.array([-1, None], pa.timestamp("us")), TIMESTAMP, [-1, None]),
        (pa.array(["a", None]), STRING, ["a", None]),
    ],
)
def test_values_are_those_of_the_spec(array, type_, expected):
    assert column_values(array, type_) == expected
