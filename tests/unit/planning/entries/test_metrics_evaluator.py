import math
import struct
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import IcekeepBug
from icekeep.formats.arrow.schema import arrow_type
from icekeep.planning.manifests import METRICS
from icekeep.planning.prune import columns_needed, files_that_may_match, partitions_that_match
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.evaluators import file_may_match, partition_matches
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    And,
    BoundPredicate,
    Expression,
    Operation,
    Or,
    Predicate,
)
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.filters.projections import project_inclusive, project_strict
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.partitioning import partition_type
from icekeep.spec.types import DATE, DOUBLE, FLOAT, INT, LONG, STRING, TIMESTAMP, UUID, NestedField, Type, decimal
from icekeep.spec.values import value_to_bytes
from kit.cases import cases, for_each
from kit.columns import column, schema_of
from kit.filters import Column, columns, filters, metrics_of, partition_of, partitioned_tables, predicates, rows
from kit.filters import schema_of as schema_of_columns

pytestmark = pytest.mark.slow

OP = Operation
_MAPS = tuple(name for name in METRICS.names if name != "column_sizes")
IS_NAN, NOT_NAN = Predicate(OP.IS_NAN, "x"), Predicate(OP.NOT_NAN, "x")


def ask(type_: Type, where: str | Predicate) -> Expression:
    """A filter that is bound to the optional column x with id 1."""
    return bind(parse_where(where) if isinstance(where, str) else where, schema_of(column(1, "x", type_)))


def file(rows: int = 10, **maps: Mapping[int, Any] | None) -> DataFile:
    return DataFile(
        file_path="f", file_format="parquet", spec_id=0, record_count=rows, file_size_in_bytes=1, **(maps or {})
    )


def bounded(
    type_: Type, lower: Any, upper: Any, *, rows: int = 10, nulls: int = 0, nans: int | None = None
) -> DataFile:
    return file(
        rows,
        value_counts={1: rows},
        null_value_counts={1: nulls},
        nan_value_counts=None if nans is None else {1: nans},
        lower_bounds=None if lower is None else {1: value_to_bytes(type_, lower)},
        upper_bounds=None if upper is None else {1: value_to_bytes(type_, upper)},
    )


def batch_of(files: Sequence[DataFile], needed: Sequence[str] | frozenset[str] = _MAPS) -> pa.RecordBatch:
    """Entries with the columns that pruning may ask for."""
    counts = pa.array([f.record_count for f in files], pa.int64())
    maps = {
        name: pa.array(
            [None if (known := getattr(f, name)) is None else list(known.items()) for f in files],
            METRICS.field(name).type,
        )
        for name in _MAPS
        if name in needed
    }
    return pa.record_batch({"record_count": counts, **maps})


def may(type_: Type, where: str | Predicate, *files: DataFile) -> list[bool]:
    """What the files may match, which is what they may one by one, and with only the columns that are needed."""
    expression = ask(type_, where)
    found = files_that_may_match(expression, batch_of(files, columns_needed(expression))).tolist()
    assert found == [file_may_match(expression, one) for one in files]
    return found


def prefix(text: str, *, negated: bool = False) -> Predicate:
    return Predicate(OP.NOT_STARTS_WITH if negated else OP.STARTS_WITH, "x", (text,))


# Files


@for_each("where", ["x < 30", "x <= 30", "x > 79", "x >= 79", "x = 50", "x IN (29, 80)", "x = 90"])
def test_crossed_bounds_decide_nothing(where: str):
    for type_, unit in ((INT, 1), (LONG, 1), (DOUBLE, 1.0)):
        assert may(type_, where, bounded(type_, 79 * unit, 30 * unit, nans=0)) == [True]


@for_each(
    ("where", "expected"),
    [
        ("x < 30", [False, False]), ("x <= 30", [True, False]), ("x > 79", [False, True]), ("x >= 79", [True, True]),
        ("x = 79", [True, False]), ("x IN (29, 80)", [False, False]), ("x IN (29, 79, 85)", [True, True]),
        ("x != 85", [True, False]), ("x NOT IN (85, 86)", [True, False]), ("x NOT IN (84, 86)", [True, True]),
        ("x IS NULL", [False, False]), ("x IS NOT NULL", [True, True]), ("x < 30 OR x > 79", [False, True]),
        ("x > 30 AND x < 80", [True, False]),
    ],
)  # fmt: skip
def test_bounds_decide_comparisons(where: str, expected: list[bool]):
    for type_ in (INT, LONG):
        assert may(type_, where, bounded(type_, 30, 79), bounded(type_, 85, 85)) == expected
    for type_ in (FLOAT, DOUBLE):
        files = (bounded(type_, 30.0, 79.0, nans=0), bounded(type_, 85.0, 85.0, nans=0))
        assert may(type_, where, *files) == expected
    price = decimal(9, 2)
    files = tuple(bounded(price, Decimal(f"{a}.00"), Decimal(f"{b}.00")) for a, b in ((30, 79), (85, 85)))
    assert may(price, where, *files) == expected


def test_a_file_of_nulls_is_null_and_may_be_unequal():
    all_null, some_null = bounded(INT, None, None, nulls=10), bounded(INT, 5, 5, nulls=1)
    for where, expected in (
        ("x IS NULL", [True, True]),
        ("x IS NOT NULL", [False, True]),
        ("x = 5", [False, True]),
        ("x > 1", [False, True]),
        ("x != 5", [True, True]),
        ("x NOT IN (4, 5)", [True, True]),
    ):
        assert may(INT, where, all_null, some_null) == expected


def test_nan_counts_decide_what_bounds_leave_out():
    files = (
        bounded(DOUBLE, None, None, nans=10),
        bounded(DOUBLE, 1.0, 2.0, nans=0),
        bounded(DOUBLE, 1.0, 2.0),
        bounded(DOUBLE, None, None, nulls=4, nans=6),
        bounded(DOUBLE, 1.0, 2.0, nulls=6, nans=6),
    )
    assert may(DOUBLE, IS_NAN, *files) == [True, False, True, True, True]
    assert may(DOUBLE, NOT_NAN, *files) == [False, True, True, True, True]
    assert may(DOUBLE, "x IS NULL", *files) == [False, False, False, True, True]
    assert may(DOUBLE, "x < 5", *files) == [False, True, True, False, True]
    assert may(DOUBLE, "x != 5", *files) == [True, True, True, True, True]


def test_a_file_of_nan_has_no_null_and_one_of_nulls_no_nan_where_the_other_count_is_missing():
    nans = file(value_counts={1: 10}, nan_value_counts={1: 10})
    nulls = file(value_counts={1: 10}, null_value_counts={1: 10})
    assert may(DOUBLE, "x IS NULL", nans, nulls) == [False, True]
    assert may(DOUBLE, IS_NAN, nans, nulls) == [True, False]
    assert may(DOUBLE, "x = 5", nans, nulls) == [False, False]
    assert may(DOUBLE, NOT_NAN, nans, nulls) == [False, True]


def test_a_bound_of_nan_makes_both_unreliable():
    files = [bounded(FLOAT, low, high, nans=0) for low, high in ((math.nan, 2.0), (1.0, math.nan), (1.0, 2.0))]
    for where in ("x < 0", "x > 9", "x = 9", "x IN (8, 9)"):
        assert may(FLOAT, where, *files) == [True, True, False]


@for_each("bound", [0.0, -0.0])
@for_each("literal", [0.0, -0.0])
def test_a_bound_of_either_zero_lets_both_pass(bound: float, literal: float):
    zeros = bounded(DOUBLE, bound, bound, nans=0)
    for operation, expected in (
        (OP.EQ, True), (OP.GT_EQ, True), (OP.LT_EQ, True), (OP.GT, False), (OP.LT, False), (OP.NOT_EQ, False),
    ):  # fmt: skip
        assert may(DOUBLE, Predicate(operation, "x", (literal,)), zeros) == [expected]
    assert may(DOUBLE, Predicate(OP.IN, "x", (literal, 7.0)), zeros) == [True]
    assert may(DOUBLE, Predicate(OP.NOT_IN, "x", (literal, 7.0)), zeros) == [False]


@for_each(
    ("old", "new", "low", "high", "where"),
    [
        (INT, LONG, 30, 79, ("x < 30", "x > 79", "x = 50")),
        (FLOAT, DOUBLE, 0.5, 1.5, ("x < 0.5", "x > 1.5", "x = 1")),
        (DATE, TIMESTAMP, 1, 2, ("x < '1970-01-02'", "x > '1970-01-03'", "x = '1970-01-02 12:00:00'")),
        (decimal(4, 2), decimal(38, 2), Decimal("1.00"), Decimal("2.00"), ("x < 1", "x > 2", "x = 1.5")),
    ],
)
def test_bounds_from_before_a_promotion_are_understood(old: Type, new: Type, low: Any, high: Any, where: Sequence[str]):
    before = bounded(old, low, high, nans=0)
    assert [may(new, question, before, before) for question in where] == [[False] * 2, [False] * 2, [True] * 2]


def test_bounds_that_cannot_be_read_decide_nothing():
    damaged = [
        file(value_counts={1: 10}, null_value_counts={1: 0}, lower_bounds={1: lower}, upper_bounds=upper)
        for lower, upper in ((b"\x01", {1: b"\x02"}), (b"", {1: b""}), (b"12345", None), (struct.pack("<i", 9), None))
    ]
    assert may(INT, "x = 5", *damaged) == [True, True, True, False]
    assert may(INT, "x != 5", *damaged) == [True] * 4
    no_text = file(
        value_counts={1: 10}, null_value_counts={1: 0}, lower_bounds={1: b"z\xff"}, upper_bounds={1: b"\xff"}
    )
    assert may(STRING, "x = 'a'", no_text, bounded(STRING, "b", "c")) == [True, False]
    assert may(STRING, prefix("a"), no_text, bounded(STRING, "b", "c")) == [True, False]


def test_counts_that_cannot_be_decide_nothing():
    files = [bounded(INT, 30, 79, nulls=nulls) for nulls in (11, -1, 0)]
    assert may(INT, "x IS NULL", *files) == [True, True, False]
    assert may(INT, "x = 50", *files) == [True, True, True]
    too_many = [bounded(DOUBLE, 1.0, 2.0, nulls=10, nans=1), bounded(DOUBLE, 1.0, 2.0, nulls=1, nans=10)]
    for where in (IS_NAN, NOT_NAN, "x IS NULL", "x IS NOT NULL", "x = 1.5"):
        assert may(DOUBLE, where, *too_many) == [True, True]


def test_what_is_not_known_decides_nothing():
    blank = file(**dict.fromkeys(_MAPS))
    empty = file(**{name: {} for name in _MAPS})
    others = file(**{name: {2: b"1234" if "bounds" in name else 10} for name in _MAPS})
    for where in ("x < 5", "x > 5", "x = 5", "x != 5", "x IN (5, 6)", "x IS NULL", "x IS NOT NULL", IS_NAN, NOT_NAN):
        assert may(DOUBLE, where, blank, empty, others, blank) == [True] * 4


def test_rows_that_were_not_counted_may_be_null():
    """ORC counts the values of a struct's field only where the struct is there."""
    counted = bounded(INT, 30, 79)
    assert may(INT, "x IS NULL", msgspec.structs.replace(counted, value_counts={1: 9}), counted) == [True, False]


def test_a_file_without_rows_has_no_match_and_one_that_hides_their_number_may():
    files = [bounded(INT, 5, 5, rows=count) for count in (0, -1, 10)]
    assert may(INT, "x = 99", *files) == [False, True, False]
    assert may(INT, "x IS NULL", *files) == [False, True, False]
    assert files_that_may_match(ALWAYS_TRUE, batch_of(files)).tolist() == [False, True, True]
    assert files_that_may_match(ALWAYS_FALSE, batch_of(files)).tolist() == [False, False, False]


LOW, HIGH = "abcdefghijklmnop", "abcdefghijklmnoq"
"""The bounds of "abcdefghijklmnop-z", cut to 16."""


@for_each(
    ("where", "expected"),
    [
        (f"x = '{LOW}-z'", True), (f"x = '{HIGH}a'", False), (f"x > '{HIGH}'", False), (f"x < '{LOW}'", False),
        (prefix(LOW), True), (prefix(LOW[:15]), True), (prefix(LOW + "-z"), True), (prefix("abd"), False), (prefix("abb"), False),
        (prefix(HIGH + "a"), False), (prefix(LOW[:15], negated=True), False), (prefix(LOW, negated=True), True),
        (prefix("abd", negated=True), True),
    ],
)  # fmt: skip
def test_cut_bounds_of_text_still_bound(where: str | Predicate, expected: bool):
    assert may(STRING, where, bounded(STRING, LOW, HIGH)) == [expected]


def test_text_is_ordered_by_code_points():
    files = bounded(STRING, "\uffff", "\U00010000"), bounded(STRING, "\U00010000", "\U0010ffff")
    assert may(STRING, "x < '\U00010000'", *files) == [True, False]


def test_bounds_of_uuids_are_read_in_both_orders():
    """Java compares them as two signed longs, so what begins with f is less than what begins with 1."""
    small, middle, large = (uuid.UUID(int=number << 124) for number in (1, 7, 15))
    files = bounded(UUID, small, large), bounded(UUID, large, small), bounded(UUID, small, small)
    assert may(UUID, f"x = '{middle}'", *files) == [True, False, False]
    assert may(UUID, f"x IN ('{uuid.UUID(int=0)}', '{middle}')", *files) == [True, True, False]
    assert may(UUID, f"x IN ('{middle}', '{large}')", *files) == [True, True, False]
    assert may(UUID, f"x != '{small}'", *files) == [True, True, False]
    assert may(UUID, f"x < '{uuid.UUID(int=0)}'", *files) == [True, True, True]


def test_a_repeated_id_counts_last_and_order_does_not_matter():
    def bounds(*pairs: tuple[int, int]) -> list[tuple[int, bytes]]:
        return [(key, struct.pack("<i", value)) for key, value in pairs]

    lower = [bounds((2, 9), (1, 90), (1, 10)), bounds((1, 10), (2, 0), (1, 90)), bounds((3, 0))]
    batch = pa.record_batch(
        {
            "record_count": pa.array([10, 10, 10], pa.int64()),
            "null_value_counts": pa.array([[(1, 0)], [(1, 0)], [(1, 10), (2, 5), (1, 0)]], METRICS.field(2).type),
            "lower_bounds": pa.array(lower, METRICS.field("lower_bounds").type),
            "upper_bounds": pa.nulls(3, METRICS.field("upper_bounds").type),
        }
    )
    assert files_that_may_match(ask(INT, "x < 50"), batch).tolist() == [True, False, True]


def test_entries_under_a_null_map_are_not_seen():
    keys, items = pa.array([1, 1], pa.int32()), pa.array([struct.pack("<i", 90)] * 2, pa.binary())
    lower = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), keys, items, mask=pa.array([True, False]))
    batch = pa.record_batch(
        {
            "record_count": pa.array([10, 10], pa.int64()),
            "null_value_counts": pa.nulls(2, METRICS.field("null_value_counts").type),
            "lower_bounds": lower,
            "upper_bounds": pa.nulls(2, METRICS.field("upper_bounds").type),
        }
    )
    assert files_that_may_match(ask(INT, "x < 50"), batch).tolist() == [True, False]
    assert files_that_may_match(ask(INT, "x < 50"), batch.slice(1)).tolist() == [False]


def test_only_bound_expressions_are_evaluated():
    with pytest.raises(IcekeepBug, match="bind"):
        files_that_may_match(parse_where("x = 1"), batch_of([bounded(INT, 1, 2)]))


COUNTS = frozenset({"record_count", "null_value_counts"})


@for_each(
    ("type_", "where", "needed"),
    [
        (INT, "x < 5", {"lower_bounds", "upper_bounds"}),
        (INT, "x >= 5", {"lower_bounds", "upper_bounds"}),
        (INT, "x = 5", {"lower_bounds", "upper_bounds"}),
        (INT, "x != 5", {"lower_bounds", "upper_bounds", "value_counts"}),
        (INT, "x IS NULL", {"value_counts"}),
        (INT, "x IS NOT NULL", set()),
        (INT, "x > 5 AND (x IS NULL OR x < 9)", {"lower_bounds", "upper_bounds", "value_counts"}),
        (DOUBLE, "x < 5", {"nan_value_counts", "lower_bounds", "upper_bounds"}),
        (DOUBLE, IS_NAN, {"nan_value_counts"}),
        (UUID, f"x < '{uuid.UUID(int=9)}'", set()),
        (STRING, prefix("a"), {"lower_bounds", "upper_bounds"}),
    ],
)
def test_nothing_is_needed_that_decides_nothing(type_: Type, where: str | Predicate, needed: set[str]):
    assert columns_needed(ask(type_, where)) == COUNTS | needed
    assert columns_needed(ALWAYS_TRUE) == {"record_count"}


def test_chains_may_be_longer_than_the_stack():
    field = column(1, "x", INT)
    chain: Expression = ALWAYS_TRUE
    for number in range(3000):
        chain = And(BoundPredicate(OP.NOT_EQ, field, (number,)), chain)
    assert files_that_may_match(chain, batch_of([bounded(INT, 7, 7), bounded(INT, 7, 8)])).tolist() == [False, True]
    assert columns_needed(Or(chain, chain)) == COUNTS | {"lower_bounds", "upper_bounds", "value_counts"}


@st.composite
def described_files(draw: st.DrawFn, table: Sequence[Column]) -> DataFile:
    """A file as a writer describes it, or damaged."""
    described = draw(metrics_of(table, draw(st.lists(rows(table), max_size=4))))
    if draw(st.integers(0, 3)):
        return described
    noise: dict[str, Any] = {"record_count": draw(st.integers(-1, 6))}
    for name in _MAPS:
        items = st.binary(max_size=18) if "bounds" in name else st.integers(-1, 7)
        if draw(st.booleans()):
            noise[name] = draw(st.none() | st.dictionaries(st.integers(1, 3), items, max_size=3))
    return msgspec.structs.replace(described, **noise)


@given(st.data())
@cases(300)
def test_files_may_match_as_they_do_one_by_one(data: st.DataObject):
    table = data.draw(columns())
    expression = bind(data.draw(filters(table) | predicates(table)), schema_of_columns(table))
    files = data.draw(st.lists(described_files(table), max_size=5))
    expected = [file_may_match(expression, one) for one in files]
    batch = batch_of(files)
    found = files_that_may_match(expression, batch)
    assert found.dtype == np.bool_
    assert found.tolist() == expected
    assert files_that_may_match(expression, batch.slice(1)).tolist() == expected[1:]
    assert files_that_may_match(expression, batch.slice(0, 1)).tolist() == expected[:1]
    assert files_that_may_match(expression, batch_of(files, columns_needed(expression))).tolist() == expected


# Partitions


def is_in_range(field: NestedField, value: Any) -> bool:
    """Whether files can hold it: the multiple below the least number may be none of the type."""
    bits = {INT: 31, LONG: 63}.get(field.type, 256)
    return not isinstance(value, int) or -(2**bits) <= value < 2**bits


def structs_of(fields: Sequence[NestedField], tuples: Sequence[Sequence[Any]]) -> pa.StructArray:
    """Partition tuples as a manifest's batch has them; a truncated number may be beyond its type."""
    children = []
    for position, field in enumerate(fields):
        type_ = arrow_type(field.type)
        values = [values[position] for values in tuples]
        if type_ == pa.uuid():
            values = [None if value is None else value.bytes for value in values]
            children.append(pa.array(values, pa.binary(16)).cast(type_))
        elif pa.types.is_decimal(type_):
            wide = pa.array(values, pa.decimal128(38, type_.scale))
            children.append(pa.Array.from_buffers(type_, len(wide), wide.buffers()))
        else:
            children.append(pa.array(values, type_))
    return pa.StructArray.from_arrays(children, names=[str(field.field_id) for field in fields])


def test_partition_values_are_found_by_field_id():
    fields = tuple(NestedField(field_id=i, name=f"p{i}", type=INT) for i in (1000, 1001))
    tuples = structs_of(fields, [(0, 6), (6, 0), (None, None)])
    assert partitions_that_match(BoundPredicate(OP.GT, fields[1], (5,)), fields, tuples).tolist() == [
        True,
        False,
        False,
    ]
    assert partitions_that_match(BoundPredicate(OP.IS_NULL, fields[0]), fields, tuples).tolist() == [False, False, True]


def test_a_table_without_partitions_has_one_that_matches_what_is_always_true():
    empty = pa.array([{}, {}], pa.struct([]))
    assert partitions_that_match(ALWAYS_TRUE, (), empty).tolist() == [True, True]
    assert partitions_that_match(ALWAYS_FALSE, (), empty).tolist() == [False, False]


@given(st.data())
@cases(300)
def test_partitions_match_as_they_do_one_by_one(data: st.DataObject):
    table, spec = data.draw(partitioned_tables())
    schema = schema_of_columns(table)
    project = data.draw(st.sampled_from([project_inclusive, project_strict]))
    projection = project(bind(data.draw(filters(table)), schema), spec, schema)
    fields = partition_type(spec, schema).fields
    tuples = [partition_of(table, spec, row) for row in data.draw(st.lists(rows(table), max_size=5))]
    tuples = [values for values in tuples if all(map(is_in_range, fields, values))]
    expected = [partition_matches(projection, fields, values) for values in tuples]
    structs = structs_of(fields, tuples)
    assert partitions_that_match(projection, fields, structs).tolist() == expected
    assert partitions_that_match(projection, fields, structs.slice(1)).tolist() == expected[1:]
