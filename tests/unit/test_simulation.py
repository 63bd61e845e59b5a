"""A small part of `make simulate`, the same histories at each run, and the proof that it finds what is wrong."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulation import sweep
from simulation.codec import values_in_place_of_bytes
from simulation.faults import Fault
from simulation.history import History, Tally
from simulation.model import Told
from simulation.mutants import MUTANTS, Mutant, caught_by
from simulation.operations import OPERATIONS, Make
from simulation.run import run, simulate, through_bytes

HISTORIES = 120
ENOUGH_FOR_A_MUTANT = 600
CRASHES = (Fault.CRASHED_BEFORE, Fault.CRASHED_AFTER)
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def simulated() -> tuple[Tally, list[str]]:
    return run(range(HISTORIES))


def test_concurrent_writers_lose_and_double_nothing_whatever_fails(simulated: tuple[Tally, list[str]]):
    tally, failures = simulated
    assert failures == []
    assert tally.histories == HISTORIES
    assert tally.steps >= 20 * HISTORIES


def test_every_fault_fires_and_every_answer_is_given(simulated: tuple[Tally, list[str]]):
    tally, _ = simulated
    assert {fault for fault in Fault if tally.faults[fault]} == {*Fault} - {Fault.NONE}
    assert {told for told in Told if tally.told[told]} == {*Told} - {Told.NOTHING}
    assert tally.commits > 10 * HISTORIES
    assert tally.conflicts > HISTORIES


def test_histories_of_real_bytes_are_among_them():
    assert [seed for seed in range(HISTORIES) if through_bytes(seed)] == [99]


def test_values_and_bytes_tell_the_same_history():
    with values_in_place_of_bytes():
        of_values = History(3)
        of_values.run()
    of_bytes = History(3)
    of_bytes.run()
    assert of_values.digest() == of_bytes.digest()


def test_a_seed_replays_a_run_exactly_in_any_process():
    program = "from simulation.run import simulate; print(simulate(5).digest())"
    digests = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{TESTS.parent / 'lib'}:{TESTS}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    assert digests == [simulate(5).digest()] * 2


@pytest.fixture
def values() -> Iterator[None]:
    with values_in_place_of_bytes():
        yield


@pytest.mark.usefixtures("values")
@pytest.mark.parametrize("make", OPERATIONS, ids=lambda make: make.__name__)
def test_after_a_crash_or_a_lost_answer_at_any_call_the_table_is_whole(make: Make):
    tried = [
        sweep.check(make, catalog, number, fault)
        for catalog in ("pointer", "updates")
        for number, fault in sweep.cases(make, catalog)
        if fault in (Fault.FAILED_AFTER, Fault.LOST_ANSWER) or (fault in CRASHES and catalog == "pointer")
    ]
    assert len(tried) > 10


@pytest.mark.usefixtures("values")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_library_that_is_broken_on_purpose_is_caught(mutant: Mutant):
    assert caught_by(mutant, ENOUGH_FOR_A_MUTANT) is not None
