"""A small part of `make simulate`, the same histories at each run, and the proof that it finds what is wrong."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from icekeep.commit import retry
from kit.cases import for_each, scaled, seeds
from simulation import sweep
from simulation.codec import values_in_place_of_bytes
from simulation.compaction_operations import CompactHoldingItsStart
from simulation.file_operations import Append
from simulation.history import History, Tally
from simulation.mutants import MUTANTS, READERS, UNNAMED, Hunt, Mutant, caught_by, kind_of
from simulation.operations import OPERATIONS, Make
from simulation.replacing import replaced
from simulation.run import never_met, run, simulate, through_bytes
from simulation.streaming import run_streaming, simulate_streaming
from simulation.world import CATALOGS, DIRECTORY, POINTER, SEEN, UPDATES, Fault, Told, Violation

pytestmark = pytest.mark.slow

HISTORIES = 110
STREAMING_HISTORIES = 200
MIN_STREAMING_HISTORIES = 40
INVARIANT = re.compile(r'"([A-Z]\d+)"')
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def simulated() -> tuple[Tally, list[str]]:
    return run(range(HISTORIES))


def test_concurrent_writers_lose_and_duplicate_nothing(simulated: tuple[Tally, list[str]]):
    tally, failures = simulated
    assert failures == []
    assert tally.histories == HISTORIES
    assert tally.steps >= 20 * HISTORIES


def test_unnamed_deletes_go_with_their_file_and_not_before():
    for seed in seeds(scaled(20, least=8)):
        History(seed, catalog=POINTER, likes=UNNAMED).run()


def test_what_readers_have_not_read_stays_beside_expirations():
    for seed in seeds(scaled(20, least=8)):
        History(seed, likes=READERS).run()


def test_every_fault_fires_and_every_answer_is_given(simulated: tuple[Tally, list[str]]):
    tally, _ = simulated
    assert {fault for fault in Fault if tally.faults[fault]} == {*Fault} - {Fault.NONE}
    assert {told for told in Told if tally.told[told]} == {*Told} - {Told.NOTHING}
    assert tally.commits > 10 * HISTORIES
    assert tally.conflicts > HISTORIES


def test_histories_of_real_bytes_are_among_them():
    assert [seed for seed in range(HISTORIES) if through_bytes(seed)] == [49, 99]


def test_orphan_removal_beside_pending_plans_and_restores():
    """At the end nothing is left to which nothing leads."""
    seen = Counter[str]()
    # The others finish plans of earlier runs, which one in ten does: their files are in another plan too, which keeps them for a
    # shorter time or has begun to be restored.
    for seed in {*seeds(scaled(24, least=12)), 26, 28, 37}:
        history = History(seed, with_orphans=True)
        history.run()
        seen += history.world.seen
    assert seen["files removed as orphans"] > 0
    assert seen["files that are no orphans since a plan names them"] > 0
    assert seen["files of earlier plans that were deleted"] > 0


def test_simulation_covers_every_catalog_and_rare_cases(simulated: tuple[Tally, list[str]]):
    tally, _ = simulated
    rare = {
        "files brought back",
        "files of earlier plans that were deleted",
        "files removed as orphans",
        "files that are no orphans since a plan names them",
        "snapshots restored",
        "rewrites refused since rows that they left out are back",
        "rewrites that carried deletes over in a later attempt",
        "versions created behind the head",
    }
    assert {what for what in SEEN if not tally.seen[what]} <= rare
    committed = {make.__name__ for make in OPERATIONS if tally.operations[make.__name__, Told.COMMITTED]}
    assert committed == {make.__name__ for make in OPERATIONS}


def test_a_long_run_that_has_not_met_something_says_so(simulated: tuple[Tally, list[str]]):
    tally, _ = simulated
    missed = replace(tally, seen=tally.seen - Counter({"hints spoiled": 10**6}), faults=Counter({Fault.LATE: 1}))
    assert {"hints spoiled", "calls that STALLED"} <= {*never_met(missed)}
    assert "calls that LATE" not in never_met(missed)
    assert len(never_met(Tally())) > len(SEEN) + len(OPERATIONS)


def test_compaction_beside_streaming_writers_lands_in_retries():
    """Rows equal a serial replay after every commit, and a writer is refused only where a swap came before its commit."""
    count = scaled(STREAMING_HISTORIES, least=MIN_STREAMING_HISTORIES)
    seen, failures = run_streaming(seeds(count))
    assert failures == []
    assert seen["histories"] == count
    assert seen["histories of format version 2"] > count / 3 < seen["histories of format version 3"]
    assert seen["commits of writers while the compaction ran or after it"] > 10 * count
    assert seen["delete files that compactions carried over"] > count
    assert seen["commits of compactions at attempt 2"] > 0 < seen["writers refused since a rewrite was faster"]


def test_a_seed_replays_a_streaming_history():
    stories: list[list[str]] = [[], []]
    for story in stories:
        simulate_streaming(3, tell=story.append)
    assert stories[0] == stories[1]
    assert len(stories[0]) > 500


@pytest.mark.parametrize("catalog", CATALOGS)
def test_values_and_bytes_tell_the_same_history(catalog: str):
    seed = next(seed for seed in range(20) if not bounds_manifests(History(seed, catalog=catalog)))
    with values_in_place_of_bytes():
        of_values = History(seed, catalog=catalog)
        of_values.run()
    of_bytes = History(seed, catalog=catalog)
    of_bytes.run()
    assert of_values.digest() == of_bytes.digest()


def bounds_manifests(history: History) -> bool:
    """Whether a table has small manifests: how many fit is then another matter for values than for bytes."""
    assert history.model.current is not None
    return history.model.current.properties.get("commit.manifest.target-size-bytes", "8388608") != "8388608"


@pytest.mark.process
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
def test_table_is_whole_after_crash_or_lost_answer_at_any_call(make: Make):
    crashes = [(number, fault) for number, fault in sweep.cases(make, POINTER) if fault is Fault.CRASHED_AFTER]
    lost = [(number, fault) for number, fault in sweep.cases(make, UPDATES) if fault is Fault.LOST_ANSWER]
    assert len(crashes) > 4
    # One that holds the snapshot that it reads makes a tag before its commit and drops it afterwards.
    assert len(lost) == (3 if make is CompactHoldingItsStart else 1)
    for number, fault in crashes:
        sweep.check(make, POINTER, number, fault)
    for number, fault in lost:
        sweep.check(make, UPDATES, number, fault)


@pytest.mark.usefixtures("values")
@pytest.mark.parametrize("fault", [Fault.CRASHED_AFTER, Fault.LOST_REQUEST])
def test_table_is_whole_after_fault_in_directory_commit(fault: Fault):
    tried = [number for number, at in sweep.cases(Append, DIRECTORY) if at is fault]
    for number in tried:
        sweep.check(Append, DIRECTORY, number, fault)
    assert len(tried) == 1 or len(tried) > 30


@pytest.mark.nightly
@for_each("mutant", MUTANTS, ids=lambda mutant: f"{kind_of(mutant)} {mutant.__name__}")
def test_mutant_breaks_its_invariant(mutant: Mutant):
    assert caught_by(mutant) is not None


def test_every_mutant_names_checked_invariants():
    files = [file for file in (TESTS / "simulation").glob("*.py") if file.name != "mutants.py"]
    checked = {invariant for file in files for invariant in INVARIANT.findall(file.read_text())}
    assert {invariant for hunt in MUTANTS.values() for invariant in hunt.breaks.split()} <= checked


def test_outdated_mutant_is_error_and_not_caught():
    with pytest.raises(TypeError, match="what replaces 'settle' cannot be called as it is"):
        replaced(retry, "settle", lambda outcome: outcome)
    with (
        patch.dict(MUTANTS, {calls_wrongly: Hunt("D1")}),
        pytest.raises(Violation, match=r"E2: .* ended with TypeError"),
    ):
        caught_by(calls_wrongly, 5)


def calls_wrongly() -> AbstractContextManager[Any]:
    """Ends in a `TypeError` wherever it is met, as a mutant does whose library has changed."""
    return patch.object(retry, "settle", lambda: None)
