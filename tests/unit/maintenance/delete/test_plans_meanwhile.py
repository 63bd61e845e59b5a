"""Plans that come to name a file while another plan that names it is carried out."""

import pytest

from icekeep.maintenance.delete import pending
from icekeep.maintenance.delete import run as deleting
from icekeep.maintenance.restore.job import list_restorable
from kit.expired_tables import ExpiredWorld

pytestmark = pytest.mark.slow


def runs(world):
    return [plan.run for plan in list_restorable(world.table)]


@pytest.mark.parametrize("when", ["during the proof", "between two calls"])
def test_a_plan_that_begins_to_wait_keeps_its_files(when, monkeypatch):
    """Others were asked before the proof and never again, and the table itself did not lead to the file any more."""
    world = ExpiredWorld()
    world.expire(options={"grace": "1h"})
    first = runs(world)
    world.pass_days(0.5)

    def others():
        monkeypatch.undo()
        world.adopt_and_delete("b")
        world.expire(options={"grace": "5d"})

    proves, removes = pending.is_garbage, deleting._removed

    def proved(*arguments):
        others()
        return proves(*arguments)

    def removed(*arguments):
        outcome = removes(*arguments)
        others()
        return outcome

    if when == "during the proof":
        monkeypatch.setattr(pending, "is_garbage", proved)
    else:
        monkeypatch.setattr(deleting, "CALL_FILES", 1)
        monkeypatch.setattr(deleting, "_removed", removed)
    world.finish()
    (younger,) = [run for run in runs(world) if run not in first]
    assert "b" in world.data()
    assert world.restore(younger).restored_snapshots_count


@pytest.mark.parametrize("seed", range(4))
def test_two_plans_that_are_carried_out_at_once_do_not_leave_a_file_to_each_other(seed, monkeypatch):
    """The one was not due when the other asked, and the other was at work, so not waiting, when the one did."""
    world = ExpiredWorld()
    for _ in range(seed):
        world.runtime.new_uuid()
    world.expire(trash=3, options={"grace": "2h"})
    world.adopt_and_delete("a")
    world.pass_days(1.25 / 24)
    world.expire(trash=3, options={"grace": "2h"})
    world.pass_days(1.5 / 24)
    real, done = deleting.DeletionRun.reclaim, []

    def slow(self, plan, lease, *arguments, **named):
        if not done:
            done.append(plan.run)
            # It has many files, and takes an hour.
            for _ in range(20):
                world.pass_days(3 / 24 / 60)
                lease.check(world.storage, world.runtime)
            world.finish(trash=3)
        return real(self, plan, lease, *arguments, **named)

    monkeypatch.setattr(deleting.DeletionRun, "reclaim", slow)
    world.finish(trash=3)
    monkeypatch.undo()
    for _ in range(10):
        world.pass_days(1)
        world.finish(trash=3)
    assert (world.data(), world.own()) == (["ab", "c"], set())
