"""The record of runs in SQLite: what is written is read, what is asked in one query is what a plain look at all runs tells."""

import sqlite3
from contextlib import closing
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import ConfigError, UnavailableError, UnsupportedError, UsageError
from icekeep.processes import process_name
from icekeep.run_records import store
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import (
    CUT_OFF_MS,
    LEFT_ALONE_MS,
    SILENT_MS,
    SKEW_MS,
    JobPace,
    LastRuns,
    Paces,
    RunFilter,
    RunRecord,
)
from icekeep.runs import INTERRUPTED, RUNNING, UNFINISHED
from icekeep.spec.types import DAY_MS, HOUR_MS
from kit.cases import cases, for_each
from kit.runtime import FakeRuntime

NOW_MS = 1_700_000_000_000


def record(run_id="compact-1", **fields):
    return RunRecord(
        **{
            "run_id": run_id,
            "job": "compact",
            "table": "lake.db.t",
            "policy": "nightly",
            "started_ms": NOW_MS - 1000,
            "seen_ms": NOW_MS - 1000,
            **fields,
        }
    )


def done(run_id, ended_ms, exit_status=0, status="done", **fields):
    return record(run_id, started_ms=ended_ms - 10, ended_ms=ended_ms, exit_status=exit_status, status=status, **fields)


@pytest.fixture
def records(tmp_path):
    return RunRecords.at(f"sqlite:///{tmp_path}/runs.db")


def test_a_run_is_read_as_it_was_written(records):
    whole = record(
        parent_id="maintain-1",
        policy="weekly",
        status="partial",
        exit_status=3,
        error_kind="conflict",
        error_message="another writer won",
        ended_ms=NOW_MS,
        seen_ms=NOW_MS,
        host="h",
        process="p",
        version="0.1.0",
        arguments={"where": "a = 'ü'", "options": {"x": "1"}},
        app_id="local-1",
        snapshot_id_before=2**62,
        snapshot_id_after=2**62 + 1,
        metadata_location_before="s3://b/1",
        metadata_location_after="s3://b/2",
        result={"files": [1, None, "a"]},
        estimated_ms=1,
        estimated_cpu_ms=2,
        cpu_ms=3,
    )
    plain = record()
    same = [name for name in RunRecord.__struct_fields__ if getattr(whole, name) == getattr(plain, name)]
    assert same == ["run_id", "job", "table", "started_ms"]
    records.begin(whole)
    assert records.select(RunFilter(), NOW_MS) == [whole]


def test_end_is_recorded_with_or_without_start(records):
    records.begin(record("compact-1"))
    records.end(done("compact-1", NOW_MS))
    records.end(done("compact-2", NOW_MS + 1))
    assert [(one.run_id, one.status) for one in records.select(RunFilter(), NOW_MS)] == [
        ("compact-2", "done"),
        ("compact-1", "done"),
    ]


def test_a_beat_moves_only_what_runs(records):
    records.begin(record("compact-1"))
    records.end(done("compact-2", NOW_MS, seen_ms=NOW_MS))
    for run_id in ("compact-1", "compact-2"):
        records.beat(run_id, NOW_MS + 5)
    seen = {one.run_id: one.seen_ms for one in records.select(RunFilter(), NOW_MS)}
    assert seen == {"compact-1": NOW_MS + 5, "compact-2": NOW_MS}


@for_each(
    ("given", "options"),
    [
        ("", ""),
        ("?currentSchema=runs", " -csearch_path=runs"),
        ("?options=-csearch_path%3Druns", " -csearch_path=runs"),
        ("?options=-cstatement_timeout%3D1s", " -cstatement_timeout=1s"),
        ("?connect_timeout=2", ""),
    ],
)
def test_no_parameter_of_an_address_takes_the_time_limits_away(given, options, monkeypatch):
    opened = []

    def open_database(url, title, *, answer_seconds):
        opened.append((url, answer_seconds))
        return SimpleNamespace(address=url)

    monkeypatch.setattr(store, "Database", open_database)
    RunRecords.at(f"postgresql://me@host/db{given}")
    ((url, answer_seconds),) = opened
    assert url.query["options"] == f"-clock_timeout=5s -cstatement_timeout=10s{options}"
    assert int(url.query["connect_timeout"]) <= 5
    assert answer_seconds <= 15


def test_reading_makes_no_database(records, tmp_path):
    assert records.select(RunFilter(), NOW_MS) == []
    assert records.last_of(["lake.db.t"], NOW_MS) == {}
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"job": "compact"}, "a b d e"),
        ({"tables": ["lake.db.u"]}, "b c"),
        ({"status": "failed"}, "b"),
        ({"status": RUNNING}, "d"),
        ({"status": UNFINISHED}, "e"),
        ({"run_id": "c"}, "c"),
        ({"run_id": "%"}, ""),
        ({"parent_id": "maintain-1"}, "c"),
        ({"since_ms": NOW_MS - 2}, "d e"),
        ({"limit": 2}, "d e"),
        ({"status": UNFINISHED, "limit": 1}, "e"),
        ({"job": "compact", "tables": ["lake.db.t"], "limit": 1}, "d"),
    ],
)
def test_runs_are_found_by_what_is_wanted(records, wanted, found):
    for one in (
        record("a", started_ms=NOW_MS - 5, status="done"),
        record("b", started_ms=NOW_MS - 4, table="lake.db.u", status="failed"),
        record("c", started_ms=NOW_MS - 3, table="lake.db.u", job="check", status="faulty", parent_id="maintain-1"),
        record("e", started_ms=NOW_MS - 2, seen_ms=NOW_MS - SILENT_MS - 1),
        record("d", started_ms=NOW_MS - 1, seen_ms=NOW_MS - SILENT_MS),
    ):
        records.begin(one)
    assert sorted(one.run_id for one in records.select(RunFilter(**wanted), NOW_MS)) == found.split()


def test_a_run_whose_process_is_gone_is_unfinished_at_once():
    assert record(seen_ms=NOW_MS, process=process_name()).status_at(NOW_MS) == RUNNING
    where = process_name().rpartition("@")[0]
    assert record(seen_ms=NOW_MS, process=f"{where}@1").status_at(NOW_MS) == UNFINISHED
    assert record(seen_ms=NOW_MS, process="elsewhere/pid:1@1").status_at(NOW_MS) == RUNNING


def plainly_last(runs):
    """What `last_of` tells, by a look at all runs."""
    told = {}
    for key in {(run.table, run.job) for run in runs}:
        mine = [run for run in runs if (run.table, run.job) == key and run.policy and at(run) <= NOW_MS + SKEW_MS]
        oks = [at(run) for run in mine if run.exit_status in (0, 3)]
        failed = [run for run in mine if has_failed(run)]
        nights = nights_of([at(run) for run in failed if at(run) > max(oks, default=0)])
        cut_off = [at(run) for run in mine if was_cut_off(run) and at(run) > max(oks, default=0)]
        if oks or failed or cut_off:
            told[key] = LastRuns(
                last_ok_ms=max(oks, default=None),
                failures_in_a_row=len(nights),
                last_failure_ms=at(failed[-1]) if failed else None,
                last_error=failed[-1].error_message if failed else None,
                night_ms=nights[-1] if nights else None,
                cut_offs_in_a_row=len(nights_of(cut_off)),
                last_cut_off_ms=cut_off[-1] if cut_off else None,
                cut_off_night_ms=nights_of(cut_off)[-1] if cut_off else None,
            )
    return told


def nights_of(times):
    """When the first of each night ended."""
    nights = []
    while times:
        nights.append(times[0])
        times = [at_ms for at_ms in times if at_ms >= nights[-1] + 12 * HOUR_MS]
    return nights


def was_cut_off(run):
    return run.status == INTERRUPTED and run.ended_ms - run.started_ms >= CUT_OFF_MS


def at(run):
    return run.ended_ms or run.seen_ms


def has_failed(run):
    return run.is_unfinished(NOW_MS) or run.exit_status in (1, 4)


JOBS = st.sampled_from(["compact", "check"])
ENDS = st.sampled_from(["done", "partial", "failed", "refused", "again", "interrupted", "cut off", "running", "died"])
GAPS_MS = st.one_of(st.integers(1, 5), st.integers(1, 30 * HOUR_MS), st.sampled_from([12 * HOUR_MS, 24 * HOUR_MS]))


def run_of(number, at_ms, end, table, job, policy):
    common = {"table": table, "job": job, "policy": policy, "started_ms": at_ms - 5}
    match end:
        case "running":
            return record(f"r{number}", **common, seen_ms=NOW_MS)
        case "died":
            return record(f"r{number}", **common, seen_ms=at_ms)
        case "cut off":
            common["started_ms"] = at_ms - CUT_OFF_MS
    status, exit_status = {
        "done": ("done", 0),
        "partial": ("partial", 3),
        "failed": ("failed", 1),
        "refused": ("failed", 4),
        "again": ("failed", 75),
        "interrupted": (INTERRUPTED, 143),
        "cut off": (INTERRUPTED, 143),
    }[end]
    return record(
        f"r{number}",
        **common,
        ended_ms=at_ms,
        seen_ms=at_ms,
        status=status,
        exit_status=exit_status,
        error_message=f"error {number}" if exit_status in (1, 4, 75) else None,
    )


@cases(60)
@given(
    runs=st.lists(st.tuples(ENDS, st.sampled_from("tu"), JOBS, st.sampled_from(["p", "p", None])), max_size=12),
    gaps=st.lists(GAPS_MS, min_size=12, max_size=12),
    until=st.sampled_from([NOW_MS - SILENT_MS - 1, NOW_MS + SKEW_MS, NOW_MS + 40 * HOUR_MS]),
)
def test_last_runs_are_those_of_a_plain_look(tmp_path_factory, runs, gaps, until):
    records = RunRecords.at(f"sqlite:///{tmp_path_factory.mktemp('runs')}/runs.db")
    times = [until - sum(gaps[number + 1 : len(runs)]) for number in range(len(runs))]
    written = [run_of(number, at_ms, *one) for number, (at_ms, one) in enumerate(zip(times, runs, strict=True))]
    for one in written:
        records.end(one)
    assert records.last_of(["t", "u"], NOW_MS) == plainly_last(written)
    assert records.last_of(["t"], NOW_MS) == {key: one for key, one in plainly_last(written).items() if key[0] == "t"}


def test_failures_count_once_per_night_without_transient_ones(records):
    for night in range(2):
        for attempt, exit_status in enumerate((1, 75, 4, 1)):
            at_ms = NOW_MS - (2 - night) * 24 * HOUR_MS + attempt * HOUR_MS
            records.end(done(f"c-{night}-{attempt}", at_ms, exit_status, "failed", error_message=f"{night}{attempt}"))
        records.end(done(f"e-{night}", NOW_MS - night, 75, "failed", job="expire_snapshots"))
    last = records.last_of(["lake.db.t"], NOW_MS)
    assert last == {
        ("lake.db.t", "compact"): LastRuns(
            failures_in_a_row=2,
            last_failure_ms=NOW_MS - 21 * HOUR_MS,
            last_error="13",
            night_ms=NOW_MS - 24 * HOUR_MS,
        )
    }


def test_records_from_clock_ahead_are_ignored_by_others(records):
    ahead = NOW_MS + 365 * DAY_MS
    for number, (job, exit_status) in enumerate((("compact", 0), ("check", 1), ("check", 1))):
        records.end(done(f"a{number}", ahead + number, exit_status, job=job))
    assert records.last_of(["lake.db.t"], NOW_MS + 100 * DAY_MS) == {}
    assert {job for _, job in records.last_of(["lake.db.t"], ahead)} == {"compact", "check"}
    running = record(seen_ms=ahead)
    assert (running.status_at(ahead), running.status_at(NOW_MS)) == (RUNNING, UNFINISHED)
    assert record(seen_ms=NOW_MS + SKEW_MS).status_at(NOW_MS) == RUNNING


def test_a_fleet_is_asked_of_in_one_query_however_large_it_is(records):
    records.end(done("a", NOW_MS, table="lake.db.t7"))
    many = [f"lake.db.t{number}" for number in range(40_000)]
    assert records.last_of(many, NOW_MS) == {("lake.db.t7", "compact"): LastRuns(last_ok_ms=NOW_MS)}


def test_lease_has_one_holder_until_dropped_or_expired(records):
    take = records.take_lease
    assert take("t", "a", NOW_MS + 10, NOW_MS) == "a"
    assert take("t", "b", NOW_MS + 20, NOW_MS + 5) == "a"
    assert take("u", "b", NOW_MS + 20, NOW_MS + 5) == "b"
    assert take("t", "a", NOW_MS + 30, NOW_MS + 5) == "a"
    assert take("t", "b", NOW_MS + 40, NOW_MS + 29) == "a"
    assert take("t", "b", NOW_MS + 40, NOW_MS + 30) == "b"
    records.renew_leases("b", NOW_MS + 90)
    assert [take(table, "a", NOW_MS + 99, NOW_MS + 89) for table in "tu"] == ["b", "b"]
    records.drop_lease("t", "a")
    assert take("t", "a", NOW_MS + 99, NOW_MS + 50) == "b"
    records.drop_lease("t", "b")
    assert take("t", "a", NOW_MS + 99, NOW_MS + 50) == "a"


def test_a_lease_that_is_far_ahead_of_the_clock_is_no_lease(records):
    assert records.take_lease("t", "ahead", NOW_MS + 365 * DAY_MS, NOW_MS + 364 * DAY_MS) == "ahead"
    assert records.take_lease("t", "b", NOW_MS + 10, NOW_MS) == "b"
    assert records.take_lease("t", "b", NOW_MS + 10 + SKEW_MS, NOW_MS) == "b"
    assert records.take_lease("t", "c", NOW_MS + 10, NOW_MS) == "b"


def test_old_runs_are_forgotten(records):
    for run_id, started_ms in (("a", NOW_MS - 2), ("b", NOW_MS - 1)):
        records.begin(record(run_id, started_ms=started_ms))
    records.forget(NOW_MS - 1, NOW_MS)
    assert [one.run_id for one in records.select(RunFilter(), NOW_MS)] == ["b"]


def test_a_clock_that_jumps_far_ahead_takes_no_run_for_old(records):
    for day in range(0, 410, 10):
        records.begin(record(f"r{day}", started_ms=NOW_MS + (day - 410) * DAY_MS))
    for ahead in (400 * DAY_MS, 300 * DAY_MS, 200 * DAY_MS):
        now_ms = NOW_MS + ahead
        for turn in range(2):
            records.begin(record(f"ahead-{ahead}-{turn}", started_ms=now_ms + turn))
            records.forget(now_ms - 400 * DAY_MS, now_ms + turn)
        assert len(records.select(RunFilter(run_id="r"), NOW_MS)) == 41
    records.begin(record("now", started_ms=NOW_MS))
    records.forget(NOW_MS - 400 * DAY_MS, NOW_MS)
    assert len(records.select(RunFilter(run_id="r"), NOW_MS)) == 40


@pytest.mark.parametrize("keep_days", [2, 4, 7, 30, 90, 119, 400])
@pytest.mark.parametrize("ahead_days", [30, 40, 100, 500])
def test_far_jump_of_clock_forgets_no_runs(records, keep_days, ahead_days):
    for day in range(30):
        records.begin(record(f"r{day}", started_ms=NOW_MS - day * DAY_MS))
    now_ms = NOW_MS + ahead_days * DAY_MS
    for turn in range(2):
        records.begin(record(f"ahead-{turn}", started_ms=now_ms + turn))
        records.forget(now_ms + turn - keep_days * DAY_MS, now_ms + turn)
    assert len(records.select(RunFilter(run_id="r"), NOW_MS)) == 30


@pytest.mark.parametrize("ahead_days", [14, 16, 20, 29])
def test_clock_slightly_ahead_forgets_no_runs(records, ahead_days):
    for day in range(30):
        records.begin(record(f"r{day}", started_ms=NOW_MS - day * DAY_MS))
    now_ms = NOW_MS + ahead_days * DAY_MS
    records.begin(record("ahead", started_ms=now_ms))
    records.forget(now_ms - 30 * DAY_MS, now_ms)
    assert len(records.select(RunFilter(run_id="r"), NOW_MS)) == 30


@pytest.mark.parametrize("keep_days", [1, 2, 3, 4, 5, 7, 14, 30, 60, 119, 180, 400])
def test_nightly_runs_are_forgotten_however_short_they_are_kept(records, keep_days):
    for night in range(keep_days + 10):
        now_ms = NOW_MS + night * DAY_MS
        records.begin(record(f"r{night:03d}", started_ms=now_ms))
        records.forget(now_ms + HOUR_MS - keep_days * DAY_MS, now_ms + HOUR_MS)
    assert len(records.select(RunFilter(), NOW_MS)) <= keep_days + 1


def test_a_result_that_is_too_long_is_left_out_and_said_so(records):
    records.end(done("a", NOW_MS, result={"text": "x" * 300_000}))
    assert "300011 bytes" in records.select(RunFilter(), NOW_MS)[0].result["left_out"]


def of_version_1(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for name in ("estimated_ms", "estimated_cpu_ms", "cpu_ms"):
            connection.execute(f"ALTER TABLE icekeep_runs DROP COLUMN {name}")
        connection.execute("UPDATE icekeep_version SET version = 1")


def test_older_database_is_read_as_is_and_upgraded_on_write(records, tmp_path):
    records.end(done("a", NOW_MS))
    of_version_1(tmp_path / "runs.db")
    again = RunRecords.at(f"sqlite:///{tmp_path}/runs.db")
    before = (tmp_path / "runs.db").read_bytes()
    for has_results in (True, False):
        assert [one.run_id for one in again.select(RunFilter(has_results=has_results), NOW_MS)] == ["a"]
    assert again.last_of({"lake.db.t"}, NOW_MS)
    assert again.paces(NOW_MS) == Paces()
    # Who only looks may not be allowed to write, and would shut out an older icekeep that still runs elsewhere.
    assert (tmp_path / "runs.db").read_bytes() == before
    again.end(done("b", NOW_MS, estimated_ms=5, cpu_ms=7))
    assert again.select(RunFilter(run_id="b"), NOW_MS)[0].cpu_ms == 7
    assert again.paces(NOW_MS).by_table


def took(run_id, ms, *, ago_ms=0, **fields):
    ended_ms = NOW_MS - ago_ms
    whole = {"exit_status": 0, "status": "done", **fields}
    return record(run_id, started_ms=ended_ms - ms, ended_ms=ended_ms, **whole)


def test_pace_comes_from_last_five_runs_on_table(records):
    # An old slow one is over, one that did a part of its work says nothing, and a long one says more than short ones.
    records.end(took("old", 90_000, ago_ms=9_000, estimated_ms=1_000))
    records.end(took("part", 90_000, ago_ms=800, estimated_ms=1_000, exit_status=3))
    records.end(took("by hand", 90_000, ago_ms=700))
    for number in range(4):
        records.end(took(f"short {number}", 1_000, ago_ms=number, estimated_ms=1_000, estimated_cpu_ms=10, cpu_ms=40))
    records.end(took("long", 36_000, ago_ms=10, estimated_ms=16_000))
    paces = records.paces(NOW_MS)
    assert paces.of("lake.db.t", "compact") == JobPace(elapsed=2.0, cpu=4.0)


def test_a_new_table_is_expected_to_be_like_the_others(records):
    records.end(took("a", 3_000, table="lake.db.a", estimated_ms=1_000))
    records.end(took("b", 1_000, table="lake.db.b", estimated_ms=1_000, estimated_cpu_ms=100, cpu_ms=50))
    paces = records.paces(NOW_MS)
    assert paces.of("lake.db.new", "compact") == JobPace(elapsed=2.0, cpu=0.5)
    assert paces.of("lake.db.a", "compact") == JobPace(elapsed=3.0, cpu=0.5)
    assert paces.of("lake.db.a", "check") == JobPace()
    for table in ("lake.db.b", "lake.db.new"):
        assert records.pace_of(table, "compact", NOW_MS) == paces.of(table, "compact")
    assert records.pace_of("lake.db.a", "check", NOW_MS) == JobPace()


def test_of_a_table_that_has_runs_no_other_is_asked(records):
    records.end(took("a", 1_000, table="lake.db.a", estimated_ms=1_000, estimated_cpu_ms=1_000, cpu_ms=3_000))
    asked = []
    records.paces, paces = lambda *given: asked.append(len(given[1])) or paces(*given), records.paces
    assert records.pace_of("lake.db.a", "compact", NOW_MS).cpu == 3.0
    assert asked == [2]


def test_old_and_future_runs_are_ignored_and_pace_is_bounded(records):
    records.end(took("old", 5_000, ago_ms=31 * DAY_MS, estimated_ms=1_000))
    records.end(took("to come", 5_000, ago_ms=-DAY_MS, estimated_ms=1_000))
    assert records.paces(NOW_MS).of("lake.db.t", "compact") == JobPace()
    # One slow night must not put a table off by its estimate alone.
    for number, most in enumerate((4.0, 16.0, 64.0, 64.0)):
        absurd = {"estimated_ms": 1, "estimated_cpu_ms": 10_000_000, "cpu_ms": 1}
        records.end(took(f"absurd {number}", 10_000_000, **absurd))
        assert records.paces(NOW_MS).of("lake.db.t", "compact") == JobPace(elapsed=most, cpu=1 / most)


def test_a_database_of_a_newer_icekeep_is_left_alone(records, tmp_path):
    records.begin(record())
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("UPDATE icekeep_version SET version = 99")
    with pytest.raises(UnsupportedError, match="version 99"):
        RunRecords.at(f"sqlite:///{tmp_path}/runs.db").begin(record("compact-2"))


def test_what_is_no_database_is_an_error_of_its_own(tmp_path):
    (tmp_path / "runs.db").write_text("no database, but a long text that is none")
    with pytest.raises(
        UsageError, match=r"the record of runs at 'sqlite:///.*/runs.db' failed: file is not a database"
    ):
        RunRecords.at(f"sqlite:///{tmp_path}/runs.db").begin(record())


def test_locked_database_is_retried_for_seconds_then_reported(tmp_path):
    runtime = FakeRuntime(chance=None)
    records = RunRecords.at(f"sqlite:///{tmp_path}/runs.db", runtime)
    records.begin(record())
    with sqlite3.connect(tmp_path / "runs.db") as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="is busy: database is locked"):
            records.begin(record("compact-2"))
        assert 5000 < runtime.elapsed_ms < 5100
        runtime.before_sleep = other.rollback
        records.begin(record("compact-3"))
    assert [one.run_id for one in records.select(RunFilter(), NOW_MS)] == ["compact-1", "compact-3"]


def test_one_call_waits_for_locked_database_and_all_proceed(tmp_path):
    runtime = FakeRuntime(chance=None)
    uri = f"sqlite:///{tmp_path}/runs.db"
    RunRecords.at(uri, runtime).begin(record())
    part = record("compact-2", parent_id="maintain-1")
    with sqlite3.connect(tmp_path / "runs.db") as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="is busy"):
            RunRecords.at(uri, runtime).begin(part)
        waited_ms = runtime.elapsed_ms
        for name, *arguments in (
            ("end", part),
            ("take_lease", "t", "a", NOW_MS + 1, NOW_MS),
            ("drop_lease", "t", "a"),
            ("last_of", ["t"], NOW_MS),
            ("select", RunFilter(), NOW_MS),
        ):
            with pytest.raises(UnavailableError, match=r"is busy: database is locked; it is left alone for \d+"):
                getattr(RunRecords.at(uri, runtime), name)(*arguments)
        assert runtime.elapsed_ms == waited_ms
        for name, *arguments in (("end", record()), ("beat", "compact-1", NOW_MS), ("renew_leases", "a", NOW_MS)):
            waited_ms = runtime.elapsed_ms
            with pytest.raises(UnavailableError, match=r"is busy: database is locked$"):
                getattr(RunRecords.at(uri, runtime), name)(*arguments)
            assert runtime.elapsed_ms - waited_ms > 5000
    runtime.pass_ms(LEFT_ALONE_MS)
    records = RunRecords.at(uri, runtime)
    records.begin(part)
    records.end(done("compact-2", NOW_MS, parent_id="maintain-1"))
    assert records.select(RunFilter(run_id="compact-2"), NOW_MS)[0].status == "done"


def test_unwritten_ends_are_written_with_next_successful_call(tmp_path):
    runtime = FakeRuntime(chance=None)
    records = RunRecords.at(f"sqlite:///{tmp_path}/runs.db", runtime)
    parts = [f"compact-{number}" for number in range(3)]
    records.begin(record("maintain-1", job="maintain", table="", policy=None, seen_ms=NOW_MS))
    for number, run_id in enumerate(parts):
        records.begin(record(run_id, table=f"lake.db.t{number}", parent_id="maintain-1"))
    with sqlite3.connect(tmp_path / "runs.db") as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="is busy"):
            records.end(done(parts[0], NOW_MS, table="lake.db.t0", parent_id="maintain-1"))
    # The lock is gone, and the record is left alone still.
    for number in (1, 2):
        with pytest.raises(UnavailableError, match="it is left alone"):
            records.end(done(parts[number], NOW_MS, table=f"lake.db.t{number}", parent_id="maintain-1"))
    with sqlite3.connect(tmp_path / "runs.db") as other:
        assert other.execute("SELECT DISTINCT status FROM icekeep_runs").fetchall() == [(RUNNING,)]
    records.renew_leases("maintain-1", NOW_MS + 1)
    later_ms = NOW_MS + SILENT_MS + HOUR_MS
    assert records.last_of([f"lake.db.t{number}" for number in range(3)], later_ms) == {
        (f"lake.db.t{number}", "compact"): LastRuns(last_ok_ms=NOW_MS) for number in range(3)
    }


def test_pending_end_is_kept_until_written_or_superseded(tmp_path, monkeypatch):
    """It makes no later call fail."""
    records = RunRecords.at(f"sqlite:///{tmp_path}/runs.db", FakeRuntime())
    with monkeypatch.context() as patch:
        patch.setattr("icekeep.catalog.database.Database.transact", refuse)
        for run_id in ("a", "b"):
            with pytest.raises(UnavailableError, match="refused"):
                records.end(done(run_id, NOW_MS, exit_status=1, status="failed"))
    records.end(done("a", NOW_MS + 1))
    assert {one.run_id: one.status for one in records.select(RunFilter(), NOW_MS)} == {"a": "done", "b": "failed"}
    with monkeypatch.context() as patch:
        patch.setattr("icekeep.catalog.database.Database.transact", refuse)
        with pytest.raises(UnavailableError, match="refused"):
            records.end(done("c", NOW_MS))
    putting = store._putting
    with monkeypatch.context() as patch:
        patch.setattr(store, "_putting", lambda rows: refuse if rows[0]["run_id"] == "c" else putting(rows))
        records.begin(record("d"))
    assert {one.run_id for one in records.select(RunFilter(), NOW_MS)} == {"a", "b", "d"}
    records.beat("d", NOW_MS)
    assert {one.run_id for one in records.select(RunFilter(), NOW_MS)} == {"a", "b", "c", "d"}


def test_pending_end_refused_by_database_blocks_no_other(tmp_path, monkeypatch):
    records = RunRecords.at(f"sqlite:///{tmp_path}/runs.db", FakeRuntime())
    with monkeypatch.context() as patch:
        patch.setattr("icekeep.catalog.database.Database.transact", refuse)
        for run_id in "abcde":
            with pytest.raises(UnavailableError, match="refused"):
                records.end(done(run_id, NOW_MS))
    putting = store._putting

    def picky(rows):
        def wrong(connection):
            raise UsageError("it does not fit")

        return wrong if "c" in {row["run_id"] for row in rows} else putting(rows)

    monkeypatch.setattr(store, "_putting", picky)
    records.begin(record("f"))
    assert {one.run_id for one in records.select(RunFilter(), NOW_MS)} == set("abdef")
    records.beat("f", NOW_MS)
    assert len(records.select(RunFilter(), NOW_MS)) == 5


@pytest.mark.parametrize(
    ("parent", "has_died"),
    [
        (done("maintain-1", NOW_MS), False),
        (done("maintain-1", NOW_MS, 143, INTERRUPTED), False),
        (record("maintain-1", seen_ms=NOW_MS - HOUR_MS), True),
        (done("maintain-2", NOW_MS), True),
    ],
)
def test_child_of_ended_run_lost_its_end_and_is_not_dead(records, parent, has_died):
    records.begin(record(parent_id="maintain-1", seen_ms=NOW_MS - HOUR_MS))
    records.end(msgspec.structs.replace(parent, job="maintain", table="", policy=None))
    last = records.last_of(["lake.db.t"], NOW_MS).get(("lake.db.t", "compact"), LastRuns())
    assert (last.failures_in_a_row, last.last_failure_ms) == ((1, NOW_MS - HOUR_MS) if has_died else (0, None))


def test_a_failure_that_nobody_waited_for_is_tried_again_at_once(tmp_path, monkeypatch):
    records = RunRecords.at(f"sqlite:///{tmp_path}/runs.db", FakeRuntime())
    with monkeypatch.context() as patch:
        patch.setattr("icekeep.catalog.database.Database.transact", refuse)
        with pytest.raises(UnavailableError, match=r"connection refused$"):
            records.take_lease("t", "a", NOW_MS + 1, NOW_MS)
    assert records.take_lease("t", "a", NOW_MS + 1, NOW_MS) == "a"


def refuse(*_, **__):
    raise UnavailableError("connection refused")


def test_an_address_that_makes_no_sense_names_the_key():
    with pytest.raises(ConfigError, match=r"runs\.uri"):
        RunRecords.at("nonsense")


def test_a_look_at_a_catalog_is_kept_until_the_next_one(records, tmp_path):
    assert records.last_look("sql at x") is None
    records.begin(record())
    assert records.last_look("sql at x") is None
    for at_ms in (NOW_MS, NOW_MS + 1):
        records.keep_look("sql at x", at_ms, b"\x00found")
    assert records.last_look("sql at x") == (NOW_MS + 1, b"\x00found")
    assert records.last_look("sql at y") is None
