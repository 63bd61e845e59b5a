"""What every job must do, of `remove_orphan_files`."""

import pytest

from contracts.job_contract import JobContract
from icekeep.maintenance.orphans import JOB
from icekeep.spec.units import DAY_MS
from kit.job_world import World

pytestmark = pytest.mark.slow


class TestRemoveOrphanFiles(JobContract):
    job = JOB
    told = {"trash": 0, "options": {"max-orphan-ratio": "0.9"}}
    foretold = ("orphan_files_count", "orphan_bytes_count", "listed_files_count", "reachable_files_count")
    removes = "orphan_file_locations"

    @staticmethod
    def fill(version: int) -> World:
        world = World(version)
        world.append(1)
        for name in ("data/a.parquet", "data/b.parquet", "metadata/c-m0.avro"):
            world.storage.create(f"{world.table.metadata.location}/{name}", b"stray")
        world.runtime.pass_ms(4 * DAY_MS)
        return world
