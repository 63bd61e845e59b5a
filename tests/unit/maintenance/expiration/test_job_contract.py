"""What every job must do, of `expire_snapshots`."""

import pytest

from contracts.job_contract import JobContract
from icekeep.maintenance.compaction.job import compact
from icekeep.maintenance.expiration import JOB
from icekeep.spec.units import DAY_MS
from kit.job_world import World
from kit.no_spark import no_spark

pytestmark = pytest.mark.slow


class TestExpireSnapshots(JobContract):
    job = JOB
    told = {"older_than": "1d", "trash": 0}
    foretold = ("expired_snapshots_count", "deleted_bytes_count")
    removes = "files"

    @staticmethod
    def fill(version: int) -> World:
        world = World(version)
        world.append(1, 2)
        compact(world.table, no_spark, options={"rewrite-all": "true"})
        world.runtime.pass_ms(2 * DAY_MS)
        world.append(3)
        return world
