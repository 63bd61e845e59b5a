"""Row groups that a filter does not need are not read; no row that it leaves is lost by that."""

import io
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError
from icekeep.formats.machine import datafusion_package
from icekeep.formats.parquet.thrift import BINARY, binary_bytes
from icekeep.formats.reader import SourceFile, open_reader, read_positioned
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.evaluators import row_matches
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression, Operation, Predicate
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.schema import POS, Schema, parse_name_mapping
from icekeep.spec.types import DOUBLE, FLOAT, INT, LONG, STRING, TIMESTAMPTZ, ListType, StructType, decimal, fixed
from kit import filters
from kit.cases import cases, for_each
from kit.columns import column, parquet_bytes, schema_of, table_of
from kit.data_files import options_for, write_files
from kit.spliced import with_edits
from kit.storage import MemoryStorage

LOCATION = "memory:/t/f"
NUMBERS = schema_of(column(1, "n", LONG))


def stored(table: pa.Table, row_group_size: int = 2, **options: Any) -> MemoryStorage:
    out, storage = io.BytesIO(), MemoryStorage()
    pq.write_table(table, out, row_group_size=row_group_size, **options)
    storage.create(LOCATION, out.getvalue())
    return storage


def ask(schema: Schema, where: str) -> Expression:
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
    table = data.draw(filters.columns())
    schema = filters.schema_of(table)
    rows = data.draw(st.lists(filters.rows(table), max_size=9))
    bound = bind(data.draw(filters.filters(table)), schema)
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
    assert positions(storage, NUMBERS, ask(NUMBERS, where)) == expected
    some = [n for n in expected if n < 4]
    assert positions(storage, NUMBERS, ask(NUMBERS, where), parts=[0, 1]) == some


def test_files_of_ours_are_read_in_part_too():
    storage = MemoryStorage()
    rows = [{"n": (number * 0x9E3779B97F4A7C15) % 2**40 + number * 2**45} for number in range(20_000)]
    tables = [table_of(NUMBERS, rows[start : start + 2000]) for start in range(0, 20_000, 2000)]
    [file] = write_files(storage, NUMBERS, tables, options_for(row_group_size_bytes=4096))
    assert len(file.split_offsets) > 3
    wanted = rows[7777]["n"]
    found = read(storage, NUMBERS, ask(NUMBERS, f"n = {wanted}"), location=file.file_path)
    assert [row["_pos"] for row in found if row["n"] == wanted] == [7777]
    assert len(found) < 12_000


@pytest.mark.parametrize("file_format", ["ORC", "AVRO"])
def test_files_that_say_nothing_of_their_parts_are_read_whole(file_format):
    storage = MemoryStorage()
    [file] = write_files(
        storage, NUMBERS, [table_of(NUMBERS, [{"n": 1}, {"n": 2}])], options_for(file_format), directory="memory:/t"
    )
    found = read(storage, NUMBERS, ask(NUMBERS, "n > 7"), location=file.file_path, file_format=file_format)
    assert [row["n"] for row in found] == [1, 2]


def test_a_column_that_was_promoted_is_compared_as_what_it_is_now():
    before = schema_of(column(1, "n", INT))
    storage = stored(table_of(before, [{"n": n} for n in (1, 2, 3, 2**31 - 1)]))
    assert positions(storage, NUMBERS, ask(NUMBERS, "n > 2147483646")) == [2, 3]
    assert positions(storage, NUMBERS, ask(NUMBERS, "n > 2147483648")) == []


def test_a_column_that_the_file_lacks_rules_nothing_out():
    now = schema_of(*NUMBERS.fields, column(2, "later", LONG))
    storage = stored(table_of(NUMBERS, [{"n": n} for n in range(4)]))
    assert positions(storage, now, ask(now, "later is null and n < 2")) == [0, 1]
    assert positions(storage, now, ask(now, "later = 7")) == [0, 1, 2, 3]


def test_a_column_is_found_by_its_id_and_not_by_its_name():
    stored_as = schema_of(column(1, "a", LONG), column(2, "b", LONG))
    now = schema_of(column(2, "a", LONG))
    storage = stored(table_of(stored_as, [{"a": n, "b": 100 - n} for n in range(6)]))
    assert positions(storage, now, ask(now, "a > 97")) == [0, 1, 2, 3]


def test_a_file_without_ids_is_judged_by_the_ids_of_its_mapping():
    storage = stored(pa.table({"old": range(6)}))
    mapping = parse_name_mapping('[{"field-id": 1, "names": ["old"]}]')
    assert positions(storage, NUMBERS, ask(NUMBERS, "n > 3"), name_mapping=mapping) == [4, 5]


def test_fields_of_structs_are_judged_and_those_of_lists_are_not():
    nested = schema_of(
        column(1, "l", ListType(element_id=2, element=LONG)), column(3, "s", StructType((column(4, "x", LONG),)))
    )
    rows = [{"l": [9 - n], "s": None if n == 5 else {"x": n}} for n in range(6)]
    storage = stored(table_of(nested, rows))
    assert positions(storage, nested, ask(nested, "s.x > 3")) == [4, 5]
    assert positions(storage, nested, ask(nested, "s.x is null")) == [4, 5]
    with open_reader(storage, LOCATION, "PARQUET") as reader:
        metrics = reader.part_metrics(reader.schema, {2: LONG, 4: LONG})
    assert [(*one.lower_bounds, *one.value_counts) for one in metrics] == [(4, 4)] * 3


def test_timestamps_of_96_bits_have_no_order():
    times = schema_of(column(1, "t", TIMESTAMPTZ))
    whole = table_of(times, [{"t": hour * 3_600_000_000} for hour in range(4)])
    storage = stored(whole, use_deprecated_int96_timestamps=True)
    assert positions(storage, times, ask(times, "t < '1970-01-01T00:30:00+00:00'")) == [0, 1, 2, 3]
    assert positions(stored(whole), times, ask(times, "t < '1970-01-01T00:30:00+00:00'")) == [0, 1]


def test_an_upper_bound_of_texts_may_have_been_cut():
    texts = schema_of(column(1, "s", STRING))
    whole = table_of(texts, [{"s": s} for s in ("a", "b", "c", "d")])
    storage = stored(whole)
    # A bound "b" that stands for a longer text.
    assert positions(storage, texts, ask(texts, "s = 'bcd'")) == [0, 1]
    assert positions(storage, texts, ask(texts, "s > 'c'")) == [2, 3]
    assert positions(storage, texts, ask(texts, "s = 'e'")) == []


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
            bounds = {id_: (BINARY, binary_bytes(bound)) for id_ in cut}
            storage = MemoryStorage()
            storage.create(LOCATION, with_edits(data, 0, statistics=bounds))
            with open_reader(storage, LOCATION, "PARQUET") as reader:
                [metrics] = reader.part_metrics(reader.schema, {1: type_, 2: LONG})
            assert metrics.value_counts == metrics.null_value_counts | {2: 2} == {2: 2}
            assert (set(metrics.lower_bounds), set(metrics.upper_bounds)) == ({2}, {2})
            # pyarrow looks at some of them when it decodes the values, and calls the file damaged.
            with suppress(InvalidTableError):
                assert positions(storage, schema, ask(schema, "x > 1000")) == [0, 1]
                assert positions(storage, schema, ask(schema, "x > 1000 and n > 2")) == []
    storage = stored(table_of(schema, rows), 1)
    assert positions(storage, schema, ask(schema, "x > 1000")) == [0]


def test_bounds_of_fixed_length_that_datafusion_has_cut_say_nothing(tmp_path):
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
    assert positions(storage, numbers, ask(numbers, "x > 2.5")) == [2, 3]
    assert set(positions(storage, numbers, ask(numbers, "x is nan"))) >= {0, 1}


def test_two_columns_of_one_id_say_nothing():
    twice = pa.schema([pa.field(name, pa.int64(), metadata={"PARQUET:field_id": "1"}) for name in ("a", "b")])
    storage = stored(pa.table({"a": [1, 2], "b": [8, 9]}, schema=twice))
    with open_reader(storage, LOCATION, "PARQUET") as reader:
        [metrics] = reader.part_metrics(reader.schema, {1: LONG})
    assert (metrics.record_count, metrics.lower_bounds) == (2, {})
