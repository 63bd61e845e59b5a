import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.formats.parquet.pages import CannotMovePages, chunk_pages
from icekeep.formats.parquet.thrift import (
    BINARY,
    FALSE,
    I32,
    I64,
    STRUCT,
    TRUE,
    Damaged,
    binary_bytes,
    struct_bytes,
)
from icekeep.spec.avro import encode_long
from kit.cases import for_each

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


def test_pages_lie_one_behind_the_other_and_have_their_heads_with_them():
    first, second = old_page(EIGHT * 2, 2), old_page(EIGHT * 3, 3)
    found = pages_of(first, second, rows=5)
    assert found.pages == ((4, 4 + len(first), 2), (4 + len(first), 4 + len(first) + len(second), 3))
    assert (found.kind, found.encodings) == (0, {PLAIN})
    assert found.compressed_bytes == found.uncompressed_bytes == len(first + second)


def test_uncompressed_bytes_are_those_of_heads_and_of_pages_before_they_were_compressed():
    page = old_page(b"short", 3, plain=24)
    assert pages_of(page, rows=3).uncompressed_bytes == len(page) - 5 + 24


@pytest.mark.parametrize("row_count", [4, 6])
def test_pages_have_the_rows_of_their_chunk_together(row_count):
    with pytest.raises(Damaged, match=r"have 5 rows|more rows than"):
        pages_of(old_page(EIGHT * 5, 5), rows=row_count)


def test_what_lies_outside_of_the_data_is_no_chunk():
    data = b"PAR1" + old_page(EIGHT, 1) + b"the tail"
    for start, end in ((0, len(data) - 8), (4, len(data) - 7), (9, 9), (-5, 20)):
        with pytest.raises(Damaged, match="outside of the file's data"):
            chunk_pages(data, start, end, physical_type="INT64", has_nulls=False, row_count=1)


def test_a_page_ends_with_its_chunk_or_before():
    for page in (old_page(EIGHT, 1, size=9, plain=8), old_page(EIGHT, 1, size=-1), old_page(EIGHT, 1, plain=-1)):
        with pytest.raises(Damaged, match="longer than its column chunk"):
            pages_of(page, rows=1)


def test_numbers_that_lie_one_after_the_other_take_the_bytes_that_they_must():
    with pytest.raises(Damaged, match="more or fewer bytes"):
        pages_of(old_page(EIGHT * 2, 2), rows=2, physical_type="INT32")
    assert pages_of(old_page(EIGHT, 2), rows=2, physical_type="INT32").pages
    # Where there are nulls, fewer values are stored, and levels.
    assert pages_of(old_page(EIGHT, 9), rows=9, has_nulls=True).pages


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
def test_only_pages_that_need_nothing_else_of_their_chunk_are_moved(encoding, physical_type):
    for page in (old_page(EIGHT, 2, encoding), new_page(EIGHT, 2, encoding=encoding)):
        if physical_type in MOVABLE.get(encoding, ()):
            found = pages_of(page, rows=2, physical_type=physical_type, has_nulls=True)
            assert found.encodings == {encoding}
        else:
            with pytest.raises(CannotMovePages, match="by a dictionary, or in a way"):
                pages_of(page, rows=2, physical_type=physical_type, has_nulls=True)


def test_a_dictionary_page_is_no_page_that_can_be_moved():
    dictionary = struct_bytes([*numbers(f1=2, f2=8, f3=8), (7, STRUCT, struct_bytes(numbers(f1=1, f2=PLAIN)))]) + EIGHT
    with pytest.raises(CannotMovePages):
        pages_of(dictionary, old_page(EIGHT, 1, DICTIONARY), rows=1)


def test_pages_of_both_versions_are_not_of_one_chunk():
    with pytest.raises(CannotMovePages, match="both versions"):
        pages_of(old_page(EIGHT, 1), new_page(EIGHT, 1), rows=2)


def test_a_page_without_values_is_not_moved():
    with pytest.raises(CannotMovePages, match="no values"):
        pages_of(old_page(b"", 0), old_page(EIGHT, 1), rows=1)


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


def test_levels_are_there_for_a_column_with_nulls_alone_and_within_the_page():
    for has_nulls, length in ((False, 1), (True, 99), (True, -1)):
        with pytest.raises(Damaged, match="levels that its column has not"):
            pages_of(new_page(EIGHT, 1, length=length), rows=1, has_nulls=has_nulls)


def test_a_page_that_is_not_compressed_has_one_size():
    assert pages_of(new_page(EIGHT, 1, compressed=False), rows=1).pages
    assert pages_of(new_page(b"short", 1, plain=8, compressed=True), rows=1).pages
    with pytest.raises(Damaged, match="two sizes"):
        pages_of(new_page(b"short", 1, plain=8, compressed=False), rows=1)


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
def test_levels_say_the_nulls_that_the_head_says_however_they_are_written(parts):
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


def test_without_levels_there_are_no_nulls():
    assert pages_of(new_page(EIGHT, 1), rows=1, has_nulls=True).pages
    with pytest.raises(Damaged, match="nulls without levels"):
        pages_of(new_page(EIGHT, 2, nulls=1), rows=2, has_nulls=True)


def test_levels_that_end_too_early_are_damaged():
    with pytest.raises(Damaged, match="not the levels that its head says"):
        pages_of(new_page(EIGHT * 5, 5, levels=run(4, 1)), rows=5, has_nulls=True)


@given(st.binary(max_size=60))
def test_whatever_the_bytes_are_the_answer_is_pages_or_a_refusal(data):
    try:
        found = chunk_pages(
            b"PAR1" + data + EIGHT, 4, 4 + len(data), physical_type="INT64", has_nulls=True, row_count=3
        )
    except (CannotMovePages, Damaged):
        return
    assert sum(page.row_count for page in found.pages) == 3
