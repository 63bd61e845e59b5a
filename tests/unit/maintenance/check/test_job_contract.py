"""`check` as the contract of jobs has it."""

from typing import Any, ClassVar

import pytest

from contracts.job_contract import JobContract
from icekeep.maintenance.check import JOB
from kit.deletes import data_files, delete_by_vector
from kit.job_world import World


@pytest.mark.slow
class TestCheck(JobContract):
    job = JOB
    versions = ()
    told: ClassVar[dict[str, Any]] = {"deep": True}

    @staticmethod
    def fill(version):
        world = World(version, [("at", "month")])
        for number in range(3):
            world.append(number, month=1 + number % 2)
        if version == 3:
            delete_by_vector(world.table, data_files(world.table)[0].file_path, [1])
        return world
