"""What every job must do, of `compute_partition_stats` and its written plans."""

from pathlib import Path

import pytest

from contracts.job_contract import JobContract
from contracts.plan_contract import PlanContract
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.partition_stats import JOB
from icekeep.maintenance.partition_stats.job import compute_partition_stats
from icekeep.maintenance.plans import read_plan_file
from kit.deletes import data_files, delete_by_vector, with_position_deletes
from kit.job_world import World
from kit.runtime import no_spark

pytestmark = pytest.mark.slow


class TestComputePartitionStats(JobContract):
    job = JOB
    foretold = ("snapshot_id", "partitions_count", "opened_manifests_count")

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
    contract = TestComputePartitionStats

    def test_statistics_are_of_the_planned_snapshot(self, path: Path) -> None:
        world = self._filled()
        planned = world.table.metadata.current_snapshot_id
        self.write(world, path)
        world.append(9)
        result = self.apply(world, path).result
        assert result.snapshot_id == planned != world.table.metadata.current_snapshot_id
        assert [file.snapshot_id for file in world.table.metadata.partition_statistics] == [planned]

    def test_statistics_that_others_computed_are_kept(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        compute_partition_stats(world.table, no_spark)
        before = world.state()
        assert "somebody else computed them" in (self.apply(world, path).applied_before or "")
        assert world.state() == before

    def test_a_snapshot_that_expired_is_refused(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        world.append(9)
        expire_snapshots(world.table, no_spark, older_than="0s", retain_last=1)
        self.refused(world, path, "whose statistics were planned, expired")

    def test_its_line_is_the_snapshot(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        [line] = read_plan_file(str(path)).lines()
        assert (line.do, line.kind, line.says) == ("count", "snapshot", {"partitions": 3})
