import pytest

from icekeep.events import (
    CommitRetried,
    InRun,
    RunEnded,
    RunStarted,
    SnapshotCommitted,
    StepAdvanced,
    StepFinished,
    StepStarted,
    Warned,
)
from icekeep.fleet.values import Failing, MaintainResult
from icekeep.maintenance.check.job import CheckResult
from icekeep.maintenance.compact.options import CompactionEstimate, RewriteDataFilesResult
from icekeep.maintenance.deletes.options import ConvertEqualityDeletesResult, RewritePositionDeletesResult
from icekeep.maintenance.expire.job import ExpireSnapshotsResult
from icekeep.maintenance.orphans.job import RemoveOrphanFilesResult
from icekeep.reports.values import NotRead
from icekeep.telemetry.figures import OF_RUN, RUN_METRICS, RunTally, table_labels
from kit.cases import for_each

STARTED = RunStarted(
    run_id="compact-1", job="compact", table="lake.db.events", policy="nightly", started_ms=1_700_000_000_000
)


def ended(result=None, status="done", exit_status=0):
    return RunEnded(
        run_id="compact-1", status=status, exit_status=exit_status, ended_ms=1_700_000_012_500, result=result
    )


def values(tally, end):
    """The figures without labels by the rest of their names; those of steps and status have one more label."""
    return {(f.metric.name.removeprefix("icekeep_run_"), *f.labels[len(OF_RUN) :]): f.value for f in tally.figures(end)}


def figures_of(result):
    return {name[0]: value for name, value in values(RunTally(STARTED), ended(result)).items()}


def test_when_a_run_was_and_how_it_ended():
    assert values(RunTally(STARTED), ended()) == {
        ("last_start_timestamp_seconds",): 1_700_000_000.0,
        ("last_end_timestamp_seconds",): 1_700_000_012.5,
        ("last_success_timestamp_seconds",): 1_700_000_012.5,
        ("duration_seconds",): 12.5,
        ("exit_status",): 0,
        ("commits",): 0,
        ("conflicts",): 0,
        ("retries",): 0,
        ("warnings",): 0,
        ("status", "done"): 1,
    }


@for_each(("exit_status", "is_good"), [(0, True), (3, True), (4, False), (1, False), (75, False)])
def test_only_a_run_that_did_its_work_moves_the_time_of_success(exit_status, is_good):
    found = values(RunTally(STARTED), ended(exit_status=exit_status, status="x"))
    assert (("last_success_timestamp_seconds",) in found) is is_good
    assert found["status", "x"] == 1


def test_events_are_counted_and_repeated_steps_timed():
    tally = RunTally(STARTED)
    for now_ms, event in (
        (0, StepStarted("planning")),
        (2_000, InRun("compact-1", StepFinished("planning"))),
        (2_000, StepAdvanced("planning")),
        (3_000, SnapshotCommitted("db.events", 7, "m")),
        (3_000, CommitRetried("db.events", 1, 100, "others", is_conflict=True)),
        (3_000, CommitRetried("db.events", 2, 100, "away")),
        (3_000, Warned("careful")),
        (4_000, StepStarted("planning")),
        (4_500, StepFinished("planning")),
        (5_000, StepFinished("never begun")),
        (5_000, StepStarted("never ended")),
    ):
        tally.add(event, now_ms)
    found = values(tally, ended())
    assert {name[0]: value for name, value in found.items() if name[0] in ("commits", "conflicts", "retries")} == {
        "commits": 1,
        "conflicts": 1,
        "retries": 2,
    }
    assert found["warnings",] == 1
    assert {name[1]: value for name, value in found.items() if name[0] == "step_duration_seconds"} == {"planning": 2.5}


@for_each(
    "step",
    [
        "rewriting data files: rewriting group 12 of 90, 31 files of day=2026-01-01",
        "deleting 31 files",
        "rewriting data files: planning",
        "x" * 100,
        "",
    ],
)
def test_a_step_whose_name_is_without_bound_is_no_label(step):
    tally = RunTally(STARTED)
    for event in (StepStarted(step), StepFinished(step), StepStarted("starting Spark"), StepFinished("starting Spark")):
        tally.add(event, 1)
    assert [name[1] for name in values(tally, ended()) if name[0] == "step_duration_seconds"] == ["starting Spark"]


def test_a_compaction():
    found = figures_of(
        RewriteDataFilesResult(
            rewritten_data_files_count=10,
            added_data_files_count=2,
            rewritten_bytes_count=1000,
            added_bytes_count=900,
            removed_delete_files_count=3,
            deleted_records_count=5,
            failed_data_files_count=1,
            estimated=CompactionEstimate(requests_count=44),
            cpu_ms=1500,
            peak_task_bytes=77,
        )
    )
    expected = {
        "rewritten_files": 10,
        "added_files": 2,
        "rewritten_bytes": 1000,
        "added_bytes": 900,
        "removed_delete_files": 3,
        "deleted_rows": 5,
        "failed_files": 1,
        "estimated_requests": 44,
        "cpu_seconds": 1.5,
        "peak_task_bytes": 77,
    }
    assert expected.items() <= found.items()
    assert not {"deleted_files", "orphan_files", "expired_snapshots"} & found.keys()


def test_converted_deletes_count_with_rewritten_ones():
    conversion = ConvertEqualityDeletesResult(
        converted_equality_delete_files_count=4, added_delete_files_count=2, converted_bytes_count=10
    )
    found = figures_of(
        RewritePositionDeletesResult(
            rewritten_delete_files_count=3, added_delete_files_count=1, rewritten_bytes_count=5, conversion=conversion
        )
    )
    assert (found["rewritten_files"], found["added_files"], found["rewritten_bytes"]) == (7, 3, 15)


@pytest.mark.parametrize(("is_in_trash", "freed"), [(True, 0), (False, 500)])
def test_what_lies_in_the_trash_is_not_freed(is_in_trash, freed):
    found = figures_of(
        ExpireSnapshotsResult(
            expired_snapshots_count=6,
            deleted_files_count=7,
            deleted_data_files_count=1,
            deleted_manifest_lists_count=2,
            deleted_metadata_files_count=4,
            deleted_bytes_count=500,
            emptied_trash_files_count=9,
            is_in_trash=is_in_trash,
        )
    )
    assert (found["deleted_files"], found["deleted_bytes"], found["freed_bytes"]) == (7, 500, freed)
    assert (found["expired_snapshots"], found["emptied_trash_files"]) == (6, 9)


def test_metadata_files_among_orphans_count_once():
    found = figures_of(
        RemoveOrphanFilesResult(orphan_files_count=8, deleted_files_count=7, deleted_metadata_files_count=2)
    )
    assert (found["orphan_files"], found["deleted_files"]) == (8, 7)


def test_faults_that_check_finds():
    assert figures_of(CheckResult(status="faulty", is_deep=False, faults_count=3))["faults"] == 3


def test_a_run_over_many_tables():
    result = MaintainResult(
        status="partial",
        run_id="maintain-1",
        tables_count=40,
        due_jobs_count=9,
        done_jobs_count=7,
        refused_jobs_count=2,
        failing=(Failing(table="a.b.c", job="compact", failures_in_a_row=3, why="x"),),
        not_read=(NotRead(name="a.b.d", kind="x", reason="y"),),
    )
    found = values(RunTally(STARTED), ended(result))
    jobs = {name[1]: value for name, value in found.items() if name[0] == "jobs"}
    assert {status: count for status, count in jobs.items() if count} == {"due": 9, "done": 7, "refused": 2}
    assert jobs.keys() >= {"not_begun", "failed", "interrupted"}
    assert (found["tables",], found["failing_jobs",], found["not_read_tables",]) == (40, 1, 1)


@for_each("result", [None, "text", {"a": 1}, STARTED])
def test_a_result_that_says_nothing_has_no_figures(result):
    assert not {"rewritten_files", "faults", "freed_bytes"} & figures_of(result).keys()


def test_labels_are_as_many_as_the_metric_says():
    tally = RunTally(STARTED)
    tally.add(StepStarted("s"), 0)
    tally.add(StepFinished("s"), 1)
    found = tally.figures(ended(RewriteDataFilesResult()))
    assert found
    assert all(len(f.labels) == len(f.metric.labels) for f in found)
    assert all(f.labels[: len(OF_RUN)] == ("lake", "db", "lake.db.events", "compact", "nightly") for f in found)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("", ("", "", "")),
        ("lake.db.t", ("lake", "db", "lake.db.t")),
        ("lake.a.b.t", ("lake", "a.b", "lake.a.b.t")),
    ],
)
def test_the_labels_of_a_table(name, labels):
    assert table_labels(name) == labels


def test_names_say_the_unit_and_are_told_once():
    names = [one.name for one in RUN_METRICS]
    assert len(set(names)) == len(names)
    assert all(one.help and not one.help.endswith(".") for one in RUN_METRICS)
    assert {one.unit for one in RUN_METRICS} == {"1", "bytes", "seconds"}
