"""What every job must do, of `remove_orphan_files` and its written plans."""

from contextlib import suppress
from pathlib import Path

import pytest

from contracts.job_contract import JobContract, lost
from contracts.plan_contract import PlanContract
from icekeep.maintenance.orphans import JOB
from icekeep.maintenance.plans import read_plan_file
from icekeep.spec.types import DAY_MS
from kit.job_world import Fault, Killed, World

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


def planned_files(path: Path) -> list[str]:
    return [line.name for line in read_plan_file(str(path)).lines() if line.do == "delete"]


class TestPlan(PlanContract):
    contract = TestRemoveOrphanFiles

    def test_a_file_that_somebody_else_removed_matters(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        gone = planned_files(path)[0]
        world.memory.delete_many([gone])
        self.refused(world, path, f"1 file to delete is in use, or gone, such as '{gone}'")

    def test_files_that_all_are_gone_are_done(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        world.memory.delete_many(planned_files(path))
        before = world.state()
        assert "none of the 3 files that were to go is there any more" in str(self.apply(world, path).applied_before)
        assert world.state() == before

    def test_what_has_become_an_orphan_since_stays(self, path: Path) -> None:
        """Whatever is old enough by then is none of the plan."""
        world = self._filled()
        self.write(world, path)
        world.storage.create(f"{world.table.metadata.location}/data/new.parquet", b"stray")
        world.runtime.pass_ms(9 * DAY_MS)
        before = world.copy()
        assert self.apply(world, path).result.deleted_files_count == 3
        assert lost(before, world) == {*planned_files(path)}

    def test_an_age_is_a_moment_in_the_plan(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path, older_than="2d")
        head = read_plan_file(str(path)).head
        assert head.arguments["older_than"] == head.created_ms - 2 * DAY_MS

    def test_the_trash_is_that_of_the_plan(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path, trash=2)
        done = self.apply(world, path).result
        assert (done.is_in_trash, done.deleted_files_count) == (True, 3)
        assert self.apply(world, path).applied_before

    def test_what_was_begun_is_finished_and_told(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        with Fault(counted := world.copy()) as clean:
            self.apply(counted, path)
        calls = enumerate(clean.calls)
        place = next(n for n, call in calls if call == ("delete_many", planned_files(path)[0]))
        with Fault(world := world.copy(), place), suppress(Killed):
            self.apply(world, path)
        assert all(name in world.memory.files for name in planned_files(path))
        world.runtime.pass_ms(DAY_MS)
        again = self.apply(world, path)
        assert (again.applied_before, again.result.finished_files_count) == (None, 3)
        assert not any(name in world.memory.files for name in planned_files(path))

    def test_nothing_but_the_plan_is_done(self, path: Path) -> None:
        """What other runs left waits for another run."""
        world = self._filled()
        other: World = world.copy()
        self.write(world, path)
        assert self.apply(world, path).result.finished_files_count == 0
        assert self.apply(other, path).result.emptied_trash_files_count == 0
