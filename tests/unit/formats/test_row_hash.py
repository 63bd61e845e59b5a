"""Hashes of rows: the same however rows are held and come in pieces, another after any fault."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import icekeep.spec.types
import kit.columns
from icekeep.errors import InvalidTableError
from icekeep.formats.arrow.schema import FIELD_ID_KEY, arrow_field, arrow_schema
from icekeep.formats.rewrite.proof import hash_of_files
from icekeep.formats.row_hash import RowHash, RowSequence, RowSum
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
    TIMESTAMPTZ,
    UNKNOWN,
    UUID,
    ListType,
    MapType,
    StructType,
    decimal,
    fixed,
)
from kit.cases import Choices, for_each
from kit.columns import column, schema_of, table_of
from kit.data_files import TYPES, faults_of, faulty, options_for, rows_with, schema_with, tables, value_of, write_files
from kit.examples import check_examples
from kit.rows import row_texts
from kit.storage import MemoryStorage

pytestmark = pytest.mark.slow

WORDS = schema_of(column(1, "n", LONG), column(2, "s", STRING))
PAIR = StructType((column(12, "x", INT), column(13, "y", STRING)))


def hash_of(table, schema):
    rows = RowHash(schema)
    rows.add(table)
    return rows.total


def one_column(type_, array):
    """A table of a column as it is held, and the schema that says what it is."""
    field = column(1, "c", type_)
    return pa.table([array], schema=pa.schema([arrow_field(field).with_type(array.type)])), schema_of(field)


def hash_of_column(type_, array):
    return hash_of(*one_column(type_, array))


def hash_of_values(type_, *values):
    schema = schema_of(column(1, "c", type_))
    return hash_of(table_of(schema, [{"c": value} for value in values]), schema)


@given(tables(max_rows=7), st.randoms(use_true_random=False))
def test_hash_ignores_row_order_column_order_and_cuts(generated, chance):
    schema, table = generated
    expected = hash_of(table, schema)
    order = list(range(table.num_rows))
    chance.shuffle(order)
    columns = list(range(table.num_columns))
    chance.shuffle(columns)
    cut = chance.randrange(table.num_rows + 1)
    mixed = table.take(order).select(columns)
    rows = RowHash(schema)
    rows.add(mixed.slice(cut))
    rows.add(mixed.slice(0, cut))
    assert rows.total == expected
    rows = RowHash(schema)
    rows.add(pa.concat_tables([mixed.slice(n, 1) for n in order]))
    assert rows.total == expected
    assert expected.row_count == table.num_rows


@given(st.sampled_from(TYPES), st.randoms(use_true_random=False), st.integers(1, 6), st.booleans())
def test_hash_equality_agrees_with_slow_comparison(type_, chance, count, is_same):
    schema = schema_with(type_)
    one = rows_with(type_, count, chance)
    other = chance.sample(one, count)
    if not is_same:
        other = [{**row, "value": value_of(type_, chance)} if chance.random() < 0.4 else row for row in other]
    found = hash_of(table_of(schema, one), schema) == hash_of(table_of(schema, other), schema)
    assert found == (row_texts(schema, one) == row_texts(schema, other))


@pytest.mark.parametrize("rows", [7, 100, 1000])
def test_how_many_rows_are_worked_on_at_one_time_does_not_matter(rows, monkeypatch):
    chance = Choices(3)
    for type_ in TYPES:
        schema = schema_with(type_)
        table = table_of(schema, rows_with(type_, 200, chance))
        expected = hash_of(table, schema)
        with monkeypatch.context() as patch:
            patch.setattr("icekeep.formats.row_hash.CHUNK_ROWS", rows)
            patch.setattr("icekeep.formats.row_hash._MAX_ELEMENTS", rows)
            patch.setattr("icekeep.formats.row_hash.CHUNK_ROWS", rows)
            assert hash_of(table, schema) == expected, type_


def test_lists_of_many_elements_are_worked_on_in_parts():
    type_ = ListType(element_id=2, element=LONG)
    whole = pa.ListArray.from_arrays([0, 400_000, 400_000, 1_000_000], np.arange(1_000_000), type=_listed(LONG))
    parts = [hash_of_column(type_, whole.slice(n, 1)) for n in range(3)]
    assert hash_of_column(type_, whole) == parts[0] + parts[1] + parts[2]


def _listed(type_):
    return arrow_field(column(1, "c", ListType(element_id=2, element=type_))).type


def test_sums_add_up_modulo_two_to_the_128():
    most = RowSum(2, b"\xff" * 16)
    assert most + RowSum(1, b"\2" + bytes(15)) == RowSum(3, b"\1" + bytes(15))
    assert most.digest == b"\xff" * 16
    one, other = (table_of(WORDS, [{"n": n}]) for n in (1, 2))
    assert hash_of(one, WORDS) + hash_of(other, WORDS) == hash_of(pa.concat_tables([one, other]), WORDS)
    assert RowSum() + most == most


@for_each("type_", TYPES, ids=str)
def test_no_two_values_and_no_null_are_alike(type_):
    chance = Choices(5)
    values = {
        repr(row_texts(s, [{"c": v}])): v for s in [schema_of(column(1, "c", type_))] for v in _many(type_, chance)
    }
    found = {hash_of_values(type_, value).digest for value in [*values.values(), None]}
    assert len(found) == len(values) + 1


def _many(type_, chance):
    return [value_of(type_, chance) for _ in range(100)]


@for_each("length", [*range(18), 24, 25, 63, 64, 65, 504, 511, 512, 513, 520])
def test_every_byte_of_a_text_and_its_length_counts(length):
    data = bytes(range(1, 256)) * 4
    text = data[:length]
    places = range(length) if length < 30 else [*range(0, length, 7), length - 1]
    changed = [text + b"\0", b"\0" + text, text + data[:8], *(text[:n] + b"\0" + text[n + 1 :] for n in places)]
    alone = {hash_of_values(BINARY, value).digest for value in [text, text[:-1] if text else None, *changed]}
    assert len(alone) == len({*changed, text, text[:-1] if text else None})
    # Among others, in one array with what lies before and after it.
    others = [b"before", None, b"", b"x" * 600]
    together = {hash_of_values(BINARY, *others, value, b"after").digest for value in (text, *changed)}
    assert len(together) == len({text, *changed})


@for_each("held", [pa.large_string(), pa.string_view(), pa.binary(), pa.binary_view()])
def test_texts_are_the_same_however_they_are_held(held):
    values = ["", None, "a", "an iceberg", "x" * 700, "é" * 9]
    expected = hash_of_values(STRING, *values)
    array = pa.array(values).cast(pa.binary()).cast(held) if "binary" in str(held) else pa.array(values, held)
    assert hash_of_column(STRING, array) == expected
    assert hash_of_column(STRING, pa.concat_arrays([array, array]).slice(3, 6)) == expected


@for_each("codes", [pa.int8(), pa.uint16(), pa.int32(), pa.int64()])
def test_dictionaries_are_what_they_encode(codes):
    values = ["a", None, "b", "a", "", None, "a long text of an iceberg", "b"]
    expected = hash_of_values(STRING, *values)
    encoded = pa.array(values).dictionary_encode()
    array = pa.DictionaryArray.from_arrays(encoded.indices.cast(codes), encoded.dictionary)
    assert hash_of_column(STRING, array) == expected
    # A null may be an entry too, an entry may be unused or there twice, and a dictionary larger than the column.
    entries = pa.array(["a", "b", None, "", "a long text of an iceberg", "a", *(str(n) for n in range(40))])
    array = pa.DictionaryArray.from_arrays(pa.array([0, 2, 1, 5, 3, None, 4, 1], codes), entries)
    assert hash_of_column(STRING, array) == expected
    assert hash_of_column(STRING, pa.concat_arrays([array] * 9).slice(8, 64)) == hash_of_values(STRING, *values * 8)
    nothing = pa.DictionaryArray.from_arrays(pa.array([None, None], codes), pa.array([], pa.string()))
    assert hash_of_column(STRING, nothing) == hash_of_values(STRING, None, None)


@for_each(
    ("type_", "values", "held"),
    [
        (LONG, [0, -1, 2**31 - 1, None], pa.int32()),
        (DOUBLE, [0.0, -0.0, 1.5, math.nan, None], pa.float32()),
        (decimal(9, 2), [1, -1, 9_999_999, None], pa.decimal32(9, 2)),
        (decimal(18, 3), [1, -1, 10**14, None], pa.decimal64(18, 3)),
        (decimal(18, 3), [1, -1, 10**5, None], pa.decimal128(10, 3)),
        (TIME, [0, 86_399_999_999, None], pa.int64()),
        (TIMESTAMP, [0, -1, 10**14, None], pa.timestamp("ns")),
        (TIMESTAMPTZ, [0, -1, 10**14, None], pa.timestamp("ns", "UTC")),
        (fixed(3), [b"abc", b"\0\0\0", None], pa.binary()),
    ],
)
def test_values_are_hashed_in_the_types_of_the_schema(type_, values, held):
    field = column(1, "c", type_)
    array = pa.array(values, arrow_schema(schema_of(field)).field(0).type)
    stored = pa.array(values).cast(held) if pa.types.is_integer(held) else array.cast(held)
    assert stored.type == held
    assert hash_of_column(type_, stored) == hash_of_column(type_, array)
    assert hash_of_column(type_, pa.concat_arrays([stored] * 3).slice(len(values), len(values))) == hash_of_column(
        type_, array
    )


def test_a_uuid_is_its_bytes():
    data = [bytes(range(16)), None, bytes(16)]
    expected = hash_of_column(UUID, pa.array(data, pa.binary(16)).cast(pa.uuid()))
    assert hash_of_column(UUID, pa.array(data, pa.binary(16))) == expected
    assert hash_of_column(UUID, pa.array(data, pa.binary())) == expected


def test_the_zeros_differ_and_every_nan_is_the_same():
    for type_, bits, nans in (
        (FLOAT, np.uint32, [0x7FC00000, 0xFFC00001]),
        (DOUBLE, np.uint64, [0x7FF8 << 48, (0xFFF8 << 48) + 1]),
    ):
        floats = [pa.array(np.array([nan], bits).view(f"f{np.dtype(bits).itemsize}")) for nan in nans]
        assert hash_of_column(type_, floats[0]) == hash_of_column(type_, floats[1]) != hash_of_values(type_, None)
        assert hash_of_values(type_, 0.0) != hash_of_values(type_, -0.0)


def test_lost_signs_in_two_columns_do_not_cancel_out():
    schema = schema_of(column(1, "x", DOUBLE), column(2, "y", DOUBLE), column(3, "n", LONG), column(4, "m", LONG))
    row = {"x": 1.5, "y": 2.5, "n": 1, "m": 2}
    others = [
        row | {"x": -1.5, "y": -2.5},
        row | {"n": 1 - 2**63, "m": 2 - 2**63},
        row | {"x": -1.5, "m": 2 - 2**63},
        row | {"x": 2.5, "y": 1.5},
        row | {"n": 2, "m": 1},
    ]
    assert len({hash_of(table_of(schema, [each]), schema).digest for each in [row, *others]}) == 6


def test_values_swapped_between_rows_change_the_hash():
    schema = schema_of(column(1, "n", LONG), column(2, "m", LONG), column(3, "flag", BOOLEAN))
    chance = Choices(1)
    for _ in range(300):
        a, b, c, d = (chance.randrange(3) for _ in range(4))
        flag = chance.random() < 0.5
        one = [{"n": a, "m": b, "flag": flag}, {"n": c, "m": d, "flag": flag}]
        other = [{"n": c, "m": b, "flag": flag}, {"n": a, "m": d, "flag": flag}]
        found = hash_of(table_of(schema, one), schema) == hash_of(table_of(schema, other), schema)
        assert found == (a == c or b == d)


def test_null_struct_differs_from_struct_of_nulls():
    """What a null hides in a struct or list is no data and does not change the hash."""
    fields = list(arrow_field(column(1, "c", PAIR)).type)
    children = [pa.array([1, 2, None], pa.int32()), pa.array(["a", "b", None])]
    struct = pa.StructArray.from_arrays(children, fields=fields, mask=pa.array([True, False, False]))
    expected = hash_of_values(PAIR, None, {"x": 2, "y": "b"}, {"x": None, "y": None})
    assert hash_of_column(PAIR, struct) == expected
    assert hash_of_values(PAIR, None) != hash_of_values(PAIR, {"x": None, "y": None})
    type_ = ListType(element_id=2, element=LONG)
    lists = pa.ListArray.from_arrays([0, 2, 3], np.arange(3), type=_listed(LONG), mask=pa.array([True, False]))
    assert hash_of_column(type_, lists) == hash_of_values(type_, None, [2])


def test_list_order_matters_and_map_order_does_not():
    listed, mapped = ListType(element_id=2, element=LONG), MapType(key_id=3, key=STRING, value_id=4, value=LONG)
    assert hash_of_values(listed, [1, 2]) != hash_of_values(listed, [2, 1])
    assert hash_of_values(listed, [1], [2]) != hash_of_values(listed, [1, 2], [])
    assert hash_of_values(listed, [None]) != hash_of_values(listed, [])
    assert hash_of_values(mapped, [("a", 1), ("b", 2)]) == hash_of_values(mapped, [("b", 2), ("a", 1)])
    assert hash_of_values(mapped, [("a", 1), ("b", 2)]) != hash_of_values(mapped, [("a", 2), ("b", 1)])
    assert hash_of_values(mapped, [("a", 1)], [("b", 2)]) != hash_of_values(mapped, [("a", 1), ("b", 2)], [])


def test_missing_column_hashes_as_default_or_null():
    wider = StructType((*PAIR.fields, replace(column(14, "z", LONG), initial_default=7), column(15, "w", DATE)))
    array = pa.array([{"x": 1, "y": "a"}, None], arrow_field(column(1, "c", PAIR)).type)
    expected = hash_of_values(wider, {"x": 1, "y": "a", "z": 7, "w": None}, None)
    assert hash_of_column(wider, array) == expected
    needed = StructType((*PAIR.fields, column(16, "v", LONG, required=True)))
    with pytest.raises(InvalidTableError, match=r"'c\.v' is required and missing"):
        hash_of_column(needed, array)


def test_foreign_and_untyped_columns_are_ignored():
    schema = schema_of(*WORDS.fields, column(3, "nothing", UNKNOWN))
    table = table_of(WORDS, [{"n": 1, "s": "a"}])
    other = table.append_column(pa.field("other", pa.int64(), metadata={FIELD_ID_KEY: b"9"}), pa.array([5]))
    without_id = other.append_column("origin", pa.array([5]))
    assert hash_of(without_id, schema) == hash_of(table, WORDS)
    null = pa.table(
        [pa.array([1]), pa.nulls(1)],
        schema=pa.schema([table.schema.field(0), table.schema.field(1).with_type(pa.null())]),
    )
    assert hash_of(null, WORDS) == hash_of(table_of(WORDS, [{"n": 1}]), WORDS)


TEXT = schema_of(column(1, "s", STRING))


def sequence_of(table, schema, order=None):
    rows = RowSequence(schema) if order is None else order.again()
    rows.add(table)
    return rows


def coded(table):
    """The same rows, texts as dictionaries."""
    columns = [c.dictionary_encode() if c.type == pa.string() else c for c in table.columns]
    fields = [field.with_type(c.type) for field, c in zip(table.schema, columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


@given(tables(max_rows=7), st.randoms(use_true_random=False))
def test_sequence_hash_depends_on_order_not_on_cuts(generated, chance):
    schema, table = generated
    order = sequence_of(table, schema)
    cut = chance.randrange(table.num_rows + 1)
    pieces = order.again()
    pieces.add(table.slice(0, cut))
    pieces.add(coded(table).slice(cut))
    assert pieces.total == order.total == sequence_of(pa.concat_tables([table]), schema).total
    alone = order.again()
    for n in range(table.num_rows):
        alone.add(table.slice(n, 1))
    assert alone.total == order.total
    if table.num_rows > 1 and table.slice(0, 1).to_pylist() != table.slice(1, 1).to_pylist():
        swapped = pa.concat_tables([table.slice(1, 1), table.slice(0, 1), table.slice(2)])
        assert sequence_of(swapped, schema, order).total != order.total


@pytest.mark.parametrize("file_format", ["PARQUET", "ORC", "AVRO"])
def test_every_fault_in_file_is_caught_without_false_alarm(file_format):
    numbers, checked, wrong = Choices(9), 0, []
    for type_ in TYPES:
        schema = schema_with(type_)
        for name, fault in faults_of(type_):
            rows = rows_with(type_, 9, numbers)
            changed = faulty(rows, fault, schema, numbers)
            if changed is None:
                continue
            order = sequence_of(table_of(schema, rows), schema)
            for data, is_right in ((rows, True), (changed, False), (changed[::-1], False), ([*rows, rows[0]], False)):
                storage = MemoryStorage()
                files = write_files(storage, schema, [table_of(schema, data)], options_for(file_format))
                if (hash_of_files(files, schema, storage, order=order) == order.total) is not is_right:
                    wrong.append((type_, name, is_right, rows, data))
                checked += 1
    assert wrong == []
    assert checked > 200


def test_swapped_or_repeated_row_changes_the_sequence():
    rows = [{"n": n, "s": str(n)} for n in range(2000)]
    schema = schema_of(column(1, "n", LONG), column(2, "s", STRING))
    order = sequence_of(table_of(schema, rows), schema)
    assert (
        sequence_of(table_of(schema, [*rows[:998], rows[999], rows[998], *rows[1000:]]), schema, order).total
        != order.total
    )
    assert sequence_of(table_of(schema, [*rows[:998], *rows[997:998], *rows[999:]]), schema, order).total != order.total


def test_dictionary_values_have_one_number_across_files():
    words = [None, "b", "a", "", "b", "c", "a", None]
    order = RowSequence(TEXT)
    for part in (words[:4], words[4:]):
        order.add(coded(table_of(TEXT, [{"s": word} for word in part])))
    assert order.coded_ids == {1}
    again = order.again()
    again.add(coded(table_of(TEXT, [{"s": word} for word in words[:5]])))
    again.add(table_of(TEXT, [{"s": word} for word in words[5:]]))
    assert again.total == order.total
    for changed in (["z", *words[1:]], [*words[:3], None, *words[4:]], [*words[:5], "d", *words[6:]], words[1:]):
        assert sequence_of(coded(table_of(TEXT, [{"s": word} for word in changed])), TEXT, order).total != order.total
    # Words that come first where they are compared do not take the number of one that is missing there.
    other = order.again()
    other.add(table_of(TEXT, [{"s": word and f"{word}!"} for word in words]))
    assert other.total != order.total


def test_a_column_is_told_by_numbers_only_where_it_came_so_first():
    plain = table_of(TEXT, [{"s": "a"}, {"s": "b"}])
    order = sequence_of(plain, TEXT)
    order.add(coded(plain))
    assert order.coded_ids == frozenset()
    assert sequence_of(pa.concat_tables([plain, plain]), TEXT, order).total == order.total


def test_a_column_that_is_not_there_has_its_default_or_nulls():
    schema = schema_of(
        column(1, "s", STRING), column(2, "later", INT), replace(column(3, "set", INT), initial_default=5)
    )
    whole = table_of(schema, [{"s": "a", "later": None, "set": 5}] * 3)
    order = sequence_of(whole, schema)
    assert sequence_of(whole.select(["s"]), schema, order).total == order.total
    assert sequence_of(table_of(schema, [{"s": "a", "later": None, "set": 6}] * 3), schema, order).total != order.total
    with pytest.raises(InvalidTableError, match="'s' is required"):
        sequence_of(whole.select(["set"]), schema_of(column(1, "s", STRING, required=True)))


def test_untyped_column_is_ignored_and_empty_sum_is_fixed():
    schema = schema_of(column(1, "s", STRING), column(2, "u", UNKNOWN))
    order = sequence_of(table_of(TEXT, [{"s": "a"}]), schema)
    assert order.again().total == RowSequence(schema).total != order.total
    assert isinstance(order.total, RowSum)


def test_examples():
    check_examples("formats/row_hash.txt", icekeep.spec.types, kit.columns, globals())
