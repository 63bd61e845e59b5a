"""The record of runs in SQLite: what is written is read, what is asked in one query is what a plain look at all runs tells."""

import sqlite3

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import ConfigError, UnavailableError, UnsupportedError, UsageError
from icekeep.maintenance.deletion.processes import process_name
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import INTERRUPTED, RUNNING, SILENT_MS, UNFINISHED, LastRuns, RunFilter, RunRecord
from kit.cases import cases
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
    )
    plain = record()
    same = [name for name in RunRecord.__struct_fields__ if getattr(whole, name) == getattr(plain, name)]
    assert same == ["run_id", "job", "table", "started_ms"]
    records.begin(whole)
    assert records.select(RunFilter(), NOW_MS) == [whole]


def test_an_end_is_written_over_its_beginning_and_also_without_one(records):
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
    for run in sorted(runs, key=lambda one: one.ended_ms or one.seen_ms):
        at_ms, before = run.ended_ms or run.seen_ms, told.get((run.table, run.job))
        if run.policy is None:
            continue
        if run.exit_status in (0, 3):
            after = LastRuns(last_ok_ms=at_ms)
            if before is not None:
                after = msgspec.structs.replace(
                    after, last_failure_ms=before.last_failure_ms, last_error=before.last_error
                )
        elif run.is_unfinished(NOW_MS) or (run.exit_status is not None and run.status != INTERRUPTED):
            before = before or LastRuns()
            after = msgspec.structs.replace(
                before,
                failures_in_a_row=before.failures_in_a_row + 1,
                last_failure_ms=at_ms,
                last_error=run.error_message,
            )
        else:
            continue
        told[run.table, run.job] = after
    return told


JOBS = st.sampled_from(["compact", "check"])
ENDS = st.sampled_from(["done", "partial", "failed", "again", "interrupted", "running", "died"])


def run_of(number, end, table, job, policy):
    at_ms = NOW_MS - 10 * SILENT_MS + number
    common = {"table": table, "job": job, "policy": policy, "started_ms": at_ms - 5}
    match end:
        case "running":
            return record(f"r{number}", **common, seen_ms=NOW_MS)
        case "died":
            return record(f"r{number}", **common, seen_ms=at_ms)
    status, exit_status = {
        "done": ("done", 0),
        "partial": ("partial", 3),
        "failed": ("failed", 1),
        "again": ("failed", 75),
        "interrupted": (INTERRUPTED, 143),
    }[end]
    message = f"error {number}" if exit_status in (1, 75) else None
    return record(
        f"r{number}",
        **common,
        ended_ms=at_ms,
        seen_ms=at_ms,
        status=status,
        exit_status=exit_status,
        error_message=message,
    )


@cases(60)
@given(runs=st.lists(st.tuples(ENDS, st.sampled_from("tu"), JOBS, st.sampled_from(["p", None])), max_size=12))
def test_last_runs_are_those_of_a_plain_look(tmp_path_factory, runs):
    records = RunRecords.at(f"sqlite:///{tmp_path_factory.mktemp('runs')}/runs.db")
    written = [run_of(number, *one) for number, one in enumerate(runs)]
    for one in written:
        records.end(one)
    assert records.last_of(["t", "u"], NOW_MS) == plainly_last(written)
    assert records.last_of(["t"], NOW_MS) == {key: one for key, one in plainly_last(written).items() if key[0] == "t"}


def test_a_fleet_is_asked_of_in_one_query_however_large_it_is(records):
    records.end(done("a", NOW_MS, table="lake.db.t7"))
    many = [f"lake.db.t{number}" for number in range(40_000)]
    assert records.last_of(many, NOW_MS) == {("lake.db.t7", "compact"): LastRuns(last_ok_ms=NOW_MS)}


def test_a_lease_is_one_holder_s_until_it_is_given_back_or_its_time_is_over(records):
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


def test_old_runs_are_forgotten(records):
    for run_id, started_ms in (("a", NOW_MS - 2), ("b", NOW_MS - 1)):
        records.begin(record(run_id, started_ms=started_ms))
    records.forget(NOW_MS - 1)
    assert [one.run_id for one in records.select(RunFilter(), NOW_MS)] == ["b"]


def test_a_result_that_is_too_long_is_left_out_and_said_so(records):
    records.end(done("a", NOW_MS, result={"text": "x" * 300_000}))
    assert "300011 bytes" in records.select(RunFilter(), NOW_MS)[0].result["left_out"]


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


def test_a_locked_database_is_waited_for_for_some_seconds_and_then_told(tmp_path):
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


def test_an_address_that_makes_no_sense_names_the_key():
    with pytest.raises(ConfigError, match=r"runs\.uri"):
        RunRecords.at("nonsense")
