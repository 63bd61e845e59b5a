"""Keys of rows, held against rows compared field by field; and rows sorted by them, within the memory that was asked for."""

import math
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.formats.arrow.projection import KEPT_DICTIONARY
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.sort.encode import Curve, KeyRange, Ordering
from icekeep.formats.sort.external import Sorter
from icekeep.formats.sort.keys import (
    KeySample,
    key_order,
    key_ranges,
    keys_inside,
    range_numbers,
    ranges_of_files,
    sample_keys,
    sort_keys,
    split_points,
)
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.sorting import NullOrder, SortDirection, SortField, build_sort_order
from icekeep.spec.transforms import Transform, UnknownTransform, Void, parse_transform
from icekeep.spec.types import (
    BINARY,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ_NS,
    UNKNOWN,
    ListType,
    PrimitiveType,
    StructType,
    decimal,
)
from icekeep.spec.values import sort_key
from kit.cases import cases, for_each
from kit.columns import EVERY_TYPE, PRIMITIVES, column, field_values, parquet_bytes, rows, schema_of, table_of
from kit.strategies import values_of

pytestmark = pytest.mark.slow

TYPES = (*PRIMITIVES, TIMESTAMP_NS, TIMESTAMPTZ_NS, decimal(2, 0), decimal(19, 0))
TRANSFORMS = [
    parse_transform(text)
    for text in ("identity", "bucket[7]", "truncate[3]", "truncate[1000]", "year", "month", "day", "hour", "void")
]
DIRECTIONS = [(direction, nulls) for direction in SortDirection for nulls in NullOrder]
IDENTITY = parse_transform("identity")
LEAST = {"int": -(2**31), "long": -(2**63)}


def field(source_id: int, transform: Transform = IDENTITY, direction="asc", nulls="nulls-first") -> SortField:
    return SortField(
        source_id=source_id, transform=transform, direction=SortDirection(direction), null_order=NullOrder(nulls)
    )


def partition_by(*fields: tuple[int, Transform]) -> PartitionSpec:
    return PartitionSpec(
        spec_id=0,
        fields=tuple(
            PartitionField(source_id=source_id, field_id=1000 + n, name=f"p{n}", transform=transform)
            for n, (source_id, transform) in enumerate(fields)
        ),
    )


def values_and_null(type_: PrimitiveType, *, required: bool = False) -> st.SearchStrategy[Any]:
    name = type_.name
    found = field_values(column(1, "a", type_, required=required)) if type_ in PRIMITIVES else values_of(type_)
    if name in LEAST:
        # Where a truncation would leave the range of the type.
        found |= st.integers(LEAST[name], LEAST[name] + 2000)
    if name in ("string", "binary"):
        ends = st.lists(st.sampled_from([0, 1, 2, 255 if name == "binary" else 0x10FFFF]), max_size=4)
        found |= ends.map(bytes if name == "binary" else lambda codes: "".join(map(chr, codes)))
    return found if required else st.none() | found


def compared(data: list[tuple[Any, ...]], fields: list[SortField], types: list[PrimitiveType]) -> list[list[int]]:
    """Of each pair of rows whether the first comes before (-1), after (1), or either way (0)."""
    keys = [[_key(field, type_, value) for field, type_, value in zip(fields, types, row, strict=True)] for row in data]
    return [[_comparison(a, b, fields) for b in keys] for a in keys]


def _key(field: SortField, type_: PrimitiveType, value: Any) -> bytes | None:
    value = field.transform.apply(type_, value)
    result = field.transform.result_type(type_)
    if value is None:
        return None
    if type_.name in LEAST and str(field.transform).startswith("truncate"):
        value = max(value, LEAST[type_.name])
    return sort_key([result], [value])


def _comparison(a: list[bytes | None], b: list[bytes | None], fields: list[SortField]) -> int:
    for first, second, field in zip(a, b, fields, strict=True):
        if first == second:
            continue
        if first is None or second is None:
            return -1 if (first is None) == (field.null_order == NullOrder.NULLS_FIRST) else 1
        return -1 if (first < second) == (field.direction == SortDirection.ASC) else 1
    return 0


def comparisons_of(keys: list[bytes]) -> list[list[int]]:
    return [[(a > b) - (a < b) for b in keys] for a in keys]


@pytest.mark.parametrize("type_", TYPES, ids=str)
@cases(30)
@given(data=st.data())
def test_keys_compare_as_rows_do(type_, data):
    other = data.draw(st.sampled_from(TYPES))
    required = data.draw(st.booleans())
    schema = schema_of(column(1, "a", type_, required=required), column(2, "b", other))
    fields = []
    for source_id, source_type in data.draw(st.permutations([(1, type_), (2, other)])):
        transform = data.draw(st.sampled_from([t for t in TRANSFORMS if t.accepts(source_type)]))
        fields.append(field(source_id, transform, *data.draw(st.sampled_from(DIRECTIONS))))
    row = st.tuples(values_and_null(type_, required=required), values_and_null(other))
    drawn = data.draw(st.lists(row, min_size=1, max_size=10))
    table = table_of(schema, [{"a": a, "b": b} for a, b in drawn])
    keys = sort_keys(table, Ordering(fields=tuple(fields)), schema).to_pylist()
    picked = [tuple(row[f.source_id - 1] for f in fields) for row in drawn]
    types = [schema.fields_by_id[f.source_id].type for f in fields]
    assert comparisons_of(keys) == compared(picked, fields, types)


def test_floating_point_numbers_are_in_the_order_of_the_spec():
    for type_, least in ((FLOAT, 1e-45), (DOUBLE, 5e-324)):
        schema = schema_of(column(1, "x", type_, required=True))
        ordered = [-math.inf, -1.5, -least, -0.0, 0.0, least, 1.0, math.inf, math.nan]
        keys = sort_keys(table_of(schema, [{"x": x} for x in ordered]), Ordering(fields=(field(1),)), schema)
        assert all(a < b for a, b in pairwise(keys.to_pylist()))
        nans = table_of(schema, [{"x": math.nan}, {"x": -math.nan}])
        assert len(set(sort_keys(nans, Ordering(fields=(field(1),)), schema).to_pylist())) == 1


def test_numeric_key_width_and_null_marker():
    schema = schema_of(column(1, "d", DATE), column(2, "n", LONG, required=True))
    data = table_of(schema, [{"d": 1, "n": -1}, {"d": None, "n": 0}])
    keys = sort_keys(data, Ordering(fields=(field(1), field(2, direction="desc"))), schema)
    assert keys.type == pa.binary(1 + 4 + 8)
    assert keys.to_pylist() == [
        bytes.fromhex("01 80000001 8000000000000000"),
        bytes.fromhex("00 00000000 7fffffffffffffff"),
    ]


def test_string_prefix_sorts_first_despite_later_fields():
    """A string sorts before the longer ones that it begins, whatever follows in the key."""
    schema = schema_of(column(1, "s", STRING), column(2, "b", BINARY))
    pairs = [("a", b"\xff"), ("a\0", b""), ("a\1", b""), ("a\2", b""), ("ab", b"")]
    table = table_of(schema, [{"s": s, "b": b} for s, b in pairs])
    for fields in ((field(1), field(2)), (field(1), field(2, direction="desc"))):
        keys = sort_keys(table, Ordering(fields=fields), schema).to_pylist()
        assert all(a < b for a, b in pairwise(keys))
    falling = sort_keys(table, Ordering(fields=(field(1, direction="desc"), field(2))), schema).to_pylist()
    assert all(a > b for a, b in pairwise(falling))


def test_a_dictionary_gives_the_keys_of_its_strings():
    schema = schema_of(column(1, "kind", STRING), column(2, "n", INT))
    kinds = ["b", None, "a\1", "b", ""]
    plain = table_of(schema, [{"kind": kind, "n": n} for n, kind in enumerate(kinds)])
    kept = plain.set_column(0, plain.schema.field(0).with_type(KEPT_DICTIONARY), plain["kind"].cast(KEPT_DICTIONARY))
    indices = pa.array([0, 1, 2, 0, 3], pa.int32())
    holed = pa.DictionaryArray.from_arrays(indices, pa.array(["b", None, "a\1", ""]))
    with_null = plain.set_column(0, plain.schema.field(0).with_type(KEPT_DICTIONARY), holed)
    empty = kept.slice(0, 0)
    curve = Curve(kind="zorder", column_ids=(1, 2), var_length_contribution=3)
    for ordering in (
        Ordering(fields=(field(1, direction="desc"), field(2))),
        Ordering(fields=(field(1, nulls="nulls-last"),)),
        Ordering(fields=(field(1, parse_transform("bucket[3]")), field(2))),
        Ordering(curve=curve),
    ):
        expected = sort_keys(plain, ordering, schema)
        assert sort_keys(kept, ordering, schema).equals(expected)
        assert sort_keys(with_null, ordering, schema).equals(expected)
        assert sort_keys(empty, ordering, schema).type == expected.type


ALL = schema_of(*(column(n, f"c{n}", type_) for n, type_ in enumerate(PRIMITIVES, start=1)))


@cases(20)
@given(data=rows(ALL, max_size=9), id_=st.integers(1, len(PRIMITIVES)))
def test_chunks_and_slices_make_no_difference(data, id_):
    whole = table_of(ALL, data)
    chunked = pa.concat_tables([whole.slice(0, 2), whole.slice(2, 0), whole.slice(2)])
    for ordering in (
        Ordering(fields=(field(id_, direction="desc"), field(1))),
        Ordering(curve=Curve(kind="zorder", column_ids=(id_, 2), var_length_contribution=5)),
        Ordering(curve=Curve(kind="hilbert", column_ids=(id_, 2))),
    ):
        expected = sort_keys(whole, ordering, ALL)
        assert sort_keys(chunked, ordering, ALL).equals(expected)
        assert sort_keys(whole.slice(1, 4), ordering, ALL).to_pylist() == expected.to_pylist()[1:5]


def test_partitions_lead_the_key_and_stay_together():
    schema = schema_of(column(1, "at", TIMESTAMP), column(2, "name", STRING), column(3, "n", INT))
    spec = partition_by((1, parse_transform("day")), (2, parse_transform("bucket[4]")), (77, Void()))
    day = 86_400_000_000
    data = [
        {"at": at, "name": name, "n": n}
        for at, name, n in [(day, "a", 3), (None, "b", 9), (5, "a", 5), (day - 1, "a", 1), (-1, "c", 7), (day, "x", 1)]
    ]
    for ordering in (
        Ordering(partition_by=spec, fields=(field(3),)),
        Ordering(partition_by=spec, curve=Curve(kind="hilbert", column_ids=(1, 3))),
    ):
        keys = sort_keys(table_of(schema, data), ordering, schema).to_pylist()
        # A marker and a number each: the void field is not in the key.
        assert {len(key) for key in keys} == ({9 + 5 + 5} if ordering.curve is None else {9 + 5 + 16})
        partitions = [row for _, row in sorted(zip(keys, (_partition(row) for row in data), strict=True))]
        assert partitions == sorted(partitions, key=lambda p: (p[0] is not None, p[0] or 0, p[1]))
        assert partitions[0][0] is None


def _partition(row: dict[str, Any]) -> tuple[int | None, int]:
    return (parse_transform("day").apply(TIMESTAMP, row["at"]), parse_transform("bucket[4]").apply(STRING, row["name"]))


def test_a_field_of_a_struct_is_null_where_the_struct_is():
    place = StructType((column(2, "zone", INT, required=True),))
    schema = schema_of(column(1, "place", place))
    data = table_of(schema, [{"place": {"zone": 1}}, {"place": None}, {"place": {"zone": -1}}])
    for nulls, expected in (("nulls-first", [1, 2, 0]), ("nulls-last", [2, 0, 1])):
        keys = sort_keys(data, Ordering(fields=(field(2, nulls=nulls),)), schema).to_pylist()
        assert sorted(range(3), key=keys.__getitem__) == expected


def test_unknown_type_column_is_null_in_every_key():
    schema = schema_of(column(1, "what", UNKNOWN), column(2, "n", INT))
    data = table_of(schema, [{"n": 2}, {"n": 1}])
    keys = sort_keys(data, Ordering(fields=(field(1), field(2))), schema).to_pylist()
    assert [key[0] for key in keys] == [0, 0]
    assert keys[0] > keys[1]
    assert sort_keys(data, Ordering(curve=Curve(kind="zorder", column_ids=(1, 2))), schema).type == pa.binary(16)


def test_without_fields_all_keys_are_the_same():
    schema = schema_of(column(1, "n", INT))
    keys = sort_keys(table_of(schema, [{"n": 2}, {"n": 1}]), Ordering(), schema)
    assert keys.to_pylist() == [b"", b""]


def test_a_table_without_rows_says_what_cannot_be_ordered():
    schema = schema_of(
        column(1, "n", INT), column(2, "tags", ListType(element_id=3, element=STRING)), column(4, "x", DOUBLE)
    )
    empty = arrow_schema(schema).empty_table()
    for fields, error, words in (
        ((field(9),), InvalidTableError, "id 9"),
        ((field(2),), InvalidTableError, "nested"),
        ((field(3),), InvalidTableError, "list"),
        ((field(4, parse_transform("bucket[2]")),), InvalidTableError, "bucket"),
        ((field(1, UnknownTransform("shiny")),), UnsupportedError, "shiny"),
    ):
        with pytest.raises(error, match=words):
            sort_keys(empty, Ordering(fields=fields), schema)
    assert sort_keys(empty, Ordering(fields=(field(4), field(1))), schema).type == pa.binary(14)


def test_many_rows_take_no_step_of_python_each():
    # Half a million rows, one at a time, would take minutes with these transforms.
    size = 500_000
    schema = schema_of(column(1, "n", LONG, required=True), column(2, "at", TIMESTAMP))
    numbers = pa.array(range(size), pa.int64())
    data = pa.table([numbers, numbers.cast(pa.timestamp("us"))], schema=arrow_schema(schema))
    transforms = [(1, "bucket[16]"), (1, "truncate[10]"), (2, "hour"), (2, "month"), (1, "identity")]
    fields = tuple(field(source_id, parse_transform(text)) for source_id, text in transforms)
    keys = sort_keys(data, Ordering(fields=fields), schema)
    for row in (0, 1, size - 1):
        found = [t.apply((LONG, TIMESTAMP)[id_ - 1], row) for id_, t in ((f.source_id, f.transform) for f in fields)]
        markers = [b"", b"", b"\1", b"\1", b""]
        numbers_of_row = [(value + 2**63).to_bytes(8, "big") for value in found]
        assert keys[row].as_py() == b"".join(a + b for a, b in zip(markers, numbers_of_row, strict=True))


def test_points_in_a_struct_can_be_on_a_curve():
    place = StructType((column(2, "x", DOUBLE), column(3, "y", FLOAT)))
    schema = schema_of(column(1, "place", place))
    data = table_of(schema, [{"place": {"x": 1.0, "y": 1.0}}, {"place": None}, {"place": {"x": -1.0, "y": None}}])
    keys = sort_keys(data, Ordering(curve=Curve(kind="zorder", column_ids=(2, 3))), schema).to_pylist()
    assert keys[1] == bytes(16)
    assert keys[1] < keys[2] < keys[0]


@cases(200)
@given(st.integers(0, 40).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n), max_size=30)), st.data())
def test_fixed_width_key_order_is_stable_and_bytewise(keys, data):
    if keys:
        keys += data.draw(st.lists(st.sampled_from(keys), max_size=10))
    width = len(keys[0]) if keys else 3
    expected = sorted(range(len(keys)), key=keys.__getitem__)
    assert key_order(pa.array(keys, pa.binary(width))).tolist() == expected
    assert key_order(pa.array([b"\xff" * width, *keys], pa.binary(width)).slice(1)).tolist() == expected


@cases(200)
@given(
    st.lists(st.binary(max_size=50) | st.text(alphabet="\0\1ab", max_size=34).map(str.encode), max_size=30), st.data()
)
def test_variable_width_key_order_is_stable_and_bytewise(keys, data):
    if keys:
        keys += data.draw(st.lists(st.sampled_from(keys), max_size=10))
    expected = sorted(range(len(keys)), key=keys.__getitem__)
    assert key_order(pa.array(keys, pa.large_binary())).tolist() == expected
    assert key_order(pa.array([b"x" * 9, *keys, b"y" * 40], pa.large_binary()).slice(1, len(keys))).tolist() == expected


@for_each("width", [3, 8, 11, 16, 31])
def test_many_keys_with_few_differing_bytes_are_ordered(width):
    random_numbers = np.random.default_rng(7)
    rows_of_bytes = np.full((60_000, width), 0x80, dtype=np.uint8)
    for place in {0, width // 2, width - 1}:
        rows_of_bytes[:, place] = random_numbers.integers(0, 40, 60_000)
    keys = [row.tobytes() for row in rows_of_bytes]
    assert key_order(pa.array(keys, pa.binary(width))).tolist() == sorted(range(len(keys)), key=keys.__getitem__)


def keys_of(values: list[int]) -> pa.Array:
    return pa.array([value.to_bytes(2, "big") for value in values], pa.binary(2))


@pytest.mark.parametrize("type_", [pa.binary(2), pa.large_binary()])
@cases(50)
@given(st.lists(st.integers(0, 20)), st.lists(st.integers(0, 20), unique=True, max_size=9).map(sorted))
def test_ranges_between_points_share_out_all_rows_and_each_once(type_, values, points):
    keys = keys_of(values).cast(type_)
    table = pa.table({"v": pa.array(values, pa.int32())})
    bounds = [point.to_bytes(2, "big") for point in points]
    numbers = range_numbers(keys, bounds)
    ranges = key_ranges(bounds)
    assert len(ranges) == len(points) + 1
    for number, key_range in enumerate(ranges):
        expected = [
            v
            for v in values
            if (number == 0 or v >= points[number - 1]) and (number == len(points) or v < points[number])
        ]
        inside = keys_inside(keys, key_range)
        assert (values if inside is None else table.filter(inside)["v"].to_pylist()) == expected
        assert [v for v, n in zip(values, numbers, strict=True) if n == number] == expected


def test_where_all_rows_are_in_a_range_none_is_picked():
    assert keys_inside(keys_of([1, 2]), KeyRange()) is None
    assert keys_inside(keys_of([1, 2]), KeyRange(lower=b"\0\1")) is None


NUMBERS = schema_of(column(1, "n", LONG))
BY_NUMBER = Ordering(fields=build_sort_order(NUMBERS, ["n"]).fields)


def number_table(numbers) -> pa.Table:
    return pa.table([pa.array(numbers, pa.int64())], schema=arrow_schema(NUMBERS))


def test_sample_is_evenly_spaced_and_bounded():
    tables = [number_table(range(start, start + 777)) for start in range(0, 77_700, 777)]
    sample = sample_keys(tables, BY_NUMBER, NUMBERS, max_keys=1000)
    assert sample.row_count == 77_700
    assert sample.arrow_bytes >= 77_700 * 8
    numbers = [int.from_bytes(key[1:], "big") - 2**63 for key in sample.keys]
    assert 500 <= len(numbers) <= 1000
    assert numbers == list(range(0, 77_700, 128))
    whole = sample_keys(tables[:1], BY_NUMBER, NUMBERS, max_keys=1000)
    assert whole.keys == tuple(sort_keys(tables[0], BY_NUMBER, NUMBERS).to_pylist())


def sample_of(numbers, row_count: int | None = None) -> KeySample:
    keys = tuple(number.to_bytes(2, "big") for number in numbers)
    return KeySample(keys=keys, row_count=len(keys) if row_count is None else row_count, arrow_bytes=0)


def parts_of(points, numbers) -> list[int]:
    return np.bincount(range_numbers(keys_of(numbers), points), minlength=len(points) + 1).tolist()


@for_each("parts", [1, 2, 3, 7])
def test_points_cut_rows_into_parts_of_one_size(parts):
    numbers = np.random.default_rng(3).permutation(60_000)[:8400].tolist()
    points = split_points([sample_of(numbers[:5000]), sample_of(numbers[5000:])], parts)
    assert len(points) == parts - 1
    assert parts_of(points, numbers) == [8400 // parts] * parts
    assert points == split_points([sample_of(numbers[5000:]), sample_of(reversed(numbers[:5000]))], parts)


def test_a_sample_of_more_rows_weighs_more():
    low, high = range(100), range(1000, 1100)
    (point,) = split_points([sample_of(low, 300), sample_of(high, 100)], 2)
    # Half of 400 rows are two thirds of the 300.
    assert int.from_bytes(point, "big") in (66, 67)


def test_equal_keys_share_a_part_and_no_part_is_empty():
    for numbers in ([5] * 100, [5] * 90 + [6] * 10, [1] + [5] * 98 + [9], [1, 2] * 50):
        for parts in (2, 3, 10):
            points = split_points([sample_of(numbers)], parts)
            assert list(points) == sorted(set(points))
            assert all(parts_of(points, numbers))
    assert split_points([sample_of([5] * 100)], 4) == ()
    assert len(split_points([sample_of([1, 2] * 50)], 2)) == 1


def test_without_rows_nothing_is_cut():
    assert split_points([], 4) == ()
    assert split_points([sample_of([])], 4) == ()


@given(
    st.lists(st.integers(0, 40), max_size=60),
    st.integers(1, 9).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count))),
    st.integers(1, 3),
)
def test_ranges_make_all_files_and_each_one_at_least(numbers, counts, finer):
    files_count, ranges_count = counts
    points, files_counts = ranges_of_files([sample_of(numbers)], files_count, ranges_count, finer=finer)
    assert len(points) + 1 == len(files_counts) <= ranges_count
    assert sum(files_counts) == files_count
    assert min(files_counts) >= 1


@for_each(
    ("numbers", "ranges_count", "finer", "expected"),
    [
        # Five files in two ranges: none of half of the rows that makes two, or three.
        (range(1000), 2, 1, [(400, 2), (600, 3)]),
        (range(1000), 2, 2, [(400, 2), (600, 3)]),
        (range(1000), 5, 3, [(200, 1)] * 5),
        # Rows of one key stay together, and make as many files as they are.
        ([5] * 600 + [*range(10, 410)], 5, 1, [(600, 3), (200, 1), (200, 1)]),
        ([5] * 1000, 5, 2, [(1000, 5)]),
    ],
)
def test_a_range_makes_files_by_the_rows_that_it_has(numbers, ranges_count, finer, expected):
    points, files_counts = ranges_of_files([sample_of(numbers)], 5, ranges_count, finer=finer)
    assert sorted(zip(parts_of(points, [*numbers]), files_counts, strict=True)) == sorted(expected)


PAIRS = schema_of(column(1, "a", INT), column(2, "b", STRING))


def by(schema, *columns: str) -> Ordering:
    return Ordering(fields=build_sort_order(schema, columns).fields)


def as_text(table: pa.Table) -> list[str]:
    """Rows as text: NaN equals itself."""
    return [repr(row) for row in table.to_pylist()]


def sort_all(directory: Path, schema, ordering, tables, budget_bytes=2**30) -> tuple[list[pa.Table], int]:
    with Sorter(ordering, schema, budget_bytes, str(directory)) as sorter:
        for table in tables:
            sorter.add(table)
        found = list(sorter.sorted_rows())
        return found, sorter.spilled_count


def assert_sorted(found: list[pa.Table], expected: pa.Table, ordering, schema) -> None:
    together = pa.concat_tables(found)
    keys = sort_keys(together, ordering, schema).to_pylist()
    assert all(a <= b for a, b in pairwise(keys))
    assert Counter(as_text(together)) == Counter(as_text(expected))


@cases(25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows(EVERY_TYPE, max_size=5), min_size=1, max_size=5), st.booleans())
def test_rows_of_every_type_come_back_in_order_and_unchanged(tmp_path, data, spills):
    tables = [table_of(EVERY_TYPE, part) for part in data]
    ordering = by(EVERY_TYPE, "key", "c10_string", "c5_double")
    found, spilled = sort_all(tmp_path, EVERY_TYPE, ordering, tables, 1 if spills else 2**30)
    assert_sorted(found, pa.concat_tables(tables), ordering, EVERY_TYPE)
    assert all(table.schema.equals(arrow_schema(EVERY_TYPE), check_metadata=True) for table in found)
    for table in found:
        table.validate(full=True)
        # What a required field has below a null struct, no reader sees, but the writer must be content with it.
        assert parquet_bytes(table)
    # Of so little memory each row takes more.
    count = sum(map(len, data))
    assert spilled == (count if spills and count > 1 else 0)


@pytest.mark.parametrize("budget_bytes", [2**30, 2**20, 2**18])
@pytest.mark.parametrize("kind", ["sort", "long strings", "zorder", "hilbert", "nothing"])
def test_many_rows_are_sorted_in_memory_and_on_disk(tmp_path, budget_bytes, kind):
    chance = np.random.default_rng(5)
    tables = []
    for size in (1, 7000, 10, 0, 2500, 20_000, 1, 400):
        numbers = chance.integers(-50, 50, size).tolist()
        texts = [None if n % 7 == 0 else "xyz"[n % 3] * int(chance.integers(45)) for n in numbers]
        tables.append(pa.table([pa.array(numbers, pa.int32()), pa.array(texts)], schema=arrow_schema(PAIRS)))
    ordering = {
        "sort": by(PAIRS, "a"),
        "long strings": by(PAIRS, "b", "a"),
        "zorder": Ordering(curve=Curve(kind="zorder", column_ids=(1, 2))),
        "hilbert": Ordering(curve=Curve(kind="hilbert", column_ids=(1, 2))),
        "nothing": Ordering(),
    }[kind]
    found, spilled = sort_all(tmp_path, PAIRS, ordering, tables, budget_bytes)
    assert_sorted(found, pa.concat_tables(tables), ordering, PAIRS)
    assert max(table.nbytes for table in found) < max(budget_bytes / 3, 2**20)
    assert (spilled > 1) == (budget_bytes < 2**30)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("budget_bytes", [2**30, 1])
def test_dictionaries_stay_what_the_first_table_says(tmp_path, budget_bytes):
    plain = [
        pa.table([pa.array(numbers, pa.int32()), pa.array(texts)], schema=arrow_schema(PAIRS))
        for numbers, texts in [([3, 1], ["c", "a"]), ([2, 9], ["b", None]), ([4, 0, 7], ["a", "c", "z"])]
    ]
    kept_field = arrow_schema(PAIRS).field("b").with_type(KEPT_DICTIONARY)
    kept = [table.set_column(1, kept_field, table["b"].cast(KEPT_DICTIONARY)) for table in plain]
    for tables in (kept, plain, [kept[0], plain[1], kept[2]], [plain[0], kept[1], plain[2]]):
        found, _ = sort_all(tmp_path, PAIRS, by(PAIRS, "a"), tables, budget_bytes)
        together = pa.concat_tables(found)
        assert together.schema.equals(tables[0].schema, check_metadata=True)
        assert together["a"].to_pylist() == [0, 1, 2, 3, 4, 7, 9]
        assert together["b"].to_pylist() == ["c", "a", "b", "c", "a", "z", None]


@pytest.mark.parametrize("budget_bytes", [2**30, 1])
def test_unknown_type_and_null_elements_survive_sort(tmp_path, budget_bytes):
    schema = schema_of(
        column(1, "n", INT), column(2, "what", UNKNOWN), column(3, "l", ListType(element_id=4, element=INT))
    )
    data = table_of(schema, [{"n": n, "l": [n, None]} for n in (3, 1, 2, 0, 5)])
    found, _ = sort_all(tmp_path, schema, by(schema, "n"), [data], budget_bytes)
    assert pa.concat_tables(found).to_pylist() == [{"n": n, "what": None, "l": [n, None]} for n in (0, 1, 2, 3, 5)]


def test_keys_that_the_caller_has_are_taken_for_the_rows(tmp_path):
    table = table_of(PAIRS, [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}])
    with Sorter(by(PAIRS, "a"), PAIRS, 2**30, str(tmp_path)) as sorter:
        sorter.add(table, pa.array([b"2", b"1"], pa.binary(1)))
        (found,) = sorter.sorted_rows()
    assert found["a"].to_pylist() == [2, 1]


@pytest.mark.parametrize("budget_bytes", [2**30, 2**16, 2**12])
def test_rows_that_are_not_in_the_range_are_left_out(tmp_path, budget_bytes):
    chance = np.random.default_rng(9)
    data = [{"a": int(a), "b": "x" * (int(a) % 9)} for a in chance.integers(0, 100, 9000)]
    # Some with most rows in the range, some with few, with none, and with nothing else.
    parts = [data[:3000], data[3000:3005], sorted(data[3005:], key=lambda row: row["a"])]
    tables = [table_of(PAIRS, part) for part in parts]
    tables = [*tables[:2], *(tables[2].slice(start, 500) for start in range(0, 6000, 500))]
    ordering = by(PAIRS, "a")
    low, high = sort_keys(table_of(PAIRS, [{"a": 20}, {"a": 75}]), ordering, PAIRS).to_pylist()
    for key_range, kept in (
        (KeyRange(lower=low, upper=high), range(20, 75)),
        (KeyRange(lower=high), range(75, 100)),
        (KeyRange(upper=low), range(20)),
        (KeyRange(upper=high), range(75)),
    ):
        with Sorter(ordering, PAIRS, budget_bytes, str(tmp_path), key_range) as sorter:
            for table in tables:
                sorter.add(table)
            found = pa.concat_tables(sorter.sorted_rows())
            assert sorter.row_count == found.num_rows
        assert found["a"].to_pylist() == sorted(row["a"] for row in data if row["a"] in kept)
        assert found["b"].to_pylist() == ["x" * (a % 9) for a in found["a"].to_pylist()]


def test_no_rows_give_no_tables(tmp_path):
    assert sort_all(tmp_path, PAIRS, by(PAIRS, "a"), [table_of(PAIRS, [])]) == ([], 0)


def test_what_was_put_on_disk_is_gone_after_an_error(tmp_path):
    sorter = Sorter(by(PAIRS, "a"), PAIRS, 1, str(tmp_path))

    def fail() -> None:
        with sorter:
            sorter.add(table_of(PAIRS, [{"a": n, "b": ""} for n in range(10)]))
            assert list(tmp_path.iterdir()) != []
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert sorter.spilled_count > 1
    assert list(tmp_path.iterdir()) == []


def test_rows_that_have_come_out_are_held_no_longer(tmp_path):
    schema = schema_of(column(1, "a", INT), column(2, "b", STRING))
    chance = np.random.default_rng(7)
    with Sorter(by(schema, "a"), schema, 2**26, str(tmp_path)) as sorter:
        before_bytes = pa.total_allocated_bytes()
        for _ in range(12):
            numbers = pa.array(chance.integers(0, 2**30, 4_000), pa.int32())
            texts = pa.array(["x" * 1_000] * 4_000)
            sorter.add(pa.table([numbers, texts], schema=arrow_schema(schema)))
        all_bytes = pa.total_allocated_bytes() - before_bytes
        # What is handed out is a third of all rows at most, and is forgotten at once.
        held = [(pa.total_allocated_bytes() - before_bytes, rows.num_rows) for rows in sorter.sorted_rows()]
    assert sum(row_count for _, row_count in held) == 48_000
    assert (sorter.spilled_count, len(held)) == (0, 3)
    # Half of each run goes when the middle of the keys is past, the other half at the end.
    assert held[1][0] < 1.1 * all_bytes
    assert held[2][0] < 0.6 * all_bytes


MEMORY = """
import resource, sys, tempfile
import numpy as np
import pyarrow as pa
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.sort.encode import Ordering
from icekeep.formats.sort.external import Sorter
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import build_sort_order
from icekeep.spec.types import LONG, STRING, NestedField

MIB = 2**20
pa.set_cpu_count(1)
fields = [NestedField(field_id=n, name=f"n{n}", type=LONG, required=False) for n in range(1, 9)]
schema = Schema(fields=(*fields, NestedField(field_id=9, name="text", type=STRING, required=False)))
ordering = Ordering(fields=build_sort_order(schema, ["n1", "text"]).fields)
random = np.random.default_rng(1)

def table(size):
    columns = [pa.array(random.integers(0, 2**40, size)) for _ in range(8)]
    texts = pa.array(random.integers(0, 2**60, size)).cast(pa.string())
    return pa.table([*columns, texts], schema=arrow_schema(schema))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

def sort(tables, budget_mib):
    allocated = count = 0
    with tempfile.TemporaryDirectory() as directory, Sorter(ordering, schema, budget_mib * MIB, directory) as sorter:
        for number in range(tables):
            sorter.add(table(50_000))
            allocated = max(allocated, pa.total_allocated_bytes())
        last = -1
        for rows in sorter.sorted_rows():
            column = rows["n1"].to_numpy()
            assert column[0] >= last and (np.diff(column) >= 0).all()
            count, last = count + rows.num_rows, column[-1]
            allocated = max(allocated, pa.total_allocated_bytes())
        spilled = sorter.spilled_count
    assert count == tables * 50_000
    return spilled, allocated // MIB

# First whatever is loaded and allocated once.
sort(8, 16)
before = peak()
spilled, allocated = sort(int(sys.argv[1]), 64)
print(spilled, allocated, peak() - before)
"""


@pytest.mark.nightly
@pytest.mark.process
def test_sort_memory_stays_near_the_budget(tmp_path):
    # 120 tables of 50,000 rows: some 650 MiB, ten times the budget of 64 MiB.
    done = subprocess.run([sys.executable, "-c", MEMORY, "120"], capture_output=True, text=True, check=True)
    spilled, allocated_mib, grown_mib = map(int, done.stdout.split())
    assert spilled > 8
    assert allocated_mib < 64 + 32
    assert grown_mib < 64 + 4 * 32
