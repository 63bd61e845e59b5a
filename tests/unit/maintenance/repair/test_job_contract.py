"""What every job must do, of `repair` and its written plans; generated damage of one kind and of two."""

from collections import Counter
from copy import deepcopy
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar

import pytest

from contracts.job_contract import JobContract
from contracts.plan_contract import PlanContract
from icekeep.catalog.base import Catalog, Table
from icekeep.commit import live_files
from icekeep.maintenance.check.faults import CLASSES
from icekeep.maintenance.check.job import check
from icekeep.maintenance.plans import read_plan_file
from icekeep.maintenance.repair import JOB
from icekeep.maintenance.repair.job import RepairResult, plan_repair, repair
from icekeep.spec.reach import partition_key
from icekeep.tables.refs import create_branch
from kit.cases import Choices, for_each, scaled, seeds, some_of, thinned
from kit.damage import (
    CONTENT_DAMAGE,
    DAMAGE,
    DANGLING,
    ENTRY_DAMAGE,
    IMPLIED,
    LOSSES,
    MENDABLE,
    Key,
    checked,
    found_in,
    lost_keys,
    spoil,
    take_out,
)
from kit.damager import CannotDamageError, Damager
from kit.job_world import EVENTS, World
from kit.naive_scan import live_entries, naive_rows
from kit.row_histories import History, in_memory
from kit.rows import scanned_rows
from kit.runtime import no_spark

pytestmark = pytest.mark.slow


class TestRepair(JobContract):
    job = JOB
    told: ClassVar[dict[str, Any]] = {"fault": [204, 215, 302, 405]}
    others: ClassVar[dict[str, Any]] = {
        "fault": ([204], [302, 405], [405, 302, 215, 204]),
        "accept_loss": (["nothing"],),
        "snapshot_properties": ({"ticket": "1"}, {"ticket": "2"}),
    }

    @staticmethod
    def fill(version: int) -> World:
        """Two branches, each with faults in entries, in rows of its list and in its totals."""
        world = World(version, [("at", "month")])
        world.append(1, 2)
        create_branch(world.table, "audit")
        world.append(3, month=2)
        for number, kinds in ((204, ENTRY_DAMAGE), (215, ENTRY_DAMAGE), (302, ENTRY_DAMAGE), (405, CONTENT_DAMAGE)):
            kinds[number](Damager(world.catalog, EVENTS, Choices(number)))
        return world


class TestPlan(PlanContract):
    contract = TestRepair
    # The totals of the head are mended, and the head is another one then.
    may_append = False

    def test_an_append_does_not_matter(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """By another engine: icekeep appends nothing to a list that contradicts its totals."""
        monkeypatch.setattr(live_files, "totals_agree", lambda *_: True)
        super().test_an_append_does_not_matter(path)

    def test_what_others_mended_in_part_matters(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        repair(world.table, no_spark, fault=[302])
        self.refused(world, path, r"repairs do not apply as planned, such as of fault \d+ in")

    def test_what_others_mended_as_a_whole_is_done(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        repair(world.table, no_spark, **self.contract.told)
        before = world.state()
        assert "or somebody else repaired them" in str(self.apply(world, path).applied_before)
        assert world.state() == before

    def test_its_lines_tell_each_fault(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        faults = [line for line in read_plan_file(str(path)).lines() if line.kind == "fault"]
        assert {line.says["fault_id"] for line in faults} == {215, 302, 405}
        assert all(line.name and line.says["action"] for line in faults)


TABLES = 40
RECORD_COUNT = 402


@cache
def history(number: int) -> History:
    return History.of(number, in_memory())


def damaged(number: int, seed: int) -> tuple[Catalog, tuple[str, ...]] | None:
    """A copy of the table of a seed, spoilt; `None` where it has nothing that could be."""
    by = history(seed).by
    catalog = deepcopy(by.catalog)
    try:
        spoil(catalog, by.identifier, seed, number)
    except CannotDamageError:
        return None
    return catalog, by.identifier


def kinds_in(table, ref="main"):
    result = check(table, no_spark, deep=True, ref=ref)
    return {one.fault_id for one in (*result.faults, *result.notices)}


def described(table):
    """By what a row's id follows, and which deletes reach it."""
    return {
        (entry.data_file.file_path, entry.data_file.content_offset): (
            entry.sequence_number,
            entry.file_sequence_number,
            entry.snapshot_id,
            entry.data_file.first_row_id,
            partition_key(entry.data_file),
        )
        for entry in live_entries(table)
    }


@for_each("number", some_of(MENDABLE, least=6), ids=lambda number: CLASSES[number].name)
def test_a_fault_is_mended_and_no_row_changes(number):
    wanted, mended = scaled(6), 0
    for seed in seeds(TABLES):
        if mended == wanted:
            break
        if (spoilt := damaged(number, seed)) is None:
            continue
        catalog, identifier = spoilt
        table = catalog.load(identifier)
        before = kinds_in(table)
        if number not in before:
            continue
        plan = plan_repair(table, no_spark, fault=[number])
        result = repair(table, no_spark, fault=[number], approve=plan.hash)
        if not result.mended:
            assert catalog.load(identifier).metadata_location == table.metadata_location
            assert [one for one in result.not_mended if one.reason], (seed, result)
            continue
        now = catalog.load(identifier)
        assert kinds_in(now) <= before - {number}, (seed, result)
        if number in DANGLING:
            # The damage itself brings rows back.
            assert scanned_rows(now) == scanned_rows(table), (seed, result)
        else:
            assert scanned_rows(now) == history(seed).expected(), (seed, result)
            # Row ids follow the counts of a manifest, so these stay as readers of the wrong count have them.
            as_before = table if number == RECORD_COUNT else history(seed).table
            assert described(now) == described(as_before), (seed, result)
            # This reader knows no equality deletes; it goes by entries alone, and prunes nothing.
            assert naive_rows(now) == naive_rows(history(seed).table), (seed, result)
        assert result.metadata_location == now.metadata_location
        assert result.lost_records_count == 0
        mended += 1
    assert mended >= min(2, wanted)


PARTS = 8
"""Pairs are shared out, so that processes take some each."""

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


def damaged_twice(pair: tuple[int, int], start: int) -> tuple[int, Catalog] | None:
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
        if (spoilt := damaged_twice(pair, number + part)) is None:
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
        if (spoilt := damaged_twice(pair, number + part)) is None:
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
