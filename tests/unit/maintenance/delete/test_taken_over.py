"""Plans taken over by a restore, and moves to the trash that were cut off: calls take effect after that."""

from collections.abc import Callable
from threading import Event, Thread

import pytest

from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.retry import commit
from icekeep.errors import NotFoundError, OutcomeUnknownError, SafetyError, UnavailableError
from icekeep.maintenance.delete import lease as claims
from icekeep.maintenance.delete import pending
from icekeep.maintenance.restore.job import list_restorable
from icekeep.storage.base import DeleteOutcome, DeleteStatus, MoveOutcome, MoveStatus
from kit.expired_tables import ExpiredWorld, Killed, OneByOne
from kit.memory_catalog import after, fails, lands_late
from kit.tables import add, data_file

pytestmark = pytest.mark.slow

AWAY = UnavailableError("the catalog is away")


@pytest.fixture
def world():
    return ExpiredWorld()


def held_before_its_mark(world: ExpiredWorld) -> Callable[[], None]:
    """An expiration whose machine stands still before it marks its plan as done; call what this returns to let it go on."""
    stands, may_go_on = Event(), Event()

    def wait(what: str, location: str) -> None:
        if what == "create" and location.endswith("done.json") and not stands.is_set():
            stands.set()
            may_go_on.wait(60)

    def go_on() -> None:
        world.storage.before = lambda *_: None
        may_go_on.set()
        expiring.join(60)

    world.storage.before = wait
    expiring = Thread(target=lambda: world.expire(trash=3))
    expiring.start()
    assert stands.wait(60)
    world.pass_a_lease()
    return go_on


def test_late_mark_after_a_takeover_by_restore_is_ignored(world):
    """It said that all files were in the trash; those that the restore had moved back were taken for orphans."""
    go_on = held_before_its_mark(world)
    removed = []

    def go_on_and_remove_orphans() -> None:
        go_on()
        removed.append(world.remove_orphans().deleted_files_count)

    world.catalog.follow(after(go_on_and_remove_orphans, then=fails(AWAY)))
    assert world.restore().restored_snapshots_count == 3
    assert (removed, world.data()) == ([0], ["a", "ab", "b", "c"])


def test_late_mark_after_a_refused_restore_hides_nothing(world):
    """The trash was emptied of nothing, the plan was forgotten, and the files stayed."""
    go_on = held_before_its_mark(world)
    world.catalog.follow(after(go_on, then=fails(SafetyError("refused"))))
    with pytest.raises(SafetyError, match="refused"):
        world.restore()
    for _ in range(8):
        world.pass_days(1)
        world.finish(trash=3)
    assert (world.data(), world.own()) == (["ab", "c"], set())


class KeepsMarks(OneByOne):
    """The store does not delete the mark of a plan that is done, from some moment on."""

    keeps = False

    def delete_many(self, locations):
        return [
            DeleteOutcome(location, DeleteStatus.FAILED, "SlowDown")
            if self.keeps and location.endswith("/done.json")
            else super(KeepsMarks, self).delete_many([location])[0]
            for location in locations
        ]


def test_undeletable_mark_stops_the_restore():
    world = ExpiredWorld(KeepsMarks)
    world.expire(trash=3)
    world.storage.keeps = True
    with pytest.raises(UnavailableError, match=r"cannot delete .*/done.json': SlowDown"):
        world.restore()
    assert world.data() == ["ab", "c"]


def test_a_second_restore_knows_of_a_call_under_way(world):
    """It forgot the plan, and what the call moved to the trash after that was swept as a dead run's."""

    def restore_twice() -> None:
        world.pass_a_lease()
        world.catalog.follow(fails(SafetyError("refused")))
        with pytest.raises(SafetyError, match="refused"):
            world.restore()
        assert world.restore().restored_snapshots_count == 3

    world.once(restore_twice, "move_many", "/data/b")
    assert world.expire(trash=3).status == "partial"
    assert "b" not in world.data()
    run = list_restorable(world.table)[0].run
    world.pass_days(2)
    world.finish(trash=3)
    assert world.restore(run).restored_files_count == 1
    assert world.data() == ["a", "ab", "b", "c"]


def test_a_restore_says_that_another_plan_is_at_work(world):
    """That moved them to its own trash after the snapshots were back."""
    world.expire(options={"grace": "1d"})
    older = list_restorable(world.table)[0].run
    world.restored_and_cut_off(older)
    restored = []

    def restore() -> None:
        world.pass_a_lease()
        restored.append(world.restore(older))

    world.once(restore, "move_many", "/data/a")
    younger = world.expire(trash=3).plan_location.rpartition("/")[2]
    again = f"tomorrow, run `icekeep restore --table local.db.events --run {younger}` again"
    assert restored[0].note == f"a call of run '{younger}' may still move files to the trash: {again}"


def test_a_restore_that_ends_unknown_before_a_claim(world, monkeypatch):
    """The run had looked before, deleted the files for good, and then the commit landed."""
    world.expire(options={"grace": "1h"})
    world.pass_days(0.5)
    real, ended = pending.take_lease, []

    def take_after_a_restore(*arguments, **named):
        if not ended:
            world.catalog.follow(lands_late(60))
            with pytest.raises(OutcomeUnknownError) as error:
                world.restore()
            ended.append(error)
        return real(*arguments, **named)

    monkeypatch.setattr(pending, "take_lease", take_after_a_restore)
    assert world.finish().finished_files_count == 0
    world.pass_days(0.1)
    assert world.finish().finished_files_count == 0
    assert len(world.table.metadata.snapshots) == 1
    for _ in range(80):
        assert world.table
    assert (len(world.table.metadata.snapshots), world.data()) == (4, ["a", "ab", "b", "c"])


def test_a_claim_that_its_thread_follows_at_once(world, monkeypatch):
    """The number was read after the thread had moved it on: the claim looked lost, and the plan could not come back."""
    real, begun, claimed = claims._create, claims.PlanLease.begin_deleting, []

    def begin(self, storage, runtime):
        claimed.append(self)
        begun(self, storage, runtime)

    def create_and_follow(directory, number, content, storage):
        real(directory, number, content, storage)
        if content.deletes and len(claimed) == 1:
            claimed.append(None)
            claimed[0].check(storage, world.runtime)

    monkeypatch.setattr(claims.PlanLease, "begin_deleting", begin)
    monkeypatch.setattr(claims, "_create", create_and_follow)
    assert (world.expire(trash=0).status, world.data()) == ("done", ["ab", "c"])


def test_plan_before_its_commit_is_not_restorable(world):
    """It was marked as done, and the run could not carry it out after its commit."""

    def restore() -> None:
        with pytest.raises(NotFoundError, match="nothing to restore"):
            world.restore()

    world.catalog.follow(after(restore))
    result = world.expire(trash=3)
    assert (result.status, result.expired_snapshots_count, world.data()) == ("done", 3, ["ab", "c"])


@pytest.mark.parametrize("grace", ["1d", "3d"])
def test_a_path_that_comes_and_goes_each_night(world, grace):
    """Each waited for the next one, for ever."""
    for night in range(12):
        names = ("same", f"night-{night:02}")
        for name in names:
            if data_file(name).file_path not in world.memory.files:
                world.memory.create(data_file(name).file_path, b"x" * 100)
            add(world.table, name)
            world.runtime.pass_ms(1000)
        gone = frozenset(data_file(name).file_path for name in names)
        commit(world.table, DeleteFiles(paths=gone), runtime=world.runtime)
        world.pass_days(0.5)
        world.expire(options={"grace": grace})
        world.pass_days(0.5)
    assert len(list_restorable(world.table)) <= 3
    assert len(world.data()) <= 6


class HalfTrash(OneByOne):
    """No data file can be moved to the trash, and of the others one never is."""

    denied: str | None = None

    def move_many(self, moves):
        outcomes = []
        for source, target in moves:
            if "/.icekeep/" not in source and "/data/" in source:
                outcomes.append(MoveOutcome(source, MoveStatus.IMPOSSIBLE, "another bucket"))
            elif "/.icekeep/" not in source and self.denied in (None, source):
                self.denied = source
                outcomes.append(MoveOutcome(source, MoveStatus.FAILED, "denied"))
            else:
                outcomes += self.inner.move_many([(source, target)])
        return outcomes


def test_a_plan_that_fails_each_night_writes_no_plan_each_night():
    world = ExpiredWorld(HalfTrash)
    world.expire(trash=3)
    for _ in range(5):
        world.pass_days(1)
        assert world.finish(trash=3).status == "partial"
    assert len(list_restorable(world.table)) == 1


@pytest.mark.parametrize("is_gone", [True, False])
def test_the_claims_of_another_plan_do_not_fail_a_run(world, is_gone):
    """That plan was forgotten at this moment, or one of its claims is not whole."""
    world.expire(options={"grace": "20d"})
    run = list_restorable(world.table)[0].run
    world.memory.create(data_file("stray").file_path, b"stray")
    world.pass_days(4)
    own = [at for at in world.memory.files if f"/{run}/" in at]

    def forget() -> None:
        for at in own:
            del world.memory.files[at]

    if is_gone:
        world.once(forget, "read", "/claims/000002.json")
    else:
        claim = next(at for at in own if at.endswith("/claims/000002.json"))
        world.memory.files[claim] = (b"", world.memory.files[claim][1])
    result = world.remove_orphans()
    assert (result.status, "stray" in world.data()) == ("done", False)


@pytest.mark.parametrize("dies", [False, True])
def test_run_that_ends_after_its_claim_does_not_hide_restore(dies, monkeypatch):
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
def test_the_mark_of_an_overtaken_run():
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
def test_trash_file_in_use_by_the_table_stays_in_the_trash(storage, cut_off):
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


def test_another_file_at_a_trashed_path_stays():
    """The plan is completed although the path is occupied."""
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


def test_reused_path_does_not_block_the_rest_of_a_plan():
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
