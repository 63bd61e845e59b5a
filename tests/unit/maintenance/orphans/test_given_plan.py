"""Plans of `remove_orphan_files` that are written to a file and carried out later."""

from contextlib import suppress
from pathlib import Path

import pytest

from contracts.job_contract import lost
from contracts.plan_contract import PlanContract
from icekeep.maintenance.plans import read_plan_file
from icekeep.spec.types import DAY_MS
from kit.job_world import Fault, Killed, World
from unit.maintenance.orphans.test_job_contract import TestRemoveOrphanFiles as Contract

pytestmark = pytest.mark.slow


def planned_files(path: Path) -> list[str]:
    return [line.name for line in read_plan_file(str(path)).lines() if line.do == "delete"]


class TestPlan(PlanContract):
    contract = Contract

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
