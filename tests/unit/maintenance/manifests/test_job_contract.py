"""What every job must do, of `rewrite_manifests` and its written plans."""

from pathlib import Path

import pytest

from contracts.job_contract import JobContract
from contracts.plan_contract import PlanContract
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.maintenance.manifests import JOB
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.plans import read_plan_file
from kit.deletes import delete_files, lose_reached_file
from kit.job_world import World
from kit.runtime import no_spark
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


def manifests(world: World) -> list[str]:
    head = world.table.metadata.head("main")
    assert head is not None
    return [one.manifest_path for one in ManifestReader(world.storage).manifests(head)]


class TestPlan(PlanContract):
    contract = TestRewriteManifests

    def test_a_manifest_that_others_rewrote_matters(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        first = manifests(world)[0]
        rewrite_manifests(world.table, no_spark)
        error = self.refused(world, path, r"3 manifests to rewrite are gone.*came snapshot \d+ \(replace at")
        assert first in error.message

    def test_manifests_that_came_since_are_left_alone(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        world.append(8)
        new = manifests(world)[0]
        result = self.apply(world, path).result
        assert (result.rewritten_manifests_count, result.removed_delete_files_count) == (4, 1)
        assert new in manifests(world)
        assert len(manifests(world)) == 3

    def test_another_compression_matters(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        commit(world.table, ChangeProperties(updates={"write.manifest.compression-codec": "snappy"}))
        self.refused(world, path, "the table's property write.manifest.compression-codec is snappy now")

    def test_its_lines_are_runs_of_manifests(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        group, *files, deletes = read_plan_file(str(path)).lines()
        assert (group.kind, group.says["expected_manifests_count"]) == ("group", 1)
        assert {line.name for line in files} < {*manifests(world)}
        assert [(line.do, line.group) for line in files] == [*[("rewrite", 0)] * 3, ("remove", None)]
        assert (deletes.do, deletes.kind, deletes.record_count) == ("remove", "position delete file", 1)

    def test_only_planned_dangling_deletes_are_removed(self, path: Path) -> None:
        world = TestRewriteManifests.fill(2)
        self.write(world, path, where="manifest_length < 0")
        lose_reached_file(world.table)
        assert len(delete_files(world.table)) == 4
        assert self.apply(world, path).result.removed_delete_files_count == 1
        assert len(delete_files(world.table)) == 3

    def test_missing_or_needed_delete_file_is_refused(self, path: Path) -> None:
        world = TestRewriteManifests.fill(2)
        self.write(world, path, where="manifest_length < 0")
        rewrite_manifests(
            world.table, no_spark, where="manifest_length < 0", options=TestRewriteManifests.told["options"]
        )
        self.refused(world, path, "1 delete file to remove is gone, or needed again")
