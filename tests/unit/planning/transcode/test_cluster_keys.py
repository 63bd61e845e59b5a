"""What entries are clustered by: keys are in the order of the values."""

import math
from functools import cmp_to_key
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import NotFoundError, UnsupportedError, UsageError
from icekeep.planning.transcode.records import BoundPart, PartitionPart, entry_keys, needs_bounds, sort_parts
from icekeep.spec.schema import Schema
from icekeep.spec.types import (
    BINARY,
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    ListType,
    NestedField,
    StructType,
    decimal,
    parse_type,
)
from icekeep.spec.values import value_to_bytes
from kit.cases import for_each
from kit.manifests import UNPARTITIONED
from kit.strategies import primitive_types, values_of

PARTITION = StructType(
    (NestedField(field_id=1000, name="day", type=DATE), NestedField(field_id=1001, name="kind", type=STRING))
)
SCHEMA = Schema(
    fields=(
        NestedField(field_id=1, name="id", type=LONG),
        NestedField(field_id=2, name="kind", type=STRING),
        NestedField(field_id=3, name="place", type=StructType((NestedField(field_id=4, name="x", type=DOUBLE),))),
        NestedField(field_id=7, name="anything", type=parse_type("variant")),
        NestedField(field_id=8, name="shape", type=parse_type("geometry")),
        NestedField(field_id=5, name="tags", type=ListType(element_id=6, element=STRING, element_required=True)),
    )
)


def keys_of(tuples: list[tuple[Any, ...]], partition: StructType) -> list[bytes]:
    parts = sort_parts(None, partition, SCHEMA)
    return entry_keys(tuples, np.arange(len(tuples)), None, parts).to_pylist()


def bound_keys(bounds: list[dict[int, bytes] | None], part: BoundPart) -> list[bytes]:
    maps = pa.array([b if b is None else [*b.items()] for b in bounds], pa.map_(pa.int32(), pa.binary()))
    return entry_keys([()], np.zeros(len(bounds), np.int64), maps, [part]).to_pylist()


def compared(one: Any, other: Any) -> int:
    """Nulls first, then values, then NaN; -0.0 before 0.0."""
    ranks = [
        (0,) if v is None else (2,) if v != v else (1, v, math.copysign(1, v) if v == 0 else 0) for v in (one, other)
    ]
    return (ranks[0] > ranks[1]) - (ranks[0] < ranks[1])


# Names.


def test_all_partition_fields_in_the_order_of_the_spec_unless_told_otherwise():
    assert sort_parts(None, PARTITION, SCHEMA) == (PartitionPart(0, DATE), PartitionPart(1, STRING))
    assert sort_parts(None, UNPARTITIONED, SCHEMA) == ()


def test_a_name_is_a_partition_field_s_or_else_a_column_s():
    parts = sort_parts(["kind", "id", "place.x", "day"], PARTITION, SCHEMA)
    assert parts == (PartitionPart(1, STRING), BoundPart(1, LONG), BoundPart(4, DOUBLE), PartitionPart(0, DATE))
    assert sort_parts(["kind"], UNPARTITIONED, SCHEMA) == (BoundPart(2, STRING),)


def test_bounds_are_needed_where_a_column_is_asked_for():
    assert [needs_bounds(sort_parts(n, PARTITION, SCHEMA)) for n in (None, ["kind"], ["day", "id"])] == [
        False,
        False,
        True,
    ]


@for_each(
    ("names", "error", "message"),
    [
        ([], UsageError, "sort_by is empty"),
        (["day", "day"], UsageError, "sort_by names 'day' twice"),
        (
            ["week"],
            NotFoundError,
            "neither a partition field nor a column 'week'; the partition fields are day, kind",
        ),
        (["Kind"], NotFoundError, "neither a partition field nor a column 'Kind'; did you mean 'kind'?"),
        (["place"], UnsupportedError, "column 'place' is of type struct"),
        (["anything"], UnsupportedError, "column 'anything' is of type variant"),
        (["shape"], UnsupportedError, "column 'shape' is of type geometry"),
        (["tags"], UnsupportedError, "column 'tags' is of type list"),
    ],
)
def test_what_cannot_be_clustered_by_is_an_error(names: list[str], error: type[Exception], message: str):
    with pytest.raises(error) as caught:
        sort_parts(names, PARTITION, SCHEMA)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_without_partition_fields_says_so():
    with pytest.raises(NotFoundError, match="the partition fields are none"):
        sort_parts(["week"], UNPARTITIONED, SCHEMA)


# Keys of partitions.


@given(st.lists(st.tuples(st.none() | st.integers(-(2**31), 2**31 - 1), st.none() | st.floats()), max_size=8))
def test_keys_of_partitions_are_in_the_order_of_their_values(tuples: list[tuple[Any, ...]]):
    partition = StructType(
        (NestedField(field_id=1000, name="n", type=INT), NestedField(field_id=1001, name="x", type=DOUBLE))
    )
    keys = keys_of(tuples, partition)

    def order(one: int, other: int) -> int:
        return compared(tuples[one][0], tuples[other][0]) or compared(tuples[one][1], tuples[other][1])

    places = range(len(tuples))
    for one in places:
        for other in places:
            assert (keys[one] > keys[other]) - (keys[one] < keys[other]) == order(one, other)
    assert sorted(places, key=keys.__getitem__) == sorted(places, key=cmp_to_key(order))


def test_entries_have_the_keys_of_their_partitions_in_the_order_of_the_names():
    tuples = [(5, "b"), (4, "c"), (None, "a")]
    codes = np.array([2, 0, 0, 1])
    by_kind = entry_keys(tuples, codes, None, sort_parts(["kind", "day"], PARTITION, SCHEMA)).to_pylist()
    assert sorted(range(4), key=by_kind.__getitem__) == [0, 1, 2, 3]
    by_day = entry_keys(tuples, codes, None, sort_parts(["day"], PARTITION, SCHEMA)).to_pylist()
    assert by_day[1] == by_day[2]
    assert sorted({*by_day}) == [by_day[0], by_day[3], by_day[1]]


def test_nothing_to_cluster_by_makes_all_keys_equal():
    assert entry_keys([()], np.array([0, 0]), None, ()).to_pylist() == [b"", b""]


# Keys of bounds.


@given(st.data())
def test_keys_of_bounds_are_in_the_order_of_the_values(data: st.DataObject):
    type_ = data.draw(primitive_types())
    values = data.draw(st.lists(st.none() | values_of(type_), max_size=6))
    bounds = [None if v is None else {9: value_to_bytes(type_, v), 8: b"x"} for v in values]
    whole = bound_keys(bounds, BoundPart(9, type_))
    one_field = StructType((NestedField(field_id=1000, name="v", type=type_),))
    assert whole == keys_of([(v,) for v in values], one_field)


def test_the_bound_of_the_column_is_taken_and_no_other():
    bounds = [{7: b"a"}, None, {}, {8: b"c", 7: b"b"}, {8: b"d"}, {7: b"e"}]
    none, *_ = bound_keys([None], BoundPart(7, STRING))
    found = bound_keys(bounds, BoundPart(7, STRING))
    assert [key == none for key in found] == [False, True, True, False, True, False]
    assert found[0] < found[3] < found[5]


def test_bounds_of_a_slice_are_those_of_its_rows():
    bounds = [{7: b"a"}, {7: b"b"}, None, {7: b"c"}]
    maps = pa.array([b if b is None else [*b.items()] for b in bounds], pa.map_(pa.int32(), pa.binary()))
    part = BoundPart(7, STRING)
    some = entry_keys([()], np.zeros(2, np.int64), maps.slice(1, 2), [part]).to_pylist()
    assert some == bound_keys(bounds, part)[1:3]


@given(st.sampled_from([INT, LONG, DOUBLE, STRING, DATE, decimal(9, 2), parse_type("uuid")]), st.binary(max_size=40))
def test_bytes_that_are_no_value_of_the_type_count_as_none(type_: Any, garbage: bytes):
    # Whatever writers leave there, an order is all that depends on it.
    assert len(bound_keys([{1: garbage}, {}], BoundPart(1, type_))) == 2


def test_a_decimal_of_more_bytes_than_any_has_counts_as_none():
    assert len({*bound_keys([{1: b"\x7f" * 20}, None], BoundPart(1, decimal(9, 2)))}) == 1
    assert len({*bound_keys([{1: b"abc"}, None], BoundPart(1, LONG))}) == 1


def test_a_bound_of_a_type_before_it_was_promoted_is_read():
    found = bound_keys(
        [{1: value_to_bytes(INT, n)} for n in (-5, 3)] + [{1: value_to_bytes(LONG, 3)}], BoundPart(1, LONG)
    )
    assert found[0] < found[1] == found[2]


def test_partitions_and_bounds_make_one_key():
    maps = pa.array([[(1, b"b")], [(1, b"a")], [(1, b"z")]], pa.map_(pa.int32(), pa.binary()))
    parts = [PartitionPart(0, INT), BoundPart(1, BINARY)]
    keys = entry_keys([(2,), (1,)], np.array([0, 0, 1]), maps, parts).to_pylist()
    assert sorted(range(3), key=keys.__getitem__) == [2, 1, 0]
