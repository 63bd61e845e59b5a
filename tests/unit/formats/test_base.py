"""Counts and bounds of columns, counted from Arrow data as rows are written, held against plain counts of Python values.

Those from Parquet's footers are in `parquet/test_metrics`.
"""

import math

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.formats import base as column_metrics
from icekeep.formats.arrow.projection import KEPT_DICTIONARY
from icekeep.formats.base import MetricsCollector, count_nans
from icekeep.spec.properties import COUNTS, FULL, NONE, metrics_modes
from icekeep.spec.types import (
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NS,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
)
from icekeep.spec.values import value_from_bytes, value_to_bytes
from kit.cases import cases
from kit.columns import EVERY_TYPE, column, empty_table, rows, schema_of, table_of


def collected(schema, *parts, modes=None):
    collector = MetricsCollector(schema, metrics_modes({}, schema) if modes is None else modes)
    for part in parts:
        collector.add(table_of(schema, part))
    return collector.metrics()


@pytest.mark.slow
@cases(60)
@given(st.lists(rows(EVERY_TYPE), min_size=1, max_size=3))
def test_counts_and_bounds_are_those_of_all_the_values(parts):
    metrics = collected(EVERY_TYPE, *parts)
    data = [row for part in parts for row in part]
    fields = [(f, [row[f.name] for row in data]) for f in EVERY_TYPE.fields if isinstance(f.type, PrimitiveType)]
    point = EVERY_TYPE.field("point").type
    fields += [(f, [row["point"] and row["point"][f.name] for row in data]) for f in point.fields]
    assert metrics.record_count == len(data)
    assert metrics.value_counts == {f.field_id: len(data) for f, _ in fields}
    for field, values in fields:
        id_, known = field.field_id, [v for v in values if v is not None]
        numbers = [v for v in known if not (isinstance(v, float) and math.isnan(v))]
        assert metrics.null_value_counts[id_] == values.count(None)
        if field.type in (FLOAT, DOUBLE):
            assert metrics.nan_value_counts[id_] == len(known) - len(numbers)
        assert (id_ in metrics.lower_bounds) == bool(numbers)
        if numbers:
            assert value_from_bytes(field.type, metrics.lower_bounds[id_]) <= min(numbers)
        if id_ in metrics.upper_bounds:
            assert value_from_bytes(field.type, metrics.upper_bounds[id_]) >= max(numbers)
        if numbers and field.type.name not in ("string", "binary", "float", "double"):
            bounds = metrics.lower_bounds[id_], metrics.upper_bounds[id_]
            assert bounds == tuple(value_to_bytes(field.type, v) for v in (min(numbers), max(numbers)))


def test_nan_is_counted_and_never_a_bound():
    schema = schema_of(column(1, "x", DOUBLE))
    metrics = collected(schema, [{"x": math.nan}], [{"x": 1.5}, {"x": math.nan}, {"x": None}])
    assert (metrics.nan_value_counts, metrics.null_value_counts) == ({1: 2}, {1: 1})
    assert metrics.lower_bounds == metrics.upper_bounds == {1: value_to_bytes(DOUBLE, 1.5)}
    assert collected(schema, [{"x": math.nan}]).lower_bounds == {}


def test_infinities_are_bounds():
    metrics = collected(schema_of(column(1, "x", FLOAT)), [{"x": math.inf}, {"x": -math.inf}])
    assert (metrics.lower_bounds[1], metrics.upper_bounds[1]) == (
        value_to_bytes(FLOAT, -math.inf),
        value_to_bytes(FLOAT, math.inf),
    )


def test_a_column_of_nulls_has_counts_and_no_bounds():
    metrics = collected(schema_of(column(1, "x", INT)), [{"x": None}] * 3)
    assert (metrics.value_counts, metrics.null_value_counts) == ({1: 3}, {1: 3})
    assert (metrics.lower_bounds, metrics.upper_bounds) == ({}, {})


def test_modes_decide_what_is_kept():
    schema = schema_of(*(column(i, f"c{i}", STRING) for i in range(1, 5)))
    modes = {1: NONE, 2: COUNTS, 3: FULL}
    metrics = collected(schema, [{f"c{i}": "x" * 100 for i in range(1, 5)}], modes=modes)
    assert metrics.value_counts == {2: 1, 3: 1}
    assert metrics.null_value_counts == {2: 0, 3: 0}
    assert metrics.lower_bounds == metrics.upper_bounds == {3: b"x" * 100}


def test_fields_of_lists_and_maps_have_no_metrics():
    schema = schema_of(
        column(1, "l", ListType(element_id=2, element=StructType((column(3, "x", INT),)))),
        column(4, "m", MapType(key_id=5, key=STRING, value_id=6, value=INT)),
    )
    metrics = collected(schema, [{"l": [{"x": 1}], "m": [("a", 1)]}])
    assert metrics.value_counts == metrics.null_value_counts == metrics.lower_bounds == {}


def test_microseconds_and_nanoseconds_are_whole_numbers():
    schema = schema_of(column(1, "a", TIMESTAMP), column(2, "b", TIMESTAMP_NS))
    metrics = collected(schema, [{"a": 5, "b": 7}, {"a": -5, "b": -7}])
    assert metrics.lower_bounds == {1: value_to_bytes(TIMESTAMP, -5), 2: value_to_bytes(TIMESTAMP_NS, -7)}


def test_encoded_strings_are_counted_as_what_they_are():
    schema = schema_of(column(1, "s", STRING))
    array = pa.chunked_array([pa.array(["b", None, "a"]).dictionary_encode()]).cast(KEPT_DICTIONARY)
    collector = MetricsCollector(schema, metrics_modes({}, schema))
    collector.add(pa.table({"s": array}))
    metrics = collector.metrics(split_offsets=(3,))
    assert (metrics.lower_bounds, metrics.upper_bounds, metrics.null_value_counts) == ({1: b"a"}, {1: b"b"}, {1: 1})
    assert (metrics.split_offsets, metrics.column_sizes) == ((3,), None)


def test_nan_is_counted_in_structs_but_not_below_null_ones_nor_in_lists():
    schema = schema_of(
        column(1, "s", StructType((column(2, "x", FLOAT), column(3, "t", StructType((column(4, "y", DOUBLE),)))))),
        column(5, "l", ListType(element_id=6, element=DOUBLE)),
        column(7, "i", INT),
    )
    data = [
        {"s": {"x": math.nan, "t": {"y": math.nan}}, "l": [math.nan], "i": 1},
        {"s": {"x": 1.0, "t": None}, "l": None, "i": 1},
    ]
    assert count_nans(table_of(schema, data), schema) == {2: 1, 4: 1}
    hidden = pa.StructArray.from_arrays([pa.array([math.nan, math.nan])], names=["x"], mask=pa.array([True, False]))
    assert count_nans(pa.table({"s": hidden}), schema_of(column(1, "s", StructType((column(2, "x", DOUBLE),))))) == {
        2: 1
    }
    assert count_nans(empty_table(schema), schema) == {2: 0, 4: 0}


class CountedCalls:
    """Arrow's functions; the names of those that are called are kept."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __getattr__(self, name: str):
        self.names.append(name)
        return getattr(pc, name)


def test_only_floats_cost_anything_where_nans_are_counted(monkeypatch):
    # Arrow takes time for all children of a struct when it is asked for one: 10,000 of them took minutes.
    fields = [column(n, f"f{n}", LONG) for n in range(2, 500)]
    of_longs = schema_of(column(1, "s", StructType(tuple(fields))))
    with_one = schema_of(column(1, "s", StructType((*fields, column(500, "x", DOUBLE)))))
    called = CountedCalls()
    monkeypatch.setattr(column_metrics, "pc", called)
    assert count_nans(empty_table(of_longs), of_longs) == {}
    assert called.names == []
    assert count_nans(empty_table(with_one), with_one) == {500: 0}
    assert sorted(called.names) == ["is_nan", "sum"]


def test_children_of_a_struct_are_taken_out_of_it_at_once(monkeypatch):
    schema = schema_of(column(1, "s", StructType(tuple(column(n, f"f{n}", LONG) for n in range(2, 100)))))
    called = CountedCalls()
    monkeypatch.setattr(column_metrics, "pc", called)
    metrics = collected(schema, [{"s": None}])
    assert metrics.null_value_counts == dict.fromkeys(range(2, 100), 1)
    assert {*called.names} == {"min_max"}
