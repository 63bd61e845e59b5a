"""Row groups and parts of files that a filter does not need are not read; no row that it leaves is lost by that."""

import io
import math
import uuid
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icekeep.spec.filters.expressions
import icekeep.spec.types
from icekeep.errors import InvalidTableError
from icekeep.formats.evaluate import matches, rows_that_match
from icekeep.formats.machine import datafusion_package
from icekeep.formats.parquet.thrift import BINARY as BYTES
from icekeep.formats.parquet.thrift import binary_bytes
from icekeep.formats.reader import SourceFile, open_reader, read_positioned
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.evaluators import row_matches
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
from icekeep.spec.schema import POS, Schema, parse_name_mapping
from icekeep.spec.types import (
    BINARY,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMPTZ,
    UUID,
    ListType,
    NestedField,
    StructType,
    Type,
    decimal,
    fixed,
)
from kit import filters as pruning_filters
from kit.cases import cases, for_each
from kit.columns import column, parquet_bytes, schema_of, table_of
from kit.data_files import options_for, write_files
from kit.examples import check_examples
from kit.filters import columns, filters, rows
from kit.filters import schema_of as schema_of_columns
from kit.spliced import with_edits
from kit.storage import MemoryStorage

OP = Operation


def table(type_: Type, *values: Any) -> pa.Table:
    """The optional column x with id 1."""
    return table_of(schema_of(column(1, "x", type_)), [{"x": value} for value in values])


def ask(type_: Type, where: str | Predicate) -> Expression:
    return bind(parse_where(where) if isinstance(where, str) else where, schema_of(column(1, "x", type_)))


def found(type_: Type, where: str | Predicate, *values: Any) -> list[bool]:
    return rows_that_match(ask(type_, where), table(type_, *values)).to_pylist()


def prefix(start: Any, *, negated: bool = False) -> Predicate:
    return Predicate(OP.NOT_STARTS_WITH if negated else OP.STARTS_WITH, "x", (start,))


IS_NAN, NOT_NAN = Predicate(OP.IS_NAN, "x"), Predicate(OP.NOT_NAN, "x")


@for_each(
    ("where", "expected"),
    [
        ("x < 5", [True, False, False, False]), ("x <= 5", [True, True, False, False]),
        ("x > 5", [False, False, True, False]), ("x >= 5", [False, True, True, False]),
        ("x = 5", [False, True, False, False]), ("x != 5", [True, False, True, False]),
        ("x IN (4, 5)", [True, True, False, False]), ("x NOT IN (4, 5)", [False, False, True, False]),
        ("x IS NULL", [False, False, False, True]), ("x IS NOT NULL", [True, True, True, False]),
    ],
)  # fmt: skip
def test_nothing_but_is_null_is_true_of_null(where: str, expected: list[bool]):
    for type_ in (INT, LONG, FLOAT, DOUBLE):
        assert found(type_, where, 4, 5, 6, None) == expected
    price = decimal(9, 2)
    assert found(price, where, Decimal("4.00"), Decimal("5.00"), Decimal("6.00"), None) == expected


@pytest.mark.parametrize("type_", [FLOAT, DOUBLE])
def test_nan_is_unequal_and_unordered(type_: Type):
    for where in ("x < 5", "x <= 5", "x > 5", "x >= 5", "x = 5", "x IN (5, 6)", "x IS NULL", NOT_NAN):
        assert found(type_, where, math.nan) == [False]
    for where in ("x != 5", "x NOT IN (5, 6)", "x IS NOT NULL", IS_NAN):
        assert found(type_, where, math.nan) == [True]
    assert found(type_, NOT_NAN, None, 0.0, math.inf) == [True, True, True]
    assert found(type_, IS_NAN, None, 0.0, math.inf) == [False, False, False]


@pytest.mark.parametrize("literal", [0.0, -0.0])
def test_zero_equals_minus_zero(literal: float):
    for operation, literals in ((OP.EQ, (literal,)), (OP.IN, (literal, 1.0)), (OP.GT_EQ, (literal,))):
        assert found(DOUBLE, Predicate(operation, "x", literals), 0.0, -0.0) == [True, True]
    for operation, literals in ((OP.NOT_EQ, (literal,)), (OP.NOT_IN, (literal, 1.0)), (OP.LT, (literal,))):
        assert found(FLOAT, Predicate(operation, "x", literals), 0.0, -0.0) == [False, False]


def test_a_literal_that_is_no_unicode_is_compared_by_code_points():
    predicate = BoundPredicate(OP.LT, column(1, "x", STRING), ("\ud800",))
    values = ("\ud7ff", "\ue000", "\U00010000")
    expected = [row_matches(predicate, {1: value}) for value in values]
    assert rows_that_match(predicate, table(STRING, *values)).to_pylist() == expected == [True, False, False]


def test_text_and_bytes_start_with_a_prefix_or_not():
    for type_, start, values in (
        (STRING, "a_%", ("a_%c", "a_%", "a_", "axxc", "ba_%", None)),
        (BINARY, b"a\xff", (b"a\xffc", b"a\xff", b"a", b"a\xfe", b"ba\xff", None)),
    ):
        assert found(type_, prefix(start), *values) == [True, True, False, False, False, False]
        assert found(type_, prefix(start, negated=True), *values) == [False, False, True, True, True, False]


def test_uuids_are_ordered_as_unsigned_bytes():
    small, large = (uuid.UUID(int=number << 124) for number in (1, 15))
    assert found(UUID, f"x > '{small}'", small, large, None) == [False, True, False]
    assert found(UUID, f"x IN ('{small}', '{uuid.UUID(int=0)}')", small, large, None) == [True, False, False]


def test_decimals_of_any_precision_are_compared_exactly():
    widest = decimal(38, 0)
    most, less, least = (Decimal(digits) for digits in ("9" * 38, "9" * 37 + "8", "-" + "9" * 38))
    assert found(widest, f"x < {most}", most, less, least) == [False, True, True]
    beyond = BoundPredicate(OP.GT_EQ, column(1, "x", widest), (Decimal("-1" + "0" * 38),))
    assert rows_that_match(beyond, table(widest, least, None)).to_pylist() == [True, False]


@for_each(
    "type_",
    [
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.large_string()),
    ],
)
def test_strings_may_be_large_views_or_in_a_dictionary(type_: pa.DataType):
    values = pa.array(["a", "b", None, "ba"]).cast(type_)
    for where, expected in (
        ("x > 'a'", [False, True, False, True]),
        ("x IN ('a', 'ba')", [True, False, False, True]),
        (prefix("b"), [False, True, False, True]),
        ("x IS NULL", [False, False, True, False]),
    ):
        for data in (values, pa.chunked_array([values.slice(0, 1), values.slice(1)])):
            assert matches(ask(STRING, where), lambda _, data=data: data, 4).tolist() == expected


def test_null_in_a_dictionary_is_null():
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))
    assert matches(ask(STRING, "x IS NULL"), lambda _: values, 3).tolist() == [False, True, True]
    assert matches(ask(STRING, "x != 'b'"), lambda _: values, 3).tolist() == [True, False, False]


def test_numbers_may_be_in_a_dictionary():
    values = pa.array([5, None, 6, 5], pa.int64()).dictionary_encode()
    assert matches(ask(LONG, "x > 5"), lambda _: values, 4).tolist() == [False, False, True, False]
    assert matches(ask(LONG, "x IN (5, 7)"), lambda _: values, 4).tolist() == [True, False, False, True]


def test_only_undecided_predicates_are_evaluated():
    field = column(1, "x", INT)
    asked: list[Operation] = []

    def give(predicate: BoundPredicate) -> pa.Array:
        asked.append(predicate.operation)
        return pa.array([1, 2], pa.int32())

    none, all_ = BoundPredicate(OP.LT, field, (0,)), BoundPredicate(OP.GT, field, (0,))
    assert not matches(And(none, all_), give, 2).any()
    assert matches(Or(all_, none), give, 2).all()
    assert asked == [OP.LT, OP.GT]


@pytest.mark.slow
def test_chains_may_be_longer_than_the_stack():
    field = column(1, "x", INT)
    chain: Expression = ALWAYS_FALSE
    for number in range(3000):
        chain = Or(chain, BoundPredicate(OP.EQ, field, (number,)))
    assert rows_that_match(chain, table(INT, 7, -1)).to_pylist() == [True, False]


def test_a_field_that_the_table_lacks_is_null():
    data = table_of(schema_of(column(2, "y", INT)), [{"y": 1}, {"y": None}])
    assert rows_that_match(ask(INT, "x IS NULL"), data).to_pylist() == [True, True]
    assert rows_that_match(ask(INT, "x != 1"), data).to_pylist() == [False, False]
    assert rows_that_match(ask(DOUBLE, NOT_NAN), data).to_pylist() == [True, True]


INNER = StructType(
    (column(3, "key", UUID), column(4, "n", INT), column(5, "tags", ListType(element_id=6, element=STRING)))
)
NESTED = schema_of(column(1, "a", StructType((column(2, "b", INNER),))))
KEY = uuid.UUID(int=7)


def nested(where: str) -> list[bool]:
    content = [
        {"a": {"b": {"key": KEY, "n": 1, "tags": []}}},
        {"a": {"b": {"key": None, "n": 2, "tags": None}}},
        {"a": {"b": None}},
        {"a": None},
    ]
    data = table_of(NESTED, content)
    expression = bind(parse_where(where), NESTED)
    at_once = rows_that_match(expression, data).to_pylist()
    in_chunks = rows_that_match(expression, pa.concat_tables([data.slice(0, 1), data.slice(1, 2), data.slice(3)]))
    assert in_chunks.to_pylist() == at_once
    return at_once


def test_what_lies_below_a_null_struct_is_not_seen():
    child = pa.array([5, 5], pa.int32())
    target = pa.field("n", pa.int32(), metadata={b"PARQUET:field_id": b"1"})
    structs = pa.StructArray.from_arrays([child], fields=[target], mask=pa.array([True, False]))
    field = NestedField(field_id=1, name="s.n", type=INT)
    data = pa.table({"s": structs})
    assert rows_that_match(BoundPredicate(OP.EQ, field, (5,)), data).to_pylist() == [False, True]
    assert rows_that_match(BoundPredicate(OP.EQ, field, (5,)), data.slice(1)).to_pylist() == [True]


@pytest.mark.slow
@given(st.data())
@cases(300)
def test_rows_match_as_they_do_one_by_one(data: st.DataObject):
    table_columns = data.draw(columns())
    schema = schema_of_columns(table_columns)
    expression = bind(data.draw(filters(table_columns)), schema)
    content = data.draw(st.lists(rows(table_columns), max_size=6))
    named = [{c.field.name: row[c.field.field_id] for c in table_columns} for row in content]
    arrow = table_of(schema, named)
    expected = [row_matches(expression, row) for row in content]
    assert rows_that_match(expression, arrow).to_pylist() == expected
    assert rows_that_match(expression, arrow.slice(1)).to_pylist() == expected[1:]
    mask = matches(expression, lambda p: arrow.column(p.field.name).combine_chunks(), len(content))
    assert mask.dtype == np.bool_
    assert mask.tolist() == expected


def test_examples():
    check_examples("formats/filter.txt", icekeep.spec.filters.expressions, icekeep.spec.types, globals())


LOCATION = "memory:/t/f"
NUMBERS = schema_of(column(1, "n", LONG))


def stored(table: pa.Table, row_group_size: int = 2, **options: Any) -> MemoryStorage:
    out, storage = io.BytesIO(), MemoryStorage()
    pq.write_table(table, out, row_group_size=row_group_size, **options)
    storage.create(LOCATION, out.getvalue())
    return storage


def ask_of_part(schema: Schema, where: str) -> Expression:
    return bind(parse_where(where), schema)


def read(
    storage: MemoryStorage,
    schema: Schema,
    needed: Expression,
    parts: Sequence[int] | None = None,
    location: str = LOCATION,
    **source: Any,
) -> list[dict[str, Any]]:
    """The rows that are read, with their positions."""
    facts = SourceFile(**{"location": location, **source})
    asked = schema_of(POS, *schema.fields)
    found = [table for _, table in read_positioned(storage, facts, asked, parts, needed=needed)]
    return [row for table in found for row in table.to_pylist()]


def positions(*args: Any, **source: Any) -> list[int]:
    return [row["_pos"] for row in read(*args, **source)]


@cases(400)
@given(st.data())
def test_no_row_that_matches_is_lost(data):
    table = data.draw(pruning_filters.columns())
    schema = pruning_filters.schema_of(table)
    rows = data.draw(st.lists(pruning_filters.rows(table), max_size=9))
    bound = bind(data.draw(pruning_filters.filters(table)), schema)
    names = {field.field_id: field.name for field in schema.fields}
    whole = table_of(schema, [{names[i]: value for i, value in row.items()} for row in rows])
    storage = stored(whole, data.draw(st.integers(1, 4)), write_statistics=data.draw(st.sampled_from([True, ["c1"]])))
    found = read(storage, schema, bound)
    everything = read(storage, schema, ALWAYS_TRUE)
    assert [repr(row) for row in found] == [repr(everything[row["_pos"]]) for row in found]
    wanted = {number for number, row in enumerate(rows) if row_matches(bound, row)}
    assert wanted <= {row["_pos"] for row in found}


@for_each(
    ("where", "expected"),
    [
        ("n < 20", [0, 1]),
        ("n <= 20", [0, 1, 2, 3]),
        ("n = 30", [2, 3]),
        ("n > 50 or n = 0", [0, 1, 6, 7]),
        ("n is null", [6, 7]),
        ("n is not null and n != 25", [0, 1, 2, 3, 6, 7]),
        ("n > 60", []),
    ],
)
def test_only_the_row_groups_that_a_filter_needs_are_read(where, expected):
    storage = stored(table_of(NUMBERS, [{"n": n} for n in (0, 10, 20, 30, 25, 25, None, 60)]))
    assert positions(storage, NUMBERS, ask_of_part(NUMBERS, where)) == expected
    some = [n for n in expected if n < 4]
    assert positions(storage, NUMBERS, ask_of_part(NUMBERS, where), parts=[0, 1]) == some


def test_files_of_ours_are_read_in_part_too():
    storage = MemoryStorage()
    rows = [{"n": (number * 0x9E3779B97F4A7C15) % 2**40 + number * 2**45} for number in range(20_000)]
    tables = [table_of(NUMBERS, rows[start : start + 2000]) for start in range(0, 20_000, 2000)]
    [file] = write_files(storage, NUMBERS, tables, options_for(row_group_size_bytes=4096))
    assert len(file.split_offsets) > 3
    wanted = rows[7777]["n"]
    found = read(storage, NUMBERS, ask_of_part(NUMBERS, f"n = {wanted}"), location=file.file_path)
    assert [row["_pos"] for row in found if row["n"] == wanted] == [7777]
    assert len(found) < 12_000


@pytest.mark.parametrize("file_format", ["ORC", "AVRO"])
def test_files_that_say_nothing_of_their_parts_are_read_whole(file_format):
    storage = MemoryStorage()
    [file] = write_files(
        storage, NUMBERS, [table_of(NUMBERS, [{"n": 1}, {"n": 2}])], options_for(file_format), directory="memory:/t"
    )
    found = read(storage, NUMBERS, ask_of_part(NUMBERS, "n > 7"), location=file.file_path, file_format=file_format)
    assert [row["n"] for row in found] == [1, 2]


def test_promoted_column_is_compared_in_current_type():
    before = schema_of(column(1, "n", INT))
    storage = stored(table_of(before, [{"n": n} for n in (1, 2, 3, 2**31 - 1)]))
    assert positions(storage, NUMBERS, ask_of_part(NUMBERS, "n > 2147483646")) == [2, 3]
    assert positions(storage, NUMBERS, ask_of_part(NUMBERS, "n > 2147483648")) == []


def test_a_column_that_the_file_lacks_rules_nothing_out():
    now = schema_of(*NUMBERS.fields, column(2, "later", LONG))
    storage = stored(table_of(NUMBERS, [{"n": n} for n in range(4)]))
    assert positions(storage, now, ask_of_part(now, "later is null and n < 2")) == [0, 1]
    assert positions(storage, now, ask_of_part(now, "later = 7")) == [0, 1, 2, 3]


def test_a_column_is_found_by_its_id_and_not_by_its_name():
    stored_as = schema_of(column(1, "a", LONG), column(2, "b", LONG))
    now = schema_of(column(2, "a", LONG))
    storage = stored(table_of(stored_as, [{"a": n, "b": 100 - n} for n in range(6)]))
    assert positions(storage, now, ask_of_part(now, "a > 97")) == [0, 1, 2, 3]


def test_a_file_without_ids_is_judged_by_the_ids_of_its_mapping():
    storage = stored(pa.table({"old": range(6)}))
    mapping = parse_name_mapping('[{"field-id": 1, "names": ["old"]}]')
    assert positions(storage, NUMBERS, ask_of_part(NUMBERS, "n > 3"), name_mapping=mapping) == [4, 5]


def test_fields_of_structs_are_judged_and_those_of_lists_are_not():
    nested = schema_of(
        column(1, "l", ListType(element_id=2, element=LONG)), column(3, "s", StructType((column(4, "x", LONG),)))
    )
    rows = [{"l": [9 - n], "s": None if n == 5 else {"x": n}} for n in range(6)]
    storage = stored(table_of(nested, rows))
    assert positions(storage, nested, ask_of_part(nested, "s.x > 3")) == [4, 5]
    assert positions(storage, nested, ask_of_part(nested, "s.x is null")) == [4, 5]
    with open_reader(storage, LOCATION, "PARQUET") as reader:
        metrics = reader.part_metrics(reader.schema, {2: LONG, 4: LONG})
    assert [(*one.lower_bounds, *one.value_counts) for one in metrics] == [(4, 4)] * 3


def test_timestamps_of_96_bits_have_no_order():
    times = schema_of(column(1, "t", TIMESTAMPTZ))
    whole = table_of(times, [{"t": hour * 3_600_000_000} for hour in range(4)])
    storage = stored(whole, use_deprecated_int96_timestamps=True)
    assert positions(storage, times, ask_of_part(times, "t < '1970-01-01T00:30:00+00:00'")) == [0, 1, 2, 3]
    assert positions(stored(whole), times, ask_of_part(times, "t < '1970-01-01T00:30:00+00:00'")) == [0, 1]


def test_an_upper_bound_of_texts_may_have_been_cut():
    texts = schema_of(column(1, "s", STRING))
    whole = table_of(texts, [{"s": s} for s in ("a", "b", "c", "d")])
    storage = stored(whole)
    # A bound "b" that stands for a longer text.
    assert positions(storage, texts, ask_of_part(texts, "s = 'bcd'")) == [0, 1]
    assert positions(storage, texts, ask_of_part(texts, "s > 'c'")) == [2, 3]
    assert positions(storage, texts, ask_of_part(texts, "s = 'e'")) == []


@for_each(
    ("type_", "values"),
    [
        (decimal(38, 2), (Decimal("1e30"), Decimal(-7))),
        (LONG, (2000, -7)),
        (INT, (2000, -7)),
        (DOUBLE, (2000.0, -7.0)),
        (FLOAT, (2000.0, -7.0)),
    ],
)
def test_bounds_of_another_length_than_values_have_say_nothing(type_, values):
    """DataFusion cuts those of more than 64 bytes; pyarrow, asked for statistics that are too short, ends the process."""
    schema = schema_of(column(1, "x", type_), column(2, "n", LONG))
    rows = [{"x": values[0], "n": 1}, {"x": values[1], "n": 2}]
    data = parquet_bytes(table_of(schema, rows))
    for cut in ((5,), (6,), (1, 2), (5, 6)):
        for bound in (b"", b"\0" * 3, b"\0" * 17):
            bounds = {id_: (BYTES, binary_bytes(bound)) for id_ in cut}
            storage = MemoryStorage()
            storage.create(LOCATION, with_edits(data, 0, statistics=bounds))
            with open_reader(storage, LOCATION, "PARQUET") as reader:
                [metrics] = reader.part_metrics(reader.schema, {1: type_, 2: LONG})
            assert metrics.value_counts == metrics.null_value_counts | {2: 2} == {2: 2}
            assert (set(metrics.lower_bounds), set(metrics.upper_bounds)) == ({2}, {2})
            # pyarrow looks at some of them when it decodes the values, and calls the file damaged.
            with suppress(InvalidTableError):
                assert positions(storage, schema, ask_of_part(schema, "x > 1000")) == [0, 1]
                assert positions(storage, schema, ask_of_part(schema, "x > 1000 and n > 2")) == []
    storage = stored(table_of(schema, rows), 1)
    assert positions(storage, schema, ask_of_part(schema, "x > 1000")) == [0]


def test_fixed_bounds_cut_by_datafusion_are_ignored(tmp_path):
    schema = schema_of(column(1, "x", fixed(100)))
    values = [b"a" * 100, b"b" * 100]
    path = tmp_path / "f.parquet"
    datafusion_package().SessionContext().from_arrow(pa.table({"x": pa.array(values, pa.binary(100))})).write_parquet(
        path
    )
    storage = MemoryStorage()
    storage.create(LOCATION, path.read_bytes())
    needed = bind(Predicate(Operation.EQ, "x", (values[1],)), schema)
    mapping = parse_name_mapping('[{"field-id": 1, "names": ["x"]}]')
    assert positions(storage, schema, needed, name_mapping=mapping) == [0, 1]


def test_what_may_hold_nan_is_not_ruled_out_by_bounds():
    numbers = schema_of(column(1, "x", DOUBLE))
    storage = stored(table_of(numbers, [{"x": x} for x in (1.0, float("nan"), 2.0, 3.0, None, None)]))
    assert positions(storage, numbers, ask_of_part(numbers, "x > 2.5")) == [2, 3]
    assert set(positions(storage, numbers, ask_of_part(numbers, "x is nan"))) >= {0, 1}


def test_two_columns_of_one_id_say_nothing():
    twice = pa.schema([pa.field(name, pa.int64(), metadata={"PARQUET:field_id": "1"}) for name in ("a", "b")])
    storage = stored(pa.table({"a": [1, 2], "b": [8, 9]}, schema=twice))
    with open_reader(storage, LOCATION, "PARQUET") as reader:
        [metrics] = reader.part_metrics(reader.schema, {1: LONG})
    assert (metrics.record_count, metrics.lower_bounds) == (2, {})
