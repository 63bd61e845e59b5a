"""What every job must do, of `rewrite_manifests`."""

import pytest

from contracts.job_contract import JobContract
from icekeep.maintenance.manifests import JOB
from kit.job_world import World

pytestmark = pytest.mark.slow


class TestRewriteManifests(JobContract):
    job = JOB
    foretold = ("rewritten_manifests_count", "added_manifests_count", "rewritten_bytes_count", "entries_count")
    only_planned = frozenset({"snapshot_id", "target_size_bytes"})

    @staticmethod
    def fill(version: int) -> World:
        world = World(version, commit__manifest_merge__enabled="false")
        for number in range(3):
            world.append(number)
        return world
