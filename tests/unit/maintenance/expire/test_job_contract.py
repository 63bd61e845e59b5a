"""What every job must do, of `expire_snapshots`."""

import pytest

from contracts.job_contract import JobContract
from icekeep.catalog.base import Table
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.expire import JOB
from icekeep.spec.evolution import AddColumn, AddPartitionField, DropColumn, RemovePartitionField
from icekeep.spec.types import DAY_MS, STRING
from icekeep.tables.verbs import update_schema, update_spec
from kit.job_world import World
from kit.runtime import no_spark

pytestmark = pytest.mark.slow


class TestExpireSnapshots(JobContract):
    job = JOB
    told = {"older_than": "1d", "trash": 0, "clean_expired_metadata": True}
    foretold = (
        "expired_snapshots_count",
        "removed_schemas_count",
        "removed_specs_count",
        "deleted_files_count",
        "deleted_bytes_count",
    )
    others = {
        "older_than": ("3d",),
        "retain_last": (2,),
        "snapshot_ids": (),
        "clean_expired_metadata": (False,),
        "clean": ("metadata", "none"),
        "max_concurrent_deletes": (1,),
        "stream_results": (True,),
        "trash": (1, 2),
        "trust_manifest_list": (True,),
        "options": (
            {"grace": "1d"},
            {"grace": "2d"},
            {"keep-writer-progress": "0"},
            {"max-deletes-per-second": "9"},
            {"reclaim.roots": "memory://lake/elsewhere"},
        ),
    }
    removes = "files"

    @staticmethod
    def fill(version: int) -> World:
        world = World(version)
        partitioned_for_a_while(world.table)
        world.append(1, 2)
        compact(world.table, no_spark, options={"rewrite-all": "true"})
        world.runtime.pass_ms(2 * DAY_MS)
        world.append(3)
        return world

    @classmethod
    def leave(cls, world: World) -> None:
        """What was never deleted, and what is in the trash for long enough."""
        cls.run(world, trash=3)
        for number in (4, 5):
            world.append(number)
            compact(world.table, no_spark, options={"rewrite-all": "true"})
        world.runtime.pass_ms(2 * DAY_MS)
        cls.run(world, options={"grace": "1d"}, older_than="1h", retain_last=1)
        world.append(6)
        super().leave(world)


def partitioned_for_a_while(table: Table) -> Table:
    """By a column that was dropped then, and by one that stays; with a column that was there for a while as well.

    Nothing uses the specs of both, and nothing but the first needs the schema with its column.
    """
    table = update_schema(table, [AddColumn("region", STRING)])
    for column in ("region", "kind"):
        table = update_spec(table, [AddPartitionField(column)])
        table = update_spec(table, [RemovePartitionField(column)])
    table = update_schema(table, [DropColumn("region")])
    return update_schema(update_schema(table, [AddColumn("note", STRING)]), [DropColumn("note")])
