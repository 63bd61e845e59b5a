"""What every job must do, of `drop --purge` and its written plans: the purge of another table finishes one that was cut off."""

from contextlib import suppress
from pathlib import Path

import pytest

from contracts.job_contract import JobContract
from contracts.plan_contract import PlanContract
from icekeep.maintenance.drop import JOB
from icekeep.maintenance.drop.job import drop_table
from icekeep.maintenance.plans import read_plan_file
from icekeep.spec.types import DAY_MS
from icekeep.tables.verbs import append, create_table
from kit.job_world import EVENTS, Fault, Killed, World
from kit.lake import SCHEMA, events
from kit.runtime import no_spark

pytestmark = pytest.mark.slow


class TestDrop(JobContract):
    job = JOB
    told = {"purge": True}
    foretold = ("deleted_bytes_count",)
    others = {
        "purge": (),
        "max_concurrent_deletes": (1,),
        "accept_unreadable": (["db.elsewhere"],),
        "options": ({"max-deletes-per-second": "9"}, {"reclaim.roots": "memory://lake/elsewhere"}),
    }
    removes = "files"

    @staticmethod
    def fill(version: int) -> World:
        world = World(version)
        world.append(1)
        world.append(2)
        return world

    @classmethod
    def is_finished(cls, world: World) -> bool:
        return world.pointer() is None and not files_of_the_table(world)

    @classmethod
    def run_again(cls, world: World) -> None:
        world.runtime.pass_ms(2 * DAY_MS)
        if world.pointer() is not None:
            table = world.table
        elif not [at for at in world.memory.files if at.endswith("/dropped.json")] and files_of_the_table(world):
            # Killed between the catalog's answer and its being written down: nothing proves that the table is gone.
            latest = max(at for at in files_of_the_table(world) if at.endswith(".metadata.json"))
            table = world.catalog.register_table(EVENTS, latest)
        else:
            table = create_table(world.catalog, ("db", "other"), SCHEMA)
        drop_table(table, no_spark, purge=True)

    @classmethod
    def leave(cls, world: World) -> None:
        """A purge that was killed when it began to delete."""
        append(create_table(world.catalog, ("db", "gone"), SCHEMA), [events(7, 1)])
        with Fault(counted := world.copy()) as clean:
            drop_table(counted.catalog.load("db.gone"), no_spark, purge=True)
        place = next(n for n, (name, at) in enumerate(clean.calls) if name == "delete_many" and "/data/" in at)
        with Fault(world, place, "killed"), suppress(Killed):
            drop_table(world.catalog.load("db.gone"), no_spark, purge=True)
        super().leave(world)


def files_of_the_table(world: World) -> list[str]:
    """What is left of it."""
    return [at for at in world.memory.files if "/db/events/" in at]


class TestPlan(PlanContract):
    contract = TestDrop
    may_append = False

    def check_cut_off(self, world: World, done: World, before: World, told: str) -> None:
        """Once the catalog has forgotten the table the files that are left are for the next purge."""
        assert world.pointer() is None, told
        if files_of_the_table(world):
            TestDrop.run_again(world)
        assert files_of_the_table(world) == [], told

    def test_the_file_names_the_table_and_its_version(self, path: Path) -> None:
        world = self._filled()
        location = world.table.metadata_location
        self.write(world, path)
        (first, *others) = read_plan_file(str(path)).lines()
        assert (first.do, first.kind, first.name, first.state) == ("drop", "table", "db.events", location)
        assert {line.do for line in others} == {"delete"}

    def test_without_a_purge_no_file_goes(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path, purge=False)
        moved = world.copy()
        files = set(world.memory.files)
        assert self.apply(world, path).result.is_purged is False
        assert world.pointer() is None
        assert set(world.memory.files) == files
        assert "carried out before, or somebody else dropped the table" in str(self.apply(world, path).applied_before)
        moved.append(9)
        self.refused(moved, path, "its metadata is in .* now, and was in .* came snapshot")
