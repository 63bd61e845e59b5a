"""What every job must do whose plan is written to a file and carried out later; the test of a job inherits it.

It takes the world that the contract of jobs fills (`job_contract.py`), in memory and without Spark.
"""

from collections.abc import Mapping
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any, ClassVar

import pytest

from contracts.job_contract import (
    KINDS,
    LATER,
    JobContract,
    assert_one_line,
    assert_same_rows,
    figures_of,
    filled,
    lost,
)
from icekeep.errors import IcekeepError, SafetyError
from icekeep.maintenance.plans import read_plan_file
from icekeep.operations.commands.applying import ApplyResult, apply_plan, write_plan
from icekeep.operations.outcomes import PlanWritten
from icekeep.spec.types import DAY_MS
from icekeep.tables.verbs import create_table
from kit.cases import some_of
from kit.job_world import EVENTS, Fault, Killed, World
from kit.lake import SCHEMA
from kit.runtime import no_spark


class PlanContract:
    """What the test of a job says of its plans.

    Attributes:
        contract: of the job.
        told: the arguments that the plan is made with, if not those of the job's contract.
        may_append: whether an append leaves the plan as it is.
        unlike: figures of a result that a plan which was given has no way to know, or need not tell.
    """

    contract: ClassVar[type[JobContract]]
    told: ClassVar[Mapping[str, Any] | None] = None
    may_append: ClassVar[bool] = True
    unlike: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def write(cls, world: World, path: Path, **more: Any) -> PlanWritten:
        """Write the plan of the job on the table as it is now."""
        told = cls.contract.told if cls.told is None else cls.told
        return write_plan(world.table, cls.contract.job.name, str(path), no_spark, **{**told, **more})

    @staticmethod
    def apply(world: World, path: Path, **more: Any) -> ApplyResult:
        """Carry a plan out."""
        return apply_plan(world.catalog, str(path), no_spark, **more)

    @pytest.fixture(params=[1, 2, 3])
    def world(self, request: pytest.FixtureRequest) -> World:
        if request.param not in self.contract.versions:
            return self._filled()
        return filled(self.contract, request.param).copy()

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "plan.jsonl"

    def test_a_plan_that_is_applied_does_what_the_job_does(self, world: World, path: Path) -> None:
        direct, before = world.copy(), world.copy()
        told = self.contract.told if self.told is None else self.told
        ran = self.contract.run(direct, **told)
        self.write(world, path)
        assert world.state() == before.state()
        assert [file.name for file in path.parent.iterdir()] == ["plan.jsonl"]
        applied = self.apply(world, path)
        assert (applied.status, applied.applied_before) == (getattr(ran, "status", "done"), None)
        assert world.state() != before.state()
        one, other = figures_of(ran), figures_of(applied.result)
        left_out = LATER | {"peak_task_bytes"} | self.unlike
        differ = {name for name, value in one.items() if name not in left_out and value != other[name]}
        assert {name: (one[name], other[name]) for name in differ} == {}
        assert lost(before, world) == lost(before, direct)
        if world.pointer() is not None:
            assert world.rows() == direct.rows()
            assert len(world.table.metadata.snapshots) == len(direct.table.metadata.snapshots)

    def test_applying_it_again_does_nothing_and_says_so(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        assert self.apply(world, path).applied_before is None
        world.runtime.pass_ms(1000)
        after = world.state()
        again = self.apply(world, path)
        assert again.status == "done"
        assert again.applied_before
        assert again.result is None
        assert world.state() == after

    def test_holding_it_against_the_table_changes_nothing(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        before = world.state()
        held = self.apply(world, path, dry_run=True)
        assert (held.status, held.applied_before) == ("planned", None)
        assert world.state() == before

    def test_an_append_does_not_matter(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        world.append(77)
        if not self.may_append:
            self.refused(world, path, "moved")
            return
        rows = self.contract.rows_left(world.rows())
        before = world.copy()
        assert self.apply(world, path).status == "done"
        assert_same_rows(world, rows)
        assert world.pointer() != before.pointer() or lost(before, world)

    def test_another_table_of_the_name_is_refused(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        world.catalog.drop(EVENTS)
        create_table(world.catalog, EVENTS, SCHEMA)
        self.refused(world, path, "dropped and made again")

    def test_its_lines_name_what_is_done(self, path: Path) -> None:
        world = self._filled()
        written = self.write(world, path)
        file = read_plan_file(str(path))
        lines = [*file.lines()]
        assert (file.hash, len(lines)) == (written.hash, written.totals.lines_count)
        assert written.totals.files_count == sum(line.is_of_a_file for line in lines)
        assert lines
        assert file.head.job == self.contract.job.name

    def test_interrupted_plan_is_reapplied_without_repeating_work(self, path: Path) -> None:
        counted = self._filled()
        self.write(counted, path)
        rows = self.contract.rows_left(counted.rows())
        done = counted.copy()
        self.apply(done, path)
        with Fault(counted.copy()) as clean:
            self.apply(clean._world, path)
        kinds = [KINDS.get(operation) or (operation, n) for n, (operation, _) in enumerate(clean.calls)]
        turns = cycle(Fault.WAYS)
        for place in some_of(range(len(kinds)), least=4, kind=kinds.__getitem__):
            world, way = counted.copy(), next(turns)
            with Fault(world, place, way) as fault, suppress(IcekeepError, Killed):
                self.apply(world, path)
            told = f"{way}: {fault.calls[place]}, call {place} of {len(fault.calls)}"
            world.runtime.pass_ms(DAY_MS)
            with suppress(SafetyError):
                self.apply(world, path)
            self.check_cut_off(world, done, counted, told)
            if world.pointer() is not None:
                assert_same_rows(world, rows, told)

    def check_cut_off(self, world: World, done: World, before: World, told: str) -> None:
        """What was cut off and applied again is as if it had not been: the same files are gone, and as many snapshots there."""
        assert lost(before, world) == lost(before, done), told
        if done.pointer() is None:
            assert world.pointer() is None, told
            return
        assert len(world.table.metadata.snapshots) == len(done.table.metadata.snapshots), told

    def refused(self, world: World, path: Path, match: str) -> SafetyError:
        """The plan is refused in one line, and nothing is changed; the same where it is only looked at."""
        before = world.state()
        for dry_run in (True, False):
            with pytest.raises(SafetyError, match=match) as raised:
                self.apply(world, path, dry_run=dry_run)
            assert_one_line(raised.value)
            assert world.state() == before
        return raised.value

    def _filled(self) -> World:
        return filled(self.contract, max(self.contract.versions)).copy()
