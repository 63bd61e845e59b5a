"""Files of two plans: they go with the plan that keeps them longest, whoever deletes, moves or restores meanwhile."""

import pickle
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.changes.snapshots import ExpireSnapshots
from icekeep.commit.retry import commit
from icekeep.errors import ClaimedError, SafetyError, UnavailableError
from icekeep.maintenance.delete import kept as kept_by_plans
from icekeep.maintenance.delete import pending
from icekeep.maintenance.delete import run as deleting
from icekeep.maintenance.delete.locations import DeletableLocations
from icekeep.maintenance.expire import run as expiring
from icekeep.maintenance.orphans import compare as candidates
from icekeep.maintenance.orphans import job as execute
from icekeep.maintenance.restore.job import list_restorable
from icekeep.spec.retention import RetentionPolicy
from icekeep.storage.base import MoveOutcome, MoveStatus
from kit.catalogs import simple_metadata
from kit.expired_tables import ExpiredWorld, Killed, OneByOne, files_of
from kit.memory_catalog import after, fails
from kit.storage import HookedStorage, Meeting, MemoryStorage
from kit.tables import add, data_file

pytestmark = pytest.mark.slow

AWAY = UnavailableError("the catalog is away")


@pytest.fixture
def world():
    return ExpiredWorld()


def adopt_and_delete(world: ExpiredWorld, *names: str) -> None:
    """Files of an earlier plan come into the table, and go again."""
    for name in names:
        add(world.table, name)
        world.runtime.pass_ms(1000)
    commit(world.table, DeleteFiles(paths=frozenset(data_file(n).file_path for n in names)), runtime=world.runtime)
    world.pass_days(0.01)


def plan_of_snapshots(world: ExpiredWorld) -> str:
    """The run that expired snapshots, of which there is one."""
    (run,) = (one.run for one in list_restorable(world.table) if one.snapshots_count)
    return run


def file_outside_for_a_while(world: ExpiredWorld) -> str:
    """A file that was written, and removed again, while `write.data.path` led elsewhere."""
    elsewhere = "memory://lake/elsewhere"
    commit(world.table, ChangeProperties(updates={"write.data.path": elsewhere}), runtime=world.runtime)
    stray = f"{elsewhere}/x"
    world.memory.create(stray, b"rows x")
    add(world.table, replace(data_file("x"), file_path=stray))
    world.runtime.pass_ms(1000)
    commit(world.table, DeleteFiles(paths=frozenset({stray})), runtime=world.runtime)
    world.runtime.pass_ms(1000)
    return stray


def beside(world: ExpiredWorld, act: Callable[[], Any]) -> None:
    """Let something happen while a catalog is away for the first time."""
    world.catalog.follow(after(act, then=fails(AWAY)))


@pytest.mark.parametrize("trash", [0, 3])
def test_run_leaves_files_that_an_older_plan_keeps_longer(world, trash):
    world.expire(options={"grace": "5d"})
    run = plan_of_snapshots(world)
    adopt_and_delete(world, "a")
    world.expire(trash=trash)
    assert "a" in world.data()
    world.pass_days(4)
    world.finish()
    assert world.restore(run).restored_snapshots_count == 3
    assert world.data() == ["a", "ab", "b", "c"]


def test_in_the_end_nothing_is_left_of_two_plans_of_one_file(world):
    world.expire(options={"grace": "5d"})
    adopt_and_delete(world, "a")
    world.expire(trash=3)
    for _ in range(7):
        world.pass_days(1)
        world.finish()
    assert (world.data(), world.own()) == (["ab", "c"], set())


def test_expiration_leaves_files_of_a_concurrent_restore(world):
    """It made its plan after the restore had looked for others; the restore looked at its own files no more."""
    world.expire(options={"grace": "5d"})
    run = plan_of_snapshots(world)
    adopt_and_delete(world, "a")
    newest = sorted(world.table.metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms)[-2].snapshot_id
    beside(world, lambda: world.expire(older_than=0, retain_last=100, snapshot_ids=[newest], trash=0))
    assert world.restore(run).restored_snapshots_count == 3
    assert world.data() == ["a", "ab", "b", "c"]


def test_orphan_removal_leaves_files_of_a_concurrent_restore(world, monkeypatch):
    """It asked for plans while the files were in the trash, and had no plan of its own yet when the restore asked."""
    before, list_files, write = world.files(), candidates._listing, execute.OrphanRemoval._written
    in_swap, may_go_on, restored = Event(), Event(), []

    def list_and_expire(*arguments):
        found = list_files(*arguments)
        world.expire(trash=3)
        return found

    def write_beside_a_restore(*arguments):
        def wait():
            in_swap.set()
            may_go_on.wait(60)

        beside(world, wait)
        restoring.start()
        assert in_swap.wait(60)
        return write(*arguments)

    restoring = Thread(target=lambda: restored.append(world.restore()))
    monkeypatch.setattr(candidates, "_listing", list_and_expire)
    monkeypatch.setattr(execute.OrphanRemoval, "_written", write_beside_a_restore)
    assert world.remove_orphans().deleted_files_count == 0
    may_go_on.set()
    restoring.join(60)
    assert restored[0].restored_snapshots_count == 3
    assert world.files() >= before


def test_a_plan_that_a_restore_holds_for_another(world):
    """That one ended, the plan was free, and a nightly run deleted what the first restore was bringing back."""
    world.memory.create(data_file("z").file_path, b"z" * 100)
    world.pass_days(4)
    world.remove_orphans(options={"grace": "20d"})
    orphans = list_restorable(world.table)[0].run
    world.expire(options={"grace": "1h"})
    older = plan_of_snapshots(world)
    world.restored_and_cut_off(older)
    adopt_and_delete(world, "z")
    world.expire(options={"grace": "5d"})
    world.pass_days(6)
    refused = []

    def restore_orphans_and_finish():
        with pytest.raises(ClaimedError) as error:
            world.restore(orphans)
        refused.append(error.value.exit_status)
        world.finish()

    beside(world, restore_orphans_and_finish)
    assert world.restore(older).restored_snapshots_count == 3
    assert refused == [75]
    assert world.data() == ["a", "ab", "b", "c", "z"]


def test_a_file_of_no_snapshot_may_go_by_another_engine(world):
    """It expired the snapshot that held the file, and had not come to the file yet; no plan of ours says so."""
    world.memory.create(data_file("x").file_path, b"x" * 100)
    for _ in range(2):
        adopt_and_delete(world, "x")
    add(world.table, "x")
    world.runtime.pass_ms(1000)
    first, _ = sorted(world.table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number)[4:6]
    world.pass_days(1)
    world.expire(older_than=0, retain_last=100, snapshot_ids=[first.snapshot_id], trash=3)
    run = plan_of_snapshots(world)
    commit(world.table, DeleteFiles(paths=frozenset({data_file("x").file_path})), runtime=world.runtime)
    world.runtime.pass_ms(1000)
    policy = RetentionPolicy(older_than_ms=2**62, retain_last=1)
    before = world.table
    change = ExpireSnapshots(policy=policy, now_ms=world.runtime.now_ms())
    after_engine = commit(before, change, runtime=world.runtime).table
    gone = files_of(before.metadata, world.storage).keys() - files_of(after_engine.metadata, world.storage).keys()
    with pytest.raises(SafetyError, match=r"need 1 file .*/data/x'"):
        world.restore(run)
    world.storage.delete_many(gone)
    assert len(world.table.metadata.snapshots) == 1


class TwoBuckets(OneByOne):
    """Data files lie in another bucket than the trash; or the process dies before the first move."""

    dies = False

    def move_many(self, moves):
        if self.dies:
            raise Killed
        outcomes = []
        for source, target in moves:
            if "/data/" in source and "/.icekeep/" not in source:
                outcomes.append(MoveOutcome(source, MoveStatus.IMPOSSIBLE, "another bucket"))
            else:
                outcomes += self.inner.move_many([(source, target)])
        return outcomes


def test_immovable_file_days_count_from_the_finished_plan():
    """It was deleted a second later, while the trash offered the run for three days more."""
    world = ExpiredWorld(TwoBuckets)
    world.storage.dies = True
    with pytest.raises(Killed):
        world.expire(trash=3)
    world.storage.dies = False
    world.pass_days(4)
    run = plan_of_snapshots(world)
    assert world.finish(trash=3).finished_files_count == 5
    world.pass_days(2)
    assert world.finish(trash=3).finished_files_count == 0
    assert world.restore(run).restored_snapshots_count == 3
    assert world.data() == ["a", "ab", "b", "c"]


def test_snapshots_come_back_by_the_rest_of_a_plan():
    world = ExpiredWorld(TwoBuckets)
    world.storage.dies = True
    with pytest.raises(Killed):
        world.expire(trash=3)
    world.storage.dies = False
    add(world.table, "a")
    world.pass_days(0.5)
    world.finish(trash=3)
    assert world.restore(plan_of_snapshots(world)).restored_snapshots_count == 3


class NoTrash(OneByOne):
    """No move leads to the trash."""

    def move_many(self, moves):
        return [MoveOutcome(source, MoveStatus.IMPOSSIBLE, "another zone") for source, _ in moves]


def test_snapshots_come_back_without_any_trash():
    world = ExpiredWorld(NoTrash)
    before = world.files()
    world.expire(trash=3)
    assert world.restore().restored_snapshots_count == 3
    assert world.files() == before
    world.drop_tags()
    world.expire(trash=3)
    for _ in range(5):
        world.pass_days(1)
        world.finish(trash=3)
    assert (world.data(), world.own()) == (["ab", "c"], set())


def test_an_unmoved_file_has_the_days_of_its_plan(world):
    """Another plan that named it deleted it for good, on the second of seven days."""
    world.expire(trash=7, options={"grace": "12h"})
    run = plan_of_snapshots(world)
    adopt_and_delete(world, "a")
    world.expire(trash=0, options={"grace": "24h"})
    for days in (0.6, 1, 3):
        world.pass_days(days)
        world.finish(trash=7)
    assert world.restore(run).restored_snapshots_count == 3
    assert "a" in world.data()


def test_trash_is_kept_for_a_plan_that_waits_longer(world):
    world.expire(trash=3)
    run = plan_of_snapshots(world)
    world.restored_and_cut_off(run)
    world.expire(options={"grace": "20d"})
    younger = list_restorable(world.table)[0].run
    assert younger != run
    world.pass_days(10)
    world.finish(trash=3)
    assert world.restore(younger).restored_snapshots_count == 3


def test_a_plan_of_which_some_snapshots_came_back(world):
    """It was taken for one that never committed, and forgotten."""
    world.expire(options={"grace": "20d"})
    older = plan_of_snapshots(world)
    world.restored_and_cut_off(older)
    world.memory.create(data_file("d").file_path, b"d" * 100)
    add(world.table, "d")
    world.runtime.pass_ms(1000)
    joined = next(at for at in world.memory.files if at.endswith("/data/ab"))
    commit(world.table, DeleteFiles(paths=frozenset({joined})), runtime=world.runtime)
    world.pass_days(0.1)
    world.expire(options={"grace": "20d"})
    younger = list_restorable(world.table)[0].run
    world.pass_days(0.1)
    world.restore(older)
    world.pass_days(5)
    world.finish()
    assert world.remove_orphans().deleted_files_count == 0
    assert world.restore(younger).status == "done"


def test_respelled_location_is_the_same_plan(world):
    world.expire(trash=3)
    run = plan_of_snapshots(world)
    for at, (data, when) in [*world.memory.files.items()]:
        if at.endswith("/plan.json"):
            world.memory.files[at] = (data.replace(b"/events/.icekeep", b"//events/.icekeep"), when)
    assert world.restore(run).status == "done"


def test_what_a_younger_snapshot_kept_from_a_plan(world, monkeypatch):
    """A file was adopted right after the commit, and went with the snapshot that had adopted it: nobody looked for it."""
    real = expiring.ExpirationRun._collected

    def adopt_first(*arguments):
        add(world.table, "a")
        world.runtime.pass_ms(1000)
        return real(*arguments)

    monkeypatch.setattr(expiring.ExpirationRun, "_collected", adopt_first)
    world.expire(trash=3)
    monkeypatch.undo()
    run = plan_of_snapshots(world)
    adopting = world.table.metadata.current_snapshot_id
    commit(world.table, DeleteFiles(paths=frozenset({data_file("a").file_path})), runtime=world.runtime)
    world.pass_days(0.1)
    world.expire(older_than=0, retain_last=100, snapshot_ids=[adopting], trash=0)
    with pytest.raises(SafetyError, match=r"need 1 file .*/data/a'"):
        world.restore(run)


def test_a_file_in_use_again_for_a_while(world):
    """What was left of the plan named it no more, and a restore did not look for it."""
    world.expire(trash=3, options={"grace": "1h"})
    run = plan_of_snapshots(world)
    add(world.table, "a")
    adopting = world.table.metadata.current_snapshot_id
    world.pass_days(0.1)
    assert world.finish(trash=3).kept_again_files_count == 1
    commit(world.table, DeleteFiles(paths=frozenset({data_file("a").file_path})), runtime=world.runtime)
    world.pass_days(0.1)
    world.expire(older_than=0, retain_last=100, snapshot_ids=[adopting], trash=0)
    assert world.restore(run).restored_snapshots_count == 3
    assert world.data() == ["a", "ab", "b", "c"]


class DiesAfter(OneByOne):
    """The process dies before it has moved more files than these."""

    left: int | None = None

    def move_many(self, moves):
        outcomes = []
        for move in moves:
            if self.left is not None:
                if not self.left:
                    raise Killed
                self.left -= 1
            outcomes += self.inner.move_many([move])
        return outcomes


def test_a_plan_cut_off_comes_back_as_one():
    """It was split in two, and each half asked for the other to be restored first."""
    world = ExpiredWorld(DiesAfter)
    world.storage.left = 1
    with pytest.raises(Killed):
        world.expire(trash=3)
    world.storage.left = None
    add(world.table, "b")
    world.pass_days(0.5)
    assert world.finish(trash=3).kept_again_files_count == 1
    assert world.restore().restored_snapshots_count == 3
    assert world.data() == ["a", "ab", "b", "c"]


def test_trash_of_files_outside_the_places_is_emptied(world):
    """The operator named another place when the run was; each night was partial, and nothing came back."""
    stray = file_outside_for_a_while(world)
    world.expire(trash=3, options={"reclaim.roots": "memory://lake/elsewhere"})
    assert stray not in world.memory.files
    world.pass_days(3.1)
    assert world.finish(trash=3).status == "done"
    assert world.own() == set()


def test_a_plan_goes_but_for_files_outside_the_places(world):
    """Another table lies in a directory by now that the operator named: the plan was refused as a whole each night."""
    stray = file_outside_for_a_while(world)
    options = {"reclaim.roots": "memory://lake/elsewhere"}
    world.expire(options={"grace": "1d", **options})
    metadata = simple_metadata("memory://lake/elsewhere/x")
    world.catalog.create(("db", "other"), replace(metadata, table_uuid=str(world.runtime.new_uuid())))
    world.pass_days(1.1)
    result = world.finish(options=options)
    assert (result.status, result.finished_files_count, result.kept_again_files_count) == ("done", 12, 1)
    assert (world.data(), stray in world.memory.files, world.own()) == (["ab", "c"], True, set())


def test_two_plans_of_a_failed_restore_do_not_deadlock():
    """Each run that looked at one of them and left it made the restore younger by that, for the other one."""
    world = ExpiredWorld(TwoBuckets)
    world.expire(trash=3)
    run = plan_of_snapshots(world)
    world.pass_days(1.5)
    world.catalog.follow(fails(SafetyError("the catalog refuses")))
    with pytest.raises(SafetyError, match="the catalog refuses"):
        world.restore(run)
    world.pass_days(0.5)
    for _ in range(10):
        world.finish(trash=3)
        world.pass_days(1)
    assert (world.data(), world.own()) == (["ab", "c"], set())


def test_what_a_refused_restore_moved_back(world):
    """The plan was forgotten when its days were over, and the files stayed."""
    world.expire(trash=3)
    run = plan_of_snapshots(world)
    world.catalog.follow(fails(SafetyError("the catalog refuses")))
    with pytest.raises(SafetyError):
        world.restore(run)
    world.pass_days(2)
    assert (world.finish(trash=3).finished_files_count, world.data()) == (0, ["a", "ab", "b", "c"])
    world.pass_days(1.1)
    assert (world.finish(trash=3).finished_files_count, world.data()) == (7, ["ab", "c"])
    world.pass_days(2)
    assert world.restore(run).restored_snapshots_count == 3
    world.drop_tags()
    world.expire(trash=3)
    world.pass_days(3.1)
    world.finish(trash=3)
    assert (world.data(), world.own()) == (["ab", "c"], set())


@pytest.mark.parametrize(("outer", "inner"), [(7, 3), (3, 0), (3, 3)])
def test_one_of_two_equal_expirations_deletes_the_files(world, outer, inner):
    """The commit of the one was refused; the other left the files to its plan, and then both plans were forgotten."""

    def expire_too():
        world.runtime.pass_ms(1000)
        assert world.expire(trash=inner).expired_snapshots_count == 3

    world.catalog.follow(fails(SafetyError("refused once")))
    world.once(expire_too, "delete_many", "plan.json")
    with pytest.raises(SafetyError, match="refused once"):
        world.expire(trash=outer)
    if inner:
        run = plan_of_snapshots(world)
        assert world.restore(run).restored_snapshots_count == 3
        world.drop_tags()
        world.expire(trash=inner)
    for _ in range(8):
        world.pass_days(1)
        world.finish(trash=inner)
    assert (world.data(), world.own()) == (["ab", "c"], set())


def test_a_plan_that_appears_during_a_look(world, monkeypatch):
    """One plan may take the place of another between the listing of plans and the reading of what is listed."""
    world.expired_twice()
    younger, _ = list_restorable(world.table)
    plan = {at: file for at, file in world.memory.files.items() if f"/{younger.run}/" in at}
    for at in plan:
        del world.memory.files[at]
    real, listings = kept_by_plans.plan_directories, []

    def list_and_appear(metadata, storage):
        found = real(metadata, storage)
        listings.append(len(found))
        world.memory.files |= plan
        return found

    monkeypatch.setattr(kept_by_plans, "plan_directories", list_and_appear)
    assert world.finish().finished_files_count == 0
    assert listings == [1, 2, 2, 2]
    assert world.data() == ["a", "ab", "b", "c"]
    assert [one.run for one in list_restorable(world.table)] == [younger.run]


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
def test_two_plans_that_are_carried_out_at_once(seed, monkeypatch):
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


def test_many_kept_files_are_looked_for_at_the_same_time():
    meeting = Meeting(2)
    names = [f"memory://lake/wh/{number}" for number in range(200)]
    storage = HookedStorage(MemoryStorage(), before=meeting.at("/wh/"))
    assert [*kept_by_plans._absent(names, lambda location: location, storage)] == names
    assert meeting.took_place


def test_of_files_that_stay_few_names_come_to_the_driver():
    """A plan of tens of millions of files may be in use again as a whole."""
    names = [f"memory://lake/t/data/{number}" for number in range(1000)]
    elsewhere = [f"memory://lake/other/{number}" for number in range(1000)]
    trashed = ["memory://lake/t/.icekeep/trash/run/files/data/1"]
    files = pa.table({"location": names + elsewhere + trashed, "is_garbage": [False] * 1000 + [True] * 1000 + [False]})
    locations = DeletableLocations(("memory://lake/t",))
    sift = pending._Sift(locations, "memory://lake/t/.icekeep/trash/run/files", ("memory://lake/other",))
    rows = [row for batch in pickle.loads(pickle.dumps(sift))(files.to_batches()) for row in batch.to_pylist()]
    assert [row["location"] for row in rows if row["location"] is not None] == [elsewhere[0], trashed[0]]
    staying = pending._Staying.of(rows)
    assert staying.again.mask(names + elsewhere + trashed).tolist() == [True] * 1000 + [False] * 1000 + [True]
    assert staying.outside.mask(names + elsewhere).tolist() == [False] * 1000 + [True] * 1000
    assert (staying.outside_examples, staying.trash_count, staying.trash_example) == ((elsewhere[0],), 1, trashed[0])
