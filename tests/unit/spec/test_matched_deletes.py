"""What reaches data files as runs, against the same rule one by one; and how it differs from what was applied."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError
from icekeep.spec.collections import PartSet, PositionSet, stretches
from icekeep.spec.matched_deletes import Comparison, MatchedDeletes, match_deletes
from icekeep.spec.reach import applied_delete
from kit.cases import for_each
from kit.reaching import (
    REFUSED,
    SPECS,
    A,
    bounded,
    entry,
    equality,
    generated_tables,
    positions,
    reaching_by_rule,
    vector,
)


@given(generated_tables())
def test_runs_expand_to_reaching_deletes_in_order(table):
    data, deletes = table
    reached = match_deletes(data, iter(deletes), SPECS)
    expected = reaching_by_rule(data, deletes)
    assert {path: tuple(reached.of_path(path)) for path in reached.positions} == expected
    assert [*reached.positions] == [*expected]


@for_each(("deletes", "problem"), REFUSED)
def test_what_cannot_be_is_refused_as_by_the_rule(deletes, problem):
    with pytest.raises(InvalidTableError) as refused:
        match_deletes([A], deletes, SPECS)
    assert refused.value.message == problem
    with pytest.raises(InvalidTableError, match="'a' is live more than once"):
        match_deletes([A, A], [], SPECS)


@for_each("place", [{"spec_id": 0, "partition": ()}, {"spec_id": 1, "partition": ("x",)}])
@for_each("version", [2, 3])
def test_a_file_has_few_runs_however_many_deletes_reach_it(place, version):
    data = [entry(f"f{n:03}", n, **place) for n in range(100)]
    deletes = [equality(f"e{n}", n, **place) for n in range(100)]
    names = [f"f{n:03}" for n in range(100)]
    if version == 3:
        deletes += [vector(n, path, n, **place) for n, path in enumerate(names)]
    else:
        own = [bounded(path.encode(), path.encode()) for path in names]
        for more in range(2):
            deletes += [positions(f"p{n}-{more}", n + more, **own[n], **place) for n in range(100)]
        deletes += [positions(f"r{n}", n, referenced_data_file=path, **place) for n, path in enumerate(names)]
    reached = match_deletes(data, deletes, SPECS)
    assert len(reached.of_path("f000")) == 99 + (1 if version == 3 else 3)
    assert max(len(stretches(some)) for some in reached.positions.values()) <= 4


def _set(reached: MatchedDeletes, chosen: set[int]) -> PartSet:
    """Some of the deletes as a rewrite kept them: in an order of its own, with one that is not live."""
    whole = sorted({applied_delete(d) for d in reached.deletes}, key=lambda d: (d.sequence_number, d.file_path))
    return PartSet([*whole, applied_delete(positions("lost", 9))], PositionSet(n for n in chosen if n <= len(whole)))


@given(generated_tables(), st.lists(st.sets(st.integers(0, 9)), min_size=5, max_size=5), st.booleans())
def test_the_difference_is_that_of_sets(table, chosen, is_held):
    data, deletes = table
    deletes += deletes[:1] * (not deletes or deletes[0].data_file.content_offset is None)
    reached = match_deletes(data, deletes, SPECS)
    comparison = Comparison(reached)
    for (path, live), some in zip(reaching_by_rule(data, deletes).items(), chosen, strict=False):
        applied = _set(reached, some)
        names = {applied_delete(d) for d in live}
        found = comparison.difference(path, frozenset(applied) if is_held else applied)
        if names == applied:
            assert found is None
            continue
        assert found.gone == frozenset(applied) - names
        assert {applied_delete(d) for d in found.new} == names - frozenset(applied)
        assert [d for d in live if d in found.new] or not found.new


@given(generated_tables())
def test_applied_deletes_differ_by_membership_not_order(table):
    data, deletes = table
    comparison = Comparison(match_deletes(data, deletes, SPECS))
    before = match_deletes(data, deletes[::-1], SPECS)
    whole = [*map(applied_delete, before.deletes)]
    for path, some in before.positions.items():
        assert comparison.difference(path, PartSet(whole, some)) is None
