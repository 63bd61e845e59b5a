"""The loop: how often a change is applied, to what, and how long it waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import RetryPolicy, attach, check_submitter, commit
from icekeep.commit.summary import COMMIT_ID
from icekeep.errors import ConflictError, IcekeepError, OptionError, UnavailableError, UsageError
from icekeep.events import CommitRetried, SnapshotCommitted
from icekeep.runs import Run
from kit.cases import for_each
from kit.catalogs import COUNTER, set_counter
from kit.changes import Applying, Recorder, run
from kit.memory_catalog import (
    CONFLICTS,
    MemoryCatalog,
    after,
)
from kit.runtime import FakeRuntime
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import EVENTS, add, files, live, memory_table, raw_list, stored, swap, written_by

ONE = AppendFiles(files=files("new"))
SET = ChangeProperties(updates={"owner": "me"})


@pytest.fixture
def catalog() -> MemoryCatalog:
    return MemoryCatalog()


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


def test_a_commit_and_the_table_after_it_are_of_the_run_that_works_on_the_table(catalog, table):
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


def test_a_change_is_applied_to_the_table_as_it_is_now_not_as_it_was_loaded(catalog, table):
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
def test_a_commit_is_tried_once_and_then_as_often_again_as_the_table_allows(catalog, retries, attempts):
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


def test_waits_below_zero_are_none_and_do_not_hide_why_a_commit_failed(catalog):
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
def test_a_property_that_is_no_whole_number_is_refused_before_anything_is_written(catalog, name, text):
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


def test_after_success_only_the_lists_of_losing_attempts_are_gone(catalog, table):
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


def test_a_snapshot_of_the_same_id_that_another_made_meanwhile_is_not_taken_for_ours(catalog, table):
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
