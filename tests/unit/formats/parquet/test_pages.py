import io
import zlib
from decimal import Decimal
from itertools import permutations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.formats.options import ParquetOptions, write_options
from icekeep.formats.parquet.pages import (
    CannotMovePages,
    ChunkBounds,
    PageBounds,
    PageExaminer,
    chunk_pages,
    column_index_bytes,
    order_of,
    pages_of_index,
    statistics_bytes,
)
from icekeep.formats.parquet.thrift import (
    BINARY,
    FALSE,
    I32,
    I64,
    LIST,
    STRUCT,
    TRUE,
    Damaged,
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
from kit.columns import EVERY_TYPE, column, parquet_bytes, parquet_file, schema_of, table_of
from kit.examples import check_examples
from kit.spliced import footer_in, with_edits

PLAIN, DICTIONARY, RLE, BIT_PACKED, DELTA_NUMBERS, DELTA_LENGTHS, DELTA_TEXTS, BYTE_STREAMS = 0, 8, 3, 4, 5, 6, 7, 9
EIGHT = bytes(8)


def numbers(**values):
    """Fields `f1`, `f2` and so on of 32 bits."""
    return [(int(name[1:]), I32, encode_long(value)) for name, value in values.items() if value is not None]


def head(kind, size_bytes, plain_bytes, about, more=(), checksum=None):
    fields = numbers(f1=kind, f2=plain_bytes, f3=size_bytes, f4=checksum)
    return struct_bytes([*fields, (8 if kind == 3 else 5, STRUCT, struct_bytes(about)), *more])


def old_page(values, rows, encoding=PLAIN, *, levels=RLE, size=None, plain=None, more=(), checksum=None, extra=()):
    """A data page of version 1."""
    about = [*numbers(f1=rows, f2=encoding, f3=levels, f4=levels), *more]
    sizes = len(values) if size is None else size, len(values) if plain is None else plain
    return head(0, *sizes, about, extra, checksum) + values


def new_page(values, rows, *, levels=b"", plain=None, length=None, compressed=None, **counts):
    """A data page of version 2."""
    given = {"f1": rows, "f2": 0, "f3": rows, "f4": PLAIN, "f5": len(levels) if length is None else length, "f6": 0}
    names = {"nulls": "f2", "counted": "f3", "encoding": "f4", "repeated": "f6"}
    about = numbers(**given | {names[name]: count for name, count in counts.items()})
    about += [] if compressed is None else [(7, TRUE if compressed else FALSE, b"")]
    body = levels + values
    return head(3, len(body), len(body) if plain is None else plain, about) + body


def pages_of(*pages, rows, physical_type="INT64", has_nulls=False):
    data = b"PAR1" + b"".join(pages) + b"a footer and its tail"
    return chunk_pages(
        data, 4, 4 + sum(map(len, pages)), physical_type=physical_type, has_nulls=has_nulls, row_count=rows
    )


def test_pages_are_contiguous_with_their_headers():
    first, second = old_page(EIGHT * 2, 2), old_page(EIGHT * 3, 3)
    found = pages_of(first, second, rows=5)
    assert found.pages == ((4, 4 + len(first), 2), (4 + len(first), 4 + len(first) + len(second), 3))
    assert (found.kind, found.encodings) == (0, {PLAIN})
    assert found.compressed_bytes == found.uncompressed_bytes == len(first + second)


def test_what_lies_outside_of_the_data_is_no_chunk():
    data = b"PAR1" + old_page(EIGHT, 1) + b"the tail"
    for start, end in ((0, len(data) - 8), (4, len(data) - 7), (9, 9), (-5, 20)):
        with pytest.raises(Damaged, match="outside of the file's data"):
            chunk_pages(data, start, end, physical_type="INT64", has_nulls=False, row_count=1)


def test_a_checksum_is_that_of_the_page_where_there_is_one():
    values = b"12345678"
    right = zlib.crc32(values)
    signed = right - 2**32 if right >> 31 else right
    assert pages_of(old_page(values, 1, checksum=signed), rows=1).pages
    with pytest.raises(Damaged, match="the checksum that it says"):
        pages_of(old_page(values, 1, checksum=signed ^ 1), rows=1)


TYPES = {"BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"}
MOVABLE = {
    PLAIN: {"INT32", "INT64", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"},
    DELTA_NUMBERS: {"INT32", "INT64"},
    DELTA_LENGTHS: {"BYTE_ARRAY"},
    DELTA_TEXTS: {"BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"},
    BYTE_STREAMS: {"INT32", "INT64", "FIXED_LEN_BYTE_ARRAY"},
}


@for_each("physical_type", sorted(TYPES))
@for_each("encoding", range(11))
def test_only_self_contained_pages_are_movable(encoding, physical_type):
    for page in (old_page(EIGHT, 2, encoding), new_page(EIGHT, 2, encoding=encoding)):
        if physical_type in MOVABLE.get(encoding, ()):
            found = pages_of(page, rows=2, physical_type=physical_type, has_nulls=True)
            assert found.encodings == {encoding}
        else:
            with pytest.raises(CannotMovePages, match="by a dictionary, or in a way"):
                pages_of(page, rows=2, physical_type=physical_type, has_nulls=True)


def test_levels_of_version_1_are_run_lengths_or_none():
    assert pages_of(old_page(EIGHT, 1, levels=BIT_PACKED), rows=1).pages
    for has_nulls, levels in ((True, BIT_PACKED), (False, PLAIN)):
        with pytest.raises(CannotMovePages, match="old way"):
            pages_of(old_page(EIGHT, 1, levels=levels), rows=1, has_nulls=has_nulls)


def test_heads_have_no_fields_that_are_not_known():
    nothing = struct_bytes([])
    unknown = [
        old_page(EIGHT, 1, extra=[(9, I32, b"\2")]),
        old_page(EIGHT, 1, more=[(6, I32, b"\2")]),
        old_page(EIGHT, 1, more=[(5, STRUCT, struct_bytes([(9, I64, b"\2")]))]),
        old_page(EIGHT, 1, more=[(5, STRUCT, struct_bytes([(3, I32, b"\2")]))]),
        old_page(EIGHT, 1, levels=None),
        struct_bytes([*numbers(f1=0, f2=8, f3=8), (5, STRUCT, nothing)]) + EIGHT,
        struct_bytes([*numbers(f1=0, f3=8), (5, STRUCT, nothing)]) + EIGHT,
    ]
    for page in unknown:
        with pytest.raises(CannotMovePages, match="fields that icekeep does not know"):
            pages_of(page, rows=1)
    statistics = struct_bytes([(3, I64, b"\0"), (5, BINARY, binary_bytes(EIGHT)), (7, FALSE, b"")])
    assert pages_of(old_page(EIGHT, 1, more=[(5, STRUCT, statistics)]), rows=1).pages


# Version 2


def test_a_page_of_version_2_has_a_value_a_row():
    for wrong in ({"counted": 2}, {"repeated": 1}, {"nulls": 4}, {"nulls": -1}):
        with pytest.raises(Damaged, match="one value a row"):
            pages_of(new_page(EIGHT * 3, 3, **wrong), rows=3, has_nulls=True)


def test_levels_require_nulls_and_fit_the_page():
    for has_nulls, length in ((False, 1), (True, 99), (True, -1)):
        with pytest.raises(Damaged, match="levels that its column has not"):
            pages_of(new_page(EIGHT, 1, length=length), rows=1, has_nulls=has_nulls)


def run(length, level):
    return bytes([length << 1, level])


def bits(levels):
    """Levels in eights; what is behind the last is no level, whatever it says."""
    groups = -(-len(levels) // 8)
    padded = levels + [True] * (8 * groups - len(levels))
    return bytes([groups << 1 | 1]) + sum(level << n for n, level in enumerate(padded)).to_bytes(groups, "little")


@given(
    st.lists(
        st.lists(st.booleans(), min_size=1, max_size=40) | st.tuples(st.integers(1, 60), st.booleans()), min_size=1
    )
)
def test_definition_levels_must_match_null_count(parts):
    rows, data = [], b""
    for number, part in enumerate(parts):
        if isinstance(part, tuple):
            rows += [part[1]] * part[0]
            data += run(*part)
        else:
            # Bits before the end come in eights.
            part = part if number == len(parts) - 1 else part + [False] * (-len(part) % 8)
            rows += part
            data += bits(part)
    nulls = rows.count(False)
    assert pages_of(new_page(b"", len(rows), nulls=nulls, levels=data), rows=len(rows), has_nulls=True).pages
    for wrong in ({"nulls": nulls + 1}, {"nulls": nulls - 1}, {"nulls": nulls, "levels": data + run(1, 1)}):
        with pytest.raises(Damaged):
            pages_of(new_page(b"", len(rows), **{"levels": data, **wrong}), rows=len(rows), has_nulls=True)


@given(st.binary(max_size=60))
def test_whatever_the_bytes_are_the_answer_is_pages_or_a_refusal(data):
    try:
        found = chunk_pages(
            b"PAR1" + data + EIGHT, 4, 4 + len(data), physical_type="INT64", has_nulls=True, row_count=3
        )
    except (CannotMovePages, Damaged):
        return
    assert sum(page.row_count for page in found.pages) == 3


SCHEMA = schema_of(column(1, "id", LONG, required=True), column(2, "n", LONG), column(3, "s", STRING))
ALL = {1, 2, 3}
NO_DICTIONARY = {"compression": "zstd", "use_dictionary": False, "write_page_index": True}


def file(row_count=30, first=0, schema=SCHEMA, **options):
    numbers = range(first, first + row_count)
    rows = [{"id": n, "n": n * 7 if n % 3 else None, "s": f"text {n}"} for n in numbers]
    return parquet_bytes(table_of(schema, rows), **{**NO_DICTIONARY, **options})


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


@pytest.mark.slow
def test_float_boolean_and_nested_columns_never_move():
    """Moving a page counts no NaN, and nested columns need levels of their own."""
    columns = examiner(EVERY_TYPE).columns
    left_out = {field.name for field in EVERY_TYPE.fields if field.field_id not in columns}
    assert left_out == {"c1_boolean", "c4_float", "c5_double", "point", "numbers", "points", "counts", "deep"}


@pytest.mark.slow
def test_bloom_filter_and_lineage_columns_never_move():
    schema = replace(SCHEMA, fields=(*SCHEMA.fields, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER))
    assert set(examiner(schema).columns) == ALL
    wanted = {"write.parquet.bloom-filter-enabled.column.s": "true"}
    assert set(examiner(options=write_options(wanted, SCHEMA).encoding).columns) == {1, 2}


@pytest.mark.slow
def test_what_is_wanted_of_a_file_is_all_that_is_looked_at():
    assert ids(file(), wanted={2, 99}) == {2}
    assert ids(file()) == ALL
    assert examined(file(), wanted={2}).chunks[2] == examined(file()).chunks[2]


@pytest.mark.slow
def test_row_groups_without_rows_have_no_chunk():
    source = examined(file(row_group_rows=12))
    assert {len(chunks) for chunks in source.chunks.values()} == {3}
    assert [chunk.pages[0].row_count for chunk in source.chunks[2]] == [12, 12, 6]
    nothing = examiner().examine(file(0), 0)
    assert {id_: chunks for id_, chunks in nothing.chunks.items() if chunks} == {}


@pytest.mark.slow
def test_rows_are_taken_to_need_about_the_memory_that_they_do():
    data = file(30)
    table = pq.read_table(io.BytesIO(data))
    assert table.nbytes / 3 < examined(data).arrow_bytes < 3 * table.nbytes


# Files


@pytest.mark.slow
def test_inconsistent_footer_yields_no_chunks():
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


@pytest.mark.slow
def test_what_comes_behind_a_known_end_is_no_footers():
    good, known = file(), examiner()
    assert set(examined(good, known=known).chunks) == ALL
    footer = footer_in(good) + b"\0"
    longer = good[: -8 - len(footer) + 1] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    assert set(examined(longer, known=known).chunks) == set()


@pytest.mark.slow
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
def test_files_of_buggy_delta_writers_yield_no_chunks(writer, found):
    """PARQUET-246."""
    assert ids(with_edits(file(), footer={6: (BINARY, binary_bytes(writer.encode()))})) == found


@pytest.mark.slow
def test_shared_schema_knowledge_is_per_file():
    """What an examiner remembers of one file is never used for a file that differs."""
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


@pytest.mark.slow
def test_an_id_that_two_columns_have_is_nobodys():
    data = file(schema=schema_of(*SCHEMA.fields, column(4, "m", LONG)))
    assert ids(data) == ALL
    footer = footer_in(data)
    nodes = Struct(footer).structs(2)
    changes = {nodes[-1].start: [(nodes[-1].integer(9), 2)]}
    schema = [with_integers(footer, node.start, node.end, changes.get(node.start, [])) for node in nodes]
    assert ids(with_edits(data, footer={2: (LIST, list_bytes(STRUCT, schema))})) == {1, 3}


@pytest.mark.slow
def test_bounds_shorter_than_values_block_moving():
    """pyarrow, asked for such statistics of the new file, would end the process."""
    schema = schema_of(column(1, "d", decimal(38, 2)), column(2, "n", LONG))
    data = parquet_bytes(table_of(schema, [{"d": Decimal(n), "n": n} for n in range(30)]), **NO_DICTIONARY)
    short = {id_: (BINARY, binary_bytes(b"\0" * 7)) for id_ in (5, 6)}
    assert set(examined(data, known=examiner(schema)).chunks) == {1, 2}
    for position in (0, 1):
        cut = with_edits(data, position, statistics=short)
        assert set(examined(cut, known=examiner(schema)).chunks) == {2 - position}


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, -1])
def test_ambiguous_column_path_is_decoded(order):
    inner = StructType((column(2, "b", LONG),))
    fields = column(1, "a.b", LONG), column(3, "a", inner, required=True), column(4, "c", LONG)
    schema = schema_of(*fields[::order])
    assert set(examiner(schema).columns) == {4}
    data = parquet_bytes(table_of(schema, [{"a.b": n, "a": {"b": -n}, "c": n} for n in range(30)]), **NO_DICTIONARY)
    plain = schema_of(column(1, "x", LONG), column(4, "c", LONG))
    assert set(examined(data, known=examiner(plain)).chunks) == {4}


@pytest.mark.slow
def test_a_list_is_no_column_of_its_elements():
    nested = schema_of(column(1, "id", LONG, required=True), column(5, "l", ListType(element_id=2, element=LONG)))
    assert ids(file(schema=nested)) == {1}


# Chunks


def metadata(**edits):
    return {int(name[1:]): (I64, encode_long(value)) for name, value in edits.items()}


@pytest.mark.slow
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
def test_column_with_any_oddity_is_decoded(edits):
    assert ids(with_edits(file(), 1, **edits)) == ALL - {2}


@pytest.mark.slow
def test_bounds_may_be_said_to_be_exact_or_not_said_to_be():
    for flag in ((TRUE, b""), None):
        assert ids(with_edits(file(), 1, statistics={7: flag, 8: flag})) == ALL


@pytest.mark.slow
def test_a_required_column_has_no_nulls():
    assert ids(with_edits(file(), 0, statistics=metadata(f3=1))) == ALL - {1}
    assert ids(with_edits(file(), 0, statistics=metadata(f3=0))) == ALL


@pytest.mark.slow
def test_unwanted_statistics_do_not_block_moving():
    """A column without statistics is moved where the table wants none."""
    data = file(write_statistics=["id"])
    assert ids(data) == {1}
    options = options_of(SCHEMA, **{"write.parquet.stats-enabled.column.s": "false"})
    source = examined(data, known=examiner(options=options))
    assert {id_: chunks[0].bounds is None for id_, chunks in source.chunks.items()} == {1: False, 3: True}


@pytest.mark.slow
def test_bounds_come_from_statistics_and_column_index():
    source = examined(file(max_rows_per_page=10))
    (chunk,) = source.chunks[1]
    number = lambda raw: int.from_bytes(raw, "little", signed=True)  # noqa: E731
    assert (number(chunk.bounds.least), number(chunk.bounds.greatest)) == (0, 29)
    assert [(number(page.least), number(page.greatest)) for page in chunk.bounds.pages] == [(0, 9), (10, 19), (20, 29)]
    without = with_edits(file(max_rows_per_page=10), 0, chunk={6: None, 7: None})
    assert examined(without).chunks[1][0].bounds == replace(chunk.bounds, pages=None)


@pytest.mark.slow
def test_a_chunk_of_nothing_but_nulls_has_no_bounds():
    rows = [{"id": n, "n": None, "s": "a"} for n in range(30)]
    (chunk,) = examined(parquet_bytes(table_of(SCHEMA, rows), **NO_DICTIONARY)).chunks[2]
    assert (chunk.bounds.null_count, chunk.bounds.least, chunk.bounds.greatest) == (30, None, None)


@pytest.mark.slow
@given(st.data())
def test_whatever_the_bytes_are_an_answer_comes_without_an_error(data):
    good = file()
    cut = data.draw(st.integers(0, len(good)))
    noise = data.draw(st.binary(max_size=30))
    assert examined(good[:cut] + noise + good[cut + len(noise) :]).chunks is not None
    assert ids(noise) == set()


def order(type_):
    file = parquet_file(pa.table({"x": pa.array([], type_)}), store_decimal_as_integer=False)
    return order_of(file.schema.column(0))


LONGS = order(pa.int64())


def stored(number):
    return number.to_bytes(8, "little", signed=True)


def page(*values):
    known = [value for value in values if value is not None]
    nulls = len(values) - len(known)
    return PageBounds(nulls, stored(min(known)) if known else None, stored(max(known)) if known else None)


def chunk(*pages):
    whole = page(*(value for one in pages for value in one))
    return ChunkBounds(whole.null_count, whole.least, whole.greatest, tuple(page(*one) for one in pages))


@for_each("type_", [pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.binary(7)])
def test_bytes_of_another_length_are_no_value(type_):
    for length in (0, 2, 6, 9):
        with pytest.raises(ValueError, match=f"has {length}"):
            order(type_)(b"\0" * length)


def test_statistics_cover_all_chunks():
    both = Struct(statistics_bytes([chunk([3, None], [-4]), chunk([None]), chunk([300])], LONGS))
    assert (both.value(3), both.binary(6), both.binary(5)) == (2, stored(-4), stored(300))
    nulls = Struct(statistics_bytes([chunk([None, None])], LONGS))
    assert (nulls.value(3), nulls.spans.keys()) == (2, {3})


PAGES = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4)


@given(st.lists(st.lists(PAGES, min_size=1, max_size=4), min_size=1, max_size=4))
def test_a_column_index_is_read_as_it_was_put_together(chunks):
    data = column_index_bytes([chunk(*pages) for pages in chunks], LONGS)
    pages = [one for pages in chunks for one in pages]
    assert data is not None
    assert pages_of_index(data, [len(one) for one in pages], LONGS) == tuple(page(*one) for one in pages)
    known = [one for one in pages if any(value is not None for value in one)]
    least = [min(v for v in one if v is not None) for one in known]
    greatest = [max(v for v in one if v is not None) for one in known]
    order = Struct(data).value(4)
    rises, falls = ([sorted(b, reverse=r) == b for b in (least, greatest)] for r in (False, True))
    assert order == (1 if all(rises) else 2 if all(falls) else 0)


def test_mismatched_or_crossed_column_index_is_ignored():
    data = column_index_bytes([chunk([1, 2], [None, None])], LONGS)
    assert pages_of_index(data, [2, 2], LONGS) is not None
    assert pages_of_index(data, [2], LONGS) is None
    assert pages_of_index(data, [2, 3], LONGS) is None
    assert pages_of_index(data[:-3], [2, 2], LONGS) is None
    wrong = ChunkBounds(0, None, None, (PageBounds(0, stored(5), stored(1)),))
    assert pages_of_index(column_index_bytes([wrong], LONGS), [1], LONGS) is None


def test_examples():
    check_examples("formats/parquet/pages.txt", globals())
