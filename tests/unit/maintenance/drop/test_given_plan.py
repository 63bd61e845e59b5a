"""Plans of `drop --purge` that are written to a file and carried out later."""

from pathlib import Path

import pytest

from contracts.plan_contract import PlanContract
from icekeep.maintenance.plans import read_plan_file
from kit.job_world import World
from unit.maintenance.drop.test_job_contract import TestDrop as Contract
from unit.maintenance.drop.test_job_contract import files_of_the_table

pytestmark = pytest.mark.slow


class TestPlan(PlanContract):
    contract = Contract
    may_append = False

    def check_cut_off(self, world: World, done: World, before: World, told: str) -> None:
        """Once the catalog has forgotten the table the files that are left are for the next purge."""
        assert world.pointer() is None, told
        if files_of_the_table(world):
            Contract.run_again(world)
        assert files_of_the_table(world) == [], told

    def test_the_file_names_the_table_and_its_version(self, path: Path) -> None:
        world = self._filled()
        location = world.table.metadata_location
        self.write(world, path)
        (first, *others) = read_plan_file(str(path)).lines()
        assert (first.do, first.kind, first.name, first.state) == ("drop", "table", "db.events", location)
        assert {line.do for line in others} == {"delete"}

    def test_without_a_purge_no_file_goes(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path, purge=False)
        moved = world.copy()
        files = set(world.memory.files)
        assert self.apply(world, path).result.is_purged is False
        assert world.pointer() is None
        assert set(world.memory.files) == files
        assert "carried out before, or somebody else dropped the table" in str(self.apply(world, path).applied_before)
        moved.append(9)
        self.refused(moved, path, "its metadata is in .* now, and was in .* came snapshot")
