"""Intervals of keys, against looking at each pair and each place by itself."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icekeep.maintenance.intervals import Intervals

EVERYTHING = (-1, 13)
PAIRS = st.lists(
    st.none() | st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda pair: (min(pair), max(pair))), max_size=12
)


def overlap(one, other):
    (low, high), (lower, upper) = one or EVERYTHING, other or EVERYTHING
    return low < upper and lower < high


@given(PAIRS, st.data())
def test_what_overlaps_is_what_shares_more_than_an_end(pairs, data):
    weights = data.draw(st.lists(st.integers(0, 2**60 // 12), min_size=len(pairs), max_size=len(pairs)))
    expected = [
        sum(weight for n, weight in enumerate(weights) if n == number or overlap(pairs[n], pair))
        for number, pair in enumerate(pairs)
    ]
    assert Intervals.of(pairs).overlapping(np.array(weights, np.int64)).tolist() == expected


@given(PAIRS, st.data())
def test_a_depth_counts_those_that_are_asked_for_and_what_is_covered_besides(pairs, data):
    among = data.draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    intervals = Intervals.of(pairs)
    covered = intervals.taken(~np.array(among, np.bool_)).span()
    found = intervals.depths(np.array(among, np.bool_), covered).tolist()
    places = [range(first, last + 1) for first, last in zip(intervals.first, intervals.last, strict=True)]

    def count(place):
        some = [places[n] for n, is_asked in enumerate(among) if is_asked and place in places[n]]
        are_points = [len(one) == 1 and one[0] % 2 == 0 for one in some]
        is_covered = covered is not None and covered[0] <= place <= covered[1]
        return are_points.count(False) + any(are_points) + is_covered

    assert found == [max(map(count, one)) for one in places]


def test_what_has_no_ends_reaches_beyond_all_others_and_none_is_none():
    intervals = Intervals.of([(5, 5), None, (5, 9), (9, 12)])
    assert intervals.are_points.tolist() == [True, False, False, False]
    assert intervals.depths().tolist() == [2, 2, 2, 2]
    assert intervals.span() == (intervals.first[1], intervals.last[1])
    nothing = Intervals.of([])
    assert (len(nothing), nothing.span(), nothing.depths().tolist()) == (0, None, [])
