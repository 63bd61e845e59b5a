"""Keys that one snapshot has twice, against a rule that asks each pair."""

from itertools import combinations

import numpy as np
import pytest
from msgspec.structs import replace
from pyroaring import BitMap

from icekeep.maintenance.check import entries as comparing
from icekeep.maintenance.check.by_file import Membership
from icekeep.maintenance.check.entries import doubled_keys, twice
from icekeep.planning.spark.session import Engine
from kit.cases import for_each
from kit.checked_entries import Damaged, all_faults, checked, expected, listed, subject_of, told
from kit.choices import Choices
from kit.limits import limited
from kit.no_spark import no_spark


@for_each("seed", range(20))
def test_doubled_keys(seed: int) -> None:
    chosen = Choices(seed)
    membership = Membership(
        (), tuple(range(8)), tuple(BitMap(chosen.sample(range(8), chosen.randint(0, 2))) for _ in range(6))
    )
    rows = [(chosen.randrange(-10, 10), chosen.randrange(6)) for _ in range(chosen.randrange(60))]
    sets = membership.snapshots_of
    slow = {
        key
        for (key, one), (other, two) in combinations(rows, 2)
        if key == other and (one == two or sets[one] & sets[two])
    }
    keys, manifests = (np.array([row[i] for row in rows], kind) for i, kind in ((0, np.int64), (1, np.int32)))
    assert doubled_keys(keys, manifests, membership).tolist() == sorted(slow)


@for_each("seed", range(5))
def test_each_manifest_has_the_snapshots_that_have_it(seed: int) -> None:
    chosen = Choices(seed)
    table = Damaged(seed).table
    subject = subject_of(table)
    known = listed(table, subject.snapshots)
    read = {one: some for one, some in known.members.items() if chosen.random() < 0.8}
    membership = Membership.of(subject.snapshots, replace(known, members=read))
    assert membership.snapshot_ids == tuple(one.snapshot_id for one in subject.snapshots)
    for number, positions in enumerate(membership.snapshots_of):
        assert {membership.snapshot_ids[position] for position in positions} == {
            one for one, some in read.items() if number in some
        }


def test_a_snapshot_is_told_that_has_two_of_several() -> None:
    sets = [BitMap([1, 2]), BitMap([2, 3]), BitMap([3, 5]), BitMap([4])]
    assert twice(sets) == BitMap([2, 3])
    assert twice([]) == BitMap()
    membership = Membership((), (10, 11, 12, 13, 14, 15), tuple(sets))
    assert membership.holding([{"manifest": 0}, {"manifest": 2}]) == BitMap([1, 2, 3, 5])
    assert (membership.oldest(BitMap([2, 3])), membership.oldest(BitMap())) == (12, None)


@pytest.fixture(params=["one by one", "by listing", "in parts"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    if request.param == "in parts":
        monkeypatch.setattr(comparing, "_PART_ROWS", 5)
    return limited(no_spark, looked_up_files_count=1_000 if request.param == "one by one" else 0)


@pytest.mark.parametrize("seed", [2, 5, 12, 13, 26, 29, 33])
def test_tables_that_are_damaged_by_lot(seed: int, way: Engine) -> None:
    """What is told agrees with a slow rule, and does not depend on the way."""
    table = Damaged(seed).table
    tally = checked(table, way)
    assert tally.gaps() == ()
    assert {key: count for key, count in told(tally).items() if key[0] != 214} == expected(table)
    assert all_faults(tally) == all_faults(checked(table))
