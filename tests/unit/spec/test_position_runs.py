"""Positions as runs, against sets of them."""

import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.spec.position_runs import (
    Part,
    PartSet,
    Renumbering,
    as_span,
    count_in,
    joined,
    narrowed,
    positions_in,
    runs_of,
    spans,
    split_at,
    without,
)

POSITIONS = st.sets(st.integers(0, 12))


@given(st.lists(st.integers(0, 30)))
def test_runs_are_the_positions_in_order_each_once(positions):
    runs = runs_of(positions)
    assert [*positions_in(runs)] == sorted(set(positions))
    assert count_in(runs) == len(set(positions))
    assert runs_of(positions_in(runs)) == runs


@given(POSITIONS)
def test_positions_that_are_written_out_are_runs_too(positions):
    assert {*positions_in(tuple(positions))} == positions
    assert joined(spans(tuple(positions))) == runs_of(positions)


def test_a_run_takes_two_numbers_however_long_it_is():
    assert runs_of(range(500, 2000)) == (500, -2000)
    assert runs_of([*range(500, 2000), 7, 8]) == (7, 8, 500, -2000)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5))))
def test_spans_that_touch_or_overlap_become_one(some):
    runs = joined((start, start + length) for start, length in some)
    assert {*positions_in(runs)} == {n for start, length in some for n in range(start, start + length)}
    found = spans(runs)
    assert all(one[1] <= following[0] for one, following in pairwise(found))


@given(POSITIONS, POSITIONS)
def test_what_is_in_one_and_not_in_another(one, another):
    assert [*without(runs_of(one), runs_of(another))] == sorted(one - another)


@given(POSITIONS)
def test_neighbours_alone_are_one_span(positions):
    is_one = bool(positions) and max(positions) - min(positions) + 1 == len(positions)
    assert as_span(runs_of(positions)) == ((min(positions), max(positions) + 1) if is_one else None)


@given(POSITIONS, st.integers(0, 13))
def test_a_split_has_what_is_before_a_position_and_what_is_not(positions, at):
    before, others = split_at(runs_of(positions), at)
    assert before == runs_of(n for n in positions if n < at)
    assert others == runs_of(n for n in positions if n >= at)


@given(st.lists(POSITIONS, max_size=4))
def test_parts_of_what_they_use_have_the_same_members(parts):
    whole = [f"m{n}" for n in range(13)]
    used, runs = narrowed(whole, [*map(runs_of, parts)])
    assert used == [whole[n] for n in sorted(set().union(*parts))]
    assert [[used[n] for n in positions_in(one)] for one in runs] == [[whole[n] for n in sorted(one)] for one in parts]


@given(st.permutations([*range(8), -1, -1, -1]), st.sets(st.integers(0, 10)))
def test_members_are_found_in_another_list_where_it_has_them(places, positions):
    found = Renumbering(places).runs(runs_of(positions))
    assert found == runs_of(places[n] for n in positions if places[n] >= 0)


@pytest.mark.parametrize("places", [[*range(40, 60)], [*range(19), -1], [-1] * 20, [*range(10), *range(30, 40)]])
def test_long_runs_are_found_in_another_list(places):
    for start in range(20):
        for stop in range(start + 1, 21):
            found = Renumbering(places).runs(joined([(start, stop)]))
            assert found == runs_of(n for n in places[start:stop] if n >= 0)


@given(POSITIONS, POSITIONS)
def test_a_part_is_a_sequence_and_a_part_set_equals_any_set_of_its_members(one, another):
    whole = [f"m{n}" for n in range(13)]
    part, as_set = Part(whole, runs_of(one)), PartSet(whole, runs_of(one))
    members = [whole[n] for n in sorted(one)]
    assert ([*part], len(part), part[:2]) == (members, len(members), members[:2])
    assert as_set == frozenset(members) == pickle.loads(pickle.dumps(as_set))
    assert hash(as_set) == hash(PartSet([*whole], runs_of(one)))
    other = {whole[n] for n in another}
    assert (as_set == PartSet(whole, runs_of(another))) == (one == another)
    assert as_set - other == frozenset(members) - other
    assert type(as_set & other) is frozenset
    assert all((name in as_set) == (name in members) for name in whole)
