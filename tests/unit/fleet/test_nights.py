"""Nights played through from seeds: nothing is lost, nothing done twice, every table named; and broken code is seen."""

import pytest

from icekeep.fleet.job import WorkerPool
from icekeep.fleet.overview import TableLeases
from kit.cases import scaled, seeds
from simulation.nights import Simulation, Violation

pytestmark = pytest.mark.slow

SEEDS = seeds(scaled(20, least=3))


@pytest.mark.parametrize("seed", SEEDS)
def test_three_runs_side_by_side_of_which_one_is_killed_and_begun_again(seed):
    night = Simulation(seed)
    night.play()
    assert night.lake.done.total() > 100
    assert sum(run.result is not None for run in night.runs) >= 2


@pytest.mark.parametrize("seed", SEEDS)
def test_where_the_record_of_runs_fails_nothing_is_lost(seed):
    Simulation(seed, tables_count=40, fails=0.2).play()


BREAKS = {
    "no lease": lambda patch: patch.setattr(TableLeases, "take", lambda self, table: None),
    "what others did is not asked": lambda patch: patch.setattr(TableLeases, "last_of", once(TableLeases.last_of)),
    "a job is forgotten": lambda patch: patch.setattr(WorkerPool, "_note", lambda self, *_: True),
    "the lease of a dead run is kept for ever": lambda patch: patch.setattr(
        TableLeases, "_has_ended", lambda self, *_: False
    ),
}


def once(ask):
    """The answer for many tables, and nothing for one."""
    return lambda self, tables: ask(self, tables) if len(tables) > 1 else {}


@pytest.mark.parametrize("name", BREAKS)
def test_broken_code_is_seen(name, monkeypatch):
    BREAKS[name](monkeypatch)
    with pytest.raises(Violation):
        play_many()


def play_many():
    for seed in range(30):
        Simulation(seed, tables_count=60).play()
