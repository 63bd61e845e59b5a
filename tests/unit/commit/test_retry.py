"""The loop: how often a change is applied, to what, how long it waits, and what is left where it ends."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.catalog.metadata_files import encode
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import RetryPolicy, attach, check_submitter, commit
from icekeep.commit.summary import COMMIT_ID
from icekeep.errors import (
    ConflictError,
    IcekeepError,
    InvalidTableError,
    NotFoundError,
    OptionError,
    OutcomeUnknownError,
    SafetyError,
    UnavailableError,
    UsageError,
)
from icekeep.events import CommitRetried, SnapshotCommitted, unfailing
from icekeep.runs import Run
from icekeep.spec.updates import log_previous
from kit.cases import for_each
from kit.catalogs import COUNTER, set_counter
from kit.changes import Applying, Recorder, run, thrown
from kit.memory_catalog import (
    COMMITS,
    CONFLICTS,
    IS_REFUSED,
    IS_UNKNOWN,
    LANDS_BUT_IS_UNKNOWN,
    LANDS_BUT_SAYS_CONFLICT,
    MemoryCatalog,
    after,
    fails,
    lands_but_raises,
)
from kit.runtime import FakeRuntime
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import EVENTS, add, files, live, memory_table, raw_list, stored, swap, written_by

ONE = AppendFiles(files=files("new"))
SET = ChangeProperties(updates={"owner": "me"})


@pytest.fixture
def table(catalog):
    return add(memory_table(catalog), "old")


def others(table, name: str = "theirs"):
    """Another writer who commits a file."""
    return lambda: add(table, name)


def commit_id(table, snapshot_id: int) -> str:
    return table.metadata.snapshot(snapshot_id).summary[COMMIT_ID]


def test_a_commit_says_what_it_made_and_on_what(catalog, table):
    heard = Recorder()
    result = run(table, ONE, listener=heard)
    assert result.changed
    assert result.base == table
    assert result.table == catalog.load(EVENTS)
    assert result.snapshot_id == result.table.metadata.current_snapshot_id
    assert result.summary == result.table.metadata.current_snapshot.summary
    assert live(result.table) == {"old": 1, "new": 1}
    assert heard.events == [SnapshotCommitted("db.events", result.snapshot_id, result.table.metadata_location)]
    assert catalog.runtime.sleeps_ms == []


def test_result_and_table_keep_the_run(catalog, table):
    run_of_it = Run(run_id="compact-1", job="compact")
    catalog.follow(after(others(table)))
    result = run(table.for_run(run_of_it), ONE)
    assert result.summary["icekeep.run-id"] == "compact-1"
    assert (result.table.run, result.base.run) == (run_of_it, run_of_it)
    assert result.table.refresh().run == run_of_it
    theirs = result.table.metadata.snapshot(result.base.metadata.current_snapshot_id)
    assert theirs.snapshot_id != table.metadata.current_snapshot_id
    assert "icekeep.run-id" not in theirs.summary


def test_entries_of_a_change_s_own_do_not_hide_who_made_it(catalog, table):
    change = replace(ONE, summary={"engine-name": "flink", "flink.job-id": "7"})
    summary = run(table, change).summary
    assert (summary["engine-name"], summary["flink.job-id"]) == ("icekeep", "7")


def test_a_change_without_a_snapshot_has_no_snapshot_id(catalog, table):
    heard = Recorder()
    result = run(table, SET, listener=heard)
    assert (result.changed, result.snapshot_id) == (True, None)
    assert heard.events == [SnapshotCommitted("db.events", None, result.table.metadata_location)]


def test_nothing_to_change_commits_nothing_and_writes_nothing(catalog, table):
    swaps, before = len(catalog.swaps), stored(catalog)
    result = run(table, AppendFiles(files=()))
    assert (result.changed, result.snapshot_id, result.table.metadata) == (False, None, table.metadata)
    assert len(catalog.swaps) == swaps
    assert stored(catalog) == before


def test_change_is_applied_to_latest_table(catalog, table):
    latest = add(table, "theirs")
    result = run(table, ONE)
    assert result.base.metadata == latest.metadata
    assert live(result.table) == {"old": 1, "theirs": 1, "new": 1}
    assert catalog.runtime.sleeps_ms == []


def test_after_a_conflict_the_change_is_applied_to_the_new_base(catalog, table):
    catalog.follow(after(others(table)))
    heard, change = Recorder(), Applying(ONE)
    result = run(table, change, listener=heard)
    assert [base.current_snapshot_id for base in change.bases] == [
        table.metadata.current_snapshot_id,
        result.base.metadata.current_snapshot_id,
    ]
    assert live(result.table) == {"old": 1, "theirs": 1, "new": 1}
    retried, committed = heard.events
    assert isinstance(retried, CommitRetried)
    assert (retried.table, retried.attempt, retried.wait_ms, retried.is_conflict) == ("db.events", 1, 100, True)
    assert "main" in retried.reason or "committed" in retried.reason
    assert committed == SnapshotCommitted("db.events", result.snapshot_id, result.table.metadata_location)


def test_requirements_hold_the_uuid_and_the_branch_of_the_base(catalog, table):
    run(table, ONE)
    requirements, _ = catalog.swaps[-1]
    assert {type(r).__name__ for r in requirements} == {"AssertTableUuid", "AssertRefSnapshotId"}
    assert requirements[1].snapshot_id == table.metadata.current_snapshot_id


@pytest.mark.parametrize(("retries", "attempts"), [(None, 5), ("-3", 1), ("0", 1), ("1", 2), ("7", 8)])
def test_attempts_follow_num_retries_property(catalog, retries, attempts):
    properties = {} if retries is None else {"commit.retry.num_retries": retries}
    table = memory_table(catalog, **properties)
    before = stored(catalog)
    catalog.follow(*[CONFLICTS] * 20)
    # A single refusal does not show that nobody else has changed the table.
    said = "gave up after 1 attempts" if attempts == 1 else f"refused all {attempts} commits .*nobody else changed it"
    with pytest.raises(ConflictError, match=f"{said}.*another writer was faster") as raised:
        run(table, ONE)
    assert raised.value.exit_status == 75
    assert raised.value.facts["attempts"] == attempts == len(catalog.swaps)
    assert stored(catalog) == before


def test_negative_waits_count_as_zero(catalog):
    waits = {f"commit.retry.{name}": "-1" for name in ("min-wait-ms", "max-wait-ms", "total-timeout-ms")}
    table = memory_table(catalog, **waits, commit__retry__num_retries="2")
    before = stored(catalog)
    catalog.follow(*[CONFLICTS] * 3)
    with pytest.raises(ConflictError, match="another writer was faster"):
        run(table, ONE)
    assert {*catalog.runtime.sleeps_ms} <= {0}
    assert stored(catalog) == before
    assert run(table, ONE).changed


def test_waits_double_up_to_the_greatest(catalog):
    table = memory_table(
        catalog,
        **{
            "commit.retry.num_retries": "6",
            "commit.retry.min_wait_ms": "300",
            "commit.retry.max_wait_ms": "2000",
        },
    )
    catalog.follow(*[CONFLICTS] * 6)
    run(table, ONE)
    assert catalog.runtime.sleeps_ms == [300, 600, 1200, 2000, 2000, 2000]


@for_each(("attempt", "wait_ms"), [(1, 100), (2, 200), (3, 400), (10, 51_200), (11, 60_000), (99, 60_000)])
def test_the_waits_of_a_table_that_says_nothing_are_icebergs(attempt, wait_ms):
    policy = RetryPolicy.of(memory_table().metadata)
    assert policy == RetryPolicy(4, 100, 60_000, 1_800_000)
    assert policy.wait_ms(attempt, FakeRuntime(chance=0.0)) == wait_ms
    assert policy.wait_ms(attempt, FakeRuntime(chance=1.0)) == wait_ms + wait_ms // 10


@given(st.integers(1, 60), st.integers(0, 1000), st.integers(0, 10**6), st.integers(0, 10**7))
def test_chance_adds_at_most_a_tenth_to_a_wait(attempt, seed, min_ms, max_ms):
    wait_ms = min(min_ms * 2 ** (attempt - 1), max_ms)
    actual_ms = RetryPolicy(4, min_ms, max_ms, 0).wait_ms(attempt, FakeRuntime(seed, chance=None))
    assert wait_ms <= actual_ms <= wait_ms * 1.1


def test_two_writers_do_not_wait_equally_long():
    policy = RetryPolicy(4, 10_000, 60_000, 0)
    assert len({policy.wait_ms(1, FakeRuntime(seed, chance=None)) for seed in range(10)}) > 5


def test_conflicts_do_not_go_on_for_longer_than_the_table_allows(catalog):
    table = memory_table(catalog, **{"commit.retry.total_timeout_ms": "5000", "commit.retry.num_retries": "99"})
    slow = after(lambda: catalog.runtime.pass_ms(2000), then=CONFLICTS)
    catalog.follow(*[slow] * 20)
    with pytest.raises(ConflictError, match="the catalog refused all 3 commits to "):
        run(table, ONE)
    assert catalog.runtime.elapsed_ms > 5000


def test_however_slow_the_first_attempt_was_there_is_a_second(catalog):
    table = memory_table(catalog, **{"commit.retry.total_timeout_ms": "0"})
    catalog.follow(after(lambda: catalog.runtime.pass_ms(10**6), then=CONFLICTS))
    assert run(table, ONE).changed


@pytest.mark.parametrize(
    "name", [f"commit.{what}.{key}" for what in ("retry", "status-check") for key in
             ("num-retries", "min-wait-ms", "max-wait-ms", "total-timeout-ms")]
)  # fmt: skip
@pytest.mark.parametrize("text", ["", "four", "1.5", "²", " 4"])
def test_non_integer_property_is_refused_before_writing(catalog, name, text):
    table = memory_table(catalog, **{name: text})
    before = stored(catalog)
    with pytest.raises(UsageError, match=f"^table property '{name}' is '{text}'; set a whole number$"):
        run(table, ONE)
    assert (stored(catalog), catalog.swaps) == (before, [])


def test_manifests_that_are_written_already_are_used_again(catalog):
    written: list[str] = []
    storage = HookedStorage(
        MemoryStorage(), before=lambda operation, location: written.append(location) if operation == "write" else None
    )
    catalog = MemoryCatalog(storage)
    table = add(memory_table(catalog), "old")
    written.clear()
    catalog.follow(CONFLICTS, after(others(table)), CONFLICTS)
    result = run(table, ONE)
    mine = written_by(written, commit_id(result.table, result.snapshot_id))
    assert len([location for location in mine if "/snap-" in location]) == 4
    assert len([location for location in mine if "-m0" in location]) == 1
    assert len(mine) == 5
    assert live(result.table) == {"old": 1, "theirs": 1, "new": 1}


def test_a_reused_manifest_takes_the_number_of_the_commit(catalog, table):
    catalog.follow(after(others(table)))
    result = run(table, ONE)
    mine = next(m for m in raw_list(result.table) if m["added_snapshot_id"] == result.snapshot_id)
    assert mine["sequence_number"] == mine["min_sequence_number"] == 3
    assert result.table.metadata.last_sequence_number == 3


def test_only_lists_of_lost_attempts_are_removed(catalog, table):
    before = stored(catalog)
    catalog.follow(CONFLICTS, CONFLICTS)
    result = run(table, ONE)
    mine = written_by(stored(catalog) - before, commit_id(result.table, result.snapshot_id))
    listed = result.table.metadata.current_snapshot.manifest_list
    assert f"snap-{result.snapshot_id}-3-" in listed
    assert mine == {listed, *(m["manifest_path"] for m in raw_list(result.table))} - before
    assert before <= stored(catalog)


class Repeating(FakeRuntime):
    """The first snapshot id that it makes is the one of a runtime of another seed."""

    def __init__(self, seed, repeated):
        super().__init__(seed)
        other = FakeRuntime(repeated)
        self._taken = [other.new_uuid(), other.new_uuid()][1]

    def new_uuid(self):
        drawn = super().new_uuid()
        return self._taken if self._drawn == 2 else drawn


def test_a_snapshot_id_that_is_taken_is_not_used_again(catalog, table):
    first = commit(table, ONE, runtime=FakeRuntime(seed=5)).snapshot_id
    second = commit(catalog.load(EVENTS), AppendFiles(files=files("b")), runtime=Repeating(6, repeated=5)).snapshot_id
    assert first != second


def test_same_snapshot_id_of_other_writer_is_not_ours(catalog, table):
    theirs = commit(table, ONE, runtime=FakeRuntime(seed=5)).table
    before = stored(catalog)
    with pytest.raises(IcekeepError, match="snapshot"):
        commit(table, AppendFiles(files=files("b")), runtime=Repeating(6, repeated=5))
    assert catalog.load(EVENTS) == theirs
    assert stored(catalog) == before


def test_one_commit_id_is_in_the_summary_and_in_every_name(catalog, table):
    before = stored(catalog)
    result = run(table, ONE)
    snapshot = result.table.metadata.current_snapshot
    new = [location for location in stored(catalog) - before if not location.endswith(".json")]
    assert len(new) == 2
    assert all(snapshot.summary[COMMIT_ID] in location for location in new)


def test_a_property_of_the_new_base_is_seen_by_the_next_attempt(catalog, table):
    def forbid_nothing():
        swap(table, *ChangeProperties(updates={"seen": "yes"}).apply(table.metadata, None))

    catalog.follow(after(forbid_nothing))
    change = Applying(ONE)
    run(table, change)
    assert [base.properties.get("seen") for base in change.bases] == [None, "yes"]


def test_a_commit_without_a_snapshot_has_no_summary(table):
    assert run(table, SET).summary == {}
    assert run(table, ChangeProperties()).summary == {}


@pytest.mark.parametrize("told", [None, "", "parent", "none"])
def test_a_process_that_is_abandoned_is_told_by_which_variable(monkeypatch, told):
    if told is not None:
        monkeypatch.setenv("ICEKEEP_SUBMITTER", told)
    runtime = FakeRuntime()
    check_submitter(runtime)
    runtime.abandoned = True
    with pytest.raises(
        UnavailableError, match=r"is gone, so nothing more is committed; .*ICEKEEP_SUBMITTER=none"
    ) as raised:
        check_submitter(runtime)
    assert raised.value.exit_status == 75


def test_a_variable_that_says_nothing_is_refused(monkeypatch):
    monkeypatch.setenv("ICEKEEP_SUBMITTER", "nobody")
    with pytest.raises(OptionError, match="option ICEKEEP_SUBMITTER is 'nobody'; give 'parent' or 'none'"):
        check_submitter(FakeRuntime())


class Listening:
    def __init__(self, error=None):
        self.heard, self._error = [], error

    def on(self, event):
        self.heard.append(event)
        if self._error is not None:
            raise self._error


@pytest.fixture
def sound(catalog):
    """An earlier version of a table, to take the place of the current one."""
    earlier = memory_table(catalog)
    current = catalog.swap(earlier, [], set_counter(1)).table
    return replace(earlier, metadata_location=current.metadata_location)


def test_where_the_metadata_is_then_is_told(catalog, sound):
    listener = Listening()
    after = attach(sound, listener)
    assert listener.heard == [SnapshotCommitted("db.events", None, after.metadata_location)]
    assert catalog.load(EVENTS).metadata == after.metadata


@pytest.mark.parametrize("error", [RuntimeError("the cell is gone"), SystemExit(143)], ids=["error", "interrupt"])
def test_an_error_of_a_listener_is_no_unknown_outcome(catalog, sound, error):
    with pytest.raises(type(error)) as raised:
        attach(sound, Listening(error))
    assert raised.value is error
    assert COUNTER not in catalog.load(EVENTS).metadata.properties


AWAY = UnavailableError("the catalog is out of reach")
A_MINUTE_MS = 60_000


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


def test_table_load_is_retried_until_it_succeeds(catalog, table):
    catalog.failing_loads = 10
    heard = Recorder()
    result = run(table, ONE, listener=heard)
    assert live(result.table) == {"old": 1, "new": 1}
    assert [type(event) for event in heard.events] == [CommitRetried] * 10 + [SnapshotCommitted]
    assert len(catalog.runtime.sleeps_ms) == 10


@pytest.mark.parametrize("operation", ["read", "write"])
def test_store_outage_within_attempt_is_waited_out(operation):
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


def test_retry_after_outage_uses_new_base(catalog, table):
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


def test_timeout_counts_one_outage_not_work_before_it():
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


def test_conflict_after_outage_is_counted_separately():
    catalog = MemoryCatalog()
    table = add(memory_table(catalog, **{"commit.retry.num_retries": "1"}), "old")
    catalog.follow(*[fails(AWAY)] * 9, CONFLICTS)
    assert run(table, ONE).changed
    catalog.follow(*[fails(AWAY)] * 9, CONFLICTS, fails(AWAY), CONFLICTS)
    with pytest.raises(ConflictError, match="the catalog refused all 2 commits to "):
        run(catalog.load(EVENTS), AppendFiles(files=files("another")))


@pytest.mark.slow
def test_zero_waits_do_not_flood_catalog_in_outage():
    catalog = MemoryCatalog()
    names = ("commit.retry.min_wait_ms", "commit.retry.max_wait_ms")
    table = add(memory_table(catalog, **dict.fromkeys(names, "0")), "old")
    catalog.follow(*[fails(AWAY)] * 1000)
    with pytest.raises(UnavailableError):
        run(table, ONE)
    assert 1_800_000 < catalog.runtime.elapsed_ms < 1_900_000
    assert len(catalog.runtime.sleeps_ms) < 250


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_interrupt_during_outage_leaves_no_files(catalog, table, error):
    class Interrupting(FakeRuntime):
        def sleep_ms(self, duration_ms):
            raise error

    before = stored(catalog)
    catalog.follow(fails(AWAY))
    with pytest.raises(type(error)):
        commit(table, ONE, runtime=Interrupting(seed=9))
    assert stored(catalog) == before


def test_abandoned_process_stops_waiting_in_outage(catalog, table):
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


@pytest.mark.parametrize("error", [NotFoundError("gone"), InvalidTableError("broken")])
def test_after_an_error_of_the_swap_nothing_is_left(catalog, table, error):
    before = stored(catalog)
    catalog.follow(CONFLICTS, fails(error))
    with pytest.raises(type(error)):
        run(table, ONE)
    assert len(catalog.swaps) == 3
    assert stored(catalog) == before


@pytest.mark.parametrize("error", [ConflictError("no"), KeyboardInterrupt(), SystemExit(143), ValueError("bug")])
@pytest.mark.parametrize("attempt", [1, 2])
def test_what_goes_wrong_before_the_swap_leaves_nothing(catalog, table, error, attempt):
    before = stored(catalog)
    catalog.follow(CONFLICTS)
    change = Applying(ONE, **{f"attempt_{attempt}": thrown(error)})
    with pytest.raises(type(error)):
        run(table, change)
    assert len(change.bases) == attempt
    assert stored(catalog) == before


@pytest.mark.parametrize("change", [ONE, SET], ids=["snapshot", "properties"])
@pytest.mark.parametrize("attempt", [1, 2])
def test_an_abandoned_process_swaps_nothing_and_leaves_nothing(catalog, table, change, attempt):
    before, swaps = stored(catalog), len(catalog.swaps)
    runtime = FakeRuntime(seed=9)

    def die() -> None:
        runtime.abandoned = True

    catalog.follow(*[CONFLICTS] * (attempt - 1))
    # The very last moment at which something happens before the swap: the change is applied and its files are written.
    applied = Applying(change, **{f"attempt_{attempt}": die})
    with pytest.raises(
        UnavailableError, match=r"process that started this one .* is gone.* ICEKEEP_SUBMITTER=none "
    ) as raised:
        commit(table, applied, runtime=runtime)
    assert (type(raised.value), raised.value.exit_status) == (UnavailableError, 75)
    assert len(catalog.swaps) - swaps == attempt - 1
    assert stored(catalog) == before
    assert catalog.load(EVENTS).metadata == table.metadata


def test_process_abandoned_after_swap_has_committed(catalog, table):
    runtime = FakeRuntime(seed=9)

    def die() -> None:
        runtime.abandoned = True

    catalog.follow(after(die))
    assert commit(table, ONE, runtime=runtime).changed
    assert live(catalog.load(EVENTS)) == {"old": 1, "new": 1}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143)])
def test_interrupt_between_attempts_leaves_no_files(catalog, table, error):
    class Interrupting(FakeRuntime):
        def sleep_ms(self, duration_ms):
            raise error

    before = stored(catalog)
    catalog.follow(CONFLICTS)
    with pytest.raises(type(error)):
        commit(table, ONE, runtime=Interrupting(seed=9))
    assert stored(catalog) == before


class Ending:
    """A listener that ends a job at the first event of a kind."""

    def __init__(self, kind, error=None):
        self.kind, self.error = kind, error or SystemExit(130)

    def on(self, event):
        if isinstance(event, self.kind):
            raise self.error


@pytest.mark.parametrize(
    "step",
    [CONFLICTS, fails(UnavailableError("away")), "apply"],
    ids=["conflict", "no swap", "not applied"],
)
def test_job_ended_by_retry_listener_leaves_no_files(catalog, table, step):
    before, undone, change = stored(catalog), [], ONE
    if step == "apply":
        change = Applying(ONE, attempt_1=thrown(UnavailableError("away")))
    else:
        catalog.follow(step)
    with pytest.raises(SystemExit):
        run(table, change, listener=Ending(CommitRetried), undo=lambda: undone.append(stored(catalog) - before))
    # What belongs to the commit goes first; nothing that it wrote is left when its caller's files are removed.
    assert undone == [set()]
    assert stored(catalog) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("bug")])
@pytest.mark.parametrize("attempt", [1, 2])
def test_undo_is_called_where_an_interrupt_comes_before_the_swap(catalog, table, error, attempt):
    undone = []
    catalog.follow(*[CONFLICTS] * (attempt - 1))
    change = Applying(ONE, **{f"attempt_{attempt}": thrown(error)})
    with pytest.raises(type(error)):
        run(table, change, undo=lambda: undone.append(attempt))
    assert undone == [attempt]


def test_what_cannot_be_undone_hides_no_interrupt(catalog, table):
    change = Applying(ONE, attempt_1=thrown(SystemExit(143)))
    with pytest.raises(SystemExit):
        run(table, change, undo=thrown(UnavailableError("away")))


@pytest.mark.parametrize(
    ("steps", "error", "listener"),
    [
        ([IS_UNKNOWN], OutcomeUnknownError, None),
        ([LANDS_BUT_IS_UNKNOWN], None, None),
        ([COMMITS], None, None),
        ([COMMITS], SystemExit, Ending(SnapshotCommitted)),
        ([CONFLICTS, LANDS_BUT_IS_UNKNOWN], SystemExit, Ending(SnapshotCommitted)),
        ([lands_but_raises(SystemExit(143))], OutcomeUnknownError, None),
        ([fails(SystemExit(143))], OutcomeUnknownError, None),
        ([CONFLICTS] * 5, ConflictError, None),
        ([fails(InvalidTableError("broken"))], InvalidTableError, None),
    ],
)
def test_nothing_that_may_have_landed_is_undone(catalog, table, steps, error, listener):
    undone = []
    catalog.follow(*steps)
    told = {} if listener is None else {"listener": listener}
    with nullcontext() if error is None else pytest.raises(error):
        run(table, ONE, undo=lambda: undone.append(1), **told)
    assert undone == []


def test_a_manifest_that_cannot_be_written_leaves_nothing(catalog):
    def full(operation, location):
        if operation == "write" and "snap-" in location:
            raise UnavailableError("no space left")

    storage = HookedStorage(MemoryStorage())
    catalog = MemoryCatalog(storage)
    table = memory_table(catalog)
    before = stored(catalog)
    storage.before = full
    with pytest.raises(UnavailableError):
        run(table, ONE)
    # The manifest once, and then a list for each attempt.
    assert storage.fired["write"] == 1 + len(catalog.runtime.sleeps_ms) + 1
    assert stored(catalog) == before


@pytest.mark.parametrize(
    "step", [IS_UNKNOWN, fails(OutcomeUnknownError("lost", metadata_location="memory://lake/wh/x"))]
)
def test_after_an_unknown_outcome_nothing_at_all_is_removed(step):
    storage = HookedStorage(MemoryStorage())
    catalog = MemoryCatalog(storage)
    table = add(memory_table(catalog), "old")
    before = stored(catalog)
    catalog.follow(CONFLICTS, step)
    with pytest.raises(OutcomeUnknownError, match="may or may not have landed") as raised:
        run(table, ONE)
    assert raised.value.exit_status == 5
    assert raised.value.facts["metadata_location"].startswith("memory://lake/wh/")
    assert raised.value.facts["metadata_location"] in raised.value.message
    assert str(raised.value.facts["snapshot_id"]) in raised.value.message
    assert len(stored(catalog) - before) == 3
    assert storage.fired["delete_many"] == 0


def test_landed_commit_counts_despite_catalog_error(catalog, table):
    """It was made once more, over its own snapshot; that failed, and the manifests of the live table were removed."""
    catalog.follow(CONFLICTS, lands_but_raises(UnavailableError("no answer, so nothing was sent")))
    result = run(table, ONE)
    now = catalog.load(EVENTS)
    assert (result.changed, result.table, len(catalog.swaps)) == (True, now, 3)
    assert result.snapshot_id == now.metadata.current_snapshot_id
    assert result.base.metadata == table.metadata
    assert result.summary["added-data-files"] == "1"
    assert live(now) == {"old": 1, "new": 1}
    assert len([name for name in stored(catalog) if "snap-" in name]) == 2


@for_each("error", [KeyboardInterrupt(), SystemExit(143), RuntimeError("driver gone")])
@for_each("lands", [False, True])
def test_an_interrupt_in_the_swap_leaves_the_outcome_unknown(error, lands):
    storage = HookedStorage(MemoryStorage())
    catalog = MemoryCatalog(storage)
    table = add(memory_table(catalog), "old")
    before = stored(catalog)
    catalog.follow(lands_but_raises(error) if lands else fails(error))
    with pytest.raises(OutcomeUnknownError, match=type(error).__name__) as raised:
        run(table, ONE)
    assert raised.value.__cause__ is error
    assert storage.fired["delete_many"] == 0
    assert len(stored(catalog) - before) == 2 + lands
    assert live(catalog.load(EVENTS)) == ({"old": 1, "new": 1} if lands else {"old": 1})


def test_interrupt_after_landing_undoes_nothing():
    def interrupt(operation, location):
        if operation == "delete_many":
            raise KeyboardInterrupt

    storage = HookedStorage(MemoryStorage())
    catalog = MemoryCatalog(storage)
    table = add(memory_table(catalog), "old")
    catalog.follow(CONFLICTS)
    storage.before = interrupt
    # It is no unknown outcome either: the listener has heard of the commit. Callers remove nothing after an interrupt.
    undone, heard = [], []
    with pytest.raises(KeyboardInterrupt):
        run(table, ONE, undo=lambda: undone.append(1), listener=SimpleNamespace(on=heard.append))
    assert (storage.fired["delete_many"], undone) == (1, [])
    assert [event.snapshot_id for event in heard if isinstance(event, SnapshotCommitted)] == [
        catalog.load(EVENTS).metadata.current_snapshot_id
    ]
    assert live(catalog.load(EVENTS)) == {"old": 1, "new": 1}


@pytest.mark.parametrize("error", [ConflictError("of another table"), OSError("the terminal is gone")])
def test_listener_error_is_not_a_commit_error(catalog, table, error, caplog):
    class Failing:
        on = staticmethod(thrown(error))

    catalog.follow(CONFLICTS)
    result = run(table, ONE, listener=unfailing(Failing()))
    assert result.changed
    assert live(catalog.load(EVENTS)) == {"old": 1, "new": 1}
    assert [one.exc_info[1] for one in caplog.records if one.exc_info] == [error]


def test_what_is_in_doubt_is_named_as_far_as_it_is_known(catalog, table):
    catalog.follow(fails(KeyboardInterrupt()), fails(KeyboardInterrupt()))
    with pytest.raises(OutcomeUnknownError, match=r"see whether snapshot \d+ is there") as raised:
        run(table, ONE)
    assert str(raised.value.facts["snapshot_id"]) in raised.value.message
    with pytest.raises(OutcomeUnknownError, match="see whether the change is there"):
        run(table, SET)


def test_unknown_outcome_found_landed_is_a_commit(catalog, table):
    before = stored(catalog)
    catalog.follow(LANDS_BUT_IS_UNKNOWN)
    result = run(table, ONE)
    assert live(result.table) == {"old": 1, "new": 1}
    assert len(catalog.swaps) == 2
    assert len(stored(catalog) - before) == 3


def test_conflict_hiding_own_commit_keeps_manifest_list(catalog, table):
    # apache/iceberg #14583: the answer was lost, the request sent again, and the second answer said "conflict".
    before = stored(catalog)
    catalog.follow(CONFLICTS, LANDS_BUT_SAYS_CONFLICT)
    result = run(table, ONE)
    assert len(catalog.swaps) == 3
    assert live(result.table) == {"old": 1, "new": 1}
    assert result.table.metadata.current_snapshot.manifest_list in stored(catalog)
    assert len(stored(catalog) - before) == 3
    assert len(result.table.metadata.snapshots) == 2


def test_unverifiable_conflict_is_unknown_and_keeps_files(catalog, table):
    # Taken for a conflict, the next attempt would find the snapshot there already, fail, and remove what it names.
    before = stored(catalog)

    def lose_contact():
        catalog.failing_loads = 10**6

    catalog.follow(after(lose_contact, then=LANDS_BUT_SAYS_CONFLICT))
    with pytest.raises(OutcomeUnknownError, match="cannot be loaded"):
        run(table, ONE)
    catalog.failing_loads = 0
    assert len(stored(catalog) - before) == 3
    assert live(catalog.load(EVENTS)) == {"old": 1, "new": 1}


def test_commit_built_upon_by_others_is_found(catalog, table):
    def build_upon():
        add(catalog.load(EVENTS), "theirs")

    catalog.follow(after(build_upon, then=COMMITS), LANDS_BUT_IS_UNKNOWN)
    result = run(table, ONE)
    assert live(result.table) == {"old": 1, "theirs": 1, "new": 1}


def test_a_table_that_was_dropped_and_made_again_is_not_touched(catalog, table):
    def make_again():
        catalog.drop(EVENTS)
        memory_table(catalog, owner="another")

    catalog.follow(after(make_again))
    with pytest.raises(SafetyError, match="is another table now") as raised:
        run(table, ONE)
    assert raised.value.exit_status == 4
    assert table.metadata.table_uuid in raised.value.message
    assert catalog.load(EVENTS).metadata.snapshots == ()
    manifests = [location for location in stored(catalog) if location.endswith("-m0.avro")]
    assert len(manifests) == 1


def test_dropped_table_is_not_found_and_leaves_no_files(catalog, table):
    before = stored(catalog)
    catalog.follow(after(lambda: catalog.drop(EVENTS)))
    with pytest.raises(NotFoundError):
        run(table, ONE)
    assert stored(catalog) == before


def test_the_summary_is_that_of_the_snapshot_that_landed(catalog, table):
    """The first attempt lands after all, and the second, made on what another writer left, meets it."""
    late = []

    def commit_theirs() -> None:
        # What the first attempt asked for is kept back, and lands on what it was made for.
        late.append(catalog.swaps[-1])

    def land() -> None:
        (_, updates) = late[0]
        swap(catalog.load(EVENTS), *updates)

    wide = AppendFiles(files=files("new"), summary={"attempt": "1"})
    narrow = AppendFiles(files=files("new"), summary={"attempt": "2"})

    class Differing:
        """A change whose counts depend on the attempt, as those of a delete do."""

        def __init__(self) -> None:
            self.left = [wide, narrow]

        def apply(self, base, attempt):
            return self.left.pop(0).apply(base, attempt)

    catalog.follow(after(commit_theirs, then=CONFLICTS), after(land, then=CONFLICTS))
    result = run(table, Differing())
    landed = result.table.metadata.snapshot(result.snapshot_id)
    assert landed.summary["attempt"] == "1"
    assert result.summary == landed.summary
    assert result.base.metadata == table.metadata


def test_the_base_is_that_of_the_attempt_that_landed(catalog, table):
    """The first attempt lands late; the second, on what another writer left meanwhile, was only refused."""
    requests = []
    meant_for = []

    def keep_back() -> None:
        meant_for.append(catalog.load(EVENTS).metadata)
        requests.append(catalog.swaps[-1])
        swap(catalog.load(EVENTS), *SET.apply(table.metadata, None))

    def land() -> None:
        swap(catalog.load(EVENTS), *requests[0][1])

    catalog.follow(after(keep_back, then=IS_REFUSED), after(land, then=IS_REFUSED))
    result = run(table, ONE)
    assert result.base.metadata == meant_for[0] == table.metadata
    assert live(result.table) == {"old": 1, "new": 1}


def replaced(catalog, table, **changes):
    """Another writer's metadata, however it came about."""
    metadata = replace(catalog.load(EVENTS).metadata, **changes)
    location = f"{table.metadata.location}/metadata/00099-{len(stored(catalog))}.metadata.json"
    catalog.storage.create(location, encode(metadata))
    catalog._locations[EVENTS] = location


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"table_uuid": "another"}, "is another table now"),
        ({"location": "memory://lake/elsewhere"}, "was moved to 'memory://lake/elsewhere' from "),
        ({"format_version": 1}, "has format version 1 now, and had 2"),
    ],
)
def test_what_a_job_stands_on_may_not_change_under_it(catalog, table, changes, problem):
    before = stored(catalog)
    catalog.follow(after(lambda: replaced(catalog, table, **changes), then=CONFLICTS))
    with pytest.raises(SafetyError, match=f"^table 'db.events' {problem}.*; nothing was changed$") as raised:
        run(table, ONE)
    assert raised.value.exit_status == 4
    assert {location for location in stored(catalog) - before if location.endswith(".avro")} == set()


def test_another_spelling_of_the_location_is_the_same_place(catalog, table):
    location = table.metadata.location.replace("memory://lake/", "memory://lake//")
    catalog.follow(after(lambda: replaced(catalog, table, location=location), then=CONFLICTS))
    assert run(table, ONE).changed


def test_table_may_gain_uuid_but_not_be_replaced(catalog):
    table = memory_table(catalog, format_version=1)
    replaced(catalog, table, table_uuid=None)
    bare = catalog.load(EVENTS)
    given = log_previous(
        replace(bare.metadata, table_uuid="given"), bare.metadata_location, bare.metadata.last_updated_ms
    )
    replaced(catalog, bare, table_uuid="given", metadata_log=given.metadata_log)
    assert run(bare, SET).changed
    replaced(catalog, bare, metadata_log=())
    with pytest.raises(SafetyError, match=r"is another table now \(uuid given, was None\)"):
        run(bare, SET)
