"""Partition tuples in Arrow: distinguished as by the spec, turned into spec values, and into bytes."""

import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.planning.decoder import NotReadError
from icekeep.planning.manifests import (
    distinct_partitions,
    partition_array,
    partition_arrow_type,
    partition_keys,
    partition_of_stored,
)
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.reach import partition_key
from icekeep.spec.types import NestedField, StructType, parse_type
from kit.cases import for_each
from kit.manifests import data_file
from kit.strategies import values_of
from kit.table_strategies import partition_types

NAN_OF_ANOTHER_SIGN = struct.unpack(">d", b"\xff\xf8\0\0\0\0\0\1")[0]


def columns(*types: str) -> StructType:
    return StructType(
        tuple(NestedField(field_id=1000 + i, name=f"p{i}", type=parse_type(t)) for i, t in enumerate(types))
    )


def key(values: tuple[Any, ...]) -> Any:
    return partition_key(data_file(partition=values))


@given(st.data())
def test_distinct_tuples_are_those_that_the_spec_tells_apart(data: st.DataObject):
    partition = data.draw(partition_types())
    tuples = st.tuples(*(st.none() | values_of(field.type) for field in partition.fields))
    few = data.draw(st.lists(tuples, min_size=1, max_size=4))
    rows = data.draw(st.lists(st.sampled_from(few), max_size=12))
    array = partition_array(rows, partition)
    array.validate(full=True)
    assert array.type == partition_arrow_type(partition)
    found, codes = distinct_partitions(array)
    assert [key(found[code]) for code in codes] == [key(row) for row in rows]
    assert repr([found[code] for code in codes]) == repr(rows)
    assert [key(values) for values in found] == list(dict.fromkeys(map(key, rows)))


@given(st.data())
def test_keys_are_the_bytes_of_the_codec(data: st.DataObject):
    partition = data.draw(partition_types())
    tuples = st.tuples(*(st.none() | values_of(field.type) for field in partition.fields))
    rows = data.draw(st.lists(tuples, max_size=6))
    codec = PartitionCodec(partition)
    keys = partition_keys(partition_array(rows, partition), codec)
    assert keys.type == pa.binary()
    assert [key(codec.decode(k)) for k in keys.to_pylist()] == [key(row) for row in rows]
    plain = [row for row in rows if not any(isinstance(v, float) and math.isnan(v) for v in row)]
    assert partition_keys(partition_array(plain, partition), codec).to_pylist() == [codec.encode(r) for r in plain]


@pytest.mark.parametrize("type_", ["float", "double"])
def test_each_nan_is_the_same_and_the_zeros_are_two(type_: str):
    partition = columns(type_)
    values = [math.nan, NAN_OF_ANOTHER_SIGN, 0.0, -0.0, None, 0.0]
    array = partition_array([(value,) for value in values], partition)
    tuples, codes = distinct_partitions(array)
    assert codes.tolist() == [0, 0, 1, 2, 3, 1]
    assert repr(tuples) == "[(nan,), (0.0,), (-0.0,), (None,)]"
    assert len(set(partition_keys(array, PartitionCodec(partition)).to_pylist())) == 4


def test_many_columns_of_many_values_are_told_apart():
    partition = columns(*["int"] * 8)
    rows = [tuple(n * (i + 1) for i in range(8)) for n in range(1000)] * 2
    tuples, codes = distinct_partitions(partition_array(rows, partition))
    assert tuples == rows[:1000]
    assert codes.tolist() == [*range(1000)] * 2


def test_a_part_of_a_column_is_its_own_column():
    partition = columns("string", "date", "uuid")
    array = partition_array([(text, 1, None) for text in "abcab"], partition)
    tuples, codes = distinct_partitions(array.slice(2, 3))
    assert (tuples, codes.tolist()) == ([("c", 1, None), ("a", 1, None), ("b", 1, None)], [0, 1, 2])


def test_tuples_of_an_unpartitioned_spec_are_all_equal():
    nothing = StructType(())
    array = partition_array([(), ()], nothing)
    assert len(array) == 2
    tuples, codes = distinct_partitions(array)
    assert (tuples, codes.tolist()) == ([()], [0, 0])
    assert partition_keys(array, PartitionCodec(nothing)).to_pylist() == [b"", b""]
    assert distinct_partitions(partition_array([], nothing))[0] == []


def test_nothing_is_told_apart_of_no_rows():
    tuples, codes = distinct_partitions(partition_array([], columns("date", "double")))
    assert (tuples, codes.tolist(), codes.dtype) == ([], [], np.int64)


def stored(values: list[Any], type_: pa.DataType, name: str) -> list[tuple[Any, ...]]:
    raw = pa.StructArray.from_arrays([pa.array(values, type_)], names=["x"])
    found = partition_of_stored(raw, ["x"], columns(name), len(values))
    tuples, codes = distinct_partitions(found)
    return [tuples[code] for code in codes]


def test_stored_values_of_a_narrower_type_are_widened():
    assert stored([1, None], pa.int32(), "long") == [(1,), (None,)]
    assert stored([1.5], pa.float32(), "double") == [(1.5,)]
    assert stored([b"ab"], pa.binary(2), "binary") == [(b"ab",)]
    assert stored([b"ab"], pa.binary(), "fixed[2]") == [(b"ab",)]


@for_each(
    ("value", "kind", "name"),
    [
        (True, pa.bool_(), "int"),
        (1, pa.int32(), "boolean"),
        (1, pa.int32(), "double"),
        ("x", pa.string(), "binary"),
        ("x", pa.string(), "date"),
        (b"abc", pa.binary(3), "fixed[2]"),
        (b"abc", pa.binary(), "uuid"),
        ("f79c3e09-677c-4bbd-a479-3f349cb785e7", pa.string(), "uuid"),
    ],
)
def test_a_value_that_is_stored_as_something_else_is_left_to_others(value: Any, kind: pa.DataType, name: str):
    with pytest.raises(NotReadError):
        stored([value], kind, name)
