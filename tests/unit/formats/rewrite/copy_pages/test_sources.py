import io
from decimal import Decimal
from itertools import permutations

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.formats.options import ParquetOptions, write_options
from icekeep.formats.parquet.pages import PageExaminer
from icekeep.formats.parquet.thrift import (
    BINARY,
    FALSE,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    Struct,
    binary_bytes,
    list_bytes,
    struct_bytes,
    with_integers,
)
from icekeep.spec.avro import encode_long
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID
from icekeep.spec.types import LONG, STRING, ListType, StructType, decimal
from kit.cases import for_each
from kit.columns import EVERY_TYPE, column, parquet_bytes, schema_of, table_of
from kit.spliced import footer_in, with_edits

pytestmark = pytest.mark.slow

SCHEMA = schema_of(column(1, "id", LONG, required=True), column(2, "n", LONG), column(3, "s", STRING))
ALL = {1, 2, 3}
PLAIN = {"compression": "zstd", "use_dictionary": False, "write_page_index": True}


def file(row_count=30, first=0, schema=SCHEMA, **options):
    numbers = range(first, first + row_count)
    rows = [{"id": n, "n": n * 7 if n % 3 else None, "s": f"text {n}"} for n in numbers]
    return parquet_bytes(table_of(schema, rows), **{**PLAIN, **options})


def examiner(schema=SCHEMA, options=None):
    empty = parquet_bytes(table_of(schema, []))
    return PageExaminer(schema, options or ParquetOptions(), pq.ParquetFile(io.BytesIO(empty)))


def examined(data, wanted=None, known=None):
    return (known or examiner()).examine(data, 30, wanted)


def ids(data, wanted=None):
    return set(examined(data, wanted).chunks)


def options_of(schema, **properties):
    return write_options(properties, schema).encoding


# Columns


def test_numbers_whose_nan_would_have_to_be_counted_and_nested_columns_are_never_moved():
    columns = examiner(EVERY_TYPE).columns
    left_out = {field.name for field in EVERY_TYPE.fields if field.field_id not in columns}
    assert left_out == {"c1_boolean", "c4_float", "c5_double", "point", "numbers", "points", "counts", "deep"}


def test_columns_that_are_to_be_encoded_in_some_way_and_those_of_lineage_are_never_moved():
    schema = replace(SCHEMA, fields=(*SCHEMA.fields, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER))
    assert set(examiner(schema).columns) == ALL
    wanted = {"write.parquet.bloom-filter-enabled.column.s": "true"}
    assert set(examiner(options=write_options(wanted, SCHEMA).encoding).columns) == {1, 2}


def test_what_is_wanted_of_a_file_is_all_that_is_looked_at():
    assert ids(file(), wanted={2, 99}) == {2}
    assert ids(file()) == ALL
    assert examined(file(), wanted={2}).chunks[2] == examined(file()).chunks[2]


def test_row_groups_without_rows_have_no_chunk():
    source = examined(file(row_group_rows=12))
    assert {len(chunks) for chunks in source.chunks.values()} == {3}
    assert [chunk.pages[0].row_count for chunk in source.chunks[2]] == [12, 12, 6]
    nothing = examiner().examine(file(0), 0)
    assert {id_: chunks for id_, chunks in nothing.chunks.items() if chunks} == {}


def test_rows_are_taken_to_need_about_the_memory_that_they_do():
    data = file(30)
    table = pq.read_table(io.BytesIO(data))
    assert table.nbytes / 3 < examined(data).arrow_bytes < 3 * table.nbytes


# Files


def test_a_file_whose_footer_does_not_fit_its_entry_or_itself_gives_nothing():
    good = file()
    (group,) = Struct(footer_in(good)).structs(4)
    two_columns = file(schema=schema_of(*SCHEMA.fields[:2]))
    (of_two,) = Struct(footer_in(two_columns)).structs(4)
    for wrong in (
        file(29),
        with_edits(good, footer={3: (I64, encode_long(29))}),
        with_edits(good, footer={3: None}),
        with_edits(good, footer={40: (I64, encode_long(1)), 3: None}),
        with_edits(good, group={3: (I64, encode_long(29))}),
        with_edits(good, group={3: (I64, encode_long(-1))}),
        with_edits(good, group={1: None}),
        with_edits(good, group={1: (LIST, list_bytes(STRUCT, [])), 2: (LIST, group.raw(1))}),
        with_edits(good, group={1: (LIST, of_two.raw(1))}),
        good[:-1] + b"E",
        good[:-8] + b"\xff\xff\xff\x7fPAR1",
        good[-6:],
        b"",
        b"PAR1",
    ):
        assert ids(wrong) == set()


def test_what_comes_behind_a_known_end_is_no_footers():
    good, known = file(), examiner()
    assert set(examined(good, known=known).chunks) == ALL
    footer = footer_in(good) + b"\0"
    longer = good[: -8 - len(footer) + 1] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    assert set(examined(longer, known=known).chunks) == set()


@for_each(
    ("writer", "found"),
    [
        ("parquet-mr version 1.7.0 (build 1)", set()),
        ("parquet-mr version 1.0.0", set()),
        ("parquet-mr version 1.8.0 (build 1)", ALL),
        ("parquet-mr version 1.17.1", ALL),
        ("someone", ALL),
    ],
)
def test_files_of_writers_whose_pages_need_the_one_before_give_nothing(writer, found):
    """PARQUET-246."""
    assert ids(with_edits(file(), footer={6: (BINARY, binary_bytes(writer.encode()))})) == found


def test_what_files_have_in_common_is_never_taken_from_the_wrong_one():
    other = schema_of(column(2, "n", LONG), column(1, "id", LONG, required=True), column(9, "x", STRING))
    files = [
        file(),
        file(schema=other),
        file(first=1000),
        with_edits(file(), footer={7: None}),
        with_edits(file(), footer={6: (BINARY, binary_bytes(b"parquet-mr version 1.6.0"))}),
        file()[:-1] + b"E",
    ]
    alone = [examined(data) for data in files]
    assert [set(source.chunks) for source in alone] == [ALL, {1, 2}, ALL, set(), set(), set()]
    for order in permutations(range(len(files)), 4):
        known = examiner()
        for n in order:
            assert examined(files[n], known=known) == alone[n]


def test_an_id_that_two_columns_have_is_nobodys():
    data = file(schema=schema_of(*SCHEMA.fields, column(4, "m", LONG)))
    assert ids(data) == ALL
    footer = footer_in(data)
    nodes = Struct(footer).structs(2)
    changes = {nodes[-1].start: [(nodes[-1].integer(9), 2)]}
    schema = [with_integers(footer, node.start, node.end, changes.get(node.start, [])) for node in nodes]
    assert ids(with_edits(data, footer={2: (LIST, list_bytes(STRUCT, schema))})) == {1, 3}


def test_a_column_whose_bounds_are_shorter_than_its_values_is_not_moved():
    """pyarrow, asked for such statistics of the new file, would end the process."""
    schema = schema_of(column(1, "d", decimal(38, 2)), column(2, "n", LONG))
    data = parquet_bytes(table_of(schema, [{"d": Decimal(n), "n": n} for n in range(30)]), **PLAIN)
    short = {id_: (BINARY, binary_bytes(b"\0" * 7)) for id_ in (5, 6)}
    assert set(examined(data, known=examiner(schema)).chunks) == {1, 2}
    for position in (0, 1):
        cut = with_edits(data, position, statistics=short)
        assert set(examined(cut, known=examiner(schema)).chunks) == {2 - position}


@pytest.mark.parametrize("order", [1, -1])
def test_a_column_whose_name_is_the_path_of_another_is_left_to_be_decoded(order):
    inner = StructType((column(2, "b", LONG),))
    fields = column(1, "a.b", LONG), column(3, "a", inner, required=True), column(4, "c", LONG)
    schema = schema_of(*fields[::order])
    assert set(examiner(schema).columns) == {4}
    data = parquet_bytes(table_of(schema, [{"a.b": n, "a": {"b": -n}, "c": n} for n in range(30)]), **PLAIN)
    plain = schema_of(column(1, "x", LONG), column(4, "c", LONG))
    assert set(examined(data, known=examiner(plain)).chunks) == {4}


def test_a_list_is_no_column_of_its_elements():
    nested = schema_of(column(1, "id", LONG, required=True), column(5, "l", ListType(element_id=2, element=LONG)))
    assert ids(file(schema=nested)) == {1}


# Chunks


def metadata(**edits):
    return {int(name[1:]): (I64, encode_long(value)) for name, value in edits.items()}


@for_each(
    "edits",
    [
        {"chunk": {1: (BINARY, binary_bytes(b"elsewhere"))}},
        {"chunk": {8: (STRUCT, struct_bytes([]))}},
        {"chunk": {9: (BINARY, binary_bytes(b"secret"))}},
        {"meta": metadata(f5=29)},
        {"meta": metadata(f6=5)},
        {"meta": metadata(f7=9)},
        {"meta": metadata(f7=10**6)},
        {"meta": metadata(f9=3)},
        {"meta": metadata(f9=-1)},
        {"meta": metadata(f11=4)},
        {"meta": {4: (I32, encode_long(1))}},
        {"meta": {2: (LIST, list_bytes(I32, [encode_long(3)]))}},
        {"meta": {12: None}},
        {"statistics": {3: None}},
        {"statistics": metadata(f3=31)},
        {"statistics": metadata(f3=-1)},
        {"statistics": {5: None}},
        {"statistics": {6: None}},
        {"statistics": {7: (FALSE, b"")}},
        {"statistics": {8: (FALSE, b"")}},
        {"statistics": {5: (BINARY, binary_bytes(b"short"))}},
        {"statistics": {5: (BINARY, binary_bytes((-9).to_bytes(8, "little", signed=True)))}},
    ],
    ids=str,
)
def test_a_column_of_which_anything_is_not_as_it_must_be_is_left_to_be_decoded(edits):
    assert ids(with_edits(file(), 1, **edits)) == ALL - {2}


def test_bounds_may_be_said_to_be_exact_or_not_said_to_be():
    for flag in ((TRUE, b""), None):
        assert ids(with_edits(file(), 1, statistics={7: flag, 8: flag})) == ALL


def test_a_required_column_has_no_nulls():
    assert ids(with_edits(file(), 0, statistics=metadata(f3=1))) == ALL - {1}
    assert ids(with_edits(file(), 0, statistics=metadata(f3=0))) == ALL


def test_columns_without_statistics_are_moved_where_the_table_wants_none():
    data = file(write_statistics=["id"])
    assert ids(data) == {1}
    options = options_of(SCHEMA, **{"write.parquet.stats-enabled.column.s": "false"})
    source = examined(data, known=examiner(options=options))
    assert {id_: chunks[0].bounds is None for id_, chunks in source.chunks.items()} == {1: False, 3: True}


def test_bounds_are_those_of_statistics_and_of_pages_those_of_the_column_index():
    source = examined(file(max_rows_per_page=10))
    (chunk,) = source.chunks[1]
    number = lambda raw: int.from_bytes(raw, "little", signed=True)  # noqa: E731
    assert (number(chunk.bounds.least), number(chunk.bounds.greatest)) == (0, 29)
    assert [(number(page.least), number(page.greatest)) for page in chunk.bounds.pages] == [(0, 9), (10, 19), (20, 29)]
    without = with_edits(file(max_rows_per_page=10), 0, chunk={6: None, 7: None})
    assert examined(without).chunks[1][0].bounds == replace(chunk.bounds, pages=None)


def test_a_chunk_of_nothing_but_nulls_has_no_bounds():
    rows = [{"id": n, "n": None, "s": "a"} for n in range(30)]
    (chunk,) = examined(parquet_bytes(table_of(SCHEMA, rows), **PLAIN)).chunks[2]
    assert (chunk.bounds.null_count, chunk.bounds.least, chunk.bounds.greatest) == (30, None, None)


@given(st.data())
def test_whatever_the_bytes_are_an_answer_comes_without_an_error(data):
    good = file()
    cut = data.draw(st.integers(0, len(good)))
    noise = data.draw(st.binary(max_size=30))
    assert examined(good[:cut] + noise + good[cut + len(noise) :]).chunks is not None
    assert ids(noise) == set()
