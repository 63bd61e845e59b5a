"""Calls that fail by their answer and take effect all the same, much later (HDFS executes what its client has given up)."""

import pytest

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.errors import UnavailableError
from icekeep.maintenance.delete import reachable
from icekeep.maintenance.delete import run as deleting
from icekeep.maintenance.restore.job import list_restorable
from icekeep.storage.base import DeleteOutcome, DeleteStatus, MoveOutcome, MoveStatus
from kit.cases import for_each
from kit.expired_tables import ExpiredWorld, OneByOne


class _LateMove(OneByOne):
    """The first move of file `b` fails, and is `late`."""

    late = None
    raises = False

    def move_many(self, moves):
        outcomes = []
        for move in moves:
            if self.late is None and move[0].endswith("/data/b"):
                self.late = move
                if self.raises:
                    raise UnavailableError("timed out")
                outcomes.append(MoveOutcome(move[0], MoveStatus.FAILED, "timed out"))
            else:
                outcomes += super().move_many([move])
        return outcomes


@pytest.mark.slow
@for_each("raises", [False, True])
@for_each("days", [0, 0.5])
def test_a_restore_says_that_a_call_may_be_under_way_and_what_that_moves_comes_back(raises, days):
    """It forgot the plan, and the next job swept what then came into the trash: no plan led to it."""
    world = ExpiredWorld(_LateMove)
    world.storage.raises = raises
    assert world.expire(trash=3).status == "partial"
    world.pass_days(days)
    back = world.restore()
    assert (back.status, back.restored_snapshots_count) == ("done", 3)
    assert "may still move files to the trash" in back.note
    world.memory.move(*world.storage.late)
    world.runtime.pass_ms(60_000)
    world.finish(trash=3)
    assert world.restore(back.run).restored_files_count == 1
    assert world.data() == ["a", "ab", "b", "c"]


def test_files_in_the_trash_that_are_of_no_plan_stay_and_are_told():
    world = ExpiredWorld(_LateMove)
    assert world.expire(trash=3).status == "partial"
    # A day later nobody expects the call to take effect any more.
    world.pass_days(1.1)
    assert world.restore().note is None
    world.memory.move(*world.storage.late)
    world.pass_days(9)
    world.finish(trash=3)
    target = world.storage.late[1]
    assert target in world.memory.files
    assert world.heard.warnings[-1].startswith(
        f"1 file in the trash belongs to no plan, {target!r} among them: they stay"
    )


class _ANeverGoes(OneByOne):
    """File `a` can never be deleted for good."""

    def delete_many(self, locations):
        denied = [at for at in locations if at.endswith("/data/a") and "/.icekeep/" not in at]
        answers = super().delete_many([at for at in locations if at not in denied])
        return [*answers, *(DeleteOutcome(at, DeleteStatus.FAILED, "denied") for at in denied)]


def younger_plan(world):
    """A plan of file `b`, which an older one that is due names too; says its run."""
    world.expire(options={"grace": "1h"})
    first = {plan.run for plan in list_restorable(world.table)}
    world.pass_days(0.5)
    world.adopt_and_delete("b")
    world.expire(options={"grace": "5d"})
    (run,) = {plan.run for plan in list_restorable(world.table)} - first
    return run


@pytest.mark.slow
def test_a_file_that_is_never_deleted_does_not_keep_another_run_from_being_restored():
    world = ExpiredWorld(_ANeverGoes)
    run = younger_plan(world)
    for _ in range(3):
        world.finish()
        world.pass_days(0.9)
    assert world.restore(run).status == "done"


@pytest.mark.slow
def test_a_catalog_that_is_away_between_two_calls_is_no_call_of_the_store(monkeypatch):
    monkeypatch.setattr(deleting, "CALL_FILES", 1)
    world = ExpiredWorld()
    look, count = reachable.TableLook.__call__, [0]

    def away(self):
        count[0] += 1
        if count[0] == 3:
            raise UnavailableError("the catalog is away")
        return look(self)

    monkeypatch.setattr(reachable.TableLook, "__call__", away)
    run = younger_plan(world)
    assert count[0] >= 3
    world.pass_days(0.1)
    assert world.restore(run).status == "done"


def test_calls_that_failed_are_known_although_the_run_was_ended_by_something_else(monkeypatch):
    monkeypatch.setattr(deleting, "CALL_FILES", 1)

    class OneFails(_LateMove):
        def move_many(self, moves):
            before = self.late
            outcomes = super().move_many(moves)
            if before is None and self.late is not None:
                disable("false")
            return outcomes

    world = ExpiredWorld(OneFails)

    def disable(value):
        commit(world.table, ChangeProperties(updates={"gc.enabled": value}), runtime=world.runtime)

    world.expire(trash=3)
    disable("true")
    world.pass_days(0.1)
    back = world.restore()
    assert "may still move files" in back.note
    world.memory.move(*world.storage.late)
    world.finish(trash=3)
    world.restore(back.run)
    assert world.data() == ["a", "ab", "b", "c"]
