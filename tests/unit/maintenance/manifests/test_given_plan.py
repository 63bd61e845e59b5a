"""Plans of `rewrite_manifests` that are written to a file and carried out later."""

from pathlib import Path

import pytest

from contracts.plan_contract import PlanContract
from icekeep.commit.changes.change_properties import ChangeProperties
from icekeep.commit.manifests import StorageManifestReader
from icekeep.commit.retry import commit
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.operations.plan_files.format import read_plan_file
from kit.job_world import World
from kit.no_spark import no_spark
from unit.maintenance.manifests.test_job_contract import TestRewriteManifests as Contract

pytestmark = pytest.mark.slow


def manifests(world: World) -> list[str]:
    head = world.table.metadata.head("main")
    assert head is not None
    return [one.manifest_path for one in StorageManifestReader(world.storage).manifests(head)]


class TestPlan(PlanContract):
    contract = Contract

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
        assert self.apply(world, path).result.rewritten_manifests_count == 3
        assert new in manifests(world)
        assert len(manifests(world)) == 2

    def test_another_compression_matters(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        commit(world.table, ChangeProperties(updates={"write.manifest.compression-codec": "snappy"}))
        self.refused(world, path, "the table's property write.manifest.compression-codec is snappy by now")

    def test_its_lines_are_runs_of_manifests(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        group, *files = read_plan_file(str(path)).lines()
        assert (group.kind, group.says["expected_manifests_count"]) == ("group", 1)
        assert {line.name for line in files} == {*manifests(world)}
        assert {(line.do, line.group) for line in files} == {("rewrite", 0)}
