"""Examples of Iceberg's TestBinPacking, PyIceberg as a second opinion; sets of positions against Python's."""

import pickle
from collections import Counter
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.utils.bin_packing import PackingIterator

from icekeep.spec.collections import (
    NO_POSITIONS,
    Part,
    PartSet,
    PositionSet,
    Renumbering,
    balanced,
    cut_evenly,
    each_once,
    is_stretch,
    narrowed,
    of_stretches,
    packed,
    packed_positions,
    stretches,
    unpacked_positions,
)
from kit.cases import for_each
from kit.examples import check_examples

WEIGHTS = st.lists(st.integers(0, 30), max_size=40)


def filled(weights, capacity, max_items=2**63 - 1):
    return list(packed(weights, (int, capacity), (each_once, max_items)))


@given(st.lists(st.integers(0, 50)), st.integers(1, 60), st.integers(1, 10))
def test_fill_keeps_order_and_respects_capacity(weights, capacity, max_items):
    bins = filled(weights, capacity, max_items)
    assert [item for some in bins for item in some] == weights
    assert all(some and len(some) <= max_items for some in bins)
    assert all(sum(some) <= capacity or len(some) == 1 for some in bins)


@given(st.lists(st.integers(0, 50)), st.integers(1, 60), st.integers(1, 10))
def test_a_bin_is_closed_only_when_the_next_item_does_not_go_in(weights, capacity, max_items):
    bins = filled(weights, capacity, max_items)
    for some, following in pairwise(bins):
        assert sum(some) + following[0] > capacity or len(some) == max_items


@given(WEIGHTS, st.integers(1, 40), st.integers(1, 6), st.booleans())
def test_pack_keeps_order_and_respects_target(weights, target, lookback, heaviest_first):
    items = list(enumerate(weights))
    bins = list(packed(items, (lambda i: i[1], target), lookback=lookback, heaviest_first=heaviest_first))
    assert sorted(item for some in bins for item in some) == items
    assert all(some == sorted(some) for some in bins)
    assert all(some for some in bins)
    assert all(len(some) == 1 or sum(w for _, w in some) <= target for some in bins)
    if lookback >= len(weights):
        # First fit: no two bins fit into one.
        assert all(sum(w for _, w in a) + sum(w for _, w in b) > target for a, b in pairwise(bins))


@given(WEIGHTS, st.integers(1, 40), st.integers(1, 6), st.booleans())
def test_bins_are_those_that_pyiceberg_packs(weights, target, lookback, heaviest_first):
    theirs = list(PackingIterator(weights, target, lookback, int, heaviest_first))
    ours = list(packed(weights, (int, target), lookback=lookback, heaviest_first=heaviest_first))
    # Of the bins that are open at the end it closes the heaviest first too; we close the oldest, as Java does.
    closed_count = max(0, len(ours) - lookback) if heaviest_first else len(ours)
    assert ours[:closed_count] == theirs[:closed_count]
    assert sorted(ours) == sorted(theirs)


@given(WEIGHTS, st.integers(1, 5))
def test_no_more_is_held_than_the_open_bins(weights, lookback):
    taken = []
    given_back = 0
    stream = (taken.append(w) or w for w in weights)
    for some in packed(stream, (int, 10), lookback=lookback, heaviest_first=True):
        if len(taken) < len(weights):
            # All that was taken and not given back fits into as many bins as may be open.
            held = sum(taken) - given_back - sum(some)
            assert held <= lookback * max(10, *taken)
        given_back += sum(some)
    assert given_back == sum(weights)


def test_packing_reads_no_further_than_the_bin_that_it_closes():
    taken = []
    stream = (taken.append(n) or n for n in [9] * 100)
    next(packed(stream, (int, 10), lookback=3))
    assert len(taken) == 4


@given(st.lists(st.integers(0, 10**6), max_size=60), st.integers(1, 12))
def test_balanced_bins_are_close_to_optimal(weights, bins_count):
    bins = balanced(weights, int, bins_count)
    assert Counter(item for some in bins for item in some) == Counter(weights)
    assert len(bins) <= bins_count
    assert all(bins)
    # Longest processing time first is at most 4/3 of the best there is (Graham), which is at least the mean and the greatest.
    least = max([sum(weights) / bins_count, *weights], default=0)
    heaviest = sorted(weights, reverse=True)
    if len(heaviest) > bins_count:
        least = max(least, heaviest[bins_count - 1] + heaviest[bins_count])
    assert max(map(sum, bins), default=0) <= least * 4 / 3 + 1e-9


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 20))
def test_stretches_are_neighbours_of_about_one_weight(weights, count):
    stretches = cut_evenly(weights, int, count)
    assert [weight for some in stretches for weight in some] == weights
    assert all(stretches)
    assert len(stretches) <= count
    # No cut is further than half an item from where it should be.
    wanted, done = sum(weights) / count, 0
    for some in stretches[:-1]:
        done += sum(some)
        assert min(abs(done - n * wanted) for n in range(count + 1)) <= max(weights) / 2 + 1e-6


@given(st.integers(1, 200), st.integers(1, 12), st.sampled_from([7, 0.1, 10**18]))
def test_items_of_one_weight_are_cut_into_equal_numbers(items_count, count, weight):
    counts = [len(some) for some in cut_evenly(range(items_count), lambda _: weight, count)]
    assert max(counts) - min(counts) <= 1
    assert len(counts) == min(items_count, count)


@given(st.lists(st.integers(1, 900), min_size=1, max_size=40), st.integers(1, 10), st.integers(100, 5000))
def test_no_stretch_is_beyond_a_limit(sizes, count, most):
    stretches = cut_evenly(sizes, int, count, (int, most), (each_once, 7))
    assert [size for some in stretches for size in some] == sizes
    assert all(len(some) <= 7 and (sum(some) <= most or len(some) == 1) for some in stretches)
    if sum(sizes) <= most and len(sizes) <= 7:
        assert stretches == cut_evenly(sizes, int, count)


POSITIONS = st.sets(st.integers(0, 12))


class Packed(msgspec.Struct):
    positions: PositionSet = NO_POSITIONS


@given(POSITIONS)
def test_spans_are_the_stretches_of_neighbours_in_order(positions):
    found = stretches(PositionSet(positions))
    assert [n for start, stop in found for n in range(start, stop)] == sorted(positions)
    assert all(stop < start for (_, stop), (start, _) in pairwise(found))
    assert of_stretches(reversed(found)) == PositionSet(positions)
    assert is_stretch(PositionSet(positions)) == (len(found) == 1)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5))))
def test_spans_that_touch_or_overlap_become_one(some):
    positions = of_stretches((start, start + length) for start, length in some)
    assert {*positions} == {n for start, length in some for n in range(start, start + length)}


@given(POSITIONS)
def test_a_set_is_read_back_from_its_bytes(positions):
    packed = msgspec.msgpack.encode(Packed(PositionSet(positions)), enc_hook=packed_positions)
    assert msgspec.msgpack.decode(packed, type=Packed, dec_hook=unpacked_positions) == Packed(PositionSet(positions))


@pytest.mark.parametrize("packed", [b"", b"nonsense", 7])
def test_bytes_that_are_no_set_are_an_error_of_decoding(packed):
    damaged = msgspec.msgpack.encode({"positions": packed})
    with pytest.raises(msgspec.DecodeError):
        msgspec.msgpack.decode(damaged, type=Packed, dec_hook=unpacked_positions)


@given(st.lists(POSITIONS, max_size=4))
def test_parts_of_what_they_use_have_the_same_members(parts):
    whole = [f"m{n}" for n in range(13)]
    used, moved = narrowed(whole, [*map(PositionSet, parts)])
    assert used == [whole[n] for n in sorted(set().union(*parts))]
    assert [[used[n] for n in one] for one in moved] == [[whole[n] for n in sorted(one)] for one in parts]


@given(st.permutations([*range(8), -1, -1, -1]), st.sets(st.integers(0, 10)))
def test_members_are_found_in_another_list_where_it_has_them(places, positions):
    found = Renumbering(places).moved(PositionSet(positions))
    assert found == PositionSet(places[n] for n in positions if places[n] >= 0)


@for_each("places", [[*range(40, 60)], [*range(19), -1], [-1] * 20, [*range(10), *range(30, 40)]])
def test_long_stretches_are_found_in_another_list(places):
    for start in range(20):
        for stop in range(start + 1, 21):
            found = Renumbering(places).moved(of_stretches([(start, stop)]))
            assert {*found} == {n for n in places[start:stop] if n >= 0}


@given(POSITIONS, POSITIONS)
def test_part_is_a_sequence_and_part_set_a_set(one, another):
    whole = [f"m{n}" for n in range(13)]
    part, as_set = Part(whole, PositionSet(one)), PartSet(whole, PositionSet(one))
    members = [whole[n] for n in sorted(one)]
    assert ([*part], len(part), part[:2]) == (members, len(members), members[:2])
    assert as_set == frozenset(members) == pickle.loads(pickle.dumps(as_set))
    assert hash(as_set) == hash(PartSet([*whole], PositionSet(one)))
    other = {whole[n] for n in another}
    assert (as_set == PartSet(whole, PositionSet(another))) == (one == another)
    assert as_set - other == frozenset(members) - other
    assert type(as_set & other) is frozenset
    assert all((name in as_set) == (name in members) for name in whole)


def test_examples():
    check_examples("spec/collections.txt", globals())
