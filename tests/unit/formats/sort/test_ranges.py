"""Ranges of keys share out all rows, each once, in parts of about one size."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.sort.encode import KeyRange, Ordering
from icekeep.formats.sort.keys import (
    KeySample,
    key_ranges,
    keys_inside,
    range_numbers,
    ranges_of_files,
    sample_keys,
    sort_keys,
    split_points,
)
from icekeep.spec.sorting import build_sort_order
from icekeep.spec.types import LONG
from kit.cases import cases, for_each
from kit.columns import column, schema_of


def keys_of(values: list[int]) -> pa.Array:
    return pa.array([value.to_bytes(2, "big") for value in values], pa.binary(2))


@pytest.mark.parametrize("type_", [pa.binary(2), pa.large_binary()])
@cases(50)
@given(st.lists(st.integers(0, 20)), st.lists(st.integers(0, 20), unique=True, max_size=9).map(sorted))
def test_ranges_between_points_share_out_all_rows_and_each_once(type_, values, points):
    keys = keys_of(values).cast(type_)
    table = pa.table({"v": pa.array(values, pa.int32())})
    bounds = [point.to_bytes(2, "big") for point in points]
    numbers = range_numbers(keys, bounds)
    ranges = key_ranges(bounds)
    assert len(ranges) == len(points) + 1
    for number, key_range in enumerate(ranges):
        expected = [
            v
            for v in values
            if (number == 0 or v >= points[number - 1]) and (number == len(points) or v < points[number])
        ]
        inside = keys_inside(keys, key_range)
        assert (values if inside is None else table.filter(inside)["v"].to_pylist()) == expected
        assert [v for v, n in zip(values, numbers, strict=True) if n == number] == expected


def test_where_all_rows_are_in_a_range_none_is_picked():
    assert keys_inside(keys_of([1, 2]), KeyRange()) is None
    assert keys_inside(keys_of([1, 2]), KeyRange(lower=b"\0\1")) is None


NUMBERS = schema_of(column(1, "n", LONG))
BY_NUMBER = Ordering(fields=build_sort_order(NUMBERS, ["n"]).fields)


def number_table(numbers) -> pa.Table:
    return pa.table([pa.array(numbers, pa.int64())], schema=arrow_schema(NUMBERS))


def test_a_sample_is_evenly_spaced_and_bounded_and_counts_what_it_saw():
    tables = [number_table(range(start, start + 777)) for start in range(0, 77_700, 777)]
    sample = sample_keys(tables, BY_NUMBER, NUMBERS, max_keys=1000)
    assert sample.row_count == 77_700
    assert sample.arrow_bytes >= 77_700 * 8
    numbers = [int.from_bytes(key[1:], "big") - 2**63 for key in sample.keys]
    assert 500 <= len(numbers) <= 1000
    assert numbers == list(range(0, 77_700, 128))
    whole = sample_keys(tables[:1], BY_NUMBER, NUMBERS, max_keys=1000)
    assert whole.keys == tuple(sort_keys(tables[0], BY_NUMBER, NUMBERS).to_pylist())


def sample_of(numbers, row_count: int | None = None) -> KeySample:
    keys = tuple(number.to_bytes(2, "big") for number in numbers)
    return KeySample(keys=keys, row_count=len(keys) if row_count is None else row_count, arrow_bytes=0)


def parts_of(points, numbers) -> list[int]:
    return np.bincount(range_numbers(keys_of(numbers), points), minlength=len(points) + 1).tolist()


@for_each("parts", [1, 2, 3, 7])
def test_points_cut_rows_into_parts_of_one_size(parts):
    numbers = np.random.default_rng(3).permutation(60_000)[:8400].tolist()
    points = split_points([sample_of(numbers[:5000]), sample_of(numbers[5000:])], parts)
    assert len(points) == parts - 1
    assert parts_of(points, numbers) == [8400 // parts] * parts
    assert points == split_points([sample_of(numbers[5000:]), sample_of(reversed(numbers[:5000]))], parts)


def test_a_sample_of_more_rows_weighs_more():
    low, high = range(100), range(1000, 1100)
    (point,) = split_points([sample_of(low, 300), sample_of(high, 100)], 2)
    # Half of 400 rows are two thirds of the 300.
    assert int.from_bytes(point, "big") in (66, 67)


def test_rows_of_one_key_are_never_cut_apart_and_no_part_is_empty():
    for numbers in ([5] * 100, [5] * 90 + [6] * 10, [1] + [5] * 98 + [9], [1, 2] * 50):
        for parts in (2, 3, 10):
            points = split_points([sample_of(numbers)], parts)
            assert list(points) == sorted(set(points))
            assert all(parts_of(points, numbers))
    assert split_points([sample_of([5] * 100)], 4) == ()
    assert len(split_points([sample_of([1, 2] * 50)], 2)) == 1


def test_without_rows_nothing_is_cut():
    assert split_points([], 4) == ()
    assert split_points([sample_of([])], 4) == ()


@given(
    st.lists(st.integers(0, 40), max_size=60),
    st.integers(1, 9).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count))),
    st.integers(1, 3),
)
def test_ranges_make_all_files_and_each_one_at_least(numbers, counts, finer):
    files_count, ranges_count = counts
    points, files_counts = ranges_of_files([sample_of(numbers)], files_count, ranges_count, finer=finer)
    assert len(points) + 1 == len(files_counts) <= ranges_count
    assert sum(files_counts) == files_count
    assert min(files_counts) >= 1


@for_each(
    ("numbers", "ranges_count", "finer", "expected"),
    [
        # Five files in two ranges: none of half of the rows that makes two, or three.
        (range(1000), 2, 1, [(400, 2), (600, 3)]),
        (range(1000), 2, 2, [(400, 2), (600, 3)]),
        (range(1000), 5, 3, [(200, 1)] * 5),
        # Rows of one key stay together, and make as many files as they are.
        ([5] * 600 + [*range(10, 410)], 5, 1, [(600, 3), (200, 1), (200, 1)]),
        ([5] * 1000, 5, 2, [(1000, 5)]),
    ],
)
def test_a_range_makes_files_by_the_rows_that_it_has(numbers, ranges_count, finer, expected):
    points, files_counts = ranges_of_files([sample_of(numbers)], 5, ranges_count, finer=finer)
    assert sorted(zip(parts_of(points, [*numbers]), files_counts, strict=True)) == sorted(expected)
