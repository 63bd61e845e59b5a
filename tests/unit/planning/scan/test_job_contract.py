"""What every job must do, of `plan_scan`, which changes nothing."""

import pytest

from contracts.job_contract import JobContract
from icekeep.planning.scan import JOB
from kit.job_world import World

pytestmark = pytest.mark.slow


class TestPlanScan(JobContract):
    job = JOB
    versions = ()

    @staticmethod
    def fill(version: int) -> World:
        world = World(version)
        world.append(1)
        return world
