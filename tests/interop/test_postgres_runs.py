"""The record of runs in PostgreSQL: as in SQLite, and read by PostgreSQL's own client."""

import pytest

from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import CUT_OFF_MS, LastRuns, RunFilter, RunRecord
from kit.postgres import assert_all_are_there

pytestmark = pytest.mark.deep

NOW_MS = 1_700_000_000_000


def record(run_id, **fields):
    return RunRecord(
        **{"run_id": run_id, "job": "compact", "table": "l.db.t", "started_ms": NOW_MS, "seen_ms": NOW_MS, **fields}
    )


def test_runs_are_read_as_they_were_written_and_by_others(postgres):
    uri = postgres.new_database()
    records = RunRecords.at(uri)
    assert records.select(RunFilter(), NOW_MS) == []
    assert records.last_of(["l.db.t"], NOW_MS) == {}
    whole = record(
        "compact-1",
        policy="nightly",
        arguments={"where": "a = 'ü'"},
        result={"files": [1, None]},
        snapshot_id_before=2**62,
        status="failed",
        exit_status=1,
        error_message="another won",
        ended_ms=NOW_MS + 5,
    )
    records.begin(record("compact-1"))
    records.end(whole)
    records.begin(record("compact-2", started_ms=NOW_MS + 1))
    records.beat("compact-2", NOW_MS + 9)
    assert [one.seen_ms for one in records.select(RunFilter(run_id="compact-2"), NOW_MS)] == [NOW_MS + 9]
    assert records.select(RunFilter(status="failed"), NOW_MS) == [whole]
    assert records.last_of(["l.db.t", "l.db.u"], NOW_MS) == {
        ("l.db.t", "compact"): LastRuns(
            failures_in_a_row=1, last_failure_ms=NOW_MS + 5, last_error="another won", night_ms=NOW_MS + 5
        )
    }
    assert postgres.query(uri, "SELECT run_id, status, exit_status FROM icekeep_runs ORDER BY run_id") == [
        ["compact-1", "failed", "1"],
        ["compact-2", "running", ""],
    ]
    records.forget(NOW_MS + 1, NOW_MS + 2)
    assert [one.run_id for one in records.select(RunFilter(), NOW_MS)] == ["compact-2"]


def test_time_limits_hold_in_a_schema_of_its_own(postgres):
    uri = postgres.new_database()
    records = RunRecords.at(f"{uri}{'&' if '?' in uri else '?'}options=-csearch_path%3Druns")
    with records._database.reading() as connection:
        shown = [
            connection.exec_driver_sql(f"SHOW {name}").scalar()
            for name in ("lock_timeout", "statement_timeout", "search_path")
        ]
    assert shown == ["5s", "10s", "runs"]


def test_a_run_is_marked_as_dead_once_and_only_as_it_was_read(postgres):
    records = RunRecords.at(postgres.new_database())
    for run_id in ("check-1", "check-2", "check-3"):
        records.begin(record(run_id, job="check"))
    records.beat("check-2", NOW_MS + 1)
    records.end(record("check-3", job="check", status="done", exit_status=0, ended_ms=NOW_MS))
    read = [record(f"check-{number}", job="check") for number in (1, 2, 3)]
    assert [records.mark_dead(one) for one in read] == [True, False, False]
    assert not records.mark_dead(read[0])
    records.unmark_dead(read[0])
    assert records.mark_dead(read[0])


def test_what_was_cut_off_and_what_lost_its_end_is_told(postgres):
    records = RunRecords.at(postgres.new_database())
    records.end(record("maintain-1", job="maintain", table="", status="done", exit_status=0, ended_ms=NOW_MS))
    for table, parent_id in (("a", "maintain-1"), ("b", "maintain-2")):
        records.begin(record(f"compact-{table}", table=table, parent_id=parent_id, policy="nightly"))
    later_ms = NOW_MS + 2 * CUT_OFF_MS
    cut_off = {"status": "interrupted", "exit_status": 143, "ended_ms": NOW_MS + CUT_OFF_MS}
    records.end(record("compact-c", table="c", policy="nightly", **cut_off))
    found = {table: last for (table, _), last in records.last_of(["a", "b", "c"], later_ms).items()}
    assert {table: (one.failures_in_a_row, one.cut_offs_in_a_row) for table, one in found.items()} == {
        "b": (1, 0),
        "c": (0, 1),
    }


def test_leases_are_one_holder_s(postgres):
    records = RunRecords.at(postgres.new_database())
    assert records.take_lease("t", "a", NOW_MS + 10, NOW_MS) == "a"
    assert records.take_lease("t", "b", NOW_MS + 20, NOW_MS + 9) == "a"
    assert records.take_lease("t", "b", NOW_MS + 20, NOW_MS + 10) == "b"
    records.renew_leases("b", NOW_MS + 90)
    assert records.take_lease("t", "a", NOW_MS + 99, NOW_MS + 89) == "b"
    records.drop_lease("t", "b")
    assert records.take_lease("t", "a", NOW_MS + 99, NOW_MS + 50) == "a"


def test_none_of_many_processes_loses_a_run(postgres):
    assert_all_are_there(postgres.new_database())
