import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.formats.parquet.pages import (
    ChunkBounds,
    PageBounds,
    column_index_bytes,
    order_of,
    pages_of_index,
    statistics_bytes,
)
from icekeep.formats.parquet.thrift import Struct
from kit.cases import for_each
from kit.columns import parquet_file


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


def test_numbers_are_ordered_by_value_decimals_too_and_all_else_by_bytes():
    assert LONGS(stored(-1)) < LONGS(stored(0)) < LONGS(stored(256))
    wide = order(pa.decimal128(4, 2))
    assert wide(b"\xff\xff") < wide(b"\x00\x01")
    plain = order(pa.binary(2))
    assert plain(b"\x00\x01") < plain(b"\xff\xff")
    assert order(pa.string())(b"a") < order(pa.string())(b"aa")


@for_each("type_", [pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.binary(7)])
def test_bytes_of_another_length_are_no_value(type_):
    for length in (0, 2, 6, 9):
        with pytest.raises(ValueError, match=f"has {length}"):
            order(type_)(b"\0" * length)


def test_statistics_hold_all_chunks_and_no_bounds_where_all_is_null():
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


def test_there_is_no_column_index_where_one_chunk_has_none():
    assert column_index_bytes([chunk([1]), ChunkBounds(0, stored(1), stored(1), None)], LONGS) is None


def test_an_index_of_other_pages_or_with_bounds_the_wrong_way_round_is_none():
    data = column_index_bytes([chunk([1, 2], [None, None])], LONGS)
    assert pages_of_index(data, [2, 2], LONGS) is not None
    assert pages_of_index(data, [2], LONGS) is None
    assert pages_of_index(data, [2, 3], LONGS) is None
    assert pages_of_index(data[:-3], [2, 2], LONGS) is None
    wrong = ChunkBounds(0, None, None, (PageBounds(0, stored(5), stored(1)),))
    assert pages_of_index(column_index_bytes([wrong], LONGS), [1], LONGS) is None
