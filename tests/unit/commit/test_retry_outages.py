"""A catalog or a store that is out of reach at the commit is waited for, and no finished work is thrown away."""

import pytest

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, UnavailableError
from icekeep.events import CommitRetried, SnapshotCommitted
from kit.changes import Applying, Recorder, run, thrown
from kit.memory_catalog import CONFLICTS, MemoryCatalog, after, fails
from kit.runtime import FakeRuntime
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import EVENTS, add, files, live, memory_table, stored

ONE = AppendFiles(files=files("new"))
SET = ChangeProperties(updates={"owner": "me"})
AWAY = UnavailableError("the catalog is out of reach")
A_MINUTE_MS = 60_000


@pytest.fixture
def catalog() -> MemoryCatalog:
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    return add(memory_table(catalog), "old")


@pytest.mark.parametrize("change", [ONE, SET], ids=["snapshot", "properties"])
@pytest.mark.parametrize("retries", ["0", "4"])
def test_an_outage_of_swaps_counts_no_retries(change, retries):
    catalog = MemoryCatalog()
    table = add(memory_table(catalog, **{"commit.retry.num_retries": retries}), "old")
    before = stored(catalog)
    catalog.follow(*[fails(AWAY)] * 12)
    heard = Recorder()
    result = run(table, change, listener=heard)
    *retried, landed = heard.events
    assert isinstance(landed, SnapshotCommitted)
    assert retried == [
        CommitRetried("db.events", number, wait_ms, AWAY.message)
        for number, wait_ms in enumerate(catalog.runtime.sleeps_ms, 1)
    ]
    assert (len(retried), catalog.runtime.elapsed_ms > A_MINUTE_MS) == (12, True)
    # A metadata file, and for a snapshot its list and manifest: those of attempts that failed are gone.
    assert len(stored(catalog) - before) == (3 if change is ONE else 1)
    assert result.table.metadata.properties.get("owner") == ("me" if change is SET else None)


def test_a_table_that_cannot_be_loaded_for_a_while_is_loaded_in_the_end(catalog, table):
    catalog.failing_loads = 10
    heard = Recorder()
    result = run(table, ONE, listener=heard)
    assert live(result.table) == {"old": 1, "new": 1}
    assert [type(event) for event in heard.events] == [CommitRetried] * 10 + [SnapshotCommitted]
    assert len(catalog.runtime.sleeps_ms) == 10


@pytest.mark.parametrize("operation", ["read", "write"])
def test_a_store_that_fails_for_a_while_in_the_middle_of_an_attempt_is_waited_for(operation):
    failures = 7

    def fail(what: str, location: str) -> None:
        nonlocal failures
        if what == operation and "snap-" in location and failures:
            failures -= 1
            raise UnavailableError("the store answers 503 (SlowDown)")

    storage = HookedStorage(MemoryStorage())
    catalog = MemoryCatalog(storage)
    table = add(memory_table(catalog), "old")
    before = stored(catalog)
    storage.before = fail
    result = run(table, ONE)
    assert (failures, len(catalog.runtime.sleeps_ms)) == (0, 7)
    assert live(result.table) == {"old": 1, "new": 1}
    assert len(stored(catalog) - before) == 3


def test_the_change_is_applied_to_what_others_committed_while_the_catalog_was_away(catalog, table):
    catalog.follow(after(lambda: add(table, "theirs"), then=fails(AWAY)), fails(AWAY))
    change = Applying(ONE)
    result = run(table, change)
    assert len({base.current_snapshot_id for base in change.bases}) == 2
    assert live(result.table) == {"old": 1, "theirs": 1, "new": 1}


def test_an_outage_ends_the_commit_after_the_timeout():
    catalog = MemoryCatalog()
    table = add(memory_table(catalog, **{"commit.retry.total_timeout_ms": "600000"}), "old")
    before = stored(catalog)
    catalog.follow(*[fails(AWAY)] * 1000)
    with pytest.raises(UnavailableError) as raised:
        run(table, ONE)
    assert raised.value is AWAY
    assert 600_000 < catalog.runtime.elapsed_ms < 700_000
    assert stored(catalog) == before


def test_the_time_is_that_of_one_outage_and_not_of_the_work_before_it():
    catalog = MemoryCatalog()
    table = add(memory_table(catalog, **{"commit.retry.total_timeout_ms": "60000"}), "old")
    slow = after(lambda: catalog.runtime.pass_ms(10**7), then=CONFLICTS)
    catalog.follow(*[fails(AWAY)] * 8, slow, *[fails(AWAY)] * 8)
    assert run(table, ONE).changed


def test_two_short_outages_far_from_each_other_are_two():
    """The change is applied for half an hour between them: nothing was out of reach for longer than seconds."""
    catalog = MemoryCatalog()
    table = add(memory_table(catalog), "old")
    catalog.failing_loads = 1

    slow = Applying(ONE, attempt_1=lambda: catalog.runtime.pass_ms(31 * A_MINUTE_MS))
    catalog.follow(fails(AWAY))
    assert live(run(table, slow).table) == {"old": 1, "new": 1}


def test_work_between_two_failed_swaps_is_no_outage():
    catalog = MemoryCatalog()
    table = add(memory_table(catalog), "old")
    slow = Applying(ONE, attempt_2=lambda: catalog.runtime.pass_ms(31 * A_MINUTE_MS))
    catalog.follow(fails(AWAY), fails(AWAY))
    assert live(run(table, slow).table) == {"old": 1, "new": 1}


def test_a_conflict_after_an_outage_is_tried_again_and_counted_apart():
    catalog = MemoryCatalog()
    table = add(memory_table(catalog, **{"commit.retry.num_retries": "1"}), "old")
    catalog.follow(*[fails(AWAY)] * 9, CONFLICTS)
    assert run(table, ONE).changed
    catalog.follow(*[fails(AWAY)] * 9, CONFLICTS, fails(AWAY), CONFLICTS)
    with pytest.raises(ConflictError, match="the catalog refused all 2 commits to "):
        run(catalog.load(EVENTS), AppendFiles(files=files("another")))


@pytest.mark.slow
def test_a_table_that_wants_no_waits_does_not_make_an_outage_a_storm():
    catalog = MemoryCatalog()
    names = ("commit.retry.min_wait_ms", "commit.retry.max_wait_ms")
    table = add(memory_table(catalog, **dict.fromkeys(names, "0")), "old")
    catalog.follow(*[fails(AWAY)] * 1000)
    with pytest.raises(UnavailableError):
        run(table, ONE)
    assert 1_800_000 < catalog.runtime.elapsed_ms < 1_900_000
    assert len(catalog.runtime.sleeps_ms) < 250


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupt_while_an_outage_is_waited_for_leaves_nothing(catalog, table, error):
    class Interrupting(FakeRuntime):
        def sleep_ms(self, duration_ms):
            raise error

    before = stored(catalog)
    catalog.follow(fails(AWAY))
    with pytest.raises(type(error)):
        commit(table, ONE, runtime=Interrupting(seed=9))
    assert stored(catalog) == before


def test_a_process_that_is_abandoned_during_an_outage_waits_for_nothing_more(catalog, table):
    runtime = FakeRuntime(seed=9)

    def die() -> None:
        runtime.abandoned = True

    before = stored(catalog)
    catalog.follow(fails(AWAY), after(die, then=fails(AWAY)))
    with pytest.raises(UnavailableError) as raised:
        commit(table, ONE, runtime=runtime)
    assert (raised.value, len(runtime.sleeps_ms)) == (AWAY, 1)
    assert stored(catalog) == before


def test_other_errors_of_ours_are_not_waited_for(catalog, table):
    before = stored(catalog)
    change = Applying(ONE, attempt_1=thrown(ConflictError("planned on what is gone")))
    with pytest.raises(ConflictError, match="planned on what is gone"):
        run(table, change)
    assert (stored(catalog), catalog.runtime.sleeps_ms) == (before, [])
