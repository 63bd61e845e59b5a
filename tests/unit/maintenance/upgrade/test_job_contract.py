"""What every job must do, of `upgrade` and its written plans."""

from pathlib import Path

import pyarrow as pa
import pytest

from contracts.job_contract import JobContract
from contracts.plan_contract import PlanContract
from icekeep.errors import SafetyError
from icekeep.maintenance.plans import read_plan_file
from icekeep.maintenance.upgrade import JOB
from icekeep.tables.verbs import upgrade_format_version
from kit.deletes import delete_equal
from kit.job_world import World

pytestmark = pytest.mark.slow


class TestUpgrade(JobContract):
    job = JOB
    versions = (1, 2)
    told = {"to": 3}
    foretold = ("is_upgraded",)

    @staticmethod
    def fill(version: int) -> World:
        world = World(version)
        world.append(1)
        world.append(2)
        return world


class TestPlan(PlanContract):
    contract = TestUpgrade

    def test_the_file_says_from_which_version_to_which(self, path: Path) -> None:
        self.write(self._filled(), path)
        [line] = read_plan_file(str(path)).lines()
        assert (line.do, line.kind, line.name, line.state) == ("upgrade", "table", "db.events", "2 to 3")

    def test_table_that_was_half_upgraded_is_refused(self, path: Path) -> None:
        world = TestUpgrade.fill(1)
        self.write(world, path)
        upgrade_format_version(world.table, 2)
        self.refused(world, path, "the table has format version 2 now")

    def test_obstacle_that_came_since_is_refused(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        delete_equal(world.table, pa.table({"id": [1]}), ["id"])
        before = world.state()
        with pytest.raises(SafetyError, match="equality delete file"):
            self.apply(world, path)
        assert world.state() == before
