"""What every job must do, of `expire_snapshots` and its written plans."""

from pathlib import Path

import pytest

from contracts.job_contract import JobContract, lost
from contracts.plan_contract import PlanContract
from icekeep.catalog.base import Committed, Table
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.expire import JOB
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.plans import read_plan_file
from icekeep.spec.evolution import AddColumn, AddPartitionField, DropColumn, RemovePartitionField
from icekeep.spec.types import DAY_MS, STRING
from icekeep.spec.updates import RemovePartitionSpecs, RemoveSchemas, Update
from icekeep.tables.refs import create_branch, create_tag, replace_tag
from icekeep.tables.verbs import set_current_snapshot, update_schema, update_spec
from kit.deletes import data_files
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


def oldest(world: World) -> int:
    return world.table.metadata.snapshots[0].snapshot_id


class TestPlan(PlanContract):
    contract = TestExpireSnapshots

    def test_a_snapshot_that_got_a_tag_matters(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        create_tag(world.table, "audit", oldest(world))
        error = self.refused(world, path, f"snapshot {oldest(world)}, which tag 'audit' names now must stay")
        assert error.facts["snapshot_ids"] == [oldest(world)]

    def test_a_tag_on_what_stays_does_not_matter(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        create_tag(world.table, "audit")
        assert self.apply(world, path).result.expired_snapshots_count == 2

    def test_a_rollback_to_what_would_expire_matters(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        set_current_snapshot(world.table, oldest(world))
        self.refused(
            world, path, r"which branch 'main' names now must stay; branch 'main' was moved away from snapshot"
        )

    def test_what_others_have_expired_in_part_matters(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        gone = oldest(world)
        expire_snapshots(world.table, no_spark, snapshot_ids=[gone], older_than="90d", trash=0)
        self.refused(world, path, f"1 of what was to expire are gone, such as '{gone}'")

    def test_what_others_have_expired_as_a_whole_is_done(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        expire_snapshots(world.table, no_spark, **self.contract.told)
        before = world.state()
        assert "or somebody else expired it" in str(self.apply(world, path).applied_before)
        assert world.state() == before

    def test_a_file_that_is_in_use_again_matters(self, path: Path) -> None:
        world = self._filled()
        old = create_branch(world.table, "old", oldest(world))
        (file, *_) = data_files(old, "old")
        world = self._filled()
        self.write(world, path)
        commit(world.table, AppendFiles(files=(file,)))
        error = self.refused(world, path, f"1 file to delete is in use, or gone, such as '{file.file_path}'")
        assert error.facts["missing_count"] == 1

    def test_what_else_would_expire_by_then_stays(self, path: Path) -> None:
        """Ages are of when the plan was made, and of the newest snapshots others are the newest by now."""
        world = World(2)
        for number in range(4):
            world.append(number)
        world.runtime.pass_ms(2 * DAY_MS)
        self.write(world, path, older_than="1d", retain_last=3)
        assert [line.kind for line in read_plan_file(str(path)).lines()][:1] == ["snapshot"]
        ids = [one.snapshot_id for one in world.table.metadata.snapshots]
        for number in range(4, 8):
            world.append(number)
        world.runtime.pass_ms(9 * DAY_MS)
        before = world.copy()
        assert self.apply(world, path).result.expired_snapshots_count == 1
        left = [one.snapshot_id for one in world.table.metadata.snapshots]
        assert (left[:3], len(left)) == (ids[1:], 7)
        planned = {line.name for line in read_plan_file(str(path)).lines() if line.do == "delete"}
        assert lost(before, world) == planned

    def test_references_that_go_are_in_the_plan_with_where_they_are(self, path: Path) -> None:
        world = self._filled()
        create_tag(world.table, "short", oldest(world), max_ref_age="1h")
        self.write(world, path)
        lines = [line for line in read_plan_file(str(path)).lines() if line.kind == "reference"]
        assert [(line.do, line.name, line.state) for line in lines] == [("remove", "short", str(oldest(world)))]
        kept = world.copy()
        assert self.apply(world, path).result.expired_ref_names == ("short",)
        replace_tag(kept.table, "short", kept.table.metadata.snapshots[1].snapshot_id)
        self.refused(kept, path, "reference 'short', which was to go, is now at another snapshot")

    def test_removed_schemas_and_specs_are_in_the_plan(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        found = [line for line in read_plan_file(str(path)).lines() if line.kind in ("schema", "partition spec")]
        assert [(line.do, line.kind, line.name) for line in found] == [
            ("remove", kind, number) for kind in ("partition spec", "schema") for number in "12"
        ]
        states = {line.state for line in found}
        assert len(states) == 4

        used = world.copy()
        update_spec(used.table, [AddPartitionField("kind")])
        self.refused(used, path, "partition spec 2, which was to go, is in use now")

        gone = world.copy()
        self.removed(gone, RemovePartitionSpecs((1,)))
        self.refused(gone, path, "1 of what was to expire are gone, such as 'partition spec 1'")

        other = world.copy()
        self.removed(other, RemoveSchemas((2,)))
        update_schema(other.table, [AddColumn("other", STRING)])
        self.refused(other, path, "schema 2, which was to go, has another definition now")

        done = self.apply(world, path).result
        assert (done.removed_schemas_count, done.removed_specs_count) == (2, 2)

    @staticmethod
    def removed(world: World, update: Update) -> None:
        swapped = world.catalog.swap(world.table, (), (update,))
        assert isinstance(swapped, Committed)

    def test_explicit_snapshots_are_those_of_the_plan(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path, snapshot_ids=[oldest(world)], older_than="90d")
        assert self.apply(world, path).result.expired_snapshots_count == 1
        assert self.apply(world, path).applied_before

    def test_the_hash_of_its_files_is_that_which_approve_takes(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        approve = read_plan_file(str(path)).head.approve
        done = expire_snapshots(world.table, no_spark, approve=approve, **self.contract.told)
        assert done.hash == approve
