"""The starting snapshot of a run stays while the run lasts, and no tag stays for longer than it must."""

import json
import threading
from contextlib import nullcontext

import pytest
from msgspec.structs import replace

from icekeep.commit.changes.snapshots import ExpireSnapshots
from icekeep.commit.retry import commit
from icekeep.errors import (
    ConflictError,
    JobFailedError,
    OutcomeUnknownError,
    PropertyError,
    SafetyError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from icekeep.events import Warned
from icekeep.maintenance.rewrite.alive import Heartbeat
from icekeep.maintenance.rewrite.run import TAG_AGE_MS, TAG_PREFIX, pin_snapshot
from icekeep.operations.interrupts import Interrupted, JobInterrupts
from icekeep.spec.metadata import format_metadata
from icekeep.spec.retention import RetentionPolicy
from icekeep.spec.snapshots import SnapshotRef
from icekeep.spec.updates import RemoveSnapshotRef, RemoveSnapshots
from kit.changes import Recorder
from kit.memory_catalog import (
    COMMITS,
    CONFLICTS,
    IS_UNKNOWN,
    LANDS_BUT_IS_UNKNOWN,
    LANDS_BUT_SAYS_CONFLICT,
    MemoryCatalog,
    after,
    fails,
    lands_but_raises,
)
from kit.tables import EVENTS, add, memory_table, set_ref, swap

HOUR_MS = 3_600_000


@pytest.fixture
def catalog():
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    table = add(memory_table(catalog, commit__retry__num_retries="2"), "a")
    catalog.runtime.pass_ms(5 * HOUR_MS)
    return table


@pytest.fixture
def listener():
    return Recorder()


def held(table, listener, run_id="run"):
    return pin_snapshot(table, table.metadata.current_snapshot_id, run_id, table.catalog.runtime, listener)


def tags(catalog):
    return {name for name, ref in catalog.load(EVENTS).metadata.refs.items() if not ref.is_branch}


def expire(catalog):
    """Another job that expires all it may."""
    catalog.runtime.pass_ms(1)
    latest, now_ms = catalog.load(EVENTS), catalog.runtime.now_ms()
    policy = RetentionPolicy(older_than_ms=now_ms, retain_last=1)
    return commit(latest, ExpireSnapshots(policy=policy, now_ms=now_ms), runtime=catalog.runtime).table


def warnings(listener):
    return [event.message for event in listener.events if isinstance(event, Warned)]


def test_the_name_and_age_of_the_tag(table, catalog, listener):
    with held(table, listener, "1234") as name:
        assert (name, tags(catalog)) == (f"{TAG_PREFIX}1234", {name})
        assert catalog.load(EVENTS).metadata.refs[name] == SnapshotRef(
            snapshot_id=table.metadata.current_snapshot_id, type="tag", max_ref_age_ms=5 * HOUR_MS + TAG_AGE_MS
        )
    assert tags(catalog) == set()
    assert warnings(listener) == []


def test_a_clock_that_is_behind_the_snapshots_makes_its_age_zero(table, catalog, listener):
    catalog.runtime.clock_ms -= 100 * HOUR_MS
    with held(table, listener) as name:
        assert catalog.load(EVENTS).metadata.refs[name].max_ref_age_ms == TAG_AGE_MS


def test_expiration_leaves_the_start_while_it_is_held(table, catalog, listener):
    start_id = table.metadata.current_snapshot_id
    with held(table, listener):
        add(table, "b")
        catalog.runtime.pass_ms(23 * HOUR_MS)
        assert start_id in expire(catalog).metadata.snapshots_by_id
        add(table, "c")
        assert start_id in expire(catalog).metadata.snapshots_by_id
    assert start_id not in expire(catalog).metadata.snapshots_by_id


def test_expiration_between_the_plan_and_the_tag(table, catalog, listener):
    add(table, "b")
    catalog.follow(after(lambda: swap(table, RemoveSnapshots((table.metadata.current_snapshot_id,)))))
    expired = pytest.raises(ConflictError, match=r"snapshot \d+, which was planned on, expired meanwhile")
    with expired, held(table, listener):
        pytest.fail("the block began")
    assert tags(catalog) == set()


@pytest.mark.parametrize(
    "error", [JobFailedError("no"), KeyboardInterrupt(), ValueError("a bug"), OutcomeUnknownError("?")]
)
def test_the_tag_goes_whatever_comes_of_the_run(table, catalog, listener, error):
    with pytest.raises(type(error)) as raised, held(table, listener):
        raise error
    assert raised.value is error
    assert tags(catalog) == set()


@pytest.mark.parametrize("how", [IS_UNKNOWN, fails(UsageError("denied")), fails(SafetyError("no"))])
@pytest.mark.parametrize("error", [None, JobFailedError("no")])
def test_undroppable_tag_is_a_warning_and_hides_no_error(table, catalog, listener, how, error):
    def work():
        with held(table, listener) as name:
            catalog.follow(how)
            if error is not None:
                raise error
            return name

    if error is None:
        work()
    else:
        with pytest.raises(JobFailedError):
            work()
    (warning,) = warnings(listener)
    assert f"'{TAG_PREFIX}run' of 'db.events'" in warning.replace("local.", "")
    assert tags(catalog) == {f"{TAG_PREFIX}run"}


def test_conflicts_with_other_writers_are_tried_again(table, catalog, listener):
    catalog.follow(CONFLICTS, LANDS_BUT_SAYS_CONFLICT)
    with held(table, listener) as name:
        assert tags(catalog) == {name}
        catalog.follow(after(lambda: add(table, "b")))
    assert tags(catalog) == set()


def test_conflicts_that_go_on_stop_the_run_before_it_has_begun(table, catalog, listener):
    catalog.follow(*[CONFLICTS] * 3)
    with pytest.raises(ConflictError, match="the catalog refused all 3 commits to ") as raised, held(table, listener):
        pytest.fail("the block began")
    assert raised.value.exit_status == 75


def test_a_tag_that_was_made_though_the_answer_was_lost_is_held(table, catalog, listener):
    catalog.follow(LANDS_BUT_IS_UNKNOWN)
    with held(table, listener) as name:
        assert tags(catalog) == {name}
    assert tags(catalog) == set()


@pytest.mark.parametrize("how", [IS_UNKNOWN, lands_but_raises(OutcomeUnknownError("the answer was lost"))])
def test_a_tag_of_unknown_outcome_is_dropped(table, catalog, listener, how):
    catalog.follow(how)
    unknown = pytest.raises(UnavailableError, match=r"not known whether tag .* was made .* run it again")
    with unknown as raised, held(table, listener):
        pytest.fail("the block began")
    assert raised.value.exit_status == 75
    assert tags(catalog) == set()


def test_an_interrupt_while_the_tag_is_made_is_an_interrupt(table, catalog, listener):
    catalog.follow(lands_but_raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt), held(table, listener):
        pytest.fail("the block began")
    assert tags(catalog) == set()


@pytest.mark.parametrize("error", [UsageError("403: no tags for you"), UnsupportedError("501: no tags here")])
def test_refused_tag_is_a_warning_and_the_run_goes_on(table, catalog, listener, error):
    """The tag is an aid."""
    catalog.follow(fails(error))
    with held(table, listener):
        assert tags(catalog) == set()
        add(table, "b")
    assert tags(catalog) == set()
    [warning] = warnings(listener)
    assert "is not held by a tag" in warning
    assert error.message in warning


def test_bad_retry_property_stops_the_run_before_it_begins(catalog, listener):
    table = add(memory_table(catalog), "a")
    wrong = replace(table.metadata, properties={"commit.retry.num-retries": "many"})
    with pytest.raises(PropertyError), held(replace(table, metadata=wrong), listener):
        pytest.fail("the block began")


def beating_and_held(table, listener):
    heartbeat = Heartbeat(table, "run", "compact", table.catalog.runtime, listener)
    start_id = table.metadata.current_snapshot_id
    return heartbeat, pin_snapshot(table, start_id, "run", table.catalog.runtime, listener, heartbeat)


def test_a_run_of_days_holds_its_start_by_renewing_the_tag(table, catalog, listener):
    """After a day the tag expired, and the starting snapshot with it."""
    start_id = table.metadata.current_snapshot_id
    heartbeat, hold = beating_and_held(table, listener)
    with hold:
        add(table, "b")
        versions = set()
        for _ in range(3 * 24):
            catalog.runtime.pass_ms(HOUR_MS)
            heartbeat.beat()
            versions.add(catalog.load(EVENTS).metadata_location)
            assert start_id in expire(catalog).metadata.snapshots_by_id
        # Two commits a day, not one a beat.
        assert len(versions) <= 7
    assert start_id not in expire(catalog).metadata.snapshots_by_id
    assert warnings(listener) == []


def test_a_tag_that_somebody_dropped_is_not_made_again(table, catalog, listener):
    heartbeat, hold = beating_and_held(table, listener)
    with hold as name:
        swap(catalog.load(EVENTS), RemoveSnapshotRef(name))
        catalog.runtime.pass_ms(TAG_AGE_MS)
        heartbeat.beat()
        assert tags(catalog) == set()
    catalog.runtime.pass_ms(TAG_AGE_MS)
    heartbeat.beat()
    assert tags(catalog) == set()


def test_failed_tag_renewal_warns_once_and_is_retried(table, catalog, listener):
    heartbeat, hold = beating_and_held(table, listener)
    with hold as name:
        before = catalog.load(EVENTS).metadata.refs[name].max_ref_age_ms
        catalog.runtime.pass_ms(TAG_AGE_MS // 2)
        for _ in range(2):
            catalog.follow(fails(SafetyError("not now")))
            heartbeat.beat()
        assert len(warnings(listener)) == 1
        heartbeat.beat()
        assert catalog.load(EVENTS).metadata.refs[name].max_ref_age_ms == before + TAG_AGE_MS // 2


def test_only_tags_of_dead_runs_are_dropped(table, catalog, listener):
    start_id = table.metadata.current_snapshot_id
    for name, age_ms in {"dead": 4 * HOUR_MS, "alive": 6 * HOUR_MS}.items():
        table = set_ref(table, f"{TAG_PREFIX}{name}", start_id, max_ref_age_ms=age_ms)
    # Without an age of its own it is not ours; a branch is never.
    table = set_ref(table, f"{TAG_PREFIX}ageless", start_id)
    table = set_ref(table, f"{TAG_PREFIX}branch", start_id, "branch", max_ref_age_ms=1)
    table = set_ref(table, "release", start_id, max_ref_age_ms=1)
    left = {f"{TAG_PREFIX}alive", f"{TAG_PREFIX}ageless", "release"}
    with held(table, listener) as name:
        assert tags(catalog) == {*left, name}
    assert tags(catalog) == left
    assert f"{TAG_PREFIX}branch" in catalog.load(EVENTS).metadata.refs


def test_a_left_over_tag_that_cannot_be_dropped_hinders_no_run(table, catalog, listener):
    table = set_ref(table, f"{TAG_PREFIX}dead", table.metadata.current_snapshot_id, max_ref_age_ms=1)
    catalog.follow(COMMITS, fails(UsageError("denied")))
    with held(table, listener) as name:
        assert tags(catalog) == {f"{TAG_PREFIX}dead", name}
    assert len(warnings(listener)) == 1


def test_two_runs_hold_what_each_of_them_started_from(table, catalog, listener):
    with held(table, listener, "one"):
        later = add(table, "b")
        with held(later, listener, "two"):
            add(table, "c")
            kept = expire(catalog).metadata.snapshots_by_id
            assert {table.metadata.current_snapshot_id, later.metadata.current_snapshot_id} <= kept.keys()
        kept = expire(catalog).metadata.snapshots_by_id
        assert table.metadata.current_snapshot_id in kept
        assert later.metadata.current_snapshot_id not in kept
    assert tags(catalog) == set()


def with_codec(table, codec):
    """The table after an engine has given it a codec that icekeep writes no metadata with."""
    raw = json.loads(table.storage.read(table.metadata_location))
    raw["properties"]["write.metadata.compression-codec"] = codec
    table.storage.delete_many([table.metadata_location])
    table.storage.create(table.metadata_location, json.dumps(raw).encode())
    return table.catalog.load(EVENTS)


def test_a_codec_of_metadata_that_cannot_be_written(catalog, listener):
    """All groups were rewritten, and then no commit could land."""
    table = with_codec(add(memory_table(catalog), "a"), "zstd")
    with pytest.raises(PropertyError, match="zstd"), held(table, listener):
        pytest.fail("the block began")


def test_metadata_codec_is_left_to_the_rest_server(catalog, listener, monkeypatch):
    """REST: the run was refused, although it writes no file of metadata."""
    table = with_codec(add(memory_table(catalog), "a"), "zstd")

    def new_name(metadata, version, runtime):
        return f"{metadata.location}/metadata/{version:05d}-{runtime.new_uuid()}.metadata.json"

    monkeypatch.setattr("kit.memory_catalog.new_location", new_name)
    monkeypatch.setattr("kit.memory_catalog.encode", format_metadata)
    with held(table, listener) as name:
        assert tags(catalog) == {name}
    assert tags(catalog) == set()


AWAY = UnavailableError("connection refused")
DOWN = [fails(AWAY)] * 10**4


def unreadable(catalog):
    catalog.failing_loads = 10**6


def refuses_swaps(catalog):
    catalog.follow(*DOWN)


def answers_nothing(catalog):
    """As a proxy before a server that is away: the swap's outcome is unknown, and no look finds out."""
    catalog.follow(after(lambda: unreadable(catalog), then=IS_UNKNOWN))


def ends_while(outage, error, table, listener):
    """A run that ends by an error while the catalog is away."""
    with held(table, listener):
        outage(table.catalog)
        raise error


OUTAGES = [unreadable, refuses_swaps, answers_nothing]


@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted(143)])
def test_an_interrupted_run_waits_some_seconds(table, catalog, listener, outage, error):
    with pytest.raises(type(error)):
        ends_while(outage, error, table, listener)
    assert 5_000 < sum(catalog.runtime.sleeps_ms) < 11_000
    (warning,) = warnings(listener)
    assert f"'{TAG_PREFIX}run' of 'db.events'" in warning


@pytest.mark.parametrize("outage", OUTAGES)
@pytest.mark.parametrize("error", [None, JobFailedError("Spark's jobs are cancelled")])
def test_a_run_in_a_stopping_process_waits_some_seconds(table, catalog, listener, outage, error):
    stop = threading.Event()
    interrupts = JobInterrupts(stop)
    runtime = interrupts.runtime(catalog.runtime)
    ending = nullcontext() if error is None else pytest.raises(JobFailedError)
    hold = pin_snapshot(table, table.metadata.current_snapshot_id, "run", runtime, listener)
    with interrupts.of_job(), ending, hold:
        outage(catalog)
        stop.set()
        if error is not None:
            raise error
    assert 5_000 < sum(catalog.runtime.sleeps_ms) < 11_000
    assert len(warnings(listener)) == 1


def test_stopped_run_does_not_wait_for_long_retries(catalog, listener):
    table = add(memory_table(catalog, commit__retry__min_wait_ms="3600000", commit__retry__max_wait_ms="3600000"), "a")
    with pytest.raises(KeyboardInterrupt):
        ends_while(lambda catalog: catalog.follow(*[CONFLICTS] * 4), KeyboardInterrupt(), table, listener)
    assert sum(catalog.runtime.sleeps_ms) < 11_000


def test_waiting_tag_drop_gives_up_soon_after_a_stop(table, catalog, listener):
    stop = threading.Event()
    interrupts = JobInterrupts(stop)
    runtime = interrupts.runtime(catalog.runtime)
    with interrupts.of_job():
        with pin_snapshot(table, table.metadata.current_snapshot_id, "run", runtime, listener):
            slow = fails(AWAY)
            catalog.follow(slow, after(stop.set, then=slow), *DOWN)
        # What is slept for real, a tenth of a second, is no sleep of the fake one.
        assert sum(catalog.runtime.sleeps_ms) < 11_000
        assert len(warnings(listener)) == 1
        with pytest.raises(Interrupted):
            interrupts.check()


def test_tag_is_dropped_if_the_run_stops_during_the_drop(table, catalog, listener):
    stop = threading.Event()
    interrupts = JobInterrupts(stop)
    runtime = interrupts.runtime(catalog.runtime)
    with interrupts.of_job():
        with pin_snapshot(table, table.metadata.current_snapshot_id, "run", runtime, listener):
            catalog.follow(CONFLICTS)
            stop.set()
        assert (tags(catalog), warnings(listener), len(catalog.runtime.sleeps_ms)) == (set(), [], 1)
        with pytest.raises(Interrupted):
            interrupts.check()
