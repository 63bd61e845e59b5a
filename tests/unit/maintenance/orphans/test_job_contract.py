"""What every job must do, of `remove_orphan_files`."""

import pytest

from contracts.job_contract import JobContract
from icekeep.maintenance.orphans import JOB
from icekeep.spec.types import DAY_MS
from kit.job_world import World

pytestmark = pytest.mark.slow


class TestRemoveOrphanFiles(JobContract):
    job = JOB
    told = {"trash": 0, "options": {"max-orphan-ratio": "0.9"}}
    foretold = ("orphan_files_count", "orphan_bytes_count", "listed_files_count", "reachable_files_count")
    others = {
        "older_than": ("5d",),
        "location": ("memory://lake/wh/db/events/data",),
        "max_concurrent_deletes": (1,),
        "file_list_view": (),
        "equal_schemes": ({"s3a": "s3"},),
        "equal_authorities": ({"nn1": "nn"},),
        "prefix_mismatch_mode": ("IGNORE",),
        "prefix_listing": (True,),
        "stream_results": (True,),
        "trash": (1, 2),
        "force": (True,),
        "trust_manifest_list": (True,),
        "accept_unreadable": (["db.elsewhere"],),
        "options": (
            {"grace": "1d"},
            {"grace": "2d"},
            {"max-orphan-ratio": "0.8"},
            {"max-deletes-per-second": "9"},
            {"reclaim.roots": "memory://lake/elsewhere"},
            {"ignore-metadata-of": "8b5c0b6e-6f3a-4a57-9a2f-0d9d3d8d4b55"},
        ),
    }
    removes = "orphan_file_locations"

    @staticmethod
    def fill(version: int) -> World:
        world = World(version)
        world.append(1)
        for name in ("data/a.parquet", "data/b.parquet", "metadata/c-m0.avro"):
            world.storage.create(f"{world.table.metadata.location}/{name}", b"stray")
        world.runtime.pass_ms(4 * DAY_MS)
        return world

    @classmethod
    def leave(cls, world: World) -> None:
        """What was never deleted, and what is in the trash for long enough."""
        cls.run(world, trash=5)
        world.storage.create(f"{world.table.metadata.location}/data/d.parquet", b"stray")
        world.runtime.pass_ms(4 * DAY_MS)
        cls.run(world, options={"grace": "1d", "max-orphan-ratio": "0.9"})
        super().leave(world)
