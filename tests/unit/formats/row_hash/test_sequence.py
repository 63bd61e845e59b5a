"""A hash of rows in their order: the same however they come in pieces, another after any fault."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.errors import InvalidTableError
from icekeep.formats.rewrite.verify import hash_of_files
from icekeep.formats.row_hash import RowSequence, RowSum
from icekeep.spec.types import DOUBLE, INT, LONG, STRING, UNKNOWN
from kit.choices import Choices
from kit.columns import column, schema_of, table_of
from kit.data_files import options_for, tables, write_files
from kit.row_faults import TYPES, faults_of, faulty, rows_with, schema_with
from kit.storage import MemoryStorage

pytestmark = pytest.mark.slow

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
def test_how_rows_are_cut_and_held_does_not_matter_but_their_order_does(generated, chance):
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
def test_every_fault_in_a_written_file_is_caught_and_no_file_that_is_right_accused(file_format):
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


def test_rows_that_a_file_has_in_another_order_are_another_sequence():
    rows = [{"n": n, "s": str(n)} for n in range(2000)]
    schema = schema_of(column(1, "n", LONG), column(2, "s", STRING))
    order = sequence_of(table_of(schema, rows), schema)
    assert (
        sequence_of(table_of(schema, [*rows[:998], rows[999], rows[998], *rows[1000:]]), schema, order).total
        != order.total
    )
    assert sequence_of(table_of(schema, [*rows[:998], *rows[997:998], *rows[999:]]), schema, order).total != order.total


def test_values_of_a_dictionary_have_one_number_whichever_file_they_come_from():
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


def test_a_column_of_another_type_is_refused():
    table = table_of(TEXT, [{"s": "a"}])
    for type_ in (LONG, DOUBLE):
        with pytest.raises(InvalidTableError, match="'s' holds 'string'"):
            sequence_of(table, schema_of(column(1, "s", type_)))


def test_a_column_without_a_type_is_not_looked_at_and_no_rows_have_one_sum():
    schema = schema_of(column(1, "s", STRING), column(2, "u", UNKNOWN))
    order = sequence_of(table_of(TEXT, [{"s": "a"}]), schema)
    assert order.again().total == RowSequence(schema).total != order.total
    assert isinstance(order.total, RowSum)
