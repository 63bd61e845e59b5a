"""Entries and files held against each other in tasks: the same faults as on the driver, on tables damaged by lot."""

import pytest

from icekeep.maintenance.check import entries as comparing
from icekeep.planning.spark.session import Engine
from kit.cases import thinned
from kit.checked_entries import Damaged, all_faults, checked, expected, told
from kit.runtime import limited

pytestmark = pytest.mark.usefixtures("kit_in_tasks")


@pytest.mark.parametrize("seed", thinned([9, 5, 26], 3))
def test_tasks_find_what_the_driver_finds(seed: int, in_tasks: Engine) -> None:
    table = Damaged(seed).table
    here, there = checked(table), checked(table, in_tasks)
    assert all_faults(there) == all_faults(here)
    assert there.gaps() == here.gaps()
    assert {key: count for key, count in told(there).items() if key[0] != 214} == expected(table)


def test_much_that_looks_wrong_is_looked_at_in_tasks(in_tasks: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "_in_tasks", None)
    table = Damaged(13).table
    some = limited(in_tasks.spark, entries_count=3)
    assert all_faults(checked(table, some)) == all_faults(checked(table))
