"""Pages that a filter does not need are not read; the rows that are read are those that whoever reads everything has there."""

import contextlib
import io
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError
from icekeep.formats.machine import datafusion_package
from icekeep.formats.parquet import page_choice as needed_pages
from icekeep.formats.parquet import reader as parquet_reader
from icekeep.formats.parquet.footer import I32, I64, LIST, Struct, integer_bytes, struct_bytes, struct_list_bytes
from icekeep.formats.parquet.page_choice import NeededPages
from icekeep.formats.reader import SourceFile, read_positioned
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.evaluators import row_matches
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.schema import POS, Schema, parse_name_mapping
from icekeep.spec.types import INT, LONG, STRING, ListType, StructType
from kit import filters
from kit.cases import cases, for_each
from kit.columns import column, parquet_bytes, schema_of, table_of
from kit.spliced import with_edits, with_garbage
from kit.storage import MemoryStorage

LOCATION = "memory:/t/f"
NUMBERS = schema_of(column(1, "n", LONG), column(2, "text", STRING))
PAGE_ROWS = 10


@contextlib.contextmanager
def without_floors(gap_rows: int = 0) -> Iterator[list[int | None]]:
    """Pages are chosen however little there is to gain; gives how many tables came of each row group, None of a whole one."""
    told: list[int | None] = []
    tables = NeededPages.tables

    def noted(self: NeededPages, *args: Any) -> Any:
        told.append(None)
        found = tables(self, *args)
        told[-1] = len(found)
        return found

    with (
        mock.patch.object(parquet_reader, "MIN_CHOSEN_BYTES", 0),
        mock.patch.multiple(needed_pages, GAP_ROWS=gap_rows, _MOST_SHARE=1.0),
        mock.patch.object(NeededPages, "tables", noted),
    ):
        yield told


def in_pages(table: pa.Table, page_rows: int = PAGE_ROWS, **options: Any) -> bytes:
    """A file with an index of its pages, which have so many rows."""
    given = {"write_page_index": True, "write_page_checksum": True, "data_page_size": 1, "write_batch_size": page_rows}
    return parquet_bytes(table, **{**given, **options})


def read(
    data: bytes, schema: Schema, needed: Expression = ALWAYS_TRUE, batch_rows: int | None = None, by_pages: bool = True
) -> list[dict[str, Any]]:
    """The rows that are read, with their positions."""
    storage = MemoryStorage()
    storage.create(LOCATION, data)
    asked = schema_of(POS, *schema.fields)
    source = SourceFile(location=LOCATION)
    found = read_positioned(storage, source, asked, needed=needed, batch_rows=batch_rows, by_pages=by_pages)
    return [row for _, table in found for row in table.to_pylist()]


def ask(schema: Schema, where: str) -> Expression:
    return bind(parse_where(where), schema)


def numbers(count: int = 100) -> pa.Table:
    return table_of(NUMBERS, [{"n": n, "text": f"row {n}"} for n in range(count)])


LAYOUTS = st.fixed_dictionaries(
    {
        "page_rows": st.integers(1, 5),
        # Of fewer bytes pyarrow makes pages of a single list that it cannot read itself.
        "data_page_size": st.sampled_from([16, 24, 60]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "use_dictionary": st.booleans(),
        "compression": st.sampled_from(["none", "snappy", "zstd"]),
        "row_group_rows": st.integers(1, 30),
        "write_page_index": st.sampled_from([True, True, True, False]),
        "dictionary_pagesize_limit": st.sampled_from([20, 2**20]),
        "store_schema": st.booleans(),
    }
)
NESTED = (
    column(10, "s", StructType((column(11, "x", LONG), column(12, "t", STRING)))),
    column(20, "l", ListType(element_id=21, element=INT)),
)


@cases(300)
@given(st.data())
def test_the_rows_that_are_read_are_those_of_the_file_and_none_that_matches_is_lost(data):
    table = data.draw(filters.columns())
    flat = filters.schema_of(table)
    # What lies in order has pages that differ.
    rows = sorted(data.draw(st.lists(filters.rows(table), max_size=40)), key=lambda row: str(row[1]))
    bound = bind(data.draw(filters.filters(table)), flat)
    schema = schema_of(*flat.fields, *NESTED)
    names = {field.field_id: field.name for field in flat.fields}
    whole = [
        {names[i]: value for i, value in row.items()}
        | {
            "s": None if n % 7 == 3 else {"x": n if n % 5 else None, "t": "t" * (n % 11)},
            "l": [*range(n % 4)] if n % 6 else None,
        }
        for n, row in enumerate(rows)
    ]
    layout = data.draw(LAYOUTS)
    stored = in_pages(table_of(schema, whole), **layout)
    everything = read(stored, schema)
    batch_rows = data.draw(st.sampled_from([None, 7, 20]))
    with without_floors(data.draw(st.sampled_from([0, 3]))):
        found = read(stored, schema, bound, batch_rows)
    assert [repr(row) for row in found] == [repr(everything[row["_pos"]]) for row in found]
    places = [row["_pos"] for row in found]
    assert places == sorted(places)
    assert {n for n, row in enumerate(rows) if row_matches(bound, row)} <= {*places}


@for_each(
    ("where", "expected", "tables"),
    [
        ("n = 42", [42], 1),
        ("n >= 18 and n < 23", [18, 19, 20, 21, 22], 1),
        ("n = 5 or n = 95", [5, 95], 2),
        ("n = 1000", [], 0),
        ("n >= 42 and text = 'row 44'", [44], 1),
        ("n > 41 and text = 'row 4z'", [], 0),
        ("n > 41 and text = 'row 42x'", [], 0),
    ],
)
@for_each("version", ["1.0", "2.0"])
@for_each("dictionary", [True, False])
def test_of_columns_that_the_filter_does_not_look_at_only_the_rows_that_match_are_read(
    where, expected, tables, version, dictionary
):
    schema = schema_of(*NUMBERS.fields, column(3, "other", LONG))
    whole = table_of(schema, [{"n": n, "text": f"row {n}", "other": n // 3} for n in range(100)])
    data = in_pages(whole, data_page_version=version, use_dictionary=dictionary)
    with without_floors() as told:
        found = read(data, schema, ask(schema, where))
    assert [(row["_pos"], row["other"]) for row in found] == [(n, n // 3) for n in expected]
    # All row groups but those that the footer rules out.
    assert told == ([tables] if where != "n = 1000" else [])


def test_pages_that_are_not_needed_are_not_looked_at():
    schema = schema_of(*NUMBERS.fields, column(3, "other", LONG))
    whole = table_of(schema, [{"n": n, "text": f"row {n}", "other": 7 * n} for n in range(100)])
    data = in_pages(whole, use_dictionary=False)
    needed = ask(schema, "n >= 42 and n < 45")
    spoilt = with_garbage(data, ["n", "text", "other"], range(42, 45))
    with without_floors():
        assert [row["other"] for row in read(spoilt, schema, needed)] == [7 * n for n in range(42, 45)]
    # Pages of a column that the filter looks at are needed by their bounds, others by the rows that match.
    needed = ask(schema, "n >= 10 and text = 'row 42'")
    spoilt = with_garbage(data, ["other"], range(42, 43))
    with without_floors():
        assert [row["other"] for row in read(spoilt, schema, needed)] == [7 * 42]


def test_less_is_brought_of_a_file_that_is_far_away():
    class Counting(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            brought.append(len(data))
            return data

    class FarAway(MemoryStorage):
        def open(self, location: str) -> Any:
            return Counting(self.read(location))

    schema = schema_of(*NUMBERS.fields, column(3, "other", LONG))
    rows = [{"n": n, "text": f"{n * 0x9E3779B97F4A7C15 % 2**64:x}", "other": n * n} for n in range(200_000)]
    data = in_pages(table_of(schema, rows), 5000, use_dictionary=False)
    assert len(data) > 3_000_000
    brought: list[int] = []
    storage = FarAway()
    storage.create(LOCATION, data)
    asked = read_positioned(storage, SourceFile(location=LOCATION), schema, needed=ask(schema, "n = 77777"))
    tables = [table for _, table in asked]
    assert [table["n"].to_pylist() for table in tables] == [[77_777]]
    assert sum(brought) < len(data) / 4


def test_rows_that_lie_near_to_each_other_come_together():
    data = in_pages(numbers(), use_dictionary=False)
    needed = ask(NUMBERS, "n = 31 or n = 35 or n = 58 or n = 90")
    with without_floors(6) as told:
        found = read(data, NUMBERS, needed)
    assert told == [3]
    assert [row["n"] for row in found] == [31, 32, 33, 34, 35, 58, 90]
    with without_floors(0) as told, mock.patch.object(needed_pages, "_MOST_RANGES", 2):
        assert {31, 35, 58, 90} <= {row["n"] for row in read(data, NUMBERS, needed)}
    assert told == [2]


def test_a_column_of_which_most_pages_are_needed_is_read_whole():
    data = in_pages(numbers(), use_dictionary=False)
    with without_floors(), mock.patch.object(needed_pages, "_MOST_SHARE", 0.5):
        assert [row["n"] for row in read(data, NUMBERS, ask(NUMBERS, "n < 80"))] == [*range(80)]
        spoilt = with_garbage(data, ["n", "text"], range(80))
        with pytest.raises(InvalidTableError, match="damaged"):
            read(spoilt, NUMBERS, ask(NUMBERS, "n < 80"))
        assert [row["n"] for row in read(spoilt, NUMBERS, ask(NUMBERS, "n < 20"))] == [*range(20)]


def test_more_rows_than_memory_has_room_for_are_read_in_batches():
    data = in_pages(numbers(), use_dictionary=False)
    with without_floors() as told:
        assert [row["n"] for row in read(data, NUMBERS, ask(NUMBERS, "n < 15"), 20)] == [*range(15)]
        assert told == [1]
        assert len(read(data, NUMBERS, ask(NUMBERS, "n < 35"), 20)) == 100
        assert told == [1, None]


def test_small_row_groups_are_read_whole():
    data = in_pages(numbers(), use_dictionary=False)
    assert len(read(data, NUMBERS, ask(NUMBERS, "n = 7"))) == 100


def test_a_file_without_indexes_is_read_whole_unless_no_row_matches():
    data = in_pages(numbers(), write_page_index=False)
    with without_floors() as told:
        assert len(read(data, NUMBERS, ask(NUMBERS, "n = 7"))) == 100
        assert told == [1]
        spoilt = with_garbage(in_pages(numbers(), use_dictionary=False), ["n"], range(0))
        without_bounds = with_edits(spoilt, 1, chunk={4: None, 5: None, 6: None, 7: None})
        assert read(without_bounds, NUMBERS, ask(NUMBERS, "text = 'row 42x'")) == []
        assert told == [1, 0]


def test_columns_whose_names_are_paths_are_read_whole():
    schema = schema_of(column(1, "a", StructType((column(2, "b", LONG),))), column(3, "a.b", LONG))
    data = in_pages(table_of(schema, [{"a": {"b": n}, "a.b": -n} for n in range(40)]))
    with without_floors() as told:
        assert len(read(data, schema, ask(schema, "a.b = 7"))) in (0, 40)
    assert not told


def test_pages_that_cannot_be_decoded_are_told_by_who_reads_them_all():
    data = with_garbage(in_pages(numbers(), use_dictionary=False, compression="none"), ["text"], range(50))
    spoilt = bytearray(data)
    place = data.index(b"row 44")
    spoilt[place : place + 6] = b"ROW 44"
    with without_floors() as told:
        assert [row["n"] for row in read(data, NUMBERS, ask(NUMBERS, "n = 42"))] == [42]
        with pytest.raises(InvalidTableError, match="CRC"):
            read(bytes(spoilt), NUMBERS, ask(NUMBERS, "n = 42"))
    assert told == [1, None]


def test_a_filter_on_a_column_that_is_not_asked_for_leaves_out_row_groups_alone():
    data = in_pages(numbers(), row_group_rows=50, use_dictionary=False)
    storage = MemoryStorage()
    storage.create(LOCATION, data)
    only = schema_of(NUMBERS.fields[1])
    with without_floors() as told:
        found = read_positioned(storage, SourceFile(location=LOCATION), only, needed=ask(NUMBERS, "n = 7"))
        assert [table.num_rows for _, table in found] == [50]
    assert not told


def test_bounds_in_no_known_order_rule_nothing_out():
    data = with_garbage(in_pages(numbers(), use_dictionary=False), ["n"], range(40, 50))
    needed = ask(NUMBERS, "n = 42")
    with without_floors():
        assert [row["n"] for row in read(data, NUMBERS, needed)] == [42]
        with pytest.raises(InvalidTableError, match="damaged"):
            read(with_edits(data, footer={7: None}), NUMBERS, needed)


@pytest.mark.parametrize("length", [3, 70])
def test_files_of_datafusion_are_read_by_pages_too(length, tmp_path):
    """It cuts bounds of pages at 64 bytes."""
    path = tmp_path / "f.parquet"
    texts = [f"{n:06}".rjust(length, "x") for n in range(100_000)]
    table = pa.table({"n": pa.array(range(100_000), pa.int64()), "text": pa.array(texts)})
    datafusion_package().SessionContext().from_arrow(table).write_parquet(path)
    storage = MemoryStorage()
    storage.create(LOCATION, path.read_bytes())
    mapping = parse_name_mapping('[{"field-id": 1, "names": ["n"]}, {"field-id": 2, "names": ["text"]}]')
    source = SourceFile(location=LOCATION, name_mapping=mapping)
    for where in ("n = 77777", f"text = '{texts[77_777]}'", "n >= 19998 and n < 20003"):
        bound = ask(NUMBERS, where)
        with without_floors() as told:
            found = [
                row for part in read_positioned(storage, source, NUMBERS, needed=bound) for row in part[1].to_pylist()
            ]
        wanted = [n for n in range(100_000) if row_matches(bound, {1: n, 2: texts[n]})]
        assert [(row["n"], row["text"]) for row in found] == [(n, texts[n]) for n in wanted]
        assert told == [1]


def test_where_all_pages_were_needed_the_next_row_groups_are_not_looked_at_first():
    data = in_pages(table_of(NUMBERS, [{"n": n % 100, "text": "t"} for n in range(1000)]), row_group_rows=100)
    with without_floors() as told:
        assert len(read(data, NUMBERS, ask(NUMBERS, "n != 7"))) == 1000
    assert told == [1, *[None] * 7, 1, None]


Place = tuple[int, int, int]


def with_places(data: bytes, number: int, change: Any) -> bytes:
    """The file with another offset index of a column: `change` is given place, length and first row of each page."""
    footer = Struct(data[-8 - int.from_bytes(data[-8:-4], "little") : -8])
    chunk = footer.structs(4)[0].structs(1)[number]
    pages = Struct(data, chunk.value(4)).structs(1)
    changed = change([(page.value(1), page.value(2), page.value(3)) for page in pages])
    fields = [
        struct_bytes(
            (n + 1, kind, integer_bytes(value))
            for n, (kind, value) in enumerate(zip((I64, I32, I64), one, strict=True))
        )
        for one in changed
    ]
    index = struct_bytes([(1, LIST, struct_list_bytes(fields))])
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    moved = data[:end] + index + data[end:]
    return with_edits(moved, number, chunk={4: (I64, integer_bytes(end)), 5: (I32, integer_bytes(len(index)))})


def shifted(pages: list[Place], rows: int) -> list[Place]:
    return [(place, length, row + rows if n else row) for n, (place, length, row) in enumerate(pages)]


LIES = {
    "one page has rows of the next": lambda pages: [*pages[:4], (*pages[4][:2], pages[4][2] - 2), *pages[5:]],
    "a page is left out": lambda pages: [*pages[:4], *pages[5:]],
    "two pages are one": lambda pages: [*pages[:4], (pages[4][0], pages[4][1] + pages[5][1], pages[4][2]), *pages[6:]],
    "the first row is not the first": lambda pages: [(*pages[0][:2], 1), *pages[1:]],
    "the first page is left out": lambda pages: pages[1:],
    "the last page is left out": lambda pages: pages[:-1],
    "pages are in another order": lambda pages: pages[::-1],
    "a page is longer": lambda pages: [*pages[:4], (pages[4][0], pages[4][1] + 1, pages[4][2]), *pages[5:]],
    "pages lie elsewhere": lambda pages: [(place + 10**6, length, row) for place, length, row in pages],
    "places are less than nothing": lambda pages: [(-place, length, row) for place, length, row in pages],
    "rows go down": lambda pages: [*pages[:4], (*pages[4][:2], 0), *pages[5:]],
    "there are more rows": lambda pages: [(place, length, row * 100) for place, length, row in pages],
    "there are no pages": lambda pages: [],
    "pages begin in others": lambda pages: [(place + 1, length, row) for place, length, row in pages],
}


@for_each("version", ["1.0", "2.0"])
@for_each("name", ["n", "text"])
@for_each("lie", LIES)
def test_an_offset_index_that_is_wrong_costs_time_and_no_rows(lie, name, version):
    honest = in_pages(numbers(), use_dictionary=name == "text", data_page_version=version)
    data = with_places(honest, ["n", "text"].index(name), LIES[lie])
    assert pq.ParquetFile(io.BytesIO(data)).read().num_rows == 100
    for where in ("n = 42", "n >= 38 and n < 52", "n = 0 or n = 99", "text = 'row 47'"):
        with without_floors():
            found = read(data, NUMBERS, ask(NUMBERS, where))
        honest_rows = {row["_pos"]: row for row in read(honest, NUMBERS)}
        assert all(row == honest_rows[row["_pos"]] for row in found)
        wanted = read_and_filtered(honest, where)
        assert wanted <= {row["_pos"] for row in found}


@pytest.mark.parametrize("rows", [3, -3])
def test_pages_that_are_all_shifted_are_believed_unless_indexes_are_not_to_be(rows):
    """That the pages before those that are read have other rows than the index says, only these pages tell."""
    honest = in_pages(numbers(), use_dictionary=False)
    data = with_places(honest, 1, lambda pages: shifted(pages, rows))
    needed = ask(NUMBERS, "n = 42")
    with without_floors() as told:
        [row] = read(data, NUMBERS, needed)
        assert (row["n"], row["text"]) == (42, f"row {42 - rows}")
        assert told == [1]
        found = read(data, NUMBERS, needed, by_pages=False)
    assert found == read(honest, NUMBERS)
    # Where the first page is read, whose rows are counted, nothing is believed.
    with without_floors():
        assert read(data, NUMBERS, ask(NUMBERS, "n = 5 or n = 42")) == read(honest, NUMBERS)


def read_and_filtered(data: bytes, where: str) -> set[int]:
    bound = ask(NUMBERS, where)
    return {row["_pos"] for row in read(data, NUMBERS) if row_matches(bound, {1: row["n"], 2: row["text"]})}


def test_the_index_that_is_written_anew_is_believed_where_it_is_right():
    data = with_places(in_pages(numbers(), use_dictionary=False), 0, lambda pages: pages)
    with without_floors() as told:
        assert [row["n"] for row in read(data, NUMBERS, ask(NUMBERS, "n = 42"))] == [42]
    assert told == [1]


@cases(60)
@given(st.data())
def test_an_index_in_which_a_byte_is_another_costs_no_rows(data):
    honest = in_pages(numbers(60), 4, use_dictionary=data.draw(st.booleans()))
    footer = Struct(honest[-8 - int.from_bytes(honest[-8:-4], "little") : -8])
    chunk = footer.structs(4)[0].structs(1)[data.draw(st.integers(0, 1))]
    start, length = chunk.value(4), chunk.value(5)
    spoilt = bytearray(honest)
    spoilt[start + data.draw(st.integers(0, length - 1))] ^= 1 << data.draw(st.integers(0, 7))
    first = data.draw(st.integers(0, 59))
    with without_floors():
        found = read(bytes(spoilt), NUMBERS, ask(NUMBERS, f"n >= {first} and n < {first + 5}"))
    assert {row["_pos"] for row in found} >= {*range(first, min(60, first + 5))}
    assert all((row["n"], row["text"]) == (row["_pos"], f"row {row['_pos']}") for row in found)
