"""A call that deletes and breaks in its middle, by an error that is none of ours: some of its files are gone, and no answer says
which. No run may end with an error then, which would say that nothing was changed.
"""

from contextlib import nullcontext

import pytest

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.errors import ClaimedError, IcekeepError, JobFailedError, SafetyError, UnavailableError
from icekeep.maintenance.delete import pending, reachable
from icekeep.maintenance.delete import plan_file as plan_writing
from icekeep.maintenance.delete import run as deleting
from icekeep.maintenance.drop.job import drop_table
from icekeep.maintenance.restore.job import list_restorable
from icekeep.planning.spark.session import Limits
from icekeep.planning.spark.tasks import run_tasks
from icekeep.storage.base import DeleteOutcome, DeleteStatus, MoveOutcome, MoveStatus
from icekeep.tables.verbs import create_table
from kit.cases import for_each
from kit.expired_tables import ExpiredWorld, OneByOne
from kit.lake import SCHEMA
from kit.runtime import no_spark, with_runtime

IN_DOUBT = "RuntimeError: the client broke; what was being deleted then may be gone, and is not counted"
STRAYS = ["w", "x", "y", "z"]


def breaks(world: ExpiredWorld, error: BaseException | None = None) -> list[str]:
    """The next call that deletes does so with its first file, and breaks at the second; says which these were."""
    asked: list[str] = []

    def before(operation: str, location: str) -> None:
        if operation in ("delete_many", "move_many") and "/data/" in location:
            asked.append(location)
            if len(asked) == 2:
                world.storage.before = lambda *_: None
                raise error or RuntimeError("the client broke")

    world.storage.before = before
    return asked


def strayed() -> ExpiredWorld:
    world = ExpiredWorld()
    world.leave(*STRAYS)
    return world


def purge(world: ExpiredWorld, table: Table | None = None):
    return drop_table(with_runtime(table or world.table, world.runtime), no_spark, purge=True)


@pytest.mark.parametrize("trash", [0, 3])
def test_orphans(trash):
    """The run ended with 1, as if nothing had been changed, and its file was counted by no run."""
    world = strayed()
    asked = breaks(world)
    result = world.remove_orphans(trash=trash)
    assert (result.status, result.deleted_files_count, result.problems) == ("partial", 0, (IN_DOUBT,))
    assert result.plan_location is not None
    assert (asked[0] in world.files(), asked[1] in world.files()) == (False, True)
    again = world.remove_orphans(trash=trash)
    assert (again.status, again.finished_files_count) == ("done", 3)
    assert not {*STRAYS} & {*world.data()}


@pytest.mark.parametrize("trash", [0, 3])
def test_an_expiration(trash):
    world = ExpiredWorld()
    asked = breaks(world)
    result = world.expire(trash=trash)
    assert (result.status, result.deleted_data_files_count, result.left_reason) == ("partial", 0, IN_DOUBT)
    assert asked[0] not in world.files()
    again = world.finish(trash=trash)
    assert (again.status, again.finished_files_count) == ("done", result.left_files_count - 1)


def test_a_purge():
    world = ExpiredWorld()
    asked = breaks(world)
    result = purge(world)
    assert (result.status, result.deleted_files_count, result.problems) == ("partial", 0, (IN_DOUBT,))
    assert asked[0] not in world.files()
    other = create_table(world.catalog, ("db", "other"), SCHEMA)
    assert purge(world, other).finished_files_count > 0
    assert world.files() == set()


@pytest.mark.parametrize("trash", [0, 3])
def test_what_an_earlier_run_left(trash):
    world = ExpiredWorld()
    world.expire(options={"grace": "1h"}, trash=trash)
    world.pass_days(0.5)
    breaks(world)
    result = world.finish(trash=trash)
    assert (result.status, result.finished_files_count, result.problems) == ("partial", 0, (IN_DOUBT,))
    assert world.finish(trash=trash).status == "done"


def test_what_fills_the_trash_and_breaks_may_still_move_files():
    world = ExpiredWorld()
    breaks(world)
    world.expire(trash=3)
    assert "may still move files to the trash" in world.restore().note


def waiting_plan_and_strays() -> ExpiredWorld:
    world = ExpiredWorld()
    world.expire(options={"grace": "1h"})
    world.leave(*STRAYS)
    return world


def fails_when_it_writes_its_own_plan(world: ExpiredWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise UnavailableError("out of reach")

    monkeypatch.setattr("icekeep.maintenance.orphans.job.OrphanRemoval._written", away)


def test_an_earlier_plan_that_breaks_before_the_run_itself_fails(monkeypatch):
    """The first call of the earlier plan broke, and the run then said that nothing was changed."""
    world = waiting_plan_and_strays()
    fails_when_it_writes_its_own_plan(world, monkeypatch)
    asked = breaks(world)
    result = world.remove_orphans()
    problems = (IN_DOUBT, "no orphan of this run is deleted: out of reach")
    assert (result.status, result.problems, result.deleted_files_count) == ("partial", problems, 0)
    assert asked[0] not in world.files()
    assert {*STRAYS} <= {*world.data()}


def test_refused_earlier_plan_does_not_change_the_error(monkeypatch):
    """Where nothing of an earlier plan was deleted, the run fails with its own error."""
    world = waiting_plan_and_strays()
    fails_when_it_writes_its_own_plan(world, monkeypatch)

    def refuses(*_: object) -> None:
        raise SafetyError("something cannot be read")

    monkeypatch.setattr(pending._Pending, "_read_staying", refuses)
    before = world.files()
    with pytest.raises(UnavailableError, match="out of reach"):
        world.remove_orphans()
    assert world.files() == before
    assert any("something cannot be read" in warning for warning in world.heard.warnings)


@pytest.mark.parametrize("error", [ClaimedError("taken over"), UnavailableError("away"), RuntimeError("odd")])
def test_before_the_first_call_an_error_is_one(monkeypatch, error):
    world = strayed()
    looks = []

    def look(self):
        looks.append(self)
        raise error

    monkeypatch.setattr("icekeep.maintenance.delete.kept.LookBesideOthers.__call__", look)
    before = world.files()
    with pytest.raises(type(error), match=str(error)):
        world.remove_orphans(trash=3)
    assert looks
    assert world.files() == before


def test_files_that_all_stay_are_no_call(monkeypatch):
    """The second look refuses: what the first one kept does not make a failed run of it that has changed something."""
    monkeypatch.setattr(deleting, "CALL_FILES", 2)
    world = strayed()
    real, looks = deleting._are_kept, []

    def kept(files, work, look):
        looks.append(files.num_rows)
        if len(looks) == 2:
            raise SafetyError("not everything can be read")
        return ~real(files, work, look)

    monkeypatch.setattr(deleting, "_are_kept", kept)
    with pytest.raises(SafetyError, match="not everything can be read"):
        world.remove_orphans(trash=3)
    assert looks == [2, 2]
    assert {*STRAYS} <= {*world.data()}


class TestTasks:
    """As Spark does them, in this process."""

    @pytest.fixture
    def world(self, monkeypatch: pytest.MonkeyPatch) -> ExpiredWorld:
        """A plan has a part for each file, and one task gets them all."""
        monkeypatch.setattr(plan_writing, "_PART_ROWS", 1)
        monkeypatch.setattr(deleting, "limits_of", lambda spark: Limits(deleted_files_count=0))
        monkeypatch.setattr(deleting, "started", lambda spark: None)
        monkeypatch.setattr(deleting, "max_task_failures", lambda session: 1)
        monkeypatch.setattr(deleting, "is_speculative", lambda session: False)
        monkeypatch.setattr(deleting, "task_bins", lambda rate, parts, *_: ([[*parts]], rate))
        return strayed()

    @pytest.fixture(autouse=True)
    def no_waits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(deleting, "batches_of_parts", lambda parts, *_: [parts])

    @pytest.mark.parametrize(
        "error", [SafetyError("a stray"), ClaimedError("taken over"), UnavailableError("away"), OSError("odd")]
    )
    def test_what_a_task_did_before_it_failed_is_told(self, world, monkeypatch, error):
        """It was lost, and where no other task told anything the run had changed nothing."""
        fails_at(monkeypatch, 2, error)
        result = world.remove_orphans()
        assert (result.status, result.deleted_files_count, len(result.problems)) == ("partial", 2, 1)
        assert str(error) in result.problems[0]
        assert "may be gone" not in result.problems[0]
        assert len({*STRAYS} & {*world.data()}) == 2

    def test_a_call_that_broke_in_a_task_may_have_deleted_more(self, world, monkeypatch):
        monkeypatch.setattr(plan_writing, "_PART_ROWS", 10)
        asked = breaks(world)
        result = world.remove_orphans(trash=3)
        assert (result.status, result.deleted_files_count) == ("partial", 0)
        assert "RuntimeError: the client broke" in result.problems[0]
        assert result.problems[0].endswith("; what was being deleted then may be gone, and is not counted")
        assert asked[0] not in world.files()

    @pytest.mark.parametrize("error", [ClaimedError("taken over"), UnavailableError("away")])
    def test_a_task_that_has_not_begun_changes_nothing(self, world, monkeypatch, error):
        fails_at(monkeypatch, 0, error)
        before = world.files()
        with pytest.raises(type(error), match=str(error)):
            world.remove_orphans()
        assert world.files() == before

    def test_failed_spark_job_leaves_deletions_unknown(self, world, monkeypatch):
        def lost(session, payloads, work, shared, *, step):
            run_tasks(None, payloads, work, shared, step=step)
            return [], [JobFailedError("an executor was lost")]

        monkeypatch.setattr(deleting, "run_tasks", lost)
        result = world.remove_orphans()
        assert (result.status, result.deleted_files_count) == ("partial", 0)
        assert result.problems[0].startswith("an executor was lost; what was being deleted then may be gone")

    def test_an_attempt_after_another_knows_nothing_of_that(self, world, monkeypatch):
        monkeypatch.setattr(deleting, "was_tried_before", lambda: True)
        fails_at(monkeypatch, 0, ClaimedError("taken over"))
        result = world.remove_orphans()
        assert result.status == "partial"
        assert result.problems[0].startswith("taken over; what was being deleted then may be gone")

    @pytest.mark.parametrize("other_attempt", ["", "was_tried_before", "is_speculative"])
    def test_what_another_attempt_moves_may_go_after_a_restoration(self, world, monkeypatch, other_attempt):
        """The attempt that was lost moved its file when all was restored: a live file was gone, and no plan knew of it."""
        if other_attempt:
            monkeypatch.setattr(deleting, other_attempt, lambda *_: True)
        monkeypatch.setattr(
            deleting, "run_tasks", lambda _, payloads, work, shared, *, step: run_once(payloads, work, shared)
        )
        assert world.expire(trash=3).status == "done"
        assert ("may still move files to the trash" in (world.restore().note or "")) is bool(other_attempt)

    @pytest.mark.usefixtures("world")
    @pytest.mark.parametrize("other_attempt", ["was_tried_before", "is_speculative"])
    def test_what_another_attempt_deleted_is_a_change(self, monkeypatch, other_attempt):
        """The attempt that was lost deleted all files, the next one found none, and the run said that nothing was changed."""
        monkeypatch.setattr(deleting, other_attempt, lambda *_: True)
        world = waiting_plan_and_strays()
        fails_when_it_writes_its_own_plan(world, monkeypatch)

        def twice(session, payloads, work, shared, *, step):
            run_once(payloads, work, shared)
            return run_once(payloads, work, shared)

        monkeypatch.setattr(deleting, "run_tasks", twice)
        result = world.remove_orphans()
        assert (result.status, result.finished_files_count) == ("partial", 0)
        assert result.problems == (
            "what earlier runs left is finished, and no orphan of this run is deleted: out of reach",
        )

    @pytest.mark.parametrize(
        ("done", "error", "tries", "status"),
        [
            (0, UnavailableError("away"), 2, "done"),
            (1, UnavailableError("away"), 1, "partial"),
            (0, ClaimedError("gone"), 1, ""),
        ],
    )
    def test_another_attempt_is_made_only_where_nothing_has_begun(self, world, monkeypatch, done, error, tries, status):
        """An attempt after another would count what that deleted as missing, and not know of a refusal what it stopped."""
        begun = []

        def again(session, payloads, work, shared, *, step):
            monkeypatch.setattr(deleting, "is_tried_again", lambda max_failures: len(begun) == 1)
            begun.append(1)
            try:
                return run_once(payloads, work, shared)
            except IcekeepError:
                begun.append(2)
                return run_once(payloads, work, shared)

        monkeypatch.setattr(deleting, "run_tasks", again)
        fails_at(monkeypatch, done, error, times=1)
        with nullcontext() if status else pytest.raises(type(error)):
            result = world.remove_orphans()
            assert (result.status, result.deleted_files_count) == (status, 4 if status == "done" else done)
        assert len(begun) == tries


def run_once(payloads, work, shared):
    return [work(payload, shared) for payload in payloads], []


def fails_at(monkeypatch: pytest.MonkeyPatch, calls: int, error: Exception, times: int = 10) -> None:
    """Raise an error before the next call that deletes, after so many."""
    kept, removed, begun, failed = deleting._are_kept, deleting._removed, [], []

    def look(*told):
        if len(begun) == calls and len(failed) < times:
            failed.append(error)
            raise error
        return kept(*told)

    def remove(*told):
        begun.append(told)
        return removed(*told)

    monkeypatch.setattr(deleting, "_are_kept", look)
    monkeypatch.setattr(deleting, "_removed", remove)


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
def test_a_restore_says_that_a_call_may_be_under_way(raises, days):
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


def test_trash_files_of_no_plan_are_kept_and_reported():
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
def test_a_file_that_never_goes_blocks_no_restore():
    world = ExpiredWorld(_ANeverGoes)
    run = younger_plan(world)
    for _ in range(3):
        world.finish()
        world.pass_days(0.9)
    assert world.restore(run).status == "done"


@pytest.mark.slow
def test_catalog_outage_between_calls_is_no_storage_call(monkeypatch):
    """A catalog that fails between two deletions does not count as a deletion of unknown outcome."""
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


def test_unknown_moves_are_reported_if_the_run_dies(monkeypatch):
    """A move of unknown outcome is on record even where the run is ended by something else."""
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
