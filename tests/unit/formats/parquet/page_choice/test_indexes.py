"""Offset indexes are decoded as they were written, and only believed where they fill their chunk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.formats.parquet.footer import (
    I32,
    I64,
    LIST,
    Struct,
    integer_bytes,
    list_bytes,
    struct_bytes,
    struct_list_bytes,
)
from icekeep.formats.parquet.page_choice import CannotChoose, IndexedChunk, page_places
from kit.cases import cases, for_each

NOTHING = Struct(b"\0")


def index_of(pages, rest=()):
    fields = [[(1, I64, place), (2, I32, length), (3, I64, row)] for place, length, row in pages]
    places = [struct_bytes([(id_, kind, integer_bytes(value)) for id_, kind, value in one]) for one in fields]
    return struct_bytes([(1, LIST, struct_list_bytes(places)), *rest])


def chunk_of(start, end):
    return IndexedChunk(start=start, end=end, offsets=None, bounds=None, description=NOTHING)


def pages_of(lengths, counts, start):
    places, rows = [start], [0]
    for length, count in zip(lengths, counts, strict=True):
        places.append(places[-1] + length)
        rows.append(rows[-1] + count)
    return [*zip(places, lengths, rows, strict=False)], places, rows


@cases(200)
@given(st.data())
def test_pages_are_those_that_were_written(data):
    count = data.draw(st.integers(1, 40))
    lengths = data.draw(st.lists(st.integers(1, 2**31 - 1), min_size=count, max_size=count))
    counts = data.draw(st.lists(st.integers(1, 2**40), min_size=count, max_size=count))
    start, dictionary = data.draw(st.integers(4, 2**50)), data.draw(st.integers(0, 1000))
    pages, starts, rows = pages_of(lengths, counts, start + dictionary)
    sizes = [(2, LIST, list_bytes(I64, [integer_bytes(n) for n in range(count)]))]
    stored = index_of(pages, data.draw(st.sampled_from([(), sizes])))
    found = page_places(stored, chunk_of(start, starts[-1]), rows[-1])
    assert found.starts.tolist() == starts
    assert found.rows.tolist() == rows
    assert found.dictionary == (start, dictionary)
    with pytest.raises(CannotChoose):
        page_places(index_of(pages)[: -2 - data.draw(st.integers(0, 5))], chunk_of(start, starts[-1]), rows[-1])


GOOD = [(100, 10, 0), (110, 20, 5), (130, 10, 9)]


@for_each(
    "pages",
    [
        [],
        GOOD[:2],
        GOOD[1:],
        [GOOD[0], GOOD[2]],
        [GOOD[0], (111, 19, 5), GOOD[2]],
        [GOOD[0], (110, 19, 5), GOOD[2]],
        [GOOD[0], (110, 20, 0), GOOD[2]],
        [GOOD[0], (110, 20, 9), GOOD[2]],
        [GOOD[0], (110, 20, 12), GOOD[2]],
        [*GOOD[:2], (130, 10, 12)],
        [(100, 10, -1), *GOOD[1:]],
        [(100, 10, 1), *GOOD[1:]],
        [(-100, 10, 0), *GOOD[1:]],
        [(95, 15, 0), *GOOD[1:]],
        [*GOOD[:2], (130, 11, 9)],
        [GOOD[0], (110, 20, 2**62), GOOD[2]],
    ],
)
def test_pages_that_do_not_fill_a_chunk_and_its_rows_are_not_believed(pages):
    assert page_places(index_of(GOOD), chunk_of(98, 140), 12).dictionary == (98, 2)
    with pytest.raises(CannotChoose):
        page_places(index_of(pages), chunk_of(98, 140), 12)


@given(st.binary(max_size=60))
def test_other_bytes_are_no_index(data):
    with pytest.raises(CannotChoose):
        page_places(data, chunk_of(98, 140), 12)
