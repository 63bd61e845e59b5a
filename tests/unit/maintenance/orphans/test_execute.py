"""What happens between listing, loading and deleting: nothing goes that the table leads to by then."""

import pytest

from icekeep.errors import SafetyError, UnavailableError, reason_of
from icekeep.events import Warned
from icekeep.spec.updates import SetProperties
from kit.tables import add, live, swap

pytestmark = pytest.mark.slow

ROOT = "memory://lake/wh/db/events"


def acting(world, act, *, when, nth=1):
    """Let others act once, right before the `nth` call of an operation; returns a list that shows that they did."""
    calls, done = [], []

    def before(operation, location):
        if operation == when and not done:
            calls.append(location)
            if len(calls) == nth:
                done.append(location)
                act()

    world.storage.before = before
    return done


def adopting(world, *names):
    """Others commit files that have been lying about for long, as `add_files` does."""

    def act():
        add(world.table, *names)

    return act


def no_plan_is_left(world):
    return not [location for location in world.memory.files if "/.icekeep/plans/" in location]


def test_stale_table_is_reloaded_after_the_listing(world):
    """apache/iceberg #15487, #16324. Fifty foreign commits, and a clock that passes the age."""
    table = world.table
    for number in range(50):
        world.commit(f"new-{number}.parquet")
    world.pass_days(5)
    stray = world.put("data/x.parquet", days=4)
    names = world.names()
    assert world.run(table).orphan_file_locations == (stray,)
    assert world.names() == names - {"data/x.parquet"}


def test_fifty_commits_between_listing_and_loading_lose_nothing(world):
    strays = [world.put(f"data/old-{number}.parquet") for number in range(50)]

    def commit_all():
        for number in range(50):
            add(world.table, f"old-{number}.parquet")

    table = world.table
    loads = [0]
    load = world.catalog.load

    def loading(identifier):
        loads[0] += 1
        if loads[0] == 1:
            world.catalog.load = load
            commit_all()
        return load(identifier)

    world.catalog.load = loading
    assert world.run(table, force=True).orphan_files_count == 0
    assert set(strays) <= set(world.memory.files)


@pytest.mark.parametrize("nth", [1, 2])
def test_files_that_others_adopt_after_the_plan_are_kept(world, nth):
    """Between the plan and the deletion; the metadata is loaded again until it stands still."""
    adopted, other = world.put("data/adopted.parquet"), world.put("data/other.parquet")
    done = []
    load, table = world.catalog.load, world.table
    loads = [0]

    def loading(identifier):
        loads[0] += 1
        if loads[0] == 1 + nth:
            done.append(True)
            world.catalog.load = load
            add(world.table, "adopted.parquet")
        elif loads[0] == 2:
            # A commit that has nothing to do with it, so that the metadata is looked at again.
            world.catalog.load = load
            swap(world.table, SetProperties({"a": "b"}))
            world.catalog.load = loading
        return load(identifier)

    world.catalog.load = loading
    result = world.run(table)
    assert done
    assert result.kept.adopted_count == 1
    assert result.orphan_file_locations == (other,)
    assert adopted in world.memory.files
    assert other not in world.memory.files
    assert any(isinstance(event, Warned) and "in use now" in event.message for event in world.heard.events)
    assert "adopted.parquet" in live(world.table)


def test_if_all_of_them_are_adopted_nothing_is_left_to_do(world):
    adopted = world.put("data/adopted.parquet")
    done = acting(world, adopting(world, "adopted.parquet"), when="write")
    result = world.run()
    assert done[0].endswith(".jsonl")
    assert (result.deleted_files_count, result.orphan_files_count, result.kept.adopted_count) == (0, 0, 1)
    assert adopted in world.memory.files
    assert not [location for location in world.memory.files if "/.icekeep/" in location]


def test_approved_plan_is_void_if_a_file_is_adopted(world):
    world.put("data/adopted.parquet")
    other = world.put("data/other.parquet")
    plan = world.plan()
    done = acting(world, adopting(world, "adopted.parquet"), when="create", nth=2)
    with pytest.raises(SafetyError, match="other files would go"):
        world.run(approve=plan.hash)
    assert done
    assert other in world.memory.files
    assert no_plan_is_left(world)


def test_what_others_added_and_cannot_be_read_stops_the_deletion(world):
    stray = world.put("data/x.parquet")

    def commit_and_break():
        table = add(world.table, "a0.parquet")
        location = table.metadata.current_snapshot.manifest_list
        world.memory.files[location] = (world.memory.files[location][0][:-1], 0)

    done = acting(world, commit_and_break, when="create", nth=2)
    with pytest.raises(SafetyError, match="nothing is deleted"):
        world.run()
    assert done
    assert stray in world.memory.files
    assert no_plan_is_left(world)


def test_gc_disabled_after_the_plan_stops_the_deletion(world):
    stray = world.put("data/x.parquet")

    def turn_off():
        swap(world.table, SetProperties({"gc.enabled": "false"}))

    done = acting(world, turn_off, when="create", nth=2)
    with pytest.raises(SafetyError, match=r"gc\.enabled"):
        world.run()
    assert done
    assert stray in world.memory.files
    assert no_plan_is_left(world)


def test_a_crash_between_plan_and_deletion(world):
    """apache/iceberg #7937."""
    stray = world.put("data/x.parquet")
    crashed = []

    def crash(operation, location):
        if operation == "delete_many" and location == stray and not crashed:
            crashed.append(location)
            raise KeyboardInterrupt

    world.storage.before = crash
    with pytest.raises(KeyboardInterrupt):
        world.run()
    assert stray in world.memory.files
    assert [location for location in world.memory.files if location.endswith("plan.json")]
    result = world.run()
    assert result.finished_files_count + result.deleted_files_count == 1
    assert stray not in world.memory.files
    assert not [location for location in world.memory.files if "/.icekeep/" in location]


@pytest.mark.slow
def test_failing_storage_call_never_deletes_a_live_file(world):
    """Every call of a run fails once; what is live stays, and a run after it does the work."""
    names = world.names()
    files = dict(world.memory.files)
    number = 0
    while True:
        world.memory.files = dict(files)
        stray = world.put("data/x.parquet")
        number += 1
        calls = [0]

        def fail(operation, location, calls=calls, number=number):
            calls[0] += 1
            if calls[0] == number:
                raise UnavailableError("out of reach for now")

        world.storage.before = fail
        try:
            world.run()
        except (UnavailableError, SafetyError):
            assert calls[0] >= number
        world.storage.before = lambda operation, location: None
        assert names <= world.names()
        world.run()
        assert stray not in world.memory.files
        assert names <= world.names()
        if calls[0] < number:
            break
    assert number > 30


@pytest.mark.parametrize(
    "error", [UnavailableError("out of reach"), RuntimeError("the JVM is gone")], ids=["ours", "another's"]
)
def test_what_was_finished_is_told_whatever_fails_after(world, error):
    stray, crashed = world.put("data/x.parquet"), []

    def crash(operation, location):
        if operation == "delete_many" and location == stray and not crashed:
            crashed.append(location)
            raise KeyboardInterrupt

    world.storage.before = crash
    with pytest.raises(KeyboardInterrupt):
        world.run()
    other = world.put("data/y.parquet")

    def fail(operation, location):
        if operation in ("create", "write") and stray not in world.memory.files:
            raise error

    world.storage.before = fail
    result = world.run()
    assert (result.status, result.finished_files_count, result.deleted_files_count) == ("partial", 1, 0)
    assert result.problems == (
        f"what earlier runs left is finished, and no orphan of this run is deleted: {reason_of(error)}",
    )
    assert other in world.memory.files
