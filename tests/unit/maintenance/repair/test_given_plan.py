"""Plans of `repair` that are written to a file and carried out later."""

from pathlib import Path

import pytest

from contracts.plan_contract import PlanContract
from icekeep.commit import live_files
from icekeep.maintenance.plans import read_plan_file
from icekeep.maintenance.repair.job import repair
from kit.runtime import no_spark
from unit.maintenance.repair.test_job_contract import TestRepair as Contract

pytestmark = pytest.mark.slow


class TestPlan(PlanContract):
    contract = Contract
    # The totals of the head are mended, and the head is another one then.
    may_append = False

    def test_an_append_does_not_matter(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """By another engine: icekeep appends nothing to a list that contradicts its totals."""
        monkeypatch.setattr(live_files, "check_totals", lambda *_: True)
        super().test_an_append_does_not_matter(path)

    def test_what_others_mended_in_part_matters(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        repair(world.table, no_spark, fault=[302])
        self.refused(world, path, r"repairs do not apply as planned, such as of fault \d+ in")

    def test_what_others_mended_as_a_whole_is_done(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        repair(world.table, no_spark, **self.contract.told)
        before = world.state()
        assert "or somebody else repaired them" in str(self.apply(world, path).applied_before)
        assert world.state() == before

    def test_its_lines_tell_each_fault(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        faults = [line for line in read_plan_file(str(path)).lines() if line.kind == "fault"]
        assert {line.says["fault_id"] for line in faults} == {215, 302, 405}
        assert all(line.name and line.says["action"] for line in faults)
