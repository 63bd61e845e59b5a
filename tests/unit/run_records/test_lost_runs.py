"""Runs that died are appended to the Iceberg table of runs by the next run over many tables, once, with their parts."""

import msgspec
import pytest

from icekeep.errors import UnavailableError
from icekeep.run_records import iceberg_table as lost_runs
from icekeep.run_records.iceberg_table import append_with_lost
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import SILENT_MS, SKEW_MS, RunFilter, RunRecord
from icekeep.runs import UNFINISHED
from icekeep.tables.read import read_table
from kit.changes import thrown
from kit.memory_catalog import MemoryCatalog

NOW_MS = 1_700_000_000_123
RUNS = ("ops", "runs")
DEAD_MS = NOW_MS - SILENT_MS - SKEW_MS - 1


def run(run_id: str, at_ms: int = NOW_MS, **fields: object) -> RunRecord:
    ended = {"ended_ms": at_ms, "status": "done", "exit_status": 0}
    known = {"job": run_id.partition("-")[0], "table": "lake.db.t", "started_ms": at_ms, "seen_ms": at_ms}
    return RunRecord(**{"run_id": run_id, **known, **ended, **fields})


def begun(run_id: str, at_ms: int, **fields: object) -> RunRecord:
    return run(run_id, at_ms, ended_ms=None, status="running", exit_status=None, **fields)


@pytest.fixture
def records(tmp_path) -> RunRecords:
    records = RunRecords.at(f"sqlite:///{tmp_path}/runs.db")
    records.begin(begun("maintain-0", DEAD_MS, table=""))
    records.end(run("compact-0", DEAD_MS, parent_id="maintain-0"))
    records.begin(begun("check-0", DEAD_MS, parent_id="maintain-0"))
    # Others that live, and one that a hand began.
    records.begin(begun("maintain-8", NOW_MS, table=""))
    records.begin(begun("compact-8", NOW_MS, parent_id="maintain-8"))
    records.begin(begun("drop-0", DEAD_MS))
    return records


def told(catalog: MemoryCatalog) -> list[tuple[str, str]]:
    rows = read_table(catalog.load(RUNS)).to_pylist()
    return sorted((row["run_id"], row["status"]) for row in rows)


def test_the_next_run_of_many_appends_what_died_once(records):
    catalog = MemoryCatalog()
    append_with_lost(catalog, RUNS, run("compact-1"), records)
    assert told(catalog) == [("compact-1", "done")]
    append_with_lost(catalog, RUNS, run("maintain-1", table=""), records)
    lost = [("check-0", UNFINISHED), ("compact-0", "done"), ("drop-0", UNFINISHED), ("maintain-0", UNFINISHED)]
    assert told(catalog) == sorted([*lost, ("compact-1", "done"), ("maintain-1", "done")])
    assert len(catalog.load(RUNS).metadata.snapshots) == 2
    append_with_lost(catalog, RUNS, run("maintain-2", table=""), records)
    assert told(catalog) == sorted(
        [*lost, *((f"{job}-{n}", "done") for job, n in (("compact", 1), ("maintain", 1), ("maintain", 2)))]
    )
    # In the record they are what they were.
    assert {one.run_id for one in records.select(RunFilter(status=UNFINISHED), NOW_MS)} == {
        "maintain-0",
        "check-0",
        "drop-0",
    }


def test_what_could_not_be_appended_is_tried_by_the_run_after(records, monkeypatch):
    catalog, appending = MemoryCatalog(), lost_runs.append_runs
    monkeypatch.setattr(lost_runs, "append_runs", thrown(UnavailableError("away")))
    with pytest.raises(UnavailableError):
        append_with_lost(catalog, RUNS, run("maintain-1", table=""), records)
    monkeypatch.setattr(lost_runs, "append_runs", appending)
    append_with_lost(catalog, RUNS, run("maintain-2", table=""), records)
    assert ("maintain-0", UNFINISHED) in told(catalog)


def test_run_ending_while_taken_for_dead_keeps_its_end(records, monkeypatch):
    catalog, appending = MemoryCatalog(), lost_runs.append_runs

    def meanwhile(*arguments, **more):
        records.end(run("drop-0"))
        appending(*arguments, **more)

    monkeypatch.setattr(lost_runs, "append_runs", meanwhile)
    append_with_lost(catalog, RUNS, run("maintain-1", table=""), records)
    assert [(one.status, one.ended_ms) for one in records.select(RunFilter(run_id="drop-0"), NOW_MS)] == [
        ("done", NOW_MS)
    ]


@pytest.mark.parametrize("change", ["end", "beat"])
def test_a_run_that_is_heard_of_after_it_was_read_is_not_dead(records, monkeypatch, change):
    catalog, reading = MemoryCatalog(), lost_runs._dead

    def read(*arguments):
        found = reading(*arguments)
        records.end(run("drop-0")) if change == "end" else records.beat("drop-0", NOW_MS)
        return found

    monkeypatch.setattr(lost_runs, "_dead", read)
    append_with_lost(catalog, RUNS, run("maintain-1", table=""), records)
    assert "drop-0" not in {run_id for run_id, _ in told(catalog)}
    (left,) = records.select(RunFilter(run_id="drop-0"), NOW_MS)
    assert (left.status, left.ended_ms) == (("done", NOW_MS) if change == "end" else ("running", None))


def test_of_two_runs_that_see_the_dead_at_once_one_appends_them(records, monkeypatch):
    catalog, reading = MemoryCatalog(), lost_runs._dead
    turns = iter([True, False])

    def read(*arguments):
        found = reading(*arguments)
        if next(turns):
            append_with_lost(catalog, RUNS, run("maintain-2", table=""), records)
        return found

    monkeypatch.setattr(lost_runs, "_dead", read)
    append_with_lost(catalog, RUNS, run("maintain-1", table=""), records)
    found = [run_id for run_id, _ in told(catalog)]
    assert sorted(found) == sorted({*found})
    assert {"maintain-0", "maintain-1", "maintain-2"} <= {*found}


@pytest.mark.parametrize("seen_ms", [NOW_MS - SILENT_MS - SKEW_MS, NOW_MS + 2 * SKEW_MS])
def test_wrong_clock_makes_no_working_run_dead(records, seen_ms):
    records.begin(begun("check-9", seen_ms))
    catalog = MemoryCatalog()
    append_with_lost(catalog, RUNS, run("maintain-1", table=""), records)
    assert "check-9" not in {run_id for run_id, _ in told(catalog)}


def test_without_a_record_of_runs_nothing_is_known_of_others():
    catalog = MemoryCatalog()
    append_with_lost(catalog, RUNS, msgspec.structs.replace(run("maintain-1"), table=""), None)
    assert told(catalog) == [("maintain-1", "done")]
