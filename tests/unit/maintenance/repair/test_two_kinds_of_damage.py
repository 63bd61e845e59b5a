"""Random tables spoilt in two ways at once: both are named, or one is known to hide the other; and both are mended.

Pairs of kinds are drawn by lot. They are mended one after the other, in both orders, and both at once.
"""

from collections import Counter
from copy import deepcopy
from functools import cache
from itertools import combinations

import pytest

from icekeep.catalog.base import Catalog, Table
from icekeep.maintenance.check.job import check
from icekeep.maintenance.repair.job import RepairResult, repair
from kit.cases import Choices, scaled, seeds, thinned
from kit.damage import DAMAGE, DANGLING, IMPLIED, LOSSES, MENDABLE, Key, checked, found_in, lost_keys, spoil, take_out
from kit.damager import CannotDamageError
from kit.row_histories import History, in_memory
from kit.rows import scanned_rows
from kit.runtime import no_spark

pytestmark = pytest.mark.slow

PARTS = 8
"""Pairs are shared out, so that processes take some each."""

TABLES = 40
TWO_VECTORS = 213
BELOW = {126, *(number for number in DAMAGE if number > 200)}
HIDES: dict[int, set[int]] = {
    # Metadata of these does not load: whatever lies below it is not looked at, nor is the metadata log.
    **dict.fromkeys((102, 103, 104, 105, 106, 107, 111, 113, 114, 115, 116, 117, 136), BELOW),
    # There is no metadata.
    101: {*DAMAGE},
    # Which manifests there are is not known.
    201: {number for number in BELOW if number > 201},
    # Neither are entries, nor what they sum up to.
    202: {number for number in BELOW if number > 202},
    # Entries of a spec that is not known are not read.
    210: {number for number in BELOW if number > 202},
    # What is not there, or cannot be read, is not held against its entry.
    301: {302, 401, 402, 405, 406, 407, 422},
    401: {402, 405, 406, 407, 422},
    303: {413, 414, 415, 416, 421},
    413: {414, 415, 416, 421},
}
"""By what is found what may not be found beside it."""

PAIRS = list(combinations(sorted(DAMAGE), 2))
MENDED = [pair for pair in PAIRS if {*pair} <= {*MENDABLE, *LOSSES}]


@cache
def history(number: int) -> History:
    return History.of(number, in_memory())


@cache
def sound(number: int) -> frozenset[int]:
    """What is told of the table of a seed while it is sound."""
    by = history(number).by
    return frozenset(found_in(checked(by.catalog, by.identifier)))


def order(number: int) -> tuple[int, int]:
    """Entries are spoilt first, what tells of them after: an entry that is written makes its manifest's row right."""
    ranks = {214: 0, 235: 0, 202: 3, 201: 4, 101: 6} | dict.fromkeys(
        (203, 204, 205, 206, 207, 208, 210, 211, 215, 220), 2
    )
    return ranks.get(number, 5 if number < 200 else 1), number


def damaged(pair: tuple[int, int], start: int) -> tuple[int, Catalog] | None:
    """A seed, from `start` on, and its table spoilt in both ways; `None` where none can be."""
    for seed in (number % TABLES for number in range(start, start + TABLES)):
        if {*pair} & sound(seed):
            continue
        catalog = deepcopy(history(seed).by.catalog)
        try:
            spoil(catalog, history(seed).by.identifier, seed, *sorted(pair, key=order))
        except CannotDamageError:
            continue
        return seed, catalog
    return None


def hidden(pair: tuple[int, int]) -> set[int]:
    """What may not be found beside the other."""
    first, second = pair
    return HIDES.get(first, set()) & {second} or HIDES.get(second, set()) & {first}


def part_of(pairs: list[tuple[int, int]], part: int, usual: int) -> list[tuple[int, int]]:
    mixed = pairs[:]
    Choices(1 + seeds(1)[0]).shuffle(mixed)
    return mixed[part::PARTS][: scaled(usual)]


@pytest.mark.parametrize("part", thinned(range(PARTS), 4))
def test_both_kinds_are_named(part):
    tried = 0
    for number, pair in enumerate(part_of(PAIRS, part, 25)):
        if (spoilt := damaged(pair, number + part)) is None:
            continue
        seed, catalog = spoilt
        result = checked(catalog, history(seed).by.identifier)
        found = found_in(result) - sound(seed)
        assert {*pair} - hidden(pair) <= found, (pair, seed, result)
        assert found - {*pair} <= {n for one in pair for n in IMPLIED.get(one, ())}, (pair, seed, result)
        tried += 1
    assert tried


@pytest.mark.parametrize("part", thinned(range(PARTS), 4))
def test_both_kinds_are_mended_at_once_or_one_after_the_other(part):
    mended = 0
    for number, pair in enumerate(part_of(MENDED, part, 12)):
        if (spoilt := damaged(pair, number + part)) is None:
            continue
        seed, catalog = spoilt
        first, second = pair
        for rounds in ([pair, pair], [(first,), (second,), (first,)], [(second,), (first,), (second,)]):
            mended += mends(pair, seed, deepcopy(catalog), rounds)
    assert mended


def mends(pair: tuple[int, int], seed: int, catalog: Catalog, rounds: list[tuple[int, ...]]) -> bool:
    """Repair in several rounds, with all accepted that may be lost; whether both faults went."""
    identifier = history(seed).by.identifier
    before = checked(catalog, identifier)
    accepted = [one.where for fault in before.faults if fault.fault_id in LOSSES for one in fault.examples]
    told: list[RepairResult] = []
    for numbers in rounds:
        told.append(repair(catalog.load(identifier), no_spark, fault=numbers, accept_loss=accepted))
    now, case = catalog.load(identifier), (pair, seed, rounds, told)
    lost = lost_keys(history(seed).table, now, told)
    if TWO_VECTORS in pair:
        # A vector that is lost does no harm while its twin is there.
        lost = {(path, at) for path, at in lost if not is_left(f"{path}-2", now, told)}
    assert scanned_rows(now) == promised(pair, seed, lost), case
    left = found_in(check(now, no_spark, deep=True, ref="main"))
    assert left <= found_in(before), case
    reasons = {one.fault_id for result in told for one in result.not_mended if one.reason}
    assert left & {*pair} <= reasons, case
    return not left & {*pair}


def is_left(path: str, now: Table, told: list[RepairResult]) -> bool:
    """Whether a file is there, and was not told as lost."""
    lost = {one for result in told for mend in result.mended for one in mend.lost_files}
    return path not in lost and now.storage.head(path) is not None


def promised(pair: tuple[int, int], seed: int, lost: set[Key]) -> Counter[str]:
    """The rows of the sound table once the entries of lost files are taken out; `DANGLING` damage brings rows back by itself."""
    by = history(seed).by
    catalog = deepcopy(by.catalog)
    spoil(catalog, by.identifier, seed, *(number for number in pair if number in DANGLING))
    take_out(catalog, by.identifier, lost)
    return scanned_rows(catalog.load(by.identifier))
