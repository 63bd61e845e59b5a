"""Calls that fail by their answer and take effect all the same, much later (HDFS executes what its client has given up)."""

import pytest

from icekeep.errors import UnavailableError
from icekeep.storage.base import MoveOutcome, MoveStatus
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


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("days", [0, 0.5])
def test_a_restore_says_that_a_call_may_be_under_way_and_what_that_moves_comes_back(raises, days):
    """It forgot the plan, and the next job swept what then came into the trash: no plan led to it."""
    world = ExpiredWorld(_LateMove)
    world.storage.raises = raises
    assert world.expire(trash=3).status == "partial"
    world.pass_days(days)
    back = world.restore()
    assert (back.status, back.restored_snapshots_count) == ("done", 3)
    assert "may be at work still" in back.note
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
    assert world.heard.warnings[-1].startswith(f"1 files in the trash are of no plan, {target!r} among them: they stay")
