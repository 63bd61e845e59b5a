"""Many processes that write their runs into one database at once."""

import multiprocessing

from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunFilter, RunRecord
from icekeep.runtime import SYSTEM

PROCESSES = 10
RUNS = 5


def write_runs(uri, number, start, counts):
    """Begin and end runs, and fight for one lease."""
    records = RunRecords.at(uri)
    start.wait(60)
    taken = 0
    for turn in range(RUNS):
        now_ms = SYSTEM.now_ms()
        run = RunRecord(
            run_id=f"compact-{number}-{turn}", job="compact", table="l.db.t", started_ms=now_ms, seen_ms=now_ms
        )
        records.begin(run)
        records.beat(run.run_id, now_ms + 1)
        taken += records.take_lease(f"l.db.t{turn}", f"{number}", now_ms + 3_600_000, now_ms) == f"{number}"
        records.end(RunRecord(**{**as_dict(run), "status": "done", "exit_status": 0, "ended_ms": now_ms}))
    counts.put(taken)


def as_dict(run):
    return {name: getattr(run, name) for name in RunRecord.__struct_fields__}


def assert_all_are_there(uri):
    """None is lost, none is told that the database is busy, and a lease has one holder."""
    context = multiprocessing.get_context("spawn")
    start, counts = context.Barrier(PROCESSES), context.Queue()
    processes = [context.Process(target=write_runs, args=(uri, n, start, counts)) for n in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    records = RunRecords.at(uri)
    found = records.select(RunFilter(), SYSTEM.now_ms())
    assert {one.run_id for one in found} == {f"compact-{n}-{turn}" for n in range(PROCESSES) for turn in range(RUNS)}
    assert {one.status for one in found} == {"done"}
    # Each lease has one holder and no more.
    assert sum(counts.get(timeout=10) for _ in processes) == RUNS
