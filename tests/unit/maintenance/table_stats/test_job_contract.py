"""What every job must do, of `compute_table_stats` and its written plans."""

from pathlib import Path

import pytest

from contracts.job_contract import JobContract
from contracts.plan_contract import PlanContract
from icekeep.maintenance.plans import read_plan_file
from icekeep.maintenance.table_stats import JOB
from icekeep.maintenance.table_stats.job import compute_table_stats
from kit.deletes import data_files, delete_by_vector, with_position_deletes
from kit.job_world import World
from kit.runtime import no_spark

pytestmark = pytest.mark.slow


class TestComputeTableStats(JobContract):
    job = JOB
    foretold = ("snapshot_id", "read_files_count")
    only_planned = frozenset({"read_bytes"})

    @staticmethod
    def fill(version: int) -> World:
        world = World(version, [("at", "month")])
        for number in range(3):
            world.append(number, month=1 + number)
        if version == 2:
            with_position_deletes(world.table)
        if version == 3:
            delete_by_vector(world.table, data_files(world.table)[0].file_path, [0, 1])
        return world


class TestPlan(PlanContract):
    contract = TestComputeTableStats

    def test_statistics_are_of_the_planned_snapshot(self, path: Path) -> None:
        world = self._filled()
        planned = world.table.metadata.current_snapshot_id
        self.write(world, path)
        world.append(9)
        assert self.apply(world, path).result.snapshot_id == planned != world.table.metadata.current_snapshot_id

    def test_statistics_that_others_computed_are_kept(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        compute_table_stats(world.table, no_spark)
        before = world.state()
        assert "somebody else computed them" in (self.apply(world, path).applied_before or "")
        assert world.state() == before

    def test_its_line_is_the_snapshot(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        [line] = read_plan_file(str(path)).lines()
        assert (line.do, line.kind, line.says) == (
            "count",
            "snapshot",
            {"columns": ["id", "kind", "at", "amount"]},
        )
