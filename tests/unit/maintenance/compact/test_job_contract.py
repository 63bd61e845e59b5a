"""What every job must do, of `compact`."""

import pytest

from contracts.job_contract import JobContract
from icekeep.maintenance.compact import JOB
from kit.deletes import data_files, delete_equal, delete_positions, lose_reached_file
from kit.job_world import World
from kit.lake import events
from unit.maintenance.deletes.test_job_contract import upgraded

pytestmark = pytest.mark.slow


class TestCompact(JobContract):
    job = JOB
    told = {"options": {"remove-dangling-deletes": "true"}}
    foretold = ("rewritten_data_files_count", "added_data_files_count", "rewritten_bytes_count")
    only_planned = frozenset(
        {
            "snapshot_id",
            "target_file_size_bytes",
            "candidate_files_count",
            "applied_delete_files_count",
            "reencoded_data_files_count",
            "removed_delete_bytes_count",
        }
    )

    @staticmethod
    def fill(version: int) -> World:
        world = World(min(version, 2))
        for number in range(6):
            world.append(number)
        if version > 1:
            lose_reached_file(world.table)
            delete_positions(world.table, [(data_files(world.table)[0].file_path, 1)], names_file=False)
            delete_equal(world.table, events(2, 1).select(["id"]), ["id"])
        return upgraded(world, version)
