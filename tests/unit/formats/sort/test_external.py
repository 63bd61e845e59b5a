"""Rows are sorted, whatever their types and however many there are, and memory stays within what was asked for."""

import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from icekeep.formats.arrow.projection import KEPT_DICTIONARY
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.sort.encode import Curve, KeyRange, Ordering
from icekeep.formats.sort.external import Sorter
from icekeep.formats.sort.keys import sort_keys
from icekeep.spec.sorting import build_sort_order
from icekeep.spec.types import INT, STRING, UNKNOWN, ListType
from kit.cases import cases
from kit.columns import EVERY_TYPE, column, parquet_bytes, rows, schema_of, table_of

pytestmark = pytest.mark.slow

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
def test_nulls_of_a_type_without_values_and_lists_of_them_are_rows_like_others(tmp_path, budget_bytes):
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
def test_memory_stays_near_the_budget_when_there_is_many_times_as_much(tmp_path):
    # 120 tables of 50,000 rows: some 650 MiB, ten times the budget of 64 MiB.
    done = subprocess.run([sys.executable, "-c", MEMORY, "120"], capture_output=True, text=True, check=True)
    spilled, allocated_mib, grown_mib = map(int, done.stdout.split())
    assert spilled > 8
    assert allocated_mib < 64 + 32
    assert grown_mib < 64 + 4 * 32
