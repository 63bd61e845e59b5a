"""Plans whose files are partly in the trash: what the table leads to by now, and paths that are used again."""

import pytest

from icekeep.errors import SafetyError
from icekeep.storage.base import DeleteOutcome, DeleteStatus, MoveOutcome, MoveStatus
from kit.expired_tables import ExpiredWorld, Killed, OneByOne
from kit.tables import data_file

pytestmark = pytest.mark.slow


class _ZCannotMove(OneByOne):
    def move_many(self, moves):
        outcomes = []
        for move in moves:
            is_denied = move[0].endswith("/data/z") and "/.icekeep/" not in move[0]
            outcomes += [MoveOutcome(move[0], MoveStatus.FAILED, "denied")] if is_denied else super().move_many([move])
        return outcomes


def killed(world):
    def die():
        raise Killed

    world.once(die, "move_many", "/data/z")
    with pytest.raises(Killed):
        world.remove_orphans(trash=3)


def failed(world):
    assert world.remove_orphans(trash=3).status == "partial"


@pytest.mark.parametrize(("storage", "cut_off"), [(OneByOne, killed), (_ZCannotMove, failed)])
def test_a_file_in_the_trash_that_the_table_leads_to_again_stays_there(storage, cut_off):
    """Its plan was forgotten, since all of its files were in use, and the only copy was swept as left by a dead run."""
    world = ExpiredWorld(storage)
    world.leave("y", "z")
    cut_off(world)
    world.adopt("y", "z")
    world.pass_a_lease()
    world.pass_days(2)
    for _ in range(3):
        assert world.finish(trash=3).kept_again_files_count == 2
        world.pass_days(2)
    assert "icekeep restore --table local.db." in world.heard.warnings[-1]
    assert world.restore().status == "done"
    assert {"y", "z"} <= {*world.data()}
    assert world.own() == set()


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_restore_that_was_refused_changes_nothing_of_a_plan(is_refused):
    """It made the mark "done" void, so that the plan was carried out anew and failed each night."""
    world = ExpiredWorld()
    world.leave("z")
    assert world.remove_orphans(trash=3).status == "done"
    world.memory.create(data_file("z").file_path, b"another")
    if is_refused:
        with pytest.raises(SafetyError, match="in use again"):
            world.restore()
    world.pass_days(3.1)
    done = world.finish(trash=3)
    assert (done.status, done.emptied_trash_files_count, world.own()) == ("done", 1, set())
    assert "z" in world.data()


def test_what_lies_at_the_path_of_a_file_in_the_trash_stays_and_the_plan_ends():
    world = ExpiredWorld()
    world.leave("z")

    def die():
        raise Killed

    world.once(die, "create", "done.json")
    with pytest.raises(Killed):
        world.remove_orphans(trash=3)
    world.memory.create(data_file("z").file_path, b"another")
    world.pass_a_lease()
    assert world.finish(trash=3).status == "done"
    assert world.heard.warnings[-1].endswith("or another file with the same path is in the trash already")
    world.pass_days(3.1)
    assert world.finish(trash=3).emptied_trash_files_count == 1
    assert (world.own(), "z" in world.data()) == (set(), True)


def test_a_path_that_the_table_uses_again_does_not_keep_the_rest_of_a_plan():
    world = ExpiredWorld()
    world.leave("w", "x", "y")

    def die():
        raise Killed

    world.once(die, "move_many", "/data/x")
    with pytest.raises(Killed):
        world.remove_orphans(trash=3)
    world.memory.create(data_file("w").file_path, b"another".ljust(100))
    world.adopt("w")
    world.pass_a_lease()
    assert world.finish(trash=3).finished_files_count == 2
    assert "w" in world.data()
    assert not {"x", "y"} & {*world.data()}


def test_a_trash_that_cannot_be_emptied_keeps_its_plan():
    class Denied(OneByOne):
        is_denied = True

        def delete_many(self, locations):
            locations = [*locations]
            refused = [at for at in locations if self.is_denied and "/files/" in at]
            answers = self.inner.delete_many([at for at in locations if at not in refused])
            return [*answers, *(DeleteOutcome(at, DeleteStatus.FAILED, "denied") for at in refused)]

    world = ExpiredWorld(Denied)
    world.leave("z")
    world.remove_orphans(trash=3)
    world.pass_days(3.1)
    assert world.finish(trash=3).failed_files_count == 1
    world.storage.is_denied = False
    assert world.finish(trash=3).emptied_trash_files_count == 1
    assert world.own() == set()
