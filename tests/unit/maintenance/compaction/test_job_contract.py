"""What every job must do, of `compact`."""

import pytest

from contracts.job_contract import JobContract
from icekeep.maintenance.compaction import JOB
from kit.job_world import World

pytestmark = pytest.mark.slow


class TestCompact(JobContract):
    job = JOB
    foretold = ("rewritten_data_files_count", "added_data_files_count", "rewritten_bytes_count")
    only_planned = frozenset(
        {
            "snapshot_id",
            "target_file_size_bytes",
            "candidate_files_count",
            "applied_delete_files_count",
            "reencoded_data_files_count",
        }
    )

    @staticmethod
    def fill(version: int) -> World:
        world = World(version)
        for number in range(5):
            world.append(number)
        return world
