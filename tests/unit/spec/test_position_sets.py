"""Sets of positions in a list, against Python's."""

import pickle
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.spec.collections import (
    NO_POSITIONS,
    Part,
    PartSet,
    PositionSet,
    Renumbering,
    is_span,
    narrowed,
    of_spans,
    packed_positions,
    spans,
    unpacked_positions,
)
from kit.cases import for_each

POSITIONS = st.sets(st.integers(0, 12))


class Packed(msgspec.Struct):
    positions: PositionSet = NO_POSITIONS


@given(POSITIONS)
def test_spans_are_the_stretches_of_neighbours_in_order(positions):
    found = spans(PositionSet(positions))
    assert [n for start, stop in found for n in range(start, stop)] == sorted(positions)
    assert all(stop < start for (_, stop), (start, _) in pairwise(found))
    assert of_spans(reversed(found)) == PositionSet(positions)
    assert is_span(PositionSet(positions)) == (len(found) == 1)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5))))
def test_spans_that_touch_or_overlap_become_one(some):
    positions = of_spans((start, start + length) for start, length in some)
    assert {*positions} == {n for start, length in some for n in range(start, start + length)}


@given(POSITIONS)
def test_a_set_is_read_back_from_its_bytes(positions):
    packed = msgspec.msgpack.encode(Packed(PositionSet(positions)), enc_hook=packed_positions)
    assert msgspec.msgpack.decode(packed, type=Packed, dec_hook=unpacked_positions) == Packed(PositionSet(positions))


def test_a_long_stretch_takes_few_bytes():
    assert len(packed_positions(of_spans([(500, 60_000)]))) < 20


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
            found = Renumbering(places).moved(of_spans([(start, stop)]))
            assert {*found} == {n for n in places[start:stop] if n >= 0}


@given(POSITIONS, POSITIONS)
def test_a_part_is_a_sequence_and_a_part_set_equals_any_set_of_its_members(one, another):
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
