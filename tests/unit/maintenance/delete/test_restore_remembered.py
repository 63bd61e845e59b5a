"""That a restore was at work on a plan is said by all later claims, until a run has proved that nothing came back."""

import pytest

from icekeep.errors import OutcomeUnknownError, SafetyError
from icekeep.maintenance.delete import pending
from kit.expired_tables import ExpiredWorld, Killed
from kit.memory_catalog import after, fails, lands_late
from unit.maintenance.delete.test_taken_over import held_before_its_mark


@pytest.mark.parametrize("dies", [False, True])
def test_a_run_that_ends_right_after_its_claim_does_not_hide_the_restore(dies, monkeypatch):
    """The run after it deleted for good, and then the commit of the restore landed."""
    world = ExpiredWorld()
    world.expire(options={"grace": "1h"})
    world.pass_days(0.5)
    real, ended = pending.take_lease, []

    def take_after_a_restore(*arguments, **named):
        if ended:
            return real(*arguments, **named)
        world.catalog.follow(lands_late(60))
        with pytest.raises(OutcomeUnknownError) as error:
            world.restore()
        ended.append(error)
        claim = real(*arguments, **named)
        if dies:
            raise Killed
        world.catalog.failing_loads = 1
        return claim

    monkeypatch.setattr(pending, "take_lease", take_after_a_restore)
    if dies:
        with pytest.raises(Killed):
            world.finish()
        world.pass_a_lease()
    else:
        assert world.finish().status == "partial"
    world.pass_days(0.01)
    assert world.finish().finished_files_count == 0
    for _ in range(80):
        assert world.table
    assert len(world.table.metadata.snapshots) == 4
    assert world.data() == ["a", "ab", "b", "c"]


@pytest.mark.slow
def test_the_mark_of_an_overtaken_run_does_not_count_after_a_run_that_failed_between():
    """It counted again: the trash was emptied of nothing, the plan forgotten, and its files were nobody's."""
    world = ExpiredWorld()
    go_on = held_before_its_mark(world)
    world.catalog.follow(after(go_on, then=fails(SafetyError("refused"))))
    with pytest.raises(SafetyError, match="refused"):
        world.restore()
    world.pass_days(3.1)
    loads, count = world.catalog.load, [0]

    def load(identifier):
        count[0] += 1
        if count[0] == 2:
            # The first load of the run after its claim.
            world.catalog.failing_loads = 1
        return loads(identifier)

    world.catalog.load = load
    assert world.finish(trash=3).status == "partial"
    del world.catalog.load
    for _ in range(8):
        world.pass_days(1)
        world.finish(trash=3)
    assert (world.data(), world.own()) == (["ab", "c"], set())
