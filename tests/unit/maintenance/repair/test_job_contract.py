"""What every job must do, of `repair`: a run is spoilt at every call, and the next one finishes it."""

from typing import Any, ClassVar

import pytest

from contracts.job_contract import JobContract
from icekeep.maintenance.repair import JOB
from icekeep.tables.refs import create_branch
from kit.cases import Choices
from kit.damage import CONTENT_DAMAGE, ENTRY_DAMAGE
from kit.damager import Damager
from kit.job_world import EVENTS, World

pytestmark = pytest.mark.slow


class TestRepair(JobContract):
    job = JOB
    told: ClassVar[dict[str, Any]] = {"fault": [204, 215, 302, 405]}
    others: ClassVar[dict[str, Any]] = {
        "fault": ([204], [302, 405], [405, 302, 215, 204]),
        "accept_loss": (["nothing"],),
        "snapshot_properties": ({"ticket": "1"}, {"ticket": "2"}),
    }

    @staticmethod
    def fill(version: int) -> World:
        """Two branches, each with faults in entries, in rows of its list and in its totals."""
        world = World(version, [("at", "month")])
        world.append(1, 2)
        create_branch(world.table, "audit")
        world.append(3, month=2)
        for number, kinds in ((204, ENTRY_DAMAGE), (215, ENTRY_DAMAGE), (302, ENTRY_DAMAGE), (405, CONTENT_DAMAGE)):
            kinds[number](Damager(world.catalog, EVENTS, Choices(number)))
        return world
