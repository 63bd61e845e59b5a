"""Pruning of many files at once, against one file at a time and against the evaluator that it replaced (`reference_evaluator`).

A file that is pruned wrongly is a row lost.
"""

import math
import struct
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.arrow.schema import arrow_type
from icekeep.planning.manifests import METRICS
from icekeep.planning.prune import (
    columns_needed,
    decode_bounds,
    encode_literals,
    files_that_may_match,
    files_that_must_match,
    in_java_order,
    partitions_that_match,
)
from icekeep.spec.filters import evaluators, expressions
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.evaluators import (
    file_may_match,
    file_must_match,
    partition_matches,
    project_inclusive,
    project_strict,
    residual,
    row_matches,
)
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
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.partitioning import partition_type
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
    UUID,
    ListType,
    NestedField,
    Type,
    decimal,
    fixed,
)
from icekeep.spec.values import minimal_twos_complement, value_from_bytes, value_to_bytes
from kit import pruning as reference
from kit.cases import cases, for_each
from kit.columns import column, schema_of
from kit.filters import (
    COLUMN_TYPES,
    Column,
    columns,
    filters,
    metrics_of,
    partition_of,
    partitioned_tables,
    pool,
    predicates,
    rows,
)
from kit.filters import schema_of as schema_of_columns
from kit.pruning import MAPS, batch_of, random_case

pytestmark = pytest.mark.slow


CASES = 1500


def assert_agrees(seed: int) -> None:
    case = random_case(seed)
    bound, fields = case.bound, case.schema.fields
    may = [reference.file_may_match(bound, file) for file in case.files]
    assert [evaluators.file_may_match(bound, file) for file in case.files] == may, seed
    assert files_that_may_match(bound, batch_of(case.files)).tolist() == may, seed
    assert files_that_may_match(bound, batch_of(case.files, columns_needed(bound))).tolist() == may, seed
    assert [evaluators.file_must_match(bound, file) for file in case.files] == [
        reference.file_must_match(bound, file) for file in case.files
    ], seed
    strict = dict.fromkeys(expressions.predicates(bound), ALWAYS_FALSE)
    wanted = columns_needed(bound, strictly=True)
    assert files_that_must_match(bound, batch_of(case.files, wanted), (), strict).tolist() == [
        reference.file_must_match(bound, file) for file in case.files
    ], seed
    for summaries in case.summaries:
        expected = reference.manifest_may_match(bound, fields, summaries)
        assert evaluators.manifest_may_match(bound, fields, summaries) is expected, seed
    for row in case.rows:
        assert evaluators.row_matches(bound, row) is reference.row_matches(bound, row), seed
        values = tuple(row.values())
        assert evaluators.partition_matches(bound, fields, values) is reference.partition_matches(
            bound, fields, values
        ), seed


def test_the_evaluator_agrees_with_its_reference():
    for seed in range(CASES):
        assert_agrees(seed)


OP = Operation


def ask(type_: Type, where: str | Predicate) -> Expression:
    """A filter that is bound to the optional column x with id 1."""
    return bind(parse_where(where) if isinstance(where, str) else where, schema_of(column(1, "x", type_)))


def bounded(type_: Type, lower: Any, upper: Any) -> DataFile:
    return DataFile(
        file_path="f",
        file_format="parquet",
        spec_id=0,
        record_count=10,
        file_size_in_bytes=1,
        value_counts={1: 10},
        null_value_counts={1: 0},
        lower_bounds={1: value_to_bytes(type_, lower)},
        upper_bounds={1: value_to_bytes(type_, upper)},
    )


def may(type_: Type, where: str, *files: DataFile) -> list[bool]:
    return files_that_may_match(ask(type_, where), batch_of(files)).tolist()


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
        (DOUBLE, Predicate(OP.IS_NAN, "x"), {"nan_value_counts"}),
        (UUID, f"x < '{uuid.UUID(int=9)}'", set()),
        (STRING, "x LIKE 'a%'", {"lower_bounds", "upper_bounds"}),
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
    for name in MAPS:
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


def test_unpartitioned_table_matches_constant_filters():
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


@given(st.data())
@cases(300)
def test_files_must_match_by_partition_or_metrics(data: st.DataObject):
    """Where they must, all rows do; and it is said wherever the residual of a partition is decided by metrics."""
    table, spec = data.draw(partitioned_tables())
    schema = schema_of_columns(table)
    bound = bind(data.draw(filters(table)), schema)
    strict = {one: project_strict(one, spec, schema) for one in expressions.predicates(bound)}
    fields = partition_type(spec, schema).fields
    drawn = data.draw(st.lists(rows(table), min_size=1, max_size=5))
    partition = partition_of(table, spec, drawn[0])
    if not all(map(is_in_range, fields, partition)):
        return
    held = [row for row in drawn if repr(partition_of(table, spec, row)) == repr(partition)]
    file = data.draw(metrics_of(table, held))
    if data.draw(st.booleans()):
        file = msgspec.structs.replace(file, lower_bounds=None, upper_bounds=None, null_value_counts=None)
    batch = batch_of([file], columns_needed(bound, strictly=True))
    batch = batch.append_column("partition", structs_of(fields, [partition]))
    [must] = files_that_must_match(bound, batch, fields, strict).tolist()
    assert not must or all(row_matches(bound, row) for row in held)
    assert not must or file_must_match(residual(bound, spec, schema, partition), file)


# Bounds


WIDE = decimal(38, 2)


TYPES = (*COLUMN_TYPES, WIDE)


def decoded(type_: Type, *bounds: bytes | None) -> list[Any]:
    return decode_bounds(type_, pa.array(bounds, pa.binary())).to_pylist()


def known(type_: Type, *bounds: bytes) -> list[bool]:
    return [value is not None for value in decoded(type_, *bounds)]


def test_a_bound_that_is_not_there_is_unknown():
    for type_ in TYPES:
        assert decoded(type_, None, None) == [None, None]
        assert decoded(type_) == []


def test_whole_numbers_have_the_width_of_their_type():
    four, eight = struct.pack("<i", -2), struct.pack("<q", -(2**40))
    assert decoded(INT, four, eight, b"", b"\x01") == [-2, None, None, None]
    assert decoded(DATE, four, eight) == [-2, None]
    assert decoded(TIME, eight, four) == [-(2**40), None]
    assert decoded(LONG, eight, four, b"12345") == [-(2**40), -2, None]


def test_four_byte_timestamp_bounds_are_days():
    day = struct.pack("<i", -2)
    assert decoded(TIMESTAMP, day) == [-2 * 86_400_000_000]
    assert decoded(TIMESTAMP_NS, day) == [-2 * 86_400_000_000_000]
    assert decoded(TIMESTAMPTZ, day) == [None]


@pytest.mark.parametrize("type_", [TIMESTAMP, TIMESTAMP_NS])
def test_days_beyond_the_range_of_a_timestamp_are_unknown(type_: Type):
    last = (2**63 - 1) // (86_400 * (10**6 if type_ == TIMESTAMP else 10**9))
    for days in (last, last + 1, -last, -last - 1, 2**31 - 1, -(2**31)):
        bound = struct.pack("<i", days)
        assert known(type_, bound) == [understood(type_, bound) is not None] == [abs(days) <= last]


def test_promoted_float_bound_is_read_and_zero_has_no_sign():
    four, eight = struct.pack("<f", 0.1), struct.pack("<d", 0.1)
    assert decoded(DOUBLE, four, eight, b"") == [struct.unpack("<f", four)[0], 0.1, None]
    assert decoded(FLOAT, four, eight) == [struct.unpack("<f", four)[0], None]
    [zero, infinite] = decoded(DOUBLE, struct.pack("<d", -0.0), struct.pack("<d", -math.inf))
    assert math.copysign(1, zero) == 1
    assert infinite == -math.inf


def test_nan_is_kept_also_one_that_signals():
    quiet, signals = struct.pack("<f", math.nan), bytes.fromhex("0100807f")
    assert all(math.isnan(value) for type_ in (FLOAT, DOUBLE) for value in decoded(type_, quiet, signals))


def test_a_boolean_is_one_byte():
    assert decoded(BOOLEAN, b"\x00", b"\x01", b"\x02", b"", b"\x00\x00") == [0, 1, 1, None, None]


def test_decimals_are_ordered_whatever_their_number_of_bytes():
    numbers = [-(2**127) + 1, -(10**37), -129, -128, -1, 0, 1, 127, 128, 10**37, 2**127 - 1]
    shortest = [minimal_twos_complement(number) for number in numbers]
    padded = [number.to_bytes(32, "big", signed=True) for number in numbers]
    keys = decoded(WIDE, *shortest)
    assert keys == sorted(keys) == decoded(WIDE, *padded)
    assert len(set(keys)) == len(numbers)


def test_oversized_or_empty_decimal_bounds_are_unknown():
    beyond = [number.to_bytes(17, "big", signed=True) for number in (2**127, -(2**127), -(2**127) - 1)]
    assert known(WIDE, *beyond, (-(2**127)).to_bytes(16, "big", signed=True)) == [False] * 4
    assert known(WIDE, b"", b"\x00" * 33, b"\xff" * 33, b"\xff" * 32) == [False, False, False, True]


def test_text_must_be_utf8():
    damaged = (b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80")
    assert decoded(STRING, b"", b"a", *damaged, "é".encode()) == [b"", b"a", *[None] * len(damaged), "é".encode()]
    assert decoded(BINARY, *damaged) == list(damaged)


def test_fixed_bounds_may_be_short_and_uuids_may_not():
    assert decoded(fixed(2), b"", b"a", b"ab", b"abc") == [b"", b"a", b"ab", None]
    assert known(UUID, b"a" * 15, b"a" * 16, b"a" * 17) == [False, True, False]


def test_types_without_a_binary_form_have_no_bounds():
    assert decoded(ListType(element_id=2, element=INT), b"1234") == [None]


def test_surrogate_literal_sorts_by_code_point():
    [low, literal, high] = encode_literals(STRING, ["\ud7ff", "\ud800", "\ue000"]).to_pylist()
    assert low < literal < high


def test_java_compares_uuids_as_two_signed_longs():
    in_order = [(8, 8), (8, 0), (15, 15), (0, 8), (0, 0), (1, 8), (1, 15), (1, 0)]
    bounds = pa.array([uuid.UUID(int=high << 124 | low << 60).bytes for high, low in in_order] + [None], pa.binary())
    for uuids in (bounds, bounds.slice(3)):
        keys = in_java_order(decode_bounds(UUID, uuids)).to_pylist()
        assert keys[-1] is None
        assert keys[:-1] == sorted(keys[:-1])
    assert len(in_java_order(decode_bounds(UUID, bounds.slice(0, 0)))) == 0


def understood(type_: Type, bound: bytes) -> Any:
    try:
        return value_from_bytes(type_, bound)
    except InvalidTableError:
        return None


def some_bytes(type_: Type) -> st.SearchStrategy[bytes]:
    """Bounds of values, as they are, cut, longer, or of any bytes."""
    own = pool(type_).map(lambda value: value_to_bytes(type_, value))  # type: ignore[arg-type]
    return own | own.map(lambda b: b[:-1]) | own.map(lambda b: b + b"\xff") | st.binary(max_size=34)


@given(st.data())
@cases(300)
def test_bounds_are_known_and_ordered_as_their_values_are(data: st.DataObject):
    type_ = data.draw(st.sampled_from(TYPES))
    bounds = data.draw(st.lists(some_bytes(type_), min_size=2, max_size=6))
    values = [understood(type_, bound) for bound in bounds]
    array = decode_bounds(type_, pa.array([b"before", *bounds, None], pa.binary()).slice(1, len(bounds)))
    assert [key is not None for key in array.to_pylist()] == [value is not None for value in values]
    for position, value in enumerate(values):
        if value is None:
            continue
        others = [None if other is None else (other < value, other == value) for other in values]
        is_less, is_equal = (pc.less(array, array[position]), pc.equal(array, array[position]))
        found = zip(is_less.to_pylist(), is_equal.to_pylist(), strict=True)
        assert [None if less is None else (less, equal) for less, equal in found] == others


@given(st.data())
def test_literals_compare_with_bounds_of_their_value(data: st.DataObject):
    type_ = data.draw(st.sampled_from(TYPES))
    values = data.draw(st.lists(pool(type_).filter(lambda value: value == value), min_size=1, max_size=4))
    bounds = decode_bounds(type_, pa.array([value_to_bytes(type_, value) for value in values], pa.binary()))
    assert pc.all(pc.equal(bounds, encode_literals(type_, values))).as_py()
