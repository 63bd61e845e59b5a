"""What every job must do, of `rewrite_manifests`."""

import pytest

from contracts.job_contract import JobContract
from icekeep.maintenance.manifests import JOB
from kit.deletes import lose_reached_file
from kit.job_world import World
from unit.maintenance.deletes.test_job_contract import upgraded

pytestmark = pytest.mark.slow


class TestRewriteManifests(JobContract):
    job = JOB
    told = {"options": {"remove-dangling-deletes": "true"}}
    foretold = ("rewritten_manifests_count", "added_manifests_count", "rewritten_bytes_count", "entries_count")
    only_planned = frozenset({"snapshot_id", "target_size_bytes", "removed_delete_bytes_count"})

    @staticmethod
    def fill(version: int) -> World:
        world = World(min(version, 2), commit__manifest_merge__enabled="false")
        for number in range(4):
            world.append(number)
        if version > 1:
            lose_reached_file(world.table)
        return upgraded(world, version)
