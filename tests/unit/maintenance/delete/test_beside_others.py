"""Deletion beside others: who commits, restores, expires or purges while a plan waits or is carried out."""

import pytest
from msgspec.structs import replace

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.retry import commit
from icekeep.errors import ClaimedError, NotFoundError, OutcomeUnknownError, SafetyError, UnavailableError
from icekeep.maintenance.delete import pending, reachable
from icekeep.maintenance.delete import run as deleting
from icekeep.maintenance.delete.reachable import NO_PATHS
from icekeep.maintenance.expire import run as execute
from icekeep.maintenance.orphans.job import plan_remove_orphan_files
from icekeep.maintenance.restore.job import list_restorable
from icekeep.storage.base import DeleteOutcome, DeleteStatus, MoveOutcome, MoveStatus
from kit.expired_tables import ExpiredWorld, Killed, OneByOne
from kit.memory_catalog import fails
from kit.runtime import no_spark, with_runtime
from kit.tables import add, data_file

pytestmark = pytest.mark.slow


@pytest.fixture
def world():
    return ExpiredWorld()


@pytest.fixture
def one_by_one(monkeypatch):
    """Every call of the store is for one file, so that there is a look before each."""
    monkeypatch.setattr(deleting, "CALL_FILES", 1)


def test_files_that_wait_for_the_end_of_a_grace_are_no_orphans(world):
    """They were deleted on the same night, and with them what `restore` needs."""
    before = world.files()
    world.expire(options={"grace": "24h"})
    result = world.remove_orphans()
    assert (result.deleted_files_count, result.kept.waiting_count) == (0, 7)
    assert world.restore().restored_snapshots_count == 3
    assert world.files() == before


def test_files_that_a_restore_is_bringing_back_are_no_orphans(world):
    """Moved back, and led to only after the commit."""
    before = world.files()
    world.expire(trash=3)
    run = next(name for name in world.own() if name.endswith("/plan.json")).split("/")[1]

    world.catalog.follow(fails(Killed()))
    with pytest.raises(OutcomeUnknownError):
        world.restore()
    assert world.files() == before
    world.pass_days(1)
    result = world.remove_orphans()
    assert (result.deleted_files_count, result.kept.waiting_count) == (0, 7)
    assert world.restore(run).restored_snapshots_count == 3
    assert world.files() == before


def test_a_plan_that_cannot_be_read_stops_orphan_removal(world):
    """Nobody knows what it names."""
    world.expire(options={"grace": "24h"})
    head = next(at for at in world.memory.files if at.endswith("/plan.json"))
    world.memory.files[head] = (b"{", 0)
    before = world.files()
    with pytest.raises(SafetyError, match="files that it names would look like orphans"):
        world.remove_orphans()
    assert world.files() == before


def test_an_approved_removal_of_orphans_finishes_nothing_else(world):
    """What is approved is all that goes."""
    world.expire(options={"grace": "1h"})
    stray = f"{world.table.metadata.location}/data/stray"
    world.memory.files[stray] = (b"stray", 0)
    world.pass_days(1)
    plan = plan_remove_orphan_files(with_runtime(world.table, world.runtime), no_spark, force=True, trash=0)
    result = world.remove_orphans(approve=plan.hash, force=False)
    assert (result.deleted_files_count, result.finished_files_count) == (1, 0)
    assert world.data() == ["a", "ab", "b", "c"]
    assert world.remove_orphans().finished_files_count == 7


def test_a_plan_waits_for_its_root_to_be_named(world):
    """Whoever may write below the table's location may write a plan that names any root."""
    elsewhere = "memory://lake/elsewhere/x"
    world.memory.create(elsewhere, b"rows x")
    add(world.table, replace(data_file("x"), file_path=elsewhere))
    world.runtime.pass_ms(1000)
    commit(world.table, DeleteFiles(paths=frozenset({elsewhere})), runtime=world.runtime)
    world.runtime.pass_ms(1000)
    options = {"grace": "1h", "reclaim.roots": "memory://lake/elsewhere"}
    world.expire(options=options)
    world.pass_days(1)
    result, own = world.finish(), world.own()
    assert (result.status, result.finished_files_count) == ("done", 0)
    assert elsewhere in world.memory.files
    assert own
    assert world.finish(options=options).finished_files_count == 13
    assert elsewhere not in world.memory.files
    assert world.own() == set()


def test_in_the_trash_too_the_roots_are_those_of_the_plan(world):
    """The head was removed first, and then the job refused."""
    elsewhere = "memory://lake/elsewhere/x"
    world.memory.create(elsewhere, b"rows x")
    add(world.table, replace(data_file("x"), file_path=elsewhere))
    world.runtime.pass_ms(1000)
    commit(world.table, DeleteFiles(paths=frozenset({elsewhere})), runtime=world.runtime)
    world.runtime.pass_ms(1000)
    world.expire(trash=3, options={"reclaim.roots": "memory://lake/elsewhere"})
    world.pass_days(4)
    assert world.finish().status == "done"
    assert world.own() == set()


class Mounts(OneByOne):
    """Manifest lists lie where no move leads to the trash."""

    def move_many(self, moves):
        return [
            MoveOutcome(move[0], MoveStatus.IMPOSSIBLE, "they are in different stores")
            if "/snap-" in move[0]
            else super(Mounts, self).move_many([move])[0]
            for move in moves
        ]


def test_immovable_files_wait_the_trash_days_then_go():
    """Such a plan was tried again each night, for ever, and each night was partial."""
    world = ExpiredWorld(Mounts)
    result = world.expire(trash=3)
    assert (result.status, result.unmoved_files_count, result.failed_files_count) == ("done", 3, 0)
    assert len([at for at in world.files() if "/snap-" in at]) == 4
    assert world.finish().status == "done"
    assert world.remove_orphans().kept.waiting_count == 3
    world.pass_days(3.1)
    result = world.finish()
    assert (result.status, result.finished_files_count, result.emptied_trash_files_count) == ("done", 3, 4)
    assert len([at for at in world.files() if "/snap-" in at]) == 1
    assert world.own() == set()


def test_immovable_files_are_restored_with_the_rest():
    world = ExpiredWorld(Mounts)
    before = world.files()
    world.expire(trash=3)
    assert world.restore().restored_snapshots_count == 3
    assert world.files() == before
    world.pass_days(4)
    assert world.finish().kept_again_files_count == 3
    assert world.files() == before


def test_trash_zero_deletes_plans_that_wait_for_trash(world):
    """`--trash 0` is for them as well."""
    world.expire(trash=3, options={"grace": "1h"})
    world.pass_days(0.5)
    result = world.finish(trash=0)
    assert (result.finished_files_count, result.status) == (7, "done")
    assert (world.data(), world.own()) == (["ab", "c"], set())


def test_a_plan_of_orphans_has_no_head_before_the_last_look(world):
    """One that was killed then was carried out by a run that looks less closely."""
    world.memory.files[f"{world.table.metadata.location}/data/stray"] = (b"stray", 0)
    real, seen = world.catalog.load, []

    def load(identifier):
        if any(name.endswith(".jsonl") for name in world.own()):
            seen.append(world.own())
            raise Killed
        return real(identifier)

    world.catalog.load = load
    with pytest.raises(Killed):
        world.remove_orphans()
    assert not [name for name in seen[0] if name.endswith("plan.json")]


@pytest.mark.parametrize("retained", ["memory://service/wh/db/events/data/a", "memory:///wh/db/events/data/a"])
def test_file_retained_under_another_store_name_stays(world, retained):
    """A NameNode and its service are one store, and ambiguity keeps."""
    add(world.table, replace(data_file("a"), file_path=retained))
    world.runtime.pass_ms(1000)
    world.expire()
    assert world.data() == ["a", "ab", "c"]


def test_two_expirations_do_not_take_each_other_s_plan(world):
    """The second moved the files of a plan that the first then forgot, and nothing could come back."""
    before = world.files()
    real, runs = world.catalog.load, []

    def load(identifier):
        plans = [name for name in world.own() if name.endswith("plan.json")]
        snapshots = real(identifier).metadata.snapshots
        if plans and len(snapshots) == 1 and not runs:
            runs.append(1)
            commit(real(identifier), ChangeProperties(updates={"somebody": "else"}), runtime=world.runtime)
            runs.append(world.finish(trash=3))
        return real(identifier)

    world.catalog.load = load
    assert world.expire(trash=3).status == "done"
    assert runs[1].finished_files_count == 0
    assert world.restore().restored_snapshots_count == 3
    assert world.files() == before


def test_what_is_adopted_while_a_plan_is_carried_out_stays(world, one_by_one):
    """A proof was made once, and nobody looked again."""
    world.once(lambda: add(world.table, "b"), "delete_many", "/data/a")
    result = world.expire()
    assert (result.status, result.kept_again_files_count) == ("done", 1)
    assert world.data() == ["ab", "b", "c"]


def test_what_is_adopted_while_an_earlier_plan_is_finished_stays(world, one_by_one):
    """Several plans were proved on metadata that was read before the first."""
    world.expire(options={"grace": "1h"})
    world.pass_days(1)
    world.once(lambda: add(world.table, "b"), "delete_many", "/data/a")
    assert world.finish().kept_again_files_count == 1
    assert world.data() == ["ab", "b", "c"]


def test_table_dropped_during_deletion_keeps_other_files(world, one_by_one):
    world.once(lambda: world.catalog.drop(("db", "events")), "delete_many", "/data/a")
    result = world.expire()
    assert (result.status, "was dropped while its files were deleted" in result.left_reason) == ("partial", True)
    assert "b" in world.data()


def test_restore_is_refused_while_the_plan_is_claimed(world, one_by_one):
    """A restore claims too. In history 79881 it took the plan over, and a call under way moved one more file."""
    before = world.files()

    def restore() -> None:
        with pytest.raises(ClaimedError, match=r"is in use by expire_snapshots.*try again when it has ended"):
            world.restore()

    world.once(restore, "move_many", "/data/b")
    assert world.expire(trash=3).status == "done"
    assert world.restore().restored_snapshots_count == 3
    assert world.files() == before


def test_a_restore_takes_over_a_run_that_stood_still(world, one_by_one):
    """The run stops before its next call, and another restore brings back what it was moving."""
    before = world.files()
    restored = []

    def restore() -> None:
        world.pass_a_lease()
        restored.append(world.restore())

    world.once(restore, "move_many", "/data/b")
    result = world.expire(trash=3)
    assert restored[0].restored_snapshots_count == 3
    assert (result.status, "taken over by restore" in result.left_reason) == ("partial", True)
    again = world.restore(result.plan_location.rpartition("/")[2])
    assert again.status == "done"
    assert world.files() == before


def test_a_restore_beside_a_deletion(world, one_by_one):
    world.expire(options={"grace": "1h"})
    world.pass_days(1)
    refused = []

    def restore():
        with pytest.raises(Exception, match="is in use by") as error:
            world.restore()
        refused.append(error.value.exit_status)

    world.once(restore, "delete_many", "/data/b")
    assert world.finish().finished_files_count == 7
    assert refused == [75]


def test_plan_being_deleted_is_not_restorable(world):
    """A call took longer than a claim holds: the snapshots came back while it was under way, and then their files went."""
    world.expire(options={"grace": "1h"})
    run = list_restorable(world.table)[0].run
    world.pass_days(1)
    refused = []

    def restore():
        world.pass_a_lease()
        with pytest.raises(NotFoundError, match="are being deleted for good: nothing of it comes back") as error:
            world.restore(run)
        refused.append(error.value.exit_status)
        assert list_restorable(world.table) == ()

    world.once(restore, "delete_many", "/data/a")
    world.finish()
    assert refused == [2]
    assert len(world.table.metadata.snapshots) == 1


def test_what_an_earlier_run_left_hides_no_expiration(world):
    """An error after the commit said nothing of it."""
    world.expire(options={"grace": "1h"})
    world.pass_days(1)
    part = next(at for at in world.memory.files if at.endswith(".jsonl"))
    world.memory.files[part] = (b"{}\n", 0)
    add(world.table, "d")
    world.runtime.pass_ms(1000)
    result = world.expire()
    assert (result.status, result.expired_snapshots_count) == ("partial", 1)
    assert part in result.problems[0]


class Refusing(OneByOne):
    """One file cannot be deleted."""

    def delete_many(self, locations):
        return [
            DeleteOutcome(location, DeleteStatus.FAILED, "access denied")
            if location.endswith("/data/b")
            else super(Refusing, self).delete_many([location])[0]
            for location in locations
        ]


def test_undeletable_files_of_an_earlier_run():
    """The count was dropped, and the status was done."""
    world = ExpiredWorld(Refusing)
    world.expire(options={"grace": "1h"})
    world.pass_days(1)
    result = world.remove_orphans()
    assert (result.status, result.failed_files_count, result.finished_files_count) == ("partial", 1, 6)


def test_due_plan_leaves_files_kept_by_another_plan(world):
    """Snapshots that came back and expired again: the older plan, cut off before it was forgotten, deleted them for good."""
    before = world.files()
    world.expired_twice()
    assert world.finish().finished_files_count == 0
    assert world.files() >= before
    assert world.restore().restored_snapshots_count == 3
    assert world.files() >= before


def test_a_restore_beside_a_deletion_by_another_plan(world):
    """The snapshots came back, and that run deleted their files after it."""
    world.expired_twice()
    older = list_restorable(world.table)[1].run
    world.pass_days(5)
    refused = []

    def restore():
        with pytest.raises(ClaimedError) as error:
            world.restore(older)
        refused.append(error.value.exit_status)

    world.once(restore, "delete_many", "/data/a")
    world.finish()
    assert refused == [75]
    assert len(world.table.metadata.snapshots) == 1


def test_a_file_of_two_plans_is_one_however_it_is_spelled(world):
    world.expire(options={"grace": "1h"})
    odd = replace(data_file("a"), file_path=f"{world.table.metadata.location}//data/a")
    add(world.table, odd)
    world.runtime.pass_ms(1000)
    commit(world.table, DeleteFiles(paths=frozenset({odd.file_path})), runtime=world.runtime)
    world.pass_days(0.01)
    world.expire(options={"grace": "5d"})
    world.pass_days(1)
    world.finish()
    assert "a" in world.data()


def test_unreadable_plan_does_not_block_other_plans(world):
    world.expire(options={"grace": "1h"})
    world.memory.create(f"{world.table.metadata.location}/.icekeep/trash/0-old/plan.json", b"")
    world.pass_days(1)
    assert world.finish().finished_files_count == 7


class InTwoBuckets(OneByOne):
    """Data files cannot be moved to the trash, and the first move of a manifest fails."""

    has_failed = False

    def move_many(self, moves):
        outcomes = []
        for source, target in moves:
            self.inner.runtime.pass_ms(1000)
            if "/data/" in source and "/.icekeep/" not in source:
                outcomes.append(MoveOutcome(source, MoveStatus.IMPOSSIBLE, "another bucket"))
            elif not self.has_failed and source.endswith("-m0.avro"):
                self.has_failed = True
                outcomes.append(MoveOutcome(source, MoveStatus.FAILED, "slow down"))
            else:
                outcomes += self.inner.move_many([(source, target)])
        return outcomes


def test_resumed_run_and_its_immovable_files_are_restored():
    world = ExpiredWorld(InTwoBuckets)
    before = world.files()
    assert world.expire(trash=3).status == "partial"
    world.pass_a_lease()
    assert world.finish(trash=3).status == "done"
    world.pass_days(0.1)
    run = next(plan.run for plan in list_restorable(world.table) if plan.snapshots_count)
    assert world.restore(run).restored_snapshots_count == 3
    assert world.files() == before


class HoldingHeads(OneByOne):
    """The store fails when the head of a plan is to go."""

    def delete_many(self, locations):
        return [
            DeleteOutcome(location, DeleteStatus.FAILED, "slow down")
            if location.endswith("/plan.json")
            else super(HoldingHeads, self).delete_many([location])[0]
            for location in locations
        ]


@pytest.mark.parametrize("trash", [0, 3])
def test_plan_with_an_undeletable_head_is_forgotten_later(trash):
    """The rest of it is removed; such a plan was neither carried out nor forgotten, however often jobs ran."""
    world = ExpiredWorld(HoldingHeads)
    world.expire(trash=trash)
    world.pass_days(4)
    world.finish()
    world.storage = world.catalog.storage = OneByOne(world.memory)
    world.pass_days(4)
    result = world.finish()
    assert (result.status, world.own()) == ("done", set())


def test_files_that_came_back_stay_despite_their_head():
    """Where a catalog takes no snapshots back nothing else protects them."""
    world = ExpiredWorld(HoldingHeads)
    before = world.files()
    world.catalog.restores_snapshots = False
    world.expire(options={"grace": "1h"})
    assert world.restore().status == "done"
    world.storage = world.catalog.storage = OneByOne(world.memory)
    world.pass_days(1)
    assert world.finish().finished_files_count == 0
    assert (world.files(), world.own()) == (before, set())


class OneWay(OneByOne):
    """Files go to the trash, and no move leads back, as where links to the files of others are forbidden."""

    def move_many(self, moves):
        return [
            MoveOutcome(move[0], MoveStatus.IMPOSSIBLE, "operation not permitted")
            if "/.icekeep/trash/" in move[0]
            else super(OneWay, self).move_many([move])[0]
            for move in moves
        ]


def test_what_cannot_be_moved_back_is_not_taken_for_back():
    world = ExpiredWorld(OneWay)
    world.expire(trash=3)
    with pytest.raises(UnavailableError, match="could not be moved back"):
        world.restore()
    assert len(world.table.metadata.snapshots) == 1
    assert [name for name in world.own() if name.endswith("plan.json")]


@pytest.mark.parametrize("trash", [0, 3])
def test_a_look_that_takes_longer_than_the_claim_deletes_nothing(world, monkeypatch, trash):
    """Somebody restores meanwhile: the claim is looked at after the catalog, right before the call."""
    before = world.files()
    world.expire(trash=trash, options={"grace": "1h"})
    world.pass_days(1)
    restored = []
    real = reachable.TableLook.__call__

    def look(self):
        if not restored:
            world.pass_a_lease()
            restored.append(world.restore())
        return NO_PATHS if len(restored) == 1 else real(self)

    monkeypatch.setattr(reachable.TableLook, "__call__", look)
    result = world.finish(trash=trash)
    assert (result.status, result.finished_files_count) == ("partial", 0)
    assert restored[0].restored_snapshots_count == 3
    assert world.files() >= before


def test_a_restore_cut_off_before_the_trash_is_emptied(world, monkeypatch):
    """The head went before the claim was looked at, and with it what keeps the files from being orphans."""
    before = world.files()
    world.expire(trash=3)
    run = next(name for name in world.own() if name.endswith("/plan.json")).split("/")[1]
    world.pass_days(3.1)
    real, cut_off = pending.is_garbage, []

    def prove(*arguments):
        garbage = real(*arguments)
        if not cut_off:
            world.pass_a_lease()
            world.catalog.follow(fails(Killed()))
            with pytest.raises(OutcomeUnknownError) as error:
                world.restore(run)
            cut_off.append(error)
        return garbage

    monkeypatch.setattr(pending, "is_garbage", prove)
    assert world.finish(trash=3).emptied_trash_files_count == 0
    assert world.remove_orphans().kept.waiting_count == 7
    assert world.restore(run).restored_snapshots_count == 3
    assert world.files() == before


def test_a_trash_that_is_being_emptied_gives_nothing_back(world):
    world.expire(trash=3)
    run = next(name for name in world.own() if name.endswith("/plan.json")).split("/")[1]
    world.pass_days(3.1)

    def die():
        raise Killed

    world.once(die, "delete_many", "/files/data/b")
    with pytest.raises(Killed):
        world.finish()
    world.pass_a_lease()
    with pytest.raises(NotFoundError, match="are being deleted for good: nothing of it comes back"):
        world.restore(run)
    world.pass_a_lease()
    assert world.finish().status == "done"
    assert world.own() == set()


def test_a_plan_that_another_run_has_taken_is_not_forgotten(world, one_by_one, monkeypatch):
    """What that run has moved comes back by that plan alone; without a head it was swept at the end of the same run."""
    before, real, landed = world.files(), execute.ExpirationRun._written, execute.commit

    def commit_and_others(*arguments, **named):
        result = landed(*arguments, **named)
        add(world.table, "zz")
        return result

    def written(self, run, before, draft, after=None):
        if after is None:
            world.pass_a_lease()
            world.once(die, "move_many", "/data/b")
            with pytest.raises(Killed):
                world.finish(trash=3)
        return real(self, run, before, draft, after)

    def die():
        raise Killed

    monkeypatch.setattr(execute, "commit", commit_and_others)
    monkeypatch.setattr(execute.ExpirationRun, "_written", written)
    assert world.expire(trash=3).status == "partial"
    monkeypatch.undo()
    world.pass_a_lease()
    assert world.restore().restored_snapshots_count == 3
    assert world.files() >= before


def test_days_in_the_trash_count_from_the_move(world):
    """A run that died after its commit may be finished days later: its files were in the trash for minutes."""

    def die():
        raise Killed

    world.once(die, "move_many", "/data/a")
    with pytest.raises(Killed):
        world.expire(trash=3)
    world.pass_days(4)
    assert world.finish(trash=3).finished_files_count == 7
    world.pass_days(1)
    assert world.finish(trash=3).emptied_trash_files_count == 0
    world.pass_days(2.1)
    assert world.finish(trash=3).emptied_trash_files_count == 7
